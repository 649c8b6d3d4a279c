"""Writers, each with its real back end."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.io import (
    ConsoleWriter,
    JSONLWriter,
    MLflowWriter,
    MonitoringWriter,
    MultiWriter,
    ParquetWriter,
    TensorBoardWriter,
    WandbWriter,
    Writer,
)
from datarax.io.drawn_arrays import image_of
from tests.test_layers import ROOT

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(mlflow|wandb|sqlalchemy|alembic)"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
]


class Points(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Held(Writer):
    """Keeps what it gets, and fails where it is told to."""

    def __init__(self, fails=(), **kwargs):
        super().__init__(**kwargs)
        self.fails, self.got = fails, []

    def put(self, step, items):
        if step in self.fails:
            raise OSError(f"no place for {step}\nand more")
        self.got.append((step, items, threading.current_thread()))


def results():
    matrix = np.array([[5, 1], [2, 2**53 + 1]])
    curve = Points(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.8, 1.0]))
    return {
        "loss": 0.25,
        "count": 2**60 + 1,
        "nothing": float("nan"),
        "more": float("inf"),
        "leaf": None,
        "name": "de",
        "by": {"de": 1.0, "fr": {"north": np.float32(0.5)}},
        "shares": np.array([0.5, 0.25, 0.25]),
        "matrix": matrix,
        "roc": curve,
    }


# What all writers do.


def test_results_are_copied_named_and_written_in_order_on_a_thread():
    array = np.arange(3.0)
    with Held() as writer:
        for step in range(50):
            array[:] = step
            writer.write(step, {"a": {"b": array}, "c": jnp.float32(step)})
    assert [step for step, _, _ in writer.got] == list(range(50))
    assert all((items["a/b"] == step).all() for step, items, _ in writer.got)
    assert all(items["c"] == step and type(items["c"]) is float for step, items, _ in writer.got)
    assert {thread.name for _, _, thread in writer.got} == {"datarax-write"}
    assert not any(thread.name == "datarax-write" for thread in threading.enumerate())


def test_a_single_value_is_called_value():
    with Held() as writer:
        writer.write(1, 0.5)
    assert writer.got[0][1] == {"value": 0.5}


def test_a_failure_is_a_warning_on_the_next_call_and_the_rest_is_written():
    writer = Held(fails=(1, 2))
    for step in range(4):
        writer.write(step, 0.5) if step == 0 else writer._queue.put((step, {}))
    with pytest.warns(datarax.WriterWarning, match="could not write step 1 and 1 more: OSError"):
        writer.flush()
    writer.flush()  # said once
    writer.close()
    assert [step for step, _, _ in writer.got] == [0, 3]


def test_a_failure_is_an_error_on_the_next_call_if_asked_for():
    writer = Held(fails=(1,), on_error="raise")
    writer.write(1, 0.5)
    with pytest.raises(datarax.WriterError, match="could not write step 1: OSError: no place"):
        writer.flush()
    writer.write(2, 0.5)
    writer.close()
    assert [step for step, _, _ in writer.got] == [2]


def test_a_write_that_reports_an_earlier_failure_is_written_too():
    writer = Held(fails=(1,), on_error="raise")
    writer.write(1, 0.5)
    while writer._failed is None:
        time.sleep(0.001)
    with pytest.raises(datarax.WriterError):
        writer.write(2, 0.5)
    writer.close()
    assert [step for step, _, _ in writer.got] == [2]


def test_misuse():
    with pytest.raises(datarax.MetricInputError, match='expected "warn" or "raise"'):
        Held(on_error="ignore")
    writer = Held()
    with pytest.raises(datarax.MetricInputError, match="'step'"):
        writer.write(1, {"step": 1})
    with pytest.raises(datarax.MetricInputError, match="two values are called 'a/b'"):
        writer.write(1, {"a/b": 1, "a": {"b": 1}})
    with pytest.raises(datarax.MetricTypeError, match="'a' is a object"):
        writer.write(1, {"a": object()})
    writer.close()
    writer.close()
    with pytest.raises(datarax.WriterError, match="the writer is closed"):
        writer.write(1, 0.5)


def test_nothing_is_made_before_the_first_write(tmp_path):
    for writer in (JSONLWriter(tmp_path / "a/b"), ParquetWriter(tmp_path / "c/d")):
        writer.flush()
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_fails_and_the_others_write(tmp_path):
    bad, good = Held(fails=(1,), on_error="raise"), Held()
    writer = MultiWriter(bad, good)
    writer.write(1, 0.5)
    with pytest.raises(datarax.WriterError, match="step 1"):
        writer.flush()
    writer.write(2, 0.5)
    writer.close()
    assert [step for step, _, _ in good.got] == [1, 2]
    assert [step for step, _, _ in bad.got] == [2]


class Broken:
    """A writer of a user, which raises what a full disk does."""

    def __init__(self, name):
        self.name, self.calls = name, []

    def fail(self, call):
        self.calls.append(call)
        raise OSError(f"{self.name} cannot {call}")

    def write(self, step, results):
        self.fail("write")

    def flush(self):
        self.fail("flush")

    def close(self):
        self.fail("close")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_all_writers_are_called_whatever_one_raises(place):
    first, second, good = Broken("a"), Broken("b"), Held()
    writers = [first, second]
    writers.insert(place, good)
    writer = MultiWriter(*writers)
    for call, args in {"write": (1, 0.5), "flush": (), "close": ()}.items():
        with pytest.raises(OSError, match=f"a cannot {call}") as failed:
            getattr(writer, call)(*args)
        assert failed.value.__notes__ == [f"also OSError: b cannot {call}"]
    assert first.calls == second.calls == ["write", "flush", "close"]
    assert [step for step, _, _ in good.got] == [1]
    with pytest.raises(datarax.WriterError, match="closed"):
        good.write(2, 0.5)


def test_a_writer_ends_also_if_the_last_flush_fails():
    class Full(Held):
        ended = False

        def sync(self):
            raise OSError("no place")

        def end(self):
            self.ended = True

    writer = Full(on_error="raise")
    writer.write(1, 0.5)
    with pytest.raises(datarax.WriterError, match="no place"):
        writer.close()
    assert writer.ended


def test_a_missing_package_is_named_with_its_extra():
    missing = {
        "rich": ("ConsoleWriter()", "console"),
        "tensorboardX": ("TensorBoardWriter('x')", "tensorboard"),
        "wandb": ("WandbWriter()", "wandb"),
        "mlflow": ("MLflowWriter()", "mlflow"),
        "pyarrow": ("ParquetWriter('x')", "parquet"),
    }
    code = (
        f"import sys\nfor name in {list(missing)}: sys.modules[name] = None\n"
        "import datarax, datarax.io\nfrom datarax.io import *\n"
        f"for call in {[call for call, _ in missing.values()]}:\n"
        "    try:\n        eval('datarax.io.' + call)\n"
        "    except datarax.MissingExtraError as error:\n        print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    for line, (_, extra) in zip(done.stdout.splitlines(), missing.values(), strict=True):
        assert f"pip install '.[{extra}]'" in line, done.stderr


# JSON lines.


def test_json_lines(tmp_path):
    path = tmp_path / "runs" / "history.jsonl"
    with JSONLWriter(path) as writer:
        writer.write(7, results())
        writer.flush()
        (line,) = path.read_text().splitlines()

    def refuse(token):
        raise AssertionError(token)

    record = json.loads(line, parse_constant=refuse)
    assert record["step"] == 7
    assert record["count"] == 2**60 + 1
    assert record["nothing"] is None
    assert record["more"] == "inf"
    assert record["by/fr/north"] == 0.5
    assert record["matrix"] == results()["matrix"].tolist()
    assert record["roc"] == {"x": [0.0, 0.5, 1.0], "y": [0.0, 0.8, 1.0]}


def test_a_file_is_continued_without_an_incomplete_line(tmp_path):
    path = tmp_path / "history.jsonl"
    for end in ("", '{"step": 3, "lo', "x" * 200_000):
        path.write_text('{"step": 1}\n{"step": 2}\n' + end)
        with JSONLWriter(path) as writer:
            writer.write(3, 0.5)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    path.write_text("no line at all")
    with JSONLWriter(path) as writer:
        writer.write(1, 0.5)
    assert path.read_text() == '{"step": 1, "value": 0.5}\n'


def test_a_full_disk_leaves_whole_lines(tmp_path):
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))\n"
        "import datarax; from datarax.io import JSONLWriter\n"
        "writer = JSONLWriter(sys.argv[1], on_error='raise')\n"
        "writer._report, report = lambda: None, writer._report\n"
        "for step in range(10): writer.write(step, {'x': 'y' * 30})\n"
        "writer._report = report\n"
        "try:\n    writer.close()\nexcept datarax.WriterError as error:\n    print(error)"
    )
    path = tmp_path / "history.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert "could not write step" in done.stdout, done.stderr
    lines = path.read_text().splitlines()
    assert 0 < len(lines) < 10
    assert [json.loads(line)["step"] for line in lines] == list(range(len(lines)))


FULL = """
import resource, secrets, signal, sys, warnings
from rich.console import Console
from datarax.io import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
writers = {
    "jsonl": JSONLWriter(f"{folder}/a.jsonl"),
    "tensorboard": TensorBoardWriter(f"{folder}/events"),
    "late": TensorBoardWriter(f"{folder}/late"),
    "parquet": ParquetWriter(f"{folder}/a.parquet"),
    "console": ConsoleWriter(console=Console(file=open("/dev/full", "w", buffering=1))),
    "mlflow": MLflowWriter(f"sqlite:///{folder}/mlflow.db"),
}
for name, writer in writers.items():
    if name != "late":
        writer.write(-1, 0.5)
        writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
