"""`WandbWriter`: a run of Weights & Biases."""

from typing import Any, Literal

import numpy as np

from datarax._optional import optional
from datarax.io.drawn_arrays import image_of
from datarax.io.writer import Items, Writer


class WandbWriter(Writer):
    """Logs to a run of Weights & Biases: numbers, strings, histograms of vectors, images.

    Steps must grow; wandb drops others with a warning of its own. With `mode="offline"`, the run is
    a folder that `wandb sync` sends later.

    Args:
        run: a run that exists; it is not finished at the end. The default is a new one.
        on_error: see `Writer`.
        init: arguments of `wandb.init`, such as `project`, `name`, `dir` and `mode`.

    Raises:
        MissingExtraError: wandb is not installed.

    Example:
        >>> from datarax.io import WandbWriter
        >>> writer = WandbWriter(project="digits", mode="offline")
        >>> writer.close()  # the run starts with the first write
    """

    def __init__(
        self, run: Any = None, *, on_error: Literal["warn", "raise"] = "warn", **init: Any
    ):
        super().__init__(on_error=on_error)
        self._wandb = optional("wandb", "wandb", "WandbWriter")
        self._run, self._mine, self._init = run, run is None, init

    def open(self) -> None:
        if self._run is None:
            self._run = self._wandb.init(**self._init)

    def put(self, step: Any, items: Items) -> None:
        self._run.log(self._shown(items), step=int(step))

    def end(self) -> None:
        if self._mine:
            self._run.finish()

    def _shown(self, items: Items) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, value in items.items():
            image = image_of(value)
            if image is not None:
                shown[name] = self._wandb.Image(image)
            elif isinstance(value, np.ndarray | list):
                values = np.asarray(value)
                numbers = values.dtype.kind in "biuf"
                # A histogram of NaN or infinity has no range.
                finite = values[np.isfinite(values)] if numbers else values[:0]
                if finite.size:
                    shown[name] = self._wandb.Histogram(finite.ravel())
            elif hasattr(value, "_fields"):
                shown |= self._shown({f"{name}/{n}": x for n, x in value._asdict().items()})
            elif value is not None:
                shown[name] = value
        return shown
