"""Scores of images of several bands: their definitions in float64, of one image at a time."""

from functools import partial
from typing import Any

import numpy as np
import scipy.ndimage

from datarax import metrics
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.regression import NOT_NUMBERS
from tests.registry.vision import SCORES, finite_images, mean_of, mean_over

RANGE = 2.0
BETAS = (0.4, 0.6)
SIGMA = 0.3  # a window of 3 pixels
WINDOW, BLOCK = 3, 2


def by_channel(score):
    return lambda p, t: np.mean([score(p[..., c], t[..., c]) for c in range(p.shape[-1])])


def centered_ssim(p, t, sigma=1.5):
    """As scikit-image, whose variances cancel where pixels are far from zero; of one channel."""
    edge = int(3.5 * sigma + 0.5)

    def blur(x):
        return scipy.ndimage.gaussian_filter(x, sigma, truncate=3.5)[edge:-edge, edge:-edge]

    shift = t.mean()
    x, y = p - shift, t - shift
    m, n, c1, c2 = blur(x), blur(y), (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2
    xx, yy, xy = blur(x * x) - m * m, blur(y * y) - n * n, blur(x * y) - m * n
    m, n = m + shift, n + shift
    contrast = (2 * xy + c2) / (xx + yy + c2)
    return ((2 * m * n + c1) / (m * m + n * n + c1) * contrast).mean(), contrast.mean()


def ms_ssim(p, t, betas=BETAS, sigma=1.5):
    product = 1.0
    for i, beta in enumerate(betas):
        both, contrast = centered_ssim(p, t, sigma)
        product *= max(both if i == len(betas) - 1 else contrast, 0) ** beta
        h, w = (n // 2 * 2 for n in p.shape)
        p, t = (x[:h, :w].reshape(h // 2, 2, w // 2, 2).mean((1, 3)) for x in (p, t))
    return product


def psnr(p, t):
    return 10 * np.log10(RANGE**2 / np.mean((p - t) ** 2))


def psnr_b(p, t, block=8):
    edges, others = [], []
    for axis in (0, 1):
        steps = np.moveaxis(np.diff(p, axis=axis) ** 2, axis, 0)
        at_edge = np.arange(1, len(steps) + 1) % block == 0
        edges.append(steps[at_edge].ravel())
        others.append(steps[~at_edge].ravel())
    excess = np.concatenate(edges).mean() - np.concatenate(others).mean()
    effect = max(excess, 0) * np.log2(block) / np.log2(min(p.shape[:2]))
    return 10 * np.log10(RANGE**2 / (np.mean((p - t) ** 2) + effect))


def windows(*images, size=8):
    views = np.lib.stride_tricks.sliding_window_view(np.stack(images), (size, size), (1, 2))
    return views.reshape(*views.shape[:-2], -1)


def uqi(p, t, size=8):
    x, y = windows(p, t, size=size)
    m, n = x.mean(-1), y.mean(-1)
    xx, yy = x.var(-1), y.var(-1)
    xy = ((x - m[:, :, None]) * (y - n[:, :, None])).mean(-1)
    flat = (np.ptp(x, -1) == 0) & (np.ptp(y, -1) == 0)
    contrast = np.where(flat, 1, 2 * xy / np.where(flat, 1, xx + yy))
    return (contrast * 2 * m * n / (m * m + n * n)).mean()


def vif(p, t):
    """As the published code, for pixels from 0 to 255, scale by scale."""
    ref, dist, noise, least = 255 / RANGE * t, 255 / RANGE * p, 2.0, 1e-10
    num = den = 0.0
    for scale in range(1, 5):
        size = 2 ** (5 - scale) + 1
        place = np.arange(size) - size // 2
        window = np.exp(-(place[:, None] ** 2 + place**2) / (2 * (size / 5) ** 2))
        window /= window.sum()
        half = size // 2

        def valid(x, window=window, half=half):
            return scipy.ndimage.correlate(x, window)[half:-half, half:-half]

        if scale > 1:
            ref, dist = valid(ref)[::2, ::2], valid(dist)[::2, ::2]
        # The variances do not depend on the offset, which would cancel.
        x, y = ref - ref.mean(), dist - dist.mean()
        m, n = valid(x), valid(y)
        xx, yy = (np.maximum(valid(z * z) - k * k, 0) for z, k in ((x, m), (y, n)))
        xy = valid(x * y) - m * n
        g = xy / (xx + least)
        rest = yy - g * xy
        g[xx < least], rest[xx < least], xx[xx < least] = 0, yy[xx < least], 0
        g[yy < least], rest[yy < least] = 0, 0
        rest[g < 0], g[g < 0] = yy[g < 0], 0
        rest[rest <= least] = least
        num += np.log10(1 + g * g * xx / (rest + noise)).sum()
        den += np.log10(1 + xx / noise).sum()
    return num / den


def sam(p, t):
    cosine = (p * t).sum(-1) / (np.linalg.norm(p, axis=-1) * np.linalg.norm(t, axis=-1))
    # The arc cosine is too coarse near 1: the sine of spectra of two bands is their determinant.
    sine = np.abs(p[..., 0] * t[..., 1] - p[..., 1] * t[..., 0])
    sine /= np.linalg.norm(p, axis=-1) * np.linalg.norm(t, axis=-1)
    return np.arctan2(sine, cosine).mean()


def ergas(p, t):
    return 100 / 4 * np.sqrt((((p - t) ** 2).mean((0, 1)) / t.mean((0, 1)) ** 2).mean())


def rase(p, t):
    return 100 / t.mean() * np.sqrt(((p - t) ** 2).mean((0, 1)).mean())


def spatial_correlation(p, t):
    kernel = -np.ones((3, 3))
    kernel[1, 1] = 8
    p, t = (scipy.ndimage.correlate(x, kernel)[1:-1, 1:-1].ravel() for x in (p, t))
    return np.corrcoef(p, t)[0, 1]


def rmse_of_windows(p, t, size=8):
    return np.sqrt((windows(p - t, size=size)[0] ** 2).mean(-1)).mean()


def perceptual_distance(p, t, features, weights=None):
    """Of the maps that `features` gives of one image, each (1, h, w, c)."""
    total = 0.0
    maps = [[np.asarray(x, np.float64)[0] for x in features(image[None])] for image in (p, t)]
    for i, (x, y) in enumerate(zip(*maps, strict=True)):
        x, y = (z / np.linalg.norm(z, axis=-1, keepdims=True) for z in (x, y))
        w = np.ones(x.shape[-1]) if weights is None else np.asarray(weights[i])
        total += ((x - y) ** 2 @ w).mean()
    return total


def identity_maps(images: Any) -> list[Any]:
    """Features that are exact in half precision."""
    return [images, images[:, ::2, ::3]]


def with_bands(
    rng: np.random.Generator,
    size: int,
    *,
    shape: tuple[int, ...] = (6, 7, 2),
    noise: float = 0.1,
    offset: float = 0.2,
) -> Arrays:
    """No image is constant, and no two are equal: there every score has a value."""
    target = offset + rng.random((size, *shape))
    preds = target + noise * rng.normal(size=target.shape)
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


def inputs(name: str, shape: tuple[int, ...]) -> Inputs:
    draw = partial(with_bands, shape=shape)
    return Inputs(
        name,
        draw=draw,
        valid=finite_images,
        spoil={"preds": NOT_NUMBERS, "target": NOT_NUMBERS},
        hard={
            "nearly equal": partial(draw, noise=1e-3),
            "offset of 1000": partial(draw, offset=1000.0),
            "unrelated": partial(draw, noise=1.0),
        },
    )


BANDS = inputs("images with bands", (6, 7, 2))
LARGE = inputs("large images", (41, 42, 1))


# Fused images, without a reference.

FINE, COARSE = (22, 24, 3), (11, 12, 3)
TAPS = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
GAUSSIAN = np.outer(TAPS, TAPS) / TAPS.sum() ** 2


def gaussian_uqi(p, t):
    """Within windows of 11 x 11 pixels, of one channel."""
    views = np.lib.stride_tricks.sliding_window_view(np.stack([p, t]), (11, 11), (1, 2))
    m, n = (views * GAUSSIAN).sum((-2, -1))
    x, y = views - np.stack([m, n])[..., None, None]
    xx, yy, xy = ((a * b * GAUSSIAN).sum((-2, -1)) for a, b in ((x, x), (y, y), (x, y)))
    return (4 * xy * m * n / ((xx + yy) * (m * m + n * n))).mean()


def quality(w, x, y):
    """The mean over images."""
    return mean_of(w, x, y, score=gaussian_uqi)


def norm(differences, order):
    return np.mean(np.abs(differences) ** order) ** (1 / order)


def spectral_distortion(w, preds, target, *, order=1):
    pairs = [(a, b) for a in range(preds.shape[-1]) for b in range(a)]
    found = [
        quality(w, preds[..., a], preds[..., b]) - quality(w, target[..., a], target[..., b])
        for a, b in pairs
    ]
    return norm(found, order)


def spatial_distortion(w, preds, ms, pan, *, order=1, window=7):
    small = scipy.ndimage.uniform_filter(pan, (1, window, window, 1), mode="reflect")
    small = (small[:, ::2] + small[:, 1::2]) / 2  # linear interpolation at half the size
    small = (small[:, :, ::2] + small[:, :, 1::2]) / 2
    found = [
        quality(w, preds[..., c], pan[..., 0]) - quality(w, ms[..., c], small[..., 0])
        for c in range(preds.shape[-1])
    ]
    return norm(found, order)


def qnr(w, preds, ms, pan):
    spectral, spatial = spectral_distortion(w, preds, ms), spatial_distortion(w, preds, ms, pan)
    return (1 - spectral) ** 0.5 * (1 - spatial) ** 2


def fused(
    rng: np.random.Generator, size: int, *, offset: float = 0.5, noise: float = 0.2
) -> Arrays:
    ms = offset + rng.random((size, *COARSE))
    preds = ms.repeat(2, 1).repeat(2, 2) + noise * rng.normal(size=(size, *FINE))
    pan = preds.mean(-1, keepdims=True) + noise * rng.normal(size=(size, *FINE[:2], 1))
    return {
        name: x.astype(np.float32) for name, x in {"preds": preds, "ms": ms, "pan": pan}.items()
    }


def fused_and_coarse(rng: np.random.Generator, size: int, **config: Any) -> Arrays:
    drawn = fused(rng, size, **config)
    return {"preds": drawn["preds"], "target": drawn["ms"]}


def of_fused(name: str, draw: Any, names: tuple[str, ...]) -> Inputs:
    return Inputs(
        name,
        draw=draw,
        valid=finite_images,
        spoil=dict.fromkeys(names, NOT_NUMBERS),
        hard={"much noise": partial(draw, noise=2.0), "offset of 100": partial(draw, offset=100.0)},
    )


FUSED = of_fused("fused images", fused, ("preds", "ms", "pan"))
FUSED_AND_COARSE = of_fused("fused and coarse images", fused_and_coarse, ("preds", "target"))


def fused_case(name: str, cls: Any, within: Inputs, oracle: Any, **config: Any) -> Case:
    # Means of differences of indices, each rounded once: they cancel.
    return Case(
        name,
        cls,
        within,
        oracle,
        config,
        state_atol=lambda w, **images: 1e-5 * len(w),
        together=within.id,
        **SCORES,
    )


def case(name: str, cls: Any, score: Any, within: Inputs = BANDS, **config: Any) -> Case:
    oracle = mean_over(score, "preds", "target")
    return Case(name, cls, within, oracle, config, together=within.id, **SCORES)


CASES = [
    case("psnr", metrics.PSNR, psnr, data_range=RANGE),
    case(
        "psnr_b",
        metrics.PSNRB,
        partial(psnr_b, block=BLOCK),
        data_range=RANGE,
        block_size=BLOCK,
    ),
    case(
        "ms_ssim",
        metrics.MSSSIM,
        by_channel(partial(ms_ssim, sigma=SIGMA)),
        data_range=RANGE,
        betas=BETAS,
        sigma=SIGMA,
    ),
    case("uqi", metrics.UQI, by_channel(partial(uqi, size=WINDOW)), window=WINDOW),
    case("sam", metrics.SAM, sam),
    case("ergas", metrics.ERGAS, ergas, ratio=4),
    case("rase", metrics.RASE, rase),
    case("spatial_correlation", metrics.SpatialCorrelation, by_channel(spatial_correlation)),
    case("rmse_sw", metrics.RMSESW, partial(rmse_of_windows, size=WINDOW), window=WINDOW),
    case(
        "perceptual_distance",
        metrics.PerceptualDistance,
        partial(perceptual_distance, features=identity_maps),
        features=identity_maps,
    ),
    case("vif", metrics.VIF, by_channel(vif), LARGE, data_range=RANGE),
    fused_case(
        "spectral_distortion",
        metrics.SpectralDistortion,
        FUSED_AND_COARSE,
        partial(spectral_distortion, order=2),
        p=2,
        num_channels=4,
    ),
    fused_case(
        "spatial_distortion",
        metrics.SpatialDistortion,
        FUSED,
        partial(spatial_distortion, window=4),
        window_size=4,
        num_channels=3,
    ),
    fused_case("qnr", metrics.QNR, FUSED, qnr, alpha=0.5, beta=2, num_channels=4),
]
