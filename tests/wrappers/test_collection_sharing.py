"""Members of a collection that share a statistic give what they give alone, bit for bit."""

import warnings

import jax
import numpy as np

from datarax import Collection, Interval, metrics
from tests.helpers import bits


def members(**config):
    """Metrics of the same inputs: of one statistic, of a matrix, and of the two highest."""
    return {
        "accuracy": metrics.Accuracy(num_classes=4, **config),
        "f1": metrics.F1(num_classes=4, **config),
        "kappa": metrics.CohenKappa(num_classes=4, **config),
        "specificity": metrics.Specificity(num_classes=4, **config),
        "matrix": metrics.ConfusionMatrix(num_classes=4, **config),
        "quadratic": metrics.CohenKappa(num_classes=4, weights="quadratic", **config),
        "top_2": metrics.Accuracy(num_classes=4, top_k=2, **config),
    }


def test_a_shared_statistic_gives_what_each_gives_alone(rng):
    collection, alone = Collection(members()), members()
    assert len(collection.states_within()) == 3
    update = jax.jit(lambda metric, batch: metric.update(**batch))
    for weights in (None, rng.random(40) < 0.5, rng.integers(1, 30, 40).astype(np.float32) / 10):
        batch = {
            "preds": rng.normal(size=(40, 4)).astype(np.float32),
            "target": rng.integers(-1, 5, 40).astype(np.int32),
        } | ({} if weights is None else {"weights": weights})
        collection = update(collection, batch)
        alone = {name: update(metric, batch) for name, metric in alone.items()}
    for name, metric in alone.items():
        # Alone, the accuracy keeps two counters.
        assert name == "accuracy" or bits(collection[name]) == bits(metric), name
        one, other = (each.replace(on_invalid="exclude") for each in (collection[name], metric))
        with warnings.catch_warnings(action="ignore"):  # some labels are out of range
            assert bits(one.compute()) == bits(other.compute()), name


def test_other_outputs_or_configurations_are_not_shared():
    accuracy = metrics.Accuracy(num_classes=4)
    batch = np.array([1]), np.array([1])
    for other in (
        metrics.F1(num_classes=4, ignore_index=3),
        metrics.F1(num_classes=5),
        metrics.F1(num_classes=4).from_outputs(preds="logits"),
        metrics.F1(num_classes=4).update(*batch),
        metrics.ConfusionMatrix(num_classes=4),
    ):
        assert len(Collection({"a": accuracy, "b": other}).states_within()) == 2


def test_collections_whose_members_differ_in_kind_are_different_in_programs():
    # Of equal names, so that JAX looks for one as for the other: only one shares statistics.
    some = {"m": metrics.MatthewsCorrCoef(num_classes=3), "sum": metrics.Sum()}
    both = [Collection(some), Collection(some | {"m": Interval(some["m"])})]
    a, b = map(jax.tree.structure, both)
    assert a != b
    assert b != a
    read = jax.jit(lambda metric: metric.compute()["sum"])
    assert [float(read(metric)) for metric in both * 2] == [0] * 4
