"""The folder of an evaluation: its state, resuming, merging, and what is refused."""

import hashlib
import json
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from datarax import CheckpointError, ConfigurationMismatchError
from datarax.evaluation.assembly import assembled
from datarax.evaluation.encoding import Configuration, Slicing
from datarax.evaluation.identity import identity_of
from datarax.evaluation.outcome import (
    PARTIAL,
    STATE,
    Outcome,
    load_state,
    merge_folders,
    resumed,
    save_state,
)
from datarax.evaluation.outcome_summary import summary_of
from datarax.evaluation.output_folder import held, write_files
from datarax.evaluation.partial_state import Merging
from datarax.evaluation.tasks import parsed

CONFIG = Configuration(
    "binary",
    tuple(parsed("accuracy,brier_score,calibration_error", "binary")),
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
    source = identity_of(path)
    return Outcome(
        metric, 32, {"label": 2}, (0,), 1,
        files=(source,), config=CONFIG, columns=COLUMNS, title="a title",
    )  # fmt: skip


def values(found: Outcome) -> dict[str, object]:
    return {row["name"]: row["value"] for row in summary_of(found, "1.2.3")["metrics"]}


def test_what_is_saved_is_what_is_loaded(rng, tmp_path):
    saved = outcome(rng, tmp_path, "a.csv")
    save_state(tmp_path, saved)
    found = load_state(tmp_path)
    assert replace(found, metric=saved.metric) == saved
    ours, theirs = summary_of(found, "1.2.3"), summary_of(saved, "1.2.3")
    assert {**ours, "created": None} == {**theirs, "created": None}
    assert json.loads(json.dumps(ours)) == ours
    assert [path.name for path in tmp_path.iterdir() if "state" in path.name] == [STATE]


def test_merged_folders_count_all_rows(rng, tmp_path):
    parts = [outcome(rng, tmp_path, name) for name in ("a.csv", "b.csv", "c.csv")]
    folders = [tmp_path / str(place) for place in range(3)]
    for folder, part in zip(folders, parts, strict=True):
        folder.mkdir()
        save_state(folder, part)
    found = merge_folders(folders)
    whole = parts[0].metric.merge(parts[1].metric).merge(parts[2].metric)
    assert values(found) == values(replace(parts[0], metric=whole))
    assert (found.rows, found.excluded, found.total) == (96, {"label": 6}, 3)
    slices = summary_of(found, "1.2.3")["slices"][0]["rows"]
    assert sum(row["examples"] for row in slices) == 96

    with pytest.raises(ConfigurationMismatchError, match=r"c\.csv.* would count twice"):
        merge_folders([*folders, folders[2]])
    assert merge_folders([*folders, folders[2]], duplicates=True).rows == 128

    # A hard link is the same file under another name, also beside files that no other folder has.
    (tmp_path / "link.csv").hardlink_to(tmp_path / "a.csv")
    linked = tuple(identity_of(tmp_path / name) for name in ("link.csv", "c.csv"))
    save_state(folders[2], replace(parts[2], files=linked))
    with pytest.raises(ConfigurationMismatchError, match=r"link\.csv' is in .*0' and one"):
        merge_folders(folders)

    other = replace(CONFIG, slicings=(Slicing("country", ("de", "it")),))
    save_state(folders[2], replace(parts[2], config=other, metric=assembled(other)))
    with pytest.raises(ConfigurationMismatchError, match=r"--slice-by is .*fr.* in one and .*it"):
        merge_folders(folders)


def test_one_file_by_several_names_counts_once(rng, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path / "data")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "link.csv").symlink_to(tmp_path / "data" / "a.csv")
    Path("copy.csv").write_text("a.csv")  # the same rows
    first = outcome(rng, tmp_path / "data", "a.csv")
    names = (
        "a.csv",
        "../data/./a.csv",
        tmp_path / "data" / "a.csv",
        tmp_path / "link" / "a.csv",
        tmp_path / "link.csv",
        "copy.csv",
    )
    folders = [tmp_path / str(place) for place in range(len(names))]
    for folder, name in zip(folders, names, strict=True):
        folder.mkdir()
        save_state(folder, replace(first, files=(identity_of(name),)))
    for place, folder in enumerate(folders[1:], 1):
        said = "is in .*0' and one of the files of" if place < 5 else "is a copy of 'copy.csv'"
        with pytest.raises(ConfigurationMismatchError, match=f"{said}.* would count twice"):
            merge_folders([folders[0], folder])
    shutil.copytree(folders[0], tmp_path / "copied")
    with pytest.raises(ConfigurationMismatchError, match="would count twice"):
        merge_folders([folders[0], tmp_path / "copied"])
    assert merge_folders([folders[0], tmp_path / "copied"], duplicates=True).rows == 64


