"""The state of a part: folded anywhere, and merged in an order that depends on the parts alone."""

import os
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datarax._errors import DataraxError, MetricInputError
from datarax._xp import fetched
from datarax.algebra.traversal import walk
from datarax.evaluation.paired_parts import Pair
from datarax.evaluation.read_ahead import read_ahead
from datarax.evaluation.table_batches import Batch
from datarax.evaluation.tables import Part
from datarax.evaluation.whole_queries import whole_queries
from datarax.metrics.base import Metric
from datarax.statistics.argument_checks import keeping
from datarax.wrappers.best import Best
from datarax.wrappers.decayed import Decayed
from datarax.wrappers.window import Window

_LOADED_IN = os.getpid()
"""The process that has imported this module: in a forked process, it is another one."""
Work = Part | Pair
"""What is folded at once."""


@dataclass(frozen=True)
class Task:
    """What all parts are folded with. It is pickled for workers."""

    metric: bytes
    """The empty metric, pickled and compressed, as its arrays are mostly zeros."""
    read: Callable[[Any], Generator[Batch, None, None]]
    """The batches of a part."""
    rows: int | None
    """The rows of a batch. `None`: all rows of a part are one batch."""
    x64: bool
    warns: bool = False
    """Whether values that look like a mistake give a warning, as scores that are no probabilities;
    of the first batch, as one is enough."""
    encode: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """What makes outputs of the columns; None if they are the outputs."""
    together: str | None = None
    """The column whose equal values come in one batch."""
    devices: tuple[Any, ...] = ()
    """Those of this process that fold, each some rows of a batch; if none, the host does."""
    process: int = field(default_factory=os.getpid)
    """The process that gives parts to others."""


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
    # As arrays of NumPy, which are on no device: each thread may use another one.
    return jax.tree.map(np.asarray, pickle.loads(zlib.decompress(data)))


def fold_part(task: Task, part: Work, stopped: Callable[[], bool] = bool) -> PartState | Failure:
    """Folds a part into an empty metric. It runs in any process.

    `stopped` is asked before each batch whether to give up.
    """
    if os.getpid() not in (_LOADED_IN, task.process):
        return Failure(
            MetricInputError(
                "evaluate: the executor forks its processes, which hang, as JAX has threads; make "
                'it with mp_context=multiprocessing.get_context("spawn"), or by '
                'datarax.evaluation.engine("processes")'
            )
        )
    try:
        with jax.enable_x64(task.x64):
            return _folded(task, part, stopped)
    except Exception as error:
        return Failure(_portable(_with_place(error, part)))


def _folded(task: Task, part: Work, stopped: Callable[[], bool]) -> PartState:
    metric = _unpacked(task.metric)
    rows, excluded, names = 0, Counter[str](), {}
    read = task.read(part)
    if task.together is not None:
        read = whole_queries(read, task.together)
    with closing(read_ahead(read)) as ahead:
        for batch in ahead:
            if stopped():
                break
            excluded.update(batch.excluded)
            if not batch.rows:
                continue
            outputs = batch.outputs if task.encode is None else task.encode(batch.outputs)
            # The arguments, each with the name of its output: the same for all batches.
            names = names or metric.arguments_from({name: name for name in outputs})
            given = {argument: outputs[name] for argument, name in names.items()}
            with keeping("warnings" if task.warns and not rows else "none"):
                # A shorter batch on the devices would compile one more program.
                arrays = all(isinstance(x, np.ndarray) for x in given.values())
                if task.devices and arrays and batch.rows == task.rows:
                    metric = _on_devices(metric, given, task.devices)
                else:
                    metric = fetched(metric).update(**given)
            rows += batch.rows
    return PartState(tuple(map(np.asarray, jax.tree.leaves(metric))), rows, dict(excluded))


def _on_devices(metric: Metric, given: dict[str, Any], devices: tuple[Any, ...]) -> Metric:
    """The metric updated by one compiled program: each device folds some of the rows."""
    mesh = Mesh(np.array(devices), ("rows",))
    everywhere, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("rows",)))
    metric = jax.device_put(metric, everywhere).update(**jax.device_put(given, split))
    return jax.block_until_ready(metric)  # so that few batches wait in memory


def _with_place(error: Exception, part: Work) -> Exception:
    """The error, with the name of the file."""
    if isinstance(error, DataraxError):
        text = str(error)
        if not any(path in text for path in part.paths):
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


@dataclass(frozen=True)
class Merging:
    """The states of the parts that are done, merged as far as the fixed tree over all allows."""

    nodes: dict[Node, Metric] = field(default_factory=dict)

    def with_part(self, index: int, state: Metric) -> "Merging":
        """This, with the state of one more part."""
        nodes, level = dict(self.nodes), 0
        while (level, index ^ 1) in nodes:
            sibling = nodes.pop((level, index ^ 1))
            state = state.merge(sibling) if index % 2 == 0 else sibling.merge(state)
            level, index = level + 1, index // 2
        nodes[level, index] = state
        return replace(self, nodes=nodes)

    def merged(self, before: Metric | None) -> Metric:
        """All of them as one, the last parts first; then with what was there `before`, if any."""
        places = sorted(self.nodes, key=lambda node: node[1] << node[0], reverse=True)
        states = [self.nodes[place] for place in places]
        return reduce(
            lambda whole, state: state.merge(whole),
            states if before is None else [*states, before],
        )


def check_foldable(metric: Metric) -> None:
    """Raises if the metric cannot be folded part by part, or holds data."""
    for each in walk(metric):
        if getattr(each, "owns_mesh", False):
            raise MetricInputError(
                "evaluate: the metric has one copy for each device; give the plain metric, all "
                "devices of this process are used"
            )
        if isinstance(each, Best | Decayed | Window):
            raise MetricInputError(
                f"evaluate: {type(each).__name__} depends on the order of updates, and the rows of "
                f"files are folded in any order; give the metric that it holds"
            )
    now, empty = jax.tree.leaves(metric), jax.tree.leaves(metric.reset())
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(now, empty, strict=True)):
        raise MetricInputError(
            "evaluate: the metric has data already; give metric.reset(), and merge the two after"
        )
