"""`MultiWriter`: several writers as one."""

from collections.abc import Callable
from typing import Any, Protocol, Self

from datarax._errors import all_of
from datarax.io.writer import Step


class Writes(Protocol):
    """The protocol that writers have in common, those of other libraries included."""

    def write(self, step: Any, results: Any, /) -> object: ...
    def flush(self) -> object: ...
    def close(self) -> object: ...


class MultiWriter:
    """Passes results to several writers. If one of them fails, the others still write.

    Each method calls all writers, whatever error one of them raises, and then raises the first
    error. It has a note for each of the others.

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

    def __init__(self, *writers: Writes):
        self.writers = writers

    def write(self, step: Step, results: object) -> None:
        """Passes the results of one step to all writers.

        Raises:
            WriterError: a writer of datarax is closed, or failed and raises.
            Exception: what another writer raises.
        """
        self._each(lambda writer: writer.write(step, results))

    def flush(self) -> None:
        """Waits until all have written.

        Raises:
            WriterError, Exception: as in `write`.
        """
        self._each(lambda writer: writer.flush())

    def close(self) -> None:
        """Closes all.

        Raises:
            WriterError, Exception: as in `write`.
        """
        self._each(lambda writer: writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _each(self, call: Callable[[Writes], object]) -> None:
        errors: list[Exception] = []
        for writer in self.writers:
            try:
                call(writer)
            # Kept, so that the next writers are called too.
            except Exception as error:
                errors.append(error)
        if errors:  # the first one, with a note for each of the others
            raise all_of(errors)
