"""A score of -inf rules a class out: in every metric of logits, and where the highest is chosen."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import InvalidValuesError, Metric, metrics
from datarax.testing import assert_within_ulps
from tests.helpers import update, update_all

ROWS, CLASSES = 12, 4
LOW = -1e30
"""A finite logit whose probability is zero in float32 and float64."""

MULTICLASS: list[Metric] = [
    metrics.Accuracy(num_classes=CLASSES),
    metrics.Accuracy(num_classes=CLASSES, top_k=2),
    metrics.F1(num_classes=CLASSES),
    metrics.CohenKappa(num_classes=CLASSES),
    metrics.ConfusionMatrix(num_classes=CLASSES),
    metrics.MatthewsCorrCoef(num_classes=CLASSES),
    metrics.ClassificationReport(num_classes=CLASSES),
    metrics.Dice(num_classes=CLASSES),
    metrics.HingeLoss(num_classes=CLASSES),
    *(
        cls(num_classes=CLASSES, from_logits=True)
        for cls in (
            metrics.LogLoss,
            metrics.BrierScore,
            metrics.RankedProbabilityScore,
            metrics.D2LogLoss,
            metrics.D2Brier,
            metrics.CalibrationError,
            metrics.ReliabilityDiagram,
        )
    ),
    metrics.CalibrationError(num_classes=CLASSES, from_logits=True, classwise=True),
    metrics.CalibrationError(num_classes=CLASSES, from_logits=True, binning="mass"),
    metrics.Perplexity(),
    metrics.TokenAccuracy(),
    metrics.TokenAccuracy(top_k=2),
]
LABELS: list[Metric] = [
    metrics.Accuracy(num_labels=CLASSES, from_logits=True),
    metrics.ExactMatch(num_labels=CLASSES, from_logits=True),
    metrics.HingeLoss(num_labels=CLASSES),
    metrics.LogLoss(num_labels=CLASSES, from_logits=True),
    metrics.BrierScore(num_labels=CLASSES, from_logits=True),
    metrics.CalibrationError(num_labels=CLASSES, from_logits=True),
]


def assert_equal(got: Metric, want: Metric) -> None:
    assert got.invalid_count() == 0
    name, got, want = type(got).__name__, got.results(), want.results()
    assert isinstance(got, dict) or np.isfinite(got).all(), (name, got)
    jax.tree.map(partial(np.testing.assert_array_equal, err_msg=name), got, want)


def test_a_class_that_is_ruled_out_is_one_of_the_lowest_logit(rng: np.random.Generator) -> None:
    # The last class, and one more in some rows that do not have it as the target.
    target = rng.integers(0, CLASSES - 1, ROWS).astype(np.int32)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    logits[:, -1] = -np.inf
    logits[::2, :][np.arange(ROWS // 2), (target[::2] + 1) % (CLASSES - 1)] = -np.inf
    target[:2] = 0, 1  # the frequencies of one class leave nothing to explain
    logits[np.arange(ROWS), target] = rng.normal(size=ROWS)
    low = np.where(np.isneginf(logits), np.float32(LOW), logits)
    ours = update_all(MULTICLASS, jnp.asarray(logits), jnp.asarray(target))
    others = update_all(MULTICLASS, jnp.asarray(low), jnp.asarray(target))
    for got, want in zip(ours, others, strict=True):
        assert_equal(got, want)


def test_a_label_that_is_ruled_out_is_one_of_the_lowest_logit(rng: np.random.Generator) -> None:
    target = rng.integers(0, 2, (ROWS, CLASSES)).astype(np.int32)
    logits = rng.normal(size=(ROWS, CLASSES)).astype(np.float32)
    logits[(target == 0) & (rng.random(target.shape) < 0.7)] = -np.inf
    logits[0], target[0] = -np.inf, 0  # labels are judged each by itself
    low = np.where(np.isneginf(logits), np.float32(LOW), logits)
    ours = update_all(LABELS, jnp.asarray(logits), jnp.asarray(target))
    others = update_all(LABELS, jnp.asarray(low), jnp.asarray(target))
    for got, want in zip(ours, others, strict=True):
        assert_equal(got, want)


def test_sequences_images_and_bytes(rng: np.random.Generator) -> None:
    target = jnp.asarray(rng.integers(0, CLASSES - 1, (3, 5)), jnp.int32)
    logits = rng.normal(size=(3, 5, CLASSES)).astype(np.float32)
    logits[0] += 9 * np.eye(CLASSES, dtype=np.float32)[np.asarray(target[0])]
    logits[..., -1] = -np.inf
    low = np.where(np.isneginf(logits), np.float32(LOW), logits)
    given: list[tuple[Metric, dict[str, Any]]] = [
        (metrics.SequenceAccuracy(), {"target": target}),
        (metrics.BitsPerByte(), {"target": target, "num_bytes": jnp.ones((3, 5))}),
    ]
    for metric, more in given:
        got, want = (update(metric, jnp.asarray(x), **more) for x in (logits, low))
        assert_equal(got, want)
    score = metrics.InceptionScore(from_logits=True, num_classes=CLASSES)
    assert_equal(*(update(score, jnp.asarray(x[0])) for x in (logits, low)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_by_hand(dtype: str) -> None:
    target, other = jnp.array([0, 1, 2]), jnp.array([0, 1, 3])
    logits = jnp.zeros((3, 4), dtype).at[:, 3].set(-jnp.inf)
    seen = update(metrics.Perplexity(), logits, target)
    assert_within_ulps(seen.compute(), 3.0, ulps=4)
    # The token that cannot be has a loss of infinity, which no other data can take back.
    never = update(metrics.Perplexity(), logits, other)
    for metric in (never, never.merge(seen), seen.merge(never)):
        assert metric.results() == np.inf
        assert metric.invalid_count() == 0
    loss = metrics.LogLoss(num_classes=4, from_logits=True)
    assert update(loss, logits, other).results() == np.inf
    bits = update(metrics.BitsPerByte(), logits, other, num_bytes=jnp.ones(3))
    assert bits.results() == np.inf
    binary = update(metrics.LogLoss(from_logits=True), logits[:, 3], jnp.array([0, 0, 1]))
    assert binary.results() == np.inf


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ((-np.inf, -np.inf, -np.inf), "infinite"),
        ((0.0, np.inf, 1.0), "infinite"),
        ((-np.inf, np.inf, 1.0), "infinite"),
        ((np.nan, -np.inf, 1.0), "NaN"),
        ((np.nan, np.inf, -np.inf), "NaN"),
    ],
)
def test_rows_that_are_no_logits_are_invalid(row: tuple[float, ...], kind: str) -> None:
    logits, target = jnp.array([row, (2.0, 1.0, 0.0)]), jnp.array([0, 0])
    size = {"num_classes": 3}
    several = [
        metrics.Perplexity(),
        metrics.TokenAccuracy(),
        metrics.Accuracy(**size),
        metrics.LogLoss(**size, from_logits=True),
        metrics.CalibrationError(**size, from_logits=True),
    ]
    for seen in update_all(several, logits, target):
        assert seen.invalid_count() == 1
        with pytest.raises(InvalidValuesError, match=f"1 {kind}"):
            seen.replace(on_invalid="raise").results()


def test_where_scores_should_be_probabilities_they_may_not_be_infinite() -> None:
    preds, target = jnp.array([-jnp.inf, 0.7]), jnp.array([0, 1])
    assert metrics.Accuracy().update(preds, target).invalid_count() == 1
    # A threshold outside 0 to 1 is one of other scores.
    assert metrics.Accuracy(threshold=0.0).update(preds, target).results() == 1.0
