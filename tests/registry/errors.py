"""Errors by other measures than their square, and similarity of rows."""

from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics
import sklearn.metrics.pairwise

from datarax import metrics
from tests.helpers import fsum, quantile
from tests.registry.aggregation import TINY
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.reference import sklearn_of
from tests.registry.regression import (
    NOT_NUMBERS,
    Oracle,
    constant_target,
    finite,
    is_single,
    mean_of,
    pairs,
    ratio,
    used,
)

ERRORS = Inputs(
    "errors",
    draw=pairs,
    valid=finite,
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "offset of 1e6": partial(pairs, offset=1e6),
        "far off": partial(pairs, bias=1e5),
        "near": partial(pairs, error=1e-4, bias=0.0),
        "of both signs": partial(pairs, offset=0.0),
        "large": partial(pairs, scale=1e10),
        "constant and right": partial(constant_target, right=True),
    },
)


def positive(
    rng: np.random.Generator, size: int, *, offset: float = 0.0, sigma: float = 1.0
) -> Arrays:
    target = offset + rng.lognormal(0, sigma, size)
    preds = offset + (target - offset) * rng.lognormal(0, 0.5 * sigma, size)
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


POSITIVE = Inputs(
    "positive",
    draw=positive,
    valid=lambda preds, target: finite(preds, target) & (preds > 0) & (target > 0),
    spoil={"preds": (*NOT_NUMBERS, -5.0), "target": (*NOT_NUMBERS, -3.0)},
    hard={
        "offset of 1e6": partial(positive, offset=1e6),
        "of many sizes": partial(positive, sigma=4.0),
        "nearly equal": partial(positive, sigma=1e-3),
    },
)


def with_naive(rng: np.random.Generator, size: int, *, draw: Any = pairs, **kind: Any) -> Arrays:
    """Forecasts beside naive ones, whose errors are about twice as large."""
    drawn = draw(rng, size, **kind)
    target, spread = drawn["target"], drawn["target"] - pairs(rng, size, **kind)["target"]
    return drawn | {"naive": (target + spread).astype(np.float32)}


def naive_is_right(rng: np.random.Generator, size: int) -> Arrays:
    drawn = pairs(rng, size)
    return drawn | {"naive": drawn["target"]}


FORECASTS = Inputs(
    "forecasts with naive ones",
    draw=with_naive,
    valid=lambda preds, target, naive: finite(preds, target) & np.isfinite(naive),
    spoil=dict.fromkeys(("preds", "target", "naive"), NOT_NUMBERS),
    hard={
        "offset of 1e6": partial(with_naive, offset=1e6),
        "far off": partial(with_naive, bias=1e5),
        "large": partial(with_naive, scale=1e15),
        "small": partial(with_naive, scale=1e-15, offset=0.0),
        "naive is right": naive_is_right,
    },
)


def rows(rng: np.random.Generator, size: int, *, scale: float = 1.0, like: float = 0.7) -> Arrays:
    target = rng.normal(0, scale, (size, 4))
    preds = like * target + rng.normal(0, scale, (size, 4))
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


def with_zero_rows(rng: np.random.Generator, size: int) -> Arrays:
    drawn = rows(rng, size)
    drawn["preds"][::3] = 0
    return drawn


VECTORS = Inputs(
    "vectors",
    draw=rows,
    valid=lambda preds, target: finite(preds, target).all(-1),
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "large": partial(rows, scale=1e30),
        "small": partial(rows, scale=1e-30),
        "parallel": partial(rows, like=1e6),
        "rows of zeros": with_zero_rows,
    },
)


def mean_loss(loss: Any) -> Oracle:
    return used(lambda w, p, t: mean_of(w, loss(p, t)))


