"""`Compare(method="formula")`: the difference of two ratios of sums, without replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

import datarax
from datarax import Compare, Sliced, metrics
from tests.helpers import long, make_mesh, optimized, place

CELLS, Z = 16, stats.norm.ppf(0.975)


def paired_error(a, b, c, d, cluster=None):
    """Of sum c / sum d - sum a / sum b, by the definition, over rows or over clusters."""
    a, b, c, d = (np.asarray(x, np.float64) for x in (a, b, c, d))
    apart = (c - c.sum() / d.sum() * d) / d.sum() - (a - a.sum() / b.sum() * b) / b.sum()
    if cluster is None:
        totals = apart[(b != 0) | (d != 0)]
    else:
        totals = [apart[cluster == each].sum() for each in np.unique(cluster)]
    n = len(totals)
    return np.sqrt(np.square(totals).sum() * n / (n - 1))


def drawn(rng, rows=300):
    cluster = rng.integers(0, CELLS, rows).astype(np.int32)
    common = rng.normal(size=CELLS)[cluster] + 2 + rng.normal(size=rows)
    return {
        "values_a": (common + rng.normal(0, 0.3, rows)).astype(np.float32),
        "values_b": (common + rng.normal(0.05, 0.3, rows)).astype(np.float32),
        "weights": (rng.integers(0, 4, rows) / 2).astype(np.float32),
        "cluster": cluster,
    }


def check(results, error, difference):
    """The results are those of this standard error and difference."""
    assert results.keys() == {"a", "b", "difference", "lower", "p_value", "upper"}
    np.testing.assert_allclose(results["difference"], difference, rtol=1e-5, atol=1e-7)
    ends = [difference - Z * error, difference + Z * error]
    np.testing.assert_allclose([results["lower"], results["upper"]], ends, rtol=1e-4, atol=1e-6)
    want = 2 * stats.norm.sf(abs(difference) / error)
    np.testing.assert_allclose(results["p_value"], want, rtol=1e-3, atol=1e-7)


def of_means(batch, cluster=None):
    w = batch["weights"].astype(np.float64)
    a, b = batch["values_a"] * w, batch["values_b"] * w
    return paired_error(a, w, b, w, cluster), (b.sum() - a.sum()) / w.sum()


def test_of_means_equals_the_paired_test(rng):
    batch = drawn(rng)
    a, b = (batch[f"values_{model}"].astype(np.float64) for model in "ab")
    results = Compare(metrics.Mean(), method="formula").update(values_a=a, values_b=b).results()
    error = stats.sem(b - a)
    check(results, error, np.mean(b - a))
    # SciPy's interval is of Student's t; the ratio of the two is known.
    t = stats.ttest_rel(b, a)
    interval = t.confidence_interval()
    width = (interval.high - interval.low) * Z / stats.t.ppf(0.975, t.df)
    np.testing.assert_allclose(results["upper"] - results["lower"], width, rtol=1e-5)


def test_with_weights_clusters_and_other_denominators(rng):
    batch = drawn(rng)
    weighted = {name: x for name, x in batch.items() if name != "cluster"}
    check(Compare(metrics.Mean(), method="formula").update(**weighted).results(), *of_means(batch))
    check(
        Compare(metrics.Mean(), method="formula", clusters=CELLS).update(**batch).results(),
        *of_means(batch, batch["cluster"]),
    )
    # Precision: its denominators, the predicted positives, differ between the models.
    target, preds_a, preds_b = rng.integers(0, 2, (3, 200)).astype(np.int32)
    cluster = rng.integers(0, 40, 200)
    sums = preds_a * target, preds_a, preds_b * target, preds_b
    given = {"preds_a": preds_a, "preds_b": preds_b, "target": target}
    difference = sums[2].sum() / sums[3].sum() - sums[0].sum() / sums[1].sum()
    plain = Compare(metrics.Precision(), method="formula").update(**given).results()
    check(plain, paired_error(*sums), difference)
    within = Compare(metrics.Precision(), method="formula", clusters=40)
    within = within.update(**given, cluster=cluster).results()
    counts = (preds_a | preds_b) == 1
    seen = np.isin(cluster, cluster[counts])
    sums = [x[seen] for x in sums]
    check(within, paired_error(*sums, cluster[seen]), difference)


@pytest.mark.parametrize("clusters", [None, CELLS])
def test_in_parts_in_slices_and_on_a_mesh(rng, clusters):
    batch = drawn(rng, 296)
    if clusters is None:
        del batch["cluster"]
    metric = Compare(metrics.Mean(), method="formula", clusters=clusters)
    want = metric.update(**batch).results()
    parts = [metric.update(**{n: x[i::37] for n, x in batch.items()}) for i in range(37)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    mesh = make_mesh("auto", {"d": 8})
    apart = datarax.per_device(metric, mesh, "d").update(**place(batch, mesh, P("d")))
    compiled = optimized(lambda batch: metric.update(**batch))(batch)
    for got in (merged, apart.sync(), compiled):
        for name, x in got.results().items():
            np.testing.assert_allclose(x, want[name], rtol=1e-4, atol=1e-6, err_msg=name)
    ids = rng.integers(0, 3, 296).astype(np.int32)
    sliced = Sliced(metric, 3).update(**batch, slices=ids).results()
    rows = metric.update(**{name: x[ids == 1] for name, x in batch.items()}).results()
    for name, x in rows.items():
        np.testing.assert_allclose(sliced["1"][name], x, rtol=1e-4, atol=1e-6, err_msg=name)


@long
def test_coverage_of_the_difference(rng):
    trials, groups, rows = 2000, 40, 200
    cluster = np.repeat(np.arange(groups), rows // groups).astype(np.int32)

    def trial(key):
        keys = jax.random.split(key, 3)
        shift = jax.random.normal(keys[0], (groups,))[cluster] * 0.3
        a, b = jax.random.normal(keys[1], (2, rows))
        metric = Compare(metrics.Mean(), method="formula", clusters=groups)
        return metric.update(values_a=a, values_b=b + 0.1 + shift, cluster=cluster).compute()

    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), trials)
    results = optimized(lambda keys: jax.lax.map(trial, keys))(keys)
    covered = np.mean((results["lower"] <= 0.1) & (results["upper"] >= 0.1))
    # Of 40 clusters, a normal interval covers 94.3 %; within four standard errors of that.
    assert 0.92 <= covered <= 0.965


def test_without_data_spread_or_pairs():
    metric = Compare(metrics.Mean(), method="formula")
    assert all(np.isnan(x) for x in metric.results().values())
    one = metric.update(values_a=np.float32([1]), values_b=np.float32([2])).results()
    assert one["difference"] == 1
    assert np.isnan([one["lower"], one["upper"], one["p_value"]]).all()
    same = np.float32([1, 2, 4])
    equal = metric.update(values_a=same, values_b=same).results()
    assert (equal["difference"], equal["p_value"]) == (0, 1)
    np.testing.assert_allclose([equal["lower"], equal["upper"]], 0, atol=1e-6)
    right = Compare(metrics.Accuracy(num_classes=2), method="formula")
    ones, zeros = np.ones(4, np.int32), np.zeros(4, np.int32)
    always = right.update(preds_a=zeros, preds_b=ones, target=ones).results()
    assert (always["difference"], always["p_value"], always["upper"]) == (1, 0, 1)
    huge = np.float32([3e37, 1e37, 2e37, 2.5e37])  # their squares overflow
    results = metric.update(values_a=huge, values_b=huge[::-1].copy()).results()
    assert np.isfinite(results["p_value"])


def test_what_is_refused():
    with pytest.raises(datarax.MetricInputError, match="ratio of two sums"):
        Compare(metrics.LogAUC(), method="formula")
    with pytest.raises(datarax.MetricInputError, match="draws no replicas"):
        Compare(metrics.Mean(), method="formula", replicas=100)
    with pytest.raises(datarax.MetricInputError, match='needs method="formula"'):
        Compare(metrics.Mean(), clusters=8)
    metric = Compare(metrics.Mean(), method="formula", clusters=8)
    values = jnp.ones(3)
    with pytest.raises(datarax.MetricInputError, match="pass cluster="):
        metric.update(values_a=values, values_b=values)
    with pytest.raises(datarax.MetricInputError, match="cluster of shape"):
        metric.update(values_a=values, values_b=values, cluster=np.arange(2))
