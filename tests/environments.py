"""The environments in which the documentation promises that every metric works: one table.

An environment takes metrics in one collection and the batches of their updates. It folds all
batches, and returns what users read there: what `compute` gives, and what `results` gives. A new
environment is a function, and a line in `ENVIRONMENTS`.
"""

import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
import datarax.io
from datarax.algebra.pytrees import MeshNode
from datarax.distributed import global_batch
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import make_mesh, place, x64

Read = dict[str, Any]
"""The values by the name of the method that gave them: "compute", "results", or both."""


@dataclass(frozen=True)
class Members:
    """Metrics, and what they are updated with.

    Attributes:
        make: makes the metric without data, for example a collection.
        batches: the keyword arguments of several updates, of equal shapes.
        rows: whether all arrays share a leading axis of examples.
        counted: of metrics of strings, those of what is counted of the strings: arrays.
    """

    make: Callable[[], datarax.Metric]
    batches: list[dict[str, Any]]
    rows: bool = True
    counted: "Members | None" = None

    @property
    def traceable(self) -> "Members":
        """The metrics whose updates can be traced."""
        return self.counted or self

    def on_mesh(self, mesh: Mesh) -> list[Any]:
        """The batches, sharded over the axis "data" of a mesh."""
        return place(self.batches, mesh, P("data") if self.rows else P())


Environment = Callable[[Members], Read]


def read(metric: datarax.Metric) -> Read:
    return {"compute": metric.compute(), "results": metric.results()}


def fold(metric: datarax.Metric, batch: dict[str, Any]) -> datarax.Metric:
    return metric.update(**batch)


step = jax.jit(fold, donate_argnums=0)


def stepped(metric: datarax.Metric, batches: list[Any]) -> datarax.Metric:
    """A training loop. It waits for each step, because simulated devices deadlock otherwise."""
    for batch in batches:
        metric = jax.block_until_ready(step(metric, batch))
    return metric


# The environments.


def outside_jit(members: Members) -> Read:
    metric = members.make()
    for batch in members.batches:
        metric = metric.update(**batch)
    return read(metric)


def in_jit(members: Members) -> Read:
    members = members.traceable
    metric = stepped(members.make(), members.batches)
    return {"compute": jax.jit(lambda metric: metric.compute())(metric)}


def without_float64(members: Members) -> Read:
    """The programs of a TPU, on a CPU."""
    members = members.traceable
    with datarax.lowering_for("tpu"):
        metric = stepped(members.make(), members.batches)
        merged, value = jax.jit(merged_and_read)(metric, members.make())
    return {"compute": value, "results": merged.results()}


def merged_and_read(metric: datarax.Metric, other: datarax.Metric) -> Any:
    merged = metric.merge(other)
    return merged, merged.compute()


def in_scan(members: Members) -> Read:
    members = members.traceable
    return read(jax.jit(scanned)(members.make(), stack(members.batches)))


def scanned(metric: datarax.Metric, batches: Any) -> datarax.Metric:
    return lax.scan(lambda state, batch: (fold(state, batch), None), metric, batches)[0]


def in_vmap(members: Members) -> Read:
    """Two states at once: one gets the batches in their order, the other in the reverse order."""
    members = members.traceable
    batches, updated = members.batches, jax.jit(jax.vmap(fold))
    states = stack([members.make()] * 2)
    for both in zip(batches, reversed(batches), strict=True):
        states = updated(states, stack(both))
    return read(jax.tree.map(lambda x: x[0], states))


# Only traced: what JAX refuses in an environment it refuses here, and nothing is compiled.


def traced_in_jit(members: Members) -> Read:
    members = members.traceable
    jax.eval_shape(folded_and_read, members.make(), members.batches[:2])
    return {}


def folded_and_read(metric: datarax.Metric, batches: list[Any]) -> Any:
    """A second update finds the state where the first left it."""
    for batch in batches:
        metric = fold(metric, batch)
    metric = metric.sync() if isinstance(metric, MeshNode) else metric
    return metric, metric.compute()


def traced_sharded(kind: str, members: Members) -> Read:
    members = placed(members.traceable, kind)
    batches = members.on_mesh(mesh_of(kind))[:2]
    jax.eval_shape(folded_and_read, members.make(), batches)
    return {}


def traced_per_device(kind: str, members: Members) -> Read:
    mesh = mesh_of(kind)
    copies = datarax.per_device(members.traceable.make(), mesh, "data")
    jax.eval_shape(folded_and_read, copies, members.traceable.on_mesh(mesh)[:2])
    return {}


