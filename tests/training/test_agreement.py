"""Real processes: they agree on what they collect, and then on every number of it."""

import os
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import datarax
from datarax.distributed import global_batch
from datarax.distributed.barrier import Barrier
from datarax.metrics import Accuracy, Max, Mean
from datarax.training import StatefulMetric, check_agreement
from datarax.training.agreement import agree as compare
from tests import processes
from tests.helpers import long, make_mesh
from tests.training.loops import Seen

TIMEOUT = 30.0


def said_by(call):
    try:
        return call()
    except datarax.DataraxError as error:
        return type(error).__name__, str(error)


# Agreement.


def pairs():
    """By name: what one process holds, what all others do, and what the error names, if any."""
    accuracy, mean = Accuracy(), Mean()
    both = {"accuracy": accuracy, "loss": mean.from_outputs(values="loss")}
    return {
        "the same": (accuracy, Accuracy(threshold=0.5), ()),
        "threshold": (
            Accuracy(threshold=0.9),
            accuracy,
            (
                "Accuracy.",
                "threshold is 0.5 on process 0 and 0.9 on",
            ),
        ),
        "class": (accuracy, Max(), ("metric is Max on process 0 and Accuracy on process",)),
        "name": (
            datarax.Collection({"acc": accuracy}),
            datarax.Collection({"accuracy": accuracy}),
            ("Collection.acc is not there on process 0 and Accuracy on process",),
        ),
        "one more": (
            datarax.Collection(both),
            datarax.Collection({"loss": both["loss"]}),
            ("Collection.accuracy is not there on process 0 and Accuracy on process",),
        ),
        "order": (
            datarax.Collection(both),
            datarax.Collection(dict(reversed(both.items()))),
            (),
        ),
        "deep": (
            datarax.Collection({"a": datarax.Collection({"b": Accuracy(top_k=1, num_classes=3)})}),
            datarax.Collection({"a": datarax.Collection({"b": Accuracy(top_k=2, num_classes=3)})}),
            ("Collection.a.b.", "top_k", "is 2 on process 0 and 1 on"),
        ),
        "output": (
            mean.from_outputs(values="loss"),
            mean.from_outputs(values="losses"),
            ("Mean.outputs", "'losses'", "'loss'"),
        ),
        "policy": (mean, Mean(on_invalid="raise"), ("Mean.on_invalid", "propagate", "raise")),
        "plain or a collection": (
            mean,
            datarax.Collection({"mean": mean}),
            ("metric is Collection on process 0 and Mean on process",),
        ),
        "the same again": (datarax.Collection(both), datarax.Collection(both), ()),
    }


def agree(odd):
    mine = jax.process_index() == odd
    said = {
        name: said_by(lambda metric=one if mine else other: check_agreement(metric, TIMEOUT))
        for name, (one, other, _) in pairs().items()
    }
    # The collector checks before its first window; a metric that it refuses keeps its state.
    mesh = make_mesh("auto", {"data": jax.process_count()})
    (x, target), _ = global_batch((np.full(2, 0.7), np.ones(2, np.int32)), mesh, "data")
    collected = []
    for threshold in (0.9 if mine else 0.5, 0.5):
        metric = datarax.per_device(Accuracy(threshold=threshold), mesh, "data").update(x, target)
        with datarax.AsyncMetricCollector(metric, timeout=TIMEOUT) as collector:
            refused = said_by(lambda c=collector, m=metric: bool(c.schedule_collection(m, step=1)))
            metric.update(x, target)
        collected.append((refused, collector.ready()))
    return said, collected


def test_a_difference_is_the_same_error_on_every_process_and_names_metric_and_field():
    cases = {name: named for name, (_, _, named) in pairs().items()}
    for odd, count in ((2, 3), (0, 2)):
        outcomes = processes.run(agree, count, odd)
        for said, collected in outcomes:
            for name, named in cases.items():
                check_said(said[name], named, odd)
            ((kind, message), nothing), (accepted, results) = collected
            assert kind == "ConfigurationMismatchError"
            assert "Accuracy.threshold is" in message
            assert nothing == []
            assert accepted is True
            assert results == [(1, 1.0)]
        for name in cases:
            assert len({said[name] for said, _ in outcomes}) == 1


