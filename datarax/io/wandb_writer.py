"""`WandbWriter`: a run of Weights & Biases."""

from typing import TYPE_CHECKING

from datarax._optional import optional
from datarax.io.drawn_arrays import drawn
from datarax.io.writer import Items, OnError, Step, Writer

if TYPE_CHECKING:
    from wandb import Run


class WandbWriter(Writer):
    """Logs to a run of Weights & Biases: numbers, strings, histograms of vectors, images.

    Steps must grow; wandb drops others with a warning of its own. With `mode="offline"`, the run is
    a folder that `wandb sync` sends later. wandb writes its files in a process of its own, which
    does not report a full disk: then results are lost without a warning.

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
        self,
        run: "Run | None" = None,
        *,
        on_error: OnError = "warn",
        **init: object,
    ):
        super().__init__(on_error=on_error)
        self._wandb = optional("wandb", "wandb", "WandbWriter")
        self._given, self._init = run, init

    def open(self) -> None:
        self._run: Run = self._given or self._wandb.init(**self._init)

    def put(self, step: Step, items: Items) -> None:
        kinds = {"image": self._wandb.Image, "histogram": self._wandb.Histogram}
        # Numbers and strings are logged as they are.
        shown = {
            name: kinds[kind](value) if kind in kinds else value
            for name, kind, value in drawn(items)
        }
        self._run.log(shown, step=int(step))

    def end(self) -> None:
        # A run that was given belongs to the caller.
        if self._given is None:
            self._run.finish()
