"""Calibration: what the cases of the registry do not cover."""

from fractions import Fraction
from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.calibration

import datarax
from datarax.metrics import CalibrationError, ReliabilityDiagram
from datarax.numerics.float_grid import equal_width
from datarax.statistics import CalibrationBins
from datarax.testing import assert_within_ulps
from tests.helpers import softmax, update, value_of, x64
from tests.registry.probabilistic import calibration_error_of, diagram_of

N, C = 240, 4


@pytest.fixture
def chances(rng):
    return rng.random(N).astype(np.float32), rng.integers(0, 2, N)


@pytest.fixture
def logits(rng):
    return rng.normal(0, 2, (N, C)).astype(np.float32), rng.integers(0, C, N)


def test_a_confidence_of_one_belongs_to_the_last_bin():
    # If 1.0 had a bin of its own, each example would be alone, and the error would be 0.525.
    got = value_of(CalibrationError(num_bins=10), jnp.array([1.0, 0.95]), jnp.array([0, 1]))
    assert_within_ulps(got, 0.475, 1)


def test_by_hand():
    # Bins (0, 1/4], (1/4, 1/2], (1/2, 3/4], (3/4, 1]: gaps of the sums 1/8, 1/2, 3/8 and 1/4.
    preds = jnp.array([0.0, 0.125, 0.5, 0.625, 1.0, 0.75, 0.875, 0.875])
    target = jnp.array([0, 0, 1, 1, 1, 0, 1, 1])
    # (1/2, 3/4] holds 0.625 and 0.75, and one of them is correct: 1.375 against 1.
    gaps = np.array([0.0625, 0.5, 0.1875, 0.25 / 3])
    want = {
        "diagram/accuracy": np.array([0, 1, 0.5, 1]),
        "diagram/confidence": np.array([0.0625, 0.5, 0.6875, 2.75 / 3]),
        "diagram/weight": np.array([2, 1, 2, 3]) / 8,
        "l1": (0.125 + 0.5 + 0.375 + 0.25) / 8,
        "l2": np.sqrt((gaps**2 * [2, 1, 2, 3]).sum() / 8),
        "max": 0.5,
    }
    metrics = {norm: CalibrationError(num_bins=4, norm=norm) for norm in ("l1", "l2", "max")}
    collection = datarax.Collection(metrics | {"diagram": ReliabilityDiagram(num_bins=4)})
    got = jax.jit(lambda m: m.update(preds=preds, target=target).compute())(collection)
    assert_within_ulps(got, want, 2)


@pytest.mark.parametrize("bins", [1, 3, 10, 15, 100, 4095])
def test_edges_are_those_of_the_definition(bins, rng):
    edges = np.float32(np.arange(bins + 1) / bins)
    edges = rng.choice(edges, 300)
    near = [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(1))]
    p = np.clip(np.concatenate(near), 0, 1)
    want = [max(ceil(Fraction(float(x)) * bins) - 1, 0) for x in p]
    np.testing.assert_array_equal(jax.jit(equal_width, static_argnums=1)(p, bins), want)


@pytest.mark.parametrize(("strategy", "binning"), [("uniform", "width"), ("quantile", "mass")])
def test_equals_the_curve_of_scikit_learn(chances, strategy, binning):
    preds, target = np.float32(np.ceil(chances[0] * 32) / 32), chances[1]  # with ties
    bins = 12  # divides N
    accuracy, confidence = sklearn.calibration.calibration_curve(
        target, preds.astype(np.float64), n_bins=bins, strategy=strategy
    )
    diagram = value_of(ReliabilityDiagram(num_bins=bins, binning=binning), preds, target)
    some = np.asarray(diagram["weight"]) > 0
    assert_within_ulps(np.float32(diagram["accuracy"])[some], accuracy, 1)
    assert_within_ulps(np.float32(diagram["confidence"])[some], confidence, 1)


