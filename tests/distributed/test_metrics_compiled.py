"""What the collective reducers compile to, read from the program's text."""

import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    all_gather,
    reduce_custom_collective,
    reduce_max_collective,
    reduce_mean_collective,
    reduce_min_collective,
    reduce_sum_collective,
)
from tests.helpers import DTYPES, collectives, draw, make_mesh, over_shards, place


def twenty(rng):
    """20 metrics in all the dtypes, of several shapes, for 8 shards."""
    shapes = [(8,), (8, 3), (8, 2, 2)]
    dtypes = (*DTYPES, "uint32", "int16")
    return {
        f"{dtypes[i % len(dtypes)]}_{i}": draw(rng, shapes[i % 3], dtypes[i % len(dtypes)])
        for i in range(20)
    }


def the_ops(tree):
    return dict(zip(tree, ("mean", "sum", "max", "min") * 5, strict=True))


@pytest.mark.parametrize(
    ("reduce", "most"),
    [
        (lambda m, w: reduce_mean_collective(m, "data"), 2),
        (lambda m, w: reduce_mean_collective(m, "data", weights=w), 2),
        (lambda m, w: reduce_sum_collective(m, "data"), 2),
        (lambda m, w: reduce_sum_collective(m, "data", weights=w), 2),
        (lambda m, w: reduce_max_collective(m, "data"), 2),
        (lambda m, w: reduce_min_collective(m, "data", where=w), 2),
        (lambda m, w: reduce_custom_collective(m, the_ops(m), "data"), 4),
        (lambda m, w: reduce_custom_collective(m, the_ops(m), "data", weights=w), 4),
    ],
    ids=["mean", "wmean", "sum", "wsum", "max", "min", "custom", "wcustom"],
)
def test_one_collective_a_kind_in_the_compiled_program(rng, reduce, most):
    mesh = make_mesh("auto", {"data": 8})
    placed = place((twenty(rng), np.ones(8, np.float32)), mesh, P("data"))
    counts = collectives(over_shards(reduce, mesh, P("data"), P()), *placed)
    assert set(counts) == {"all-reduce"}
    assert 1 <= counts["all-reduce"] <= most


@pytest.mark.parametrize(
    ("shape", "axis_name"),
    [({"data": 8}, "data"), ({"data": 4, "model": 2}, ("data", "model"))],
    ids=["one axis", "two axes"],
)
def test_all_gather_is_one_collective(rng, shape, axis_name):
    mesh = make_mesh("explicit", shape)
    placed = place(twenty(rng), mesh, P(axis_name))
    run = over_shards(lambda m: all_gather(m, axis_name), mesh, P(axis_name), P())
    assert sum(collectives(run, placed).values()) == 1


def test_the_counting_sees_collectives_that_do_not_fuse(rng):
    # The counter itself: two sums of which the second needs the first.
    mesh = make_mesh("auto", {"data": 8})
    run = over_shards(
        lambda x: lax.psum(x * lax.psum(x, "data"), "data") + lax.pmax(x, "data"),
        mesh,
        P("data"),
        P(),
    )
    counts = collectives(run, place(draw(rng, (8,)), mesh, P("data")))
    assert counts == {"all-reduce": 3}
