"""Weights at both ends of the range of floats: those that count as zero, sums that overflow."""

import warnings

import jax
import numpy as np
import pytest

from datarax import InvalidValuesWarning, metrics
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import Invalid
from tests.helpers import compiled_update
from tests.registry import BATCH, CASES

TINY = float(np.finfo(np.float32).tiny)

computed = jax.jit(lambda metric: metric.compute())


@pytest.mark.parametrize("where", ["host", "jit"])
def test_weights_below_the_least_normal_number_are_zero(where):
    weights = np.float32([0, 1e-45, 1e-40, -1e-40, TINY, 1])
    unusable = Invalid(np.int32([0, 2, 0, 0, 0, 0]))
    weigh = rows_weight if where == "host" else jax.jit(rows_weight)
    w, invalid = weigh(unusable, weights)
    assert np.asarray(w).tolist() == [0, 0, 0, 0, TINY, 1]
    assert not np.asarray(invalid.mask).any()


@pytest.mark.parametrize(
    "metric",
    [
        *(metrics.Mean(), metrics.Sum(), metrics.Median(), metrics.Variance(), metrics.R2Score()),
        *(metrics.Accuracy(), metrics.F1(), metrics.AUROC(), metrics.LogLoss()),
    ],
    ids=lambda x: type(x).__name__,
)
def test_subnormal_weights_are_the_same_on_the_host_and_under_jit(metric):
    x, target = np.float32([0.25, 0.75, 0.5]), np.int32([0, 1, 0])
    if isinstance(metric, metrics.Sum):
        x = np.int32([1, 2, 3])
    args = (x,) if "target" not in {r.argument for r in metric.routes()} else (x, target)
    for weights in (np.float32([1e-40, 1e-45, 1e-39]), np.float32([1e-40, 0.5, 0.5])):
        host = metric.update(*args, weights=weights)
        traced = compiled_update(metric, *args, weights=weights)
        zeros = metric.update(*args, weights=np.where(weights < TINY, np.float32(0), weights))
        results = [seen.results() for seen in (host, traced, zeros)]
        np.testing.assert_equal(results[0], results[2])
        np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
        assert type(results[0]) is type(results[1])


# Their formulas are of sums without the unit of their weights, and give NaN without a warning.
SILENT = {"activation_moments", "fid"}
SILENT |= {"d2_log_loss", "d2_brier"}


def takes_weights(case) -> bool:
    if case.host or not case.inputs.rows or case.id in SILENT:
        return False
    return "weights" in {route.argument for route in case.make().routes()}


@pytest.mark.parametrize("case", [*filter(takes_weights, CASES)], ids=lambda case: case.id)
def test_a_sum_of_weights_that_overflows_is_no_silent_fault(case, rng):
    """Either the value is what weights of 2**100 give, or it is NaN, with a warning."""
    metric = case.make(on_invalid="exclude") if case.inputs.spoil else case.make()
    batch = metric.arguments_from(case.inputs.draw(rng, BATCH))

    def of(weight):
        seen = metric
        for _ in range(2):
            seen = seen.update(**batch, weights=np.full(BATCH, weight, np.float32))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = seen.compute()
        return value, [x.message for x in caught if x.category is InvalidValuesWarning]

    (want, before), (got, said) = of(2.0**100), of(2.0**127)
    assert not before
    if said:
        assert "sum of weights beyond the range of floats), so the result is NaN" in str(said)
        assert all(np.isnan(x).all() for x in jax.tree.leaves(got) if x.dtype.kind == "f")
        return
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        grown = np.isinf(x) | (x == y * 2.0**27)  # a sum, not a mean
        root = np.abs(x) > 1e10  # a norm: the root of a sum
        assert (np.isclose(x, y, rtol=1e-5, equal_nan=True) | grown | root).all()


def test_a_sum_of_weights_overflows_by_a_merge_and_under_jit():
    args, weights = ([0.9, 0.1], [1, 1]), np.float32([2e38, 2e38])
    half = metrics.Accuracy().update(*args, weights=weights)
    assert half.results() == 0.5
    both = half.merge(half)
    with pytest.warns(InvalidValuesWarning, match="Give smaller weights="):
        assert np.isnan(both.results())
    assert np.isnan(computed(both))


CURVES = [
    metrics.AveragePrecision(),
    metrics.AveragePrecision(exact=True, capacity=10),
    metrics.AUROC(),
    metrics.ROC(num_points=5),
    metrics.PrecisionRecallCurve(num_points=5),
    metrics.DETCurve(num_points=5),
    metrics.RecallAtFixedPrecision(min_precision=0.5),
    metrics.PrecisionAtFixedRecall(min_recall=0.5),
    metrics.GainCurve(),
    metrics.LiftCurve(),
]


@pytest.mark.parametrize("metric", CURVES, ids=repr)
@pytest.mark.parametrize("weights", [[3e38, 3e38, 3e38, 1], [2e38] * 4])
def test_curves_are_those_of_smaller_weights_where_only_totals_overflow(metric, weights):
    preds, target = np.float32([0.1, 0.9, 0.9, 0.7]), np.int32([0, 1, 0, 1])
    large = np.float32(weights)
    want = metric.update(preds, target, weights=large * np.float32(2.0**-60)).compute()
    seen = metric.update(preds, target, weights=large)
    for got in (seen.compute(), computed(seen)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)


def test_areas_of_pairs_of_classes_where_only_totals_overflow():
    # All scores for a class differ, so that no bin holds two rows.
    scores = np.float32([[0.9, 0.2, 0.1], [0.3, 0.7, 0.5], [0.4, 0.6, 0.2], [0.1, 0.3, 0.8]])
    target = np.int32([0, 1, 0, 2])
    metric = metrics.AUROC(num_classes=3, multi_class="ovo", from_logits=False)
    want, got = (
        metric.update(scores, target, weights=np.full(4, w, np.float32)).results()
        for w in (1, 3e38)
    )
    np.testing.assert_allclose(got, want, rtol=1e-12)
