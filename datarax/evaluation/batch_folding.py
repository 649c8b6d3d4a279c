"""Folds record batches of Arrow into a metric, for engines that bring the rows themselves."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from datarax._checks import kind, warn, x64_enabled
from datarax._errors import (
    DataraxError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
)
from datarax._optional import optional
from datarax._update_context import in_update
from datarax.evaluation.arrow_files import column_at, columns_of
from datarax.evaluation.columns import (
    INDEX,
    Columns,
    Feed,
    Names,
    feeds_of,
    grouping_columns,
    may_be_read,
    takes_index,
)
from datarax.evaluation.identity import FileIdentity
from datarax.evaluation.partial_state import check_foldable
from datarax.evaluation.state_bytes import BatchState, OutputForm
from datarax.evaluation.table_batches import READ_ROWS, complete_rows
from datarax.evaluation.tables import Outputs, Table, Types
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection

if TYPE_CHECKING:
    import pyarrow

_NO_FILE = FileIdentity("the record batch", "", 0, 0, 0, "")


class _Plan(NamedTuple):
    """How the columns of one schema are read."""

    feeds: tuple[Feed, ...]
    names: tuple[str, ...]
    """The columns that are read."""
    numbered: bool
    """True if rows get ids."""


class BatchFolding:
    """Folds record batches into a metric. It can be pickled, for workers.

    Args:
        metrics: as for `evaluate`.
        columns: as for `evaluate`.
        group_by: a column. The rows with one value of it are all in one record batch, so they come
            in one update, as those of a query must.
        call: the name of the public call, for errors.
    """

    def __init__(
        self,
        metrics: Metric | Mapping[str, Metric],
        columns: Columns | Mapping[str, Names] | None,
        group_by: str | None,
        call: str,
    ):
        metric = Collection(metrics) if isinstance(metrics, Mapping) else metrics
        if not isinstance(metric, Metric):
            raise MetricTypeError(
                f"{call}: metrics is {kind(metrics)}; expected a datarax.Metric or a dict of them"
            )
        check_foldable(metric)
        # As arrays of NumPy, which are on no device.
        self.empty = BatchState(jax.tree.map(np.asarray, metric.emptied()))
        self.columns, self.group_by, self.call = columns, group_by, call
        self.x64 = x64_enabled()
        self._plans: dict[Any, _Plan] = {}

    def plan(self, schema: "pyarrow.Schema") -> _Plan:
        """What is read of record batches with this schema.

        Raises:
            MetricInputError: a column is missing, or has a type that the metric cannot take; or
                rows belong together, as those of a query, and `group_by` is not given.
        """
        found = self._plans.get(schema)
        if found is None:
            found = self._plans[schema] = self._planned(schema)
        return found

    def _planned(self, schema: "pyarrow.Schema") -> _Plan:
        types: Types = {}
        for name, known in columns_of(schema):
            types[name] = known._replace(kind="doubled") if name in types else known
        metric = self.empty.metric
        table = Table(_NO_FILE, types, (), is_file=False)
        feeds, read = feeds_of(metric, self.columns, [table])
        grouping = grouping_columns(metric, feeds)
        if grouping and self.group_by is None:
            raise MetricInputError(
                f"{self.call}: the rows with one value of {grouping[0]!r} must be in one update, "
                f"and they may lie in several partitions or record batches; give "
                f"group_by={grouping[0]!r}, and see the page 'On many machines' for what it asks "
                f"of the rows; or give one row for each of them, which holds lists"
            )
        if self.group_by is not None and self.group_by not in types:
            raise MetricInputError(
                f"{self.call}: there is no column {self.group_by!r} to group by; there are: "
                f"{', '.join(map(repr, types))}"
            )
        return _Plan(feeds, tuple(read), takes_index(metric, feeds))

    def with_batch(
        self, state: BatchState, given: Any, key: int | None = None, first: int = 0
    ) -> BatchState:
        """The state with the rows of a record batch.

        Args:
            state: the state before.
            given: a `RecordBatch`, a `Table`, what exports one by the protocol of Arrow, or a list
                of rows as dicts.
            key: from which the ids of rows count, in metrics that draw rows; else at random.
            first: the number of rows before it, for errors and ids.
        """
        is_rows = isinstance(given, list) and all(isinstance(each, Mapping) for each in given)
        batch = self._of_rows(given) if is_rows else as_batch(given, self.call)
        if not batch.num_rows and not batch.num_columns:  # as an empty partition may be
            return state
        batch = _untyped_where_null(batch)
        plan = self.plan(batch.schema)
        key = secrets.randbits(32) if key is None else key
        excluded = dict(state.excluded)
        metric, rows, forms = state.metric, state.rows, state.outputs
        size = READ_ROWS if self.group_by is None else max(batch.num_rows, 1)
        for start in range(0, batch.num_rows, size):
            piece = batch.slice(start, size)
            place = first + start
            # A worker has settings of its own.
            with jax.enable_x64(self.x64), in_update(checks="none"), _naming_row(self.call, place):
                outputs, places = complete_rows(
                    plan.feeds, {name: column_at(piece, name) for name in plan.names}, excluded
                )
                if not len(places):
                    continue
                forms = self._agreed(forms, _forms(plan.feeds, outputs))
                if plan.numbered:
                    outputs[INDEX] = (key + place + places).astype(np.uint32)
                metric = metric.update(**metric.arguments_from(outputs))
            rows += len(places)
        return BatchState(metric, rows, excluded, forms)

    def _of_rows(self, rows: list[Mapping[str, Any]]) -> "pyarrow.RecordBatch":
        """Rows as a record batch, with the columns that may be needed; others may hold anything."""
        pa = optional("pyarrow", "parquet", self.call)
        names = dict.fromkeys(name for row in rows for name in row)
        wanted = may_be_read(self.empty.metric, self.columns, self.group_by)
        columns = {}
        for name in names:
            if not wanted(name):
                continue
            values = (row.get(name) for row in rows)
            try:
                # Arrow takes arrays of one axis.
                columns[name] = pa.array(
                    [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
                )
            except (pa.ArrowException, ValueError, TypeError) as error:
                raise MetricInputError(
                    f"{self.call}: the column {name!r} holds values of several types: {error}"
                ) from error
        return pa.record_batch(columns)

    def folded(self, batches: Iterable["pyarrow.RecordBatch"], key: int) -> BatchState:
        """The state of the record batches of a partition.

        With `group_by`, rows with one value of it follow each other, and may be cut anywhere.
        """
        state, place = self.empty, 0
        if self.group_by is not None:
            batches = whole_groups(batches, self.group_by)
        for batch in batches:
            state = self.with_batch(state, batch, key, place)
            place += batch.num_rows
        return state

    def merged(self, states: Iterable[BatchState]) -> BatchState:
        """All states merged, from left to right."""
        return reduce(self._merged, states, self.empty)

    def _merged(self, a: BatchState, b: BatchState) -> BatchState:
        names = dict.fromkeys((*a.excluded, *b.excluded))
        excluded = {name: a.excluded.get(name, 0) + b.excluded.get(name, 0) for name in names}
        if not a.rows or not b.rows:  # nothing was folded into one, so there is nothing to merge
            return (b if b.rows else a)._replace(excluded=excluded)
        forms = self._agreed(a.outputs, b.outputs)
        return BatchState(a.metric.merge(b.metric), a.rows + b.rows, excluded, forms)

    def _agreed(
        self, known: Mapping[str, OutputForm], others: Mapping[str, OutputForm]
    ) -> Mapping[str, OutputForm]:
        """What fed the outputs of all rows.

        Raises:
            MetricInputError: some rows had another column, type or shape of an output than others.
        """
        if not known or not others or known == others:
            return known or others
        for output in dict.fromkeys((*known, *others)):
            one, two = known.get(output), others.get(output)
            if one == two:
                continue
            if one is None or two is None:
                raise MetricInputError(
                    f"{self.call}: some record batches have {_shown(one or two)} for the output "
                    f"{output!r}, and others have no such column; add it to all of them (rows "
                    f"without a value are left out), or leave it out of all with "
                    f"columns={{{output!r}: None}}"
                )
            difference = [_shown(each) for each in (one, two)]
            if one.columns == two.columns:
                difference = [_shown_type(each) for each in (one, two)]
            raise MetricInputError(
                f"{self.call}: for the output {output!r}, some record batches have "
                f"{difference[0]}, and others {difference[1]}; expected the same in all"
            )
        return known

    def result(self, state: BatchState) -> Metric:
        """The metric of a state, with a warning of the rows that were left out."""
        if state.excluded:
            reasons = ", ".join(
                f"{number:,} without a value in the column {name!r}"
                for name, number in state.excluded.items()
            )
            warn(f"{self.call}: rows are left out: {reasons}", InvalidValuesWarning)
        return state.metric


def _untyped_where_null(batch: "pyarrow.RecordBatch") -> "pyarrow.RecordBatch":
    """The same rows, where a column without any value has the type null.

    Its type says nothing: Dask makes strings of it.
    """
    pa = optional("pyarrow", "parquet", "a record batch")
    arrays = [
        pa.nulls(len(x)) if x.null_count == len(x) and not pa.types.is_nested(x.type) else x
        for x in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


@contextmanager
def _naming_row(call: str, first: int) -> Iterator[None]:
    """Names the row in an error that is about one; `first` is the number of rows before."""
    try:
        yield
    except DataraxError as error:
        if error.row is not None:
            error.args = (f"{call}: row {first + error.row + 1:,}: {error}",)
        raise


def _forms(feeds: Iterable[Feed], outputs: Outputs) -> dict[str, OutputForm]:
    """What feeds each output, as far as all batches must have the same."""
    forms = {}
    for feed in feeds:
        # One of these is a matter of the values, unless integers mean labels.
        either = feed.kind in ("integer", "float") and not feed.scored
        found = outputs[feed.output]
        is_fixed = isinstance(found, np.ndarray) and feed.mask is None
        shape = found.shape[1:] if is_fixed else ()
        forms[feed.output] = OutputForm(feed.columns, "number" if either else feed.kind, shape)
    return forms


def _shown(form: OutputForm | None) -> str:
    names = form.columns if form is not None else ()
    return f"the column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


_KINDS = {
    "float": "fractions, which are scores",
    "integer": "integers, which are labels",
    "number": "numbers",
    "boolean": "booleans",
    "text": "strings",
}


def _shown_type(form: OutputForm) -> str:
    lists = f" in lists of the shape {form.shape}" if form.shape else ""
    return f"{_KINDS.get(form.kind, form.kind)}{lists}"


def as_batch(given: Any, call: str) -> "pyarrow.RecordBatch":
    """One record batch with all rows of what was given.

    Raises:
        MetricTypeError: it is neither a record batch nor a table.
    """
    pa = optional("pyarrow", "parquet", call)
    if isinstance(given, pa.RecordBatch):
        return given
    if hasattr(given, "__arrow_c_array__"):
        return pa.record_batch(given)
    if not isinstance(given, pa.Table):
        if not hasattr(given, "__arrow_c_stream__"):
            raise MetricTypeError(
                f"{call}: got {kind(given)}; expected a pyarrow.RecordBatch, or a table that has "
                f"__arrow_c_stream__"
            )
        given = pa.table(given)
    whole = given.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=given.schema)


def whole_groups(
    batches: Iterable["pyarrow.RecordBatch"], column: str
) -> Iterator["pyarrow.RecordBatch"]:
    """The same rows in batches that never cut rows with one value, which follow each other."""
    pa = optional("pyarrow", "parquet", "group_by")
    held: pyarrow.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = batch
        if held is not None:
            rows = as_batch(pa.Table.from_batches([held, batch]), "group_by")
        codes = rows.column(column).dictionary_encode().indices.fill_null(-1)
        codes = codes.to_numpy(zero_copy_only=False)
        # The last group may go on in the next batch: its rows are held back.
        others = np.flatnonzero(codes != codes[-1])
        stop = int(others[-1]) + 1 if others.size else 0
        if stop:
            yield rows.slice(0, stop)
        held = rows.slice(stop)
    if held is not None:
        yield held
