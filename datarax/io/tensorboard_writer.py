"""`TensorBoardWriter`: event files for TensorBoard."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from datarax._optional import optional
from datarax.io.drawn_arrays import image_of
from datarax.io.writer import Items, Writer


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

    def __init__(self, folder: str | Path, *, on_error: Literal["warn", "raise"] = "warn"):
        super().__init__(on_error=on_error)
        self.folder: Path = Path(folder)
        self._board = optional("tensorboardX", "tensorboard", "TensorBoardWriter")
        self._events: Any = None

    def open(self) -> None:
        # Its own thread would hide errors.
        self._events = self._board.SummaryWriter(str(self.folder), write_to_disk=True)

    def put(self, step: Any, items: Items) -> None:
        step = int(step)
        for name, value in items.items():
            image = image_of(value)
            if image is not None:
                self._events.add_image(name, image, step, dataformats="HWC")
            elif isinstance(value, np.ndarray | list):
                values = np.asarray(value)
                # A histogram of NaN or infinity has no range.
                finite = values[np.isfinite(values)] if values.dtype.kind in "biuf" else values[:0]
                if finite.size:
                    self._events.add_histogram(name, finite.ravel(), step)
            elif isinstance(value, str):
                self._events.add_text(name, value, step)
            elif hasattr(value, "_fields"):
                self.put(step, {f"{name}/{n}": x for n, x in value._asdict().items()})
            elif value is not None:
                self._events.add_scalar(name, float(value), step)

    def sync(self) -> None:
        self._events.flush()

    def end(self) -> None:
        self._events.close()
