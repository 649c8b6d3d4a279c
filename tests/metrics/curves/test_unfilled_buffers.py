"""Metrics of exact scores whose buffer is not full: unfilled rows are no thresholds."""

import jax
import numpy as np
import pytest
import sklearn.metrics

from datarax.metrics import (
    PrecisionAtFixedRecall,
    RecallAtFixedPrecision,
    SensitivityAtSpecificity,
    SpecificityAtSensitivity,
)
from tests.helpers import value_of


def rates(target, preds, weights):
    """Precision, recall and specificity of `score >= threshold`, by threshold; infinity last."""
    thresholds = np.append(np.unique(preds[weights > 0]), np.inf)
    found = preds >= thresholds[:, None]
    tp, fp = ((found * (weights * side)).sum(1) for side in (target, 1 - target))
    with np.errstate(invalid="ignore"):
        precision = np.where(tp + fp > 0, tp / (tp + fp), 1)
    return thresholds, precision, tp / tp[0], 1 - fp / fp[0]


@pytest.mark.parametrize("capacity", [4, 9, 16])
def test_unfilled_rows_are_no_thresholds(capacity, rng):
    preds = rng.permutation(9).astype(np.float32)
    target, weights = rng.permutation([0, 1] * 4 + [0]), np.ones(9)
    if capacity < 9:
        weights[rng.permutation(9)[:5]] = 0
        kept = np.flatnonzero(weights)
        target[kept] = [0, 1, 0, 1]
    mask = weights > 0
    thresholds, precision, recall, specificity = rates(target, preds, weights)
    least = 0.4
    for kind, argument, rate, other, last in (
        (PrecisionAtFixedRecall, "min_recall", precision, recall, 0),
        (RecallAtFixedPrecision, "min_precision", recall, precision, 1),
        (SensitivityAtSpecificity, "min_specificity", recall, specificity, 1),
        (SpecificityAtSensitivity, "min_sensitivity", specificity, recall, 1),
    ):
        limit = least if last else 0
        metric = kind(**{argument: limit}, exact=True, capacity=capacity)
        got = value_of(metric, preds, target, weights=mask)
        allowed = other >= limit
        allowed[-1] &= bool(last)
        best = rate[allowed].max()
        np.testing.assert_allclose(got["value"], best, 1e-6)
        at = np.flatnonzero(thresholds == float(got["threshold"]))
        assert len(at) == 1, (metric, got)
        np.testing.assert_allclose(rate[at[0]], best, 1e-6)
        assert allowed[at[0]]


def test_the_infinite_threshold_is_not_one_for_precision():
    metric = PrecisionAtFixedRecall(min_recall=0, exact=True, capacity=4)
    point = value_of(metric, np.float32([0.9, 0.8, 0.1]), np.array([0, 1, 0]))
    precision, _, thresholds = sklearn.metrics.precision_recall_curve([0, 1, 0], [0.9, 0.8, 0.1])
    best = precision[:-1].argmax()
    np.testing.assert_allclose(point["value"], precision[best])
    np.testing.assert_allclose(point["threshold"], np.float32(thresholds[best]))
    empty = jax.jit(lambda m: m.compute())(metric)
    assert np.isnan(empty["value"])
    assert np.isnan(empty["threshold"])
