"""`Interval(AUROC(...))`: the standard error by DeLong, from the bins."""

import jax
import numpy as np
import pytest

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
    assert len(jax.tree.leaves(empty)) == len(jax.tree.leaves(empty.metric))
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
        lambda: Interval(metrics.AUROC(num_classes=3)),
        lambda: Interval(metrics.AUROC(max_fpr=0.5)),
        lambda: Interval(metrics.AUROC(), clusters=8),
        lambda: Interval(metrics.AveragePrecision()),
    ],
)
def test_what_has_no_formula(make):
    with pytest.raises(datarax.MetricInputError, match="is not a ratio"):
        make()
