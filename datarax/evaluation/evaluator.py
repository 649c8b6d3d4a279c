"""`evaluate` folds files into a metric; `fold` does too, and also says how far it is."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Event
from typing import Any, Self, TypeVar, overload

import jax

from datarax._checks import kind, positive_int, warn, x64_enabled
from datarax._errors import (
    EvaluationError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
)
from datarax.evaluation.batch_folding import BatchFolding
from datarax.evaluation.cluster_tables import folded_on_cluster
from datarax.evaluation.columns import (
    INDEX,
    Columns,
    Encoded,
    Names,
    absent_columns,
    feeds_of,
    grouping_columns,
    takes_index,
)
from datarax.evaluation.engines import ProcessExecutor, available_cpus
from datarax.evaluation.files import tables_of
from datarax.evaluation.identity import FileIdentity, different
from datarax.evaluation.largest_losses import LossRow, largest
from datarax.evaluation.log_planning import means_of_logs
from datarax.evaluation.partial_state import (
    Failure,
    Folding,
    Merging,
    PartState,
    Work,
    check_foldable,
    packed,
)
from datarax.evaluation.progress_bar import progress_bar
from datarax.evaluation.streams import AnySource, Stream, stream_of
from datarax.evaluation.table_batches import batches, power_of_two
from datarax.evaluation.tables import Part, Table, Types, first_line, parts_of
from datarax.evaluation.text_format import TextFormat
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection

IN_FLIGHT = 256
"""The most parts that an executor holds at a time, and so the most states that wait here."""
STREAMED_IN_FLIGHT = 16
"""The same for parts of a stream, whose rows are held here."""
THREAD_ROWS = 2**20
"""The least number of rows for each thread: for fewer, it costs more than it saves."""

M = TypeVar("M", bound=Metric)
P = TypeVar("P", bound="Progress")
Devices = Sequence[Any] | None


@dataclass(frozen=True)
class Progress:
    """How far `fold` is: what it returns, and passes to `progress` after each part.

    Args:
        metric: all parts that are done, merged.
        rows: how many rows were folded in; the excluded ones are not among them.
        excluded: by column, how many rows were left out because it has no value there. A row that
            lacks several values is counted once.
        done: the indices of the parts that are done, ascending.
        total: how many parts there are; 0 while a stream is read, of which that is not known.
        merging: the states that wait for their neighbours. With them, `fold(start=)` continues to
            the same result bit for bit. Without them, `metric` is merged with the other parts.
        files: the files as they were. With them, `fold(start=)` refuses other or changed files.
        worst: the rows with the largest losses, which `datarax evaluate` keeps; else empty.

    Example:
        >>> from datarax.evaluation import Progress
        >>> from datarax.metrics import Mean
        >>> print(Progress(Mean(), done=(0, 2), total=3).done)
        (0, 2)
    """

    metric: Metric
    rows: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    done: tuple[int, ...] = ()
    total: int = 0
    merging: Merging | None = field(default=None, repr=False)
    files: tuple[FileIdentity, ...] = field(default=(), repr=False)
    worst: tuple[LossRow, ...] = field(default=(), repr=False)


def fold(
    source: AnySource,
    metric: Metric,
    columns: Columns | Mapping[str, Names] | None = None,
    *,
    batch_size: int = 65536,
    executor: Executor | None = None,
    devices: Devices = None,
    start: Progress | None = None,
    progress: Callable[[Progress], None] | None = None,
    missing_values: str | Sequence[str] = (),
    delimiter: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
    format: str | None = None,
    group_by: str | None = None,
) -> Progress:
    """Folds the rows of files into a metric, part by part.

    It is `evaluate` without the progress bar, and without the warning about rows that are left out.

    Each part is folded into an empty metric, and the states are merged in a fixed order. So the
    result is the same bit for bit with any executor.

    On Ctrl-C it stops, cancels what the executor holds, and raises `KeyboardInterrupt`; the caller
    has the last `Progress` that was passed to `progress`.

    Args:
        source: see `evaluate`.
        metric: an empty metric.
        columns: see `evaluate`.
        batch_size: see `evaluate`.
        executor: see `evaluate`.
        devices: see `evaluate`.
        start: continues from there: parts that are done are not read again. The files and the
            metric must be the same; another number of parts, or a file that has changed, is
            refused.
        progress: called on this thread after each part.
        missing_values: see `evaluate`.
        delimiter: see `evaluate`.
        decimal: see `evaluate`.
        encoding: see `evaluate`.
        format: see `evaluate`.
        group_by: see `evaluate`.

    Raises:
        MetricInputError: as for `evaluate`; or `start` is of other files, or they have changed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from datarax.evaluation import fold
        >>> from datarax.metrics import Mean
        >>> path = f"{tempfile.mkdtemp()}/losses.npz"
        >>> np.savez(path, loss=np.array([1.0, 2.0, 4.5]))
        >>> steps = []
        >>> result = fold([path], Mean(), {"values": "loss"}, progress=steps.append)
        >>> print(result.metric.compute(), result.rows, result.done, result.total)
        2.5 3 (0,) 1
        >>> print(fold([path], Mean(), {"values": "loss"}, start=steps[0]).rows)
        3
    """
    positive_int(batch_size, "batch_size")
    check_foldable(metric)
    _check_devices(devices, executor)
    text = TextFormat.checked(delimiter, encoding, decimal, missing_values, format)
    on_cluster = folded_on_cluster(source)
    if on_cluster is not None:
        if executor or devices or start or missing_values:
            raise MetricInputError(
                "evaluate: the workers of its cluster fold this source, so devices= and executor=, "
                "start= and missing_values= have no effect; leave them out"
            )
        state = on_cluster(BatchFolding(metric, columns, group_by, "evaluate"))
        return Progress(state.metric, state.rows, dict(state.excluded), done=(0,), total=1)
    found: Any = source if text.logs is not None else stream_of(source, text)
    if not isinstance(found, Stream):
        tables = tables_of(found, text)
        if group_by is not None and len(tables) > 1:
            raise MetricInputError(
                f"evaluate: group_by={group_by!r}: the rows with one value of it may lie in two of "
                f"the {len(tables)} files; give them as one table, such as pyarrow.dataset.dataset"
            )
        folds = FileFold.of_tables(tables, metric, columns, batch_size, devices)
    elif start is not None:
        raise MetricInputError(
            f"fold: start= continues with the parts that are left, and {found.table.path} has no "
            f"parts that can be read again; write it to files, such as Parquet"
        )
    else:
        folds = FileFold.of_stream(found, metric, columns, batch_size, devices)
    begin = start or Progress(metric.emptied(), total=len(folds.parts), merging=Merging())
    return folds.run(begin, executor=executor, progress=progress)


@dataclass(frozen=True)
class FileFold:
    """Folds all parts of some files, or pairs of such parts, or a stream into a metric."""

    metric: Metric
    folding: Folding
    parts: Sequence[Work]
    files: tuple[FileIdentity, ...]
    """The files, which must not have changed since."""
    stream: Iterable[Part] | None = None
    """The parts of a stream, which are known only as they are read."""

    @classmethod
    def of_tables(
        cls,
        tables: Sequence[Table],
        metric: Metric,
        columns: Columns | Mapping[str, Names] | None,
        batch_size: int,
        devices: Devices,
        keep: Callable[..., tuple[LossRow, ...]] | None = None,
    ) -> Self:
        """Plans the parts and the batches of files, by the columns that the metric needs."""
        folding, _, whole = cls._planned(tables, metric, columns, batch_size, devices, keep)
        files = tuple(table.file for table in tables)
        return cls(metric, folding, parts_of(tables, whole=whole), files)

    @classmethod
    def of_stream(
        cls,
        stream: Stream,
        metric: Metric,
        columns: Columns | Mapping[str, Names] | None,
        batch_size: int,
        devices: Devices,
    ) -> Self:
        """Plans the batches of a table or a stream, by the columns that the metric needs."""
        folding, types, whole = cls._planned([stream.table], metric, columns, batch_size, devices)
        return cls(metric, folding, (), (), stream.parts(types, whole=whole))

    @staticmethod
    def _planned(
        tables: Sequence[Table],
        metric: Metric,
        columns: Columns | Mapping[str, Names] | None,
        batch_size: int,
        devices: Devices,
        keep: Callable[..., tuple[LossRow, ...]] | None = None,
    ) -> tuple[Folding, Types, bool]:
        """How parts are folded, the columns, and whether all rows of a file are one part."""
        feeds, types = feeds_of(metric, columns, tables)
        types |= absent_columns(metric, columns, feeds)
        encode, together = None, None
        if isinstance(columns, Encoded):
            encode, together = columns.encode, columns.together
        # A metric of groups, such as queries, needs all rows of a group in one update: so all rows
        # of a file, unless the encoding sees to it.
        at_once = encode is None and bool(grouping_columns(metric, feeds))
        whole = at_once or together is not None
        rows = None
        if not at_once:
            # Small files need no large batches.
            parts, number = parts_of(tables, whole=whole), len(devices or [0])
            most = max((part.rows for part in parts), default=1)
            most = most if all(table.is_file for table in tables) else batch_size
            # As many on each device.
            rows = max(min(batch_size, power_of_two(most)) // number, 1) * number
        index = INDEX if takes_index(metric, feeds, keep is not None) else None
        folding = Folding(
            packed(metric.emptied()),
            partial(batches, feeds=feeds, types=types, rows=rows, index=index),
            rows,
            x64_enabled(),
            encode=encode,
            together=together,
            keep=keep,
            devices=tuple(devices or ()),
        )
        return folding, types, whole

    def run(
        self,
        start: P,
        *,
        executor: Executor | None = None,
        progress: Callable[[P], None] | None = None,
    ) -> P:
        """Folds the parts that are not done, and merges them: see `fold`."""
        now, empty, total = start, self.metric.emptied(), len(self.parts)
        problem = different(now.files, self.files) if now.files else None
        if problem:
            raise MetricInputError(f"fold: start is of other files: {problem}")
        if now.total != total:
            raise MetricInputError(
                f"fold: start has {now.total} parts, and the source has {total}; expected the same "
                f"files"
            )
        # Without the nodes of the tree, only the merged state of the parts that are done is known.
        merging = now.merging or Merging(before=now.metric)
        done = set(now.done)
        for index, state in self._states(frozenset(done), executor):
            # Workers send arrays only. They get the structure of the metric here, so that all
            # states have one.
            merging = merging.with_part(index, jax.tree.structure(empty).unflatten(state.leaves))
            done.add(index)
            # To merge all nodes costs as much as folding some rows: it is done where somebody
            # looks.
            whole = now.metric
            if progress is not None or len(done) == total:
                whole = merging.whole()
            now = replace(
                now,
                metric=whole,
                rows=now.rows + state.rows,
                excluded=dict(Counter(now.excluded) + Counter(state.excluded)),
                worst=largest((*now.worst, *state.worst)),
                done=tuple(sorted(done)),
                merging=merging,
                files=self.files,
            )
            if progress is not None:
                progress(now)
        if self.stream is not None and done:  # only now all parts are known
            now = replace(now, metric=merging.whole(), total=len(done))
        return now

    def _states(
        self, done: Container[int], executor: Executor | None
    ) -> Iterator[tuple[int, PartState]]:
        """The states of parts with their indices, in the order in which they are ready."""
        # One part warns of what looks like a mistake: the others would repeat it.
        first = replace(self.folding, warns=True)
        if self.stream is None:
            todo = [(i, part) for i, part in enumerate(self.parts) if i not in done]
            # One thread for every two cores: while it computes, another one reads its next rows.
            wanted = -(-sum(part.rows for _, part in todo) // THREAD_ROWS)
            wanted, most = min(len(todo), wanted), IN_FLIGHT
        else:
            parts = enumerate(self.stream)
            two = [*islice(parts, 2)]
            todo = chain(two, parts)
            wanted, most = len(two) // 2 * available_cpus(), STREAMED_IN_FLIGHT
        calls = ((i, self.folding if i else first, part) for i, part in todo)
        if executor is not None:
            # Some states wait for those of parts before them: the fewer parts, the less memory.
            most = executor.in_flight if isinstance(executor, ProcessExecutor) else most
            yield from _submitted(calls, executor, most)
            return
        threads = 1 if self.folding.devices else min(wanted, available_cpus() // 2)
        if threads > 1:
            pool, stopped = ThreadPoolExecutor(threads, "datarax-fold"), Event()
            try:
                yield from _submitted(calls, pool, 2 * threads, stopped.is_set)
            finally:
                stopped.set()  # parts that are being folded end early
                pool.shutdown(cancel_futures=True)
            return
        for index, folding, part in calls:
            yield index, _value(folding.state_of(part))


def _submitted(
    calls: Iterator[tuple[int, Folding, Work]],
    executor: Executor,
    most: int,
    *stopped: Callable[[], bool],
) -> Iterator[tuple[int, PartState]]:
    """The states of parts from an executor, which holds at most `most` parts at a time."""
    waiting: dict[Future[PartState | Failure], tuple[int, str]] = {}
    try:
        while True:
            for index, folding, part in islice(calls, most - len(waiting)):
                waiting[executor.submit(folding.state_of, part, *stopped)] = index, part.path
            if not waiting:
                return
            ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
            # In the order of the parts, so that neighbours meet early and few states wait.
            for future in sorted(ready, key=waiting.__getitem__):
                index, path = waiting.pop(future)
                yield index, _value(_result(future, path))
    finally:
        for future in waiting:
            future.cancel()


def _result(future: Future[PartState | Failure], path: str) -> PartState | Failure:
    try:
        return future.result()
    except Exception as error:  # of the executor: those of the evaluation are values
        raise EvaluationError(
            f"{path}: its worker died, or could not be reached: {first_line(error)}"
        ) from error


def _value(outcome: PartState | Failure) -> PartState:
    if isinstance(outcome, Failure):
        raise outcome.error
    return outcome


def _check_devices(devices: Devices, executor: Executor | None) -> None:
    if devices is None:
        return
    if not devices or not all(isinstance(each, jax.Device) for each in devices):
        raise MetricInputError(
            f"evaluate: devices is {devices!r}; expected devices of this process, such as "
            f"jax.local_devices(), or None for the host"
        )
    if executor is not None:
        raise MetricInputError(
            "evaluate: devices= and executor= are given; the workers of an executor fold on their "
            "hosts: give one of the two"
        )


@overload
def evaluate(
    source: AnySource,
    metrics: M,
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    batch_size: int = 65536,
    executor: Executor | None = None,
    devices: Devices = None,
    progress: bool = True,
    missing_values: str | Sequence[str] = ...,
    delimiter: str | None = ...,
    decimal: str = ...,
    encoding: str = ...,
    format: str | None = ...,
    group_by: str | None = ...,
) -> M: ...


@overload
def evaluate(
    source: AnySource,
    metrics: Mapping[str, Metric] | None = None,
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    batch_size: int = 65536,
    executor: Executor | None = None,
    devices: Devices = None,
    progress: bool = True,
    missing_values: str | Sequence[str] = ...,
    delimiter: str | None = ...,
    decimal: str = ...,
    encoding: str = ...,
    format: str | None = ...,
    group_by: str | None = ...,
) -> Collection: ...


def evaluate(
    source: AnySource,
    metrics: Metric | Mapping[str, Metric] | None = None,
    *,
    columns: Columns | Mapping[str, Names] | None = None,
    batch_size: int = 65536,
    executor: Executor | None = None,
    devices: Devices = None,
    progress: bool = True,
    missing_values: str | Sequence[str] = (),
    delimiter: str | None = None,
    decimal: str = ".",
    encoding: str = "utf-8",
    format: str | None = None,
    group_by: str | None = None,
) -> Metric:
    """The metric with all rows of some files, of a table or of a stream folded in.

    The rows are read in batches, in constant memory, and only the columns that are needed. Each
    part is folded into an empty metric, and these are merged in a fixed order: the result
    is the same bit for bit with any executor. Rows are folded on the host, in NumPy.

    A row that has no value in a needed column is left out, with a warning that counts such rows.
    NaN is a value: the metrics count it as invalid. In CSV, an empty field is no value, and NA and
    null are none in a column of numbers. `missing_values` names more.

    Args:
        source: the path of a file, a folder, a glob (`**` for folders within), or a list of these.
            The end of the name says the format: Parquet (.parquet, .pq), CSV (.csv, .tsv), JSON
            lines (.jsonl, .ndjson), an array of objects in JSON (.json), Arrow (.arrow, .arrows,
            .feather, .ipc), NPZ (.npz). Text may be compressed: .csv.gz, .bz2, .zst. A path may be
            a URI of `pyarrow.fs`, such as "s3://bucket/folder". A folder `country=de` gives its
            files a column `country`. Or a table or a stream of Arrow: anything that has
            `__arrow_c_stream__`, such as a data frame of Polars or pandas, a relation of DuckDB, a
            table, a reader or a dataset of pyarrow; or an iterator of these, such as one of record
            batches. A stream is read once, in this process; with an executor, the workers get its
            rows. Or a data frame of Dask or a dataset of Ray, whose own workers fold it. All but
            NPZ need the extra `parquet`.
        metrics: a metric without data, or a dict of metrics. With `format`, it may be left out:
            then it is the mean of each score, with a clustered interval.
        columns: by output that the metrics take, a column, a list of columns or a glob; see
            `datarax.evaluation.Columns`, which also gives the classes that strings stand for. By
            default, an output takes the column of its name.
        batch_size: the rows of an update.
        executor: any `concurrent.futures.Executor`, such as those of `datarax.evaluation.engine`.
            Its workers read the files. By default there is a thread for every two cores, if there
            are enough rows.
        devices: fold on these devices of this process, such as `jax.local_devices()`, by one
            compiled program; each gets some rows of each batch. Strings, and the rows of a part
            after its last whole batch, are folded on the host. By default, all rows are. "Files" on
            the page on performance says when devices are worth their compilation. On devices,
            numbers are those of a program: without x64, float64 is rounded to float32, with a
            `PrecisionWarning`, and an integer beyond 32 bits is an error.
        progress: whether to show a progress bar, if standard error is a terminal and Rich is
            installed (the extra `console`).
        missing_values: strings that stand for no value, such as "N/A", in columns of strings; and
            numbers, as text, in columns of numbers. In files of all formats.
        delimiter: the sign between the fields of CSV, such as ";" or "tab"; by default "," and, of
            .tsv, "tab".
        decimal: the decimal point of CSV, "." or ",".
        encoding: that of CSV and JSON, such as "utf-16".
        format: "inspect" or "lm-eval" if the source holds logs of this evaluation harness: a folder
            of them, or `.eval` and `.json` files of Inspect, or `samples_*.jsonl` of lm-eval. A row
            is a sample and a column a score; other columns are `sample.id`, `sample.question` (a
            number, for `cluster=`), `log.task`, `log.model`, and `metadata.*` or `doc.*`.
        group_by: the column of queries, for metrics of queries that are given as flat rows. Dask
            and Ray bring the rows of a query together by it. In one file or table they are together
            without it; several files are refused, as a query may lie in two of them.

    Raises:
        MetricInputError: no file, a damaged file, one that changes while it is read, a missing
            column, columns of other types in some files; names the file. Also for a metric with
            data, or one that depends on the order of updates.
        EvaluationError: a worker died repeatedly; names the file.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import datarax
        >>> from datarax.metrics import Accuracy, LogLoss
        >>> path = f"{tempfile.mkdtemp()}/predictions.npz"
        >>> np.savez(path, score=np.array([0.9, 0.2, 0.7]), label=np.array([1, 0, 0]))
        >>> metrics = datarax.evaluate(
        ...     path,
        ...     {"accuracy": Accuracy(), "log_loss": LogLoss()},
        ...     columns={"preds": "score", "target": "label"},
        ... )
        >>> print({name: round(value, 4) for name, value in metrics.results().items()})
        {'accuracy': 0.6667, 'log_loss': 0.5108}
    """
    found: Sequence[str] = ()
    if metrics is None and format is not None and columns is None:
        text = TextFormat.checked(delimiter, encoding, decimal, missing_values, format)
        metrics, columns, found = means_of_logs(source, text)
    metric = Collection(metrics) if isinstance(metrics, Mapping) else metrics
    if not isinstance(metric, Metric):
        raise MetricTypeError(
            f"evaluate: metrics is {kind(metrics)}; expected a datarax.Metric or a dict of them"
        )
    with progress_bar(progress) as shown:
        result = fold(
            source,
            metric,
            columns,
            batch_size=batch_size,
            executor=executor,
            devices=devices,
            progress=shown,
            missing_values=missing_values,
            delimiter=delimiter,
            decimal=decimal,
            encoding=encoding,
            format=format,
            group_by=group_by,
        )
    if found:
        warn(f"evaluate: {'; '.join(found)}", InvalidValuesWarning)
    if result.excluded:
        reasons = ", ".join(
            f"{number:,} without a value in the column {name!r}"
            for name, number in result.excluded.items()
        )
        warn(f"evaluate: rows are left out: {reasons}", InvalidValuesWarning)
    return result.metric
