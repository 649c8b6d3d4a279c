"""A metric with one copy of its state on each device, so that updates do not communicate."""

import math
from collections.abc import Callable, Iterator
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax._checks import kind
from datarax._errors import (
    DataraxError,
    MetricInputError,
    MetricTypeError,
    NotAddressableError,
    TracedValueError,
)
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced, lax
from datarax.algebra.devices import counted_once, merge_copies
from datarax.algebra.fields import state
from datarax.algebra.pytrees import MeshNode, map_leaf_states
from datarax.algebra.saving import Parts, require_arrays, requiring_arrays
from datarax.algebra.state import is_untouched, walk
from datarax.distributed.collectives import AxisName
from datarax.distributed.collectives import axis_names as axis_names_of
from datarax.distributed.placement import (
    explicit_axes,
    full_spec,
    is_same_everywhere,
    outside_mesh,
    sharded,
)
from datarax.metric.arguments import (
    is_call,
)
from datarax.metric.base import Metric, placed_as, read
from datarax.metric.reading import Reading
from datarax.wrappers.best import Best
from datarax.wrappers.collection import Collection, NamedMetrics
from datarax.wrappers.device_batches import split_calls
from datarax.wrappers.wrapper import Wrapper, holds_copies


def per_device(metric: Metric, mesh: Mesh, axis_names: AxisName) -> "PerDevice":
    """A metric with one copy of its state on each device along `axis_names` of `mesh`.

    `update` takes global arrays whose leading axis is sharded over those axes. Each device updates
    its copy with its own rows, without a collective over those axes. `sync` merges the copies; if
    the state is small, it needs one collective. The metric works under `jax.jit`, `nnx.jit` and
    `lax.scan`, on meshes with `Auto` and `Explicit` axes, and its state may be donated.

    The arrays may also be sharded over other axes of the mesh, for example logits over a tensor
    axis. A metric needs whole rows, so the update then communicates over those other axes. On
    `Auto` axes the compiler chooses how (for a mean, it adds partial sums); on `Explicit` axes the
    rows are gathered.

    Arrays with another layout (NumPy arrays, arrays on one device, replicated, or sharded over
    another mesh) are first moved to the devices. On several processes, arrays must be global, as
    `datarax.distributed.global_batch` makes them. Other arrays raise an error, but not under
    `jax.jit`: there JAX takes such an argument to be the same on every process.

    A metric that has copies on another mesh moves: its copies are merged, and what they hold counts
    once on the new mesh, which may have fewer or more devices, other axes or other names. A window
    that a collector has scheduled stays as it was, and the next one may be on the new mesh. On the
    same mesh and axes, the metric is returned as it is. On several processes, all must call it, and
    the copies are merged by one `sync` on the old mesh.

    Args:
        metric: any metric. Data that it has accumulated already is kept and counts once.
        mesh: a `jax.sharding.Mesh`.
        axis_names: an axis of the mesh, or a tuple of axes.

    Raises:
        MetricTypeError: `metric` is not a metric, or holds one with copies for each device; `mesh`
            is not a mesh; or a metric with copies is to move while a function is traced.
        MetricInputError: the mesh does not have an axis of `axis_names`.
        DonatedStateError: a step donated the arrays of a metric that is to move.
        NotAddressableError: there are several processes, and they hold different states; or the
            copies on the old mesh cannot be read, because a device or a process is gone, or because
            a process of the new mesh has no device of the old one.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> mean = datarax.per_device(datarax.metrics.Mean(), mesh, "data")
        >>> mean = mean.update(jnp.arange(16.0))
        >>> print(mean.compute())
        7.5
        >>> fewer = jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1])
        >>> print(datarax.per_device(mean, fewer, "rows").update(jnp.array([16.0])).compute())
        8.0
    """
    where = mesh, axis_names_of(axis_names)
    if isinstance(metric, PerDevice) and (metric.mesh, metric.axis_names) == where:
        return metric
    return PerDevice(metric, mesh, axis_names)


