"""Real processes that fail: each fault is a named error in bounded time, and nothing is lost."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

import datarax
import datarax.io
from datarax.distributed import global_batch
from datarax.metrics import Accuracy
from tests import processes
from tests.helpers import long, make_mesh
from tests.training.loops import Seen

# What an error may take over its timeout: the store's own patience, and a machine that is busy.
SLACK = 15.0


def start(examples):
    """A metric over all processes, and what updates it with this process's own examples."""
    mesh = make_mesh("auto", {"data": jax.process_count()})
    metrics = {"seen": Seen(examples), "accuracy": Accuracy(num_classes=2)}
    metric = datarax.per_device(datarax.Collection(metrics), mesh, "data")
    step = jax.jit(lambda m, batch, real: m.update(**batch, weights=real), donate_argnums=0)

    def update(metric, ids):
        ids = np.asarray(ids, np.int32)
        batch = {"ids": ids, "preds": ids % 2, "target": ids % 2}
        return step(metric, *global_batch(batch, mesh, "data", rows=16))

    return metric, update


def own_state(metric):
    """The bytes of this process's part of a state."""
    return [np.asarray(leaf.addressable_data(0)).tobytes() for leaf in jax.tree.leaves(metric)]


def times_seen(pairs):
    return [(step, results["seen"].tolist()) for step, results in pairs]


def told(text):
    """Waits until the test says so."""
    processes.mark(f"before {text}")
    assert sys.stdin.readline().strip() == text


# Processes that are late, stopped, killed.


def windows_on_command(timeout):
    """Schedules a window whenever it is told to, and prints what each call came to."""
    rank, count = jax.process_index(), jax.process_count()
    metric, update = start(64)
    example, before = rank, None
    with datarax.AsyncMetricCollector(metric, timeout=timeout) as collector:
        for command in ("first", "stopped", "again", "killed"):
            metric = update(metric, [example])
            example += count
            told(command)
            before, began = own_state(metric), time.monotonic()
            try:
                metric, said = collector.schedule_collection(metric, step=command), None
            except datarax.MetricTimeoutError as error:
                said = str(error)
            seconds, kept = time.monotonic() - began, own_state(metric) == before
            seen = (
                [] if said else collector.collect_results(timeout=60)["seen"].nonzero()[0].tolist()
            )
            print("LOG", json.dumps([command, said, seconds, kept, seen]), flush=True)
            processes.mark(f"after {command}")
        # What is left can still be used: the state is this process's own.
        return own_state(update(metric, [example])) != before, collector.ready()


def log_of(outcome):
    """What a process has printed, whatever has become of it."""
    lines = [line[4:] for line in outcome.output.splitlines() if line.startswith("LOG ")]
    return {command: rest for command, *rest in map(json.loads, lines)}


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=long)])
def test_a_stopped_and_a_killed_process_are_named_and_nothing_is_lost(victim):
    timeout, alive = 4.0, [rank for rank in range(3) if rank != victim]
    with processes.kept(windows_on_command, 3, timeout, timeout=150) as group:

        def tell(command, ranks):
            for rank in range(3):
                group.await_mark(rank, f"before {command}")
            if len(ranks) < 3 and command == "stopped":
                group.stop(victim)
            if len(ranks) < 3 and command == "killed":
                group.kill(victim)
            for rank in ranks:
                group.tell(rank, command)
            for rank in ranks:
                group.await_mark(rank, f"after {command}")

        tell("first", range(3))
        tell("stopped", alive)
        group.resume(victim)  # it comes late, to a window that the others have left
        group.tell(victim, "stopped")
        tell("again", range(3))
        if victim == 0:  # JAX's own runtime is coordinated from there, and ends all others
            for rank in alive:
                group.await_mark(rank, "before killed")
            group.kill(0)
            outcomes = group.outcomes(alive, timeout=30)
            assert [outcome.ended for outcome in outcomes] == ["died", "died"]
            assert all("another task died" in outcome.output for outcome in outcomes)
        else:
            tell("killed", alive)
            outcomes = group.outcomes(alive)
            assert [outcome.value for outcome in outcomes] == [(True, [])] * 2
    for outcome in outcomes:
        log = log_of(outcome)
        said, _, _, seen = log["first"]
        assert (said, seen) == (None, [0, 1, 2])
        # The updates of the window that failed are in the next one.
        said, _, _, seen = log["again"]
        assert (said, seen) == (None, [3, 4, 5, 6, 7, 8])
        for command in {"stopped", "killed"} & log.keys():
            said, seconds, kept, _ = log[command]
            assert f"(step {command})" in said
            assert f"process {victim}" in said
            assert ("of 3 has not reached it" if victim else "cannot be reached") in said
            assert seconds < timeout + SLACK
            assert kept


