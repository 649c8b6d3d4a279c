"""Curves of a fixed size, and what is reached at one threshold: against scikit-learn and SciPy."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.interpolate
import scipy.optimize
import scipy.stats
import sklearn.metrics

from datarax import MetricInputError, metrics
from datarax.metrics import ROC, PrecisionRecallCurve
from tests.helpers import update

PREDS = np.float32([0.1, 0.4, 0.35, 0.8])
TARGET = np.array([0, 0, 1, 1])


def scored_examples(rng, size):
    target = (rng.random(size) < 0.4).astype(np.int32)
    target[:2] = 0, 1
    preds = (rng.normal(size=size) * 2 + target).astype(np.float32)
    return preds, target, rng.uniform(0, 2, size).astype(np.float32)


def test_the_examples_of_scikit_learn():
    """From the pages of roc_curve and precision_recall_curve, labels 1 and 2 there as 0 and 1."""
    fpr, tpr, thresholds = update(ROC(num_points=7), PREDS, TARGET).compute()
    np.testing.assert_array_equal(fpr, [0, 0, 0.5, 0.5, 1, 1, 1])
    np.testing.assert_array_equal(tpr, [0, 0.5, 0.5, 1, 1, 1, 1])
    np.testing.assert_array_equal(thresholds, np.float32([np.inf, 0.8, 0.4, 0.35, 0.1, 0.1, 0.1]))
    curve = update(PrecisionRecallCurve(num_points=6), PREDS, TARGET).compute()
    np.testing.assert_allclose(curve.precision, [0.5, 2 / 3, 0.5, 1, 1, 1], rtol=1e-7)
    np.testing.assert_array_equal(curve.recall, [1, 1, 0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(
        curve.thresholds, np.float32([0.1, 0.35, 0.4, 0.8, *[np.inf] * 2])
    )


def test_exact_curves_are_those_of_scikit_learn(rng):
    preds, target, w = scored_examples(rng, 200)
    buffer = update(metrics.AUROC(exact=True, capacity=256), preds, target, weights=w)
    points = len(np.unique(preds)) + 1
    for cls, score in (
        (ROC, lambda *x, **w: sklearn.metrics.roc_curve(*x, **w, drop_intermediate=False)),
        (PrecisionRecallCurve, sklearn.metrics.precision_recall_curve),
    ):
        got = cls(num_points=300).replace(statistic=buffer.statistic).compute()
        want = list(score(target, preds, sample_weight=w))
        if cls is PrecisionRecallCurve:
            want[2] = np.append(want[2], np.inf)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x[:points], y, rtol=1e-6)
            assert (x[points:] == x[points - 1]).all()


def test_each_distinct_score_is_a_threshold_of_an_exact_curve(rng):
    preds, target, w = scored_examples(rng, 3000)
    exact: dict[str, Any] = {"exact": True, "capacity": 3000}
    fpr, tpr, thresholds = update(ROC(**exact), preds, target, weights=w).compute()
    want = sklearn.metrics.roc_curve(target, preds, sample_weight=w, drop_intermediate=False)
    for got, each in zip((fpr, tpr, thresholds), want, strict=True):
        np.testing.assert_allclose(got[: len(each)], each, rtol=1e-5, atol=1e-7)
        assert (got[len(each) :] == got[-1]).all()
    assert np.trapezoid(tpr, fpr) == pytest.approx(np.trapezoid(want[1], want[0]), rel=1e-6)
    few = update(ROC(exact=True, capacity=4), PREDS, TARGET).compute()
    assert len(few.fpr) == 5
    for cls in (PrecisionRecallCurve, metrics.DETCurve, metrics.GainCurve, metrics.LiftCurve):
        assert len(update(cls(**exact), preds, target).compute()[0]) == 3001
    assert len(update(ROC(), preds, target).compute().fpr) == 1024
    assert len(update(ROC(num_points=9, **exact), preds, target).compute().fpr) == 9


@pytest.mark.parametrize("exact", [{}, {"exact": True, "capacity": 3000}], ids=["binned", "exact"])
def test_thinned_curves_keep_to_the_exact_one(rng, exact):
    preds, target, w = scored_examples(rng, 3000)
    points = 64
    metric = update(ROC(num_points=points, **exact), preds, target, weights=w)
    fpr, tpr, thresholds = metric.compute()
    for c, rate in ((0, fpr), (1, tpr)):
        own = w * (target == c)
        want = [own[preds >= t].sum(dtype=np.float64) for t in np.asarray(thresholds)]
        np.testing.assert_allclose(rate, want / own.sum(dtype=np.float64), atol=1e-6)
    assert np.isin(thresholds[1:], preds).all()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    # Evenly: no step is much longer than a share of the way, but for what one bin holds.
    assert np.max(np.diff(fpr) + np.diff(tpr)) < 2 * 2 / (points - 1)
    assert (
        abs(np.trapezoid(tpr, fpr) - sklearn.metrics.roc_auc_score(target, preds, sample_weight=w))
        < 2e-3
    )
    recall = PrecisionRecallCurve(num_points=points).replace(statistic=metric.statistic).compute()
    np.testing.assert_array_equal(recall.recall, tpr[::-1])
    np.testing.assert_array_equal(recall.thresholds, thresholds[::-1])


def test_one_class_only():
    fpr, tpr, _ = update(ROC(num_points=7), PREDS, np.zeros(4, np.int32)).compute()
    np.testing.assert_array_equal(fpr, [0, 0.25, 0.5, 0.75, 1, 1, 1])
    assert np.isnan(tpr).all()


def test_points_against_all_thresholds(rng):
    """On fresh data, from scikit-learn's curves; the exact buffer has every threshold."""
    preds, target, w = scored_examples(rng, 200)
    buffer = update(metrics.AUROC(exact=True, capacity=256), preds, target, weights=w).statistic
    fpr, tpr, _ = sklearn.metrics.roc_curve(target, preds, sample_weight=w, drop_intermediate=False)
    precision, recall, _ = sklearn.metrics.precision_recall_curve(target, preds, sample_weight=w)
    for least in (0.3, 0.9):
        for metric, rate, given in (
            (metrics.PrecisionAtFixedRecall(min_recall=least), precision[:-1], recall[:-1]),
            (metrics.RecallAtFixedPrecision(min_precision=least), recall, precision),
            (metrics.SensitivityAtSpecificity(min_specificity=least), tpr, 1 - fpr),
            (metrics.SpecificityAtSensitivity(min_sensitivity=least), 1 - fpr, tpr),
        ):
            point = metric.replace(statistic=buffer).compute()
            np.testing.assert_allclose(point["value"], rate[given >= least].max(), rtol=1e-6)
            # And the threshold reaches it.
            found = preds >= float(point["threshold"])
            true, false = (w[found & (target == c)].sum() for c in (1, 0))
            reached = {
                "PrecisionAtFixedRecall": true / max(true + false, 1e-9),
                "SpecificityAtSensitivity": 1 - false / w[target == 0].sum(),
            }.get(type(metric).__name__, true / w[target == 1].sum())
            np.testing.assert_allclose(reached, point["value"], atol=1e-5)
    crossing = scipy.optimize.brentq(
        lambda x: 1 - x - scipy.interpolate.interp1d(fpr, tpr)(x), 0.0, 1.0, xtol=1e-12
    )
    error = metrics.EqualErrorRate().replace(statistic=buffer).compute()
    np.testing.assert_allclose(error["value"], crossing, atol=1e-6)