def traced_with_x64(members: Members) -> Read:
    with x64():
        return traced_in_jit(members)


def lowered_for_export(members: Members) -> Read:
    members = members.traceable
    program, leaves, flat, _ = flat_update(members)
    jax.export.export(program)(leaves, flat[0])
    return {}


def traced_in_scan_and_vmap(members: Members) -> Read:
    """A mesh that is set changes the types of arrays, and not what is computed."""
    members = members.traceable
    metric, batches = members.make(), stack(members.batches)
    jax.eval_shape(scanned, metric, batches)
    jax.eval_shape(jax.vmap(fold), stack([metric] * len(members.batches)), batches)
    return {}


# In a function that is differentiated, where the metric is returned beside the loss.


def differentiated(members: Members) -> Read:
    members = members.traceable
    return read(trained(members.make(), members.batches))


def differentiated_per_device(members: Members) -> Read:
    members, mesh = members.traceable, mesh_of("auto")
    copies = datarax.per_device(members.make(), mesh, "data")
    return {"results": trained(copies, members.on_mesh(mesh)).results()}


def trained(metric: datarax.Metric, batches: list[Any]) -> datarax.Metric:
    for batch in batches:
        metric = jax.block_until_ready(train(np.float32(1), metric, batch))
    return metric


@jax.jit
def train(w: Any, metric: datarax.Metric, batch: Any) -> datarax.Metric:
    """The metric after a step that takes the gradient of `with_update`."""
    return jax.value_and_grad(with_update, has_aux=True)(w, metric, batch)[0][1]


def with_update(w: Any, metric: datarax.Metric, batch: Any, update: Any = fold) -> Any:
    """A loss, and the metric updated with numbers that depend on the parameter `w`, which is 1."""
    batch = depending_on(w, batch)
    return loss_of(batch) + w, update(metric, batch)


def depending_on(w: Any, batch: Any) -> Any:
    def times_w(x: Any) -> Any:
        return x * w.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(times_w, jax.tree.map(jnp.asarray, batch))


def loss_of(batch: Any) -> Any:
    floats = [x for x in jax.tree.leaves(batch) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum((jnp.sum(jnp.where(jnp.isfinite(x), x, 0)) for x in floats), jnp.float32(0))


def scan_of_checkpoints(w: Any, metric: datarax.Metric, batches: Any) -> Any:
    """Gradient accumulation: each step is an inner `jit` in a `jax.checkpoint` in a `scan`."""

    @jax.checkpoint
    @jax.jit
    def each(w: Any, metric: datarax.Metric, batch: Any) -> Any:
        return with_update(w, metric, batch)

    def step(carry: Any, batch: Any) -> Any:
        total, metric = carry
        loss, metric = each(w, metric, batch)
        return (total + loss, metric), None

    return lax.scan(step, (jnp.float32(0), metric), batches)[0]


def in_differentiated_scan(members: Members) -> Read:
    members = members.traceable
    gradient = jax.jit(jax.value_and_grad(scan_of_checkpoints, has_aux=True))
    return read(gradient(np.float32(1), members.make(), stack(members.batches))[0][1])


def traced_derivatives(members: Members) -> Read:
    """Derivatives of each kind, of a loss and of the state itself, and of the second order."""
    members = members.traceable
    metric, batch = members.make(), members.batches[0]
    plain = partial(with_update, metric=metric, batch=batch)
    inner = partial(plain, update=jax.jit(fold))

    def derivatives(w: Any) -> Any:
        first = jax.value_and_grad(inner, has_aux=True)(w)[0][1]
        # jax 0.8 differentiates no `while_loop` twice.
        twice = jax.__version_info__ >= (0, 9)
        second = jax.hessian(plain, has_aux=True)(w)[1] if twice else ()
        return first, second, jax.jvp(inner, (w,), (w,))[0], jax.linearize(plain, w)[0]

    jax.eval_shape(derivatives, jnp.float32(1))
    accumulated = jax.value_and_grad(scan_of_checkpoints, has_aux=True)
    jax.eval_shape(accumulated, jnp.float32(1), metric, stack(members.batches))
    return {}


def traced_in_shard_map(kind: str, members: Members) -> Read:
    """The gradient is taken within `shard_map`, whose check of what varies is on."""
    members, mesh = members.traceable, mesh_of(kind)
    batch = members.on_mesh(mesh)[0]
    specs = jax.tree.map(lambda x: x.sharding.spec, batch)

    def local(w: Any, metric: datarax.Metric, batch: Any) -> Any:
        (_, metric), _ = jax.value_and_grad(with_update, has_aux=True)(w, metric, batch)
        return metric.sync("data")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), specs), out_specs=P())
    jax.eval_shape(mapped, jnp.float32(1), members.make(), batch)
    return {}