for name, writer in writers.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(20 if name == "mlflow" else 1_500):
            writer.write(step, {"loss": 0.5, "text": secrets.token_hex(100)})
        writer.flush()
    print(name, caught[0].category.__name__, str(caught[0].message).count("could not write step"))
    if name == "late":
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    if name == "tensorboard":
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for name, writer in writers.items():
    if name != "console":
        with warnings.catch_warnings(action="error"):
            writer.write(2_000, 0.25)
            writer.close()
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_full_disk_is_a_warning_and_later_results_are_written(tmp_path):
    """None blocks, and what is written after there is space again can be read."""
    import mlflow
    import pyarrow.parquet
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
    )
    names = ("jsonl", "tensorboard", "late", "parquet", "console", "mlflow")
    said = [line for line in done.stdout.splitlines() if "Writer" in line]
    assert said == [f"{name} WriterWarning 1" for name in names], done.stderr
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines[:3]] == [-1, 0, 1]
    assert json.loads(lines[-1])["step"] == 2_000
    for name in ("events", "late"):
        (path,) = (tmp_path / name).iterdir()
        events = EventAccumulator(str(path), size_guidance={"scalars": 0})
        events.Reload()
        steps = [event.step for event in events.Scalars("value")]
        assert steps == ([-1, 2_000] if name == "events" else [2_000])
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["step"].to_pylist()[-1] == 2_000
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    history = client.get_metric_history(run.info.run_id, "value")
    assert [each.step for each in history] == [-1, 2_000]