class PerDevice(NamedMetrics["PerDevice"], MeshNode, Wrapper):
    """The metric that `per_device` returns; see there.

    If the metric is a `Collection`, `[name]`, `keys()`, `values()`, `items()`, `in` and
    iteration give its metrics, each with one copy a device.

    Args:
        metric: any metric. Data that it has accumulated already is kept and counts once.
        mesh: a `jax.sharding.Mesh`.
        axis_names: an axis of the mesh, or a tuple of axes.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> loss = datarax.per_device(datarax.metrics.Mean(), mesh, "data")
        >>> print(type(loss).__name__, loss.update(jnp.arange(16.0)).results())
        PerDevice 7.5
    """

    hidden_names = frozenset({"copies", "merged"})
    copies: Metric = state()
    """The metric; each of its arrays has a leading axis of devices."""

    @outside_mesh
    def __init__(self, metric: Metric, mesh: Mesh, axis_names: AxisName):
        if not isinstance(metric, Metric):
            raise MetricTypeError(f"per_device expects a plain datarax.Metric; got {kind(metric)}")
        moves = isinstance(metric, PerDevice)
        if holds_copies(metric.copies if moves else metric):
            raise MetricTypeError(
                f"per_device expects a datarax.Metric without copies for each device, or a "
                f"per_device metric, which moves to the mesh; got a {type(metric).__name__} that "
                f"holds one. Make it of metrics without copies, or move each of those it holds"
            )
        for each in walk(metric):
            # Its update reads the value, and the best of parts of the data is not the best of the
            # data.
            if isinstance(each, Best):
                name = type(each).__name__
                raise MetricTypeError(
                    f"per_device: {name} reads the value of all data in each update, and a copy on "
                    f"one device has only its own rows. Update the {name} with global arrays, "
                    f"without per_device"
                )
        if not isinstance(mesh, Mesh):
            raise MetricTypeError(f"per_device expects a jax.sharding.Mesh; got {kind(mesh)}")
        names = axis_names_of(axis_names)
        for name in names:
            if name not in mesh.axis_names:
                raise MetricInputError(
                    f"per_device: the mesh has no axis {name!r}; it has: "
                    f"{', '.join(map(repr, mesh.axis_names))}"
                )
        if not names or len(set(names)) < len(names):
            raise MetricInputError(f"per_device: axis_names={names}; expected distinct names")
        require_arrays(metric)
        self.mesh: Mesh = mesh
        self.axis_names: tuple[str, ...] = names
        # Data of the old mesh counts once, so it is merged and starts on one device.
        if moves:
            metric = metric._leaving_for(mesh)
        self.copies = self._replicate(metric)

    @property
    def metric(self) -> Metric:  # type: ignore[override]
        """The copies, as one metric."""
        return self.copies

    def with_metric(self, metric: Metric) -> Self:
        return self.with_parts({"copies": metric})

    @property
    def _name(self) -> str:
        """The metric, as an error names it."""
        return f"per_device({type(self.copies).__name__})"

    def __getitem__(self, name: str) -> Self:
        return self.with_metric(self._collection()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._collection())

    def items(self) -> list[tuple[str, Self]]:
        """Pairs of name and metric, sorted by name."""
        return [(name, self[name]) for name in self]

    def replace(self, /, **changes: PyTree) -> Self:
        """The metric with these fields changed, as by its own `replace`: `on_invalid` for example.

        Raises:
            MetricInputError: the metric is a collection: replace a member before `per_device`.
        """
        if isinstance(self.copies, Collection):
            raise MetricInputError(
                "per_device(Collection).replace: replace the members of a collection first, and "
                "call per_device on the result"
            )
        return self.with_metric(self.copies.replace(**changes))

    def _collection(self) -> Collection:
        if not isinstance(self.copies, Collection):
            raise MetricTypeError(f"{self._name} is not a collection, and has no metrics by name")
        return self.copies

    def _leaving_for(self, mesh: Mesh) -> Metric:
        """The copies merged, on the host, to be placed on another mesh."""
        if is_traced(self):
            raise TracedValueError(
                f"{self._name}: a metric moves to another mesh outside of traced functions (jit, "
                f"scan): call per_device between two steps"
            )
        here, there = _processes_of(self.mesh), _processes_of(mesh)
        restored = (
            "restore a checkpoint on the new mesh: datarax.io.restore(path, "
            "like=datarax.per_device(<the metric without data>, mesh, axis_names))"
        )
        # They could not take part in the `sync` on the old mesh, and would wait for ever.
        if new := sorted({*there} - {*here}):
            raise NotAddressableError(
                f"{self._name}: the copies are on devices of the processes {here}, and the new "
                f"mesh also has devices of {new}, which do not hold them; save the metric with "
                f"datarax.io.save, and {restored}"
            )
        try:
            return fetched(self.merge_copies())
        except DataraxError:
            raise
        except (RuntimeError, ValueError) as error:  # of the runtime; on CPU, a ValueError
            raise NotAddressableError(
                f"{self._name}: the copies on the old mesh cannot be read: {error}. If a device or "
                f"a process is gone, {restored}"
            ) from error

    @property
    def device_count(self) -> int:
        """The number of copies: one for each device along the axes."""
        return math.prod(self.mesh.shape[name] for name in self.axis_names)

    def update(self, *args: PyTree, **kwargs: PyTree) -> Self:
        """A new metric in which each device has updated its copy with its shard of a batch.

        If the number of rows is not divisible by the number of devices, the batch is padded with
        rows of weight zero. Zero-dimensional arrays are a batch of one row, which is padded too.
        Padding requires that the metric's `update` takes `weights`.

        Args:
            *args: the arguments of the metric's own `update`: global arrays whose leading axis is
                sharded over the devices. But a metric of whole trees, `TreeHealth`, takes them as
                they are: they are not split, nor gathered, and count once.
            **kwargs: the keyword arguments of the metric's own `update`.

        Raises:
            MetricInputError: the leading axes differ; a batch needs padding and the metric's
                `update` takes no weights; an integer does not fit 32 bits, without x64; or, outside
                `jit`, documents of one query are on several devices.
            NotAddressableError: there are several processes, and only this process holds an array.
        """

        return self.apply(self.calls(args, kwargs))

    def apply(self, calls: PyTree) -> Self:
        # Before the program: padding depends on shapes, and values of `query=` are only known here.
        calls = split_calls(calls, self.mesh, self.axis_names, self.device_count)
        try:
            return self.with_metric(_update(self, calls))
        except MetricInputError:
            # The message has the shapes on one device. Trace the update again with the global
            # shapes, which the caller knows, so that the error is raised with those.
            jax.eval_shape(
                lambda copies, calls: _first(copies).apply(calls),
                *jax.tree.map(
                    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (self.copies, calls)
                ),
            )
            raise

    @outside_mesh
    @requiring_arrays
    def sync(self, axis_name: AxisName | None = None) -> Metric:
        """The copies merged into a plain, replicated metric; one collective if they are small."""
        if axis_name is not None:
            raise MetricInputError(
                f"per_device(...).sync() takes no axis name, because the metric has its own mesh; "
                f"got {axis_name!r}"
            )
        return _synced(self)

    def merge(self, other: Self) -> Self:  # type: ignore[override]
        """The metric as if it had seen the data of both; on the mesh and axes of this one.

        One that has its copies on another mesh moves first, as by `per_device`.

        Raises:
            ConfigurationMismatchError: the two differ in class or configuration; names the field.
            MetricTypeError: it is to move while a function is traced.
        """
        if isinstance(other, PerDevice):
            moved: PyTree = per_device(other, self.mesh, self.axis_names)
            return super().merge(moved)
        return super().merge(other)

    def bounds(self) -> PyTree:
        """The bounds of the metric, as those of `sync()`.

        Raises:
            AttributeError: the metric has no bounds.
        """
        merged: PyTree = self.merge_copies()
        if isinstance(merged, Collection):
            return merged.bounds()
        if "" not in (reading := read(merged)).bounds:
            raise AttributeError(
                f"{type(merged).__name__} has no bounds(): its value is no estimate. Those "
                f"that have bounds are read from scores or values in bins, such as AUROC"
            )
        return placed_as(merged, reading.bounds[""].rounded_outward())

    def merge_copies(self) -> Metric:
        """The copies merged: on the host where this process can address them, else by `sync`.

        Raises:
            NotAddressableError: this process has no device of the mesh.
        """
        leaves = jax.tree.leaves(self.copies)
        if is_traced(leaves):
            return self.sync()
        if not all(map(is_addressable, leaves)):
            holders = _processes_of(self.mesh)
            if jax.process_index() not in holders:
                raise NotAddressableError(
                    f"{self._name}: this process has no device of the mesh, so it cannot read the "
                    f"metric; read it on the processes {holders}"
                )
            return self.sync()
        with np.errstate(all="ignore"):  # on devices, NaN and infinity give no warnings either
            # In the order of `sync`, so that both give the same bits, but for the rounding of float
            # sums.
            return merge_copies(fetched(self.copies), self.device_count)  # as on the devices

    def reading(self) -> Reading:
        return self.merge_copies().reading()

    @outside_mesh
    @requiring_arrays
    def invalid_count(self) -> jax.Array:
        return self.merge_copies().invalid_count()

    # It is saved as a plain metric, so that it can be restored on any number of devices.

    def saved(self) -> dict[str, PyTree]:
        """The same as `sync().saved()`. On several processes, all must call it."""
        return self.merge_copies().saved()

    def loaded(self, saved: PyTree, where: str, *, partial: bool = False) -> Self:
        # A plain metric is loaded and then replicated, so the layout when saving does not matter.
        empty = self._plain()
        # Errors name the class of the metric that was saved, which is the plain one.
        outermost = where == type(self).__name__
        name = type(empty).__name__ if outermost else where
        loaded = empty.loaded(saved, name, partial=partial)
        return self.with_metric(self._replicate(loaded))

    def _plain(self) -> Metric:
        """The empty metric without copies, on the host."""
        return _first(self.copies.emptied())

    # It is pickled as a plain metric, and the ids of the devices of the mesh.

    def __getstate__(self) -> Parts:
        if not all(map(is_addressable, jax.tree.leaves(self.copies))):
            raise NotAddressableError(
                f"{self._name}: this process holds only a part of the copies, so the metric cannot "
                f"be pickled; pickle its sync()"
            )
        mesh = self.mesh
        # Ids, because devices cannot be pickled.
        ids = np.vectorize(lambda device: device.id)(mesh.devices)
        on_mesh = ids, mesh.axis_names, mesh.axis_types
        return super().__getstate__() | {"copies": fetched(self.merge_copies()), "mesh": on_mesh}

    def __setstate__(self, attributes: Parts) -> None:
        ids, axis_names, axis_types = attributes["mesh"]
        ids = ids.astype(object)  # Python integers
        known = {device.id: device for device in jax.devices()}
        if not known.keys() >= set(ids.flat):
            raise MetricInputError(
                f"a per_device metric was pickled on the {ids.size} devices {sorted(ids.flat)}, "
                f"and this process has {len(known)}: pickle its sync(), which is a plain metric, "
                f"and call per_device on it here"
            )
        devices = np.vectorize(known.__getitem__, otypes=[object])(ids)
        plain: Metric = attributes["copies"]
        vars(self).update(attributes)
        vars(self)["mesh"] = Mesh(devices, axis_names, axis_types=axis_types)
        super().__setstate__({"copies": self._replicate(plain)})

    def combine(self, other: PyTree) -> Self:
        return self.with_metric(_combine(self, other))

    @outside_mesh
    def emptied(self) -> Self:
        """The empty metric, with its copies on the devices of its mesh."""
        if is_traced(self):
            return self.with_metric(_reset(self))
        # Put there, not computed there: a program would be compiled for each configuration.
        return self.with_metric(self._on_devices(self.copies.emptied()))

    def _on_devices(self, copies: Metric) -> Metric:
        """NumPy arrays, with a row for each device, on the devices; nothing is compiled."""

        def put(x: np.ndarray) -> jax.Array:
            spec = full_spec(self.mesh, x.ndim, self.axis_names)
            return sharded(x, NamedSharding(self.mesh, spec))

        return jax.tree.map(put, copies)

    def _mapped(
        self, function: Callable[..., PyTree], *, in_specs: PyTree = None, out_specs: PyTree = None
    ) -> Callable[..., PyTree]:
        """`shard_map` of `function`: each device calls it with its own shard of the arguments."""
        copies = P(self.axis_names)
        # The `Explicit` axes of the mesh are mapped too, because the arithmetic of most metrics
        # does not work on arrays that are typed as sharded over `Explicit` axes.
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=copies if in_specs is None else in_specs,
            out_specs=copies if out_specs is None else out_specs,
            axis_names={*self.axis_names, *explicit_axes(self.mesh)},
        )

    def _replicate(self, metric: Metric) -> Metric:
        """Copies for all devices: what `metric` holds is on the first only."""
        if not is_traced(metric):
            first = fetched(metric)
            # Empty ones are compared when they meet: that error says what differs.
            leaves = [] if is_untouched(metric) else jax.tree.leaves(first)
            held = (x.tobytes() for x in leaves)
            if not is_same_everywhere(held, self.mesh.devices.flatten().tolist()):
                raise NotAddressableError(
                    f"per_device({type(first).__name__}): the processes hold different states, of "
                    f"which only one would count; call per_device on an empty metric, and update "
                    f"it with global arrays (datarax.distributed.global_batch)"
                )
            empty = map_leaf_states(
                lambda leaves: [leaf.on_other_devices() for leaf in leaves], first
            )
            # On the host, where the states are known to be equal: one transfer, and no program.
            others = [empty] * (self.device_count - 1)
            return self._on_devices(jax.tree.map(lambda *x: np.stack(x), first, *others))

        def local(metric: Metric) -> Metric:
            return _stacked(counted_once(metric, self.axis_names))

        # Under a trace, values are unknown: devices other than the first are chosen by
        # `counted_once`, inside `shard_map`.
        metric = jax.device_put(metric, NamedSharding(self.mesh, P()))
        return jax.jit(self._mapped(local, in_specs=P()))(metric)