def check_said(said, named, odd):
    if not named:
        assert said is None
        return
    kind, message = said
    assert kind == "ConfigurationMismatchError"
    assert f"on process {odd or 1};" in message
    if odd:  # else the two sides of the message are exchanged
        assert all(text in message for text in named), message


def leaves_at_once(folder, how):
    """Process 0 ends without a word as soon as it has its error; all write down what they got."""
    rank = jax.process_index()
    processes.mark("ready")
    if how == "late":
        call = partial(Barrier().wait, 2.0, "hello")
        if rank == 1:
            time.sleep(600)
    elif how == "agreement":
        call = partial(check_agreement, Accuracy(threshold=0.5 + rank / 10))
    else:
        mesh = make_mesh("auto", {"data": jax.process_count()})
        metric = datarax.per_device(Accuracy(threshold=0.5 + rank / 10), mesh, "data")
        collector = datarax.AsyncMetricCollector(metric).bind()
        call = partial(collector.schedule_collection, metric)
    said = said_by(call)
    (Path(folder) / str(rank)).write_text(" ".join(said))
    os._exit(3)


@pytest.mark.parametrize(
    "how", ["agreement", pytest.param("collector", marks=long), pytest.param("late", marks=long)]
)
def test_all_raise_although_process_0_leaves_at_once(tmp_path, how):
    with processes.Group(leaves_at_once, 3, str(tmp_path), how, timeout=90) as group:
        for rank in range(3):
            group.await_mark(rank, "ready")
        ranks = (0, 2) if how == "late" else (0, 1, 2)
        start = time.monotonic()
        outcomes = group.outcomes(ranks, timeout=60)
        assert time.monotonic() - start < 30
    assert [outcome.code for outcome in outcomes] == [3] * len(ranks), outcomes
    for rank in ranks:
        said = (tmp_path / str(rank)).read_text()
        if how == "late":
            assert said.startswith("MetricTimeoutError hello: process 1 of 3 has not reached it")
        else:
            assert said.startswith("ConfigurationMismatchError the processes hold different")
            assert "Accuracy.threshold is 0.5 on process 0 and 0.6 on process 1" in said


# The same results everywhere, and the right ones.


def uneven(ids, owner, bad):
    """Each process has its own examples, some have none; one runs two more steps per window."""
    rank, count = jax.process_index(), jax.process_count()
    mesh = make_mesh("auto", {"data": count})
    order = ["seen", "loss", "accuracy"] if rank % 2 else ["accuracy", "seen", "loss"]
    metrics = {
        "seen": Seen(ids.size),
        "loss": Mean(on_invalid="exclude").from_outputs(values="loss"),
        "accuracy": Accuracy(num_classes=3, on_invalid="exclude"),
    }
    metric = datarax.per_device(datarax.Collection({k: metrics[k] for k in order}), mesh, "data")
    step = jax.jit(lambda m, batch, real: m.update(**batch, weights=real), donate_argnums=0)
    reads = []
    windows = [np.flatnonzero(owner[w] == rank) + w * owner.shape[1] for w in range(len(owner))]
    with datarax.AsyncMetricCollector(metric, timeout=TIMEOUT) as collector:
        for w, mine in enumerate(windows):
            for part in np.array_split(mine, 3 if rank else 5):
                target = (ids[part] % 3).astype(np.int32)
                loss = ids[part].astype(np.float32)
                if rank == 1:  # NaN, infinities and labels out of range, here only
                    loss = np.where(bad[part], np.where(part % 2, np.nan, np.inf), loss)
                    target = np.where(bad[part], np.where(part % 2, 3, -100), target)
                batch = {
                    "ids": ids[part].astype(np.int32),
                    "loss": loss.astype(np.float32),
                    "preds": (ids[part] % 3).astype(np.int32),
                    "target": target.astype(np.int32),
                }
                metric = step(metric, *global_batch(batch, mesh, "data", rows=24))
            metric = collector.schedule_collection(metric, step=w)
            reads += collector.ready()
    return reads + collector.ready()


