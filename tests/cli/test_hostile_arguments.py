"""Paths that lead nowhere, links where files are to be written, a terminal of ASCII: one line."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from datarax import CheckpointError
from datarax.cli import main
from datarax.cli.one_line import described, printable
from datarax.evaluation.output_folder import LOCK, check_not_held, held, write_files
from datarax.io import ParquetWriter
from tests.cli.evaluations import command, refusal, values

TASK = ("--task", "regression", "--preds", "p", "--target", "t", "--metrics", "mae")
LONG = "n" * 5000


def data(path: Path) -> Path:
    np.savez(path, p=np.arange(4.0), t=np.zeros(4))
    return path


def test_names_of_columns_are_exact(tmp_path, capsys):
    """Two columns may differ in spaces only."""
    path, out = tmp_path / "a.csv", tmp_path / "out"
    found = {}
    for header in ("score, score,score ,t", "a, score,score ,t"):
        path.write_text(f"{header}\n1,2,3,0\n")
        for name in header.split(",")[:3]:
            task = ("--task", "regression", "--preds", name, "--target", "t", "--metrics", "mae")
            assert command("evaluate", path, *task, "--output", out) == 0
            found[name] = values(json.loads((out / "metrics.json").read_text()))["mae"]
    assert found == {"score": 1, " score": 2, "score ": 3, "a": 1}
    capsys.readouterr()
    path.write_text("score, score,u,t\n1,2,0,0\n")
    task = ("--task", "regression", "--metrics", "mae", "--target", "t,u", "--output", out)
    assert command("evaluate", path, *task, "--preds", " score,score") == 0
    assert json.loads((out / "metrics.json").read_text())["columns"]["preds"] == [" score", "score"]
    capsys.readouterr()
    assert "there is no column ' t'" in refusal(
        capsys, "evaluate", path, "--task", "regression", "--preds", "score", "--target", " t"
    )


def test_paths_that_are_none(tmp_path, capsys, monkeypatch):
    """Nothing is read from the current folder, or written to it."""
    monkeypatch.chdir(tmp_path)
    path = data(tmp_path / "a.npz")
    for bad in ("", "a\0b"):
        for argv in (
            ("evaluate", bad, *TASK),
            ("evaluate", path, bad, *TASK),
            ("evaluate", path, *TASK, "--output", bad),
            ("compare", path, bad, *TASK),
            ("compare", bad, path, *TASK),
            ("merge", bad, "--output", "out"),
            ("merge", "job", "--output", bad),
        ):
            assert f"expected a path, got {bad!r}" in refusal(capsys, *argv)
        with pytest.raises(SystemExit) as stopped:
            main(["demo", "--output", bad])
        assert stopped.value.code == 2
        assert f"expected a path, got {bad!r}" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


def test_paths_that_lead_nowhere(tmp_path, capsys):
    path = data(tmp_path / "a.npz")
    for a, b in ("lm", "ml"):
        (tmp_path / a).symlink_to(tmp_path / b)
    for bad, said in ((LONG, "File name too long"), (tmp_path / "l", "links")):
        out = ("--output", bad)
        for argv in (
            ("evaluate", path, *TASK, *out),
            ("compare", path, path, *TASK, "--bootstrap", 2, *out),
        ):
            error = refusal(capsys, *argv)
            # A loop is a name that is taken, where a folder is made.
            assert said in error or "File exists" in error
            assert "DEBUG" not in error
        error = refusal(capsys, "merge", bad, "--output", tmp_path / "out")
        assert "Error" not in error
    assert "File name too long" in refusal(capsys, "evaluate", f"{LONG}.npz", *TASK)
    assert "File name too long" in refusal(capsys, "evaluate", "/".join(["n" * 300] * 7), *TASK)


def test_errors_without_a_text_say_something():
    assert described(MemoryError()).startswith("there is not enough memory; a smaller --batch")
    assert described(MemoryError("10 GB")).startswith("10 GB; a smaller")
    assert described(AssertionError()).startswith("AssertionError (")
    # The end of a long line is what went wrong.
    assert printable(f"{LONG}: File name too long", 100).endswith(": File name too long")
    assert len(printable(LONG, 101)) == 101


def test_what_is_written_is_made_anew(tmp_path, monkeypatch):
    """A link at a name that is known beforehand: its target is what a user wants to keep."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    kept.write_bytes(b"mine")
    out.mkdir()
    # Names that were taken once, and all names if the random part is known.
    monkeypatch.setattr("secrets.token_hex", lambda _: "0")
    names = [f".a.json.{os.getpid()}", ".a.parquet.new", ".a.json.0", ".a.parquet.0"]
    for name in names:
        (out / name).symlink_to(kept)
    with pytest.raises(FileExistsError, match=r"not written: a\.json"):
        write_files(out, {"a.json": b"new"})
    with pytest.warns(UserWarning, match="File exists"), ParquetWriter(out / "a.parquet") as writer:
        writer.write(1, {"x": 1})
    assert sorted(each.name for each in out.iterdir()) == sorted(names)
    monkeypatch.undo()
    # A link in the place of the file itself is replaced.
    (out / "a.json").symlink_to(kept)
    write_files(out, {"a.json": b"new"})
    with ParquetWriter(out / "a.parquet") as writer:
        writer.write(1, {"x": 1})
    assert (out / "a.json").read_bytes() == b"new"
    assert not (out / "a.json").is_symlink()
    assert sorted(each.name for each in out.iterdir()) == sorted([*names, "a.json", "a.parquet"])
    assert kept.read_bytes() == b"mine"
    # A name of as many letters as there can be has room.
    write_files(out, {"n" * 250: b"new"})


