"""The state of a part: folded anywhere, and merged in an order that depends on the parts alone."""

import os
import pickle
import queue
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datarax._checks import refuse_wide, warn, x64_enabled
from datarax._errors import DataraxError, MetricInputError, PrecisionWarning
from datarax._update_context import in_update
from datarax._xp import fetched
from datarax.algebra.pytrees import MeshNode
from datarax.algebra.state import walk
from datarax.evaluation.largest_losses import LossRow
from datarax.evaluation.paired_parts import Pair
from datarax.evaluation.table_batches import TableBatch, whole_queries
from datarax.evaluation.tables import Outputs, Part, row_name
from datarax.metric.base import Metric
from datarax.wrappers.best import Best
from datarax.wrappers.window import Decayed, Window

T = TypeVar("T")
_SECONDS_TO_CLOSE = 2.0


class _Stopped(BaseException):
    """Raised on a thread of `on_thread` if nobody waits for it any more."""


def on_thread(
    call: Callable[[Callable[[T], None]], object],
    name: str,
    depth: int = 1,
    seconds: float = 0.0,
    *,
    waiting: Callable[[], None] = lambda: None,
    every: float | None = None,
) -> Generator[T, None, None]:
    """Runs `call(emit)` on a thread of that name, and yields each item that it emits.

    The thread runs up to `depth` items ahead. An error of `call` is raised here, in its place. If
    this generator is closed early, the thread ends where it passes the next item. Closing waits for
    that, but at most for some seconds. `waiting` is called here before each wait for an item, and
    again after each so many seconds of it; it may raise.
    """
    passed: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def give(kind: str, item: Any) -> None:
        while not stopped.is_set():
            try:
                # With a timeout: if nobody takes items any more, the thread must notice `stopped`.
                return passed.put((kind, item), timeout=0.1)
            except queue.Full:
                continue
        raise _Stopped

    def run() -> None:
        try:
            call(lambda item: give("item", item))
            give("end", None)
        except _Stopped:
            pass
        except BaseException as error:
            with suppress(_Stopped):
                give("error", error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        while True:
            waiting()
            try:
                kind, item = passed.get(timeout=every)
            except queue.Empty:
                continue
            if kind == "end":
                return
            if kind == "error":
                raise item
            yield item
    finally:
        stopped.set()
        thread.join(seconds)


def read_ahead(items: Generator[T, None, None], depth: int = 3) -> Generator[T, None, None]:
    """The items of a generator, which runs up to `depth` items ahead on a thread: see `on_thread`.

    Closing waits a moment until the thread has closed the generator, but not for a slow file.
    """

    def each(give: Callable[[T], None]) -> None:
        with closing(items):  # which closes the file, on the thread that opened it
            for item in items:
                give(item)

    return on_thread(each, "datarax-read-ahead", depth, _SECONDS_TO_CLOSE)


_LOADED_IN = os.getpid()
"""The process that has imported this module: in a forked process, it is another one."""
Work = Part | Pair
"""What is folded at once."""


@dataclass(frozen=True)
class Folding:
    """Folds parts: with the metric, the columns and the batches. Workers get it pickled."""

    metric: bytes
    """The empty metric, pickled and compressed, as its arrays are mostly zeros."""
    read: Callable[..., Generator[TableBatch, None, None]]
    """The batches of a part."""
    rows: int | None
    """The rows of a batch. `None`: all rows of a part are one batch."""
    x64: bool
    warns: bool = False
    """True if the first batch warns of values that look like a mistake, such as integers that lose
    digits."""
    encode: Callable[[Outputs], Outputs] | None = None
    """Makes the outputs from the columns; None if the columns are the outputs."""
    together: str | None = None
    """The column whose equal values come in one batch."""
    keep: Callable[..., tuple[LossRow, ...]] | None = None
    """Keeps the rows with the largest losses: see `largest_losses.with_batch`."""
    devices: tuple[Any, ...] = ()
    """Those of this process that fold, each some rows of a batch; if none, the host does."""
    process: int = field(default_factory=os.getpid)
    """The process that gives parts to others."""

    def state_of(self, part: Work, stopped: Callable[[], bool] = bool) -> "PartState | Failure":
        """Folds a part into an empty metric. It runs in any process.

        `stopped` is asked before each batch whether to give up.
        """
        if os.getpid() not in (_LOADED_IN, self.process):
            return Failure(
                MetricInputError(
                    "evaluate: the executor forks its processes, which hang, as JAX has threads; "
                    'make it with mp_context=multiprocessing.get_context("spawn"), or by '
                    'datarax.evaluation.engine("processes")'
                )
            )
        try:
            # A worker has settings of its own.
            with jax.enable_x64(self.x64), closing(read_ahead(self._batches(part))) as ahead:
                return self._folded(part, ahead, stopped)
        except Exception as error:
            return Failure(portable(_with_place(error, part)))

    def _batches(self, part: Work) -> Generator[TableBatch, None, None]:
        read = self.read(part)
        return read if self.together is None else whole_queries(read, self.together)

    def _folded(
        self, part: Work, read: Iterable[TableBatch], stopped: Callable[[], bool]
    ) -> "PartState":
        metric = _unpacked(self.metric)
        rows, excluded, names = 0, Counter[str](), {}
        worst: tuple[LossRow, ...] = ()
        for batch in read:
            if stopped():
                break
            excluded.update(batch.excluded)
            if not batch.rows:
                continue
            with (
                _naming_rows(part, batch),
                in_update(checks="warnings" if self.warns and not rows else "none"),
            ):
                outputs = batch.outputs if self.encode is None else self.encode(batch.outputs)
                # The arguments, each with the name of its output: the same for all batches.
                names = names or metric.arguments_from({name: name for name in outputs})
                given = {argument: outputs[name] for argument, name in names.items()}
                # A shorter batch on the devices would compile one more program.
                arrays = all(isinstance(x, np.ndarray) for x in given.values())
                if self.devices and arrays and batch.rows == self.rows:
                    if self.warns and not rows:
                        _warn_of_rounding(given)
                    metric = _on_devices(metric, given, self.devices)
                else:
                    metric = fetched(metric).update(**given)
            if self.keep is not None:
                worst = self.keep(worst, part, batch, outputs)
            rows += batch.rows
        leaves = tuple(map(np.asarray, jax.tree.leaves(metric)))
        return PartState(leaves, rows, dict(excluded), worst)


class PartState(NamedTuple):
    """The result of folding a part."""

    leaves: tuple[np.ndarray, ...]
    """The arrays of the metric."""
    rows: int
    excluded: dict[str, int]
    worst: tuple[LossRow, ...] = ()


class Failure(NamedTuple):
    """The error of a part, returned as a value: executors treat raised errors in different ways."""

    error: Exception


def packed(metric: Metric) -> bytes:
    """An empty metric as bytes."""
    return zlib.compress(pickle.dumps(metric), 1)


@lru_cache(maxsize=8)
def _unpacked(data: bytes) -> Metric:
    # Cached, because a worker folds many parts into one metric. As arrays of NumPy, which are on no
    # device: each thread may use another one.
    return jax.tree.map(np.asarray, pickle.loads(zlib.decompress(data)))


def _on_devices(metric: Metric, given: Outputs, devices: tuple[Any, ...]) -> Metric:
    """The metric updated by one compiled program: each device folds some of the rows.

    Raises:
        MetricInputError: an integer does not fit the 32 bits of the program.
    """
    refuse_wide(given, "on devices, ")
    mesh = Mesh(np.array(devices), ("rows",))
    everywhere, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("rows",)))
    metric = jax.device_put(metric, everywhere).update(**jax.device_put(given, split))
    return jax.block_until_ready(metric)  # so that few batches wait in memory


