"""`Interval` of areas, from the bins: by DeLong, and by the influence of each row."""

import jax
import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax import Collection, Interval, Sliced, metrics
from tests.helpers import make_mesh

Z = 1.959963984540054


def delong(scores, target):
    """The area and its standard error from all pairs, by the definition."""
    pairs = scores[target == 1][:, None].astype(np.float64) - scores[target == 0][None]
    wins = (pairs > 0) + 0.5 * (pairs == 0)
    m, n = wins.shape
    variance = wins.mean(1).var(ddof=1) / m + wins.mean(0).var(ddof=1) / n
    return wins.mean(), np.sqrt(variance)


def drawn(rng, rows=600, levels=None):
    target = rng.integers(0, 2, rows).astype(np.int32)
    scores = (rng.normal(size=rows) + target).astype(np.float32)
    return scores if levels is None else np.round(scores * levels) / levels, target


@pytest.mark.parametrize("make", [metrics.AUROC, metrics.Gini])
def test_equals_all_pairs(make, rng):
    scale = 2 if make is metrics.Gini else 1
    for levels, rtol in ((2, 1e-6), (None, 1e-3)):
        scores, target = drawn(rng, levels=levels)
        area, error = delong(scores, target)
        for metric in (make(), make(exact=True, capacity=600)):
            results = Interval(metric).update(scores, target).results()
            np.testing.assert_allclose(results["std_error"], scale * error, rtol=rtol)
            value = results["value"]
            np.testing.assert_allclose(value, scale * area - (scale - 1), atol=1e-4)
            np.testing.assert_allclose(results["lower"], value - Z * scale * error, rtol=1e-3)


def test_one_result_by_class_slice_program_and_on_devices(rng):
    scores, target = drawn(rng, levels=4)
    empty = Interval(metrics.AUROC(bits=10))
    more = sum(x.nbytes for x in jax.tree.leaves(empty)) - sum(
        x.nbytes for x in jax.tree.leaves(empty.metric)
    )
    assert more <= 256
    want = empty.update(scores, target).results()
    traced = jax.jit(lambda m, s, t: m.update(s, t))(empty, scores, target)
    mesh = make_mesh("auto", {"d": 8})
    apart = datarax.per_device(empty, mesh, "d").update(scores, target)
    half = empty.update(scores[:200], target[:200]).merge(empty.update(scores[200:], target[200:]))
    ids = rng.integers(0, 2, 600).astype(np.int32)
    sliced = Sliced(empty, 2).update(scores, target, slices=ids)
    for found in (traced, apart, half):
        np.testing.assert_allclose(list(found.results().values()), list(want.values()), rtol=1e-6)
    own = delong(scores[ids == 1], target[ids == 1])[1]
    np.testing.assert_allclose(sliced.results()["1"]["std_error"], own, rtol=1e-6)
    labels = Interval(metrics.AUROC(num_labels=2, average=None, bits=10))
    both = labels.update(np.stack([scores, -scores], 1), np.stack([target, target], 1)).results()
    np.testing.assert_allclose(both["std_error"], want["std_error"], rtol=1e-6)


def test_separated_classes_and_few_examples():
    scores, target = np.float32([0, 1, 2, 3]), np.int32([0, 0, 1, 1])
    for make in (Interval, lambda metric: Collection({"auroc": Interval(metric)})):
        seen = make(metrics.AUROC()).update(preds=scores, target=target)
        with pytest.warns(datarax.PrecisionWarning, match="separated"):
            assert np.isnan([*seen.results().values()]).sum() == 3
    single = Interval(metrics.AUROC()).update(scores[1:], target[1:]).results()
    assert np.isnan(single["std_error"])
    assert all(np.isnan(x) for x in Interval(metrics.AUROC()).results().values())


def test_it_covers(rng):
    truth, covered = 0.7602499389, 0  # the normal distribution function at 1 / sqrt(2)
    for _ in range(300):
        results = Interval(metrics.AUROC(bits=10)).update(*drawn(rng, 120)).results()
        covered += results["lower"] <= truth <= results["upper"]
    assert 0.89 <= covered / 300 <= 0.99


@pytest.mark.parametrize(
    "make",
    [
        lambda: Interval(metrics.AUROC(num_classes=3, multi_class="ovo")),
        lambda: Interval(metrics.AUROC(max_fpr=0.5)),
        lambda: Interval(metrics.AUROC(), clusters=8),
        lambda: Interval(metrics.AveragePrecision(num_classes=3), clusters=8),
        lambda: Interval(metrics.LogAUC()),
    ],
)
def test_what_has_no_formula(make):
    with pytest.raises(datarax.MetricInputError, match="there is no formula"):
        make()


def by_influence(value, weights):
    """The standard error of a weighted value, from its derivatives by the weight of each row."""
    step = 1e-6 * weights.mean()
    slopes = []
    for i in range(len(weights)):
        ends = [value(weights + sign * step * (np.arange(len(weights)) == i)) for sign in (1, -1)]
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return np.sqrt(((weights * np.array(slopes)) ** 2).sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("levels", [2, None])
def test_average_precision(levels, weighted, rng):
    scores, target = drawn(rng, 160, levels)
    # One weight for each class: the rows of a class count as so many observations.
    w = np.where(target == 1, 3.0, 0.25) if weighted else np.ones(160)

    def value(w):
        return sklearn.metrics.average_precision_score(target, scores, sample_weight=w)

    for metric in (metrics.AveragePrecision(), metrics.AveragePrecision(exact=True, capacity=160)):
        seen = Interval(metric).update(scores, target, weights=w if weighted else None)
        results = seen.results()
        # The factor m / (m - 1) of about 80 rows of each class.
        np.testing.assert_allclose(results["std_error"], by_influence(value, w), rtol=0.02)
        np.testing.assert_allclose(results["value"], value(w), rtol=1e-3)
    program = jax.jit(lambda m, *x: m.update(*x))(Interval(metric), scores, target)
    host = Interval(metric).update(scores, target).results()
    np.testing.assert_allclose(program.results()["std_error"], host["std_error"], rtol=1e-5)


@pytest.mark.parametrize("make", [metrics.AUROC, metrics.Gini, metrics.AveragePrecision])
def test_a_row_of_weight_two_is_one_observation(make, rng):
    scores, target = drawn(rng, 400)
    one = Interval(make()).update(scores, target).results()
    two = Interval(make()).update(scores, target, weights=np.full(400, 2.0)).results()
    np.testing.assert_allclose(list(two.values()), list(one.values()), rtol=1e-6)
    half = rng.integers(0, 2, 400)
    kept = Interval(make()).update(scores[half == 1], target[half == 1]).results()
    masked = Interval(make()).update(scores, target, weights=half).results()
    np.testing.assert_allclose(list(masked.values()), list(kept.values()), rtol=1e-6)
    # Weights that do not depend on scores: as many observations as Kish says.
    if make is metrics.AUROC:
        w = rng.exponential(size=400)
        error = Interval(make()).update(scores, target, weights=w).results()["std_error"]

        def value(w):
            return sklearn.metrics.roc_auc_score(target, scores, sample_weight=w)

        np.testing.assert_allclose(error, by_influence(value, w), rtol=0.2)


def test_several_examples_in_a_row_are_refused(rng):
    scores, target = drawn(rng)
    metric = Interval(metrics.MatthewsCorrCoef())
    with pytest.raises(datarax.MetricInputError, match="rows of one example each"):
        metric.update(scores[:, None] > 0, target[:, None])
