"""Correlations: published examples, ties, offsets, extremes, and what does not fit a buffer."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, InvalidValuesWarning, MetricInputError, metrics
from tests.helpers import make_mesh, place, update, value_of

# F. J. Anscombe, "Graphs in Statistical Analysis" (1973), table 1: four sets, one correlation of
# 0.816 and so one R2 of the least-squares line y = 3 + x / 2, 0.667.
X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
ANSCOMBE = [
    (X, [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]),
    (X, [9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74]),
    (X, [7.46, 6.77, 12.74, 7.11, 7.81, 8.84, 6.08, 5.39, 8.15, 6.42, 5.73]),
    ([8] * 7 + [19] + [8] * 3, [6.58, 5.76, 7.71, 8.84, 8.47, 7.04, 5.25, 12.5, 5.56, 7.91, 6.89]),
]


def test_anscombe():
    for x, y in ANSCOMBE:
        x, y = np.float32(x), np.float32(y)
        np.testing.assert_allclose(value_of(metrics.PearsonCorrCoef(), x, y), 0.8164, 0, 3e-4)
        np.testing.assert_allclose(value_of(metrics.R2Score(), 3 + x / 2, y), 0.6665, 0, 5e-4)


def test_published_rank_correlations():
    # The worked example of Wikipedia, "Spearman's rank correlation coefficient": -29 / 165.
    iq = np.float32([106, 100, 86, 101, 99, 103, 97, 113, 112, 110])
    hours = np.float32([7, 27, 2, 50, 28, 29, 20, 12, 6, 17])
    spearman = value_of(metrics.SpearmanCorrCoef(capacity=16), iq, hours)
    np.testing.assert_allclose(spearman, -29 / 165, 2e-7)
    # The example in the documentation of scipy.stats.kendalltau.
    a, b = np.float32([12, 2, 1, 12, 2]), np.float32([1, 4, 7, 1, 0])
    kendall = value_of(metrics.KendallTau(capacity=16), a, b)
    np.testing.assert_allclose(kendall, -0.47140452079103173, 2e-7)


@pytest.mark.parametrize("offset", [0, 1e4, 1e6])
def test_moments_at_an_offset(rng, offset):
    both = Collection({"r": metrics.PearsonCorrCoef(), "c": metrics.ConcordanceCorrCoef()})
    target = rng.normal(offset, 1, (3, 500)).astype(np.float32)
    preds = (target + rng.normal(0.2, 0.5, (3, 500))).astype(np.float32)
    for p, t in zip(preds, target, strict=True):
        both = update(both, preds=p, target=t)
    p, t = (x.ravel().astype(np.float64) for x in (preds, target))
    values = both.compute()
    np.testing.assert_allclose(values["r"], scipy.stats.pearsonr(p, t)[0], 1e-6)
    apart = (p.mean() - t.mean()) ** 2
    want = 2 * np.cov(p, t, ddof=0)[0, 1] / (p.var() + t.var() + apart)
    np.testing.assert_allclose(values["c"], want, 1e-6)


def test_perfect_and_constant():
    x = np.float32([1e6 / 3, 2, 7, -5])
    flat = np.full(4, 1e6 / 3, np.float32)
    for cls in (metrics.PearsonCorrCoef, metrics.SpearmanCorrCoef, metrics.KendallTau):
        assert value_of(cls(), x, x) == 1
        assert value_of(cls(), -x, x) == -1
        assert np.isnan(value_of(cls(), flat, x))
        assert np.isnan(value_of(cls(), x, flat))
    # Scales whose product overflows float32, and whose ratio does.
    pearson = metrics.PearsonCorrCoef()
    assert value_of(pearson, x * np.float32(1e10), x * np.float32(1e10)) == 1
    np.testing.assert_allclose(
        value_of(pearson, x * np.float32(1e12), x * np.float32(1e-20)), 1, 1e-6
    )
    concordance = metrics.ConcordanceCorrCoef()
    assert value_of(concordance, x, x) == 1
    assert np.isnan(value_of(concordance, flat, flat))
    assert value_of(concordance, flat, x) == 0


@pytest.mark.parametrize("kind", ["distinct", "ties", "weights"])
def test_ranks_of_thousands(rng, kind):
    size = 3000  # more than one block of comparisons, and no multiple of one
    preds = rng.normal(size=size).astype(np.float32)
    target = (preds + rng.normal(size=size)).astype(np.float32)
    weights = np.ones(size, np.float32)
    if kind != "distinct":
        preds, target = np.round(preds * 3), np.round(target * 3)
    if kind == "weights":
        weights = rng.integers(0, 4, size).astype(np.float32)
    copies = np.repeat(np.arange(size), weights.astype(int))
    for cls, reference in (
        (metrics.SpearmanCorrCoef, scipy.stats.spearmanr),
        (metrics.KendallTau, scipy.stats.kendalltau),
    ):
        value = update(cls(capacity=size), preds, target, weights=weights).compute()
        np.testing.assert_allclose(value, reference(preds[copies], target[copies])[0], 1e-6)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_what_does_not_fit_is_reported(rng):
    preds, target = (rng.normal(size=10).astype(np.float32) for _ in range(2))
    target[3] = np.nan
    metric = update(metrics.KendallTau(exact=True, capacity=6, on_invalid="exclude"), preds, target)
    assert int(metric.invalid_count()) == 4  # the NaN, and 3 of the 9 others
    kept = [0, 1, 2, 4, 5, 6]
    want = scipy.stats.kendalltau(preds[kept], target[kept])[0]
    np.testing.assert_allclose(metric.compute(), want, 1e-6)
    with pytest.warns(InvalidValuesWarning, match="4 values or examples"):
        metric.results()
    lost = update(metrics.KendallTau(exact=True, capacity=6), preds, target)
    assert np.isnan(lost.compute())
    strict = update(
        metrics.SpearmanCorrCoef(exact=True, capacity=6, on_invalid="raise"), preds, target
    )
    with pytest.raises(datarax.InvalidValuesError, match=": 4 "):
        strict.compute()
    # A merge keeps what fits of both, and counts the rest.
    both = metric.merge(metric)
    assert int(both.invalid_count()) == 2 * 4 + 6


def test_ranks_over_devices(rng):
    preds, target = (rng.integers(0, 9, 64).astype(np.float32) for _ in range(2))
    mesh = make_mesh("auto", {"data": 8})
    metric = datarax.per_device(metrics.SpearmanCorrCoef(capacity=64), mesh, "data")
    metric = metric.update(*place((preds, target), mesh, P("data")))
    want = scipy.stats.spearmanr(preds, target)[0]
    np.testing.assert_allclose(metric.compute(), want, 1e-6)
    assert int(metric.invalid_count()) == 0


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_cosine_of_rows(rng):
    cosine = metrics.CosineSimilarity(on_invalid="exclude")
    preds = rng.normal(size=(5, 3, 7)).astype(np.float32)
    target = rng.normal(size=(5, 3, 7)).astype(np.float32)
    p, t = preds.astype(np.float64), target.astype(np.float64)
    each = (p * t).sum(-1) / np.linalg.norm(p, axis=-1) / np.linalg.norm(t, axis=-1)
    np.testing.assert_allclose(value_of(cosine, preds, target), each.mean(), 0, 3e-7)
    # One row that cannot be used is one example, and weights go by row.
    preds[2, 1, 4] = np.nan
    weights = rng.random((5, 3)).astype(np.float32)
    seen = update(cosine, preds, target, weights=weights)
    assert int(seen.invalid_count()) == 1
    weights[2, 1] = 0
    want = (weights * np.nan_to_num(each)).sum() / weights.sum()
    np.testing.assert_allclose(seen.compute(), want, 0, 3e-7)
    # Lengths whose squares overflow, or vanish, and rows of another length.
    huge = np.float32([[3e38, 3e38], [2e-38, 3e-38]])
    np.testing.assert_allclose(value_of(cosine, huge, huge), 1, 1e-6)
    zeros = np.zeros_like(huge)
    assert value_of(cosine, huge, zeros) == 0
    with pytest.raises(MetricInputError, match="expected rows"):
        cosine.update(jnp.float32(1), jnp.float32(1))


@pytest.mark.parametrize("cls", [metrics.SpearmanCorrCoef, metrics.KendallTau])
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_unit_of_weights_does_not_matter_to_ranks(cls, scale):
    rng = np.random.default_rng(0)
    preds, target = rng.integers(0, 9, (2, 32)).astype(np.float32)
    w = rng.uniform(0, 2, 32).astype(np.float32)
    want, value = (
        update(cls(capacity=64), preds, target, weights=w * np.float32(x)).compute()
        for x in (1, scale)
    )
    assert value == want != 0
