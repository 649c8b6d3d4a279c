"""Executors of other processes: real pools, a real scheduler of Dask, a real cluster of Ray."""

import gc
import os
import signal
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from benchmarks import engines
from datarax.evaluation import engine, fold
from datarax.metrics import Accuracy, LogLoss
from tests.engines.tables import block_of_page
from tests.evaluation.written import binary, write
from tests.helpers import long

BINARY = {"preds": "score", "target": "label"}
BOTH = datarax.Collection({"accuracy": Accuracy(), "log_loss": LogLoss()})
PARTS = 8


def bits(metric):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(metric)]


@pytest.fixture
def files(rng, tmp_path):
    """As many parts, one of them with a label out of range."""
    data = [binary(rng, 500 + i) for i in range(PARTS)]
    data[1]["label"][0] = 2
    return [write(tmp_path / f"{i}.parquet", each) for i, each in enumerate(data)]


def folded_while(files, executor, kill):
    """The fold, of which `kill` ends a worker after the first part."""
    killed = []

    def show(now):
        if not killed:
            killed.append(kill())

    result = fold(files, BOTH, BINARY, batch_size=64, executor=executor, progress=show)
    assert killed
    return result


def test_processes_give_the_same_and_survive_a_death(files, tmp_path):
    alone = fold(files, BOTH, BINARY, batch_size=64)
    with engine("processes", workers=2) as pool:
        pids = {future.result() for future in [pool.submit(os.getpid) for _ in range(4)]}

        def kill():
            os.kill(pids.pop(), signal.SIGKILL)

        found = folded_while(files, pool, kill)
        assert bits(found.metric) == bits(alone.metric)
        assert (found.rows, found.done) == (alone.rows, alone.done)
        # An error of the evaluation is the same as in this process.
        raw = bytearray(files[0].read_bytes())
        raw[4:40] = b"\xff" * 36
        (tmp_path / "bad.parquet").write_bytes(raw)
        with pytest.raises(datarax.MetricInputError) as here:
            fold(tmp_path / "bad.parquet", BOTH, BINARY)
        with pytest.raises(datarax.MetricInputError) as there:
            fold(tmp_path / "bad.parquet", BOTH, BINARY, executor=pool)
        assert str(here.value) == str(there.value)
        assert "bad.parquet" in str(there.value)


def test_the_benchmark_and_the_block_of_the_page(files, tmp_path):
    """Here for processes; tests/engines has those of the other engines."""
    start, contest_of = engines.ENGINES["processes"]
    code = block_of_page("Evaluating on a cluster", 0, tmp_path)
    assert 'engine("processes")' in code
    with start() as pool:
        contest = contest_of(pool, engines.write(tmp_path / "rows", 5000))
        assert contest.datarax() == pytest.approx(contest.own(), rel=1e-13)
        assert contest.own()[1] == 5000
        names = {"__name__": "__main__", "given": nullcontext(pool)}
        code = code.replace('engine("processes")', "given")
        exec(code.replace("s/*.parquet", f"{files[0].parent}/*.parquet"), names)
    assert bits(names["found"]) == bits(fold(files, Accuracy(), BINARY).metric)


def test_a_call_that_ends_its_processes_fails_and_the_others_do_not():
    with engine("processes", workers=1) as pool:
        before, bad, after = (
            pool.submit(pow, 2, 3),
            pool.submit(os._exit, 3),
            pool.submit(pow, 2, 5),
        )
        assert before.result() == 8
        assert after.result() == 32
        assert bad.exception() is not None


@long
def test_dask_evaluates_again_what_a_dead_worker_had(files):
    dask: Any = import_module("distributed")
    alone = fold(files, BOTH, BINARY, batch_size=64)
    with dask.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address
        with dask.Client(address) as client, engine("dask", address) as workers:

            def kill():
                pids = client.run(os.getpid)
                os.kill(next(iter(pids.values())), signal.SIGKILL)

            found = folded_while(files, workers, kill)
    assert bits(found.metric) == bits(alone.metric)
    assert (found.rows, found.done) == (alone.rows, alone.done)


# Ray 2.50 leaves its processes and files to the garbage collector.
@pytest.mark.filterwarnings("ignore:(unclosed|subprocess):ResourceWarning")
def test_ray_evaluates_again_what_a_dead_worker_had(files, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    alone = fold(files, BOTH, BINARY, batch_size=64)
    with engine("ray", workers=2) as workers:

        def kill():
            os.kill(workers.submit(os.getpid).result(), signal.SIGKILL)

        found = folded_while(files, workers, kill)
    gc.collect()
    assert bits(found.metric) == bits(alone.metric)
    assert (found.rows, found.done) == (alone.rows, alone.done)


def test_unknown_engines_and_addresses():
    with pytest.raises(datarax.MetricInputError, match="'processes', 'dask', 'ray'"):
        engine("spark").__enter__()
    with pytest.raises(datarax.MetricInputError, match="have no address"):
        engine("processes", "tcp://localhost:1").__enter__()
