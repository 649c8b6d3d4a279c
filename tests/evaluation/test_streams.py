"""Tables and streams of other packages have the numbers of one Parquet file with the same rows."""

import datetime
import pickle
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import datarax
from datarax import DataraxError, InvalidValuesWarning, MetricInputError
from datarax.evaluation import Columns, Progress, engine, fold, streams
from datarax.evaluation.streams import Stream, stream_of
from datarax.metrics import (
    AUROC,
    MRR,
    WER,
    Accuracy,
    LogLoss,
    Mean,
    MeanAveragePrecision,
    Sum,
    TextExactMatch,
)
from tests.evaluation.written import write

COLUMNS = Columns(
    {"preds": "score", "target": "label", "weights": "weight"}, classes={"target": ["no", "yes"]}
)
THREE = {"accuracy": Accuracy(), "auroc": AUROC(), "log_loss": LogLoss()}
VALUES = {"values": "x"}


@pytest.fixture
def table(rng) -> pa.Table:
    """Strings of classes, and missing values in two columns; some columns are not needed."""
    size, score = 3000, rng.integers(1, 1000, 3000) / 1000
    label = np.where(rng.random(size) < score, "yes", "no").astype(object)
    label[rng.integers(0, size, 20)] = None
    weight = rng.integers(0, 4, size)
    return pa.table(
        {
            "score": score,
            "label": pa.array(label, pa.string()),
            "weight": pa.array(weight, mask=rng.random(size) < 0.02),
            "time": pa.array([datetime.timedelta(1)] * size),
            "nested": [{"a": [1, None]}] * size,
        }
    )


def sources(table: pa.Table, path) -> dict:
    """The table as each package has it, and in each form of Arrow; some can be read once."""
    polars, pandas = pl.from_arrow(table), table.to_pandas()
    assert isinstance(polars, pl.DataFrame)
    chunks = table.to_batches(max_chunksize=700)
    categories = polars.with_columns(pl.col("label").cast(pl.Categorical))
    enums = polars.with_columns(pl.col("label").cast(pl.Enum(["yes", "no", "other"])))
    nullable = pandas.astype({"label": "string", "weight": "Int64", "score": "Float64"})
    arrow = pandas.astype({"label": pd.ArrowDtype(pa.large_string())})
    large = table.set_column(1, "label", table["label"].cast(pa.large_string()))
    views = table.set_column(1, "label", table["label"].cast(pa.string_view()))
    encoded = table.set_column(1, "label", table["label"].dictionary_encode())
    # The dictionary of each chunk has other strings.
    deltas = [x.set_column(1, "label", x.column(1).dictionary_encode()) for x in chunks]
    assert len({str(x.column(1).dictionary) for x in deltas}) > 1
    return {
        "pyarrow.Table": table,
        "chunks of a table": pa.Table.from_batches(chunks),
        "record batch": table.combine_chunks().to_batches()[0],
        "reader": table.to_reader(max_chunksize=500),
        "list of record batches": chunks,
        "iterator of record batches": iter(chunks),
        "generator of tables": (pa.Table.from_batches([x]) for x in chunks),
        "dataset": pyarrow.dataset.dataset(path),
        "dataset in memory": pyarrow.dataset.dataset(table),
        "scanner": pyarrow.dataset.dataset(path).scanner(),
        "large strings": large,
        "views": views,
        "dictionaries": encoded,
        "dictionaries of chunks": pa.RecordBatchReader.from_batches(deltas[0].schema, deltas),
        "Polars": polars,
        "Polars, categories": categories,
        "Polars, enums": enums,
        "Polars, several chunks": pl.concat([polars[:999], polars[999:]], rechunk=False),
        "Polars, slices": polars.iter_slices(800),
        "pandas": pandas,
        "pandas, categories": pandas.astype({"label": "category"}),
        "pandas, nullable": nullable,
        "pandas, of Arrow": arrow,
        "pandas, an index": pandas.set_index("score"),
        "pandas, chunks": (pandas[i : i + 900] for i in range(0, 3000, 900)),
        "DuckDB": duckdb.sql("from large"),
        "DuckDB, of a file": duckdb.sql(f"from '{path}'"),
    }


def test_every_source_has_the_numbers_of_one_parquet_file(table, tmp_path):
    path = write(tmp_path / "a.parquet", table)
    with pytest.warns(InvalidValuesWarning, match="without a value"):
        expected = datarax.evaluate(path, THREE, columns=COLUMNS).results()
    whole = fold(path, Accuracy(), COLUMNS)
    for name, source in sources(table, path).items():
        with pytest.warns(InvalidValuesWarning, match="without a value"):
            found = datarax.evaluate(source, THREE, columns=COLUMNS)
        assert found.results() == expected, name
    found = fold(table, Accuracy(), COLUMNS)
    assert (found.rows, found.excluded) == (whole.rows, whole.excluded)
    assert (found.done, found.total) == ((0,), 1)


