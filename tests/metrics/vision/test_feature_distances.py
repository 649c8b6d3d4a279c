"""FID, KID and the Inception score: against `scipy.linalg.sqrtm` and their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax.sharding import PartitionSpec as P

import datarax
from datarax import MetricInputError, MetricTypeError
from datarax.algebra.devices import sync_states
from datarax.algebra.pytrees import map_leaf_states
from datarax.metrics import FID, KID, InceptionScore
from datarax.metrics.vision.feature_distances import frechet_distance
from datarax.numerics import DoubleFloat
from datarax.statistics import FeatureMoments
from tests.helpers import make_mesh, over_shards, softmax, update
from tests.registry.vision import kid

SIZE = 40


def sets(rng, rows, size=SIZE, offset=0.0):
    mix = rng.normal(size=(2, size, size)) / np.sqrt(size)
    drawn = offset + rng.normal(size=(2, rows, size)) @ mix + 0.3 * rng.normal(size=(2, 1, size))
    return drawn.astype(np.float32)


def fid_of(preds, target):
    """The formula of the paper, with the root of the product as it is written."""
    (m, a), (n, b) = ((x.mean(0), np.cov(x, rowvar=False)) for x in (preds, target))
    root = scipy.linalg.sqrtm(a @ b)
    return ((m - n) ** 2).sum() + np.trace(a + b) - 2 * np.trace(root).real


MOST = 400


@pytest.mark.parametrize("rows", [MOST, SIZE + 1, SIZE // 2], ids=["many", "few", "singular"])
def test_fid_is_that_of_the_square_root_of_a_matrix(rng, rows):
    preds, target = sets(rng, MOST, offset=10.0)
    metric = update(FID(num_features=SIZE), preds, target, weights=np.arange(MOST) < rows)
    want = fid_of(*(x[:rows].astype(np.float64) for x in (preds, target)))
    # Of singular matrices, `sqrtm` itself is right to the root of its precision.
    np.testing.assert_allclose(float(metric.compute()), want, rtol=2e-7 if rows > SIZE else 1e-5)


def test_frechet_distance_of_singular_matrices_in_closed_form(rng):
    # Diagonal ones commute: the distance is that of the roots.
    a, b = (np.where(rng.random(SIZE) < 0.5, 0, rng.random(SIZE)) for _ in range(2))
    basis = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0]

    def double(x):
        high = np.asarray(x, np.float32)
        return DoubleFloat(jnp.asarray(high), jnp.asarray((x - high).astype(np.float32)))

    matrices = tuple(double((basis * x) @ basis.T) for x in (a, b))
    zero = double(np.zeros(SIZE))
    got = jax.jit(frechet_distance)((zero, zero), matrices)
    np.testing.assert_allclose(got, ((np.sqrt(a) - np.sqrt(b)) ** 2).sum(), 1e-6)


def test_a_million_features_far_from_zero(rng):
    size, rows, parts = 4, 2**18, 4
    mix, offset = rng.normal(size=(size, size)), 1000 * rng.choice([-1.0, 1.0], size)
    seen, total, squares = FeatureMoments(size), np.zeros(size), np.zeros((size, size))
    for _ in range(parts):
        x = (offset + rng.normal(size=(rows, size)) @ mix).astype(np.float32)
        seen = update(seen, x)
        d = x.astype(np.float64) - offset
        total, squares = total + d.sum(0), squares + d.T @ d
    n = rows * parts
    mean = total / n
    covariance = (squares - n * np.outer(mean, mean)) / (n - 1)
    got = [np.float64(x.high) + np.float64(x.low) for x in (seen.mean, seen.covariance(ddof=1))]
    np.testing.assert_allclose(got[0] - offset, mean, atol=1e-8 * np.abs(mix).max())
    np.testing.assert_allclose(got[1], covariance, atol=1e-8 * np.abs(covariance).max())


def test_large_moments_merge_on_devices_in_parts(rng):
    x, w = sets(rng, 24, 5, 100.0)[0], rng.random(24).astype(np.float32)
    w[6:9] = 0  # a device without data

    def synced(x, w):
        kept = FeatureMoments(5).update(x, weights=w)
        return map_leaf_states(lambda s: sync_states(s, ("data",), small=0), kept)

    seen = over_shards(synced, make_mesh("auto", {"data": 8}), P("data"), P())(x, w)
    x, w = x.astype(np.float64), w.astype(np.float64)
    mean = np.average(x, 0, w)
    want = (w[:, None] * (x - mean)).T @ (x - mean) / w.sum()
    np.testing.assert_allclose(seen.covariance().to_float(), want, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(seen.mean.to_float(), mean, 1e-7)
    np.testing.assert_allclose(seen.count.to_float(), w.sum(), 1e-6)


def flat(images):
    return images.reshape(len(images), -1)[:, :4]


def test_features_are_made_of_inputs_on_either_side(rng):
    images = rng.normal(size=(2, 30, 2, 3)).astype(np.float32)
    empty = FID(features=flat, num_features=4, on_invalid="exclude")
    # A row that cannot be used leaves the rows of the other set.
    spoilt = images[0].copy()
    spoilt[3] = np.nan
    seen = update(update(empty, preds=spoilt), target=images[1])
    assert (int(seen.of_preds.count.high), int(seen.of_target.count.high)) == (29, 30)
    assert int(seen.invalid_count()) == 1
    preds, target = (x.reshape(30, -1)[:, :4].astype(np.float64) for x in images)
    with pytest.warns(datarax.InvalidValuesWarning, match="1 "):
        got = float(seen.compute())
    np.testing.assert_allclose(got, fid_of(np.delete(preds, 3, 0), target), 1e-5)


def test_fid_of_slices(rng):
    preds, target = sets(rng, 30, 4)
    sliced = datarax.Sliced(FID(num_features=4), 2)
    sliced = sliced.update(preds, target, slices=np.arange(30) % 2)
    for i, value in enumerate(sliced.compute()["slices"]):
        want = fid_of(*(x[i::2].astype(np.float64) for x in (preds, target)))
        np.testing.assert_allclose(float(value), want, 1e-5)


def test_fid_of_data_that_loses_weight(rng):
    preds, target = sets(rng, 30, 4)
    decayed = datarax.Decayed(FID(num_features=4), 1.0)
    for rows in (slice(0, 15), slice(15, 30)):
        decayed = decayed.update(preds[rows], target[rows])
    weighted = update(FID(num_features=4), preds, target, weights=np.repeat([0.5, 1.0], 15))
    np.testing.assert_allclose(decayed.compute(), weighted.compute(), 1e-5)


def test_kid_keeps_the_first_rows_and_counts_the_others(rng):
    preds, target = sets(rng, 20, 3)
    metric = KID(num_features=3, capacity=16)
    metric = update(update(metric, preds, target), preds, target)
    w = np.ones((16, 2))
    want = kid(w, *(x[:16].astype(np.float64) for x in (preds, target)))
    assert int(metric.invalid_count()) == 48
    with pytest.warns(datarax.InvalidValuesWarning, match="48 beyond .* an estimate from"):
        np.testing.assert_allclose(float(metric.compute()), want, 1e-5, 1e-6)
    spoilt = update(metric, np.full((1, 3), np.nan), target[:1])
    with pytest.warns(datarax.InvalidValuesWarning, match="so the result is NaN"):
        assert np.isnan(float(spoilt.compute()))


def logits_of(images):
    return images.reshape(len(images), -1)


def test_inception_score_of_logits_of_a_network(rng):
    images = (5 * rng.normal(size=(50, 2, 3)) + 100).astype(np.float32)
    metric = InceptionScore(features=logits_of, from_logits=True)
    got = float(update(metric, images).compute())
    p = softmax(images.reshape(50, -1).astype(np.float64))
    want = np.exp((p * np.log(p / p.mean(0))).sum(1).mean())
    np.testing.assert_allclose(got, want, 1e-6)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, images):
        return flat(images)


def test_misuse_is_refused():
    metric = FID(num_features=4)
    image = np.zeros((5, 2, 2), np.float32)
    for call, said in (
        (lambda: metric.update(), "needs preds, target or both"),
        (lambda: metric.update(image), "give features="),
        (lambda: metric.update(image[..., 0]), r"num_features=4; expected \(N, 4\)"),
        (lambda: FID(features=len, num_features=4).update(image), "features"),
        (lambda: metric.update(image[:, 0].repeat(2, 1), weights=np.ones(3)), "weights of shape"),
        (lambda: InceptionScore(num_classes=4).update(np.ones((2, 5))), "num_classes=4"),
        (lambda: InceptionScore().update(np.ones(5)), r"\(N, F\)"),
        (lambda: FID(num_features=0), "num_features=0"),
        (lambda: KID(num_features=4, capacity=0), "capacity=0"),
    ):
        with pytest.raises(MetricInputError, match=said):
            call()
    with pytest.raises(MetricTypeError, match="expected a function"):
        FID(features=2048, num_features=4)
    with pytest.raises(MetricTypeError, match="cannot be hashed"):
        FID(features=Unhashable(), num_features=4)
    with pytest.raises(datarax.ConfigurationMismatchError, match="features"):
        FID(features=flat, num_features=4).merge(FID(features=logits_of, num_features=4))
