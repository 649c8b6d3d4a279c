"""`ClassificationReport`, `StatScores` and `GroupRates`: against scikit-learn, names, the table."""

from typing import Any

import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax import MetricInputError
from datarax.metrics import ClassificationReport, GroupFairness, GroupRates, StatScores
from tests.helpers import update

CLASSES = ("cat", "a dog of many letters", "fox")


def labels(rng, size=200):
    target = rng.integers(0, 3, size).astype(np.int32)
    preds = np.where(rng.random(size) < 0.6, target, rng.integers(0, 3, size)).astype(np.int32)
    return {"preds": preds, "target": target}


@pytest.mark.parametrize("weighted", [False, True])
def test_the_dict_is_that_of_scikit_learn(rng, weighted):
    outputs = labels(rng)
    w = rng.random(200).astype(np.float32) if weighted else None
    got = update(ClassificationReport(num_classes=3, names=CLASSES), **outputs, weights=w).results()
    want: Any = sklearn.metrics.classification_report(
        outputs["target"],
        outputs["preds"],
        target_names=CLASSES,
        sample_weight=w,
        output_dict=True,
    )
    assert got.keys() == want.keys()
    assert got.pop("accuracy") == pytest.approx(want["accuracy"], rel=1e-6)
    for name, row in got.items():
        assert row == pytest.approx(want[name], rel=1e-6), name


@pytest.mark.parametrize("digits", [2, 4])
def test_the_table_is_that_of_scikit_learn(rng, digits):
    outputs = labels(rng)
    got = update(ClassificationReport(num_classes=3, names=CLASSES), **outputs).text(digits)
    want: Any = sklearn.metrics.classification_report(
        outputs["target"], outputs["preds"], target_names=CLASSES, digits=digits
    )
    assert got == want.removesuffix("\n")


def test_a_value_is_rounded_once():
    # The macro F1 is 0.74335005: with seven digits first, it would be rounded down.
    counts = np.array([[51, 14, 4], [10, 43, 10], [8, 5, 55]])
    target, preds = (np.repeat(x.ravel(), counts.ravel()) for x in np.indices((3, 3)))
    got = ClassificationReport(num_classes=3).update(preds, target).text(4)
    want: Any = sklearn.metrics.classification_report(target, preds, digits=4)
    assert "0.7434" in got.splitlines()[-2]
    assert got == want.removesuffix("\n")


def test_both_classes_of_a_binary_task(rng):
    preds, target = rng.random(100).astype(np.float32), rng.integers(0, 2, 100).astype(np.int32)
    got = update(ClassificationReport(threshold=0.3), preds=preds, target=target).text()
    want: Any = sklearn.metrics.classification_report(target, preds > np.float32(0.3))
    assert got == want.removesuffix("\n")


def test_chosen_classes_are_those_of_scikit_learn(rng):
    """In their order, absent ones too; without some classes there is no accuracy."""
    target, preds = rng.integers(0, 3, (2, 60))
    tags, chosen = rng.integers(0, 2, (2, 60, 4))
    for size, given, every in (
        ({"num_classes": 5}, (preds, target), 5),
        ({"num_labels": 4}, (chosen, tags), 4),
        ({}, (preds % 2, target % 2), 2),
    ):
        for some in ([1], [1, 0], list(range(every)), [every - 1, 0]):
            names = [f"class {i}" for i in some]
            metric = ClassificationReport(labels=some, names=names, zero_division=0, **size)
            got = metric.update(*given).results()
            want: Any = sklearn.metrics.classification_report(
                *given[::-1],
                labels=some,
                target_names=names,
                zero_division=0,
                output_dict=True,
            )
            want.pop("samples avg", None)
            if len(some) == every and "num_labels" not in size:
                assert got.pop("accuracy") == pytest.approx(want.pop("accuracy"))
            assert got.keys() == want.keys(), some
            for name, row in got.items():
                assert row == pytest.approx(want[name], rel=1e-6), (some, name)
    for wrong in ([0, 0], [3], [], "a", 1, [1.0]):
        with pytest.raises(MetricInputError, match="expected different integers from 0 to 2"):
            ClassificationReport(num_classes=3, labels=wrong)


def test_no_data_has_a_table():
    lines = ClassificationReport(num_classes=3).text().splitlines()
    assert lines[2].split() == ["0", "nan", "nan", "nan", "nan"]


@pytest.mark.parametrize(
    "names", [("cat", "dog"), ("cat", "dog", "dog"), ("cat", "dog", "accuracy")]
)
def test_names_that_cannot_be_used(names):
    with pytest.raises(MetricInputError, match="expected 3 distinct names"):
        ClassificationReport(num_classes=3, names=names)


def test_scores_of_all_classes_added_up(rng):
    outputs = labels(rng)
    matrix = sklearn.metrics.multilabel_confusion_matrix(outputs["target"], outputs["preds"])
    (tn, fp), (fn, tp) = matrix.sum(0)
    got = update(StatScores(num_classes=3, average="micro"), **outputs).results()
    assert got.tolist() == [tp, fp, tn, fn, tp + fn]


def test_rates_of_groups_share_the_counts_of_their_fairness():
    members = {"rates": GroupRates(num_groups=3), "gaps": GroupFairness(num_groups=3)}
    preds, target = np.float32([0.9, 0.2, 0.8, 0.1]), np.int32([1, 1, 0, 0])
    pair = datarax.Collection(members)
    results = pair.update(preds=preds, target=target, groups=np.int32([0, 0, 2, 2])).results()
    np.testing.assert_array_equal(results["rates/group_0"], [0.5, 0, 0, 0.5])
    np.testing.assert_array_equal(results["rates/group_1"], [np.nan] * 4)
    np.testing.assert_array_equal(results["rates/group_2"], [0, 0.5, 0.5, 0])
    assert results["gaps/demographic_parity_difference"] == 0
