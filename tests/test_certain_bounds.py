"""Bounds that are called certain hold the exact value of float64 data, as it was given.

The oracles of the registry compute it in float64, before anything is rounded. The data is what a
float32 cannot hold: offsets, probabilities near 1, ids, times, values that differ in the last bit,
and numbers beyond the range of float32.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax.metrics.curves.area_under_curve import AreaMetric
from datarax.statistics.scores import ScoreHistogram
from tests.registry import CASES, Case

ROWS = 48
PROBABILITIES: dict[str, Callable[..., np.ndarray]] = {
    "digits": lambda rng, shape: rng.random(shape),
    "near 1": lambda rng, shape: 1 - 1e-9 * rng.random(shape),
    "nearer to 1": lambda rng, shape: 1 - 10.0 ** -rng.uniform(6, 16, shape),
    "last bits": lambda rng, shape: 1 - 2.0**-53 * rng.integers(0, 9, shape),
    "near 0": lambda rng, shape: 10.0 ** -rng.uniform(1, 36, shape),
    "ties": lambda rng, shape: rng.choice([0.1, 0.2, 0.3], shape),
    "ties and their neighbours": lambda rng, shape: rng.choice(
        [0.3, np.nextafter(0.3, 1), np.float32(0.3), 0.1], shape
    ),
}
REALS = PROBABILITIES | {
    "offset": lambda rng, shape: 2.0**40 + rng.normal(size=shape),
    "negative offset": lambda rng, shape: rng.normal(size=shape) - 2.0**40,
    "times": lambda rng, shape: 1_700_000_000 + rng.integers(0, 3000, shape) / 10,
    "ids": lambda rng, shape: 2.0**40 + rng.integers(0, 9, shape),
    "around 1": lambda rng, shape: 1 + 2.0**-50 * rng.integers(-9, 9, shape),
    "both signs": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, shape),
}
ANY = REALS | {
    "huge": lambda rng, shape: rng.normal(size=shape) * 1e300,
    "small": lambda rng, shape: rng.normal(size=shape) * 1e-300,
    "of all sizes": lambda rng, shape: (
        rng.normal(size=shape) * 10.0 ** rng.integers(-300, 300, shape)
    ),
}
SMALL = {"small": ANY["small"], "p-values": lambda rng, shape: 10.0 ** -rng.uniform(0, 300, shape)}
SPREAD = "both signs", "of all sizes", "p-values"
"""The kinds of numbers that share bins because they differ in size."""
BOUNDED = [case for case in CASES if hasattr(case.traceable(), "bounds")]


def kinds_of(case: Case) -> dict[str, Callable[..., np.ndarray]]:
    """The kinds of data that the formula of a metric takes, and its oracle computes exactly."""
    if case.id == "score_decomposition_brier":
        return PROBABILITIES
    # The oracles round probabilities near 0 and 1, and those of tied logits.
    if case.id == "score_decomposition_log":
        return {name: PROBABILITIES[name] for name in ("digits", "ties")}
    if case.id == "auroc_class_logits":
        return {"digits": PROBABILITIES["digits"]}
    if case.id.startswith("spearman"):  # of huge numbers there is no value
        return REALS | SMALL
    if case.id == "median_error":
        return ANY | SMALL
    if case.id.startswith("d2"):  # bins of these numbers hold several
        return {name: REALS[name] for name in REALS if name != "nearer to 1"}
    if "scores" in case.inputs.id or case.inputs.id == "reals":
        return ANY
    return REALS


def exact(case: Case, given: dict[str, np.ndarray]):
    """The value of float64 data; the oracle of this one rounds to float32."""
    if case.id == "median_error":
        return np.median(np.abs(given["preds"] - given["target"]))
    return case.oracle(np.ones(case.inputs.valid(**given).shape), **given)


def metrics_of(case: Case) -> list[Any]:
    """The metric, and where it has that option one that keeps the scores."""
    metric = case.make()
    exact = isinstance(metric, AreaMetric) and getattr(metric, "multi_class", "ovr") == "ovr"
    return [metric, *([case.make(exact=True, capacity=256, bits=None)] if exact else [])]


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.id)
def test_bounds_hold_the_exact_value_of_float64_data(case, rng):
    for kind, draw in kinds_of(case).items():
        given = {
            name: draw(rng, x.shape) if x.dtype == np.float32 else x
            for name, x in case.inputs.draw(rng, ROWS).items()
        }
        due = exact(case, given)
        for metric in metrics_of(case):
            binned = kind in SPREAD or are_apart(metric, given)
            for seen in folded(metric, given):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    value = seen.results()
                said = any(each.category is datarax.PrecisionWarning for each in caught)
                # In a collection, under its name.
                together = datarax.Collection({"a": seen}).bounds()["a"]
                jax.tree.map(np.testing.assert_array_equal, together, seen.bounds())
                check(f"{case.id}, {kind}", value, seen.bounds(), due, said or binned)


ESTIMATES = [
    case
    for case in CASES
    if isinstance(getattr(case.make(), "statistic", None), ScoreHistogram)
    and case not in BOUNDED
    and not getattr(case.make(), "from_logits", False)
]


@pytest.mark.parametrize("case", ESTIMATES, ids=lambda case: case.id)
def test_a_value_without_bounds_says_that_it_is_an_estimate(case, rng):
    def said(metric, preds):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            metric.update(preds, given["target"]).results()
        return any(each.category is datarax.PrecisionWarning for each in caught)

    given = case.inputs.draw(rng, ROWS)
    scores = rng.random(given["preds"].shape)
    kept = case.make(exact=True, capacity=ROWS, bits=None)
    for preds in (scores + 2.0**40, 0.5 + 1e-10 * scores):
        assert said(case.make(), preds)
        assert not said(kept, preds)
    assert not said(case.make(), given["preds"])
    assert not said(kept, 1 - 2.0**-53 * rng.integers(0, 9, scores.shape))


def are_apart(metric, given):
    """True if float32 data of the same kind share bins, so that the value is an estimate anyway."""
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore")
        single = {name: x.astype(np.float32) for name, x in given.items() if x.dtype == np.float64}
        bounds = metric.update(**given | single).bounds()
    ends = zip(*map(jax.tree.leaves, bounds), strict=True)
    return any(np.any(np.asarray(low) < np.asarray(high)) for low, high in ends)


def folded(metric, given):
    """The metric after one batch, after several, and merged from two."""
    rows = len(next(iter(given.values())))
    parts = [
        {name: x[part] for name, x in given.items()} for part in np.array_split(np.arange(rows), 3)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datarax.ScoresWarning)
        yield metric.update(**given)
        a, b = metric.update(**parts[0]), metric.update(**parts[2]).update(**parts[1])
        yield a.merge(b).load_state_dict(b.merge(a).state_dict())


def check(what, value, bounds, due, excused):
    if isinstance(due, dict):
        for name, each in due.items():
            check(f"{what}, {name}", value[name], [x[name] for x in bounds], each, excused)
        return
    lower, upper = (np.asarray(x, np.float64) for x in bounds)
    due = np.asarray(due, np.float64)
    # Bounds are arrays of float32: those that are equal are the nearest one to the value. The
    # formulas, of counts, are of float64.
    slack = np.where(lower == upper, 2.0**-24, 1e-12) * np.abs(due)
    with np.errstate(invalid="ignore"):
        inside = (lower - slack <= due) & (due <= upper + slack)
    assert np.all(inside | (np.isnan(due) & np.isnan(lower))), (what, lower, due, upper)
    with np.errstate(invalid="ignore"):
        assert np.all((lower - slack <= value) & (value <= upper + slack) | np.isnan(value)), what
    if excused:
        return
    if np.all(upper - lower <= 0.01) and "score" in what:
        return  # as is documented
    # Numbers below the least normal float32 count as 0.
    apart = np.abs(value - due) > 1e-6 * np.abs(due) + 2.0**-126
    assert not np.any(apart), (what, value, due)


def test_the_last_value_and_extremes_keep_two_floats():
    times = 1_700_000_000 + np.array([3.2, 1.7, 2.6])
    seen = datarax.Collection(
        {"last": datarax.metrics.LastValue(), "ends": datarax.metrics.MinMax()}
    )
    seen = seen.reset().merge(seen.update(values=times[:2]).update(values=times[2:]))
    found = seen.load_state_dict(seen.state_dict()).results()
    for name, due in (("last", times[2]), ("ends/max", times[0]), ("ends/min", times[1])):
        np.testing.assert_allclose(found[name], due, rtol=2.0**-47)
