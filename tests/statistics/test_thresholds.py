"""Predictions by a threshold: labels other than 0 and 1, scores that are logits."""

import math
import warnings
from decimal import Decimal, localcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import Collection, InvalidValuesWarning, MetricInputError, ScoresWarning, metrics
from datarax.metric import base
from datarax.statistics import ClassCounts
from datarax.statistics.thresholds import logit_below
from tests.helpers import make_mesh, place, update, x64

PREDS, TARGET = [1, 2, 3, 0], [1, 2, 4, 0]
SCORES = np.float32([0.1, 0.7, 0.3, 0.9])

BY_LABEL = {
    "accuracy": metrics.Accuracy,
    "f1": metrics.F1,
    "matrix": metrics.ConfusionMatrix,
    "matthews": metrics.MatthewsCorrCoef,
    "ratios": metrics.LikelihoodRatios,
    "hamming": metrics.HammingDistance,
}
BY_SCORE = {
    "auroc": metrics.AUROC,
    "exact": lambda: metrics.AveragePrecision(exact=True, capacity=8),
    "roc": metrics.ROC,
    "log loss": metrics.LogLoss,
    "brier": metrics.BrierScore,
    "hinge": metrics.HingeLoss,
    "calibration": metrics.CalibrationError,
    **BY_LABEL,
}


@pytest.mark.parametrize("kind", [list, np.array, jnp.array])
def test_labels_of_several_classes_need_num_classes(kind):
    with pytest.raises(MetricInputError, match=r"target holds 2; expected 0 and 1.*num_classes="):
        metrics.Accuracy().update(kind(PREDS), kind(TARGET))
    with pytest.raises(MetricInputError, match=r"preds holds 2; expected 0 and 1.*num_classes="):
        metrics.Accuracy().update(kind(PREDS), kind([1, 0, 1, 0]))
    assert metrics.Accuracy(num_classes=5).update(kind(PREDS), kind(TARGET)).compute() == 0.75


@pytest.mark.parametrize("name", BY_SCORE)
def test_every_binary_metric_refuses_other_labels(name):
    for target in (TARGET, [0.3, 0, 1, 1], np.array([0, 1, 255, 1], np.uint8)):
        with pytest.raises(MetricInputError, match=r"target holds (2|0\.3|255); expected 0 and 1"):
            BY_SCORE[name]().update(SCORES, target)


@pytest.mark.parametrize("dtype", ["int4", "bfloat16", "uint32"])
def test_labels_of_any_dtype(dtype):
    with pytest.raises(MetricInputError, match="target holds 4"):
        metrics.Accuracy().update(SCORES, jnp.array([0, 1, 4, 1]).astype(dtype))
    with pytest.raises(MetricInputError, match="target holds 3"):
        ClassCounts(num_labels=2).update(SCORES.reshape(2, 2), jnp.array([[0, 3], [1, 0]]))


def test_what_is_left_out_is_not_looked_at():
    used = {"preds": np.array([1, 9, 0, 0]), "target": np.array([1, -1, 1, 0])}
    for metric, more in (
        (metrics.Accuracy(), {"weights": np.array([1, 0, 1, 1])}),
        (metrics.Accuracy(), {"weights": [True, False, True, True]}),
        (metrics.Accuracy(ignore_index=-1), {}),
    ):
        np.testing.assert_array_equal(metric.update(**used, **more).compute(), np.float32(2 / 3))
    rows = {"preds": [[0.1, 0.9], [3.0, 0.2]], "target": [[0, 1], [5, 1]]}
    assert metrics.ExactMatch(num_labels=2).update(**rows, weights=[1, 0]).compute() == 1
    with pytest.raises(MetricInputError, match="target holds 5"):
        metrics.ExactMatch(num_labels=2).update(**rows, weights=[0.5, 1])


