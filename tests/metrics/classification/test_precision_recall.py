"""Ratios of counts by class: worked examples, undefined values, large counts, configuration.

Agreement with oracles and scikit-learn on random data is in `tests/test_laws.py`.
"""

import pickle
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk

import datarax
from datarax import Collection, MetricInputError
from datarax.metrics import (
    F1,
    Accuracy,
    CohenKappa,
    FBeta,
    HammingDistance,
    InformednessYouden,
    JaccardIndex,
    LikelihoodRatios,
    MatthewsCorrCoef,
    NegativePredictiveValue,
    Precision,
    Recall,
    Specificity,
)
from datarax.testing import assert_within_ulps
from tests.helpers import assert_same, update, value_of, x64

RATIOS = (
    Precision,
    Recall,
    Specificity,
    NegativePredictiveValue,
    F1,
    FBeta,
    JaccardIndex,
    InformednessYouden,
)
CELLS = {"preds": np.float32([1, 1, 0, 0]), "target": np.int32([1, 0, 1, 0])}  # TP, FP, FN, TN


def of_cells(metric, *cells):
    """The value of a metric of so many TP, FP, FN and TN."""
    return value_of(metric, **CELLS, weights=np.asarray(cells, np.float32))


def test_a_worked_example():
    # Fecal occult blood against endoscopy, 2030 people, 30 of them with bowel cancer:
    # https://en.wikipedia.org/wiki/Sensitivity_and_specificity#Worked_example
    metrics = Collection({c.__name__: c() for c in (*RATIOS, Accuracy, LikelihoodRatios)})
    got = of_cells(metrics, 20, 180, 10, 1820)
    want = {
        "Precision": 20 / 200,
        "Recall": 20 / 30,
        "Specificity": 1820 / 2000,
        "NegativePredictiveValue": 1820 / 1830,
        "F1": 40 / 230,
        "FBeta": 40 / 230,
        "JaccardIndex": 20 / 210,
        "InformednessYouden": 20 / 30 + 1820 / 2000 - 1,
        "Accuracy": 1840 / 2030,
        "LikelihoodRatios/positive": (20 / 30) / (180 / 2000),
        "LikelihoodRatios/negative": (10 / 30) / (1820 / 2000),
    }
    assert_within_ulps(got, dict(sorted(want.items())), 1)
    # As that page rounds them.
    rounded = {"Recall": 0.667, "Specificity": 0.91, "F1": 0.174, "Accuracy": 0.906}
    rounded |= {"LikelihoodRatios/positive": 7.407, "LikelihoodRatios/negative": 0.366}
    assert {name: round(float(got[name]), 3) for name in rounded} == rounded


@pytest.mark.parametrize("zero_division", [0.0, 1.0, 0.25, np.nan])
def test_a_class_never_predicted(rng, zero_division):
    # Its precision is 0/0, which must not make the macro average NaN.
    target, preds = rng.integers(0, 4, 64), rng.integers(0, 3, 64)
    target[:4] = range(4)
    config: dict[str, Any] = {"num_classes": 6, "zero_division": zero_division}
    averages = ("macro", "weighted", "micro")
    metrics = Collection({a: Precision(average=a, **config) for a in averages})
    got = update(metrics, preds=preds, target=target).compute()
    if zero_division == 0.25:  # which scikit-learn does not have
        each = np.array(sk.precision_score(target, preds, average=None, zero_division=0.0))
        each[3] = 0.25
        assert_within_ulps(got["macro"], each.mean(), 8)
        return
    for average in averages:
        want = sk.precision_score(target, preds, average=average, zero_division=zero_division)
        assert_within_ulps(got[average], want, 8, name=average)


def test_micro_averages_of_single_labels_are_the_accuracy(rng):
    # The micro average counts examples, not one-vs-rest decisions, of which most are right.
    target, preds = rng.integers(0, 10, (2, 200))
    accuracy = Fraction(int((target == preds).sum()), 200)
    names = (Precision, Recall, F1, FBeta)
    micro = {c.__name__: c(num_classes=10, average="micro") for c in names}
    got = update(
        Collection(micro | {"accuracy": Accuracy(num_classes=10)}), preds=preds, target=target
    ).compute()
    for value in got.values():
        assert_same(value, np.float32(float(accuracy)))


