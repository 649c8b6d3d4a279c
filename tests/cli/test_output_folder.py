"""What is written to the folder of `--output`: all or nothing, and by one command at a time."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from datarax.cli import main
from datarax.evaluation.output_folder import LOCK, held
from tests.cli.evaluations import binary_columns, command, evaluated, refusal, write

TASK = (
    "--task", "binary", "--preds", "score", "--target", "label", "--metrics", "accuracy"
)  # fmt: skip


@contextmanager
def full_disk() -> Iterator[None]:
    """In this block, no file can grow beyond 200 bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_full_disk_keeps_the_table_and_the_earlier_report(rng, tmp_path, capsys):
    path, out = write(tmp_path / "a.parquet", binary_columns(rng)), tmp_path / "out"
    evaluated(out, path, *TASK)
    merged = ("merge", out, "--output", tmp_path / "all")
    assert command(*merged) == 0
    compared = ("compare", path, path, *TASK, "--bootstrap", 2, "--output", tmp_path / "pair")
    assert command(*compared) == 0
    for argv in (("evaluate", path, *TASK, "--output", out), merged, compared):
        folder = Path(argv[-1])
        before = contents(folder)
        capsys.readouterr()
        with full_disk(), pytest.raises(SystemExit) as stopped:
            command(*argv)
        assert stopped.value.code == 2
        shown, error = capsys.readouterr()
        assert "accuracy" in shown
        said = rf"datarax {argv[0]}: error: '{folder}': File too large; not written: (.*)\n"
        found = re.fullmatch(said, error)
        assert found, error
        assert set(found[1].split(", ")) == set(before)
        assert contents(folder) == before


