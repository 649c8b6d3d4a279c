"""The example reports of the documentation: each task has one, and the script still draws them."""

import re
import runpy

import numpy as np
import pytest

from datarax.evaluation.tasks import TASKS
from tests.test_layers import ROOT

SCRIPT = runpy.run_path(str(ROOT / "examples/reports/draw.py"))
PAGE = (ROOT / "docs/example-reports.md").read_text()


def test_the_page_has_a_report_of_each_task():
    rows = re.findall(
        r"\[(\w+)\]\(reports/(\w+)\.html\) \| `\w+\.jsonl --task (\w+) (.*)` \|", PAGE
    )
    assert [row[:3] for row in rows] == [(task, task, task) for task in TASKS]
    assert {task: said.replace("'", "") for task, *_, said in rows} == SCRIPT["ARGUMENTS"]
    for task in TASKS:
        assert f"Example: {task}" in (ROOT / f"docs/reports/{task}.html").read_text()


@pytest.mark.parametrize("task", TASKS)
def test_a_report_is_drawn(task, tmp_path, rng, monkeypatch, capsys):
    monkeypatch.setitem(SCRIPT["draw"].__globals__, "ROWS", 120)
    report = SCRIPT["draw"](task, tmp_path, np.random.default_rng(rng.integers(2**32)))
    assert f"Example: {task}" in report.read_text()
    assert "wrong" not in capsys.readouterr().err
