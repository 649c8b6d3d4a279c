"""`Silhouette`, `DunnIndex` and `DaviesBouldin(power=1)`: references, samples, refusals."""

import jax
import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax import metrics

CONFIG = {"num_clusters": 5, "num_features": 3}
CLASSES = (
    metrics.Silhouette,
    metrics.DunnIndex,
    lambda **config: metrics.DunnIndex(centroids=True, **config),
    lambda **config: metrics.DaviesBouldin(power=1, **config),
)


def drawn(rng, size, offset=0.0):
    labels = rng.integers(0, 4, size)  # the fifth does not occur
    centers = rng.normal(0, 3, (4, 3))
    return offset + rng.normal(centers[labels], 1), labels


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_scikit_learn_of_float64(offset, rng):
    x, labels = drawn(rng, 500, offset)
    silhouette = metrics.Silhouette(capacity=512, **CONFIG)
    overlap = metrics.DaviesBouldin(power=1, capacity=512, **CONFIG)
    for part in np.array_split(np.arange(500), 3):
        silhouette = silhouette.update(x[part], labels[part])
        overlap = overlap.update(x[part], labels[part])
    centred = x - x[0]
    # Each coordinate is kept in two floats of float32.
    tolerance = 1e-9 + 2.0**-46 * offset
    want = sklearn.metrics.silhouette_score(centred, labels)
    np.testing.assert_allclose(silhouette.results(), want, tolerance)
    want = sklearn.metrics.davies_bouldin_score(centred, labels)
    np.testing.assert_allclose(overlap.results(), want, tolerance)


def test_the_definition_of_dunn(rng):
    x, labels = drawn(rng, 200)
    apart, same = np.linalg.norm(x[:, None] - x, axis=-1), labels[:, None] == labels
    got = metrics.DunnIndex(**CONFIG).update(x, labels).results()
    np.testing.assert_allclose(got, apart[~same].min() / apart[same].max(), 1e-9)
    # The program of torchmetrics.
    means = np.array([x[labels == c].mean(0) for c in range(4)])
    between = np.linalg.norm(means[:, None] - means, axis=-1)[np.triu_indices(4, 1)]
    widest = np.linalg.norm(x - means[labels], axis=-1).max()
    got = metrics.DunnIndex(centroids=True, **CONFIG).update(x, labels).results()
    np.testing.assert_allclose(got, between.min() / widest, 1e-9)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
@pytest.mark.parametrize("cls", CLASSES)
def test_a_sample_by_index_does_not_depend_on_order_or_batches(cls, rng):
    x, labels = drawn(rng, 600)
    index, order = np.arange(600), rng.permutation(600)
    one = cls(capacity=100, **CONFIG).update(x, labels, index=index)
    parts = np.array_split(order, 3)
    states = [cls(capacity=100, **CONFIG).update(x[p], labels[p], index=p) for p in parts]
    merged = states[2].merge(states[0]).merge(states[1])
    assert merged.invalid_count() == one.invalid_count() == 500
    assert merged.results() == one.results()
    update = jax.jit(lambda metric, *given: metric.update(*given[:2], index=given[2]))
    in_jit = update(cls(capacity=100, **CONFIG), np.float32(x), labels, index)
    np.testing.assert_allclose(in_jit.results(), one.results(), 1e-4)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_the_error_of_a_sample_is_what_is_stated(rng):
    x, labels = drawn(rng, 2000)
    each = np.asarray(sklearn.metrics.silhouette_samples(x, labels))
    error = each.std() / np.sqrt(200)
    off = []
    for i in range(20):
        metric = metrics.Silhouette(capacity=200, **CONFIG)
        metric = metric.update(x, labels, index=np.arange(2000) + 10_000 * i)
        off.append((metric.results() - each.mean()) / error)
    # One to two times, up to the chance of twenty samples.
    assert 0.4 < np.sqrt(np.mean(np.square(off))) < 2.6
    # The Dunn index of a sample is not below that of all points.
    all_points = metrics.DunnIndex(capacity=2000, **CONFIG).update(x, labels).results()
    assert metrics.DunnIndex(capacity=200, **CONFIG).update(x, labels).results() >= all_points


def test_a_full_sample_warns_and_still_gives_a_number(rng):
    x, labels = drawn(rng, 60)
    metric = metrics.Silhouette(capacity=50, **CONFIG).update(x, labels)
    with pytest.warns(datarax.InvalidValuesWarning, match="10 beyond the capacity of the sample"):
        assert np.isfinite(metric.compute())


def test_degenerate_clusters():
    points, labels = np.array([[1.0, 0, 0], [3, 0, 0], [7, 0, 0]]), np.array([0, 1, 2])
    for cls in CLASSES:
        assert np.isnan(cls(**CONFIG).results())
        assert np.isnan(cls(**CONFIG).update(points, labels * 0).results())
    # A point each: no silhouette, no diameter, no spread.
    assert np.isnan(metrics.Silhouette(**CONFIG).update(points, labels).results())
    assert metrics.DunnIndex(**CONFIG).update(points, labels).results() == np.inf
    assert metrics.DaviesBouldin(power=1, **CONFIG).update(points, labels).results() == 0
    # Equal points in two clusters: as scikit-learn.
    same = np.array([[1.0, 0, 0]] * 4)
    assert metrics.Silhouette(**CONFIG).update(same, np.array([0, 0, 1, 1])).results() == 0


def test_refusals():
    x, labels = np.zeros((4, 3)), np.zeros(4, int)
    with pytest.raises(datarax.MetricInputError, match="power=3; expected one of 1, 2"):
        metrics.DaviesBouldin(power=3, **CONFIG)
    with pytest.raises(datarax.MetricInputError, match="capacity=9 has no effect without power=1"):
        metrics.DaviesBouldin(capacity=9, **CONFIG)
    with pytest.raises(datarax.MetricInputError, match="index= without power=1"):
        metrics.DaviesBouldin(**CONFIG).update(x, labels, index=labels)
    for cls in CLASSES:
        with pytest.raises(datarax.MetricInputError, match="capacity=0"):
            cls(capacity=0, **CONFIG)
        with pytest.raises(datarax.MetricInputError, match=r"\(4, 2\).*num_features=3"):
            cls(**CONFIG).update(x[:, :2], labels)
        with pytest.raises(datarax.MetricInputError, match=r"index of shape \(3,\)"):
            cls(**CONFIG).update(x, labels, index=labels[:3])