def test_two_thresholds_in_one_collection():
    # In a collection that shares states without comparing thresholds, both values are 1.
    scores, target = np.float32([0.4, 0.5, 0.6, 0.65, 0.8]), np.ones(5, int)
    metrics = Collection({"low": Recall(threshold=0.3), "high": Recall(threshold=0.7)})
    got = update(metrics, preds=scores, target=target).results()
    assert got == {"low": 1.0, "high": np.float32(0.2)}


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_labels_out_of_range_are_excluded_and_reported():
    # 7 and -100 are labels of no class.
    logits = np.float32([[2, 1, 0], [2, 1, 0], [0, 0, 1], [1, 0, 0]])
    target = np.asarray([0, 1, 7, -100])
    metrics = Collection(
        {
            "f1": F1(num_classes=3, on_invalid="exclude"),
            "recall": Recall(num_classes=3, average=None, on_invalid="exclude"),
        }
    )
    got = update(metrics, preds=logits, target=target).results()
    want = sk.f1_score([0, 1], [0, 0], average="macro")
    assert got.pop("f1") == np.float32(want)
    assert got.pop("recall").tolist() == [1.0, 0.0, 0.0]
    assert got == {"f1/invalid": 2, "recall/invalid": 2}
    padded = F1(num_classes=3, ignore_index=-100)
    assert int(update(padded, preds=logits, target=target).invalid_count()) == 1


def test_all_that_reads_counts_shares_them():
    config = {"num_classes": 7}
    others = (Accuracy, HammingDistance, MatthewsCorrCoef, CohenKappa, LikelihoodRatios)
    metrics = {c.__name__: c(**config) for c in (*RATIOS, *others)}
    metrics["each"] = Precision(average=None, zero_division=np.nan, **config)
    assert len(Collection(metrics).states_within()) == 1
    assert len(Collection(metrics | {"top": Recall(top_k=2, **config)}).states_within()) == 2


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**33, 2.0**100])
def test_counts_of_any_size(rng, scale):
    # 10 billion examples, and weights of any size: a ratio is rounded once, whatever the scale.
    ratios = {c.__name__: c() for c in (*RATIOS, MatthewsCorrCoef, CohenKappa)}
    averaged = {str(a): F1(num_classes=5, average=a) for a in ("macro", "weighted")}
    preds, target = rng.integers(0, 5, (2, 64)).astype(np.int32)
    for metrics, outputs, weights in (
        (Collection(ratios), CELLS, np.float32([5, 3, 2, 11])),
        (Collection(averaged), {"preds": preds, "target": target}, np.ones(64, np.float32)),
    ):
        got = value_of(metrics, **outputs, weights=np.float32(scale) * weights)
        assert_within_ulps(got, value_of(metrics, **outputs, weights=weights), 0)


def test_counts_above_what_a_float_holds():
    # 2**34 true positives and one more: the part that float32 rounds away is kept.
    metric = Precision()
    large = CELLS | {"weights": np.float32([2**34, 2**34, 0, 0])}
    small = CELLS | {"weights": np.float32([1, 0, 0, 0])}
    metric = update(metric, **large)
    for _ in range(3):
        metric = update(metric, **small)
    tp, fp = 2**34 + 3, 2**34
    assert np.asarray(metric.statistic.cells.exact)[:2, 0].tolist() == [tp, fp]
    assert_within_ulps(metric.compute(), float(Fraction(tp, tp + fp)), 0.5)


def test_informedness_where_it_cancels():
    # A guess of 10 billion: 4e9 * 3e9 - 2e9 * 6e9 is 0, and one example more is not lost.
    assert_same(of_cells(InformednessYouden(), 4e9, 2e9, 6e9, 3e9), np.float32(0))
    cells = [2**32, 2**32, 2**32, 2**32]
    metric = update(InformednessYouden(), **CELLS, weights=np.float32(cells))
    metric = update(metric, **CELLS, weights=np.float32([1, 0, 0, 0]))
    tp, fp, fn, tn = 2**32 + 1, 2**32, 2**32, 2**32
    want = Fraction(tp, tp + fn) + Fraction(tn, tn + fp) - 1
    # Products are kept to 2**-46, and this is 2**-34.
    np.testing.assert_allclose(metric.compute(), float(want), 2.0**-10)


@pytest.mark.parametrize("beta", [0, 0.1, 0.5, 1, 2, 10, 1e30])
def test_beta(rng, beta):
    cells = rng.integers(1, 1000, 4)
    target, preds = np.repeat(CELLS["target"], cells), np.repeat(CELLS["preds"], cells)
    got = of_cells(FBeta(beta=beta), *cells)
    assert_within_ulps(got, sk.fbeta_score(target, preds, beta=beta), 1)
    if beta == 0:
        assert_within_ulps(got, of_cells(Precision(), *cells), 0)
    if beta == 1e30:
        assert_within_ulps(got, of_cells(Recall(), *cells), 1)


def test_labels_without_positives(rng):
    # Weighted by support where there is none: the plain mean, as scikit-learn.
    target, preds = np.zeros((8, 3), int), rng.integers(0, 2, (8, 3))
    preds[0], preds[:, 2] = 1, 0
    for zero_division in (0.0, 1.0):
        config: dict[str, Any] = {"average": "weighted", "zero_division": zero_division}
        for metric, score in ((Precision, sk.precision_score), (Recall, sk.recall_score)):
            got = value_of(metric(num_labels=3, **config), preds=preds, target=target)
            assert_within_ulps(got, score(target, preds, **config), 4)


