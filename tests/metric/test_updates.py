"""Updates outside `jit`: in NumPy on the host, in one program where there are several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import Collection, MetricAccumulator, MetricInputError
from datarax.metrics import Accuracy, ConfusionMatrix, Mean, MeanSquaredError

CLASSES = 5


def batch_of(rng, size):
    return {
        "preds": rng.random((size, CLASSES), np.float32),
        "target": rng.integers(0, CLASSES, size, np.int32),
    }


def test_nothing_is_compiled_on_the_host(rng, programs):
    metric = Collection(
        {"acc": Accuracy(num_classes=CLASSES), "cells": ConfusionMatrix(num_classes=CLASSES)}
    )
    batches = [batch_of(rng, size) for size in (16, *rng.integers(1, 40, 30))]
    weights = [rng.integers(0, 3, len(b["target"])).astype(np.float32) for b in batches]
    for batch in batches:
        metric = metric.update(**batch)
    preds, target = (np.concatenate([b[name] for b in batches]) for name in batches[0])
    cells = np.zeros((CLASSES, CLASSES), int)
    np.add.at(cells, (target, preds.argmax(-1)), 1)
    np.testing.assert_array_equal(metric["cells"].results(), cells)
    weighted = Accuracy(num_classes=CLASSES)
    for batch, w in zip(batches, weights, strict=True):
        weighted = weighted.update(**batch, weights=w)
    right = preds.argmax(-1) == target
    want = np.average(right, weights=np.concatenate(weights))
    assert weighted.results() == pytest.approx(want, rel=1e-14)
    metric.merge(metric).compute()
    metric.reset().state_dict()
    assert not programs


def test_arguments_of_any_place_are_updated_and_never_changed(rng):
    batch = batch_of(rng, 16)
    want = Accuracy(num_classes=CLASSES).update(**batch).results()
    for place in (np.asarray, jnp.asarray, lambda x: x.tolist()):
        given = {name: place(x) for name, x in batch.items()}
        metric = Accuracy(num_classes=CLASSES).update(**given)
        assert metric.results() == want
        assert all(isinstance(x, np.ndarray | np.generic) for x in jax.tree.leaves(metric))
    for x in batch.values():
        x.flags.writeable = False
    assert Accuracy(num_classes=CLASSES).update(**batch).results() == want


@pytest.mark.parametrize(
    "metric",
    [Mean(), MeanSquaredError(), datarax.metrics.R2Score(), datarax.metrics.Median()],
    ids=lambda metric: type(metric).__name__,
)
def test_ragged_batches_are_those_of_jit(rng, metric):
    full, tail = (rng.normal(size=(2, n)).astype(np.float32) for n in (8, 5))
    many = 1 if isinstance(metric, Mean | datarax.metrics.Median) else 2
    eager = metric.update(*full[:many]).update(*tail[:many])
    step = jax.jit(lambda metric, *args: metric.update(*args))
    want = step(step(metric, *full[:many]), *tail[:many])
    np.testing.assert_allclose(eager.compute(), want.compute(), rtol=1e-5)


@pytest.mark.parametrize("routed", [{}, {"weights": None}], ids=["unweighted", "weighted"])
def test_one_value_for_the_batch_beside_metrics_of_rows(rng, routed):
    loss = Mean().from_outputs(values="loss", **routed)
    metric = Collection({"loss": loss, "acc": Accuracy(num_classes=CLASSES)})
    batches = [batch_of(rng, size) for size in (8, 5, 12)]
    losses = [0.5, np.float32(2.0), jnp.float32(8.0)]
    for batch, value in zip(batches, losses, strict=True):
        weights = {"weights": np.ones(len(batch["target"]))} if routed else {}
        metric = metric.update(**batch, **weights, loss=value)
    right = np.concatenate([b["preds"].argmax(-1) == b["target"] for b in batches])
    assert metric.results() == pytest.approx({"loss": 3.5, "acc": right.mean()})


def test_sharded_batches_stay_sharded(rng):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    mean, batches = Mean(), [rng.random(size, np.float32) for size in (16, 8, 24)]
    for batch in batches:
        mean = mean.update(jax.device_put(batch, sharding))
    assert float(mean.compute()) == pytest.approx(np.concatenate(batches).mean(dtype=float))
    assert {len(x.sharding.device_set) for x in jax.tree.leaves(mean)} == {8}


def test_the_rows_of_a_user(rng):
    class Rows(datarax.Metric):
        rows = MetricAccumulator(0)

        def update(self, values, weights=None):
            return self.replace(rows=self.rows.update(values.shape[0]))

        def compute(self):
            return self.rows.value

    metric = Rows()
    for size in (8, 3, 5):
        metric = metric.update(rng.random(size))
    assert metric.results() == 16


def test_an_update_that_needs_values_runs_as_it_is_written(rng):
    class Positive(datarax.Metric):
        count = MetricAccumulator(0)

        def update(self, values, label="all"):
            if values.sum() > 0 and label == "all":
                return self.replace(count=self.count.update(len(values)))
            return self

        def compute(self):
            return self.count.value

    metric = Positive()
    for sign, label in ((1, "all"), (-1, "all"), (1, "all"), (1, "none")):
        metric = metric.update(sign * np.ones(3, np.float32), label=label)
        metric = metric.update(sign * np.ones(3, np.float32)) if label == "all" else metric
    assert metric.results() == 12


def test_values_are_checked_in_each_call():
    metric = Collection({"acc": Accuracy()})
    right, wrong = np.array([0, 1, 1]), np.array([0, 2, 1])
    for _ in range(2):
        metric = metric.update(preds=right, target=right)
        with pytest.raises(MetricInputError, match="metric 'acc': target holds 2"):
            metric.update(preds=right, target=wrong)
        with pytest.raises(MetricInputError, match="metric 'acc': preds holds 2"):
            metric.update(preds=wrong, target=right)
    assert metric["acc"].results() == 1


def test_no_update_of_a_collection_on_several_devices_looks_at_values():
    class Positive(datarax.Metric):
        count = MetricAccumulator(0)

        def update(self, values):
            return self.replace(count=self.count.update(len(values) if values.sum() > 0 else 0))

        def compute(self):
            return self.count.value

    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, jax.P("data")))
    for more in ({"b": Positive()}, {}):  # as it is written, and as one program
        metrics, given = Collection({"a": Accuracy(), **more}), {"values": x} if more else {}
        labels = metrics.update(preds=x > 3, target=x, **given)
        with pytest.warns(datarax.InvalidValuesWarning, match=r"^a: 6 values or examples"):
            assert labels.results()["a/invalid"] == 6
        scores = metrics.update(preds=x, target=x > 3, **given)
        with pytest.warns(datarax.ScoresWarning, match=r"^a: 6 scores were not from 0 to 1"):
            assert scores.results()["a"] == 0.625


def test_numbers_that_do_not_fit():
    class Total(datarax.Metric):
        total = MetricAccumulator(0)

        def update(self, value):
            return self.replace(total=self.total.update(value))

        def compute(self):
            return self.total.value

    total = Total()
    for value in (2**40, 1, np.int64(2**40), -3):
        total = total.update(value)
    assert total.results() == 2**41 - 2
    assert Mean().update(np.array([2**40])).results() == 2**40
    with pytest.raises(MetricInputError, match="does not fit 32 bits"):
        jax.jit(lambda metric: metric.update(np.array([2**40])))(Mean())


def test_lists_and_numbers():
    assert Accuracy().update([1, 0, 1], [1, 0, 0]).compute() == np.float32(2 / 3)
    assert Mean().update(2.5).update(3.5).update([1, 5]).compute() == 3
    mean = Mean()
    for batch in ([1.0, 2.0, 3.0], [4.0], (5.0, 6.0), []):
        mean = mean.update(batch)
    assert mean.compute() == 3.5
    with pytest.raises(datarax.MetricTypeError):
        Mean().update([[1, 2], [3]])


def test_within_jit_it_is_a_part_of_the_program(programs):
    x = jnp.arange(6.0)
    mean = jax.jit(lambda metric, x: metric.update(x).update(2 * x))
    compiled = mean.lower(Mean(), x).compile()
    assert len(programs) <= 2  # arange, and this one
    assert compiled(Mean(), x).compute() == 3.75
