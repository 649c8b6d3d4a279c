"""Real predictions and targets, one value or several an example."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum, sum_bound
from tests.registry.aggregation import TINY
from tests.registry.case import BATCH, Arrays, Case, Inputs
from tests.registry.reference import scipy_of, sklearn_of

OUTPUTS = 3


def pairs(
    rng: np.random.Generator,
    size: int,
    *,
    shape: tuple[int, ...] = (),
    offset: float = 3.0,
    scale: float = 1.0,
    error: float = 0.5,
    bias: float = 0.1,
) -> Arrays:
    target = rng.normal(offset, scale, (size, *shape)).astype(np.float32)
    preds = target + scale * rng.normal(bias, error, (size, *shape))
    return {"preds": preds.astype(np.float32), "target": target}


def constant_target(rng: np.random.Generator, size: int, *, right: bool) -> Arrays:
    target = np.full(size, rng.normal(0, 1e3), np.float32)
    return {"preds": target if right else pairs(rng, size)["preds"], "target": target}


def constant_preds(rng: np.random.Generator, size: int) -> Arrays:
    return pairs(rng, size) | {"preds": np.full(size, rng.normal(0, 1e3), np.float32)}


def unrelated(rng: np.random.Generator, size: int) -> Arrays:
    return {name: pairs(rng, size)["target"] for name in ("preds", "target")}


def finite(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.isfinite(preds) & np.isfinite(target)


NOT_NUMBERS = (np.nan, np.inf, -np.inf)
REGRESSION = Inputs(
    "regression",
    draw=pairs,
    valid=finite,
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "offset of 1e6": partial(pairs, offset=1e6),
        "offset of 1e4": partial(pairs, offset=1e4),
        "1000 plus or minus 0.1": partial(pairs, offset=1000, scale=0.1, error=0.2),
        "far off": partial(pairs, bias=1e5),
        "large": partial(pairs, scale=1e15),
        "small": partial(pairs, scale=1e-15, offset=0.0),
        "constant and right": partial(constant_target, right=True),
        "constant and not": partial(constant_target, right=False),
        "constant predictions": constant_preds,
        "unrelated": unrelated,
    },
)
COLUMNS = Inputs(
    "columns",
    draw=partial(pairs, shape=(OUTPUTS,)),
    valid=lambda preds, target: finite(preds, target).all(-1),
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={"offset of 1e6": partial(pairs, shape=(OUTPUTS,), offset=1e6)},
)

Oracle = Callable[..., Any]


# The definitions, in float64, of what is used. Each takes weights, predictions and targets.


def mean_of(w: np.ndarray, x: np.ndarray) -> float:
    return fsum(w * x) / fsum(w)


def about(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Distances from the mean; of equal values exactly 0."""
    return np.zeros(x.shape) if np.ptp(x) == 0 else x - mean_of(w, x)


def squares_of(w: np.ndarray, x: np.ndarray) -> float:
    return fsum(w * about(w, x) ** 2)


def mse_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return mean_of(w, (p - t) ** 2)


def rmse_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return np.sqrt(mse_of(w, p, t))


def mae_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return mean_of(w, np.abs(p - t))


def ratio(a: float, b: float) -> float:
    return a / b if b else np.nan


def nrmse_of(w: np.ndarray, p: np.ndarray, t: np.ndarray, by: str) -> float:
    scale = {
        "range": np.ptp(t),
        "mean": abs(mean_of(w, t)),
        "std": np.sqrt(squares_of(w, t) / fsum(w)),
    }[by]
    return ratio(rmse_of(w, p, t), scale)


def rse_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return ratio(fsum(w * (p - t) ** 2), squares_of(w, t))


def root_rse_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return np.sqrt(rse_of(w, p, t))


def explained_of(left: float, squares: float) -> float:
    return 1 - left / squares if squares else float(left == 0)


def is_single(w: np.ndarray) -> bool:
    """Whether the examples in use are one: a row that is not repeated. Weights may be normalised,
    so their total does not tell."""
    return len(w) == 1 and w[0] <= 1


def r2_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    if np.ptp(t) == 0 and is_single(w):
        return np.nan
    return explained_of(fsum(w * (p - t) ** 2), squares_of(w, t))


def adjusted_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    n = fsum(w)
    return 1 - (1 - r2_of(w, p, t)) * (n - 1) / (n - 3) if n > 3 else np.nan


def explained_variance_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    return explained_of(squares_of(w, p - t), squares_of(w, t))


def pearson_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    if np.ptp(p) == 0 or np.ptp(t) == 0:
        return np.nan
    dp, dt = about(w, p), about(w, t)
    return fsum(w * dp * dt) / np.sqrt(fsum(w * dp**2)) / np.sqrt(fsum(w * dt**2))


