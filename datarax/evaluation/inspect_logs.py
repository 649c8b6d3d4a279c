"""The logs of Inspect: `.eval`, an archive of JSON, and `.json`.

They are read here, and not by the package `inspect_ai`: a log needs two objects of JSON, and that
package needs some sixty others. Its archives hold members that Zstandard has compressed, which the
`zipfile` of Python reads from 3.14 on only; pyarrow decompresses them.
"""

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.locations import name_of, opened, read_pieces
from datarax.evaluation.logs import Log, Sample, checked, digest, number_of, scalars, without_codec

Json = dict[str, Any]
_ZSTANDARD = 93
_VERSIONS = (1, 2, 3)
_TRUNCATED = 100
"""Summaries cut texts, at a length that depends on the version."""
_SUMMARY, _SAMPLE = re.compile(r"_journal/summaries/(\d+)\.json"), "samples/"


def read_inspect(path: str) -> Log:
    """Reads the samples of a log, also of one that was stopped or has failed.

    Of an archive, the summaries are read, which hold the scores without the transcripts; or the
    samples, if the summaries are not those of all samples.

    Raises:
        MetricInputError: it is no log of Inspect, damaged, or was written without samples.
    """
    with opened(path) as file:
        is_archive = file.read(2) == b"PK" or name_of(path).endswith(".eval")
        header, samples = _of_archive(path, file) if is_archive else _of_json(path)
    spec = header.get("eval")
    if not isinstance(spec, dict) or not isinstance(spec.get("task"), str):
        raise MetricInputError(f"{path}: it has no eval.task; expected a log of Inspect")
    scorer = _only_scorer(header)
    latest, number = dict[tuple[str, int], Sample](), 0
    for place, sample in samples:
        found = _sample(sample, path, place, scorer)
        number += 1
        # A sample that ran again follows what it replaces.
        latest[str(found.id), found.epoch] = found
    settings = ("task_version", "task_args", "solver", "solver_args", "model_generate_config")
    return Log(
        path,
        spec["task"],
        str(spec.get("model", "")),
        tuple(latest.values()),
        {name: json.dumps(spec.get(name) or None, sort_keys=True) for name in settings},
        str(spec.get("task_id") or ""),
        str(spec.get("created") or ""),
        tuple(_notes(path, header, spec, len(latest), number)),
    )


def is_inspect(name: str) -> bool:
    """True for the name of a log in a folder, where other `.json` files may be, too."""
    dated = re.match(r"\d{4}-\d\d-\d\dT", name) is not None
    return name.endswith(".eval") or (dated and without_codec(name).endswith(".json"))


def _of_json(path: str) -> tuple[Json, Iterator[tuple[str, Json]]]:
    try:
        log = json.loads(b"".join(read_pieces(path, 2**20)))
    except ValueError as error:
        raise MetricInputError(f"{path}: it is no JSON, or was cut off: {error}") from None
    log = checked(log, dict, "a log of Inspect, an object of JSON", path, "the file")
    samples = log.get("samples")
    if samples is None and "eval" in log:
        raise MetricInputError(
            f"{path}: it holds no samples; run the evaluation without --no-log-samples"
        )
    return log, _placed(checked(samples or [], list, "a list", path, "samples"), "samples", path)


def _of_archive(path: str, file: Any) -> tuple[Json, Iterator[tuple[str, Json]]]:
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise MetricInputError(
            f"{path}: it is no whole archive: the list of its members, at the end, is missing or "
            f"damaged; it was cut off, or is still being copied"
        ) from None
    with archive:
        # A member that is written twice is the later one.
        members = {info.filename: info for info in archive.infolist()}

        def read(name: str) -> Any:
            try:
                return json.loads(_contents(path, archive, file, members[name]))
            except ValueError as error:
                raise MetricInputError(f"{path}: {name}: it is no JSON: {error}") from None

        name = "header.json" if "header.json" in members else "_journal/start.json"
        if name not in members:
            raise MetricInputError(
                f"{path}: it has neither header.json nor _journal/start.json; expected a log of "
                f"Inspect"
            )
        header = checked(read(name), dict, "an object of JSON", path, name)
        rows = list(_summaries(members, read, path))
        full = [name for name in members if name.startswith(_SAMPLE) and name.endswith(".json")]
        listed = {f"{_SAMPLE}{row.get('id')}_epoch_{row.get('epoch')}.json" for _, row in rows}
        if full and listed != set(full):
            rows = [(each, checked(read(each), dict, "an object", path, each)) for each in full]
        if not rows and not _results(header).get("completed_samples", 0) == 0:
            raise MetricInputError(
                f"{path}: it holds no samples; run the evaluation without --no-log-samples"
            )
    return header, iter(rows)


def _summaries(
    members: Mapping[str, Any], read: Callable[[str], Any], path: str
) -> Iterator[tuple[str, Json]]:
    """What is known of each sample; of a log that is not finished, from its journal."""
    journal = sorted((int(found[1]), name) for name in members if (found := _SUMMARY.match(name)))
    whole = ["summaries.json"] if "summaries.json" in members else [name for _, name in journal]
    for name in whole:
        yield from _placed(checked(read(name), list, "a list", path, name), name, path)


