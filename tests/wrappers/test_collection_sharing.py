"""One statistic for several metrics: also where it holds more than some of them need."""

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax import Collection, metrics
from tests.helpers import make_mesh


def of_one_matrix(**config):
    """Metrics of the same inputs, of which one needs more than the others."""
    return Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=4, **config),
            "f1": metrics.F1(num_classes=4, **config),
            "matrix": metrics.ConfusionMatrix(num_classes=4, **config),
            "top_2": metrics.Accuracy(num_classes=4, top_k=2, **config),
        }
    )


def test_a_statistic_that_tells_another_serves_both(rng):
    collection = of_one_matrix()
    assert len(collection.groups) == 2  # one matrix; and the two highest, which it does not tell
    apart = {name: collection[name] for name in collection}
    update = jax.jit(lambda metric, batch: metric.update(**batch))
    for weights in (None, rng.random(40) < 0.5, rng.random(40).astype(np.float32)):
        batch = {
            "preds": rng.normal(size=(40, 4)).astype(np.float32),
            "target": rng.integers(-1, 5, 40).astype(np.int32),
        } | ({} if weights is None else {"weights": weights})
        collection = update(collection, batch)
        apart = {name: update(metric, batch) for name, metric in apart.items()}
    got, want = collection.results(), {}
    for name, metric in apart.items():
        want[name] = metric.compute()
        assert got[f"{name}/invalid"] == int(metric.invalid_count()) > 0
        # The sums of weights by class and by cell are rounded in another order.
        np.testing.assert_allclose(got[name], want[name], 1e-6)
    assert collection["f1"].statistic.right.shape == (4,)
    np.testing.assert_allclose(collection["f1"].compute(), want["f1"], 1e-6)


def test_what_is_read_from_a_finer_statistic_lives_as_any_other(rng):
    batch = {
        "preds": rng.integers(0, 4, 48).astype(np.int32),
        "target": rng.integers(0, 4, 48).astype(np.int32),
    }
    collection = Collection({k: m for k, m in of_one_matrix().items() if k != "top_2"})
    assert len(collection.groups) == 1
    used = collection.update(**batch)
    want = used.results()

    def same(other, times=1):
        assert jax.tree.structure(other) == jax.tree.structure(used)
        for name, value in other.results().items():
            factor = times if name == "matrix" else 1
            np.testing.assert_array_equal(value, want[name] * factor)

    same(used.merge(used.reset()))
    same(used.merge(used), 2)
    same(collection.load_state_dict(used.state_dict()))
    spread = datarax.per_device(collection, make_mesh("auto", {"data": 8}), "data").update(**batch)
    same(jax.block_until_ready(spread.sync()))
    same(datarax.per_device(collection, make_mesh("auto", {"data": 2}), "data")
         .load_state_dict(spread.state_dict()).sync())  # fmt: skip
    other = used.replace(accuracy=metrics.Accuracy(num_classes=4))
    assert np.isnan(other.results()["accuracy"])
    assert other.results()["f1"] == want["f1"]
    updated = other.update(**batch)
    assert updated.results()["accuracy"] == want["accuracy"]
    np.testing.assert_array_equal(updated.results()["matrix"], 2 * want["matrix"])
    assert "matrix" in repr(used)


def test_other_outputs_or_configurations_are_not_told():
    accuracy = metrics.Accuracy(num_classes=4)
    for other in (
        metrics.ConfusionMatrix(num_classes=4, ignore_index=3),
        metrics.ConfusionMatrix(num_classes=5),
        metrics.ConfusionMatrix(num_classes=4).from_outputs(preds="logits"),
        metrics.ConfusionMatrix(num_classes=4).update(jnp.array([1]), jnp.array([1])),
    ):
        assert len(Collection({"a": accuracy, "b": other}).groups) == 2
