"""`MultiWriter`: several writers as one."""

from collections.abc import Callable
from typing import Any, Self

from datarax._errors import DataraxError


class MultiWriter:
    """Passes results to several writers. If one of them fails, the others still write.

    Args:
        writers: objects with `write(step, results)`, `flush()` and `close()`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from datarax.io import JSONLWriter, MultiWriter
        >>> folder = tempfile.mkdtemp()
        >>> with MultiWriter(JSONLWriter(f"{folder}/a"), JSONLWriter(f"{folder}/b")) as writer:
        ...     writer.write(1, {"loss": 0.5})
        >>> print([path.read_text() for path in sorted(Path(folder).iterdir())])
        ['{"step": 1, "loss": 0.5}\\n', '{"step": 1, "loss": 0.5}\\n']
    """

    def __init__(self, *writers: Any):
        self.writers = writers

    def write(self, step: Any, results: Any) -> None:
        """Passes the results of one step to all writers.

        Raises:
            WriterError: a writer is closed, or failed and raises; after all others were called.
        """
        self._each(lambda writer: writer.write(step, results))

    def flush(self) -> None:
        """Waits until all have written.

        Raises:
            WriterError: a writer failed and raises.
        """
        self._each(lambda writer: writer.flush())

    def close(self) -> None:
        """Closes all.

        Raises:
            WriterError: a writer failed and raises.
        """
        self._each(lambda writer: writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    def _each(self, call: Callable[[Any], None]) -> None:
        first: DataraxError | None = None
        for writer in self.writers:
            try:
                call(writer)
            except DataraxError as error:
                first = first or error
        if first is not None:
            raise first
