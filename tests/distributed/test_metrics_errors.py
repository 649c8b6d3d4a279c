"""Every error of the reducers: its type, and that it names what was given and what is allowed."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.distributed import (
    all_gather,
    collect_from_devices,
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_max_collective,
    reduce_mean,
    reduce_mean_collective,
    reduce_min,
    reduce_min_collective,
    reduce_sum,
    reduce_sum_collective,
)
from datarax.numerics import DoubleFloat
from tests.helpers import make_mesh, over_shards, x64

X = np.arange(6, dtype=np.float32).reshape(3, 2)
GLOBAL = [reduce_mean, reduce_sum, reduce_max, reduce_min]
COLLECTIVE = [
    *(reduce_mean_collective, reduce_sum_collective, reduce_max_collective),
    *(reduce_min_collective, reduce_custom_collective, all_gather),
]


@contextlib.contextmanager
def raises(error, *said):
    """An error of that type, a `DataraxError`, whose message says each of these."""
    with pytest.raises(error) as caught:
        yield
    assert isinstance(caught.value, datarax.DataraxError)
    for words in said:
        assert words in str(caught.value)


def in_shard_map(function, x=None, axes=None):
    mesh = make_mesh("auto", axes or {"data": 8})
    x = np.zeros(8, np.float32) if x is None else x
    return over_shards(function, mesh, P(tuple(mesh.axis_names)), P())(x)


def weigh(reduce, metrics, weights):
    """By the keyword that this reducer has for it."""
    keyword = "where" if "max" in reduce.__name__ or "min" in reduce.__name__ else "weights"
    return reduce(metrics, **{keyword: weights})


def test_the_exceptions_are_also_built_in_ones():
    for name, kind in {
        "AxisNotBoundError": NameError,
        "UnknownReductionError": ValueError,
        "UnknownMetricError": ValueError,
        "MetricInputError": ValueError,
        "MetricTypeError": TypeError,
        "NotAddressableError": RuntimeError,
    }.items():
        assert issubclass(getattr(datarax, name), (datarax.DataraxError, kind))
        assert issubclass(getattr(datarax, name), kind)


@pytest.mark.parametrize("reduce", COLLECTIVE)
@pytest.mark.parametrize("metrics", [{"loss": X}, {}, {"loss": 1.0}])
def test_a_collective_where_no_axis_is_bound(reduce, metrics):
    for call in (reduce, jax.jit(reduce)):
        with raises(datarax.AxisNotBoundError, reduce.__name__, "'batch'", "shard_map", "pmap"):
            call(metrics)


@pytest.mark.parametrize("reduce", COLLECTIVE)
def test_a_collective_over_an_axis_that_is_not_the_bound_one(reduce):
    with raises(datarax.AxisNotBoundError, "'batch'", "'data'"):
        in_shard_map(lambda x: reduce({"loss": x}))
    with raises(datarax.AxisNotBoundError, "'seq'", "'data'", "'model'"):
        in_shard_map(
            lambda x: reduce({"loss": x}, axis_name=("data", "seq")), axes={"data": 4, "model": 2}
        )
    with raises(datarax.AxisNotBoundError, "'rows'"):
        jax.pmap(lambda x: reduce({"loss": x}, axis_name="rows"), axis_name="batch")(np.zeros(8))


@pytest.mark.parametrize("axis_name", [None, 0, (), ("data", None)])
def test_what_is_no_axis_name(axis_name):
    with raises(
        datarax.AxisNotBoundError,
        "reduce_sum_collective",
        str(axis_name) if axis_name != () else "empty",
    ):
        in_shard_map(lambda x: reduce_sum_collective({"loss": x}, axis_name))


@pytest.mark.parametrize("op", ["man", "Mean", "average", "", 3, np.mean, ["sum"]])
def test_an_operation_that_is_not_in_the_table(op):
    said = ("reduce_custom", "train/loss", repr(op), "'mean'", "'sum'", "'max'", "'min'", "None")
    with raises(datarax.UnknownReductionError, *said):
        reduce_custom({"train": {"loss": X}}, {"train/loss": op})
    with raises(datarax.UnknownReductionError, *said, "reduce_custom_collective"):
        in_shard_map(
            lambda x: reduce_custom_collective({"train": {"loss": x}}, {"train": op}, "data")
        )


def test_a_misspelt_operation_for_what_passes_through_is_still_one():
    with raises(datarax.UnknownReductionError, "'step'", "'maen'"):
        reduce_custom({"step": 3, "loss": X}, {"step": "maen"})


@pytest.mark.parametrize("name", ["los", "train", "loss/x", "train/los", "", "LOSS"])
def test_a_name_that_the_metrics_do_not_have(name):
    metrics = {"loss": X, "valid": {"loss": X}}
    said = (repr(name), "'loss'", "'valid/loss'")
    with raises(datarax.UnknownMetricError, "reduce_fn", *said):
        reduce_custom(metrics, {name: "sum"})
    for reduce in GLOBAL:
        with raises(datarax.UnknownMetricError, reduce.__name__, *said):
            weigh(reduce, metrics, {name: np.ones(3)})
    with raises(datarax.UnknownMetricError, *said):
        in_shard_map(
            lambda x: reduce_custom_collective(
                {"loss": x, "valid": {"loss": x}}, {name: "sum"}, "data"
            )
        )
    with raises(datarax.UnknownMetricError, *said):
        in_shard_map(
            lambda x: reduce_mean_collective(
                {"loss": x, "valid": {"loss": x}}, "data", weights={name: x}
            )
        )


def test_names_of_metrics_that_are_none():
    with raises(datarax.UnknownMetricError, "'loss'"):
        reduce_custom({}, {"loss": "sum"})


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 3), (1, 3), (3, 2, 1), (0,)])
@pytest.mark.parametrize("reduce", GLOBAL)
def test_weights_that_do_not_broadcast_against_the_leading_axes(reduce, shape):
    said = (reduce.__name__, "'loss'", str(shape), "(3, 2)")
    for weights in (np.ones(shape, np.float32), {"loss": np.ones(shape, bool)}):
        with raises(datarax.MetricInputError, *said):
            weigh(reduce, {"loss": X}, weights)


def test_weights_that_do_not_broadcast_in_a_collective():
    with raises(datarax.MetricInputError, "'loss'", "(2,)", "(1,)"):
        in_shard_map(lambda x: reduce_mean_collective({"loss": x}, "data", weights=jnp.ones(2)))
    with raises(datarax.MetricInputError, "'loss'", "(1,)", "()"):
        in_shard_map(lambda x: reduce_sum_collective({"loss": x[0]}, "data", weights=x))


@pytest.mark.parametrize(
    "weights", [np.asarray(["a"] * 3), np.ones(3, complex), np.asarray([None] * 3)]
)
def test_weights_that_are_no_numbers(weights):
    for reduce in GLOBAL:
        with raises(datarax.MetricTypeError, "'loss'", str(weights.dtype)):
            weigh(reduce, {"loss": X}, weights)


@pytest.mark.parametrize("axis", [2, -3, (0, 2), (0, 0), (0, -2)])
@pytest.mark.parametrize("reduce", GLOBAL)
def test_an_axis_out_of_range(reduce, axis):
    with raises(
        datarax.MetricInputError, reduce.__name__, "'loss'", str(axis), "(3, 2)", "-2", "1"
    ):
        reduce({"loss": X}, axis=axis)


@pytest.mark.parametrize("axis", ["rows", 1.0, (0, None)])
def test_an_axis_that_is_no_integer(axis):
    with raises(datarax.MetricInputError, "reduce_mean", "'loss'", repr(axis), "integer"):
        reduce_mean({"loss": X}, axis=axis)


@pytest.mark.parametrize(("axis", "tiled"), [(2, False), (-3, False), (1, True), (-2, True)])
def test_an_axis_that_all_gather_cannot_have(axis, tiled):
    with raises(datarax.MetricInputError, "all_gather", "'loss'", str(axis), "(1,)"):
        in_shard_map(lambda x: all_gather({"loss": x}, "data", axis=axis, tiled=tiled))


def test_all_gather_cannot_tile_what_has_no_axis():
    with raises(datarax.MetricInputError, "all_gather", "'loss'", "()"):
        in_shard_map(lambda x: all_gather({"loss": x[0]}, "data", tiled=True))


def test_no_integers_have_no_extremum():
    for reduce, word in ((reduce_max, "max"), (reduce_min, "min")):
        for dtype in (np.int32, np.uint8, bool):
            with raises(datarax.MetricInputError, reduce.__name__, "'hits'", "(0,)", word):
                reduce({"hits": np.zeros(0, dtype)})
    with raises(datarax.MetricInputError, "'hits'", "(2, 0)"):
        reduce_custom({"hits": np.zeros((2, 0), np.int32)}, {"hits": "max"})
    with raises(datarax.MetricInputError, "'hits'", "(0, 2)"):
        reduce_max({"hits": jnp.zeros((0, 2), jnp.int32)}, axis=0)


@pytest.mark.parametrize(
    "bad",
    [
        np.asarray(["a", "b"]),
        np.asarray([object()]),
        np.asarray(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", np.float32)]),
        np.ones(2, ">f4"),
        jax.random.key(0)[None],
    ],
    ids=["strings", "objects", "dates", "records", "another byte order", "keys"],
)
def test_arrays_that_hold_no_numbers(bad):
    for reduce in (*GLOBAL, reduce_custom):
        with raises(datarax.MetricTypeError, reduce.__name__, "'loss'", str(bad.dtype)):
            reduce({"loss": bad})
    if isinstance(bad, np.ndarray):
        for reduce in COLLECTIVE:
            with raises(datarax.MetricTypeError, reduce.__name__, "'loss'", str(bad.dtype)):
                in_shard_map(lambda x, r=reduce: r({"loss": bad, "x": x}, axis_name="data"))


def test_masked_arrays_are_refused_and_never_unmasked():
    masked = np.ma.masked_array(np.ones(3, np.float32), np.asarray([False, False, True]))
    for metrics, weights in (({"x": masked}, None), ({"x": X}, masked)):
        with pytest.raises(ValueError, match="masked"):
            reduce_mean(metrics, weights=weights)


def test_complex_numbers_have_no_order():
    z = np.ones(3, np.complex64)
    for reduce in (reduce_max, reduce_min):
        with raises(datarax.MetricTypeError, reduce.__name__, "'z'", "complex64"):
            reduce({"z": z})
    with raises(datarax.MetricTypeError, "'z'", "complex64"):
        reduce_custom({"z": z}, {"z": "max"})
    with raises(datarax.MetricTypeError, "'z'", "complex64"):
        in_shard_map(lambda x: reduce_max_collective({"z": jnp.ones(3, complex)}, "data"))


@pytest.mark.parametrize(
    "values",
    [np.asarray([1, 2**31]), np.asarray([-(2**31) - 1, 0]), np.asarray([2**32], np.uint64)],
)
def test_integers_that_32_bits_cannot_hold(values):
    with x64(False):
        for reduce in (*GLOBAL, reduce_custom):  # outside a program, NumPy holds them
            with raises(datarax.MetricInputError, reduce.__name__, "'n'", str(values.dtype)):
                jax.jit(lambda reduce=reduce: reduce({"n": values}))()
        with raises(datarax.MetricInputError, "weights of metric 'x'", str(values.dtype)):
            reduce_mean({"x": np.ones(values.shape, np.float32)}, weights=values)
    with x64():
        assert int(reduce_max({"n": values})["n"]) == values.max()


def test_collect_from_devices_inside_a_trace():
    for transform in (jax.jit, jax.vmap, jax.grad):
        with raises(datarax.DataraxError, "collect_from_devices", "'loss'", "jit"):
            transform(lambda x: collect_from_devices({"loss": x})["loss"][0].sum())(X)
    with raises(datarax.DataraxError, "collect_from_devices", "'loss' is traced"):
        jax.jit(lambda x: collect_from_devices({"loss": DoubleFloat(x, x)}))(X)


def test_errors_name_metrics_in_nested_structures():
    with raises(datarax.MetricInputError, "'a/b/1/c'"):
        reduce_mean({"a": {"b": [X, {"c": X}]}}, weights={"a/b/1/c": np.ones(5)})
    with raises(datarax.MetricTypeError, "'1'"):
        reduce_mean((X, np.asarray(["a"])))


@pytest.mark.parametrize("reduce", [reduce_max, reduce_min])
def test_an_extreme_has_no_weights(reduce):
    x, weights = np.array([1.0, 9.0, 4.0, -3.0]), np.array([1, 0, 2, 1])
    with pytest.raises(datarax.MetricInputError, match="leave elements out with where="):
        reduce({"x": x}, weights=weights)
    assert float(reduce({"x": x}, where=weights)["x"]) == (4 if reduce is reduce_max else -3)


def test_an_array_that_no_axis_of_devices_leads():
    mesh = make_mesh("auto", {"data": 8})
    x = jax.device_put(np.arange(3.0, dtype=np.float32), NamedSharding(mesh, P()))
    with pytest.raises(
        datarax.MetricInputError, match=r"'x' \(shape \(3,\)\) is the same on 8 devices"
    ):
        collect_from_devices({"x": x})
    of_devices = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P()))
    assert len(collect_from_devices({"x": of_devices})["x"]) == 8
