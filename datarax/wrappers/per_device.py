"""A metric with one copy of its state a device: updates that never communicate."""

import math
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed._collective import AxisName
from datarax.metrics._metric import Metric, arguments


def per_device(metric: Metric, mesh: Mesh, axis_names: AxisName) -> "PerDevice":
    """A metric whose state has one copy a device along `axis_names` of `mesh`.

    Its `update` takes global arrays whose leading axis is sharded over those axes, and compiles to
    a program without a collective over them; its `sync` merges the copies, in one collective
    while the state is small. It works under `jax.jit`, `nnx.jit` and `lax.scan`, on `Auto` and
    `Explicit` meshes; its state may be donated.

    Args:
        metric: any metric; what it has accumulated so far is kept, once.
        mesh: a `jax.sharding.Mesh`.
        axis_names: one axis of the mesh, or a tuple.

    Raises:
        MetricTypeError: something that is not a metric.
        MetricInputError: an axis that the mesh does not have.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
            >>> import datarax
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> mean = datarax.per_device(datarax.metrics.Mean(), mesh, "data")
        >>> mean = mean.update(jnp.arange(16.0))
        >>> print(mean.compute())
        7.5
    """
    return PerDevice(metric, mesh, axis_names)


class PerDevice(Metric):
    """What `per_device` returns; see there."""

    copies: Metric

    def __init__(self, metric: Metric, mesh: Mesh, axis_names: AxisName):
        if not isinstance(metric, Metric) or isinstance(metric, PerDevice):
            raise MetricTypeError(
                f"per_device expects a plain datarax.Metric; got {type(metric).__name__}"
            )
        names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
        for name in names:
            if name not in mesh.axis_names:
                raise MetricInputError(
                    f"per_device: the mesh has no axis {name!r}; it has: "
                    f"{', '.join(map(repr, mesh.axis_names))}"
                )
        if not names or len(set(names)) < len(names):
            raise MetricInputError(f"per_device: axis_names={names}; expected distinct names")
        self.mesh, self.axis_names = mesh, names
        empty = metric.reset()
        leaves = zip(jax.tree.leaves(metric), jax.tree.leaves(empty), strict=True)
        fresh = all(a is b for a, b in leaves)
        self.copies = self._spread(empty, None if fresh else metric)

    @property
    def device_count(self) -> int:
        """How many copies there are."""
        return math.prod(self.mesh.shape[name] for name in self.axis_names)

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with a global batch folded in, each device its own shard.

        Args:
            *args: as the metric's own `update`, with global arrays whose leading axis is sharded
                over the devices.
            **kwargs: likewise. A leading axis that the devices do not divide is padded with rows
                of weight zero, and an array of no dimensions counts once; both need an `update`
                that takes `weights`.

        Raises:
            MetricInputError: leading axes that differ, or padding for a metric without weights.
        """
        calls = [
            _divisible(metric, call_args, call_kwargs, self.device_count)
            for metric, call_args, call_kwargs in self.copies._calls(args, kwargs)
        ]
        return self.replace(copies=_update(self, jax.tree.map(self._sharded, calls)))

    def sync(self, axis_name: Any = None) -> Metric:
        """The plain, replicated metric: all copies merged, in one collective if they are small."""
        if axis_name is not None:
            raise MetricInputError(
                f"per_device(...).sync() takes no axis name, as it owns its mesh; got {axis_name!r}"
            )
        return _sync(self)

    def compute(self) -> Any:
        """`sync().compute()`."""
        return self.sync().compute()

    def compute_exact(self) -> Any:
        return self.sync().compute_exact()

    def invalid_count(self) -> Any:
        return self.sync().invalid_count()

    # Saved as the plain metric, so that it restores on any number of devices.

    def state_dict(self) -> dict[str, Any]:
        """`sync().state_dict()`: on several processes, all must call it."""
        return self.sync().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> Self:
        """This layout, holding what a plain or `per_device` metric saved, on any devices."""
        empty = jax.tree.map(lambda leaf: leaf[0], self.copies._reset())
        loaded = empty.load_state_dict(state_dict)
        return self.replace(copies=self._spread(empty, jax.tree.map(np.asarray, loaded)))

    def _plain(self) -> Metric:
        return self.sync()

    def _policies(self) -> dict[str, str]:
        return self.copies._policies()

    def _merge(self, other: Any) -> Self:
        return self.replace(copies=_merge(self, other))

    def _reset(self) -> Self:
        return self.replace(copies=_reset(self))

    def _mapped(self, function: Any, *, out_specs: Any) -> Any:
        """`function` of each device's own arguments."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=P(self.axis_names),
            out_specs=out_specs,
            axis_names=set(self.axis_names),
        )

    def _spread(self, empty: Metric, metric: Metric | None) -> Metric:
        """A copy of `empty` on every device, but of `metric` on the first."""

        def local() -> Metric:
            if metric is None:
                return _stacked(empty)
            first = jax.lax.axis_index(self.axis_names) == 0
            chosen = jax.tree.map(lambda m, e: jnp.where(first, m, e), metric, empty)
            return _stacked(chosen)

        return jax.jit(
            jax.shard_map(
                local,
                mesh=self.mesh,
                in_specs=(),
                out_specs=P(self.axis_names),
                axis_names=set(self.axis_names),
            )
        )()

    def _sharded(self, x: jax.Array) -> jax.Array:
        """`x` with its leading axis over the axes, where the type says how it is sharded now.

        On `Auto` axes the compiler sees to it; on `Explicit` ones `shard_map` would refuse.
        """
        explicit = dict(zip(self.mesh.axis_names, self.mesh.axis_types, strict=True))
        if not any(explicit[name] is AxisType.Explicit for name in self.axis_names):
            return x
        now = jax.typeof(x).sharding.spec
        ours = set(self.axis_names)

        def rest(entry: Any) -> Any:
            left = tuple(
                n for n in (entry if isinstance(entry, tuple) else (entry,)) if n not in ours
            )
            return left if len(left) > 1 else left[0] if left else None

        spec = P(self.axis_names, *(rest(entry) for entry in now[1:]))
        if tuple(now) == tuple(spec):
            return x
        return jax.sharding.reshard(x, NamedSharding(self.mesh, spec))


