"""Logs of evaluation harnesses as tables: a row a sample, and a column a score."""

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.identity import FileIdentity, identity_of
from datarax.evaluation.inspect_logs import is_inspect, read_inspect
from datarax.evaluation.lm_eval_logs import is_lm_eval, read_lm_eval
from datarax.evaluation.logs import Log, Sample, Scalar
from datarax.evaluation.tables import (
    Column,
    ColumnType,
    Part,
    Table,
    TableFile,
    Types,
    key_of,
    reading,
)
from datarax.evaluation.text_format import LogSource, TextFormat

QUESTION, GROUP = "sample.question", "log.scores"
"""The columns with the number of the question among those of its task, and with the task whose
scores a row has."""
LOGS = {
    "inspect": (is_inspect, read_inspect, "*.eval, or *.json with a date before its name"),
    "lm-eval": (is_lm_eval, read_lm_eval, "samples_*.jsonl"),
}
"""By harness: whether a name in a folder is that of a log, its reader, and the names in words."""
_Group = tuple[str, str]
"""A task and the model that ran it."""


class Score(NamedTuple):
    """A score of a task."""

    name: str
    """The name of its column."""
    group: str
    """What `GROUP` holds in the rows that should have it."""
    key: str
    """Its name in the log."""


class Missing(NamedTuple):
    """Samples without a number of a score."""

    score: str
    reason: str
    samples: int


@dataclass(frozen=True)
class Logs:
    """The logs of a source, taken together."""

    scores: tuple[Score, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]
    questions: int
    """The most questions that a task has."""
    rows: Mapping[str, tuple["LogRow", ...]]
    """The samples of each file, by its path."""
    types: Types


class LogRow(NamedTuple):
    sample: Sample
    group: str
    task: str
    model: str
    question: int
    counts: Mapping[str, int] = {}
    """If the row is a question: how many samples each score is the mean of."""

    def value(self, column: str) -> Scalar | None:
        """The value of a column that is no score; None if the row has none."""
        return _OWN[column](self) if column in _OWN else self.sample.metadata.get(column)


def log_tables(
    sources: Sequence[Sequence[str]], text: TextFormat, questions: bool = False
) -> list[list[Table]]:
    """The logs of some sources as tables, whose columns have the same names in all of them.

    Args:
        sources: the paths of the logs of each.
        text: has the name of the harness, as `logs`.
        questions: whether a row is a question, with the mean of its samples, instead of a sample.

    Raises:
        MetricInputError: there is no log, one is damaged, or two cannot be taken together; names
            it.
    """
    assert text.logs is not None
    name = text.logs.harness
    files = []
    for paths in sources:
        found = []
        for path in paths:
            with reading(path):
                found.append(identity_of(path))
        files.append(tuple(found))
    logs = [read_log(file, name) for each in files for file in each]
    by_task = len({log.task for log in logs}) > 1
    # Of two sources that are compared, each is a model of its own.
    by_model = any(len({read_log(file, name).model for file in each}) > 1 for each in files)
    tables = []
    for each in files:
        own = text._replace(logs=LogSource(name, each, by_task, by_model, questions))
        tables.append([LogFile(file, own).described() for file in each])
    return tables


@lru_cache(maxsize=1024)
def read_log(file: FileIdentity, harness: str) -> Log:
    """A log, read once as long as the file does not change.

    Raises:
        MetricInputError: it is damaged; names it.
    """
    with reading(file.path):
        return LOGS[harness][1](file.path)


@lru_cache(maxsize=16)
def joined(source: LogSource) -> Logs:
    """The logs of a source, taken together.

    Samples of one question in several logs of a task are repeats, but for the attempts of one run,
    of which the latest counts.

    Raises:
        MetricInputError: two logs have the same task and model, and differ in settings, or in a
            question; names both.
    """
    groups: dict[_Group, list[Log]] = defaultdict(list)
    for file in source.files:
        log = read_log(file, source.harness)
        groups[log.task, log.model].append(log)
    notes = [note for logs in groups.values() for log in logs for note in log.notes]
    scores, missing, most = list[Score](), list[Missing](), 0
    rows: dict[str, list[LogRow]] = {file.path: [] for file in source.files}
    for (task, model), logs in groups.items():
        parts = [x for x, shown in ((model, source.by_model), (task, source.by_task)) if shown]
        label = "/".join(parts)
        samples = _taken_together(logs, notes)
        numbers: dict[str, int] = {}
        for _, sample in samples:
            numbers.setdefault(str(sample.id), len(numbers))
        most = max(most, len(numbers))
        found = [
            (path, LogRow(sample, label, task, model, numbers[str(sample.id)]))
            for path, sample in samples
        ]
        said = label or task
        if not samples:
            notes.append(f"{said}: the log has no samples: {', '.join(log.path for log in logs)}")
        keys = list(dict.fromkeys(key for _, sample in samples for key in sample.scores))
        scores += [Score("/".join([*parts, key]), label, key) for key in keys]
        missing += _missing(keys, parts, [sample for _, sample in samples])
        notes += _without_numbers(keys, said, [sample for _, sample in samples])
        notes += _unequal(keys, parts, [row for _, row in found])
        if source.questions:
            found = _by_question(found)
        for path, row in found:
            rows[path].append(row)
    names = Counter(score.name for score in scores)
    if twice := [name for name, count in names.items() if count > 1]:
        raise MetricInputError(
            f"{source.files[0].path}: two scores have the name {twice[0]!r}: evaluate their logs "
            f"one by one"
        )
    types = _types(scores, [row for each in rows.values() for row in each])
    held = {path: tuple(each) for path, each in rows.items()}
    return Logs(tuple(scores), tuple(missing), tuple(dict.fromkeys(notes)), most, held, types)