def _warn_of_rounding(given: Outputs) -> None:
    """Warns if numbers of a batch have more digits than they have on devices."""
    wide = {name: x for name, x in given.items() if x.dtype == np.float64 and not x64_enabled()}
    with np.errstate(over="ignore", under="ignore"):
        rounded = [
            name
            for name, x in wide.items()
            if not np.array_equal(x.astype(np.float32), x, equal_nan=True)
        ]
    if rounded:
        warn(
            f"{', '.join(rounded)}: float64 numbers are rounded to float32 on devices; without "
            f"devices, or with x64, they are used as they are",
            PrecisionWarning,
        )


@contextmanager
def _naming_rows(part: Work, batch: TableBatch) -> Iterator[None]:
    """Adds the row of the file to an error that is about a row of a batch."""
    try:
        yield
    except DataraxError as error:
        if error.row is not None and batch.places is not None:
            row = row_name(
                int(batch.places[error.row]),
                part.start,
                part.first if isinstance(part, Part) else 0,
            )
            error.args = (f"{part.path}: {row}: {error}",)
        raise


def _with_place(error: Exception, part: Work) -> Exception:
    """The error, with the name of the file."""
    if isinstance(error, DataraxError):
        text = str(error)
        if not any(path in text for path in part.paths):
            error.args = (f"{part.path}: {text}",)
    else:
        error.add_note(f"This was raised by the evaluation of {part.path}.")
    return error