def traced_differentiated_per_device(kind: str, members: Members) -> Read:
    members, mesh = members.traceable, mesh_of(kind)
    copies = datarax.per_device(members.make(), mesh, "data")
    jax.eval_shape(train, jnp.float32(1), copies, members.on_mesh(mesh)[0])
    return {}


def stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *xs: np.stack(xs), *trees)


def sharded(kind: str, members: Members) -> Read:
    """Global arrays, in a step that is partitioned by the compiler."""
    members, mesh = placed(members.traceable, kind), mesh_of(kind)
    return read(stepped(members.make(), members.on_mesh(mesh)))


def placed(members: Members, kind: str) -> Members:
    """The empty metric is on the mesh. With one from the host, the second step is compiled too."""
    on_all = NamedSharding(mesh_of(kind), P())
    return replace(members, make=lambda: jax.device_put(members.make(), on_all))


def per_device(kind: str, members: Members) -> Read:
    members = members.traceable
    mesh = mesh_of(kind)
    copies = datarax.per_device(members.make(), mesh, "data")
    copies = stepped(copies, members.on_mesh(mesh))
    return {"compute": copies.sync().compute(), "results": copies.results()}


def gathered(members: Members) -> Read:
    """Inside `shard_map`, each device gathers the rows of all, of every other batch, and updates
    with all of them."""
    splits_rows = members.rows and members.counted is None  # strings are counted for a whole batch
    members, mesh = members.traceable, mesh_of("auto")

    def spec(x: Any) -> P:
        return P("data") if np.ndim(x) and len(x) % 8 == 0 else P()

    def all_rows(metric: datarax.Metric, batches: list[Any]) -> datarax.Metric:
        for i, (batch, specs) in enumerate(zip(batches, splits, strict=True)):
            if i % 2 == 0 or not splits_rows or not all(jax.tree.leaves(specs)):
                batch = jax.tree.map(
                    lambda x, s: lax.all_gather(x, "data", tiled=True) if s else x, batch, specs
                )
            metric = fold(metric, batch)
        return metric.sync("data")

    metric = members.make()
    for batches in (members.batches[:1], members.batches[1:]):
        splits = jax.tree.map(lambda x: bool(spec(x)), batches)
        specs = P(), jax.tree.map(spec, batches)
        mapped = jax.jit(jax.shard_map(all_rows, mesh=mesh, in_specs=specs, out_specs=P()))
        metric = jax.block_until_ready(mapped(metric, batches))
    return read(metric)


def collected(members: Members) -> Read:
    """Two windows, of which the first is empty, read while the collector is bound."""
    members = members.traceable
    metric = members.make()
    with datarax.AsyncMetricCollector(metric) as collector:
        metric = collector.schedule_collection(metric)
        metric = stepped(metric, members.batches)
        collector.schedule_collection(metric)
        collector.collect_results()
        return {"results": collector.collect_results()}


def collected_per_device(members: Members) -> Read:
    """A window that is read when the collector is not bound any more."""
    members = members.traceable
    mesh = mesh_of("auto")
    copies = datarax.per_device(members.make(), mesh, "data")
    with datarax.AsyncMetricCollector(copies) as collector:
        collector.schedule_collection(stepped(copies, members.on_mesh(mesh)))
    return {"results": collector.collect_results()}


def in_nnx_jit(members: Members) -> Read:
    members = members.traceable
    stateful = StatefulMetric(members.make())

    @nnx.jit
    def train(stateful: StatefulMetric, batch: Any) -> None:
        stateful.update(**batch)

    for batch in members.batches:
        train(stateful, batch)
    return {"compute": stateful.compute(), "results": stateful.results()}


def in_two_processes(members: Members) -> Read:
    """A collector on two processes, each of which has half of the rows of each batch."""
    members = members.traceable
    metric, batches = members.make(), members.batches
    datarax.per_device(metric, mesh_of("auto", 1), "data")  # what is refused is refused here too
    first, second = PAIR.results_of(collected_jointly, metric, batches, members.rows)
    assert repr(first) == repr(second)
    return {"results": first}


