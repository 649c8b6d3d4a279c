"""A ratio of 0/0 that counts as 0, as `zero_division` is not given: a warning, as scikit-learn."""

import copy
import inspect
import pickle
import warnings
from typing import Any

import jax
import numpy as np
import pytest
import sklearn.exceptions
import sklearn.metrics as sk

from datarax import (
    Best,
    Bootstrap,
    Classwise,
    Collection,
    Compare,
    Interval,
    MultiOutput,
    MultiTask,
    PrecisionWarning,
    Sliced,
    Transformed,
    UndefinedMetricWarning,
    Window,
    metrics,
    per_device,
)
from datarax.training import AsyncMetricCollector
from tests.helpers import make_mesh, update

SCORES: dict[str, Any] = {
    "Precision": sk.precision_score,
    "Recall": sk.recall_score,
    "F1": sk.f1_score,
    "JaccardIndex": sk.jaccard_score,
}


def told(read: Any) -> list[str]:
    """The warnings of 0/0; others are errors, except those of intervals of few rows."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrecisionWarning)
        warnings.simplefilter("always", UndefinedMetricWarning)
        read()
    return [str(each.message) for each in seen]


@pytest.mark.parametrize("name", SCORES)
def test_it_warns_where_scikit_learn_does(name, rng):
    cls, score, counts = getattr(metrics, name), SCORES[name], set()
    for _ in range(40):
        size = rng.integers(1, 6)
        target, preds = rng.integers(0, 4, (2, size))
        rows, chosen = rng.random((2, size, 3)) < rng.choice([0.0, 0.2, 0.5])
        for average in ("micro", "macro", "weighted", None):
            labels = {"labels": range(4)} if average is None else {}
            several = update(cls(num_classes=4, average=average), preds, target)
            tagged = update(cls(num_labels=3, average=average), chosen, rows)
            for metric, given, more in (
                (several, (target, preds), labels),
                (tagged, (rows, chosen), {}),
            ):
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    want = score(*given, average=average, **more)
                warns = any(
                    issubclass(each.category, sklearn.exceptions.UndefinedMetricWarning)
                    for each in seen
                )
                said = told(metric.results)
                assert len(said) == warns, (average, said, given)
                np.testing.assert_allclose(metric.results(), want)
                counts.add(warns)
        binary = update(cls(), chosen[:, 0], rows[:, 0])
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            score(rows[:, 0], chosen[:, 0])
        assert len(told(binary.results)) == bool(seen)
    assert counts == {True, False}


def test_it_is_said_once_a_metric_and_only_where_it_is_the_default():
    target, preds = [0, 0, 1, 1, 2], [0, 1, 1, 1, 1]
    precision = metrics.Precision(num_classes=4).update(preds, target)
    sets = "zero_division= sets the value"
    (message,) = told(precision.results)
    by_class = f"0/0 counts as 0 for classes 2; {sets}, and NaN leaves them out of averages"
    assert message == f"Precision: {by_class}"
    assert told(precision.compute) == [message]
    by_class = metrics.Precision(num_classes=4, average=None).update(preds, target)
    assert "for classes 2, 3; " in told(by_class.results)[0]
    assert told(metrics.Recall().update([0, 1], [0, 0]).results) == [
        f"Recall: 0/0 counts as 0; {sets}"
    ]
    for value in (0, 0.0, 1, np.nan):
        assert not told(
            metrics.Precision(num_classes=4, zero_division=value).update(preds, target).results
        )
    assert precision.compute() == metrics.Precision(num_classes=4, zero_division=0).update(
        preds, target
    ).compute()  # fmt: skip
    # Nothing is 0/0; no data, and data that cannot be used, are NaN.
    assert not told(metrics.F1(num_classes=4).update(preds, target).results)
    assert not told(metrics.Precision(num_classes=4).results)
    spoilt = update(metrics.Precision(), np.float32([np.nan, 0.1]), [1, 0])
    with pytest.warns() as seen:
        spoilt.results()
    assert [each.category.__name__ for each in seen] == ["InvalidValuesWarning"]
    report = metrics.ClassificationReport(num_classes=3).update(preds, target)
    assert "ClassificationReport: 0/0 counts as 0 for classes 2; " in told(report.results)[0]


@pytest.mark.parametrize("name", [*SCORES, "ClassificationReport"])
def test_the_default_is_the_number_0(name):
    cls = getattr(metrics, name)
    default, given = cls(num_labels=3), cls(num_labels=3, zero_division=0)
    assert inspect.signature(cls).parameters["zero_division"].default == 0.0
    assert default.zero_division == given.zero_division == 0.0
    assert "zero_division" not in repr(default)
    assert "zero_division=0.0" in repr(given)
    # They differ in the warning alone: not as arguments of a program, nor in a copy, ...
    preds = target = np.array([[1, 0, 0], [0, 1, 0]])  # no label 2
    update = jax.jit(lambda metric: metric.update(preds, target))
    for metric, warns in ((default, 1), (given, 0), (default, 1)):
        seen = update(metric)
        copies = copy.deepcopy(seen), pickle.loads(pickle.dumps(seen)), seen.reset().merge(seen)
        for one in (seen, *copies, seen.replace(on_invalid="exclude")):
            assert len(told(one.results)) == warns
    # ... and so each takes the data of the other.
    for one, other in ((default, given), (given, default)):
        seen = other.update(preds, target)
        for taken in (one.merge(seen), one.load_state_dict(seen.state_dict())):
            assert jax.tree.structure(taken) == jax.tree.structure(one)
            assert len(told(taken.results)) == (one is default)
    assert len(told(cls(num_labels=3, zero_division="warn").update(preds, target).results)) == 1


def test_it_is_said_of_members_and_within_wrappers(rng):
    target, preds = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 1])
    given = {"preds": preds, "target": target}
    precision = metrics.Precision(num_classes=4)
    both = Collection({"a": precision, "b": metrics.F1(num_classes=4)}).update(**given)
    assert [message[:3] for message in told(both.results)] == ["a: "]
    by_class = precision.replace(average=None)
    each = {"preds": preds[:, None], "target": target[:, None]}
    twice = {f"preds_{model}": preds for model in "ab"} | {"target": target}
    for metric, arguments, many in (
        (Interval(precision), given, 1),
        (Bootstrap(precision, 20), given, 1),
        (Best(precision), given, 1),
        (Window(precision, 2), given, 1),
        (Transformed(precision, result=np.sqrt), given, 1),
        (Classwise(by_class, ("a", "b", "c", "d")), given, 1),
        (MultiOutput(precision, 1), each, 1),
        (Compare(precision, replicas=20), twice, 2),
        (MultiTask({"one": precision, "two": precision}), {"one": given}, 1),
        (Collection({"a": Interval(precision), "b": by_class}), given, 2),
        (per_device(precision, make_mesh("auto", {"data": 1}), "data"), given, 1),
        (Sliced(precision, 2), {**given, "slices": np.array([0, 1, 0, 1, 0])}, 2),
    ):
        updated = metric.update(**arguments)
        said = told(updated.results)
        assert len(said) == many, (metric, said)
        with AsyncMetricCollector(metric) as collector:
            collector.schedule_collection(updated)
            assert told(collector.collect_results) == said, metric
    compiled = jax.jit(lambda metric: metric.update(**given))(precision)
    assert told(compiled.results) == told(precision.update(**given).results)
    assert not told(lambda: jax.jit(lambda metric: metric.compute())(compiled))
    with AsyncMetricCollector(precision) as collector:
        collector.schedule_collection(compiled)
        assert len(told(collector.collect_results)) == 1


def test_slices_in_which_it_counts_as_0_are_named():
    target, preds, slices = np.array([0, 1, 0, 0]), np.array([0, 1, 0, 0]), np.array([0, 0, 1, 2])
    given = {"preds": preds, "target": target, "slices": slices}
    by_slice = Sliced(metrics.Recall(), 4, names=("a", "b", "c", "none"))
    assert told(by_slice.update(**given).results) == [
        "Sliced: in slices b, c: 0/0 counts as 0; zero_division= sets the value"
    ]
    of_classes = Sliced(metrics.Precision(num_classes=2, average=None), 4)
    (said,) = told(of_classes.update(**given).results)
    assert said.startswith("Sliced: in slices 1, 2: 0/0 counts as 0 for classes 1; ")
    assert not told(by_slice.replace(zero_division=0).update(**given).results)
    # Slices within slices are in those of the outer ones.
    nested = Sliced(Sliced(metrics.Recall(), 4), 2, by="outer", names=("even", "odd"))
    outer = np.array([0, 0, 0, 1])
    assert told(nested.update(**given, outer=outer).results) == [
        "Sliced: in slices 1, 2: 0/0 counts as 0; zero_division= sets the value",
        "Sliced: in slices odd: 0/0 counts as 0; zero_division= sets the value",
    ]
