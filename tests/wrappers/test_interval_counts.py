"""`Interval` of functions of the counts of classes, by the delta method."""

import jax
import numpy as np
import pytest
import sklearn.metrics as sk

import datarax
from datarax import Interval, Sliced, metrics
from tests.helpers import long, make_mesh
from tests.wrappers.test_interval_areas import by_influence

CLASSES = 3


def weighted(score, **options):
    return lambda t, p, w: score(t, p, sample_weight=w, **options)


SIZE = {"num_classes": CLASSES}
MULTICLASS = {
    "macro F1": (metrics.F1(average="macro", **SIZE), weighted(sk.f1_score, average="macro")),
    "weighted precision": (
        metrics.Precision(average="weighted", **SIZE),
        weighted(sk.precision_score, average="weighted"),
    ),
    "macro Jaccard": (metrics.JaccardIndex(**SIZE), weighted(sk.jaccard_score, average="macro")),
    "balanced accuracy": (
        metrics.Accuracy(average="macro", **SIZE),
        weighted(sk.balanced_accuracy_score),
    ),
    "MCC": (metrics.MatthewsCorrCoef(**SIZE), weighted(sk.matthews_corrcoef)),
    "kappa": (metrics.CohenKappa(**SIZE), weighted(sk.cohen_kappa_score)),
}
BINARY = {
    "MCC": (metrics.MatthewsCorrCoef(), MULTICLASS["MCC"][1]),
    "kappa": (metrics.CohenKappa(), MULTICLASS["kappa"][1]),
    "Youden": (metrics.InformednessYouden(), weighted(sk.balanced_accuracy_score, adjusted=True)),
}


def check(metric, reference, preds, target, w):
    """The standard error against derivatives of scikit-learn's score by the weight of each row."""
    error = by_influence(lambda w: reference(target, preds, w), w)
    number = w.sum() ** 2 / (w**2).sum()
    results = Interval(metric).update(preds, target, weights=w).results()
    np.testing.assert_allclose(results["value"], reference(target, preds, w), rtol=1e-6, atol=1e-7)
    want = error * np.sqrt(number / (number - 1))
    np.testing.assert_allclose(results["std_error"], want, rtol=1e-4)
    half = (results["upper"] - results["lower"]) / 2
    np.testing.assert_allclose(half, 1.959963984540054 * want, rtol=1e-4)


@pytest.mark.parametrize("name", MULTICLASS)
def test_multiclass(name, rng):
    target = rng.integers(0, CLASSES, 80)
    preds = np.where(rng.random(80) < 0.5, target, rng.integers(0, CLASSES, 80))
    for w in (np.ones(80), rng.exponential(size=80)):
        check(*MULTICLASS[name], preds, target, w)


LABELS = {
    "macro F1": (metrics.F1, sk.f1_score, "macro"),
    "macro precision": (metrics.Precision, sk.precision_score, "macro"),
    "weighted recall": (metrics.Recall, sk.recall_score, "weighted"),
    "weighted Jaccard": (metrics.JaccardIndex, sk.jaccard_score, "weighted"),
}


@pytest.mark.parametrize("name", LABELS)
def test_averages_over_labels(name, rng):
    make, score, average = LABELS[name]
    common = rng.random((80, 1)) < 0.4  # the labels of a row depend on each other
    target = ((rng.random((80, 4)) < 0.4) | common).astype(np.int32)
    preds = np.where(rng.random((80, 4)) < 0.6, target, ~common).astype(np.int32)
    metric = make(num_labels=4, average=average)
    for w in (np.ones(80), rng.exponential(size=80)):
        check(metric, weighted(score, average=average), preds, target, w)
    empty = Interval(metric)
    want = empty.update(preds, target).results()
    halves = [empty.update(preds[part], target[part]) for part in (slice(0, 30), slice(30, 80))]
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 4}), "d").update(preds, target)
    inside = jax.jit(lambda m, p, t: m.update(p, t))(empty, preds, target)
    for found in (halves[0].merge(halves[1]), apart, inside):
        np.testing.assert_allclose([*found.results().values()], [*want.values()], rtol=1e-6)
    slices = rng.integers(0, 2, 80).astype(np.int32)
    sliced = Sliced(empty, 2).update(preds, target, slices=slices).results()["1"]
    own = empty.update(preds[slices == 1], target[slices == 1]).results()
    np.testing.assert_allclose([*sliced.values()], [*own.values()], rtol=1e-6)
    with pytest.raises(datarax.MetricInputError, match="one example each"):
        empty.update(preds.reshape(20, 4, 4), target.reshape(20, 4, 4))


