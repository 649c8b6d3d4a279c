"""`CrossMoments`, `Residuals` and `LossTotal`: against float64, at any offset, merged, weighted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import datarax
from datarax import MetricInputError
from datarax.statistics import CrossMoments, LossTotal, Moments, PairBuffer, Residuals
from tests.helpers import merge, update, x64

SIZE = 1000


@jax.jit
def one_by_one(preds, target):
    return lax.scan(lambda s, x: (s.update(*x), None), CrossMoments(), (preds, target))[0]


def near_pairs(rng, offset, size=3 * SIZE):
    target = rng.normal(offset, 1, size).astype(np.float32)
    return (target + rng.normal(0.1, 0.5, size)).astype(np.float32), target


def total(number):
    double = number.to_double()
    return float(double.high) + float(double.low)


def check_moments(seen, preds, target, rtol=1e-6):
    p, t = preds.astype(np.float64), target.astype(np.float64)
    dp, dt = p - p.mean(), t - t.mean()
    assert total(seen.count) == p.size
    # A mean is kept as a double-float: to float32 of the spread, however large it is.
    for mean, x in ((seen.preds_mean, p), (seen.target_mean, t)):
        assert abs(total(mean) - x.mean()) <= 1e-9 * abs(x.mean()) + 1e-7 * x.std()
    np.testing.assert_allclose(total(seen.preds_squares), (dp**2).sum(), rtol)
    np.testing.assert_allclose(total(seen.target_squares), (dt**2).sum(), rtol)
    scale = np.sqrt((dp**2).sum() * (dt**2).sum())
    assert abs(total(seen.co_moment) - (dp * dt).sum()) <= rtol * scale


@pytest.mark.parametrize("offset", [0, 1e4, -1e6])
def test_cross_moments_at_any_offset(rng, offset):
    preds, target = near_pairs(rng, offset)
    seen = CrossMoments()
    for start in range(0, preds.size, SIZE):
        seen = update(seen, preds[start : start + SIZE], target[start : start + SIZE])
    check_moments(seen, preds, target)
    check_moments(one_by_one(preds, target), preds, target)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_batches_far_from_zero_in_one_program(rng, platform):
    """What a compiler computes again where it is used rounds the same everywhere."""

    def folded(preds, target, weights):
        seen = [CrossMoments(), Residuals(), CrossMoments()]
        for rows in (slice(None, 100), slice(100, None)):
            p, t, w = (x[rows] for x in (preds, target, weights))
            seen = [*(each.update(p, t) for each in seen[:2]), seen[2].update(p, t, weights=w)]
        return seen

    preds, target = near_pairs(rng, 1e6, 250)
    with datarax.lowering_for(platform):
        plain, errors, weighted = jax.jit(folded)(preds, target, np.ones(250, np.float32))
    check_moments(plain, preds, target, 1e-7)
    check_moments(weighted, preds, target, 1e-7)
    e = preds.astype(np.float64) - target
    np.testing.assert_allclose(total(errors.error_squares), e.size * e.var(), 1e-7)


def test_merged_and_weighted(rng):
    preds, target = near_pairs(rng, 1e6, SIZE)
    parts = [
        update(CrossMoments(), preds, target, weights=rng.random(SIZE) < part) for part in (0.3, 0)
    ]
    weights = rng.integers(0, 4, SIZE).astype(np.float32)
    weighted = update(CrossMoments(), preds, target, weights=weights)
    copies = np.repeat(np.arange(SIZE), weights.astype(int))
    check_moments(weighted, preds[copies], target[copies])
    # The empty one is the identity, to the bit.
    for a, b in zip(
        jax.tree.leaves(merge(parts[1], weighted)), jax.tree.leaves(weighted), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    both = merge(weighted, weighted)
    check_moments(both, np.tile(preds[copies], 2), np.tile(target[copies], 2))


def test_what_is_constant_has_no_squares(rng):
    # To the bit: otherwise R2 and correlations of a constant would be noise over noise.
    for value in np.array([1e6 / 3, -0.1, 1e-30, 3e30], np.float32):
        x = np.full(SIZE, value)
        weights = rng.random(SIZE).astype(np.float32)
        seen = update(update(CrossMoments(), x, x, weights=weights), x, x, weights=weights)
        assert total(seen.preds_squares) == total(seen.co_moment) == 0
        assert float(seen.target_mean.to_float()) == value
        moments = Moments().update(x, weights=weights)
        assert moments.variance() == 0
        assert moments.mean == value


def test_residuals_keep_squares_and_extremes(rng):
    preds, target = near_pairs(rng, 1e6, SIZE)
    seen = update(update(Residuals(extremes=True), preds, target), preds, target)
    error = preds.astype(np.float64) - target
    np.testing.assert_allclose(total(seen.squares), 2 * (error**2).sum(), 1e-6)
    centred = ((error - error.mean()) ** 2).sum()
    np.testing.assert_allclose(total(seen.error_squares), 2 * centred, 1e-6)
    span = target.max().astype(np.float64) - target.min()
    np.testing.assert_allclose(2 * seen.half_range, span, 2.0**-23)


def test_10_billion_examples(rng):
    preds, target = near_pairs(rng, 1e6, SIZE)
    for stat in (CrossMoments(), Residuals()):
        seen = update(stat, preds, target)
        once = seen
        for _ in range(24):  # each merge doubles
            seen = merge(seen, seen)
        assert total(seen.count) == SIZE * 2**24
        np.testing.assert_allclose(
            total(seen.target_squares), 2.0**24 * total(once.target_squares), 1e-6
        )
    losses = update(LossTotal("huber", 1.0), preds, target)
    mean = losses.mean
    for _ in range(24):
        losses = merge(losses, losses)
    assert float(losses.scale.exact) == SIZE * 2**24
    assert losses.mean == mean


def test_an_example_of_several_values(rng):
    preds, target = (x.reshape(-1, 3) for x in near_pairs(rng, 1e4))
    preds[5, 1] = np.nan
    seen = update(CrossMoments((3,)), preds, target)
    assert int(seen.invalid.value) == 1  # an example, whose other values do not count
    kept = np.delete(np.arange(SIZE), 5)
    for i in range(3):
        column = update(CrossMoments(), preds[kept, i], target[kept, i])
        co, want = (x.co_moment.to_float() for x in (seen, column))
        np.testing.assert_allclose(co[i], want, 1e-5)
        squares, want = (x.target_squares.to_float() for x in (seen, column))
        np.testing.assert_allclose(squares[i], want, 1e-6)


def test_with_x64(rng):
    preds, target = near_pairs(rng, 1e6, SIZE)
    with x64():
        seen = update(CrossMoments(), preds.astype(np.float64), target.astype(np.float64))
        assert seen.co_moment.to_float().dtype == jnp.float64
        check_moments(seen, preds, target, rtol=1e-12)


def test_what_it_refuses():
    with pytest.raises(MetricInputError, match=r"\(4,\) and target of shape \(4, 1\)"):
        CrossMoments().update(np.zeros(4), np.zeros((4, 1)))
    with pytest.raises(MetricInputError, match=r"ends in \(3,\)"):
        Residuals((3,)).update(np.zeros((4, 2)), np.zeros((4, 2)))
    with pytest.raises(MetricInputError, match="loss='hubert'"):
        LossTotal("hubert")
    with pytest.raises(MetricInputError, match="rows"):
        LossTotal("cosine").update(np.float32(1), np.float32(1))


def test_a_buffer_of_pairs_is_the_same_in_any_order(rng):
    preds, target = (rng.integers(0, 3, 20).astype(np.float32) for _ in range(2))
    weights = rng.choice(np.float32([0, 0.5, 2]), 20)
    order = rng.permutation(20)
    a = update(PairBuffer(30), preds, target, weights=weights)
    b = update(PairBuffer(30), preds[order], target[order], weights=weights[order])
    for x, y in zip(jax.tree.leaves(a.canonical()), jax.tree.leaves(b.canonical()), strict=True):
        np.testing.assert_array_equal(x, y)
    both = merge(a, b)
    assert int(both.filled) + int(both.overflow) == 2 * (weights > 0).sum()
