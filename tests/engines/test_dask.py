"""Data frames of Dask, on a real scheduler with two processes; and without one, on threads."""

import os
from importlib import import_module
from typing import Any

import numpy as np
import pandas
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


def test_states_by_key_also_null_and_if_a_worker_dies(client, rng, tmp_path):
    table, mark = rows(rng, 2000), tmp_path / "died"
    aggregator = Aggregator(METRICS, columns=COLUMNS)

    def states(part):
        groups = part.groupby("country", dropna=False, sort=False)
        found = [(key, aggregator.add(aggregator.zero(), each)) for key, each in groups]
        if found and dies_once(mark):
            os._exit(1)
        return pandas.DataFrame(found, columns=["country", "state"]).astype(object)

    meta = pandas.DataFrame({"country": [], "state": []}, dtype=object)
    frame = frame_of(without_name(table), 4)
    found = frame.map_partitions(states, meta=meta).compute()
    assert mark.exists()
    found["country"] = found["country"].where(found["country"].notna(), None)
    for key, due in keyed(table).items():
        same = found["country"].isna() if key is None else found["country"] == key
        with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
            whole = aggregator.finish(aggregator.merge(*found["state"][same]))
        the_same(whole.results(), due)


def test_partitions_of_other_types_and_an_optional_column(client):
    parts = [
        pandas.DataFrame({"values": [1, 2]}),
        pandas.DataFrame({"values": [None, None]}, dtype=object),
        pandas.DataFrame({"values": [0.5]}),
        pandas.DataFrame({"values": []}, dtype=object),
    ]
    frame = frames.from_map(lambda i: parts[i], range(4), meta=pandas.DataFrame({"values": [0.5]}))
    with pytest.warns(datarax.InvalidValuesWarning, match="2 without a value in .*'values'"):
        assert datarax.evaluate(frame, Mean()).compute() == 3.5 / 3
    mixed = [parts[0], pandas.DataFrame({"values": ["a", 1]}, dtype=object)]
    with import_module("dask").config.set({"dataframe.convert-string": False}):
        frame = frames.from_map(lambda i: mixed[i], range(2), meta=parts[2])
    with pytest.raises(datarax.MetricInputError, match=r"partition 2 .* column values"):
        datarax.evaluate(frame, Mean())


def test_the_benchmark_gives_the_numbers_of_the_data_frame(client, tmp_path):
    contest = engines.of_dask(client, engines.write(tmp_path / "rows", 5000))
    assert contest.datarax() == pytest.approx(contest.own(), rel=1e-13)


def test_the_blocks_of_the_page(client, rng, tmp_path):
    table = rows(rng, 300)
    folder = in_files(tmp_path / "rows", table)
    columns = {"preds": "score", "target": "label"}
    due = alone(table, {"accuracy": Accuracy()}, columns)["accuracy"]
    for place in (0, 2):
        names: dict[str, Any] = {"__name__": "__main__"}
        with pytest.warns(datarax.InvalidValuesWarning, match="'label'"):
            exec(block_of_page(PAGE, place, folder), names)
        assert names["found"].compute() == due
    code = block_of_page("Evaluating on a cluster", 0, folder)
    ours, others = 'engine("processes")', f'engine("dask", "{client.scheduler.address}")'
    assert 'engine("dask", "tcp://scheduler:8786")' in code
    with pytest.warns(datarax.InvalidValuesWarning, match="'label'"):
        exec(code.replace(ours, others).replace("s/*.parquet", f"{folder}/*.parquet"), names)
    assert names["found"].compute() == due
