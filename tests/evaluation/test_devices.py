"""`devices=`: rows are folded by one compiled program, and the numbers are those of the host."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import datarax
from datarax import MetricInputError, PrecisionWarning
from datarax.evaluation import fold
from datarax.metrics import AUROC, WER, Accuracy, ConfusionMatrix, LogLoss, MaxError, Mean
from tests.cli.evaluations import evaluated, refusal, values
from tests.cli.evaluations import write as write_parquet
from tests.evaluation.written import binary, multiclass, write

BINARY = {"preds": "score", "target": "label"}
ROWS, BATCH = 1100, 256


def test_a_program_over_devices_gives_the_numbers_of_the_host(rng, tmp_path, programs):
    path = write(tmp_path / "a.parquet", multiclass(rng, ROWS, 3), rows=600)
    metrics = {
        "accuracy": Accuracy(num_classes=3),
        "cells": ConfusionMatrix(num_classes=3),
        "log_loss": LogLoss(num_classes=3, from_logits=True),
    }
    given = {"columns": {"preds": "logit_*", "target": "label"}, "batch_size": BATCH}
    host = datarax.evaluate(path, metrics, **given)
    assert not programs
    devices = jax.devices()
    assert len(devices) == 8
    found = datarax.evaluate(path, metrics, **given, devices=devices)
    # Parts of 600 and 500 rows: whole batches share one program, the rest is the host's.
    assert len(programs) == 1
    assert found["accuracy"].results() == host["accuracy"].results()
    np.testing.assert_array_equal(found["cells"].results(), host["cells"].results())
    assert found["log_loss"].results() == pytest.approx(host["log_loss"].results(), rel=1e-6)
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(found))


def test_scores_in_bins_are_those_of_the_host(rng, tmp_path):
    path = write(tmp_path / "a.npz", binary(rng, ROWS))
    given = {"columns": BINARY, "batch_size": BATCH}
    host = datarax.evaluate(path, AUROC(), **given).results()
    one = datarax.evaluate(path, AUROC(), **given, devices=jax.devices()[:1]).results()
    assert one == pytest.approx(host, rel=1e-6)


def test_a_batch_has_as_many_rows_on_each_device(rng, tmp_path, programs):
    data = binary(rng, ROWS)
    path = write(tmp_path / "a.npz", data)
    found = fold(path, Mean(), {"values": "score"}, batch_size=BATCH, devices=jax.devices()[:3])
    assert found.rows == ROWS
    assert len(programs) == 1
    assert found.metric.results() == pytest.approx(data["score"].astype(float).mean(), rel=1e-6)


def test_fewer_rows_than_a_batch_and_strings_are_folded_on_the_host(rng, tmp_path, programs):
    devices = jax.devices()
    data = binary(rng, 100)
    small = write(tmp_path / "a.npz", data)
    found = datarax.evaluate(small, Accuracy(), columns=BINARY, devices=devices)
    assert found.results() == np.mean((data["score"] >= 0.5) == data["label"])
    texts = {"preds": ["a b"] * BATCH, "target": ["a c"] * BATCH}
    path = write(tmp_path / "b.parquet", texts)
    assert datarax.evaluate(path, WER(), batch_size=BATCH, devices=devices).results() == 0.5
    assert not programs


def test_devices_are_devices_and_not_beside_an_executor(rng, tmp_path):
    path = write(tmp_path / "a.npz", binary(rng, 10))
    for wrong in ([], ["cpu"]):
        with pytest.raises(MetricInputError, match="expected devices of this process"):
            datarax.evaluate(path, Accuracy(), columns=BINARY, devices=wrong)
    with ThreadPoolExecutor(1) as pool, pytest.raises(MetricInputError, match="one of the two"):
        fold(path, Accuracy(), BINARY, executor=pool, devices=jax.devices())


def test_the_command_folds_on_devices(rng, tmp_path, capsys):
    path = write_parquet(tmp_path / "a.parquet", binary(rng, ROWS), row_group_size=600)
    asked = (path, "--task", "binary", "--preds", "score", "--target", "label")
    asked = (*asked, "--metrics", "accuracy,log_loss")
    host = values(evaluated(tmp_path / "host", *asked))
    found = values(evaluated(tmp_path / "devices", *asked, "--devices"))
    assert found["accuracy"] == host["accuracy"]
    assert found == pytest.approx(host, rel=1e-6)
    capsys.readouterr()
    error = refusal(capsys, "evaluate", *asked, "--devices", "--engine", "processes")
    assert "--devices: not with --engine" in error


def test_numbers_of_64_bits_are_not_rounded_or_cut_silently(tmp_path):
    """A program has 32 bits: errors of times since 1970 are 0 there, and of ids any number."""
    times, ids = 1.7e9 + np.arange(512), np.arange(512) * 2**33
    columns = {"p": times, "t": times + 11.3, "i": ids, "j": ids + 7}
    path = write_parquet(tmp_path / "a.parquet", columns)
    for preds, target, largest in (("p", "t", 11.3), ("i", "j", 7)):
        columns = {"preds": preds, "target": target}
        given = {"columns": columns, "batch_size": BATCH}
        found = datarax.evaluate(path, MaxError(), **given).results()
        assert found == pytest.approx(largest, rel=1e-6)
        if preds == "i":
            with pytest.raises(MetricInputError, match="on devices, preds: an integer does not fi"):
                datarax.evaluate(path, MaxError(), **given, devices=jax.devices())
            continue
        with pytest.warns(PrecisionWarning, match="preds, target: float64 numbers are rounded"):
            datarax.evaluate(path, MaxError(), **given, devices=jax.devices())
    small = write_parquet(tmp_path / "b.parquet", {"p": np.arange(512.0), "t": np.arange(512)})
    given = {"columns": {"preds": "p", "target": "t"}, "batch_size": BATCH}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datarax.evaluate(small, MaxError(), **given, devices=jax.devices())
