"""A train step of a user is compiled once, however metrics are held: the table of the docs.

Three epochs, each of two batches and a short one, which is padded; after the second epoch the
metric is saved and restored. A last batch is shorter still. What is counted are the programs that
JAX lowers for the step, and the entries of the cache of its call.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax import MetricTypeError
from datarax.algebra.state import is_untouched
from datarax.metrics import Accuracy, ConfusionMatrix, Mean
from datarax.training import StatefulMetric
from tests.helpers import make_mesh, over_shards
from tests.registry import BUNDLES, GROUPS, of_each_statistic
from tests.registry.entries import WRAPPERS
from tests.test_layers import ROOT

ROWS, CLASSES = 16, 3
SIZES = ((16, 16, 7), (16, 16, 5), (16, 16, 9), (3,))
"""The examples of each batch: of three epochs, and of a last one after them."""
Epochs = Iterator[tuple[list[Any], Callable[[], None]]]


def make() -> datarax.Collection:
    return datarax.Collection(
        {
            "loss": Mean().from_outputs(values="loss"),
            "accuracy": Accuracy(num_classes=CLASSES),
            "matrix": ConfusionMatrix(num_classes=CLASSES),
        }
    )


def on_mesh(tree: Any, mesh: Any, *axes: str | None) -> Any:
    """Arrays on a mesh as a program returns them: on `Explicit` axes with their whole spec."""
    return jax.tree.map(
        lambda x: (
            jax.device_put(x, NamedSharding(mesh, P(*axes, *[None] * (np.ndim(x) - len(axes)))))
            if mesh.axis_types[0] is jax.sharding.AxisType.Explicit
            else jax.device_put(x, NamedSharding(mesh, P(*axes)))
        ),
        tree,
    )


def batches(sizes: tuple[int, ...], mesh: Any, micro: tuple[int, ...] = ()) -> list[Any]:
    """Batches of examples, padded to one size; on the mesh if there is one."""
    made = []
    for size in sizes:
        x = (np.arange(ROWS * 4).reshape(ROWS, 4) % 7).astype(np.float32)
        y, real = np.arange(ROWS, dtype=np.int32) % CLASSES, np.arange(ROWS) < size
        batch = jax.tree.map(lambda a: a.reshape(*micro, -1, *a.shape[1:]), (x, y, real))
        axes = (*[None] * len(micro), "data")
        made.append(batch if mesh is None else on_mesh(batch, mesh, *axes))
    return made


def outputs_of(logits: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    losses = -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, CLASSES), -1)
    return losses.mean(), {"loss": losses, "preds": logits, "target": y}


@jax.grad
def gradient(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return outputs_of(x @ params, y)[0]


def descended(params: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return params - 0.1 * gradient(params, x, y)


# The ways to hold metrics. Each makes what a step takes and returns, the step, and what an epoch
# ends with: the state of the next one, and a value that is read.


class Way:
    """A plain step `(params, metrics), batch -> (params, metrics)`, on a mesh or on the host."""

    mesh: Any
    micro: tuple[int, ...] = ()

    def __init__(self, hold: Callable[[Any], Any], mesh: Any):
        self.mesh = mesh
        params = np.zeros((4, CLASSES), np.float32)
        self.state: Any = params if mesh is None else on_mesh(params, mesh)
        self.metrics = hold(mesh)
        self.like = self.metrics
        self.called: Any = jax.jit(self.step, donate_argnums=1)

    @property
    def entries(self) -> int:
        return self.called._cache_size()

    def step(self, params: Any, metrics: Any, x: Any, y: Any, real: Any) -> Any:
        _, outputs = outputs_of(x @ params, y)
        return descended(params, x, y), metrics.update(**outputs, weights=real)

    def run(self, batch: Any) -> None:
        called = self.called(self.state, self.metrics, *batch)
        self.state, self.metrics = jax.block_until_ready(called)

    def results(self) -> Any:
        return self.metrics.results()

    def reset(self) -> None:
        self.metrics = self.metrics.reset()

    def restore(self) -> None:
        arrays, info = datarax.io.pack(self.metrics)
        self.metrics = datarax.io.unpack(arrays, info, like=self.metrics)


class Collected(Way):
    """A collector ends the epochs."""

    def __init__(self, hold: Callable[[Any], Any], mesh: Any):
        super().__init__(hold, mesh)
        self.collector = datarax.AsyncMetricCollector(self.metrics)

    def results(self) -> Any:
        with self.collector as collector:
            self.metrics = collector.schedule_collection(self.metrics)
            return collector.collect_results()

    def reset(self) -> None:
        pass


class Micro(Way):
    """A scan of micro-batches."""

    micro = (2,)

    def step(self, params: Any, metrics: Any, x: Any, y: Any, real: Any) -> Any:
        def one(carry: Any, batch: Any) -> Any:
            return super(Micro, self).step(*carry, *batch), None

        return jax.lax.scan(one, (params, metrics), (x, y, real))[0]


class Shards(Way):
    """`shard_map`, with a sync in each step."""

    def step(self, params: Any, metrics: Any, x: Any, y: Any, real: Any) -> Any:
        def local(params: Any, metrics: Any, x: Any, y: Any, real: Any) -> Any:
            _, outputs = outputs_of(x @ params, y)
            return metrics.update(**outputs, weights=real).sync("data")

        specs = (P(), P(), P("data"), P("data"), P("data"))
        mapped = over_shards(local, self.mesh, specs, P())
        return descended(params, x, y), mapped(params, metrics, x, y, real)


class State(train_state.TrainState):
    metrics: Any


class Linen(Way):
    """A field of the train state."""

    def __init__(self, hold: Callable[[Any], Any], mesh: Any):
        super().__init__(hold, mesh)
        params = {"kernel": np.zeros((4, CLASSES), np.float32), "bias": np.zeros(CLASSES, "f4")}
        net, tx = linen.Dense(CLASSES), optax.sgd(0.1, 0.9)
        state = State.create(apply_fn=net.apply, params=params, tx=tx, metrics=make())
        placed = on_mesh(state.replace(metrics=None, step=np.int32(0)), mesh)
        self.state = placed.replace(metrics=self.metrics)
        self.called = jax.jit(self.one_step, donate_argnums=0)

    def one_step(self, state: Any, x: Any, y: Any, real: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return outputs_of(state.apply_fn({"params": params}, x), y)

        grads, outputs = jax.grad(loss_of, has_aux=True)(state.params)
        metrics = state.metrics.update(**outputs, weights=real)
        return state.apply_gradients(grads=grads).replace(metrics=metrics)

    def run(self, batch: Any) -> None:
        self.state = jax.block_until_ready(self.called(self.state, *batch))

    def results(self) -> Any:
        return self.state.metrics.results()

    def reset(self) -> None:
        self.state = self.state.replace(metrics=self.state.metrics.reset())

    def restore(self) -> None:
        saved = flax.serialization.to_bytes(self.state)
        restored: Any = flax.serialization.from_bytes(self.state, saved)
        # Flax gives the parameters on the host: they are placed. The metrics are in place.
        old, new = (each.replace(metrics=None) for each in (self.state, restored))
        placed = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), new, old)
        self.state = placed.replace(metrics=restored.metrics)


class Stateful(Way):
    """A `StatefulMetric` under `nnx.jit`."""

    def __init__(self, hold: Callable[[Any], Any], mesh: Any):
        super().__init__(hold, mesh)
        self.model = nnx.Linear(4, CLASSES, rngs=nnx.Rngs(0))
        self.optimizer = nnx.Optimizer(self.model, optax.sgd(0.1), wrt=nnx.Param)
        for each in (self.model, self.optimizer):
            nnx.update(each, on_mesh(nnx.state(each), mesh))
        self.metric = StatefulMetric(self.metrics)
        self.called = nnx.jit(lambda *args: self.one_step(*args))

    @property
    def entries(self) -> int:
        return self.called.jitted_fn._cache_size()

    @staticmethod
    def one_step(model: Any, optimizer: Any, metric: Any, x: Any, y: Any, real: Any) -> None:
        grads, outputs = nnx.grad(lambda model: outputs_of(model(x), y), has_aux=True)(model)
        optimizer.update(model, grads)
        metric.update(**outputs, weights=real)

    def run(self, batch: Any) -> None:
        self.called(self.model, self.optimizer, self.metric, *batch)
        jax.block_until_ready(self.metric.metric)

    def results(self) -> Any:
        return self.metric.results()

    def reset(self) -> None:
        self.metric.reset()

    def restore(self) -> None:
        arrays, info = datarax.io.pack(self.metric.metric)
        self.metric.metric = datarax.io.unpack(arrays, info, like=self.metric.metric)


def on_host(_: Any) -> Any:
    return make()


def replicated(mesh: Any) -> Any:
    return datarax.replicate(make(), mesh)


def per_device(mesh: Any) -> Any:
    return datarax.per_device(make(), mesh, "data")


WAYS = {
    "plain, all on one device": (Way, on_host, ()),
    "plain, the other arguments on a mesh": (Way, on_host, ("auto",)),
    "`replicate`": (Way, replicated, ("auto", "explicit")),
    "`per_device`": (Way, per_device, ("auto", "explicit")),
    "`replicate`, a collector": (Collected, replicated, ("auto",)),
    "`per_device`, a collector": (Collected, per_device, ("explicit",)),
    "`replicate`, a scan of micro-batches": (Micro, replicated, ("explicit",)),
    "`replicate`, `shard_map` with `sync`": (Shards, replicated, ("explicit",)),
    "`replicate`, the train state of Flax Linen": (Linen, replicated, ("auto",)),
    "`per_device` in a `StatefulMetric`, `nnx.jit`": (Stateful, per_device, ("auto",)),
    "`replicate` in a `StatefulMetric`, `nnx.jit`": (Stateful, replicated, ("explicit",)),
}


def rows_of_the_table() -> dict[str, list[int]]:
    """The compilations that the page states: of each epoch, and of a short batch after them."""
    page = (ROOT / "docs" / "compilations.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (\d) \| (\d) \| (\d) \| (\d) \|$", page, re.MULTILINE)
    return {name: list(map(int, counts)) for name, *counts in rows}


@contextmanager
def lowered() -> Iterator[list[str]]:
    """The names of the functions that are lowered to programs, also if a cache has those."""
    names: list[str] = []

    def listen(event: str, _: float, **about: Any) -> None:
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, (*_, kinds) in WAYS.items() for kind in kinds or ("",)],
)
def test_the_table_of_compilations(name, kind):
    make_way, hold, _ = WAYS[name]
    mesh = make_mesh(kind, {"data": 8}) if kind else None
    way, programs = make_way(hold, mesh), []
    for epoch, sizes in enumerate(SIZES):
        given = batches(sizes, mesh, way.micro)
        with lowered() as names:
            for place, batch in enumerate(given):
                way.run(batch)
                if (epoch, place) == (1, 0):
                    way.restore()
            results = way.results()
            way.reset()
        assert results["matrix"].sum() == sum(sizes)
        programs.append(len(names))
    assert programs == rows_of_the_table()[name]
    if hold is not on_host:
        assert way.entries == 1


def test_the_table_has_each_way():
    assert list(rows_of_the_table()) == list(WAYS)


# A state stays where it is.

HELD = {name: BUNDLES[name] for name in of_each_statistic(GROUPS)} | {
    # The table has `per_device`.
    name: entry.metric()
    for name, entry in WRAPPERS.items()
    if not issubclass(type(entry.metric()), datarax.PerDevice)
}


def places(metric: Any) -> list[Any]:
    """Where each array is; of an array of the host, None."""
    return [
        (x.sharding, x.committed) if isinstance(x, jax.Array) else None
        for x in jax.tree.leaves(metric)
    ]


def assert_equal(got: Any, want: Any) -> None:
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_every_state_stays_where_it_is():
    auto, explicit = (make_mesh(kind, {"data": 2}) for kind in ("auto", "explicit"))
    device = jax.devices()[3]

    def uncommitted(metric):
        with jax.default_device(device):
            return jax.tree.map(jax.device_put, metric)

    ways = itertools.cycle(
        [
            lambda metric: datarax.replicate(metric, auto),
            lambda metric: jax.device_put(metric, device),
            lambda metric: datarax.replicate(metric, explicit),
            uncommitted,
        ]
    )
    with lowered() as names:
        for name, empty in HELD.items():
            full = jax.tree.map(np.ones_like, empty)
            saved = full.state_dict()
            held = next(ways)(full)
            now = places(held)
            assert None not in now, name
            loaded = held.load_state_dict(saved)
            assert places(loaded) == now, name
            for x in jax.tree.leaves(held):
                x.delete()  # as a step that the state is donated to
            again = held.reset()
            assert places(again) == places(held.load_state_dict(saved)) == now, name
            assert is_untouched(again)
            assert not is_untouched(loaded)
            # On the host it stays on the host.
            for metric in (full.reset(), full.load_state_dict(saved)):
                assert set(places(metric)) == {None}, name
            assert_equal((again, loaded), (empty, full))
            assert_equal((full.reset(), full.load_state_dict(saved)), (empty, full))
    assert names == []  # nothing is compiled


def test_inside_a_traced_function_nothing_is_moved():
    there = datarax.replicate(make(), make_mesh("auto", {"data": 8}))

    def step(metric):
        assert places(metric.reset()) == [None] * len(jax.tree.leaves(metric))
        # Also of a metric that is no argument.
        assert places(there.reset()) == [None] * len(jax.tree.leaves(metric))
        return there.reset().merge(metric)

    assert places(jax.eval_shape(step, make())) == [None] * len(jax.tree.leaves(there))


def test_an_empty_state_on_devices_can_be_wrapped_shared_and_donated():
    mesh = make_mesh("explicit", {"data": 8})
    mean = datarax.replicate(Mean(), mesh)
    for empty in (mean, jax.tree.map(jnp.copy, mean).reset()):
        window = datarax.Window(empty, 2)
        assert window.update(np.float32([1, 2])).results() == 1.5
    assert datarax.per_device(mean.reset(), mesh, "data").results() is not None
    with pytest.raises(datarax.MetricInputError, match="Pass its reset"):
        datarax.Window(jax.tree.map(jnp.copy, mean), 2)
    # The arrays of empty states are shared: a step that they are donated to must not write there.
    step = jax.jit(lambda metric: metric.update(jnp.ones(8)), donate_argnums=0)
    for _ in range(3):
        assert step(mean.reset()).results() == step(Mean()).results() == 1.0
    assert np.isnan(Mean().results())


def test_a_collection_keeps_what_its_metrics_share():
    mesh = make_mesh("auto", {"data": 8})
    pair = datarax.Collection({"a": Accuracy(num_classes=3), "b": Accuracy(num_classes=3)})
    placed = datarax.replicate(pair, mesh)
    leaves = len(jax.tree.leaves(pair))
    loaded = placed.load_state_dict(placed.state_dict())
    for each in (placed, placed.reset(), loaded):
        assert jax.tree.structure(each) == jax.tree.structure(pair)
        assert len(jax.tree.leaves(each)) == leaves
    # Members that were saved with different states no longer share one; both are in place.
    apart = placed.replace(a=Accuracy(num_classes=3).update(np.int32([0, 1]), np.int32([0, 2])))
    loaded = placed.load_state_dict(apart.state_dict())
    assert len(loaded.states_within()) == 2
    assert [len(x) for x in jax.tree.leaves(loaded)] == [2] * leaves  # of one kind: stacked
    assert {*places(loaded)} == {*places(placed)}
    assert loaded["a"].results() == 0.5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda mesh: datarax.replicate(3, mesh), "plain datarax.Metric; got"),
        (lambda mesh: datarax.replicate(StatefulMetric(Mean()), mesh), "whose .metric is one"),
        (lambda mesh: datarax.replicate(Mean(), "data"), "expects a jax.sharding.Mesh"),
        (lambda mesh: datarax.replicate(datarax.per_device(Mean(), mesh, "data"), mesh), "copies"),
    ],
)
def test_replicate_refuses(call, said):
    with pytest.raises(MetricTypeError, match=said):
        call(make_mesh("auto", {"data": 8}))


def test_replicate_moves_what_a_metric_holds():
    first, other = make_mesh("auto", {"data": 8}), make_mesh("explicit", {"a": 2, "b": 2})
    held = datarax.replicate(Mean().update(np.float32([1, 3])), first)
    assert datarax.replicate(held, first) is held
    moved = datarax.replicate(held, other)
    assert {x.sharding.mesh for x in jax.tree.leaves(moved)} == {other}
    assert moved.results() == held.results() == 2.0
    within = jax.jit(lambda metric: datarax.replicate(metric, first))(Mean())
    assert {x.sharding.mesh for x in jax.tree.leaves(within)} == {first}


def test_the_metric_of_a_stateful_one_can_be_assigned():
    mesh = make_mesh("auto", {"data": 8})
    stateful = StatefulMetric(datarax.replicate(Mean(), mesh))
    now = places(stateful.metric)
    stateful.metric = Mean().update(np.float32([1, 3]))  # from the host: it goes to the mesh
    assert places(stateful.metric) == now
    assert stateful.results() == 2.0
    stateful.metric = stateful.metric.replace(on_invalid="exclude")
    assert stateful.metric.on_invalid == "exclude"
    stateful.metric = {"loss": Mean()}
    assert isinstance(stateful.metric, datarax.Collection)
    with pytest.raises(MetricTypeError, match="StatefulMetric expects a datarax"):
        stateful.metric = cast(Any, 3)
    module: Any = nnx.MultiMetric(loss=stateful)
    module.loss.metric = Mean()
    assert is_untouched(stateful.metric)
