"""float64 data outside `jit` is used as it is: every metric against its oracle in float64.

Far from zero, and near 1. What a state cannot keep of such numbers (an extreme, a quantile, a row,
a bin of scores) has bounds instead: see the tests of bounds.
"""

import warnings
from collections.abc import Callable

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from tests.registry import BATCH, BUNDLES, CASES, GROUPS, Case, arrays_of, probabilistic
from tests.registry.case import Arrays, widened
from tests.registry.edges import _are_probabilities
from tests.test_laws import fold, value_of, weights_of

OFFSET = 2.0**40
KEEPS_LESS = {
    # Bins of scores or of values.
    *(metrics.AUROC, metrics.AveragePrecision, metrics.Gini, metrics.LogAUC, metrics.ROC),
    *(metrics.PrecisionRecallCurve, metrics.DETCurve, metrics.GainCurve, metrics.LiftCurve),
    *(metrics.Gain, metrics.Lift, metrics.KolmogorovSmirnov, metrics.EqualErrorRate),
    *(metrics.PrecisionAtFixedRecall, metrics.RecallAtFixedPrecision),
    *(metrics.SensitivityAtSpecificity, metrics.SpecificityAtSensitivity),
    *(metrics.Quantile, metrics.Median, metrics.MedianAbsoluteError, metrics.ConformalThreshold),
    *(metrics.D2AbsoluteError, metrics.D2Pinball, metrics.ScoreDecomposition, metrics.StepTime),
    metrics.ActivationStats,
    # Extremes, among them the greatest time elapsed.
    *(metrics.Max, metrics.Min, metrics.MinMax, metrics.MaxError, metrics.Throughput),
    *(metrics.ModelFLOPs, metrics.Rate),
    # Rows as they are.
    *(metrics.SpearmanCorrCoef, metrics.KendallTau, metrics.KID, metrics.MeanAveragePrecision),
    *(metrics.SpearmanTest, metrics.KendallTest),
    *(metrics.LastValue, metrics.ConcordanceIndex, metrics.Silhouette, metrics.DunnIndex),
    # An estimate by hashes.
    *(metrics.Cardinality, metrics.DistinctN),
}
"""Metrics whose states hold rounded numbers."""
KEEP_LESS = {
    *("norm_inf", "nrmse", "calibration_error_mass", "davies_bouldin_mean_distance"),
}
"""Cases of other metrics that do so: a maximum, the range of the targets, bins of equal mass, rows
with their weights."""
CANCELS = {"stoi", "sisdr", "sdr", "permutation_invariant", "complex_sisnr", "ms_ssim", "uqi"} | {
    # Signals and images have no offset of 2**40: their oracles subtract squares of them.
    *("spatial_correlation", "vif", "ssim", "scc", "psnr_b", "sasdr", "sasdr_as_given"),
    *("spectral_distortion", "spatial_distortion", "qnr"),
    # The oracle rounds a mean of weighted values, or a power, before it subtracts.
    *("d2_tweedie", "prediction_powered_mean", "noise_scale", "expert_load_by_layer"),
}
"""Cases whose oracle, or whose formula, loses digits so far from zero."""


