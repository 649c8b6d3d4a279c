"""Log loss, Brier score, hinge loss, perplexity: what the cases of the registry do not cover."""

import math
import warnings
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax.metrics import BrierScore, HingeLoss, LogLoss, Perplexity
from datarax.testing import assert_within_ulps
from tests.helpers import softmax, update, value_of, x64
from tests.registry.probabilistic import surprises

N, C = 64, 5


@pytest.fixture
def logits(rng):
    return rng.normal(0, 3, (N, C)).astype(np.float32), rng.integers(0, C, N).astype(np.int32)


TASKS = {"binary": {}, "multiclass": {"num_classes": C}, "multilabel": {"num_labels": C}}


def batch_of(task: str, logits: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, probabilities in float64, targets."""
    x, target = logits
    if task == "multiclass":
        return x, softmax(x.astype(np.float64)), target
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    positive = (x + target[:, None] > 3).astype(np.int32)
    return (x, p, positive) if task == "multilabel" else (x[:, 0], p[:, 0], positive[:, 0])


def log_losses(task: str, p: np.ndarray, target: np.ndarray) -> np.ndarray:
    if task == "multiclass":
        return -np.log(p[np.arange(N), target])
    return -np.where(target == 1, np.log(p), np.log1p(-p))


def squares(task: str, p: np.ndarray, target: np.ndarray) -> np.ndarray:
    if task == "multiclass":
        return ((p - np.eye(C)[target]) ** 2).sum(-1)
    return (p - target) ** 2


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("cls", "scores"), [(LogLoss, log_losses), (BrierScore, squares)])
def test_logits_and_probabilities_give_the_same(task, cls, scores, logits, rng):
    x, p, target = batch_of(task, logits)
    weights = rng.choice(np.float32([0, 0.5, 2]), N)
    each = scores(task, p, target).reshape(N, -1)
    want = np.average(each.mean(-1), weights=weights)
    got = value_of(cls(from_logits=True, **TASKS[task]), x, target, weights=weights)
    # The logarithm or exponential of numbers up to 16, rounded by 2**-24 of them.
    assert_within_ulps(got, want, 32)
    # A probability is rounded by u, and so is 1 - p, however small it is.
    got = value_of(cls(**TASKS[task]), p.astype(np.float32), target, weights=weights)
    assert_within_ulps(got, want, 8, atol=2.0**-24 * np.average(1 / (1 - p.max()) + 1 / p.min()))


@pytest.mark.parametrize("cls", [LogLoss, BrierScore])
def test_multilabel_is_the_mean_of_binary_tasks(cls, logits):
    _, p, target = batch_of("multilabel", logits)
    p = p.astype(np.float32)
    each = [float(value_of(cls(), p[:, k], target[:, k])) for k in range(C)]
    assert_within_ulps(value_of(cls(num_labels=C), p, target), np.mean(each), 4)


def test_a_confident_correct_prediction_from_logits_keeps_full_precision():
    # The loss is log(1 + 2 exp(-40)); as the logarithm of the sum minus a logit it would be 0.
    x = jnp.array([[20.0, -20.0, -20.0]])
    zero = jnp.zeros(1, jnp.int32)
    got = value_of(LogLoss(num_classes=3, from_logits=True), x, zero)
    assert_within_ulps(got, math.log1p(2 * math.exp(-40)), 8)
    assert_within_ulps(
        value_of(LogLoss(from_logits=True), x[:, 0] * 2, zero + 1), math.log1p(math.exp(-40)), 8
    )
    off = math.exp(-40) / (1 + 2 * math.exp(-40))
    got = value_of(BrierScore(num_classes=3, from_logits=True), x, zero)
    assert_within_ulps(got, 6 * off**2, 16)


@pytest.mark.parametrize("cls", [LogLoss, BrierScore])
def test_logits_may_have_any_offset(cls, logits):
    x = np.round(logits[0] * 16) / 16  # so that adding an offset does not round
    metric = cls(num_classes=C, from_logits=True)
    want = value_of(metric, x.astype(np.float32), logits[1])
    for offset in (1e4, -1e4):
        assert value_of(metric, np.float32(x + offset), logits[1]) == want


def test_extreme_logits_have_a_finite_loss():
    x, target = np.float32([[1e30, 0.0], [-1e30, 0.0]]), np.array([1, 1])
    assert value_of(LogLoss(num_classes=2, from_logits=True), x, target) == np.float32(5e29)
    assert value_of(BrierScore(num_classes=2, from_logits=True), x, target) == 0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_probabilities_are_clipped_at_the_resolution_of_float32(dtype):
    p, target = jnp.array([0.0, 1.0], dtype), jnp.array([1, 0])
    assert_within_ulps(value_of(LogLoss(), p, target), -math.log(2.0**-23), 2)
    assert_within_ulps(value_of(LogLoss(), p, 1 - target), -math.log1p(-(2.0**-23)), 2)
    rows = jnp.array([[0.0, 1.0]], dtype)
    assert_within_ulps(value_of(LogLoss(num_classes=2), rows, target[1:]), -math.log(2.0**-23), 2)


def test_probabilities_are_clipped_as_in_scikit_learn():
    p, target = np.float32([0.0, 1.0, 1e-9, 0.5]), np.array([1, 0, 1, 1])
    assert_within_ulps(value_of(LogLoss(), p, target), sklearn.metrics.log_loss(target, p), 4)
    with x64():
        p = p.astype(np.float64)
        assert_within_ulps(value_of(LogLoss(), p, target), sklearn.metrics.log_loss(target, p), 4)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_rows_that_are_not_distributions_are_excluded_and_counted():
    fine = [[0.25, 0.75], [0.25, 0.7501], [0.25, 0.7499]]
    off = [[0.25, 0.7511], [0.25, 0.7489], [0.5, 0.0], [1.25, -0.25], [0.5, jnp.nan]]
    seen = update(
        LogLoss(num_classes=2, on_invalid="exclude"), np.float32(fine + off), np.zeros(8, np.int32)
    )
    assert seen.invalid_count() == len(off)
    assert seen.statistic.weight.value == 3
    # They are not divided by their sum.
    assert_within_ulps(seen.compute(), -math.log(0.25), 2)


def test_the_rounded_sums_of_rows_in_half_precision_are_valid(logits):
    _, p, target = batch_of("multiclass", logits)
    for dtype in (jnp.bfloat16, jnp.float16):
        assert update(LogLoss(num_classes=C), jnp.asarray(p, dtype), target).invalid_count() == 0


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_logits_are_not_taken_for_probabilities(logits):
    x, _, target = batch_of("multiclass", logits)
    seen = update(LogLoss(num_classes=C, on_invalid="exclude"), x, target)
    assert seen.invalid_count() == N
    assert np.isnan(seen.compute())


@pytest.mark.parametrize(
    ("scale_by_half", "classes"),
    [("auto", None), (False, None), ("auto", 2), ("auto", 3), (True, 3)],
)
def test_brier_is_scaled_as_in_scikit_learn(scale_by_half, classes, rng):
    if classes is None:
        p, labels = rng.random(N).astype(np.float32), (0, 1)
    else:
        p, labels = softmax(rng.normal(size=(N, classes))).astype(np.float32), range(classes)
    target = rng.choice(labels, N)
    got = value_of(BrierScore(num_classes=classes, scale_by_half=scale_by_half), p, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that rounded rows do not sum to one
        want = sklearn.metrics.brier_score_loss(
            target, p.astype(np.float64), labels=list(labels), scale_by_half=scale_by_half
        )
    assert_within_ulps(got, want, 8)


def test_brier_score_of_brier_1950():
    # Brier (1950), table 1: ten forecasts of rain or no rain, whose score is 0.19.
    rain = np.float32([0.7, 0.9, 0.8, 0.4, 0.2, 0.0, 0.0, 0.0, 0.0, 0.1])
    came = np.array([0, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    assert_within_ulps(value_of(BrierScore(scale_by_half=False), rain, came), 0.19, 4)


def test_log_loss_and_hinge_loss_equal_the_examples_of_scikit_learn():
    p = np.array([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.35, 0.65]], np.float32)
    assert round(float(value_of(LogLoss(num_classes=2), p, np.array([1, 0, 0, 1]))), 5) == 0.21616
    decisions = np.float32([-2.18, 2.36, 0.09])
    assert round(float(value_of(HingeLoss(), decisions, np.array([0, 1, 1]))), 2) == 0.30
    # Its multiclass example: the margins of four decisions, in order.
    scores = np.float32([[1.27, 0.03, -0.68, -1.41], [-1.45, -0.58, -0.38, -0.17]])
    scores = np.concatenate([scores, np.float32([[-2.36, -0.79, -0.27, 0.24]])])
    target = np.array([0, 3, 2])
    losses = [0, 1 - (-0.17 + 0.38), 1 - (-0.27 - 0.24)]
    assert_within_ulps(value_of(HingeLoss(num_classes=4), scores, target), np.mean(losses), 4)


@pytest.mark.parametrize("squared", [False, True])
def test_hinge_of_two_outcomes(squared, logits):
    x, target = logits
    positive = (x + target[:, None] > 3).astype(np.int32)
    each = np.maximum(0, 1 - np.where(positive == 1, x, -x).astype(np.float64))
    if squared:
        got = value_of(HingeLoss(squared=True, num_labels=C), x, positive)
        assert_within_ulps(got, (each**2).mean(), 16)
        return
    got = value_of(HingeLoss(), x[:, 0], positive[:, 0])
    assert_within_ulps(got, each[:, 0].mean(), 16)
    want = sklearn.metrics.hinge_loss(positive[:, 0], x[:, 0].astype(np.float64))
    assert_within_ulps(got, want, 16)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_an_ignored_target_is_neither_counted_nor_invalid():
    preds = np.float32([[0.25, 0.75], [0.5, 0.5], [np.nan, 2.0]])
    metric = LogLoss(num_classes=2, ignore_index=-100, on_invalid="exclude")
    seen = update(metric, preds, np.int32([1, -100, -100]))
    assert (seen.invalid_count(), seen.statistic.weight.value) == (0, 1)
    assert seen.compute() == update(metric, preds, np.int32([1, -100, 7])).compute()
    # If the dtype does not hold the number, no target is ignored.
    seen = update(metric, preds[:2], np.uint8([1, 156]))
    assert (seen.invalid_count(), seen.statistic.weight.value) == (1, 1)
    labels = BrierScore(num_labels=2, ignore_index=-1)
    seen = update(labels, preds[:1], np.int32([[1, -1]]))
    assert (seen.statistic.weight.value, seen.invalid_count()) == (1, 0)


def test_perplexity_is_over_all_tokens_not_a_mean_over_batches(rng):
    x = rng.normal(0, 2, (6, 8, 11)).astype(np.float32)
    x[3:] *= 3  # so that one batch has a much higher perplexity
    ids = rng.integers(0, 11, (6, 8)).astype(np.int32)
    ids[1:, 3:] = 10  # padding: the batches are ragged
    metric = seen = Perplexity(ignore_index=10)
    for start in (0, 3):
        seen = update(seen, x[start : start + 3], ids[start : start + 3])
    each = surprises(x.reshape(-1, 11).astype(np.float64), ids.reshape(-1))
    want = np.exp(each[ids.reshape(-1) != 10].mean())
    assert_within_ulps(seen.compute(), want, 48)
    assert_within_ulps(value_of(metric, x, ids), want, 48)
    batches = [value_of(metric, x[i : i + 3], ids[i : i + 3]) for i in (0, 3)]
    assert abs(np.mean(batches) - want) > 1e-3 * want
    assert int(seen.statistic.weight.value) == (ids != 10).sum()


def test_perplexity_of_a_uniform_guess_is_the_vocabulary():
    metric = update(Perplexity(), jnp.zeros((2, 3, 1000)), jnp.ones((2, 3), jnp.int32))
    assert_within_ulps(metric.compute(), 1000.0, 16)
    assert_within_ulps(value_of(Perplexity(), jnp.zeros((4, 1)), jnp.zeros(4, jnp.int32)), 1.0, 0)


def test_perplexity_is_the_exponential_of_the_log_loss(logits):
    x, target = logits
    loss = value_of(LogLoss(num_classes=C, from_logits=True), x, target)
    assert_within_ulps(value_of(Perplexity(), x, target), np.exp(np.float64(loss)), 8)


def test_weights_may_be_by_sequence_or_by_token():
    x = jnp.stack([jnp.zeros((3, 4)), jnp.ones((3, 4)).at[:, 1].set(3.0)])
    ids = jnp.ones((2, 3), jnp.int32)
    sequences = update(Perplexity(), x, ids, weights=jnp.array([1.0, 0.0]))
    tokens = update(Perplexity(), x, ids, weights=jnp.array([[1.0] * 3, [0.0] * 3]))
    assert sequences.compute() == tokens.compute() == 4
    assert sequences.statistic.weight.value == tokens.statistic.weight.value == 3


def test_counts_do_not_stall():
    metric = update(Perplexity(), jnp.zeros((2, 3, 4)), jnp.ones((2, 3), jnp.int32))
    for _ in range(31):
        metric = metric.merge(metric)
    metric = update(metric, jnp.zeros((2, 3, 4)), jnp.ones((2, 3), jnp.int32))
    assert float(metric.statistic.weight.exact) == 6 * 2.0**31 + 6
    assert_within_ulps(metric.compute(), 4.0, 2)


def test_with_x64(logits):
    x, p, target = batch_of("multiclass", logits)
    with x64():
        for preds, from_logits in ((x.astype(np.float64), True), (p, False)):
            got = value_of(LogLoss(num_classes=C, from_logits=from_logits), preds, target)
            assert got.dtype == np.float64
            assert_within_ulps(got, log_losses("multiclass", p, target).mean(), 64)


def test_integers_are_probabilities_too():
    metric = LogLoss(num_classes=2)
    one_hot, target = jnp.array([[1, 0], [0, 1]]), jnp.array([0, 1])
    assert_within_ulps(value_of(metric, one_hot, target), -math.log1p(-(2.0**-23)), 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(LogLoss, num_classes=3, num_labels=3), "exclude each other"),
        (partial(LogLoss, num_classes=1), "num_classes=1; expected an integer of at least 2"),
        (partial(BrierScore, num_labels=0), "num_labels=0"),
        (partial(LogLoss, from_logits="auto"), "from_logits='auto'; expected one of False, True"),
        (partial(BrierScore, scale_by_half="no"), "scale_by_half='no'; expected one of 'auto'"),
        (partial(HingeLoss, squared=2), "squared=2; expected one of False, True"),
        (partial(Perplexity, on_invalid="drop"), "on_invalid='drop'"),
    ],
)
def test_configuration_is_checked(make, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        make()


@pytest.mark.parametrize(
    ("metric", "preds", "target", "message"),
    [
        (LogLoss(), (8,), (8, 1), r"preds of shape \(8,\) and target of shape \(8, 1\)"),
        (LogLoss(num_classes=3), (8,), (8,), r"expected preds of shape \(8, 3\) for num_classes=3"),
        (HingeLoss(num_classes=3), (8, 4), (8,), r"expected preds of shape \(8, 3\)"),
        (BrierScore(num_labels=3), (8, 4), (8, 4), r"preds of shape \(8, 4\) for num_labels=3"),
        (
            Perplexity(),
            (2, 3, 7),
            (2, 4),
            r"preds of shape \(2, 3, 7\) and target of shape \(2, 4\)",
        ),
        (Perplexity(), (), (), r"preds of shape \(\); expected logits of shape \(..., V\)"),
        (Perplexity(), (4, 0), (4,), r"preds of shape \(4, 0\); expected logits"),
    ],
)
def test_shapes_are_checked(metric, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        metric.update(jnp.zeros(preds), jnp.zeros(target, jnp.int32))


def test_token_ids_are_integers():
    with pytest.raises(datarax.MetricTypeError, match="target has dtype float32"):
        Perplexity().update(jnp.zeros((4, 3)), jnp.zeros(4))


def test_logits_that_are_far_apart():
    logits = np.float32([[3e38, -3e38, 3e38], [3e38, -3e38, 3e38], [3e38, -3e38, -3e38]])
    for target, loss in (([1, 1, 1], np.inf), ([0, 2, 0], 2 * np.log(2) / 3)):
        target = np.asarray(target)
        assert_within_ulps(update(Perplexity(), logits, target).compute(), np.exp(loss), 4)
        multiclass = LogLoss(num_classes=3, from_logits=True)
        assert_within_ulps(update(multiclass, logits, target).compute(), loss, 4)


@pytest.mark.parametrize("cls", [LogLoss, BrierScore, HingeLoss])
def test_a_value_for_each_label(cls, logits, rng):
    preds, p, target = batch_of("multilabel", logits)
    preds = preds if cls is HingeLoss else p.astype(np.float32)
    w = rng.random(N).astype(np.float32)
    by_label = value_of(cls(num_labels=C, average=None), preds, target, weights=w)
    score = {
        LogLoss: sklearn.metrics.log_loss,
        BrierScore: sklearn.metrics.brier_score_loss,
        HingeLoss: sklearn.metrics.hinge_loss,
    }[cls]
    want = [score(target[:, c], preds[:, c], sample_weight=w) for c in range(C)]
    assert_within_ulps(by_label, np.array(want), 16)
    # Without an average, the labels of an example have equal weights.
    together = value_of(cls(num_labels=C), preds, target, weights=w)
    assert_within_ulps(together, np.mean(want), 16)


@pytest.mark.parametrize("config", [{}, {"num_classes": C}])
def test_only_labels_have_a_value_each(config):
    with pytest.raises(datarax.MetricInputError, match="give num_labels="):
        LogLoss(average=None, **config)
