"""Values by name."""

import numpy as np
import pytest

from datarax import (
    AsyncMetricCollector,
    Classwise,
    Collection,
    InvalidValuesError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
    PrecisionWarning,
    per_device,
)
from datarax.metrics import AUROC, F1, ConfusionMatrix, LikelihoodRatios, Mean, Precision, Recall
from datarax.testing import check_metric
from tests.helpers import make_mesh

NAMES = ("cat", "dog", "a bird")


PER_CLASS = Recall(num_classes=3, average=None)


def by_class(metric=Recall, **config):
    return Classwise(metric(num_classes=3, average=None, **config), NAMES)


def labels(rng, rows=16):
    return {name: rng.integers(0, 3, rows).astype(np.int32) for name in ("preds", "target")}


def test_laws(rng):
    check_metric(by_class(), [labels(rng) for _ in range(3)], ulps=1)


def test_the_values_are_those_of_the_metric(rng):
    batch = labels(rng, 40)
    got, plain = by_class().update(**batch), Recall(num_classes=3, average=None).update(**batch)
    for values, want in ((got.results(), plain.results()), (got.compute(), plain.compute())):
        assert sorted(values) == sorted(NAMES)
        np.testing.assert_array_equal([values[name] for name in NAMES], want)
    table = Classwise(ConfusionMatrix(num_classes=3), NAMES).update(**batch).results()
    whole = ConfusionMatrix(num_classes=3).update(**batch).results()
    np.testing.assert_array_equal([table[name] for name in NAMES], whole)
    assert by_class().results() == pytest.approx(dict.fromkeys(NAMES, np.nan), nan_ok=True)


def test_exact_counts_stay_exact():
    counts = Classwise(ConfusionMatrix(num_classes=2), ["no", "yes"])
    seen = counts.update([0, 1], [0, 1], weights=np.float32([2**24, 2**25])).update(0, 0)
    np.testing.assert_array_equal(seen.results()["no"], [2**24 + 1, 0])


def test_a_value_of_several_arrays(rng):
    batch = labels(rng, 60)
    got = Classwise(LikelihoodRatios(num_classes=3), NAMES).update(**batch).results()
    plain = LikelihoodRatios(num_classes=3).update(**batch).results()
    for i, name in enumerate(NAMES):
        assert got[name] == {key: value[i] for key, value in plain.items()}
    metrics = Collection({"ratio": Classwise(LikelihoodRatios(num_classes=3), NAMES)})
    assert "ratio/a bird/negative" in metrics.update(**batch).results()


def test_what_cannot_be_used(rng):
    batch = labels(rng, 40)
    batch["target"][:2] = 3
    with pytest.warns(InvalidValuesWarning, match=r"^Classwise: 2 values"):
        got = by_class().update(**batch).results()
    assert got.pop("invalid") == 2
    assert np.isnan(list(got.values())).all()
    kept = by_class(on_invalid="exclude").update(**batch)
    with pytest.warns(InvalidValuesWarning):
        assert kept.results()["dog"] == kept.metric.results()[1]
    metrics = Collection({"recall": kept}).update(**batch)
    with pytest.warns(InvalidValuesWarning, match=r"^recall: 4 values"):
        assert metrics.results()["recall/invalid"] == 4
    with pytest.raises(InvalidValuesError, match=r"^Classwise: 2 values"):
        kept.replace(on_invalid="raise").results()


def test_bounds_are_by_name(rng):
    scores = np.repeat(rng.normal(size=(4, 3)), 50, 0) + 1e-7 * rng.normal(size=(200, 3))
    batch = {"preds": scores.astype(np.float32), "target": rng.integers(0, 3, 200)}
    batch["preds"][0] = 1e6  # a wide range, so that the bins are coarse
    metric = by_class(AUROC, bits=10, from_logits=False)
    metrics = Collection({"auroc": metric}).update(**batch)
    plain = Collection({"auroc": metric.metric}).update(**batch)
    lower, upper = plain.bounds()["auroc"]
    for i, name in enumerate(NAMES):
        assert metrics.bounds()[f"auroc/{name}"] == (lower[i], upper[i])
    with pytest.warns(PrecisionWarning, match=r"auroc/(cat|dog|a bird): the exact value"):
        metrics.results()
    with AsyncMetricCollector(metric, bounds=True) as collector:
        collector.schedule_collection(metric.update(**batch))
        with pytest.warns(PrecisionWarning):
            results = collector.collect_results()
    read = results["dog/lower"], results["dog/upper"]
    assert float(lower[1]) <= read[0] < read[1] <= float(upper[1])  # float32, rounded outwards
    np.testing.assert_allclose(read, (lower[1], upper[1]), rtol=1e-6)


