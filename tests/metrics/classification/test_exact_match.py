"""`ExactMatch` and `HammingDistance`: rows, sequences, what is left out, configuration."""

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk

from datarax import Collection, InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import Accuracy, ExactMatch, HammingDistance
from datarax.testing import assert_within_ulps
from tests.helpers import assert_same, update

N, S = 64, 3


def rows_mostly_right(rng, classes):
    target = rng.integers(0, classes, (N, S))
    preds = np.where(rng.random((N, S)) < 0.8, target, rng.integers(0, classes, (N, S)))
    return preds, target, rng.integers(0, 4, N)


def test_rows_of_labels(rng):
    preds, target, weights = rows_mostly_right(rng, 2)
    scores = np.where(preds == 1, 0.7, 0.4).astype(np.float32)
    metric = ExactMatch(num_labels=S, threshold=0.6)
    got = update(metric, preds=scores, target=target, weights=weights).compute()
    want = sk.accuracy_score(target, preds, sample_weight=weights)
    assert_within_ulps(got, want, 1)


@pytest.mark.parametrize("form", ["labels", "scores", "int8"])
def test_sequences_of_classes(rng, form):
    preds, target, weights = rows_mostly_right(rng, 5)
    given = {
        "labels": preds,
        "scores": np.float32(np.arange(5) == preds[..., None]),
        "int8": preds.astype(np.int8),
    }[form]
    outputs = {"preds": given, "target": target, "weights": weights}
    got = update(ExactMatch(num_classes=5), **outputs).compute()
    want = np.average((preds == target).all(1), weights=weights)
    assert_within_ulps(got, want, 1)


def test_ignored_entries_leave_the_rest_of_the_row():
    preds = np.int32([[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]])
    target = np.int32([[0, 1, -1], [0, -1, 1], [-1, -1, -1], [0, 1, 2]])
    # Whatever was predicted there.
    for given in (preds, np.where(target == -1, 99, preds)):
        metric = ExactMatch(num_classes=3, ignore_index=-1)
        metric = update(metric, preds=given, target=target)
        assert_same(metric.compute(), 2 / 3, np.float32)  # the third row is left out
        assert int(metric.invalid_count()) == 0


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_a_row_with_an_entry_out_of_range_is_excluded_and_counted_once():
    preds = np.float32([[0.9, 0.1], [np.nan, np.inf], [0.9, 0.1], [0.9, 0.9]])
    target = np.int32([[1, 0], [1, 0], [1, 7], [1, 0]])
    metric = update(ExactMatch(num_labels=2, on_invalid="exclude"), preds=preds, target=target)
    with pytest.warns(InvalidValuesWarning, match="1 NaN, 1 out of range, for example 7"):
        assert_same(metric.replace(on_invalid="exclude").compute(), np.float32(0.5))
    assert int(metric.invalid_count()) == 2
    used = np.asarray([True, False, False, True])
    padded = {"preds": preds, "target": target, "weights": used}
    assert int(update(ExactMatch(num_labels=2), **padded).invalid_count()) == 0


@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_hamming_distance_is_what_accuracy_leaves(rng, task):
    config = {"binary": {}, "multiclass": {"num_classes": 4}, "multilabel": {"num_labels": S}}[task]
    preds, target, weights = rows_mostly_right(rng, 4 if task == "multiclass" else 2)
    if task != "multilabel":
        preds, target = preds[:, 0], target[:, 0]
    metrics = {"distance": HammingDistance(**config), "accuracy": Accuracy(**config)}
    for average in ("macro", "weighted"):
        metrics[average] = HammingDistance(average=average, **config)
        metrics[f"{average} accuracy"] = Accuracy(average=average, **config)
    collection = Collection(metrics)
    assert len(collection.states_within()) == 1
    got = update(collection, preds=preds, target=target, weights=weights).compute()
    want = sk.hamming_loss(target, preds, sample_weight=weights)
    assert_within_ulps(got["distance"], want, 1)
    for average in ("macro", "weighted"):
        np.testing.assert_allclose(got[average], 1 - got[f"{average} accuracy"], atol=2.0**-22)


def test_the_distance_of_few_mistakes_keeps_its_digits():
    # 1 - accuracy would be 0: three mistakes in 2**34.
    outputs = {"preds": np.float32([1, 0]), "target": np.int32([1, 1])}
    metric = update(HammingDistance(), **outputs, weights=np.float32([2**34, 3]))
    assert_within_ulps(metric.compute(), 3 / (2**34 + 3), 1)


def test_configuration():
    with pytest.raises(MetricInputError, match=r"give num_labels= .* or num_classes="):
        ExactMatch()
    with pytest.raises(MetricInputError, match="exclude each other"):
        ExactMatch(num_labels=2, num_classes=2)
    labels = ExactMatch(num_labels=2)
    with pytest.raises(MetricInputError, match=r"\(4, 3\).*num_labels=2"):
        labels.update(np.zeros((4, 3)), np.zeros((4, 3), int))
    with pytest.raises(MetricInputError, match=r"\(4, 2\).*\(4,\)"):
        labels.update(np.zeros((4, 2)), np.zeros(4, int))
    with pytest.raises(MetricInputError, match=r"weights of shape \(4, 2\)"):
        labels.update(np.zeros((4, 2)), np.zeros((4, 2), int), weights=np.ones((4, 2)))
    with pytest.raises(MetricInputError, match="rows"):
        ExactMatch(num_classes=3).update(jnp.int32(1), jnp.int32(1))
    with pytest.raises(MetricTypeError, match="integer labels"):
        ExactMatch(num_classes=3).update(np.zeros((4, 2)), np.zeros((4, 2), int))
    assert np.isnan(labels.compute())
