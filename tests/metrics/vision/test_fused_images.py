"""Quality without a reference: the images that are given, a dict of them, channels, errors."""

import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.metrics.vision.fused_images import degraded
from tests.registry.images import fused


def test_the_coarse_image_may_be_given(rng):
    """As a dict too; and it is what is made of the sharp one."""
    images = fused(rng, 3)
    preds, ms, pan = images["preds"], images["ms"], images["pan"]
    small = degraded(pan.astype(np.float64), 7, ms.shape[1:3])
    for metric in (metrics.SpatialDistortion(), metrics.QNR(norm_order=2)):
        want = metric.update(preds, ms, pan).results()
        given = {"ms": ms, "pan": pan}
        for other in (
            metric.update(preds, ms, pan, small),
            metric.update(preds, given),
            metric.update(preds, {**given, "pan_lr": small}),
            metric.update(preds, ms, pan.repeat(3, -1), weights=np.ones(3)),
        ):
            assert other.results() == pytest.approx(want, rel=1e-12)


def test_images_of_any_ratio_and_channels(rng):
    """An odd ratio takes the pixel in the middle."""
    pan = rng.random((2, 33, 22, 1))
    small = degraded(pan, 1, (11, 11))
    np.testing.assert_allclose(small, (pan[:, 1::3, ::2] + pan[:, 1::3, 1::2]) / 2, rtol=1e-14)
    # The index does not depend on how many channels there may be.
    preds, target = rng.random((2, 2, 12, 12, 2))
    few, many = (metrics.SpectralDistortion(num_channels=n) for n in (2, 16))
    assert few.update(preds, target).results() == many.update(preds, target).results() > 0
    # One channel has no pairs.
    one = preds[..., :1]
    assert np.isnan(many.update(one, one).results())
    spatial = metrics.SpatialDistortion(window_size=2).update(one, one, one).results()
    quality = metrics.QNR(window_size=2).update(one, one, one).results()
    assert quality == pytest.approx(max(1 - spatial, 0))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 22, 22, 3), (2, 11, 11, 3)), "got no pan"),
        (((2, 22, 22, 3), (2, 11, 11, 2), (2, 22, 22, 1)), r"ms \(2, 11, 11, 2\).*equal N and C"),
        (((2, 22, 22, 3), (2, 10, 11, 3), (2, 22, 22, 1)), "ms of 10 x 11 pixels"),
        (((2, 22, 22, 3), (2, 12, 11, 3), (2, 22, 22, 1)), "multiples"),
        (((2, 22, 22, 3), (2, 11, 11, 3), (2, 11, 11, 1)), r"pan \(11, 11\)"),
        (((2, 22, 22, 17), (2, 11, 11, 17), (2, 22, 22, 1)), "num_channels=16"),
        (((22, 22, 3), (11, 11, 3), (22, 22, 1)), r"expected \(N, H, W, C\)"),
    ],
)
def test_shapes(shapes, message):
    for metric in (metrics.SpatialDistortion(), metrics.QNR()):
        with pytest.raises(datarax.MetricInputError, match=message):
            metric.update(*(np.ones(shape) for shape in shapes))


def test_configuration_is_checked():
    for make, message in (
        (lambda: metrics.SpectralDistortion(p=0), "p=0"),
        (lambda: metrics.SpatialDistortion(window_size=0), "window_size=0"),
        (lambda: metrics.QNR(alpha=-1), "alpha=-1"),
        (lambda: metrics.QNR(num_channels=0), "num_channels=0"),
    ):
        with pytest.raises(datarax.MetricInputError, match=message):
            make()
    images = np.ones((1, 22, 22, 1)), np.ones((1, 11, 11, 1)), np.ones((1, 22, 22, 1))
    with pytest.raises(datarax.MetricInputError, match="window_size=11"):
        metrics.QNR(window_size=11).update(*images)
