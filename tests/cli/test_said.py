"""What the commands say of choices that they make themselves."""

import io

import numpy as np
from rich.console import Console

from datarax.cli import console_tables
from datarax.evaluation.html_report import render
from tests.cli.evaluations import evaluated, write

STRINGS = ("--task", "binary", "--preds", "score", "--target", "label", "--metrics", "recall")


def printed(summary, width=80):
    file = io.StringIO()
    console_tables.show(Console(file=file, width=width), summary)
    return file.getvalue()


def test_the_positive_class_of_strings_is_said(tmp_path):
    label = np.array(["legit", "fraud", "fraud", "legit"])
    path = write(tmp_path / "a.parquet", {"score": np.array([0.9, 0.8, 0.7, 0.1]), "label": label})
    for given, said in (
        ((), "legit (last in the alphabet; --classes sets it)"),
        (("--classes", "legit,fraud"), "fraud (set by --classes)"),
    ):
        summary = evaluated(tmp_path / f"out{len(given)}", path, *STRINGS, *given)
        assert summary["positive_class"] == said
        assert f"positive class: {said}" in printed(summary)
        page = (tmp_path / f"out{len(given)}/report.html").read_text()
        assert page == render(summary) or said in page
        assert said in render(summary)
        assert summary["metrics"][0]["value"] == (1.0 if given else 0.5)
    numbers = write(tmp_path / "b.parquet", {"score": np.array([0.9, 0.1]), "label": np.arange(2)})
    summary = evaluated(tmp_path / "numbers", numbers, *STRINGS)
    assert summary["positive_class"] is None
    assert "positive class" not in printed(summary).lower() + render(summary).lower()


def test_metrics_that_do_not_fit_a_table_of_slices_are_named():
    value = {"value": 0.5, "lower": 0.4, "upper": 0.6}
    names = ["accuracy", "balanced_accuracy", "f1", "log_loss", "auroc"]
    row = {"name": "Kenya", "examples": 3, "values": dict.fromkeys(names, value)}
    summary = {
        **{key: [] for key in ("metrics", "excluded")},
        **dict.fromkeys(("title", "task"), "binary"),
        "config": {},
        "by_class": None,
        "source": {"rows": 3, "complete": True},
        "confidence": 0.95,
        "slices": [{"by": "country", "rows": [row]}],
    }
    narrow = " ".join(printed(summary).split())
    hidden = [name for name in names if f" {name} " not in narrow.split("Kenya")[0]]
    assert hidden
    assert f"without {', '.join(hidden)}: the terminal has 80 columns; --output writes" in narrow
    assert "without" not in printed(summary, 200)
