"""Agreement beyond chance and confusion matrices: worked examples, undefined values, large counts.

Agreement with oracles and scikit-learn on random data is in `tests/test_laws.py`.
"""

from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics as sk

from datarax import Collection, InvalidValuesWarning, MetricInputError
from datarax.metrics import F1, Accuracy, CohenKappa, ConfusionMatrix, MatthewsCorrCoef
from datarax.testing import assert_within_ulps
from tests.helpers import assert_same, update, x64

CELLS = {"preds": np.float32([1, 1, 0, 0]), "target": np.int32([1, 0, 1, 0])}  # TP, FP, FN, TN


def of_matrix(metric, matrix):
    """The metric of examples in such numbers: targets in rows, predictions in columns."""
    matrix = np.asarray(matrix, np.float32)
    target, preds = np.indices(matrix.shape, np.int32).reshape(2, -1)
    outputs = {"preds": preds, "target": target, "weights": matrix.reshape(-1)}
    return update(metric, **outputs)


def exact_kappa(matrix, power):
    """The weighted kappa in rational numbers."""
    m = [[Fraction(x) for x in row] for row in matrix]
    c, n = range(len(m)), sum(map(sum, m))
    rows, columns = [sum(row) for row in m], [sum(row[j] for row in m) for j in c]
    cells = [(i, j, abs(i - j) ** power if power else int(i != j)) for i in c for j in c]
    apart = sum(d * m[i][j] for i, j, d in cells) * n
    return 1 - apart / sum(d * rows[i] * columns[j] for i, j, d in cells)


def exact_matthews(matrix):
    """The square of R_K in rational numbers, with its sign."""
    m = [[Fraction(x) for x in row] for row in matrix]
    c, n = range(len(m)), sum(map(sum, m))
    t, p = [sum(row) for row in m], [sum(row[j] for row in m) for j in c]
    above = n * sum(m[i][i] for i in c) - sum(x * y for x, y in zip(t, p, strict=True))
    return above * abs(above) / ((n**2 - sum(x * x for x in t)) * (n**2 - sum(x * x for x in p)))


def test_worked_examples():
    # 12 pictures, 8 of cats, of which 6 are recognised, and 3 of 4 dogs:
    # https://en.wikipedia.org/wiki/Phi_coefficient#Example
    matthews = of_matrix(MatthewsCorrCoef(num_classes=2), [[3, 1], [2, 6]]).compute()
    assert_within_ulps(matthews, 16 / np.sqrt(7 * 8 * 4 * 5), 2)
    assert round(float(matthews), 3) == 0.478
    # 50 proposals, judged by two readers: https://en.wikipedia.org/wiki/Cohen%27s_kappa#Examples
    kappa = CohenKappa(num_classes=2)
    assert_within_ulps(of_matrix(kappa, [[15, 10], [5, 20]]).compute(), 0.4, 1)
    assert_within_ulps(of_matrix(kappa, [[45, 15], [25, 15]]).compute(), 0.06 / 0.46, 1)
    assert_within_ulps(of_matrix(kappa, [[25, 35], [5, 35]]).compute(), 0.14 / 0.54, 1)


@pytest.mark.parametrize("classes", [2, 3, 70])
def test_against_scikit_learn(rng, classes):
    # 70: where counting classes is a scatter.
    target, preds = rng.integers(0, classes, (2, 300))
    preds = np.where(rng.random(300) < 0.3, target, preds)
    outputs = {"preds": preds, "target": target, "weights": rng.integers(0, 4, 300)}
    kappas = {str(w): CohenKappa(num_classes=classes, weights=w) for w in (None, "linear")}
    kappas["quadratic"] = CohenKappa(num_classes=classes, weights="quadratic")
    metrics = Collection(kappas | {"matthews": MatthewsCorrCoef(num_classes=classes)})
    got, w = update(metrics, **outputs).compute(), outputs["weights"]
    labels = range(classes)  # else scikit-learn numbers those that there are
    for weights in (None, "linear", "quadratic"):
        want = sk.cohen_kappa_score(target, preds, weights=weights, sample_weight=w, labels=labels)
        np.testing.assert_allclose(got[str(weights)], want, 1e-6, 1e-9)
    want = sk.matthews_corrcoef(target, preds, sample_weight=w)
    np.testing.assert_allclose(got["matthews"], want, 1e-6, 1e-9)


