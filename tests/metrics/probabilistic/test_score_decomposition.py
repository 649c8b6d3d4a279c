"""ScoreDecomposition: scikit-learn within the bounds on any data, worked examples, and misuse."""

import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression

import datarax
from datarax.metric.base import read
from datarax.metrics import BrierScore, LogLoss, ScoreDecomposition
from tests.registry.probabilistic import EPS, scores_of

SCORES = "brier", "log"
N = 2000


def exact(preds, target, score, w=None):
    """By scikit-learn, in float64."""
    preds, target = preds.astype(float), target.astype(float)
    fitted = IsotonicRegression().fit_transform(preds, target, sample_weight=w)
    rate = np.full(len(preds), np.average(target, weights=w))
    given, recalibrated, of_rate = (
        np.average(scores_of(p, target, score, eps), weights=w)
        for p, eps in ((preds, EPS), (fitted, 0.0), (rate, 0.0))
    )
    return {
        "score": given,
        "miscalibration": given - recalibrated,
        "discrimination": of_rate - recalibrated,
        "uncertainty": of_rate,
    }


def drawn(rng, preds, sharp=1.0):
    preds = np.asarray(preds, np.float32)
    return preds, (rng.random(len(preds)) < preds.astype(float) ** sharp).astype(np.int32)


