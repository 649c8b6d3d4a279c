"""Compressed text, `.tsv`, `.json`, folders as columns, URIs: the numbers of one Parquet file."""

import bz2
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from pyarrow.dataset import write_dataset

import datarax
from datarax import MetricInputError
from datarax.cli import main
from datarax.evaluation import Columns, engine, fold
from datarax.evaluation.files import tables_of
from datarax.evaluation.json_arrays import lines_of_array
from datarax.evaluation.locations import found_at, name_of, read_pieces
from datarax.metrics import AUROC, Accuracy, LogLoss, Mean, Sum
from tests.evaluation.test_changing_files import appended, cut, removed, replaced, rewritten, said
from tests.evaluation.written import binary, write

BINARY = {"preds": "score", "target": "label"}
THREE = {"accuracy": Accuracy(), "auroc": AUROC(), "log_loss": LogLoss()}
VALUES = {"values": "x"}
PACK = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
ROWS = b"x\n" + b"".join(b"%d\n" % i for i in range(100_000))


def message(*args, **options) -> str:
    with pytest.raises(MetricInputError) as caught:
        fold(*args, **options)
    return str(caught.value)


def written(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """One table in each format; floats have few digits, so that text holds them exactly."""
    folder = tmp_path_factory.mktemp("sources")
    rng = np.random.default_rng()
    score = rng.integers(0, 1000, 3000) / 1000
    label = (rng.random(3000) < score).astype(np.int64)
    table = pa.table({"score": score, "label": label, "note": ['a,"b"]}{[\\'] * 3000})
    rows = [json.dumps(row) for row in table.to_pylist()]
    pyarrow.csv.write_csv(table, folder / "a.csv")
    pyarrow.csv.write_csv(
        table, folder / "a.tsv", pyarrow.csv.WriteOptions(delimiter="\t", quoting_style="needed")
    )
    (folder / "a.jsonl").write_text("\n".join(rows))
    (folder / "a.json").write_text(f"[{','.join(rows)}]")
    (folder / "indented.json").write_text(json.dumps(table.to_pylist(), indent=2))
    for path in sorted(folder.iterdir()):
        for end, pack in PACK.items():
            (folder / f"{path.name}.{end}").write_bytes(pack(path.read_bytes()))
    write(folder / "a.parquet", table, rows=3000)
    return {path.name: path for path in folder.iterdir()}


def test_every_format_has_the_numbers_of_one_parquet_file(files):
    expected = datarax.evaluate(files["a.parquet"], THREE, columns=BINARY).results()
    assert len(files) == 21
    for path in files.values():
        assert datarax.evaluate(path, THREE, columns=BINARY).results() == expected, path.name
    uri = f"file://{files['a.csv.gz'].as_posix()}"
    assert datarax.evaluate(uri, THREE, columns=BINARY).results() == expected
    assert datarax.evaluate(f"{uri[:-6]}*.bz2", THREE, columns=BINARY)["accuracy"].compute() > 0


def test_the_command_reads_them(files, capsys):
    for name in ("a.tsv.zst", "indented.json.gz"):
        arguments = ["--task", "binary", "--preds", "score", "--target", "label"]
        uri = f"file://{files[name].as_posix()}"
        assert main(["evaluate", uri, *arguments, "--metrics", "accuracy"]) == 0
        assert "3,000 rows" in capsys.readouterr().out


def test_several_processes_read_them(files):
    paths = [files[name] for name in ("a.json.gz", "a.tsv.bz2", "a.parquet", "a.jsonl.zst")]
    expected = datarax.evaluate(paths, THREE, columns=BINARY).results()
    with engine("processes", workers=2) as pool:
        assert datarax.evaluate(paths, THREE, columns=BINARY, executor=pool).results() == expected


@pytest.mark.parametrize("end", PACK)
def test_damaged_compressed_files(end, tmp_path):
    packed = PACK[end](ROWS)
    path = written(tmp_path / f"a.csv.{end}", packed + PACK[end](ROWS[2:]))
    assert fold(path, Sum(), VALUES).metric.results() == 100_000 * 99_999  # two in one
    for data in (packed[:-5], packed[: len(packed) // 2], packed + b"garbage", ROWS):
        written(path, data)
        assert message(path, Sum(), VALUES).startswith(f"{path.as_posix()}: cannot be read: it is ")
    for nothing in (b"", PACK[end](b"")):
        written(path, nothing)
        assert message(path, Sum(), VALUES) == f"{path.as_posix()}: the file is empty"
    plain = written(tmp_path / "a.csv", packed)
    assert f"it is compressed: let its name end in .{end}" in message(plain, Sum(), VALUES)


def test_compressed_files_are_read_in_pieces(tmp_path):
    """As a gigabyte of one letter is a megabyte of gzip."""
    path = written(tmp_path / "a.csv.gz", gzip.compress(bytes(2**26)))
    assert path.stat().st_size < 2**17
    assert {len(piece) for piece in read_pieces(path.as_posix(), 2**20)} == {2**20}


GOOD = {
    '[{"x": 1}, {"x": 2}]': 3,
    ' [\n{"x":\n1,"s":"]},[{\\\\\\"\\\\"}\n,\n{"s":"é\\u00e9","x":2}\n]\n': 3,
    '[{"y": {"x": [[7], {"x": 8}]}}, {"x": 2}]': 2,
    '\ufeff[{"x": 5}]': 5,
    '[{"x": 1}, {}, {"x": null}]': 1,
}
BAD = {
    '{"x": 1}': "it begins with '{\"x\": 1}'; expected an array of objects",
    '{"x": 1}\n{"x": 2}\n': "a file with an object in each line ends in .jsonl",
    '"x"': "expected an array of objects",
    "\n ": "it holds nothing",
    '[[{"x": 1}]]': "element 1 of the array is '[{\"x\": 1}]'; expected an object",
    "[1, 2]": "element 1 of the array is '1'",
    '[{"x": 1}, null]': "element 2 of the array is 'null'",
    '[{"x": 1},]': "element 2 of the array is nothing",
    '[{"x": 1}{"x": 2}]': "a comma is missing",
    '[{"x": 1} 7, {"x": 3}]': "JSON parse error",
    '[{"x": 1}, {"x": 2}': "the file was cut after object 1",
    '[{"x": 1}] {"x": 2}': "after the end of the array follows '{\"x\": 2}'",
    '[{"x": 1}}': "a brace closes what no brace opens",
    '[{"x": 1, "s": "a\nb"}]': "a string holds a line break",
    f'[{{"x": 1, "y": {"[" * 3000}{"]" * 3000}}}]': "nested more than 100 deep",
    '[{"x": 1, "x": 2}]': "twice",
}


def test_arrays_of_json(tmp_path):
    path = tmp_path / "a.json"
    for text, total in GOOD.items():
        assert fold(written(path, text), Sum(), VALUES).metric.results() == total, text
        # However the text is cut into pieces.
        data = text.removeprefix("\ufeff").encode()
        whole = b"".join(lines_of_array(iter([data]), 1000))
        for size in (1, 2, 3, 7):
            cuts = (data[i : i + size] for i in range(0, len(data), size))
            assert b"".join(lines_of_array(cuts, 1000)).split() == whole.split()
    for text, fault in BAD.items():
        found = message(written(path, text), Sum(), VALUES)
        assert found.startswith(f"{path.as_posix()}: "), text
        assert fault in found, text
    assert "the file is empty" in message(written(path, "[]"), Sum(), VALUES)
    lines = written(tmp_path / "a.jsonl", '[{"x": 1}]\n')
    assert "an array of objects ends in .json" in message(lines, Sum(), VALUES)
    utf16 = written(path, '[{"x": 5}]'.encode("utf-16"))
    assert "give --encoding utf-16" in message(utf16, Sum(), VALUES)
    assert fold(utf16, Sum(), VALUES, encoding="utf-16").metric.results() == 5


def test_an_array_of_json_in_one_long_line(tmp_path):
    """Longer than a block, with an object that is cut by its end; one object may not be so long."""
    note = '\\"]},é' * 20
    text = "[" + ",".join(f'{{"x": {i}, "note": "{note}"}}' for i in range(80_000)) + "]"
    assert len(text) > 2**23
    assert fold(written(tmp_path / "a.json", text), Mean(), VALUES).metric.results() == 39999.5
    with pytest.raises(ValueError, match="object 2 of the array is longer than 100 bytes"):
        list(lines_of_array(iter([b'[{"x": 1}, {"x": "' + b"a" * 200]), 100))


def test_rows_of_errors_count_the_objects(tmp_path):
    path = written(tmp_path / "a.json", '[{"p": "a", "t": "b"},\n\n {"p": ["a", "b"], "t": "c"}]')
    with pytest.raises(datarax.DataraxError, match=r"row 2: .*'p' holds a list of 2"):
        fold(path, datarax.metrics.WER(), {"preds": "p", "target": "t"})


def test_a_delimiter_that_is_given_counts_for_tsv_too(tmp_path):
    path = written(tmp_path / "a.tsv", "x;y\n1;2\n")
    assert fold(path, Sum(), VALUES, delimiter=";").metric.results() == 1
    assert "there is no column 'x'" in message(path, Sum(), VALUES)


@pytest.mark.parametrize("name", ["csv", "jsonl", "parquet", "arrow", "npz"])
def test_folders_are_columns(name, tmp_path):
    """The column of a folder alone, too: its rows are counted by another column."""
    for country, month, x in (("de", "01", 1.0), ("de", "02", 2.0), ("f r", "02", 4.0)):
        folder = tmp_path / "data" / f"country={country.replace(' ', '%20')}" / f"month={month}"
        for year in (3, 4):
            (folder / f"year={year}").mkdir(parents=True)
            write(folder / f"year={year}" / f"a.{name}", {"x": np.full(year, x)})
    data = tmp_path / "data"
    assert fold(data, Sum(), VALUES).metric.results() == 49
    assert fold(f"{data}/**/*.{name}", Sum(), {"values": "year"}).metric.results() == 3 * 25
    columns = Columns({"values": "x", "slices": "country"}, classes={"slices": ["de", "f r"]})
    sliced = fold(data, datarax.Sliced(Sum(), 2, names=("de", "f r")), columns).metric.results()
    assert sliced == {"overall": 49, "de": 21, "f r": 28}
    both = Columns(
        {"preds": "month", "target": "month"}, classes={name: ["01", "02"] for name in BINARY}
    )
    assert fold(data, Accuracy(num_classes=2), both).metric.results() == 1
    # A glob over names of columns stands for columns of the files.
    assert fold(data, Sum(), {"values": ["*"]}).metric.results() == 49


def test_the_command_slices_by_folders(tmp_path, capsys):
    for country in ("de", "fr"):
        data = binary(np.random.default_rng(0), 50)
        folder = tmp_path / f"country={country}"
        folder.mkdir()
        write(folder / "a.csv", data)
    (tmp_path / "metrics.json").write_text("{}")  # settings and results beside data are no data
    arguments = ["--task", "binary", "--preds", "score", "--target", "label"]
    more = ["--metrics", "accuracy", "--slice-by", "country"]
    assert main(["evaluate", str(tmp_path), *arguments, *more]) == 0
    out = capsys.readouterr().out
    assert " de " in out
    assert " fr " in out


def test_folders_that_do_not_agree(tmp_path):
    values = {"values": "k"}
    for k in (1, 2):
        written(tmp_path / "a" / f"k={k}" / "a.jsonl", f'{{"x": 1, "k": {k}}}\n')
    assert fold(tmp_path / "a", Mean(), values).metric.results() == 1.5
    path = written(tmp_path / "a" / "k=2" / "a.jsonl", '{"x": 1, "k": 3}\n')
    assert message(tmp_path / "a", Mean(), values) == (
        f"{path.as_posix()}: the column 'k' of the file holds 3, and its folder says k=2; rename "
        f"the column or the folder"
    )
    assert fold(tmp_path / "a", Mean(), VALUES).rows == 2  # it is not needed
    for k in ("1", "__HIVE_DEFAULT_PARTITION__"):
        written(tmp_path / "b" / f"k={k}" / "a.csv", "x\n1\n")
    found = fold(tmp_path / "b", Mean(), values)
    assert (found.metric.results(), found.excluded) == (1, {"k": 1})
    path = written(tmp_path / "b" / "c.csv", "x\n1\n")
    assert message(tmp_path / "b", Mean(), values).startswith(f"{path.as_posix()}: there is no c")
    written(tmp_path / "c" / "k=1" / "k=2" / "a.csv", "x\n1\n")
    assert "several columns have the name 'k'" in message(tmp_path / "c", Mean(), values)


def test_folders_of_other_writers(tmp_path):
    frame = {"x": [1.0, 2.0, 4.0], "k": ["a", "b", "b"]}
    pd.DataFrame(frame).to_parquet(tmp_path / "pandas", partition_cols=["k"])
    (tmp_path / "polars").mkdir()
    pl.DataFrame(frame).write_parquet(tmp_path / "polars", partition_by="k")
    write_dataset(
        pa.table(frame), tmp_path / "arrow", format="csv", partitioning=["k"],
        partitioning_flavor="hive",
    )  # fmt: skip
    columns = Columns({"values": "x", "slices": "k"}, classes={"slices": ["a", "b"]})
    for name in ("pandas", "polars", "arrow"):
        found = fold(tmp_path / name, datarax.Sliced(Sum(), 2), columns).metric.results()
        assert found == {"overall": 7, "0": 1, "1": 6}, name


def test_json_in_a_folder(tmp_path):
    """Beside other data, it holds settings."""
    written(tmp_path / "a.json", '[{"x": 1}]')
    assert fold(tmp_path, Sum(), VALUES).metric.results() == 1
    written(tmp_path / "b.csv", "x\n2\n")
    assert fold(tmp_path, Sum(), VALUES).metric.results() == 2
    assert fold(f"{tmp_path}/*.json", Sum(), VALUES).metric.results() == 1


def test_uris(tmp_path):
    written(tmp_path / "a b.csv", "x\n1\n")
    uri = f"file://{tmp_path.as_posix()}"
    for source in (f"{uri}/a b.csv", f"{uri}/a%20b.csv", f"{uri}/*.csv", uri, [f"{uri}/a b.csv"]):
        assert fold(source, Sum(), VALUES).metric.results() == 1
    assert "names the machine 'there'" in message("file://there/a.csv", Sum(), VALUES)
    for source in ("http://x/a.csv", "https://x/a.csv", "what://x/a.csv"):
        assert "is not read; expected s3://, gs://" in message(source, Sum(), VALUES)
    for source in ("s3://me:it@b/a.csv", "abfs://c@b/a.csv?client_secret=it", "s3://b/?token=it"):
        assert "it" not in message(source, Sum(), VALUES).split(": ")[0]
        assert "holds a secret" in message(source, Sum(), VALUES)
    assert "give a URI as a str" in message(Path("s3://b/a.csv"), Sum(), VALUES)
    # pyarrow.fs knows this one; each has no files.
    assert message("mock:///a.csv", Sum(), VALUES) == "mock:///a.csv: there is no such file"
    assert name_of("s3://b/c/a.csv.gz?region=x") == "a.csv.gz"
    assert found_at("mock:///**/*.csv") == ([], False)


@pytest.mark.parametrize("change", [replaced, appended, cut, rewritten, removed])
def test_a_compressed_file_changes_while_it_is_read(change, rng, tmp_path):
    paths = [
        written(
            tmp_path / f"k={i}" / "a.json.gz",
            gzip.compress(b'[{"x": 1, "note": "0123456789abcdef"}]'),
        )
        for i in range(2)
    ]

    def progress(now) -> None:
        if len(now.done) == 1:
            change(paths[1], tmp_path / "other")

    assert message(paths, Sum(), VALUES, progress=progress).startswith(said(paths[1], change))


def test_types_are_found_without_reading_all(files):
    (table,) = tables_of(files["a.json.gz"])
    kinds = {name: found.kind for name, found in table.types.items()}
    assert kinds == {"score": "float", "label": "integer", "note": "text"}
