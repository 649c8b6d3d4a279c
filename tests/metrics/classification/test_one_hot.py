"""One-hot labels are refused: each of their entries would count as the label of an example."""

import jax
import numpy as np
import pytest

from datarax import Collection, Metric, MetricInputError, Sliced, metrics, per_device
from datarax.evaluation.tasks import CLASSES, fields_of
from datarax.metrics import (
    Accuracy,
    AdjustedRand,
    ConfusionMatrix,
    EditDistance,
    GeneralizedDice,
    McNemar,
    MeanIoU,
    Perplexity,
    SequenceAccuracy,
    TokenAccuracy,
)
from datarax.metrics.classification.count_ratio import CountMetric
from datarax.metrics.clustering.contingency_table import TableMetric
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.metrics.probabilistic.calibration import CalibrationMetric
from datarax.metrics.probabilistic.mean_score import TaskScore
from datarax.metrics.segmentation.overlap import PixelMetric
from tests.helpers import make_mesh

N, C = 12, 4


def of_classes(*bases: type) -> list[str]:
    """The metrics that are of these classes, and need no field but the number of classes."""

    def needs_more(cls: type[Metric]) -> bool:
        return any(needed for name, needed in fields_of(cls).items() if name != "num_classes")

    return [n for n, cls in CLASSES.items() if issubclass(cls, bases) and not needs_more(cls)]


def one_hot(labels, dtype=np.int32):
    return np.eye(C, dtype=dtype)[labels]


@pytest.fixture
def labels(rng):
    return rng.integers(0, C, N), rng.integers(0, C, N)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
@pytest.mark.parametrize("name", of_classes(CountMetric, TableMetric, PixelMetric))
def test_one_hot_on_both_sides(labels, name, dtype):
    metric = getattr(metrics, name)(num_classes=C)
    preds, target = (one_hot(x, dtype) for x in labels)
    # It is known when the update is traced.
    for update in (metric.update, jax.jit(metric.update)):
        with pytest.raises(MetricInputError, match=r"one-hot.*argmax\(-1\).*target\.argmax\(-1\)"):
            update(preds, target)


@pytest.mark.parametrize("name", of_classes(ScoreMetric, TaskScore, CalibrationMetric))
def test_one_hot_targets_of_scores(rng, labels, name):
    scores = rng.random((N, C), np.float32)
    scores /= scores.sum(1, keepdims=True)
    metric = getattr(metrics, name)(num_classes=C)
    with pytest.raises(MetricInputError, match=r"one-hot, give target\.argmax\(-1\)"):
        jax.eval_shape(metric.update, scores, one_hot(labels[1]))


def test_one_hot_in_wrappers_and_on_one_side(rng, labels):
    preds, target = map(one_hot, labels)
    accuracy = Accuracy(num_classes=C)
    said = pytest.raises(MetricInputError, match=r"one-hot.*argmax")
    with said:
        Collection({"a": accuracy}).update(preds=preds, target=target)
    with said:
        Sliced(accuracy, 2).update(preds, target, slices=labels[1] % 2)
    with said:
        per_device(accuracy, make_mesh("auto", {"data": 8}), "data").update(preds, target)
    with said:
        McNemar(num_classes=C).update(preds, preds, target)
    with said:
        accuracy.update(labels[0], target)
    with said:
        AdjustedRand(num_classes=C).update(preds, target)


def test_integer_scores_are_scores(rng, labels):
    # One example has one label, so the shapes say which of the two are scores.
    preds, target = labels
    accuracy = Accuracy(num_classes=C)
    expected = accuracy.update(preds, target).results()
    assert accuracy.update(one_hot(preds), target).results() == expected
    votes = rng.permuted(np.tile(np.arange(C), (N, 1)), axis=1)
    expected = accuracy.update(votes.argmax(1), target).results()
    assert accuracy.update(votes, target).results() == expected


def test_images_and_tokens(rng):
    ids = rng.integers(0, C, (3, 5, 6))
    last, channels = one_hot(ids), np.moveaxis(one_hot(ids), -1, 1)
    for metric in (MeanIoU(num_classes=C), GeneralizedDice(num_classes=C)):
        with pytest.raises(MetricInputError, match=r"argmax\(-1\)"):
            jax.eval_shape(metric.update, last, last)
        # Volumes whose depth is C are legal, so it takes the values to know that this is one-hot.
        with pytest.raises(MetricInputError, match=r"one-hot along axis 1.*argmax\(1\)"):
            metric.update(channels, channels)
        # Images whose width is C are labels: a row of ones is not one-hot.
        square = rng.integers(0, C, (3, 5, C))
        square[0, 0] = 1
        assert metric.update(square, square).results() == 1
    tokens = one_hot(ids[0])
    for metric in (TokenAccuracy(), SequenceAccuracy(), ConfusionMatrix(num_classes=C)):
        with pytest.raises(MetricInputError, match=r"one-hot along axis -1.*argmax\(-1\)"):
            metric.update(tokens, tokens)
    with pytest.raises(MetricInputError, match=r"one-hot, give target\.argmax\(-1\)"):
        Perplexity().update(np.float32(tokens), tokens)
    assert TokenAccuracy().update(ids, ids).results() == 1


@pytest.mark.parametrize("metric", [TokenAccuracy(), SequenceAccuracy(), EditDistance()])
def test_one_hot_tokens_of_which_no_size_is_known(labels, metric):
    preds, target = map(one_hot, labels)
    with pytest.raises(MetricInputError, match=r"one-hot along axis -1.*target\.argmax\(-1\)"):
        metric.update(preds, target)
    with pytest.raises(MetricInputError, match="one-hot"):
        metric.update(jax.numpy.asarray(preds), jax.numpy.asarray(target))
    metric.update(preds * 2, target)  # ids
    metric.update(preds, np.ones_like(target))


def test_a_batch_of_other_shape_after_images(rng):
    images, labels = rng.integers(0, C, (3, 5, 6)), np.arange(2)[:, None] == np.arange(2)
    for metric in (Accuracy(num_classes=C), TokenAccuracy()):
        metric = metric.update(images, images)
        # Two sequences with a single 1 each are labels, and not one-hot.
        metric = metric.update(labels.astype(np.int64)[0], labels.astype(np.int64)[0])
        assert metric.results() == 1
    tokens = TokenAccuracy().update(images, images).update(labels.astype(int), labels.astype(int))
    assert tokens.results() == 1