DATA = {
    "calibrated": lambda rng: drawn(rng, rng.random(N)),
    "too confident": lambda rng: drawn(rng, expit(4 * rng.normal(size=N)), 0.5),
    "ties": lambda rng: drawn(rng, rng.choice([0.1, 1 / 3, 0.7], N)),
    "constant": lambda rng: drawn(rng, np.full(N, rng.random())),
    "in few bins": lambda rng: drawn(rng, np.append(0.5 + 1e-4 * rng.random(N), [0.0, 1.0])),
    "near the ends": lambda rng: drawn(
        rng,
        np.where(
            rng.random(N) < 0.5, 1 - 2.0**-24 * rng.integers(0, 9, N), 2.0**-20 * rng.random(N)
        ),
    ),
    "separated": lambda rng: (x := rng.random(N).astype("f4"), (x > 0.5).astype(np.int32)),
    "reversed": lambda rng: (x := rng.random(N).astype("f4"), (x < 0.5).astype(np.int32)),
    "only positives": lambda rng: (rng.random(N).astype(np.float32), np.ones(N, np.int32)),
    "only negatives": lambda rng: (rng.random(N).astype(np.float32), np.zeros(N, np.int32)),
    "one example": lambda rng: drawn(rng, [rng.random()]),
    "weighted": lambda rng: (*drawn(rng, rng.random(N)), rng.choice([0.5, 1, 3], N)),
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bits", [10, None])
@pytest.mark.parametrize("kind", DATA)
def test_the_exact_parts_are_within_the_bounds(kind, bits, score, rng):
    preds, target, *w = DATA[kind](rng)
    metric = ScoreDecomposition(score=score, bits=bits)
    metric = metric.update(preds, target, **({"weights": w[0]} if w else {}))
    want, (lower, upper) = exact(preds, target, score, *w), metric.bounds()
    apart = any(upper[name] - lower[name] > 0.01 for name in want)
    with pytest.warns(datarax.PrecisionWarning, match="bits=") if apart else nullcontext():
        got = metric.results()
    # Scores of float32 forecasts are computed in float64 on the host; bounds are float32.
    for name, value in want.items():
        near = 1e-6 * (1 + abs(value))
        assert lower[name] - near <= value <= upper[name] + near, name
        assert got[name] == pytest.approx(float(lower[name]), rel=1e-6, abs=1e-9), name
        assert got[name] >= 0
    assert upper["score"] == lower["score"]
    assert upper["uncertainty"] == lower["uncertainty"]
    parts = got["miscalibration"] - got["discrimination"] + got["uncertainty"]
    assert parts == pytest.approx(got["score"], rel=1e-12)
    # All examples with one score are in one bin, and of other scores few share a bin of 16 bits.
    if bits is None and kind != "in few bins":
        assert got["miscalibration"] == pytest.approx(want["miscalibration"], abs=2e-3)


@pytest.mark.parametrize("score", SCORES)
def test_both_bounds_are_reached(score, rng):
    # All but two scores share a bin. The worst order has each positive below each negative.
    near = np.sort((0.7 + 1e-6 * rng.random(101)).astype(np.float32))
    assert len(np.unique(near)) > 5
    k = int(rng.integers(20, 80))
    preds = np.concatenate([[0.0, 1.0], near]).astype(np.float32)
    cut = near[k]
    for above in (True, False):
        target = np.concatenate([[0, 1], (near >= cut) == above]).astype(np.int32)
        lower, upper = ScoreDecomposition(score=score, bits=10).update(preds, target).bounds()
        name, want = "discrimination", exact(preds, target, score)["discrimination"]
        assert float((upper if above else lower)[name]) == pytest.approx(want, rel=1e-6)
        assert upper[name] - lower[name] > 0.1


@pytest.mark.parametrize("score", SCORES)
def test_the_score_is_that_of_the_metric_of_its_name(score, rng):
    logits = rng.normal(0, 3, N).astype(np.float32)
    target = rng.integers(0, 2, N)
    other = {"brier": BrierScore, "log": LogLoss}[score]
    for from_logits, preds in ((True, logits), (False, expit(logits.astype(float)))):
        config = {"from_logits": from_logits}
        metric = ScoreDecomposition(score=score, **config).update(preds, target)
        want = other(**config).update(preds, target).results()
        assert metric.results()["score"] == pytest.approx(want, rel=1e-14)  # sums in another order
    a, b = (
        ScoreDecomposition(score=score, from_logits=x).update(y, target).results()
        for x, y in ((True, logits), (False, expit(logits.astype(float))))
    )
    for name in a:
        assert a[name] == pytest.approx(b[name], abs=2e-3)


def test_a_sure_forecast_that_is_wrong(rng):
    target = np.array([1, 0, 1, 0])
    logits = np.array([-np.inf, 0.0, 1.0, -1.0], np.float32)
    got = ScoreDecomposition(score="log", from_logits=True).update(logits, target).results()
    assert got["score"] == got["miscalibration"] == math.inf
    # Recalibrated: the forecast that is sure has a positive, as one of the others below 1.0 has.
    left = 3 / 4 * (math.log(3) - 2 / 3 * math.log(2))
    assert got["discrimination"] == pytest.approx(math.log(2) - left, rel=1e-6)
    clipped = ScoreDecomposition(score="log").update(np.float32([0, 1, 1]), [1, 0, 1]).results()
    assert clipped["score"] == pytest.approx(-2 / 3 * math.log(2**-23), rel=1e-5)


def test_no_data_and_data_that_cannot_be_used():
    assert all(math.isnan(x) for x in ScoreDecomposition().results().values())
    assert all(math.isnan(x) for ends in ScoreDecomposition().bounds() for x in ends.values())
    metric = ScoreDecomposition()
    seen = metric.update(jnp.array([0.5, 1.5, jnp.nan]), jnp.array([0, 1, 1]))
    with pytest.warns(datarax.InvalidValuesWarning):
        assert math.isnan(seen.results()["score"])
    with pytest.warns(datarax.InvalidValuesWarning):
        assert seen.replace(on_invalid="exclude").results()["score"] == 0.25
    assert metric.update([0.5, 9.0], [0, 1], weights=[1, 0]).results()["score"] == 0.25
    ignored = ScoreDecomposition(ignore_index=-1).update([0.5, 0.9], [0, -1])
    assert ignored.results()["score"] == 0.25


def test_counts_beyond_24_bits():
    w = np.float32([3e7, 1.0, 1.0, 2e7])
    preds, target = np.float32([0.25, 0.25, 0.75, 0.75]), [0, 1, 0, 1]
    metric = ScoreDecomposition()
    for _ in range(3):
        metric = metric.update(preds, target, weights=w)
    want = exact(preds, np.array(target), "brier", w.astype(float))
    for name, value in metric.results().items():
        assert value == pytest.approx(want[name], rel=1e-11)


def test_bounds_in_a_program_and_in_wrappers(rng):
    preds, target = drawn(rng, np.append(0.5 + 1e-4 * rng.random(200), [0.0, 1.0]))
    metric = ScoreDecomposition(bits=10).update(preds, target)
    value, *ends = jax.jit(lambda m: (m.compute(), *m.bounds()))(metric)
    for got, want in zip((value, *ends), (metric.compute(), *metric.bounds()), strict=True):
        assert got.keys() == want.keys()
        for name in got:
            assert float(got[name]) == pytest.approx(float(want[name]), abs=1e-6)
    within = datarax.Collection({"parts": metric})
    assert within.bounds()["parts"] == metric.bounds()
    with pytest.warns(datarax.PrecisionWarning, match="^parts/miscalibration: the exact value is"):
        within.results()
    flat = read(within).on_host(bounds=True)
    assert flat["parts/discrimination/upper"] == pytest.approx(float(ends[1]["discrimination"]))
    assert not any(isinstance(x, dict) for x in flat.values())


def test_slices(rng):
    preds, target = drawn(rng, rng.random(100))
    side = np.arange(100) % 2
    seen = datarax.Sliced(ScoreDecomposition(), 2).update(preds, target, slices=side).results()
    for i in range(2):
        want = ScoreDecomposition().update(preds[side == i], target[side == i]).results()
        assert seen[str(i)] == pytest.approx(want, rel=1e-9, abs=1e-12)


def test_misuse_is_refused():
    wrong = datarax.MetricInputError
    with pytest.raises(wrong, match="score='auc'; expected one of 'brier', 'log'"):
        ScoreDecomposition(score="auc")
    with pytest.raises(wrong, match="bits=3"):
        ScoreDecomposition(bits=3)
    with pytest.raises(wrong, match=r"preds of shape \(2,\) and target of shape \(1,\)"):
        ScoreDecomposition().update([0.5, 0.5], [1])
    with pytest.raises(wrong, match="num_classes=3"):
        ScoreDecomposition().update(np.full((2, 3), 1 / 3), [1, 0])
