# pyright: strict
"""Public calls, as the programs of users make them, under a strict type checker.

`make check` checks the types that `assert_type` states. The tests run the same lines.
"""

import re
from pathlib import Path
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import datarax
from datarax import (
    distributed,
    evaluation,
    io,
    metrics,
    plot,
    statistics,
    testing,
    training,
    uncertainty,
)
from datarax.evaluation.beam import CombineMetrics
from datarax.numerics import DoubleFloat
from tests.helpers import make_mesh
from tests.test_public_names import EXPORTED

PREDS = np.array([0.9, 0.2, 0.6, 0.4], np.float32)
TARGET = np.array([1, 0, 0, 1], np.int32)
ONES = np.ones(4, np.float32)


def accuracy() -> metrics.Accuracy:
    return metrics.Accuracy().update(PREDS, TARGET)


def test_a_metric_keeps_its_type():
    metric = metrics.Accuracy(threshold=0.5)
    assert_type(metric, metrics.Accuracy)
    assert_type(metric.update(PREDS, TARGET, weights=ONES), metrics.Accuracy)
    assert_type(metric.merge(accuracy()), metrics.Accuracy)
    assert_type(metric.reset(), metrics.Accuracy)
    assert_type(metric.replace(on_invalid="exclude"), metrics.Accuracy)
    assert_type(metric.invalid_count(), jax.Array)
    assert_type(metric.state_dict(), dict[str, Any])
    assert_type(metric.load_state_dict(metric.state_dict()), metrics.Accuracy)
    assert_type(metrics.Mean().update(PREDS), metrics.Mean)
    assert_type(metrics.AUROC().update(PREDS, TARGET), metrics.AUROC)
    assert_type(metrics.MeanSquaredError().update(PREDS, PREDS), metrics.MeanSquaredError)
    assert_type(metrics.WER().update(["a b"], ["a c"]), metrics.WER)


def test_results_and_compute():
    assert accuracy().results() == 0.5
    assert float(accuracy().compute()) == 0.5