def _taken_together(logs: Sequence[Log], notes: list[str]) -> list[tuple[str, Sample]]:
    """The samples of the logs of one task and model, each with the path of its file."""
    _check_alike(logs)
    runs: dict[str, dict[tuple[str, int], tuple[str, Sample]]] = {}
    replaced = 0
    # In the order of time, so that a later attempt replaces what an earlier one has of a sample.
    for log in sorted(logs, key=lambda log: log.created):
        held = runs.setdefault(log.run or log.path, {})
        for sample in log.samples:
            replaced += (str(sample.id), sample.epoch) in held
            held[str(sample.id), sample.epoch] = (log.path, sample)
    if replaced:
        notes.append(
            f"{logs[0].task}: {replaced:,} samples are in several attempts of one run; of each the "
            f"latest counts"
        )
    seen: Counter[str] = Counter()
    samples = list[tuple[str, Sample]]()
    for held in runs.values():
        for path, sample in held.values():
            seen[str(sample.id)] += 1
            # Repeats in several files are numbered through.
            epoch = seen[str(sample.id)] if len(runs) > 1 else sample.epoch
            samples.append((path, replace(sample, epoch=epoch)))
    distinct = [{key for key, _ in held} for held in runs.values()]
    if len(set().union(*distinct)) < sum(map(len, distinct)):
        paths = ", ".join(log.path for log in logs)
        notes.append(
            f"{logs[0].task}: {len(runs)} logs of one model have samples of the same questions, "
            f"which are taken as repeats: {paths}"
        )
    return samples


def _check_alike(logs: Sequence[Log]) -> None:
    """Raises if logs of one task and model were run in different ways, or on other questions."""
    first = logs[0]
    for log in logs[1:]:
        for name in dict.fromkeys((*first.settings, *log.settings)):
            a, b = first.settings.get(name), log.settings.get(name)
            if a != b:
                raise MetricInputError(
                    f"{log.path}: {name} of the task {log.task!r} is {b}, and in {first.path} {a}: "
                    f"two tasks of one name; evaluate them one by one, or compare them"
                )
    seen: dict[str, Sample] = {}
    for log in logs:
        for sample in log.samples:
            other = seen.setdefault(str(sample.id), sample)
            what = "question" if sample.content != other.content else "prompt"
            if (sample.content, sample.prompt) != (other.content, other.prompt):
                raise MetricInputError(
                    f"{sample.place}: the {what} {sample.id!r} of the task {log.task!r} is another "
                    f"than in {other.place}: two tasks of one name; evaluate them one by one, or "
                    f"compare them"
                )


def _reason(sample: Sample, key: str) -> str:
    """Why a sample has no number of a score."""
    # A score that is NaN may have several numbers in other samples: "judge" and "judge/style".
    above = (key.rsplit("/", n)[0] for n in range(1, key.count("/") + 1))
    said = next((sample.absent[name] for name in (key, *above) if name in sample.absent), "")
    return sample.failed or said or "no such score"


def _missing(keys: Sequence[str], parts: Sequence[str], samples: Sequence[Sample]) -> list[Missing]:
    return [
        Missing("/".join([*parts, key]), reason, count)
        for key in keys
        for reason, count in Counter(
            _reason(sample, key) for sample in samples if key not in sample.scores
        ).items()
    ]


def _without_numbers(keys: Sequence[str], said: str, samples: Sequence[Sample]) -> Iterable[str]:
    """Notes of what the samples have instead of numbers, and of tasks without a score."""
    absent: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        for key, reason in sample.absent.items():
            if key not in keys and not any(each.startswith(f"{key}/") for each in keys):
                absent[key][reason] += 1
    for key, reasons in absent.items():
        reason, _ = reasons.most_common(1)[0]
        yield f"{said}: {key} has no number in any sample ({reason})"
    if samples and not keys and not absent:
        failed = sum(1 for sample in samples if sample.failed)
        yield f"{said}: none of its {len(samples):,} samples has a score; {failed:,} failed"