LARGE = {
    "one error in 10 billion": [[2**33, 0, 0], [0, 1, 1], [0, 0, 0]],
    "barely better than chance": [[2**20 + 1, 2**20, 0], [2**20, 2**20, 0], [0, 0, 0]],
    "small beside large": [[2**33, 3, 1], [5, 2**10, 7], [2, 0, 9]],
    "even": [[2**31, 2**30, 2**29], [2**29, 2**31, 2**30], [2**30, 2**29, 2**31]],
}


@pytest.mark.parametrize("kind", LARGE)
def test_large_counts(kind):
    # n^2 - sum(p^2) of 1e10 examples, nearly all of one class, is 1e-10 of what it is left of.
    matrix = LARGE[kind]
    config = {"num_classes": 3}
    kappas = {w: CohenKappa(weights=w, **config) for w in ("linear", "quadratic")}
    metrics = {"kappa": CohenKappa(**config), "matthews": MatthewsCorrCoef(**config), **kappas}
    got = of_matrix(Collection(metrics), matrix).compute()
    square = exact_matthews(matrix)
    want = float(np.sign(square)) * float(abs(square)) ** 0.5
    np.testing.assert_allclose(got["matthews"], want, 1e-6)
    for name, power in (("kappa", 0), ("linear", 1), ("quadratic", 2)):
        np.testing.assert_allclose(got[name], float(exact_kappa(matrix, power)), 1e-6)


def test_at_best_it_is_one_and_at_worst_minus_one(rng):
    cells = rng.integers(1, 1000, 3)
    for metric in (MatthewsCorrCoef(num_classes=3), CohenKappa(num_classes=3, weights="linear")):
        assert_same(of_matrix(metric, np.diag(cells)).compute(), np.float32(1))
    n = int(cells[0])
    opposite = CELLS | {"weights": np.float32([0, n, n, 0])}
    assert_same(update(MatthewsCorrCoef(), **opposite).compute(), np.float32(-1))
    assert_same(update(CohenKappa(), **opposite).compute(), np.float32(-1))


def test_undefined():
    def constant(metric):
        return of_matrix(metric, [[0, 0, 0], [5, 0, 0], [0, 0, 0]]).compute()

    def single(metric):
        return of_matrix(metric, [[0, 0, 0], [0, 5, 0], [0, 0, 0]]).compute()

    for weights in (None, "linear", "quadratic"):
        config = {"num_classes": 3, "weights": weights}
        assert_same(constant(CohenKappa(**config)), np.float32(0))
        assert np.isnan(single(CohenKappa(**config)))  # as scikit-learn
        assert_same(single(CohenKappa(zero_division=1.0, **config)), np.float32(1))
        assert np.isnan(CohenKappa(zero_division=1.0, **config).compute())
    for batch in (constant, single):
        assert_same(batch(MatthewsCorrCoef(num_classes=3)), np.float32(0))  # as scikit-learn
        assert np.isnan(batch(MatthewsCorrCoef(num_classes=3, zero_division=np.nan)))
    assert np.isnan(MatthewsCorrCoef(num_classes=3).compute())


def test_binary_is_two_classes(rng):
    preds, target = rng.integers(0, 2, (2, 64))
    outputs = {"preds": preds, "target": target}
    for metric in (MatthewsCorrCoef, CohenKappa, ConfusionMatrix):
        one = update(metric(), **outputs).compute()
        assert_within_ulps(one, update(metric(num_classes=2), **outputs).compute(), 2)
    scores = preds * 0.4 + 0.3
    logits = {"preds": scores.astype(np.float32), "target": target}
    for metric in (MatthewsCorrCoef, CohenKappa, ConfusionMatrix):
        got = update(metric(threshold=0.6), **logits).compute()
        assert_within_ulps(got, update(metric(), **outputs).compute(), 0)
    linear = update(CohenKappa(weights="linear"), **outputs).compute()
    assert_within_ulps(linear, update(CohenKappa(), **outputs).compute(), 0)


