"""Checkpoints of several processes: one whole, that restores on fewer, every count the same."""

import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

import datarax
from datarax import NotAddressableError
from datarax.distributed import global_batch
from datarax.io import pack, restore, save, unpack
from datarax.metrics import Accuracy, Mean, Std
from tests import processes
from tests.helpers import make_mesh
from tests.io.kinds import assert_same_bits, assert_same_results

ROWS = 32  # of each process in a step; those it does not have are padded


class Count(datarax.Metric):
    seen = datarax.MetricAccumulator(0)

    def update(self, values, *, weights):
        return self.replace(seen=self.seen.update(weights))

    def compute(self):
        return self.seen.value


def make():
    return datarax.Collection(
        {
            "count": Count(),
            "mean": Mean(),
            "std": Std(),
            "accuracy": Accuracy(num_classes=5).from_outputs(preds="labels", target="values"),
        }
    )


def spread(kind="auto"):
    return datarax.per_device(make(), make_mesh(kind, {"data": jax.device_count()}), "data")


def folded_over_processes(metric, own):
    """Each process its own examples, of which there may be none."""
    batch, real = global_batch(own, metric.mesh, metric.axis_names, rows=ROWS)
    return jax.block_until_ready(metric.update(**batch, weights=real))


# What each process runs.


def save_own(folder, parts):
    own = parts[jax.process_index()]
    metric = folded_over_processes(spread(), own)
    save(folder / "all", metric)
    save(folder / "twice", metric.reset(), overwrite=True)
    save(folder / "twice", metric, overwrite=True)
    with ocp.CheckpointManager(folder / "run") as manager:
        arrays, info = pack(metric)
        args = ocp.args.Composite(
            seen=ocp.args.PyTreeSave(arrays), seen_info=ocp.args.JsonSave(info)
        )
        manager.save(7, args=args)
        manager.wait_until_finished()
    # A state of one's own, never made global: each process would save its own answer.
    local = make().update(**own, weights=np.ones(len(own["values"]), bool))
    said = []
    for call in (lambda: save(folder / "local", local), lambda: pack(local)):
        try:
            call()
        except NotAddressableError as error:
            said.append(str(error))
    back = restore(folder / "twice", spread("explicit"))
    return metric.results(), back.results(), said


def restore_and_go_on(folder, parts):
    metric = restore(folder / "all", spread())
    before = metric.results()
    plain = restore(folder / "all", make())
    save(folder / "again", plain)  # the same on every process: nothing of it is one's own
    metric = folded_over_processes(metric, parts[jax.process_index()])
    return before, metric.results(), plain.results()


def save_while_others_fail(folder, timeout):
    """What `save` and `restore` come to where another process passes no metric, and where one is
    killed."""
    metric = folded_over_processes(spread(), {"values": np.arange(3), "labels": np.arange(3)})
    said, kept = [], metric
    save(folder / "before", metric)
    for wrong in (None, "killed"):
        if wrong is None and jax.process_index() == 1:
            metric = wrong
        processes.mark(f"before {wrong}")
        sys.stdin.readline()
        for call in (
            lambda metric=metric: save(folder / "a", metric, timeout=timeout),
            lambda metric=metric: restore(folder / "before", metric, timeout=timeout),
        ):
            began = time.monotonic()
            try:
                call()
            except datarax.DataraxError as error:
                said.append((type(error).__name__, str(error), time.monotonic() - began))
        metric = kept
    return said, own_files(folder)


def own_files(folder):
    return sorted(path.name for path in folder.iterdir())


# The tests.


def test_a_process_that_fails_or_is_killed_is_named_by_all_others(tmp_path):
    timeout = 3.0
    with processes.Group(save_while_others_fail, 3, tmp_path, timeout, timeout=150) as group:
        for command in ("None", "killed"):
            for rank in range(3):
                group.await_mark(rank, f"before {command}")
            if command == "killed":
                group.kill(2)
            for rank in range(3 if command == "None" else 2):
                group.tell(rank, command)
        outcomes = group.outcomes((0, 1))
    for outcome in outcomes:
        assert outcome.ended == "returned", outcome
        said, files = outcome.value
        assert len(said) == 4
        calls = f"save: {tmp_path / 'a'}", f"restore: {tmp_path / 'before'}"
        for call, wrong, killed in zip(calls, said[:2], said[2:], strict=True):
            if outcome.rank == 1:
                assert wrong[0] == "MetricTypeError"
            else:
                assert wrong[0] == "MetricTimeoutError"
                assert "process 1 failed: expected a datarax.Metric; got NoneType" in wrong[1]
            assert killed[0] == "MetricTimeoutError"
            assert call in killed[1]
            assert "process 2 of 3 has not reached it" in killed[1]
            assert max(wrong[2], killed[2]) < timeout + 15
        assert files == ["before"]


def random_parts(rng, counts):
    def some(rows):
        return {
            "values": rng.integers(0, 5, rows, np.int32),
            "labels": rng.integers(0, 5, rows, np.int32),
        }

    return [some(rows) for rows in counts]


def test_saved_by_3_processes_restored_on_2_and_on_1(tmp_path, rng):
    counts = [*rng.multinomial(42, [0.6, 0.4]) % ROWS, 0]  # the last has no example
    parts, more = random_parts(rng, counts), random_parts(rng, [20, 22])
    everyone = processes.run(save_own, 3, tmp_path, parts, timeout=180)
    want = everyone[0][0]
    assert want["count"] == sum(counts)
    for saved, twice, said in everyone:
        assert_same_results(saved, want)
        assert_same_results(twice, want)
        assert [message.split(";")[0] for message in said] == [
            "the processes hold different states of Collection, and a checkpoint would keep the "
            "state of one process only"
        ] * 2
    assert not (tmp_path / "local").exists()

    # On one process: as a plain metric, and on its own devices.
    plain = restore(tmp_path / "all", make())
    assert_same_results(plain.results(), want)
    assert_same_bits(restore(tmp_path / "twice", make()), plain)
    for devices in (1, 8):
        mesh = make_mesh("explicit", {"data": devices})
        back = restore(tmp_path / "all", datarax.per_device(make(), mesh, "data"))
        assert_same_results(back.results(), want)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(seen=ocp.args.PyTreeRestore(), seen_info=ocp.args.JsonRestore())
        found = manager.restore(manager.latest_step(), args=args)
    assert_same_bits(unpack(found["seen"], found["seen_info"], make()), plain)

    # On two, which go on: 20 and 22 examples more are 42 more, and not 20.
    one = plain
    for part in more:
        one = one.update(**part, weights=np.ones(len(part["values"]), bool))
    for before, after, same in processes.run(restore_and_go_on, 2, tmp_path, more, timeout=120):
        assert_same_results(before, want)
        assert_same_results(same, want)
        assert after["count"] == want["count"] + 42
        assert_same_results(after, one.results(), 1e-6)
    assert_same_bits(restore(tmp_path / "again", make()), plain)
