"""A prefix of all names in the results of a collection."""

import pickle

import jax
import numpy as np
import pytest

import datarax
from datarax import AsyncMetricCollector, Collection, InvalidValuesWarning, MultiTask
from datarax.metrics import AUROC, Accuracy, Mean, Median
from datarax.training import StatefulMetric

METRICS = {"loss": Mean().from_outputs(values="loss"), "mid/median": Median()}
DATA = {"loss": np.array([1.0, 3.0]), "values": np.array([2.0])}
PLAIN = Collection(METRICS)
TRAIN = Collection(METRICS, prefix="train/")
NAMES = ["train/loss", "train/mid/median"]


def test_results_bounds_and_json():
    seen, plain = TRAIN.update(**DATA), PLAIN.update(**DATA).results()
    assert seen.results() == {f"train/{name}": x for name, x in plain.items()}
    assert list(seen.compute()) == list(seen.results(as_json=True)) == NAMES
    assert list(seen.bounds()) == ["train/mid/median"]
    with AsyncMetricCollector(TRAIN) as collector:
        collector.schedule_collection(seen, step=1)
        assert collector.collect_results() == seen.results()
    shell = StatefulMetric(TRAIN)
    shell.update(**DATA)
    assert shell.results() == seen.results()


def test_everything_else_has_the_plain_names():
    seen = TRAIN.update(**DATA)
    assert list(seen) == ["loss", "mid/median"]
    assert seen["loss"].results() == 2.0
    assert "prefix='train/'" in repr(seen)
    assert repr(PLAIN) == repr(Collection(METRICS, prefix=""))
    assert PLAIN.load_state_dict(seen.state_dict()).results() == PLAIN.update(**DATA).results()
    assert list(TRAIN.load_state_dict(PLAIN.state_dict()).results()) == NAMES
    for same in (
        seen.reset().merge(seen),
        seen.replace(loss=seen["loss"]),
        seen | {"loss": seen["loss"]},
        seen.merge(PLAIN),
        pickle.loads(pickle.dumps(seen)),
        jax.tree.map(np.asarray, seen),
        TRAIN.from_outputs(values="values").update(**DATA),
    ):
        assert same.results() == seen.results()
    inner = Collection({"a": TRAIN, "b": Mean()}).update(**DATA).results()
    assert list(inner) == ["a/train/loss", "a/train/mid/median", "b"]
    task = MultiTask({"t": Mean()}, prefix="eval/").update(t={"values": 1.0})
    assert task.results() == {"eval/t": 1.0}


def test_errors_and_warnings_have_the_whole_name():
    with pytest.raises(
        datarax.MetricInputError, match="metric 'train/loss': Mean needs the output"
    ):
        TRAIN.update(values=DATA["values"])
    with pytest.warns(InvalidValuesWarning, match="^train/loss: 1 values"):
        spoilt = TRAIN.update(**DATA | {"loss": np.nan}).results()
    assert spoilt["train/loss/invalid"] == 1
    scores = Collection({"a": Accuracy()}, prefix="val/")
    scores = scores.update(preds=np.array([7.0]), target=np.array([1]))
    with pytest.warns(datarax.ScoresWarning, match="^val/a: 1 scores were not from 0 to 1"):
        scores.results()
    with pytest.raises(datarax.MetricInputError, match="metric 'val/t': preds of shape"):
        MultiTask({"t": AUROC()}, prefix="val/").update(
            t={"preds": np.ones(2), "target": np.ones(3)}
        )
    with pytest.raises(datarax.MetricTypeError, match="prefix is int; expected a string"):
        Collection(METRICS, prefix=1)
    with pytest.raises(datarax.MetricInputError, match="two results have the name 'a/b/c'"):
        Collection({"a": Collection({"c": Mean()}, prefix="b/"), "a/b/c": Mean()})