def test_uneven_processes_get_the_same_right_results(rng):
    windows, per_window = 4, 60
    ids = rng.permutation(windows * per_window)
    owner = rng.integers(0, 3, (windows, per_window))
    owner[1] = rng.integers(0, 2, per_window)  # the last process has no data at all
    owner[2] = 1  # one has all
    bad = rng.random(ids.size) < 0.3
    first, *others = processes.run(uneven, 3, ids, owner, bad)
    assert [step for step, _ in first] == list(range(windows))
    for other in others:
        for (step, ours), (at, theirs) in zip(first, other, strict=True):
            assert step == at
            jax.tree.map(
                lambda a, b: np.testing.assert_array_equal(a, b, strict=True), ours, theirs
            )
    assert np.sum([results["seen"] for _, results in first], 0).tolist() == [1] * ids.size
    for w, (_, results) in enumerate(first):
        here = np.arange(w * per_window, (w + 1) * per_window)
        spoilt = bad[here] & (owner[w] == 1)
        assert results.get("loss/invalid", 0) == spoilt.sum()
        assert results.get("accuracy/invalid", 0) == spoilt.sum()
        good = ids[here][~spoilt]
        # One division of two exact sums.
        np.testing.assert_array_max_ulp(
            np.float32(results["loss"]), np.float32(good.mean()), maxulp=1
        )
        assert results["accuracy"] == 1.0


def layouts(ids):
    """The same stream through a plain metric, a `StatefulMetric` and `per_device`."""
    mesh = make_mesh("auto", {"data": jax.process_count()})
    rank, count, size = jax.process_index(), jax.process_count(), ids.size
    replicated = StatefulMetric(Seen(size))
    in_place = nnx.jit(lambda m, x: m.update(x))
    per_device = datarax.per_device(Seen(size), mesh, "data")
    read = {}
    for name, metric, update in (
        ("plain", Seen(size), jax.jit(Seen.update)),
        ("plain, in place", replicated, in_place),
        ("per_device", per_device, jax.jit(lambda m, x: m.update(x))),
        ("per_device, in place", StatefulMetric(per_device), in_place),
    ):
        with datarax.AsyncMetricCollector(metric, timeout=TIMEOUT) as collector:
            for i, chunk in enumerate(np.split(ids, 6)):
                mine = np.split(chunk, count)[rank].astype(np.int32)
                updated = update(metric, global_batch(mine, mesh, "data")[0])
                if isinstance(metric, StatefulMetric):
                    jax.block_until_ready(metric.metric)  # as one does on CPU
                    if i % 2:
                        collector.schedule_collection(step=i)
                else:
                    metric = jax.block_until_ready(updated)
                    if i % 2:
                        metric = collector.schedule_collection(metric, step=i)
        read[name] = collector.ready()
    with datarax.AsyncMetricCollector(Mean(), timeout=TIMEOUT) as collector:
        for local in (
            Mean().update(jnp.float32(rank)),
            Mean().load_state_dict(Mean().update(1.0).state_dict()),
        ):
            read.setdefault("refused", []).append(
                said_by(lambda m=local, c=collector: c.schedule_collection(m))
            )
    return read


def test_every_layout_of_a_metric_is_collected_over_processes(rng):
    ids = rng.permutation(48)
    for read in processes.run(layouts, 2, ids):
        for kind, message in read.pop("refused"):
            assert kind == "NotAddressableError"
            assert "global_batch" in message
        for name, pairs_read in read.items():
            assert [step for step, _ in pairs_read] == [1, 3, 5], name
            for (_, times), third in zip(pairs_read, np.split(ids, 3), strict=True):
                assert np.flatnonzero(times).tolist() == sorted(third.tolist()), name
                assert times.sum() == third.size


