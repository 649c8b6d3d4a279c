"""Calinski-Harabasz and Davies-Bouldin: many points, offsets, degenerate clusters, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics

import datarax
from datarax import metrics
from tests.helpers import update

CONFIG = {"num_clusters": 5, "num_features": 2}


def both() -> datarax.Collection:
    return datarax.Collection({
        "ratio": metrics.CalinskiHarabasz(**CONFIG),
        "overlap": metrics.DaviesBouldin(**CONFIG),
    })  # fmt: skip


def gaussian(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(0, 4, size).astype(np.int32)  # the fifth does not occur
    centers = np.array([[0, 0], [6, 1], [2, 9], [-5, 4]])
    return rng.normal(centers[labels], [[1.0, 1.0]]).astype(np.float32), labels


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_many_points(offset, rng):
    collection, batches = both(), [gaussian(rng, 5000) for _ in range(3)]
    features = np.concatenate([x + np.float32(offset) for x, _ in batches])
    labels = np.concatenate([y for _, y in batches])
    for x, y in batches:
        collection = update(collection, features=x + np.float32(offset), labels=y)
    values = collection.compute()
    exact = features.astype(np.float64) - offset
    want = sklearn.metrics.calinski_harabasz_score(exact, labels)
    np.testing.assert_allclose(values["ratio"], want, rtol=1e-6)
    means = np.stack([exact[labels == c].mean(0) for c in range(4)])
    spread = np.array([
        np.sqrt(((exact[labels == c] - means[c]) ** 2).sum(-1).mean()) for c in range(4)
    ])  # fmt: skip
    apart = np.linalg.norm(means[:, None] - means, axis=-1) + np.diag([np.inf] * 4)
    overlap = ((spread[:, None] + spread) / apart).max(1).mean()
    np.testing.assert_allclose(values["overlap"], overlap, rtol=1e-6)
    # scikit-learn takes mean distances, which are 13% smaller for Gaussians in the plane.
    theirs = sklearn.metrics.davies_bouldin_score(exact, labels)
    np.testing.assert_allclose(values["overlap"] / theirs, np.sqrt(4 / np.pi), rtol=0.02)


def values_of(features: list[list[float]], labels: list[int]) -> dict[str, float]:
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, np.int32)
    x[: len(labels)], y[: len(labels)] = np.reshape(features, (-1, 2)), labels
    seen = update(both(), features=x, labels=y, weights=np.arange(6) < len(labels))
    return jax.tree.map(float, seen.compute())


def test_degenerate_clusters():
    nothing = {"ratio": np.nan, "overlap": np.nan}
    np.testing.assert_equal(values_of([], []), nothing)
    np.testing.assert_equal(values_of([[1, 2], [3, 4]], [1, 1]), nothing)
    # One point in each cluster: no spread, and no degrees of freedom within clusters.
    np.testing.assert_equal(values_of([[1, 2], [3, 4]], [0, 1]), {"ratio": np.nan, "overlap": 0.0})
    # No spread within clusters: 1.0, as in scikit-learn.
    assert values_of([[1, 2], [1, 2], [3, 4]], [0, 0, 1]) == {"ratio": 1.0, "overlap": 0.0}
    # Two clusters with the same mean.
    crossed = values_of([[0, 1], [0, -1], [1, 0], [-1, 0]], [0, 0, 1, 1])
    assert crossed == {"ratio": 0.0, "overlap": np.inf}


def test_a_state_of_an_earlier_version_is_loaded(rng):
    metric = metrics.DaviesBouldin(**CONFIG).update(*gaussian(rng, 50))
    saved = metric.state_dict()
    for name in ("power", "capacity"):
        del saved["config"][name]
    assert metrics.DaviesBouldin(**CONFIG).load_state_dict(saved).results() == metric.results()
    with pytest.raises(datarax.ConfigurationMismatchError, match="power"):
        metrics.DaviesBouldin(power=1, **CONFIG).load_state_dict(saved)


def test_refusals():
    metric = metrics.CalinskiHarabasz(**CONFIG)
    with pytest.raises(datarax.MetricInputError, match=r"\(4, 3\).*num_features=2"):
        metric.update(jnp.zeros((4, 3)), jnp.zeros(4, jnp.int32))
    with pytest.raises(datarax.MetricTypeError, match="labels has dtype float32"):
        metric.update(jnp.zeros((4, 2)), jnp.zeros(4))
    with pytest.raises(datarax.MetricInputError, match="num_clusters=0"):
        metrics.DaviesBouldin(num_clusters=0, num_features=2)
    with pytest.raises(datarax.MetricInputError, match="num_features=None"):
        metrics.DaviesBouldin(num_clusters=2, num_features=None)