def test_a_lock_that_is_none(tmp_path):
    """A link to nothing, a folder, a pipe, which has no writer; and a process of any number."""
    lock = tmp_path / LOCK
    for make in (
        lambda: lock.symlink_to(tmp_path / "nothing"),
        lock.mkdir,
        lambda: os.mkfifo(lock),
    ):
        make()
        with pytest.raises(CheckpointError, match="is no lock of datarax: delete it"):
            check_not_held(tmp_path)
        with pytest.raises(CheckpointError, match="is no lock of datarax"), held(tmp_path):
            pass
        lock.rmdir() if lock.is_dir() else lock.unlink()
    with held(tmp_path):
        owner = json.loads(lock.read_text())
    for pid in (10**400, -1, [1], None, "1"):
        lock.write_text(json.dumps(owner | {"pid": pid}))
        with pytest.raises(CheckpointError, match="is being written by"), held(tmp_path):
            pass
    for text in ("[" * 100_000, "\x00", "\xff"):
        lock.write_bytes(text.encode("latin1"))
        with pytest.raises(CheckpointError, match="is being written by"), held(tmp_path):
            pass


@pytest.mark.parametrize("encoding", ["ascii", "latin1", "utf-8"])
def test_a_terminal_of_ascii_gets_a_plain_table(tmp_path, monkeypatch, encoding):
    path = tmp_path / "é±.csv"
    rows = "".join(f"{i},{i % 3},{'日本é'[i % 3] * (1 + 60 * (i % 2))}\n" for i in range(12))
    path.write_text(f"p,t,land\n{rows}", "utf-8")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding, errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    argv = ("evaluate", path, *TASK, "--slice-by", "land", "--bootstrap", 10, "--output")
    assert command(*argv, tmp_path / "öut") == 0
    assert stream.errors == "strict"
    shown = raw.getvalue().decode(encoding)
    plain = {"ascii": "\\xe9\\xb1.csv   regression - 12 rows", "latin1": "é±.csv   regression · 12"}
    assert plain.get(encoding, "é±.csv   regression · 12 rows") in shown
    assert ("\\u65e5" in shown) == (encoding != "utf-8")
    assert "mae" in shown
    assert ("─" in shown) == (encoding == "utf-8")
