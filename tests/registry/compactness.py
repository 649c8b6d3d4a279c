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


def copies(w: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    return [x[w > 0] for x in (w, *arrays)]


def distances(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x[:, None] - x, axis=-1)


def near_and_next(
    w: np.ndarray, features: np.ndarray, labels: np.ndarray
) -> list[tuple[float, float]]:
    """The mean distances of each point from its own cluster and from the next one.

    Weight w is w copies of a point. Both are 0 for a point that is alone.
    """
    found, clusters = [], np.unique(labels)
    for apart, own in zip(distances(features), labels, strict=True):
        totals = {c: (fsum((w * apart)[labels == c]), fsum(w[labels == c])) for c in clusters}
        total, others = totals.pop(own)
        next_ = min(t / n for t, n in totals.values())
        found.append((total / (others - 1), next_) if others > 1 else (0.0, 0.0))
    return found


def silhouette_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    w, features, labels = copies(w, features, labels)
    clusters = np.unique(labels)
    if len(clusters) < 2 or fsum(w) <= len(clusters):
        return np.nan
    found = near_and_next(w, features, labels)
    return fsum(w * [(b - a) / max(a, b) if max(a, b) else 0.0 for a, b in found]) / fsum(w)


def sklearn_silhouette(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float | None:
    if (w % 1).any():
        return None
    x, labels = (each.repeat(w.astype(int), 0) for each in (features, labels))
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return sklearn.metrics.silhouette_score(x - x[0], labels)  # it subtracts squares


def over(a: float, b: float) -> float:
    return float(a / b) if b else np.inf if a else np.nan


def dunn_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    _, features, labels = copies(w, features, labels)
    if len(np.unique(labels)) < 2:
        return np.nan
    apart, same = distances(features), labels[:, None] == labels
    return over(apart[~same].min(), apart[same].max())


def centroid_dunn_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    clusters = of_clusters(w, features, labels)
    if len(clusters) < 2:
        return np.nan
    means = np.array([mean for _, mean, _ in clusters])
    widest = max(
        np.linalg.norm(features[(w > 0) & (labels == c)] - mean, axis=-1).max()
        for c, mean in zip(np.unique(labels[w > 0]), means, strict=True)
    )
    between = distances(means)[np.triu_indices(len(means), 1)]
    return over(between.min(), widest)


def sklearn_overlap(features: np.ndarray, labels: np.ndarray) -> float:
    # It takes distances below 1e-8 for 0.
    return sklearn.metrics.davies_bouldin_score(features / (np.ptp(features) or 1), labels)


def mean_overlap_of(w: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    """The Davies-Bouldin index of scikit-learn: with mean distances."""
    clusters = of_clusters(w, features, labels)
    if len(clusters) < 2:
        return np.nan
    spread = []
    for c, (total, mean, _) in zip(np.unique(labels[w > 0]), clusters, strict=True):
        own = (w > 0) & (labels == c)
        spread.append(fsum(w[own] * np.linalg.norm(features[own] - mean, axis=-1)) / total)
    apart = distances(np.array([mean for _, mean, _ in clusters]))
    k = range(len(clusters))
    worst = [max((spread[i] + spread[j]) / apart[i, j] for j in k if j != i) for i in k]
    return fsum(worst) / len(worst)


def point_error(
    w: np.ndarray, features: np.ndarray, labels: np.ndarray, *, value: Callable[..., float]
) -> float:
    """The error of quotients of distances, where each is off by some units of their range.

    Coordinates are differences from one point, rounded once; their means err by gamma(n).
    """
    v, x, label = copies(w, features, labels)
    if len(np.unique(label)) < 2:
        return 0.0
    off = 4 * sum_bound(BATCH + 3, 1.0) * float(np.linalg.norm(np.ptp(x, 0)))
    if value is silhouette_of:
        return max(
            (4 * off / max(a, b) for a, b in near_and_next(v, x, label) if a or b), default=0
        )
    means = np.array([mean for _, mean, _ in of_clusters(v, x, label)])
    between = float(distances(means)[np.triu_indices(len(means), 1)].min())
    got = value(w, features, labels)
    if value is mean_overlap_of:
        return 2 * off * (1 + got) / max(between - 2 * off, 1e-30)
    apart, same = distances(x), label[:, None] == label
    widest = float(apart[same].max()) / 2  # at most twice the distance from the mean
    return off * (1 + got) / max(widest - off, 1e-30) if widest else 0.0


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
    *(
        Case(
            name,
            cls,
            POINTS,
            value,
            CONFIG | {"capacity": 512} | config,
            reference=reference,
            ulps=8,
            atol=partial(point_error, value=value),
        )
        for name, cls, value, config, reference in (
            ("silhouette", metrics.Silhouette, silhouette_of, {}, sklearn_silhouette),
            ("dunn", metrics.DunnIndex, dunn_of, {}, None),
            ("dunn_centroids", metrics.DunnIndex, centroid_dunn_of, {"centroids": True}, None),
            (
                "davies_bouldin_mean_distance",
                metrics.DaviesBouldin,
                mean_overlap_of,
                {"power": 1},
                sklearn_points(sklearn_overlap),
            ),
        )
    ),
]
