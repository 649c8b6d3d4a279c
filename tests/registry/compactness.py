"""Points in clusters, by how compact the clusters are and how far apart."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum, sum_bound
from tests.registry.aggregation import MOMENTS
from tests.registry.case import BATCH, Arrays, Case, Inputs
from tests.registry.reference import sklearn_of, whole_target

POINT_CLUSTERS, FEATURES = 4, 3


def points(
    rng: np.random.Generator,
    size: int,
    *,
    labels: Any = range(POINT_CLUSTERS),
    offset: float = 0.0,
    scale: float = 1.0,
    apart: float = 3.0,
    spread: float = 1.0,
) -> Arrays:
    chosen = rng.choice(np.asarray(labels, np.int32), size)
    own = np.arange(POINT_CLUSTERS * FEATURES).reshape(-1, FEATURES) ** 2 % 7
    features = rng.normal(apart * own[chosen], spread)
    return {"features": (offset + scale * features).astype(np.float32), "labels": chosen}


POINTS = Inputs(
    "points",
    draw=points,
    valid=lambda features, labels: (
        np.isfinite(features).all(-1) & (labels >= 0) & (labels < POINT_CLUSTERS)
    ),
    spoil={"features": (np.nan, np.inf, -np.inf), "labels": (-1, POINT_CLUSTERS, 2**31 - 1)},
    hard={
        "offset of 1e6": partial(points, offset=1e6),
        "large": partial(points, scale=1e15),
        "tiny": partial(points, scale=1e-12),
        "one cluster": partial(points, labels=(2,)),
        "absent clusters": partial(points, labels=(0, 3)),
        "close": partial(points, apart=0.1),
        "a point each": partial(points, apart=0.7, spread=0.0),
    },
)


def of_clusters(
    w: np.ndarray, features: np.ndarray, labels: np.ndarray
) -> list[tuple[float, np.ndarray, float]]:
    """The weight, the mean and the sum of squares about it of each cluster that occurs."""
    found = []
    for label in np.unique(labels[w > 0]):
        x, v = (each[(w > 0) & (labels == label)] for each in (features, w))
        mean = x[0] + (v[:, None] * (x - x[0])).sum(0) / v.sum()
        found.append((fsum(v), mean, fsum(v[:, None] * (x - mean) ** 2)))
    return found


def calinski_harabasz_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    clusters = of_clusters(w, features, labels)
    k, n = len(clusters), fsum(w)
    if k < 2 or n <= k:
        return np.nan
    start = clusters[0][1]
    center = start + sum(v * (mean - start) for v, mean, _ in clusters) / n
    between = fsum([v * ((mean - center) ** 2).sum() for v, mean, _ in clusters])
    within = fsum([square for _, _, square in clusters])
    return (between / (k - 1)) / (within / (n - k)) if within else 1.0


def davies_bouldin_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    clusters = of_clusters(w, features, labels)
    if len(clusters) < 2:
        return np.nan
    spread = [np.sqrt(square / v) for v, _, square in clusters]
    worst = [
        max(
            (spread[i] + spread[j]) / np.linalg.norm(clusters[i][1] - clusters[j][1])
            for j in range(len(clusters))
            if j != i
        )
        for i in range(len(clusters))
    ]
    return fsum(worst) / len(worst)


def errors(w: np.ndarray, features: np.ndarray) -> tuple[float, float]:
    """The errors of a point's distance from a mean, and of the distance of two means.

    The mean is computed in two steps. The first errs by gamma(n) of the values; the second leaves
    gamma(n) of that error, and of the distances from the mean.
    """
    gamma, x = sum_bound(BATCH + 3, 1.0), features[w > 0]
    first = float(gamma**2 * np.abs(x).max())
    return first, first + float(gamma * np.linalg.norm(np.ptp(x, 0)))


def calinski_harabasz_error(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    value = calinski_harabasz_of(w, features, labels)
    if np.isnan(value) or value == 1.0:
        return 0.0
    clusters, (inner, outer) = of_clusters(w, features, labels), errors(w, features)
    n, k = fsum(w), len(clusters)
    within = fsum([square for _, _, square in clusters])
    factor = (n - k) / (k - 1) / within
    between = value / factor

    def of_sum(square: float, off: float) -> float:  # of squares, whose roots err by `off`
        return 2 * off * float(np.sqrt(n * square)) + n * off**2

    return factor * of_sum(between, outer) + value / within * of_sum(within, inner)


def davies_bouldin_error(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    clusters = of_clusters(w, features, labels)
    if len(clusters) < 2:
        return 0.0
    inner, outer = errors(w, features)
    means = [mean for _, mean, _ in clusters]
    least = min(np.linalg.norm(a - b) for i, a in enumerate(means) for b in means[:i])
    value = davies_bouldin_of(w, features, labels)
    return float((2 * inner + 2 * outer * value) / max(least - 2 * outer, 1e-30))


def sklearn_points(score: Callable[..., float]) -> Callable[..., float | None]:
    def around_first(labels: np.ndarray, features: np.ndarray) -> float:
        # scikit-learn sums in the dtype of the features, where an offset would cost digits.
        return score(features - features[0], labels)

    reference = sklearn_of(
        around_first,
        prepare=whole_target,
        defined=lambda features, labels: 2 <= len(np.unique(labels)) < len(labels),
        weighted=False,
    )
    return lambda w, features, labels: reference(w, features, labels)


CONFIG = {"num_clusters": POINT_CLUSTERS, "num_features": FEATURES}

CASES = [
    Case(
        "calinski_harabasz",
        metrics.CalinskiHarabasz,
        POINTS,
        calinski_harabasz_of,
        CONFIG,
        reference=sklearn_points(sklearn.metrics.calinski_harabasz_score),
        ulps=2 * MOMENTS,
        atol=calinski_harabasz_error,
    ),
    Case(
        "davies_bouldin",
        metrics.DaviesBouldin,
        POINTS,
        davies_bouldin_of,
        CONFIG,
        reference=None,  # scikit-learn defines the spread differently
        ulps=MOMENTS,
        atol=davies_bouldin_error,
    ),
]
