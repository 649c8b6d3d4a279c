"""`Interval` of rank correlations, from the rows that are kept."""

import warnings

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Interval, Sliced, metrics
from tests.helpers import long, make_mesh, place


def signs(x):
    return np.sign(x[:, None] - x[None])


def spearman(x, y, w):
    """The correlation of mean ranks, by the definition over all pairs."""
    u, v = ((0.5 + 0.5 * signs(each)) @ w / w.sum() for each in (x, y))
    u, v = u - 0.5, v - 0.5
    return (w * u * v).sum() / np.sqrt((w * u * u).sum() * (w * v * v).sum())


def kendall(x, y, w):
    a, b = signs(x), signs(y)
    agree, different_x, different_y = (w @ each @ w for each in (a * b, np.abs(a), np.abs(b)))
    return agree / np.sqrt(different_x * different_y)


def derived(value, x, y, w):
    """The standard error, from the derivatives of the value by the weight of each row."""
    step, n = 1e-5, (w > 0).sum()
    slopes = [
        (value(x, y, w + step * e) - value(x, y, w - step * e)) / (2 * step) for e in np.eye(len(w))
    ]
    return np.sqrt(((w * slopes) ** 2).sum() * n / (n - 1))


def drawn(rng, rows=120, levels=None):
    x = rng.normal(size=rows)
    y = 0.7 * x + 0.7 * rng.normal(size=rows)
    if levels:
        x, y = np.round(x * levels), np.round(y * levels)
    return x.astype(np.float32), y.astype(np.float32)


BOTH = pytest.mark.parametrize(
    ("make", "value"), [(metrics.SpearmanCorrCoef, spearman), (metrics.KendallTau, kendall)]
)


@jax.jit
def updated(metric, x, y):
    return metric.update(x, y)


@jax.jit
def updated_and_computed(metric, x, y):
    return metric.update(x, y).compute()


@BOTH
@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_derivatives(make, value, levels, weighted, rng):
    x, y = drawn(rng, levels=levels)
    w = rng.integers(0, 4, 120).astype(np.float32) if weighted else np.ones(120, np.float32)
    empty = Interval(make(capacity=150))
    seen = empty.update(x, y, weights=w if weighted else None)
    results, error = seen.results(), derived(value, x, y, w.astype(np.float64))
    np.testing.assert_allclose(results["value"], value(x, y, w), rtol=1e-5)
    np.testing.assert_allclose(results["std_error"], error, rtol=1e-4)
    half = 1.959963985 * error / (1 - results["value"] ** 2)
    ends = np.tanh(np.arctanh(results["value"]) + np.array([-half, half]))
    np.testing.assert_allclose([results["lower"], results["upper"]], ends, rtol=1e-4)
    traced = updated(empty, x, y).results()
    plain = empty.update(x, y).results()
    computed = updated_and_computed(empty, x, y)
    apart = datarax.per_device(empty, make_mesh("auto", {"d": 4}), "d").update(x, y).results()
    for found in (traced, computed, apart):
        np.testing.assert_allclose([*found.values()], [*plain.values()], rtol=1e-4)


@BOTH
def test_in_slices_and_what_is_not_known(make, value, rng):
    x, y = drawn(rng)
    empty = Interval(make(capacity=150))
    slices = rng.integers(0, 2, 120).astype(np.int32)
    sliced = Sliced(empty, 2).update(x, y, slices=slices).results()["1"]
    own = empty.update(x[slices == 1], y[slices == 1]).results()
    np.testing.assert_allclose([*sliced.values()], [*own.values()], rtol=1e-4)
    assert all(np.isnan(v) for v in empty.results().values())
    assert np.isnan(empty.update(x[:1], y[:1]).results()["std_error"])
    with pytest.warns(datarax.PrecisionWarning, match="do not vary"):
        same = empty.update(x, x).results()
    assert same["value"] == pytest.approx(1, abs=1e-6)
    assert np.isnan(same["std_error"])
    with pytest.warns(datarax.InvalidValuesWarning):  # more rows than are kept
        full = Interval(make(capacity=100, exact=True)).update(x, y).results()
    assert np.isnan(full["lower"])
    # By the table, as by the rows.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datarax.PrecisionWarning)
        binned = Interval(make(capacity=100, bits=9)).update(x, y).results()
        traced = updated_and_computed(Interval(make(capacity=100, bits=9)), x, y)
    kept = empty.update(x, y).results()
    np.testing.assert_allclose([*binned.values()], [*kept.values()], rtol=0.03)
    np.testing.assert_allclose([*traced.values()], [*binned.values()], rtol=1e-4)
    with pytest.raises(datarax.MetricInputError, match="one example each"):
        empty.update(x.reshape(60, 2), y.reshape(60, 2))


@pytest.mark.parametrize(
    "metric",
    [
        metrics.SpearmanCorrCoef(capacity=64),
        metrics.KendallTau(capacity=64),
        metrics.MedianAbsoluteError(),
    ],
    ids=repr,
)
def test_one_of_a_pair_is_sharded_on_an_explicit_mesh(metric, rng):
    x, y = drawn(rng, 64)
    empty = Interval(metric)
    mesh = make_mesh("explicit", {"a": 4, "b": 2})
    sharded = place({"x": x}, mesh, P(("a", "b")))["x"]
    with jax.set_mesh(mesh):
        found = jax.jit(lambda m, *args: m.update(*args))(empty, sharded, y).results()
    want = empty.update(x, y).results()
    np.testing.assert_allclose([*found.values()], [*want.values()], rtol=1e-4)


@long
def test_it_covers(rng):
    # Of normal values with the correlation r: 6 / pi * asin(r / 2), and 2 / pi * asin(r).
    truth = 6 / np.pi * np.arcsin(0.25), 2 / np.pi * np.arcsin(0.5)
    covered = np.zeros(2)
    both = Interval(metrics.SpearmanCorrCoef()), Interval(metrics.KendallTau())
    for _ in range(200):
        x, noise = rng.normal(size=(2, 200)).astype(np.float32)
        y = 0.5 * x + np.float32(0.75**0.5) * noise
        for i, metric in enumerate(both):
            found = metric.update(x, y).results()
            covered[i] += found["lower"] <= truth[i] <= found["upper"]
    assert (covered >= 178).all()
    assert (covered <= 199).all()
