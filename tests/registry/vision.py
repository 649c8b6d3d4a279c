"""Images, and features of images."""

from functools import partial
from typing import Any

import numpy as np
from skimage.metrics import structural_similarity

from datarax import metrics
from tests.helpers import fsum, softmax
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.regression import NOT_NUMBERS

SIZE = (6, 7, 2)
FEATURES, CLASSES, CAPACITY = 3, 5, 256
SIGMA = 0.7  # a window of 5 pixels


def images(
    rng: np.random.Generator, size: int, *, offset: float = 0.0, noise: float = 0.1
) -> Arrays:
    target = offset + rng.random((size, *SIZE))
    preds = target + noise * rng.normal(size=(size, *SIZE))
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


def some_equal(rng: np.random.Generator, size: int) -> Arrays:
    drawn = images(rng, size)
    drawn["preds"][::2] = drawn["target"][::2]
    return drawn


def constant(rng: np.random.Generator, size: int) -> Arrays:
    values = rng.choice(np.float32([0.0, 0.25, 1.0]), (2, size, 1, 1, 1))
    preds, target = values * np.ones((2, size, *SIZE), np.float32)
    return {"preds": preds, "target": target}


def finite_images(**images: np.ndarray) -> np.ndarray:
    return np.all([np.isfinite(x).all((1, 2, 3)) for x in images.values()], 0)


IMAGES = Inputs(
    "image pairs",
    draw=images,
    valid=finite_images,
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "some equal": some_equal,
        "constant": constant,
        "offset of 1000": partial(images, offset=1000.0),
        "unrelated": partial(images, noise=10.0),
    },
)
ONE_IMAGE = Inputs(
    "single images",
    draw=lambda rng, size: {"images": images(rng, size)["target"]},
    valid=finite_images,
    spoil={"images": NOT_NUMBERS},
    hard={"constant": lambda rng, size: {"images": constant(rng, size)["target"]}},
)


def mean_of(w: np.ndarray, *images: np.ndarray, score: Any) -> float:
    rows = np.flatnonzero(w)
    if not rows.size:
        return np.nan
    scores = np.array([score(*(x[i] for x in images)) for i in rows])
    return fsum(w[rows] * scores) / fsum(w)


def mean_over(score: Any, *names: str) -> Any:
    """The oracle of a score of each image, from the images of these names."""
    return lambda w, **images: mean_of(w, *(images[name] for name in names), score=score)


def gaussian(sigma: float, radius: int) -> np.ndarray:
    place = np.arange(-radius, radius + 1)
    weights = np.exp(-(place[:, None] ** 2 + place**2) / (2 * sigma**2))
    return weights / weights.sum()


def ssim(p: np.ndarray, t: np.ndarray, *, window: np.ndarray | None = None) -> float:
    """Of one image (H, W, C), window by window."""
    window = gaussian(SIGMA, 2) if window is None else window
    size = window.shape
    views = np.lib.stride_tricks.sliding_window_view(np.stack([p, t]), size, (1, 2))
    mean = (views * window).sum((-2, -1), keepdims=True)
    x, y = views - mean
    (m, n), c1, c2 = mean[..., 0, 0], 0.01**2, 0.03**2
    xx, yy, xy = ((window * a * b).sum((-2, -1)) for a, b in ((x, x), (y, y), (x, y)))
    luminance = (2 * m * n + c1) / (m**2 + n**2 + c1)
    return float((luminance * (2 * xy + c2) / (xx + yy + c2)).mean())


def ssim_skimage(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float | None:
    # It subtracts squares, without a shift.
    if np.abs(target).max(initial=0) > 100:
        return None
    score = partial(
        structural_similarity,
        data_range=1.0,
        gaussian_weights=True,
        sigma=SIGMA,
        use_sample_covariance=False,
        channel_axis=-1,
    )
    return mean_of(w, preds, target, score=score)


def variation(x: np.ndarray) -> float:
    return float(np.abs(np.diff(x, axis=0)).sum() + np.abs(np.diff(x, axis=1)).sum())


# Features.


def features(
    rng: np.random.Generator, size: int, *, offset: float = 0.0, rank: int = FEATURES
) -> Arrays:
    mix = rng.normal(size=(2, rank, FEATURES))
    drawn = offset + rng.normal(size=(2, size, rank)) @ mix
    return {"preds": drawn[0].astype(np.float32), "target": drawn[1].astype(np.float32)}


PAIRS_OF_SETS = Inputs(
    "features",
    draw=features,
    # The two sets need not hold the same rows.
    valid=lambda preds, target: np.isfinite(np.stack([preds, target], 1)).all(-1),
    spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
    hard={
        "offset of 1000": partial(features, offset=1000.0),
        "singular": partial(features, rank=1),
        "constant": lambda rng, size: {
            name: np.broadcast_to(np.float32(rng.normal(size=FEATURES)), (size, FEATURES)).copy()
            for name in ("preds", "target")
        },
    },
)


def moments(w: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = (w[:, None] * x).sum(0) / w.sum()
    d = x - mean
    return mean, (w[:, None] * d).T @ d / (w.sum() - 1)


def fid(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    if (w.sum(0) <= 1).any():
        return np.nan
    preds, target = (
        np.where(v[:, None] > 0, x, 0) for v, x in zip(w.T, (preds, target), strict=True)
    )
    (m, a), (n, b) = moments(w[:, 0], preds), moments(w[:, 1], target)
    values, vectors = np.linalg.eigh(a)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    common = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ b @ root), 0)).sum()
    return ((m - n) ** 2).sum() + np.trace(a) + np.trace(b) - 2 * common


