"""Pure functions that reduce a pytree of metrics: global variants, and collective ones.

The *global* variants (`reduce_mean`, ...) see whole arrays: eager, under `jax.jit` or `nnx.jit`,
sharded over any mesh. The *collective* variants (`reduce_mean_collective`, ...) see one device's
arrays, inside `shard_map` or `pmap`. A dict in gives a dict of the same structure out.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._errors import MetricInputError, MetricTypeError, NotAddressableError
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import Axis, is_array, numeric
from datarax.distributed.names import named_leaves
from datarax.distributed.reduction import collect, reduce

# Global variants.


def reduce_mean(metrics: Any, *, weights: Any = None, axis: Axis = None) -> Any:
    """The mean of every array in `metrics`, exact over all shards.

    Args:
        metrics: a pytree. Arrays (JAX or NumPy) of one dimension or more are reduced;
            zero-dimensional arrays, Python numbers, strings and `None` pass through.
        weights: an array that broadcasts against the leading axes of each metric (a boolean mask
            is a weight), or a mapping from a metric's name ("loss", "train/loss") to one. The
            result is `sum(w * x) / sum(w)` over all shards; where the weight is zero the value is
            not looked at, so a NaN there does not leak.
        axis: the axes to reduce, all by default.

    Returns:
        The same structure; integers and booleans give the default float, bfloat16 and float16
        give float32. No elements, or a total weight of zero, give NaN.

    Raises:
        MetricInputError: weights that do not broadcast, or an axis that a metric does not have.
        MetricTypeError: an array that holds no numbers.
        UnknownMetricError: `weights` names a metric that is not there.
        NotAddressableError: on several processes, an array that only this process holds.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_mean
        >>> batch = {"loss": jnp.array([1.0, 2.0, 6.0, jnp.nan]), "epoch": 3}
        >>> out = reduce_mean(batch, weights=jnp.array([True, True, True, False]))
        >>> print(out["loss"], out["epoch"])
        3.0 3
    """
    return reduce("reduce_mean", metrics, "mean", weights, axis)


def reduce_sum(metrics: Any, *, weights: Any = None, axis: Axis = None) -> Any:
    """The sum of every array in `metrics`; arguments and errors as in `reduce_mean`.

    Integers and booleans come back in the default integer at least, as from `jnp.sum`, and wrap
    where that does: count beyond 2**31 with an accumulator, not with a sum of an array. Boolean
    and integer weights keep an integer sum an integer. The sum of nothing is 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_sum
        >>> print(reduce_sum({"hits": jnp.array([True, False, True])})["hits"])
        2
    """
    return reduce("reduce_sum", metrics, "sum", weights, axis)


def reduce_max(metrics: Any, *, where: Any = None, axis: Axis = None) -> Any:
    """The maximum of every array in `metrics`; a NaN that counts gives NaN.

    `where` is as `weights` in `reduce_mean`: elements at which it is zero or false do not count.
    Integers keep their dtype, booleans become 0/1. No data gives NaN for floats; for integers,
    which have none, an array without elements raises `MetricInputError`, and a mask that leaves
    nothing gives the dtype's lowest value.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_max
        >>> print(reduce_max({"grad_norm": jnp.array([0.5, 2.0, 1.0])})["grad_norm"])
        2.0
    """
    return reduce("reduce_max", metrics, "max", where, axis, what="where")


def reduce_min(metrics: Any, *, where: Any = None, axis: Axis = None) -> Any:
    """The minimum of every array in `metrics`; as `reduce_max`, with the order turned round.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_min
        >>> print(reduce_min({"margin": jnp.array([0.5, 2.0, 1.0])})["margin"])
        0.5
    """
    return reduce("reduce_min", metrics, "min", where, axis, what="where")


def reduce_custom(
    metrics: Any, reduce_fn: Mapping[str, Any] | None = None, *, weights: Any = None
) -> Any:
    """Reduces each metric by the operation that `reduce_fn` names for it.

    Args:
        metrics: a pytree, as in `reduce_mean`.
        reduce_fn: from a metric's name to "mean", "sum", "max", "min", or `None` to leave it as
            it is. A metric that is not named is averaged.
        weights: as in `reduce_mean`; for "max" and "min", where it is zero nothing counts.

    Raises:
        UnknownReductionError: an operation that is not one of those.
        UnknownMetricError: a name that the metrics do not have.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_custom
        >>> batch = {"loss": jnp.array([1.0, 3.0]), "tokens": jnp.array([7, 5])}
        >>> out = reduce_custom(batch, {"tokens": "sum"})
        >>> print(out["loss"], out["tokens"])
        2.0 12
    """
    return reduce("reduce_custom", metrics, {} if reduce_fn is None else reduce_fn, weights, None)


# Collective variants.


def reduce_mean_collective(
    metrics: Any, axis_name: AxisName = "batch", *, weights: Any = None
) -> Any:
    """The mean over the devices along `axis_name`, elementwise, of every array in `metrics`.

    Only inside `shard_map` or `pmap`. Shapes are kept, as by `lax.pmean`: a scalar a device gives
    a scalar, an array of shape (n,) gives n means. All arrays travel in one collective.

    Args:
        metrics: a pytree. Every array is reduced, zero-dimensional ones too; all else passes.
        axis_name: a mesh axis, or a tuple of them.
        weights: this device's weight, broadcast against the leading axes of each metric, or a
            mapping from names. Means over shards of unequal size are exact when each shard's
            size is its weight. A shard of weight zero does not count, whatever it holds.

    Returns:
        The same structure, the same on every device; dtypes as from `reduce_mean`. A total
        weight of zero gives NaN.

    Raises:
        AxisNotBoundError: `axis_name` is not bound here.
        MetricInputError, MetricTypeError, UnknownMetricError: as `reduce_mean`.

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
    metrics: Any, axis_name: AxisName = "batch", *, weights: Any = None
) -> Any:
    """The sum over the devices along `axis_name`, elementwise; see `reduce_mean_collective`.

    Dtypes as from `reduce_sum`. One collective for all floats, one for all integers.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_sum_collective
        >>> count = lambda n: reduce_sum_collective({"count": n}, "shards")
        >>> print(jax.vmap(count, axis_name="shards")(jnp.array([3, 4]))["count"])
        [7 7]
    """
    return collect("reduce_sum_collective", metrics, "sum", axis_name, weights)