def test_of_many_labels_there_is_none():
    more = Interval(metrics.F1(num_labels=22))
    assert sum(x.nbytes for x in jax.tree.leaves(more.squares)) <= 1 << 16
    with pytest.raises(datarax.MetricInputError, match="no formula"):
        Interval(metrics.F1(num_labels=23))


@pytest.mark.parametrize("name", BINARY)
def test_binary(name, rng):
    target = rng.integers(0, 2, 80)
    preds = np.where(rng.random(80) < 0.6, target, 1 - target)
    check(*BINARY[name], preds, target, rng.exponential(size=80))


def test_one_result_by_batch_program_slice_and_on_devices(rng):
    empty = Interval(metrics.F1(average="macro", **SIZE))
    target = rng.integers(0, CLASSES, 320).astype(np.int32)
    preds = np.where(rng.random(320) < 0.5, target, rng.integers(0, CLASSES, 320)).astype(np.int32)
    want = empty.update(preds, target).results()
    parts = empty
    for p, t in zip(np.split(preds, 32), np.split(target, 32), strict=True):
        parts = parts.merge(empty.update(p, t))
    np.testing.assert_allclose(list(parts.results().values()), list(want.values()), rtol=1e-9)
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 8}), "d").update(preds, target)
    np.testing.assert_allclose(list(apart.results().values()), list(want.values()), rtol=1e-9)
    inside = jax.jit(lambda m, p, t: m.update(p, t).compute())(empty, preds, target)
    for name, value in want.items():
        np.testing.assert_allclose(inside[name], value, rtol=1e-3)
    ids = rng.integers(0, 2, 320).astype(np.int32)
    sliced = Sliced(empty, 2).update(preds, target, slices=ids).results()["1"]
    own = empty.update(preds[ids == 1], target[ids == 1]).results()
    np.testing.assert_allclose(list(sliced.values()), list(own.values()), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.int32, np.float16])
def test_great_weights_of_narrow_dtypes(dtype, rng):
    labels = rng.integers(0, 2, (2, 60))
    one = Interval(metrics.MatthewsCorrCoef()).update(*labels).results()
    w = np.full(60, 60_000, dtype)  # its square is beyond the dtype
    fold = jax.jit(lambda m, p, t, w: m.update(p, t, weights=w))
    weighted = fold(Interval(metrics.MatthewsCorrCoef()), *labels, w).results()
    np.testing.assert_allclose(list(weighted.values()), list(one.values()), rtol=1e-5)


def test_what_does_not_vary_has_no_standard_error():
    labels = np.arange(30) % CLASSES
    with pytest.warns(datarax.PrecisionWarning, match="do not vary"):
        perfect = Interval(metrics.F1(average="macro", **SIZE)).update(labels, labels).results()
    assert perfect["value"] == 1
    assert np.isnan(perfect["std_error"])
    assert all(np.isnan(x) for x in Interval(metrics.CohenKappa()).results().values())


def test_a_class_that_does_not_occur_changes_nothing(rng):
    target = rng.integers(0, 2, 60)
    preds = np.where(rng.random(60) < 0.7, target, 1 - target)
    found = [
        Interval(metrics.F1(average="macro", num_classes=n)).update(preds, target).results()
        for n in (2, 5)
    ]
    np.testing.assert_allclose(list(found[1].values()), list(found[0].values()), rtol=1e-6)


@long
def test_it_covers(rng):
    share = np.array([[30, 6, 4], [5, 20, 5], [2, 8, 20]]) / 100
    truth = np.average(2 * share.diagonal() / (share.sum(0) + share.sum(1)))
    cells, covered = np.arange(9), 0
    for _ in range(150):
        cell = rng.choice(cells, 200, p=share.ravel())
        metric = Interval(metrics.F1(average="macro", **SIZE))
        results = metric.update(cell % 3, cell // 3).results()
        covered += results["lower"] <= truth <= results["upper"]
    assert 0.88 <= covered / 150 <= 0.995