def portable(error: Exception) -> Exception:
    """The error; or one with the same text, if it cannot be pickled."""
    try:
        if str(pickle.loads(pickle.dumps(error))) == str(error):
            return error
    except Exception:
        pass
    notes = " ".join(getattr(error, "__notes__", ()))
    return RuntimeError(f"{type(error).__name__}: {error} {notes}".strip())


Node = tuple[int, int]
"""A node of the tree over the parts: its level, from 0, and its place there. A node of level k
covers 2**k parts."""


@dataclass(frozen=True)
class Merging:
    """The states of the finished parts, merged where both halves of a node are there."""

    nodes: dict[Node, Metric] = field(default_factory=dict)
    before: Metric | None = None
    """The state of parts whose nodes are not known, as they were saved merged."""

    def with_part(self, index: int, state: Metric) -> "Merging":
        """This, with the state of one more part."""
        # The tree depends on the number of parts alone, and sums of floats on the order in which
        # they are added. So the result is the same bit for bit, whoever folds the parts and
        # whenever they are done.
        nodes, level = dict(self.nodes), 0
        # `index ^ 1` is the sibling. The left one comes first, whichever was done first.
        while (level, index ^ 1) in nodes:
            sibling = nodes.pop((level, index ^ 1))
            state = state.merge(sibling) if index % 2 == 0 else sibling.merge(state)
            level, index = level + 1, index // 2
        nodes[level, index] = state
        return replace(self, nodes=nodes)

    def whole(self) -> Metric:
        """All states merged, the last parts first, and then into `before`."""
        # The first part of the node (k, i) is i * 2**k.
        places = sorted(self.nodes, key=lambda node: node[1] << node[0], reverse=True)
        states = [self.nodes[place] for place in places]
        states += [] if self.before is None else [self.before]
        return reduce(lambda whole, state: state.merge(whole), states)


def check_foldable(metric: Metric) -> None:
    """Raises if the metric cannot be folded part by part, or holds data."""
    for each in walk(metric):
        if isinstance(each, MeshNode):
            raise MetricInputError(
                "evaluate: the metric has one copy for each device; give the plain metric, all "
                "devices of this process are used"
            )
        if isinstance(each, Best | Decayed | Window):
            raise MetricInputError(
                f"evaluate: {type(each).__name__} depends on the order of updates, and the rows of "
                f"files are folded in any order; give the metric that it holds"
            )
    now, empty = jax.tree.leaves(metric), jax.tree.leaves(metric.emptied())
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(now, empty, strict=True)):
        raise MetricInputError(
            "evaluate: the metric has data already; give metric.reset(), and merge the two after"
        )
