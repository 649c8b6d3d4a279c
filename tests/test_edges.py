"""What lies on an edge: thresholds, equal scores and logits, the ranges of dtypes, float64.

`test_laws.py` compares every metric on the host and within `jit` on inputs that lie on edges.
"""

import itertools
from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk

import datarax
from datarax import metrics
from datarax._checks import numeric
from datarax._xp import lax, xp
from datarax.numerics.special import stirling_ratio, tweedie_deviance, x_minus_log1p
from datarax.numerics.sums import run_sums
from datarax.statistics.thresholds import is_above
from datarax.testing import subject
from tests.helpers import fsum
from tests.registry import BATCH, BUNDLES, GROUPS, arrays_of
from tests.registry.case import widened
from tests.test_laws import value_of, weights_of

each_group = pytest.mark.parametrize("name", GROUPS)

# Documented as binned or sketched, so that their values are not exact, or not of the data alone.
BINNED = {"roc_class_logits", "cardinality", "distinctn", "step_time"}


@each_group
def test_results_equal_the_oracle_in_float64(name, rng):
    group = GROUPS[name]
    if not group[0].inputs.rows:
        return
    thirds = rng.choice(np.float32([0, 1 / 3, 0.1, 3]), BATCH)
    for weights in ({}, {"weights": thirds}):
        batch = group[0].inputs.draw(rng, BATCH) | weights
        w, wide = weights_of(group[0], batch), widened(batch)
        results = BUNDLES[name].update(**arrays_of(group, batch)).results()
        for case in group:
            if case.id in BINNED or (case.host and weights):  # texts are repeated, not weighted
                continue
            got = value_of(case, results)
            got = {n: x for n, x in got.items() if n != "invalid"} if isinstance(got, dict) else got
            for x, y in zip(
                jax.tree.leaves(got), jax.tree.leaves(case.oracle(w, **wide)), strict=True
            ):
                x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
                np.testing.assert_allclose(x, y, 1e-12, 1e-12, err_msg=case.id)


def test_a_score_that_equals_the_threshold_is_not_above():
    thresholds = (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 1 / 3)
    dtypes = [np.dtype(d) for d in ("float32", "float16", jnp.bfloat16)]
    scores = [np.asarray(thresholds).astype(d) for d in dtypes]
    above = [np.nextafter(x, np.ones((), x.dtype)) for x in scores]

    def decide(arrays):
        return [
            [is_above(x.astype(np.float32)[i], t, False, np.dtype(x.dtype)) for x in arrays]
            for i, t in enumerate(thresholds)
        ]

    for run in (decide, jax.jit(decide)):
        assert not np.any(run(scores))
        assert np.all(run(above))
    for t, dtype in itertools.product(thresholds, (*dtypes, np.float64)):
        x, one = np.asarray([t]).astype(dtype), np.array([1])
        assert metrics.Accuracy(threshold=t).update(x, one).results() == 0, (t, dtype)
        assert metrics.CriticalSuccessIndex(t).update(x, one).results() == 1, (t, dtype)
        assert (
            metrics.ExactMatch(threshold=t, num_labels=1).update(x[None], one[None]).results() == 0
        )


def test_a_threshold_is_compared_with_integers_of_any_size():
    x = np.array([2**24, 2**24 + 1])
    for run in (metrics.CriticalSuccessIndex.update, jax.jit(metrics.CriticalSuccessIndex.update)):
        assert run(metrics.CriticalSuccessIndex(2.0**24 + 1), x, x[::-1].copy()).results() == 0


def test_sorts_keep_the_order_of_equal_values(rng):
    x = rng.integers(0, 3, (2, 1000)).astype(np.float32)
    want = np.argsort(x, -1, kind="stable")
    np.testing.assert_array_equal(xp.argsort(x), want)
    np.testing.assert_array_equal(xp.argsort(x, stable=True), want)
    np.testing.assert_array_equal(xp.argsort(x.T, 0), want.T)
    np.testing.assert_array_equal(xp.sort(x, -1), np.sort(x, -1))
    place = np.broadcast_to(np.arange(1000), x.shape)
    np.testing.assert_array_equal(lax.sort((x, place), num_keys=1)[1], want)
    np.testing.assert_array_equal(lax.top_k(x, 1000)[1], np.argsort(-x, -1, kind="stable"))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "bool"])
