"""Double-floats against exact rationals."""

import operator
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.numerics import DoubleFloat
from datarax.numerics.double_float import (
    concatenate,
    float_difference,
    float_product,
    stack,
    where,
)
from datarax.numerics.limbs import double_from_limbs
from datarax.numerics.pairs import add, two_product, two_sum
from tests.helpers import assert_same
from tests.numerics.doubles import exact, from_int, some_doubles, some_floats


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_two_sum_and_two_product_lose_nothing(rng, transform):
    # Of a size of which no error of a product is subnormal.
    a, b = some_floats(rng, 2000, decades=6), some_floats(rng, 2000, decades=6)
    b[:500] = -a[:500] * (1 + rng.integers(-2, 3, 500).astype(np.float32) * np.float32(2**-23))
    for function, want in ((two_sum, Fraction.__add__), (two_product, Fraction.__mul__)):
        got = transform(function)(jnp.asarray(a), jnp.asarray(b))
        high, low = (np.asarray(x) for x in got)
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        assert exact(got) == [want(Fraction(x), Fraction(y)) for x, y in pairs]
        assert (np.abs(low) <= np.spacing(np.abs(high)) / 2).all()


def test_the_error_of_an_infinite_or_nan_sum_is_zero():
    a = jnp.asarray([np.inf, np.inf, np.nan, 3e38, 1.0], jnp.float32)
    b = jnp.asarray([1.0, -np.inf, 1.0, 3e38, np.inf], jnp.float32)
    high, low = add((a, jnp.zeros(5)), (b, jnp.zeros(5)))
    np.testing.assert_array_equal(high, [np.inf, np.nan, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(low, 0)
    high, low = two_product(jnp.float32(3e38), jnp.float32(3e38))
    assert (float(high), float(low)) == (np.inf, 0.0)
    # The greatest float: an implementation that scales to split would overflow.
    big = jnp.float32(np.finfo(np.float32).max)
    assert exact(two_product(big, jnp.float32(1.0))) == [Fraction(float(big))]


def test_a_sum_is_within_46_bits_and_commutes(rng):
    a, b = some_doubles(rng, 2000), some_doubles(rng, 2000)
    a = jax.tree.map(lambda x, y: x.at[:500].set(-y[:500]), a, b)  # cancel altogether
    got = jax.jit(operator.add)(a, b)
    for x, y in zip(got, jax.jit(operator.add)(b, a), strict=True):
        assert_same(x, y)
    for g, x, y in zip(exact(got), exact(a), exact(b), strict=True):
        assert abs(g - (x + y)) <= (abs(x) + abs(y)) / 2**45
    assert exact(got)[:500] == [0] * 500


def test_a_product_with_a_float(rng):
    a, factor = some_doubles(rng, 1000), some_floats(rng, 1000)
    for g, x, f in zip(
        exact(jax.jit(operator.mul)(a, jnp.asarray(factor))),
        exact(a),
        factor.tolist(),
        strict=True,
    ):
        assert abs(g - x * Fraction(f)) <= abs(x * Fraction(f)) / 2**44


def test_a_quotient_is_the_nearest_float_or_its_neighbour(rng):
    a, b = some_doubles(rng, 4000), some_doubles(rng, 4000)
    b = b[b.high != 0]
    a = a[: b.high.size]
    got = jax.jit(lambda a, b: (a / b).to_float())(a, b)
    want = [float(x / y) for x, y in zip(exact(a), exact(b), strict=True)]
    assert_same(got, np.asarray(want), np.float32, ulps=1)
    # Whole numbers that divide give the whole number, beyond 2**24 too.
    q, d = rng.integers(1, 2**12, 1000), rng.integers(1, 2**24, 1000)
    got = (double_from_limbs(from_int(q * d)) / double_from_limbs(from_int(d))).to_float()
    assert_same(got, q.astype(np.float32))


def test_division_by_zero_and_by_infinity():
    def divide(a, b):
        return float((DoubleFloat.of(jnp.float32(a)) / DoubleFloat.of(jnp.float32(b))).to_float())

    assert np.isnan(divide(0, 0))
    assert np.isnan(divide(1, 0))
    assert divide(np.inf, 2) == np.inf
    assert divide(2, np.inf) == 0
    assert np.isnan(divide(np.nan, 2))


@pytest.mark.parametrize("size", [1, 2, 7, 101])
def test_the_sum_of_a_vector(rng, size):
    doubles = some_doubles(rng, size)
    want, absolute = sum(exact(doubles)), sum(map(abs, exact(doubles)))
    rows = stack([doubles, doubles])
    sums = jax.jit(lambda one, rows: (one.sum(), rows.sum(), rows.sum((0, 1))))(doubles, rows)
    (got,), each, (whole,) = map(exact, sums)
    assert abs(got - want) <= absolute / 2**43
    assert each == [got, got]
    assert abs(whole - 2 * want) <= 2 * absolute / 2**43


BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@pytest.mark.parametrize("kind", ["double", "array", "number", "reflected"])
def test_operators_agree_with_rationals(rng, kind):
    a, b = some_doubles(rng, 500), some_doubles(rng, 500)
    a, b = (x + (x.high == 0).astype(np.float32) for x in (a, b))  # no zeros
    x, y = exact(a), exact(b)
    if kind == "array":
        b, y = b.high, [Fraction(float(v)) for v in b.high]
    elif kind in ("number", "reflected"):
        number = rng.choice([0.1, 1 / 3, -2.0, 3, 1e-3, 0.25]).item()
        b, y = number, [Fraction(number)] * len(x)
    if kind == "reflected":
        a, b, x, y = b, a, y, x
    found = jax.jit(lambda: {sign: operation(a, b) for sign, operation in BINARY.items()})()
    for sign, got in found.items():
        for g, p, q in zip(exact(got), x, y, strict=True):
            want = BINARY[sign](p, q)
            # Python's numbers are rounded to a double-float first.
            slack = abs(p) + abs(q) if sign in "+-" else abs(want)
            assert abs(g - want) <= slack / 2**43, sign


def test_finite_numbers_are_as_exact(rng):
    a, b = (x + (x.high == 0).astype(np.float32) for x in (some_doubles(rng, 500) for _ in "ab"))
    x, y, z = exact(a), exact(b), [Fraction(v) for v in b.high.tolist()]

    @jax.jit
    def computed(a, b):
        found = [operation(a.finite, b.finite) for operation in BINARY.values()]
        floats = [operation(a.finite, b.high) for operation in BINARY.values()]
        squares = a.finite * a.finite
        apart = float_difference(a.high, b.high), float_product(a.high, b.high)
        return found, floats, squares, a.finite.corrected(a.low), apart

    found, floats, squares, corrected, apart = computed(a, b)
    for got, others in ((found, y), (floats, z)):
        for number, (sign, operation) in zip(got, BINARY.items(), strict=True):
            for g, p, q in zip(exact(number), x, others, strict=True):
                slack = abs(p) + abs(q) if sign in "+-" else abs(operation(p, q))
                assert abs(g - operation(p, q)) <= slack / 2**42, sign
    for g, p in zip(exact(squares), x, strict=True):
        assert abs(g - p * p) <= p * p / 2**42
    for g, p, low in zip(exact(corrected), x, a.low.tolist(), strict=True):
        assert abs(g - p - Fraction(low)) <= abs(p) / 2**43
    highs = list(zip(map(Fraction, a.high.tolist()), z, strict=True))
    for difference, product, (p, q) in zip(*map(exact, apart), highs, strict=True):
        assert abs(difference - (p - q)) <= (abs(p) + abs(q)) / 2**46
        assert abs(product - p * q) <= abs(p * q) / 2**46


def test_products_with_powers_of_two_are_exact(rng):
    a = some_doubles(rng, 100) * 1  # rounded to float64, as within a formula
    for power in (2, 0.5, -4.0, 1):
        assert exact(a * power) == [x * Fraction(power) for x in exact(a)]


def test_comparisons_see_what_high_parts_hide(rng):
    a, b = some_doubles(rng, 1000), some_doubles(rng, 1000)
    b = jax.tree.map(lambda x, y: x.at[:500].set(y[:500]), b, a)
    more = np.spacing(np.abs(b.high[:250])) * np.float32(2**-10)
    b = DoubleFloat(b.high, b.low.at[:250].add(jnp.where(b.low[:250] < 0, more, -more)))
    a, b = (x + (b.high == 0).astype(np.float32) for x in (a, b))  # no subnormal low parts
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        want = [compare(x, y) for x, y in zip(exact(a), exact(b), strict=True)]
        np.testing.assert_array_equal(compare(a, b), want)
    assert (DoubleFloat.of(jnp.float32(1)) < 1.0 + 2.0**-40).item()


def test_shapes_go_with_both_parts(rng):
    a = some_doubles(rng, 12).reshape(3, 4)
    assert (a.shape, a.ndim, a.dtype) == ((3, 4), 2, np.float32)
    assert exact(a[1]) == exact(a)[4:8]
    assert exact(a.map(jnp.transpose)) == exact(DoubleFloat(a.high.T, a.low.T))
    assert exact(concatenate([a, a])) == exact(a) * 2
    assert exact(where(a.high > 0, a, -a)) == [abs(x) for x in exact(a)]
    assert exact(a + a[:, :1]) == exact(a + a[:, :1].broadcast_to((3, 4)))
    high, low = a
    assert_same(high, a.high)
    assert_same(low, a.low)
    assert jax.tree.structure(a).num_leaves == 2


def test_weak_types_and_wide_dtypes_stay_out(rng):
    a = some_doubles(rng, 3)
    for got in (a + 1, 1 - a, a * 0.1, a / 3, 2 / a):
        assert {x.dtype for x in got} == {np.dtype(np.float32)}
        assert not any(x.aval.weak_type for x in got)


def test_a_number_of_the_host_is_stacked_with_one_of_a_device():
    """A device without float64 gets the two parts, also if the number of the host comes first."""

    def stacked(x):
        return stack([DoubleFloat.of(np.float32(1)), DoubleFloat.of(x)])

    with datarax.lowering_for("tpu"):
        assert "f64" not in str(jax.make_jaxpr(stacked)(jnp.float32(2)))
        np.testing.assert_array_equal(stacked(jnp.float32(2)).high, [1, 2])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv"])
def test_infinite_numbers_are_those_of_floats(name):
    values = np.float32([np.inf, -np.inf, np.nan, 0, 3, -0.1])
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    operation = getattr(operator, name)
    got = jax.jit(lambda a, b: tuple(operation(DoubleFloat.of(a), DoubleFloat.of(b))))(a, b)
    with np.errstate(all="ignore"):
        want = operation(np.float64(a), b)
    want[(b == 0) & (name == "truediv")] = np.nan
    np.testing.assert_array_equal(got[0], want.astype(np.float32))
    assert not np.any(got[1][~np.isfinite(want)] > 0)
