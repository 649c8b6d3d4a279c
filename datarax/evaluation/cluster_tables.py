"""Tables on a cluster, a data frame of Dask or a dataset of Ray, folded by the workers there."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.batch_folding import BatchFolding, as_batch
from datarax.evaluation.columns import may_be_read
from datarax.evaluation.partial_state import Failure, portable
from datarax.evaluation.state_bytes import BatchState, as_bytes, state_of
from datarax.evaluation.state_rows import FAN_IN, merged_row, state_row, states_in
from datarax.evaluation.tables import key_of

if TYPE_CHECKING:
    import pyarrow

ClusterTable = Any
"""A `dask.dataframe.DataFrame` or a `ray.data.Dataset`."""


def folded_on_cluster(source: ClusterTable) -> Callable[[BatchFolding], BatchState] | None:
    """What folds a table by the workers that hold it; None if the source is none of these."""
    # Whoever has such a table has imported the package.
    dask, ray = sys.modules.get("dask.dataframe"), sys.modules.get("ray.data")
    if dask is not None and isinstance(source, dask.DataFrame):
        return partial(_of_dask, source)
    if ray is not None and isinstance(source, ray.Dataset):
        return partial(_of_ray, source)
    return None


def _needed(folding: BatchFolding, names: Sequence[Any]) -> list[Any]:
    """The columns that may be read; all if none of them is: the error names them."""
    wanted = may_be_read(folding.empty.metric, folding.columns, folding.group_by)
    return [name for name in names if wanted(str(name))] or list(names)


def _of_dask(frame: Any, folding: BatchFolding) -> BatchState:
    dask = optional("dask", "dask", "evaluate")
    rows = frame[_needed(folding, frame.columns)]
    if folding.group_by is not None and folding.group_by in frame.columns:
        rows = rows.shuffle(folding.group_by)
    fold, merge = dask.delayed(_dask_folded), dask.delayed(_dask_merged)
    # One object for all tasks, instead of one in each.
    shared = dask.delayed(folding)
    states = [fold(shared, part, place) for place, part in enumerate(rows.to_delayed())]
    while len(states) > 1:
        starts = range(0, len(states), FAN_IN)
        states = [merge(shared, states[start : start + FAN_IN]) for start in starts]
    (found,) = dask.compute(states[0])
    if isinstance(found, Failure):
        raise found.error
    return state_of(found, folding.empty.metric)


def _dask_folded(folding: BatchFolding, rows: Any, place: int) -> bytes | Failure:
    """The state of one partition, a data frame of pandas."""
    try:
        pa = optional("pyarrow", "parquet", "evaluate")
        if folding.group_by is not None:
            rows = rows.sort_values(folding.group_by)
        try:
            table = pa.Table.from_pandas(rows, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise MetricInputError(
                f"evaluate: partition {place + 1:,} of the data frame of Dask cannot be read: "
                f"{error}"
            ) from None
        batch = as_batch(table, "evaluate")
        return as_bytes(folding.folded([batch], key_of("dask", place)))
    except Exception as error:  # as a value: a task that raises may be run again
        return Failure(portable(error))


def _dask_merged(folding: BatchFolding, states: list[bytes | Failure]) -> bytes | Failure:
    found: list[BatchState] = []
    for each in states:
        if isinstance(each, Failure):
            return each
        found.append(state_of(each, folding.empty.metric))
    return as_bytes(folding.merged(found))


def _of_ray(dataset: Any, folding: BatchFolding) -> BatchState:
    rows = dataset.select_columns(_needed(folding, dataset.columns()))
    options = {"batch_format": "pyarrow"}
    if folding.group_by is not None:
        groups = rows.groupby(folding.group_by)
        states = groups.map_groups(partial(_ray_folded, folding), **options)
    else:
        states = rows.map_batches(partial(_ray_folded, folding), batch_size=None, **options)
    states = states.materialize()
    number = states.num_blocks()
    while number > FAN_IN:
        number = -(-number // FAN_IN)
        # Neighbours come together, in their order.
        states = states.repartition(number)
        states = states.map_batches(partial(_ray_merged, folding), batch_size=None, **options)
    found = [each for each in states.iter_batches(batch_size=None, **options) if len(each)]
    return folding.merged(
        state for each in found for state in states_in(folding, as_batch(each, "evaluate"))
    )


def _ray_folded(folding: BatchFolding, rows: "pyarrow.Table") -> "pyarrow.Table":
    return _as_table(state_row([], lambda: folding.with_batch(folding.empty, rows)))


def _ray_merged(folding: BatchFolding, rows: "pyarrow.Table") -> "pyarrow.Table":
    return _as_table(merged_row(folding, rows.to_batches()))


def _as_table(batch: "pyarrow.RecordBatch") -> "pyarrow.Table":
    return optional("pyarrow", "parquet", "evaluate").Table.from_batches([batch])
