"""States as rows of Arrow, between the tasks of an engine that only passes tables on."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from datarax._optional import optional
from datarax.evaluation.batch_folding import BatchFolding
from datarax.evaluation.partial_state import portable
from datarax.evaluation.state_bytes import BatchState, as_bytes, state_of

if TYPE_CHECKING:
    import pyarrow

FAN_IN = 32
"""The number of states that a task merges, and the most that the caller's process gets."""


def state_row(places: list[int], call: Callable[[], BatchState]) -> "pyarrow.RecordBatch":
    """The state that `call` gives as one row: its place, its bytes, and no error.

    An error is a value, too, because an engine would run the task again several times. A state of
    no rows gives none. The place is the first of `places`, which `call` may fill.
    """
    pa = optional("pyarrow", "parquet", "evaluate")
    state, error, rows = None, None, 1
    try:
        found = call()
        state, rows = as_bytes(found), int(bool(found.rows or found.excluded))
    except Exception as problem:
        error = pickle.dumps(portable(problem))
    types = {"place": pa.int64(), "state": pa.binary(), "error": pa.binary()}
    values = {"place": [*places, 0][0], "state": state, "error": error}
    whole = {name: pa.array([values[name]], types[name]) for name in types}
    return pa.record_batch(whole).slice(0, rows)


def merged_row(
    folding: BatchFolding, batches: Iterable["pyarrow.RecordBatch"]
) -> "pyarrow.RecordBatch":
    """The states of some rows, merged to one row."""
    places: list[int] = []

    def states() -> Iterator[BatchState]:
        for batch in batches:
            places.extend(batch["place"].to_pylist())
            yield from states_in(folding, batch)

    return state_row(places, lambda: folding.merged(states()))


def states_in(folding: BatchFolding, batch: "pyarrow.RecordBatch") -> Iterator[BatchState]:
    """The states of some rows, one after the other.

    Raises:
        Exception: the first error among the rows.
    """
    for state, error in zip(batch["state"], batch["error"], strict=True):
        if error.is_valid:
            raise pickle.loads(error.as_py())
        yield state_of(state.as_py(), folding.empty.metric)