# Processes that fail in their own code, or leave.


class Moody(datarax.Metric):
    """Its compute fails on process 1, until it is allowed."""

    seen = datarax.MetricAccumulator(0)
    allowed: ClassVar[list[bool]] = []

    def update(self, ids, *, weights=None):
        return self.replace(seen=self.seen.update(ids, where=weights))

    def compute(self):
        if jax.process_index() == 1 and not Moody.allowed:
            raise KeyError("no such curve")
        return self.seen.value


def failures():
    """What each of several faults comes to on this process, where no timeout helps."""
    rank, count = jax.process_index(), jax.process_count()
    mesh = make_mesh("auto", {"data": count})
    said = {}

    def attempt(name, call):
        try:
            said[name] = call()
        except (datarax.DataraxError, ArithmeticError) as error:
            said[name] = type(error).__name__, str(error)

    def updated(metric, x):
        return metric.update(*global_batch(np.full(1, x, np.int32), mesh, "data")[:1])

    # One comes too late, to the first window of all; and with the next, all is well.
    metric = updated(datarax.per_device(Moody(), mesh, "data"), 1)
    Moody.allowed.append(True)
    with datarax.AsyncMetricCollector(metric, timeout=3.0) as collector:
        if rank == 1:
            told("late")
        attempt("late", lambda: collector.schedule_collection(metric, step="late"))
        processes.mark("gave up")
    collector = datarax.AsyncMetricCollector(metric)  # no timeout from here on
    with collector:
        metric = collector.schedule_collection(metric, step="all")
        said["all"] = collector.collect_results()
        # An exception in compute, on one: the others read their copy of the state.
        Moody.allowed.clear()
        metric = collector.schedule_collection(updated(metric, 2), step="compute")
        attempt("compute", collector.collect_results)
        Moody.allowed.append(True)
        metric = collector.schedule_collection(updated(metric, 3), step="next")
        said["next"] = collector.collect_results()

    # An exception in the step of one.
    def loop():
        nonlocal metric
        with collector:
            metric = updated(metric, 4)
            if rank == 2:
                raise ArithmeticError("bad batch")
            collector.schedule_collection(metric, step="step")

    attempt("step", loop)

    # One runs a window less than the others, another an argument that is none.
    def shorter():
        nonlocal metric
        with collector:
            if rank != 0:
                collector.schedule_collection(metric, step="longer")

    attempt("left", shorter)
    # One skips a window: the others must not merge its next one with theirs.
    with collector:
        for step in (10, 20, 30):
            if rank == 1 and step == 20:
                continue
            try:
                collector.schedule_collection(updated(metric.reset(), 1), step=step)
                assert collector.collect_results() == 3
            except datarax.DataraxError as error:
                said["skipped"] = type(error).__name__, str(error)
                break
    with collector:
        wrong = Accuracy() if rank == 2 else metric
        attempt("wrong", lambda: collector.schedule_collection(wrong, step="wrong"))
        metric = collector.schedule_collection(metric, step="end")
        said["end"] = collector.collect_results()
    return said


