"""What a procedure logs to a library without returning it, with the real libraries."""

import contextlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import wandb
from jax._src.monitoring import get_event_duration_listeners, get_scalar_listeners
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboardX import SummaryWriter
from tensorboardX.event_file_writer import EventFileWriter as OtherEventFileWriter
from wandb.sdk.lib.disabled import SummaryDisabled

from datarax import io
from datarax.testing import audit
from tests.test_layers import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def batch(rng):
    return {"loss": rng.exponential(size=12)}


def mean(batches):
    return np.concatenate([b["loss"] for b in batches]).mean()


def mean_of_means(batches):
    return np.mean([b["loss"].mean() for b in batches])


def changed(report):
    """The names of the changed numbers, if each cause is that of a mean of means."""
    assert {change.cause for change in report.changes} <= {"mean of means"}, report
    return {change.name for change in report.changes}


def patches():
    """The functions that a capture replaces, and the listeners that it adds."""
    return [
        vars(wandb.Run)["_log"],
        vars(SummaryDisabled).get("update"),
        vars(EventFileWriter)["add_event"],
        vars(OtherEventFileWriter)["add_event"],
        *get_scalar_listeners(),
        *get_event_duration_listeners(),
    ]


@pytest.mark.parametrize("mode", ["disabled", "offline"])
def test_wandb(batch, tmp_path, monkeypatch, mode):
    monkeypatch.setenv("WANDB_SILENT", "true")
    before, steps = patches(), []
    with wandb.init(mode=mode, dir=str(tmp_path), project="p") as run:
        log = wandb.log  # was bound before the audit

        def procedure(batches):
            log({"loss": -1.0, "by": {"mean": mean(batches)}, "note": "text"})
            run.log({"loss": mean_of_means(batches)}, step=3)
            wandb.log(data={"rows": sum(len(b["loss"]) for b in batches)}, commit=False)
            steps.append(run.step)

        report = audit(procedure, batch, capture="wandb")
        assert set(steps) == {0}  # nothing reaches the run
    assert changed(report) == {"loss"}
    assert set(report.bounds) == {"loss", "by/mean", "rows"}
    assert patches() == before


def test_tensorboard(batch, tmp_path):
    before = patches()
    train, evaluation = (SummaryWriter(str(tmp_path / name)) for name in ("train", "eval"))
    events = EventFileWriter(str(tmp_path / "events"))

    def procedure(batches):
        train.add_scalar("loss", mean(batches), 1)
        evaluation.add_scalar("loss", mean_of_means(batches), 1)
        train.add_scalar("new", mean_of_means(batches), display_name="of the new form")
        train.add_histogram("values", batches[0]["loss"], 1)
        train.add_text("note", "text", 1)
        summary = Summary.Value(tag="of tensorboard", simple_value=mean(batches))
        events.add_event(Event(summary=Summary(value=[summary])))

    report = audit(procedure, batch, capture=["tensorboard"])
    for writer in (train, evaluation, events):
        writer.close()
    assert changed(report) == {"loss#2", "new"}
    assert set(report.bounds) == {"loss", "loss#2", "new", "of tensorboard"}
    assert patches() == before
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*tfevents*"))
    assert written
    assert b"loss" not in written


def test_jax_monitoring(batch):
    before = patches()

    def procedure(batches):
        jax.monitoring.record_scalar("/train/loss", mean_of_means(batches))
        jax.monitoring.record_scalar("/train/mean", mean(batches), step=3)
        jax.monitoring.record_event_duration_secs("/train/seconds", time.perf_counter())
        jax.jit(lambda x: x + 1)(np.float32(len(batches)))  # JAX records times of compiling
        return {"rows": sum(len(b["loss"]) for b in batches)}

    report = audit(procedure, batch, capture=("jax.monitoring",))
    assert changed(report) == {"/train/loss"}
    assert report.unstable == ["/train/seconds"]
    assert set(report.bounds) == {"/train/loss", "/train/mean", "/train/seconds", "rows"}
    assert patches() == before


def test_writers_of_datarax(batch, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")

    def procedure(batches):
        results = {"loss": mean_of_means(batches), "mean": mean(batches), "by": {"a": 1.0}}
        with io.TensorBoardWriter(tmp_path / "board") as writer:
            writer.write(1, results)
        with io.WandbWriter(run) as writer:
            writer.write(1, results)
        return {"loss": mean(batches)}

    with wandb.init(mode="disabled") as run:
        report = audit(procedure, batch, capture=("wandb", "tensorboard"))
    # What is returned keeps its name; the next of that name says where it was logged.
    assert changed(report) == {"wandb:loss", "tensorboard:loss"}
    names = {"loss", "wandb:loss", "tensorboard:loss", "mean", "tensorboard:mean"}
    assert set(report.bounds) == names | {"by/a", "tensorboard:by/a"}


def test_no_patch_is_left_after_an_error(batch):
    before = patches()
    everything = ("wandb", "tensorboard", "jax.monitoring")

    def fails(batches):
        assert patches() != before
        raise RuntimeError("of the procedure")

    with pytest.raises(RuntimeError, match="of the procedure"):
        audit(fails, batch, capture=everything)
    assert patches() == before

    def fails_later(batches):
        if len(batches) > 1:
            raise RuntimeError("of a variation")
        return {"loss": mean(batches)}

    with contextlib.suppress(AssertionError):
        audit(fails_later, batch, capture=everything).raise_if_changed()
    assert patches() == before


def test_optional_packages_are_imported_when_asked_for():
    code = (
        "import sys\nfor name in ('wandb', 'tensorboardX', 'tensorboard', 'tensorflow'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, datarax\nfrom datarax.testing import audit\n"
        "batch = {'x': np.arange(5.0)}\n"
        "audit(lambda batches: {'rows': sum(len(b['x']) for b in batches)}, batch)"
        ".raise_if_changed()\n"
        "for source in 'wandb', 'tensorboard':\n"
        "    try:\n        audit(lambda batches: {'x': 1}, batch, capture=source)\n"
        "    except datarax.MissingExtraError as error:\n        print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert "pip install '.[wandb]'" in lines[0]
    assert "pip install '.[tensorboard]'" in lines[1]
