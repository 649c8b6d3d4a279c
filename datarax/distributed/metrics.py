"""Pure functions that reduce a pytree of metrics, in a global and a collective variant.

The *global* variants (`reduce_mean`, ...) take whole arrays, which may be sharded over any mesh.
They work eagerly and under `jax.jit` or `nnx.jit`. The *collective* variants
(`reduce_mean_collective`, ...) take the arrays of one device, inside `shard_map` or `pmap`. The
result has the structure of the argument.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._errors import MetricInputError, MetricTypeError, NotAddressableError
from datarax._typing import Array, PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import (
    Axis,
    NamedWeights,
    as_jax,
    axes_of_whole,
    is_array,
    named_leaves,
)
from datarax.distributed.reduction import collect, is_two_parts, reduce

# Global variants.


def reduce_mean(metrics: PyTree, *, weights: NamedWeights = None, axis: Axis = None) -> PyTree:
    """The mean of every array in `metrics`, over all shards.

    Args:
        metrics: a pytree. JAX and NumPy arrays of at least one dimension are reduced;
            zero-dimensional arrays, Python numbers, strings and `None` pass through.
        weights: an array that broadcasts against the leading axes of each metric, or a mapping
            from names of metrics ("loss", "train/loss") to such arrays. A boolean mask is an array
            of weights too. The result is `sum(w * x) / sum(w)` over all shards. A value of weight
            zero is ignored, even NaN.
        axis: the axes to reduce; by default all.

    Returns:
        A pytree of the same structure. Means of integers and booleans have the default float
        dtype, means of bfloat16 and float16 are float32. If there are no elements, or if the total
        weight is zero, the mean is NaN.

    Raises:
        MetricInputError: weights do not broadcast, or a metric does not have an axis of `axis`.
        MetricTypeError: an array does not hold numbers.
        UnknownMetricError: `weights` has a name that the metrics do not have.
        NotAddressableError: there are several processes, and only this process holds an array.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_mean
        >>> batch = {"loss": jnp.array([1.0, 2.0, 6.0, jnp.nan]), "epoch": 3}
        >>> out = reduce_mean(batch, weights=jnp.array([True, True, True, False]))
        >>> print(out["loss"], out["epoch"])
        3.0 3
    """
    return reduce("reduce_mean", metrics, "mean", weights, axis)


def reduce_sum(metrics: PyTree, *, weights: NamedWeights = None, axis: Axis = None) -> PyTree:
    """The sum of every array in `metrics`; errors as in `reduce_mean`.

    In a program, and of JAX arrays, sums of integers and booleans have the dtype that `jnp.sum`
    gives, at least the default integer dtype, and overflow like `jnp.sum`: to count beyond 2**31,
    use an accumulator. Outside a program, the sum of NumPy arrays of integers is exact, a NumPy
    integer of 64 bits; one that does not fit raises `MetricInputError`. With boolean or
    integer weights, the sum of integers is an integer: as `jnp.sum(x * weights)`. But it is a float
    if no integer dtype holds both: uint32 and a signed one, without x64. The sum of no elements is
    0. The value of a count of a metric (`Exact`) is summed exactly, unless its weights are numbers.

    Args:
        metrics: a pytree, as in `reduce_mean`.
        weights: an array that broadcasts against the leading axes of each metric, or a mapping
            from names of metrics to such arrays; each value is multiplied by its weight. A value
            of weight zero is ignored, even NaN.
        axis: the axes to reduce; by default all.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_sum
        >>> print(reduce_sum({"hits": jnp.array([True, False, True])})["hits"])
        2
    """
    return reduce("reduce_sum", metrics, "sum", weights, axis)


def reduce_max(
    metrics: PyTree, *, where: NamedWeights = None, axis: Axis = None, weights: None = None
) -> PyTree:
    """The maximum of every array in `metrics`; NaN if an element that counts is NaN.

    Integers keep their dtype, and booleans become int32.

    For floats, the maximum of no data is NaN. Integers have no NaN: an array without elements
    raises `MetricInputError`, and if `where` excludes all elements, the result is the lowest value
    of the dtype.

    Args:
        metrics: a pytree, as in `reduce_mean`.
        where: an array that broadcasts against the leading axes of each metric, or a mapping from
            names of metrics to such arrays. Elements where it is zero or false do not count.
        axis: the axes to reduce; by default all.
        weights: refused, because an extreme has none: `where=` leaves elements out.

    Raises:
        MetricInputError: `weights` is given, or as by `reduce_mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_max
        >>> print(reduce_max({"grad_norm": jnp.array([0.5, 2.0, 1.0])})["grad_norm"])
        2.0
    """
    _refuse_weights("reduce_max", weights)
    return reduce("reduce_max", metrics, "max", where, axis, what="where")


def reduce_min(
    metrics: PyTree, *, where: NamedWeights = None, axis: Axis = None, weights: None = None
) -> PyTree:
    """The minimum of every array in `metrics`; otherwise as `reduce_max`.

    Args:
        metrics: a pytree, as in `reduce_mean`.
        where: an array that broadcasts against the leading axes of each metric, or a mapping from
            names of metrics to such arrays. Elements where it is zero or false do not count.
        axis: the axes to reduce; by default all.
        weights: refused, because an extreme has none: `where=` leaves elements out.

    Raises:
        MetricInputError: `weights` is given, or as by `reduce_mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_min
        >>> print(reduce_min({"margin": jnp.array([0.5, 2.0, 1.0])})["margin"])
        0.5
    """
    _refuse_weights("reduce_min", weights)
    return reduce("reduce_min", metrics, "min", where, axis, what="where")


def _refuse_weights(caller: str, weights: object) -> None:
    if weights is not None:
        raise MetricInputError(
            f"{caller}: a maximum or a minimum has no weights; leave elements out with where=, "
            f"such as where=weights"
        )


def reduce_custom(
    metrics: PyTree, reduce_fn: Mapping[str, PyTree] | None = None, *, weights: NamedWeights = None
) -> PyTree:
    """Reduces each metric by its own operation.

    Args:
        metrics: a pytree, as in `reduce_mean`.
        reduce_fn: a mapping from names of metrics to "mean", "sum", "max", "min", or `None`, which
            leaves the metric as it is. The default for a metric is "mean".
        weights: as in `reduce_mean`. For "max" and "min", elements of weight zero do not count.

    Raises:
        UnknownReductionError: an operation is none of these.
        UnknownMetricError: `reduce_fn` or `weights` has a name that the metrics do not have.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_custom
        >>> batch = {"loss": jnp.array([1.0, 3.0]), "tokens": jnp.array([7, 5])}
        >>> out = reduce_custom(batch, {"tokens": "sum"})
        >>> print(out["loss"], out["tokens"])
        2.0 12
    """
    return reduce("reduce_custom", metrics, reduce_fn, weights, None)


# Collective variants.


def reduce_mean_collective(
    metrics: PyTree, axis_name: AxisName = "batch", *, weights: NamedWeights = None
) -> PyTree:
    """The elementwise mean over the devices along `axis_name` of every array in `metrics`.

    Use it inside `shard_map` or `pmap`. Shapes are kept, as with `lax.pmean`: a scalar on each
    device gives a scalar, an array of shape (n,) gives n means. All arrays are sent in one
    collective.

    Args:
        metrics: a pytree. Every array is reduced, also zero-dimensional ones; all other leaves
            pass through.
        axis_name: a mesh axis, or a tuple of mesh axes.
        weights: the weight of this device: an array that broadcasts against the leading axes of
            each metric, or a mapping from names of metrics to such arrays. To get the exact mean
            over shards of unequal size, pass the size of the shard. A device of weight zero does
            not count, even if its value is NaN.

    Returns:
        A pytree of the same structure, equal on every device. The dtypes are those of
        `reduce_mean`. If the total weight is zero, the mean is NaN.

    Raises:
        AxisNotBoundError: `axis_name` is not bound here.
        MetricInputError, MetricTypeError, UnknownMetricError: as in `reduce_mean`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_mean_collective
        >>> def shard_mean(loss, size):
        ...     return reduce_mean_collective({"loss": loss}, "shards", weights=size)
        >>> loss, size = jnp.array([3.0, 5.0]), jnp.array([3.0, 1.0])
        >>> print(jax.vmap(shard_mean, axis_name="shards")(loss, size)["loss"])
        [3.5 3.5]
    """
    return collect("reduce_mean_collective", metrics, "mean", axis_name, weights)


def reduce_sum_collective(
    metrics: PyTree, axis_name: AxisName = "batch", *, weights: NamedWeights = None
) -> PyTree:
    """The elementwise sum over the devices along `axis_name`; see `reduce_mean_collective`.

    The dtypes are those of `reduce_sum`. All floats are sent in one collective, and all integers
    in another.

    Args:
        metrics: a pytree, as in `reduce_mean_collective`.
        axis_name: a mesh axis, or a tuple of mesh axes.
        weights: the weight of this device, by which its values are multiplied: an array that
            broadcasts against the leading axes of each metric, or a mapping from names of metrics
            to such arrays. A device of weight zero does not count, even if its value is NaN.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_sum_collective
        >>> count = lambda n: reduce_sum_collective({"count": n}, "shards")
        >>> print(jax.vmap(count, axis_name="shards")(jnp.array([3, 4]))["count"])
        [7 7]
    """
    return collect("reduce_sum_collective", metrics, "sum", axis_name, weights)


def reduce_max_collective(
    metrics: PyTree, axis_name: AxisName = "batch", *, where: NamedWeights = None
) -> PyTree:
    """The elementwise maximum over the devices along `axis_name`; see `reduce_mean_collective`.

    If a device that counts has NaN, the result is NaN (`lax.pmax` drops NaN on some backends). The
    dtypes and the result of no data are those of `reduce_max`. There is one collective.

    Args:
        metrics: a pytree, as in `reduce_mean_collective`.
        axis_name: a mesh axis, or a tuple of mesh axes.
        where: whether this device counts: an array that broadcasts against the leading axes of
            each metric, or a mapping from names of metrics to such arrays. Elements where it is
            zero or false do not count.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_max_collective
        >>> peak = lambda x: reduce_max_collective({"peak": x}, "shards")
        >>> print(jax.vmap(peak, axis_name="shards")(jnp.array([0.5, 2.0]))["peak"])
        [2. 2.]
    """
    return collect("reduce_max_collective", metrics, "max", axis_name, where, what="where")


def reduce_min_collective(
    metrics: PyTree, axis_name: AxisName = "batch", *, where: NamedWeights = None
) -> PyTree:
    """The elementwise minimum over the devices along `axis_name`; see `reduce_max_collective`.

    Args:
        metrics: a pytree, as in `reduce_mean_collective`.
        axis_name: a mesh axis, or a tuple of mesh axes.
        where: whether this device counts, as in `reduce_max_collective`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_min_collective
        >>> low = lambda x: reduce_min_collective({"low": x}, "shards")
        >>> print(jax.vmap(low, axis_name="shards")(jnp.array([0.5, 2.0]))["low"])
        [0.5 0.5]
    """
    return collect("reduce_min_collective", metrics, "min", axis_name, where, what="where")


def reduce_custom_collective(
    metrics: PyTree,
    reduce_fn: Mapping[str, PyTree] | None = None,
    axis_name: AxisName = "batch",
    *,
    weights: NamedWeights = None,
) -> PyTree:
    """Reduces each metric over the devices along `axis_name` by its own operation.

    Everything else is as in `reduce_mean_collective`. There are at most three collectives: one for
    the sums and means of floats, one for the sums of integers, and one for the maxima and minima.

    Args:
        metrics: a pytree, as in `reduce_mean_collective`.
        reduce_fn: a mapping from names of metrics to "mean", "sum", "max", "min", or `None`, which
            leaves the metric as it is. The default for a metric is "mean".
        axis_name: a mesh axis, or a tuple of mesh axes.
        weights: the weight of this device, as in `reduce_mean_collective`. For "max" and "min",
            elements of weight zero do not count.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_custom_collective
        >>> def step(loss, tokens):
        ...     batch = {"loss": loss, "tokens": tokens}
        ...     return reduce_custom_collective(batch, {"tokens": "sum"}, "shards")
        >>> out = jax.vmap(step, axis_name="shards")(jnp.array([1.0, 3.0]), jnp.array([7, 5]))
        >>> print(out["loss"], out["tokens"])
        [2. 2.] [12 12]
    """
    return collect("reduce_custom_collective", metrics, reduce_fn, axis_name, weights)


def all_gather(
    metrics: PyTree, axis_name: AxisName = "batch", *, axis: int = 0, tiled: bool = False
) -> PyTree:
    """Gathers the arrays of all devices on every device, bit for bit, in one collective.

    Use it inside `shard_map` or `pmap`. The result is replicated, so `shard_map` accepts it under
    `out_specs=P()`. Every device holds the arrays of all devices, so gather metrics, not
    activations.

    Args:
        metrics: a pytree. Every array is gathered, also zero-dimensional ones; all other leaves
            pass through.
        axis_name: a mesh axis, or a tuple of mesh axes (the first varies slowest).
        axis: the position of the new device axis; if `tiled`, the axis to concatenate along.
        tiled: whether to concatenate along an existing axis instead of stacking along a new one.

    Raises:
        AxisNotBoundError: `axis_name` is not bound here.
        MetricInputError: a metric does not have the axis `axis`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import all_gather
        >>> every = lambda x: all_gather({"loss": x}, "shards")
        >>> print(jax.vmap(every, axis_name="shards")(jnp.array([1.0, 2.0]))["loss"])
        [[1. 2.]
         [1. 2.]]
    """
    caller = "all_gather"
    size = collectives.bound_axis_size(axis_name, caller)
    names, leaves, treedef = named_leaves(metrics)
    chosen = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    arrays = [as_jax(leaves[i], f"metric {names[i]!r}", caller) for i in chosen]
    for i, x in zip(chosen, arrays, strict=True):
        dims = x.ndim + (not tiled)
        if not -dims <= axis < dims:
            raise MetricInputError(
                f"{caller}: metric {names[i]!r} has shape {x.shape} on each device, so there is no "
                f"axis {axis} to {'concatenate' if tiled else 'stack'} along; expected an axis "
                f"from {-dims} to {dims - 1}"
            )
    for i, x, out in zip(chosen, arrays, collectives.gather(arrays, axis_name), strict=True):
        # `gather` stacks the devices along the first axis.
        at = axis % (x.ndim + (not tiled))
        out = jnp.moveaxis(out, 0, at)
        if tiled:
            out = out.reshape((*x.shape[:at], size * x.shape[at], *x.shape[at + 1 :]))
        # A dtype of fewer than 8 bits was widened before it was sent.
        leaves[i] = out.astype(jnp.asarray(leaves[i]).dtype)
    return treedef.unflatten(leaves)


# Outside of any transformation.


def collect_from_devices(metrics: PyTree) -> PyTree:
    """Splits the leading (device) axis of each array into a list with one entry per device.

    Use it outside `jit`, `shard_map` and `pmap`, for example on the results of a `pmap`.
    Zero-dimensional arrays and leaves that are not arrays pass through. JAX arrays become lists of
    JAX arrays, and NumPy arrays become lists of NumPy arrays. A metric that was returned by a
    `pmap` or a `vmap` becomes a list of metrics; any other metric passes through. Each array is
    fetched to the host once.

    Args:
        metrics: a pytree of arrays whose leading axis is of devices.

    Raises:
        NotAddressableError: other processes hold a part of an array. Call `all_gather` inside the
            step, so that every process holds the whole array.
        MetricInputError: the leading axis of an array on several devices is not that of devices:
            it is split over none of them, and its length is not their number.
        MetricTypeError: the function was called inside a traced function.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import collect_from_devices
        >>> out = collect_from_devices({"loss": jnp.array([1.0, 2.0]), "epoch": 3})
        >>> print([float(x) for x in out["loss"]], out["epoch"])
        [1.0, 2.0] 3
    """

    def is_whole(leaf: PyTree) -> bool:
        return is_two_parts(leaf) or axes_of_whole(leaf) is not None

    names, leaves, treedef = named_leaves(metrics, is_whole)
    for i, leaf in enumerate(leaves):
        if (axes := axes_of_whole(leaf)) is not None:
            splits = bool(axes)
        else:
            splits = (is_two_parts(leaf) or is_array(leaf)) and leaf.ndim > 0
        if splits:
            parts, structure = jax.tree.flatten(leaf)
            entries = zip(*(_entries(part, names[i]) for part in parts), strict=True)
            leaves[i] = [structure.unflatten(each) for each in entries]
    return treedef.unflatten(leaves)


def _entries(x: Array, name: str) -> list[Array]:
    if isinstance(x, np.ndarray):
        return list(x)
    if isinstance(x, Tracer):
        raise MetricTypeError(
            f"collect_from_devices: metric {name!r} is traced; call it outside jit, shard_map and "
            f"pmap, on what they returned"
        )
    if not (x.is_fully_addressable or x.is_fully_replicated):
        raise NotAddressableError(
            f"collect_from_devices: this process holds only a part of metric {name!r} "
            f"(shape {x.shape}, {x.sharding}); gather it with all_gather inside shard_map, and "
            f"return it replicated"
        )
    devices = len(x.sharding.device_set)
    if x.is_fully_replicated and 1 < devices != len(x):
        raise MetricInputError(
            f"collect_from_devices: metric {name!r} (shape {x.shape}) is the same on {devices} "
            f"devices, and its leading axis is not that of devices: read it as it is, with "
            f"np.asarray; or return it with a leading axis, x[None], and out_specs=P(axis_name)"
        )
    # One transfer of the whole array takes less time than one for each entry.
    return [jnp.asarray(entry) for entry in np.asarray(x)]
