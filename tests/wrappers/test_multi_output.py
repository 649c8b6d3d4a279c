"""`MultiOutput`: each output has the value that the metric gives of it alone."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, MultiOutput, Sliced, Window, metrics
from datarax.testing import check_metric
from tests.helpers import collectives_in, long, make_mesh, place

OUTPUTS, ROWS = 3, 16


def floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def pairs(rng, size=ROWS, outputs=OUTPUTS):
    return {"preds": floats(rng, size, outputs), "target": floats(rng, size, outputs)}


def scores(rng, size=ROWS, outputs=OUTPUTS):
    target = rng.integers(0, 2, (size, outputs)).astype(np.int32)
    return {"preds": rng.random((size, outputs)).astype(np.float32), "target": target}


def classes(rng, size=ROWS, outputs=OUTPUTS):
    target = rng.integers(0, 4, (size, outputs)).astype(np.int32)
    return {"preds": floats(rng, size, 4, outputs), "target": target}


def of_output(batch, k):
    return {name: x[..., k] for name, x in batch.items()}


def test_means_and_deviations_by_numpy(rng):
    values = 50 + floats(rng, 2, ROWS, OUTPUTS)
    weights = rng.integers(0, 4, (2, ROWS)).astype(np.float32) / 3
    both = Collection({"mean": metrics.Mean(), "std": metrics.Std()})
    got = MultiOutput(both, OUTPUTS)
    for x, w in zip(values, weights, strict=True):
        got = got.update(values=x, weights=w)
    got, x = got.results(), values.reshape(-1, OUTPUTS).astype(np.float64)
    w = np.repeat(weights.reshape(-1, 1), OUTPUTS, 1)
    mean = np.average(x, 0, w)
    np.testing.assert_allclose(got["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(got["std"], np.sqrt(np.average((x - mean) ** 2, 0, w)), rtol=1e-5)


@pytest.mark.parametrize(
    ("metric", "draw"),
    [
        (metrics.R2Score(), pairs),
        (metrics.F1(), scores),
        (metrics.AUROC(), scores),
        (metrics.Accuracy(num_classes=4, average="macro"), classes),
        (metrics.ConfusionMatrix(num_classes=4), classes),
        (metrics.SpearmanCorrCoef(capacity=64), pairs),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_each_output_is_the_metric_of_it(metric, draw, weighted, rng):
    batches = [draw(rng) for _ in range(2)]
    weights = [rng.integers(1, 4, ROWS).astype(np.float32) / 3 for _ in batches]
    several, each = MultiOutput(metric, OUTPUTS), [metric] * OUTPUTS
    for batch, w in zip(batches, weights, strict=True):
        given = {"weights": w} if weighted else {}
        several = several.update(**batch, **given)
        each = [one.update(**of_output(batch, k), **given) for k, one in enumerate(each)]
    got = several.compute()
    assert got.shape[0] == OUTPUTS
    for k, one in enumerate(each):
        np.testing.assert_allclose(got[k], one.compute(), rtol=2e-6, atol=1e-6)


def test_weights_and_steps_of_all_outputs_or_of_each(rng):
    values, per_output = floats(rng, ROWS, OUTPUTS), rng.random((ROWS, OUTPUTS)).astype(np.float32)
    got = MultiOutput(metrics.Mean(), OUTPUTS).update(values, weights=per_output).compute()
    want = np.average(values.astype(np.float64), 0, per_output)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got = MultiOutput(metrics.Mean(), OUTPUTS).update(values, weights=2.0).compute()
    np.testing.assert_allclose(got, values.mean(0), rtol=1e-5, atol=1e-6)
    wide = floats(rng, ROWS, 5, OUTPUTS)
    rows = rng.random((ROWS, 5)).astype(np.float32)  # one for each row and time, for all outputs
    got = MultiOutput(metrics.Mean(), OUTPUTS).update(wide, weights=rows).compute()
    want = np.average(wide, (0, 1), np.repeat(rows[..., None], OUTPUTS, -1))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    last = MultiOutput(metrics.LastValue(), OUTPUTS)
    last = last.update(values[:1], step=5).update(values[1:2], step=np.array([3]))
    np.testing.assert_array_equal(last.compute(), values[0])


def test_laws(rng):
    batches = [pairs(rng) for _ in range(3)]
    metric = MultiOutput(metrics.MeanSquaredError(), OUTPUTS)
    check_metric(metric, batches, ulps=64, state_atol=1e-4, on_host=True)


def test_invalid_data_of_one_output_is_that_of_this_output(rng):
    values = floats(rng, ROWS, OUTPUTS)
    values[[1, 2], 1], values[3, 2] = np.nan, np.inf
    metric = MultiOutput(metrics.Mean(), OUTPUTS).update(values)
    with pytest.warns(datarax.InvalidValuesWarning, match="3 values .*2 NaN, 1 infinite"):
        results = metric.results()
    assert isinstance(results, np.ndarray)
    np.testing.assert_array_equal(np.isnan(results), [False, True, True])
    assert int(metric.invalid_count()) == 3
    with pytest.warns(datarax.InvalidValuesWarning):
        results = metric.replace(on_invalid="exclude").results()
    want = [np.mean(x[np.isfinite(x)], dtype=np.float64) for x in values.T]
    np.testing.assert_allclose(results, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(datarax.InvalidValuesError):
        metric.replace(on_invalid="raise").results()


def test_sums_of_integers_are_exact():
    total = MultiOutput(metrics.Sum(), 2)
    for _ in range(5):
        total = total.update(np.array([[2**30, 1], [2**30 + 1, 2]], np.int32))
    assert total.results().tolist() == [5 * (2**31 + 1), 15]


@pytest.mark.parametrize(
    ("metric", "kind"),
    [(metrics.F1(), "auto"), pytest.param(metrics.AUROC(), "explicit", marks=long)],
    ids=["f1", "auroc"],
)
def test_on_devices_as_on_one(metric, kind, rng):
    mesh, batch = make_mesh(kind, {"d": 8}), scores(rng, 64)
    several = MultiOutput(metric, OUTPUTS)
    want = several.update(**batch).compute()
    batch = place(batch, mesh, P("d"))
    apart = datarax.per_device(several, mesh, "d")
    whole = jax.jit(lambda m, b: m.update(**b))(several, batch)
    for got in (apart.update(**batch), whole):
        np.testing.assert_allclose(got.compute(), want, rtol=1e-6)
    update = jax.jit(lambda m, b: m.update(**b)).lower(apart, batch).compile()
    assert collectives_in(update.as_text()) == {}


def test_rows_are_padded_for_the_devices(rng):
    mesh, batch = make_mesh("auto", {"d": 8}), pairs(rng, 13)
    several = MultiOutput(metrics.MeanAbsoluteError(), OUTPUTS)
    apart = datarax.per_device(several, mesh, "d").update(**batch)
    np.testing.assert_allclose(apart.compute(), several.update(**batch).compute(), rtol=1e-6)
    last = datarax.per_device(MultiOutput(metrics.LastValue(), OUTPUTS), mesh, "d")
    got = last.update(batch["preds"][:1], step=1).compute()
    np.testing.assert_array_equal(got, batch["preds"][0])


def test_sync_in_shard_map_and_scan(rng):
    mesh = make_mesh("auto", {"d": 8})
    stacked = {name: floats(rng, 4, 64, OUTPUTS) for name in ("preds", "target")}
    metric = MultiOutput(metrics.R2Score(), OUTPUTS)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(None, "d")), out_specs=P())
    def epoch(metric, stacked):
        def body(metric, batch):
            return metric.update(**batch), None

        return jax.lax.scan(body, metric.varying("d"), stacked)[0].sync("d")

    want = metric.update(**{name: x.reshape(-1, OUTPUTS) for name, x in stacked.items()})
    got = epoch(metric, place(stacked, mesh, P(None, "d")))
    np.testing.assert_allclose(got.compute(), want.compute(), rtol=1e-5, atol=1e-6)

    step = jax.jit(lambda m, b: m.update(**b), donate_argnums=0)
    donated = jax.tree.map(jnp.array, metric)
    for k in range(4):
        donated = step(donated, {name: x[k] for name, x in stacked.items()})
    np.testing.assert_allclose(donated.compute(), want.compute(), rtol=1e-5, atol=1e-6)


def test_nested_and_in_a_collection(rng):
    batches = [pairs(rng) | {"slices": rng.integers(0, 3, ROWS)} for _ in range(3)]
    error = metrics.MeanAbsoluteError()
    members = Collection(
        {
            "each": MultiOutput(error, OUTPUTS),
            "sliced": Sliced(MultiOutput(error, OUTPUTS), 2),
            "inside": MultiOutput(Sliced(error, 2), OUTPUTS),
            "recent": Window(MultiOutput(error, OUTPUTS), 2),
        }
    )
    for batch in batches:
        members = members.update(**batch)
    got = members.compute()

    def want(batches, index=None):
        rows = [np.ones(ROWS, bool) if index is None else b["slices"] == index for b in batches]
        errors = [np.abs(b["preds"] - b["target"])[r] for b, r in zip(batches, rows, strict=True)]
        return np.concatenate(errors).mean(0)

    close = partial(np.testing.assert_allclose, rtol=1e-5)
    close(got["each"], want(batches))
    close(got["recent"], want(batches[1:]))
    close(got["sliced/overall"], want(batches))
    close(got["inside/overall"], want(batches))
    for index in range(2):
        close(got["sliced/slices"][index], want(batches, index))
        close(got["inside/slices"][:, index], want(batches, index))
    results = members.results()
    close(results["sliced/1"], want(batches, 1))
    assert isinstance(results["inside/slices"], np.ndarray)


def test_checkpoints_collector_and_names(rng):
    metric = MultiOutput(metrics.Mean(), OUTPUTS).from_outputs(values="loss")
    metric = Collection({"loss": metric}).update(loss=floats(rng, ROWS, OUTPUTS))["loss"]
    want = metric.results()
    for again in (
        metric.reset().load_state_dict(metric.state_dict()),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ):
        np.testing.assert_array_equal(again.merge(metric).results(), want)
    with pytest.raises(datarax.ConfigurationMismatchError):
        MultiOutput(metrics.Mean(), 2).load_state_dict(metric.state_dict())
    with datarax.AsyncMetricCollector(metric) as collector:
        collector.schedule_collection(metric)
        np.testing.assert_array_equal(collector.collect_results(), want)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiOutput(metrics.Mean(), 0), "num_outputs=0"),
        (lambda: MultiOutput(metrics.Mean(), 1.5), "num_outputs=1.5"),
        (lambda: MultiOutput(metrics.Mean().update(1.0), 2), "without data"),
        (lambda: MultiOutput(None, 2), "expects a datarax.Metric"),
        (lambda: MultiOutput(_per_device(), 2), "copies for each device"),
        (lambda: MultiOutput(metrics.Mean(), 2).update(np.ones((4, 3))), r"\(4, 3\)"),
        (lambda: MultiOutput(metrics.Mean(), 2).update(1.0), r"values of shape \(\)"),
        (
            lambda: MultiOutput(metrics.Mean(), 2).update(np.ones((4, 2)), weights=np.ones((4, 1))),
            r"weights of shape \(4, 1\)",
        ),
        (
            lambda: MultiOutput(metrics.R2Score(), 2).update(np.ones((4, 2)), np.ones(4)),
            r"target of shape \(4,\)",
        ),
        (lambda: MultiOutput(metrics.Mean(), 2).update(value=np.ones((4, 2))), "value"),
    ],
)
def test_misuse(make, message):
    with pytest.raises((datarax.DataraxError, TypeError), match=message):
        make()


def _per_device():
    return datarax.per_device(metrics.Mean(), make_mesh("auto", {"d": 8}), "d")
