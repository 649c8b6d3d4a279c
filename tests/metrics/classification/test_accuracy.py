"""`Accuracy` against scikit-learn on fresh data, in every task, average and dtype."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk

from datarax import Collection, InvalidValuesWarning, MetricInputError
from datarax.metrics import Accuracy
from tests.helpers import assert_same, update

N, C = 240, 5


AVERAGES = {"micro": "micro", "macro": "macro", "weighted": "weighted", "each": None}


def averages(**config):
    """Every average of one task; they share their counts, so one update serves them all."""
    return Collection({name: Accuracy(average=a, **config) for name, a in AVERAGES.items()})


def evaluate(metric, preds, target, weights=None):
    """After three batches: the values, and how many examples could not be used."""
    outputs = {"preds": preds, "target": target}
    if weights is not None:
        outputs["weights"] = weights
    for rows in np.split(np.arange(N), 3):
        metric = update(metric, **{name: x[rows] for name, x in outputs.items()})
    return metric.compute(), metric.invalid_count()


def close(got, want):
    """Counts are exact here: what rounds is one quotient for each class, and their mean."""
    want = np.asarray(want, np.float64)
    assert got.dtype == np.float32
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, (2 + C) * 2.0**-24)


def weights_of(rng, weighting):
    return {
        "none": None,
        "mask": rng.random(N) < 0.6,
        "integers": rng.integers(0, 4, N),
        "eighths": rng.integers(0, 20, N).astype(np.float32) / 8,
    }[weighting]


def ones(weights):
    return np.ones(N) if weights is None else np.asarray(weights, np.float64)


def by_class(hits, target, weights, classes):
    """The accuracy of each class, from its definition; NaN for one that does not occur."""
    with np.errstate(invalid="ignore"):
        return np.asarray(
            [weights[hits & (target == c)].sum() / weights[target == c].sum() for c in classes]
        )


WEIGHTINGS = ["none", "mask", "integers", "eighths"]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("form", ["scores", "labels"])
def test_multiclass(rng, form, weighting):
    # The micro average counts examples, not one-vs-rest decisions, of which most are right.
    scores = rng.standard_normal((N, C)).astype(np.float32)
    target, labels = rng.integers(0, C - 1, N), scores.argmax(1)  # the last class never occurs
    w = weights_of(rng, weighting)
    full = ones(w)
    preds = scores if form == "scores" else labels
    got, _ = evaluate(averages(num_classes=C), preds, target, w)
    accuracy = sk.accuracy_score(target, labels, sample_weight=full)
    close(got["micro"], accuracy)
    used = full > 0  # scikit-learn warns of a class that is predicted and never occurs
    recalls: Any = sk.recall_score(
        target[used], labels[used], sample_weight=full[used], average=None, labels=range(C - 1)
    )
    close(got["macro"], recalls.mean())
    close(got["weighted"], accuracy)  # each class by its weight: the same as by example
    close(got["each"], [*recalls, np.nan])
    close(got["each"], by_class(labels == target, target, full, range(C)))


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_top_k(rng, top_k):
    scores = rng.standard_normal((N, C)).astype(np.float32)
    target, w = rng.integers(0, C, N), rng.integers(0, 4, N)
    target[:C] = range(C)
    got, _ = evaluate(averages(num_classes=C, top_k=top_k), scores, target, w)
    want = sk.top_k_accuracy_score(target, scores, k=top_k, sample_weight=w, labels=range(C))
    close(got["micro"], want)
    top = np.argsort(-scores, 1)[:, :top_k]
    close(got["each"], by_class((top == target[:, None]).any(1), target, w, range(C)))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("threshold", [0.5, 0.25])
def test_binary(rng, threshold, weighting):
    scores, target = rng.random(N).astype(np.float32), rng.integers(0, 2, N)
    w = weights_of(rng, weighting)
    full, chosen = ones(w), scores > threshold
    got, _ = evaluate(averages(threshold=threshold), scores, target, w)
    accuracy = sk.accuracy_score(target, chosen, sample_weight=full)
    close(got["micro"], accuracy)
    close(got["macro"], sk.balanced_accuracy_score(target, chosen, sample_weight=full))
    close(got["weighted"], accuracy)
    close(got["each"], by_class(chosen == target, target, full, (0, 1)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "bfloat16"])
def test_binary_labels_and_logits(rng, dtype):
    preds, target = rng.random((2, N)) < 0.5
    want = (preds == target).mean()
    close(evaluate(Accuracy(), jnp.asarray(preds, dtype), jnp.asarray(target, dtype))[0], want)
    logits = np.where(preds, 1, -1) * rng.random(N).astype(np.float32)
    close(evaluate(Accuracy(threshold=0.0), jnp.asarray(logits, "float32"), target)[0], want)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_multilabel(rng, weighting):
    scores = rng.random((N, C)).astype(np.float32)
    target = (rng.random((N, C)) < [0.5, 0.2, 0.8, 0.1, 0.0]).astype(int)  # the last never occurs
    w = weights_of(rng, weighting)
    full, hits = ones(w), (scores > 0.5) == target
    each = [
        sk.accuracy_score(target[:, i], scores[:, i] > 0.5, sample_weight=full) for i in range(C)
    ]
    got, _ = evaluate(averages(num_labels=C), scores, target, w)
    close(got["micro"], (hits.mean(1) * full).sum() / full.sum())
    close(got["micro"], 1 - sk.hamming_loss(target, scores > 0.5, sample_weight=full))
    close(got["macro"], np.mean(each))
    close(got["weighted"], np.average(each, weights=(target * full[:, None]).sum(0)))
    close(got["each"], each)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32"])
def test_labels_in_narrow_dtypes(rng, dtype):
    labels, target = rng.integers(0, 100, (2, N))
    got, _ = evaluate(Accuracy(num_classes=100), labels.astype(dtype), target.astype(dtype))
    close(got, sk.accuracy_score(target, labels))
    # A class whose last byte is that of another is another class all the same.
    far = rng.integers(0, 100, N)
    close(evaluate(Accuracy(num_classes=400), far.astype(dtype), far + 256)[0], 0)


def test_two_counters_for_any_number_of_classes(rng):
    metric = Accuracy(num_classes=128_256)
    assert sum(np.asarray(x).nbytes for x in jax.tree.leaves(metric)) < 100
    labels, target = rng.integers(0, 3, (2, N)) * 64_000
    metric = update(update(metric, labels, target), labels, target)
    right = 2 * (labels == target).sum()
    assert np.asarray(metric.statistic.cells.exact).tolist() == [right, 2 * N - right]
    close(metric.compute(), sk.accuracy_score(target, labels))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scores_of_half_precision(rng, dtype):
    scores = jnp.asarray(rng.permuted(np.tile(np.arange(C) / 8, (N, 1)), axis=1), dtype)
    target = rng.integers(0, C, N)
    want = sk.accuracy_score(target, np.asarray(scores, np.float32).argmax(1))
    close(evaluate(Accuracy(num_classes=C), scores, target)[0], want)


# What does not count.


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_labels_out_of_range_are_excluded_and_reported():
    # 7 and -100 are labels of no class; other libraries accept them, and count them as wrong.
    logits = np.float32([[2, 1, 0], [2, 1, 0], [0, 0, 1], [1, 0, 0]])
    target = np.asarray([0, 1, 7, -100])
    outputs = {"preds": logits, "target": target}
    metric = update(Accuracy(num_classes=3, on_invalid="exclude"), **outputs)
    assert_same(metric.compute(), 0.5, np.float32)
    assert int(metric.invalid_count()) == 2
    with pytest.warns(InvalidValuesWarning, match="Accuracy: 2 values or examples"):
        assert metric.results() == 0.5
    both = update(
        Collection({"accuracy": Accuracy(num_classes=3, on_invalid="exclude")}), **outputs
    )
    assert both.results() == {"accuracy": 0.5, "accuracy/invalid": 2}
    # One of the two is declared to be padding: ignored, and not reported.
    metric = update(Accuracy(num_classes=3, ignore_index=-100, on_invalid="exclude"), **outputs)
    assert_same(metric.compute(), 0.5, np.float32)
    assert int(metric.invalid_count()) == 1


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_ignore_index(rng, task):
    config = {"multiclass": {"num_classes": 3}, "binary": {}, "multilabel": {"num_labels": 3}}[task]
    shape = (N, 3) if task == "multilabel" else (N,)
    target = rng.integers(0, 3 if task == "multiclass" else 2, shape)
    target = np.where(rng.random(shape) < 0.3, -1, target)
    scores = rng.random((N,) if task == "binary" else (N, 3)).astype(np.float32)
    got, invalid = evaluate(Accuracy(ignore_index=-1, **config), scores, target)
    labels = scores.argmax(1) if task == "multiclass" else scores > 0.5
    kept = target != -1
    close(got, sk.accuracy_score(target[kept], labels[kept]))
    assert int(invalid) == 0
    assert int(evaluate(Accuracy(**config), scores, target)[1]) == (~kept).sum()
    assert np.isnan(evaluate(Accuracy(ignore_index=-1, **config), scores, np.full(shape, -1))[0])


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_scores_that_are_not_finite(rng):
    scores = rng.random((N, 3)).astype(np.float32)
    target = rng.integers(0, 3, N)
    bad = rng.random(N) < 0.2
    scores[bad, rng.integers(0, 3, bad.sum())] = rng.choice([np.nan, np.inf], bad.sum())
    got, invalid = evaluate(Accuracy(num_classes=3, on_invalid="exclude"), scores, target)
    want = sk.accuracy_score(target[~bad], scores[~bad].argmax(1))
    close(got, want)
    assert int(invalid) == bad.sum()
    # Padded away, they are no one's business.
    got, invalid = evaluate(Accuracy(num_classes=3, on_invalid="exclude"), scores, target, ~bad)
    close(got, want)
    assert int(invalid) == 0
    assert np.isnan(evaluate(Accuracy(num_classes=3), np.full((N, 3), np.nan), target)[0])


def test_shapes_that_do_not_agree_are_refused():
    # These shapes broadcast to (1000, 1000), so that some libraries give a value above 1.
    for metric in (Accuracy(), Accuracy(num_classes=3)):
        with pytest.raises(MetricInputError) as error:
            metric.update(np.zeros(1000, int), np.zeros((1000, 1), int))
        assert "(1000,)" in str(error.value)
        assert "(1000, 1)" in str(error.value)
        assert "reshape" in str(error.value)
        with pytest.raises(MetricInputError, match=r"\(3,\).*\(4,\)"):
            metric.update(np.zeros(3, int), np.zeros(4, int))


def test_two_thresholds_are_two_metrics():
    # In a collection that shares states without comparing thresholds, both values are 1.
    scores, target = np.float32([0.4, 0.5, 0.6, 0.65, 0.8]), np.ones(5, int)
    metrics = Collection({"low": Accuracy(threshold=0.3), "high": Accuracy(threshold=0.7)})
    got = update(metrics, preds=scores, target=target).results()
    assert got == {"low": 1.0, "high": np.float32(0.2)}
    with pytest.raises(ValueError, match=r"threshold is 0\.3 in one and 0\.7"):
        Accuracy(threshold=0.3).merge(Accuracy(threshold=0.7))


def test_averages():
    for average in ("sample", "Macro", "none", 1):
        with pytest.raises(MetricInputError, match="'micro', 'macro', 'weighted', 'samples', None"):
            Accuracy(average=average)
