"""A collector with a writer: each window is written once, in order, whatever the loop reads."""

import jax
import jax.numpy as jnp
import pytest

import datarax
from datarax.metrics import Mean, Sum
from datarax.training import collector as module


class Kept:
    def __init__(self):
        self.lines, self.flushed = [], 0

    def write(self, step, results):
        self.lines.append((step, results))

    def flush(self):
        self.flushed += 1


@jax.jit
def step(metric, x):
    return metric.update(x)


@pytest.mark.parametrize("reads", ["nothing", "ready", "collect"])
@pytest.mark.parametrize("steps", [True, False])
def test_every_window_is_written_once_and_can_be_read_too(reads, steps):
    writer, got = Kept(), []
    metric = datarax.Collection({"loss": Mean(), "total": Sum()})
    with datarax.AsyncMetricCollector(metric, writer=writer) as collector:
        for number in range(6):
            metric = step_of(metric, number)
            at = 10 * number if steps else None
            metric = collector.schedule_collection(metric, step=at)
            if reads == "ready":
                got += collector.ready()
            if reads == "collect":
                got.append((at, collector.collect_results()))
    numbers = [10 * n if steps else n for n in range(6)]
    assert writer.lines == [(at, {"loss": float(n), "total": n}) for n, at in enumerate(numbers)]
    assert writer.flushed == 1
    got += collector.ready()
    assert got == [
        (at if steps else None, {"loss": float(n), "total": n}) for n, at in enumerate(numbers)
    ]


def step_of(metric, number):
    return metric.update(values=jnp.full((1,), number))


def test_what_nobody_reads_does_not_pile_up(monkeypatch):
    monkeypatch.setattr(module, "_KEPT", 3)
    writer, metric = Kept(), Sum()
    with datarax.AsyncMetricCollector(metric, writer=writer) as collector:
        for number in range(10):
            metric = collector.schedule_collection(step(metric, jnp.int32(number)), step=number)
    assert [at for at, _ in writer.lines] == list(range(10))
    assert [at for at, _ in collector.ready()] == [7, 8, 9]


def test_a_window_that_cannot_be_read_is_an_error_of_the_next_call_and_the_others_are_written():
    writer, metric = Kept(), Mean(on_invalid="raise")
    collector = datarax.AsyncMetricCollector(metric, writer=writer).bind()
    metric = collector.schedule_collection(metric.update(jnp.array([jnp.nan])), step=0)
    for window in collector._windows:
        window.reading.result()
    metric = metric.update(jnp.array([1.0]))
    with pytest.raises(datarax.InvalidValuesError, match=r"window 0 \(step 0\)"):
        collector.schedule_collection(metric, step=1)
    metric = collector.schedule_collection(metric, step=1)
    collector.schedule_collection(metric.update(jnp.array([2.0])), step=2)
    collector.unbind()
    assert writer.lines == [(1, 1.0), (2, 2.0)]


def test_what_cannot_be_written_can_be_read_and_each_error_is_said():
    class Full(Kept):
        def write(self, step, results):
            raise OSError(f"no place for {step}")

    writer, metric, said = Full(), Sum(), []
    collector = datarax.AsyncMetricCollector(metric, writer=writer, max_in_flight=3).bind()
    for number in range(3):
        updated, metric = step(metric, jnp.int32(number)), None
        while metric is None:
            try:
                metric = collector.schedule_collection(updated, step=number)
            except OSError as error:  # of earlier windows; this one is not scheduled then
                said += [str(error), *getattr(error, "__notes__", ())]
    for window in collector._windows:
        window.reading.result()
    with pytest.raises(OSError, match="no place for") as failed:
        collector.unbind()
    said += [str(failed.value), *getattr(failed.value, "__notes__", ())]
    assert [line.removeprefix("also OSError: ") for line in said] == [
        f"no place for {number}" for number in range(3)
    ]
    assert writer.flushed == 1
    assert collector.ready() == [(0, 0), (1, 1), (2, 2)]


def test_a_block_that_fails_writes_what_has_finished():
    writer, metric = Kept(), Mean()
    collector = datarax.AsyncMetricCollector(metric, writer=writer)

    def loop(metric):
        with collector:
            collector.schedule_collection(metric.update(jnp.array([1.0])), step=1)
            for window in collector._windows:
                window.reading.result()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop(metric)
    assert writer.lines == [(1, 1.0)]


def test_something_else_than_a_writer_is_refused():
    with pytest.raises(datarax.MetricTypeError, match="writer= expects an object with write"):
        datarax.AsyncMetricCollector(Mean(), writer="history.jsonl")
