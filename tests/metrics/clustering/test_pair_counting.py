"""Clusterings: worked examples, large counts, tables near independence, weights, refusals."""

from fractions import Fraction
from math import comb, log

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import sklearn.metrics

import datarax
from datarax import metrics
from datarax.testing import assert_within_ulps
from tests.helpers import fsum, update

NAMES = (
    "Rand",
    "AdjustedRand",
    "FowlkesMallows",
    "MutualInfo",
    "NormalizedMutualInfo",
    "AdjustedMutualInfo",
    "Homogeneity",
    "Completeness",
    "VMeasure",
    "ClusterAccuracy",
)


def every() -> datarax.Collection:
    """All metrics with one configuration, so that each program is compiled once."""
    config = {"num_classes": 4, "num_clusters": 5}
    return datarax.Collection({name: getattr(metrics, name)(**config) for name in NAMES})


@jax.jit
def read(collection):
    return collection.compute()


def of_table(table: np.ndarray) -> dict[str, float]:
    """The values for a table of counts of any size: each cell is an example with that weight."""
    collection = every()
    target, preds = np.indices((4, 5)).reshape(2, -1).astype(np.int32)
    # A float32 weight holds 24 bits, so larger counts are added in several parts.
    rest = np.pad(table, [(0, n - m) for n, m in zip((4, 5), table.shape, strict=True)])
    rest = rest.reshape(-1).astype(np.float64)
    while rest.any():
        part = rest.astype(np.float32)
        part = np.where(part > rest, np.nextafter(part, np.float32(0)), part)
        collection = update(collection, preds=preds, target=target, weights=part)
        rest = rest - part
    return jax.tree.map(float, read(collection))


def exact_pairs(table: np.ndarray) -> tuple[int, int, int, int]:
    """Unordered pairs in exact integers: together in both, in rows, in columns, in neither."""
    cells = [int(x) for x in table.reshape(-1)]
    rows, columns = ([int(x) for x in table.sum(axis)] for axis in (1, 0))
    both = sum(comb(x, 2) for x in cells)
    row, column = (sum(comb(x, 2) for x in side) - both for side in (rows, columns))
    return both, row, column, comb(sum(cells), 2) - both - row - column


def exact_rand(table: np.ndarray) -> tuple[float, float]:
    s, a, b, d = exact_pairs(table)
    adjusted = Fraction(2 * (s * d - a * b), (s + a) * (a + d) + (s + b) * (b + d))
    return float(Fraction(s + d, s + a + b + d)), float(adjusted)


def exact_information(table: np.ndarray) -> float:
    """Mutual information in exact rationals; where terms cancel, the logarithms too."""
    n, terms = int(table.sum()), []
    for i, j in np.argwhere(table > 0):
        x, product = int(table[i, j]), int(table[i].sum()) * int(table[:, j].sum())
        off = Fraction(x * n - product, product)
        if abs(off) < Fraction(1, 100):  # the series of log(1 + off)
            logarithm = -sum((-off) ** k / k for k in range(1, 12))
        else:
            logarithm = Fraction(log(1 + off))
        terms.append(Fraction(x, n) * logarithm)
    return float(sum(terms))


def test_worked_examples():
    # Manning, Raghavan and Schuetze, Introduction to Information Retrieval, section 16.3: three
    # clusters of 6, 6 and 5 points, Rand index 0.68; normalized mutual information 0.36.
    values = of_table(np.array([[5, 1, 2], [1, 4, 0], [0, 1, 3]]))
    assert round(values["Rand"], 2) == 0.68
    assert round(values["NormalizedMutualInfo"], 2) == 0.36
    assert values["ClusterAccuracy"] == np.float32(12 / 17)
    assert round(values["AdjustedRand"], 2) == 0.24  # (20 - 44 * 40 / 136) / (42 - ...)


def test_two_examples():
    apart = of_table(np.array([[1, 1], [0, 0]]))
    assert (apart["Rand"], apart["AdjustedRand"], apart["FowlkesMallows"]) == (0.0, 0.0, 0.0)
    assert (apart["Homogeneity"], apart["Completeness"], apart["VMeasure"]) == (1.0, 0.0, 0.0)
    # As many clusters as examples: all tables with these margins hold the same information.
    assert apart["AdjustedMutualInfo"] == 0.0


