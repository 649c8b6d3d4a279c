"""The p-values of slices: of the difference from the other rows, adjusted over the page."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats

from datarax.evaluation.encoding import Configuration
from datarax.evaluation.html_report import render
from datarax.evaluation.slice_tests import FEWEST_ROWS, with_p_values
from datarax.uncertainty import adjust
from tests.cli.evaluations import evaluated, write

BINARY = Configuration(task="binary")


def mean_of(x, method="delta"):
    error = x.std(ddof=1) / len(x) ** 0.5
    return {"value": x.mean(), "std_error": error, "method": method}


def p_values_of(x, ids, config=BINARY, method="delta"):
    """The values of slices of some numbers, with p-values."""
    slices = [
        {"examples": int((ids == i).sum()), "values": {"loss": mean_of(x[ids == i], method)}}
        for i in range(ids.max() + 1)
    ]
    with_p_values([{"rows": slices}], [{"name": "loss"} | mean_of(x)], len(x), config)
    return [row["values"]["loss"] for row in slices]


def test_a_slice_is_compared_with_the_other_rows(rng):
    x, ids = rng.exponential(size=900), rng.choice(3, p=[0.6, 0.3, 0.1], size=900)
    x[ids == 1] += 0.2
    found = p_values_of(x, ids)
    for i, of in enumerate(found):
        own, rest = x[ids == i], x[ids != i]
        f, n = len(own) / len(x), len(x)
        # The difference of the two means is that of the mean and the mean of all, over 1 - f.
        v, v_own = x.var(ddof=1) / n, own.var(ddof=1) / len(own)
        deviation = math.sqrt(max((1 - 2 * f) * v_own + v, (1 / f - 1) * v)) / (1 - f)
        want = 2 * scipy.stats.norm.sf(abs(own.mean() - rest.mean()) / deviation)
        assert of["p_value"] == pytest.approx(want, rel=1e-9)
        # That is near to the test of two independent samples.
        welch: Any = scipy.stats.ttest_ind(own, rest, equal_var=False)
        assert scipy.stats.norm.isf(of["p_value"] / 2) == pytest.approx(
            scipy.stats.norm.isf(welch.pvalue / 2), rel=0.35, abs=0.35
        )
    want = adjust([of["p_value"] for of in found])
    np.testing.assert_allclose([of["p_adjusted"] for of in found], want)


def test_where_there_is_none(rng):
    x, ids = rng.normal(size=400), np.repeat([0, 1, 2], [371 - FEWEST_ROWS, FEWEST_ROWS, 29])
    few = [math.isnan(of["p_value"]) for of in p_values_of(x, ids)]
    assert few == [False, False, True]
    every = [*p_values_of(x, np.zeros(400, int))]
    for changes in ({"weighted": True}, {"clustered": True}, {"task": "ranking"}):
        every += p_values_of(x, ids, replace(BINARY, **changes))
    every += p_values_of(np.zeros(400), ids)
    assert all(math.isnan(of["p_value"]) and math.isnan(of["p_adjusted"]) for of in every)
    # Of a proportion near 1, a small slice has too few expected misses.
    right = np.ones(1000)
    right[::50] = 0
    ids = np.repeat([0, 1], [900, 100])
    assert [math.isnan(of["p_value"]) for of in p_values_of(right, ids, method="wilson")] == [
        False,
        True,
    ]


def test_slices_that_are_like_all_others_seldom_have_a_low_p_value(rng):
    low, data_sets = 0, 400
    for _ in range(data_sets):
        ids = rng.choice(6, p=[0.4, 0.25, 0.15, 0.1, 0.06, 0.04], size=1000)
        low += any(of["p_adjusted"] < 0.05 for of in p_values_of(rng.exponential(size=1000), ids))
    # At most 5 %, and five standard errors of that share.
    assert low / data_sets < 0.05 + 5 * (0.05 * 0.95 / data_sets) ** 0.5


def test_a_report_marks_slices_that_differ(rng, tmp_path):
    label = rng.integers(0, 2, 900)
    place = rng.choice(["a", "b", "c"], 900)
    wrong = rng.random(900) < np.where(place == "b", 0.4, 0.1)
    columns = {"p": np.where(wrong, 1 - label, label), "y": label, "place": place}
    path = write(tmp_path / "a.parquet", columns)
    argv = ("--task", "binary", "--preds", "p", "--target", "y", "--scores", "labels")
    summary = evaluated(
        tmp_path / "out", path, *argv, "--metrics", "accuracy", "--slice-by", "place"
    )
    rows = {row["name"]: row["values"]["accuracy"] for row in summary["slices"][0]["rows"]}
    assert rows["b"]["p_adjusted"] < 1e-6
    assert all(of["p_adjusted"] >= of["p_value"] for of in rows.values())
    page = render(summary)
    assert "over 3 tests on this page" in page
    assert page.count(">adjusted p &lt;0.0001<") >= 1
    assert len(re.findall(r">adjusted p (?:= 0\.\d{4}|= 1|&lt;0\.0001)<", page)) == 3
