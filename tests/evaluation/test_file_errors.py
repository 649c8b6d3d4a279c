"""Files that cannot be read, and sources and columns that do not fit: one line that says which."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datarax
from datarax import MetricInputError
from datarax.evaluation import Columns, fold
from datarax.evaluation.partial_state import read_ahead
from datarax.metrics import Accuracy, LogLoss, Mean
from tests.evaluation.written import FORMATS, binary, write

BINARY = {"preds": "score", "target": "label"}


def message(source, metric=None, columns=BINARY, **options) -> str:
    """The error of an evaluation, which must be one line."""
    with pytest.raises(MetricInputError) as caught:
        fold(source, Accuracy() if metric is None else metric, columns, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.__cause__ is None
    return text


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_named(name, rng, tmp_path):
    path = write(tmp_path / f"whole.{name}", binary(rng, 2000), rows=500)
    raw = path.read_bytes()
    damaged = tmp_path / f"damaged.{name}"
    damaged.write_bytes(b"")
    assert message(damaged) == f"{damaged.as_posix()}: the file is empty"
    damaged.write_bytes(rng.bytes(3000).replace(b"\n", b"") + b'"\n{')
    assert message(damaged).startswith(f"{damaged.as_posix()}: ")
    if name in ("csv", "jsonl"):
        line = raw.splitlines(keepends=True)
        broken = b"1,2,3,4\n" if name == "csv" else b'{"score": 0.5, "label": {"a": 1}}\n'
        damaged.write_bytes(b"".join([*line[:1500], broken, *line[1500:]]))
    else:
        damaged.write_bytes(raw[: len(raw) // 2])
    # A row of JSON of another type is no damage: its column is named.
    other = "the column 'label' " if name == "jsonl" else "cannot be read: "
    assert message(damaged).startswith(f"{damaged.as_posix()}: {other}")


def test_a_page_that_is_damaged_is_found_in_its_part(rng, tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(binary(rng, 2000)), path, row_group_size=500, write_page_checksum=True)
    raw = bytearray(path.read_bytes())
    raw[200:1500] = rng.bytes(1300)
    path.write_bytes(raw)
    assert message(path).startswith(f"{path.as_posix()}: cannot be read: ")
    with ThreadPoolExecutor(1) as pool:
        assert message(path, executor=pool).startswith(f"{path.as_posix()}: cannot be read: ")


class Payload:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.environ["DATARAX_TEST_PAYLOAD"],)


def test_nothing_that_is_read_runs_code(tmp_path, monkeypatch):
    trap = tmp_path / "ran"
    monkeypatch.setenv("DATARAX_TEST_PAYLOAD", str(trap))
    objects = np.empty(2, object)
    objects[:] = Payload()
    path = tmp_path / "a.npz"
    np.savez(path, score=objects, label=np.arange(2))
    assert "'score'" in message(path)
    assert "object" in message(path)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Payload()))
    message(tmp_path / "b.npz")
    assert not trap.exists()


def test_sources_that_have_no_files(tmp_path):
    assert message(tmp_path / "no.parquet").endswith("no.parquet: there is no such file")
    assert message(f"{tmp_path}/*.csv").endswith("*.csv: there is no such file")
    assert "the folder has no file of .parquet" in message(tmp_path)
    assert "empty list" in message([])
    assert "int" in message([1])
    (tmp_path / "a.xlsx").write_text("x")
    assert "a.xlsx: its format is not known; expected one of .parquet" in message(
        tmp_path / "a.xlsx"
    )


def test_columns_that_do_not_fit(rng, tmp_path):
    data = binary(rng, 20)
    path = write(tmp_path / "a.parquet", data)
    start = f"{path.as_posix()}: there is no column "
    assert message(path, columns={"preds": "scores", "target": "label"}) == (
        f"{start}'scores' for the output 'preds'; did you mean 'score'?"
    )
    assert message(path, columns={}).startswith(f"{start}'preds' for the output 'preds'; there are")
    assert message(path, columns=BINARY | {"preds": "logit_*"}).startswith(f"{start}'logit_*'")
    assert "no metric takes the output 'pred'; did you mean 'preds'?" in message(
        path, columns={"pred": "score"}
    )
    assert "empty list" in message(path, columns=BINARY | {"preds": []})
    assert "expected a name, a glob" in message(path, columns=BINARY | {"preds": [1]})
    assert "holds no strings" in message(path, columns=Columns(BINARY, {"target": ["a", "b"]}))
    assert "none of its columns feeds" in message(path, datarax.Compare(Accuracy()), columns=None)
    dates = data | {"label": pa.array(np.arange(20, dtype=np.int32), pa.date32())}
    assert "the type date32" in message(write(tmp_path / "b.parquet", dates))
    ragged = data | {"score": [[0.5] * (1 + i % 2) for i in range(20)]}
    assert "lists of 1 to 2 values" in message(write(tmp_path / "c.parquet", ragged))
    words = write(tmp_path / "d.parquet", data | {"label": list("ab" * 10)})
    assert "holds strings, and Accuracy takes numbers" in message(words)
    # The metric's own errors have the name of the file.
    with pytest.raises(datarax.MetricTypeError, match=r"a\.parquet: preds has shape"):
        fold(path, Accuracy(num_classes=3), BINARY)


def test_files_of_one_source_that_differ(rng, tmp_path):
    data = binary(rng, 20)
    first = write(tmp_path / "a.parquet", data)
    other = write(tmp_path / "b.parquet", data | {"label": list("ab" * 10)})
    assert message([first, other]) == (
        f"{other.as_posix()}: the column 'label' has the type string, and in {first.as_posix()} "
        f"int64; expected the same in all files"
    )
    del data["label"]
    third = write(tmp_path / "c.parquet", data)
    assert message([first, third]).startswith(f"{third.as_posix()}: there is no column 'label'")


def test_no_column_is_left_out_in_silence(rng, tmp_path):
    data = binary(rng, 20)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    logits = {f"logit_{i}": rng.random(20) for i in range(3)}
    write(paths[0], logits | data)
    write(paths[1], logits | data | {"logit_10": data["score"], "logit_3": data["score"]})
    columns = {"preds": "logit_*", "target": "label"}
    assert message(paths, Accuracy(num_classes=3), columns) == (
        f"{paths[1].as_posix()}: the column 'logit_3' is one of 'logit_*', and "
        f"{paths[0].as_posix()} has no such column; expected the same in all files"
    )
    assert message(paths[::-1], Accuracy(num_classes=5), columns).startswith(
        f"{paths[0].as_posix()}: there is no column 'logit_3'"
    )
    # An optional output that only a later file has.
    write(paths[1], data | {"weights": data["score"]})
    assert message(paths).startswith(f"{paths[0].as_posix()}: there is no column 'weights'")
    assert fold(paths, Accuracy(), BINARY | {"weights": None}).rows == 40


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_that_several_columns_have(name, rng, tmp_path):
    path = tmp_path / f"a.{name}"
    arrays = [pa.array(rng.random(5)), pa.array(rng.integers(0, 2, 5)), pa.array(rng.random(5))]
    for names, doubled in ((["score", "label", "score"], True), (["score", "label", "z"], False)):
        if name == "npz":
            with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the double name
                for each, array in zip(names, arrays, strict=True):
                    with archive.open(f"{each}.npy", "w") as file:
                        np.save(file, array.to_numpy())
        elif name == "jsonl":
            rows = zip(*(array.to_pylist() for array in arrays), strict=True)
            lines = (
                ", ".join(f'"{n}": {x}' for n, x in zip(names, row, strict=True)) for row in rows
            )
            path.write_text("".join(f"{{{line}}}\n" for line in lines))
        else:
            write(path, pa.Table.from_arrays(arrays, names))
        if doubled:
            error = message(path)
            assert error.startswith(f"{path.as_posix()}: ")
            assert "several columns have the name 'score'" in error or "twice" in error
        else:
            assert fold(path, Accuracy(), BINARY).rows == 5
    # One that is not needed does not matter, but in JSON.
    if name not in ("npz", "jsonl"):
        write(path, pa.Table.from_arrays([*arrays, arrays[2]], ["score", "label", "z", "z"]))
        assert fold(path, Accuracy(), BINARY).rows == 5


def test_no_file_of_a_folder_is_left_out_in_silence(rng, tmp_path):
    data = binary(rng, 20)
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    write(folder / "a.csv", data)
    (folder / "notes.txt.gz").write_bytes(b"")
    (folder / ".b.csv.gz").write_bytes(b"")
    assert fold(folder, Accuracy(), BINARY).rows == 20
    for name, end in (("b.csv.xz", ".csv.xz"), ("deep/c.NPZ.zst", ".npz.zst")):
        packed = folder / name
        packed.write_bytes(b"")
        assert message(folder).startswith(
            f"{packed}: a file that ends in {end} is not read; decompress it, or name the files to"
        )
        packed.unlink()
    for name in ("b.tab", "deep/c.XLSX", "d.orc", "e.npy"):
        unread = folder / name
        unread.write_bytes(b"")
        assert message(folder).startswith(f"{unread}: a file that ends in {unread.suffix.lower()} ")
        assert message(folder).endswith(f"by a glob: '{folder}/**/*.csv'")
        unread.unlink()
    (folder / "notes.md").write_bytes(b"")  # no data
    assert fold(folder, Accuracy(), BINARY).rows == 20
    (folder / "b.csv.xz").write_bytes(b"")
    assert "b.csv.xz: its format is not known" in message(f"{folder}/*csv*")
    assert fold(f"{folder}/*.csv", Accuracy(), BINARY).rows == 20
    (folder / "b.csv.xz").unlink()

    # Links: to nothing, to a folder, to the folder that it is in.
    (folder / "e.csv").symlink_to(tmp_path / "nothing.csv")
    for source in (folder, f"{folder}/*.csv", f"{folder}/**/*.csv"):
        assert message(source) == f"{(folder / 'e.csv').as_posix()}: there is no such file"
    (folder / "e.csv").unlink()
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "f.csv", data)
    (folder / "deep" / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "deep" / "again").symlink_to(folder)
    (folder / "latest.csv").symlink_to(folder / "a.csv")
    assert fold(folder, Accuracy(), BINARY).rows == 40


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        ((-5,), "<f8", "cannot be read: an array has the shape (-5,)"),
        ((-5, -2), "<f8", "cannot be read: an array has the shape (-5, -2)"),
        ((10**18,), "<f8", "cannot be read: the archive ends in the middle of an array"),
        ((2**32, 2**32), "<f8", "cannot be read: the archive ends in the middle of an array"),
        ((10**18, 0), "<f8", "has the type float64[1000000000000000000, 0]"),
        ((10**18,), "<U0", "has the type <U0[1000000000000000000]"),
    ],
)
def test_an_array_that_says_that_it_has_other_rows(shape, dtype, said, tmp_path):
    path = tmp_path / "a.npz"
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(80))
    error = message(path, Mean(), {"values": "x"})
    assert error.startswith(f"{path.as_posix()}: ")
    assert said in error


def test_an_array_that_says_that_it_is_larger_than_memory(tmp_path):
    path = tmp_path / "a.arrow"
    table, options = pa.table({"x": np.zeros(1000)}), pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as to,
    ):
        to.write_table(table)
    length, wrong = (size.to_bytes(8, "little") for size in (8000, 2**55))
    path.write_bytes(path.read_bytes().replace(length, wrong))
    with pytest.raises(
        MemoryError, match=r"a\.arrow: there is no memory to read it, or it is dama"
    ):
        fold(path, Mean(), {"values": "x"})


def test_strings_that_are_no_text(tmp_path):
    path = tmp_path / "a.parquet"
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    write(path, {"label": text, "score": [0.5]})
    columns = Columns(BINARY, {"target": ["a", "b"]})
    assert message(path, columns=columns).startswith(f"{path.as_posix()}: cannot be read: 'utf-8'")


def test_a_csv_that_turns_to_other_values_later(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("score,label\n" + "1,1\n" * 2_500_000 + "often,1\n")
    assert message(path).startswith(
        f"{path.as_posix()}: cannot be read: the column 'score' has the value 'often' in row "
        f"2,500,001; expected a number"
    )


def test_metrics_that_cannot_be_folded(rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary(rng, 20))
    for metric in (
        datarax.Window(Accuracy(), 3),
        datarax.Best(Accuracy()),
        datarax.Decayed(Accuracy(), 2.0),
        datarax.Collection({"a": Accuracy(), "w": datarax.Window(Accuracy(), 3)}),
    ):
        assert "depends on the order of updates" in message(path, metric)
    mesh = jax.make_mesh((8,), ("data",))
    assert "plain metric" in message(path, datarax.per_device(Accuracy(), mesh, "data"))
    assert "has data" in message(path, Mean().update(1.0), {"values": "score"})
    with pytest.raises(datarax.MetricTypeError, match=r"expected a datarax\.Metric or a dict"):
        datarax.evaluate(path, "accuracy")
    assert "batch_size=0" in message(path, batch_size=0)


class Demanding(datarax.Metric):
    """Fails when it is updated, with an error that is not datarax's."""

    total = datarax.MetricAccumulator(0.0)

    def update(self, values):
        return self.replace(total=self.total.update(jnp.reshape(values, (7, -1))))

    def compute(self):
        return self.total.value


