"""An `ignore_index` that is a class: it is in no average over classes, and NaN by class."""

from typing import Any

import jax
import numpy as np
import pytest
import sklearn.metrics as sk

from datarax import Classwise, Collection, Interval, Sliced, metrics
from datarax.metrics.classification.count_ratio import CountRatio
from datarax.metrics.probabilistic.mean_score import MeanScore
from tests.helpers import softmax, update
from tests.registry import CASES

CLASSES, IGNORED = 5, 3
OTHERS = [c for c in range(CLASSES) if c != IGNORED]
# Means over examples, counts, and one that refuses it.
BY_EXAMPLE = (MeanScore, metrics.StatScores, metrics.PanopticQuality)
AVERAGED = {
    case.id: case
    for case in CASES
    if case.config.get("num_classes", 0) > 2
    and {"average", "ignore_index"} <= case.cls.fields.keys()
    and case.config.get("multi_class") != "ovo"  # whose values are of pairs of classes
    and case.config.get("aggregate") != "image"  # an average in each image
    and not issubclass(case.cls, BY_EXAMPLE)
}


def outputs(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, some highest for the ignored class; targets; and which are kept."""
    target = rng.integers(0, CLASSES, 300)
    scores = rng.normal(size=(300, CLASSES))
    scores[np.arange(300), target] += 1
    return softmax(scores), target, target != IGNORED


def averaged(by_class: np.ndarray, support: np.ndarray, average: str) -> float:
    some = ~np.isnan(by_class)
    weights = support[some] if average == "weighted" else np.ones(some.sum())
    return float(np.average(by_class[some], weights=weights))


def test_there_are_metrics_of_each_kind():
    names = {case.cls.__name__ for case in AVERAGED.values()}
    assert {"Accuracy", "AUROC", "AveragePrecision", "CalibrationError", "Dice", "F1"} <= names


@pytest.mark.parametrize("case", AVERAGED.values(), ids=AVERAGED)
def test_averages_are_of_the_other_classes(case, rng):
    inputs = case.inputs.draw(rng, 64)
    target = inputs["target"]
    ignored = int(target.reshape(-1)[0])
    kept = target != ignored
    without = ("ignore_index", "labels")
    config = {n: x for n, x in case.config.items() if n not in without} | {"average": None}
    if "classwise" in case.cls.fields:  # the error of the highest score is of no class
        config["classwise"] = True
    without = update(case.cls(**config), **inputs, weights=kept).results()
    by_class = update(case.cls(**config, ignore_index=ignored), **inputs).results()
    start = 0 if config.get("include_background", True) else 1
    if ignored >= start:
        without[ignored - start] = np.nan
    np.testing.assert_allclose(by_class, without, rtol=1e-13)
    support = np.bincount(target[kept].reshape(-1), minlength=case.config["num_classes"])[start:]
    for average in ("macro", "weighted"):
        try:
            metric = case.cls(**{**config, "average": average}, ignore_index=ignored)
        except ValueError:  # the metric has no such average
            continue
        # Of classes that do not occur a ratio is `zero_division`, and is not averaged.
        occurs = np.ones(len(support), bool)
        if issubclass(case.cls, CountRatio):
            counts = update(case.cls(**config, ignore_index=ignored), **inputs).statistic.cells
            tp, fp, fn, _ = np.asarray(counts.double.to_float())
            occurs = tp + fn + fp * (config.get("top_k", 1) == 1) > 0
        want = averaged(np.where(occurs, by_class, np.nan), support, average)
        np.testing.assert_allclose(update(metric, **inputs).results(), want, rtol=1e-13)


@pytest.mark.parametrize("average", ["micro", "macro", "weighted"])
def test_scikit_learn_of_the_other_labels(rng, average):
    p, target, kept = outputs(rng)
    chosen = p.argmax(-1)
    assert (chosen[kept] == IGNORED).any()
    for cls, score in (
        (metrics.Precision, sk.precision_score),
        (metrics.Recall, sk.recall_score),
        (metrics.F1, sk.f1_score),
        (metrics.JaccardIndex, sk.jaccard_score),
        (metrics.MeanIoU, sk.jaccard_score),
        (metrics.Dice, sk.f1_score),
    ):
        metric = cls(num_classes=CLASSES, average=average, ignore_index=IGNORED)
        want = score(target[kept], chosen[kept], labels=OTHERS, average=average)
        assert metric.update(chosen, target).results() == pytest.approx(want, rel=1e-13)
    for cls, score in (
        (metrics.AUROC, sk.roc_auc_score),
        (metrics.AveragePrecision, sk.average_precision_score),
    ):
        one_hot = np.eye(CLASSES)[target][kept][:, OTHERS]
        want = score(one_hot, p[kept][:, OTHERS].astype(np.float32), average=average)
        for exact in ({}, {"exact": True, "capacity": 300}):
            config: dict[str, Any] = {"num_classes": CLASSES, "average": average, **exact}
            metric = cls(**config, from_logits=False, ignore_index=IGNORED)
            metric = metric.update(p.astype(np.float32), target)
            lower, upper = metric.bounds()
            assert lower - 1e-6 <= want <= upper + 1e-6
            if exact:
                assert metric.results() == pytest.approx(want, rel=1e-6)


def test_recall_and_accuracy_agree_on_absent_classes(rng):
    # Of several guesses for each example, a class that is guessed need not occur.
    p, target, _ = outputs(rng)
    some = (target == 0) | (target == 1)
    for k in (2, 3):
        config: dict[str, Any] = {"num_classes": CLASSES, "top_k": k, "average": "macro"}
        recall, accuracy = (
            cls(**config).update(p[some], target[some]).results()
            for cls in (metrics.Recall, metrics.Accuracy)
        )
        assert recall == accuracy > 0.5


def test_others_that_read_classes(rng):
    p, target, kept = outputs(rng)
    chosen = p.argmax(-1)
    config: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": IGNORED}
    report = metrics.ClassificationReport(**config).update(chosen, target).results()
    want: Any = sk.classification_report(
        target[kept], chosen[kept], labels=OTHERS, output_dict=True
    )
    for average in ("macro avg", "weighted avg"):
        assert report[average] == pytest.approx(want[average])
    assert np.isnan(report[str(IGNORED)]["precision"])
    assert report["accuracy"] == pytest.approx(sk.accuracy_score(target[kept], chosen[kept]))
    # Agreement beyond chance is of all predictions, and no average of classes.
    for cls, score in (
        (metrics.MatthewsCorrCoef, sk.matthews_corrcoef),
        (metrics.CohenKappa, sk.cohen_kappa_score),
    ):
        value = cls(**config).update(chosen, target).results()
        assert value == pytest.approx(score(target[kept], chosen[kept]))
    curve = metrics.ROC(**config, from_logits=False).update(p, target).results()
    assert np.isnan(curve.fpr[IGNORED]).all()
    assert not np.isnan(curve.fpr[OTHERS]).any()
    images = chosen.reshape(3, 10, 10), target.reshape(3, 10, 10)
    for aggregate in ("image", "dataset"):
        scores = metrics.GeneralizedDice(**config, aggregate=aggregate).update(*images).results()
        dice = metrics.Dice(**config, aggregate=aggregate).update(*images).results()
        parts = [slice(i, i + 100) for i in (0, 100, 200)] if aggregate == "image" else [slice(300)]
        expected, ratios = [], []
        for part in parts:
            a, b = chosen[part][kept[part]], target[part][kept[part]]
            there = np.array([(b == c).sum() for c in OTHERS])
            found = np.array([(a == c).sum() for c in OTHERS])
            right = np.array([((a == c) & (b == c)).sum() for c in OTHERS])
            v = 1 / there**2
            expected.append(2 * (v * right).sum() / (v * (there + found)).sum())
            ratios.append(np.mean(2 * right / (there + found)))
        assert scores == pytest.approx(np.mean(expected), rel=1e-6)
        assert dice == pytest.approx(np.mean(ratios), rel=1e-12)


def test_within_wrappers(rng):
    p, target, kept = outputs(rng)
    chosen = p.argmax(-1)
    config: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": IGNORED}
    want = sk.recall_score(target[kept], chosen[kept], labels=OTHERS, average=None)
    by_class = Classwise(metrics.Recall(average=None, **config), list("abcde"))
    named = by_class.update(chosen, target).results()
    assert np.isnan(named["d"])
    assert [named[x] for x in "abce"] == pytest.approx(want)
    interval = Interval(metrics.Recall(average=None, **config)).update(chosen, target).results()
    for values in interval.values():
        assert np.isnan(values[IGNORED])
        assert not np.isnan(values[OTHERS]).any()
    half = rng.integers(0, 2, 300)
    sliced = Sliced(metrics.F1(**config), 2).update(chosen, target, slices=half).results()
    for i in (0, 1):
        mask = kept & (half == i)
        score = sk.f1_score(target[mask], chosen[mask], labels=OTHERS, average="macro")
        assert sliced[str(i)] == pytest.approx(score)
    for average in ("macro", "micro"):
        area = metrics.AUROC(average=average, from_logits=False, **config)
        interval = Interval(area).update(p, target).results()
        same = Interval(
            metrics.AUROC(average=average, from_logits=False, num_labels=CLASSES - 1)
        ).update(p[kept][:, OTHERS], np.eye(CLASSES, dtype=int)[target[kept]][:, OTHERS])
        assert interval["std_error"] == pytest.approx(same.results()["std_error"], rel=1e-6)


def test_in_a_program(rng):
    p, target, _ = outputs(rng)
    p = p.astype(np.float32)
    config: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": IGNORED}
    areas: dict[str, Any] = {**config, "average": "micro", "from_logits": False}
    metric = Collection(
        {
            "precision": metrics.Precision(average="micro", **config),
            "by class": metrics.Specificity(average=None, **config),
            "pooled": metrics.AUROC(bits=10, **areas),
            "exact": metrics.AveragePrecision(exact=True, capacity=300, **areas),
            "calibration": metrics.CalibrationError(classwise=True, **config),
            "dice": metrics.GeneralizedDice(**config),
        }
    )
    rows = {"preds": p.reshape(30, 10, CLASSES), "target": target.reshape(30, 10)}
    seen = jax.jit(lambda metric, rows: metric.update(**rows))(metric, rows)
    values, want = jax.jit(lambda metric: metric.compute())(seen), update(metric, **rows).compute()
    for name, value in values.items():
        np.testing.assert_allclose(value, want[name], rtol=2e-5, err_msg=name)