def far_from_zero(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Numbers with a spread near 1 and an offset, of which float64 holds the differences."""
    drawn = x + rng.uniform(-1, 0, x.shape) * 1e-3
    return np.round(drawn * 2**10) / 2**10 + OFFSET


def near_one(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Probabilities within about 1e-9 of 0 and 1; other numbers with digits of float64."""
    if x.size and x.min() >= 0 and x.max() <= 1:
        small = 1e-9 * rng.uniform(0.5, 1.5, x.shape)
        if not _are_probabilities(x) and not (x.ndim > 1 and np.allclose(x.sum(-1), 1, atol=1e-5)):
            return np.where(rng.random(x.shape) < 0.5, small, 1 - small)
        place = rng.integers(0, x.shape[-1], x.shape[:-1])[..., None]
        np.put_along_axis(small, place, 0, -1)
        np.put_along_axis(small, place, 1 - small.sum(-1, keepdims=True), -1)
        return small
    return x * (1 + 1e-9 * rng.uniform(-1, 0, x.shape))


KINDS = {"far from zero": far_from_zero, "near one": near_one}


def drawn(
    name: str, move: Callable[[np.random.Generator, np.ndarray], np.ndarray], rng
) -> list[Arrays]:
    """Batches with float64 in place of float32, and weights of float64."""
    inputs = GROUPS[name][0].inputs
    batches = []
    for _ in range(3):
        batch = {
            n: move(rng, x.astype(np.float64)) if x.dtype == np.float32 else x
            for n, x in inputs.draw(rng, BATCH).items()
        }
        if inputs.rows:
            batch["weights"] = rng.choice([0, 1 / 3, 0.1, 3.0], BATCH)
        batches.append(batch)
    return batches


def apart(case: Case, got, w: np.ndarray, wide: Arrays, moved: list[str]) -> float:
    """How far a value is from the oracle, relative to 1 or to the value if that is greater.

    An oracle rounds a mean far from zero, so its value without the offset counts, too: differences
    do not depend on it. Where the result may cancel, that of double-floats is no error.
    """
    with np.errstate(all="ignore"):
        near = {n: x - OFFSET if n in moved else x for n, x in wide.items()}
        wanted = [case.oracle(w, **wide)]
        if moved:
            wanted.append(case.oracle(w, **near))
        least = case.atol(w, **wide) * 2.0**-24
    worst = 0.0
    for x, *ys in zip(*map(jax.tree.leaves, (got, *wanted)), strict=True):
        x = np.asarray(x, np.float64)
        found = []
        for y in (np.asarray(y, np.float64) for y in ys):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            error = np.where(same, 0, np.abs(x - y))
            found.append(np.where(error <= least, 0, error / np.maximum(1, np.abs(y))))
        error = np.min(np.nan_to_num(found, nan=np.inf), 0)
        worst = max(worst, float(np.max(error, initial=0)))
    return worst


def kept_cases(name: str, kind: str) -> list[Case]:
    """The cases of a group whose states keep the digits of this kind of data."""
    return [
        case
        for case in GROUPS[name]
        if case.cls not in KEEPS_LESS
        and case.id not in KEEP_LESS
        and not (kind == "far from zero" and case.id in CANCELS)
        and not case.host
    ]


def joined(batches: list[Arrays]) -> Arrays:
    return {n: np.concatenate([each[n] for each in batches]) for n in batches[0]}


def takes(name: str, batch: Arrays) -> bool:
    """True if there are floats, and all are in the domain of the metrics, also far from zero."""
    given = {n: x for n, x in batch.items() if n != "weights"}
    floats = any(x.dtype == np.float64 for x in given.values())
    return floats and bool(GROUPS[name][0].inputs.valid(**given).all())


TRIED = [
    (name, kind)
    for name in GROUPS
    for kind, move in KINDS.items()
    if kept_cases(name, kind) and takes(name, joined(drawn(name, move, np.random.default_rng(0))))
]


@pytest.mark.parametrize(("name", "kind"), TRIED)
def test_float64_data_gives_the_value_of_the_oracle(name, kind, rng, monkeypatch):
    monkeypatch.setattr(probabilistic, "EPS", 2.0**-52)  # probabilities are clipped to this
    group, batches = kept_cases(name, kind), drawn(name, KINDS[kind], rng)
    every = joined(batches)
    assert takes(name, every)
    moved = [n for n, x in every.items() if x.dtype == np.float64 and n != "weights"]
    w, wide = weights_of(group[0], every), widened(every)
    arrays = [arrays_of(GROUPS[name], each) for each in batches]
    empty = BUNDLES[name]
    first, *others = (fold(empty, [each]) for each in arrays)
    states = {
        "one batch": fold(empty, [arrays_of(GROUPS[name], every)]),
        "several": fold(empty, arrays),
        "merged": first.merge(others[0].merge(others[1])),
    }
    for how, state in states.items():
        for x, start in zip(jax.tree.leaves(state), jax.tree.leaves(empty), strict=True):
            assert (x.dtype, np.shape(x)) == (start.dtype, np.shape(start)), name
        with warnings.catch_warnings():
            # Of the other metrics; and scores far from zero are no probabilities.
            warnings.simplefilter("ignore", datarax.PrecisionWarning)
            warnings.simplefilter("ignore", datarax.ScoresWarning)
            results = state.results()
        for case in group:
            got = value_of(case, results)
            got = {n: x for n, x in got.items() if n != "invalid"} if isinstance(got, dict) else got
            shift = moved if kind == "far from zero" else []
            most = 1e-10 if case.id == "fid" else 1e-12  # it has a root of a matrix
            assert apart(case, got, w, wide, shift) < most, (case.id, how)


def test_one_row_of_many_keeps_its_digits(rng):
    """In slices and intervals as alone."""
    n = 200
    y = np.round(rng.normal(size=n) * 2**10) / 2**10
    x = y + np.round(rng.normal(size=n) * 2**9) / 2**10
    ids = rng.integers(0, 3, n)
    far_x, far_y = x + OFFSET, y + OFFSET
    for metric, arguments, near in (
        (metrics.Variance(), (far_x,), (x,)),
        (metrics.Mean(), (far_x,), None),
        (metrics.MeanSquaredError(), (far_x, far_y), None),
        (metrics.MeanAbsoluteError(), (far_x, far_y), None),
        (metrics.R2Score(), (far_x, far_y), (x, y)),
        (metrics.PearsonCorrCoef(), (far_x, far_y), (x, y)),
    ):
        name = type(metric).__name__
        near = near or arguments
        sliced = datarax.Sliced(metric, 3)
        for i in range(0, n, 40):
            rows = slice(i, i + 40)
            sliced = sliced.update(*(a[rows] for a in arguments), slices=ids[rows])
        got = sliced.results()
        for i in range(3):
            want = metric.update(*(a[ids == i] for a in near)).results()
            np.testing.assert_allclose(got[str(i)], want, 1e-11, err_msg=name)
        if isinstance(metric, metrics.Variance):
            continue
        interval = [datarax.Interval(metric).update(*a).results() for a in (arguments, near)]
        np.testing.assert_allclose(
            interval[0]["std_error"], interval[1]["std_error"], 1e-9, err_msg=name
        )


def test_numbers_beyond_float32():
    """Means, absolute errors and their like hold any float64; others count it as infinite."""
    x, y = np.array([1e300, -3e300, 1.7e308, 1e308]), np.array([-2e300, 1e300, 0, 1e307])
    w = np.array([0.1, 2, 3, 1e30])
    small = [each * 2.0**-200 for each in (x, y)]  # in a range in which no sum overflows
    unit = 2.0**200

    def mean(values, weights=None):
        return float(np.average(values, weights=weights)) * unit

    def root(error):
        return float(np.sqrt((error**2).mean()))

    error = small[0] - small[1]
    for metric, arguments, given, want in (
        (metrics.Mean(), (x,), None, mean(small[0])),
        (metrics.Mean(), (x,), w, mean(small[0], w)),
        (metrics.MeanAbsoluteError(), (x, y), None, mean(np.abs(error))),
        (metrics.MeanAbsoluteError(), (x, y), w, mean(np.abs(error), w)),
        (metrics.RootMeanSquaredError(), (x, y), None, root(error / 2.0**600) * 2.0**800),
        (metrics.Ratio(), (x, y), None, small[0].sum() / small[1].sum()),
        (metrics.GeometricMean(), (np.abs(x),), None, np.exp(np.log(np.abs(x)).mean())),
        (metrics.Norm(), (x * 1e-9,), None, root(small[0] / 2.0**600) * 2e-9 * 2.0**800),
        (metrics.Mean(), (x * 1e-300 * 1e-290,), None, mean(small[0]) * 1e-300 * 1e-290),
    ):
        whole = metric.update(*arguments, weights=given)
        parts = [
            metric.update(*(a[rows] for a in arguments), weights=None if given is None else w[rows])
            for rows in (slice(1), slice(1, 4))
        ]
        for state in (whole, parts[0].merge(parts[1])):
            assert state.results() == pytest.approx(want, rel=1e-12), type(metric).__name__
    for metric in (metrics.Sum(), metrics.Std(), metrics.Max()):
        with pytest.warns(datarax.InvalidValuesWarning, match="4 infinite"):
            assert np.isnan(metric.update(x).results())
    assert metrics.MeanSquaredError().update(x, y).results() == np.inf  # beyond float64, too


@pytest.mark.parametrize("scale", [2.0**-150, 2.0**150])
def test_numbers_beyond_float32_are_right_or_announced(scale, rng):
    """By a warning: what is ranked keeps its order, or the metric says that it does not."""
    # Log-odds beyond 700 are infinite, as is documented; a threshold is an upper bound.
    others = {"auroc_class_logits", "roc_class_logits", "conformal_threshold"}
    checked = []
    for case in CASES:
        if case.host or not case.inputs.rows or case.id in others:
            continue
        drawn = case.inputs.draw(rng, BATCH)
        given = {
            n: x.astype(np.float64) * scale if x.dtype == np.float32 else x
            for n, x in drawn.items()
        }
        usable = case.inputs.valid(**given)
        if not (usable.all() and any(x.dtype == np.float64 for x in given.values())):
            continue
        metric = case.make()
        with np.errstate(all="ignore"):
            want = case.oracle(np.ones(usable.shape), **widened(given))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            got = metric.update(**metric.arguments_from(case.arrays(given))).results()
        if not said:
            for x, y in zip(*map(jax.tree.leaves, (got, want)), strict=True):
                np.testing.assert_allclose(x, y, 1e-6, err_msg=case.id)
        checked.append((case.cls, bool(said)))
    # What compares numbers needs no warning; nor do these of float32, and of a few small numbers.
    right = {cls for cls, said in checked if not said}
    assert {metrics.NDCG, metrics.Accuracy, metrics.Mean, metrics.MeanAbsoluteError} <= right
    assert {cls for cls, said in checked if said} >= {metrics.SpearmanCorrCoef, metrics.R2Score}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = np.array([1e-200, 0.25, 0.5])
        assert metrics.R2Score().update(small, small).results() == 1
        assert metrics.Max().update(np.array([0.0, 0.0])).results() == 0
        one = np.array([1e-60, 0.25, 0.5]), np.array([0.1, 1e-60, 0.2])
        assert metrics.SpearmanCorrCoef().update(*one).results() == pytest.approx(0.5)


def test_a_threshold_and_weights_in_float64():
    # 0.3 as a float32 is above 0.3 as a float64, and so is the score between them.
    between = np.array([0.3 + 1e-10, 0.3, np.nextafter(0.3, 1)])
    assert metrics.Accuracy(threshold=0.3).update(between, np.ones(3, int)).results() == 2 / 3
    assert metrics.CriticalSuccessIndex(0.3).update(between, between).results() == 1
    weights, values = np.array([0.1, 1 - 1e-12, 1e-12]), np.array([1.0, 2, 1e12])
    want = float(np.average(values, weights=weights))
    assert metrics.Mean().update(values, weights=weights).results() == pytest.approx(want, 1e-14)
    share = metrics.Accuracy().update(np.array([1, 0, 1]), np.ones(3, int), weights=weights)
    assert share.results() == pytest.approx((0.1 + 1e-12) / weights.sum(), 1e-14)