@pytest.mark.parametrize("shape", [lambda x: x, lambda x: x**8, lambda x: 1 - x**8])
def test_bins_of_equal_mass_err_by_the_cells_at_their_edges(chances, rng, shape):
    preds, target = np.float32(shape(chances[0].astype(np.float64))), chances[1]
    weights = np.float32(rng.choice([1.0, 2.0, 0.5], N))
    metric = update(CalibrationError(num_bins=6, binning="mass"), preds, target, weights=weights)
    got = metric.compute()
    oracle = partial(calibration_error_of, mass=True, bins=6, judged=lambda p, t: (p, t == 1))
    want = oracle(weights.astype(np.float64), preds.astype(np.float64), target)
    cells = metric.statistic.weight.value[0]
    assert abs(float(got) - want) <= 2 * 5 * float(cells.max() / cells.sum())
    assert abs(float(got) - want) < 0.1  # the bound is small enough to test something


def test_bins_of_equal_mass_hold_equal_mass():
    # Cells are narrower than the distances between these: 2**-7 of the distance to 1.
    preds = jnp.asarray(1 - np.geomspace(1e-6, 1e-3, 120), jnp.float32)
    diagram = value_of(
        ReliabilityDiagram(num_bins=8, binning="mass"), preds, jnp.ones(120, jnp.int32)
    )
    np.testing.assert_array_equal(diagram["weight"], np.full(8, 0.125, np.float32))
    assert (np.diff(diagram["confidence"]) > 0).all()


@pytest.mark.parametrize(("norm", "mass"), [("l1", False), ("l2", True)])
def test_classwise_judges_each_class_against_the_rest(logits, norm, mass):
    p = np.round(softmax(logits[0].astype(np.float64)) * 32) / 32
    p[:, 0] = 0
    p[:, 0] = np.maximum(1 - p.sum(-1), 0)  # multiples of 1/32, each in its own cell
    p, target = np.float32(p), logits[1]
    w = (p.sum(-1) == 1).astype(np.float32)
    judged = {"judged": lambda p, t: (p, t), "mass": mass, "bins": 5}
    want = [calibration_error_of(w, p[:, c], target == c, norm, **judged) for c in range(C)]
    how = {"num_bins": 5, "norm": norm, "binning": "mass" if mass else "width"}
    metrics = {
        "each": CalibrationError(num_classes=C, classwise=True, average=None, **how),
        "mean": CalibrationError(num_classes=C, classwise=True, **how),
        "labels": CalibrationError(num_labels=C, **how).from_outputs(target="one_hot"),
    }
    outputs = {"preds": p, "target": target, "one_hot": np.eye(C, dtype=np.int32)[target]}
    got = jax.jit(lambda m: m.update(**outputs, weights=w).compute())(datarax.Collection(metrics))
    assert_within_ulps(got["each"], np.array(want), 12)
    assert_within_ulps(got["mean"], np.mean(want), 12)
    assert_within_ulps(got["labels"], np.mean(want), 12)


def test_a_label_without_data_is_excluded_from_the_mean():
    preds, target = jnp.array([[0.25, 0.5]]), jnp.array([[1, -1]])
    metric = CalibrationError(num_labels=2, ignore_index=-1)
    assert value_of(metric, preds, target) == 0.75
    by_label = value_of(
        CalibrationError(num_labels=2, ignore_index=-1, average=None), preds, target
    )
    np.testing.assert_array_equal(by_label, [0.75, np.nan])
    assert update(metric, preds, target).invalid_count() == 0


@pytest.mark.parametrize(
    "config", [{"num_classes": C}, {"num_classes": C, "classwise": True}, {"num_labels": C}, {}]
)
def test_logits_give_the_same_as_their_probabilities(logits, config):
    x, target = logits
    p = softmax(x.astype(np.float64)) if "num_classes" in config else 1 / (1 + np.exp(-x))
    if "num_labels" in config:
        target = np.eye(C, dtype=np.int32)[target]
    if not config:
        x, p, target = x[:, 0], p[:, 0], target % 2
    p = p.astype(np.float32)
    from_logits = value_of(ReliabilityDiagram(from_logits=True, **config), x, target)
    probabilities = value_of(ReliabilityDiagram(**config), p, target)
    # Each confidence errs by some units, which moves one across an edge once in 10**4 runs.
    assert_within_ulps(from_logits, probabilities, 16)


