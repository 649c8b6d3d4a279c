"""`Exact`: counts as results, against Python's integers."""

import copy
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import Exact
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import whole_or_float
from tests.helpers import assert_same

EDGES = [0, 1, -1, 2**24 + 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 3 * 10**9, 2**48 + 1]
EDGES += [2**63 - 1, -(2**63)]


def count(value):
    """As a metric would come by it: accumulated in steps."""
    return datarax.MetricAccumulator(0).update(value // 2).update(value - value // 2).value


def counts(values):
    high, low = zip(*(divmod(v, 2**32) for v in values), strict=True)
    return Exact(jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.uint32))


def fraction(high, low):
    """A sum of floats, with the part that its float32 rounds away."""
    return datarax.MetricAccumulator(0.0).update(high).update(low).exact


@pytest.mark.parametrize("value", EDGES)
def test_everything_the_host_asks_of_a_count_is_exact(value):
    x = count(value)
    assert int(x) == operator.index(x) == x.item() == x.tolist() == value
    assert float(x) == float(value)
    assert np.asarray(x).dtype == x.dtype == np.int64
    assert np.asarray(x) == value
    assert (repr(x), str(x), f"{x}", f"{x:,}") == (str(value), str(value), str(value), f"{value:,}")
    assert bool(x) is bool(value)
    assert (x.shape, x.ndim, x.size) == ((), 0, 1)
    assert float(jnp.asarray(x)) == np.float32(value)
    assert list(range(5))[count(2)] == 2


def test_a_sum_of_floats_keeps_what_float32_rounds_away():
    x = fraction(2.0**30, 0.25)
    assert float(x) == x.item() == 2**30 + 0.25
    assert np.asarray(x).dtype == x.dtype == np.float64
    assert int(x) == 2**30
    assert float(x.to_float()) == 2.0**30 + 0.25
    assert float(jnp.asarray(x)) == 2.0**30
    with pytest.raises(TypeError):
        operator.index(x)


def test_vectors_of_counts():
    x = counts(EDGES)
    assert x.tolist() == EDGES
    assert (len(x), x.shape, x.size) == (len(EDGES), (len(EDGES),), len(EDGES))
    assert [int(item) for item in x] == EDGES
    assert int(x[7]) == 2**32
    assert x[2:5].tolist() == EDGES[2:5]
    np.testing.assert_array_equal(x, np.asarray(EDGES))
    with pytest.raises(ValueError, match="size 1"):
        bool(x)


COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("name", COMPARE)
def test_comparisons_are_those_of_python(name):
    compare = getattr(operator, name)
    near = [v + d for v in EDGES for d in (-1, 0, 1) if -(2**63) <= v + d < 2**63]
    for value in EDGES:
        x = count(value)
        for other in near:
            want = compare(value, other)
            assert bool(compare(x, other)) is want, (value, other)
            assert bool(compare(x, np.int64(other))) is want
        assert np.asarray(compare(counts(near), x)).tolist() == [compare(v, value) for v in near]
        np.testing.assert_array_equal(
            compare(counts(near), np.asarray(near[::-1])),
            [compare(a, b) for a, b in zip(near, near[::-1], strict=True)],
        )
    small = jnp.asarray([1, 2, 3], jnp.int32)
    assert np.asarray(compare(count(2), small)).tolist() == [compare(2, i) for i in (1, 2, 3)]


@pytest.mark.parametrize("name", COMPARE)
def test_a_sum_with_a_fraction_compares_with_counts_to_its_last_bit(name):
    compare = getattr(operator, name)
    x = fraction(2.0**30, 0.25)
    for other in (2**30 - 1, 2**30, 2**30 + 1):
        assert bool(compare(x, other)) is compare(2**30 + 0.25, other)
        assert bool(compare(count(other), x)) is compare(other, 2**30 + 0.25)


def test_a_quotient_is_rounded_once(rng):
    for _ in range(20):
        a, b = (int(v) for v in rng.integers(1, 2**46, 2))
        assert_same(count(a) / count(b), a / b, np.float64, ulps=1)
        assert_same(count(a) / b, a / b, np.float64, ulps=1)
    assert np.isnan(count(0) / count(0))
    assert np.isnan(count(3) / 0)
    assert_same(counts([6, 2**40]) / count(2), np.float32([3, 2**39]))  # on devices
    assert_same(count(2**40) / jnp.float32(0.5), np.float32(2**41))


def test_in_other_arithmetic_it_is_its_nearest_float():
    on_host, on_device = count(2**53 + 1), jax.device_put(count(2**24 + 1))
    for x, near in ((on_host, np.float64(2**53)), (on_device, np.float32(2**24))):
        dtype = near.dtype
        for name in ("add", "sub", "mul", "floordiv", "mod", "pow"):
            function = getattr(operator, name)
            assert_same(function(x, 2), function(near, dtype.type(2)), dtype)
    assert_same(2.0 ** count(3), 8.0, np.float64)
    assert_same(2 / count(4), 0.5, np.float64)
    assert_same(count(7) + count(8), 15, np.float64)
    assert_same(jnp.sqrt(count(2**40)), 2**20, np.float32)
    # NumPy converts it exactly, from either side.
    assert np.add(count(2**24 + 1), 1) == 2**24 + 2
    assert sum([count(1), count(2)]) == 3


def test_it_passes_through_transformations_and_copies(rng):
    x = count(2**40 + 3)
    assert int(jax.jit(lambda c: c)(x)) == 2**40 + 3
    assert bool(jax.jit(lambda c: c > 2**40 + 2)(x))
    assert int(jax.lax.scan(lambda c, _: (c, None), x, None, length=2)[0]) == 2**40 + 3
    assert jax.vmap(lambda c: c / count(2))(counts([2, 4])).tolist() == [1.0, 2.0]
    assert len(jax.tree.leaves(x)) == 2
    assert int(jax.block_until_ready(x)) == int(x.block_until_ready()) == 2**40 + 3
    assert int(pickle.loads(pickle.dumps(x))) == int(copy.deepcopy(x)) == 2**40 + 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


def test_a_traced_count_can_be_printed():
    seen = []
    jax.jit(lambda c: seen.append(repr(c)))(count(3))
    assert seen[0].startswith("Exact(")


@pytest.mark.parametrize(("x64", "low", "most"), [(False, 1, 2**48), (True, 3, 2**62)])
def test_whole_sums_are_integers_on_the_host(x64, low, most):
    with jax.enable_x64(x64):
        dtype = np.float64 if x64 else np.float32
        # The low part holds what the high part rounds away.
        double = DoubleFloat(np.array([most / 2, 5], dtype), np.array([low, 0], dtype))
        x = whole_or_float(double)
        assert isinstance(x, Exact)
        assert np.asarray(x).dtype == np.int64
        assert x.tolist() == [most // 2 + low, 5]
        assert [each.item() for each in x] == x.tolist()
        assert (x[1:].tolist(), type(x[1].item())) == ([5], int)
        assert x.to_float().dtype == np.float64  # arithmetic and `compute` stay in floats


@pytest.mark.parametrize("other", [0.5, np.nan, 2.0**50])
def test_one_sum_that_is_not_surely_whole_makes_floats(other):
    x = np.asarray(whole_or_float(DoubleFloat(np.float32([3, other]), np.zeros(2, np.float32))))
    assert x.dtype == np.float64
    assert_same(x, np.array([3, other]))


def test_within_a_program_sums_stay_floats():
    x = jax.jit(lambda x: whole_or_float(DoubleFloat(x, x - x)))(jnp.ones(2))
    assert x.dtype == np.float64
