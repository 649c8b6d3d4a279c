"""The state of a part: folded anywhere, and merged in an order that depends on the parts alone."""

import pickle
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._checks import x64_enabled
from datarax._errors import DataraxError, MetricInputError
from datarax.evaluation.columns import Feed
from datarax.evaluation.read_ahead import read_ahead
from datarax.evaluation.table_batches import batches
from datarax.evaluation.tables import ColumnType, Part
from datarax.evaluation.whole_queries import whole_queries
from datarax.metrics.base import Metric
from datarax.metrics.compiled import padded_to


@dataclass(frozen=True)
class Task:
    """What all parts are folded with. It is pickled for workers."""

    metric: bytes
    """The empty metric, pickled and compressed, as its arrays are mostly zeros."""
    feeds: tuple[Feed, ...]
    types: Mapping[str, ColumnType]
    rows: int
    """The rows of a batch. Shorter ones are padded, so that all workers do the same arithmetic."""
    index: str | None
    """The output that gets an id of each row, if any."""
    x64: bool
    encode: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """What makes outputs of the columns; None if they are the outputs."""
    together: str | None = None
    """The column of which equal values come in one batch."""


class PartState(NamedTuple):
    """What comes back of a part."""

    leaves: tuple[np.ndarray[Any, Any], ...]
    """The arrays of the metric."""
    rows: int
    excluded: dict[str, int]


class Failure(NamedTuple):
    """The error that a part ended with. As a value, it is the same from every executor."""

    error: Exception


def packed(metric: Metric) -> bytes:
    """An empty metric as bytes."""
    return zlib.compress(pickle.dumps(metric), 1)


@lru_cache(maxsize=8)
def _unpacked(data: bytes) -> Metric:
    return pickle.loads(zlib.decompress(data))


def fold_part(task: Task, part: Part) -> PartState | Failure:
    """Folds a part into an empty metric. It runs in any process."""
    try:
        if x64_enabled() != task.x64:
            jax.config.update("jax_enable_x64", task.x64)
        return folded(task, part)
    except Exception as error:
        return Failure(_portable(_with_place(error, part)))


def folded(task: Task, part: Part, stopped: Callable[[], bool] = lambda: False) -> PartState:
    """The state of a part; `stopped` is asked before each batch whether to give up."""
    metric, rows = _unpacked(task.metric), 0
    excluded: dict[str, int] = {}
    found = batches(part, task.feeds, task.types, task.rows, task.index)
    ahead = read_ahead(found if task.together is None else whole_queries(found, task.together))
    with padded_to(task.rows):
        for batch in ahead:
            if stopped():
                ahead.close()
                break
            for name, number in batch.excluded.items():
                excluded[name] = excluded.get(name, 0) + number
            if not batch.rows:
                continue
            before = metric
            outputs = batch.outputs if task.encode is None else task.encode(batch.outputs)
            metric = metric.update(**metric.arguments_from(outputs))
            jax.block_until_ready(before)  # at most one update is in flight
            rows += batch.rows
    return PartState(tuple(map(np.asarray, jax.tree.leaves(metric))), rows, excluded)


def _with_place(error: Exception, part: Part) -> Exception:
    """The error, with the name of the file."""
    if isinstance(error, DataraxError):
        text = str(error)
        if part.path not in text:
            error.args = (f"{part.path}: {text}",)
    else:
        error.add_note(f"This was raised by the evaluation of {part.path}.")
    return error


def _portable(error: Exception) -> Exception:
    """The error, or if it cannot be pickled one that can."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        pass
    notes = " ".join(getattr(error, "__notes__", ()))
    return RuntimeError(f"{type(error).__name__}: {error} {notes}".strip())


Node = tuple[int, int]
"""Of the tree over the parts: the level, from 0, and the place in it. A node of level k has 2**k
parts."""


@jax.jit
def _merged(a: Metric, b: Metric) -> Metric:
    return a.combine(b)


@dataclass(frozen=True)
class Merging:
    """The states of the parts that are done, merged as far as the fixed tree over all allows."""

    nodes: dict[Node, Metric] = field(default_factory=dict)

    def with_part(self, index: int, state: Metric) -> "Merging":
        """This, with the state of one more part."""
        nodes, level = dict(self.nodes), 0
        while (level, index ^ 1) in nodes:
            sibling = nodes.pop((level, index ^ 1))
            state = _merged(state, sibling) if index % 2 == 0 else _merged(sibling, state)
            level, index = level + 1, index // 2
        nodes[level, index] = state
        return replace(self, nodes=nodes)

    def merged(self, start: Metric) -> Metric:
        """All of them as one, in the order of the parts from the last; `start` is the empty one."""
        ordered = sorted(self.nodes, key=lambda node: node[1] << node[0], reverse=True)
        whole = None
        for node in ordered:
            state = self.nodes[node]
            whole = state if whole is None else _merged(state, whole)
        return start if whole is None else whole


def check_foldable(metric: Metric) -> None:
    """Raises if the metric cannot be folded part by part."""
    if metric.owns_mesh:
        raise MetricInputError(
            "evaluate: the metric has one copy per device; give the plain metric: all devices of "
            "this process are used"
        )
