"""`MetricAccumulator`: sums that neither wrap nor stall, maxima and minima, where they start."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from datarax import Exact, MetricAccumulator, MetricInputError, MetricReduceOp, MetricTypeError
from tests.helpers import assert_same, draw, fsum, sum_bound, update

INTEGERS = ("bool", "int8", "uint8", "int16", "int32", "uint32")
HALVES = ("bfloat16", "float16")


def integers(rng, dtype, shape):
    """From the whole range of the dtype."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


# Sums of integers: exact to 2**63.


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_sums_are_exact(rng, dtype):
    acc, want = MetricAccumulator(np.zeros(3, np.int32)), np.zeros(3, object)
    for shape in ((3,), (50, 3), (0, 3), (4, 5, 3)):
        x = integers(rng, dtype, shape)
        acc = update(acc, x)
        want += x.reshape(-1, 3).astype(object).sum(0)
    assert isinstance(acc.value, Exact)
    assert acc.value.tolist() == want.tolist()


def test_token_counts_go_on_past_16_7_million():
    # Token counts in float32 stop at 2**24; those in int32 wrap at 2**31 and 2**32.
    for edge in (2**24, 2**31, 2**32, 2**62):
        acc = MetricAccumulator(0).update(edge - 1)
        for step in (1, 1, 1, np.int32(1), jnp.asarray([1, 1])):
            acc = acc.update(step)
        assert int(acc.value) == edge + 5
        assert int(acc.update(-edge).merge(MetricAccumulator(0).update(-edge)).value) == 5 - edge


def test_3e9_counted_by_ones():
    # 3e9 booleans, in 300 updates of ten million.
    ones = lambda acc, _: (acc.update(jnp.ones((10_000_000,), bool)), None)  # noqa: E731
    acc = jax.jit(lambda: lax.scan(ones, MetricAccumulator(0), None, length=300)[0])()
    assert int(acc.value) == 3_000_000_000


