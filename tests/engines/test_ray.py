"""Datasets of Ray, on a real cluster of this machine."""

import os
import warnings
from importlib import import_module
from typing import Any

import pytest

import datarax
from datarax.metrics import Accuracy
from tests.engines.tables import (
    COLUMNS,
    METRICS,
    RANKED,
    RANKING,
    WARNING,
    alone,
    dies_once,
    ranked,
    rows,
    the_same,
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
    data.DataContext.get_current().enable_progress_bars = False
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