def test_other_files_of_the_same_name_and_size_count(rng, tmp_path, monkeypatch):
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        found = outcome(rng, folder, "a.csv")
        Path("a.csv").write_text(folder.name)
        # The jobs also have files without rows, which are equal.
        Path("none.csv").write_text("score,label\n")
        save_state(folder, replace(found, files=(identity_of("a.csv"), identity_of("none.csv"))))
    assert merge_folders(folders).rows == 64


def test_a_stopped_evaluation_is_merged_unless_there_is_an_earlier_result(rng, tmp_path):
    saved = outcome(rng, tmp_path, "a.csv")
    save_state(tmp_path, replace(saved, rows=16, total=2), PARTIAL)
    found = merge_folders([tmp_path])
    assert (found.rows, len(found.done), found.total) == (16, 1, 2)
    with held(tmp_path), pytest.raises(CheckpointError, match="is being written by process"):
        merge_folders([tmp_path])
    save_state(tmp_path, saved)
    with pytest.raises(CheckpointError, match=r"was stopped.*finish it with --resume, or delete"):
        merge_folders([tmp_path])
    assert resumed(tmp_path, replace(saved, total=2)).rows == 16


def test_a_forged_description_is_refused(rng, tmp_path):
    save_state(tmp_path, outcome(rng, tmp_path, "a.csv"))
    path = tmp_path / STATE
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    said = json.loads(arrays["description"].tobytes())
    for changes in ({"rows": 10**9}, {"excluded": {}}, {"done": []}, {"title": "other"}):
        text = np.frombuffer(json.dumps(said | changes).encode(), np.uint8)
        np.savez(path, **arrays | {"description": text})
        with pytest.raises(CheckpointError, match="is damaged: its checksum is wrong"):
            load_state(tmp_path)
    del arrays["sha256"]
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_state(tmp_path)
    text = np.frombuffer(json.dumps(said | {"format": 1}).encode(), np.uint8)
    np.savez(path, **arrays | {"description": text})
    with pytest.raises(CheckpointError, match="another version of datarax; evaluate the files ag"):
        load_state(tmp_path)


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
    grown = saved.files[0]._replace(size=10_000)
    assert "a.csv' has changed since" in refusal(files=(grown,))
    other = saved.files[0]._replace(digest="0")
    assert "a.csv' has changed since" in refusal(files=(other,))
    assert "was not among its files" in refusal(files=(*saved.files, grown._replace(path="b")))
    save_state(tmp_path, replace(saved, merged=True))
    assert "merged of several folders" in refusal()


def parts_of(rng, config, number):
    """Evaluations of so many parts, folded one by one."""
    empty = assembled(config)
    for _ in range(number):
        columns = {
            "preds": rng.random(32),
            "target": rng.integers(0, 2, 32),
            "slice_0": rng.choice(["de", "fr"], 32).tolist(),
        }
        yield empty.update(**config.encoding(columns))