def _processes_of(mesh: Mesh) -> list[int]:
    """The processes that have devices of a mesh, sorted."""
    return sorted({device.process_index for device in mesh.devices.flat})


@jax.jit
def _update(metric: PerDevice, calls: PyTree) -> Metric:
    # An update of rows is local, without a collective. Calls that have no rows are on all devices.
    def local(copies: Metric, calls: PyTree) -> Metric:
        return _stacked(_own(copies).apply(calls))

    of_calls = jax.tree.map(
        lambda call: P(metric.axis_names) if call.rows else P(), calls, is_leaf=is_call
    )
    update = metric._mapped(local, in_specs=(P(metric.axis_names), of_calls))
    return update(metric.copies, calls)


@jax.jit
def _synced(metric: PerDevice) -> Metric:
    sync = metric._mapped(lambda copies: _own(copies).sync(metric.axis_names), out_specs=P())
    return sync(metric.copies)


@jax.jit
def _combine(a: PerDevice, b: PerDevice) -> Metric:
    return a._mapped(lambda x, y: _stacked(_own(x).combine(_own(y))))(a.copies, b.copies)


@jax.jit
def _reset(metric: PerDevice) -> Metric:
    return metric._mapped(lambda x: _stacked(_own(x).emptied()))(metric.copies)


# Of the copies, every array has a leading axis of devices, of size 1 on each device.


def _first(copies: Metric) -> Metric:
    """The copy of the first device."""
    return jax.tree.map(lambda x: x[0], copies)


def _own(copies: Metric) -> Metric:
    """The copy of this device, without the device axis."""
    return jax.tree.map(lambda x: lax.squeeze(x, (0,)), copies)


def _stacked(metric: Metric) -> Metric:
    """The copy of this device, with the device axis."""
    return jax.tree.map(lambda x: lax.expand_dims(jnp.asarray(x), (0,)), metric)
