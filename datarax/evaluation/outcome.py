"""The folder that an evaluation writes: the summary, the state, the pictures and the report.

Every file is written beside its place and then moved there, so that at each moment there is a
complete file or none. The state is one file of arrays and a description in JSON; nothing in it is
code, and metrics are made again from the configuration.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np

from datarax._errors import CheckpointError, ConfigurationMismatchError
from datarax.evaluation.assembly import Configuration, assembled
from datarax.evaluation.outcome_summary import Evaluated, summary_of
from datarax.io.checkpoint import pack, unpack
from datarax.wrappers.collection import Collection

STATE, SUMMARY, REPORT = "state.npz", "metrics.json", "report.html"
FORMAT = 1
"""The version of the layout of the state."""


class Source(NamedTuple):
    """One file that was evaluated."""

    path: str
    size: int
    modified: int
    """The time of its last change, in nanoseconds."""

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """The file at a path."""
        found = Path(path).stat()
        return cls(str(path), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Outcome:
    """What an evaluation was asked for, and what it has computed so far."""

    config: Configuration
    columns: Mapping[str, list[str] | None]
    """The columns of each output."""
    sources: tuple[Source, ...]
    title: str
    metric: Collection
    rows: int = 0
    excluded: Mapping[str, int] | None = None
    """How many rows were left out, by the column that has no value there."""
    done: tuple[int, ...] = ()
    """The parts that are done, by number."""
    total: int = 0
    merged: bool = False
    """Whether it was merged of several; then `done` does not say which parts."""

    def summary(self, version: str) -> dict[str, Any]:
        """The summary, which `metrics.json` holds, as of this version of datarax."""
        files = tuple(source.path for source in self.sources)
        counts = (self.rows, len(self.done), self.total)
        excluded = self.excluded or {}
        evaluated = Evaluated(self.title, files, *counts, self.columns, excluded, self.metric)
        return summary_of(self.config, evaluated, version)

    def difference(self, other: Self) -> str | None:
        """What the other was asked for that this one was not, for a message; None if nothing."""
        mine, theirs = self.config.as_json(), other.config.as_json()
        changed = [name for name in mine if mine[name] != theirs[name]]
        if changed:
            a, b = (_brief(each[changed[0]]) for each in (mine, theirs))
            return f"{_NAMES.get(changed[0], changed[0])} is {a} in one and {b} in the other"
        if self.columns != other.columns:
            name = next(k for k in self.columns if self.columns[k] != other.columns.get(k))
            a, b = (_brief(each.get(name)) for each in (self.columns, other.columns))
            return f"the column of {name} is {a} in one and {b} in the other"
        return None


_NAMES = {
    "size": "the number of classes",
    "names": "the names of the classes",
    "specs": "--metrics",
    "slicings": "--slice-by",
    "scores": "--scores",
    "on_invalid": "--on-invalid",
}


def save_state(folder: Path, outcome: Outcome) -> None:
    """Writes what was computed so far, from which a run can be resumed.

    Raises:
        OSError: the file cannot be written; the one that was there stays.
    """
    arrays, info = pack(outcome.metric)
    description = {
        "format": FORMAT,
        "config": outcome.config.as_json(),
        "columns": dict(outcome.columns),
        "sources": [list(source) for source in outcome.sources],
        "title": outcome.title,
        "rows": outcome.rows,
        "excluded": dict(outcome.excluded or {}),
        "done": list(outcome.done),
        "total": outcome.total,
        "merged": outcome.merged,
        "state": info,
    }
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    _write(folder / STATE, lambda file: np.savez(file, description=text, state=arrays["state"]))


def load_state(folder: Path) -> Outcome:
    """Reads what `save_state` wrote.

    Raises:
        CheckpointError: there is no such file, it is damaged, or another version wrote it.
    """
    path = folder / STATE
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            description = json.loads(file["description"].tobytes())
            arrays = {"state": file["state"]}
    except FileNotFoundError:
        raise CheckpointError(f"there is no evaluation in {str(folder)!r}: no {STATE}") from None
    except Exception as error:  # damaged archives raise errors of many types
        reason = str(error).split("\n")[0][:200]
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise CheckpointError(f"{str(path)!r} was written by another version of datarax")
    try:
        config = Configuration.of_json(description["config"])
        metric = unpack(arrays, description["state"], like=assembled(config))
        return Outcome(
            config,
            description["columns"],
            tuple(Source(*each) for each in description["sources"]),
            description["title"],
            metric,
            description["rows"],
            description["excluded"],
            tuple(description["done"]),
            description["total"],
            description["merged"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} is damaged: {error}") from error


def resumed(folder: Path, fresh: Outcome) -> Outcome:
    """What is in the folder, if it is of the files and the configuration of `fresh`.

    Raises:
        ConfigurationMismatchError: it is not; says in what they differ.
        CheckpointError: as of `load_state`.
    """
    found = load_state(folder)
    problem = fresh.difference(found) or _changed(found.sources, fresh.sources)
    if found.merged:
        problem = "it was merged of several folders"
    elif not problem and found.total != fresh.total:
        problem = f"the files had {found.total} parts, and have {fresh.total}"
    if problem:
        raise ConfigurationMismatchError(f"cannot resume {str(folder)!r}: {problem}")
    return found


def merged(folders: Sequence[Path], *, duplicates: bool = False, title: str = "") -> Outcome:
    """The evaluations of several folders as one.

    Raises:
        ConfigurationMismatchError: they differ in what they were asked for, or a file is in two of
            them, unless `duplicates` allows it.
        CheckpointError: as of `load_state`.
    """
    first, *others = (load_state(folder) for folder in folders)
    seen = {source[:2]: folders[0] for source in first.sources}
    total, metric = first, first.metric
    for folder, other in zip(folders[1:], others, strict=True):
        problem = first.difference(other)
        if problem:
            raise ConfigurationMismatchError(
                f"cannot merge {str(folders[0])!r} and {str(folder)!r}: {problem}"
            )
        for source in other.sources:
            if source[:2] in seen and not duplicates:
                raise ConfigurationMismatchError(
                    f"{source.path!r} is in {str(seen[source[:2]])!r} and in {str(folder)!r}: its "
                    f"rows would count twice; --allow-duplicates allows it"
                )
        seen |= {source[:2]: folder for source in other.sources}
        metric = metric.merge(other.metric)
        excluded = dict(total.excluded or {})
        for column, rows in (other.excluded or {}).items():
            excluded[column] = excluded.get(column, 0) + rows
        total = replace(
            total,
            sources=(*total.sources, *other.sources),
            rows=total.rows + other.rows,
            excluded=excluded,
            done=tuple(range(len(total.done) + len(other.done))),
            total=total.total + other.total,
        )
    return replace(total, metric=metric, merged=True, title=title or total.title)


def write_outcome(folder: Path, outcome: Outcome, summary: Mapping[str, Any]) -> list[Path]:
    """Writes the summary, the pictures and the report; gives what was written.

    Raises:
        OSError: a file cannot be written.
    """
    from datarax.evaluation.html_report import render
    from datarax.evaluation.pictures import pictures

    names = outcome.config.names
    drawn = pictures(outcome.metric["whole"], names=names) if "whole" in outcome.metric else []
    texts = {SUMMARY: json.dumps(summary, indent=1) + "\n"}
    texts |= {f"{picture.name}.svg": picture.svg for picture in drawn}
    texts[REPORT] = render(summary, drawn)
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def write_text(path: Path, text: str) -> None:
    """Writes a text file, or leaves the one that is there.

    Raises:
        OSError: it cannot be written.
    """
    # Strings from files may hold surrogates, which UTF-8 has no bytes for.
    _write(path, lambda file: file.write(text.encode("utf-8", "replace")))


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and not error.filename:
            error.filename = str(path)
        raise


def _changed(before: Sequence[Source], now: Sequence[Source]) -> str | None:
    """What is different in the files, for a message."""
    old, new = ({source.path: source for source in each} for each in (before, now))
    for path in old.keys() ^ new.keys():
        return f"{path!r} was {'not ' if path in new else ''}among its files"
    for path, source in new.items():
        if source != old[path]:
            return f"{path!r} has changed since"
    return None


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