def test_traced_labels_are_invalid_and_counted():
    for preds, target, count in (
        (PREDS, TARGET, 2),
        (PREDS, [1, 0, 1, 0], 2),
        (SCORES, np.float32([0.3, 0, 1, 2]), 2),
    ):
        metric = update(metrics.Accuracy(), np.asarray(preds), np.asarray(target))
        assert int(metric.invalid_count()) == count
        with pytest.warns(InvalidValuesWarning, match="2 values or examples"):
            assert math.isnan(metric.replace(on_invalid="propagate").results())


def test_labels_on_several_devices_are_told_when_read():
    mesh = make_mesh("auto", {"data": 8})
    target = place(np.arange(8), mesh, P("data"))
    seen = silent(metrics.Accuracy().update, place(np.float32([0] * 8), mesh, P("data")), target)
    assert seen.invalid_count() == 6
    with pytest.warns(InvalidValuesWarning, match="^Accuracy: 6 values or .* expected 0 and 1"):
        assert math.isnan(seen.results())


def doubts(metric):
    """What a reading warns of the scores."""
    return [said for _, said in base.read(metric).doubts()]


def doubt(metric):
    (said,) = doubts(metric)
    return said


def test_other_scores_warn():
    logits, target = np.float32([-2, 0.3, 4, 0.1]), [0, 0, 1, 0]
    said = doubt(metrics.F1().update(logits, target))
    assert said.startswith("2 scores were not from 0 to 1, and were compared with a threshold")
    assert "If preds are logits, give from_logits=True" in said
    of_labels, pairs = metrics.F1(num_labels=2), np.abs(logits).reshape(2, 2)
    assert doubt(of_labels.update(pairs, [[0, 1], [0, 1]], weights=[0, 1])).startswith("1 scores")
    for metric, preds in (
        (metrics.F1(), SCORES),
        (metrics.F1(from_logits=True), logits),
        (metrics.F1(threshold=0.0), logits),  # of margins
        (metrics.F1(threshold=2.0), np.arange(4)),  # of whole scores
        (metrics.F1(num_classes=2), np.stack([logits, logits], 1)),
    ):
        assert not doubts(metric.update(preds, target))


def exact_logit(threshold):
    with localcontext() as context:
        context.prec = 80
        return Decimal(threshold).ln() - (1 - Decimal(threshold)).ln()


def test_the_threshold_of_logits_is_exact(rng):
    for threshold in [0.5, 0.3, 1e-30, 1 - 2.0**-53, *rng.random(20).tolist()]:
        exact = exact_logit(threshold)
        for dtype in ("float32", "float64"):
            below = logit_below(threshold, dtype)
            above = np.nextafter(np.asarray(below, dtype), np.asarray(np.inf, dtype))
            assert Decimal(below) <= exact < Decimal(float(above))
    assert logit_below(0.5, "float32") == 0


def test_from_logits(rng):
    logits, target = rng.normal(size=(40, 2)).astype(np.float32) * 3, rng.random((40, 2)) < 0.5
    for threshold in (0.0, 0.2, 0.5, 0.9, 1.0):
        config = {"threshold": threshold, "from_logits": True}
        edge = logit_below(threshold, "float32")
        chosen = logits > edge
        got = update(metrics.Accuracy(num_labels=2, **config), logits, target)
        np.testing.assert_array_equal(got.compute(), np.float32((chosen == target).mean()))
        # The float at the threshold is not above it, and the next one is.
        # Subnormal numbers are zero on some devices.
        above = edge + max(np.spacing(np.float32(abs(edge))), np.finfo(np.float32).tiny)
        near = np.float32([edge, above])
        if 0 < threshold < 1:
            assert metrics.Accuracy(**config).update(near, [0, 1]).compute() == 1
    rows = metrics.ExactMatch(num_labels=2, from_logits=True).update(logits, target)
    want = ((logits > 0) == target).all(1).mean()
    np.testing.assert_array_equal(rows.compute(), np.float32(want))
    fairness = metrics.GroupFairness(num_groups=2, from_logits=True)
    by_group = fairness.update(logits[:, 0], target[:, 0], np.arange(40) % 2).compute()
    rates = [(logits[i::2, 0] > 0).mean() for i in (0, 1)]
    np.testing.assert_allclose(by_group["demographic_parity_difference"], np.ptp(rates), 1e-6)
    with x64():
        edge = logit_below(0.3, "float64")
        near = np.array([edge, np.nextafter(edge, np.inf)])
        counts = ClassCounts(threshold=0.3, from_logits=True).update(near, [0, 1])
        assert np.asarray(counts.cells.value)[:, 0].tolist() == [1, 0, 0, 1]


