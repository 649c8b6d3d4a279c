"""`AnytimeInterval`: its coverage at all looks, what cannot be used, merging, misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy.stats import binom

from datarax import InvalidValuesWarning, MetricInputError, per_device
from datarax.metrics import AnytimeInterval
from tests.helpers import make_mesh

STREAMS, LOOKS, CONFIDENCE = 256, 400, 0.8


@jax.jit
def at_each_look(values):
    """The results after each value of streams (STREAMS, LOOKS)."""

    def look(metric, value):
        metric = metric.update(value)
        return metric, metric.compute()

    return jax.vmap(lambda x: lax.scan(look, AnytimeInterval(0, 1, confidence=CONFIDENCE), x)[1])(
        values
    )


@pytest.mark.parametrize("p", [0.5, 0.05])
def test_all_intervals_of_a_stream_cover_at_once(rng, p):
    values = (rng.random((STREAMS, LOOKS)) < p).astype(np.float32)
    found = jax.tree.map(np.asarray, at_each_look(values))
    np.testing.assert_allclose(found["value"][:, -1], values.mean(1), rtol=1e-6)
    missed = ((p < found["lower"]) | (p > found["upper"])).any(1).sum()
    assert missed <= binom.ppf(1 - 1e-6, STREAMS, 1 - CONFIDENCE)
    # An interval for one look, of the same confidence, misses far more often at some look.
    n = np.arange(1, LOOKS + 1)
    mean = np.cumsum(values, 1) / n
    apart = np.abs(mean - p) > 1.2816 * np.sqrt(p * (1 - p) / n)
    assert apart[:, 20:].any(1).mean() > 1.5 * (1 - CONFIDENCE)


def test_it_becomes_narrow_and_stays_within_the_range(rng):
    metric = AnytimeInterval(-1, 3)
    widths = []
    for size in (1, 100, 10_000, 1_000_000):
        metric = metric.update(rng.uniform(-1, 3, size))
        found = metric.results()
        assert -1 <= found["lower"] <= found["value"] <= found["upper"] <= 3
        widths.append(found["upper"] - found["lower"])
    assert widths[0] == 4  # one value says nothing
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.02


def test_a_row_of_weight_2_is_one_observation_and_one_of_weight_0_is_none(rng):
    values = rng.random(500)
    metric = AnytimeInterval(0, 1)
    weights = rng.choice([0, 1], 500)
    want = metric.update(values[weights == 1]).results()
    assert metric.update(np.where(weights, values, np.nan), weights=weights).results() == want
    double = metric.update(values, weights=np.full(500, 2.0)).results()
    twice = metric.update(np.repeat(values, 2)).results()
    assert double["value"] == pytest.approx(twice["value"])
    assert double["upper"] - double["lower"] > 1.2 * (twice["upper"] - twice["lower"])


def test_greatest_and_least_weights(rng):
    values = rng.random(50)
    for weight in (1e30, 1e-30):
        found = AnytimeInterval(0, 1).update(values, weights=np.full(50, weight)).results()
        assert found["value"] == pytest.approx(values.mean(), rel=1e-6)
        assert 0 <= found["lower"] < found["value"] < found["upper"] <= 1


def test_values_out_of_the_range_are_invalid():
    metric = AnytimeInterval(0, 0.3)
    # The end in the dtype of the values: float32(0.3) is above 0.3.
    assert metric.update(np.float32([0.3])).results()["value"] == pytest.approx(0.3)
    assert metric.update(jnp.asarray([0.3], jnp.bfloat16)).results()["upper"] == 0.3
    for bad in (-0.1, 0.31, np.nan, np.inf):
        with pytest.warns(InvalidValuesWarning, match="1 values"):
            assert np.isnan(metric.update([0.1, bad]).results()["upper"])


def test_on_devices_it_is_merged_in_any_order(rng):
    values = rng.random(37).astype(np.float32)
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    spread = per_device(AnytimeInterval(0, 1), mesh, ("data", "model")).update(values)
    want = AnytimeInterval(0, 1).update(values).results()
    assert spread.results() == pytest.approx(want, rel=1e-9)
    parts = [AnytimeInterval(0, 1).update(x) for x in np.split(values, [5, 5, 30])]
    a, b, c, d = parts
    assert d.merge(b.merge(c)).merge(a).results() == pytest.approx(want, rel=1e-9)


def test_misuse():
    with pytest.raises(MetricInputError, match=r"low=1\.0, high=0\.0; expected low below high"):
        AnytimeInterval(1, 0)
    with pytest.raises(MetricInputError, match=r"high=inf; expected a finite number"):
        AnytimeInterval(0, np.inf)
    with pytest.raises(MetricInputError, match=r"confidence=95; .* between 0 and 1"):
        AnytimeInterval(0, 1, confidence=95)
    with pytest.raises(TypeError, match="high"):
        AnytimeInterval(0)
