"""`Compare(method="formula")`: the difference of two ratios of sums, without replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy import special, stats

import datarax
from datarax import Compare, Sliced, metrics
from tests.helpers import LONG, long, make_mesh, optimized, place

CELLS = 16


def expected(a, b, c, d, cluster=None, *, bounded=False):
    """Of sum c / sum d - sum a / sum b, by the definition, over rows or over clusters."""
    terms = np.array([a, b, c, d], np.float64)
    counts = (terms != 0).any(0)
    if cluster is None:
        terms = terms[:, counts]
    else:
        groups = [cluster == each for each in np.unique(cluster[counts])]
        terms = np.array([terms[:, each].sum(1) for each in groups]).T
    n = terms.shape[1]
    a, b, c, d = terms
    r, s, p = a.sum() / b.sum(), c.sum() / d.sum(), (a.sum() + c.sum()) / (b.sum() + d.sum())

    def each(r, s):
        return (c - s * d) / d.sum() - (a - r * b) / b.sum()

    error = np.sqrt(np.square(each(r, s)).sum() * n / (n - 1))
    null, difference = each(p, p), s - r
    root = np.sqrt(np.square(null).sum())
    changed = ((a != c) | (b != d)).sum()
    size = b.sum() ** 2 / np.square(b).sum()
    t = stats.t(n - 1)
    if bounded:
        # So many rows of one size; by row, their sizes are known where the denominators are equal.
        is_known = cluster is not None or (b == d).all()
        tosses = np.abs(null).sum() ** 2 / np.square(null).sum() if is_known else changed
        heads = (tosses - abs(difference) / root * np.sqrt(tosses)) / 2
        p_value = min(1, 2 * special.betainc(tosses - heads, heads + 1, 0.5))
        # Two more rows, whose differences have the usual size and both signs.
        unit = size * root / np.sqrt(tosses)
        center = difference * size / (size + 2)
        variance = unit**2 * (tosses + 2) / (size + 2) - center**2
        half = t.ppf(0.975) * np.sqrt(variance / (size + 2))
    else:
        p_value = max(2 * t.sf(abs(difference) / error), 2.0 ** (1 - changed))
        center, half = difference, t.ppf(0.975) * error
    ends = {"lower": center - half, "upper": center + half}
    return {"difference": difference, "p_value": p_value} | ends


def drawn(rng, rows=300):
    cluster = rng.integers(0, CELLS, rows).astype(np.int32)
    common = rng.normal(size=CELLS)[cluster] + 2 + rng.normal(size=rows)
    return {
        "values_a": (common + rng.normal(0, 0.3, rows)).astype(np.float32),
        "values_b": (common + rng.normal(0.05, 0.3, rows)).astype(np.float32),
        "weights": (rng.integers(0, 4, rows) / 2).astype(np.float32),
        "cluster": cluster,
    }


def check(results, want):
    assert results.keys() == {"a", "b", *want}
    for name, x in want.items():
        rtol, atol = (1e-3, 1e-7) if name == "p_value" else (1e-4, 1e-6)
        np.testing.assert_allclose(results[name], x, rtol, atol, err_msg=name)


def of_means(batch, cluster=None):
    w = batch["weights"].astype(np.float64)
    a, b = batch["values_a"] * w, batch["values_b"] * w
    return expected(a, w, b, w, cluster)


def test_of_means_equals_the_paired_test(rng):
    batch = drawn(rng)
    a, b = (batch[f"values_{model}"].astype(np.float64) for model in "ab")
    results = Compare(metrics.Mean(), method="formula").update(values_a=a, values_b=b).results()
    t = stats.ttest_rel(b, a)
    interval = t.confidence_interval()
    want = {"difference": np.mean(b - a), "p_value": t.pvalue}
    check(results, want | {"lower": interval.low, "upper": interval.high})


def test_with_weights_clusters_and_other_denominators(rng):
    batch = drawn(rng)
    weighted = {name: x for name, x in batch.items() if name != "cluster"}
    check(Compare(metrics.Mean(), method="formula").update(**weighted).results(), of_means(batch))
    check(
        Compare(metrics.Mean(), method="formula", clusters=CELLS).update(**batch).results(),
        of_means(batch, batch["cluster"]),
    )
    # Precision: its denominators, the predicted positives, differ between the models.
    target, preds_a, preds_b = rng.integers(0, 2, (3, 200)).astype(np.int32)
    cluster = rng.integers(0, 40, 200)
    sums = preds_a * target, preds_a, preds_b * target, preds_b
    given = {"preds_a": preds_a, "preds_b": preds_b, "target": target}
    plain = Compare(metrics.Precision(), method="formula").update(**given).results()
    check(plain, expected(*sums, bounded=True))
    within = Compare(metrics.Precision(), method="formula", clusters=40)
    within = within.update(**given, cluster=cluster).results()
    check(within, expected(*sums, cluster, bounded=True))


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
    # Within four standard errors of 95 %.
    assert 0.93 <= covered <= 0.97


def test_without_data_spread_or_pairs():
    metric = Compare(metrics.Mean(), method="formula")
    assert all(np.isnan(x) for x in metric.results().values())
    one = metric.update(values_a=np.float32([1]), values_b=np.float32([2])).results()
    assert one["difference"] == 1
    assert np.isnan([one["lower"], one["upper"], one["p_value"]]).all()
    same = np.float32([1, 2, 4])
    with pytest.warns(datarax.PrecisionWarning, match="do not differ in any row"):
        equal = metric.update(values_a=same, values_b=same).results()
    assert (equal["difference"], equal["p_value"]) == (0, 1)
    assert np.isnan([equal["lower"], equal["upper"]]).all()
    right = Compare(metrics.Accuracy(num_classes=2), method="formula")
    ones = np.ones(4, np.int32)
    equal = right.update(preds_a=ones, preds_b=ones, target=ones).results()
    assert equal["p_value"] == 1
    assert equal["lower"] == -equal["upper"] < 0
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


def turned_right(gained, lost, same, **options):
    """Of two models: b has so many rows right that a has wrong, and the reverse."""
    a = np.repeat([0, 1, 1], [gained, lost, same]).astype(np.int32)
    b = np.repeat([1, 0, 1], [gained, lost, same]).astype(np.int32)
    metric = Compare(metrics.Accuracy(num_classes=2), method="formula", **options)
    rows = {"cluster": np.arange(len(a))} if options else {}
    return metric, {"preds_a": a, "preds_b": b, "target": np.ones_like(a)} | rows


def test_of_right_and_wrong_it_is_the_exact_test_of_mcnemar(rng):
    for gained, lost, same in (
        (2, 0, 0),
        (3, 0, 0),
        (5, 0, 1),
        (6, 0, 4),
        (9, 2, 30),
        (40, 25, 900),
    ):
        want = stats.binomtest(gained, gained + lost).pvalue
        for options in ({}, {"clusters": 1000}):
            metric, given = turned_right(gained, lost, same, **options)
            found = metric.update(**given).results()
            np.testing.assert_allclose(found["p_value"], want, rtol=1e-6)
            if not 0.03 < want < 0.07:  # the interval and the test agree
                assert (found["lower"] > 0) == (want < 0.05), (gained, lost, same)
            assert -1 <= found["lower"] < found["difference"] <= found["upper"] <= 1
        if gained == 9:
            run = optimized(lambda batch, metric=metric: metric.update(**batch).compute())
            np.testing.assert_allclose(run(given)["p_value"], want, rtol=1e-4)
        # A mean of 0 and 1, whose class says no bounds, has the same differences.
        scores = {f"values_{m}": given[f"preds_{m}"].astype(np.float32) for m in "ab"}
        mean = Compare(metrics.Mean(), method="formula").update(**scores).results()
        for name in ("p_value", "lower", "upper"):
            expected = np.clip(mean[name], -1, 1)
            np.testing.assert_allclose(expected, found[name], 1e-5, 1e-7, err_msg=name)


def test_no_verdict_below_what_the_signs_of_rows_allow(rng):
    for rows in range(2, 9):
        a = rng.normal(size=rows).astype(np.float32)
        b = a + rng.uniform(1, 1.5, rows).astype(np.float32)
        given = {"values_a": a, "values_b": b}
        for options in ({}, {"clusters": 16}):
            metric = Compare(metrics.Mean(), method="formula", **options)
            more = {"cluster": np.arange(rows)} if options else {}
            assert metric.update(**given, **more).results()["p_value"] >= 2.0 ** (1 - rows)


CHOICES = np.float32([0, 0.4, 0.5, 0.67, 0.8, 1])


def of_scores(rng, shape):
    return {
        f"values_{m}": rng.choice(CHOICES, shape, p=[0.2, 0.05, 0.1, 0.1, 0.05, 0.5]) for m in "ab"
    }


def of_losses(rng, shape):
    return {f"values_{m}": rng.exponential(size=shape).astype(np.float32) for m in "ab"}


def of_labels(rng, shape):
    target = rng.integers(0, 2, shape)
    wrong = rng.random((2, *shape)) > 0.7
    return {"target": target} | {f"preds_{m}": target ^ x for m, x in zip("ab", wrong, strict=True)}


def of_ranks(rng, shape):
    target = rng.integers(0, 2, shape)
    score = {f"preds_{m}": (rng.normal(size=shape) + target).astype(np.float32) for m in "ab"}
    return {"target": target} | score


# In each run, exact tests; of Student's t, each pattern of signs is tried below.
KINDS = {
    "losses": (metrics.Mean, of_losses, ()),
    "scores": (metrics.Mean, of_scores, ()),
    "accuracy": (metrics.Accuracy, of_labels, (3,)),
    "f1": (metrics.F1, of_labels, (12,)),
    "precision": (metrics.Precision, of_labels, ()),
    "jaccard": (metrics.JaccardIndex, of_labels, ()),
    "auroc": (lambda: metrics.AUROC(bits=10), of_ranks, ()),
}
FAMILY = 101


@pytest.mark.parametrize("kind", [name for name, (_, _, sizes) in KINDS.items() if LONG or sizes])
def test_equal_models_seldom_have_a_winner_in_a_family_of_slices(kind, rng):
    make, draw, sizes = KINDS[kind]
    slices = (50_000 if LONG else 4000) // (20 if kind == "auroc" else 1)
    for size in (2, 3, 5, 8, 12, 20, 30) if LONG else sizes:
        metric = Compare(make(), method="formula")
        run = optimized(jax.vmap(lambda batch, metric=metric: metric.update(**batch).compute()))
        p = np.asarray(run(draw(rng, (slices, size)))["p_value"])
        # At the first step of Holm; by four standard errors of the simulation.
        expected = 0.05 / FAMILY * slices
        false = np.sum(p < 0.05 / FAMILY)
        assert false <= expected + 4 * np.sqrt(max(expected, 1)), (size, false)
        assert np.mean(p < 0.05) <= 0.06 + 4 * np.sqrt(0.05 / slices), size


# Of 12 rows: if exchanging the models in a row is as likely as not, all signs have one probability.
SIZES = {
    "one or two": np.tile([1, 2], 6),
    "from one to three": np.linspace(1, 3, 12),
    "uniform": np.linspace(0, 1, 13)[1:],
    "right or wrong, with noise": np.r_[np.ones(10), 0.01, 0.02],
    "four large, and noise": np.r_[np.ones(4), np.full(8, 1e-3)],
    "normal": stats.norm.isf(np.arange(1, 13) / 26),
    "exponential": stats.expon.isf(np.arange(1, 13) / 13),
}
SIGNS = 1 - 2 * (np.arange(2**12)[:, None] >> np.arange(12) & 1)


def test_equal_models_have_small_p_values_as_seldom_as_those_say():
    make = Compare(metrics.Mean(), method="formula")
    run = optimized(jax.vmap(lambda a, b: make.update(values_a=a, values_b=b).compute()))
    b = np.stack(list(SIZES.values()))[:, None] * SIGNS
    b = b.reshape(-1, 12).astype(np.float32)
    p = np.asarray(run(np.zeros_like(b), b)["p_value"]).reshape(len(SIZES), -1)
    for name, each in zip(SIZES, p, strict=True):
        for level in (0.05, 0.01, 0.05 / FAMILY):
            # Student's t is no exact test of these.
            assert np.mean(each < level) <= 1.2 * level, (name, level)


def test_rows_that_change_alike_have_a_wide_interval_whatever_they_weigh(rng):
    rows = 8
    ones, ids = np.ones(rows), np.repeat(np.arange(rows), np.arange(1, rows + 1))
    texts = ["x y z x y z x y"[: 2 * n + 1] for n in range(rows)]
    wrong = ["a a a a a a a a"[: 2 * n + 1] for n in range(rows)]
    compared = {
        "weights": (metrics.Mean(), {"weights": rng.exponential(size=rows)}, {}),
        "one heavy row": (metrics.Mean(), {"weights": np.r_[1e6, ones[1:]]}, {}),
        "clusters": (metrics.Mean(), {"cluster": ids}, {"clusters": 64}),
        "texts": (metrics.WER(), {"target": texts, "preds_a": texts, "preds_b": wrong}, {}),
        "four rows": (metrics.Mean(), {"values_b": np.arange(3.0, 7)}, {}),
    }
    for name, (metric, given, options) in compared.items():
        count = 4 if name == "four rows" else len(given.get("cluster", ones))
        if name != "texts":
            given = {"values_a": np.zeros(count), "values_b": np.ones(count)} | given
        found = Compare(metric, method="formula", **options).update(**given).results()
        assert found["lower"] < found["difference"] < found["upper"], name
        assert found["p_value"] >= 2.0 ** (1 - rows), name
        # The interval and the test agree.
        if not 0.02 < found["p_value"] < 0.1:
            assert (found["lower"] > 0) == (found["p_value"] < 0.05), name


@pytest.mark.parametrize("scale", [1e100, 1e-300])
def test_rows_beyond_the_range_of_squares_have_no_interval_and_a_warning(scale):
    values = np.arange(8) * scale
    compared = Compare(metrics.Mean(), method="formula")
    with pytest.warns(datarax.PrecisionWarning, match="their squares leave the range"):
        found = compared.update(values_a=np.zeros(8), values_b=values).results()
    assert found["difference"] == pytest.approx(3.5 * scale)
    assert np.isnan([found["lower"], found["upper"], found["p_value"]]).all()
    with pytest.warns(datarax.PrecisionWarning, match="no standard error"):
        alone = datarax.Interval(metrics.Mean()).update(values).results()
    assert np.isnan([alone["lower"], alone["std_error"]]).all()


def test_an_undefined_ratio_has_no_test():
    right, none = np.ones(6, np.int32), np.zeros(6, np.int32)
    seen = Compare(metrics.Precision(zero_division=0), method="formula")
    found = seen.update(preds_a=none, preds_b=right, target=right).results()
    assert (found["a"], found["b"]) == (0, 1)
    assert np.isnan([found["lower"], found["upper"], found["p_value"]]).all()


@pytest.mark.parametrize("metric", [metrics.TextExactMatch(), metrics.TokenF1()])
def test_texts(metric):
    right, wrong = ["yes"] * 10, ["no"] * 10
    seen = Compare(metric, method="formula").update(preds_a=wrong, preds_b=right, target=right)
    found = seen.results()
    assert found["p_value"] == pytest.approx(2**-9)
    assert 0 < found["lower"] < found["upper"] <= 1
