"""Nominal association: worked examples, large counts, and refusals."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax import metrics
from datarax.numerics.scaling import power_of_two_near_reciprocal as power_of
from datarax.testing import assert_within_ulps
from tests.helpers import value_of

# From Wikipedia, "Fleiss' kappa": 14 raters put 10 subjects into 5 categories; kappa 0.210.
FLEISS = np.array([
    [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
])  # fmt: skip


def test_fleiss_worked_example():
    metric = metrics.FleissKappa(num_categories=5)
    value = metric.update(FLEISS).compute()
    shares = FLEISS.sum(0) / 140
    agree = np.mean(((FLEISS**2).sum(1) - 14) / (14 * 13))
    assert round(float(value), 3) == 0.210
    assert_within_ulps(value, (agree - (shares**2).sum()) / (1 - (shares**2).sum()), 1)


def test_fleiss_kappa_of_many_subjects():
    metric = metrics.FleissKappa(num_categories=5).update(FLEISS)
    want = metric.compute()
    for _ in range(40):  # 10 subjects become 10**13
        metric = metric.merge(metric)
    assert_within_ulps(metric.compute(), want, 1)


def test_fleiss_kappa_below_chance():
    # All pairs of raters disagree: P = 0, Q = 1/2.
    value = metrics.FleissKappa(num_categories=2).update(np.ones((6, 2), np.int32)).compute()
    assert value == -1.0


def test_products_are_scaled_by_powers_of_two():
    # Under jit, where a compiler may turn a quotient into a product with a rounded reciprocal.
    numbers = np.append(np.arange(1, 300), [3e-30, 7e30, 2**96]).astype(np.float32)

    @jax.jit
    def powers(x):
        return power_of(jnp.broadcast_to(x, (3,)))

    got = np.stack([powers(x) for x in numbers])
    assert (np.frexp(got)[0] == 0.5).all()
    scaled = numbers[:, None] * got
    assert ((scaled >= 0.5) & (scaled <= 1)).all()
    assert (np.asarray(jax.jit(power_of)(jnp.zeros(2))) == 1).all()


def test_fleiss_kappa_next_to_chance(rng):
    ratings = rng.multinomial(4, [0.5, 0.3, 0.2], (20, 16)).astype(np.int32)
    metric = jax.vmap(metrics.FleissKappa(num_categories=3).update)(ratings)
    for counts, value in zip(
        ratings, np.asarray(jax.vmap(lambda m: m.compute())(metric)), strict=True
    ):
        n, column = len(counts), [Fraction(int(x)) for x in counts.sum(0)]
        agree = Fraction(int((counts * (counts - 1)).sum()), 12 * n)
        chance = sum(x * x for x in column) / (4 * n) ** 2
        assert_within_ulps(value, float((agree - chance) / (1 - chance)), 1)


CONFIGS = {
    "cramer": metrics.CramersV(num_classes=4, num_preds=3),
    "tschuprow": metrics.TschuprowsT(num_classes=4, num_preds=3),
    "pearson": metrics.PearsonsContingency(num_classes=4, num_preds=3),
    "corrected": metrics.CramersV(num_classes=4, num_preds=3, bias_correction=True),
    "explained": metrics.TheilsU(num_classes=4, num_preds=3),
    "explains": metrics.TheilsU(num_classes=4, num_preds=3, given="target"),
}


def of_table(table: np.ndarray) -> dict[str, jax.Array]:
    target, preds = np.indices((4, 3)).reshape(2, -1).astype(np.int32)
    weights = np.pad(table, [(0, n - m) for n, m in zip((4, 3), table.shape, strict=True)])
    return value_of(
        datarax.Collection(CONFIGS),
        target=target,
        preds=preds,
        weights=weights.reshape(-1).astype(np.float32),
    )


@pytest.mark.parametrize("shape", [(2, 2), (4, 3), (2, 3), (4, 2)])
def test_agrees_with_scipy(shape, rng):
    table = rng.integers(1, 2**20, shape)
    values = of_table(table)
    for method in ("cramer", "tschuprow", "pearson"):
        want = scipy.stats.contingency.association(table, method=method)
        assert_within_ulps(values[method], want, 8, name=method)


def test_correction_of_bias():
    # Independent variables: V of 12 cells is about sqrt(6 / n / 2), and 0 after the correction.
    table = np.full((4, 3), 5)
    table[0, 0] += 1
    values = of_table(table)
    assert 0 < values["cramer"] < 0.2
    assert values["corrected"] == 0.0
    # A large sample is corrected by little.
    large = of_table(table * 2**18)
    assert_within_ulps(large["corrected"], np.asarray(large["cramer"]), atol=1e-4)
    # As many examples as categories: NaN after the correction.
    few = of_table(np.eye(3, dtype=int))
    assert np.isnan(few["corrected"])
    assert few["cramer"] == 1.0


def test_one_variable_determines_the_other():
    values = of_table(np.array([[3, 0], [4, 0], [0, 5]]))
    assert values["cramer"] == 1.0
    assert_within_ulps(values["explains"], 1.0, 4)
    p, q = np.array([3, 4, 5]) / 12, np.array([7, 5]) / 12
    assert_within_ulps(values["explained"], (q @ np.log(q)) / (p @ np.log(p)), 20)


def test_one_category():
    values = of_table(np.array([[3, 4, 5]]))
    assert values["pearson"] == 0.0
    assert values["explains"] == 0.0
    for name in ("cramer", "tschuprow", "corrected", "explained"):
        assert np.isnan(values[name])


def test_refusals():
    with pytest.raises(datarax.MetricInputError, match="num_preds=0"):
        metrics.CramersV(num_classes=2, num_preds=0)
    with pytest.raises(datarax.MetricInputError, match="given='both'"):
        metrics.TheilsU(num_classes=2, given="both")
    with pytest.raises(datarax.MetricInputError, match="bias_correction='yes'"):
        metrics.TschuprowsT(num_classes=2, bias_correction="yes")
    metric = metrics.FleissKappa(num_categories=3)
    with pytest.raises(datarax.MetricTypeError, match="ratings has dtype float32"):
        metric.update(jnp.ones((2, 3)))
    with pytest.raises(datarax.MetricInputError, match=r"\(2, 4\).*num_categories=3"):
        metric.update(jnp.ones((2, 4), jnp.int32))


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_the_unit_of_weights_does_not_matter(scale):
    rng = np.random.default_rng(0)
    target, preds = rng.integers(0, 3, 32), rng.integers(0, 3, 32)
    w = rng.uniform(0, 2, 32).astype(np.float32)
    for name in ("CramersV", "TschuprowsT", "PearsonsContingency", "TheilsU"):
        metric = getattr(metrics, name)(num_classes=3)
        want, value = (
            metric.update(preds, target, weights=w * np.float32(x)).compute() for x in (1, scale)
        )
        assert value == want > 0
