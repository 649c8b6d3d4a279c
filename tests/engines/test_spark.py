"""`spark.evaluate` on a real Spark with two executor threads, and processes of Python."""

import os
import sys
import warnings
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

import datarax
from benchmarks import engines
from datarax.evaluation import Aggregator, spark
from datarax.metrics import Accuracy
from tests.engines.tables import (
    COLUMNS,
    METRICS,
    RANKED,
    RANKING,
    WARNING,
    alone,
    block_of_page,
    by_country,
    dies_once,
    in_files,
    keyed,
    many_keys,
    ranked,
    rows,
    the_same,
    without_name,
)

sql: Any = import_module("pyspark.sql")


@pytest.fixture(scope="module")
def session():
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # A task may fail four times. A local master has no retries but for this number.
    build = sql.SparkSession.builder.master("local[2,4]").appName("datarax")
    options = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "700",
    }
    for name, value in options.items():
        build = build.config(name, value)
    with warnings.catch_warnings():
        # Of JAX, about the fork by which Spark starts Java: it is another program at once.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        session = build.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def frame_of(session, table, partitions):
    return session.createDataFrame(table).repartition(partitions)


def states_by(frame, key, kind, aggregator, mark=None):
    """The state of each key, as the page "On many machines" has it; a worker may die once."""

    def state(rows):
        found = aggregator.add(aggregator.zero(), rows)
        if mark is not None and dies_once(mark):
            os._exit(1)
        return pa.table({key: rows[key][:1], "state": [found]})

    found = frame.groupBy(key).applyInArrow(state, f"{key} {kind}, state binary").collect()
    states = {row[key]: row.state for row in found}
    assert len(states) == len(found)
    return states


def test_numbers_are_those_of_one_process(session, rng):
    table = rows(rng, 5000)
    due = alone(table)
    # Two levels of merges; and no more partitions than the driver takes.
    for partitions in (40, 3):
        frame = frame_of(session, table, partitions)
        with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
            found = spark.evaluate(frame, METRICS, columns=COLUMNS)
        the_same(found.results(), due)
    assert not session.sparkContext._jsc.getPersistentRDDs()


def test_no_rows_and_partitions_without_rows(session):
    frame = session.createDataFrame([(0.9, 1)], "score double, label int").repartition(4)
    empty = spark.evaluate(
        frame.limit(0), Accuracy(), columns={"preds": "score", "target": "label"}
    )
    assert empty.results() != empty.results()


def test_a_worker_that_dies_counts_once(session, rng, tmp_path):
    table, mark = rows(rng, 2000), tmp_path / "died"

    def dying(batches):
        for batch in batches:
            yield batch
            if dies_once(mark):
                os._exit(1)

    frame = frame_of(session, table, 4)
    frame = frame.mapInArrow(dying, frame.schema)
    with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
        found = spark.evaluate(frame, METRICS, columns=COLUMNS)
    assert mark.exists()
    the_same(found.results(), alone(table))


def test_queries_are_brought_together(session, rng):
    table = ranked(rng, 300)
    frame = frame_of(session, table, 5)
    with pytest.raises(datarax.MetricInputError, match="give group_by='query'"):
        spark.evaluate(frame, RANKING, columns=RANKED)
    found = spark.evaluate(frame, RANKING, columns=RANKED, group_by="query")
    due = alone(table, RANKING, RANKED, group_by="query")
    the_same(found.results(), due)


def test_states_by_key_also_null_and_if_a_worker_dies(session, rng, tmp_path):
    table, mark = rows(rng, 3000), tmp_path / "died"
    aggregator = Aggregator(METRICS, columns=COLUMNS)
    frame = frame_of(session, without_name(table), 4)
    found = states_by(frame, "country", "string", aggregator, mark)
    assert mark.exists()
    due = keyed(table)
    assert found.keys() == due.keys()
    for key, state in found.items():
        with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
            the_same(aggregator.finish(state).results(), due[key])
    with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
        whole = aggregator.finish(aggregator.merge(*found.values()))
    the_same(whole.results(), alone(table))


def test_many_keys(session, rng):
    table, due = many_keys(rng, 10_000)
    aggregator = Aggregator(Accuracy(), columns={"preds": "score", "target": "label"})
    found = states_by(frame_of(session, table, 3), "key", "bigint", aggregator)
    assert {key: aggregator.finish(state).compute() for key, state in found.items()} == due


def test_columns_of_any_name_and_type(session):
    frame = session.sql(
        "select 0.9 as `a.b`, cast(1 as smallint) as `la``bel`, interval 3 months as i,"
        " map('x', 1) as m, cast(1.5 as decimal(9, 2)) as d"
    )
    columns = {"preds": "a.b", "target": "la`bel"}
    assert spark.evaluate(frame, Accuracy(), columns=columns).compute() == 1
    with pytest.raises(datarax.MetricInputError, match="the column 'm' for the output 'preds'"):
        spark.evaluate(frame, Accuracy(), columns=columns | {"preds": "m"})
    with pytest.raises(datarax.MetricInputError, match="no column 'score'"):
        spark.evaluate(frame, Accuracy(), columns=columns | {"preds": "score"})
    with pytest.raises(datarax.MetricTypeError, match=r"got list; expected a pyspark\.sql"):
        spark.evaluate([], Accuracy())


def test_an_error_of_the_rows_is_that_of_one_process(session):
    frame = session.createDataFrame([([0.1, 0.9], 1), ([0.2], 0)], "score array<double>, label int")
    columns = {"preds": "score", "target": "label"}
    with pytest.raises(datarax.MetricInputError, match="lists of 1 to 2 values"):
        spark.evaluate(frame.coalesce(1), Accuracy(num_classes=2), columns=columns)


def test_the_benchmark_gives_the_numbers_of_sql(session, tmp_path):
    contest = engines.of_spark(session, engines.write(tmp_path / "rows", 5000))
    assert contest.datarax() == pytest.approx(contest.own(), rel=1e-13)


@pytest.mark.filterwarnings("ignore:.*rows are left out")
def test_the_blocks_of_the_page(session, rng, tmp_path):
    table = rows(rng, 600)
    folder = in_files(tmp_path / "rows", table)
    names = {"session": session, "__name__": "__main__"}
    for place in (0, 1):
        exec(block_of_page("Spark", place, folder), names)
    due = {name: METRICS[name] for name in ("accuracy", "auroc")}
    columns = {"preds": "score", "target": "label"}
    assert names["metrics"].results() == alone(table, due, columns)
    parts = by_country(table)
    assert names["by_country"] == {key: alone(parts[key], due, columns) for key in parts}
