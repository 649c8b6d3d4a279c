"""Wrappers of wrappers: each within each other, in everything that holds a metric."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import (
    AsyncMetricCollector,
    Best,
    Classwise,
    Collection,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
    MultiTask,
    Transformed,
    io,
    per_device,
)
from datarax.metrics import F1, Accuracy, Mean, Precision, Recall
from datarax.testing import check_metric
from datarax.training import StatefulMetric
from tests.helpers import bits, collectives, make_mesh, place

NAMES = ("cat", "dog", "bird")
CONFIG = {"num_classes": 3, "average": None}


def of_head(given):
    """The outputs of one head of a model, by the names that metrics have for them."""
    return {"preds": given["scores"].argmax(-1), "target": given["label"], **weights_in(given)}


def weights_in(given):
    return {"weights": given["weights"]} if "weights" in given else {}


def complements(value):
    return jax.tree.map(lambda x: 1 - x, value)


def of_cat(value):
    return value["cat"]


def of_head_a(value):
    return value["a"]


def of_task(given):
    return {"a": of_head(given), "b": {"values": given["scores"]}}


def of_one_task(given):
    return {"a": of_head(given)}


heads = Transformed(Accuracy(num_classes=3), of_head)
named = Classwise(Recall(**CONFIG), NAMES)
two = MultiTask({"a": Accuracy(num_classes=3), "b": Mean()})

# Each takes the outputs "scores" and "label".
NESTED = {
    "classwise in transformed": Transformed(named, of_head, complements),
    "transformed in classwise": Classwise(Transformed(Recall(**CONFIG), of_head), NAMES),
    "transformed twice": Transformed(Transformed(named, of_head), None, of_cat),
    "tasks in transformed": Transformed(two, of_task, complements),
    "collection in transformed": Transformed(
        Collection({"f1": F1(**CONFIG), "named": named}), of_head
    ),
    "collection in classwise": Classwise(
        Transformed(Collection({"f1": F1(**CONFIG), "p": Precision(**CONFIG)}), of_head), NAMES
    ),
    "of all": Collection(
        {"all": Collection({"in": Transformed(named, of_head)}), "b": Transformed(two, of_task)}
    ),
}
BEST = {
    "best of transformed": Best(heads, "min"),
    "best of a class": Best(Transformed(named, of_head, of_cat)),
    "best of a task": Best(Transformed(two, of_task, of_head_a)),
    "best in transformed": Transformed(Best(heads), result=complements),
    "best in tasks": Transformed(
        MultiTask({"a": Best(Accuracy(num_classes=3))}), lambda given: {"a": of_head(given)}
    ),
}


def outputs(rng, rows=16):
    return {
        "scores": (rng.integers(-99, 99, (rows, 3)) / 8).astype(np.float32),
        "label": rng.integers(0, 3, rows).astype(np.int32),
    }


def plain_results(batches):
    """The recall of each class, and the accuracy, from their definitions."""
    scores = np.concatenate([b["scores"] for b in batches])
    label = np.concatenate([b["label"] for b in batches])
    right = scores.argmax(-1) == label
    recalls = [np.float32(right[label == c].mean()) if (label == c).any() else 0 for c in range(3)]
    return dict(zip(NAMES, recalls, strict=True)), np.float32(right.mean())


@pytest.mark.parametrize("name", NESTED)
def test_laws(name, rng):
    # The programs of one, in which the others are.
    batches = [outputs(rng) for _ in range(3)]
    check_metric(NESTED[name], batches, ulps=1, on_host=name != "of all")


def test_values(rng):
    batches = [outputs(rng) for _ in range(2)]
    recalls, accuracy = plain_results(batches)

    def results(name):
        metric = (NESTED | BEST)[name]
        for batch in batches:
            metric = metric.update(**batch)
        return metric.results()

    missed = {name: 1 - x for name, x in recalls.items()}
    assert results("classwise in transformed") == pytest.approx(missed, abs=1e-7)
    assert results("transformed in classwise") == recalls
    assert results("transformed twice") == recalls["cat"]
    assert results("tasks in transformed")["a"] == 1 - accuracy
    whole = results("of all")
    assert {name: whole[f"all/in/{name}"] for name in NAMES} == recalls
    assert whole["b/a"] == accuracy
    first = plain_results(batches[:1])
    assert results("best of transformed")["value"] == min(first[1], accuracy)
    assert results("best of a class")["value"] == max(first[0]["cat"], recalls["cat"])
    assert results("best of a task")["value"] == max(first[1], accuracy)


@pytest.mark.parametrize("name", NESTED)
def test_a_copy_for_each_device(name, rng):
    axes = rng.choice(["auto", "explicit"])  # of each by chance: programs take seconds to compile
    mesh, metric = make_mesh(axes, {"data": 8}), NESTED[name]
    spread, batch = per_device(metric, mesh, "data"), outputs(rng)
    plain = metric.update(**batch)
    update = jax.jit(lambda metric, batch: metric.update(**batch))
    placed = place(batch, mesh, P("data"))
    assert not collectives(update, spread, placed)
    updated = jax.block_until_ready(update(spread, placed))
    assert sum(collectives(jax.jit(lambda m: m.sync()), updated).values()) == 1
    np.testing.assert_equal(updated.results(), plain.results())
    uneven = outputs(rng, 11)  # is padded
    np.testing.assert_equal(updated.update(**uneven).results(), plain.update(**uneven).results())


@pytest.mark.parametrize("name", NESTED | BEST)
def test_what_holds_metrics(name, rng, tmp_path):
    metric, batch = (NESTED | BEST)[name], outputs(rng)
    seen = metric.update(**batch)
    want = seen.results()
    shell = StatefulMetric(metric)
    shell.update(**batch, note="text")
    np.testing.assert_equal(shell.results(), want)
    shell.reset()
    np.testing.assert_equal(shell.results(), metric.results())
    with AsyncMetricCollector(metric) as collector:
        collector.schedule_collection(metric.update(**batch))
        after = collector.schedule_collection(metric.update(**batch))
        for _ in range(2):
            np.testing.assert_equal(collector.collect_results(), want)
    assert bits(after) == bits(metric)
    io.save(tmp_path / "metric", seen)
    restored = io.restore(tmp_path / "metric", like=metric)
    assert bits(restored) == bits(seen)
    np.testing.assert_equal(restored.update(**batch).results(), seen.update(**batch).results())
    assert bits(copy.deepcopy(seen)) == bits(seen)
    in_one = Collection({"x": metric, "y": heads}).update(**batch)
    assert bits(in_one["x"]) == bits(seen)


def test_fields_of_copies_are_replaced(rng):
    batch = outputs(rng)
    batch["label"][0] = 7
    spread = per_device(NESTED["transformed in classwise"], make_mesh("auto", {"data": 8}), "data")
    spread = spread.update(**batch).replace(on_invalid="exclude", names=("x", "y", "z"))
    kept = NESTED["transformed in classwise"].update(**{n: x[1:] for n, x in batch.items()})
    with pytest.warns(InvalidValuesWarning, match=r"1 values"):
        got = spread.results()
    want = kept.results()
    assert [got[name] for name in "xyz"] == [want[name] for name in NAMES]
    with pytest.raises(MetricInputError, match=r"there are 2 names"):
        spread.replace(names=("x", "y"))
    with pytest.raises(MetricInputError, match=r"values of shape \(\), and there are 3 names"):
        spread.replace(average="macro")


def test_pickles(rng):
    for metric in NESTED.values():
        seen = metric.update(**outputs(rng))
        again = pickle.loads(pickle.dumps(seen))
        assert jax.tree.structure(again) == jax.tree.structure(seen)
        assert bits(again) == bits(seen)


def test_a_best_within_is_found_by_per_device():
    mesh = make_mesh("auto", {"data": 8})
    for metric in BEST.values():
        with pytest.raises(MetricTypeError, match=r"Best reads the value of all data"):
            per_device(metric, mesh, "data")


def test_half_precision_and_weights(rng):
    batch, weights = outputs(rng), rng.integers(0, 2, 16).astype(np.float32)
    batch["scores"] = jnp.asarray(batch["scores"], jnp.bfloat16)
    kept = {name: x[weights == 1] for name, x in batch.items()}
    for name, metric in NESTED.items():
        if "tasks" not in name and name != "of all":  # the mean of all scores takes no weights
            got = metric.update(**batch, weights=weights).results()
            np.testing.assert_equal(got, metric.update(**kept).results())
