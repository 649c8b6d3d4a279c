"""Sums and extremes by place are the same in NumPy, in a program with float64, and without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scatter import (
    add_at,
    as_compared,
    count_at,
    greatest_at,
    greatest_double_at,
    scatter_sum,
    scatter_sums,
)

SIZE, SHAPE = 6, (2, 3)


def both_parts(x):
    high, low = x
    return np.asarray(high, np.float64) + np.asarray(low, np.float64)


def run(function, form, *arrays):
    """`function` in NumPy, or in a program of a platform."""
    if form == "numpy":
        return function(*arrays)
    with datarax.lowering_for(form):
        return jax.jit(function)(*map(jnp.asarray, arrays))


@pytest.mark.parametrize("form", ["numpy", "cpu", "tpu"])
def test_sums_by_place(form, rng):
    place = rng.integers(0, SIZE + 2, 500).astype(np.int32)  # the last two are dropped
    columns = rng.normal(size=(3, 500)).astype(np.float32) * np.float32([[1], [1e4], [1e-4]])
    columns[:, rng.random(500) < 0.2] = 0
    exact = np.zeros((3, SIZE + 2))
    np.add.at(exact.T, place, columns.T.astype(np.float64))
    exact = exact[:, :SIZE].reshape(3, *SHAPE)
    size = np.abs(columns).sum(-1)[:, None, None]
    tops = [*np.abs(columns).max(-1)]

    def sums(place, *columns):
        known = scatter_sums(place, columns, SHAPE, tops)
        return known, scatter_sums(place, columns, SHAPE), scatter_sum(place, columns[0], SHAPE)

    known, unknown, alone = run(sums, form, place, *columns)
    for found in (known, unknown):
        values = np.stack([both_parts(x) for x in found])
        assert (np.abs(values - exact) <= 2.0**-40 * size).all()
    np.testing.assert_allclose(both_parts(alone), exact[0], atol=2.0**-40 * size[0].item())


@pytest.mark.parametrize("form", ["numpy", "cpu", "tpu"])
@pytest.mark.parametrize("size", [SIZE, 100])
def test_counts_and_extremes_by_place(form, size, rng):
    labels = rng.integers(0, size, 300).astype(np.int32)
    weights = rng.integers(0, 9, 300).astype(np.int32)
    values = rng.normal(size=300).astype(np.float32)
    place = np.where(rng.random(300) < 0.1, size, labels).astype(np.int32)
    start = rng.normal(size=size).astype(np.float32)

    def found(labels, weights, place, values, start):
        greatest = greatest_at(start, place, values)
        least = greatest_at(start, place, values, negated=True)
        both = as_compared(DoubleFloat.of(values))
        doubles = greatest_double_at(DoubleFloat.of(start), place.astype("uint32"), both)
        repeated = count_at(labels, weights[:, None] * np.array([[1, 2]], np.int32), size)
        counts = count_at(labels, weights, size)
        return counts, repeated, add_at(counts, place, weights > 4), greatest, least, doubles.high

    counts, repeated, added, greatest, least, doubles = run(
        found, form, labels, weights, place, values, start
    )
    expected = np.bincount(labels, weights, size)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(repeated, np.stack([expected, 2 * expected], -1))
    used = place < size
    np.testing.assert_array_equal(
        added, expected + np.bincount(place[used], weights[used] > 4, size)
    )
    for ufunc, results in ((np.maximum, (greatest, doubles)), (np.minimum, (least,))):
        due = start.copy()
        ufunc.at(due, place[used], values[used])
        for x in results:
            np.testing.assert_array_equal(x, due)
