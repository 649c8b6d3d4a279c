"""`TensorBoardWriter`: event files for TensorBoard."""

import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datarax._optional import optional
from datarax.io.appending import append
from datarax.io.drawn_arrays import drawn
from datarax.io.writer import Items, OnError, Step, Writer


class TensorBoardWriter(Writer):
    """Writes event files: numbers as scalars, vectors as histograms, strings as text.

    Matrices, such as a confusion matrix, and the points of curves are images.

    Args:
        folder: where the event files are made.
        on_error: see `Writer`.

    Raises:
        MissingExtraError: tensorboardX is not installed.

    Example:
        >>> import tempfile
        >>> from datarax.io import TensorBoardWriter
        >>> with TensorBoardWriter(tempfile.mkdtemp()) as writer:
        ...     writer.write(100, {"loss": 0.5})
    """

    def __init__(self, folder: str | Path, *, on_error: OnError = "warn"):
        super().__init__(on_error=on_error)
        self.folder: Path = Path(folder)
        self._proto = optional("tensorboardX.proto.event_pb2", "tensorboard", "TensorBoardWriter")
        self._summary = optional("tensorboardX.summary", "tensorboard", "TensorBoardWriter")

    def open(self) -> None:
        self._events = EventFile(self.folder)
        try:
            first = self._proto.Event(wall_time=time.time(), file_version="brain.Event:2")
            self._events.add_event(first)
        except OSError:
            self._events.close()
            self._events.path.unlink()  # the next step makes another one
            raise

    def put(self, step: Step, items: Items) -> None:
        values = [x for name, kind, value in drawn(items) for x in self._shown(name, kind, value)]
        event = self._proto.Event(wall_time=time.time(), step=int(step), summary={"value": values})
        self._events.add_event(event)

    def _shown(self, name: str, kind: str, value: Any) -> Iterable[Any]:
        """The values of a summary that show one result."""
        if kind == "image":
            return self._summary.image(name, value, dataformats="HWC").value
        if kind == "histogram":
            return self._summary.histogram(name, value, _BINS).value
        if isinstance(value, str):
            return self._summary.text(name, value).value
        return self._summary.scalar(name, float(value)).value  # True is 1

    def sync(self) -> None:
        self._events.sync()

    def end(self) -> None:
        self._events.close()


class EventFile:
    """A new file of events, which are written at once, each as a whole.

    The writer of tensorboardX has a thread of its own. If that thread fails, as on a full disk, its
    queue fills, and then it blocks whoever writes. So only its formats are used.
    """

    def __init__(self, folder: Path):
        self._records = optional("tensorboardX.record_writer", "tensorboard", "TensorBoardWriter")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
        self.path: Path = folder / f"{name}.{secrets.token_hex(4)}"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def get_logdir(self) -> str:
        """The folder, by the name that other writers of events have for it."""
        return str(self.path.parent)

    def add_event(self, event: Any) -> None:
        """Appends a record of TensorFlow: the length and the bytes of an event, each with a CRC."""
        data = event.SerializeToString()
        crc, parts = self._records.masked_crc32c, (struct.pack("<Q", len(data)), data)
        append(self._file, b"".join(x + struct.pack("<I", crc(x)) for x in parts))

    def sync(self) -> None:
        """Asks the system to write to the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


_BINS = [-(1e-12 * 1.1**k) for k in range(773, -1, -1)] + [0.0]
_BINS += [-x for x in _BINS[-2::-1]]
"""The edges of histograms, which are those of TensorFlow: from 1e-12 to 1e20, each 1.1 times the
one before, of both signs."""