def test_3e9_counted_by_uneven_batches(rng):
    cuts = np.sort(rng.integers(0, 3_000_000_000, 30)).tolist()
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 3_000_000_000], strict=True)]
    acc = MetricAccumulator(0)
    for size in sizes:
        acc = acc.update(size)
    assert int(acc.value) == 3_000_000_000
    # The same by merges of one-update accumulators; and in one array, as uint32.
    parts = [MetricAccumulator(0).update(size) for size in sizes]
    while len(parts) > 1:
        parts = [a.merge(b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + (
            parts[-1:] if len(parts) % 2 else []
        )
    assert int(parts[0].value) == 3_000_000_000
    assert int(MetricAccumulator(0).update(np.asarray(sizes, np.uint32)).value) == 3_000_000_000


def test_integer_sums_at_the_ends_of_64_bits():
    top = MetricAccumulator(0).update(2**63 - 1)
    assert int(top.value) == 2**63 - 1
    assert int(top.update(-(2**63)).value) == -1
    assert int(MetricAccumulator(0).update(-(2**63)).value) == -(2**63)
    assert int(MetricAccumulator(0).update(np.int64(2**40)).value) == 2**40
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(MetricInputError, match="64 bits"):
            MetricAccumulator(0).update(value)


def test_numpy_integers_of_64_bits_are_never_wrapped():
    for values in (np.asarray([2**40]), np.asarray([1, -(2**31) - 1]), np.uint64([2**32])):
        assert int(MetricAccumulator(0).update(values).value) == values.sum()
        with pytest.raises(MetricInputError, match="does not fit"):
            jax.eval_shape(lambda values=values: MetricAccumulator(0).update(values))
    assert int(MetricAccumulator(0).update(np.asarray([2**31 - 1, 1])).value) == 2**31


def test_a_large_batch_of_int8():
    acc = MetricAccumulator(0).update(jnp.full((20_000_000,), -128, jnp.int8))
    assert int(acc.update(jnp.full((3, 10_000_000), 127, jnp.int8)).value) == 1_250_000_000
    assert int(acc.merge(acc).value) == -5_120_000_000


def test_exact_counts_can_be_added():
    count = MetricAccumulator(0).update(2**40 + 1).value
    assert int(MetricAccumulator(1).update(count).value) == 2**40 + 2
    assert float(MetricAccumulator(0.0).update(count).exact) == 2**40 + 1
    with pytest.raises(MetricInputError, match="sum of that shape"):
        MetricAccumulator(0, "max").update(count)
    with pytest.raises(MetricInputError, match="sum of that shape"):
        MetricAccumulator(np.zeros(2, int)).update(count)


# Sums of floats: compensated.


def test_20_million_scalar_updates_of_one():
    # A float32 sum stops at 2**24: other libraries give a mean of 0.839.
    step = lambda acc, _: (acc.update(1.0), None)  # noqa: E731
    acc = jax.jit(lambda: lax.scan(step, MetricAccumulator(0.0), None, length=20_000_000)[0])()
    assert float(acc.value) == 20_000_000
    assert float(acc.update(0.25).exact) == 20_000_000.25


def test_a_long_float_sum_is_as_good_as_float64(rng):
    x = (rng.standard_normal((2000, 30)) * 10.0 ** rng.uniform(-3, 3, (2000, 1))).astype(np.float32)
    step = lambda acc, batch: (acc.update(batch), None)  # noqa: E731
    acc = jax.jit(lambda x: lax.scan(step, MetricAccumulator(0.0), x)[0])(x)
    # Each batch is summed plainly; adding up the batches adds no more than the last bit.
    batches = sum(sum_bound(30, np.abs(row, dtype=np.float64).sum()) for row in x)
    assert abs(float(acc.exact) - fsum(x)) <= batches
    one_by_one = jax.jit(lambda x: lax.scan(step, MetricAccumulator(0.0), x)[0])(x.reshape(-1))
    assert abs(float(one_by_one.exact) - fsum(x)) <= x.size * 2.0**-45 * np.abs(x).max() * 1000
    assert float(one_by_one.value) == np.float32(fsum(x))


def test_cancellation():
    # 1e8, then a million quarters, then -1e8: float32 alone gives 0.
    acc = MetricAccumulator(0.0).update(1e8)
    step = lambda acc, _: (acc.update(0.25), None)  # noqa: E731
    acc = jax.jit(lambda acc: lax.scan(step, acc, None, length=1_000_000)[0])(acc)
    assert float(acc.exact) == 1e8 + 250_000
    assert float(acc.update(-1e8).value) == 250_000
    # And in one merge: what is left is what only the low words knew.
    a = MetricAccumulator(0.0).update(2.0**40).update(0.5)
    b = MetricAccumulator(0.0).update(-(2.0**40)).update(0.25)
    assert float(a.merge(b).value) == 0.75


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_accumulated_in_float32(rng, dtype):
    # Another library gives a mean of 3.905 for bfloat16.
    ones = jnp.ones((256_000,), dtype)
    acc = MetricAccumulator(0.0).update(ones)
    assert_same(acc.value, 256_000, np.float32)
    assert_same(acc.update(ones.reshape(1000, 256)).value, 512_000, np.float32)
    x = draw(rng, (40, 3), dtype)
    assert_same(MetricAccumulator(np.zeros(3)).update(x).value, np.float32(x).sum(0))
    half = MetricAccumulator(np.zeros((), dtype))
    assert half.dtype == np.float32
    assert_same(half.update(ones).value, 256_000, np.float32)


def test_integers_into_a_sum_of_floats_add_up_exactly():
    acc = MetricAccumulator(0.0).update(jnp.asarray([2**24, 1, 2**31 - 1, -(2**31)]))
    assert float(acc.exact) == 2**24
    acc = acc.update(jnp.asarray([2**32 - 1, 2], jnp.uint32)).update(True).update(2**40)
    assert float(acc.exact) == 2**24 + 2**32 + 2 + 2**40


def test_infinities_and_nan_stay_what_they_are():
    acc = MetricAccumulator(0.0).update(1.0)
    assert float(acc.update(jnp.inf).update(-5.0).value) == np.inf
    assert np.isnan(acc.update(jnp.inf).update(-jnp.inf).value)
    assert np.isnan(acc.update(jnp.nan).update(1.0).value)
    assert float(acc.update(3e38).update(3e38).value) == np.inf


# Maxima and minima.


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", ["float32", *HALVES, *INTEGERS])
def test_extremes(rng, op, dtype):
    x, y = ((integers if dtype in INTEGERS else draw)(rng, *a) for a in _shapes(dtype))
    start = {"max": -jnp.inf, "min": jnp.inf}[op]
    if dtype in INTEGERS:
        info = np.iinfo(np.int32 if dtype == "bool" else dtype)
        start = np.asarray(info.min if op == "max" else info.max, info.dtype)
    acc = MetricAccumulator(np.full(2, start), op).update(x).update(y).update(x[:0])
    numpy = np.max if op == "max" else np.min
    kept = np.float32 if dtype in ("float32", *HALVES) else np.asarray(start).dtype
    assert_same(acc.value, numpy(np.concatenate([x, y.reshape(-1, 2)]).astype(kept), 0), kept)


def _shapes(dtype):
    shapes = (20, 2), (3, 4, 2)
    return [(dtype, s) for s in shapes] if dtype in INTEGERS else [(s, dtype) for s in shapes]


@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_of_special_floats(op):
    start = -jnp.inf if op == "max" else jnp.inf
    acc = MetricAccumulator(start, op)
    assert float(acc.value) == start
    assert np.isnan(acc.update(jnp.asarray([1.0, jnp.nan])).update(5.0).value)
    assert np.isnan(acc.update(1.0).merge(acc.update(jnp.nan)).value)
    ends = acc.update(jnp.asarray([jnp.inf, -jnp.inf, 0.0]))
    assert float(ends.value) == -start
    assert float(acc.update(jnp.asarray([-0.0, 1e-40, 0.0])).value) in (
        *(-0.0, 0.0, np.float32(1e-40)),  # a device may flush it to zero
    )


def test_integers_that_a_maximum_does_not_hold_are_refused():
    # Cast to the accumulator's dtype, each of these would come back as another number.
    cases = [
        (np.int8(0), jnp.asarray([300])),
        (np.uint8(0), jnp.asarray([-1], jnp.int8)),
        (0, jnp.asarray([2**32 - 1], jnp.uint32)),
    ]
    for initial, value in cases:
        with pytest.raises(MetricTypeError, match="holds both"):
            MetricAccumulator(initial, "max").update(value)
    for initial, value in ((np.uint32(0), -1), (np.int8(0), 128), (0, 2**31)):
        with pytest.raises(MetricInputError, match="does not fit"):
            MetricAccumulator(initial, "max").update(value)
    acc = MetricAccumulator(np.int32(-5), "max").update(jnp.asarray([7], jnp.uint8))
    assert_same(acc.update(-(2**31)).value, 7, np.int32)
    assert_same(
        MetricAccumulator(np.uint32(0), "max").update(2**32 - 1).value, np.uint32(2**32 - 1)
    )


# Where it starts: the initial value counts once.


@pytest.mark.parametrize(
    ("initial", "op", "updates", "want"),
    [
        (5, "sum", (1, 2), 8),
        (2**62, "sum", (1, -3), 2**62 - 2),
        (-(2**63), "sum", (1, 0), -(2**63) + 1),
        (np.uint32(2**32 - 1), "sum", (1, 1), 2**32 + 1),
        (np.int64(2**40), "sum", (1, 1), 2**40 + 2),
        (True, "sum", (1, 1), 3),
        (0.5, "sum", (1.0, 2.0), 3.5),
        (5.0, "max", (3.0, 4.0), 5.0),
        (5.0, "min", (3.0, 4.0), 3.0),
        (-3, "max", (-5, -4), -3),
        (0, "min", (3, 7), 0),
    ],
)
def test_the_initial_value_counts_once(initial, op, updates, want):
    empty = MetricAccumulator(initial, op)
    assert np.asarray(empty.value) == initial
    a, b = (empty.update(u) for u in updates)
    for both in (a.merge(b), b.merge(a), a.merge(empty).merge(b), empty.merge(a.merge(b))):
        assert np.asarray(both.value) == want
        assert np.asarray(both.exact) == want
        assert np.asarray(jax.jit(lambda m: m.value)(both)) == want
        assert np.asarray(both.reset().value) == initial
    assert np.asarray(empty.load_state_dict(a.merge(b).state_dict()).value) == want
    assert np.asarray(empty.merge(empty).merge(empty).value) == initial


def test_initial_values_that_are_arrays():
    start = np.asarray([[1, 2, 3], [4, 5, 2**33]])
    acc = MetricAccumulator(start).update(np.ones((7, 2, 3), np.int32))
    assert (acc.shape, acc.dtype) == ((2, 3), np.int32)
    assert acc.merge(MetricAccumulator(start)).value.tolist() == (start + 7).tolist()
    jax_start = MetricAccumulator(jnp.asarray([0.5, 1.5]))
    assert_same(jax_start.merge(jax_start).value, np.float32([0.5, 1.5]))
    assert_same(
        MetricAccumulator(np.zeros((0, 3))).update(np.ones((4, 0, 3))).value,
        np.zeros((0, 3)),
        np.float32,
    )
    # Equal by value, whatever array it came as.
    MetricAccumulator(np.full(3, 2.0)).merge(MetricAccumulator(jnp.asarray([2.0, 2.0, 2.0])))


def test_reset_is_the_identity_of_merge(rng):
    for op in MetricReduceOp:
        for x in (draw(rng, (5, 2)), draw(rng, (5, 2), "int32")):
            acc = MetricAccumulator(np.zeros(2, x.dtype), op).update(x)
            for same in (acc.merge(acc.reset()), acc.reset().merge(acc)):
                assert np.asarray(same.value).tolist() == np.asarray(acc.value).tolist()
            fresh = jax.tree.leaves(MetricAccumulator(np.zeros(2, x.dtype), op))
            for a, b in zip(jax.tree.leaves(acc.reset()), fresh, strict=True):
                np.testing.assert_array_equal(a, b)


# Masks, batches, dtypes.


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "bool"])
def test_where_leaves_rows_out(rng, op, dtype):
    x = draw(rng, (30, 2), dtype)
    mask = rng.random(30) < 0.4
    mask[0] = True
    if dtype == "float32":
        x[~mask] = np.nan
    kept = np.float32 if dtype == "float32" else np.int8 if dtype == "int8" else np.int32
    worst = {"float32": np.inf, "int8": 127}.get(dtype, 2**31 - 1)
    start = {"sum": 0, "max": -worst - (dtype != "float32"), "min": worst}[op]
    acc = MetricAccumulator(np.full(2, start, kept), op).update(x, where=mask)
    want = getattr(x[mask].astype(np.float64), op)(0)
    np.testing.assert_array_equal(np.asarray(acc.value), want)
    # Nothing at all is left: as if there had been no update.
    none = acc.reset().update(x, where=np.zeros(30, bool))
    assert np.asarray(none.value).tolist() == [start] * 2