def test_configurations_of_logits_that_make_no_sense():
    for threshold in (-0.1, 1.5):
        with pytest.raises(MetricInputError, match=f"threshold={threshold}; expected a probabil"):
            metrics.F1(threshold=threshold, from_logits=True)
    for cls in (metrics.Accuracy, metrics.ExactMatch):
        with pytest.raises(MetricInputError, match="leave it out with num_classes="):
            cls(num_classes=3, from_logits=True)


def test_scores_of_several_classes_without_num_classes():
    scores, target = np.zeros((4, 10), np.float32), np.zeros(4, int)
    for name in ("accuracy", "auroc", "log loss", "calibration"):
        with pytest.raises(MetricInputError, match=r"\(4, 10\).*\(4,\).*give num_classes=10"):
            BY_SCORE[name]().update(scores, target)
    with pytest.raises(TypeError, match="Leave num_classes= out for a binary task"):
        metrics.Accuracy(num_classes=3).update(scores[:, 0], target)


def test_a_jitted_update_looks_at_nothing():
    step = jax.jit(lambda metric, preds: metric.update(preds, preds))
    assert int(step(metrics.Accuracy(), np.arange(4)).invalid_count()) == 2


def test_the_warning_names_the_metric_of_a_collection():
    inner = Collection({"accuracy": metrics.Accuracy()})
    outer = Collection({"valid": inner})
    outer = outer.update(preds=jnp.array([0.2, 3.0]), target=jnp.array([0, 1]))
    with pytest.warns(ScoresWarning, match="^valid/accuracy: 1 scores"):
        outer.results()
    with pytest.warns(ScoresWarning, match="^Accuracy: 1 scores"):
        metrics.Accuracy().update(jnp.array([0.2, 3.0]), jnp.array([0, 1])).results()


# Scores of several classes.

LOGITS = np.float32([[2, 0.3, -1], [0.2, 4, 1], [1, -2, 0.5], [0, 1, 3]])
CLASSES = np.array([0, 1, 0, 2])
CURVES = {
    "auroc": metrics.AUROC,
    "exact": partial(metrics.AveragePrecision, exact=True, capacity=8),
    "ovo": partial(metrics.AUROC, multi_class="ovo"),
    "micro": partial(metrics.AveragePrecision, average="micro"),
    "det": metrics.DETCurve,
    "point": partial(metrics.PrecisionAtFixedRecall, min_recall=0.5),
}
OF_LOGITS = {
    "auroc": metrics.AUROC,
    "exact": CURVES["exact"],
    "log loss": metrics.LogLoss,
    "brier": metrics.BrierScore,
    "ranked": metrics.RankedProbabilityScore,
    "calibration": metrics.CalibrationError,
}


def softmax(x):
    e = np.exp(x.astype(np.float64))
    return e / e.sum(-1, keepdims=True)


