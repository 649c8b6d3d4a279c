"""The arguments of an update, split over the devices of a mesh."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax._checks import numeric, refuse_wide
from datarax._errors import MetricInputError, NotAddressableError
from datarax._typing import PyTree
from datarax._xp import beside, xp
from datarax.distributed.placement import explicit_axes
from datarax.metric.arguments import Call, is_call, is_numbers, naming, split_over, with_empty_rows


def split_calls(calls: PyTree, mesh: Mesh, axis_names: tuple[str, ...], devices: int) -> PyTree:
    """The calls of a `per_device` metric, padded, with their rows on the devices of its mesh.

    Raises:
        MetricInputError: the leading axes differ, rows cannot be padded, or rows that belong
            together would be on several devices.
        NotAddressableError: there are several processes, and only this process holds an array.
    """

    def one(call: Call) -> Call:
        # An error in a collection says for which metric.
        with naming(call.path, call.args, call.kwargs):
            args, kwargs = call.by_name
            # Before the arrays become those of JAX, which would cut integers in silence.
            refuse_wide({f"argument {i}": x for i, x in enumerate(args)} | kwargs)
            call = _divisible(call, devices)
            _refuse_split(call, devices)
        names = axis_names if call.rows else ()
        return jax.tree.map(partial(_placed, mesh=mesh, names=names), call)

    return jax.tree.map(one, calls, is_leaf=is_call)


def _placed(x: jax.Array, mesh: Mesh, names: tuple[str, ...]) -> jax.Array:
    """`x` as `shard_map` expects it: its rows are along these axes, or it is whole without any."""
    if not isinstance(x, Tracer):
        sharding = x.sharding if isinstance(x, jax.Array) else None
        if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
            # Each device gets its rows alone. Under a trace the compiler does it.
            return jax.device_put(x, NamedSharding(mesh, P(names) if names else P()))
    explicit = explicit_axes(mesh)
    if not explicit:
        return x  # on `Auto` axes, the compiler moves the rows where necessary
    spec = (tuple(name for name in names if name in explicit) or None,) if names else ()
    now = jax.typeof(x).sharding.spec
    if P(*now[: len(spec)]) == P(*spec) and not any(now[len(spec) :]):
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, P(*spec)))


def _divisible(call: Call, devices: int) -> Call:
    """The call, padded so that its number of rows is divisible by the number of devices."""
    caller, (args, kwargs) = f"per_device({call.metric}).update", call.by_name
    args = tuple(_global(x, caller) for x in args)  # one by one: `()` would become an array
    if not call.rows:
        kwargs = {name: _global(x, caller) for name, x in kwargs.items()}
        return replace(call, args=args, kwargs=kwargs)
    weights = kwargs.get("weights")
    kwargs = {name: _global(x, caller) for name, x in kwargs.items() if name != "weights"}
    repeated = [name for name in call.broadcast if name in kwargs and kwargs[name].ndim == 0]
    data = jax.tree.leaves((args, {n: x for n, x in kwargs.items() if n not in repeated}))
    if weights is not None:
        weights = numeric(weights, "weights") if np.ndim(weights) == 0 else _global(weights, caller)
    shapes = ", ".join(str(x.shape) for x in data)
    sizes = {x.shape[0] if x.ndim else None for x in data}
    if len(sizes) > 1:
        raise MetricInputError(
            f"{caller}: expected arrays that share one leading axis, which is split over the "
            f"devices; got shapes {shapes}. Give one value for each row"
        )
    size = sizes.pop() if sizes else None
    if weights is not None and weights.ndim and (size is None or weights.shape[0] not in (1, size)):
        raise MetricInputError(
            f"{caller}: weights of shape {weights.shape} do not broadcast against the leading axes "
            f"of the examples, of shape {shapes}"
        )
    if size is None:  # zero-dimensional arrays: a batch of one row
        args, kwargs = jax.tree.map(lambda x: x[None], (args, kwargs))
        size = 1
    elif repeated:
        kwargs |= {name: xp.broadcast_to(kwargs[name], (size,)) for name in repeated}
    if weights is not None:
        weights = xp.broadcast_to(weights, (size, *weights.shape[1:]))
    missing = -size % devices  # what is left to the next multiple
    if missing:
        if "weights" not in call.takes:
            raise MetricInputError(
                f"{caller}: {size} rows are not divisible by {devices} devices, and they cannot be "
                f"padded because update takes no weights; pad or split the batch, or give "
                f"{call.metric}.update a weights= argument"
            )
        if weights is None:
            weights = beside(data, np.ones(size, np.bool_))
        # Rows of weight zero are never looked at, so zeros will do in any argument.
        args, kwargs, weights = with_empty_rows((args, kwargs, weights), missing)
    kwargs = kwargs if weights is None else kwargs | {"weights": weights}
    return replace(call, args=args, kwargs=kwargs)


def _refuse_split(call: Call, devices: int) -> None:
    """Raises if rows that belong together are on several devices, where their values are known."""
    value = split_over(call, devices)
    if value is not None:
        raise MetricInputError(
            f"per_device({call.metric}).update: {call.together}={value} has rows on several "
            f"devices; expected all of them on one. Sort the rows by {call.together} and pad each "
            f"device's part with rows of weight zero, or leave out {call.together}= and give "
            f"arrays of shape (Q, D)"
        )


def _global(argument: PyTree, caller: str) -> PyTree:
    """The argument with JAX arrays as its leaves.

    Raises:
        NotAddressableError: there are several processes, and only this process holds an array.
    """
    # Under a trace, JAX takes an argument to be the same on every process.
    several = jax.process_count() > 1 and not isinstance(jnp.zeros(()), Tracer)

    def array(x: PyTree) -> jax.Array:
        if several and not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True):
            raise NotAddressableError(
                f"{caller}: only this process holds an array of shape {np.shape(x)}, so each of "
                f"the {jax.process_count()} processes would pass a different one; make it a global "
                f"array with datarax.distributed.global_batch"
            )
        return numeric(x, caller)

    return jax.tree.map(array, argument, is_leaf=is_numbers)
