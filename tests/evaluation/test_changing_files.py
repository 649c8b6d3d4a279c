"""A file that changes between the plan and the last row that is read is an error that names it."""

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datarax import MetricInputError
from datarax.evaluation import Progress, engine, fold
from datarax.evaluation.columns import feeds_of
from datarax.evaluation.files import tables_of
from datarax.evaluation.table_batches import batches
from datarax.metrics import Sum
from tests.evaluation.written import FORMATS, write

VALUES = {"values": "x"}
ROWS = 200_000


def replaced(path: Path, other: Path) -> None:
    """Another file takes the place of this one, and keeps its size and its time."""
    before = path.stat()
    shutil.copy(path, other)
    with other.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        end = file.read(40)
        file.seek(-40, os.SEEK_END)
        file.write(end[:-1] + bytes([end[-1] ^ 1]))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def appended(path: Path, other: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes()[-1000:])


def cut(path: Path, other: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewritten(path: Path, other: Path) -> None:
    """The same bytes, at a later time."""
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**7))


def removed(path: Path, other: Path) -> None:
    path.unlink()


CHANGES = (replaced, appended, cut, rewritten, removed)


def said(path: Path, change) -> str:
    what = "was removed" if change is removed else "has changed"
    return f"{path.as_posix()}: the file {what} while it was read"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_change_while_a_part_is_read(name, change, rng, tmp_path):
    path = write(tmp_path / f"a.{name}", {"x": rng.integers(0, 9, ROWS)}, rows=20_000)
    tables = tables_of(path)
    feeds, types = feeds_of(Sum(), VALUES, tables)
    (part,) = tables[0].parts
    read = batches(part, feeds, types, 1000)
    next(read)
    change(path, tmp_path / "other")
    with pytest.raises(MetricInputError) as caught:
        for _ in read:
            pass
    assert str(caught.value).startswith(said(path, change))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_plan(change, rng, tmp_path):
    """Also of a file that no part was read of yet."""
    paths = [write(tmp_path / f"{i}.npz", {"x": rng.integers(0, 9, 50)}) for i in range(2)]

    def progress(now: Progress) -> None:
        if len(now.done) == 1:
            change(paths[1], tmp_path / "other")

    with pytest.raises(MetricInputError) as caught:
        fold(paths, Sum(), VALUES, progress=progress)
    assert str(caught.value).startswith(said(paths[1], change))


def test_no_sum_of_two_files(tmp_path):
    """A part of one file and a part of the next one at its path have no sum."""
    rows = 2**21
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for file, value in ((path, 4), (other, 10)):
        pq.write_table(pa.table({"x": np.full(rows, value)}), file, row_group_size=rows // 2)
    said = r"a\.parquet: the file has changed while it was read"
    with ThreadPoolExecutor(1) as one, pytest.raises(MetricInputError, match=said):
        fold(
            *(path, Sum(), VALUES),
            executor=one,
            progress=lambda now: other.exists() and other.replace(path),
        )


def test_a_change_that_a_worker_of_another_process_meets(rng, tmp_path):
    paths = [write(tmp_path / f"{i}.npz", {"x": rng.integers(0, 9, 50)}) for i in range(30)]

    def progress(now: Progress) -> None:
        if len(now.done) == 1:
            replaced(paths[-1], tmp_path / "other")

    with engine("processes", workers=1) as pool, pytest.raises(MetricInputError) as caught:
        fold(paths, Sum(), VALUES, executor=pool, progress=progress)
    assert str(caught.value).startswith(said(paths[-1], replaced))


@pytest.mark.parametrize("change", [replaced, rewritten, removed])
def test_a_progress_of_files_that_have_changed_is_refused(change, rng, tmp_path):
    paths = [write(tmp_path / f"{i}.npz", {"x": rng.integers(0, 9, 50)}) for i in range(2)]
    steps: list[Progress] = []
    whole = fold(paths, Sum(), VALUES, progress=steps.append)
    assert fold(paths, Sum(), VALUES, start=steps[0]).metric.results() == whole.metric.results()
    change(paths[0], tmp_path / "other")
    found = paths if change is not removed else [write(tmp_path / "2.npz", {"x": [1]}), paths[1]]
    with pytest.raises(MetricInputError, match=r"start is of other files: .*0\.npz' (has|was) "):
        fold(found, Sum(), VALUES, start=steps[0])


def test_a_link_in_the_place_of_a_file_is_another_file(rng, tmp_path):
    """What is at the end of the link counts."""
    for name in "ab":
        write(tmp_path / f"{name}.csv", {"x": rng.integers(0, 9, 50)})
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "a.csv")
    (table,) = tables_of(link)
    link.unlink()
    link.symlink_to(tmp_path / "b.csv")
    feeds, types = feeds_of(Sum(), VALUES, [table])
    with pytest.raises(MetricInputError, match=r"link\.csv: the file has changed"):
        list(batches(table.parts[0], feeds, types, 10))


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    found: list[str] = []

    def read() -> None:
        try:
            fold(tmp_path / "a.csv", Sum(), VALUES)
        except MetricInputError as error:
            found.append(str(error))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert found
    assert "it is no regular file" in found[0]


WILD = """
import sys
import numpy as np, pyarrow as pa
from datarax.evaluation.columns import Encoded, feeds_as_they_are
from datarax.evaluation.files import tables_of
from datarax.evaluation.table_batches import batches
for path in sys.argv[1:]:
    try:
        tables = tables_of(path)
        feeds, types = feeds_as_they_are(Encoded({"x": "x"}), tables)
        for part in tables[0].parts:
            list(batches(part, feeds, types, 100))
        print("read", path)
    except ValueError as error:
        print(error)
"""


def test_arrow_files_whose_strings_and_lists_begin_at_wild_places(tmp_path):
    """They ended the process."""
    wild = np.array([0, 2**30, 6], np.int32)
    wide = np.array([0, 2**40, 6], np.int64)
    text, numbers = pa.py_buffer(b"abcdef"), pa.array(np.arange(6.0))
    indices = pa.array(np.array([10**6, 2**30], np.int32))
    columns = {
        "string": pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(wild), text]),
        "large": pa.Array.from_buffers(pa.large_string(), 2, [None, pa.py_buffer(wide), text]),
        "list": pa.Array.from_buffers(
            pa.list_(pa.float64()), 2, [None, pa.py_buffer(wild)], children=[numbers]
        ),
        "dictionary": pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False),
        "utf8": pa.Array.from_buffers(
            pa.string(),
            2,
            [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")],
        ),
    }
    paths = []
    for name, column in columns.items():
        for end, make in (("arrow", pa.ipc.new_file), ("arrows", pa.ipc.new_stream)):
            path = tmp_path / f"{name}.{end}"
            batch = pa.record_batch({"x": column, "other": pa.array([1, 2])})
            with pa.OSFile(str(path), "wb") as sink, make(sink, batch.schema) as writer:
                writer.write_batch(batch)
            paths.append(path.as_posix())
    done = subprocess.run(
        [sys.executable, "-c", WILD, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{path}: cannot be read: ")
    # A column that is not needed may be anything.
    batch = pa.record_batch({"x": pa.array([1.0, 2.0]), "other": columns["string"]})
    path = tmp_path / "unused.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert fold(path, Sum(), VALUES).metric.results() == 3