def test_the_first_of_equal_scores_is_the_prediction():
    preds = jnp.array([[0.25, 0.375, 0.375], [0.5, 0.5, 0.0]])
    right = value_of(ReliabilityDiagram(num_classes=3, num_bins=1), preds, jnp.array([1, 0]))
    wrong = value_of(ReliabilityDiagram(num_classes=3, num_bins=1), preds, jnp.array([2, 1]))
    assert (right["accuracy"], wrong["accuracy"]) == (1, 0)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_rows_that_are_not_distributions_are_excluded_and_counted():
    preds = jnp.array([[0.5, 0.25], [0.75, 0.25], [1.5, -0.5], [0.5, jnp.nan]])
    metric = update(
        CalibrationError(num_classes=2, on_invalid="exclude"), preds, jnp.zeros(4, jnp.int32)
    )
    assert (metric.compute(), metric.invalid_count()) == (0.25, 3)


def test_the_rounded_sums_of_rows_in_half_precision_are_valid():
    p = jnp.asarray(softmax(np.arange(640.0).reshape(64, 10) % 7), jnp.float32)
    for dtype in (jnp.bfloat16, jnp.float16):
        metric = update(CalibrationError(num_classes=10), p.astype(dtype), np.zeros(64, np.int32))
        assert metric.invalid_count() == 0


def test_counts_do_not_stall():
    preds, target = jnp.array([0.25, 0.75, 0.75]), jnp.array([0, 1, 0])
    metric = update(CalibrationError(num_bins=4), preds, target)
    want = metric.compute()
    for _ in range(34):
        metric = metric.merge(metric)
    assert float(metric.statistic.weight.exact[0, 0]) == 2.0**34
    one_more = update(metric, preds, target)
    assert float(one_more.statistic.weight.exact[0, 0]) == 2.0**34 + 1
    assert one_more.compute() == want


def test_a_large_batch_in_one_bin_adds_up():
    # A float32 to which 0.3 is added one at a time errs by 6 units.
    preds = jnp.full(100_000, 0.3)
    diagram = value_of(ReliabilityDiagram(num_bins=3), preds, jnp.ones(100_000, jnp.int32))
    assert_within_ulps(diagram["confidence"][0], np.float32(0.3), 0)
    assert_within_ulps(
        value_of(CalibrationError(), preds, jnp.ones(100_000, jnp.int32)),
        1 - np.float64(np.float32(0.3)),
        1,
    )


def test_calibration_metrics_share_one_state_in_a_collection(logits):
    x, target = logits
    config = {"num_classes": C, "from_logits": True}
    metrics = {
        "ece": CalibrationError(**config),
        "rms": CalibrationError(norm="l2", **config),
        "diagram": ReliabilityDiagram(**config),
    }
    masses = {n: CalibrationError(binning="mass", num_bins=n, **config) for n in (5, 15)}
    both = datarax.Collection(metrics | {str(n): metric for n, metric in masses.items()})
    assert len(both.states_within()) == 2
    collection = datarax.Collection(metrics)
    values = jax.jit(lambda m: m.update(preds=x, target=target).compute())(collection)
    weight, gap = (
        values["diagram/weight"],
        values["diagram/accuracy"] - values["diagram/confidence"],
    )
    want = np.nansum(np.float64(weight) * np.abs(np.float64(gap)))
    # The differences err by units of numbers up to 1.
    assert_within_ulps(values["ece"], want, 0, atol=4 * 2.0**-24)


def test_with_x64(chances):
    preds, target = chances
    with x64():
        preds = preds.astype(np.float64) / 3
        metric = update(CalibrationError(binning="mass"), preds, target)
        assert metric.compute().dtype == metric.statistic.confidence.dtype == np.float64
        got = value_of(CalibrationError(), preds, target)
        judged = partial(calibration_error_of, judged=lambda p, t: (p, t == 1))
        assert_within_ulps(got, judged(np.ones(N), preds, target), 0, atol=1e-15)


def test_no_data():
    for config in ({"num_labels": 2, "norm": "l2"}, {"num_classes": 3, "binning": "mass"}):
        assert np.isnan(CalibrationError(**config).compute())
    diagram = ReliabilityDiagram(num_bins=2, num_labels=3).compute()
    assert {name: x.shape for name, x in diagram.items()} == dict.fromkeys(
        ("accuracy", "confidence", "weight"), (3, 2)
    )
    assert all(np.isnan(x).all() for x in diagram.values())