@pytest.mark.parametrize("threads", [0, 1])
def test_other_errors_have_a_note_with_the_file(threads, rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary(rng, 20))
    pool = ThreadPoolExecutor(threads) if threads else None
    with pytest.raises(ValueError, match="reshape") as caught:
        fold(path, Demanding(), {"values": "score"}, executor=pool)
    assert any(path.as_posix() in note for note in caught.value.__notes__)
    if pool:
        pool.shutdown()


class Dying(Executor):
    """Whatever it runs ends its worker."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        future.set_exception(RuntimeError("terminated abruptly\nand more"))
        return future


def test_a_worker_that_dies_names_the_file(rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary(rng, 20))
    with pytest.raises(datarax.EvaluationError) as caught:
        fold(path, Accuracy(), BINARY, executor=Dying())
    assert str(caught.value) == (
        f"{path.as_posix()}: its worker died, or could not be reached: terminated abruptly"
    )


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # which JAX gives
def test_a_pool_that_forks_is_refused(rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary(rng, 20))
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    assert "forks its processes" in message(path, executor=pool)
    pool.shutdown()


def test_reading_ahead_passes_errors_on_and_ends_with_its_reader():
    made = []

    def items():
        try:
            for i in range(100):
                made.append(i)
                yield i
        finally:
            made.append("closed")

    ahead = read_ahead(items(), depth=2)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    ahead.close()
    assert made[-1] == "closed"
    assert len(made) <= 8  # three taken, two waiting, one in the making

    def broken():
        yield 1
        raise ValueError("broken")

    ahead = read_ahead(broken())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    end = time.monotonic() + 30
    while [each for each in threading.enumerate() if each.name == "datarax-read-ahead"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_npz_needs_no_pyarrow_and_others_say_which_extra(rng, tmp_path):
    for name in ("a.npz", "a.csv"):
        write(tmp_path / name, binary(rng, 20))
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError("refused")
sys.meta_path.insert(0, Refuse())
import datarax
from datarax.metrics import Accuracy
columns = {BINARY!r}
print(datarax.evaluate({str(tmp_path / "a.npz")!r}, Accuracy(), columns=columns).compute() >= 0)
try:
    datarax.evaluate({str(tmp_path / "a.csv")!r}, Accuracy(), columns=columns)
except datarax.MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "True"
    assert "pip install '.[parquet]' in a clone of datarax, or pip install pyarrow" in second


def test_log_loss_of_a_file_reads_the_same_as_of_arrays(rng, tmp_path):
    data = binary(rng, 100)
    found = datarax.evaluate(write(tmp_path / "a.npz", data), LogLoss(), columns=BINARY)
    expected = LogLoss().update(data["score"], data["label"].astype(np.int32))
    assert found.compute() == pytest.approx(float(expected.compute()), rel=1e-6)
