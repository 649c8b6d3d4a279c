"""The folder of an evaluation: its state, resuming, merging, and what is refused."""

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datarax import CheckpointError, ConfigurationMismatchError
from datarax.evaluation.assembly import Configuration, assembled
from datarax.evaluation.encoding import Slicing
from datarax.evaluation.metric_names import parsed
from datarax.evaluation.outcome import (
    STATE,
    Outcome,
    Source,
    load_state,
    merged,
    resumed,
    save_state,
    write_text,
)

CONFIG = Configuration(
    "binary",
    tuple(parsed("accuracy,brier_score", "binary")),
    scores="probabilities",
    slicings=(Slicing("country", ("de", "fr")),),
)
COLUMNS = {"preds": ["score"], "target": ["label"], "slice_0": ["country"]}


def outcome(rng: np.random.Generator, folder: Path, name: str) -> Outcome:
    """An evaluation of one file with random rows."""
    path = folder / name
    path.write_text(name)
    columns = {
        "preds": rng.random(32),
        "target": rng.integers(0, 2, 32),
        "slice_0": rng.choice(["de", "fr"], 32).tolist(),
    }
    metric = assembled(CONFIG).update(**CONFIG.encoding(columns))
    source = Source.of(path)
    return Outcome(CONFIG, COLUMNS, (source,), "a title", metric, 32, {"label": 2}, (0,), 1)


def values(found: Outcome) -> dict[str, object]:
    return {row["name"]: row["value"] for row in found.summary("1.2.3")["metrics"]}


def test_what_is_saved_is_what_is_loaded(rng, tmp_path):
    saved = outcome(rng, tmp_path, "a.csv")
    save_state(tmp_path, saved)
    found = load_state(tmp_path)
    assert replace(found, metric=saved.metric) == saved
    ours, theirs = found.summary("1.2.3"), saved.summary("1.2.3")
    assert {**ours, "created": None} == {**theirs, "created": None}
    assert json.loads(json.dumps(ours)) == ours
    assert [path.name for path in tmp_path.iterdir() if "state" in path.name] == [STATE]


def test_merged_folders_count_all_rows(rng, tmp_path):
    parts = [outcome(rng, tmp_path, name) for name in ("a.csv", "b.csv", "c.csv")]
    folders = [tmp_path / str(place) for place in range(3)]
    for folder, part in zip(folders, parts, strict=True):
        folder.mkdir()
        save_state(folder, part)
    found = merged(folders)
    whole = parts[0].metric.merge(parts[1].metric).merge(parts[2].metric)
    assert values(found) == values(replace(parts[0], metric=whole))
    assert (found.rows, found.excluded, found.total) == (96, {"label": 6}, 3)
    slices = found.summary("1.2.3")["slices"][0]["rows"]
    assert sum(row["examples"] for row in slices) == 96

    with pytest.raises(ConfigurationMismatchError, match=r"c\.csv.* would count twice"):
        merged([*folders, folders[2]])
    assert merged([*folders, folders[2]], duplicates=True).rows == 128

    other = replace(CONFIG, slicings=(Slicing("country", ("de", "it")),))
    save_state(folders[2], replace(parts[2], config=other, metric=assembled(other)))
    with pytest.raises(ConfigurationMismatchError, match=r"--slice-by is .*fr.* in one and .*it"):
        merged(folders)


def test_what_is_resumed_must_be_the_same(rng, tmp_path):
    saved = outcome(rng, tmp_path, "a.csv")
    save_state(tmp_path, saved)
    assert resumed(tmp_path, saved).rows == 32

    def refusal(**changes):
        with pytest.raises(ConfigurationMismatchError, match="cannot resume") as caught:
            resumed(tmp_path, replace(saved, **changes))
        return str(caught.value)

    assert "confidence is 0.5 in one and 0.95 in" in refusal(config=replace(CONFIG, confidence=0.5))
    assert "the column of target is" in refusal(columns={**COLUMNS, "target": ["other"]})
    assert "had 1 parts, and have 2" in refusal(total=2)
    grown = saved.sources[0]._replace(size=10_000)
    assert "a.csv' has changed since" in refusal(sources=(grown,))
    assert "was not among its files" in refusal(sources=(*saved.sources, grown._replace(path="b")))
    save_state(tmp_path, replace(saved, merged=True))
    assert "merged of several folders" in refusal()


@pytest.mark.parametrize("damage", ["cut", "bytes", "other", "missing", "pickle"])
def test_damaged_states_are_refused(rng, tmp_path, damage):
    save_state(tmp_path, outcome(rng, tmp_path, "a.csv"))
    path = tmp_path / STATE
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "bytes":
        path.write_bytes(b"\0" * len(content))
    elif damage == "other":
        np.savez(path, description=np.frombuffer(b'{"format": 99}', np.uint8), state=np.zeros(1))
    elif damage == "pickle":
        np.savez(path, description=np.array([{"format": 1}], object), state=np.zeros(1))
    else:
        path.unlink()
    with pytest.raises(CheckpointError) as caught:
        load_state(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unwritten_file_leaves_the_old_one(tmp_path):
    path = tmp_path / "metrics.json"
    write_text(path, "old \ud800")
    assert path.read_bytes() == b"old ?"
    with files_of_at_most(100), pytest.raises(OSError, match="too large"):
        write_text(path, "new" * 1000)
    assert path.read_bytes() == b"old ?"
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.json"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """In this block, a file cannot grow beyond a size, as on a disk that is full."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
