"""Regression: published examples, offsets, constants, several outputs, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

import datarax
from datarax import Collection, MetricInputError, MetricTypeError, metrics
from tests.helpers import update, value_of, x64


@jax.jit
def value_and_invalid(metric, preds, target):
    """The value, and how many could not be used, in one program."""
    seen = metric.update(preds, target)
    return seen.compute(), seen.invalid_count()


# Worked examples from scikit-learn's user guide, "Metrics and scoring", section "Regression
# metrics"; predictions, targets, what the guide prints.
FOUR = np.float32([2.5, 0.0, 2, 8]), np.float32([3, -0.5, 2, 7])
ROWS = np.float32([[0, 2], [-1, 2], [8, -5]]), np.float32([[0.5, 1], [-1, 1], [7, -6]])
LOGS = np.float32([2.5, 5, 4, 8]), np.float32([3, 5, 2.5, 7])
THREE = np.float32([0, 2, 3]), np.float32([1, 2, 3])
COUNTS = np.float32([0.5, 0.5, 2, 2]), np.float32([2, 0, 1, 4])
SIZES = np.float32([0.5, 0.5, 2, 2]), np.float32([2, 0.5, 1, 4])
SCALES = np.float32([1, 12.5, 120, 1200]), np.float32([1, 10, 100, 1000])
LARGEST = np.float32([9, 2, 7, 1]), np.float32([3, 2, 7, 1])

RAW = {"num_outputs": 2, "multioutput": "raw_values"}
WEIGHTED = {"num_outputs": 2, "multioutput": "variance_weighted"}
PUBLISHED = [
    (metrics.MeanSquaredError, {}, FOUR, 0.375),
    (metrics.MeanSquaredError, {"num_outputs": 2}, ROWS, 0.7083),
    (metrics.MeanSquaredError, RAW, ROWS, [0.41666667, 1.0]),
    (metrics.RootMeanSquaredError, {}, FOUR, 0.612),
    (metrics.MeanAbsoluteError, {}, FOUR, 0.5),
    (metrics.MeanAbsoluteError, {"num_outputs": 2}, ROWS, 0.75),
    (metrics.MeanAbsoluteError, RAW, ROWS, [0.5, 1.0]),
    (metrics.R2Score, {}, FOUR, 0.948),
    (metrics.R2Score, WEIGHTED, ROWS, 0.938),
    (metrics.R2Score, {"num_outputs": 2}, ROWS, 0.936),
    (metrics.R2Score, RAW, ROWS, [0.965, 0.908]),
    (metrics.ExplainedVariance, {}, FOUR, 0.957),
    (metrics.ExplainedVariance, RAW, ROWS, [0.967, 1.0]),
    (metrics.MeanSquaredLogError, {}, LOGS, 0.039),
    (metrics.MeanSquaredLogError, {"squared": False}, LOGS, 0.199),
    (metrics.MeanAbsolutePercentageError, {}, SCALES, 0.1625),
    (metrics.MedianAbsoluteError, {}, FOUR, 0.5),
    (metrics.MaxError, {}, LARGEST, 6.0),
    (metrics.QuantileLoss, {"q": 0.1}, THREE, 0.033),
    (metrics.QuantileLoss, {"q": 0.9}, THREE, 0.3),
    (metrics.TweedieDeviance, {"power": 1}, COUNTS, 1.4260),
    (metrics.TweedieDeviance, {"power": 2}, SIZES, 1.0568),
]


@pytest.mark.parametrize(
    "inputs", [FOUR, ROWS, LOGS, THREE, COUNTS, SIZES, SCALES, LARGEST], ids=range(8)
)
def test_published_examples(inputs):
    cases = [case for case in PUBLISHED if case[2] is inputs]
    collection = Collection({str(i): cls(**config) for i, (cls, config, *_) in enumerate(cases)})
    values = value_of(collection, preds=inputs[0], target=inputs[1])
    for i, (cls, _, _, want) in enumerate(cases):
        # To the digits that are printed, the last of which the guide cuts or rounds.
        digits = max(len(str(x).partition(".")[2]) for x in np.atleast_1d(want).tolist())
        np.testing.assert_allclose(
            values[str(i)], want, 0, 10.0 ** -min(digits, 6), err_msg=cls.__name__
        )


def test_one_statistic_serves_them_all():
    readers = (
        metrics.RelativeSquaredError,
        metrics.R2Score,
        metrics.ExplainedVariance,
    )
    several = Collection({cls.__name__: cls() for cls in readers})
    assert len(several.states_within()) == 1
    assert len(jax.tree.leaves(several)) <= 13  # an update is to stay cheap
    squares = {"mse": metrics.MeanSquaredError(), "rmse": metrics.RootMeanSquaredError()}
    assert len(Collection(squares).states_within()) == 1
    both = {"pearson": metrics.PearsonCorrCoef(), "concordance": metrics.ConcordanceCorrCoef()}
    assert len(Collection(both).states_within()) == 1
    ranks = {"spearman": metrics.SpearmanCorrCoef(), "kendall": metrics.KendallTau()}
    assert len(Collection(ranks).states_within()) == 1


# Hard inputs.


@pytest.mark.parametrize(
    ("offset", "sigma", "noise"), [(1e4, 1, 0.49), (1e3, 0.1, 0.02), (1e6, 1, 0.3)]
)
def test_r2_at_an_offset(rng, offset, sigma, noise):
    # Other libraries give 1.0126 for labels around 1e4, and 0.998 for 1000 plus or minus 0.1.
    target = rng.normal(offset, sigma, (4, 500)).astype(np.float32)
    preds = (target + rng.normal(0, noise, (4, 500))).astype(np.float32)
    metric = Collection(
        {
            "r2_score": metrics.R2Score(),
            "explained_variance_score": metrics.ExplainedVariance(),
            "mean_squared_error": metrics.MeanSquaredError(),
            "mean_absolute_error": metrics.MeanAbsoluteError(),
        }
    )
    for p, t in zip(preds, target, strict=True):
        metric = update(metric, preds=p, target=t)
    for name, value in metric.compute().items():
        want = getattr(sklearn.metrics, name)(
            target.ravel().astype(np.float64), preds.ravel().astype(np.float64)
        )
        np.testing.assert_allclose(value, want, 1e-6, err_msg=name)


def test_r2_of_one_example_and_of_constants():
    scores = Collection(
        {
            "r2": metrics.R2Score(),
            "raw": metrics.R2Score(force_finite=False),
            "explained": metrics.ExplainedVariance(),
        }
    )
    nan, inf = np.nan, np.inf
    for preds, weights, r2, raw, explained in (
        ((3, 3), (1, 0), nan, nan, 1),  # one example, as scikit-learn
        ((3, 3), (2, 0), 1, nan, 1),  # a weight is a repetition
        ((3, 3), (1, 1), 1, nan, 1),
        ((4, 4), (1, 1), 0, -inf, 1),
        ((3, 5), (1, 1), 0, -inf, 0),
        ((4, 4), (0, 0), nan, nan, nan),
    ):
        inputs = {"preds": np.float32(preds), "target": np.float32([3, 3])}
        seen = update(scores, **inputs, weights=np.float32(weights))
        values = seen.compute()
        got = [values[name] for name in ("r2", "raw", "explained")]
        np.testing.assert_array_equal(got, [r2, raw, explained])
    # A constant that no float is, of which the mean is rounded, in several batches.
    third = np.full(2, 1e6 / 3, np.float32)
    seen = scores
    for weight in (1, 0.3, 0.7):
        seen = update(seen, preds=third, target=third, weights=np.float32([weight, 0.1]))
    assert seen.compute()["r2"] == 1


def test_adjusted_r2(rng):
    target = rng.normal(1e4, 1, 50).astype(np.float32)
    preds = target + rng.normal(0, 0.5, 50).astype(np.float32)
    r2 = sklearn.metrics.r2_score(target.astype(np.float64), preds.astype(np.float64))
    adjusted = value_of(metrics.R2Score(adjusted=3), preds, target)
    np.testing.assert_allclose(adjusted, 1 - (1 - r2) * 49 / 46, 1e-6)
    assert np.isnan(value_of(metrics.R2Score(adjusted=49), preds, target))


def test_normalized_root_mean_squared_error(rng):
    target = rng.normal(-20, 3, (50, 2)).astype(np.float32)
    preds = target + rng.normal(0, 1, (50, 2)).astype(np.float32)
    error = preds.astype(np.float64) - target
    root = np.sqrt((error**2).mean(0))
    wide = target.astype(np.float64)
    scales = {"range": np.ptp(wide, 0), "mean": np.abs(wide.mean(0)), "std": wide.std(0)}
    nrmse = metrics.NormalizedRootMeanSquaredError
    collection = Collection({name: nrmse(normalization=name, **RAW) for name in scales})
    values = value_of(collection, preds=preds, target=target)
    for name, scale in scales.items():
        np.testing.assert_allclose(values[name], root / scale, 1e-6)
    constant = np.stack([target[:, 0], np.full(50, -20, np.float32)], -1)
    values = value_of(collection, preds=preds, target=constant)
    assert np.isnan(values["range"]).tolist() == [False, True]
    assert np.isnan(values["std"]).tolist() == [False, True]


@pytest.mark.parametrize("power", [-0.5, 0, 1, 1.3, 2, 3])
def test_every_tweedie_deviance(rng, power):
    target = rng.lognormal(0, 2, 300).astype(np.float32)
    preds = (target * rng.lognormal(0, 0.7, 300)).astype(np.float32)
    if power < 2:
        target[:50] = 0
    if power <= 0:
        target[:25] = -1
    if power == 0:
        preds[:10] = -3
    want = sklearn.metrics.mean_tweedie_deviance(
        target.astype(np.float64), preds.astype(np.float64), power=power
    )
    value, invalid = value_and_invalid(
        metrics.TweedieDeviance(power=power, on_invalid="exclude"), preds, target
    )
    np.testing.assert_allclose(value, want, 1e-6)
    assert int(invalid) == 0


def test_tweedie_deviance_of_near_predictions(rng):
    # By the terms of the definition, which cancel, float32 would give noise of 0.1.
    target = rng.normal(1e6, 1, 300).astype(np.float32)
    preds = rng.normal(1e6, 1, 300).astype(np.float32)
    t, p = target.astype(np.float64), preds.astype(np.float64)
    for power in (1, 2, 3, 1.5):
        # The first terms of the series in (t - p) / p, of size 1e-6.
        u = (t - p) / p
        want = (p ** (2 - power) * u**2 * (1 - power / 3 * u)).mean()
        value = value_of(metrics.TweedieDeviance(power=power), preds, target)
        np.testing.assert_allclose(value, want, 1e-6)


def test_tweedie_deviance_of_targets_far_below_the_predictions():
    preds, target = np.float32([1, 3, 7e3]), np.float32([1e-9, 1e-6, 1e-3])
    for power in (1, 1.5, 2, 3):
        # One at a time, so that the greatest deviance does not hide the others.
        for p, t in zip(preds, target, strict=True):
            want = sklearn.metrics.mean_tweedie_deviance([float(t)], [float(p)], power=power)
            value = value_of(metrics.TweedieDeviance(power), p[None], t[None])
            np.testing.assert_allclose(value, want, 1e-6)


def test_where_a_deviance_is_not_defined():
    preds, target = np.float32([1, -1, 0, 1, 1, 1]), np.float32([1, 1, 1, 0, -1, 2])
    for power, invalid in ((0, 0), (-1, 2), (1, 3), (2, 4)):
        value, count = value_and_invalid(
            metrics.TweedieDeviance(power=power, on_invalid="exclude"), preds, target
        )
        assert int(count) == invalid
        assert np.isfinite(value)
    logs = value_and_invalid(metrics.MeanSquaredLogError(), preds, target)
    assert int(logs[1]) == 2  # where one is -1: log(0)


def test_large_and_small_errors():
    zero = np.zeros(1, np.float32)
    log_cosh = metrics.LogCoshError()
    for e in np.array([1e-12, 1e-4, 0.5, 0.999, 1.001, 20, 1e30], np.float32):
        x = np.float64(e)
        want = np.log(np.cosh(x)) if 0.1 < x < 100 else x**2 / 2 - x**4 / 12 if x < 1 else x
        np.testing.assert_allclose(value_of(log_cosh, e[None], zero), want, 1e-6)
    for exponent in (1.5, 2, 4.25):
        metric = metrics.MinkowskiDistance(p=exponent)
        preds = np.float32([3e5, 4e-5, 0, 7])
        want = (preds.astype(np.float64) ** exponent).sum() ** (1 / exponent)
        np.testing.assert_allclose(value_of(metric, preds, np.zeros(4, np.float32)), want, 1e-6)
    near = np.float32([1e6, 1e6]), np.float32([1e6 + 1, 1e6 - 1])
    want = sklearn.metrics.mean_squared_log_error(*(x.astype(np.float64) for x in near))
    np.testing.assert_allclose(value_of(metrics.MeanSquaredLogError(), *near), want, 1e-6)
    both_zero = value_of(metrics.SymmetricMeanAbsolutePercentageError(), zero, zero)
    assert both_zero == 0
    assert np.isnan(value_of(metrics.WeightedMeanAbsolutePercentageError(), zero + 1, zero))
    assert value_of(metrics.MeanAbsolutePercentageError(), zero + 1, zero) == np.float32(2.0**52)


def test_median_absolute_error(rng):
    for errors in (
        rng.normal(0, 1, 1001),
        rng.lognormal(0, 9, 1001),
        rng.choice([0.0, 0.25, 3.0], 1001),
    ):
        target = np.zeros(1001, np.float32)
        preds = errors.astype(np.float32)
        metric = update(metrics.MedianAbsoluteError(), preds, target)
        want = np.median(np.abs(preds))
        lower, upper = metric.bounds()
        assert lower <= want <= upper
        assert abs(metric.compute() - want) <= metric.statistic.relative_error * want
    assert lower == upper == metric.compute() == want  # true ties


def test_a_threshold_is_reached_not_passed():
    preds, target = np.float32([0.5, 0.5, 0.4, 0.4]), np.float32([0.5, 0.1, 0.9, 0.1])
    metric = metrics.CriticalSuccessIndex(threshold=0.5)
    np.testing.assert_allclose(value_of(metric, preds, target), 1 / 3, 1e-7)
    assert np.isnan(value_of(metrics.CriticalSuccessIndex(threshold=2), preds, target))


def test_several_outputs_are_as_many_metrics(rng):
    target = rng.lognormal(0, 1, (60, 3)).astype(np.float32)
    preds = (target * rng.lognormal(0, 0.3, (60, 3))).astype(np.float32)
    makers = {
        "huber": metrics.HuberLoss,
        "wmape": metrics.WeightedMeanAbsolutePercentageError,
        "rse": metrics.RelativeSquaredError,
        "concordance": metrics.ConcordanceCorrCoef,
    }

    def values(p, t, **config):
        collection = Collection({name: maker(**config) for name, maker in makers.items()})
        return collection.update(preds=p, target=t).compute()

    raw = jax.jit(lambda p, t: values(p, t, num_outputs=3, multioutput="raw_values"))
    each = jax.jit(jax.vmap(values, in_axes=1))(preds, target)
    for name, value in raw(preds, target).items():
        np.testing.assert_allclose(value, each[name], 1e-6, err_msg=name)
    # Without num_outputs, all values are one population, of any shape; with it, their mean.
    assert value_of(metrics.MaxError(), preds, target) == np.abs(preds - target).max()
    mean = value_of(metrics.MaxError(num_outputs=3), preds, target)
    np.testing.assert_allclose(mean, np.abs(preds - target).max(0).mean(), 1e-6)


@pytest.mark.parametrize(
    "weights", [[1, 2, 3], (0.2, 0.3, 0.5), np.array([0.0, 1.0, 4.0])], ids=str
)
def test_the_weights_of_outputs(weights, rng):
    target, preds = rng.normal(size=(2, 60, 3))
    for cls, score in (
        (metrics.MeanSquaredError, sklearn.metrics.mean_squared_error),
        (metrics.RootMeanSquaredError, sklearn.metrics.root_mean_squared_error),
        (metrics.MeanAbsoluteError, sklearn.metrics.mean_absolute_error),
        (metrics.R2Score, sklearn.metrics.r2_score),
        (metrics.ExplainedVariance, sklearn.metrics.explained_variance_score),
    ):
        metric = cls(num_outputs=3, multioutput=weights)
        want = score(target, preds, multioutput=weights)
        assert metric.update(preds, target).results() == pytest.approx(want, rel=1e-6)
        same = cls(num_outputs=3, multioutput=tuple(map(float, weights)))
        assert metric.merge(same.update(preds, target)).results() == pytest.approx(want, rel=1e-6)
    for wrong in ([1, 2], [1, -1, 2], [0, 0, 0], [1, 2, np.nan], 3, "x"):
        with pytest.raises(MetricInputError, match="multioutput="):
            metrics.R2Score(num_outputs=3, multioutput=wrong)
    with pytest.raises(MetricInputError, match="without num_outputs="):
        metrics.R2Score(multioutput=[1, 2, 3])


def test_variance_weighted(rng):
    target = rng.normal(0, [1, 5, 2], (60, 3)).astype(np.float32)
    preds = (target + rng.normal(0, 1, (60, 3))).astype(np.float32)
    target[:, 2] = 2  # which weighs nothing, unless none weighs anything
    metric = metrics.R2Score(num_outputs=3, multioutput="variance_weighted")
    want = sklearn.metrics.r2_score(
        target.astype(np.float64), preds.astype(np.float64), multioutput="variance_weighted"
    )
    np.testing.assert_allclose(value_of(metric, preds, target), want, 1e-6)
    flat = np.full((60, 3), 2, np.float32)
    assert value_of(metric, flat, flat) == 1


def test_with_x64(rng):
    target = rng.normal(1e6, 1, 100)
    preds = target + rng.normal(0, 0.5, 100)
    with x64():
        for cls, name in (
            (metrics.R2Score, "r2_score"),
            (metrics.MeanSquaredError, "mean_squared_error"),
        ):
            value = value_of(cls(), preds, target)
            assert value.dtype == jnp.float64
            want = getattr(sklearn.metrics, name)(target, preds)
            np.testing.assert_allclose(value, want, 1e-10)
        deviance = value_of(metrics.TweedieDeviance(power=1), preds, target)
        u = (target - preds) / preds
        want = (preds * u**2 * (1 - u / 3 + u**2 / 6)).mean()
        np.testing.assert_allclose(deviance, want, 1e-12)


# What is refused.


@pytest.mark.parametrize(
    "cls",
    [
        metrics.MeanSquaredError,
        metrics.R2Score,
        metrics.PearsonCorrCoef,
        metrics.HuberLoss,
        metrics.MaxError,
        metrics.MedianAbsoluteError,
        metrics.SpearmanCorrCoef,
        metrics.CosineSimilarity,
    ],
)
def test_shapes_that_would_broadcast_are_refused(cls):
    # Other libraries broadcast (1000,) predictions against (1000, 1) labels.
    with pytest.raises(MetricInputError, match=r"\(1000,\) and target of shape \(1000, 1\)"):
        cls().update(np.zeros(1000), np.zeros((1000, 1)))
    with pytest.raises(MetricTypeError, match="preds has dtype complex64"):
        cls().update(np.zeros(3, np.complex64), np.zeros(3, np.complex64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.MeanSquaredError(num_outputs=0), "num_outputs=0"),
        (lambda: metrics.MeanSquaredError(multioutput="variance_weighted"), "multioutput="),
        (lambda: metrics.R2Score(multioutput="mean"), "'variance_weighted'"),
        (lambda: metrics.R2Score(adjusted=-1), "adjusted=-1"),
        (lambda: metrics.MeanAbsoluteError(on_invalid="ignore"), "on_invalid='ignore'"),
        (lambda: metrics.NormalizedRootMeanSquaredError(normalization="iqr"), "'range'"),
        (lambda: metrics.HuberLoss(delta=0), "delta=0; expected a number above 0"),
        (lambda: metrics.QuantileLoss(q=1.5), "q=1.5; expected a number from 0 to 1"),
        (lambda: metrics.MinkowskiDistance(p=0.5), "p=0.5"),
        (lambda: metrics.TweedieDeviance(power=0.5), "power=0.5"),
        (lambda: metrics.CriticalSuccessIndex(threshold=np.nan), "threshold=nan"),
        (lambda: metrics.MedianAbsoluteError(bits=40), "bits=40"),
        (lambda: metrics.KendallTau(capacity=0), "capacity=0"),
    ],
)
def test_what_configuration_is_refused(make, message):
    with pytest.raises(MetricInputError, match=message.replace("(", r"\(")):
        make()


def test_another_configuration_does_not_merge():
    for a, b in (
        (metrics.HuberLoss(delta=1.0), metrics.HuberLoss(delta=2.0)),
        (metrics.R2Score(), metrics.R2Score(adjusted=2)),
        (metrics.MeanSquaredError(), metrics.MeanSquaredError(num_outputs=1)),
    ):
        with pytest.raises(datarax.ConfigurationMismatchError):
            a.merge(b)


def test_the_greatest_and_the_median_error_of_large_integers(rng):
    target = rng.integers(-(2**30), 2**30, 9).astype(np.int32)
    errors = rng.integers(-9, 10, 9).astype(np.int32)
    for cls, of in ((metrics.MaxError, np.max), (metrics.MedianAbsoluteError, np.median)):
        assert update(cls(), target + errors, target).results() == of(np.abs(errors))


def test_large_integers_are_compared_without_rounding(rng):
    # Different integers of one float32.
    target = rng.integers(2**30, 2**30 + 50, 40)
    preds = target + rng.integers(-3, 4, 40)
    threshold = 2**30 + 25
    events, observed = preds >= threshold, target >= threshold
    got = metrics.CriticalSuccessIndex(float(threshold)).update(preds, target).compute()
    want = (events & observed).sum() / (events | observed).sum()
    np.testing.assert_allclose(got, want, 1e-6)
    for metric, reference in (
        (metrics.SpearmanCorrCoef(capacity=64), scipy.stats.spearmanr),
        (metrics.KendallTau(capacity=64), scipy.stats.kendalltau),
    ):
        got = metric.update(preds, target).compute()
        np.testing.assert_allclose(got, reference(preds, target)[0], 1e-5)
