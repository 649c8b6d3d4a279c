"""Labels that are numbered from 1: the message names them, and does not say to leave them out."""

import warnings

import jax
import numpy as np
import pytest

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MultiOutput, metrics

SCORES = np.float32([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]])
FROM_ONE = np.array([1, 3, 2])


def told(metric):
    with pytest.warns(InvalidValuesWarning) as seen:
        metric.results()
    (message,) = (str(each.message) for each in seen)
    return message


@pytest.mark.parametrize("policy", ["propagate", "exclude"])
def test_labels_from_1_are_explained(policy):
    for cls in (metrics.Accuracy, metrics.LogLoss, metrics.AUROC, metrics.ConfusionMatrix):
        message = told(cls(num_classes=3, on_invalid=policy).update(SCORES, FROM_ONE))
        assert "for example 3); expected 0 to 2 as labels" in message
        assert "If labels are from 1 to 3, subtract 1 from them" in message
        assert "exclude" not in message
        assert "weights" not in message
    # A label that no shift explains.
    message = told(metrics.Accuracy(num_classes=3, on_invalid=policy).update(SCORES, [0, 7, 1]))
    assert "for example 7); expected 0 to 2 as labels" in message
    assert "on_invalid=" in message


def test_binary_labels_1_and_2_are_explained():
    scores, labels = SCORES[:, 0], np.array([1, 2, 1])
    with pytest.raises(MetricInputError, match=r"target holds 2; .*If labels are 1 and 2, subtrac"):
        metrics.Accuracy().update(scores, labels)
    for labels_of_three in ([0, 1, 2], [1, 2, 3]):
        with pytest.raises(MetricInputError, match="needs num_classes="):
            metrics.Accuracy().update(scores, labels_of_three)
    # Within `jit` the state has the count and the greatest label.
    seen = jax.jit(metrics.Accuracy().update)(scores, labels)
    message = told(seen)
    assert "1 out of range, for example 2); expected 0 and 1 as labels, so the" in message
    assert "exclude" not in message


def test_metrics_without_labels_say_nothing_of_them():
    message = told(metrics.Mean().update([1.0, np.nan], weights=[-3, 1]))
    assert "labels" not in message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        several = MultiOutput(metrics.Accuracy(num_classes=3), 2).update(
            np.stack([FROM_ONE] * 2, 1), np.stack([FROM_ONE] * 2, 1)
        )
    assert "for example 3); expected 0 to 2 as labels" in told(several)


def test_a_score_out_of_range_is_not_taken_for_a_label():
    logits = np.float32([3.0, -2.0, 0.5])
    for cls in (metrics.BrierScore, metrics.CalibrationError):
        message = told(cls().update(logits, [1, 0, 1]))
        assert "3); expected 0 and 1 as labels, and probabilities from 0 to 1" in message
    # A metric without targets has no labels.
    scores = metrics.InceptionScore(num_classes=3, from_logits=False)
    assert "labels" not in told(scores.update(np.float32([[-1, 1, 1]])))


@pytest.mark.parametrize("name", ["LogLoss", "BrierScore", "CalibrationError", "D2LogLoss"])
def test_the_remedy_of_rows_that_do_not_sum_to_one_is_said(name, rng):
    cls, target = getattr(metrics, name), rng.integers(0, 2, 8)
    scores = rng.uniform(0.1, 0.2, (8, 3))
    message = told(cls(num_classes=3).update(scores, target))
    remedy = ". If preds are logits, give from_logits=True"
    assert message.endswith(f"{remedy}; else divide each row by its sum, which must be 1")
    assert told(cls().update(scores[:, 0] + 2, target)).endswith(remedy)
    # The sum of these rows could be a label that is counted from 1.
    message = told(cls(num_classes=3).update(np.ones((8, 3)), target))
    assert "If labels are from 1 to 3, subtract 1 from them. If preds are logits" in message
    assert message.endswith("; else divide each row by its sum, which must be 1")
    # What it says to do is right; and other data that cannot be used has another remedy.
    cls(num_classes=3, from_logits=True).update(scores, target).results()
    rows = scores / scores.sum(-1, keepdims=True)
    cls(num_classes=3).update(rows, target).results()
    assert "from_logits" not in told(cls(num_classes=3).update(rows * np.nan, target))
    with pytest.raises(datarax.InvalidValuesError, match=r"from_logits=True; else divide each row"):
        cls(num_classes=3, on_invalid="raise").update(scores, target).results()


def test_the_remedy_of_divergences(rng):
    rows = rng.uniform(0.1, 0.2, (8, 3))
    for cls in (metrics.KLDivergence, metrics.JensenShannonDivergence):
        message = told(cls().update(rows, rows))
        assert message.endswith(". Divide each row by its sum, which must be 1; of logits, give "
                                "their softmax")  # fmt: skip
    scores = metrics.InceptionScore(num_classes=3).update(rows)
    assert told(scores).endswith("; else divide each row by its sum, which must be 1")
