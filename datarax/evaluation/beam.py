"""Evaluating the elements of a pipeline of Apache Beam."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.batch_folding import BatchFolding
from datarax.evaluation.columns import Columns, Names
from datarax.evaluation.state_bytes import BatchState, as_bytes, state_of
from datarax.metric.base import Metric

ROWS = 4096
"""The number of rows that are held until they are folded together."""


def _combine_fn() -> Any:
    try:
        return import_module("apache_beam").CombineFn
    except ImportError:  # `CombineMetrics()` raises
        return object


_CombineFn: Any = _combine_fn()


@dataclass
class _Accumulator:
    """A state that is being updated, and rows that are not folded yet."""

    state: BatchState
    rows: list[Mapping[str, Any]] = field(default_factory=list)


class CombineMetrics(_CombineFn):
    """A `CombineFn` of Apache Beam whose output is the results of metrics.

    An element is a row, as a dict, a `beam.Row` or a named tuple; or many rows, as a
    `pyarrow.RecordBatch`, a table that exports one by the protocol of Arrow, or a list of dicts.
    Many rows in one element are faster. Use it with `beam.CombineGlobally`,
    `beam.CombinePerKey` or `beam.CombineValues`. States travel as the bytes of
    `datarax.evaluation.Aggregator`.

    The output is `results()`: a number, or a dict of them. No rows give NaN.

    Args:
        metrics: a metric without data, or a dict of metrics.
        columns: by output that the metrics take, a column, a list of columns or a glob: as for
            `datarax.evaluate`.
        group_by: a column of ids, if all rows with one id are in one element, as after
            `beam.GroupBy`. Metrics of queries that are given as flat rows need it.

    Raises:
        MetricInputError: the metric has data already, or depends on the order of updates.
        MetricTypeError: `metrics` is no metric.
        MissingExtraError: Beam is not installed (the extra `beam`).

    Example:
        >>> from datarax.evaluation.beam import CombineMetrics
        >>> from datarax.metrics import Accuracy
        >>> columns = {"preds": "score", "target": "label"}
        >>> combine = CombineMetrics({"accuracy": Accuracy()}, columns=columns)  # doctest: +SKIP
        >>> results = rows | beam.CombineGlobally(combine)  # doctest: +SKIP
        >>> by_country = pairs | beam.CombinePerKey(combine)  # doctest: +SKIP
    """

    def __init__(
        self,
        metrics: Metric | Mapping[str, Metric],
        *,
        columns: Columns | Mapping[str, Names] | None = None,
        group_by: str | None = None,
    ):
        optional("apache_beam", "beam", "CombineMetrics")
        self._folding = BatchFolding(metrics, columns, group_by, "CombineMetrics")

    def create_accumulator(self) -> _Accumulator:
        return _Accumulator(self._folding.empty)

    def add_input(self, accumulator: _Accumulator | bytes, element: Any) -> _Accumulator:
        opened = self._opened(accumulator)
        row = _row_of(element)
        if row is None:
            opened.state = self._folding.with_batch(opened.state, element)
            return opened
        if self._folding.group_by is not None:
            raise MetricInputError(
                f"CombineMetrics: an element is one row, and group_by="
                f"{self._folding.group_by!r} says that all rows with one value are in one element; "
                f"expected lists of rows or record batches, as after beam.GroupBy"
            )
        opened.rows.append(row)
        return self._without_rows(opened) if len(opened.rows) >= ROWS else opened

    def merge_accumulators(self, accumulators: Iterable[_Accumulator | bytes]) -> _Accumulator:
        states = (self._without_rows(self._opened(each)).state for each in accumulators)
        return _Accumulator(self._folding.merged(states))

    def compact(self, accumulator: _Accumulator | bytes) -> bytes:
        if isinstance(accumulator, bytes):
            return accumulator
        return as_bytes(self._without_rows(accumulator).state)

    def extract_output(self, accumulator: _Accumulator | bytes) -> Any:
        state = self._without_rows(self._opened(accumulator)).state
        return self._folding.result(state).results()

    def _opened(self, accumulator: _Accumulator | bytes) -> _Accumulator:
        if isinstance(accumulator, bytes):
            return _Accumulator(state_of(accumulator, self._folding.empty.metric))
        return accumulator

    def _without_rows(self, accumulator: _Accumulator) -> _Accumulator:
        """The same with all rows in the state."""
        if accumulator.rows:
            accumulator.state = self._folding.with_batch(accumulator.state, accumulator.rows)
            accumulator.rows = []
        return accumulator


def _row_of(element: Any) -> Mapping[str, Any] | None:
    """An element as one row by column; None if it holds several rows."""
    if isinstance(element, Mapping):
        return element
    for method in ("as_dict", "_asdict"):  # of a row of Beam, of a named tuple
        if hasattr(element, method):
            return getattr(element, method)()
    return None
