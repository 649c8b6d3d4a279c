"""Data frames of Dask, on a real scheduler with two processes; and without one, on threads."""

import os
from importlib import import_module
from typing import Any

import numpy as np
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

frames: Any = import_module("dask.dataframe")
distributed: Any = import_module("distributed")


@pytest.fixture(scope="module")
def client():
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(n_workers=2, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def frame_of(table, partitions):
    return frames.from_pandas(table.to_pandas(), npartitions=partitions, sort=False)


def evaluated(frame):
    with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
        return datarax.evaluate(frame, METRICS, columns=COLUMNS).results()


def test_numbers_are_those_of_one_process_also_if_a_worker_dies(client, rng, tmp_path):
    table, mark = rows(rng, 4000), tmp_path / "died"
    due = alone(table)
    the_same(evaluated(frame_of(table, 40)), due)

    def dying(part):
        if len(part) and dies_once(mark):
            os._exit(1)
        return part

    frame = frame_of(table, 4)
    the_same(evaluated(frame.map_partitions(dying, meta=frame)), due)
    assert mark.exists()


def test_without_a_cluster(rng):
    table = rows(rng, 1000)
    the_same(evaluated(frame_of(table, 3)), alone(table))
    with pytest.raises(datarax.MetricInputError, match=r"devices= and executor="):
        datarax.evaluate(frame_of(table, 3), METRICS, columns=COLUMNS, missing_values="no")


def test_queries_are_brought_together(client, rng):
    table = ranked(rng, 200)
    frame = frame_of(table, 5)
    with pytest.raises(datarax.MetricInputError, match="give group_by='query'"):
        datarax.evaluate(frame, RANKING, columns=RANKED)
    found = datarax.evaluate(frame, RANKING, columns=RANKED, group_by="query")
    the_same(found.results(), alone(table, RANKING, RANKED, group_by="query"))


def test_errors_are_those_of_one_process(rng):
    frame = frame_of(rows(rng, 100), 2)
    columns = {"preds": "score", "target": "country"}
    with pytest.raises(datarax.MetricInputError, match="holds strings, and Accuracy takes numbers"):
        datarax.evaluate(frame, Accuracy(), columns=columns)
    with pytest.raises(datarax.MetricInputError, match="no column 'truth'"):
        datarax.evaluate(frame, Accuracy(), columns=columns | {"target": "truth"})
    none = frame[frame["score"] > 2]
    found = datarax.evaluate(none, Accuracy(), columns=columns | {"target": "label"})
    assert np.isnan(found.compute())
