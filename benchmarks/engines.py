"""Times a mean and a count on each engine: by datarax, and by the engine's own aggregates.

    python benchmarks/engines.py [--rows 1e6 1e7 1e8] [--engines spark dask] [--folder DIR]

It needs the packages of `make engines`, and uses two workers of this machine. The rows are in
Parquet files of a float64 and an int8 column. The second run of each is timed: the first one starts
workers and imports what it needs. Own aggregates: compute functions of pyarrow for processes, SQL
for Spark, `mean` and `count` of a data frame for Dask, `aggregate` for Ray, and the combiners of
single values for Beam, which has none for batches.
"""

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import datarax
from datarax.evaluation import beam as on_beam
from datarax.evaluation import engine, spark
from datarax.metrics import Mean, Sum

FILES, WORKERS = 8, 2
OWN_ROWS_OF_BEAM = 1_000_000
METRICS = {
    "mean": Mean().from_outputs(values="x", weights=None),
    "count": Sum().from_outputs(values="one", weights=None),
}
Numbers = tuple[float, int]


class Contest(NamedTuple):
    """Two ways to the same mean and count."""

    datarax: Callable[[], Numbers]
    own: Callable[[], Numbers]


def write(folder: Path, rows: int) -> Path:
    """Files with the rows, in row groups of up to a million."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for i, size in enumerate(np.diff(np.linspace(0, rows, FILES + 1).astype(int))):
        schema = pa.schema({"x": pa.float64(), "one": pa.int8()})
        with pq.ParquetWriter(folder / f"{i}.parquet", schema) as writer:
            for start in range(0, int(size), 2**20):
                number = min(2**20, int(size) - start)
                x = 1e6 + rng.standard_normal(number)
                one = np.ones(number, np.int8)
                writer.write_table(pa.table({"x": x, "one": one}, schema))
    return folder


def of_processes(workers: Any, folder: Path) -> Contest:
    def own() -> Numbers:
        table = ds.dataset(folder).to_table(["x"])
        mean, count = (pc.call_function(name, [table["x"]]).as_py() for name in ("mean", "count"))
        return mean, count

    return Contest(lambda: _numbers(datarax.evaluate(folder, METRICS, executor=workers)), own)


def of_dask(_: Any, folder: Path) -> Contest:
    dask = import_module("dask")
    frame = import_module("dask.dataframe").read_parquet(str(folder))

    def own() -> Numbers:
        mean, count = dask.compute(frame["x"].mean(), frame["x"].count())
        return float(mean), int(count)

    return Contest(lambda: _numbers(datarax.evaluate(frame, METRICS)), own)


def of_ray(_: Any, folder: Path) -> Contest:
    ray = import_module("ray.data")

    def own() -> Numbers:
        aggregates = import_module("ray.data.aggregate")
        found = rows().aggregate(aggregates.Mean("x"), aggregates.Count("x"))
        return found["mean(x)"], found["count(x)"]

    def rows() -> Any:
        return ray.read_parquet(str(folder))

    return Contest(lambda: _numbers(datarax.evaluate(rows(), METRICS)), own)


def of_spark(session: Any, folder: Path) -> Contest:
    frame = session.read.parquet(str(folder))

    def own() -> Numbers:
        (row,) = frame.selectExpr("avg(x)", "count(x)").collect()
        return row[0], row[1]

    return Contest(lambda: _numbers(spark.evaluate(frame, METRICS)), own)


def of_beam(_: Any, folder: Path) -> Contest:
    beam = import_module("apache_beam")

    def run(aggregate: Callable[[Any], Any]) -> Any:
        out = folder.with_suffix(".json")  # what a pipeline gives, it writes
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            batches = pipeline | beam.io.ReadFromParquetBatched(f"{folder}/*.parquet")
            _ = aggregate(batches) | beam.Map(json.dumps) | beam.Map(out.write_text)
        return json.loads(out.read_text())

    def ours() -> Numbers:
        results = run(
            lambda batches: batches | beam.CombineGlobally(on_beam.CombineMetrics(METRICS))
        )
        return results["mean"], int(results["count"])

    def own() -> Numbers:
        combiners = import_module("apache_beam.transforms.combiners")
        both = combiners.TupleCombineFn(combiners.MeanCombineFn(), combiners.CountCombineFn())

        def aggregate(batches: Any) -> Any:
            values = batches | beam.FlatMap(lambda batch: batch["x"].to_pylist())
            return values | beam.Map(lambda x: (x, x)) | beam.CombineGlobally(both)

        mean, count = run(aggregate)
        return mean, count

    return Contest(ours, own)


def _numbers(metric: datarax.Metric) -> Numbers:
    found = metric.results()
    return float(found["mean"]), int(found["count"])


@contextmanager
def _on_dask() -> Iterator[Any]:
    distributed = import_module("distributed")
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(n_workers=WORKERS, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextmanager
def _on_ray() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray, data = import_module("ray"), import_module("ray.data")
    local = {"address": "local", "include_dashboard": False, "log_to_driver": False}
    ray.init(num_cpus=WORKERS, logging_level="ERROR", **local)
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield
    ray.shutdown()


@contextmanager
def _on_spark() -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = import_module("pyspark.sql").SparkSession.builder.master(f"local[{WORKERS}]")
    for name in ("host", "bindAddress"):
        builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
    for name in ("enabled", "showConsoleProgress"):
        builder = builder.config(f"spark.ui.{name}", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@contextmanager
def _on_beam() -> Iterator[None]:
    yield


ENGINES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[..., Contest]]] = {
    "processes": (lambda: engine("processes", workers=WORKERS), of_processes),
    "dask": (_on_dask, of_dask),
    "ray": (_on_ray, of_ray),
    "spark": (_on_spark, of_spark),
    "beam": (_on_beam, of_beam),
}


def rows_a_second(call: Callable[[], Numbers], rows: int) -> tuple[float, Numbers]:
    """How many rows the second call reads in a second, and what it gives."""
    call()
    gc.collect()  # Dask does not compute again what is still referred to
    start = time.perf_counter()
    found = call()
    return rows / (time.perf_counter() - start), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=float, default=[1e6])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    line = "{:<10} {:>10} {:>16} {:>16}"
    print(line.format("engine", "rows", "datarax, rows/s", "own, rows/s"))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        sizes = {int(rows): write(Path(folder) / f"{rows:.0f}", int(rows)) for rows in given.rows}
        for name in given.engines:
            begin, contest_of = ENGINES[name]
            with begin() as started:
                for rows, files in sizes.items():
                    contest = contest_of(started, files)
                    ours, found = rows_a_second(contest.datarax, rows)
                    own = "-"
                    if name != "beam" or rows <= OWN_ROWS_OF_BEAM:
                        speed, due = rows_a_second(contest.own, rows)
                        assert found[1] == due[1] == rows, (found, due)
                        assert abs(found[0] / due[0] - 1) < 1e-9, (found, due)
                        own = f"{speed:,.0f}"
                    print(line.format(name, f"{rows:,}", f"{ours:,.0f}", own), flush=True)


if __name__ == "__main__":
    main()