def test_parts_of_a_stream(table, tmp_path, monkeypatch):
    """On threads and processes as on one thread, bit for bit, however the stream is cut."""
    monkeypatch.setattr(streams, "PART_ROWS", 256)
    polars = pl.from_arrow(table)
    metric = datarax.Bootstrap(Accuracy(), 20)
    steps: list[Progress] = []
    one = fold(polars, metric, COLUMNS, progress=steps.append)
    assert (one.total, one.done, len(steps)) == (12, tuple(range(12)), 12)
    assert [(step.total, len(step.done)) for step in steps[:2]] == [(0, 1), (0, 2)]
    expected = one.metric.state_dict()

    def same(found: Progress) -> None:
        assert (found.rows, found.excluded, found.total) == (one.rows, one.excluded, 12)
        assert repr(found.metric.state_dict()) == repr(expected)

    same(fold(iter(table.to_batches(max_chunksize=100)), metric, COLUMNS))
    same(fold(table.to_pandas(), metric, COLUMNS))
    with ThreadPoolExecutor(3) as pool:
        same(fold(polars, metric, COLUMNS, executor=pool))
    with engine("processes", workers=2) as pool:
        for source in (polars, iter(table.to_batches()), table.to_pandas()):
            same(fold(source, metric, COLUMNS, executor=pool))


def test_a_part_is_pickled_without_other_rows(rng, monkeypatch):
    monkeypatch.setattr(streams, "PART_ROWS", 100)
    columns = {"x": rng.random(100_000), "y": rng.random(100_000)}
    found = stream_of(pa.table(columns))
    assert isinstance(found, Stream)
    part = next(found.parts({"x": found.table.types["x"]}, whole=False))
    data = pickle.dumps(part)
    assert len(data) < 5000
    again = pickle.loads(data)
    (piece,) = again.held.read(again, {"x": found.table.types["x"]}, 1000)
    assert piece["x"].to_pylist() == columns["x"][:100].tolist()


def test_a_stream_is_not_held_in_memory(monkeypatch):
    monkeypatch.setattr(streams, "PART_ROWS", 2**12)
    alive, most = 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal alive, most
        for _ in range(300):
            values = np.arange(2**10) * 1.0
            weakref.finalize(values, gone)
            alive += 1
            most = max(most, alive)
            yield pa.record_batch({"x": values})
            del values

    # One thread: how many parts wait depends on the cores.
    assert fold(batches(), Mean(), VALUES, executor=None).metric.results() == 511.5
    assert most < 150
    wide = pa.record_batch({"x": pa.array([[0.0] * 2**14] * 4)})
    assert streams._rows_of_part(wide) < 2**10


def test_types_of_arrow():
    """Each value as Parquet files have it."""
    arrays = {
        "float16": pa.array(np.array([1, 2, 4], np.float16)),
        "decimal": pa.array([Decimal("1.0"), Decimal("2.0"), Decimal("4.0")]),
        "uint8": pa.array([1, 2, 4], pa.uint8()),
        "dictionary": pa.array([1.0, 2.0, 4.0]).dictionary_encode(),
        "sliced": pa.array([9.0, 1.0, 2.0, 4.0])[1:],
        "null": pa.array([1.0, 2.0, 4.0, None]),
    }
    for name, array in arrays.items():
        assert fold(pa.table({"x": array}), Sum(), VALUES).metric.results() == 7, name
    boxes = {
        "boxes": [[[0.0, 0.0, 1.0, 1.0]], [], [[0.0, 0.0, 2.0, 2.0]] * 2],
        "scores": [[0.9], [], [0.8, 0.7]],
        "labels": [[0], [], [0, 0]],
    }
    boxes |= {f"target_{name}": boxes[name] for name in ("boxes", "labels")}
    metric = MeanAveragePrecision(num_classes=1)
    frame = pl.DataFrame(boxes)
    fixed = frame.with_columns(pl.col("boxes").cast(pl.List(pl.Array(pl.Float64, 4))))
    for source in (pa.table(boxes), frame, fixed, pd.DataFrame(boxes)):
        assert fold(source, metric, None).metric.results()["map"] == 1
    lists = pa.table({"x": pa.array([[1.0], [2.0]], pa.list_view(pa.float64()))})
    with pytest.raises(MetricInputError, match=r"'x' .* has the type list_view"):
        fold(lists, Sum(), VALUES)