def tested_by_t(oracle: Oracle) -> Oracle:
    """The oracle of a correlation and of its p-value by Student's t."""

    def value(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> dict[str, Any]:
        value, n = np.float64(used(oracle)(w, preds, target)), fsum(w)
        if np.isnan(value) or (n < 3 and n != 2):
            return {"correlation": value, "p_value": np.float64(np.nan)}
        if n == 2 or abs(value) >= 1:
            return {"correlation": value, "p_value": np.float64(n == 2)}
        t = abs(value) * np.sqrt((n - 2) / ((1 - value) * (1 + value)))
        return {"correlation": value, "p_value": np.float64(2 * scipy.stats.t.sf(t, n - 2))}

    return value


def test_of(score: Any) -> Any:
    """SciPy's test of the rows in use, repeated by their weights; None where it has no value."""

    def value(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> dict[str, Any] | None:
        # Of two rows, Spearman's test has NaN in place of 1.
        if scipy_of(score)(w, preds, target) is None or w.sum() < 3:
            return None
        preds, target = (np.repeat(x, w.astype(int)) for x in (preds, target))
        found = score(preds, target)
        return {"correlation": np.float64(found[0]), "p_value": np.float64(found[1])}

    return value


def concordance_of(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    between = fsum(w) * (mean_of(w, p) - mean_of(w, t)) ** 2
    of = squares_of(w, p) + squares_of(w, t) + between
    return ratio(2 * fsum(w * about(w, p) * about(w, t)), of)


def used(oracle: Oracle) -> Oracle:
    """An oracle over the examples in use."""

    def value(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
        some = w > 0
        return oracle(w[some], preds[some], target[some]) if some.any() else np.nan

    return value


def columns(oracle: Oracle, average: Any) -> Oracle:
    """An oracle of each output, combined."""

    def value(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
        each = np.array([used(oracle)(w, preds[:, i], target[:, i]) for i in range(preds.shape[1])])
        if average == "raw_values":
            return each
        if average == "uniform_average":
            return each.mean()
        if not isinstance(average, str):
            return (each * average).sum() / sum(average)
        if not (w > 0).any():
            return np.nan
        spread = np.array([squares_of(w[w > 0], x) for x in target[w > 0].T])
        return (each * spread).sum() / spread.sum() if spread.any() else each.mean()

    return value


# How far off. The difference, its distance from the mean, their product and the weight are each
# rounded once or twice, sums in a batch hardly at all (`sum_floats`), and what a merge adds seven
# times: 16 units, of sums of what is not negative. A mean is off by gamma(n)**2 of the largest
# value, as it is found in two steps; a sum of squares about it, in a merge, by twice that times
# the sum of distances.
SUMS = 16
OFF = sum_bound(BATCH + 1, 1.0) ** 2


def relative(w: np.ndarray, x: np.ndarray) -> float:
    """How far the sum of squares about the mean is off, as a part of it."""
    if np.ptp(x) == 0:
        return 0.0
    off, std = OFF * np.abs(x).max(), np.sqrt(squares_of(w, x) / fsum(w))
    return SUMS * 2.0**-24 + 2 * off / std + (off / std) ** 2


def explained_error(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    # The share that is left is off by its parts' errors; the share explained by that and a unit.
    error = relative(w, p - t) + relative(w, t) + 2.0**-23
    return (rse_of(w, p, t) + 1) * error


def adjusted_error(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    n = fsum(w)
    if n <= 3:
        return 0.0
    left = abs(1 - adjusted_of(w, p, t))
    return (n - 1) / (n - 3) * explained_error(w, p, t) + 6 * 2.0**-24 * (left + 1)


def scaled_error(w: np.ndarray, p: np.ndarray, t: np.ndarray, of: Oracle) -> float:
    # Of a ratio to the target's spread.
    return of(w, p, t) * (relative(w, t) + SUMS * 2.0**-23)


def correlation_error(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    # By Cauchy and Schwarz, a co-moment is off by no more than the squares are.
    return 2 * (relative(w, p) + relative(w, t)) + 4 * 2.0**-23


def mean_error(w: np.ndarray, x: np.ndarray) -> float:
    """How far a mean is off: not a part of the mean, which cancels where values are of both signs.

    That of a batch is a first one, whose rounding the second step takes back, and the mean of the
    distances from it: that is rounded, each distance once and their sum by gamma(n) of their sizes.
    A merge goes the share of the way to the other mean, and rounds the share: the ways of all
    merges come to two spans of the values at most.
    """
    step = sum_bound(BATCH + 1, mean_of(w, np.abs(about(w, x))))
    return OFF * np.abs(x).max() + step + 2.0**-23 * np.ptp(x)


def mean_scale_error(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    off = mean_error(w, t) / abs(mean_of(w, t))
    return nrmse_of(w, p, t, "mean") * (off + SUMS * 2.0**-23)


def errors_apart(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    # Every state here holds the mean of the errors, which may be near zero: its condition number,
    # the mean size of the errors over the size of their mean, has no bound. Two are compared.
    return 2 * mean_error(w, p - t)


def within(error: Oracle) -> Oracle:
    """A bound over the examples in use; none where the value is no number."""
    return lambda w, preds, target: np.nan_to_num(used(error)(w, preds, target))


def over_columns(error: Oracle) -> Oracle:
    def largest(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
        return max(within(error)(w, preds[:, i], target[:, i]) for i in range(preds.shape[1]))

    return largest


def one(
    id: str, cls: Any, oracle: Oracle, config: Any = None, *, reference: Any = None, **how: Any
) -> Case:
    how = {"ulps": SUMS, "state_atol": within(errors_apart)} | how
    return Case(id, cls, REGRESSION, used(oracle), config or {}, reference, **how)


def several(id: str, cls: Any, oracle: Oracle, average: Any, score: Any, **how: Any) -> Case:
    return Case(
        id,
        cls,
        COLUMNS,
        columns(oracle, average),
        {"num_outputs": OUTPUTS, "multioutput": average},
        reference=sklearn_of(score, least=2, multioutput=average) if score else None,
        **({"ulps": SUMS + OUTPUTS, "state_atol": over_columns(errors_apart)} | how),
    )


EXPLAINED = {"atol": within(explained_error)}

CASES = [
    one(
        "mse",
        metrics.MeanSquaredError,
        mse_of,
        reference=sklearn_of(sklearn.metrics.mean_squared_error),
        atol=lambda w, **_: TINY,
    ),
    one("mse_root", metrics.MeanSquaredError, rmse_of, {"squared": False}),
    one(
        "rmse",
        metrics.RootMeanSquaredError,
        rmse_of,
        reference=sklearn_of(sklearn.metrics.root_mean_squared_error),
    ),
    one(
        "mae",
        metrics.MeanAbsoluteError,
        mae_of,
        reference=sklearn_of(sklearn.metrics.mean_absolute_error),
    ),
    one(
        "nrmse",
        metrics.NormalizedRootMeanSquaredError,
        partial(nrmse_of, by="range"),
    ),
    one(
        "nrmse_mean",
        metrics.NormalizedRootMeanSquaredError,
        partial(nrmse_of, by="mean"),
        {"normalization": "mean"},
        atol=within(mean_scale_error),
    ),
    one(
        "nrmse_std",
        metrics.NormalizedRootMeanSquaredError,
        partial(nrmse_of, by="std"),
        {"normalization": "std"},
        atol=within(partial(scaled_error, of=partial(nrmse_of, by="std"))),
    ),
    one("rse", metrics.RelativeSquaredError, rse_of, atol=within(partial(scaled_error, of=rse_of))),
    one(
        "rse_root",
        metrics.RelativeSquaredError,
        root_rse_of,
        {"squared": False},
        atol=within(partial(scaled_error, of=root_rse_of)),
    ),
    # A single row is NaN for R2, by whatever weight, to scikit-learn.
    one(
        "r2",
        metrics.R2Score,
        r2_of,
        reference=lambda w, preds, target: (
            None
            if np.isnan(used(r2_of)(w, preds, target))
            else sklearn_of(sklearn.metrics.r2_score, least=2)(w, preds, target)
        ),
        **EXPLAINED,
    ),
    one("r2_adjusted", metrics.R2Score, adjusted_of, {"adjusted": 2}, atol=within(adjusted_error)),
    one(
        "explained_variance",
        metrics.ExplainedVariance,
        explained_variance_of,
        reference=sklearn_of(sklearn.metrics.explained_variance_score),
        **EXPLAINED,
    ),
    one(
        "pearson",
        metrics.PearsonCorrCoef,
        pearson_of,
        reference=scipy_of(scipy.stats.pearsonr),
        atol=within(correlation_error),
    ),
    Case(
        "pearson_test",
        metrics.PearsonTest,
        REGRESSION,
        tested_by_t(pearson_of),
        reference=test_of(scipy.stats.pearsonr),
        # The p-value has the slope sqrt(n) / (1 - r**2)**1.5 at most, times the error of r.
        atol=lambda w, **_: 2.0**-14,
        perfect="any",
    ),
    one("concordance", metrics.ConcordanceCorrCoef, concordance_of, atol=within(correlation_error)),
    several(
        "mse_columns",
        metrics.MeanSquaredError,
        mse_of,
        "raw_values",
        sklearn.metrics.mean_squared_error,
    ),
    several(
        "rmse_columns",
        metrics.RootMeanSquaredError,
        rmse_of,
        "uniform_average",
        sklearn.metrics.root_mean_squared_error,
    ),
    several(
        "r2_columns_of_weights",
        metrics.R2Score,
        r2_of,
        (0.5, 2.0, 0.25),
        sklearn.metrics.r2_score,
        atol=over_columns(explained_error),
    ),
    *(
        several(
            f"r2_columns_{average}",
            metrics.R2Score,
            r2_of,
            average,
            sklearn.metrics.r2_score,
            atol=over_columns(explained_error),
        )
        for average in ("raw_values", "uniform_average", "variance_weighted")
    ),
    several(
        "explained_variance_columns",
        metrics.ExplainedVariance,
        explained_variance_of,
        "variance_weighted",
        sklearn.metrics.explained_variance_score,
        atol=over_columns(explained_error),
    ),
]