def test_what_goes_on_from_a_saved_state_has_the_bits_of_one_run(rng, tmp_path):
    """However often it is stopped, and in whatever order the parts are done."""
    config = replace(CONFIG, specs=tuple(parsed("log_loss", "binary")))
    total = 7
    states = dict(enumerate(parts_of(rng, config, total)))
    every = Merging()
    for place, state in states.items():
        every = every.with_part(place, state)
    now = Outcome(
        assembled(config), total=total, merging=Merging(),
        files=(), config=config, columns=COLUMNS, title="",
    )  # fmt: skip
    save_state(tmp_path, now, PARTIAL)  # before any part
    for place in rng.permutation(total).tolist():
        now = resumed(tmp_path, now)
        merging = (now.merging or Merging()).with_part(place, states[place])
        done = tuple(sorted((*now.done, place)))
        now = replace(now, metric=merging.whole(), merging=merging, done=done, rows=now.rows + 32)
        save_state(tmp_path, now, PARTIAL)
    found = load_state(tmp_path, PARTIAL)
    assert (found.rows, found.done) == (32 * total, tuple(range(total)))
    for ours, theirs in zip(
        jax.tree.leaves(found.metric), jax.tree.leaves(every.whole()), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def forged(path, arrays, changes):
    """Writes a state with changes of its description, and the checksum that they have."""
    said = json.loads(arrays["description"].tobytes()) | changes
    text = np.frombuffer(json.dumps(said).encode(), np.uint8)
    states = [arrays[f"state_{place}"] for place in range(len(arrays) - 2)]
    sha256 = np.frombuffer(hashlib.sha256(b"".join([text, *states])).digest(), np.uint8)
    np.savez(path, **arrays | {"description": text, "sha256": sha256})


def test_a_forged_description_with_its_checksum_is_refused(rng, tmp_path):
    (tmp_path / "a.csv").write_text("a")
    first, second, third = parts_of(rng, CONFIG, 3)
    merging = Merging().with_part(0, first).with_part(1, second).with_part(2, third)
    save_state(
        tmp_path,
        Outcome(
            merging.whole(), 96, {"label": 2}, (0, 1, 2), 4, merging,
            (identity_of(tmp_path / "a.csv"),), config=CONFIG, columns=COLUMNS, title="",
        ),
    )  # fmt: skip
    path = tmp_path / STATE
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    forged(path, arrays, {})
    assert load_state(tmp_path).done == (0, 1, 2)
    config, huge = CONFIG.as_json(), 10**400
    for changes in (
        *({"rows": each} for each in (huge, -1, 1.5, True, "1", None)),
        *({"total": each} for each in (huge, 2, 3.5)),
        {"excluded": {"label": huge}},
        {"excluded": [1]},
        {"done": [0, 1, huge]},
        {"done": [0, 1]},
        *({"nodes": [node, [0, 2]]} for node in ([huge, 0], [1, huge], [0, 0], [-1, 0], "ab", 1)),
        {"nodes": [[1, 0]]},
        {"nodes": [[1, 0], [1, 0]]},
        {"states": {}},
        {"states": [1, 2]},
        {"sources": [[1]]},
        *({"columns": each} for each in ([], "ab", {"preds": "a"}, {"preds": [1]}, {"preds": 2})),
        *({"title": each} for each in (1, None, ["a"])),
        {"merged": "no"},
        {"config": config | {"task": "none"}},
        {"config": config | {"bootstrap": huge}},
        {"config": config | {"specs": [{}]}},
    ):
        forged(path, arrays, changes)
        with pytest.raises(CheckpointError, match=r"is damaged: .") as caught:
            load_state(tmp_path)
        assert "\n" not in str(caught.value)
        assert "object has no attribute" not in str(caught.value)


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


def test_files_that_do_not_fit_leave_the_old_ones(tmp_path):
    write_files(tmp_path, {"metrics.json": b"old", "report.html": b"old report"})
    new = {"metrics.json": b"new", "report.html": b"new" * 1000}
    said = "File too large; not written: metrics.json, report.html"
    with files_of_at_most(100), pytest.raises(OSError, match=said) as caught:
        write_files(tmp_path, new)
    assert caught.value.filename == str(tmp_path)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"metrics.json": b"old", "report.html": b"old report"}


def test_a_folder_in_the_place_of_a_file_leaves_the_old_ones(tmp_path):
    """All files are of one evaluation: none is replaced if one cannot be."""
    (tmp_path / "state.npz").write_bytes(b"old")
    (tmp_path / "metrics.json").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder, and a file is to be written there"):
        write_files(tmp_path, {"state.npz": b"new", "metrics.json": b"new"})
    assert (tmp_path / "state.npz").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"state.npz", "metrics.json"}


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