def test_texts():
    rows = {"p": ["a b", "c", None], "t": [["a b", "x"], ["c"], ["d"]]}
    views = pl.DataFrame(rows)
    assert "view" in str(pa.table(views).schema.field("p").type)
    columns = {"preds": "p", "target": "t"}
    for source in (views, pd.DataFrame(rows), pa.table(rows)):
        found = fold(source, TextExactMatch(), columns)
        assert (found.metric.results(), found.excluded) == (1, {"p": 1})


def test_fields_of_objects():
    """A column within objects, of which the strings are views in Polars."""
    rows = {"answers": [{"text": "a", "n": [{"x": 1.0}]}, {"text": "b", "n": [{"x": 2.0}]}]}
    for source in (pl.DataFrame(rows), pd.DataFrame(rows), pa.table(rows), iter([pa.table(rows)])):
        columns = {"preds": "answers.text", "target": "answers.text"}
        assert fold(source, TextExactMatch(), columns).metric.results() == 1
    assert fold(pl.DataFrame(rows), Sum(), {"values": "answers.n.x"}).metric.results() == 3
    data = pyarrow.dataset.dataset(pa.table(rows))
    assert fold(data, Sum(), {"values": "answers.n.x"}).metric.results() == 3


def test_rows_of_a_query_are_in_one_part(rng, monkeypatch):
    monkeypatch.setattr(streams, "PART_ROWS", 4)
    rows = {
        "preds": rng.random(30),
        "target": rng.integers(0, 2, 30),
        "query": np.repeat([1, 2], 15),
    }
    alone = MRR().update(**rows)
    batches = pa.table(rows).to_batches(max_chunksize=7)
    for source in (pl.DataFrame(rows), iter(batches)):
        found = fold(source, MRR())
        assert (found.metric.results(), found.total) == (alone.results(), 1)


def test_pandas(rng):
    """NaN of a frame is a missing value, as pandas writes it to Parquet."""
    frame = pd.DataFrame(
        {
            "x": [1.0, np.nan, 3.0],
            "integers": pd.array([1, None, 3], dtype="Int64"),
            "floats": pd.array([1, None, 3], dtype="Float64"),
            "booleans": pd.array([True, None, False], dtype="boolean"),
            "objects": [1, 2.5, None],
            "numbers": pd.Categorical([1, 2, 1]),
            "mixed": [1, {"a": 1}, "b"],
            "sparse": pd.arrays.SparseArray([1.0, 2.0, 3.0]),
            7: [1, 2, 3],
        }
    )
    due = {"x": 4, "integers": 4, "floats": 4, "booleans": 1, "objects": 3.5, "numbers": 4, "7": 6}
    for name, total in due.items():
        found = fold(frame, Sum(), {"values": name})
        assert (found.metric.results(), found.rows) == (total, 3 - sum(found.excluded.values()))
    assert fold(frame.set_index("integers"), Sum(), {"values": "integers"}).rows == 2
    for name, fault in {"mixed": "object, of values of several types", "sparse": "Sparse"}.items():
        with pytest.raises(MetricInputError, match=rf"pandas\.DataFrame: .*{name!r}.*{fault}"):
            fold(frame, Sum(), {"values": name})
    two = pd.DataFrame([[1, 2]], columns=["x", "x"])
    with pytest.raises(MetricInputError, match="several columns have the name 'x'"):
        fold(two, Sum(), VALUES)
    # Rows of objects that look like numbers at first, over several pieces.
    late = pd.DataFrame({"x": pd.Series([1] * 2**20 + [0.5], dtype=object)})
    assert fold(late, Sum(), VALUES).metric.results() == 2**20 + 0.5


def test_no_rows():
    empty = [
        pa.table({"x": pa.array([], pa.float64())}),
        pl.DataFrame({"x": pl.Series([], dtype=pl.Float64)}),
        pd.DataFrame({"x": pd.Series([], dtype=float)}),
        pd.DataFrame({"x": []}, dtype=object),
        iter([pa.record_batch({"x": pa.array([], pa.float64())})] * 2),
        duckdb.sql("select 1.0 as x where false"),
    ]
    for source in empty:
        found = fold(source, Mean(), VALUES)
        assert np.isnan(found.metric.results())
        assert (found.rows, found.total) == (0, 0)
    for source in (iter(()), pd.DataFrame()):
        with pytest.raises(MetricInputError):
            fold(source, Mean(), VALUES)


def batches(*items) -> Iterator:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield item


