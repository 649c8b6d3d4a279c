"""`Buffer`: keeps the first rows, and counts the rest."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from datarax import MetricInputError, MetricTypeError
from datarax.statistics import Buffer
from tests.helpers import draw, update


def contents(buffer):
    """The rows that are there, and the number that are not."""
    filled = int(buffer.filled)
    assert (np.asarray(buffer.data)[filled:] == 0).all()
    return np.asarray(buffer.data)[:filled], int(buffer.overflow)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool"])
def test_it_keeps_the_first_rows_in_order(rng, shape, dtype):
    x = draw(rng, (20, *shape), dtype)
    buffer, sizes = Buffer(13, shape, dtype), [0, 1, 5, 0, 6, 8]
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        buffer = update(buffer, x[start : start + size])
    kept, lost = contents(buffer)
    assert kept.dtype == x.dtype
    np.testing.assert_array_equal(kept, x[:13])
    assert lost == 7
    assert contents(buffer.reset())[0].shape == (0, *shape)
    assert contents(buffer.reset())[1] == 0


def test_merges_count_what_overflows(rng):
    x = draw(rng, (30,))
    a, b, c = (Buffer(10).update(x[i : i + 7]) for i in (0, 7, 14))
    kept, lost = contents(a.merge(b).merge(c))
    np.testing.assert_array_equal(kept, x[:10])
    assert lost == 11
    for order in (a.merge(b.merge(c)), c.merge(a).merge(b)):
        assert (int(order.filled), int(order.overflow)) == (10, 11)
    # What had overflowed before a merge is not forgotten.
    full = Buffer(10).update(x)
    assert int(full.merge(full).overflow) == 20 + 20 + 10
    np.testing.assert_array_equal(contents(a.merge(a.reset()))[0], x[:7])
    np.testing.assert_array_equal(contents(a.reset().merge(a))[0], x[:7])
    with pytest.raises(ValueError, match="capacity"):
        a.merge(Buffer(11))


def test_a_buffer_in_a_scan_loses_count_of_nothing():
    # 3e9 rows of which 5 are kept: the count passes 2**31.
    rows = jnp.ones((10_000_000,), jnp.int8)
    step = lambda buffer, _: (buffer.update(rows), None)  # noqa: E731
    buffer = lax.scan(step, Buffer(5, (), "int8"), None, length=3)[0]
    assert int(buffer.overflow) == 30_000_000 - 5
    for _ in range(7):
        buffer = buffer.merge(buffer)
    assert int(buffer.overflow) == 30_000_000 * 2**7 - 5 > 2**31


def test_weights_and_values_that_cannot_be_used():
    x = jnp.asarray([1.0, jnp.nan, 3.0, jnp.inf, 5.0])
    kept, lost = contents(Buffer(10).update(x))
    assert (kept.tolist(), lost) == ([1.0, 3.0, 5.0], 0)
    assert int(Buffer(10).update(x).invalid.value) == 2
    w = jnp.asarray([0.0, 0.0, 2.0, 1.0, 0.5])
    assert contents(Buffer(10).update(x, weights=w))[0].tolist() == [3.0, 5.0]
    assert contents(Buffer(10).update(x, weights=w > 1))[0].tolist() == [3.0]
    assert int(Buffer(10).update(x, weights=w).invalid.value) == 1
    assert contents(Buffer(1).update(x, weights=w))[1] == 1
    rows = jnp.asarray([[1.0, 2.0], [jnp.nan, 3.0]])
    assert contents(Buffer(4, (2,)).update(rows))[0].tolist() == [[1.0, 2.0]]


def test_what_it_refuses():
    for capacity in (0, -1, 2.0, True, None):
        with pytest.raises(MetricInputError, match="capacity"):
            Buffer(capacity)
    for values in (1.0, jnp.ones((2, 2))):
        with pytest.raises(MetricInputError, match="values of shape"):
            Buffer(3).update(values)
    for dtype, values in (
        ("int8", [300]),
        ("int32", [1.5]),
        ("uint8", np.int8([-1])),
        ("bool", [2]),
    ):
        with pytest.raises(MetricTypeError, match=f"do not fit a Buffer of {dtype}"):
            Buffer(3, (), dtype).update(jnp.asarray(values))
    assert contents(Buffer(3, (), "int32").update(jnp.asarray([7], jnp.uint8)))[0].tolist() == [7]
    assert contents(Buffer(3).update(jnp.asarray([7])))[0].tolist() == [7.0]
