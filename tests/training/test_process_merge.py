"""Real processes merge what each of them holds; faults are named, and leave nothing behind."""

import sys
from functools import reduce
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.distributed import check_same, global_batch
from datarax.distributed.barrier import Barrier, barrier_of
from tests import processes
from tests.helpers import bits, draw, make_mesh
from tests.io.kinds import Kept

COUNT = 3
TIMEOUT = 30.0
WORDS = ["a", "b", "c", "d", "é"]


def several() -> datarax.Collection:
    """Of each kind: sums, maxima, large bins, slices, windows, rows, texts."""
    mean = metrics.Mean()
    return datarax.Collection(
        {
            "mean": mean,
            "max": metrics.Max(),
            "std": metrics.Std(),
            "median": metrics.Median(),
            "sliced": datarax.Sliced(mean, 3),
            "window": datarax.Window(metrics.Sum(), 2),
            "wer": metrics.WER().from_outputs(preds="texts", target="references"),
            "kept": Kept(16).from_outputs(values="rows"),  # the first rows, as bfloat16
            "words": metrics.DistinctN().from_outputs(preds="texts"),
        }
    )


def batch_of(rng: np.random.Generator, size: int) -> dict[str, Any]:
    texts, references = (
        [" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in range(size)] for _ in range(2)
    )
    return {
        "values": draw(rng, (size,)),
        "rows": draw(rng, (size, 3)),
        "slices": rng.integers(0, 4, size).astype(np.int32),
        "texts": texts,
        "references": references,
    }


def left_in_the_store() -> list[str]:
    """The keys of both functions, once all processes have returned from them."""
    barriers = [barrier_of("merge_processes"), barrier_of("check_same")]
    Barrier().wait(TIMEOUT, "all have returned")
    return [key for each in barriers for key, _ in each._call("key_value_dir_get_bytes", "")]


def merge_each(streams: list[list[dict[str, Any]]]) -> dict[str, Any]:
    rank = jax.process_index()
    merged = datarax.merge_processes(
        reduce(lambda m, batch: m.update(**batch), streams[rank], several()), timeout=TIMEOUT
    )
    # Many calls one after the other, each with its own values.
    again = [
        datarax.merge_processes(metrics.Sum().update(10**i * (rank + 1))).results()
        for i in range(9)
    ]
    # Where the state is: on a device, with copies for the devices of this process, or shared.
    here = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
    apart = datarax.per_device(metrics.Sum().update(2 * rank), here, "data")
    on_device = jax.device_put(metrics.Sum().update(rank))
    placed = [datarax.merge_processes(each) for each in (apart, on_device)]
    check_same(merged)  # by their digests
    return {
        "bits": bits(merged),
        "again": again,
        "placed": [each.results() for each in placed],
        "types": [type(each).__name__ for each in placed],
        "on device": all(isinstance(x, jax.Array) for x in jax.tree.leaves(placed)),
        "left": left_in_the_store(),
    }


def test_every_process_gets_the_metrics_of_all_in_the_order_of_the_ranks(rng):
    # One process has no data.
    streams = [[batch_of(rng, 5), batch_of(rng, 3)], [], [batch_of(rng, 4)]]
    own = [reduce(lambda m, batch: m.update(**batch), each, several()) for each in streams]
    want = reduce(lambda a, b: a.merge(b), own)
    for outcome in processes.run(merge_each, COUNT, streams):
        assert outcome["bits"] == bits(want)
        assert outcome["again"] == [6 * 10**i for i in range(9)]
        assert outcome["placed"] == [6, 3]
        assert outcome["types"] == ["PerDevice", "Sum"]
        assert outcome["on device"]
        check_left(outcome["left"])
    everything = np.concatenate([batch["values"] for each in streams for batch in each])
    assert want["max"].results() == everything.max()
    assert want["mean"].results() == pytest.approx(everything.mean(dtype=np.float64), rel=1e-12)


def check_left(keys: list[str]) -> None:
    """Where each process is, and outcomes: nothing that was sent."""
    assert keys
    assert {key.split("/")[2] for key in keys} <= {"at", "read", "outcome"}, keys


def test_a_single_process_keeps_its_metric():
    mean = metrics.Mean().update([1.0, 3.0])
    assert datarax.merge_processes(mean, timeout=0) is mean
    with pytest.raises(datarax.MetricTypeError, match=r"expects a datarax\.Metric; got dict"):
        datarax.merge_processes({"mean": mean})
    with pytest.raises(datarax.MetricTypeError, match="call merge_processes outside"):
        jax.jit(datarax.merge_processes)(mean)
    for wrong in (-1, float("nan"), "soon"):
        with pytest.raises(datarax.MetricInputError, match="timeout="):
            datarax.merge_processes(mean, timeout=wrong)
    donated = jax.jit(lambda m: m.update(1.0), donate_argnums=0)
    old = jax.device_put(mean)
    donated(old)
    with pytest.raises(datarax.DonatedStateError, match="Mean"):
        datarax.merge_processes(old)


class Fussy(metrics.Mean):
    """A metric that cannot be merged with itself."""

    def combine(self, other: Any) -> Any:
        raise ArithmeticError("no merge today")


def with_faults() -> dict[str, Any]:
    rank = jax.process_index()
    mine = metrics.Sum().update(rank + 1)
    said: dict[str, Any] = {}

    def attempt(name: str, metric: Any = mine, timeout: float | None = TIMEOUT) -> None:
        try:
            said[name] = datarax.merge_processes(metric, timeout=timeout).results()
        except (datarax.DataraxError, ArithmeticError) as error:
            said[name] = type(error).__name__, str(error)

    attempt("threshold", metrics.Accuracy(threshold=0.5 + (rank == 2) / 10))
    attempt("after threshold")
    attempt("no metric", "metric" if rank == 1 else mine)
    attempt("after no metric")
    attempt("merge", Fussy().update(1.0))
    attempt("after merge")
    mesh = make_mesh("auto", {"data": COUNT})
    shared = datarax.per_device(metrics.Mean(), mesh, "data")
    attempt("shared", shared.update(global_batch(np.ones(1, np.float32), mesh, "data")[0]))
    if rank == 1:  # it comes when the others have given up
        sys.stdin.readline()
    attempt("late", timeout=1.0)
    processes.mark("gave up")
    attempt("after late")
    said["left"] = left_in_the_store()
    processes.mark("before the kill")
    sys.stdin.readline()
    attempt("killed", timeout=1.0)
    return said


def test_faults_are_named_on_every_process_and_the_next_call_works():
    with processes.kept(with_faults, COUNT, timeout=120) as group:
        for rank in (0, 2):
            group.await_mark(rank, "gave up")
        group.tell(1, "late")
        for rank in range(COUNT):
            group.await_mark(rank, "before the kill")
        group.kill(1)
        for rank in (0, 2):
            group.tell(rank, "go on")
        outcomes = group.outcomes((0, 2))
    late = "merge_processes(Sum): process 1 of 3 has not reached it; process"
    for rank, outcome in zip((0, 2), outcomes, strict=True):
        said = outcome.value
        assert outcome.ended == "returned", outcome
        assert said["threshold"] == (
            "ConfigurationMismatchError",
            "the processes hold different metrics: Accuracy.threshold is 0.5 on process 0 and 0.6 "
            "on process 2; make the same metrics, with the same configuration, on every process",
        )
        kind, text = said["no metric"]
        assert kind == "MetricTimeoutError"
        assert "process 1 failed: merge_processes expects a datarax.Metric; got str" in text
        kind, text = said["merge"]
        assert kind == ("MetricTimeoutError" if rank else "ArithmeticError")
        assert "no merge today" in text
        kind, text = said["shared"]
        assert kind == "NotAddressableError"
        assert "PerDevice" in text
        for name in ("late", "killed"):
            kind, text = said[name]
            assert kind == "MetricTimeoutError"
            assert text.startswith(late)
        for name in ("threshold", "no metric", "merge", "late"):
            assert said[f"after {name}"] == 6, name
        check_left(said["left"])
