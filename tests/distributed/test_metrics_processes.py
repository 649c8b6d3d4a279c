"""The reducers across two real processes, each of which holds one device and its own half."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from datarax.distributed import (
    all_gather,
    collect_from_devices,
    reduce_custom,
    reduce_custom_collective,
    reduce_max,
    reduce_max_collective,
    reduce_mean,
    reduce_mean_collective,
    reduce_min,
    reduce_min_collective,
    reduce_sum,
    reduce_sum_collective,
)
from tests import processes
from tests.helpers import (
    by_row,
    collectives,
    draw,
    make_mesh,
    mean,
    on_the_host,
    over_shards,
    refusals,
    wide,
)

OPS = {"loss": "max", "hits": "sum", "half": "min"}


def over_processes(mesh, local):
    """One global array of what the processes hold, in the documented way."""
    sharding = NamedSharding(mesh, P("data"))
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), local)


# What each process runs.


def reduce_halves(batches):
    rank = jax.process_index()
    return {kind: reduce_half(kind, *halves[rank]) for kind, halves in batches.items()}


def reduce_half(kind, metrics, weights):
    mesh = make_mesh(kind, {"data": 2})
    metrics, weights = over_processes(mesh, metrics), over_processes(mesh, weights)

    def reduce(metrics, weights):
        return {
            "mean": reduce_mean(metrics),
            "weighted": reduce_mean(metrics, weights=weights),
            "sum": reduce_sum(metrics, weights=weights, axis=0),
            "max": reduce_max(metrics, where=weights),
            "min": reduce_min(metrics, axis=0),
            "custom": reduce_custom(metrics, OPS, weights=weights),
        }

    def reduce_shards(metrics, weights):
        one = weights.sum()
        return {
            "mean": reduce_mean_collective(metrics, "data"),
            "weighted": reduce_mean_collective(metrics, "data", weights=weights),
            "by process": reduce_mean_collective(
                reduce_mean(metrics, weights=weights), "data", weights=one
            ),
            "sum": reduce_sum_collective(metrics, "data", weights=weights),
            "max": reduce_max_collective(metrics, "data", where=weights),
            "min": reduce_min_collective(metrics, "data"),
            "custom": reduce_custom_collective(metrics, OPS, "data", weights=weights),
            "gathered": all_gather(metrics, "data"),
        }

    in_shards = over_shards(reduce_shards, mesh, P("data"), P())
    shards = jax.block_until_ready(in_shards(metrics, weights))
    # What every process holds in full is collected, whoever shares it.
    lists = collect_from_devices(shards["gathered"])
    gather = over_shards(lambda m: all_gather(m, "data"), mesh, P("data"), P())
    return {
        "eager": on_the_host(
            {  # each operation is compiled by itself, so no more than this
                "weighted": reduce_mean(metrics, weights=weights),
                "max": reduce_max(metrics, where=weights),
            }
        ),
        "jit": on_the_host(jax.jit(reduce)(metrics, weights)),
        "nnx.jit": on_the_host(nnx.jit(reduce)(metrics, weights)),
        "shards": on_the_host(shards),
        "lists": on_the_host(lists),
        "collectives of a gather": collectives(gather, metrics),
    }


def what_is_refused(halves):
    rank = jax.process_index()
    mesh = make_mesh("auto", {"data": 2})
    local = halves[rank]
    whole = over_processes(mesh, local)
    ones = np.ones(4, np.float32)
    calls = {
        "collect": lambda: collect_from_devices({"own": {"loss": whole}}),
        "weights": lambda: reduce_mean({"loss": whole}, weights=ones),
        "where": lambda: reduce_max({"loss": whole}, where={"loss": jnp.asarray(ones > 0)}),
    }
    for reduce in (reduce_mean, reduce_sum, reduce_max, reduce_min, reduce_custom):
        for name, x in {"numpy": local, "jax": jnp.asarray(local)}.items():
            metrics = {"own": {"loss": x}, "whole": whole}
            calls[f"{reduce.__name__} {name}"] = lambda r=reduce, m=metrics: r(m)
    said = refusals(calls)
    # What is refused costs nothing: the next reduction works, and what has no axis still passes.
    after = reduce_mean({"loss": whole, "step": jnp.int32(rank), "lr": 0.5, "name": "x"})
    lists = collect_from_devices({"jax": jnp.asarray(local), "numpy": local})
    return sorted(calls), said, on_the_host(after["loss"]), int(after["step"]), on_the_host(lists)


# The tests.


def a_batch(rng, present):
    """8 examples of which the second process holds 4; those that are not present hold NaN."""
    metrics = {
        "loss": draw(rng, (8,)),
        "hits": draw(rng, (8, 3), "int32"),
        "flag": draw(rng, (8, 2), "bool"),
        "half": draw(rng, (8,), "bfloat16"),
    }
    weights = rng.integers(1, 4, 8) * (np.arange(8) < present).astype(np.float32)
    metrics["loss"][weights == 0] = np.nan
    return metrics, weights.astype(np.float32)


def test_two_processes_agree_with_numpy(rng):
    # A ragged last batch, and a process without any data.
    batches = {"auto": a_batch(rng, 6), "explicit": a_batch(rng, 4)}
    halves = {
        kind: [
            jax.tree.map(lambda x, rows=rows: x[rows], batch) for rows in (slice(0, 4), slice(4, 8))
        ]
        for kind, batch in batches.items()
    }
    first, second = processes.run(reduce_halves, 2, halves)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), first, second)
    for kind, (metrics, weights) in batches.items():
        check(first[kind], metrics, weights)


def check(first, metrics, weights):
    assert first["collectives of a gather"].total() == 1
    keep = weights > 0
    for transform in ("eager", "jit", "nnx.jit"):
        got = first[transform]
        for name, x in metrics.items():
            close(got["weighted"][name], mean(x, weights))
            same(got["max"][name], wide(x)[keep].max())
    for transform in ("jit", "nnx.jit"):
        got = first[transform]
        for name, x in metrics.items():
            close(got["mean"][name], mean(x))
            same(got["sum"][name], total(x, weights, 0))
            same(got["min"][name], wide(x).min(0))
        check_custom(got["custom"], {name: x[keep] for name, x in metrics.items()}, weights[keep])

    got = first["shards"]
    w = weights.reshape(2, 4)
    for name, x in metrics.items():
        x = np.reshape(x, (2, 4, *x.shape[1:]))
        close(got["mean"][name], mean(x, None, 0))
        close(got["weighted"][name], mean(x, w, 0))
        # A mean of rounded means, which may cancel.
        size = np.nanmax(np.abs(wide(x)), initial=0, where=np.isfinite(wide(x)))
        np.testing.assert_allclose(got["by process"][name], mean(x, w), atol=4e-7 * size, rtol=0)
        same(got["sum"][name], total(x, w, 0))
        same(got["min"][name], wide(x).min(0))
        masked = np.where(by_row(w, x.ndim) > 0, wide(x), -np.inf).max(0)
        lowest = np.iinfo(np.int32).min if name in ("hits", "flag") else np.nan
        same(got["max"][name], np.where(np.isinf(masked), lowest, masked))
        np.testing.assert_array_equal(got["gathered"][name], x, strict=True)
        for entry, row in zip(first["lists"][name], x, strict=True):
            np.testing.assert_array_equal(entry, row, strict=True)
    close(got["custom"]["flag"], mean(np.reshape(metrics["flag"], (2, 4, 2)), w, 0))


def test_what_only_one_process_holds_is_refused(rng):
    x = draw(rng, (4,))
    results = processes.run(what_is_refused, 2, [x[:2], x[2:]])
    for rank, (calls, said, after, step, lists) in enumerate(results):
        assert sorted(said) == calls
        for name, message in said.items():
            assert "loss'" in message
            way = "all_gather" if name == "collect" else "jax.make_array_from_process_local_data"
            assert way in message
            assert name.split()[0] in message
        close(after, mean(x))
        assert step == rank
        assert lists == {"jax": list(np.split(x, 2)[rank]), "numpy": list(np.split(x, 2)[rank])}


def total(x, weights, axis):
    weights = by_row(weights, np.ndim(x))
    return (np.where(weights == 0, 0, wide(x)) * weights).sum(axis)


def same(got, want):
    np.testing.assert_array_equal(got.astype(np.float64), want)


def close(got, want, ulps=1):
    assert got.dtype == np.float32
    np.testing.assert_array_max_ulp(got, np.asarray(want, np.float32), maxulp=ulps)


def check_custom(got, metrics, weights):
    same(got["loss"], wide(metrics["loss"]).max())
    same(got["hits"], total(metrics["hits"], weights, None))
    same(got["half"], wide(metrics["half"]).min())
    close(got["flag"], mean(metrics["flag"], weights))