@jax.jit
def _update(metric: PerDevice, calls: Any) -> Metric:
    def local(copies: Metric, calls: Any) -> Metric:
        return _stacked(_own(copies)._called(calls))

    return metric._mapped(local, out_specs=P(metric.axis_names))(metric.copies, calls)


@jax.jit
def _sync(metric: PerDevice) -> Metric:
    return metric._mapped(lambda copies: _own(copies).sync(metric.axis_names), out_specs=P())(
        metric.copies
    )


@jax.jit
def _merge(a: PerDevice, b: PerDevice) -> Metric:
    merge = a._mapped(lambda x, y: _stacked(_own(x)._merge(_own(y))), out_specs=P(a.axis_names))
    return merge(a.copies, b.copies)


@jax.jit
def _reset(metric: PerDevice) -> Metric:
    reset = metric._mapped(lambda x: _stacked(_own(x)._reset()), out_specs=P(metric.axis_names))
    return reset(metric.copies)


def _own(copies: Metric) -> Metric:
    return jax.tree.map(lambda x: jax.lax.squeeze(x, (0,)), copies)


def _stacked(metric: Metric) -> Metric:
    return jax.tree.map(lambda x: jax.lax.expand_dims(jnp.asarray(x), (0,)), metric)


def _divisible(metric: Metric, args: Any, kwargs: Any, devices: int) -> tuple[Any, dict[str, Any]]:
    """The arguments of one update with leading axes that divide by the devices."""
    name = type(metric).__name__
    args, kwargs = jax.tree.map(jnp.asarray, (args, dict(kwargs)))
    weights = kwargs.pop("weights", None)
    data = jax.tree.leaves((args, kwargs))
    sizes = {x.shape[0] if x.ndim else None for x in data}
    if len(sizes) > 1:
        raise MetricInputError(
            f"per_device({name}).update: expected arrays that share one leading axis, to split "
            f"over the devices; got shapes {', '.join(str(x.shape) for x in data)}"
        )
    size = sizes.pop() if sizes else None
    if size is None:  # no dimensions: a batch of one
        args, kwargs = jax.tree.map(lambda x: x[None], (args, kwargs))
        weights, size = weights if weights is None else weights[None], 1
    elif weights is not None and weights.ndim == 0:
        weights = jnp.broadcast_to(weights, (size,))
    missing = -size % devices
    if missing:
        if not any(argument == "weights" for argument, _ in arguments(metric)):
            raise MetricInputError(
                f"per_device({name}).update: {size} rows do not divide by {devices} devices, and "
                f"{name}.update takes no weights with which to pad them; pad or split the batch, "
                f"or give update a weights= argument"
            )
        if weights is None:
            weights = jnp.ones((size,), jnp.bool_)
        args, kwargs, weights = jax.tree.map(
            lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)), (args, kwargs, weights)
        )
    return args, kwargs if weights is None else kwargs | {"weights": weights}
