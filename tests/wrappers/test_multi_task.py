"""Metrics of several tasks, each with its own outputs."""

from typing import cast

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax import (
    Collection,
    ConfigurationMismatchError,
    MetricInputError,
    MetricTypeError,
    MultiTask,
    UnknownMetricError,
    per_device,
)
from datarax.metrics import Accuracy, Max, Mean, Sum
from datarax.testing import check_metric
from datarax.training import StatefulMetric
from tests.helpers import collectives, draw, make_mesh, place

CLASSES = 3


def tasks():
    return MultiTask(
        {
            "animal": Accuracy(num_classes=CLASSES),
            "plant": Accuracy(num_classes=CLASSES),
            "age": Collection({"mean": Mean(), "sum": Sum()}),
        }
    )


def labels(rng, rows=16):
    return {name: rng.integers(0, CLASSES, rows).astype(np.int32) for name in ("preds", "target")}


def outputs(rng, rows=16):
    return {
        "animal": labels(rng, rows),
        "plant": labels(rng, rows),
        "age": {"values": draw(rng, (rows,))},
    }


def right(task):
    return np.float32((task["preds"] == task["target"]).mean())


def test_laws(rng):
    # Values are small multiples of 1/8, so their sums are exact.
    check_metric(
        tasks(),
        [outputs(rng) for _ in range(3)],
        ulps=1,
        empty={"animal": np.nan, "plant": np.nan, "age/mean": np.nan, "age/sum": 0},
        on_host=True,  # its programs: test_nesting.py
    )


def test_each_task_has_its_own_outputs(rng):
    given, weights = outputs(rng), rng.integers(0, 2, 16)
    got = tasks().update(**given).results()
    values = given["age"]["values"]
    assert got == {
        "animal": right(given["animal"]),
        "plant": right(given["plant"]),
        "age/mean": np.float32(values.mean(dtype=np.float64)),
        "age/sum": values.sum(),
    }
    # Equal metrics of two tasks hold different data, so they share nothing.
    assert len(tasks().states_within()) == 3
    given["animal"]["weights"] = weights
    weighted = Accuracy(num_classes=CLASSES).update(**given["animal"])
    assert tasks().update(**given)["animal"].results() == weighted.results()
    assert tasks().update(**given)["plant"].results() == got["plant"]


def test_a_task_that_is_left_out_is_not_updated(rng):
    given, more = outputs(rng), outputs(rng, 24)
    metrics = tasks().update(**given)
    for step in (metrics.update, jax.jit(lambda **tasks: metrics.update(**tasks))):
        both = step(plant=more["plant"])
        assert both["animal"].results() == right(given["animal"])
        joined = {
            name: np.concatenate([given["plant"][name], more["plant"][name]])
            for name in more["plant"]
        }
        assert both["plant"].results() == right(joined)
        assert both["age"].results() == metrics["age"].results()
    assert np.isnan(tasks().update(age={"values": 1.0}).results()["animal"])


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_a_copy_for_each_device(rng, axes):
    mesh, given = make_mesh(axes, {"data": 8}), outputs(rng)
    spread = per_device(tasks(), mesh, "data")
    update = jax.jit(lambda metrics, tasks: metrics.update(**tasks))
    for some in (given, {"plant": given["plant"]}):
        placed = place(some, mesh, P("data"))
        assert not collectives(update, spread, placed)
        got = jax.block_until_ready(update(spread, placed)).results()
        np.testing.assert_equal(got, tasks().update(**some).results())
    # Each task is padded by itself.
    uneven = {"animal": labels(rng, 5), "age": {"values": draw(rng, (11,))}}
    np.testing.assert_equal(spread.update(**uneven).results(), tasks().update(**uneven).results())


