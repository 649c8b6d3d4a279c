"""Distances between surfaces: transforms, published values of MONAI, larger masks, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage

import datarax
from datarax import metrics
from datarax.metrics.segmentation.boundary_iou import eroded
from datarax.metrics.segmentation.surface_distances import (
    edges,
    nearest_distances,
    percentile_of,
    squared_distance,
)
from datarax.testing import assert_within_ulps
from tests.helpers import update


def in_program(metric, *arrays):
    """The value of one update within `jit`."""
    return jax.jit(lambda metric, *x: metric.update(*x).compute())(metric, *arrays)


def ball(radius, centre, spacing=(1.0, 1.0, 1.0)):
    """A volume of 99 voxels a side, (1, D, H, W), as the tests of MONAI make it."""
    place = np.indices((99, 99, 99)) * np.reshape(spacing, (3, 1, 1, 1))
    return (((place - np.reshape(centre, (3, 1, 1, 1))) ** 2).sum(0) <= radius**2)[None]


@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 3.0), (2.0, 0.5, 0.3)])
def test_the_distance_transform(spacing, rng):
    sides = (23, 40) if len(spacing) == 2 else (7, 12, 9)
    share = np.array([0, 0.002, 0.01, 0.1, 0.9, 1]).reshape(6, *(1,) * len(sides))
    points = rng.random((6, *sides)) < share
    got = jax.jit(squared_distance, static_argnums=(1, 2))(points, spacing, jnp.dtype("float32"))
    for image, square in zip(points, np.asarray(got), strict=True):
        if not image.any():
            assert np.isinf(square).all()
            continue
        want = scipy.ndimage.distance_transform_edt(~image, sampling=spacing)
        np.testing.assert_allclose(np.sqrt(square), want, rtol=4e-7)
        near = nearest_distances(np.indices(sides).reshape(len(sides), -1).T, np.argwhere(image),
                                 np.asarray(spacing))  # fmt: skip
        np.testing.assert_allclose(near, np.ravel(want), rtol=1e-14)


@pytest.mark.parametrize("sides", [(9, 14), (5, 6, 7)])
def test_edges(sides, rng):
    masks = rng.random((4, *sides)) < 0.9
    for mask, edge in zip(masks, np.asarray(jax.jit(edges)(masks)), strict=True):
        np.testing.assert_array_equal(edge, mask > scipy.ndimage.binary_erosion(mask))
    for distance in (1, 2, 30):
        inner = np.asarray(jax.jit(eroded, static_argnums=1)(masks, distance))
        box = np.ones((3,) * len(sides), bool)
        for mask, got, host in zip(masks, inner, eroded(masks, distance), strict=True):
            want = scipy.ndimage.binary_erosion(mask, box, distance)
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(host, want)


@pytest.mark.parametrize("percent", [0, 37.5, 50, 95, 99.9, 100])
def test_percentiles(percent, rng):
    values = rng.random((3, 4000)).astype(np.float32)
    where = np.arange(4000) < np.array([[4000], [1], [1234]])
    got = jax.jit(percentile_of, static_argnums=2)(values, where, percent)
    for row, chosen, value in zip(values, where, np.asarray(got), strict=True):
        assert_within_ulps(value, np.percentile(row[chosen].astype(np.float64), percent), 4)


def test_large_masks(rng):
    """By SciPy, on the host and in a program."""
    blob = scipy.ndimage.gaussian_filter(rng.normal(size=(2, 3, 64, 80)), (0, 0, 6, 6)) > 0
    spacing, box = (0.7, 1.3), np.ones((3, 3), bool)
    want = []
    for a, b in zip(*blob, strict=True):
        p, q = (x > scipy.ndimage.binary_erosion(x) for x in (a, b))
        far = [
            np.asarray(scipy.ndimage.distance_transform_edt(~to, sampling=spacing))[of]
            for of, to in ((p, q), (q, p))
        ]
        both = np.concatenate(far)
        p, q = (x > scipy.ndimage.binary_erosion(x, box, 2) for x in (a, b))
        want.append(
            [
                max(x.max() for x in far), max(np.percentile(x, 95) for x in far), both.mean(),
                (both <= 2.1 + 1e-9).mean(), (p & q).sum() / (p | q).sum(),
            ]
        )  # fmt: skip
    metric = datarax.Collection(
        {
            "a": metrics.HausdorffDistance(spacing=spacing),
            "b": metrics.HausdorffDistance(spacing=spacing, percentile=95),
            "c": metrics.MeanSurfaceDistance(spacing=spacing),
            # Three pixels of 0.7 are as far as that, whatever the products round to.
            "d": metrics.SurfaceDice(2.1, spacing=spacing),
            "e": metrics.BoundaryIoU(),  # 2 % of a diagonal of 102 pixels
        }
    )
    host = metric.update(preds=blob[0], target=blob[1]).results()
    np.testing.assert_allclose([*host.values()], np.mean(want, 0), rtol=1e-12)
    traced = jax.jit(lambda m, p, t: m.update(preds=p, target=t).compute())(metric, *blob)
    np.testing.assert_allclose([*traced.values()], np.mean(want, 0), rtol=3e-6)


# https://github.com/Project-MONAI/MONAI, tests/metrics/test_hausdorff_distance.py and
# test_surface_distance.py: of the Euclidean distance, directed and not.
SCALE = (0.85, 1.2, 0.9)
OF_MONAI = {
    "shifted": (
        ball(33, (19, 33, 22)), ball(33, (20, 33, 22)), 1.0, 100,
        (1, 1), (0.3483278807706289, 0.350217),
    ),
    "one within the other": (
        ball(20, (20, 33, 22)), ball(40, (20, 33, 22)), 1.0, 100,
        (20.09975124224178, 20.223748416156685), (12.040033513150455, 15.117741),
    ),
    "percentile": (
        ball(20, (20, 33, 22)), ball(40, (20, 33, 22)), 1.0, 95,
        (19.924858845171276, 20.09975124224178), None,
    ),
    "spacing": (
        ball(20, (20, 20, 20), SCALE), ball(20, (19, 19, 19), SCALE), SCALE, 100,
        (2.0808651447296143, 2.2671568), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MONAI)
def test_values_of_monai(name):
    preds, target, spacing, percentile, hausdorff, mean = OF_MONAI[name]
    for directed, far, near in zip((True, False), hausdorff, mean or (None, None), strict=True):
        config = {"spacing": spacing, "directed": directed}
        metric = metrics.HausdorffDistance(percentile=percentile, **config)
        assert metric.update(preds, target).results() == pytest.approx(far, rel=1e-6)
        if near is not None:
            got = metrics.MeanSurfaceDistance(**config).update(preds, target).results()
            assert got == pytest.approx(near, rel=2e-6)  # six digits


def test_surface_dice_of_monai():
    # https://github.com/Project-MONAI/MONAI, tests/metrics/test_surface_dice.py.
    preds, target = np.zeros((2, 1, 10, 10), np.int32)
    preds[0, 1:4, 1] = target[0, 5:8, 6] = 1
    for tolerance, want in (
        ((0, 0), (1 - 12 / 84, 0)),
        ((2.8, 5.5), (1 - 3 / 84, 1 - 4 / 6)),
        ((3, 6), (1 - 1 / 84, 1 - 2 / 6)),
    ):
        config = {"num_classes": 2, "include_background": True}
        metric = metrics.SurfaceDice(tolerance, average=None, **config)
        assert_within_ulps(in_program(metric, preds, target), np.float32(want), 2)
        mean = metrics.SurfaceDice(tolerance, **config)
        assert mean.update(preds, target).results() == pytest.approx(np.mean(want))
    # The second image has class 0 alone.
    preds, target = np.zeros((2, 2, 48, 64), np.int32)
    preds[0, :, 5:], target[0, :, 15:] = 1, 1
    shared = [46 + 48 + 9 * 2, 48 * 4 + (3 + 13) * 2, 48 * 4 + (57 + 47) * 2]
    want = [1 - shared[0] / shared[1], 1 - shared[0] / shared[2]]
    metric = metrics.SurfaceDice(0.0, num_classes=2, include_background=True, average=None)
    got = metric.update(preds, target)
    np.testing.assert_allclose(got.results(), [(want[0] + 1) / 2, want[1]], rtol=1e-12)
    assert got.statistic.weight.value.tolist() == [2, 1]


EMPTY = [
    (metrics.HausdorffDistance(), np.inf, 0),
    (metrics.HausdorffDistance(percentile=95), np.inf, 0),
    (metrics.MeanSurfaceDistance(directed=True), np.inf, 0),
    (metrics.SurfaceDice(1.0), 0, 1),
    (metrics.BoundaryIoU(), 0, 1),
]


@pytest.mark.parametrize(("metric", "one", "same"), EMPTY)
def test_masks_that_are_empty(metric, one, same):
    """As MONAI: one empty mask is at an infinite distance; two have none, and are left out."""
    mask = np.zeros((1, 4, 5), bool)
    mask[0, 1, 1] = True
    nothing = np.zeros_like(mask)
    for pair, want, weight in (
        ((mask, nothing), one, 1),
        ((nothing, mask), one, 1),
        ((nothing, nothing), np.nan, 0),
        ((mask, mask), same, 1),
    ):
        seen = metric.update(*pair)
        np.testing.assert_array_equal(seen.results(), want)
        np.testing.assert_array_equal(in_program(metric, *pair), np.float32(want))
        assert (float(seen.statistic.weight.value), int(seen.invalid_count())) == (weight, 0)
    # Images without a score do not count beside others; weights are by image.
    preds, target = np.concatenate([mask, nothing, mask]), np.concatenate([mask, nothing, nothing])
    seen = metric.update(preds, target, weights=np.float32([3, 1, 0]))
    assert seen.results() == same
    assert float(seen.statistic.weight.value) == 3


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_images_with_one_empty_mask_can_be_left_out():
    preds, target = np.zeros((3, 4, 5), bool), np.zeros((3, 4, 5), bool)
    preds[0, 1, 1] = target[0, 1, 4] = preds[1, 0, 0] = True
    config = {"spacing": (1.0, 0.5), "empty": "invalid", "on_invalid": "exclude"}
    for cls in (metrics.HausdorffDistance, metrics.MeanSurfaceDistance):
        metric = update(cls(**config), preds, target)
        # The second has no distance and is invalid; the third has two empty masks.
        assert metric.compute() == 1.5
        assert int(metric.invalid_count()) == 1
        with pytest.warns(datarax.InvalidValuesWarning, match="1 values or examples"):
            assert metric.results() == 1.5
    # Of a class that one image lacks, the means by class are of the other image.
    labels = np.int32([[[1, 2]], [[1, 1]]]), np.int32([[[1, 2]], [[1, 2]]])
    by_class = metrics.HausdorffDistance(num_classes=3, average=None)
    np.testing.assert_array_equal(by_class.update(*labels).results(), [0.5, np.inf])
    by_class = by_class.replace(empty="invalid", on_invalid="exclude")
    np.testing.assert_array_equal(by_class.update(*labels).results(), [0, 0])


def test_a_program_does_not_grow_with_the_image_or_the_classes():
    def operations(sides, num_classes):
        metric = metrics.HausdorffDistance(num_classes=num_classes)
        shape = jax.ShapeDtypeStruct((2, *sides), jnp.int32)
        program = jax.make_jaxpr(lambda m, p, t: m.update(p, t))(metric, shape, shape)
        return str(program).count(" = ")

    assert operations((8, 9, 10), 3) == operations((64, 65, 66), 9)


def test_configuration_is_checked():
    for make, message in (
        (lambda: metrics.HausdorffDistance(percentile=101), "percentile=101"),
        (lambda: metrics.HausdorffDistance(spacing=(1.0, 0.0)), "spacing="),
        (lambda: metrics.MeanSurfaceDistance(spacing=(1.0,)), r"spacing=\(1.0,\)"),
        (lambda: metrics.SurfaceDice(-1), "tolerance=-1"),
        (lambda: metrics.SurfaceDice((1.0, 2.0)), "one for each of 1 classes"),
        (lambda: metrics.BoundaryIoU(distance=0), "distance=0"),
        (lambda: metrics.BoundaryIoU(average=None), "average=None has no effect"),
        (lambda: metrics.SurfaceDice(1, include_background=True), "without num_classes="),
        (lambda: metrics.HausdorffDistance(num_classes=1), "num_classes=1"),
    ):
        with pytest.raises(datarax.MetricInputError, match=message):
            make()


@pytest.mark.parametrize(
    ("metric", "preds", "target", "message"),
    [
        (metrics.HausdorffDistance(), (3, 4), (3, 4), r"\(3, 4\).*\(N, H, W\)"),
        (metrics.SurfaceDice(1.0), (1, 3, 4), (3, 4), r"\(1, 3, 4\).*\(3, 4\)"),
        (metrics.HausdorffDistance(spacing=(1, 2)), (1, 3, 4, 5), (1, 3, 4, 5), "expected 3 num"),
    ],
)
def test_shapes(metric, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        metric.update(jnp.zeros(preds, jnp.int32), jnp.zeros(target, jnp.int32))


def test_dtypes():
    image = np.zeros((1, 3, 2))
    assert np.isnan(metrics.BoundaryIoU().update(image, image).results())
    with pytest.raises(datarax.MetricTypeError, match="float64"):
        metrics.BoundaryIoU(num_classes=2).update(image, image)
