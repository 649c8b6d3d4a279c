"""The tables of the catalogue: each metric once, with the range and the direction that it has."""

import math
import re
from typing import NamedTuple

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.evaluation.tasks import CLASSES, TASKS, Spec, better, of_task
from tests.registry import BATCH, BUNDLES, GROUPS
from tests.test_laws import value_of
from tests.test_layers import ROOT

pytestmark = pytest.mark.slow

ROW = re.compile(
    r"^\| (\[`\w+`\]\[datarax\.metrics\.\w+\][^|]*) \|.* \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$"
)
LINK = re.compile(r"\[`(\w+)`\]\[datarax\.metrics\.(\w+)\]")


class Row(NamedTuple):
    span: str
    better: str
    no_data: str


def table_rows() -> list[tuple[str, Row]]:
    found = []
    for page in sorted((ROOT / "docs/metrics").glob("*.md")):
        if page.stem in ("names", "index"):
            continue
        for line in page.read_text().splitlines():
            row = ROW.match(line)
            if row:
                links = LINK.findall(row[1])
                assert all(shown == target for shown, target in links), line
                span, better, no_data = row.groups()[-3:]
                each = better.split(", ") if better.count(", ") == len(links) - 1 else [better]
                each = each if len(each) == len(links) else each * len(links)
                found += [
                    (name, Row(span, one, no_data))
                    for (name, _), one in zip(links, each, strict=True)
                ]
    return found


ROWS = dict(table_rows())
NUMBERS = re.compile(r"^(-?[\d.]+|-inf) to (-?[\d.]+|inf)(?:, (?:dB|%|bits))?$")


def span_of(name: str) -> tuple[float, float] | None:
    """The stated range, if it is one of numbers."""
    found = NUMBERS.match(ROWS[name].span)
    return (float(found[1]), float(found[2])) if found else None


def test_each_metric_is_in_one_row():
    names = [name for name, _ in table_rows()]
    exported = {
        name
        for name, each in vars(metrics).items()
        if isinstance(each, type) and issubclass(each, datarax.Metric)
    }
    assert sorted(names) == sorted(exported - {"WeightedMean"})  # another name of `Mean`


def test_ranges_and_directions_are_of_few_forms():
    spoken = {"any", "that of the values", "that of the metric"}
    directions = ("higher", "lower", "positive higher", "differences lower")
    for name, row in ROWS.items():
        assert span_of(name) or row.span in spoken or ";" in row.span, name
        assert row.better == "—" or row.better.startswith(directions), name


def test_the_command_has_the_same_directions():
    for task in TASKS:
        for name in of_task(task):
            stated = ROWS[CLASSES[name].__name__].better.partition(":")[0]
            # None: also of a metric that gives several numbers.
            assert better(Spec(name, name, {})) in (None, stated), name


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")  # of other labels as preds
@pytest.mark.parametrize("name", GROUPS)
def test_values_are_in_the_range_and_perfect_predictions_are_no_worse(name, rng):
    group = GROUPS[name]
    batch = group[0].inputs.draw(rng, BATCH)
    values = BUNDLES[name].update(**batch).compute()
    for case in group:
        span = span_of(case.cls.__name__)
        low, high = span or (-math.inf, math.inf)
        for value in jax.tree.leaves(value_of(case, values)):
            value = np.asarray(value, np.float64)
            value = value[~np.isnan(value)]
            edge = 1e-5 * max([1.0, *(abs(x) for x in (low, high) if math.isfinite(x))])
            assert (low - edge <= value).all(), case.id
            assert (value <= high + edge).all(), case.id
    preds, target = batch.get("preds"), batch.get("target")
    if (
        preds is None
        or target is None
        or preds.shape != target.shape
        or preds.dtype != target.dtype
    ):
        return
    perfect = BUNDLES[name].update(**batch | {"preds": target}).compute()
    for case in group:
        direction = ROWS[case.cls.__name__].better
        before, after = (jax.tree.leaves(value_of(case, each)) for each in (values, perfect))
        if direction in ("higher", "lower") and len(before) == 1:
            sign = 1 if direction == "higher" else -1
            worse = sign * (np.asarray(after[0]) - np.asarray(before[0])) < -1e-5
            assert not worse.any(), case.id
