"""A collector and a writer in a forked process, and read by threads while the block is left."""

import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import datarax
from datarax import AsyncMetricCollector, CollectorStateError, WriterError
from datarax.io import JSONLWriter
from datarax.metrics import Sum


def in_a_fork(call):
    """What `call` returns in a forked process, as a line of text; a hang ends after a minute."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks
        pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            os.write(write, str(call()).encode())
        finally:
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read) as said:
        assert status == 0
        return said.read()


def errors(*calls, kind):
    """The names of the calls that do not raise an error that says that the process is a fork."""
    wrong = []
    for call in calls:
        try:
            call()
        except kind as error:
            if f"is a fork of process {os.getppid()}" in str(error):
                continue
        wrong.append(call.__name__)
    return wrong


def test_a_forked_process_gets_an_error_and_not_a_wait():
    collector = AsyncMetricCollector(Sum())
    with collector:
        metric = collector.schedule_collection(Sum().update(1))

        def child():
            calls = [collector.ready, collector.collect_results, collector.unbind, collector.bind]

            def schedule_collection():
                collector.schedule_collection(metric.update(2))

            def leave():
                with collector:
                    pass

            wrong = errors(*calls, schedule_collection, leave, kind=CollectorStateError)
            # An error in the block is that of the user.
            collector.__exit__(ValueError, ValueError("mine"), None)
            with AsyncMetricCollector(Sum()) as own:
                own.schedule_collection(Sum().update(3))
                return wrong, own.collect_results()

        assert in_a_fork(child) == "([], 3)"
        collector.schedule_collection(metric.update(4))
        assert [collector.collect_results() for _ in range(2)] == [1, 4]
    # One that is not bound yet may be bound in the fork.
    unbound = AsyncMetricCollector(Sum())

    def bound():
        with unbound:
            unbound.schedule_collection(Sum().update(5))
            return unbound.collect_results()

    assert in_a_fork(bound) == "5"


def test_a_writer_in_a_forked_process(tmp_path):
    writer, unused = JSONLWriter(tmp_path / "a.jsonl"), JSONLWriter(tmp_path / "b.jsonl")
    with writer:
        writer.write(1, {"x": 1})
        writer.flush()

        def child():
            def write():
                writer.write(2, {"x": 2})

            wrong = errors(write, writer.flush, kind=WriterError)
            writer.close()
            with unused:
                unused.write(3, {"x": 3})
            return wrong

        assert in_a_fork(child) == "[]"
        writer.write(4, {"x": 4})
    assert (tmp_path / "a.jsonl").read_text() == '{"step": 1, "x": 1}\n{"step": 4, "x": 4}\n'
    assert (tmp_path / "b.jsonl").read_text() == '{"step": 3, "x": 3}\n'


@pytest.fixture
def switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_read_while_another_leaves_the_block(switching):
    """Each window goes to one of them, and none gets an error of Python's containers."""
    rounds, windows = 15, 6
    with ThreadPoolExecutor(3) as pool:
        for _ in range(rounds):
            collector = AsyncMetricCollector(Sum(), max_in_flight=windows).bind()
            left, start = threading.Event(), threading.Barrier(4)

            def read(collector=collector, left=left, start=start):
                found = []
                start.wait()
                while not left.is_set():
                    found += collector.ready()
                return found

            readers = [pool.submit(read) for _ in range(3)]
            for step in range(windows):
                collector.schedule_collection(Sum().update(step), step=step)
            start.wait()
            try:
                collector.unbind()
            finally:
                left.set()
            found = [pair for each in readers for pair in each.result()] + collector.ready()
            assert sorted(found) == [(step, step) for step in range(windows)]


def test_threads_wait_for_windows_of_which_each_gets_one():
    class Slow(datarax.Metric):
        total = datarax.MetricAccumulator(0)

        def update(self, x):
            return self.replace(total=self.total.update(x))

        def compute(self):
            go.wait(60)
            return self.total.value

    go = threading.Event()
    with AsyncMetricCollector(Slow(), max_in_flight=3) as collector, ThreadPoolExecutor(4) as pool:
        for step in range(3):
            collector.schedule_collection(Slow().update(step))
        waiting = [pool.submit(collector.collect_results) for _ in range(4)]
        go.set()
        errors = [each.exception() for each in waiting]
        assert sorted(each.result() for each in waiting if not each.exception()) == [0, 1, 2]
        (error,) = (each for each in errors if each)
        assert isinstance(error, CollectorStateError)
        assert "no window is scheduled" in str(error)