@dataclass
class Pair:
    """Two processes, which stay for the next metrics: they import the registry only once."""

    group: processes.Group | None = None

    def results_of(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        if self.group is None:
            self.group = processes.Group(function, 2, *args)
        else:
            self.group.again(function, *args)
        try:
            return self.group.results()
        except processes.ProcessFailure:
            self.close()
            raise

    def close(self) -> None:
        if self.group is not None:
            self.group.close()
        self.group = None


PAIR = Pair()


def collected_jointly(metric: datarax.Metric, batches: list[Any], rows: bool) -> Any:
    mesh = make_mesh("auto", {"data": jax.process_count()})

    def joined(batch: Any) -> Any:
        if not rows:
            return place(batch, mesh, P())
        own = jax.tree.map(lambda x: np.split(x, 2)[jax.process_index()], batch)
        return global_batch(own, mesh, "data")[0]

    copies = datarax.per_device(metric, mesh, "data")
    with datarax.AsyncMetricCollector(copies, timeout=100) as collector:
        collector.schedule_collection(stepped(copies, list(map(joined, batches))))
        return collector.collect_results()


def with_x64(members: Members) -> Read:
    members = members.traceable
    with x64():
        return read(stepped(members.make(), members.batches))


def restored_elsewhere(members: Members) -> Read:
    """A checkpoint of eight devices, restored on one of them in the middle of the data."""
    members = members.traceable
    mesh = mesh_of("auto")
    copies = datarax.per_device(members.make(), mesh, "data")
    copies = stepped(copies, members.on_mesh(mesh)[:1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        datarax.io.save(path, copies)
        metric = datarax.io.restore(path, like=members.make())
    return {"results": stepped(metric, members.batches[1:]).results()}


def through_flax(members: Members) -> Read:
    """The state goes through `flax.serialization` in the middle of the data."""
    metric = members.make()
    first, *rest = members.batches
    data = flax.serialization.to_bytes(metric.update(**first))
    metric = flax.serialization.from_bytes(metric, data)
    return outside_jit(Members(lambda: metric, rest))


def through_pickle(members: Members) -> Read:
    """The metric is pickled in the middle of the data."""
    first, *rest = members.batches
    metric = pickle.loads(pickle.dumps(members.make().update(**first)))
    return outside_jit(Members(lambda: metric, rest))


def with_debug_nans(members: Members) -> Read:
    """Updates under `jax_debug_nans`; and reading, if no result is NaN by the definition."""
    metric = members.make()
    with jax.debug_nans(True):
        for batch in members.batches:
            metric = metric.update(**batch)
    values = read(metric)
    if not any(np.isnan(x).any() for x in jax.tree.leaves(values["compute"])):
        with jax.debug_nans(True):
            return read(metric)
    return values


def exported(members: Members) -> Read:
    """A step that is exported, and called from what was exported."""
    update, leaves, flat, structure = flat_update(members.traceable)
    program = jax.jit(jax.export.export(update)(leaves, flat[0]).call)
    for batch in flat:
        leaves = program(leaves, batch)
    return read(structure.unflatten(leaves))


def flat_update(members: Members) -> tuple[Any, list[Any], list[list[Any]], Any]:
    """An update of plain containers, as only these can be exported; and its arguments."""
    batches = members.batches
    leaves, structure = jax.tree.flatten(members.make())
    flat, given = [jax.tree.leaves(batch) for batch in batches], jax.tree.structure(batches[0])

    @jax.jit
    def update(leaves: list[Any], batch: Any) -> list[Any]:
        return jax.tree.leaves(fold(structure.unflatten(leaves), given.unflatten(batch)))

    return update, leaves, flat, structure


def inside_set_mesh(environment: Environment, kind: str, on_mesh: bool = False) -> Environment:
    def inside(members: Members) -> Read:
        with jax.set_mesh(mesh_of(kind)):
            return environment(placed(members.traceable, kind) if on_mesh else members)

    return inside


def mesh_of(kind: str, devices: int = 8) -> Mesh:
    types = make_mesh(kind, {"data": 1}).axis_types
    return jax.make_mesh((devices,), ("data",), types, devices=jax.devices()[:devices])


ENVIRONMENTS: Mapping[str, Environment] = {
    "outside jit": outside_jit,
    "jit": in_jit,
    "jit, without float64": without_float64,
    "scan": in_scan,
    "vmap": in_vmap,
    "global arrays, Auto": partial(sharded, "auto"),
    "global arrays, Explicit": partial(sharded, "explicit"),
    "per_device, Auto": partial(per_device, "auto"),
    "per_device, Explicit": partial(per_device, "explicit"),
    "shard_map, gathered rows": gathered,
    "collector": collected,
    "collector of per_device, after its block": collected_per_device,
    "nnx.jit": in_nnx_jit,
    "differentiated": differentiated,
    "differentiated scan of checkpoints": in_differentiated_scan,
    "differentiated per_device": differentiated_per_device,
    "two processes": in_two_processes,
    "x64": with_x64,
    "checkpoint, 8 devices to 1": restored_elsewhere,
    "flax.serialization": through_flax,
    "pickle": through_pickle,
    "jax_debug_nans": with_debug_nans,
    "jax.export": exported,
    "set_mesh, outside jit": inside_set_mesh(outside_jit, "auto"),
    "set_mesh, jit": inside_set_mesh(in_jit, "auto", on_mesh=True),
    "set_mesh, collector": inside_set_mesh(collected, "auto", on_mesh=True),
    "set_mesh, scan and vmap, Auto": inside_set_mesh(traced_in_scan_and_vmap, "auto"),
    "set_mesh, scan and vmap, Explicit": inside_set_mesh(traced_in_scan_and_vmap, "explicit"),
    "set_mesh, global arrays, Auto": inside_set_mesh(partial(sharded, "auto"), "auto"),
    "set_mesh, global arrays, Explicit": inside_set_mesh(partial(sharded, "explicit"), "explicit"),
    "set_mesh, per_device, Auto": inside_set_mesh(partial(per_device, "auto"), "auto"),
    "set_mesh, per_device, Explicit": inside_set_mesh(partial(per_device, "explicit"), "explicit"),
}

OF_OPERATIONS = (
    "outside jit",
    "jit, without float64",
    "traced, derivatives",
    "traced, derivatives in shard_map, Auto",
    "jax_debug_nans",
    "global arrays, Auto",
    "set_mesh, outside jit",
    "set_mesh, scan and vmap, Explicit",
    *(f"traced, {name}" for name in ("x64", "per_device, Explicit", "jax.export")),
    *(f"traced, set_mesh, {name}" for name in ("global arrays, Explicit", "per_device, Auto")),
)
"""Where every operation runs whose values may differ there, or is traced, as JAX may refuse it.

The laws of programs compare `jit`, `scan`, `vmap` and `per_device` for all operations.
"""

OF_STATES = (
    "differentiated scan of checkpoints",
    "differentiated per_device",
    "set_mesh, global arrays, Auto",
    "set_mesh, per_device, Explicit",
    "shard_map, gathered rows",
    "collector",
    "nnx.jit",
    "two processes",
    "x64",
    "checkpoint, 8 devices to 1",
    "flax.serialization",
    "pickle",
)
"""Where every state runs, beside those of operations, whose cases hold the states too."""

OF_WRAPPERS = (
    "outside jit",
    "differentiated",
    "traced, derivatives",
    "traced, derivatives in shard_map, Auto",
    "traced, differentiated per_device, Explicit",
    "jit",
    "scan",
    "global arrays, Explicit",
    "per_device, Auto",
    "collector",
    "collector of per_device, after its block",
    "x64",
    "checkpoint, 8 devices to 1",
    "flax.serialization",
    "pickle",
    "jax_debug_nans",
    "set_mesh, outside jit",
    "set_mesh, scan and vmap, Explicit",
    *(f"traced, {name}" for name in ("jax.export", "set_mesh, jit")),
    *(f"traced, set_mesh, {name}, Explicit" for name in ("global arrays", "per_device")),
)
"""Where all wrappers run.

Global arrays or `per_device`, `Auto` or `Explicit` axes, a mesh that is set or none: each pair of
these occurs where operations, states or wrappers run.
"""

TRACED: Mapping[str, Environment] = {
    "traced, jax.export": lowered_for_export,
    "traced, x64": traced_with_x64,
    "traced, derivatives": traced_derivatives,
    "traced, derivatives in shard_map, Auto": partial(traced_in_shard_map, "auto"),
    "traced, derivatives in shard_map, Explicit": partial(traced_in_shard_map, "explicit"),
    "traced, differentiated per_device, Explicit": partial(
        traced_differentiated_per_device, "explicit"
    ),
    "traced, per_device, Explicit": partial(traced_per_device, "explicit"),
    "traced, set_mesh, jit": inside_set_mesh(traced_in_jit, "auto", on_mesh=True),
    **{
        f"traced, set_mesh, {name}, {kind.title()}": inside_set_mesh(partial(run, kind), kind)
        for name, run in {"global arrays": traced_sharded, "per_device": traced_per_device}.items()
        for kind in ("auto", "explicit")
    },
}
"""The environments that may refuse an operation: for all that are not compiled there.

`test_explicit_axes.py` traces every metric on global arrays without a mesh that is set.
"""
