"""`in_one_pass`: the reductions of several folds are those of NumPy, and are made together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax.algebra.fold import Fold, Term, in_one_pass, reduced
from tests.helpers import make_mesh, place


def three(x, mask, axes):
    """A sum of floats, a count and a maximum, as arrays."""
    total, count, top = reduced([Term(x, axes), Term(mask, axes), Term(x, axes, "max")])
    return total.high, total.low, count, top


def expected(x, mask, axes):
    total = np.sum(x, axes, np.float64)
    return total, mask.sum(axes, np.int32), x.max(axes, initial=-np.inf)


def assert_three(got, x, mask, axes):
    total, count, top = expected(x, mask, axes)
    np.testing.assert_allclose(np.asarray(got[0], float) + np.asarray(got[1]), total, 1e-12, 1e-12)
    np.testing.assert_array_equal(got[2], count)
    np.testing.assert_array_equal(got[3], top)


@pytest.mark.parametrize("shape", [(1000,), (7, 3), (0,), (5, 0, 2), ()])
def test_sums_counts_and_maxima(rng, shape):
    x = rng.normal(size=shape).astype(np.float32) * np.float32(1e3)
    mask = rng.random(shape) < 0.5
    for axes in {tuple(range(k)) for k in range(len(shape) + 1)}:
        assert_three(jax.jit(partial(three, axes=axes))(x, mask), x, mask, axes)
        assert_three(three(x, mask, axes), x, mask, axes)


def test_special_values(rng):
    x = np.array([-np.inf, -1.0, -0.0, 0.0, 3e38, 3e38], np.float32)
    total, _, _, top = jax.jit(partial(three, axes=(0,)))(x, x > 0)
    assert (total, top) == (-np.inf, np.float32(3e38))
    finite, _ = reduced([Term(jnp.asarray(x[1:]), (0,)), Term(jnp.ones(5, bool), (0,))])
    with jax.enable_x64(True):  # more than a float32 holds
        assert float(finite.wide) == np.sum(x[1:], dtype=np.float64)
    top = jax.jit(lambda x: reduced([Term(x, (0,), "max")])[0])(np.float32([1, np.nan, 2]))
    assert np.isnan(top)


def test_one_reduction_for_all_that_has_one_shape_and_one_sum_of_floats():
    def of(x):
        mask = x > 0
        folds = [
            Fold([Term(x, (0,)), Term(mask, (0,))], lambda total, count: (total, count)),
            Fold([Term(mask, (0,)), Term(x, (0,), "max")], lambda count, top: (count, top)),
            1,
        ]
        (total, count), (again, top), one = in_one_pass(*folds)
        assert again is count
        assert one == 1
        return total.high, count, top

    text = str(jax.make_jaxpr(of)(np.ones(9, np.float32)))
    assert text.count("reduce[") == 1

    # On a CPU, a reduction with two sums of floats is not vectorised: each has its own.
    def two(x):
        return [total.high for total in reduced([Term(x, (0,)), Term(x * 2, (0,))])]

    assert str(jax.make_jaxpr(two)(np.ones(9, np.float32))).count("reduce[") == 2


def test_gradients_of_sums_and_maxima(rng):
    x = rng.normal(size=6).astype(np.float32)

    def total_and_top(x):
        total, top, _ = reduced([Term(x * x, (0,)), Term(x, (0,), "max"), Term(x > 0, (0,))])
        return total.high + 3 * top

    want = 2 * x + 3 * (x == x.max())
    for gradient in (jax.grad(total_and_top), jax.jit(jax.grad(total_and_top))):
        np.testing.assert_allclose(gradient(x), want, 1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(total_and_top))(x[None])[0], want, 1e-6)


def test_constants_are_reduced_when_the_program_runs_and_not_when_it_is_compiled():
    # XLA would take 20 seconds for a mask of 500,000 ones, and minutes for a large one.
    ones = np.ones(64, np.float32)
    for x in (ones, ones.astype(bool), ones.astype(np.int32)):
        compiled = jax.jit(lambda x=x: reduced([Term(jnp.asarray(x), (0,))]))
        assert " reduce(" in str(compiled.lower().compile().as_text()), x.dtype


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(rng, kind):
    mesh = make_mesh(kind, {"data": 4, "model": 2})
    x = rng.normal(size=(16, 4)).astype(np.float32)
    mask = x > 0
    for spec in (P("data"), P("data", "model"), P(("data", "model")), P()):
        for axes in ((0,), (0, 1)):
            there = place((x, mask), mesh, spec)
            got = jax.block_until_ready(jax.jit(partial(three, axes=axes))(*there))
            assert_three(got, x, mask, axes)


@pytest.mark.parametrize("check_vma", [True, False])
def test_within_shard_map_and_vmap(rng, check_vma):
    mesh = make_mesh("auto", {"data": 8})
    x = rng.normal(size=(32, 3)).astype(np.float32)
    mask = x > 0

    def local(x, mask):
        return jax.tree.map(lambda x: x[None], three(x, mask, (0,)))

    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check_vma
    )
    got = jax.block_until_ready(jax.jit(mapped)(x, mask))
    for i in range(8):
        rows = slice(4 * i, 4 * i + 4)
        assert_three([y[i] for y in got], x[rows], mask[rows], (0,))
    batched = jax.vmap(partial(three, axes=(0,)))(x.reshape(4, 8, 3), mask.reshape(4, 8, 3))
    assert_three([y[2] for y in batched], x[16:24], mask[16:24], (0,))
