"""`GroupFairness` and `LikelihoodRatios`: worked examples, what is left out, configuration."""

from fractions import Fraction

import numpy as np
import pytest

from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import GroupFairness, LikelihoodRatios
from datarax.testing import assert_within_ulps
from tests.helpers import update

CELLS = {"preds": np.float32([1, 1, 0, 0]), "target": np.int32([1, 0, 1, 0])}  # TP, FP, FN, TN


def of_groups(metric, cells):
    """The metric of groups with so many TP, FP, FN and TN each."""
    outputs = {name: np.tile(x, len(cells)) for name, x in CELLS.items()}
    groups = np.repeat(np.arange(len(cells)), 4)
    return update(metric, **outputs, groups=groups, weights=np.float32(cells).reshape(-1))


def expected(cells):
    """The eight numbers, in rationals."""
    values = {}
    selected = [Fraction(tp + fp, tp + fp + fn + tn) for tp, fp, fn, tn in cells]
    found = [Fraction(tp, tp + fn) for tp, _, fn, _ in cells]
    alarms = [Fraction(fp, fp + tn) for _, fp, _, tn in cells]
    compared = {
        "demographic_parity": selected,
        "equal_opportunity": found,
        "false_positive_rate": alarms,
    }
    for name, rates in compared.items():
        values[f"{name}_difference"] = float(max(rates) - min(rates))
        values[f"{name}_ratio"] = float(min(rates) / max(rates))
    both = ("equal_opportunity", "false_positive_rate")
    values["equalized_odds_difference"] = max(values[f"{name}_difference"] for name in both)
    values["equalized_odds_ratio"] = min(values[f"{name}_ratio"] for name in both)
    return values


def test_a_worked_example():
    # Students of two groups, and who is admitted: equal opportunity (half of the qualified), and
    # no demographic parity (48 % and 14 %).
    # https://developers.google.com/machine-learning/glossary#equality-of-opportunity
    cells = [[45, 3, 45, 7], [5, 9, 5, 81]]
    got = of_groups(GroupFairness(num_groups=2), cells).compute()
    assert_within_ulps(got, expected(cells), 1)
    assert float(got["equal_opportunity_difference"]) == 0
    assert float(got["equal_opportunity_ratio"]) == 1
    assert round(float(got["demographic_parity_difference"]), 2) == 0.34


def test_large_groups_and_a_small_difference():
    cells = [[2**32, 2**32, 2**32, 2**32], [2**12 + 1, 2**12, 2**12, 2**12]]
    got = of_groups(GroupFairness(num_groups=2), cells).compute()
    # Each rate rounded alone would leave a difference of 3e-5 off by 1e-3 of it.
    want = expected(cells)
    for name, value in got.items():
        np.testing.assert_allclose(value, want[name], 1e-6, err_msg=name)


def test_many_groups(rng):
    # 100: where counting groups is a scatter.
    cells = rng.integers(1, 50, (100, 4)).tolist()
    got = of_groups(GroupFairness(num_groups=100), cells).compute()
    assert_within_ulps(got, expected(cells), 1)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_groups_out_of_range_are_excluded_and_reported():
    outputs = {"preds": np.float32([0.9, 0.1, 0.9, 0.9]), "target": np.int32([1, 1, 1, 1])}
    metric = update(
        GroupFairness(num_groups=2, on_invalid="exclude"), **outputs, groups=np.int32([0, 1, 2, -1])
    )
    assert int(metric.invalid_count()) == 2
    with pytest.warns(InvalidValuesWarning, match="2 out of range, for example 2"):
        results = metric.replace(on_invalid="exclude").results()
    assert results.pop("invalid") == 2
    assert results["demographic_parity_difference"] == 1
    padded = outputs | {"groups": np.int32([0, 1, 2, -1]), "weights": np.bool_([1, 1, 0, 0])}
    assert int(update(GroupFairness(num_groups=2), **padded).invalid_count()) == 0
    # An ignored target leaves its example out, whatever its group.
    ignoring = GroupFairness(num_groups=2, ignore_index=-5)
    left = outputs | {"groups": np.int32([0, 1, 2, 0]), "target": np.int32([1, 1, -5, -5])}
    assert int(update(ignoring, **left).invalid_count()) == 0