def test_in_a_collection_and_in_the_shell(rng):
    given = outputs(rng)
    metrics = Collection({"loss": Mean().from_outputs(values="loss"), "tasks": tasks()})
    got = metrics.update(**given, loss=2.0, note="text").results()
    alone = tasks().update(**given).results()
    assert got == {"loss": 2.0, **{f"tasks/{name}": x for name, x in alone.items()}}
    shell = StatefulMetric(tasks())
    shell.update(animal=given["animal"], note="text")
    shell.update(plant=given["plant"])
    assert shell.results()["animal"] == alone["animal"]
    with pytest.raises(MetricInputError, match=r"no metric takes the output 'plnt', and 'plant'"):
        shell.update(animal=given["animal"], plnt=given["plant"])
    inner = MultiTask({"all": tasks(), "more": Max()})
    nested = inner.update(all={"plant": given["plant"]}, more={"values": [1, 3]}).results()
    assert (nested["all/plant"], nested["more"]) == (alone["plant"], 3)


def test_lists_of_numbers_are_arrays():
    assert MultiTask({"a": Sum()}).update(a={"values": [1, 2, 3]}).results() == {"a": 6}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"anmal": {}}, UnknownMetricError, r"no task 'anmal'; .* Did you mean 'animal'\?"),
        (
            {"preds": 1, "target": 1},
            UnknownMetricError,
            r"no task 'preds'; it has: 'age', 'ani",
        ),
        ({"animal": {}, "weights": 1}, UnknownMetricError, r"'weights'.*Weights belong to a task"),
        ({}, MetricInputError, r"was given no task; write update\(age=\{...\}, animal="),
        ({"animal": 3}, MetricTypeError, r"animal is (int|an array or a number); expected a dict"),
        ({"animal": [1, 2]}, MetricTypeError, r"animal is .*; expected a dict of the outputs"),
        ({"animal": None}, MetricTypeError, r"animal is NoneType; expected a dict"),
        ({"animal": "text"}, MetricTypeError, r"animal is str; expected a dict"),
        (
            {"animal": {"preds": 1}},
            MetricInputError,
            r"^metric 'animal': Accuracy needs",
        ),
        (
            {"animal": {"preds": [1], "target": [1], "mask": [1]}},
            MetricInputError,
            r"MultiTask.update\(animal=...\): no metric takes the output 'mask'",
        ),
        (
            {"animal": {"preds": [1], "target": [1], "weigths": [1]}},
            MetricInputError,
            r"'weigths', and Accuracy takes 'weights'",
        ),
        (
            {"animal": {"preds": [1, 2], "target": [1]}},
            MetricInputError,
            r"^metric 'animal': preds of shape \(2,\) and target of shape \(1,\)",
        ),
        ({"age": {"value": 1.0}}, MetricInputError, r"no metric.*'value'.*'values', which was not"),
    ],
)
def test_misuse(given, error, words):
    with pytest.raises(error, match=words):
        tasks().update(**given)


def test_misuse_of_the_constructor():
    with pytest.raises(MetricInputError, match=r"each task by name, and got 1 by position; write"):
        tasks().update({"animal": {}})
    with pytest.raises(MetricTypeError, match=r"MultiTask expects a dict of metrics; got list"):
        MultiTask([Mean()])
    with pytest.raises(MetricTypeError, match=r"MultiTask: 'a' is the class Mean, not an instance"):
        MultiTask({"a": Mean})
    with pytest.raises(MetricInputError, match=r"MultiTask: expected at least one metric"):
        MultiTask({})
    with pytest.raises(MetricInputError, match=r"MultiTask: the name 3 must be"):
        MultiTask({3: Mean()})
    with pytest.raises(UnknownMetricError, match=r"MultiTask has no metric 'b'"):
        MultiTask({"a": Mean()})["b"]


def test_it_is_a_mapping_of_tasks():
    metrics = tasks()
    assert metrics.keys() == ["age", "animal", "plant"]
    assert isinstance(metrics | {"new": Mean()}, MultiTask)
    assert repr(MultiTask({"a": Mean()})) == "MultiTask({'a': Mean()})"
    other = metrics.replace(plant=Accuracy(num_classes=5))
    assert cast(Accuracy, other["plant"]).num_classes == 5
    with pytest.raises(ConfigurationMismatchError, match=r"plant"):
        metrics.merge(other)
    with pytest.raises(ConfigurationMismatchError, match=r"is a .*MultiTask; .* of a .*Collection"):
        MultiTask({"a": Mean()}).load_state_dict(Collection({"a": Mean()}).state_dict())
