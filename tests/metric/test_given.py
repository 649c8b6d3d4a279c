"""Arguments of `results`: what is known only when results are read goes to those that read it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import ConfigurationMismatchError, MetricInputError
from datarax.metrics import Mean, Sum, Throughput
from datarax.training import StatefulMetric
from tests.helpers import make_mesh, place


def members():
    return {
        "speed": Throughput(),
        "rate": Sum(per="elapsed").from_outputs(values="tokens"),
        "per step": Sum(per="steps").from_outputs(values="tokens"),
        "tokens": Sum().from_outputs(values="tokens"),
    }


OUTPUTS = {"tokens": np.arange(1, 9)}
WANT = {
    "speed/tokens_per_second": 18.0,
    "speed/examples_per_second": np.nan,
    "rate": 18.0,
    "per step": 12.0,
    "tokens": 36,
}
GIVEN = {"elapsed": 2.0, "steps": 3}


def agrees(got, want=WANT):
    assert got == {name: pytest.approx(x, nan_ok=True) for name, x in want.items()}


def test_each_goes_to_the_members_that_read_it():
    metrics = datarax.Collection(members())
    agrees(metrics.update(**OUTPUTS).results(**GIVEN))
    compiled = jax.jit(lambda m, x: m.update(**x))(metrics, OUTPUTS)
    agrees(compiled.results(**GIVEN))
    assert compiled.results(**GIVEN, as_json=True)["tokens"] == 36
    # It is an argument of the reading: the state and the next reading are as before.
    agrees(
        compiled.results(elapsed=np.float32(4), steps=jnp.int32(3)),
        WANT | dict.fromkeys(("rate", "speed/tokens_per_second"), 9.0),
    )
    assert jax.tree.structure(compiled) == jax.tree.structure(metrics)
    # Without data, a sum is 0, and a rate has no value.
    empty = dict.fromkeys(WANT, 0.0) | {"speed/tokens_per_second": np.nan}
    agrees(metrics.results(**GIVEN), empty | {"speed/examples_per_second": np.nan})


def test_through_wrappers_and_devices():
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    outputs = place(OUTPUTS, mesh, P(("data", "model")))
    metrics = datarax.Collection(members(), prefix="train/")
    want = {f"train/{name}": x for name, x in WANT.items()}
    copies = datarax.per_device(metrics, mesh, ("data", "model")).update(**outputs)
    agrees(copies.results(**GIVEN), want)
    stateful = StatefulMetric(metrics)
    stateful.update(**outputs)
    agrees(stateful.results(**GIVEN), want)
    tasks = datarax.MultiTask({"a": datarax.Collection(members())}).update(a=OUTPUTS)
    agrees(tasks.results(**GIVEN), {f"a/{name}": x for name, x in WANT.items()})
    values = np.arange(6.0)
    for make, want in (
        (lambda m: datarax.Sliced(m, 2).update(values, slices=values > 2), [7.5, 1.5, 6.0]),
        (lambda m: datarax.Window(m, 1).update(9.0).update(values), 7.5),
        (lambda m: datarax.Transformed(m, result=lambda x: 2 * x).update(values), 15.0),
        (lambda m: datarax.MultiOutput(m, 1).update(values[:, None]), [7.5]),
    ):
        got = make(Sum(per="elapsed")).results(elapsed=2.0)
        if isinstance(got, dict):
            got = [got[name] for name in ("overall", "0", "1")]
        assert got == pytest.approx(want)
    drawn = datarax.Bootstrap(Sum(per="steps"), 20).update(np.ones(50)).results(steps=10)
    assert drawn["lower"] <= drawn["value"] == 5 <= drawn["upper"]


def test_a_missing_one_names_the_member_and_the_argument():
    metrics = datarax.Collection({"inner": datarax.Collection(members())}).update(**OUTPUTS)
    said = r"Collection.results: 'inner/per step' \(Sum\) reads 'steps', which was not given"
    for read in (lambda: metrics.results(elapsed=1.0), lambda: metrics.compute()):
        with pytest.raises(MetricInputError, match=said):
            read()
    with pytest.raises(MetricInputError, match=r"'inner/rate' \(Sum\) reads 'elapsed'"):
        metrics.results(steps=1)
    # Of a throughput only if it has counted, and no update gave the time.
    speed = datarax.Collection({"speed": Throughput()})
    assert np.isnan(speed.results()["speed/tokens_per_second"])
    assert speed.update(tokens=8, elapsed=2.0).results()["speed/tokens_per_second"] == 4
    with pytest.raises(MetricInputError, match="metric 'speed': Throughput reads 'elapsed'"):
        speed.update(tokens=8).results()
    # A time that is given now is that of all counts.
    assert speed.update(tokens=8, elapsed=2.0).results(elapsed=1)["speed/tokens_per_second"] == 8


def test_one_that_nobody_reads_lists_what_is_read():
    metrics = datarax.Collection(members())
    with pytest.raises(MetricInputError, match=r"no metric reads 'time'; read here: elapsed=, ste"):
        metrics.results(**GIVEN, time=1.0)
    with pytest.raises(
        MetricInputError, match=r"Mean.results\(elapsed=...\): .*read here: nothing"
    ):
        Mean().results(elapsed=1.0)


@pytest.mark.parametrize("value", [-1.0, np.inf, np.nan, "2 s", None])
def test_it_is_a_number_of_at_least_0(value):
    with pytest.raises(MetricInputError, match="elapsed="):
        Sum(per="elapsed").results(elapsed=value)


def test_no_time_and_no_steps_give_nan():
    assert np.isnan(Sum(per="steps").update(3.0).results(steps=0))
    assert np.isnan(Throughput().update(8).results(elapsed=0.0)["tokens_per_second"])


def test_inside_jit_the_value_is_nan():
    got = jax.jit(lambda m: m.update(**OUTPUTS).compute())(datarax.Collection(members()))
    assert np.isnan(got["rate"])
    assert got["tokens"] == 36


def test_a_collector_takes_them_with_the_window():
    metrics = datarax.Collection(members())
    with datarax.AsyncMetricCollector(metrics) as collector:
        for elapsed in (2.0, 4.0):
            metrics = metrics.update(**OUTPUTS)
            metrics = collector.schedule_collection(metrics, step=9, elapsed=elapsed, steps=3)
        metrics = metrics.update(**OUTPUTS)
        with pytest.raises(MetricInputError, match=r"window 2: 'per step' \(Sum\) reads 'steps'"):
            collector.schedule_collection(metrics, elapsed=1.0)
        with pytest.raises(MetricInputError, match="no metric reads 'time'"):
            collector.schedule_collection(metrics, **GIVEN, time=1.0)
        # After an error the window is still there.
        collector.schedule_collection(metrics, elapsed=1.0, steps=6)
        agrees(collector.collect_results())
        halved = dict.fromkeys(("rate", "speed/tokens_per_second"), 9.0)
        agrees(collector.collect_results(), WANT | halved)
        last = {"rate": 36.0, "speed/tokens_per_second": 36.0, "per step": 6.0}
        agrees(collector.collect_results(), WANT | last)


def test_scheduling_looks_at_no_array():
    metrics = datarax.Collection(members())
    compiled = jax.jit(lambda m, x: m.update(**x))
    with datarax.AsyncMetricCollector(metrics) as collector:
        metrics = compiled(metrics, OUTPUTS)
        counts = []
        jax.monitoring.register_event_duration_secs_listener(
            listen := lambda e, *_, **__: counts.append(e)
        )
        try:
            metrics = collector.schedule_collection(metrics, **GIVEN)
            agrees(collector.collect_results())
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        assert not [event for event in counts if "backend_compile" in event]
        # A throughput without a time is found when the window is read.
        speed = datarax.Collection({"speed": Throughput()}).update(tokens=8)
    with datarax.AsyncMetricCollector(speed) as collector:
        collector.schedule_collection(speed)
        with pytest.raises(MetricInputError, match="window 0: metric 'speed': Throughput reads"):
            collector.collect_results()


def test_a_metric_of_ones_own_reads_them():
    class PerStep(datarax.Metric):
        reads = ("steps",)
        total = datarax.MetricAccumulator(0.0)

        def update(self, values):
            return self.replace(total=self.total.update(values))

        def compute(self):
            return self.total.value / self.given_number("steps")

    assert PerStep().update(jnp.array([1.0, 5.0])).results(steps=4) == 1.5


def test_per_is_checked():
    with pytest.raises(MetricInputError, match="per='second'"):
        Sum(per="second")
    with pytest.raises(ConfigurationMismatchError, match=r"Sum\.per is 'steps' in one and None"):
        Sum(per="steps").merge(Sum())