def silent(update, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return update(*args, **kwargs)


@pytest.mark.parametrize("name", CURVES)
def test_rows_that_do_not_sum_to_1_warn(name):
    metric, p = CURVES[name](num_classes=3), softmax(LOGITS).astype(np.float32)
    for weights, rows in ((None, 4), (np.array([0, 0, 1, 0]), 1)):
        said = doubt(silent(metric.update, LOGITS, CLASSES, weights=weights))
        assert said.startswith(f"{rows} rows of scores did not sum to 1"), said
        assert "give from_logits=True, which" in said
        assert said.endswith("give from_logits=False")
    mixed = np.where(np.arange(4)[:, None] == 1, LOGITS, p)
    assert not doubts(metric.update(mixed, CLASSES, weights=np.array([1, 0, 1, 1])))
    assert not doubts(metric.update(p, CLASSES))
    for from_logits in (True, False):
        given = CURVES[name](num_classes=3, from_logits=from_logits)
        assert not doubts(given.update(LOGITS, CLASSES))


def test_what_sums_to_1_in_its_dtype_does_not_warn(rng):
    metric, target = metrics.AUROC(num_classes=100, bits=10), np.arange(64)
    for dtype in ("float32", "bfloat16", "float16"):
        logits = jnp.asarray(5 * rng.normal(size=(64, 100)), dtype)
        assert not doubts(metric.update(jax.nn.softmax(logits), target))
        assert not doubts(metric.update(jnp.eye(64, 100, dtype=dtype), target))
        assert doubts(metric.update(logits, target))
    nan = softmax(rng.normal(size=(64, 100))).astype(np.float32)
    nan[3, 5] = np.nan
    assert not doubts(metric.update(nan, target))
    ignoring = metrics.AUROC(num_classes=100, bits=10, ignore_index=7)
    nan[3], nan[7] = 0.01, 3
    assert doubt(metric.update(nan, target)).startswith("1 rows of scores")
    assert not doubts(ignoring.update(nan, target))


@pytest.mark.parametrize("name", OF_LOGITS)
def test_probabilities_that_are_given_as_logits_warn(name):
    metric, p = OF_LOGITS[name](num_classes=3, from_logits=True), softmax(LOGITS)
    for preds in (p.astype(np.float32), np.eye(3, dtype=np.float32)[CLASSES]):
        said = doubt(silent(metric.update, preds, CLASSES))
        assert said.startswith("all 4 rows held numbers from 0 to 1 with a sum of 1"), said
        assert "give from_logits=False" in said
    half = np.concatenate([p[:2], LOGITS[2:]]).astype(np.float32)
    assert not doubts(metric.update(half, CLASSES))
    assert doubts(metric.update(half, CLASSES, weights=np.array([1, 1, 0, 0])))
    # One row may be so by chance.
    assert not doubts(metric.update(half, CLASSES, weights=np.array([1, 0, 0, 0])))
    assert not doubts(metric.update(LOGITS, CLASSES))
    assert not doubts(metric.update(p[:1].astype(np.float32), CLASSES[:1]))


def test_many_rows_of_probabilities_that_are_given_as_logits(rng):
    p = rng.dirichlet(np.ones(3), 500).astype(np.float32)
    metric, target = metrics.LogLoss(num_classes=3, from_logits=True), np.zeros(500, int)
    assert "from_logits=False" in doubt(metric.update(p, target))
    p[400] = [3, -1, 2]
    assert not doubts(metric.update(p, target))


@pytest.mark.parametrize("shape", [(256,), (100, 3)])
def test_probabilities_that_are_given_as_logits_of_a_sigmoid(rng, shape):
    labels = {} if len(shape) == 1 else {"num_labels": shape[1]}
    target, scores = rng.integers(0, 2, shape), rng.random(shape, np.float32)
    scores.flat[:2] = 0, 1
    for make in (metrics.LogLoss, metrics.BrierScore, metrics.Accuracy, metrics.AUROC):
        metric = make(from_logits=True, **labels)
        for given in (scores, jnp.asarray(scores), jnp.asarray(scores, jnp.bfloat16)):
            said = doubt(silent(metric.update, given, target))
            assert said.startswith("no score was outside 0 to 1")
            assert "from_logits=False" in said
        assert not doubts(make(**labels).update(scores, target))
        # None of these is sure to be probabilities.
        few, trained, untrained = scores[:4], scores + 0.01, np.full_like(scores, 0.5)
        near = 0.4 + 0.2 * scores
        for given in (few, trained, untrained, near, rng.normal(size=shape).astype(np.float32)):
            assert not doubts(metric.update(given, target[: len(given)]))
        weights = np.arange(len(scores)) < 10
        assert not doubts(metric.update(scores, target, weights=weights))


def test_tokens_that_are_given_as_something_else():
    logits, ids = LOGITS.reshape(2, 2, 3), CLASSES.reshape(2, 2)
    p = softmax(logits).astype(np.float32)
    losses = -np.log(np.take_along_axis(p, ids[..., None], -1)[..., 0])
    for cls, more in ((metrics.Perplexity, {}), (metrics.BitsPerByte, {"num_bytes": ids + 1})):
        assert "log(preds)" in doubt(silent(cls().update, p, ids, **more))
        assert not doubts(cls().update(logits, ids, **more))
        assert not doubts(cls().update(np.log(p), ids, **more))
        metric = cls(from_losses=True)
        assert not doubts(metric.update(losses, **more))
        said = doubt(silent(metric.update, -losses, **more))
        assert said.startswith("4 losses were negative, and a loss -log(p) is not"), said
        assert not doubts(metric.update(np.full_like(losses, -1e-6), **more))  # by rounding
        assert not doubts(metric.update(-losses, **more, weights=np.zeros((2, 2))))
    inception = metrics.InceptionScore(num_classes=3, from_logits=True)
    assert "sum of 1" in doubt(silent(inception.update, p.reshape(4, 3)))


def test_minus_infinity_is_a_logit(rng):
    logits, target = rng.normal(size=(40, 4)).astype(np.float32), np.resize([0, 1, 3], 40)
    logits[:, 2] = -np.inf
    possible, among = logits[:, [0, 1, 3]], np.resize([0, 1, 2], 40)
    for cls in (metrics.LogLoss, metrics.BrierScore, metrics.CalibrationError):
        got = cls(num_classes=4, from_logits=True).update(logits, target).compute()
        want = cls(num_classes=3, from_logits=True).update(possible, among).compute()
        np.testing.assert_allclose(got, want, rtol=1e-5)
    right = (logits.argmax(-1) == target).mean()
    for metric in (metrics.Accuracy(num_classes=4), metrics.TokenAccuracy()):
        np.testing.assert_allclose(metric.update(logits, target).compute(), right, rtol=1e-6)
    got = metrics.Perplexity().update(logits, target).compute()
    np.testing.assert_allclose(got, metrics.Perplexity().update(possible, among).compute(), 1e-5)
    assert np.isinf(metrics.Perplexity().update(logits, np.full(40, 2)).compute())
    assert np.isinf(
        metrics.LogLoss(num_classes=4, from_logits=True).update(logits, [2] * 40).compute()
    )
    scores = metrics.InceptionScore(num_classes=4, from_logits=True).update(logits).compute()
    want = metrics.InceptionScore(num_classes=4, from_logits=True).update(possible).compute()
    np.testing.assert_allclose(scores, want, rtol=1e-5)
    one = np.float32([-np.inf, 2.0])
    assert metrics.Accuracy(from_logits=True).update(one, [0, 1]).compute() == 1
    np.testing.assert_allclose(
        metrics.LogLoss(from_logits=True).update(one, [0, 1]).compute(),
        np.log1p(np.exp(-2)) / 2,
        rtol=1e-6,
    )
    for row in ([-np.inf] * 4, [np.inf, 0, 0, 0], [np.nan, 0, 0, 0]):
        logits[3] = row
        for metric in (metrics.LogLoss(num_classes=4, from_logits=True), metrics.Perplexity(),
                       metrics.Accuracy(num_classes=4)):  # fmt: skip
            assert int(update(metric, logits, target).invalid_count()) == 1