def reduce_max_collective(metrics: Any, axis_name: AxisName = "batch", *, where: Any = None) -> Any:
    """The maximum over the devices along `axis_name`, elementwise; see `reduce_mean_collective`.

    A NaN on any device gives NaN (`lax.pmax` loses it on some backends). Dtypes, and what no data
    gives, as from `reduce_max`. One collective.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import reduce_max_collective
        >>> peak = lambda x: reduce_max_collective({"peak": x}, "shards")
        >>> print(jax.vmap(peak, axis_name="shards")(jnp.array([0.5, 2.0]))["peak"])
        [2. 2.]
    """
    return collect("reduce_max_collective", metrics, "max", axis_name, where, what="where")


def reduce_min_collective(metrics: Any, axis_name: AxisName = "batch", *, where: Any = None) -> Any:
    """The minimum over the devices along `axis_name`, elementwise; see `reduce_max_collective`.

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
    metrics: Any,
    reduce_fn: Mapping[str, Any] | None = None,
    axis_name: AxisName = "batch",
    *,
    weights: Any = None,
) -> Any:
    """Reduces each metric over the devices along `axis_name` by its own operation.

    `reduce_fn` and `weights` as in `reduce_custom`, the rest as in `reduce_mean_collective`. One
    collective a kind: sums and means share theirs, floats and integers apart.

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
    ops = {} if reduce_fn is None else reduce_fn
    return collect("reduce_custom_collective", metrics, ops, axis_name, weights)


def all_gather(
    metrics: Any, axis_name: AxisName = "batch", *, axis: int = 0, tiled: bool = False
) -> Any:
    """Every device's arrays, on every device, bit for bit, in one collective.

    Only inside `shard_map` or `pmap`. The result is replicated, and `shard_map` accepts it under
    `out_specs=P()`. Each device holds all of it, so it is for metrics, not for activations.

    Args:
        metrics: a pytree. Every array is gathered, zero-dimensional ones too; all else passes.
        axis_name: a mesh axis, or a tuple of them (the first varies slowest).
        axis: where the device axis goes, or with `tiled` the axis that is concatenated.
        tiled: concatenate along an existing axis instead of stacking along a new one.

    Raises:
        AxisNotBoundError: `axis_name` is not bound here.
        MetricInputError: an `axis` that a metric does not have.

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
    arrays = [numeric(leaves[i], names[i], caller, any_dtype=True) for i in chosen]
    for i, x in zip(chosen, arrays, strict=True):
        dims = x.ndim + (not tiled)
        if not -dims <= axis < dims:
            raise MetricInputError(
                f"{caller}: metric {names[i]!r} of shape {x.shape} a device has no axis {axis} to "
                f"{'concatenate along' if tiled else 'stack along'}; expected {-dims} to {dims - 1}"
            )
    for i, x, out in zip(chosen, arrays, collectives.gather(arrays, axis_name), strict=True):
        at = axis % (x.ndim + (not tiled))
        out = jnp.moveaxis(out, 0, at)
        if tiled:
            out = out.reshape((*x.shape[:at], size * x.shape[at], *x.shape[at + 1 :]))
        leaves[i] = out
    return treedef.unflatten(leaves)


# Outside.


def collect_from_devices(metrics: Any) -> Any:
    """Splits the leading, device axis of each array into a list, one entry a device.

    Outside `jit`, `shard_map` and `pmap`, on what came back from a `pmap`, say. Zero-dimensional
    arrays and everything that is no array pass through. JAX arrays give lists of JAX arrays,
    NumPy arrays of NumPy arrays. Each array is fetched to the host once.

    Raises:
        NotAddressableError: an array of which other processes hold a part; `all_gather` inside
            the step makes it one that every process holds.
        MetricTypeError: called inside a traced function.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.distributed import collect_from_devices
        >>> out = collect_from_devices({"loss": jnp.array([1.0, 2.0]), "epoch": 3})
        >>> print([float(x) for x in out["loss"]], out["epoch"])
        [1.0, 2.0] 3
    """
    names, leaves, treedef = named_leaves(metrics)
    for i, leaf in enumerate(leaves):
        if not is_array(leaf) or leaf.ndim == 0:
            continue
        if isinstance(leaf, np.ndarray):
            leaves[i] = list(leaf)
            continue
        if isinstance(leaf, Tracer):
            raise MetricTypeError(
                f"collect_from_devices: metric {names[i]!r} is traced; call it outside jit, "
                f"shard_map and pmap, on what they returned"
            )
        if not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            raise NotAddressableError(
                f"collect_from_devices: this process holds only a part of metric {names[i]!r} "
                f"(shape {leaf.shape}, {leaf.sharding}); gather it with all_gather inside "
                f"shard_map, and return it replicated"
            )
        leaves[i] = [jnp.asarray(entry) for entry in np.asarray(leaf)]
    return treedef.unflatten(leaves)
