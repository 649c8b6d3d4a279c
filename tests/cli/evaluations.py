"""Runs the evaluation commands in this process, on files with random predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax.cli import main

ROWS = 300
BATCH = 128


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """A Parquet file with these columns."""
    pq.write_table(pa.table(columns), path, **options)
    return path


def command(*argv: Any) -> int:
    """The exit code of a command that does not end with an error."""
    quiet = [] if argv[0] == "merge" else ["--no-progress", "--batch-size", BATCH]
    # Tests evaluate into one folder several times.
    quiet += ["--overwrite"] if "--output" in argv and "--resume" not in argv else []
    return main([str(each) for each in (*argv, *quiet)])


def evaluated(folder: Path, *argv: Any) -> dict[str, Any]:
    """The summary of an evaluation, which is written to a folder."""
    assert command("evaluate", *argv, "--output", folder) == 0
    return json.loads((folder / "metrics.json").read_text())


def values(summary: dict[str, Any]) -> dict[str, float]:
    """The values of the metrics by name."""
    return {row["name"]: row["value"] for row in summary["metrics"]}


def refusal(capsys: pytest.CaptureFixture[str], *argv: Any) -> str:
    """The one line on stderr with which a command ends, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        command(*argv)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert err.isascii() or err.rstrip("\n").isprintable()
    return err


def binary_columns(rng: np.random.Generator, rows: int = ROWS) -> dict[str, Any]:
    """Scores between 0 and 1 and labels that go with them, as they do in real predictions."""
    label = rng.integers(0, 2, rows)
    logit = rng.normal(size=rows) + 1.5 * (label - 0.5)
    return {
        "score": (1 / (1 + np.exp(-logit))).astype(np.float32),
        "label": label,
        "weight": rng.integers(1, 4, rows),
        "country": rng.choice(["de", "fr", "it"], rows),
    }
