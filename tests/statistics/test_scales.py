"""Metrics of squares and powers: values and weights whose products leave the range of float32."""

import jax
import numpy as np
import pytest
import scipy.stats

from datarax import Collection, metrics
from datarax.statistics import Moments
from tests.helpers import merge

N = 32
SCALES = (1.0, 1e30, 1e-30)

OF_VALUES = Collection(
    {
        "variance": metrics.Variance(),
        "unbiased": metrics.Std(ddof=1),
        "std": metrics.Std(),
        "rms": metrics.RootMeanSquare(),
        "norm": metrics.Norm(),
        "sum": metrics.Norm(ord=1),
    }
)
OF_POSITIVE = Collection({"harmonic": metrics.HarmonicMean(), "geometric": metrics.GeometricMean()})
OF_PAIRS = Collection(
    {
        "mse": metrics.MeanSquaredError(),
        "rmse": metrics.RootMeanSquaredError(),
        "root": metrics.MeanSquaredError(squared=False),
        "r2": metrics.R2Score(),
        "explained": metrics.ExplainedVariance(),
        "relative": metrics.RelativeSquaredError(),
        "range": metrics.NormalizedRootMeanSquaredError(),
        "spread": metrics.NormalizedRootMeanSquaredError(normalization="std"),
        "pearson": metrics.PearsonCorrCoef(),
        "concordance": metrics.ConcordanceCorrCoef(),
    }
)


@jax.jit
def values_of(collection, batches):
    halves = [collection.update(**batch) for batch in batches]
    return merge(*halves).compute(), halves[0].update(**batches[1]).compute()


def check(collection, arrays, w, want):
    batches = [
        {name: np.float32(x[half]) for name, x in (arrays | {"weights": w}).items()}
        for half in (slice(0, N // 2), slice(N // 2, N))
    ]
    for got in values_of(collection, batches):
        assert got.keys() == want.keys()
        for name, value in got.items():
            with np.errstate(over="ignore", under="ignore"):
                expected = np.float32(want[name])
            np.testing.assert_allclose(value, expected, 1e-5, 1e-5 * (0 < abs(expected) < 1), name)


def draw_weights(rng, scale):
    # One weight of the greatest size, so that each half has one.
    w = rng.choice(np.float64(np.float32([0, 0.5, 3])), N)
    w[[0, -1]] = 1
    return np.float64(np.float32(w * scale))


@pytest.mark.parametrize("scale", SCALES)
def test_squares_of_values(rng, scale):
    x = np.float64(np.float32((rng.normal(size=N) + 0.5) * scale))
    for weight_scale in SCALES:
        w = draw_weights(rng, weight_scale)
        mean = np.average(x, weights=w)
        squares = np.sum(w * (x - mean) ** 2)
        degrees = w.sum() - 1
        want = {
            "variance": squares / w.sum(),
            "std": np.sqrt(squares / w.sum()),
            "unbiased": np.sqrt(squares / degrees) if degrees > 0 else np.nan,
            "rms": np.sqrt(np.average(x**2, weights=w)),
            "norm": np.sqrt(np.sum(w * x**2)),
            "sum": np.sum(w * np.abs(x)),
        }
        check(OF_VALUES, {"values": x}, w, want)
        positive = np.abs(x) + np.float32(scale / 8)
        positive = np.float64(np.float32(positive))
        want = {
            "harmonic": scipy.stats.hmean(positive, weights=w),
            "geometric": np.exp(np.average(np.log(positive), weights=w)),
        }
        check(OF_POSITIVE, {"values": positive}, w, want)


@pytest.mark.parametrize("scale", SCALES)
def test_squares_of_errors(rng, scale):
    target = np.float64(np.float32(rng.normal(1, 1, N) * scale))
    preds = np.float64(np.float32(target + rng.normal(0.2, 0.5, N) * scale))
    for weight_scale in SCALES:
        w = draw_weights(rng, weight_scale)

        def mean(x, w=w):
            return np.average(x, weights=w)

        e, p, t = preds - target, preds - mean(preds), target - mean(target)
        mse = mean(e**2)
        used = target[w > 0]
        concordance = 2 * mean(p * t) / (mean(p**2) + mean(t**2) + mean(e) ** 2)
        want = {
            "mse": mse,
            "rmse": np.sqrt(mse),
            "root": np.sqrt(mse),
            "r2": 1 - mse / mean(t**2),
            "explained": 1 - mean((e - mean(e)) ** 2) / mean(t**2),
            "relative": mse / mean(t**2),
            "range": np.sqrt(mse) / np.ptp(used),
            "spread": np.sqrt(mse / mean(t**2)),
            "pearson": mean(p * t) / np.sqrt(mean(p**2) * mean(t**2)),
            "concordance": concordance,
        }
        if w.sum() <= 1:  # a single example
            assert mean(t**2) > 0
        check(OF_PAIRS, {"preds": preds, "target": target}, w, want)


def test_scales_far_apart_are_merged(rng):
    # The greater values decide, in either order; what they leave of the others is negligible.
    a, b = (np.float32(rng.normal(size=N // 2) * scale) for scale in (1e30, 1e-30))
    for first, second in ((a, b), (b, a)):
        got = metrics.Std().update(first).merge(metrics.Std().update(second)).compute()
        want = np.std(np.float64(np.concatenate([a, b])))
        np.testing.assert_allclose(got, want, 1e-5)


def test_standardised_moments_of_any_scale(rng):
    x = rng.exponential(1, N)
    fold = jax.jit(lambda a, b: Moments(order=4).update(a).update(b))
    for scale in SCALES:
        scaled = np.float32(x * scale)
        seen = fold(scaled[: N // 2], scaled[N // 2 :])
        np.testing.assert_allclose(seen.skewness, scipy.stats.skew(np.float64(scaled)), 1e-4)
        want = scipy.stats.kurtosis(np.float64(scaled))
        np.testing.assert_allclose(seen.kurtosis, want, 1e-4, 1e-4)


@pytest.mark.parametrize("scale", SCALES)
def test_clusters_of_any_scale(rng, scale):
    points, labels = rng.normal(size=(N, 2)), rng.integers(0, 3, N)
    points = np.float32((points + labels[:, None]) * scale)
    for cls in (metrics.CalinskiHarabasz, metrics.DaviesBouldin):
        got, want = (
            cls(num_clusters=3, num_features=2).update(x, labels).compute()
            for x in (points, points / np.float32(scale))
        )
        np.testing.assert_allclose(got, want, 1e-4)


def test_what_leaves_float32_is_infinite():
    ends = np.float32([3e38, -3e38])
    for value in (
        metrics.Variance().update(ends[:1] / 4).update(ends[1:] / 4).compute(),
        metrics.MeanSquaredError().update(ends, ends[::-1]).compute(),
    ):
        assert not np.isfinite(value)
    got = metrics.Std().update(ends).compute()
    np.testing.assert_allclose(got, 3e38, 1e-6)
