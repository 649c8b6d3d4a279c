"""Sums of floats against exact rationals; sums of runs against NumPy, in float64."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax.numerics import DoubleFloat
from datarax.numerics.sums import run_sums, suffix_sums, sum_floats
from tests.helpers import assert_same, fsum
from tests.numerics.doubles import exact, some_doubles


@pytest.mark.parametrize("size", [1, 2, 7, 101, 1000])
def test_suffix_sums(rng, size):
    doubles = some_doubles(rng, size)
    # Whatever was drawn, one of them needs both parts.
    doubles = DoubleFloat(doubles.high.at[0].set(1.0), doubles.low.at[0].set(2.0**-30))
    sums, above = jax.jit(lambda a: (suffix_sums(a), suffix_sums(a[None])))(doubles)
    on_host = suffix_sums(DoubleFloat(np.asarray(doubles.high), np.asarray(doubles.low)))
    got, parts = exact(sums), exact(doubles)
    want, bound = Fraction(0), Fraction(0)
    for *values, part in zip(got[::-1], exact(on_host)[::-1], parts[::-1], strict=True):
        want, bound = want + part, bound + abs(part)
        assert all(abs(value - want) <= bound / 2**42 for value in values)
    assert exact(above) == got


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000, 30_000, 2**20 + 1])
def test_sums_of_floats_in_one_batch(rng, size):
    total = jax.jit(sum_floats, static_argnums=1)
    cases = [
        np.full(size, 0.1),
        np.full(size, 1 / 3),
        rng.random(size),
        rng.lognormal(0, 2, size),
        rng.standard_normal(size) + 1e4,
        np.where(rng.random(size) < 0.01, rng.random(size), 0),
        np.zeros(size),
        np.arange(size) % 1024,
    ]
    for x in np.asarray(cases, np.float32):
        got, want = exact(total(jnp.asarray(x), (0,)))[0], Fraction(fsum(x))
        if size <= 2**20:
            # A lower part is at most `size * max * 2**-22`, and their float32 sum is rounded. Older
            # versions of XLA add one after the other: up to 0.46 of this bound, others up to 0.15.
            greatest = Fraction(float(np.abs(x).max()))
            assert abs(got - want) <= size**2 * greatest / 2**45 + want / 2**52
        # Of more values the upper parts hold almost nothing, so this is a plain sum of float32.
        assert abs(got - want) <= want / (2**23 if size <= 2**20 else 2**19)
    assert_same(total(jnp.asarray(cases[-1], jnp.float32), (0,)).high, cases[-1].sum(), np.float32)
    # Column by column; and over two axes.
    x = rng.standard_normal((2, 3, size)).astype(np.float32)[:, :, :1000]
    bound = size**2 / 2.0**45
    for axes, columns in (((2,), x.reshape(6, -1)), ((0, 2), np.moveaxis(x, 1, 0).reshape(3, -1))):
        got = exact(total(jnp.asarray(x), axes))
        assert all(abs(float(g) - fsum(c)) <= bound for g, c in zip(got, columns, strict=True))


def test_a_sum_of_products_does_not_depend_on_what_the_compiler_fuses(rng):
    # Rounding a product twice in two ways once cost a unit of the cut: 2**-18 of the sum.
    total = jax.jit(lambda x, w: sum_floats(jnp.where(w != 0, x, 0.0) * w, (0, 1)))
    for _ in range(200):
        x = rng.normal(3, 1, (16, 3)).astype(np.float32)
        w = (rng.choice([0.0, 0.7, 3.0], (16, 1)) * np.ones(3)).astype(np.float32)
        (got,) = exact(total(x, w))
        want = fsum(x.astype(np.float64) * w)
        # Each product rounds once, in whichever way.
        assert abs(got - Fraction(want)) <= 2.0**-23 * abs(want)


def test_sums_of_floats_that_are_not_finite():
    cases = [[np.inf, 1], [np.inf, -np.inf], [np.nan, 1], [-np.inf, 2], [3e38, 1], [3e38, 3e38]]
    for values, want in zip(cases, [np.inf, np.nan, np.nan, -np.inf, 3e38, np.inf], strict=True):
        high, low = jax.jit(sum_floats, static_argnums=1)(np.float32(values), (0,))
        np.testing.assert_array_equal(high, np.float32(want))
        assert float(low) == 0 or abs(float(low)) == 1
    assert exact(sum_floats(jnp.zeros((0,)), (0,))) == [0]
    gradient = jax.grad(lambda x: sum_floats(x, (0,)).high)(jnp.asarray([1.0, 2.0, 3.0]))
    assert gradient.tolist() == [1, 1, 1]


@pytest.mark.parametrize("sums", [run_sums, jax.jit(run_sums)], ids=["NumPy", "jit"])
@pytest.mark.parametrize("size", [1, 2, 37, 600])
def test_sums_of_runs(rng, size, sums):
    run = np.sort(rng.integers(0, max(size // 4, 1), (3, size)), -1)
    x = rng.uniform(0, 1, (3, size)).astype(np.float32)
    differs = run[:, 1:] != run[:, :-1]
    edge = np.ones((3, 1), bool)
    first, last = np.append(edge, differs, -1), np.append(differs, edge, -1)
    total = sums(x, first, last)
    for row in range(3):
        want = np.bincount(run[row], x[row].astype(np.float64))[run[row]]
        got = np.float64(total.high[row]) + np.float64(total.low[row])
        np.testing.assert_allclose(got, np.where(first[row], want, 0), rtol=2.0**-44)


def test_the_sum_from_each_element_to_the_end_of_its_run(rng):
    x, last = rng.uniform(0, 1, (3, 20)).astype(np.float32), rng.random((3, 20)) < 0.2
    every = np.ones_like(last)
    for sums in (run_sums, jax.jit(run_sums)):
        total = sums(x, every, last)
        for row in range(3):
            for i in range(20):
                end = next((j for j in range(i, 20) if last[row, j]), 19)
                want = x[row, i : end + 1].astype(np.float64).sum()
                np.testing.assert_allclose(np.float64(total.high[row, i]), want, rtol=2.0**-23)
