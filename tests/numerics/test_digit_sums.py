"""Sums of float weights by digits, against rational numbers."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax.numerics.digit_sums import sum_by_digits
from tests.helpers import bits, make_mesh, over_shards, x64


@jax.jit
def both(weights, chosen):
    """The sum of the weights that are chosen, and of the others as a difference."""

    def count(w):
        some = jnp.sum(jnp.where(chosen, w, 0), dtype=w.dtype)
        return jnp.stack([some, jnp.sum(w, dtype=w.dtype) - some])

    return sum_by_digits(weights, count)


def exact(weights, chosen):
    return [sum(map(Fraction, weights[m].tolist()), Fraction(0)) for m in (chosen, ~chosen)]


def drawn(rng, kind, n, dtype):
    info = np.finfo(dtype)
    # Of which the low part of a double-float is still a normal float.
    small, largest = float(info.tiny) * 2.0 ** (2 * info.nmant + 4), float(info.max)
    return {
        "tenths": lambda: rng.integers(1, 30, n) / 10,
        "of all sizes": lambda: 10 ** rng.uniform(-30, 30, n),
        "small": lambda: small * rng.uniform(0.1, 1, n),
        "large": lambda: largest / n * rng.random(n),
        "whole": lambda: rng.integers(0, 1000, n),
        "zero": lambda: np.zeros(n),
        "two far apart": lambda: rng.choice([1e-30, 1e30], n),
    }[kind]().astype(dtype)


KINDS = ("tenths", "of all sizes", "small", "large", "whole", "zero", "two far apart")


@pytest.mark.parametrize("kind", KINDS)
def test_each_sum_is_accurate(rng, kind):
    for dtype, unit in ((np.float32, 2.0**-47), (np.float64, 2.0**-105)):
        with x64(dtype == np.float64):
            for n in (1, 500):
                w, chosen = drawn(rng, kind, n, dtype), rng.random(n) < 0.5
                got = both(w, chosen)
                assert got.dtype == dtype
                for high, low, want in zip(*map(np.asarray, got), exact(w, chosen), strict=True):
                    error = abs(Fraction(high.item()) + Fraction(low.item()) - want)
                    assert error <= want * 8 * Fraction(unit)


def test_whole_numbers_masks_and_any_order_are_exact(rng):
    chosen, order = rng.random(500) < 0.5, rng.permutation(500)
    for w in (rng.integers(0, 1000, 500).astype(np.float32), rng.random(500) < 0.5):
        want = [float(w[chosen].sum()), float(w[~chosen].sum())]
        np.testing.assert_array_equal(both(w, chosen).high, want)
    w = drawn(rng, "of all sizes", 500, np.float32)
    assert bits(both(w, chosen)) == bits(both(w[order], chosen[order]))
    # More weights than a digit of 21 bits allows: shorter digits.
    many = np.full(2**20 + 1, 0.1, np.float32)
    assert float(both(many, many > 1).high[1]) == np.float32(float(np.float32(0.1)) * (2**20 + 1))
    assert both(np.zeros(0, np.float32), np.zeros(0, bool)).high.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(rng, kind):
    mesh = make_mesh(kind, {"data": 2})
    w, chosen = drawn(rng, "tenths", 8, np.float32), rng.random(8) < 0.5
    spread = over_shards(lambda w, c: both(w, c).high[None], mesh, P("data"), P("data"))
    place = jax.sharding.NamedSharding(mesh, P("data"))
    args = [jax.device_put(x, place) for x in (w, chosen)]
    for half, got in zip((slice(0, 4), slice(4, 8)), spread(*args), strict=True):
        assert bits(np.asarray(got)) == bits(both(w[half], chosen[half]).high)
    assert bits(both(*args)) == bits(both(w, chosen))
