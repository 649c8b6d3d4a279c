"""Counts of examples are integers in `results`, as in scikit-learn, and floats in `compute`."""

import json

import jax
import numpy as np
import pytest
import sklearn.metrics
from sklearn.metrics.cluster import pair_confusion_matrix

import datarax
from datarax import metrics

CLASSES, SIZE = 3, 60
WEIGHTS = {
    "none": lambda rng: None,
    "mask": lambda rng: rng.random(SIZE) < 0.7,
    "integers": lambda rng: rng.integers(0, 4, SIZE),
    "whole floats": lambda rng: rng.integers(0, 4, SIZE).astype(np.float32),
}
COUNTS = {
    "confusion": metrics.ConfusionMatrix(num_classes=CLASSES),
    "scores": metrics.StatScores(num_classes=CLASSES),
    "scores_micro": metrics.StatScores(num_classes=CLASSES, average="micro"),
    "pairs": metrics.PairConfusionMatrix(num_classes=CLASSES),
}


@pytest.fixture
def labels(rng):
    return rng.integers(0, CLASSES, SIZE), rng.integers(0, CLASSES, SIZE)


def counts_of(metric, preds, target, w):
    """All counts that a metric gives, in one dict."""
    if isinstance(metric, metrics.ClassificationReport):
        values = metric.update(preds, target, weights=w).results().items()
        return {name: x["support"] for name, x in values if name != "accuracy"}
    if isinstance(metric, metrics.Histogram):
        return metric.update(preds, weights=w).results()
    if isinstance(metric, metrics.McNemar):
        values = metric.update(preds, target, np.ones_like(preds), weights=w).results()
        return {name: values[name] for name in ("only_a", "only_b")}
    return {"": metric.update(preds, target, weights=w).results()}


ALL = COUNTS | {
    "report": metrics.ClassificationReport(num_classes=CLASSES),
    "histogram": metrics.Histogram(num_bins=2, range=(0, 1)),
    "mcnemar": metrics.McNemar(num_classes=CLASSES),
}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ALL)
def test_whole_weights_give_integers(rng, labels, name, weights):
    w = WEIGHTS[weights](rng)
    for x in counts_of(ALL[name], *labels, w).values():
        assert type(x) is int or (isinstance(x, np.ndarray) and x.dtype == np.int64)


@pytest.mark.parametrize("name", ALL)
def test_fractional_weights_give_floats(rng, labels, name):
    # Of no common denominator, so that no sum is whole, but for the zeros of an empty class.
    w = rng.uniform(0.1, 0.5, SIZE)
    for x in counts_of(ALL[name], *labels, w).values():
        assert type(x) is float or (isinstance(x, np.ndarray) and x.dtype == np.float64)
    if name == "report":  # an empty class has the kind of the others
        few = counts_of(ALL[name], labels[0], np.minimum(labels[1], 1), w)
        assert few["2"] == 0
        assert {type(x) for x in few.values()} == {float}


def test_as_in_scikit_learn(labels):
    preds, target = labels
    matrix = COUNTS["confusion"].update(preds, target).results()
    want = sklearn.metrics.confusion_matrix(target, preds, labels=range(CLASSES))
    np.testing.assert_array_equal(matrix, want, strict=True)
    pairs = COUNTS["pairs"].update(preds, target).results()
    np.testing.assert_array_equal(pairs, pair_confusion_matrix(target, preds), strict=True)
    several = np.eye(CLASSES, dtype=int)[preds], np.eye(CLASSES, dtype=int)[target]
    of_labels = metrics.ConfusionMatrix(num_labels=CLASSES).update(*several).results()
    want = sklearn.metrics.multilabel_confusion_matrix(several[1], several[0])
    np.testing.assert_array_equal(of_labels, want, strict=True)


@pytest.mark.parametrize("name", COUNTS)
def test_compute_gives_floats_everywhere(labels, name):
    metric = COUNTS[name].update(*labels)
    eager, compiled = metric.compute(), jax.jit(lambda m: m.compute())(metric)
    assert eager.dtype == compiled.dtype == np.float32
    np.testing.assert_array_equal(eager, compiled)
    np.testing.assert_array_equal(eager, metric.results())


def test_normalized_matrices_and_nan_are_floats(labels):
    whole = np.arange(CLASSES)
    shares = metrics.ConfusionMatrix(num_classes=CLASSES, normalize="true").update(whole, whole)
    assert shares.results().dtype == np.float64
    spoilt = metrics.ConfusionMatrix(num_classes=CLASSES, on_invalid="propagate")
    spoilt = spoilt.update(whole, np.array([0, 1, CLASSES]))
    with pytest.warns(datarax.InvalidValuesWarning):
        assert np.isnan(spoilt.results()).all()


def test_counts_beyond_two_to_the_48_are_not_said_to_be_exact():
    metric = metrics.ConfusionMatrix(num_classes=2)
    ones = np.ones(1, int)
    large = metric.update(ones, ones, weights=np.float32([2.0**47]))
    odd = large.update(ones, ones)
    assert odd.results().tolist() == [[0, 0], [0, 2**47 + 1]]
    assert odd.results().dtype == np.int64
    assert large.merge(large).merge(large).results().dtype == np.float64


def test_in_wrappers_and_on_devices(labels, rng):
    metric, (preds, target) = COUNTS["confusion"], labels
    want = metric.update(preds, target).results()
    parts = rng.integers(0, 2, SIZE)
    by_slice = datarax.Sliced(metric, 2).update(preds, target, slices=parts).results()
    assert {x.dtype for x in by_slice.values()} == {np.dtype(np.int64)}
    np.testing.assert_array_equal(by_slice["overall"], want, strict=True)
    on_device = jax.jit(lambda m, *batch: m.update(*batch))(metric, *map(jax.numpy.asarray, labels))
    np.testing.assert_array_equal(on_device.results(), want, strict=True)
    collection = datarax.Collection({"matrix": metric}).update(preds=preds, target=target)
    assert json.loads(json.dumps(collection.results(as_json=True))) == {"matrix": want.tolist()}
    assert "." not in json.dumps(collection.results(as_json=True))
