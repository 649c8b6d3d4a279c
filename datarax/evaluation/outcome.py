"""The folder that an evaluation writes: the summary, the state, the pictures and the report.

All files are written at the end. Until then, the state is in a file of its own, so that an earlier
result stays whole. The state is a description in JSON, arrays, and a checksum of both; nothing in
it is code, and metrics are made again from the configuration.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from datarax._errors import CheckpointError, ConfigurationMismatchError
from datarax.evaluation.assembly import assembled
from datarax.evaluation.encoding import Configuration, Json, shortened
from datarax.evaluation.evaluator import Progress
from datarax.evaluation.identity import FileIdentity, different
from datarax.evaluation.largest_losses import LossRow, largest
from datarax.evaluation.output_folder import check_not_held, write_files
from datarax.evaluation.partial_state import Merging, Node
from datarax.evaluation.tables import first_line
from datarax.evaluation.tasks import hashable
from datarax.io.checkpoint import pack, unpack
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection

STATE, SUMMARY, REPORT = "state.npz", "metrics.json", "report.html"
COMPARISON = "comparison.html"
PARTIAL = "partial.npz"
"""The state while an evaluation runs, or after it was stopped; it is gone when all is written."""
FORMAT = 4
"""The version of the layout of the state."""


@dataclass(frozen=True)
class Outcome(Progress):
    """The request of an evaluation, and the results so far."""

    metric: Collection
    config: Configuration = field(kw_only=True)
    columns: Mapping[str, list[str] | None] = field(kw_only=True)
    """The columns of each output."""
    title: str = field(kw_only=True)
    merged: bool = field(default=False, kw_only=True)
    """True if it was merged of several; then `done` does not say which parts."""

    def difference(self, other: Self) -> str | None:
        """The first setting in which the two differ, for a message; None if there is none."""
        mine, theirs = (
            each.config.as_json() | {f"the column of {name}": x for name, x in each.columns.items()}
            for each in (self, other)
        )
        for name in mine | theirs:
            if mine.get(name) != theirs.get(name):
                a, b = (shortened(json.dumps(each.get(name)), 80) for each in (mine, theirs))
                return f"{_NAMES.get(name, name)} is {a} in one and {b} in the other"
        return None


_NAMES = {
    "size": "the number of classes",
    "names": "the names of the classes",
    "specs": "--metrics",
    "slicings": "--slice-by",
    "scores": "--scores",
    "on_invalid": "--on-invalid",
    "rows": "the choice whether to keep rows (--no-rows)",
    "missing_values": "--missing-values",
    "box_format": "--box-format",
    "ground_truth": "the ground truth",
    "detections": "the number of detections",
    "remarks": "what was noticed",
}


_AS_THEY_ARE = ("columns", "title", "rows", "excluded", "done", "total", "merged")
"""The fields that the description of a state holds under their own names."""


def save_state(folder: Path, outcome: Outcome, name: str = STATE) -> None:
    """Writes what was computed so far, from which a run can be resumed.

    Raises:
        OSError: the file cannot be written; the one that was there stays.
    """
    write_files(folder, {name: _state(outcome)})


def _state(outcome: Outcome) -> bytes:
    arrays, infos, nodes = {}, [], []
    for place, (node, metric) in enumerate(_states(outcome)):
        packed, info = pack(metric)
        arrays[f"state_{place}"] = packed["state"]
        infos.append(info)
        nodes.append(node)
    description = {
        "format": FORMAT,
        "config": outcome.config.as_json(),
        "sources": outcome.files,
        "states": infos,
        "nodes": nodes,
        "worst": outcome.worst,
    } | {name: getattr(outcome, name) for name in _AS_THEY_ARE}
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, description=text, **arrays, sha256=_checksum(text, *arrays.values()))
    return file.getvalue()


def _states(outcome: Outcome) -> list[tuple[Node | None, Metric]]:
    """The states to save, each with its node; None for the parts whose nodes are not known.

    A run that goes on must merge the same nodes as one that was never stopped: sums of floats in
    another order differ in the last digit.
    """
    merging = outcome.merging
    if merging is None or len(outcome.done) == outcome.total:
        return [(None, outcome.metric)]
    before = [] if merging.before is None else [(None, merging.before)]
    return [*before, *merging.nodes.items()]


def _checksum(*arrays: np.ndarray) -> np.ndarray:
    found = hashlib.sha256()
    for array in arrays:
        found.update(array.tobytes())
    return np.frombuffer(found.digest(), np.uint8)


def load_state(folder: Path, name: str = STATE) -> Outcome:
    """Reads what `save_state` wrote.

    Raises:
        CheckpointError: there is no such file, it is damaged, or another version wrote it.
    """
    path = folder / name
    if path.exists() and not path.is_file():  # to read a pipe would wait for its writer
        raise CheckpointError(f"{str(path)!r} is no file")
    try:
        # Without pickles: reading a state that somebody else has written runs no code.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            saved = {name: file[name] for name in file.files}
            description = json.loads(saved["description"].tobytes())
    except FileNotFoundError:
        raise CheckpointError(f"there is no evaluation in {str(folder)!r}: no {name}") from None
    except Exception as error:  # damaged archives raise errors of many types
        reason = first_line(error)[:200]
        raise CheckpointError(f"{str(path)!r} cannot be read: {reason}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise CheckpointError(
            f"{str(path)!r} was written by another version of datarax; evaluate the files again"
        )
    try:
        # The checksum covers all: a description beside the arrays of another state would give
        # wrong values without any error.
        packed = [saved[f"state_{place}"] for place in range(len(description["states"]))]
        if not np.array_equal(_checksum(saved["description"], *packed), saved["sha256"]):
            raise ValueError("its checksum is wrong")
        _check_types(description)
        config = Configuration.of_json(description["config"])
        empty = assembled(config)
        states = [
            unpack({"state": state}, info, like=empty)
            for state, info in zip(packed, description["states"], strict=True)
        ]
        nodes = list(map(hashable, description["nodes"]))
        merging = _merging(nodes, states, description)
        metric: Any = merging.whole() if states else empty
        return Outcome(
            metric,
            **{name: hashable(description[name]) for name in _AS_THEY_ARE},
            worst=tuple(LossRow(*row) for row in hashable(description["worst"])),
            merging=merging if nodes != [None] else None,
            files=tuple(FileIdentity(*each) for each in description["sources"]),
            config=config,
        )
    except Exception as error:  # a forged description raises errors of many types
        raise CheckpointError(f"{str(path)!r} is damaged: {first_line(error)}") from error


def _check_types(description: Json) -> None:
    """Raises if what a description says of rows, columns and files has other types."""
    if not all(isinstance(description[name], dict) for name in ("columns", "excluded")):
        raise ValueError("it does not say which columns it has")
    counts = [description[name] for name in ("rows", "total")]
    counts += [*description["excluded"].values(), *description["done"]]
    if any(type(each) is not int or not 0 <= each < 2**63 for each in counts):
        raise ValueError("a number of rows or of parts is none")
    lists = [x for x in description["columns"].values() if x is not None]
    texts = [description["title"]]
    texts += [x for each in lists for x in (each if isinstance(each, list) else [None])]
    if not all(isinstance(each, str) for each in texts):
        raise ValueError("its title or a name of its columns is no text")
    if type(description["merged"]) is not bool:
        raise ValueError("it does not say whether it was merged")


def _merging(
    nodes: Sequence[Node | None], states: Sequence[Metric], description: Mapping[str, Any]
) -> Merging:
    """The states at their nodes, which must be those of the parts that are done."""
    by_node = {node: state for node, state in zip(nodes, states, strict=True) if node is not None}
    before = next((state for node, state in zip(nodes, states, strict=True) if node is None), None)
    total, spans = description["total"], list[range]()
    for level, place in by_node:
        # A node of a level covers as many parts as a tree of that height; the last one fewer.
        if not (0 <= level < 64 and place >= 0 and place << level < total):
            raise ValueError("a node is not of the tree of its parts")
        spans.append(range(place << level, min((place + 1) << level, total)))
    # Compared before any is listed: forged nodes may cover more parts than memory holds.
    done = description["done"]
    if before is None and (
        sum(map(len, spans)) != len(done) or sorted(part for span in spans for part in span) != done
    ):
        raise ValueError("its nodes are not those of the parts that are done")
    return Merging(by_node, before)


def resumed(folder: Path, fresh: Outcome) -> Outcome:
    """The evaluation in the folder, which must have the files and the configuration of `fresh`.

    Raises:
        ConfigurationMismatchError: it has others; says in what they differ.
        CheckpointError: as in `load_state`.
    """
    # A new run deletes the partial state when it starts, and any run when it has written all. So if
    # it is there, it is newer than the finished one.
    found = load_state(folder, PARTIAL if (folder / PARTIAL).exists() else STATE)
    problem = fresh.difference(found) or different(found.files, fresh.files)
    # A merged state does not say which parts of these files are done.
    if found.merged:
        problem = "it was merged of several folders"
    elif not problem and found.total != fresh.total:
        problem = f"the files had {found.total} parts, and have {fresh.total}"
    if problem:
        raise ConfigurationMismatchError(f"cannot resume {str(folder)!r}: {problem}")
    return found


def merge_folders(folders: Sequence[Path], *, duplicates: bool = False, title: str = "") -> Outcome:
    """The evaluations of several folders as one.

    Raises:
        ConfigurationMismatchError: they differ in what they were asked for; or, unless `duplicates`
            allows it, two of them have a file in common, or one has copies of files of the others
            and no other files.
        CheckpointError: as in `load_state`; a process writes to a folder; or one has the state of
            an evaluation that was stopped, and an earlier result.
    """
    # All are read before any is merged, so a folder that is refused costs no merge.
    total, *others = (load_state(folder, _only_state(folder)) for folder in folders)
    if total.config.compared:
        raise ConfigurationMismatchError(
            f"{str(folders[0])!r} holds a comparison of two models: only evaluations are merged"
        )
    if others and total.config.ground_truth is not None:
        what = "images" if total.config.task == "detection" else "queries"
        raise ConfigurationMismatchError(
            f"{str(folders[0])!r} holds all {what} of {total.config.ground_truth}: {what} would "
            f"count twice. Evaluate one file with all results"
        )
    if others and total.config.groups:
        raise ConfigurationMismatchError(
            f"{str(folders[0])!r} holds an evaluation of logs, in which questions are numbered: "
            f"evaluate the logs together instead"
        )
    metric, seen = total.metric, dict.fromkeys(total.files, folders[0])
    for folder, other in zip(folders[1:], others, strict=True):
        problem = total.difference(other)
        if problem:
            raise ConfigurationMismatchError(
                f"cannot merge {str(folders[0])!r} and {str(folder)!r}: {problem}"
            )
        twice = None if duplicates else _twice(seen, other.files)
        if twice:
            raise ConfigurationMismatchError(
                f"{twice} of {str(folder)!r}: its rows would count twice; --allow-duplicates "
                f"allows it"
            )
        seen |= dict.fromkeys(other.files, folder)
        metric = metric.merge(other.metric)
        total = replace(
            total,
            files=(*total.files, *other.files),
            rows=total.rows + other.rows,
            excluded=dict(Counter(total.excluded) + Counter(other.excluded)),
            worst=largest((*total.worst, *other.worst)),
            # Parts of different folders have no common numbering: only how many are done is kept.
            done=tuple(range(len(total.done) + len(other.done))),
            total=total.total + other.total,
        )
    return replace(total, metric=metric, merged=True, title=title or total.title)


def _only_state(folder: Path) -> str:
    """The name of the file with the state, which may be that of an evaluation that was stopped."""
    check_not_held(folder)
    if not (folder / PARTIAL).exists():
        return STATE
    if (folder / STATE).exists():
        raise CheckpointError(
            f"the evaluation in {str(folder)!r} was stopped, and {STATE} is of an earlier one: "
            f"finish it with --resume, or delete {PARTIAL}"
        )
    return PARTIAL


def _twice(seen: Mapping[FileIdentity, Path], files: Sequence[FileIdentity]) -> str | None:
    """Names the file that was seen before, for a message.

    A hard link has another path, and the same number and time. Equal contents alone are allowed:
    two files without rows have equal contents. But if all files have contents that were seen, the
    folder is a copy.
    """
    places = {(file.resolved, file.contents): folder for file, folder in seen.items()}
    places |= {(file.inode, file.version): folder for file, folder in seen.items() if file.inode}
    for file in files:
        for key in ((file.resolved, file.contents), (file.inode, file.version)):
            if key in places:
                return f"{file.path!r} is in {str(places[key])!r} and one of the files"
    copies = {file.contents: file for file in seen}
    if files and all(file.contents in copies for file in files):
        return (
            f"{copies[files[0].contents].path!r} is a copy of {files[0].path!r}, one of the files"
        )
    return None


def files_of(outcome: Outcome, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """The contents of the state, the summary, the pictures and the report, by name of file."""
    # Here, because a comparison writes neither, and the figures import the plots.
    from datarax.evaluation.html_report import render
    from datarax.evaluation.pictures import pictures

    names = outcome.config.names
    drawn = pictures(outcome.metric["whole"], names=names) if "whole" in outcome.metric else []
    files = {STATE: _state(outcome), SUMMARY: as_json(summary)}
    files |= {f"{picture.name}.svg": _bytes(picture.svg) for picture in drawn}
    files[REPORT] = _bytes(render(summary, drawn))
    return files


def comparison_files(outcome: Outcome, summary: Mapping[str, Any]) -> dict[str, bytes]:
    """The contents of the summary and the page of a comparison, by name of file."""
    from datarax.evaluation.html_report import render_comparison

    return {SUMMARY: as_json(summary), COMPARISON: _bytes(render_comparison(summary))}


def write_outcome(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of an evaluation that has ended.

    Raises:
        OSError: they cannot be written; those that were there stay.
    """
    write_files(folder, files)
    # Last: a crash before this line leaves a state from which --resume continues.
    (folder / PARTIAL).unlink(missing_ok=True)


def as_json(summary: Mapping[str, Any]) -> bytes:
    """The contents of `metrics.json`."""
    return _bytes(json.dumps(summary, indent=1) + "\n")


def _bytes(text: str) -> bytes:
    # Strings from files may hold surrogates, which UTF-8 has no bytes for.
    return text.encode("utf-8", "replace")
