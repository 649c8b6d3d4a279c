"""`labels=` of an average, and `average="samples"`, against scikit-learn."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest
import sklearn.metrics as sk

from datarax import Classwise, Collection, Interval, MetricInputError, Sliced, metrics
from tests.helpers import update
from tests.metrics.classification.test_zero_division import told

SCORES: dict[str, Any] = {
    "Precision": sk.precision_score,
    "Recall": sk.recall_score,
    "F1": sk.f1_score,
    "JaccardIndex": sk.jaccard_score,
}


def sklearn_value(score: Any, *given: Any, **config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return score(*given, **config)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "weighted", None])
def test_labels_choose_classes_as_in_scikit_learn(name, average, rng):
    cls, score = getattr(metrics, name), SCORES[name]
    target, preds = rng.integers(0, 4, (2, 60))
    rows, chosen = rng.random((2, 60, 4)) < 0.3
    w = rng.uniform(0.5, 2, 60)
    # Class 5 does not occur, and counts nevertheless.
    for labels in ([1, 2, 3], (3, 1), np.array([5, 0]), [5], range(6)):
        config: dict[str, Any] = {"average": average, "labels": labels}
        got = update(cls(num_classes=6, **config), preds, target, weights=w).results()
        want = sklearn_value(score, target, preds, sample_weight=w, **config)
        np.testing.assert_allclose(got, want, rtol=1e-12)
        if max(labels) < 4:
            got = update(cls(num_labels=4, **config), chosen, rows, weights=w).results()
            want = sklearn_value(score, rows, chosen, sample_weight=w, **config)
            np.testing.assert_allclose(got, want, rtol=1e-12)


def test_labels_with_what_they_go_with(rng):
    target, preds = rng.integers(0, 4, (2, 60))
    config: dict[str, Any] = {"num_classes": 4, "labels": (3, 1)}
    recall = metrics.Recall(average=None, **config)
    by_class = sk.recall_score(target, preds, average=None)
    named = Classwise(recall, ["fox", "dog"]).update(preds, target).results()
    assert named == pytest.approx({"fox": by_class[3], "dog": by_class[1]})
    assert Interval(recall).update(preds, target).results()["value"] == pytest.approx(
        by_class[[3, 1]]
    )
    # One statistic serves them and those of all classes.
    both = Collection({"some": metrics.F1(**config), "all": metrics.F1(num_classes=4)})
    assert len(jax.tree.leaves(both)) == len(jax.tree.leaves(metrics.F1(num_classes=4)))
    assert "for classes 5; " in told(
        metrics.Recall(num_classes=6, labels=[1, 5]).update(preds, target).results
    )[0]  # fmt: skip
    kept = target != 2
    ignoring = metrics.F1(num_classes=4, labels=[0, 1], ignore_index=2).update(preds, target)
    want = sk.f1_score(target[kept], preds[kept], labels=[0, 1], average="macro")
    assert ignoring.results() == pytest.approx(want)
    assert repr(metrics.F1(**config)) == "F1(labels=(3, 1), num_classes=4)"
    for labels in ([], [1, 1], [4], [-1], [0.5], 1):
        with pytest.raises(MetricInputError, match=r"labels=.*different integers from 0 to 3$"):
            metrics.F1(num_classes=4, labels=labels)
    with pytest.raises(MetricInputError, match=r"from 0 to 3 without 2, which is ignore_index"):
        metrics.F1(num_classes=4, labels=[1, 2], ignore_index=2)
    with pytest.raises(MetricInputError, match=r"labels=\[1\] has no effect in a binary task"):
        metrics.F1(labels=[1])


def rows_of_labels(rng: np.random.Generator, size: int = 80) -> tuple[Any, Any, Any]:
    """Scores, targets and weights; some rows have no label, or none that is predicted."""
    share = rng.choice([0.0, 0.3, 0.8], (size, 1))
    scores = np.where(rng.random((size, 4)) < share, 0.75, 0.25).astype(np.float32)
    return scores, (rng.random((size, 4)) < 0.3).astype(int), rng.uniform(0.5, 2, size)


@pytest.mark.parametrize("name", SCORES)
def test_samples_are_those_of_scikit_learn(name, rng):
    cls, score = getattr(metrics, name), SCORES[name]
    scores, target, w = rows_of_labels(rng)
    for zero_division in ("warn", 0, 1, np.nan):
        if zero_division != zero_division and name == "JaccardIndex":
            continue
        config: dict[str, Any] = {"average": "samples", "zero_division": zero_division}
        metric = cls(num_labels=4, **config)
        for weights in (None, w):
            got = metric.update(scores, target, weights=weights)
            given = (target, (scores > 0.5).astype(int))
            want = sklearn_value(score, *given, sample_weight=weights, **config)
            assert got.results() == pytest.approx(want, rel=1e-12)
            halves = (slice(30), slice(30, None))
            a, b = (
                metric.update(scores[i], target[i], weights=None if weights is None else w[i])
                for i in halves
            )
            assert a.merge(b).results() == pytest.approx(want, rel=1e-12)
        assert bool(told(got.results)) == (zero_division == "warn")


def test_samples_of_accuracy_and_what_is_left_out(rng):
    scores, target, w = rows_of_labels(rng)
    right = (scores > 0.5) == target
    for cls, want in ((metrics.Accuracy, right), (metrics.HammingDistance, ~right)):
        metric = cls(num_labels=4, average="samples").update(scores, target, weights=w)
        assert metric.results() == pytest.approx(np.average(want.mean(1), weights=w))
    # An entry may be ignored; a row with an invalid one is left out as a whole.
    config: dict[str, Any] = {"num_labels": 4, "average": "samples", "on_invalid": "exclude"}
    target[0, 0], target[1], scores[2, 3] = -1, -1, np.nan
    metric = update(metrics.Accuracy(ignore_index=-1, **config), scores, target)
    assert metric.invalid_count() == 1
    expected = [right[0, 1:].mean(), *right[3:].mean(1)]
    with pytest.warns(match="left out"):
        assert metric.results() == pytest.approx(np.mean(expected))
    assert np.isnan(metrics.F1(num_labels=4, average="samples").results())
    # The interval is that of a mean of rows.
    scores, target, _ = rows_of_labels(rng)
    rows = [
        sklearn_value(sk.f1_score, [t], [p > 0.5], average="samples")
        for t, p in zip(target, scores, strict=True)
    ]
    interval = Interval(metrics.F1(num_labels=4, average="samples")).update(scores, target)
    found = interval.results()
    assert found["std_error"] == pytest.approx(np.std(rows, ddof=1) / np.sqrt(len(rows)))


def test_samples_in_a_program_and_by_slice(rng):
    scores, target, w = rows_of_labels(rng)
    w = w.astype(np.float32)
    metric = Collection(
        {
            name: getattr(metrics, name)(num_labels=4, average="samples")
            for name in (*SCORES, "Specificity", "Accuracy")
        }
    )
    want = metric.update(preds=scores, target=target, weights=w).results()
    seen = jax.jit(lambda m, p, t, w: m.update(preds=p, target=t, weights=w))(
        metric, scores, target, w
    )
    assert seen.results() == pytest.approx(want, rel=1e-6)
    # Beside other averages, which have another statistic.
    beside = Collection({"rows": metric["Accuracy"], "f1": metrics.F1(num_labels=4)})
    found = beside.update(preds=scores, target=target, weights=w).results()
    assert found["rows"] == want["Accuracy"]
    slices = rng.integers(0, 3, len(w))
    sliced = metrics.F1(num_labels=4, average="samples")

    by_slice = Sliced(sliced, 3).update(scores, target, weights=w, slices=slices).results()
    for i in range(3):
        own = sliced.update(scores[slices == i], target[slices == i], weights=w[slices == i])
        assert by_slice[str(i)] == pytest.approx(own.results(), rel=1e-6)


def test_samples_that_are_refused(rng):
    scores, target, _ = rows_of_labels(rng)
    for make in (
        lambda: metrics.F1(num_classes=4, average="samples"),
        lambda: metrics.Accuracy(num_classes=4, average="samples"),
        lambda: metrics.Accuracy(average="samples"),
    ):
        with pytest.raises(MetricInputError, match="for rows of labels; give num_labels="):
            make()
    with pytest.raises(MetricInputError, match="for rows of labels; give another average"):
        metrics.InformednessYouden(num_labels=4, average="samples")
    with pytest.raises(MetricInputError, match=r"labels= has no effect with average=\"samples\""):
        metrics.F1(num_labels=4, average="samples", labels=[1])
    with pytest.raises(MetricInputError, match=r"expected weights of rows, \(80,\), for average="):
        metrics.F1(num_labels=4, average="samples").update(
            scores, target, weights=np.ones(target.shape)
        )