def _unequal(keys: Sequence[str], parts: Sequence[str], rows: Sequence[LogRow]) -> Iterable[str]:
    """A note of scores whose questions have different numbers of samples."""
    means, sizes = [], set[int]()
    for key in keys:
        by_question: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            if key in row.sample.scores:
                by_question[row.question].append(row.sample.scores[key])
        own = {len(each) for each in by_question.values()}
        if len(own) > 1:
            mean = sum(sum(each) / len(each) for each in by_question.values()) / len(by_question)
            means.append(f"{'/'.join([*parts, key])} {mean:.4g}")
            sizes |= own
    if means:
        yield (
            f"questions have {min(sizes)} to {max(sizes)} samples, each of which counts once; if "
            f"each question did, the means would be: {', '.join(means)}"
        )


def _by_question(rows: Sequence[tuple[str, LogRow]]) -> list[tuple[str, LogRow]]:
    """A row for each question, with the means of its samples."""
    by_question: dict[int, list[tuple[str, LogRow]]] = defaultdict(list)
    for path, row in rows:
        by_question[row.question].append((path, row))
    found = []
    for samples in by_question.values():
        path, first = samples[0]
        values: dict[str, list[float]] = defaultdict(list)
        for _, row in samples:
            for key, value in row.sample.scores.items():
                values[key].append(value)
        scores = {key: sum(each) / len(each) for key, each in values.items()}
        sample = replace(first.sample, epoch=1, scores=scores, absent={}, failed="")
        counts = {key: len(each) for key, each in values.items()}
        found.append((path, first._replace(sample=sample, counts=counts)))
    return found


_OWN = {
    "sample.id": lambda row: row.sample.id,
    "sample.epoch": lambda row: row.sample.epoch,
    QUESTION: lambda row: row.question,
    "log.task": lambda row: row.task,
    "log.model": lambda row: row.model,
    GROUP: lambda row: row.group,
}
_KINDS = {bool: "boolean", int: "integer", float: "float", str: "text"}


def _types(scores: Sequence[Score], rows: Sequence[LogRow]) -> Types:
    found: dict[str, set[str]] = {name: set() for name in _OWN}
    for row in rows:
        for name, get in _OWN.items():
            found[name].add(_kind(get(row)))
        for name, value in row.sample.metadata.items():
            found.setdefault(name, set()).add(_kind(value))
    types = {name: _type(kinds) for name, kinds in found.items()}
    return {score.name: _type({"float"}) for score in scores} | types


def _kind(value: Scalar) -> str:
    # An integer beyond 64 bits is no number of a table.
    large = type(value) is int and not -(2**63) <= value < 2**63
    return "text" if large else _KINDS[type(value)]


def _type(kinds: set[str]) -> ColumnType:
    kind = "null"
    if kinds:
        kind = next(iter(kinds)) if len(kinds) == 1 else "text"
        kind = "float" if kinds == {"integer", "float"} else kind
    return ColumnType(kind, 0, False, kind)


@dataclass
class LogFile(TableFile):
    """A log as a table; its columns are those of all logs of its source."""

    file: FileIdentity
    text: TextFormat
    path: str = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.file.path

    def described(self) -> Table:
        # A log without bytes is one without samples, which a note says.
        columns, parts = self.layout()
        return Table(self.file, dict(columns), tuple(parts), self.text)

    def layout(self) -> tuple[list[tuple[str, ColumnType]], list[Part]]:
        logs = self._logs()
        number = len(logs.rows[self.path])
        part = Part(self.file, 0, 1, key_of(self.path), number, True, 0, self.text)
        return list(logs.types.items()), [part] if number else []

    def read(self, part: Part, types: Types, rows: int) -> Generator[dict[str, Column], None, None]:
        logs = self._logs()
        own = logs.rows[self.path]
        keys = {score.name: score for score in logs.scores}
        for start in range(0, len(own), rows):
            piece = own[start : start + rows]
            yield {
                name: self._column(name, logs.types[name], keys.get(name), piece) for name in types
            }

    def _logs(self) -> Logs:
        assert self.text.logs is not None
        return joined(self.text.logs)

    def _column(
        self, name: str, found: ColumnType, score: Score | None, rows: Sequence[LogRow]
    ) -> Column:
        if score is not None:
            values = [
                row.sample.scores.get(score.key) if row.group == score.group else None
                for row in rows
            ]
        else:
            values = [row.value(name) for row in rows]
        if found.kind == "text":
            values = [_as_text(x) for x in values]
        pyarrow = optional("pyarrow", "parquet", f"reading {self.path}")
        kinds = {
            "float": pyarrow.float64(),
            "integer": pyarrow.int64(),
            "boolean": pyarrow.bool_(),
            "text": pyarrow.string(),
            "null": pyarrow.null(),
        }
        return pyarrow.array(values, kinds[found.kind])


def _as_text(x: Scalar | None) -> str | None:
    if x is None:
        return None
    # Strings of JSON may hold surrogates, which UTF-8 has no bytes for.
    return (str(x).lower() if isinstance(x, bool) else str(x)).encode("utf-8", "replace").decode()
