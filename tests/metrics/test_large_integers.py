"""Integers that a float32 would round: they are subtracted before they are rounded."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from datarax import Metric, metrics
from tests.helpers import update

OFFSETS = {"int32": 2**30, "uint32": 3 * 10**9}
KINDS = pytest.mark.parametrize("kind", OFFSETS)


def shifted(kind: str, *small: np.ndarray) -> list[np.ndarray]:
    """Small integers, each a large number more."""
    return [(x.astype(np.int64) + OFFSETS[kind]).astype(kind) for x in small]


def assert_near(metric: Metric, args: Any, want: Any, *, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(
        update(metric, *args).compute(), want, rtol=rtol, err_msg=type(metric).__name__
    )


@KINDS
def test_signals(kind: str, rng: np.random.Generator) -> None:
    small = rng.integers(-3, 4, (2, 2, 400))
    small[0] += 3 * small[1]  # so that no ratio is near that of orthogonal signals
    args = shifted(kind, *small)
    preds, target = (x.astype(np.float64) for x in args)
    error = small[0] - small[1]
    # Of numbers of 30 bits, each in float64; the sums err by some 1e-15 of themselves.
    ratios = 10 * np.log10((target**2).sum(-1) / (error**2).sum(-1))
    assert_near(metrics.SNR(), args, ratios.mean())
    one = [x[:1, :64] for x in args], 10 * np.log10((target[0, :64] ** 2).sum() / 64)
    one[0][0] = one[0][1] + np.asarray(1, kind)
    assert_near(metrics.SNR(), *one)
    centred = [x - x.mean(-1, keepdims=True) for x in (preds, target)]
    centred_error = centred[0] - centred[1]
    ratios = 10 * np.log10((centred[1] ** 2).sum(-1) / (centred_error**2).sum(-1))
    assert_near(metrics.SNR(zero_mean=True), args, ratios.mean(), rtol=1e-5)
    for metric in (metrics.SISNR(), metrics.PermutationInvariant(metrics.SISNR())):
        # The ratio is that of the signals less their means, to which the offset adds nothing.
        small_args = [x.astype(np.float32) for x in small]
        if isinstance(metric, metrics.PermutationInvariant):
            given, small_args = ([x[None] for x in each] for each in (args, small_args))
        else:
            given = args
        want = update(metric, *small_args).compute()
        np.testing.assert_allclose(update(metric, *given).compute(), want, atol=1e-3)


@KINDS
def test_images(kind: str, rng: np.random.Generator) -> None:
    small = rng.integers(0, 256, (2, 1, 48, 48, 1))
    args = shifted(kind, *small)
    plain = [x.astype(np.float32) for x in small]
    error = small[0] - small[1]
    assert_near(metrics.PSNR(data_range=255.0), args, 10 * np.log10(255**2 / (error**2).mean()))
    one = [args[0], args[0] + np.asarray(1, kind)]
    assert_near(metrics.PSNR(data_range=2.0**31), one, 20 * np.log10(2.0**31))
    for metric in (  # the offset adds nothing to differences of pixels
        metrics.PSNRB(data_range=255.0),
        metrics.RMSESW(),
        metrics.SpatialCorrelation(),
        metrics.VIF(data_range=255.0),
    ):
        want = update(metric, *plain).compute()
        # The squares of float64 numbers of 32 bits, of which differences of 8 bits are left.
        np.testing.assert_allclose(update(metric, *args).compute(), want, rtol=1e-3, atol=1e-5)
    variation = metrics.TotalVariation()
    assert update(variation, args[0]).compute() == update(variation, plain[0]).compute()
    # The contrast alone depends on differences: a luminance of such means is 1.
    ours = update(metrics.SSIM(data_range=255.0), *args).compute()
    contrast = update(metrics.SSIM(data_range=255.0, k1=1e6), *plain).compute()
    np.testing.assert_allclose(ours, contrast, atol=1e-3)


@KINDS
def test_features_and_clusters(kind: str, rng: np.random.Generator) -> None:
    small = rng.integers(0, 9, (2, 50, 3))
    preds, target = shifted(kind, small[0], small[0] + 1)
    # Sets that differ by one in each of three features: the squared distance of their means.
    seen = update(metrics.FID(num_features=3), preds, target)
    np.testing.assert_allclose(seen.compute(), 3, rtol=1e-5)
    labels = np.arange(50, dtype=np.int32) % 3
    for cls in (metrics.CalinskiHarabasz, metrics.DaviesBouldin):
        metric = cls(num_clusters=3, num_features=3)
        want = update(metric, small[0].astype(np.float32), labels).compute()
        np.testing.assert_allclose(update(metric, preds, labels).compute(), want, rtol=1e-4)


@KINDS
def test_forecasts(kind: str, rng: np.random.Generator) -> None:
    small = rng.integers(-9, 10, (20, 5))
    preds, target = shifted(kind, small[:, :4], small[:, 4])
    for config in ({}, {"fair": True}):
        metric = metrics.ContinuousRankedProbabilityScore(**config)
        want = update(metric, small[:, :4].astype(np.float32), small[:, 4].astype(np.float32))
        assert update(metric, preds, target).compute() == want.compute()
    normal = metrics.ContinuousRankedProbabilityScore(forecast="normal")
    parts = np.stack([preds[:, 0], np.zeros(20, kind)], -1)
    want = np.abs(small[:, 0] - small[:, 4]).mean()
    np.testing.assert_allclose(update(normal, parts, target).compute(), want, rtol=1e-6)


@pytest.mark.parametrize("dtypes", [("int32", "uint32"), ("uint32", "int32"), ("int32", "float32")])
def test_boxes_of_two_dtypes(dtypes: tuple[str, str], rng: np.random.Generator) -> None:
    corner = rng.integers(0, 8, (2, 9, 2))
    small = np.concatenate([corner, corner + rng.integers(1, 8, (2, 9, 2))], -1) * 128
    small[0] += rng.integers(0, 128, (9, 4))  # a float32 holds multiples of 128 at this size
    preds, target = ((x + 2**30).astype(dtype) for x, dtype in zip(small, dtypes, strict=True))
    for cls in (metrics.IoU, metrics.GIoU, metrics.DIoU):
        want = update(cls(), *(x.astype(np.float32) for x in small)).compute()
        np.testing.assert_allclose(update(cls(), preds, target).compute(), want, rtol=1e-6)


@KINDS
def test_integer_logits(kind: str, rng: np.random.Generator) -> None:
    small, target = rng.integers(-2, 3, (20, 4)), rng.integers(0, 4, 20).astype(np.int32)
    (logits,) = shifted(kind, small)
    sizes = {"num_classes": 4}
    for metric in (
        metrics.LogLoss(**sizes, from_logits=True),
        metrics.BrierScore(**sizes, from_logits=True),
        metrics.RankedProbabilityScore(**sizes, from_logits=True),
        metrics.CalibrationError(**sizes, from_logits=True, classwise=True),
        metrics.HingeLoss(**sizes),
        metrics.Perplexity(),
    ):
        want = update(metric, jnp.asarray(small, jnp.float32), target).compute()
        np.testing.assert_allclose(update(metric, logits, target).compute(), want, rtol=2e-6)
