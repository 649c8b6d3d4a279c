"""64-bit integers in two limbs against Python's own integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax.numerics.limbs import (
    add_limbs,
    double_from_int,
    double_from_limbs,
    limbs_from_int,
    negate_limbs,
    sum_integers,
    sum_limbs,
)
from tests.helpers import x64
from tests.numerics.doubles import exact, from_int, to_int


def wrapped(x):
    return (x + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32"])
def test_doubles_hold_every_integer_of_32_bits(rng, dtype):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    ends = [0, 1] if dtype == "bool" else [info.min, info.min + 1, 0, info.max - 1, info.max]
    x = np.concatenate([np.asarray(ends, dtype), rng.integers(0, info.max, 500).astype(dtype)])
    held = jax.jit(double_from_int, static_argnums=1)(x, jnp.dtype(jnp.float32))
    assert exact(held) == x.astype(int).tolist()


def some_integers(rng, size=2000):
    edges = [0, 1, -1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31) - 1, -(2**32)]
    edges += [2**63 - 1, -(2**63), 2**62, -(2**62), 2**48 - 1, -(2**48) + 1]
    random = (rng.integers(-(2**63), 2**63, size) >> rng.integers(0, 63, size)).tolist()
    return edges + random


def test_limbs_add_and_negate_as_64_bits(rng):
    a, b = some_integers(rng), some_integers(rng)[::-1]
    assert to_int(jax.jit(add_limbs)(from_int(a), from_int(b))) == [
        wrapped(x + y) for x, y in zip(a, b, strict=True)
    ]
    assert to_int(negate_limbs(from_int(a))) == [wrapped(-x) for x in a]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32"])
def test_limbs_from_narrow_ones(rng, dtype):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    x = np.concatenate([[0, 1, info.max], rng.integers(info.min, info.max, 100)]).astype(dtype)
    for shift in (0, 1, 16, 31):
        want = [wrapped(int(v) << shift) for v in x]
        assert to_int(limbs_from_int(jnp.asarray(x), shift)) == want


def test_a_double_of_limbs_is_exact_to_48_bits(rng):
    small = [x for x in some_integers(rng) if abs(x) < 2**48]
    as_double = jax.jit(double_from_limbs)
    assert exact(as_double(from_int(small))) == small
    every = some_integers(rng)
    for got, want in zip(exact(as_double(from_int(every))), every, strict=True):
        assert abs(got - want) <= abs(want) / 2**47


SHAPES = [((1,), (0,)), ((0,), (0,)), ((5, 3, 4), (0, 2)), ((70_000,), (0,)), ((3,), ())]


@pytest.mark.parametrize("fill", ["random", "max", "min"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_sums_of_integers_are_exact(rng, dtype, fill):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    # What shapes there are is not a matter of the dtype.
    for shape, axes in SHAPES if dtype == "int32" else SHAPES[2:4]:
        x = rng.integers(info.min, info.max, shape, endpoint=True, dtype=info.dtype)
        x = {"random": x, "max": np.full_like(x, info.max), "min": np.full_like(x, info.min)}[fill]
        x = x.astype(dtype)
        got = jax.jit(sum_integers, static_argnums=1)(x, axes)
        want = x.astype(np.int64).sum(axes)
        assert got[0].shape == want.shape
        assert to_int(got) == want.ravel().tolist()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32"])
def test_sums_of_many_integers_leave_32_bits_behind(dtype):
    # 2**24 + 3 rows, of which each is the greatest that the dtype holds.
    size = 2**24 + 3
    top = 1 if dtype == "bool" else int(np.iinfo(dtype).max)
    got = jax.jit(lambda: sum_integers(jnp.full((size,), top, dtype), (0,)))()
    assert to_int(got) == [size * top]


def test_64_bit_integers_that_reach_an_accumulator_of_limbs(rng):
    with x64():
        x = jnp.asarray([2**40, -(2**62), 5, -1, 2**62 + 1], jnp.int64)
        total = jax.jit(sum_integers, static_argnums=1)
        assert to_int(total(x, (0,))) == [2**40 + 5]
        assert to_int(total(x, ())) == x.tolist()


def test_more_than_2_to_the_31_integers_in_one_reduction():
    shape = jax.ShapeDtypeStruct((2**31 + 1,), jnp.bool_)
    high, low = jax.eval_shape(lambda x: sum_integers(x, (0,)), shape)
    assert (high.dtype, low.dtype) == (jnp.int32, jnp.uint32)


def test_sums_of_limbs_beyond_32_bits(rng):
    whole = rng.integers(-(2**58), 2**58, (3, 7))
    chosen = rng.random((3, 7)) < 0.5
    limbs = (whole >> 32).astype(np.int32), (whole & 0xFFFFFFFF).astype(np.uint32)
    high, low = sum_limbs((jnp.asarray(limbs[0]), jnp.asarray(limbs[1])), (-1,), chosen)
    got = (np.asarray(high).astype(np.int64) << 32) | np.asarray(low).astype(np.int64)
    np.testing.assert_array_equal(got, np.where(chosen, whole, 0).sum(-1))
