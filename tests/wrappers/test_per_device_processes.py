"""Metrics across real processes: each feeds its own examples, some of them none."""

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datarax import Collection, NotAddressableError, per_device, replicate
from datarax.distributed import global_batch
from datarax.metrics import Accuracy, Max, Mean
from datarax.training import StatefulMetric
from tests import processes
from tests.helpers import bits, collectives, draw, make_mesh, on_the_host, refusals
from tests.wrappers.mixed import batch_of, check, of, twenty

COUNT = 3
ROWS = 8
NAMES = ("loss", "tokens peak", "labels", "least", "spread", "a word", "confusion")


# What each process runs.


def evaluate(kind, streams):
    """Counts this process's own batches; in an order of names, and of metrics, of its own."""
    rank = jax.process_index()
    mesh = make_mesh(kind, {"data": COUNT})
    names = NAMES[rank:] + NAMES[:rank]
    metrics = per_device(twenty(*names), mesh, "data")
    step = jax.jit(lambda m, b, w: m.update(**b, weights=w), donate_argnums=0)
    in_update = None
    for own in streams[rank]:
        batch, real = global_batch(own, mesh, "data", rows=ROWS)
        if in_update is None:
            in_update = collectives(step, metrics, batch, real)
        metrics = step(metrics, batch, real)
    sync = jax.jit(lambda m: m.sync())
    synced = jax.block_until_ready(sync(metrics))
    return {
        "update": in_update,
        "sync": collectives(sync, metrics),
        "results": on_the_host(jax.jit(lambda m: m.compute())(synced)),
        "bits": bits(synced),
        "saved": metrics.state_dict(),
        "again": bits(metrics.load_state_dict(metrics.state_dict()).sync()),
    }


def other_ways(x, weights):
    """Every other road from this process's rows to a number."""
    rank = jax.process_index()
    mesh = make_mesh("explicit", {"data": COUNT})
    own, mine = x[rank], weights[rank]
    values, real = global_batch(own, mesh, "data")
    masked = global_batch({"x": own, "w": mine}, mesh, "data")[0]
    mean = per_device(Mean(), mesh, "data")
    metrics = StatefulMetric(
        per_device(Collection({"m": of("x", Mean()), "top": of("x", Max())}), mesh, "data")
    )
    metrics.update(x=values, other=None)
    replicated = jax.device_put(np.float32(2.5), NamedSharding(mesh, P()))
    found = {
        "eager": mean.update(values, weights=real),
        "weighted": mean.update(masked["x"], weights=masked["w"]),
        "scaled": mean.update(values, weights=2.0),
        "one scalar for all": mean.update(replicated),
        "merged": mean.update(values).merge(mean.update(values)),
        "of a plain one": per_device(Mean().update(np.float32(1)), mesh, "data"),
    }
    results = {name: metric.results() for name, metric in found.items()}
    results["stateful"] = on_the_host(metrics.compute())
    # A plain metric on the mesh of all processes stays there, and its step is compiled once.
    step: Any = jax.jit(lambda metric, x, w: metric.update(x, weights=w))
    plain = step(replicate(Mean(), mesh), values, real)
    loaded = plain.load_state_dict(plain.state_dict())
    for held in (loaded.reset(), loaded):
        last = jax.block_until_ready(step(held, values, real))
    assert step._cache_size() == 1
    results["replicated, restored"] = last.results()
    local = Mean().update(own)  # a process may count for itself as well
    return results | {"its own": local.results()}


def refused(x):
    """What would have given each process its own answer."""
    rank = jax.process_index()
    mesh = make_mesh("auto", {"data": COUNT})
    whole, _ = global_batch(x[rank], mesh, "data")
    mean, own = per_device(Mean(), mesh, "data"), x[rank]
    pair = per_device(Collection({"mean": Mean(), "hits": Accuracy()}), mesh, "data")
    calls = {
        "NumPy": lambda: mean.update(own),
        "JAX": lambda: mean.update(jax.numpy.asarray(own)),
        "list": lambda: mean.update(own.tolist()),
        "a scalar": lambda: mean.update(own[0]),
        "a number": lambda: mean.update(float(own[0])),
        "a part of it": lambda: mean.update(whole.addressable_data(0)),
        "weights": lambda: mean.update(whole, weights=np.ones(whole.shape, np.float32)),
        "one of two": lambda: pair.update(values=whole, preds=whole, target=own),
        "stateful": lambda: StatefulMetric(mean).update(values=own),
    }
    said = refusals(calls)
    for call in (lambda metric: per_device(metric, mesh, "data"), lambda x: replicate(x, mesh)):
        with pytest.raises(NotAddressableError, match="the processes hold different states"):
            call(Mean().update(own))
    with pytest.raises(NotAddressableError, match="Mean: the processes hold different arrays"):
        replicate(Mean(), mesh).load_state_dict(Mean().update(own).state_dict())
    # What is refused costs nothing.
    return list(calls), said, mean.update(whole).results()


# The tests.


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_each_process_feeds_its_own(rng, kind):
    # The last has no example at all, and the others differ in steps and in examples a step; a
    # process without a step of its own still has one of no examples.
    sizes = [[8, 8, 5], [3], [0]]
    streams = [[batch_of(rng, size) for size in own] for own in sizes]
    outcomes = processes.run(evaluate, COUNT, kind, streams)
    together = {
        name: np.concatenate([b[name] for own in streams for b in own]) for name in streams[0][0]
    }
    for outcome in outcomes:
        assert outcome["update"] == {}
        assert outcome["sync"] == {"all-reduce": 1}
        check(outcome["results"], together, *NAMES)
        assert outcome["bits"] == outcomes[0]["bits"] == outcome["again"]
    # Saved by any, restored in one process: all of the data.
    restored = twenty(*NAMES).load_state_dict(outcomes[2]["saved"])
    assert bits(restored) == outcomes[0]["bits"]


def test_other_ways_and_what_is_refused(rng):
    x = [draw(rng, (6,)) for _ in range(COUNT)]
    weights = [rng.integers(0, 4, 6).astype(np.float32) for _ in range(COUNT)]
    weights[1][:] = 0
    weights[0][0] = 1
    everything = np.concatenate(x).astype(np.float64)
    mean = np.float32(everything.mean())
    weighted = np.float32(np.average(everything, weights=np.concatenate(weights)))
    outcomes = processes.run(both, COUNT, x, weights)
    for rank, (results, (calls, said, after)) in enumerate(outcomes):
        assert results.pop("its own") == np.float32(x[rank].mean(dtype=np.float64))
        assert results.pop("stateful") == {"m": mean, "top": everything.max()}
        assert results == {
            "eager": mean,
            "weighted": weighted,
            "scaled": mean,
            "one scalar for all": 2.5,
            "merged": mean,
            "of a plain one": 1.0,
            "replicated, restored": mean,
        }
        assert sorted(said) == sorted(calls)
        for sentence in said.values():
            assert "only this process holds" in sentence
            assert f"each of the {COUNT} processes" in sentence
            assert "datarax.distributed.global_batch" in sentence
        assert after == mean


def both(x, weights):
    return other_ways(x, weights), refused(x)