def _placed(samples: list[Any], name: str, path: str) -> Iterator[tuple[str, Json]]:
    for number, sample in enumerate(samples, 1):
        place = f"{name}, sample {number:,}"
        yield place, checked(sample, dict, "an object of JSON", path, place)


def _contents(path: str, archive: zipfile.ZipFile, file: Any, member: zipfile.ZipInfo) -> bytes:
    """The contents of a member of an archive.

    Raises:
        MetricInputError: it is damaged; names it.
    """
    try:
        if member.compress_type != _ZSTANDARD:
            return archive.read(member)
        file.seek(member.header_offset)
        local = file.read(30)
        if local[:4] != b"PK\x03\x04":
            raise ValueError("its header is not where the archive says")
        # The lengths of its name and of what follows that.
        lengths = [int.from_bytes(local[i : i + 2], "little") for i in (26, 28)]
        file.seek(member.header_offset + len(local) + sum(lengths))
        packed = file.read(member.compress_size)
        pyarrow = optional("pyarrow", "parquet", f"reading {path}")
        with pyarrow.input_stream(pyarrow.py_buffer(packed), compression="zstd") as stream:
            found = stream.read()
        if len(found) != member.file_size or zlib.crc32(found) != member.CRC:
            raise ValueError("its checksum is wrong")
        return found
    except MemoryError:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise MetricInputError(
            f"{path}: the member {member.filename} is damaged: {error}"
        ) from None


def _sample(sample: Json, path: str, place: str, scorer: str) -> Sample:
    name = checked(sample.get("id"), (int, str), "an id, an integer or a text", path, place)
    epoch = checked(sample.get("epoch", 1), int, "an epoch, an integer", path, place)
    place = f"{place} (id {name!r}, epoch {epoch})"
    scores = sample.get("scores") or {}
    if "score" in sample and not scores and sample["score"] is not None:  # of version 1
        scores = {scorer: sample["score"]}
    numbers, absent = dict[str, float](), dict[str, str]()
    for key, score in checked(scores, dict, "scores by name", path, place).items():
        value = score.get("value") if isinstance(score, dict) else score
        for part, each in _parts(key, value):
            if part in numbers or part in absent:
                raise MetricInputError(f"{path}: {place}: two scores have the name {part!r}")
            number = number_of(each)
            if isinstance(number, str):
                absent[part] = number
            else:
                numbers[part] = number
    error = sample.get("error")
    question = [_cut(x) for x in (sample.get("input"), sample.get("target"))]
    return Sample(
        name,
        epoch,
        numbers,
        absent,
        "failed with an error" if error else "",
        scalars("metadata", sample.get("metadata")),
        digest(*question),
        place=f"{path}: {place}",
    )


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers of a score: one, or those of a dict or a list, each with its name."""
    if isinstance(value, dict):
        yield from ((f"{name}/{key}", each) for key, each in value.items())
    elif isinstance(value, list):
        yield from ((f"{name}/{place}", each) for place, each in enumerate(value))
    else:
        yield name, value


def _cut(x: Any) -> Any:
    """The beginnings of the texts of a question, which all versions keep."""
    if isinstance(x, str):
        return x[:_TRUNCATED]
    # Messages have ids that differ in each run.
    return [_cut(each) for each in x if isinstance(each, str)] if isinstance(x, list) else None


def _results(header: Json) -> Json:
    found = header.get("results")
    return found if isinstance(found, dict) else {}


def _only_scorer(header: Json) -> str:
    """The name of the score in logs of version 1, whose samples have one without a name."""
    results = _results(header)
    scores = results.get("scores")
    first = scores[0] if isinstance(scores, list) and scores else results.get("scorer")
    found = first.get("name") if isinstance(first, dict) else first
    return found if isinstance(found, str) else "score"


def _notes(path: str, header: Json, spec: Json, found: int, written: int) -> Iterator[str]:
    """What the log says of itself."""
    version = header.get("version", 1)
    if version not in _VERSIONS:
        known = f"{_VERSIONS[0]} to {_VERSIONS[-1]}"
        yield f"{path}: the format of the log has the version {version!r}; known are {known}"
    if written > found:
        yield f"{path}: {written - found:,} samples are there twice; of each the latest counts"
    status, samples = header.get("status", "started"), _expected(header, spec)
    of = f"{found:,} of {samples:,} samples" if samples else f"{found:,} samples"
    if status != "success":
        yield f"{path}: the status of the log is {status!r}: it holds {of}"
    elif samples and found < samples:
        yield f"{path}: the log holds {of}"
    if header.get("invalidated"):
        yield f"{path}: the log is marked as invalid"


def _expected(header: Json, spec: Json) -> int | None:
    """How many samples the evaluation was to have, if the log says it."""
    total = _results(header).get("total_samples")
    if isinstance(total, int) and total:
        return total
    dataset, config = (
        x if isinstance(x := spec.get(name), dict) else {} for name in ("dataset", "config")
    )
    ids, epochs = dataset.get("sample_ids"), config.get("epochs") or 1
    number = len(ids) if isinstance(ids, list) else None
    return number * epochs if number and isinstance(epochs, int) else None
