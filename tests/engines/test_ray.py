"""Datasets of Ray, on a real cluster of this machine."""

import os
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import datarax
from benchmarks import engines
from datarax.evaluation import Aggregator
from datarax.metrics import Accuracy, Mean
from tests.engines.tables import (
    COLUMNS,
    METRICS,
    PAGE,
    RANKED,
    RANKING,
    WARNING,
    alone,
    block_of_page,
    dies_once,
    in_files,
    keyed,
    ranked,
    rows,
    the_same,
    without_name,
)

ray: Any = import_module("ray")
data: Any = import_module("ray.data")


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with warnings.catch_warnings():
        # Of JAX, about the fork by which Ray starts its processes: each is another program at once.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, address="local")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.default_hash_shuffle_parallelism = 4  # of 200, each is a task
    yield
    ray.shutdown()


def evaluated(dataset):
    with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
        return datarax.evaluate(dataset, METRICS, columns=COLUMNS).results()


def test_numbers_are_those_of_one_process_and_a_worker_that_dies_counts_once(
    cluster, rng, tmp_path
):
    table, mark = rows(rng, 4000), tmp_path / "died"
    due = alone(table)
    the_same(evaluated(data.from_arrow(table).repartition(40)), due)

    def dying(batch):
        if dies_once(mark):
            os._exit(1)
        return batch

    dataset = data.from_arrow(table).repartition(4).map_batches(dying, batch_format="pyarrow")
    the_same(evaluated(dataset), due)
    assert mark.exists()


def test_queries_are_brought_together_and_errors_are_those_of_one_process(cluster, rng):
    table = ranked(rng, 100)
    dataset = data.from_arrow(table).repartition(5)
    with pytest.raises(datarax.MetricInputError, match="give group_by='query'"):
        datarax.evaluate(dataset, RANKING, columns=RANKED)
    found = datarax.evaluate(dataset, RANKING, columns=RANKED, group_by="query")
    the_same(found.results(), alone(table, RANKING, RANKED, group_by="query"))
    with pytest.raises(datarax.MetricInputError, match="no column 'truth'"):
        datarax.evaluate(dataset, Accuracy(), columns={"preds": "score", "target": "truth"})


def test_states_by_key_also_null_and_if_a_worker_dies(cluster, rng, tmp_path):
    table, mark = rows(rng, 2000), tmp_path / "died"
    aggregator = Aggregator(METRICS, columns=COLUMNS)

    def states(part):
        if dies_once(mark):
            os._exit(1)
        found = aggregator.add(aggregator.zero(), part)
        return pa.table({"country": part["country"][:1], "state": [found]})

    dataset = data.from_arrow(without_name(table)).repartition(3)
    groups = dataset.groupby("country").map_groups(states, batch_format="pyarrow")
    found, due = groups.take_all(), keyed(table)
    assert mark.exists()
    assert {row["country"] for row in found} == due.keys()
    for row in found:
        with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
            the_same(aggregator.finish(row["state"]).results(), due[row["country"]])


def test_no_rows_and_the_benchmark_gives_the_numbers_of_aggregate(cluster, tmp_path):
    dataset = data.from_arrow(pa.table({"values": [1.0, 2.0]}))
    dataset = dataset.map_batches(lambda batch: batch.slice(0, 0), batch_format="pyarrow")
    assert np.isnan(datarax.evaluate(dataset, Mean()).compute())
    contest = engines.of_ray(None, engines.write(tmp_path / "rows", 5000))
    assert contest.datarax() == pytest.approx(contest.own(), rel=1e-13)


def test_the_block_of_the_page(cluster, rng, tmp_path):
    table = rows(rng, 300)
    names: dict[str, Any] = {"__name__": "__main__"}
    folder = in_files(tmp_path / "rows", table)
    with pytest.warns(datarax.InvalidValuesWarning, match="'label'"):
        exec(block_of_page(PAGE, 1, folder), names)
    due = alone(table, {"accuracy": Accuracy()}, {"preds": "score", "target": "label"})
    assert names["found"].compute() == due["accuracy"]
