"""The NNX shell: one Variable, in place, wherever NNX goes."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import datarax
from datarax import (
    AxisNotBoundError,
    Collection,
    ConfigurationMismatchError,
    MetricInputError,
    MetricTypeError,
    per_device,
)
from datarax.metrics import Accuracy, Max, Mean, Sum
from datarax.training import StatefulMetric
from datarax.wrappers.per_device import PerDevice
from tests.helpers import collectives, draw, make_mesh, place
from tests.wrappers.mixed import batch_of, check, joined, of, twenty

FEW = ("loss", "tokens peak", "labels")
MESHES = {
    "one axis": ({"data": 8}, "data"),
    "two axes": ({"data": 4, "model": 2}, ("data", "model")),
}


@nnx.jit
def step(metric, batch):
    metric.update(**batch)


def variables(node):
    return jax.tree.leaves(nnx.state(node), is_leaf=lambda x: isinstance(x, nnx.Variable))


@pytest.fixture(params=["plain", "auto", "explicit"])
def few(request):
    """A collection in the shell: plain, or on the devices of a mesh."""
    metrics = twenty(*FEW)
    if request.param != "plain":
        metrics = per_device(metrics, make_mesh(request.param, {"data": 8}), "data")
    return StatefulMetric(metrics)


# Alone.


def test_the_lifecycle(rng, few):
    batches = [batch_of(rng, 16) for _ in range(2)]
    for batch in batches:
        assert few.update(**batch) is None
    check(few.compute(), joined(*batches), *FEW)
    check(few.compute(), joined(*batches), *FEW)
    assert few.reset() is None
    assert np.isnan(few.compute()["loss"])
    few.update(**batches[1])
    check(few.compute(), batches[1], *FEW)


def test_a_metric_by_itself(rng):
    x = draw(rng, (8,))
    mean = StatefulMetric(Mean())
    mean.update(x)
    mean.update(values=x, weights=np.zeros(8, bool))
    assert mean.compute() == x.mean()
    routed = StatefulMetric(of("loss", Mean()))
    routed.update(loss=x, logits="not for it")
    assert routed.metric.results() == x.mean()
    assert isinstance(routed, nnx.Metric)


def test_the_value_of_one_batch_beside_the_running_one(rng, few):
    first, second = (batch_of(rng, 16) for _ in range(2))

    @nnx.jit
    def both(metric, batch):
        alone = metric.metric.reset().update(**batch)
        metric.merge(alone)
        return alone

    few.update(**first)
    alone = both(few, second)
    check(alone.compute(), second, *FEW)
    check(few.compute(), joined(first, second), *FEW)
    with pytest.raises(ConfigurationMismatchError, match="cannot merge"):
        few.merge(Mean())


def test_what_is_refused():
    for wrong in (Mean, "mean", None, nnx.metrics.Average()):
        with pytest.raises(MetricTypeError, match=r"expects a datarax\.Metric; got"):
            StatefulMetric(wrong)
    with pytest.raises(MetricInputError, match="'loss' for its argument 'values'"):
        StatefulMetric(of("loss", Mean())).update(values=1.0)
    with pytest.raises(MetricInputError, match="metric 'hits': Accuracy needs the output 'target'"):
        StatefulMetric(Collection({"hits": Accuracy()})).update(preds=np.ones(3))
    with pytest.raises(MetricInputError, match="axis_name=None for Mean; expected the name"):
        StatefulMetric(Mean()).sync()
    with pytest.raises(AxisNotBoundError, match="'data' is bound"):
        StatefulMetric(Mean()).sync("data")
    spread = StatefulMetric(per_device(Mean(), make_mesh("auto", {"data": 8}), "data"))
    with pytest.raises(MetricInputError, match=r"takes no axis name"):
        spread.sync("data")


def test_an_update_that_fails_changes_nothing(rng, few):
    batch = batch_of(rng, 16)
    few.update(**batch)
    for update in (few.update, lambda **outputs: step(few, outputs)):
        with pytest.raises(ValueError, match=r"shape|leading axis"):
            update(**batch | {"labels": np.zeros((16, 2), np.int32)})
    check(few.compute(), batch, *FEW)


# As a node.


@pytest.mark.parametrize("names", [("loss",), ()], ids=["one", "twenty"])
def test_one_variable_however_many_metrics(names):
    assert len(variables(StatefulMetric(twenty(*names)))) == 1
    mesh = make_mesh("auto", {"data": 2, "rest": 4})
    assert len(variables(StatefulMetric(per_device(twenty("loss", "least"), mesh, "data")))) == 1


def test_in_multi_metric(rng):
    mesh = make_mesh("auto", {"data": 8})
    metrics: Any = nnx.MultiMetric(
        few=StatefulMetric(twenty(*FEW)),
        spread=StatefulMetric(per_device(of("loss", Max()), mesh, "data")),
        both=StatefulMetric(per_device(Collection({"sum": of("loss", Sum())}), mesh, "data")),
        average=nnx.metrics.Average("loss"),
    )
    assert len(variables(metrics)) == 3 + len(variables(nnx.metrics.Average("loss")))
    batches = [batch_of(rng, 16) for _ in range(2)]
    metrics.update(**batches[0])
    with jax.numpy_dtype_promotion("standard"):  # which flax's own metric needs
        step(metrics, batches[1])
        got = metrics.compute()
    seen = joined(*batches)
    check(got["few"], seen, *FEW)
    assert (got["spread"], got["both"]["sum"]) == (seen["loss"].max(), seen["loss"].sum())
    assert float(got["average"]) == pytest.approx(seen["loss"].mean(), rel=1e-5)
    metrics.reset()
    assert np.isnan([metrics.few.compute()["loss"], metrics.spread.compute()]).all()
    metrics.few.update(**batches[1])
    check(metrics.few.compute(), batches[1], *FEW)


def test_in_a_module_and_its_copies(rng):
    class Model(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.ones(()))
            self.seen = StatefulMetric(twenty(*FEW))

    model, batch = Model(), batch_of(rng, 8)
    model.seen.update(**batch)
    for same in (nnx.clone(model), copy.deepcopy(model)):
        check(same.seen.compute(), batch, *FEW)
        same.seen.reset()
    check(model.seen.compute(), batch, *FEW)
    check(nnx.merge(*nnx.split(model, nnx.Param, ...)).seen.compute(), batch, *FEW)
    # Nothing of it is trained.
    assert len(variables(model)) == 2
    grads = nnx.grad(lambda model: model.scale.get_value() ** 2)(model)
    assert [float(leaf) for leaf in jax.tree.leaves(grads)] == [2.0]
    empty = nnx.eval_shape(Model)
    nnx.update(empty, nnx.state(model))
    check(empty.seen.compute(), batch, *FEW)


# Under transforms.


def test_under_nnx_jit_without_retrace(rng, few):
    traces = []

    @nnx.jit
    def train(metric, batch):
        traces.append(1)
        metric.update(**batch)
        return metric.compute()["loss"] if not isinstance(metric.metric, PerDevice) else 0

    batches = [batch_of(rng, 16) for _ in range(4)]
    train(few, batches[0])
    few.reset()
    for batch in batches:
        jax.block_until_ready(train(few, batch))
    few.reset()
    train(few, batches[0])
    # The very first state is of NumPy arrays: no more than one trace for those, one from then on.
    assert len(traces) <= 2
    check(few.compute(), batches[0], *FEW)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("layout", MESHES)
def test_a_step_of_per_device_has_no_collective(rng, kind, layout):
    axes, names = MESHES[layout]
    mesh = make_mesh(kind, axes)
    metric = StatefulMetric(per_device(twenty(*FEW), mesh, names))
    batch = batch_of(rng, 16)
    placed = place(batch, mesh, P(names))
    assert collectives(step, metric, placed) == {}
    step(metric, placed)
    metric.sync()
    assert isinstance(metric.metric, PerDevice), "in place, and so in the same layout"
    step(metric, placed)
    check(metric.compute(), joined(batch, batch), *FEW)


def test_reset_and_compute_inside_a_step(rng):
    metric = StatefulMetric(twenty(*FEW))
    batches = [batch_of(rng, 8) for _ in range(2)]

    @nnx.jit
    def window(metric, batches):
        metric.reset()
        for batch in batches:
            metric.update(**batch)
        return metric.compute()

    for _ in range(2):
        check(window(metric, batches), joined(*batches), *FEW)
    check(metric.compute(), joined(*batches), *FEW)


def test_as_a_carry_of_scan(rng, few):
    batches = [batch_of(rng, 16) for _ in range(3)]
    stacked = {name: np.stack([b[name] for b in batches]) for name in batches[0]}

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def scan(metric, batch):
        metric.update(**batch)
        return metric

    scan(few, stacked)
    check(few.compute(), joined(*batches), *FEW)
    nnx.jit(scan)(few, stacked)
    check(few.compute(), joined(*batches, *batches), *FEW)


def test_under_cond_and_while_loop(rng):
    metric, batch = StatefulMetric(twenty(*FEW)), batch_of(rng, 8)
    step(metric, batch)
    for go in (True, False):
        nnx.cond(go, lambda m, b: m.update(**b), lambda m, b: None, metric, batch)
    check(metric.compute(), joined(batch, batch), *FEW)

    def body(state):
        i, metric = state
        metric.update(**jax.tree.map(jnp.asarray, batch))
        return i + 1, metric

    nnx.while_loop(lambda state: state[0] < 2, body, (jnp.int32(0), metric))
    check(metric.compute(), joined(*[batch] * 4), *FEW)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_split_and_merged_inside_shard_map(rng, kind):
    mesh = make_mesh(kind, {"data": 8})
    batch = batch_of(rng, 24)
    graph, state = nnx.split(StatefulMetric(twenty(*FEW)))

    def local(state, batch):
        metric = nnx.merge(graph, state)
        metric.update(**batch)
        metric.sync("data")
        return nnx.state(metric)

    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()))
    placed = place(batch, mesh, P("data"))
    assert collectives(run, state, placed) == {"all-reduce": 1}
    seen = nnx.merge(graph, jax.block_until_ready(run(state, placed)))
    check(seen.compute(), batch, *FEW)
    # The global state goes on, on one device, and is emptied.
    seen.reset()
    assert np.isnan(seen.compute()["loss"])


def test_a_carry_inside_shard_map(rng):
    mesh = make_mesh("auto", {"data": 4, "rest": 2})
    batches = [batch_of(rng, 8) for _ in range(2)]
    stacked = {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    graph, state = nnx.split(StatefulMetric(twenty(*FEW)))

    def local(state, batches):
        metric = nnx.merge(graph, state)
        metric.state.set_value(metric.metric.varying("data"))

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def scan(metric, batch):
            metric.update(**batch)
            return metric

        scan(metric, batches)
        metric.sync("data")
        return nnx.state(metric)

    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P(None, "data")), out_specs=P()))
    seen = nnx.merge(graph, jax.block_until_ready(run(state, stacked)))
    check(seen.compute(), joined(*batches), *FEW)


def test_under_nnx_shard_map(rng):
    mesh = make_mesh("auto", {"data": 8})
    metric, batch = StatefulMetric(twenty(*FEW)), batch_of(rng, 24)
    replicated = nnx.StateSharding({...: P()})

    @nnx.jit
    @nnx.shard_map(mesh=mesh, in_specs=(replicated, P("data")), out_specs=P())
    def run(metric, batch):
        metric.update(**batch)
        metric.sync("data")
        return metric.compute()

    check(run(metric, batch), batch, *FEW)
    check(metric.compute(), batch, *FEW)


@pytest.mark.parametrize("per_device", [False, True])
def test_an_update_in_a_loss_that_nnx_differentiates(per_device):
    mesh = make_mesh("auto", {"data": 8})
    metric = datarax.per_device(Mean(), mesh, "data") if per_device else Mean()
    model, stateful = nnx.Linear(1, 1, rngs=nnx.Rngs(0)), StatefulMetric(metric)

    @nnx.jit
    def train(model, stateful, x):
        def loss_of(model, stateful):
            losses = model(x[:, None])[:, 0] ** 2
            stateful.update(losses)
            return losses.mean()

        return nnx.value_and_grad(loss_of)(model, stateful)[0]

    x = place(np.arange(16, dtype=np.float32), mesh, P("data"))
    loss = train(model, stateful, x)
    np.testing.assert_allclose(stateful.results(), loss, 1e-6)
