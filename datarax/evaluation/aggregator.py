"""`Aggregator`: a metric as an aggregate function over bytes, for any engine that has those."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar, overload

from datarax._errors import DataraxError
from datarax.evaluation.batch_folding import BatchFolding
from datarax.evaluation.columns import Columns, Names
from datarax.evaluation.state_bytes import BatchState, as_bytes, state_of
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection

M = TypeVar("M", bound=Metric)


class Aggregator(Generic[M]):
    """Folds record batches into metrics, with states that are bytes.

    Engines for data of any size have aggregate functions of this form: an empty state, a function
    that adds rows, one that merges states, and one that reads the result. Rows may be added and
    states merged anywhere and in any order. A state is of one size, however many rows it has; its
    [layout](../machines.md#the-bytes-of-a-state) is documented. Everything runs on the host: no
    JAX program is compiled, and no device is used.

    It can be pickled. The processes need the same version of datarax.

    Args:
        metrics: a metric without data, or a dict of metrics.
        columns: by output that the metrics take, a column, a list of columns or a glob: as for
            `datarax.evaluate`.
        group_by: a column of ids, if you see to it that all rows with one id are in one record
            batch. Metrics of queries that are given as flat rows need it, as they rank all rows of
            a query together.

    Raises:
        MetricInputError: the metric has data already, or depends on the order of updates.
        MetricTypeError: `metrics` is no metric.

    Example:
        >>> import pyarrow as pa
        >>> from datarax.evaluation import Aggregator
        >>> from datarax.metrics import Accuracy
        >>> aggregator = Aggregator(
        ...     {"accuracy": Accuracy()}, columns={"preds": "score", "target": "label"}
        ... )
        >>> one = pa.record_batch({"score": [0.9, 0.2], "label": [1, 1]})
        >>> two = pa.record_batch({"score": [0.8], "label": [1]})
        >>> here = aggregator.add(aggregator.zero(), one)
        >>> there = aggregator.add(aggregator.zero(), two)
        >>> result = aggregator.finish(aggregator.merge(here, there)).results()
        >>> print(round(result["accuracy"], 4))
        0.6667
    """

    @overload
    def __init__(
        self,
        metrics: M,
        *,
        columns: Columns | Mapping[str, Names] | None = None,
        group_by: str | None = None,
    ): ...

    @overload
    def __init__(
        self: "Aggregator[Collection]",
        metrics: Mapping[str, Metric],
        *,
        columns: Columns | Mapping[str, Names] | None = None,
        group_by: str | None = None,
    ): ...

    def __init__(
        self,
        metrics: Any,
        *,
        columns: Columns | Mapping[str, Names] | None = None,
        group_by: str | None = None,
    ):
        self._folding = BatchFolding(metrics, columns, group_by, "Aggregator")

    def zero(self) -> bytes:
        """The state of no rows."""
        return as_bytes(self._folding.empty)

    def add(self, state: bytes, record_batch: Any) -> bytes:
        """The state with the rows of a record batch.

        A row that has no value in a needed column is left out, and counted in the state.

        Args:
            state: the bytes of a state.
            record_batch: a `pyarrow.RecordBatch` or `Table`, or another table that exports one by
                the protocol of Arrow (`__arrow_c_stream__`). The larger it is, the less it costs to
                read and write the state.

        Raises:
            MetricInputError: a column is missing, or its values do not fit; or the metric is one of
                queries, and `group_by` was not given.
            CheckpointError: the state is damaged, no state, or of another version of datarax.
            ConfigurationMismatchError: the state is of other metrics.
        """
        return as_bytes(self._folding.with_batch(self._state(state, "add"), record_batch))

    def merge(self, *states: bytes) -> bytes:
        """The state with all rows of some states.

        Raises:
            CheckpointError: a state is damaged, no state, or of another version of datarax.
            ConfigurationMismatchError: a state is of other metrics.
        """
        return as_bytes(self._folding.merged(self._state(each, "merge") for each in states))

    def finish(self, state: bytes) -> M:
        """The metric with the rows of a state, with a warning if rows were left out.

        Raises:
            CheckpointError: the state is damaged, no state, or of another version of datarax.
            ConfigurationMismatchError: the state is of other metrics.
        """
        return self._folding.result(self._state(state, "finish"))  # type: ignore[return-value]

    def _state(self, data: bytes, call: str) -> BatchState:
        try:
            return state_of(data, self._folding.empty.metric)
        except DataraxError as error:
            error.args = (f"Aggregator.{call}: {error}",)
            raise