@pytest.mark.parametrize("scale", [1, 10**4, 10**9])
def test_counts_of_any_size(scale, rng):
    table = rng.integers(1, 100, (4, 5)) * scale + rng.integers(0, 9, (4, 5))
    values, (rand, adjusted) = of_table(table), exact_rand(table)
    assert_within_ulps(np.float32(values["Rand"]), rand, 1)
    assert_within_ulps(np.float32(values["AdjustedRand"]), adjusted, 1)
    s, a, b, _ = exact_pairs(table)
    fowlkes_mallows = s / (np.sqrt(float(s + a)) * np.sqrt(float(s + b)))
    assert_within_ulps(np.float32(values["FowlkesMallows"]), fowlkes_mallows, 4)
    assert_within_ulps(np.float32(values["MutualInfo"]), exact_information(table), 10)
    row, column = scipy.optimize.linear_sum_assignment(-table)
    assert_within_ulps(
        np.float32(values["ClusterAccuracy"]), table[row, column].sum() / table.sum(), 2
    )


@pytest.mark.parametrize("off", [1, 30, 1000])
def test_mutual_information_next_to_independence(off):
    # A product of margins with a few examples moved; the information goes down to 1e-15 nats.
    table = np.outer([300, 500, 400], [200, 100, 700, 500]) * 10
    table[0, 0], table[0, 1] = table[0, 0] + off, table[0, 1] - off
    values = of_table(table)
    want = exact_information(table)
    assert 0 < want < 1e-6
    assert_within_ulps(np.float32(values["MutualInfo"]), want, 10)
    assert values["NormalizedMutualInfo"] > 0


def expected_information(table: np.ndarray) -> float:
    """A sum over all values of all cells (Vinh, Epps and Bailey 2010, equation 24a)."""
    n, terms = int(table.sum()), []
    log_factorial = scipy.special.gammaln(np.arange(n + 1) + 1.0)
    for a in table.sum(1):
        for b in table.sum(0):
            x = np.arange(max(1, a + b - n), min(a, b) + 1)
            ways = sum(log_factorial[m] for m in (x, a - x, b - x, n - a - b + x))
            chosen = sum(log_factorial[m] for m in (a, b, n - a, n - b)) - log_factorial[n]
            terms.append(fsum(x / n * np.log(n * x / (a * b)) * np.exp(chosen - ways)))
    return fsum(terms)


@pytest.mark.parametrize("size", [6, 40, 300, 5000, 200_000])
def test_adjusted_mutual_information_subtracts_the_mean_over_tables(size, rng):
    shares = rng.dirichlet([0.5] * 4), rng.dirichlet([2.0] * 5)
    target, preds = (np.append(rng.choice(len(p), size, p=p), [0, 1]) for p in shares)
    table = np.zeros((4, 5), int)
    np.add.at(table, (target, preds), 1)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    n, entropies = table.sum(), []
    for sums in (table.sum(1), table.sum(0)):
        entropies.append(-fsum(sums / n * np.log(sums / n)))
    expected = expected_information(table)
    information, mean = exact_information(table), sum(entropies) / 2
    want = (information - expected) / (mean - expected)
    bound = 4 * 2.0**-23 * (information + 2 * expected + mean) / (mean - expected)
    # The oracle's sums of gammaln in float64 err by 2e-16 of n log n.
    bound += 2e-16 * n * np.log(n) * expected / (mean - expected)
    assert abs(of_table(table)["AdjustedMutualInfo"] - want) <= bound


def test_the_expected_information_of_many_examples():
    # For 12 billion examples it is near (R - 1) (K - 1) / (2 n), a mean chi-squared over 2 n.
    table = np.full((3, 4), 10**9)
    values = of_table(table)
    expected = 6 / (2 * 12e9)
    mean = (log(3) + log(4)) / 2
    assert values["MutualInfo"] == 0.0
    assert_within_ulps(np.float32(values["AdjustedMutualInfo"]), -expected / mean, 16)


def test_the_names_of_labels_do_not_matter(rng):
    table = rng.integers(0, 20, (4, 5))
    values = of_table(table)
    for name, value in of_table(table[rng.permutation(4)][:, rng.permutation(5)]).items():
        assert_within_ulps(np.float32(value), np.float32(values[name]), 10, atol=1e-6, name=name)