def test_what_no_threshold_reaches():
    preds, target = np.float32([0.9, 0.1]), np.array([0, 1])
    point = update(metrics.RecallAtFixedPrecision(min_precision=0.9), preds, target).compute()
    assert (point["value"], point["threshold"]) == (0, np.inf)
    point = update(metrics.SensitivityAtSpecificity(min_specificity=1), preds, target).compute()
    assert (point["value"], point["threshold"]) == (0, np.inf)
    point = update(metrics.PrecisionAtFixedRecall(min_recall=0), preds, target).compute()
    assert (point["value"], point["threshold"]) == (0.5, np.float32(0.1))


def test_distance_gain_and_lift(rng):
    preds, target, _ = scored_examples(rng, 500)
    statistic = update(metrics.AUROC(exact=True, capacity=512), preds, target).statistic
    distance = metrics.KolmogorovSmirnov().replace(statistic=statistic).compute()
    compared: Any = scipy.stats.ks_2samp(preds[target == 1], preds[target == 0])
    want = compared.statistic
    np.testing.assert_allclose(distance, want, rtol=1e-6)
    highest = target[np.argsort(-preds)][:50]
    gain = metrics.Gain(fraction=0.1).replace(statistic=statistic).compute()
    np.testing.assert_allclose(gain, highest.sum() / target.sum(), rtol=1e-5)
    lift = metrics.Lift(fraction=0.1).replace(statistic=statistic).compute()
    np.testing.assert_allclose(lift, highest.mean() / target.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ROC(num_points=1), "num_points=1; expected an integer of at least 2"),
        (lambda: metrics.PrecisionAtFixedRecall(min_recall=1.5), "min_recall=1.5"),
        (lambda: metrics.RecallAtFixedPrecision(min_precision=-0.1), "min_precision=-0.1"),
        (lambda: metrics.SensitivityAtSpecificity(min_specificity="x"), "min_specificity='x'"),
        (lambda: metrics.SpecificityAtSensitivity(min_sensitivity=True), "min_sensitivity=True"),
        (lambda: metrics.Gain(fraction=0), "fraction=0; expected a number above 0 to 1"),
        (lambda: metrics.Lift(fraction=2), "fraction=2"),
    ],
)
def test_configurations_that_are_refused(make, message):
    with pytest.raises(MetricInputError, match=message):
        make()


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_unit_of_weights_does_not_matter(scale):
    """Of ratios of products of weights, which would overflow, or be lost."""
    preds, target, w = scored_examples(np.random.default_rng(0), 64)
    scored = metrics.AUROC().statistic
    both = [update(scored, preds, target, weights=x) for x in (w, w * np.float32(scale))]
    for metric in (
        metrics.AUROC(),
        metrics.AUROC(max_fpr=0.3),
        metrics.Gini(),
        metrics.AveragePrecision(),
        metrics.KolmogorovSmirnov(),
        metrics.EqualErrorRate(),
        metrics.Lift(fraction=0.3),
        metrics.SensitivityAtSpecificity(min_specificity=0.6),
        ROC(num_points=16),
    ):
        want, value = (metric.replace(statistic=seen).compute() for seen in both)
        assert not any(np.isnan(x).any() for x in jax.tree.leaves(want))
        jax.tree.map(np.testing.assert_array_equal, value, want)