def one(**columns) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_iterators_that_fail_or_change():
    x = one(x=[1.0])
    # The caller's own errors are raised as they are.
    for items in ((RuntimeError("mine"),), (x, RuntimeError("mine"))):
        with pytest.raises(RuntimeError, match=r"^mine$"):
            fold(batches(*items), Mean(), VALUES)
    faults = {
        "item 2 has no column 'x'": (x, one(y=[1.0])),
        "item 3 has the type string of the column 'x', and .* double": (x, x, one(x=["a"])),
        "item 2 has the type list<": (x, one(x=[[1.0]])),
        "item 2 has a column 'weights', which the metrics take": (x, one(x=[1.0], weights=[1])),
        "item 1 is a dict; expected a record batch": ({"x": [1.0]},),
        "item 2 is a str": (x, "a.csv"),
        "it gives no record batch": (),
    }
    for fault, items in faults.items():
        with pytest.raises(MetricInputError, match=f"^generator: {fault}"):
            fold(batches(*items), Mean(), VALUES)
    good = {
        "integers, then fractions": (one(x=[1]), one(x=[0.5])),
        "another order, and more columns": (x, one(y=[1], x=[0.5])),
        "no values": (x, one(x=pa.nulls(3)), one(x=[0.5])),
        "another package": (x, pl.DataFrame({"x": [0.5]})),
    }
    for name, items in good.items():
        assert fold(batches(*items), Mean(), VALUES).metric.results() == 0.75, name
    with pytest.raises(DataraxError, match="which floats would round"):
        fold(batches(one(x=[2**53 + 1]), one(x=[0.5])), Mean(), VALUES)
    # A reader whose batches are not those of its schema: their bytes would be other numbers.
    reader = pa.RecordBatchReader.from_batches(x.schema, iter([x, one(x=[1])]))
    with pytest.raises(MetricInputError, match=r"a batch has the columns 'x' .int64"):
        fold(reader, Mean(), VALUES)
    reader = pa.RecordBatchReader.from_batches(x.schema, batches(x, RuntimeError("mine")))
    with pytest.raises(MetricInputError, match="RecordBatchReader: cannot be read: mine"):
        fold(reader, Mean(), VALUES)


def test_errors_name_the_row(monkeypatch):
    monkeypatch.setattr(streams, "PART_ROWS", 2)
    frame = pl.DataFrame({"p": [["a"], ["b"], ["c"], ["d", "e"]], "t": ["a", "b", "c", "d"]})
    with pytest.raises(DataraxError, match=r"^polars\.DataFrame: row 4: .*'p' holds a list of 2"):
        fold(frame, WER(), {"preds": "p", "target": "t"})


def test_what_needs_a_source_that_is_read_twice():
    frame = pl.DataFrame({"x": [1.0]})
    start = fold(frame, Mean(), VALUES)
    with pytest.raises(MetricInputError, match=r"start= .*polars\.DataFrame has no parts that can"):
        fold(frame, Mean(), VALUES, start=start)


def test_what_is_no_source():
    for source, fault in (
        (3, "source is a int; expected the path of a file, a table or a stream"),
        ({"x": [1.0]}, "source is a dict"),
        (pl.LazyFrame({"x": [1.0]}), "polars.LazyFrame; .* it is lazy: give what its collect"),
        (np.ones(3), "numpy.ndarray: item 1 is a numpy.float64"),
        (pl.Series("x", [1.0]), "polars.Series: cannot be read"),
        ([], "source is an empty list"),
    ):
        with pytest.raises(MetricInputError, match=fault):
            fold(source, Mean(), VALUES)


def test_a_file_of_a_dataset_changes_while_it_is_read(rng, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": rng.random(3000)}), path, row_group_size=100)
    dataset = pyarrow.dataset.dataset(path)
    found = stream_of(dataset)
    assert isinstance(found, Stream)
    (chunk,) = found.chunks
    read = chunk.batches(["x"])
    next(read)
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(MetricInputError, match=r"a\.parquet: the file has changed while"):
        list(read)


def test_missing_values(table):
    frame = pl.DataFrame({"x": [1.0, -999.0], "t": ["a", "N/A"]})
    assert fold(frame, Mean(), VALUES, missing_values=["-999"]).excluded == {"x": 1}
    labels = Columns({"preds": "x", "target": "t"}, classes={"target": ["a", "b"]})
    assert fold(frame, Accuracy(), labels, missing_values="N/A").excluded == {"t": 1}


def test_paths_from_an_iterator(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.csv", {"x": [1, 2]})
    assert fold(tmp_path.glob("*.csv"), Sum(), VALUES).rows == 4
