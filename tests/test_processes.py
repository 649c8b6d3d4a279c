"""The harness of the tests with real processes: it must catch what it is there to catch."""

import os
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import processes


def _who(offset):
    local = jax.local_devices()
    shape = jnp.arange(jax.process_count()).shape
    return jax.process_index() + offset, len(jax.devices()), len(local), shape


def _fails_on(rank):
    print(f"here is process {jax.process_index()}")
    if jax.process_index() == rank:
        raise ValueError("the threshold was 0.5")
    time.sleep(600)


def _marks_then_hangs():
    processes.mark("started")
    time.sleep(600)


def _unpicklable():
    return lambda: None


def test_each_process_has_one_device_and_returns_its_value():
    assert processes.run(_who, 2, 10) == [(10, 2, 1, (2,)), (11, 2, 1, (2,))]


def test_a_failure_shows_every_output_and_does_not_wait_for_the_others():
    start = time.monotonic()
    with pytest.raises(processes.ProcessFailure, match="the threshold was") as failure:
        processes.run(_fails_on, 2, 1, timeout=120)
    assert "here is process 0" in str(failure.value)
    assert "process 1: raised" in str(failure.value)
    assert time.monotonic() - start < 60


def test_the_processes_stay_until_one_of_them_fails_or_dies():
    first = processes.run(os.getpid, 2)
    assert processes.run(os.getpid, 2) == first
    with processes.kept(_marks_then_hangs, 2, timeout=60) as group:
        group.await_mark(0, "started")
        group.kill(1)
    assert not any(map(processes.alive, first))
    assert not set(processes.run(os.getpid, 2)) & set(first)


def test_killed_stopped_and_hung_processes_are_told_apart_and_end_with_the_group():
    with processes.Group(_marks_then_hangs, 3, join=False, timeout=60) as group:
        for rank in range(3):
            group.await_mark(rank, "started")
        group.kill(0)
        group.stop(1)
        killed, stopped, hung = group.outcomes(timeout=0.5)
        pids = [child.pid for child in group._children]
        with pytest.raises(processes.ProcessFailure, match="never marked 'later': it died"):
            group.await_mark(0, "later")
        with pytest.raises(processes.ProcessFailure, match="did not mark 'later' in time"):
            group.await_mark(2, "later", timeout=0.1)
    assert (killed.ended, killed.code) == ("died", -signal.SIGKILL)
    assert "died of SIGKILL" in str(killed)
    assert (stopped.ended, hung.ended) == ("running", "running")
    assert "_marks_then_hangs" in hung.output  # the stack, from faulthandler
    assert not any(processes.alive(pid) for pid in pids)
    assert not group._folder.exists()


def _sees_a_peer_die():
    if jax.process_index() == 1:
        processes.mark("here")
        time.sleep(600)
    processes.mark("here")
    while "gone" not in sys.stdin.readline():
        pass
    return "alive"


def test_the_others_go_on_after_a_peer_was_killed():
    with processes.Group(_sees_a_peer_die, 3, heartbeat_timeout_seconds=100) as group:
        for rank in range(3):
            group.await_mark(rank, "here")
        group.kill(1)
        for rank in (0, 2):
            group.tell(rank, "gone")
        first, last = group.outcomes(ranks=(0, 2))
        assert (first.value, last.value) == ("alive", "alive")
        assert group.outcomes(ranks=[1])[0].ended == "died"
        with pytest.raises(processes.ProcessFailure, match="process 1: died of SIGKILL"):
            group.results()


def test_what_does_not_pickle_is_a_failure():
    with pytest.raises(processes.ProcessFailure, match="does not pickle"):
        processes.run(_unpicklable, 1, join=False)


def test_no_child_outlives_a_parent_that_is_killed(tmp_path):
    # The child is the parent of a group here; its own alarm is what ends the grandchild.
    script = (
        "from tests import processes, test_processes as t\n"
        "group = processes.Group(t._marks_then_hangs, 1, join=False, timeout=-8)\n"
        "print(group._children[0].pid, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=processes.ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while processes.alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes.alive(pid)


def test_the_port_is_held_while_the_group_lives():
    with processes._reserved_port() as first, processes._reserved_port() as second:
        assert first != second
        assert np.uint16(first) == first


def test_a_group_runs_one_function_after_the_other():
    with processes.kept(_who, 2, 10, timeout=120) as group:
        assert group.results() == [(10, 2, 1, (2,)), (11, 2, 1, (2,))]
        for base in (20, 30):
            group.again(_who, base)
            assert [who[0] for who in group.results()] == [base, base + 1]
        group.again(_fails_on, 1)
        with pytest.raises(processes.ProcessFailure, match="process 1 raised"):
            group.results()


def test_a_process_that_waits_for_its_next_function_is_not_ended():
    with processes.Group(os.getpid, 1, join=False, timeout=-8) as group:  # ended after 2 s
        while group._running(0):
            time.sleep(0.01)
        (first,) = group.outcomes()
        time.sleep(2.5)
        assert first.ended == "returned"
        assert processes.alive(first.value)
        assert group.outcomes()[0].code is None