def log_cosh(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    # For small errors, cosh itself would round to 1.
    e = np.abs(p - t)
    return np.where(
        e < 1,
        np.log1p(2 * np.sinh(np.minimum(e, 1) / 2) ** 2),
        e + np.log1p(np.exp(-2 * e)) - np.log(2),
    )


def huber(p: np.ndarray, t: np.ndarray, delta: float) -> np.ndarray:
    e = np.abs(p - t)
    return np.where(e <= delta, e**2 / 2, delta * (e - delta / 2))


def pinball(p: np.ndarray, t: np.ndarray, q: float) -> np.ndarray:
    return np.maximum(q * (t - p), (q - 1) * (t - p))


def symmetric(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    size = np.abs(p) + np.abs(t)
    return 2 * np.abs(p - t) / np.where(size == 0, 1, size)


def percentage(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    return np.abs(p - t) / np.maximum(np.abs(t), np.finfo(np.float64).eps)


def squared_log(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    return (np.log1p(p) - np.log1p(t)) ** 2


def poisson_like(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    # The deviance of power 1.5 is a square: 4 (sqrt(t) - sqrt(p))**2 / sqrt(p), and nothing cancels
    # but the roots, whose difference is that of p and t over their sum.
    apart = (t - p) / (np.sqrt(t) + np.sqrt(p))
    return 4 * apart**2 / np.sqrt(p)


def mean_constant(w: np.ndarray, t: np.ndarray) -> float:
    return t[0] if np.ptp(t) == 0 else mean_of(w, t)


def deviance(w: np.ndarray, t: np.ndarray) -> float:
    return fsum(w * poisson_like(np.broadcast_to(mean_of(w, t), t.shape), t)) if fsum(w) else 0.0


def median(w: np.ndarray, t: np.ndarray) -> float:
    return quantile(t, w, 0.5)


def explained_share(
    w: np.ndarray, p: np.ndarray, t: np.ndarray, *, loss: Any, constant: Any
) -> float:
    """One less the loss by that of the best constant."""
    null, left = mean_of(w, loss(constant(w, t), t)), mean_of(w, loss(p, t))
    if null:
        return 1 - left / null
    return np.nan if is_single(w) else float(left == 0)


# The pinball loss, and the constant that makes it least.
PINBALL: dict[str, Any] = {"loss": partial(pinball, q=0.5), "constant": median}


def share_left(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    loss: Any = poisson_like,
    constant: Any = mean_constant,
) -> float:
    value = used(partial(explained_share, loss=loss, constant=constant))(w, preds, target)
    return np.nan_to_num(1 - value)


def cosine(p: np.ndarray, t: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(p, axis=-1) * np.linalg.norm(t, axis=-1)
    return (p * t).sum(-1) / np.where(lengths == 0, 1, lengths)


def sklearn_cosine(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    some = w > 0
    lengths = np.linalg.norm(np.stack([preds, target]), axis=-1)
    if not some.any() or (lengths[:, some] < 1e-14).any():
        return None  # it takes a row of length 2e-15 for one of zeros
    similar = sklearn.metrics.pairwise.cosine_similarity(preds[some], target[some])
    return mean_of(w[some], np.diag(similar))


def critical_success(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    hit, event = (p >= 3) & (t >= 3), (p >= 3) | (t >= 3)
    return ratio(fsum(w[hit]), fsum(w[event]))


def scaled_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, naive: np.ndarray, *, power: int
) -> float:
    some = w > 0
    above, below = (fsum(w[some] * np.abs(x[some] - target[some]) ** power) for x in (preds, naive))
    return ratio(above, below) ** (1 / power)


def median_error(w: np.ndarray, p: np.ndarray, t: np.ndarray) -> float:
    errors = np.abs(p.astype(np.float32) - t.astype(np.float32))
    return quantile(errors, w, 0.5, "averaged_inverted_cdf")


def sklearn_median(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    # Its weighted median is another where a float decides whether half the weight is reached.
    if not (w == 1).all():
        return None
    return sklearn.metrics.median_absolute_error(target, preds)


# Each value is rounded as often as its formula has steps, times its weight, and in the quotient;
# their sum hardly at all. Logarithms are within two units, and count for more where they cancel.
CASES = [
    Case(
        "mape",
        metrics.MeanAbsolutePercentageError,
        ERRORS,
        mean_loss(percentage),
        reference=sklearn_of(sklearn.metrics.mean_absolute_percentage_error),
        ulps=5,
    ),
    Case(
        "smape", metrics.SymmetricMeanAbsolutePercentageError, ERRORS, mean_loss(symmetric), ulps=6
    ),
    Case(
        "wmape",
        metrics.WeightedMeanAbsolutePercentageError,
        ERRORS,
        used(lambda w, p, t: ratio(fsum(w * np.abs(p - t)), fsum(w * np.abs(t)))),
        ulps=5,
    ),
    Case(
        "mase",
        metrics.MeanAbsoluteScaledError,
        FORECASTS,
        partial(scaled_of, power=1),
        ulps=5,
    ),
    Case(
        "rmsse", metrics.RootMeanSquaredScaledError, FORECASTS, partial(scaled_of, power=2), ulps=5
    ),
    Case("log_cosh", metrics.LogCoshError, ERRORS, mean_loss(log_cosh), ulps=16),
    Case(
        "huber",
        metrics.HuberLoss,
        ERRORS,
        mean_loss(partial(huber, delta=0.5)),
        {"delta": 0.5},
        ulps=7,
        atol=lambda w, **_: TINY,
    ),
    Case(
        "quantile_loss",
        metrics.QuantileLoss,
        ERRORS,
        mean_loss(partial(pinball, q=0.9)),
        {"q": 0.9},
        reference=sklearn_of(sklearn.metrics.mean_pinball_loss, alpha=0.9),
        ulps=6,
    ),
    Case(
        "minkowski",
        metrics.MinkowskiDistance,
        ERRORS,
        used(lambda w, p, t: fsum(w * np.abs(p - t) ** 3) ** (1 / 3)),
        {"p": 3},
        ulps=8,
    ),
    Case(
        "critical_success",
        metrics.CriticalSuccessIndex,
        ERRORS,
        used(critical_success),
        {"threshold": 3},
        reference=sklearn_of(
            sklearn.metrics.jaccard_score,
            prepare=lambda preds, target: (preds >= 3, target >= 3),
            defined=lambda preds, target: (preds | target).any(),
        ),
        exact=True,
    ),
    Case(
        "max_error",
        metrics.MaxError,
        ERRORS,
        used(lambda w, p, t: np.abs(p - t).max()),
        reference=lambda w, preds, target: (
            sklearn.metrics.max_error(target[w > 0], preds[w > 0]) if (w > 0).any() else None
        ),
    ),
    Case(
        "median_error",
        metrics.MedianAbsoluteError,
        ERRORS,
        used(median_error),
        reference=sklearn_median,
        # What is promised: of its value, the width of a bin.
        atol=lambda w, preds, target: 2.0**-7 * np.nan_to_num(used(median_error)(w, preds, target)),
        exact=True,
    ),
    Case(
        "msle",
        metrics.MeanSquaredLogError,
        POSITIVE,
        mean_loss(squared_log),
        reference=sklearn_of(sklearn.metrics.mean_squared_log_error),
        ulps=14,
    ),
    Case(
        "tweedie",
        metrics.TweedieDeviance,
        POSITIVE,
        mean_loss(poisson_like),
        {"power": 1.5},
        ulps=48,
    ),
    Case(
        "d2_tweedie",
        metrics.D2Tweedie,
        POSITIVE,
        used(partial(explained_share, loss=poisson_like, constant=mean_constant)),
        {"power": 1.5},
        reference=sklearn_of(
            sklearn.metrics.d2_tweedie_score,
            least=2,
            # It subtracts large sums, and divides by 0 where the target is constant.
            defined=lambda preds, target: np.std(target) > 1e-2 * np.mean(target),
            power=1.5,
        ),
        # A quotient of two deviances.
        atol=lambda w, preds, target: 100 * 2.0**-24 * (1 + share_left(w, preds, target)),
        # The deviances of two parts are moved to their common mean: 16 roundings.
        state_atol=lambda w, preds, target: 2.0**-20 * deviance(w, target),
    ),
    *(
        Case(
            id,
            cls,
            ERRORS,
            used(partial(explained_share, **PINBALL)),
            reference=sklearn_of(score, least=2, defined=lambda preds, target: np.ptp(target) > 0),
            # Two targets in one bin: its width is 2**-11 of a target.
            atol=lambda w, preds, target: 2.0**-11 * (1 + share_left(w, preds, target, **PINBALL)),
        )
        for id, cls, score in (
            ("d2_absolute", metrics.D2AbsoluteError, sklearn.metrics.d2_absolute_error_score),
            ("d2_pinball", metrics.D2Pinball, sklearn.metrics.d2_pinball_score),
        )
    ),
    Case(
        "cosine",
        metrics.CosineSimilarity,
        VECTORS,
        mean_loss(cosine),
        reference=sklearn_cosine,
        # A product of rows of length 1, of 4 terms, is off by 12 units of 1.
        atol=lambda w, **_: 16 * 2.0**-24,
    ),
]
