"""Files that were cut, forged or linked: an error that names the file, and never fewer rows."""

import io
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from datarax import MetricInputError
from datarax.evaluation import files, fold, text_files
from datarax.evaluation.files import paths_of, tables_of
from datarax.metrics import Mean, Sum
from tests.evaluation.written import write

VALUES = {"values": "x"}


def rows(path):
    """How many rows are read."""
    return fold(path, Sum(), VALUES).rows


def refused(path):
    """The error of a file, after its name."""
    with pytest.raises(MetricInputError) as caught:
        rows(path)
    start = f"{path.as_posix()}: cannot be read: "
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(start)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_stream_ends_with_its_mark(tmp_path, legacy):
    """Also if a whole number of batches is left, or one column of several is read."""
    path, ends = tmp_path / "a.arrows", []
    table = pa.table({"x": np.arange(1000), "y": pa.array(["a", "b"] * 500).dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    with pa.OSFile(str(path), "wb") as sink:
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            for batch in table.to_batches(max_chunksize=500):
                writer.write_batch(batch)
                ends.append(sink.tell())
        ends.append(sink.tell())
    whole = path.read_bytes()
    assert rows(path) == 1000
    for end in ends[:2]:
        path.write_bytes(whole[:end])
        assert "no end mark: its writer was stopped" in refused(path)
    path.write_bytes(whole[: ends[1] + 3])
    refused(path)
    path.write_bytes(whole + whole)
    assert "bytes follow the end mark" in refused(path)
    empty = table.schema.empty_table()
    assert rows(write(path, empty)) == 0


def test_json_that_is_nested_deep(tmp_path):
    """Deeper than pyarrow reads ends the process; also in a column that nobody asks for."""
    path = tmp_path / "a.jsonl"
    for opening, closing in (("[", "]"), ('{"a": ', "}"), ('[1, {"b": ', "}]")):
        deep = opening * 10_000 + "1" + closing * 10_000
        for line in (f'{{"x": {deep}}}\n', f'{{"x": 1, "z": {deep}}}\n', f'{{"x": {deep}\n'):
            path.write_text('{"x": 1, "z": null}\n' * 10 + line)
            assert "nested more than 100 deep" in refused(path)
    path.write_text(
        "".join(f'{{"x": 1, "z": {"[" * k}"\\\\\\"[[{{"{"]" * k}}}\n' for k in (90, 90))
    )
    assert rows(path) == 2


def test_brackets_in_strings_are_no_nesting(tmp_path, monkeypatch):
    """In blocks of any size."""
    path = tmp_path / "a.jsonl"
    line = '{"x": [1, 2], "é\\\\": "[[{{", "b": "\\\\\\"", "c": {"d": "\\"]\\\\"}}\n'
    path.write_text(line * 300)
    for size in (70, 100, 1000, 10**6):
        monkeypatch.setattr(text_files, "_TEXT_BLOCK", size)
        assert rows(path) == 300
        assert len(tables_of(path)[0].types) == 5  # with "c.d"
    path.write_text('{"x": 1, "s": "' + "[" * 500 + '"}\n')
    assert rows(path) == 1


@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_goes_on_after_its_last_row(tmp_path, compressed):
    """A header with fewer rows, or with a smaller dtype, also of one of several arrays."""
    path, other = tmp_path / "a.npz", io.BytesIO()
    x = np.arange(50_000.0)
    np.save(other, x[:10])
    for shape, dtype in (((10_000,), "<f8"), ((50_000,), "<f4"), ((49_999,), "<f8"), ((0,), "<f8")):
        header = {"descr": dtype, "fortran_order": False, "shape": shape}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED * compressed) as archive:
            with archive.open("x.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, header)
                file.write(x.tobytes())
            archive.writestr("y.npy", other.getvalue())
        assert "the array 'x' goes on after the last row" in refused(path)
        assert fold(path, Mean(), {"values": "y"}).rows == 10
    for shape, dtype in (((3, 2), "<f8"), ((3, 5), "<f4")):
        header = {"descr": dtype, "fortran_order": True, "shape": shape}
        with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.write(bytes(8 * 9))
        refused(path)


def test_a_quote_that_is_not_closed(tmp_path):
    path = tmp_path / "a.csv"
    for text in (
        'x,y\n1,a\n2,"b\n3,c\n4,d\n',
        'x,y\n1,a\n2,"b""\n3,c\n4,d\n',
        'x,y\n1,"a"\n2,"b\n3,c\n4,d',
        'x,y\r\n1,a\r\n2,"b\r\n3,"c"\r\n',
        'x,y\n1,"a\n2,"b ""c"" d"\n3,"d"\n',
        'x,y\n1,5" disk\n2,"b\n',
        'x,y\n1,a\n2,"',
    ):
        path.write_bytes(text.encode())
        assert "a quote is not closed in the row" in refused(path), text
    for text, number in (
        ('x,y\n1,5" disk\n2,a "b\n3,"c"d\n', 3),
        ('x,"y"\n1,"a\n""b"",\n"\n2,""\n', 2),
        ('"x"\n1\n2\n"3"', 3),
    ):
        path.write_text(text)
        assert rows(path) == number, text


def test_quotes_at_the_edges_of_blocks(tmp_path, monkeypatch):
    """In any block, a quote that is not closed is an error, and rows are counted once."""
    monkeypatch.setattr(text_files, "_TEXT_BLOCK", 100)
    path = tmp_path / "a.csv"
    lines = [f'{i},"some ""text"" {i}"\n' for i in range(40)]
    path.write_text("x,y\n" + "".join(lines))
    assert rows(path) == 40
    for place in range(40):
        changed = [*lines]
        changed[place] = f'{place},"some text\n'
        for rest in (changed, [*changed[: place + 1], *(f"{i},b\n" for i in range(40 - place))]):
            path.write_text("x,y\n" + "".join(rest))
            assert "a quote is not closed in the row" in refused(path)


def test_quoted_line_breaks_at_the_edges_of_blocks(tmp_path, monkeypatch):
    """A block ends between two rows, also where the rows are in several lines."""
    path = tmp_path / "a.csv"
    for end in ("\n", "\r\n"):
        lines = [f'{i},"some{end}text, ""{i}""{end}"{end}' for i in range(40)]
        path.write_bytes(f"x,y{end}{''.join(lines)}".encode())
        for size in (40, 41, 47, 64, 100):
            monkeypatch.setattr(text_files, "_TEXT_BLOCK", size)
            assert rows(path) == 40
    path.write_text(f"x,y\n1,{'a' * 300}\n")
    assert "a row is longer than 100 bytes" in refused(path)


def test_links_to_one_file_are_read_once(tmp_path):
    path = write(tmp_path / "a.npz", {"x": np.arange(4)})
    write(tmp_path / "c.npz", {"x": np.arange(4)})  # another file with the same contents
    os.link(path, tmp_path / "b.npz")
    (tmp_path / "d.npz").symlink_to("b.npz")
    every = [str(tmp_path / f"{name}.npz") for name in "dbac"]
    assert len(paths_of(every)) == 2
    assert paths_of(every)[1] == every[3]
    for source in (tmp_path, f"{tmp_path}/*.npz", every):
        assert rows(source) == 8


def test_a_glob_enters_each_folder_once(tmp_path, monkeypatch):
    """Two links that lead upwards make as many paths as there are, each as long as the system
    allows; and a folder that is found by two paths is read once."""
    for folder in ("a", "a/b", "c", ".hidden"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "x.npz", {"x": np.arange(4)})
    (tmp_path / "to-c").symlink_to(tmp_path / "c")
    (tmp_path / "e[1]").mkdir()
    write(tmp_path / "e[1]" / "x.npz", {"x": np.arange(4)})
    direct = ["a/b/x.npz", "a/x.npz", "c/x.npz", "e[1]/x.npz"]

    def found(end):
        return sorted(path.removeprefix(f"{tmp_path}/") for path in paths_of(f"{tmp_path}/{end}"))

    (tmp_path / "up").symlink_to(tmp_path)
    entered = [os.path.realpath(folder) for folder in files._folders(tmp_path)]
    assert len(set(entered)) == len(entered)
    # With several loops, a folder that is entered again has no end.
    for link in ("a/up", "a/b/up", "c/up"):
        (tmp_path / link).symlink_to(tmp_path)
    for end in ("**/*.npz", "**/x.npz", "**", "**/**/*.npz", "**/./x*"):
        assert found(end) == direct, end
    monkeypatch.chdir(tmp_path)
    assert sorted(paths_of("**/*.npz")) == direct
    assert paths_of("a/**/b/*.npz") == ["a/b/x.npz"]


def test_paths_that_lead_nowhere(tmp_path):
    """Loops of links, names that are too long, and NUL, as files and as patterns."""
    for a, b in ("lm", "ml"):
        (tmp_path / f"{a}.npz").symlink_to(tmp_path / f"{b}.npz")
        (tmp_path / a).symlink_to(tmp_path / b)
    long = "n" * 5000
    sources = ["", long, f"{long}.npz", f"{tmp_path}/{'n' * 300}.csv", f"{long}*", "a\0.npz"]
    sources += [
        f"{tmp_path}/a\0/*.npz",
        tmp_path / "l.npz",
        tmp_path / "l",
        tmp_path / "l" / "a.csv",
    ]
    for source in [*sources, tmp_path, f"{tmp_path}/*.npz", f"{tmp_path}/**/*.npz"]:
        with pytest.raises(MetricInputError) as caught:
            rows(source)
        assert str(caught.value).count("n" * 4000) <= 1