def spread_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    """The variances of features, and the distance of their means."""
    x = np.concatenate([preds, target])
    x = x[np.isfinite(x).all(1)]
    return float(((x - x.mean(0)) ** 2).sum(1).mean()) if len(x) else 0.0


def kid(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    sets = [(x[v > 0], v[v > 0]) for x, v in zip((preds, target), w.T, strict=True)]

    def pairs(one: Any, two: Any) -> np.ndarray:
        (x, v), (y, u) = one, two
        return v[:, None] * u * (x @ y.T / FEATURES + 1) ** 3

    if any(v.sum() <= 1 for _, v in sets):
        return np.nan
    value = -2 * fsum(pairs(*sets)) / (sets[0][1].sum() * sets[1][1].sum())
    for one in sets:
        x, v = one
        own = (v * ((x**2).sum(1) / FEATURES + 1) ** 3).sum()
        value += (fsum(pairs(one, one)) - own) / (v.sum() * (v.sum() - 1))
    return value


def greatest_kernel(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    x = np.concatenate([preds, target])
    x = x[np.isfinite(x).all(1)]
    return float((((x**2).sum(1) / FEATURES).max(initial=0) + 1) ** 3)


def probabilities(rng: np.random.Generator, size: int, *, scale: float = 2.0) -> Arrays:
    return {"preds": softmax(scale * rng.normal(size=(size, CLASSES))).astype(np.float32)}


def one_hot(rng: np.random.Generator, size: int) -> Arrays:
    return {"preds": np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, size)]}


DISTRIBUTIONS = Inputs(
    "distributions of classes",
    draw=probabilities,
    valid=lambda preds: (
        np.isfinite(preds).all(1)
        & (preds >= 0).all(1)
        & (preds <= 1).all(1)
        & (np.abs(preds.sum(1) - 1) < 0.1)
    ),
    spoil={"preds": (*NOT_NUMBERS, -0.5, 2.0)},
    hard={
        "sure": partial(probabilities, scale=60.0),
        "one-hot": one_hot,
        "alike": partial(probabilities, scale=0.0),
    },
)


def inception_score(w: np.ndarray, preds: np.ndarray) -> float:
    if not w.any():
        return np.nan
    preds, v = preds[w > 0], w[w > 0]
    mean = (v[:, None] * preds).sum(0) / v.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        divergence = np.where(preds > 0, preds * np.log(preds / mean), 0.0).sum(1)
    return float(np.exp(fsum(v * divergence) / fsum(v)))


# Each score is rounded once, as are its mean and that of the oracle; they may have both signs.
SCORES = {"ulps": 4, "atol": lambda w, **images: 1e-5}

CASES = [
    Case(
        "ssim",
        metrics.SSIM,
        IMAGES,
        mean_over(ssim, "preds", "target"),
        {"data_range": 1.0, "sigma": SIGMA},
        reference=ssim_skimage,
        **SCORES,
    ),
    Case(
        "total_variation",
        metrics.TotalVariation,
        ONE_IMAGE,
        mean_over(variation, "images"),
        ulps=20,  # the quotient of sums of 16 products with weights, of one sign
    ),
    Case(
        "fid",
        metrics.FID,
        PAIRS_OF_SETS,
        fid,
        {"num_features": FEATURES},
        ulps=4,
        # The co-moments have 48 bits; the root of what is left of zero has 24.
        atol=lambda w, **sets: 4e-7 * spread_of(w, **sets),
        # Of decompositions in float32, the root of what is left of zero has 12 bits.
        without_float64=2**9,
        state_atol=lambda w, **sets: 1e-6 * len(w) * spread_of(w, **sets),
    ),
    Case(
        "kid",
        metrics.KID,
        PAIRS_OF_SETS,
        kid,
        {"num_features": FEATURES, "capacity": CAPACITY},
        ulps=4,
        # A sum of some thousand numbers in float64, which cancel.
        atol=lambda w, **sets: 1e-12 * greatest_kernel(w, **sets),
        without_float64=2**26,
        perfect="any",  # it is an unbiased estimate with much noise
    ),
    Case(
        "inception_score",
        metrics.InceptionScore,
        DISTRIBUTIONS,
        inception_score,
        {"num_classes": CLASSES + 1},
        ulps=16,  # an entropy of 5 terms, rounded in float32, in an exponential
        atol=lambda w, **sets: 1e-6,
    ),
]
