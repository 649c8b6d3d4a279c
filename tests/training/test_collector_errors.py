"""What the collector refuses, and what goes wrong in a window: said, and at no other's cost."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import Accuracy, Max, Mean, Sum
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import make_mesh
from tests.training.loops import LAYOUTS, busy, made, scheduled, value_of


class Total(datarax.Metric):
    total = datarax.MetricAccumulator(0.0)

    def update(self, x):
        return self.replace(total=self.total.update(x))


def fussy():
    """A total whose compute fails while the list that comes with it is empty."""
    allowed = []

    class Fussy(Total):
        def compute(self):
            if not allowed:
                raise KeyError("no such curve")
            return self.total.value

    return Fussy(), allowed


def test_an_error_in_compute_names_the_window_and_costs_no_other():
    metric, allowed = fussy()
    with datarax.AsyncMetricCollector(metric) as collector:
        metric = collector.schedule_collection(metric.update(1.0), step=3)
        with pytest.raises(datarax.WindowError, match=r"window 0 \(step 3\).*no such curve") as e:
            collector.collect_results()
        assert isinstance(e.value.__cause__, KeyError)
        allowed.append(True)
        metric = collector.schedule_collection(metric.update(2.0), step=4)
        collector.schedule_collection(metric.update(5.0), step=5)
    assert collector.ready() == [(4, 2.0), (5, 5.0)]


def test_an_error_without_a_text_is_named():
    class Empty(Total):
        def compute(self):
            raise MemoryError

    with datarax.AsyncMetricCollector(Empty()) as collector:
        collector.schedule_collection(Empty())
        with pytest.raises(datarax.WindowError, match="window 0 failed: MemoryError"):
            collector.collect_results()


def test_a_stateful_metric_goes_on_when_compute_fails():
    plain, allowed = fussy()
    metric = StatefulMetric(plain)
    metric.update(1.0)
    with datarax.AsyncMetricCollector(metric) as collector:
        collector.schedule_collection()
        with pytest.raises(datarax.WindowError, match="window 0"):
            collector.collect_results()
        allowed.append(True)
        metric.update(2.0)
        collector.schedule_collection()
        assert collector.collect_results() == 2.0


class Doomed(Total):
    """Its compute fails on the device, for a total of seven."""

    def compute(self):
        def check(total):
            if total == 7:
                raise ValueError("seven")
            return np.asarray(total)

        total = self.total.value
        return jax.pure_callback(check, jax.ShapeDtypeStruct((), total.dtype), total)


def failing_on_the_device():
    """In a process of its own, as JAX says at exit what failed on its devices."""
    metric, said = Doomed(), []
    update = jax.jit(lambda m, x: m.update(x + busy(jnp.float32(0.1))[0]))
    with datarax.AsyncMetricCollector(metric, max_in_flight=8) as collector:
        for step, x in enumerate((1.0, 7.0, 2.0, 7.0, 3.0)):
            # Whether dispatch itself raises depends on whether the update has already finished.
            try:
                metric = collector.schedule_collection(update(metric, x), step=step)
            except datarax.WindowError as error:
                said.append(str(error))
                metric = metric.reset()
    while len(said) < 5:
        try:
            said.append(collector.collect_results())
        except datarax.WindowError as error:
            said.append(str(error))
    return said


def test_an_error_on_the_device_surfaces_with_its_window_and_costs_no_other():
    (said,) = processes.run(failing_on_the_device, 1, join=False)
    failed = [text for text in said if isinstance(text, str)]
    steps = [re.match(r"window \d \(step (\d)\) failed: .*seven", text, re.S) for text in failed]
    assert [match and match[1] for match in steps] == ["1", "3"]
    assert [value for value in said if not isinstance(value, str)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("read", ["ready", "collect_results"])
def test_data_that_a_metric_refuses_raises_with_the_window(layout, read):
    metric = made(layout, Mean(on_invalid="raise"))
    x = np.arange(8, dtype=np.float32)
    bad = np.where(x == 3, np.nan, x)
    with datarax.AsyncMetricCollector(metric, max_in_flight=3) as collector:
        for step, values in enumerate((x, bad, x + 1)):
            updated = metric.update(values=jnp.asarray(values))
            metric = scheduled(collector, metric if updated is None else updated, step)
    if read == "ready":
        assert [(s, value_of(r)) for s, r in collector.ready()] == [(0, 3.5)]
    else:
        assert value_of(collector.collect_results()) == 3.5
    with pytest.raises(datarax.InvalidValuesError, match=r"window 1 \(step 1\): .*1 value"):
        getattr(collector, read)()
    assert [(s, value_of(r)) for s, r in collector.ready()] == [(2, 4.5)]


def test_a_single_result_warns_of_data_that_could_not_be_used():
    with datarax.AsyncMetricCollector(Mean()) as collector:
        collector.schedule_collection(Mean().update(jnp.array([1.0, np.inf])), step=9)
        collector.schedule_collection(Mean().update(jnp.array([1.0, np.inf])), step=10)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.warns(datarax.InvalidValuesWarning, match="1 values"):
            assert np.isnan(collector.collect_results())
    with pytest.raises(datarax.InvalidValuesWarning, match=r"window 1 \(step 10\)"):
        collector.collect_results()


# Calls out of order, and arguments that do not fit.


def test_calls_out_of_order_say_what_to_do():
    mean = Mean()
    collector = datarax.AsyncMetricCollector(mean)
    for call in (
        lambda: collector.schedule_collection(mean),
        collector.unbind,
        collector.ready,
        collector.collect_results,
    ):
        with pytest.raises(RuntimeError, match=r"not bound; call bind\(\)"):
            call()
    with collector:
        with pytest.raises(RuntimeError, match="bound already"):
            collector.bind()
        assert collector.ready() == []
        with pytest.raises(RuntimeError, match=r"no window.*schedule_collection\(\) first"):
            collector.collect_results()
        collector.schedule_collection(mean.update(1.0))
    with pytest.raises(RuntimeError, match="not bound"):
        collector.schedule_collection(mean)
    assert collector.collect_results() == 1.0  # scheduled before, so it can be read after
    assert collector.ready() == []
    with pytest.raises(RuntimeError, match="not bound"):
        collector.collect_results()
    with collector:
        collector.schedule_collection(mean.update(2.0))
        assert collector.collect_results() == 2.0


def test_another_metric_than_the_collector_was_made_for_is_refused():
    half, most = (Accuracy(threshold=t) for t in (0.5, 0.9))
    with datarax.AsyncMetricCollector(half) as collector:
        with pytest.raises(datarax.ConfigurationMismatchError, match=r"threshold is 0\.5.*0\.9"):
            collector.schedule_collection(most)
        with pytest.raises(datarax.ConfigurationMismatchError, match=r"Accuracy.*Mean"):
            collector.schedule_collection(Mean())
        for wrong in (None, 3.0, Accuracy):
            with pytest.raises(datarax.MetricInputError, match="expected the metric"):
                collector.schedule_collection(wrong)
        assert collector.ready() == []
    with (
        datarax.AsyncMetricCollector(StatefulMetric(half)) as collector,
        pytest.raises(datarax.MetricInputError, match="takes no metric here"),
    ):
        collector.schedule_collection(half)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Mean,), {}, "expects a datarax.Metric.*the class Mean"),
        ((3,), {}, "expects a datarax.Metric or a StatefulMetric; got int"),
        ((Mean(),), {"max_in_flight": 0}, "max_in_flight=0"),
        ((Mean(),), {"max_in_flight": 1.5}, "max_in_flight=1.5"),
        ((Mean(),), {"timeout": -1}, "timeout=-1"),
        ((Mean(),), {"timeout": float("nan")}, "timeout=nan"),
    ],
)
def test_arguments_are_checked(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        datarax.AsyncMetricCollector(*arguments, **options)


# Names that no other test has: a metric is not found where some program resets one like it.
ALONE = datarax.Collection({"only": Mean()}, prefix="dropped/")
PLACES = {
    "host": lambda: ALONE,
    "devices": lambda: datarax.replicate(ALONE, make_mesh("auto", {"data": 8})),
    "per_device": lambda: made("per_device", ALONE),
    "collection": lambda: datarax.Collection({"a": Mean(), "b": Sum(), "c": Max()}, prefix="d/"),
    "wrapper": lambda: datarax.Sliced(Mean(), 2, names=("of this", "test")),
}


def steps(place):
    """A step on the host, if there is one, a compiled one, and one that donates."""

    def step(metric, values):
        slices = {"slices": jnp.arange(8) % 2} if isinstance(metric, datarax.Sliced) else {}
        return metric.update(values=values, **slices)

    return [step, jax.jit(step), jax.jit(step, donate_argnums=0)]


@pytest.mark.parametrize("place", PLACES)
def test_a_loop_that_drops_the_returned_metric_is_told_what_to_write(rng, place):
    def run(step, go_on, *, windows=3, updates=2):
        """The results of windows of a loop, where `go_on(old, returned)` is the next metric."""
        metric = step(jax.tree.map(jnp.array, PLACES[place]()), values)  # compiled before
        metric = metric.reset()
        with datarax.AsyncMetricCollector(metric, max_in_flight=windows) as collector:
            for window in range(windows):
                for _ in range(updates):
                    metric = step(metric, values)
                returned = collector.schedule_collection(metric, step=window)
                metric = go_on(metric, returned)
        return [results for _, results in collector.ready()]

    values = rng.normal(size=8).astype(np.float32)
    # A program that resets a metric of another kind, in the same place, hides nothing.
    jax.jit(lambda metric: metric.reset())(made("per_device", Mean()))
    for step in steps(place):
        right = run(step, lambda old, returned: returned)
        for window in right:
            jax.tree.map(np.testing.assert_array_equal, window, right[0])
        # The metric that is returned need not be taken, if the loop makes an empty one itself.
        for go_on in (
            lambda old, returned: old.reset(),
            lambda old, returned: jax.tree.map(jnp.array, PLACES[place]()),
            lambda old, returned: returned.load_state_dict(returned.state_dict()),
        ):
            jax.tree.map(np.testing.assert_array_equal, run(step, go_on), right)
        # Reading the old metric, and merging it into another one, use it no more.
        read = []

        def reads(old, returned, read=read):
            if not any(x.is_deleted() for x in jax.tree.leaves(old) if isinstance(x, jax.Array)):
                read.append(old.results())
                read.append(jax.device_get(old).merge(jax.device_get(old)))
                read.append(old.state_dict())
            return returned

        jax.tree.map(np.testing.assert_array_equal, run(step, reads), right)
        assert read
        with pytest.raises(
            datarax.MetricInputError,
            match=r"data of window 0 \(step 0\), .* metric = collector.schedule_collection\(",
        ):
            run(step, lambda old, returned: old)
        # The last one may be dropped, and windows without data hold nothing that counts twice.
        assert len(run(step, lambda old, returned: old, windows=1)) == 1
        assert len(run(step, lambda old, returned: old, updates=0)) == 3


def test_another_collector_may_read_the_same_metric():
    metric = Mean()
    with (
        datarax.AsyncMetricCollector(metric) as one,
        datarax.AsyncMetricCollector(metric) as other,
    ):
        for x in (1.0, 3.0):
            metric = metric.update(x)
            one.schedule_collection(metric)  # the other one resets it
            metric = other.schedule_collection(metric)
    for collector in (one, other):
        assert [value for _, value in collector.ready()] == [1.0, 3.0]


def test_a_program_that_resets_the_metric_itself_is_right():
    class Own(Mean):
        """A class that no other program resets."""

    step = jax.jit(lambda m, x, first: jax.lax.cond(first, m.reset, lambda: m).update(x))
    metric = Own()
    with datarax.AsyncMetricCollector(metric, max_in_flight=3) as collector:
        for number in range(6):
            metric = step(metric, float(number), number % 2 == 0)
            if number % 2:
                collector.schedule_collection(metric)
    assert [value for _, value in collector.ready()] == [0.5, 2.5, 4.5]
