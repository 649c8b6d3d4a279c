"""Evaluating the rows of a data frame of Spark, on its executors."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from datarax._checks import kind
from datarax._errors import MetricTypeError
from datarax._optional import optional
from datarax.evaluation.arrow_files import roots_of
from datarax.evaluation.batch_folding import BatchFolding, as_batch
from datarax.evaluation.columns import Columns, Names
from datarax.evaluation.state_rows import FAN_IN, merged_row, state_row, states_in
from datarax.evaluation.tables import key_of
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection

if TYPE_CHECKING:
    import pyarrow

_SCHEMA = "place bigint, state binary, error binary"

Batches: TypeAlias = "Iterator[pyarrow.RecordBatch]"
M = TypeVar("M", bound=Metric)


@overload
def evaluate(
    dataframe: Any,
    metrics: M,
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    group_by: str | None = None,
) -> M: ...


@overload
def evaluate(
    dataframe: Any,
    metrics: Mapping[str, Metric],
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    group_by: str | None = None,
) -> Collection: ...


def evaluate(
    dataframe: Any,
    metrics: Metric | Mapping[str, Metric],
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    group_by: str | None = None,
) -> Metric:
    """The metric with all rows of a data frame of Spark folded in.

    Each task folds the record batches of its partition (`mapInArrow`) and gives one state. Further
    tasks merge 32 states each, until 32 are left, which the driver merges. Only the columns that
    are needed are sent to Python. Everything else is as in `datarax.evaluate`: rows without a value
    are left out with a warning, and numbers are those of one process.

    The states of the partitions are kept by Spark (`persist`) until the result is there.

    Args:
        dataframe: a `pyspark.sql.DataFrame`, also one of Spark Connect. Its executors need datarax,
            of the same version.
        metrics: a metric without data, or a dict of metrics.
        columns: as for `datarax.evaluate`.
        group_by: a column of ids. Spark brings the rows with one id together (a shuffle), as
            metrics of queries need it that are given as flat rows.

    Raises:
        MetricInputError: a column is missing, or its values do not fit; or the metric is one of
            queries, and `group_by` is not given.
        MetricTypeError: `dataframe` is no data frame of Spark, or `metrics` is no metric.
        MissingExtraError: PySpark is not installed (the extra `spark`).

    Example:
        >>> from datarax.evaluation import spark
        >>> from datarax.metrics import Accuracy
        >>> frame = session.read.parquet("predictions")  # doctest: +SKIP
        >>> columns = {"preds": "score", "target": "label"}
        >>> spark.evaluate(frame, Accuracy(), columns=columns).compute()  # doctest: +SKIP
    """
    sql = optional("pyspark.sql", "spark", "spark.evaluate")
    if not (hasattr(dataframe, "mapInArrow") and hasattr(dataframe, "persist")):
        raise MetricTypeError(
            f"spark.evaluate: got {kind(dataframe)}; expected a pyspark.sql.DataFrame"
        )
    folding = BatchFolding(metrics, columns, group_by, "spark.evaluate")
    schema = _schema(dataframe)
    names = [*roots_of(folding.plan(schema).names, schema.names)]
    if group_by is not None and group_by not in names:
        names.append(group_by)
    # Without the signs that `mapInArrow` would take for a field of a struct.
    plain = {name: f"c{place}" for place, name in enumerate(names)}
    chosen = (sql.functions.col(_quoted(name)).alias(plain[name]) for name in names)
    rows = dataframe.select(*chosen)
    if group_by is not None:
        rows = rows.repartition(plain[group_by]).sortWithinPartitions(plain[group_by])
    states = rows.mapInArrow(partial(_folded, folding, names), _SCHEMA).persist()
    try:
        # How many tasks there are is known only when they have run.
        found, number = states, states.count()
        while number > FAN_IN:
            number = -(-number // FAN_IN)
            place = sql.functions.floor(sql.functions.col("place") / FAN_IN)
            found = found.withColumn("place", place).repartition(number, "place")
            found = found.sortWithinPartitions("place")
            found = found.mapInArrow(partial(_merged, folding), _SCHEMA)
        last = found.sort("place").toArrow()
    finally:
        states.unpersist()
    return folding.result(folding.merged(states_in(folding, as_batch(last, "spark.evaluate"))))


def _schema(dataframe: Any) -> "pyarrow.Schema":
    """The schema that the record batches of a data frame will have."""
    pa = optional("pyarrow", "spark", "spark.evaluate")
    convert = optional("pyspark.sql.pandas.types", "spark", "spark.evaluate").to_arrow_type
    fields = []
    for field in dataframe.schema.fields:
        # A type that Arrow has not: an error where a metric needs the column.
        found = pa.struct([])
        with suppress(Exception):
            found = convert(field.dataType)
        fields.append((field.name, found))
    return pa.schema(fields)


def _quoted(name: str) -> str:
    """The name of a column for Spark, which takes a dot in it for a field of a struct."""
    return f"`{name.replace('`', '``')}`"


def _folded(folding: BatchFolding, names: list[str], batches: Batches) -> Batches:
    """The state of one partition, as a record batch of one row."""
    context = optional("pyspark", "spark", "spark.evaluate").TaskContext.get()
    place = context.partitionId() if context is not None else 0
    named = (batch.rename_columns(names) for batch in batches)
    yield state_row([place], lambda: folding.folded(named, key_of("spark", place)))


def _merged(folding: BatchFolding, batches: Batches) -> Batches:
    """The states of some partitions, merged to one."""
    yield merged_row(folding, batches)