def test_the_highest_integers_are_on_top(dtype):
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    scores = np.array([[low, high, 0, high]]).astype(dtype)
    metric = metrics.Accuracy(num_classes=4, top_k=2)
    for label, want in enumerate((0, 1, 0, 1)):
        assert metric.update(scores, np.array([label])).results() == want


def test_equal_scores_in_an_image_are_in_the_given_order():
    # The first of many equal detections is right; COCO keeps the first one for `mar_1`.
    n = 40
    boxes = np.float32([[[9 * i, 0, 9 * i + 8, 8] for i in range(n)]])
    scores, labels = np.full((1, n), 0.5, np.float32), np.zeros((1, n), np.int32)
    metric = metrics.MeanAveragePrecision(num_classes=1)
    results = metric.update(boxes, scores, labels, boxes[:, :1], labels[:, :1]).results()
    assert results["mar_1"] == 1
    last = metric.update(boxes, scores, labels, boxes[:, -1:], labels[:, :1]).results()
    assert last["mar_1"] == 0


def test_one_softmax_decides_the_bin_and_the_ties(rng):
    rows = 60
    logits = np.zeros((rows, 3), np.float32)
    logits[::2] = rng.choice(np.float32([0, 1, -1]), (rows // 2, 3))
    target = rng.integers(0, 3, rows)
    # 1/3 as float32 is above 5/15, and as float64 it is not.
    p = np.exp(logits.astype(float))
    p = (p / p.sum(-1, keepdims=True)).max(-1)
    place = np.clip(np.ceil(np.float32(p).astype(float) * 15).astype(int) - 1, 0, 14)
    gap = np.bincount(place, p - (logits.argmax(-1) == target), 15)
    # The same logits in other orders of the classes: each class has ties.
    base = rng.normal(size=5).astype(np.float32) * 3
    orders = np.array(list(itertools.permutations(range(5))))[::2]
    many, labels = base[orders], rng.integers(0, 5, len(orders))
    pairs = (
        (metrics.CalibrationError(num_classes=3, from_logits=True), logits, target),
        (metrics.AveragePrecision(num_classes=5, from_logits=True), many, labels),
        (
            metrics.AUROC(num_classes=5, from_logits=True, exact=True, capacity=100),
            many,
            labels,
        ),
    )
    got = [metric.update(x, y).results() for metric, x, y in pairs]
    program = jax.jit(
        lambda batches: [m.update(*b) for (m, *_), b in zip(pairs, batches, strict=True)]
    )
    seen = [metric.results() for metric in program([batch for _, *batch in pairs])]
    np.testing.assert_allclose(got, seen, 1e-6)
    np.testing.assert_allclose(got[0], np.abs(gap).sum() / rows, 1e-12)
    odds = np.exp(many.astype(float))
    share = (odds / odds.sum(-1, keepdims=True)).round(12)
    want = [sk.roc_auc_score(labels == i, share[:, i]) for i in range(5)]
    np.testing.assert_allclose(got[2], np.mean(want), 1e-12)


def exact_deviance(p: float, t: float, power: float) -> Decimal:
    """The deviance of a Tweedie distribution with 60 digits."""
    x, y, k = map(Decimal, (p, t, power))
    if k == 1:
        return 2 * ((y * (y / x).ln() if y else 0) - y + x)
    if k == 2:
        return 2 * ((x / y).ln() + y / x - 1)
    most = max(y, Decimal(0))
    first = most ** (2 - k) / ((1 - k) * (2 - k)) if most else 0
    return 2 * (first - y * x ** (1 - k) / (1 - k) + x ** (2 - k) / (2 - k))


def test_tweedie_deviances_of_any_two_scales(rng):
    powers = (-3.0, -0.5, 1.0, 1.5, 1.999, 2.0, 3.0, 5.0)
    p = np.float32([1e30, 1e-20, 1.2e-38, 3e38, 2, 2, *10 ** rng.uniform(-37, 37, 8)])
    t = np.float32([1e-20, 1e30, 3e38, 1.2e-38, 2.9, 0.8, *10 ** rng.uniform(-37, 37, 8)])

    def deviances(p, t):
        return [tweedie_deviance(p, t, power, p - t) for power in powers]

    wide = deviances(p.astype(float), t.astype(float))
    for power, on_host, in_program in zip(powers, wide, jax.jit(deviances)(p, t), strict=True):
        for bound, (part, exponent) in ((2.0**-46, on_host), (2.0**-16, in_program)):
            for i in range(len(p)):
                with localcontext() as context:
                    context.prec = 60
                    got = Decimal(float(part[i])) * Decimal(2) ** int(exponent[i])
                    want = exact_deviance(float(p[i]), float(t[i]), power)
                    assert abs(got / want - 1) < bound, (power, p[i], t[i])
    # Gamma: 2 (log(1e50) - 1).
    for update in (metrics.TweedieDeviance.update, jax.jit(metrics.TweedieDeviance.update)):
        seen = update(metrics.TweedieDeviance(2), p[:1], t[:1])
        assert seen.results() == pytest.approx(228.2585, rel=1e-6)
        assert float(jax.device_get(seen).compute()) == pytest.approx(228.2585, rel=1e-6)


@pytest.mark.parametrize("shape", [(2000, 5), (40, 60), (3, 1500, 4), (5000,)], ids=str)
def test_cumulative_sums_and_sorts_along_rows_of_any_length(shape, rng):
    x, axis = rng.integers(-9, 9, shape).astype(np.int32), len(shape) - 1
    for name in ("cumsum", "cummax", "cummin"):
        for reverse in (False, True):
            got = getattr(lax, name)(x, axis=axis, reverse=reverse)
            assert type(got) is np.ndarray
            want = getattr(jax.lax, name)(x, axis=axis, reverse=reverse)
            np.testing.assert_array_equal(got, want)
    given = x, x // 3, np.arange(x.size, dtype=np.int32).reshape(shape)
    both = [each.sort(given, num_keys=2, is_stable=True) for each in (lax, jax.lax)]
    for got, want in zip(*both, strict=True):
        np.testing.assert_array_equal(got, want)


def test_subnormal_numbers_are_zero_on_the_host():
    tiny = np.float32([1e-40, -1e-40, 1e-45, 2.0**-126, 0, -0.0, np.nan, np.inf, 1])
    want = np.float32([0, 0, 0, 2.0**-126, 0, -0.0, np.nan, np.inf, 1])
    for x, y in ((tiny, want), (tiny.reshape(3, 3).T, want.reshape(3, 3).T), (tiny[0], want[0])):
        np.testing.assert_array_equal(numeric(x, "x"), y)
    assert numeric(want, "x") is want
    np.testing.assert_array_equal(numeric(tiny.astype(np.float64), "x"), want)
    half = tiny.astype(jnp.bfloat16)
    np.testing.assert_array_equal(numeric(half, "x").astype(np.float32)[:3], 0)
    small = np.float16([6e-8])  # which float32 holds as a normal number
    assert numeric(small, "x")[0] == small[0]
    scores, target = np.float32([[1e-40, 0, 2e-40]]), np.array([[0, 1, 0]])
    for run in (metrics.MRR.update, jax.jit(metrics.MRR.update)):
        assert run(metrics.MRR(), scores, target).results() == pytest.approx(
            (1 + 1 / 2 + 1 / 3) / 3
        )
    top = metrics.Accuracy(num_classes=3)
    for run in (metrics.Accuracy.update, jax.jit(metrics.Accuracy.update)):
        assert run(top, scores, np.array([0])).results() == 1


def test_an_array_of_numpy_keeps_the_digits_of_float64_in_the_range_of_float32():
    x = np.array([0.1, 1 - 1e-9, 2.0**40 + 0.5, -0.0, np.nan, np.inf])
    assert numeric(x, "x") is x
    np.testing.assert_array_equal(numeric([0.1, 2], "x"), [0.1, 2.0])
    beyond = np.array([1e-50, -1e-50, 1e300, -1e300, 3.4028234663852886e38, 1])
    want = [0, 0, np.inf, -np.inf, 3.4028234663852886e38, 1]
    np.testing.assert_array_equal(numeric(beyond, "x"), want)
    assert numeric(beyond, "x", any_range=True) is beyond
    x = np.array([0.1, 0.3])
    assert metrics.Mean().update(x).results() == pytest.approx(0.2, rel=1e-15)
    # Beside traced arrays they are what `jax.numpy` makes of them.
    rounded = jax.jit(lambda metric: metric.update(x))(metrics.Mean())
    assert rounded.results() == x.astype(np.float32).mean(dtype=np.float64)
    rounded = jax.jit(lambda total: total.update(x))(metrics.Mean().statistic)
    assert jax.device_get(rounded).mean == x.astype(np.float32).mean(dtype=np.float64)


def test_results_beyond_float32():
    # In float64 by `results()`, wherever the update ran; infinite as an array of float32.
    x, y = np.float32([1e30, 2e30]), np.float32([0, 0])
    program = jax.jit(lambda m, x, y: (m.update(x, y), m.update(x, y).compute()))
    seen, value = program(metrics.MeanSquaredError(), x, y)
    for state in (metrics.MeanSquaredError().update(x, y), jax.device_get(seen)):
        assert state.results() == pytest.approx(2.5e60, rel=1e-6)
        assert np.isinf(state.compute())
    assert np.isinf(value)
    # A sum is what float32 holds, in both.
    big = np.float32([3e38, 3e38])
    for run in (metrics.Sum.update, jax.jit(metrics.Sum.update)):
        assert run(metrics.Sum(), big).results() == np.inf


def test_ragged_batches_keep_float64(rng):
    n = 3000
    y = (rng.normal(size=n) + 100).astype(np.float32)
    x = (y + rng.normal(size=n)).astype(np.float32)
    wide_x, wide_y = x.astype(float), y.astype(float)
    covariance = np.cov(wide_x, wide_y, ddof=0)
    gap = wide_x.mean() - wide_y.mean()
    want = {
        "R2Score": sk.r2_score(wide_y, wide_x),
        "PearsonCorrCoef": scipy.stats.pearsonr(wide_x, wide_y)[0],
        "ConcordanceCorrCoef": 2
        * covariance[0, 1]
        / (covariance[0, 0] + covariance[1, 1] + gap**2),
        "ExplainedVariance": sk.explained_variance_score(wide_y, wide_x),
        "D2Tweedie": sk.d2_tweedie_score(wide_y, wide_x),
    }
    seen = {name: getattr(metrics, name)() for name in want}
    variance = metrics.Variance()
    for rows in np.split(np.arange(n), np.sort(rng.choice(n, 300, replace=False))):
        seen = {name: m.update(x[rows], y[rows]) for name, m in seen.items()}
        variance = variance.update(x[rows])
    for name, metric in seen.items():
        assert abs(metric.results() - want[name]) < 1e-12, name
    assert abs(variance.results() - wide_x.var()) < 1e-12


def test_kendalls_tau_of_many_rows_on_the_host(rng):
    n = 100_000  # all pairs would be 1e10
    x = rng.normal(size=n).astype(np.float32)
    y = np.round(x + rng.normal(size=n), 2).astype(np.float32)
    got = metrics.KendallTau(capacity=n).update(x, y).results()
    assert abs(got - scipy.stats.kendalltau(x, y)[0]) < 1e-12
    # With weights, from the definition.
    for size in (0, 1, 2, 3, 50):
        x, y, w = (rng.integers(0, 6, size).astype(np.float32) for _ in range(3))
        w = w / np.float32(3)
        a, b = (np.sign(v[:, None] - v) for v in (x, y))
        both = np.outer(w, w).astype(np.float64)
        both = np.outer(w.astype(float), w.astype(float))
        with np.errstate(all="ignore"):
            want = (both * a * b).sum() / np.sqrt((both * a**2).sum() * (both * b**2).sum())
        got = metrics.KendallTau().update(x, y, weights=w).results()
        np.testing.assert_allclose(got, want, 0, 1e-12)


def test_many_equal_scores_are_ranked_on_the_host():
    n, relevant = 200_000, 200  # the sums over all runs of ties would have 2e10 terms
    scores, target = np.zeros((1, n), np.float32), (np.arange(n) < relevant).astype(np.int32)[None]
    places = np.arange(n - relevant + 1)
    none_before = np.concatenate([[1.0], np.cumprod(1 - relevant / (n - places[:-1]))])
    first = none_before * relevant / (n - places)
    assert metrics.MRR().update(scores, target).results() == pytest.approx(
        fsum(first / (places + 1))
    )
    got = metrics.HitRate(k=5).update(scores, target).results()
    assert got == pytest.approx(first[:5].sum())


def test_sums_of_runs_that_end_at_one_place(rng):
    x = rng.random((3, 200))
    last = rng.random((3, 200)) < 0.1
    last[:, -1] = True
    first = rng.random((3, 200)) < rng.choice([0.05, 0.5, 1.0], (3, 1))
    want = np.zeros(x.shape)
    for i, j in zip(*np.nonzero(first), strict=True):
        want[i, j] = x[i, j : j + np.argmax(last[i, j:]) + 1].sum()
    np.testing.assert_allclose(run_sums(x, first, last).to_float(), want, 1e-13)


def test_results_stay_within_their_bounds(rng):
    for _ in range(30):
        labels, w = rng.integers(0, 4, 16), rng.random(16).astype(np.float32)
        for name in ("CramersV", "TschuprowsT", "SomersD"):
            for config in ({}, {"bias_correction": True}) if name != "SomersD" else ({},):
                metric = getattr(metrics, name)(num_classes=4, **config)
                assert not metric.update(labels, labels, weights=w).results() > 1, name
        ratings = 3 * np.eye(4, dtype=np.int32)[labels]
        assert not metrics.FleissKappa(num_categories=4).update(ratings, weights=w).results() > 1


def test_special_functions_in_float64():
    x = np.array([1e-8, 1e-3, 0.1, 0.1249, 0.126, 3.0])
    with localcontext() as context:
        context.prec = 40
        want = [float(Decimal(v) - (1 + Decimal(v)).ln()) for v in x.tolist()]
    np.testing.assert_allclose(x_minus_log1p(x), want, 1e-14)
    m = np.arange(60.0)
    want = scipy.special.gamma(m + 1) / np.where(m > 0, (m / np.e) ** m, 1)
    np.testing.assert_allclose(stirling_ratio(m), want, 1e-13)


def test_float64_of_a_formula_is_kept_in_a_sum():
    third = np.array([1 / 3])
    assert datarax.MetricAccumulator(0.0).update(third).double.to_float() == pytest.approx(
        1 / 3, rel=1e-14
    )
    error = metrics.MaxError().update(np.float32([0.3]), np.float32([0.1])).results()
    assert error == float(np.float32(0.3)) - float(np.float32(0.1))
    for p in (2, 3, 2.5):
        norm = metrics.MinkowskiDistance(p).update(np.float32([3, 0]), np.float32([0, 4])).results()
        assert norm == pytest.approx((3**p + 4**p) ** (1 / p), rel=1e-14)


def test_hosts_merge_as_programs_do(rng):
    # A state that a program made, and one of the host, have equal scores in equal places.
    x = rng.choice(np.float32([0.1, 0.3, 1 / 3]), 40)
    y = rng.integers(0, 2, 40)
    metric = metrics.AUROC()
    both = metric.update(x, y).merge(jax.jit(metrics.AUROC.update)(metric, x, y))
    assert both.results() == pytest.approx(sk.roc_auc_score(y, x), abs=1e-12) or len(set(y)) == 1


def test_the_host_gives_subnormal_probabilities_no_rank():
    scores, target = np.float32([1e-40, 0, 2e-40, 0]), np.array([1, 0, 0, 1])
    assert subject.apply(metrics.AUROC(), ((scores, target), {})).results() == 0.5
    assert metrics.SpearmanCorrCoef().update(
        np.float32([0, 1e-40, 1]), np.float32([1, 2, 3])
    ).results() == (pytest.approx(scipy.stats.spearmanr([0, 0, 1], [1, 2, 3])[0], abs=1e-12))


def test_longdoubles_are_rounded():
    x = np.array([1, 1e-320, 0.5], np.longdouble)
    assert metrics.Mean().update(x).results() == 0.5
    assert jax.jit(lambda x: metrics.Mean().update(x))(numeric(x, "x")).results() == 0.5