def test_agrees_with_scikit_learn_on_many_examples(rng):
    target = rng.integers(0, 4, 20_000).astype(np.int32)
    preds = np.where(rng.random(20_000) < 0.4, target, rng.integers(0, 5, 20_000)).astype(np.int32)
    values = read(update(every(), preds=preds, target=target, weights=np.ones(20_000, bool)))
    for name, score in (
        ("Rand", sklearn.metrics.rand_score),
        ("AdjustedRand", sklearn.metrics.adjusted_rand_score),
        ("FowlkesMallows", sklearn.metrics.fowlkes_mallows_score),
        ("MutualInfo", sklearn.metrics.mutual_info_score),
        ("NormalizedMutualInfo", sklearn.metrics.normalized_mutual_info_score),
        ("AdjustedMutualInfo", sklearn.metrics.adjusted_mutual_info_score),
        ("Homogeneity", sklearn.metrics.homogeneity_score),
        ("Completeness", sklearn.metrics.completeness_score),
        ("VMeasure", sklearn.metrics.v_measure_score),
    ):
        np.testing.assert_allclose(values[name], score(target, preds), rtol=1e-6, err_msg=name)


def test_the_number_of_clusters_is_that_of_classes_by_default():
    labels = jnp.array([0, 1, 2])
    one, other = metrics.Rand(num_classes=3), metrics.Rand(num_classes=3, num_clusters=3)
    assert one.update(labels, labels).merge(other).compute() == 1.0


def test_refusals():
    metric = metrics.Rand(num_classes=3)
    with pytest.raises(datarax.MetricInputError, match=r"\(2,\).*\(3,\)"):
        metric.update(jnp.zeros(2, jnp.int32), jnp.zeros(3, jnp.int32))
    with pytest.raises(datarax.MetricTypeError, match="preds has dtype float32"):
        metric.update(jnp.zeros(2), jnp.zeros(2, jnp.int32))
    for config, message in (
        ({"num_classes": 0}, "num_classes=0"),
        ({"num_classes": 2, "num_clusters": 1.5}, "num_clusters=1.5"),
    ):
        with pytest.raises(datarax.MetricInputError, match=message):
            metrics.Rand(**config)
    with pytest.raises(datarax.MetricInputError, match="average_method='mean'"):
        metrics.NormalizedMutualInfo(num_classes=2, average_method="mean")
    with pytest.raises(datarax.MetricInputError, match="beta=0"):
        metrics.VMeasure(num_classes=2, beta=0)


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_unit_of_weights_does_not_matter(scale):
    """Except where weights count as repetitions: in counts of pairs and corrections for chance."""
    rng = np.random.default_rng(0)
    target, preds = rng.integers(0, 4, 64), rng.integers(0, 5, 64)
    preds = np.where(rng.random(64) < 0.5, target, preds)
    w = rng.uniform(0, 2, 64).astype(np.float32)
    both = [
        read(update(every(), preds=preds, target=target, weights=w * np.float32(x)))
        for x in (1, scale)
    ]
    for name in NAMES[3:5] + NAMES[6:]:
        assert both[1][name] == both[0][name], name
    if scale < 1:  # every class holds less than one example
        assert both[1]["AdjustedMutualInfo"] == 0.0
    else:  # so many examples that pairs of one with itself, and chance, no longer matter
        shares = np.bincount(target * 5 + preds, w, 20).reshape(4, 5) / w.sum(dtype=np.float64)
        together = (shares**2).sum()
        rows, columns = ((shares.sum(axis) ** 2).sum() for axis in (1, 0))
        rand = 1 - rows - columns + 2 * together
        assert_within_ulps(both[1]["Rand"], rand, 8)
        assert_within_ulps(both[1]["FowlkesMallows"], together / np.sqrt(rows * columns), 8)
        by_chance = rows * columns
        adjusted = (together - by_chance) / ((rows + columns) / 2 - by_chance)
        assert_within_ulps(both[1]["AdjustedRand"], adjusted, 64)
        normalized = both[1]["NormalizedMutualInfo"]
        assert_within_ulps(both[1]["AdjustedMutualInfo"], normalized, 8)