def test_confusion_counts_are_exact():
    large = 2**33 + 2**10
    metric = of_matrix(ConfusionMatrix(num_classes=3), [[large, 0, 0], [0, 2, 0], [1, 0, 0]])
    metric = of_matrix(metric, [[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert_same(metric.compute(), np.float32([[large, 0, 0], [0, 2, 0], [1, 0, 0]]))
    assert metric.results().tolist() == [[large + 1, 0, 0], [0, 2, 0], [1, 0, 0]]
    binary = ConfusionMatrix()
    for weights in ([large, 1, 2, 3], [1, 0, 0, 0]):
        binary = update(binary, **CELLS, weights=np.float32(weights))
    assert binary.results().tolist() == [[3, 1], [2, large + 1]]
    shares = ConfusionMatrix(normalize="all")
    assert shares.update(**CELLS).results().tolist() == [[0.25, 0.25], [0.25, 0.25]]


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_labels_out_of_range_are_in_no_cell():
    # 7 and -100 are labels of no class.
    logits = np.float32([[2, 1, 0], [2, 1, 0], [0, 0, 1], [1, 0, 0]])
    outputs = {"preds": logits, "target": np.asarray([0, 1, 7, -100])}
    metric = update(ConfusionMatrix(num_classes=3), **outputs)
    with pytest.warns(InvalidValuesWarning, match="ConfusionMatrix: 2 values or examples"):
        assert metric.results().tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 0]]
    padded = update(ConfusionMatrix(num_classes=3, ignore_index=-100), **outputs)
    assert int(padded.invalid_count()) == 1
    bad = update(ConfusionMatrix(num_classes=3, on_invalid="propagate"), **outputs)
    assert np.isnan(bad.compute()).all()


def test_no_data():
    for config, shape in (
        ({}, (2, 2)),
        ({"num_classes": 3}, (3, 3)),
        ({"num_labels": 4}, (4, 2, 2)),
    ):
        assert_same(ConfusionMatrix(**config).compute(), np.zeros(shape, np.float32))
        empty = ConfusionMatrix(normalize="true", **config).compute()
        assert_same(empty, np.full(shape, np.nan, np.float32))


def test_a_label_that_is_always_ignored(rng):
    target = np.stack([rng.permutation(8) < 4, np.full(8, -1)], 1).astype(np.int32)
    outputs = {"preds": rng.random((8, 2)).astype(np.float32), "target": target}
    config = {"num_labels": 2, "ignore_index": -1}
    metrics = {"kappa": CohenKappa(**config), "matthews": MatthewsCorrCoef(**config)}
    metrics["matrix"] = ConfusionMatrix(normalize="all", **config)
    got = update(Collection(metrics), **outputs).compute()
    for value in got.values():
        assert np.isnan(value[1]).all()
    chosen = outputs["preds"][:, 0] > 0.5
    assert_within_ulps(got["matthews"][0], sk.matthews_corrcoef(target[:, 0], chosen), 3, atol=1e-9)


def test_all_share_one_statistic(rng):
    config = {"num_classes": 4}
    metrics = {
        "matrix": ConfusionMatrix(**config),
        "all": ConfusionMatrix(normalize="all", **config),
    }
    metrics["quadratic"] = CohenKappa(weights="quadratic", **config)
    collection = Collection(metrics)
    assert len(collection.states_within()) == 1
    outputs = {"preds": rng.integers(0, 4, 50), "target": rng.integers(0, 4, 50)}
    others = {"f1": F1(**config), "accuracy": Accuracy(**config), "kappa": CohenKappa(**config)}
    got = update(Collection(metrics | others), **outputs).compute()
    for name, metric in (metrics | others).items():
        assert_within_ulps(got[name], update(metric, **outputs).compute(), 2, name=name)


def test_float64(rng):
    target, preds = rng.integers(0, 5, (2, 500))
    outputs = {"preds": preds, "target": target, "weights": rng.random(500)}
    with x64():
        for metric, score, config in (
            (MatthewsCorrCoef, sk.matthews_corrcoef, {}),
            (CohenKappa, sk.cohen_kappa_score, {"weights": "linear"}),
            (ConfusionMatrix, sk.confusion_matrix, {"normalize": "true"}),
        ):
            got = update(metric(num_classes=5, **config), **outputs).compute()
            want = score(target, preds, sample_weight=outputs["weights"], **config)
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, want, 1e-12, 1e-14)


def test_configuration():
    with pytest.raises(MetricInputError, match="normalize='rows'; expected one of 'true', 'pred'"):
        ConfusionMatrix(normalize="rows")
    with pytest.raises(MetricInputError, match="weights='cubic'; expected one of 'linear'"):
        CohenKappa(num_classes=3, weights="cubic")
    for metric in (ConfusionMatrix, CohenKappa, MatthewsCorrCoef):
        with pytest.raises(MetricInputError, match="exclude each other"):
            metric(num_classes=3, num_labels=3)
        with pytest.raises(MetricInputError, match=r"\(3,\).*\(4,\)"):
            metric(num_classes=3).update(np.zeros(3, int), np.zeros(4, int))
        with pytest.raises(ValueError, match="num_classes is 3 in one and 4"):
            metric(num_classes=3).merge(metric(num_classes=4))
