"""The files that the demo writes."""

from pathlib import Path
from typing import NamedTuple


class DemoFiles(NamedTuple):
    """The paths of the files of one run."""

    history: Path
    picture: Path
    predictions: Path
    report: Path

    @classmethod
    def within(cls, folder: Path) -> "DemoFiles":
        return cls(
            folder / "history.jsonl",
            folder / "learning_curve.png",
            folder / "predictions.npz",
            folder / "report",
        )

    def prepare(self) -> None:
        """Removes the files of an earlier run, so that none is left if this run is stopped."""
        self.history.parent.mkdir(parents=True, exist_ok=True)
        self.history.write_text("")
        for path in (self.picture, self.predictions, self.report / "report.html"):
            path.unlink(missing_ok=True)
