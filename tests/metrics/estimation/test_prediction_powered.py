"""`PredictionPoweredMean`: the formulas of the paper, coverage, what is not read, misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy.stats import binom

from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError, Sliced
from datarax.metrics import PredictionPoweredMean
from tests.helpers import make_mesh, place


def drawn(rng, size=300, share=0.25, slope=0.8):
    true = rng.normal(3, 1, size)
    judged = slope * true + rng.normal(0, 0.6, size)
    labelled = rng.random(size) < share
    return judged.astype(np.float32), true.astype(np.float32), labelled


def seen(judged, target, labelled, weights=None, **config):
    return PredictionPoweredMean(**config).update(
        judged, target, labelled=labelled, weights=weights
    )


def by_the_paper(judged, target, labelled):
    """Example 1 and section 6 of PPI++: mean estimation, tuned lambda; rows without weights."""
    f, y, others = judged[labelled], target[labelled], judged[~labelled]
    n, many = len(y), len(others)
    power = np.cov(y, f, ddof=0)[0, 1] / ((1 + n / many) * np.var(judged))
    power = np.clip(power, 0, 1)
    value = power * others.mean() + (y - power * f).mean()
    error = np.sqrt(power**2 * others.var() / many + np.var(y - power * f) / n)
    return {"value": value, "std_error": error, "lambda": power}


@pytest.mark.parametrize("slope", [0.8, 0.1, -0.5, 3.0])
def test_it_is_the_estimate_of_the_paper(rng, slope):
    judged, target, labelled = drawn(rng, slope=slope)
    got = seen(judged, np.where(labelled, target, np.nan), labelled).results()
    want = by_the_paper(*(x.astype(np.float64) for x in (judged, target)), labelled)
    assert {name: got[name] for name in want} == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert got["judge_only"] == pytest.approx(judged.mean(dtype=np.float64))
    assert got["labelled_only"] == pytest.approx(target[labelled].mean(dtype=np.float64))
    assert got["upper"] - got["lower"] == pytest.approx(2 * 1.959964 * got["std_error"], rel=1e-6)


def test_the_interval_covers_and_is_narrower_than_that_of_the_labelled_rows(rng):
    runs, covered, narrower = 400, 0, 0
    for _ in range(runs):
        judged, target, labelled = drawn(rng, 200)
        found = seen(judged - 0.7, target, labelled, confidence=0.9).results()
        covered += found["lower"] <= 3 <= found["upper"]
        narrower += found["std_error"] < np.std(target[labelled]) / np.sqrt(labelled.sum())
    # About 50 labelled rows: the normal interval covers a little less than it says.
    assert binom.ppf(1e-5, runs, 0.88) <= covered <= binom.ppf(1 - 1e-5, runs, 0.92)
    assert narrower > 0.95 * runs


def test_a_target_that_is_not_labelled_is_not_read(rng):
    judged, target, labelled = drawn(rng)
    want = seen(judged, target, labelled).results()
    for garbage in (np.nan, np.inf, 1e30):
        assert seen(judged, np.where(labelled, target, garbage), labelled).results() == want
    spoilt = np.where(np.arange(300) == np.flatnonzero(labelled)[0], np.nan, target)
    with pytest.warns(InvalidValuesWarning, match="1 NaN"):
        assert np.isnan(seen(judged, spoilt, labelled).results()["value"])


def test_a_row_of_weight_2_is_one_observation(rng):
    judged, target, labelled = drawn(rng)
    once = seen(judged, target, labelled).results()
    for factor in (2.0, 1e-30, 1e30):
        weighted = seen(judged, target, labelled, np.full(300, factor)).results()
        assert weighted == pytest.approx(once, rel=1e-6)
    twice = seen(*(np.repeat(x, 2) for x in (judged, target, labelled))).results()
    assert twice["value"] == pytest.approx(once["value"], rel=1e-9)
    assert twice["std_error"] == pytest.approx(once["std_error"] / np.sqrt(2), rel=1e-9)


def test_few_rows():
    nothing = PredictionPoweredMean().results()
    assert np.isnan(list(nothing.values())).all()
    unlabelled = seen([1.0, 3.0], [0.0, 0.0], [False, False]).results()
    assert unlabelled.pop("judge_only") == 2
    assert np.isnan(list(unlabelled.values())).all()
    one = seen([1.0, 3.0], [2.0, 0.0], [True, False]).results()
    assert (one["value"], one["labelled_only"], one["lambda"]) == (2, 2, 0)
    assert np.isnan(one["std_error"])
    every = seen([1.0, 2.0], [4.0, 2.0], True).results()
    assert (every["value"], every["lambda"]) == (3, 0)
    assert every["std_error"] == pytest.approx(1 / np.sqrt(2))


def test_on_a_mesh_of_two_axes_padded_by_sequence(rng):
    judged, target, labelled = (x.reshape(16, -1) for x in drawn(rng, 320))
    labelled = labelled[:, 0]  # of each row of tokens
    weights = (np.arange(16) < 13).astype(np.float32)
    judged[13:] = np.nan
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    arrays = place((judged, target, labelled, weights), mesh, P("data"))
    update = jax.jit(lambda *x: seen(*x))
    found = jax.block_until_ready(update(*arrays))
    rows = (x[:13] for x in (judged, target, labelled))
    assert found.results() == pytest.approx(seen(*rows).results(), rel=1e-9)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (judged[:13], target[:13])]
    wide = [np.asarray(x, np.float32) for x in half]
    assert seen(*half, labelled[:13]).results() == pytest.approx(
        seen(*wide, labelled[:13]).results(), rel=1e-6
    )


def test_slices(rng):
    judged, target, labelled = drawn(rng)
    tag = rng.integers(0, 3, 300)
    sliced = Sliced(PredictionPoweredMean(), 3, by="tag")
    got = sliced.update(judged, target, labelled=labelled, tag=tag).results()
    for k in range(3):
        mine = tag == k
        want = seen(judged[mine], target[mine], labelled[mine]).results()
        assert got[str(k)] == pytest.approx(want, rel=1e-9)


def test_misuse():
    x = np.ones(4, np.float32)
    for confidence in (95, 0, 1.0, "0.9", True):
        with pytest.raises(
            MetricInputError, match=r"confidence=.*(between 0 and 1|expected a number)"
        ):
            PredictionPoweredMean(confidence=confidence)
    with pytest.raises(MetricTypeError, match="labelled has dtype float32; expected booleans"):
        seen(x, x, x)
    with pytest.raises(MetricInputError, match=r"judged of shape \(4,\) and target of shape \(3,"):
        seen(x, x[:3], True)
    with pytest.raises(MetricInputError, match=r"labelled of shape \(3,\) does not broadcast"):
        seen(x, x, [True] * 3)
    with pytest.raises(MetricTypeError, match="labelled"):
        PredictionPoweredMean().update(x, x)


def test_a_number_that_is_added_to_all_values_changes_no_spread(rng):
    judged, target, labelled = drawn(rng)
    judged, target = (np.round(x.astype(np.float64) * 2**10) / 2**10 for x in (judged, target))
    want = seen(judged, target, labelled).results()
    assert want["lambda"] > 0.1
    for weights in (None, np.full(judged.size, 3.0)):
        for offset in (2.0**20, 1.7e9, -(2.0**36)):
            far = judged + offset, target + offset
            parts = [slice(i, i + 50) for i in range(0, judged.size, 50)]
            given = [[x[part] for x in (*far, labelled)] for part in parts]
            several = PredictionPoweredMean()
            for f, y, known in given:
                w = None if weights is None else weights[: f.size]
                several = several.update(f, y, labelled=known, weights=w)
            for got in (seen(*far, labelled, weights).results(), several.results()):
                for name in ("lambda", "std_error"):
                    assert got[name] == pytest.approx(want[name], rel=1e-4), (name, offset)
