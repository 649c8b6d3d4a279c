"""Sums of weighted values that leave the range of a float32, and of integers that it rounds."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import metrics
from datarax.algebra.fold import in_one_pass
from datarax.statistics import WeightedTotal
from datarax.statistics.scaled_total import ScaledTotal, quotient
from tests.helpers import merge, update


def of_any_size(rng, size, lowest, highest):
    return (rng.uniform(1, 2, size) * 2.0 ** rng.integers(lowest, highest, size)).astype(np.float32)


def exact_mean(x, w):
    total = sum(
        (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, w, strict=True)), Fraction(0)
    )
    return float(total / sum(map(Fraction, map(float, w)), Fraction(0)))


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ((-120, -100), (-120, -90)),
        ((90, 127), (90, 120)),
        ((-120, 120), (-120, 120)),
        ((0, 4), (110, 126)),
    ],
)
def test_products_and_sums_outside_the_range_of_float32(rng, values, weights):
    x, w = of_any_size(rng, 40, *values), of_any_size(rng, 40, *weights)
    seen = update(update(WeightedTotal(), x[:25], weights=w[:25]), x[25:], weights=w[25:])
    other = update(WeightedTotal(), x[25:], weights=w[25:])
    # 40 positive summands, of which each product is rounded twice and each sum is a double-float.
    for each in (seen, merge(other, update(WeightedTotal(), x[:25], weights=w[:25]))):
        np.testing.assert_allclose(each.mean, exact_mean(x, w), 2.0**-21)


@pytest.mark.parametrize("exponents", [(-4, 4), (-120, -100), (100, 127), (-126, 127)])
def test_sums_in_numpy_are_those_of_a_program_and_merge_with_them(rng, exponents):
    shape = (30, 3)
    x, y = (of_any_size(rng, shape, *exponents) * rng.choice([-1, 0, 1], shape) for _ in range(2))
    w = of_any_size(rng, shape, *exponents) * rng.integers(0, 2, shape).astype(np.float32)
    mask, whole = rng.random(shape) < 0.5, rng.integers(-(2**30), 2**30, shape)
    terms = (x, w), (y, mask), (whole, mask), (mask, None)
    empty = ScaledTotal((4, 3))

    def folded(*terms):
        return in_one_pass(empty.plus(*terms))[0]

    host, device = folded(*terms), jax.jit(folded)(*terms)
    size = np.array([np.abs(a.astype(float) * (1.0 if w is None else w)).sum(0) for a, w in terms])
    exact = np.array([(a.astype(float) * (1.0 if w is None else w)).sum(0) for a, w in terms])

    def value(total):  # in float64, which holds the products and sums of float32 numbers
        return np.ldexp(np.asarray(total.parts, float).sum(0), np.asarray(total.exponent))

    assert (np.abs(value(host) - exact) <= 2.0**-44 * size).all()
    assert (np.abs(value(device) - exact) <= 2.0**-44 * size).all()
    for merged in (host.merge(device), device.merge(host)):
        total = value(host) + value(device)
        assert (np.abs(value(merged) - total) <= 2.0**-44 * size).all()


def test_the_rows_of_the_reports():
    mean = lambda x, w: float(metrics.Mean().update(np.float32(x), weights=np.float32(w)).compute())  # noqa: E731
    assert mean(1e-10, 1e-30) == pytest.approx(1e-10)
    assert mean(1e10, 1e30) == pytest.approx(1e10)
    assert float(metrics.Mean().update(np.float32([3e38, 3e38])).compute()) == pytest.approx(3e38)
    assert float(metrics.HuberLoss().update(1.0, 0.0, weights=np.float32(1e38)).compute()) == 0.5
    absolute = metrics.MeanAbsoluteError().update(np.float32(1e10), 0.0, weights=np.float32(1e30))
    assert float(absolute.compute()) == pytest.approx(1e10)


@np.errstate(invalid="ignore")  # as within each update
@pytest.mark.parametrize("xp", [np, jnp])
def test_infinite_summands_stay_infinite(xp):
    inf = float("inf")
    for values, want in (([1.0, inf], inf), ([1e38, -inf], -inf), ([inf, -inf], math.nan)):
        for w in (
            None,
            np.float32([1e38, 1e-37]),
            np.float32([1e-37, 1e38]),
            np.array([True, True]),
        ):
            x = xp.asarray(values, np.float32)
            total = ScaledTotal().of(x, None if w is None else xp.asarray(w))
            large = xp.full((), 1e30, np.float32)
            later = total.combine(ScaledTotal().of(large, large))
            np.testing.assert_array_equal(total.value, want)
            np.testing.assert_array_equal(later.value, want)
            np.testing.assert_array_equal(later.canonical().value, want)
            np.testing.assert_array_equal(quotient(later, ScaledTotal().of(xp.ones(3))), want)


@pytest.mark.parametrize("xp", [np, jnp])
def test_nothing_and_zeros(xp):
    none = ScaledTotal((2,))
    for each in (none, none.of(xp.zeros((0, 2))), none.of(xp.zeros((3, 2)), xp.zeros((3, 2)))):
        np.testing.assert_array_equal(each.value, [0, 0])
        some = each.combine(none.of(xp.asarray([[1.5, 0.0]])))
        np.testing.assert_array_equal(some.value, [1.5, 0])
        np.testing.assert_array_equal(quotient(some, each), [np.nan, np.nan])
    held = none.of(jnp.array([[1.5, 0.0]]))
    for a, b in zip(jax.tree.leaves(held.combine(none)), jax.tree.leaves(held), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, 10, 20, 300])
def test_minkowski_at_any_scale(rng, p):
    for scale in (1e-30, 0.01, 1.0, 2e4, 1e30):
        e = (rng.uniform(0.5, 1, 9) * scale).astype(np.float32)
        w = rng.integers(1, 5, 9).astype(np.float32)
        top = e.astype(np.float64).max()
        want = top * ((w * (e / top) ** float(p)).sum()) ** (1 / p)
        metric = metrics.MinkowskiDistance(p)
        got = merge(
            update(metric, e[:4], e[:4] * 0, weights=w[:4]),
            update(metric, e[4:], e[4:] * 0, weights=w[4:]),
        )
        # The root divides the relative error of the sum by p; that of a large power grows with it.
        np.testing.assert_allclose(got.compute(), want, 2.0**-19)
    assert np.isnan(metrics.MinkowskiDistance(p).compute())
    assert float(metrics.MinkowskiDistance(p).update(1.0, 1.0).compute()) == 0


# Integers that float32 rounds.


def large(rng, dtype):
    base = 4_000_000_000 if dtype == "uint32" else 2_000_000_000
    target = base + rng.integers(0, 50, 60)
    return target + rng.integers(-3, 4, 60), target


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_errors_of_large_integers(rng, dtype):
    preds, target = large(rng, dtype)
    w = rng.integers(0, 4, 60).astype(np.float32)
    e = (preds - target).astype(np.float64)
    centred = target - (w * target).sum() / w.sum()
    want = {
        metrics.MeanAbsoluteError(): (w * abs(e)).sum() / w.sum(),
        metrics.MeanSquaredError(): (w * e**2).sum() / w.sum(),
        metrics.R2Score(): 1 - (w * e**2).sum() / (w * centred**2).sum(),
        metrics.HuberLoss(): (w * np.where(abs(e) < 1, e**2 / 2, abs(e) - 0.5)).sum() / w.sum(),
        metrics.QuantileLoss(0.25): (w * np.where(e > 0, 0.75 * e, -0.25 * e)).sum() / w.sum(),
        metrics.MinkowskiDistance(3): (w * abs(e) ** 3).sum() ** (1 / 3),
        metrics.PearsonCorrCoef(): np.cov(preds, target, aweights=w)[0, 1]
        / np.sqrt(np.prod(np.diag(np.cov(preds, target, aweights=w)))),
        metrics.NormalizedRootMeanSquaredError(): np.sqrt((w * e**2).sum() / w.sum())
        / np.ptp(target[w > 0]),
    }
    preds, target = preds.astype(dtype), target.astype(dtype)
    for metric, value in want.items():
        seen = metric
        for rows in (slice(30), slice(30, 60)):  # of one shape, so that one program does both
            seen = seen.update(preds[rows], target[rows], weights=w[rows])
        np.testing.assert_allclose(seen.compute(), value, 1e-5, err_msg=repr(metric))


def test_a_difference_that_int32_cannot_hold():
    ends = np.int32([2**31 - 1]), np.int32([-(2**31)])
    for preds, target in (ends, ends[::-1]):
        assert float(metrics.MeanAbsoluteError().update(preds, target).compute()) == 2.0**32
    below = metrics.MeanAbsoluteError().update(np.uint32([0]), np.uint32([2**32 - 1]))
    assert float(below.compute()) == 2.0**32
    mixed = metrics.MeanAbsoluteError().update(np.int32([20000001]), np.float32([20000000]))
    assert float(mixed.compute()) == 1


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_the_variance_of_large_integers(rng, dtype):
    x, _ = large(rng, dtype)
    metric = metrics.Variance().update(x[:7].astype(dtype)).update(x[7:].astype(dtype))
    np.testing.assert_allclose(metric.compute(), x.var(), 1e-5)