def test_a_back_end_that_stands_still_does_not_block_the_loop(monkeypatch):
    """As a server that does not answer; the results that are dropped are counted."""
    monkeypatch.setattr("datarax.io.writer.SECONDS_TO_WAIT", 0.05)
    goes_on = threading.Event()

    class Still(Held):
        def put(self, step, items):
            goes_on.wait(60)
            super().put(step, items)

    writer = Still()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1_100):
            writer.write(step, 0.5)
    dropped = len(caught)
    assert "1,000 results wait to be written" in str(caught[0].message)
    assert 98 <= dropped <= 100
    goes_on.set()
    writer.flush()
    writer.write(2_000, 0.5)
    writer.close()
    steps = [step for step, _, _ in writer.got]
    assert len(steps) == 1_101 - dropped
    assert steps[-1] == 2_000


def test_a_place_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    writer = JSONLWriter(tmp_path / "file" / "below", on_error="raise")
    writer.write(1, 0.5)
    with pytest.raises(datarax.WriterError, match="JSONLWriter could not write step 1"):
        writer.close()


KILLED = """
import sys
from datarax.io import JSONLWriter, ParquetWriter
writers = [JSONLWriter(sys.argv[1] + "/a.jsonl"), ParquetWriter(sys.argv[1] + "/a.parquet")]
step = 0
while True:
    for writer in writers:
        writer.write(step, {"loss": step / 2, "text": "x" * 500})
        if step % 20 == 0:
            writer.flush()
    step += 1
    print(step, flush=True)
"""


