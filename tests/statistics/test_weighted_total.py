"""`WeightedTotal`: sums of weights and of weighted values, and what could not be used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import MetricInputError, MetricTypeError
from datarax.statistics import WeightedTotal
from tests.helpers import DTYPES, assert_same, by_row, draw, mean, wide


def sums(stat):
    return float(stat.total.exact), float(stat.weight.exact), int(stat.invalid.value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighting", ["none", "mask", "integers", "floats", "rows", "one"])
def test_against_the_definition(rng, dtype, weighting):
    x = draw(rng, (12, 5), dtype)
    w = {
        "none": None,
        "mask": rng.random((12, 5)) < 0.5,
        "integers": rng.integers(0, 4, (12, 5)),
        "floats": rng.integers(0, 9, (12, 5)).astype(np.float32) / 4,
        "rows": rng.integers(0, 9, 12).astype(np.float32) / 4,
        "one": np.float32(0.5),
    }[weighting]
    stat = WeightedTotal().update(x[:5], weights=w if np.ndim(w) == 0 else w[:5])
    stat = stat.update(x[5:], weights=w if np.ndim(w) == 0 else w[5:])
    full = np.ones(x.shape) if w is None else wide(w)
    full = np.broadcast_to(by_row(full, 2), x.shape)
    assert sums(stat) == ((wide(x) * full).sum(), full.sum(), 0)
    assert_same(stat.mean, mean(x, full), np.float32, ulps=1)


def test_integers_add_up_exactly_and_their_mean_is_rounded_once(rng):
    x = rng.integers(-(2**31), 2**31, 10_000)
    stat = WeightedTotal().update(x).update(x[::2])
    assert float(stat.total.exact) == int(x.sum() + x[::2].sum())
    assert_same(stat.mean, (x.sum() + x[::2].sum()) / 15_000, np.float32, ulps=1)
    ends = np.asarray([2**32 - 1] * 1000, np.uint32)
    assert float(WeightedTotal().update(ends).total.exact) == (2**32 - 1) * 1000


def test_what_cannot_be_used_is_excluded_and_counted():
    x = jnp.asarray([1.0, jnp.nan, jnp.inf, -jnp.inf, 3.0])
    assert sums(WeightedTotal().update(x)) == (4.0, 2.0, 3)
    # Of weight zero, it does not matter; a weight that is no weight is counted too.
    w = jnp.asarray([1.0, 0.0, 0.0, 2.0, -1.0])
    assert sums(WeightedTotal().update(x, weights=w)) == (1.0, 1.0, 2)
    w = jnp.asarray([1.0, 0.0, 0.0, jnp.nan, jnp.inf])
    assert sums(WeightedTotal().update(x, weights=w)) == (1.0, 1.0, 2)
    assert sums(WeightedTotal().update(x, weights=w > 0.5)) == (1.0 + 3.0, 2.0, 0)
    # What float32 cannot hold has become infinite.
    assert sums(WeightedTotal().update(jnp.float32(1e38) * jnp.float32(10)))[2] == 1


def test_no_data_is_nan_and_merges_as_nothing():
    for empty in (
        WeightedTotal(),
        WeightedTotal().update(jnp.zeros((0,))),
        WeightedTotal().update(jnp.ones((3,)), weights=jnp.zeros((3,))),
        WeightedTotal().update(jnp.asarray([jnp.nan])),
    ):
        assert np.isnan(empty.mean)
        assert_same(empty.merge(WeightedTotal().update(2.0)).mean, 2, np.float32)


@pytest.mark.parametrize("shape", [(3,), (4, 1, 5), (2,), (4, 3, 5), (4, 2, 1)])
def test_weights_that_do_not_lead_the_values_are_refused(shape):
    with pytest.raises(MetricInputError, match=r"weights of shape .* of shape \(4, 2\)"):
        WeightedTotal().update(jnp.ones((4, 2)), weights=jnp.ones(shape))


def test_what_is_no_number_is_refused():
    for values in (None, "x", [[1.0], [1.0, 2.0]], 1j, jax.random.key(0), object()):
        with pytest.raises(MetricTypeError, match="values"):
            WeightedTotal().update(values)
    with pytest.raises(MetricTypeError, match="weights"):
        WeightedTotal().update(1.0, weights="x")
    for values in (2**40, np.asarray([2**40])):
        with pytest.raises(MetricInputError, match="values: an integer does not fit"):
            jax.eval_shape(lambda values=values: WeightedTotal().update(values))
        assert float(WeightedTotal().update(values).total.value) == 2.0**40