# The barrier itself.


def only_note(notes):
    (note,) = set(notes.values())
    return note


def rounds():
    rank, said, others = jax.process_index(), [], set(threading.enumerate())
    barriers = [Barrier() for _ in range(12)]  # more than ten: no name may begin another's
    for barrier in barriers[::-1]:
        said.append(barrier.wait(TIMEOUT, "hello", str(rank), lambda notes: str(sorted(notes))))
    barrier = barriers[0]
    for i in range(20):
        said.append(barrier.wait(TIMEOUT, "hello", f"{rank} {i}", lambda notes: notes[1]))
    # One goes on to the next round at once, whose note is not for this one.
    for i in range(100):
        said.append(barrier.wait(TIMEOUT, "hello", str(i), only_note))
        said.append(barrier.wait(TIMEOUT, "hello", f"other {rank}", lambda notes: notes[0]))
    # One judges when the other has gone on, and has withdrawn what it had published.
    barrier.publish("text", b"all" * 2**20)

    def slowly(notes):
        time.sleep(2.0 * rank)  # the other looks again who is there after 1 s
        return str(len(barrier.published("text", 0, barrier.round)))

    time.sleep(0.3 * rank)
    said.append(barrier.wait(TIMEOUT, "hello", "", slowly))
    barrier.withdraw()
    # One compares its metric, which has moved, and the other arrives without waiting.
    apart, level = barriers[4], barriers[3]
    if rank == 0:
        apart.arrive(TIMEOUT)
        level.wait(TIMEOUT, "let the other compare")
        apart.arrive(TIMEOUT)
        apart.arrive(TIMEOUT)  # before the other looks
        level.wait(TIMEOUT, "let the other be late")
    else:
        said.append(said_by(lambda: compare(apart, Mean(), TIMEOUT, "hello")))
        level.wait(TIMEOUT, "let the other go on")
        level.wait(TIMEOUT, "let the other go on")
        said.append(said_by(lambda: compare(apart, Mean(), None, "hello")))
    # Without waiting, as on accelerators.
    if rank == 0:
        barrier.arrive(TIMEOUT)
        processes.mark("passed")
        before = barrier.missing(barrier.round - 1)
        barriers[1].wait(TIMEOUT, "let the other pass")
    else:
        barriers[1].wait(TIMEOUT, "let the other pass")
        before = None
        barrier.arrive(TIMEOUT)
    if rank == 1:
        barrier.mark_waiting(barrier.round - 1)
    barriers[2].wait(TIMEOUT, "both have passed")
    keys = barrier._call("key_value_dir_get", "", deadline=float("inf"))
    threads = [thread.name for thread in threading.enumerate() if thread not in others]
    return (
        said,
        before,
        barrier.missing(barrier.round - 1),
        barrier.missing(barrier.round),
        keys,
        threads,
    )


def test_a_barrier_holds_its_rounds_together():
    moved = "the metric has moved to another mesh on some processes only, and not on: 0"
    for said, before, after, beyond, keys, threads in processes.run(rounds, 2):
        assert said[:12] == ["[0, 1]"] * 12
        assert said[12:32] == [f"1 {i}" for i in range(20)]
        assert said[32:232:2] == [str(i) for i in range(100)]
        assert said[33:232:2] == ["other 0"] * 100
        assert said[232] == str(3 * 2**20)
        gone = "hello: a process has gone on without it"
        assert [text.partition(";")[0] for _, text in said[233:]] in ([], [moved, gone])
        assert before in (None, "process 1 of 2 has not reached it")
        assert after == "all processes have reached it, but these processes do not wait for it: 0"
        assert beyond == "processes 0, 1 of 2 have not reached it"
        # Round, who waits, and the last outcome: a long run leaves no more keys.
        assert len(keys) <= 4, keys
        assert threads == []
