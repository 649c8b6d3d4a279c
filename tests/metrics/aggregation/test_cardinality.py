"""Distinct counts: within their standard error, and by value for every dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import Cardinality
from datarax.numerics.hashing import hashed
from tests.helpers import update, x64

SIZE = 1_000_000
KINDS = {
    "in sequence": lambda rng: rng.integers(-(2**31), 2**30) + np.arange(SIZE),
    "in steps of 1024": lambda rng: rng.integers(-(2**31), -(2**30)) + 1024 * np.arange(SIZE),
    "at random": lambda rng: rng.permutation(2 * SIZE)[:SIZE] - SIZE,
    "thousandths": lambda rng: np.arange(SIZE) / 1024 - rng.integers(100),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("precision", [10, 14])
def test_errors_are_within_the_standard_error(kind, precision, rng):
    values = kind(rng)
    values = values.astype(np.int32 if values.dtype == np.int64 else np.float32)
    metric = Cardinality(precision=precision)
    for count in (1, 7, 100, 3_000, 40_000, 100_000, SIZE):
        first = rng.integers(SIZE - count + 1)
        used = (np.arange(SIZE) >= first) & (np.arange(SIZE) < first + count)
        assert np.unique(values[used]).size == count
        got = float(update(metric, values, weights=used).compute())
        # Beyond 4.5 standard errors once in 150,000. Two of a few values may share a register.
        assert abs(got - count) <= 4.5 * metric.standard_error * count + (count > 1)


def test_the_standard_error_is_the_one_documented(rng):
    metric = Cardinality(precision=6)
    assert metric.standard_error == 1.04 / 8
    trials, count = 300, 4096
    values = rng.integers(-(2**31), 2**31, (trials, count)).astype(np.int32)
    states = jax.vmap(lambda x: metric.update(x))(values)
    got = np.asarray(jax.jit(jax.vmap(lambda m: m.compute()))(states)) / count - 1
    # From 300 trials, the standard deviation is known to 4 %, and the mean to 0.75 %.
    assert 0.8 < got.std() / metric.standard_error < 1.25
    assert abs(got.mean()) < 0.04


def test_repetition_and_order_do_not_matter(rng):
    values = np.arange(5000, dtype=np.int32)
    once = Cardinality().update(values).compute()
    assert Cardinality().update(np.tile(rng.permutation(values), 3)).compute() == once
    halves = Cardinality().update(values[:3000]).merge(Cardinality().update(values[2000:]))
    assert halves.compute() == once


def test_equal_values_of_any_dtype_count_once():
    integers = [
        jnp.array([0, 1, 3, 100]).astype(dtype)
        for dtype in ("int32", "uint8", "int16", "uint32", "float32", "bfloat16", "float16")
    ]
    metric = Cardinality()
    for values in integers:
        metric = metric.update(values)
    assert round(float(metric.compute())) == 4
    metric = metric.update(jnp.array([-0.0, 0.0])).update(jnp.array([True, False]))
    assert round(float(metric.compute())) == 4
    metric = metric.update(jnp.array([-1, -3])).update(jnp.array([-1.0, -3.0]))
    assert round(float(metric.compute())) == 6
    large = Cardinality().update(np.array([3_000_000_000], np.uint32)).update(jnp.array([3e9]))
    assert round(float(large.compute())) == 1


def test_equal_values_with_x64_and_without():
    values = np.float32([0.5, -3.0, 3e9, 1e30, 0.1, -0.0])
    narrow = [np.asarray(x) for x in hashed(jnp.asarray(values))]
    with x64():
        wide = [np.asarray(x) for x in hashed(jnp.asarray(values, jnp.float64))]
        whole = [np.asarray(x) for x in hashed(jnp.array([-3, 3_000_000_000], jnp.int64))]
        apart = hashed(jnp.array([0.1, float(np.float32(0.1)), 2**40, 2**40 + 1]))
        assert np.unique(np.asarray(apart[0])).size == 4
    np.testing.assert_array_equal(narrow, wide)
    np.testing.assert_array_equal(np.array(narrow)[:, 1:3], whole)


def test_distinct_values_have_distinct_hashes(rng):
    values = np.unique(rng.integers(-(2**31), 2**31, 200_000).astype(np.int32))
    high, low = (np.asarray(x).astype(np.uint64) for x in jax.jit(hashed)(values))
    assert np.unique(high << np.uint64(32) | low).size == values.size
    # Every bit is set in half of them: 5 standard deviations are 5 / (2 sqrt(n)).
    for word in (high, low):
        for bit in range(32):
            share = (word >> np.uint64(bit) & np.uint64(1)).mean()
            assert abs(share - 0.5) < 2.5 / np.sqrt(values.size)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_invalid_values_are_excluded_and_counted():
    seen = Cardinality().update(jnp.array([1.0, jnp.nan, jnp.inf, -jnp.inf, 1.0]))
    assert round(float(seen.compute())) == 1
    assert int(seen.invalid_count()) == 3
    absent = Cardinality().update(jnp.array([1.0, jnp.nan]), weights=jnp.array([0.0, 0.0]))
    assert (float(absent.compute()), int(absent.invalid_count())) == (0, 0)


@pytest.mark.parametrize("precision", [3, 17, 14.0, True])
def test_the_precision_is_checked(precision):
    with pytest.raises(datarax.MetricInputError, match="precision="):
        Cardinality(precision=precision)