def test_what_a_killed_process_leaves_can_be_read(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 150:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    lines = (tmp_path / "a.jsonl").read_text().split("\n")
    assert [json.loads(line)["step"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert len(lines) > 140
    import pyarrow.parquet

    steps = pyarrow.parquet.read_table(tmp_path / "a.parquet")["step"].to_pylist()
    assert steps == list(range(len(steps)))
    assert len(steps) > 140
    with JSONLWriter(tmp_path / "a.jsonl") as one, ParquetWriter(tmp_path / "a.parquet") as two:
        MultiWriter(one, two).write(-1, 0.5)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(lines[-1]) == {"step": -1, "value": 0.5}
    last = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()[-1]
    assert last == {"step": -1, "loss": None, "text": None, "value": 0.5}


# The other back ends.


def test_parquet(tmp_path):
    import pyarrow.parquet

    path = tmp_path / "runs" / "history.parquet"
    with ParquetWriter(path, on_error="raise") as writer:
        writer.write(1, {"loss": 1, "shares": np.array([0.5, 0.5])})
        writer.flush()
        assert pyarrow.parquet.read_table(path).num_rows == 1
        writer.write(2, {"loss": 0.5, "huge": 2**70, "roc": results()["roc"]})
        writer.write(3, {"loss": float("nan"), "count": 2**60 + 1})
    table = pyarrow.parquet.read_table(path).to_pylist()
    assert [row["loss"] for row in table[:2]] == [1.0, 0.5]
    assert np.isnan(table[2]["loss"])
    assert table[0]["shares"] == [0.5, 0.5]
    assert table[1]["huge"] == float(2**70)
    assert table[1]["roc"] == {"x": [0.0, 0.5, 1.0], "y": [0.0, 0.8, 1.0]}
    assert table[2]["count"] == 2**60 + 1
    assert table[0]["count"] is None


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardWriter(tmp_path, on_error="raise") as writer:
        writer.write(1, results())
        writer.write(2, {"loss": 0.125})
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.25), (2, 0.125)]
    assert events.Scalars("by/fr/north")[0].value == 0.5
    assert np.isnan(events.Scalars("nothing")[0].value)
    assert np.isinf(events.Scalars("more")[0].value)
    histogram = events.Histograms("shares")[0].histogram_value
    assert (histogram.num, histogram.sum) == (3, 1.0)
    import io

    from PIL import Image

    for name in ("matrix", "roc"):
        (image,) = events.Images(name)
        pixels = np.asarray(Image.open(io.BytesIO(image.encoded_image_string)))
        assert min(pixels.shape[:2]) >= 256
        assert len(np.unique(pixels)) > 2


def test_images_show_what_is_in_them():
    image = image_of(np.array([[9, 1], [0, 5]]))
    assert image is not None
    dark = image.astype(int).sum(-1)
    assert dark[0, 0] < dark[0, -1]  # nine tenths of the row, one tenth
    assert dark[-1, -1] < dark[-1, 0]
    curve = image_of(results()["roc"])
    assert curve is not None
    rows, columns = np.nonzero((curve == (0, 90, 181)).all(-1))
    assert columns.max() - columns.min() > 200
    assert rows[np.argmin(columns)] > rows[np.argmax(columns)]  # it goes up
    assert image_of(np.arange(3)) is None


def wandb_records(data: bytes):
    """The records of a wandb file: after seven bytes the log format of LevelDB, in blocks."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if (left := -place % (1 << 15)) < 7 and left:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


def wandb_history(data: bytes):
    from wandb.proto import wandb_internal_pb2

    for each in wandb_records(data):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
        record.ParseFromString(each)
        for item in record.history.item:
            yield (record.history.step.num, "/".join(item.nested_key)), item.value_json


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
def test_wandb_offline(tmp_path):
    with WandbWriter(mode="offline", dir=str(tmp_path), project="p", on_error="raise") as writer:
        writer.write(3, results())
        writer.write(4, {"loss": 0.125})
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found, last = {}, time.monotonic() + 60
    while (4, "loss") not in found and time.monotonic() < last:  # a process of wandb writes it
        found = dict(wandb_history(path.read_bytes()))
        time.sleep(0.05)
    assert json.loads(found[3, "loss"]) == 0.25
    assert json.loads(found[4, "loss"]) == 0.125
    assert json.loads(found[3, "by/fr/north"]) == 0.5
    assert "image-file" in found[3, "matrix/_type"]
    assert "histogram" in found[3, "shares/_type"]


def test_mlflow(tmp_path):
    uri = f"sqlite:///{tmp_path}/runs.db"
    with MLflowWriter(uri, experiment="digits", run_name="first", on_error="raise") as writer:
        writer._mlflow.MlflowClient(tracking_uri=uri).create_experiment(
            "digits", artifact_location=str(tmp_path / "artifacts")
        )
        writer.write(1, results() | {"odd: name (%)": 2.0})
        writer.write(2, {"loss": 0.125})
        writer.flush()
        client = writer._client
        history = client.get_metric_history(writer.run_id, "loss")
        assert [(each.step, each.value) for each in history] == [(1, 0.25), (2, 0.125)]
        run = client.get_run(writer.run_id)
        assert run.data.metrics["odd: name ___"] == 2.0
        assert run.data.metrics["by/fr/north"] == 0.5
        assert run.info.run_name == "first"
    assert client.get_run(writer.run_id).info.status == "FINISHED"
    (artifact,) = Path(tmp_path / "artifacts").rglob("step-1.json")
    assert json.loads(artifact.read_text())["shares"] == [0.5, 0.25, 0.25]


def test_the_console(capsys):
    with ConsoleWriter(on_error="raise") as writer:
        writer.write(1, {"loss": 0.123456, "[red]": 7})
        writer.write(2, {"loss": float("nan"), "[red]": 8})
        writer.write(3, results())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "loss", "[red]"]
    assert lines[1].split() == ["1", "0.1235", "7"]
    assert lines[2].split() == ["2", "NaN", "8"]
    assert len(lines[0].rstrip()) == len(lines[1].rstrip()) == len(lines[2].rstrip())
    assert any("matrix" in line for line in lines)
    assert any("2 x 2" in line for line in lines)


def test_the_console_shows_progress_on_a_terminal():
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with ConsoleWriter(total=10, console=console, on_error="raise") as writer:
        writer.write(5, {"loss": 0.5})
        writer.flush()
        time.sleep(0.2)
    shown = out.getvalue()
    assert "50%" in shown
    assert "0.5" in shown


# jax.monitoring.


@pytest.fixture
def scalars():
    """What a listener of scalars hears during a test."""
    heard = []

    def listener(event, value, **kwargs):
        heard.append((event, value, kwargs))

    jax.monitoring.register_scalar_listener(listener)
    yield heard
    jax.monitoring.unregister_scalar_listener(listener)


def test_jax_monitoring_hears_the_numbers(scalars):
    with MonitoringWriter() as writer:
        writer.write(np.int32(7), results())
        writer.write("the end", {"flag": True})
    got = {event: value for event, value, _ in scalars[:-1]}
    nothing = got.pop("/datarax/nothing")
    assert np.isnan(nothing)
    assert got == {
        "/datarax/loss": 0.25,
        "/datarax/count": 2**60 + 1,
        "/datarax/more": float("inf"),
        "/datarax/by/de": 1.0,
        "/datarax/by/fr/north": 0.5,
    }
    assert all(kwargs == {"step": 7} for _, _, kwargs in scalars[:-1])
    assert scalars[-1] == ("/datarax/flag", True, {"step": "the end"})


def test_a_listener_that_fails_is_an_error_of_writing(scalars):
    def fails(event, value, **kwargs):
        raise OSError("no place")

    jax.monitoring.register_scalar_listener(fails)
    try:
        writer = MonitoringWriter("/a/", on_error="raise")
        writer.write(3, {"loss": 0.5})
        with pytest.raises(datarax.WriterError, match="could not write step 3: OSError: no place"):
            writer.close()
    finally:
        jax.monitoring.unregister_scalar_listener(fails)
    assert scalars == [("/a/loss", 0.5, {"step": 3})]


def test_a_collector_writes_to_jax_monitoring(scalars):
    loss = datarax.metrics.Mean()
    with (
        MonitoringWriter("/train/") as writer,
        datarax.AsyncMetricCollector(loss, writer=writer) as collector,
    ):
        collector.schedule_collection(loss.update(2.5), step=4)
    assert scalars == [("/train/value", 2.5, {"step": 4})]