def test_where_over_several_axes(rng):
    x, mask = draw(rng, (4, 5, 2)), rng.random((4, 5)) < 0.5
    acc = MetricAccumulator(np.zeros(2))
    assert_same(acc.update(x, where=mask).value, x[mask].sum(0))
    assert_same(acc.update(x, where=mask[:, :1]).value, x[mask[:, 0]].sum((0, 1)))
    assert_same(acc.update(x, where=mask[:, 0]).value, x[mask[:, 0]].sum((0, 1)))
    assert_same(acc.update(x, where=True).value, x.sum((0, 1)))


def test_what_update_refuses():
    acc = MetricAccumulator(np.zeros(3))
    for value in (1.0, jnp.ones((3, 2)), jnp.ones((2,))):
        with pytest.raises(MetricInputError, match=r"shape \(3,\) got a value of shape"):
            acc.update(value)
    for mask in (jnp.ones((2,), bool), jnp.ones((3, 1), bool)):
        with pytest.raises(MetricInputError, match="where of shape"):
            MetricAccumulator(0.0).update(jnp.ones((3,)), where=mask)
    with pytest.raises(MetricTypeError, match="of integers got a value of dtype float64"):
        MetricAccumulator(0).update(1.5)
    for value in ("x", None, 1j, jax.random.key(0)):
        with pytest.raises(MetricTypeError):
            MetricAccumulator(0.0).update(value)