def test_a_label_that_is_always_ignored(rng):
    # It has no data at all: NaN, whatever zero_division says, and left out of an average.
    preds, target = rng.random((8, 3)).astype(np.float32), rng.integers(0, 2, (8, 3))
    target[0], target[1], target[:, 1] = 1, 0, -1
    config: dict[str, Any] = {"num_labels": 3, "ignore_index": -1, "zero_division": 1.0}
    metrics = Collection({"each": F1(average=None, **config), "macro": F1(**config)})
    got = update(metrics, preds=preds, target=target).compute()
    want = [
        sk.f1_score(target[:, i], preds[:, i] > 0.5, zero_division=1.0) if i != 1 else np.nan
        for i in range(3)
    ]
    assert_within_ulps(got["each"], np.array(want), 1)
    assert_within_ulps(got["macro"], np.nanmean(want), 4)


def test_no_data():
    config: dict[str, Any] = {"num_classes": 3, "zero_division": 1.0}
    averages = ("micro", "macro", "weighted", None)
    many = {f"{c.__name__} {a}": c(average=a, **config) for c in RATIOS for a in averages}
    binary = {c.__name__: c(zero_division=1.0) for c in RATIOS}
    for metrics in (many, binary):
        for name, value in Collection(metrics).compute().items():
            assert_same(value, np.full((3,) if "None" in name else (), np.nan, np.float32))


def test_undefined_as_nan_is_one_configuration():
    # NaN is not equal to itself, and two metrics of one configuration must be.
    one, other = (F1(num_classes=3, zero_division=float("nan")) for _ in range(2))
    batch = {"preds": np.int32([0, 1]), "target": np.int32([0, 2])}
    merged = update(one, **batch).merge(update(other, **batch))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert_within_ulps(other.load_state_dict(merged.state_dict()).compute(), 1 / 3, 1)
    # A collection holds the configuration of its members, which must survive a pickle too.
    collection = Collection({"f1": merged, "kappa": CohenKappa(num_classes=3)})
    copy = pickle.loads(pickle.dumps(collection))
    assert str(copy) == str(collection)
    assert_within_ulps(copy.merge(collection).compute()["f1"], 1 / 3, 1)


def test_float64(rng):
    target, preds = rng.integers(0, 5, (2, 500))
    weights = rng.random(500)
    with x64():
        metrics = Collection({c.__name__: c(num_classes=5) for c in (F1, JaccardIndex)})
        outputs = {"preds": preds, "target": target, "weights": weights}
        got = update(metrics, **outputs).compute()
        for name, score in (("F1", sk.f1_score), ("JaccardIndex", sk.jaccard_score)):
            want = score(target, preds, average="macro", sample_weight=weights)
            assert got[name].dtype == jnp.float64
            np.testing.assert_allclose(got[name], want, 1e-14)


def test_the_ends_of_beta_are_precision_and_recall(rng):
    target, preds = rng.integers(0, 4, (2, 200))
    for average in ("micro", "macro", "weighted", None):
        config: dict[str, Any] = {"num_classes": 6, "average": average, "zero_division": 0.5}
        outputs = preds % 3, target
        for beta, end in ((0, Precision), (np.inf, Recall)):
            got = value_of(FBeta(beta, **config), *outputs)
            np.testing.assert_array_equal(got, value_of(end(**config), *outputs))
    # Where a class is only predicted, recall is 0/0.
    for cls in (FBeta, Recall):
        beta = {"beta": np.inf} if cls is FBeta else {}
        assert of_cells(cls(zero_division=1, **beta), 0, 3, 0, 2) == 1


def test_configuration():
    for beta in (-1, np.nan, -np.inf):
        with pytest.raises(MetricInputError, match=r"beta=.*at least 0"):
            FBeta(beta=beta)
    for wrong in ({"beta": "2"}, {"zero_division": "raise"}, {"threshold": None}):
        with pytest.raises(MetricInputError, match=f"{next(iter(wrong))}=.*expected a number"):
            FBeta(**wrong)
    for metric in RATIOS:
        with pytest.raises(MetricInputError, match="'micro', 'macro', 'weighted', 'samples', None"):
            metric(average="sample")
        with pytest.raises(MetricInputError, match="exclude each other"):
            metric(num_classes=3, num_labels=3)
        with pytest.raises(MetricInputError, match="top_k=4"):
            metric(num_classes=3, top_k=4)
        with pytest.raises(MetricInputError, match="on_invalid='ignore'"):
            metric(on_invalid="ignore")
    with pytest.raises(datarax.ConfigurationMismatchError, match=r"beta is 1\.0 in one and 2\.0"):
        FBeta().merge(FBeta(beta=2.0))
    with pytest.raises(datarax.ConfigurationMismatchError, match="Precision"):
        Precision().merge(Recall())