def test_a_collection_by_name(rng):
    batch = labels(rng, 30)
    config = {"num_classes": 3, "average": None}
    both = Collection({"f1": F1(**config), "recall": Recall(**config)})
    got = Classwise(both, NAMES).update(**batch).results()
    plain = both.update(**batch).results()
    for i, name in enumerate(NAMES):
        assert got[name] == {"f1": plain["f1"][i], "recall": plain["recall"][i]}


def test_it_shares_the_statistic_and_keeps_it(rng):
    batch = labels(rng, 30)
    metrics = {"f1": F1(num_classes=3), "recall": by_class(), "precision": by_class(Precision)}
    shared = Collection(metrics)
    assert len(shared.states_within()) == 1
    for each in (shared, per_device(shared, make_mesh("auto", {"data": 8}), "data")):
        got = each.update(**batch).results()
        assert got["recall/dog"] == by_class().update(**batch).results()["dog"]
        assert got["f1"] == F1(num_classes=3).update(**batch).results()
    seen = shared.update(**batch)
    loaded = shared.load_state_dict(seen.state_dict())
    assert (len(loaded.states_within()), loaded.results()) == (1, seen.results())
    assert seen["recall"].results() == by_class().update(**batch).results()
    routed = by_class().from_outputs(preds="other")
    assert len(Collection({"a": by_class(), "b": routed}).states_within()) == 2


@pytest.mark.parametrize(
    ("metric", "names", "error", "words"),
    [
        (Recall(num_classes=3), NAMES, MetricInputError, r"values of shape \(\), and there are 3"),
        (PER_CLASS, NAMES[:2], MetricInputError, r"shape \(3,\).* 2 nam"),
        (LikelihoodRatios(num_classes=2), NAMES, MetricInputError, r"\(2,\), \(2,\), and there"),
        (Collection({"a": Mean()}), NAMES[:1], MetricInputError, r"shape \(\), and there are 1"),
        (PER_CLASS, [], MetricInputError, "there are 0 names"),
        (PER_CLASS, "abc", MetricTypeError, "expected a list of strings"),
        (PER_CLASS, 3, MetricTypeError, "expected a list of strings"),
        (PER_CLASS, [0, 1, 2], MetricTypeError, "name 0 is not a string"),
        (
            Recall(num_classes=3, average=None),
            ["a", "b", ""],
            MetricInputError,
            "'' cannot be used",
        ),
        (
            Recall(num_classes=3, average=None),
            ["a", "b", "a"],
            MetricInputError,
            "'a' occurs twice",
        ),
        (ConfusionMatrix(num_classes=2), ["a", "invalid"], MetricInputError, "'invalid' cannot be"),
        (Recall, NAMES, MetricTypeError, "got the class Recall, not an instance"),
        ("recall", NAMES, MetricTypeError, "got str"),
    ],
)
def test_misuse(metric, names, error, words):
    with pytest.raises(error, match=words):
        Classwise(metric, names)


def test_fields():
    metric = by_class()
    assert repr(metric) == (
        "Classwise(metric=Recall(average=None, num_classes=3), names=('cat', 'dog', 'a bird'))"
    )
    assert metric.replace(names=["x", "y", "z"]).names == ("x", "y", "z")
    with pytest.raises(MetricInputError, match="there are 2 names"):
        metric.replace(names=["x", "y"])
    with pytest.raises(MetricInputError, match=r"shape \(2,\)"):
        metric.replace(metric=Recall(num_classes=2, average=None))
    with pytest.raises(MetricTypeError, match="it takes: metric, names"):
        Classwise(PER_CLASS, name=NAMES)