def test_groups_that_cannot_be_compared():
    fairness = GroupFairness(num_groups=3)
    assert all(np.isnan(x) for x in fairness.compute().values())
    # None selected: no difference, and a ratio of 0 to 0.
    none = of_groups(fairness, [[0, 0, 1, 1], [0, 0, 2, 1], [0, 0, 0, 0]]).compute()
    assert float(none["demographic_parity_difference"]) == 0
    assert np.isnan(none["demographic_parity_ratio"])
    # No group has a false positive: as Fairlearn, the ratio of the true positive rates is left.
    right = of_groups(fairness, [[1, 0, 1, 3], [1, 0, 3, 2], [0, 0, 0, 0]]).compute()
    assert float(right["equalized_odds_ratio"]) == 0.5
    assert np.isnan(right["false_positive_rate_ratio"])
    # No group has a positive: nothing to be found, and so no equalized odds.
    negatives = of_groups(fairness, [[0, 1, 0, 1], [0, 1, 0, 3], [0, 1, 0, 1]]).compute()
    assert float(negatives["false_positive_rate_difference"]) == 0.25
    for name in ("equal_opportunity_difference", "equalized_odds_difference"):
        assert np.isnan(negatives[name])


def test_threshold():
    outputs = {"preds": np.float32([0.4, 0.6]), "target": np.int32([1, 1])}
    outputs["groups"] = np.int32([0, 1])
    for threshold, want in ((0.3, 0), (0.5, 1), (0.6, 0)):
        got = update(GroupFairness(num_groups=2, threshold=threshold), **outputs).compute()
        assert float(got["demographic_parity_difference"]) == want


def test_configuration_of_groups():
    for bad in (0, -1, 2.0, True):
        with pytest.raises(MetricInputError, match="num_groups="):
            GroupFairness(num_groups=bad)
    fairness = GroupFairness(num_groups=2)
    with pytest.raises(MetricInputError, match=r"preds of shape \(4,\) and groups of shape \(3,\)"):
        fairness.update(**CELLS, groups=np.zeros(3, int))
    with pytest.raises(MetricInputError, match=r"\(4,\).*\(4, 1\)"):
        fairness.update(np.zeros(4), np.zeros((4, 1)), np.zeros(4, int))
    with pytest.raises(
        MetricTypeError, match="groups has dtype float32; expected integers below 2"
    ):
        fairness.update(**CELLS, groups=np.zeros(4, np.float32))


def test_likelihood_ratios_that_are_undefined():
    def of(*cells):
        return update(LikelihoodRatios(), **CELLS, weights=np.float32(cells)).compute()

    assert_within_ulps(of(3, 1, 1, 3), {"positive": 3.0, "negative": 1 / 3}, 1)
    assert np.isnan(of(3, 0, 1, 3)["positive"])  # as scikit-learn; the limit is infinite
    assert_within_ulps(of(3, 0, 1, 3)["negative"], 0.25, 0)
    assert np.isnan(of(3, 1, 1, 0)["negative"])
    for cells in ((0, 1, 0, 1), (1, 0, 1, 0), (0, 0, 0, 0)):
        assert all(np.isnan(x) for x in of(*cells).values())
    assert_within_ulps(of(3e9, 1e9, 1e9, 3e9), {"positive": 3.0, "negative": 1 / 3}, 1)


def test_likelihood_ratios_by_class(rng):
    target, preds = rng.integers(0, 4, (2, 200))
    got = update(LikelihoodRatios(num_classes=4), preds=preds, target=target).compute()
    for c in range(4):
        one = {"preds": (preds == c).astype(np.float32), "target": (target == c).astype(np.int32)}
        binary = update(LikelihoodRatios(), **one).compute()
        assert_within_ulps({k: x[c] for k, x in got.items()}, binary, 1)


def test_columns_are_no_labels_of_a_metric_without_num_labels(rng):
    # No warning that advises num_labels=, which the metric does not take.
    preds, target, groups = (
        rng.random((8, 3)),
        rng.integers(0, 2, (8, 3)),
        rng.integers(0, 2, (8, 3)),
    )
    GroupFairness(num_groups=2).update(preds, target, groups)
