"""Metrics of image quality: against scikit-image and against their definitions in float64."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import (
    ERGAS,
    MSSSIM,
    PSNR,
    PSNRB,
    RASE,
    RMSESW,
    SAM,
    SSIM,
    UQI,
    VIF,
    PerceptualDistance,
    SpatialCorrelation,
    TotalVariation,
)
from tests.helpers import update, update_all
from tests.registry.images import (
    BETAS,
    RANGE,
    by_channel,
    centered_ssim,
    ergas,
    ms_ssim,
    perceptual_distance,
    psnr,
    psnr_b,
    rase,
    rmse_of_windows,
    sam,
    spatial_correlation,
    uqi,
    vif,
)
from tests.registry.vision import gaussian, ssim

SHAPE = (4, 43, 46, 2)
WEIGHTS = np.float32([0.3, 2, 0, 1])


def pixels(rng, kind):
    """Smooth images and noisy ones, with a part in which both are constant."""
    size = SHAPE if kind != "volume" else (2, 12, 13, 14, 2)
    target = scipy.ndimage.gaussian_filter(rng.random(size), (0, *(2,) * (len(size) - 2), 0))
    target = 0.2 + target + 0.1 * rng.random(size)
    noise = {"near": 1e-3, "unrelated": 1.0}.get(kind, 0.1)
    preds = target + noise * rng.normal(size=size)
    preds[:, :12, :12], target[:, :12, :12] = 0.5, 0.25
    if kind == "offset":
        preds, target = preds + 1000, target + 1000
    return preds.astype(np.float32), target.astype(np.float32)


def by_image(score):
    def of_batch(preds, target, weights):
        scores = [score(p, t) for p, t in zip(preds, target, strict=True)]
        return np.average(np.where(weights > 0, scores, 0), weights=weights)

    return of_batch


def skimage_ssim(p, t):
    return structural_similarity(
        p,
        t,
        data_range=RANGE,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        channel_axis=-1,
    )


def variation(p, _):
    return np.abs(np.diff(p, axis=0)).sum() + np.abs(np.diff(p, axis=1)).sum()


METRICS = {
    "psnr": (PSNR(data_range=RANGE), psnr),
    "psnr_b": (PSNRB(data_range=RANGE), psnr_b),
    "ssim": (SSIM(data_range=RANGE), by_channel(lambda p, t: centered_ssim(p, t)[0])),
    "ms_ssim": (MSSSIM(data_range=RANGE, betas=BETAS), by_channel(ms_ssim)),
    "uqi": (UQI(), by_channel(uqi)),
    "vif": (VIF(data_range=RANGE), by_channel(vif)),
    "sam": (SAM(), sam),
    "ergas": (ERGAS(ratio=4), ergas),
    "rase": (RASE(), rase),
    "correlation": (SpatialCorrelation(), by_channel(spatial_correlation)),
    "rmse_sw": (RMSESW(), rmse_of_windows),
}


def all_of(preds, target, weights):
    """The value of each metric, and how many images it counted as invalid."""
    metrics = [metric for metric, _ in METRICS.values()]
    seen = update_all(metrics, preds, target, weights=weights)
    return {
        name: (metric.compute(), metric.invalid_count())
        for name, metric in zip(METRICS, seen, strict=True)
    }


@pytest.mark.parametrize("kind", ["usual", "near", "unrelated", "offset"])
def test_every_score_is_that_of_its_definition(rng, kind):
    preds, target = pixels(rng, kind)
    spoilt = preds.copy()
    spoilt[2, 5, 5] = np.nan  # of weight zero
    got = all_of(spoilt, target, WEIGHTS)
    p, t = preds.astype(np.float64), target.astype(np.float64)
    for name, (_, score) in METRICS.items():
        want = by_image(score)(p, t, WEIGHTS)
        np.testing.assert_allclose(got[name][0], want, rtol=1e-6, atol=1e-6, err_msg=name)
    if kind != "offset":
        want = by_image(skimage_ssim)(p, t, WEIGHTS)
        np.testing.assert_allclose(got["ssim"][0], want, rtol=1e-6)


def test_whole_numbers_have_the_range_of_their_dtype(rng):
    preds, target = (rng.integers(0, 256, (2, 12, 14, 3)).astype(np.uint8) for _ in range(2))
    got = [x.compute() for x in update_all([PSNR(), SSIM()], preds, target)]
    ranged = update(PSNR(data_range=255), preds, target).compute()
    want = np.mean([peak_signal_noise_ratio(t, p) for p, t in zip(preds, target, strict=True)])
    np.testing.assert_allclose([got[0], ranged], want, 1e-6)
    options = {"gaussian_weights": True, "use_sample_covariance": False, "channel_axis": -1}
    want = [structural_similarity(p, t, **options) for p, t in zip(preds, target, strict=True)]
    np.testing.assert_allclose(got[1], np.mean(want), 1e-5)
    for dtype in ("float32", "int32", "bfloat16"):
        with pytest.raises(MetricInputError, match=f"{dtype} need data_range="):
            jax.eval_shape(PSNR().update, *(jnp.asarray(x, dtype) for x in (preds, target)))
    with pytest.raises(MetricInputError, match="float32 and uint8 need data_range="):
        jax.eval_shape(PSNR().update, preds, jnp.asarray(target, "float32"))


def test_volumes(rng):
    preds, target = pixels(rng, "volume")
    volumes = {"data_range": RANGE, "spatial_dims": 3}
    got = [x.compute() for x in update_all([PSNR(**volumes), SSIM(**volumes)], preds, target)]
    p, t = preds.astype(np.float64), target.astype(np.float64)
    for value, score in zip(got, (psnr, skimage_ssim), strict=True):
        want = np.mean([score(x, y) for x, y in zip(p, t, strict=True)])
        np.testing.assert_allclose(float(value), want, 1e-6)


def test_five_scales(rng):
    target = scipy.ndimage.gaussian_filter(rng.random((1, 179, 176, 1)), (0, 3, 3, 0)) * 4
    preds = target + 0.2 * rng.normal(size=target.shape)
    preds, target = preds.astype(np.float32), target.astype(np.float32)
    got = float(update(MSSSIM(data_range=RANGE), preds, target).compute())
    p, t = (x[0, :, :, 0].astype(np.float64) for x in (preds, target))
    np.testing.assert_allclose(got, ms_ssim(p, t, MSSSIM(data_range=1.0).betas), 1e-6)


def test_negative_contrast_counts_as_zero(rng):
    target = rng.random(SHAPE).astype(np.float32)
    got = all_of(1 - target, target, WEIGHTS)
    assert got["ms_ssim"][0] == 0 > got["ssim"][0]


def test_equal_images(rng):
    image = pixels(rng, "usual")[1]
    got = {name: value for name, (value, _) in all_of(image, image, WEIGHTS).items()}
    assert got.pop("psnr") == math.inf
    ones = {"ssim", "ms_ssim", "uqi", "vif", "correlation"}
    zeros = {"sam", "ergas", "rase", "rmse_sw"}
    for names, want in ((ones, 1), (zeros, 0)):
        np.testing.assert_allclose([got[name] for name in names], want, atol=1e-6)
    assert set(got) == ones | zeros | {"psnr_b"}


def test_the_mean_with_an_infinite_ratio_is_infinite(rng):
    preds, target = pixels(rng, "usual")
    some = update(PSNR(data_range=RANGE), preds, target)
    equal = update(PSNR(data_range=RANGE), target, target)
    assert some.merge(equal).compute() == equal.merge(some).compute() == math.inf
    none = update(PSNR(data_range=RANGE), target, target, weights=np.zeros(4, np.float32))
    assert some.merge(none).compute() == some.compute()


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_images_that_cannot_be_used_or_have_no_score_are_invalid_and_counted(rng):
    preds, target = pixels(rng, "usual")
    target[0, 0, 0, 0] = np.inf
    target[1] = 0.5
    target[2], preds[2, 3, 3] = 0, np.nan  # of weight zero
    target[3] = 0
    got = all_of(preds, target, WEIGHTS)
    # Of a constant target there is no correlation, no information, and of zeros no angle.
    invalid = dict.fromkeys(METRICS, 1) | {"correlation": 3, "vif": 3, "sam": 2}
    assert {name: int(count) for name, (_, count) in got.items()} == invalid
    assert all(np.isnan(value) for value, _ in got.values())


def test_a_pixel_that_is_nan_warns(rng):
    preds, target = pixels(rng, "usual")
    preds[3, 0, 0, 0] = np.nan
    seen = update(PSNR(data_range=RANGE), preds, target)
    with pytest.warns(InvalidValuesWarning, match="1 "):
        assert np.isnan(seen.compute())
    with pytest.warns(InvalidValuesWarning, match="1 "):
        kept = seen.replace(on_invalid="exclude").compute()
    want = np.mean([psnr(p, t) for p, t in zip(preds[:3], target[:3], strict=True)])
    np.testing.assert_allclose(kept, want, 1e-6)


def feature_maps(images):
    return [images[:, ::2, ::3] ** 2, jnp.concatenate([images, -2 * images, images**3], -1)]


def test_perceptual_distance_is_that_of_its_definition(rng):
    preds, target = pixels(rng, "usual")
    weights = ((0.5, 2.0), (1.0, 0.1, 0.2, 3.0, 0.0, 1.0))

    metrics = [
        PerceptualDistance(features=feature_maps, channel_weights=w) for w in (weights, None)
    ]
    got = [m.compute() for m in update_all(metrics, preds, target, weights=WEIGHTS)]
    for value, w in zip(got, (weights, None), strict=True):
        distance = partial(perceptual_distance, features=feature_maps, weights=w)
        want = by_image(distance)(preds, target, WEIGHTS)
        np.testing.assert_allclose(float(value), want, 1e-5)
    for wrong in ((1.0,),), ((1.0, 2.0),), ((1.0, 2.0), (1.0,)):
        metric = PerceptualDistance(features=feature_maps, channel_weights=wrong)
        with pytest.raises(MetricInputError, match="channel_weights"):
            jax.eval_shape(metric.update, preds, target)
    with pytest.raises(MetricTypeError, match="expected a function"):
        PerceptualDistance(features="vgg")


def test_slices_of_images(rng):
    preds, target = pixels(rng, "usual")
    sliced = datarax.Sliced(PSNR(data_range=RANGE), 2).update(preds, target, slices=[0, 1, 1, 0])
    values = sliced.compute()["slices"]
    p, t = preds.astype(np.float64), target.astype(np.float64)
    scores = np.array([psnr(x, y) for x, y in zip(p, t, strict=True)])
    np.testing.assert_allclose(values, [scores[[0, 3]].mean(), scores[[1, 2]].mean()], 1e-6)
    total, weight = update(PSNR(data_range=RANGE), preds, target).as_ratio()
    np.testing.assert_allclose((total / weight).to_float(), scores.mean(), 1e-6)


def test_total_variation_of_whole_numbers(rng):
    images = rng.integers(0, 256, (3, 7, 9, 2)).astype(np.uint8)
    want = np.mean([variation(x.astype(np.int64), None) for x in images])
    np.testing.assert_allclose(update(TotalVariation(), images).compute(), want, 1e-7)


@pytest.mark.parametrize(
    ("make", "shapes", "said"),
    [
        (lambda: PSNR(data_range=1.0), ((4, 9, 9, 1), (4, 9, 9)), "expected the same shape"),
        (lambda: PSNR(data_range=1.0), ((9, 9, 3), (9, 9, 3)), r"images \(N, H, W, C\)"),
        (lambda: SSIM(data_range=1.0, spatial_dims=3), ((1, 19, 19, 3),) * 2, r"\(N, D, H, W, C\)"),
        (lambda: SSIM(data_range=1.0), ((1, 10, 19, 3),) * 2, "SSIM needs 11 pixels or more"),
        (lambda: MSSSIM(data_range=1.0), ((1, 175, 300, 1),) * 2, "needs 176 pixels"),
        (lambda: VIF(data_range=1.0), ((1, 40, 41, 1),) * 2, "needs 41 pixels"),
        (lambda: UQI(), ((1, 7, 9, 1),) * 2, "needs 8 pixels"),
        (lambda: PSNRB(data_range=1.0), ((1, 15, 19, 1),) * 2, "needs 16 pixels"),
        (lambda: PSNR(data_range=1.0), ((1, 5, 5, 0),) * 2, "and a channel"),
    ],
)
def test_shapes_are_checked(make, shapes, said):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    with pytest.raises(MetricInputError, match=said):
        jax.eval_shape(make().update, *arrays)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PSNR(data_range=0), "expected a positive number"),
        (lambda: PSNR(data_range=math.inf), "expected a positive number"),
        (lambda: PSNR(data_range="1"), "expected a number"),
        (lambda: SSIM(spatial_dims=4), "spatial_dims=4"),
        (lambda: SSIM(sigma=0), "sigma of at least 0.2"),
        (lambda: MSSSIM(betas=()), "expected positive powers"),
        (lambda: ERGAS(ratio=-1), "expected a positive number"),
        (lambda: UQI(window=1), "window=1"),
        (lambda: PSNRB(block_size=1), "block_size=1"),
    ],
)
def test_configuration_is_checked(make, said):
    with pytest.raises(MetricInputError, match=said):
        make()


def test_weights_are_by_image(rng):
    preds, target = pixels(rng, "usual")
    with pytest.raises(MetricInputError, match="weights of shape"):
        jax.eval_shape(PSNR(data_range=1.0).update, preds, target, weights=np.ones(SHAPE[:2]))


def test_the_width_of_the_window_of_ssim(rng):
    target = rng.random((2, 20, 24, 3))
    preds = (0.7 * target + 0.3 * rng.random(target.shape)).astype(np.float32)
    target = target.astype(np.float32)
    for sigma, size in ((1.5, 7), (1.5, 11), (0.8, 3)):
        metric = SSIM(data_range=1.0, sigma=sigma, filter_size=size).update(preds, target)
        window = gaussian(sigma, size // 2)
        want = np.mean([ssim(p, t, window=window) for p, t in zip(preds, target, strict=True)])
        assert metric.results() == pytest.approx(want, rel=1e-6)
    usual = SSIM(data_range=1.0).update(preds, target).results()
    assert SSIM(data_range=1.0, filter_size=11).update(preds, target).results() == usual
    MSSSIM(data_range=1.0, betas=(0.5, 0.5), filter_size=5).update(preds, target).results()
    for size in (4, 1, 2.5):
        with pytest.raises(MetricInputError, match="filter_size="):
            SSIM(data_range=1.0, filter_size=size)
    with pytest.raises(MetricTypeError, match=r"Did you mean filter_size= for kernel_size=\?"):
        SSIM(data_range=1.0, kernel_size=7)