def test_what_the_constructor_refuses():
    for op in ("mean", "Sum", None, 3):
        with pytest.raises(MetricInputError, match="'sum', 'max', 'min'"):
            MetricAccumulator(0, op)
    for value in ("a", None, 1j, [None], {"a": 1}):
        with pytest.raises(MetricTypeError, match="initial_value has dtype"):
            MetricAccumulator(value)
    for value in (math.nan, np.asarray([0.0, np.nan])):
        with pytest.raises(MetricInputError, match="NaN"):
            MetricAccumulator(value)
    for value, op in ((2**31, "max"), (np.int64(-(2**40)), "min"), (np.uint64(2**63), "sum")):
        with pytest.raises(MetricInputError, match="does not fit"):
            MetricAccumulator(value, op)
    with pytest.raises(MetricTypeError, match="traced"):
        jax.jit(MetricAccumulator)(1.0)


def test_the_closed_set_of_operations():
    assert [str(op) for op in MetricReduceOp] == ["sum", "max", "min"]
    assert MetricAccumulator(0).reduce_op is MetricReduceOp.sum
    assert MetricAccumulator(0, "max").reduce_op is MetricReduceOp.max


def test_results_are_strongly_typed_and_their_types_known(rng):
    for acc, dtype in (
        (MetricAccumulator(0.0).update(1), np.float32),
        (MetricAccumulator(0.0, "max").update(1.0), np.float32),
        (MetricAccumulator(np.int8(0), "max").update(1), np.int8),
    ):
        assert_same(acc.value, 1, dtype)
    count = MetricAccumulator(0).update(1).value
    assert (count.high.dtype, count.low.dtype) == (np.int32, np.uint32)
    for leaf in jax.tree.leaves(jax.jit(MetricAccumulator.update)(MetricAccumulator(0), 1)):
        assert not leaf.aval.weak_type