def test_one_process_that_fails_is_an_error_on_all_and_needs_no_timeout():
    with processes.kept(failures, 3, timeout=120) as group:
        for rank in (0, 2):
            group.await_mark(rank, "gave up")
        group.tell(1, "late")
        outcomes = group.results()
    for rank, said in enumerate(outcomes):
        kinds = {name: what[0] for name, what in said.items() if isinstance(what, tuple)}
        own = {"compute": 1, "step": 2, "wrong": 2}
        of = {"compute": "WindowError", "step": "ArithmeticError"}
        of["wrong"] = "ConfigurationMismatchError"
        for name in ("late", "compute", "step", "left", "wrong"):
            if name == "left" and rank == 0:
                assert said[name] is None
            elif name == "compute" and rank != 1:
                assert said[name] == 6
            elif own.get(name) == rank:
                assert kinds[name] == of[name]
            else:
                assert kinds[name] == "MetricTimeoutError"
                assert f"(step {'longer' if name == 'left' else name})" in said[name][1]
        others = {name: said[name][1] for name in kinds if own.get(name) != rank}
        assert re.search(r"process(es)? (\d, )*1.* of 3 ha(s|ve) not reached it", others["late"])
        if rank == 1:
            assert "window 1 (step compute) failed: 'no such curve'" in said["compute"][1]
        assert "bad batch" in said["step"][1]
        assert kinds.pop("skipped") == "CollectorStateError"
        steps = "20 on process 0, 30 on process 1, 20 on process 2; a process has skipped a window"
        assert steps in said["skipped"][1]
        assert "process 2 failed: ArithmeticError" in others.get("step", "") or rank == 2
        assert "process 0 has left" in others.get("left", "") or rank == 0
        assert "process 2 failed: cannot collect" in others.get("wrong", "") or rank == 2
        # No update of a window that could not be scheduled is lost.
        assert (said["all"], said["next"], said["end"]) == (3, 9, 12)


# A process that is killed, and a job that goes on with fewer.

EXAMPLES, BATCH, WINDOW, SAVED = 240, 8, 7, 10


def train(folder, victim):
    """Goes through all examples once, from the last checkpoint on; counts them in windows.

    Windows end at every seventh step, and checkpoints are made at every tenth, so in mid-window. A
    checkpoint holds the window under way, and the results of those before.
    """
    rank, count = jax.process_index(), jax.process_count()
    metric, update = start(EXAMPLES)
    saved = sorted(Path(folder).glob("step*.json"))
    first, results = 0, []
    if saved:
        first, results = json.loads(saved[-1].read_text())
        metric = datarax.io.restore(saved[-1].with_suffix(""), like=metric)
    with datarax.AsyncMetricCollector(metric, timeout=6.0) as collector:
        for step in range(first, EXAMPLES // BATCH):
            batch = np.arange(step * BATCH, (step + 1) * BATCH)
            metric = update(metric, np.array_split(batch, count)[rank])
            if (rank, step) == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % WINDOW == WINDOW - 1:
                metric = collector.schedule_collection(metric, step=step)
            if step % SAVED == SAVED - 1:
                results += collected(collector)
                path = Path(folder) / f"step{step:03}"
                datarax.io.save(path, metric)
                if rank == 0:
                    part = path.with_suffix(".part")
                    part.write_text(json.dumps([step + 1, results]))
                    part.replace(path.with_suffix(".json"))
        collector.schedule_collection(metric, step="end")
        results.append(collector.collect_results()["seen"].tolist())
    return first, results


def collected(collector):
    """All windows that have been scheduled, waited for."""
    results = []
    with contextlib.suppress(datarax.CollectorStateError):
        while True:
            results.append(collector.collect_results()["seen"].tolist())
    return results


@pytest.mark.parametrize("before", [2, pytest.param(3, marks=long)])
def test_after_a_kill_fewer_processes_go_on_from_the_checkpoint_to_the_same_counts(
    before, tmp_path
):
    undisturbed, broken = tmp_path / "undisturbed", tmp_path / "broken"
    for folder in (undisturbed, broken):
        folder.mkdir()
    victim = before - 1
    with processes.kept(train, before, str(broken), (victim, 23), timeout=120) as group:
        ended = group.outcomes()
    assert ended[victim].code == -signal.SIGKILL
    for each in ended[:victim]:
        assert isinstance(each.value, datarax.MetricTimeoutError), str(each)
        assert "(step 27)" in str(each.value)
        assert f"process {victim} of {before} has not reached it" in str(each.value)
    # A single process is this one.
    go_on = (str(broken), None)
    again = processes.run(train, before - 1, *go_on) if before > 2 else [train(*go_on)]
    _, whole = train(str(undisturbed), None)
    for first, results in again:
        assert first == 20
        assert results == whole
    assert np.sum(whole, 0).tolist() == [1] * EXAMPLES
