"""Scores of another kind than a metric takes them for: counted in the state, told when read."""

import warnings

import jax
import numpy as np
import pytest

import datarax
from datarax import Collection, ScoresWarning, metrics
from datarax.metric import base
from datarax.statistics.class_rows import ClassRows
from datarax.statistics.invalid_counts import KINDS, InvalidCounts
from datarax.statistics.score_kinds import SCORE_KINDS
from datarax.statistics.score_kinds import evidence as codes
from datarax.training import AsyncMetricCollector

ROWS, SIZE = 80, 3


def softmax(x):
    e = np.exp(x)
    return e / e.sum(-1, keepdims=True)


@pytest.fixture
def batch(rng):
    logits = rng.normal(size=(ROWS, SIZE)).astype(np.float32) * 3
    target = rng.integers(0, SIZE, ROWS)
    return {
        "logits": logits,
        "rows": softmax(logits),
        "scores": logits[:, 0],
        "chances": 1 / (1 + np.exp(-logits[:, 0])),
        "classes": target,
        "labels": target == 0,
        "each": target[:, None] == np.arange(SIZE),
        "bytes": target + 1,
    }


def fed(metric, preds, target, **more):
    return metric.from_outputs(preds=preds, target=target, **more)


def members(wrong: bool):
    """Metrics of each kind of scores; if `wrong`, with outputs of another kind."""
    logits, rows = ("rows", "logits") if wrong else ("logits", "rows")
    scores, chances = ("chances", "scores") if wrong else ("scores", "chances")
    of_labels = {"num_labels": SIZE, "threshold": 0.3 if wrong else 0.0}
    of_classes = {"num_classes": SIZE, "from_logits": True}
    found = {
        "binary": fed(metrics.Accuracy(), chances, "labels"),
        "multilabel": fed(metrics.F1(**of_labels), "logits", "each"),
        "rows of labels": fed(metrics.ExactMatch(**of_labels), "logits", "each"),
        "curve": fed(metrics.AUROC(num_classes=SIZE), rows, "classes"),
        "curve of logits": fed(metrics.AUROC(**of_classes), logits, "classes"),
        "perplexity": fed(metrics.Perplexity(), logits, "classes"),
        "bits": fed(metrics.BitsPerByte(), logits, "classes", num_bytes="bytes"),
        "log loss": fed(metrics.LogLoss(**of_classes), logits, "classes"),
        "brier": fed(metrics.BrierScore(from_logits=True), scores, "labels"),
        "calibration": fed(metrics.CalibrationError(**of_classes), logits, "classes"),
    }
    if wrong:
        losses = metrics.Perplexity(from_losses=True)
        found["losses"] = losses.from_outputs(preds="scores", target=None)
    return Collection(found)


def told(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    assert all(each.category is ScoresWarning for each in seen)
    return [str(each.message) for each in seen]


def evidence(metric):
    """The evidence of each member, by its kind."""
    return {
        name: {kind: np.asarray(x).tolist() for kind, x in reading.evidence.items()}
        for name, reading in base.read(metric).invalid.items()
    }


def quietly(update, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScoresWarning)
        return update(*args, **kwargs)


def test_scores_of_another_kind_are_counted_and_told_when_read(batch):
    wrong = members(wrong=True)
    seen = quietly(wrong.update, **batch)
    messages = told(seen.results)
    assert [m.split(": ")[0] for m in messages] == [name for name, _ in wrong.items()]
    assert sum("give from_logits=True" in m for m in messages) == 4
    assert sum("give from_logits=False" in m for m in messages) >= 6
    assert {kind for found in evidence(seen).values() for kind in found} == {*SCORE_KINDS}
    assert not told(seen.compute)
    with AsyncMetricCollector(seen) as collector:
        collector.schedule_collection(seen)
        assert told(collector.collect_results) == messages
    # Evidence adds up; none of it is data that cannot be used.
    assert told(seen.reset().merge(seen).results) == messages
    assert int(seen.invalid_count()) == 0
    assert not told(members(wrong=False).update(**batch).results)
    # One batch of logits is enough to know that they are no probabilities.
    mixed = quietly(metrics.Perplexity().update, batch["rows"], batch["classes"])
    assert told(mixed.results)
    assert not told(mixed.update(batch["logits"], batch["classes"]).results)


def codes_of(kind, x):
    return codes(kind, ClassRows(x) if kind in ("softmax", "distributions") else x, x)


def test_updates_within_jit_are_told_of_when_read(batch):
    chosen = ("binary", "perplexity", "losses")
    wrong = Collection({name: x for name, x in members(wrong=True).items() if name in chosen})
    step = jax.jit(lambda metric, batch: metric.update(**batch))
    within = step(wrong, batch)
    outside = quietly(wrong.update, **batch)
    assert evidence(within) == evidence(outside)
    assert told(within.results) == told(outside.results)
    assert len(told(within.results)) == len(chosen)

    rows = np.concatenate([batch["rows"], batch["logits"], np.eye(SIZE, dtype=np.float32)])
    found = jax.jit(lambda x: {kind: codes_of(kind, x) for kind in SCORE_KINDS})(rows)
    for kind, each in found.items():
        np.testing.assert_array_equal(each, codes_of(kind, rows), kind)


def test_what_is_left_out_is_no_evidence(batch):
    scores, labels = batch["scores"], batch["labels"]
    off = (scores < 0) | (scores > 1)
    metric = metrics.Accuracy(ignore_index=7)
    assert not told(metric.update(scores, labels, weights=~off).results)
    assert not told(metric.update(scores, np.where(off, 7, labels)).results)
    one = told(lambda: metric.update(scores[off][:1], labels[:1]).results())
    assert one[-1].startswith("Accuracy: 1 scores were not from 0 to 1")
    # A state that takes no scores has no room for evidence.
    assert InvalidCounts().counts.shape == (len(KINDS),)


def test_wrappers_tell_it_of_the_whole(batch):
    scores, labels = batch["scores"], batch["labels"]
    for metric in (
        datarax.Bootstrap(metrics.Accuracy(), 4),
        datarax.Interval(metrics.Accuracy()),
        datarax.Window(metrics.Accuracy(), 2),
        datarax.MultiOutput(metrics.Accuracy(), 2),
    ):
        two = isinstance(metric, datarax.MultiOutput)
        given = [np.stack([x, x], 1) if two else x for x in (scores, labels)]
        seen = quietly(metric.update, *given)
        off = (1 + two) * int(((scores < 0) | (scores > 1)).sum())
        (message,) = told(seen.results)
        assert f"{type(metric).__name__}: {off} scores" in message
    sliced = datarax.Sliced(metrics.Accuracy(), 2)
    sliced = quietly(sliced.update, scores, labels, slices=labels.astype(int))
    assert len(told(sliced.results)) == 1
