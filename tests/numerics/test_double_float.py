"""Pairs of floats and wide integers, against exact rationals and Python's own integers."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import numerics as nx
from tests.helpers import assert_same, fsum, x64

FLOATS = jnp.dtype("float32")


def some_floats(rng, size, decades=12):
    """Floats of all magnitudes up to 10**decades, of both signs, and some zeros."""
    x = rng.standard_normal(size) * 10.0 ** rng.uniform(-decades, decades, size)
    return np.where(rng.random(size) < 0.1, 0.0, x).astype(np.float32)


def some_pairs(rng, size):
    """Normalised pairs: the low part at most half a unit in the last place of the high one."""
    high = some_floats(rng, size)
    low = (rng.uniform(-0.5, 0.5, size) * np.spacing(np.abs(high))).astype(np.float32)
    return nx.two_sum(jnp.asarray(high), jnp.asarray(low))


def exact(pair):
    high, low = (np.asarray(x) for x in pair)
    return [
        Fraction(float(h)) + Fraction(float(x))
        for h, x in zip(high.ravel(), low.ravel(), strict=True)
    ]


def to_int(words):
    """The integers that words stand for, in Python."""
    high, low = (np.asarray(x) for x in words)
    return [(int(h) << 32) + int(x) for h, x in zip(high.ravel(), low.ravel(), strict=True)]


def from_int(values):
    high, low = zip(*(divmod(int(v), 2**32) for v in values), strict=True)
    return jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.uint32)


def wrapped(x):
    return (x + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_two_sum_and_two_product_lose_nothing(rng, transform):
    a, b = some_floats(rng, 2000), some_floats(rng, 2000)
    b[:500] = -a[:500] * (1 + rng.integers(-2, 3, 500).astype(np.float32) * np.float32(2**-23))
    for function, want in ((nx.two_sum, Fraction.__add__), (nx.two_product, Fraction.__mul__)):
        got = transform(function)(jnp.asarray(a), jnp.asarray(b))
        high, low = (np.asarray(x) for x in got)
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        assert exact(got) == [want(Fraction(x), Fraction(y)) for x, y in pairs]
        assert (np.abs(low) <= np.spacing(np.abs(high)) / 2).all()


def test_the_error_of_an_infinite_or_nan_sum_is_zero():
    a = jnp.asarray([np.inf, np.inf, np.nan, 3e38, 1.0], jnp.float32)
    b = jnp.asarray([1.0, -np.inf, 1.0, 3e38, np.inf], jnp.float32)
    high, low = nx.two_sum(a, b)
    np.testing.assert_array_equal(high, [np.inf, np.nan, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(low, 0)
    high, low = nx.two_product(jnp.float32(3e38), jnp.float32(3e38))
    assert (float(high), float(low)) == (np.inf, 0.0)
    # The greatest float: an implementation that scales to split would overflow.
    big = jnp.float32(np.finfo(np.float32).max)
    assert exact(nx.two_product(big, jnp.float32(1.0))) == [Fraction(float(big))]


def test_pairs_add_up_to_46_bits_and_in_either_order(rng):
    a, b = some_pairs(rng, 2000), some_pairs(rng, 2000)
    a = tuple(x.at[:500].set(-y[:500]) for x, y in zip(a, b, strict=True))  # cancel altogether
    got = jax.jit(nx.pair_add)(a, b)
    for x, y in zip(got, jax.jit(nx.pair_add)(b, a), strict=True):
        assert_same(x, y)
    for g, x, y in zip(exact(got), exact(a), exact(b), strict=True):
        assert abs(g - (x + y)) <= (abs(x) + abs(y)) / 2**45
    assert exact(got)[:500] == [0] * 500


def test_a_pair_times_a_float(rng):
    a, factor = some_pairs(rng, 1000), some_floats(rng, 1000)
    for g, x, f in zip(
        exact(jax.jit(nx.pair_scale)(a, jnp.asarray(factor))),
        exact(a),
        factor.tolist(),
        strict=True,
    ):
        assert abs(g - x * Fraction(f)) <= abs(x * Fraction(f)) / 2**44


def test_the_quotient_of_pairs_is_the_nearest_float_or_its_neighbour(rng):
    a, b = some_pairs(rng, 4000), some_pairs(rng, 4000)
    b = tuple(x[b[0] != 0] for x in b)
    a = tuple(x[: b[0].size] for x in a)
    got = jax.jit(nx.pair_divide)(a, b)
    want = [float(x / y) for x, y in zip(exact(a), exact(b), strict=True)]
    assert_same(got, np.asarray(want), np.float32, ulps=1)
    # Whole numbers that divide give the whole number, beyond 2**24 too.
    q, d = rng.integers(1, 2**12, 1000), rng.integers(1, 2**24, 1000)
    got = nx.pair_divide(nx.wide_to_pair(from_int(q * d)), nx.wide_to_pair(from_int(d)))
    assert_same(got, q.astype(np.float32))


def test_division_by_zero_and_by_infinity():
    def divide(a, b):
        return float(nx.pair_divide((np.float32(a), np.float32(0)), (np.float32(b), np.float32(0))))

    assert np.isnan(divide(0, 0))
    assert np.isnan(divide(1, 0))
    assert divide(np.inf, 2) == np.inf
    assert divide(2, np.inf) == 0
    assert np.isnan(divide(np.nan, 2))


@pytest.mark.parametrize("size", [1, 2, 7, 101])
def test_the_sum_of_a_vector_of_pairs(rng, size):
    pairs = some_pairs(rng, size)
    got, want = exact(jax.jit(nx.pair_sum)(pairs))[0], sum(exact(pairs))
    assert abs(got - want) <= sum(map(abs, exact(pairs))) / 2**43
    rows = tuple(jnp.stack([x, x]) for x in pairs)
    assert exact(jax.jit(nx.pair_sum)(rows)) == [got, got]


@pytest.mark.parametrize("size", [1, 2, 7, 101, 1000])
def test_the_sums_of_pairs_from_each_on(rng, size):
    pairs = some_pairs(rng, size)
    assert np.any(pairs[1])
    got, parts = exact(jax.jit(nx.pair_suffix_sums)(pairs)), exact(pairs)
    want, bound = Fraction(0), Fraction(0)
    for value, part in zip(got[::-1], parts[::-1], strict=True):
        want, bound = want + part, bound + abs(part)
        assert abs(value - want) <= bound / 2**42
    above = exact(jax.jit(lambda a: nx.pair_suffix_sums((a[0][None], a[1][None])))(pairs))
    assert above == got


@pytest.mark.parametrize("size", [1, 2, 7, 100, 1000, 30_000, 2**20 + 1])
def test_sums_of_floats_in_one_batch(rng, size):
    total = jax.jit(nx.float_sum, static_argnums=1)
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
            assert (
                abs(got - want) <= size**2 * Fraction(float(np.abs(x).max())) / 2**47 + want / 2**52
            )
        assert abs(got - want) <= want / 2**23
    assert_same(total(jnp.asarray(cases[-1], jnp.float32), (0,))[0], cases[-1].sum(), np.float32)
    # Column by column; and over two axes.
    x = rng.standard_normal((2, 3, size)).astype(np.float32)[:, :, :1000]
    bound = size**2 / 2.0**45
    for axes, columns in (((2,), x.reshape(6, -1)), ((0, 2), np.moveaxis(x, 1, 0).reshape(3, -1))):
        got = exact(total(jnp.asarray(x), axes))
        assert all(abs(float(g) - fsum(c)) <= bound for g, c in zip(got, columns, strict=True))


def test_a_sum_of_products_does_not_depend_on_what_the_compiler_fuses(rng):
    # Rounding a product twice in two ways once cost a unit of the cut: 2**-18 of the sum.
    total = jax.jit(lambda x, w: nx.float_sum(jnp.where(w != 0, x, 0.0) * w, (0, 1)))
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
        high, low = nx.float_sum(jnp.asarray(values, jnp.float32), (0,))
        np.testing.assert_array_equal(high, np.float32(want))
        assert float(low) == 0 or abs(float(low)) == 1
    assert exact(nx.float_sum(jnp.zeros((0,)), (0,))) == [0]
    gradient = jax.grad(lambda x: nx.float_sum(x, (0,))[0])(jnp.asarray([1.0, 2.0, 3.0]))
    assert gradient.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32"])
def test_pairs_hold_every_integer_of_32_bits(rng, dtype):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    ends = [0, 1] if dtype == "bool" else [info.min, info.min + 1, 0, info.max - 1, info.max]
    x = np.concatenate([np.asarray(ends, dtype), rng.integers(0, info.max, 500).astype(dtype)])
    assert exact(nx.pair_from_int(jnp.asarray(x), FLOATS)) == x.astype(int).tolist()


def some_wide(rng, size=2000):
    edges = [0, 1, -1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, -(2**31) - 1, -(2**32)]
    edges += [2**63 - 1, -(2**63), 2**62, -(2**62), 2**48 - 1, -(2**48) + 1]
    random = (rng.integers(-(2**63), 2**63, size) >> rng.integers(0, 63, size)).tolist()
    return edges + random


def test_wide_integers_add_and_negate_as_64_bits(rng):
    a, b = some_wide(rng), some_wide(rng)[::-1]
    assert to_int(jax.jit(nx.wide_add)(from_int(a), from_int(b))) == [
        wrapped(x + y) for x, y in zip(a, b, strict=True)
    ]
    assert to_int(nx.wide_negative(from_int(a))) == [wrapped(-x) for x in a]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32"])
def test_wide_integers_from_narrow_ones(rng, dtype):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    x = np.concatenate([[0, 1, info.max], rng.integers(info.min, info.max, 100)]).astype(dtype)
    for shift in (0, 1, 16, 31):
        want = [wrapped(int(v) << shift) for v in x]
        assert to_int(nx.wide_from_int(jnp.asarray(x), shift)) == want


def test_a_wide_integer_as_a_pair_is_exact_to_48_bits(rng):
    small = [x for x in some_wide(rng) if abs(x) < 2**48]
    as_pair = jax.jit(nx.wide_to_pair)
    assert exact(as_pair(from_int(small))) == small
    every = some_wide(rng)
    for got, want in zip(exact(as_pair(from_int(every))), every, strict=True):
        assert abs(got - want) <= abs(want) / 2**47


SHAPES = [((1,), (0,)), ((0,), (0,)), ((5, 3, 4), (0, 2)), ((70_000,), (0,)), ((3,), ())]


@pytest.mark.parametrize("fill", ["random", "max", "min"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_sums_of_integers_are_exact(rng, dtype, fill):
    info = np.iinfo(np.int8 if dtype == "bool" else dtype)
    for shape, axes in SHAPES:
        x = rng.integers(info.min, info.max, shape, endpoint=True, dtype=info.dtype)
        x = {"random": x, "max": np.full_like(x, info.max), "min": np.full_like(x, info.min)}[fill]
        x = x.astype(dtype)
        got = jax.jit(nx.wide_sum, static_argnums=1)(x, axes)
        want = x.astype(np.int64).sum(axes)
        assert got[0].shape == want.shape
        assert to_int(got) == want.ravel().tolist()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "uint32"])
def test_sums_of_many_integers_leave_32_bits_behind(dtype):
    # 2**24 + 3 rows, of which each is the greatest that the dtype holds.
    size = 2**24 + 3
    top = 1 if dtype == "bool" else int(np.iinfo(dtype).max)
    got = jax.jit(lambda: nx.wide_sum(jnp.full((size,), top, dtype), (0,)))()
    assert to_int(got) == [size * top]


def test_64_bit_integers_that_reach_an_accumulator_of_words(rng):
    with x64():
        x = jnp.asarray([2**40, -(2**62), 5, -1, 2**62 + 1], jnp.int64)
        total = jax.jit(nx.wide_sum, static_argnums=1)
        assert to_int(total(x, (0,))) == [2**40 + 5]
        assert to_int(total(x, ())) == x.tolist()


def test_more_than_2_to_the_30_integers_in_one_reduction_are_refused():
    shape = jax.ShapeDtypeStruct((2**30 + 1,), jnp.int8)
    with pytest.raises(OverflowError, match="fold it in parts"):
        jax.eval_shape(lambda x: nx.wide_sum(x, (0,)), shape)
    jax.eval_shape(lambda x: nx.wide_sum(x, (0,)), jax.ShapeDtypeStruct((2**30,), jnp.int8))
