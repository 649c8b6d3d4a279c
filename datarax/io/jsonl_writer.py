"""`JSONLWriter`: one JSON object a line."""

import json
import math
import os
from pathlib import Path

from datarax.io.appending import append
from datarax.io.writer import Items, OnError, Step, Writer
from datarax.metric.values import jsonable

_BLOCK = 1 << 16


class JSONLWriter(Writer):
    """Writes JSON lines: `step`, and the results by name.

    A line is whole or absent, also if the process is killed. A file that exists is continued, after
    an incomplete last line is removed. NaN is `null`; infinities are the strings "inf" and "-inf",
    which `float` reads. `flush` asks the system to write to the disk.

    Args:
        path: the file; folders above it are made.
        on_error: see `Writer`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from datarax.io import JSONLWriter
        >>> path = Path(tempfile.mkdtemp()) / "history.jsonl"
        >>> with JSONLWriter(path) as writer:
        ...     writer.write(100, {"loss": 0.5, "auroc": float("nan")})
        >>> print(path.read_text(), end="")
        {"step": 100, "loss": 0.5, "auroc": null}
    """

    def __init__(self, path: str | Path, *, on_error: OnError = "warn"):
        super().__init__(on_error=on_error)
        self.path: Path = Path(path)
        self._file = -1

    def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        end = _end_of_lines(self._file)
        if end != os.lseek(self._file, 0, os.SEEK_END):
            os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def put(self, step: Step, items: Items) -> None:
        line = {"step": jsonable(step)} | {name: finite(jsonable(x)) for name, x in items.items()}
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        append(self._file, data)

    def sync(self) -> None:
        if os.lseek(self._file, 0, os.SEEK_CUR):
            os.fsync(self._file)

    def end(self) -> None:
        os.close(self._file)


def finite(x: object) -> object:
    """Nested lists and dicts in which NaN is None, and infinities are strings."""
    # JSON (RFC 8259) has numbers for neither.
    if isinstance(x, float) and not math.isfinite(x):
        return None if math.isnan(x) else str(x)
    if isinstance(x, list):
        return [finite(each) for each in x]
    if isinstance(x, dict):
        return {name: finite(each) for name, each in x.items()}
    return x


def _end_of_lines(file: int) -> int:
    """Where the last complete line ends."""
    # Backwards, because the file of a long run is large, and its last line is near the end.
    end = os.lseek(file, 0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        place = os.pread(file, end - start, start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0