class Within(datarax.ElementwiseMean):
    """A user's mean of a score of each element."""

    distance: float = 0.5

    def score(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        return abs(preds - target) <= self.distance


class MeanOfLogs(datarax.Metric):
    """A user's metric."""

    floor: float = datarax.field(default=1e-6)
    logs = datarax.MetricAccumulator(0.0)
    count = datarax.MetricAccumulator(0, datarax.MetricReduceOp.sum)
    seen = statistics.WeightedTotal()

    def update(self, values: jax.Array | np.ndarray[Any, Any]) -> "MeanOfLogs":
        logs = jnp.log(jnp.maximum(values, self.floor))
        return self.replace(
            logs=self.logs.update(logs),
            count=self.count.update(logs == logs),
            seen=self.seen.update(logs),
        )

    def compute(self) -> jax.Array:
        return self.logs.value / self.count.value


def test_an_own_mean_of_elements():
    metric = Within(distance=0.25)
    assert_type(metric, Within)
    assert metric.update(PREDS, PREDS).results() == 1.0


def test_a_metric_of_ones_own():
    metric = MeanOfLogs(floor=0.5)
    assert_type(metric.floor, float)
    metric = metric.update(ONES)
    assert_type(metric, MeanOfLogs)
    assert metric.results() == 0.0
    batches = [{"values": np.full(4, x, np.float32)} for x in (1, 2, 4)]
    assert_type(testing.check_metric(MeanOfLogs(), batches), None)
    testing.assert_within_ulps(metric.compute(), 0.0, 1)


def rows_of(batches: list[dict[str, np.ndarray[Any, Any]]]) -> dict[str, int]:
    return {"rows": sum(len(batch["x"]) for batch in batches)}


def test_an_audit():
    report = testing.audit(rows_of, {"x": ONES}, capture=("jax.monitoring",))
    assert_type(report, testing.AuditReport)
    assert_type(report.ok, bool)
    assert_type([change.cause for change in report.changes], list[str])
    assert_type(report.bounds, dict[str, float])
    assert report.bounds == {"rows": 0}
    assert_type(report.raise_if_changed(), None)
    assert issubclass(testing.AuditError, AssertionError)


def test_wrappers():
    collection = datarax.Collection(
        {"accuracy": metrics.Accuracy(), "loss": metrics.Mean().from_outputs(values="loss")}
    )
    collection = collection.update(preds=PREDS, target=TARGET, loss=PREDS)
    assert_type(collection, datarax.Collection)
    assert_type(collection["accuracy"], datarax.Metric)
    assert_type(collection.results(), dict[str, Any])
    chosen = datarax.Collection.from_rules({"*": metrics.Sum(per="steps")}, {"loss": 1.0})
    assert_type(chosen, datarax.Collection)
    assert_type(chosen.results(steps=2), dict[str, Any])
    sliced = datarax.Sliced(metrics.Accuracy(), 2, names=("a", "b"), by="group")
    assert_type(sliced.update(PREDS, TARGET, group=TARGET), datarax.Sliced)
    ids = np.arange(4, dtype=np.int32)
    assert_type(
        datarax.Bootstrap(accuracy().reset(), replicas=20).update(PREDS, TARGET, index=ids),
        datarax.Bootstrap,
    )
    compared = datarax.Compare(metrics.Accuracy(), replicas=20)
    assert_type(
        compared.update(preds_a=PREDS, preds_b=PREDS, target=TARGET, index=ids), datarax.Compare
    )
    assert_type(datarax.Window(metrics.Mean(), 3).update(PREDS), datarax.Window)
    assert_type(datarax.Decayed(metrics.Mean(), 3.0).update(PREDS), datarax.Decayed)
    assert_type(datarax.Best(metrics.Mean()), datarax.Best)
    assert_type(datarax.Interval(metrics.Accuracy()), datarax.Interval)
    assert_type(
        datarax.Classwise(metrics.F1(num_classes=2, average=None), ("a", "b")), datarax.Classwise
    )
    assert_type(datarax.MultiOutput(metrics.Mean(), 2), datarax.MultiOutput)
    assert_type(datarax.MultiTask({"a": metrics.Mean()}), datarax.MultiTask)
    assert_type(datarax.Transformed(metrics.Mean(), result=jnp.exp), datarax.Transformed)
    assert_type(datarax.health({"layer": ONES}), datarax.Collection)


def test_on_a_mesh():
    mesh = make_mesh("auto", {"data": 8})
    assert_type(mesh, Mesh)
    apart = datarax.per_device(metrics.Mean(), mesh, "data")
    assert_type(apart, datarax.PerDevice)
    assert_type(
        datarax.per_device(apart, make_mesh("auto", {"rows": 4}), "rows"), datarax.PerDevice
    )
    assert_type(datarax.replicate(metrics.Mean(), mesh), metrics.Mean)
    rows, real = distributed.global_batch(np.ones(7, np.float32), mesh, "data", rows=8)
    assert_type(real, jax.Array)
    assert_type(apart.update(rows, weights=real), datarax.PerDevice)

    def synced(x: jax.Array, real: jax.Array) -> metrics.Mean:
        mean = metrics.Mean().varying("data")
        assert_type(mean, metrics.Mean)
        return mean.update(x, weights=real).sync("data")

    mapped = jax.shard_map(synced, mesh=mesh, in_specs=P("data"), out_specs=P())
    in_one_program: Any = jax.jit(mapped)  # pyright: ignore[reportUnknownMemberType]
    assert in_one_program(rows, real).results() == 1.0


def test_reducers():
    values = {"loss": ONES, "nested": {"norm": ONES}}
    for reduced in (
        distributed.reduce_mean(values, weights=ONES),
        distributed.reduce_sum(values),
        distributed.reduce_max(values),
        distributed.reduce_min(values),
        distributed.reduce_custom(values, {"loss": "mean", "nested": {"norm": "max"}}),
    ):
        assert_type(reduced["loss"], Any)

    def within(x: jax.Array) -> Any:
        mine = {"x": x.sum()}
        return (
            distributed.reduce_mean_collective(mine, "d"),
            distributed.reduce_sum_collective(mine, "d"),
            distributed.reduce_max_collective(mine, "d"),
            distributed.reduce_min_collective(mine, "d"),
            distributed.reduce_custom_collective(mine, {"x": "sum"}, "d"),
            distributed.all_gather(mine, "d"),
        )

    mapped = jax.pmap(within, axis_name="d")  # pyright: ignore[reportUnknownMemberType]
    out = mapped(np.ones((8, 2), np.float32))
    assert_type(distributed.collect_from_devices(out[0]), Any)


def test_training_and_checkpoints(tmp_path: Path):
    stateful = training.StatefulMetric(metrics.Mean())
    assert isinstance(stateful, nnx.Metric)
    stateful.update(PREDS)
    stateful.metric = metrics.Mean()
    assert_type(stateful.metric, datarax.Metric)
    by_keras = training.KerasMetric(metrics.Mean().from_outputs(values="preds"))
    by_keras.update_state(PREDS, PREDS, sample_weight=None)
    assert_type(by_keras.metric, datarax.Metric)
    training.check_agreement(metrics.Mean())
    distributed.check_same({"step": 3, "loss": ONES}, timeout=60)
    assert_type(datarax.merge_processes(metrics.WER(), timeout=60), metrics.WER)
    with io.JSONLWriter(tmp_path / "a.jsonl") as writer:
        assert_type(writer, io.JSONLWriter)
        with datarax.AsyncMetricCollector(metrics.Mean(), writer=writer) as collector:
            mean = collector.schedule_collection(metrics.Mean().update(PREDS), step=1)
            assert_type(mean, metrics.Mean)
        assert [step for step, _ in collector.ready()] == [1]
    io.save(tmp_path / "metric", accuracy())
    assert_type(io.restore(tmp_path / "metric", metrics.Accuracy()), metrics.Accuracy)
    assert_type(io.unpack(*io.pack(accuracy()), metrics.Accuracy()), metrics.Accuracy)


def test_writers(tmp_path: Path):
    files = io.JSONLWriter(tmp_path / "a"), io.ParquetWriter(tmp_path / "b")
    with io.MultiWriter(*files) as writer:
        assert_type(writer, io.MultiWriter)
        writer.write(1, {"loss": 0.5})
    # The others need their packages when they are made.
    each: tuple[type[io.Writer], ...] = (
        io.ConsoleWriter,
        io.MLflowWriter,
        io.MonitoringWriter,
        io.TensorBoardWriter,
        io.WandbWriter,
    )
    assert all(issubclass(one, io.Writer) for one in each)


def test_files(tmp_path: Path):
    path = tmp_path / "predictions.npz"
    np.savez(path, score=PREDS, label=TARGET)
    columns = evaluation.Columns({"preds": "score", "target": "label"})
    found = datarax.evaluate(path, metrics.Accuracy(), columns=columns, progress=False)
    assert_type(found, metrics.Accuracy)
    both = {"accuracy": metrics.Accuracy(), "auroc": metrics.AUROC()}
    names = {"preds": "score", "target": "label"}
    assert_type(evaluation.evaluate(path, both, columns=names), datarax.Collection)
    assert_type(evaluation.fold(path, metrics.Accuracy(), names), evaluation.Progress)
    with evaluation.engine("processes", workers=1) as executor:
        again = datarax.evaluate(path, metrics.Accuracy(), columns=names, executor=executor)
    assert again.results() == found.results() == 0.5
    aggregator = evaluation.Aggregator(metrics.Accuracy(), columns=names)
    assert_type(aggregator.zero(), bytes)
    assert_type(aggregator.finish(aggregator.zero()), metrics.Accuracy)
    assert CombineMetrics is not None


def test_figures():
    matrix = metrics.ConfusionMatrix(num_classes=2).update(TARGET, TARGET)
    assert_type(plot.confusion_matrix(matrix, names=("a", "b")), Figure)
    scores = metrics.AUROC().update(PREDS, TARGET)
    assert_type(plot.roc(scores), Figure)
    assert_type(plot.precision_recall(scores), Figure)
    assert_type(plot.score_histogram(scores), Figure)
    bins = metrics.CalibrationError(num_bins=2).update(PREDS, TARGET)
    assert_type(plot.reliability(bins), Figure)
    assert_type(plot.power(0.1, examples=10, sizes=[10, 40]), Figure)
    sliced = datarax.Sliced(datarax.Interval(metrics.Accuracy()), 2)
    sliced = sliced.update(PREDS, TARGET, slices=TARGET)
    assert_type(plot.slices(sliced), Figure)
    assert_type(plot.binned(sliced, edges=[0, 1, 2], label="length"), Figure)
    errors = datarax.metrics.MedianAbsoluteError().update(PREDS, PREDS)
    assert_type(plot.distribution(errors), Figure)
    assert_type(plot.error_quantiles(errors), Figure)
    ranks = datarax.metrics.SpearmanCorrCoef(bits=8).update(PREDS, PREDS)
    assert_type(plot.pairs(ranks), Figure)
    records = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    assert_type(plot.history(records), Figure)
    load = metrics.ExpertLoad(num_experts=2).update(TARGET)
    assert_type(plot.expert_load(load), Figure)
    draws = [plot.health, plot.quantiles]
    assert all(callable(draw) for draw in draws)


def test_exact_results():
    seen = metrics.Sum().update(TARGET).compute()
    assert_type(datarax.Exact, type[datarax.Exact])
    assert float(seen) == 2.0
    assert_type(DoubleFloat(jnp.float32(1), jnp.float32(0)) * 2, DoubleFloat)


def test_programs_of_other_platforms():
    with datarax.lowering_for("tpu"):
        assert_type(metrics.Mean().update(TARGET), metrics.Mean)


ERRORS = (
    datarax.AxisNotBoundError,
    datarax.CheckpointError,
    datarax.CollectorStateError,
    datarax.ConfigurationMismatchError,
    datarax.DonatedStateError,
    datarax.EvaluationError,
    datarax.InvalidValuesError,
    datarax.MetricInputError,
    datarax.MetricTimeoutError,
    datarax.MetricTypeError,
    datarax.MissingExtraError,
    datarax.NotAddressableError,
    datarax.UnknownMetricError,
    datarax.UnknownReductionError,
    datarax.WindowError,
    datarax.WriterError,
)
WARNINGS = (
    datarax.InvalidValuesWarning,
    datarax.PlatformWarning,
    datarax.PrecisionWarning,
    datarax.UndefinedMetricWarning,
    datarax.CutGroupsWarning,
    datarax.NoWordsWarning,
    datarax.ReferencesWarning,
    datarax.ScoresWarning,
    datarax.WriterWarning,
)


def test_errors():
    assert_type(ERRORS[0]("why"), datarax.AxisNotBoundError)
    assert all(issubclass(error, datarax.DataraxError) for error in ERRORS)
    assert all(issubclass(warning, UserWarning) for warning in WARNINGS)


def test_functions_of_p_values_keep_their_form():
    assert_type(uncertainty.adjust({"a": 0.01, "b": 0.5}, "bh"), dict[str, float])
    assert uncertainty.detectable_difference(0.5, power=0.9, confidence=0.9) > 0


def test_every_public_name_is_here():
    """But the metrics and statistics, which are in `test_typing_catalogue.py`."""
    text = Path(__file__).read_text()
    names = {name for name in EXPORTED if not re.match(r"datarax\.(metrics|statistics)\.", name)}
    missing = {name for name in names if not re.search(rf"\b{name.rpartition('.')[2]}\b", text)}
    assert missing == set()