def test_diagram_of_random_data(logits):
    p = softmax(logits[0].astype(np.float64)).astype(np.float32)
    got = value_of(ReliabilityDiagram(num_classes=C), p, logits[1])
    assert_within_ulps(got, diagram_of(np.ones(N), p.astype(np.float64), logits[1]), 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_bins": 0}, "num_bins=0; expected an integer of at least 1"),
        ({"num_bins": 2.0}, "num_bins=2.0"),
        ({"norm": "L1"}, "norm='L1'; expected one of 'l1', 'l2', 'max'"),
        ({"binning": "quantile"}, "binning='quantile'; expected one of 'width', 'mass'"),
        ({"average": "micro"}, "average='micro'"),
        ({"classwise": True}, "classwise=True is for multiclass; give num_classes="),
        ({"classwise": True, "num_labels": 3}, "classwise=True is for multiclass"),
        ({"num_classes": 3, "num_labels": 3}, "exclude each other"),
        ({"num_classes": 1}, "num_classes=1; expected an integer of at least 2"),
        ({"from_logits": None}, "from_logits=None"),
        ({"on_invalid": "ignore"}, "on_invalid='ignore'"),
    ],
)
def test_configuration_is_checked(config, message):
    with pytest.raises(datarax.MetricInputError, match=message.replace("(", r"\(")):
        CalibrationError(**config)


@pytest.mark.parametrize(
    ("config", "preds", "target", "message"),
    [
        ({}, (8,), (8, 1), r"preds of shape \(8,\) and target of shape \(8, 1\)"),
        ({"num_classes": 3}, (8,), (8,), r"expected preds of shape \(8, 3\) for num_classes=3"),
        ({"num_classes": 3}, (8, 4), (8,), r"expected preds of shape \(8, 3\)"),
        ({"num_labels": 3}, (8, 4), (8, 4), r"preds of shape \(8, 4\) for num_labels=3"),
    ],
)
def test_shapes_are_checked(config, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        CalibrationError(**config).update(jnp.zeros(preds), jnp.zeros(target, jnp.int32))


def test_multiclass_targets_are_integers():
    with pytest.raises(datarax.MetricTypeError, match="target has dtype float32"):
        CalibrationBins(num_classes=3).update(jnp.zeros((8, 3)), jnp.zeros(8))


def test_errors_of_classes_by_name(rng):
    preds = softmax(rng.normal(size=(64, 3))).astype(np.float32)
    target = rng.integers(0, 3, 64).astype(np.int32)
    metric = CalibrationError(num_classes=3, classwise=True, average=None)
    named = datarax.Classwise(metric, ["cat", "dog", "fox"]).update(preds, target).results()
    for c, value in enumerate(named.values()):
        alone = value_of(CalibrationError(), preds[:, c], (target == c).astype(np.int32))
        assert value == pytest.approx(float(alone), abs=1e-6)


@pytest.mark.parametrize("truth", [0.0, 0.1])
def test_debiased_squares_have_no_bias(truth, rng):
    # One confidence in each of five bins, and 20 examples in each.
    confidence = np.repeat([0.1, 0.3, 0.5, 0.7, 0.85], 20).astype(np.float32)
    plain, debiased = [], []
    for _ in range(200):
        target = rng.random(100) < confidence + truth
        config = {"num_bins": 5, "norm": "l2"}
        plain.append(CalibrationError(**config).update(confidence, target).results() ** 2)
        bins = ReliabilityDiagram(num_bins=5).update(confidence, target).results()
        by_chance = np.mean(bins["accuracy"] * (1 - bins["accuracy"]) / 19)
        want = max(plain[-1] - by_chance, 0)
        got = CalibrationError(**config, debias=True).update(confidence, target).results()
        assert got**2 == pytest.approx(want, rel=1e-6, abs=1e-9)
        debiased.append(plain[-1] - by_chance)
    # A square has a standard deviation of about 0.008, so the mean of 200 has 0.0006.
    assert abs(np.mean(debiased) - truth**2) < 0.004
    assert np.mean(plain) - truth**2 > 0.006


def test_debiasing_leaves_bins_of_one_example():
    one = CalibrationError(norm="l2", debias=True).update(jnp.array([0.25]), jnp.array([1]))
    assert one.results() == 0.75
    with pytest.raises(datarax.MetricInputError, match='debias=True is for norm="l2"'):
        CalibrationError(debias=True)