def test_what_cannot_be_printed_is_written(rng, tmp_path):
    path, out = write(tmp_path / "a.parquet", binary_columns(rng)), tmp_path / "out"
    task = ("--task", "regression", "--preds", "score", "--target", "weight", "--metrics", "mae")
    argv = [sys.executable, "-m", "datarax.cli", "evaluate", str(path), *task, "--output", str(out)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert json.loads((out / "metrics.json").read_text())["source"]["complete"]


def test_a_run_that_left_nothing_is_resumed_from_its_start(tmp_path, capsys):
    """A job that always passes --resume starts, also in a folder that is not there."""
    path = tmp_path / "a.csv"
    path.write_text("score,label\n0.5,1\n0.25,0\n")
    comparison = ("compare", path, path, *TASK)
    for argv in (("evaluate", path, *TASK), comparison, comparison):
        out = tmp_path / argv[0]
        assert command(*argv, "--output", out, "--resume") == 0
        assert (out / "metrics.json").is_file()


def test_a_folder_in_the_place_of_a_file_is_said_before_anything_is_read(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("score,label\n0.5,1\n0.25,0\n")
    (tmp_path / "out" / "metrics.json").mkdir(parents=True)
    error = refusal(capsys, "evaluate", path, *TASK, "--output", tmp_path / "out")
    assert "metrics.json': is a folder, and a file is to be written there" in error
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["metrics.json"]


def test_a_folder_has_one_writer(rng, tmp_path, capsys):
    path, out = write(tmp_path / "a.parquet", binary_columns(rng)), tmp_path / "out"
    evaluated(out, path, *TASK)
    before = contents(out)
    code = f"""
import sys
from pathlib import Path
from datarax.evaluation.output_folder import held
with held(Path({str(out)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        capsys.readouterr()
        for argv in (("evaluate", path, *TASK, "--resume"), ("compare", path, path, *TASK)):
            error = refusal(capsys, *argv, "--output", out)
            assert f"'{out}' is being written by process {other.pid} on " in error
        for folder in (out, tmp_path / "all"):
            error = refusal(capsys, "merge", out, "--output", folder)
            assert f"'{out}' is being written by process {other.pid} on " in error
        other.kill()
        other.wait()
    # The lock is there, and its process is not.
    assert contents(out).keys() - before.keys() == {LOCK}
    evaluated(out, path, *TASK)
    assert contents(out).keys() == before.keys()


def test_locks_that_are_kept_and_that_are_taken_over(tmp_path):
    lock = tmp_path / LOCK
    with held(tmp_path):
        mine = json.loads(lock.read_text())
        assert (mine["host"], mine["pid"]) == (socket.gethostname(), os.getpid())
        with pytest.raises(ValueError, match="is being written by process"), held(tmp_path):
            pass
        assert json.loads(lock.read_text()) == mine
    assert not lock.exists()
    # Another machine, another start of the same number, what is no description, nothing.
    for changes, kept in (({"host": "elsewhere"}, True), ({"started": "0"}, False)):
        lock.write_text(json.dumps(mine | changes))
        if kept:
            with pytest.raises(ValueError, match="on elsewhere"), held(tmp_path):
                pass
        else:
            with held(tmp_path):
                assert json.loads(lock.read_text()) == mine
    for text in ("", "[]", "{", "{}"):
        lock.write_text(text)
        with pytest.raises(ValueError, match=r"by another process.*delete"), held(tmp_path):
            pass


def test_many_processes_take_over_one_lock(tmp_path):
    """Exactly one of those that find the lock of a dead process holds the folder."""
    # One process imports datarax, and then becomes four.
    code = f"""
import multiprocessing
from pathlib import Path
from datarax.evaluation.output_folder import held

def hold(together, found):
    together.wait()
    try:
        with held(Path({str(tmp_path)!r})):
            found.put("held")
            together.wait()
    except ValueError:
        found.put("refused")
        together.wait()

start = multiprocessing.get_context("fork")
together, found = start.Barrier(4, timeout=60), start.SimpleQueue()
others = [start.Process(target=hold, args=(together, found)) for _ in range(4)]
for other in others:
    other.start()
print(*sorted(found.get() for _ in others))
for other in others:
    other.join()
"""
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True
    )
    owner = {"host": socket.gethostname(), "pid": int(dead.stdout), "started": "1"}
    (tmp_path / LOCK).write_text(json.dumps(owner))
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["held", *["refused"] * 3]
    assert not (tmp_path / LOCK).exists()


def test_results_are_only_replaced_where_that_is_asked_for(tmp_path, capsys):
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_text("score,label\n0.5,1\n0.25,0\n")
    merged = ["merge", str(out), "--output", str(tmp_path / "all")]
    out.mkdir()  # an empty folder holds nothing
    for name, files in (("evaluate", [path]), ("compare", [path, path])):
        argv = [name, *map(str, files), *TASK, "--output", str(out), "--no-progress"]
        assert main([*argv, "--overwrite"] if name == "compare" else argv) == 0
        before = contents(out)
        for kept, said in (
            ((), "--resume reads no file again, --overwrite replaces them"),
            (("--resume", "--overwrite"), "--overwrite: not with --resume"),
        ):
            with pytest.raises(SystemExit) as stopped:
                main([*argv, *kept])
            assert stopped.value.code == 2
            assert said in capsys.readouterr().err
        assert contents(out) == before
        if name == "evaluate":
            assert main(merged) == 0
            with pytest.raises(SystemExit) as stopped:
                main(merged)
            assert "holds results, state.npz: --overwrite replaces" in capsys.readouterr().err
            assert main([*merged, "--overwrite"]) == 0
    # A state is not deleted because --resume was forgotten.
    (out / "partial.npz").write_bytes(b"so far")
    with pytest.raises(SystemExit):
        main(argv)
    said = "holds an evaluation that was stopped, partial.npz: --resume continues it, --overwrite"
    assert said in capsys.readouterr().err
    assert (out / "partial.npz").read_bytes() == b"so far"
    assert main([*argv, "--overwrite"]) == 0
    assert not (out / "partial.npz").exists()
