"""Scores of another kind than a metric takes them for: counted in the state, told when read."""

import warnings

import jax
import numpy as np
import pytest
from scipy.special import expit

import datarax
from datarax import Collection, ScoresWarning, metrics
from datarax.algebra.pytrees import children_of
from datarax.metric import base
from datarax.statistics.class_rows import class_rows
from datarax.statistics.invalid_counts import KINDS, InvalidCounts
from datarax.statistics.score_kinds import SCORE_KINDS
from datarax.statistics.score_kinds import evidence as codes
from datarax.training import AsyncMetricCollector
from tests.helpers import make_mesh
from tests.registry import CASES

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
    return [str(each.message) for each in seen if each.category is ScoresWarning]


def silent(call, *args, **kwargs):
    """The result of a call, which warns of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call(*args, **kwargs)


def evidence(metric):
    """The evidence of each member, by its kind."""
    return {
        name: {kind: np.asarray(x).tolist() for kind, x in reading.evidence.items()}
        for name, reading in base.read(metric).invalid.items()
    }


def test_scores_of_another_kind_are_counted_and_told_when_read(batch):
    wrong = members(wrong=True)
    seen = wrong.update(**batch)
    messages = told(seen.results)
    assert [m.split(": ")[0] for m in messages] == [name for name, _ in wrong.items()]
    assert sum("give from_logits=True" in m for m in messages) == 4
    assert sum("give from_logits=False" in m for m in messages) >= 6
    assert {kind for found in evidence(seen).values() for kind in found} == {*SCORE_KINDS}
    assert told(seen.compute) == messages
    with AsyncMetricCollector(seen) as collector:
        collector.schedule_collection(seen)
        assert told(collector.collect_results) == messages
    # Evidence adds up; none of it is data that cannot be used.
    assert told(seen.reset().merge(seen).results) == messages
    assert int(seen.invalid_count()) == 0
    assert not told(members(wrong=False).update(**batch).results)
    # One batch of logits is enough to know that they are no probabilities.
    mixed = metrics.Perplexity().update(batch["rows"], batch["classes"])
    assert told(mixed.results)
    assert not told(mixed.update(batch["logits"], batch["classes"]).results)


def codes_of(kind, x):
    return codes(kind, class_rows(x) if kind in ("softmax", "distributions") else x, x)


def given_as(kind, shape, rng, wrong):
    """Scores that are those of a kind, or of another kind."""
    x = rng.normal(size=shape).astype(np.float32) * 3
    if kind == "losses":
        return -abs(x) - 1 if wrong else abs(x)
    if (kind in ("softmax", "sigmoid")) != wrong:
        return x
    return softmax(x) if kind in ("softmax", "distributions") else expit(x)


def score_metrics():
    """Each metric of the registry that takes scores of a kind: by the kind and the inputs."""
    found = {}
    for case in CASES:
        forms = [{}]
        if not case.host and "from_logits" in case.cls.fields:
            forms += [{"from_logits": None}, {"from_logits": True}]
        if "from_losses" in case.cls.fields:
            forms += [{"from_losses": True}]
        for form in forms:
            try:
                metric = case.traceable(**form)
            except datarax.MetricInputError:  # of a highest logit, or of a task without logits
                continue
            for kind in kinds_of(metric):
                cases = found.setdefault((kind, case.inputs.id), (case.inputs, {}))[1]
                cases.setdefault(f"{case.cls.__name__} of {kind}, {case.inputs.id}", metric)
    return found


def kinds_of(state):
    if isinstance(state, InvalidCounts):
        return {state.scores} - {""}
    return set().union(*map(kinds_of, state.states_within()))


SCORE_METRICS = score_metrics()
IDS = [", ".join(key) for key in SCORE_METRICS]


def batches_of(key, rng):
    """Arguments with scores of another kind, and with those of the kind."""
    kind, (inputs, _) = key[0], SCORE_METRICS[key]
    drawn = inputs.draw(rng, 256)
    for wrong in (True, False):
        batch = dict(drawn)
        for name in drawn:
            if name.startswith("preds"):
                shape = drawn["target" if kind == "losses" else name].shape
                batch[name] = given_as(kind, shape, rng, wrong)
        yield batch


@pytest.mark.parametrize("key", SCORE_METRICS, ids=IDS)
def test_each_metric_tells_it_once_when_read(key, rng):
    wrong, right = batches_of(key, rng)
    for name, metric in SCORE_METRICS[key][1].items():
        takes = [route.argument for route in metric.routes() if route.argument in wrong]
        seen = silent(metric.update, **{x: wrong[x] for x in takes})
        (message,) = told(seen.results)
        assert message.startswith(f"{type(metric).__name__}: "), message
        assert told(seen.compute) == [message]
        assert not told(metric.update(**{x: right[x] for x in takes}).results), name


def test_collections_tell_it_in_jit_and_per_device_as_on_the_host(rng):
    members, batch = {}, {}
    for i, key in enumerate(SCORE_METRICS):
        wrong, _ = batches_of(key, rng)
        batch |= {f"{name}_{i}": x for name, x in wrong.items()}
        statistics = {}  # one metric of each, so that the programs are small
        for name, metric in SCORE_METRICS[key][1].items():
            shared = jax.tree.structure(children_of(metric).get("statistic", metric))
            statistics.setdefault(shared, (name, metric))
        for name, metric in statistics.values():
            routes = {route.argument: f"{route.argument}_{i}" for route in metric.routes()}
            routes = {x: output if output in batch else None for x, output in routes.items()}
            members[name] = metric.from_outputs(**routes)
    together = Collection(members)
    on_devices = datarax.per_device(together, make_mesh("auto", {"data": 8}), "data")
    entries = {
        "host": lambda: together.update(**batch),
        "jit": lambda: jax.jit(lambda metric, x: metric.update(**x))(together, batch),
        "per device": lambda: on_devices.update(**batch),
    }
    due: list[str] = []  # what the first entry says
    for entry, update in entries.items():
        seen = silent(update)
        messages = told(seen.results)
        assert [x.split(": ")[0] for x in messages] == sorted(members), entry
        assert told(seen.compute) == messages, entry
        due = due or messages
        assert messages == due, entry


def test_codes_in_a_program_are_those_of_the_host(batch):
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
    (one,) = told(metric.update(scores[off][:1], labels[:1]).results)
    assert one.startswith("Accuracy: 1 scores were not from 0 to 1")
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
        seen = metric.update(*given)
        off = (1 + two) * int(((scores < 0) | (scores > 1)).sum())
        (message,) = told(seen.results)
        assert f"{type(metric).__name__}: {off} scores" in message
    sliced = datarax.Sliced(metrics.Accuracy(), 2)
    sliced = sliced.update(scores, labels, slices=labels.astype(int))
    assert len(told(sliced.results)) == 1
