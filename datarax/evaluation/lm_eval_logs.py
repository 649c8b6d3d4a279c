"""The logs of the Language Model Evaluation Harness: `samples_TASK_DATE.jsonl`."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from datarax._errors import MetricInputError
from datarax.evaluation.locations import (
    Location,
    folders_of,
    is_uri,
    name_of,
    read_pieces,
    uncompressed,
)
from datarax.evaluation.logs import (
    Log,
    Sample,
    checked,
    digest,
    number_of,
    scalars,
    without_codec,
)

_NAME = re.compile(r"(?:samples_)?(?P<task>.+?)(?:_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+))?\.jsonl")
_OTHERS = frozenset(
    (
        *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
        *("doc_hash", "prompt_hash", "target_hash", "schema_version"),
    )
)
"""The keys of a row that are no metrics."""


def read_lm_eval(path: str) -> Log:
    """Reads the samples of a task.

    A row is a document after one filter. The n-th row of a document and a filter is its n-th
    answer, so the rows of several filters of one answer are one sample. A metric after a filter is
    called "exact_match/strict-match", and "acc" after the filter "none".

    Raises:
        MetricInputError: a row is no row of lm-eval, or is cut off; names it.
    """
    name = without_codec(name_of(path))
    found = _NAME.fullmatch(name)
    task, date = (found["task"], found["date"]) if found else (Path(name).stem, None)
    rows, prompts = dict[tuple[str, int], dict[str, Any]](), dict[str, tuple[str, str]]()
    seen: Counter[tuple[str, str]] = Counter()
    no_numbers = dict[str, str]()
    for place, row in _rows(path):
        if "doc_id" not in row:
            raise MetricInputError(
                f"{path}: {place}: it has no doc_id; expected a row of samples_*.jsonl, which "
                f"lm-eval writes with --log_samples"
            )
        name = checked(row["doc_id"], (int, str), "doc_id to be an integer or a text", path, place)
        filtered = row.get("filter") or "none"
        key = (str(name), str(filtered))
        seen[key] += 1
        content = str(row.get("doc_hash") or digest(row.get("doc")))
        first, where = prompts.setdefault(str(name), (content, place))
        if content != first:
            raise MetricInputError(
                f"{path}: {place}: the document with doc_id {name} is another than that of "
                f"{where}; expected one document of each doc_id"
            )
        held = rows.setdefault(
            (str(name), seen[key]),
            {
                "id": name,
                "scores": {},
                "absent": {},
                "metadata": scalars("doc", row.get("doc")),
                "content": content,
                "prompt": str(row.get("prompt_hash") or ""),
                "place": f"{path}: {place}",
            },
        )
        for metric in _metrics(row, path, place):
            score = metric if filtered == "none" else f"{metric}/{filtered}"
            value = row.get(metric)
            if isinstance(value, str | list | dict):
                no_numbers.setdefault(score, f"{place}: {json.dumps(value)[:40]}")
                continue
            number = number_of(value)
            held["absent" if isinstance(number, str) else "scores"][score] = number
    _refuse_mixed(path, rows.values(), no_numbers)
    samples = tuple(Sample(epoch=epoch, **held) for (_, epoch), held in rows.items())
    notes = [
        f"{task}: {score} is left out: it has no number for each document ({where})"
        for score, where in no_numbers.items()
    ]
    return Log(path, task, _model(path, date), samples, created=date or "", notes=tuple(notes))


def is_lm_eval(name: str) -> bool:
    """True for the name of a log in a folder."""
    return name.startswith("samples_") and without_codec(name).endswith(".jsonl")


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file, each with its place."""
    for number, (line, is_whole) in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        place = f"row {number:,}"
        try:
            row = json.loads(line)
        except ValueError as error:
            cut = "" if is_whole else ", or the file was cut off there"
            hint = "; expected samples_*.jsonl of lm-eval" if number == 1 else ""
            raise MetricInputError(f"{path}: {place}: it is no JSON{cut}: {error}{hint}") from None
        yield place, checked(row, dict, "an object of JSON", path, place)


def _lines(path: str) -> Iterator[tuple[bytes, bool]]:
    """The lines of a file, each with whether it has an end."""
    rest = b""
    for piece in read_pieces(path, 2**20):
        *lines, rest = (rest + piece).split(b"\n")
        yield from ((line, True) for line in lines)
    if rest:
        yield rest, False


def _metrics(row: dict[str, Any], path: str, place: str) -> list[str]:
    """The names of the metrics of a row; files of before 0.4.4 do not list them."""
    named = row.get("metrics")
    if named is None:
        return [name for name in row if name not in _OTHERS]
    checked(named, list, "metrics to be a list of names", path, place)
    return [checked(name, str, "the name of a metric", path, place) for name in named]


def _refuse_mixed(path: str, rows: Any, no_numbers: dict[str, str]) -> None:
    """Raises if a metric is a number in some rows, and something else in others."""
    numbers = {score for held in rows for score in held["scores"]}
    for score, where in no_numbers.items():
        if score in numbers:
            raise MetricInputError(
                f"{path}: {where} is no number, and other rows have numbers of {score!r}"
            )


def _model(path: str, date: str | None) -> str:
    """The model as the file of the results says, which has the same date; else the folder."""
    for beside in _results(path, date) if date else ():
        with suppress(OSError, ValueError), uncompressed(beside) as file:
            found = json.loads(file.read())
            name = found.get("model_name") if isinstance(found, dict) else None
            if isinstance(name, str) and name:
                return name
    folders = folders_of(path if is_uri(path) else str(Path(path).resolve()))
    return folders[-1] if folders else ""


def _results(path: str, date: str) -> list[str]:
    """The files that may hold the results of a run, beside its samples."""
    if is_uri(path):
        place = Location.of(path)
        return [place.uri(f"{place.path.rpartition('/')[0]}/results_{date}.json")]
    # With --output_path NAME.json, lm-eval writes NAME_DATE.json.
    return sorted(map(str, Path(path).resolve().parent.glob(f"*_{date}.json")))
