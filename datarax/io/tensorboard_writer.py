"""`TensorBoardWriter`: event files for TensorBoard."""

from pathlib import Path
from typing import TYPE_CHECKING

from datarax._optional import optional
from datarax.io.drawn_arrays import drawn
from datarax.io.writer import Items, OnError, Step, Writer

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


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
        self._board = optional("tensorboardX", "tensorboard", "TensorBoardWriter")

    def open(self) -> None:
        # Its own thread would hide errors.
        self._events: SummaryWriter = self._board.SummaryWriter(
            str(self.folder), write_to_disk=True
        )

    def put(self, step: Step, items: Items) -> None:
        step = int(step)
        for name, kind, value in drawn(items):
            if kind == "image":
                self._events.add_image(name, value, step, dataformats="HWC")
            elif kind == "histogram":
                self._events.add_histogram(name, value, step)
            elif isinstance(value, str):
                self._events.add_text(name, value, step)
            else:
                self._events.add_scalar(name, float(value), step)

    def sync(self) -> None:
        self._events.flush()

    def end(self) -> None:
        self._events.close()
