"""`evaluate`: a metric of what is in files; `fold`, which it calls, also says how far it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from typing import Any

import jax

from datarax._checks import kind, positive_int, x64_enabled
from datarax._errors import MetricInputError, MetricTypeError
from datarax.evaluation.columns import INDEX, Columns, Encoded, Names, feeds_of
from datarax.evaluation.files import Source, tables_of
from datarax.evaluation.partial_state import (
    Failure,
    Merging,
    PartState,
    Task,
    check_foldable,
    fold_part,
    folded,
    packed,
)
from datarax.evaluation.tables import Part
from datarax.evaluation.whole_queries import parts_of
from datarax.metrics.base import Metric
from datarax.wrappers.collection import Collection


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is."""

    metric: Metric
    """All parts that are done, merged."""
    rows: int = 0
    """How many rows were folded in; the excluded ones are not among them."""
    excluded: dict[str, int] = field(default_factory=dict)
    """By column, how many rows were left out because it has no value there. A row that lacks
    several is counted once, under the first."""
    done: tuple[int, ...] = ()
    """The indices of the parts that are done, ascending."""
    total: int = 0
    """How many parts there are."""
    merging: Merging | None = None
    """The states that wait for their neighbours. With them, an evaluation that continues gives the
    same result bit for bit; without, it merges `metric` with the other parts at the end."""


def fold(
    source: Source,
    metric: Metric,
    columns: Columns | Mapping[str, Names] | None = None,
    *,
    batch_size: int = 65536,
    executor: Executor | None = None,
    start: Progress | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Progress:
    """Folds files into a metric, part by part."""
    positive_int(batch_size, "batch_size")
    check_foldable(metric)
    tables = tables_of(source)
    feeds, types = feeds_of(metric, columns, tables)
    encoded = columns if isinstance(columns, Encoded) else Encoded()
    parts = parts_of(tables, encoded.together)
    empty = metric.reset()
    task = Task(
        packed(empty),
        feeds,
        types,
        batch_size,
        _index(metric, feeds),
        x64_enabled(),
        encoded.encode if isinstance(columns, Encoded) else None,
        encoded.together,
    )
    now = start or Progress(empty, total=len(parts))
    if now.total != len(parts):
        raise MetricInputError(
            f"fold: start has {now.total} parts, and the source has {len(parts)}; expected the "
            f"same files"
        )
    merging = now.merging or Merging()
    before = now.metric if now.done and now.merging is None else None
    structure = jax.tree.structure(empty)
    todo = [i for i in range(len(parts)) if i not in set(now.done)]
    for index, state in _states(task, parts, todo, executor):
        merging = merging.with_part(index, structure.unflatten(state.leaves))
        excluded = dict(now.excluded)
        for name, number in state.excluded.items():
            excluded[name] = excluded.get(name, 0) + number
        done = tuple(sorted((*now.done, index)))
        finished = len(done) == len(parts)
        whole = now.metric
        if progress is not None or finished:
            whole = merging.merged(empty)
            whole = whole if before is None else before.merge(whole)
        kept = merging if before is None else None
        now = Progress(whole, now.rows + state.rows, excluded, done, len(parts), kept)
        if progress is not None:
            progress(now)
    return now


def _states(
    task: Task, parts: Sequence[Part], todo: Sequence[int], executor: Executor | None
) -> Iterator[tuple[int, PartState]]:
    """The states of parts with their indices, in the order in which they are ready."""
    if executor is None:
        for index in todo:
            yield index, _value(fold_part(task, parts[index]))
        return
    waiting: dict[Future[Any], int] = {}
    left = iter(todo)
    try:
        while True:
            while len(waiting) < 64 and (index := next(left, None)) is not None:
                waiting[executor.submit(fold_part, task, parts[index])] = index
            if not waiting:
                return
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in sorted(ready, key=waiting.__getitem__):
                yield waiting.pop(future), _value(future.result())
    finally:
        for future in waiting:
            future.cancel()


def _value(outcome: PartState | Failure) -> PartState:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


def _index(metric: Metric, feeds: Sequence[Any]) -> str | None:
    """The output that takes the ids of the rows, if a metric takes it and no column feeds it."""
    outputs = {route.output for route in metric.routes() if route.argument == INDEX}
    outputs -= {None, *(feed.output for feed in feeds)}
    return INDEX if INDEX in outputs else None


def evaluate(
    source: Source,
    metrics: Metric | Mapping[str, Metric],
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    batch_size: int = 65536,
    executor: Executor | None = None,
    progress: bool = True,
) -> Metric:
    """The metric of all rows of some files."""
    metric = Collection(metrics) if isinstance(metrics, Mapping) else metrics
    if not isinstance(metric, Metric):
        raise MetricTypeError(
            f"evaluate: metrics is {kind(metrics)}; expected a datarax.Metric or a dict of them"
        )
    return fold(source, metric, columns, batch_size=batch_size, executor=executor).metric
