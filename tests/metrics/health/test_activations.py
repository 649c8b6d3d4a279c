"""ActivationStats beyond what the registry checks: layers, half precision, extremes, quantiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import ActivationStats
from tests.helpers import quantile, update

LAYERS = ("embed", "block0/mlp")
excluding = pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")


def of_layers(rng, rows=8):
    return {
        "embed": rng.normal(1, 2, (rows, 5, 3)).astype(np.float32),
        "block0/mlp": np.maximum(rng.normal(0, 1, (rows, 7)), 0).astype(np.float32),
    }


def test_layers_are_those_of_metrics_of_one_array(rng):
    config, arrays = {"saturation": 2.0, "quantiles": (0.5, 0.999)}, of_layers(rng)
    weights = rng.integers(0, 3, 8).astype(np.float32)
    got = update(ActivationStats(layers=LAYERS, **config), arrays, weights=weights).compute()
    for layer, x in arrays.items():
        alone = update(ActivationStats(**config), x, weights=weights).compute()
        assert {f"{layer}/{name}" for name in alone} <= got.keys()
        for name, value in alone.items():
            np.testing.assert_array_equal(got[f"{layer}/{name}"], value, name)
    assert len(got) == 2 * 8
    assert "embed/p99.9" in got


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_against_numpy(dtype, scale, rng):
    x = np.asarray(jnp.asarray(rng.normal(0.5, scale, (64, 33)).clip(0), dtype))
    metric = ActivationStats(quantiles=(), saturation=scale)
    got = update(metric, x).compute()
    wide = x.astype(np.float64)
    want = {
        "mean": wide.mean(),
        "std": wide.std(),
        "rms": np.sqrt((wide**2).mean()),
        "max_abs": np.abs(wide).max(),
        "dead": (wide == 0).mean(),
        "saturated": (np.abs(wide) >= scale).mean(),
    }
    assert got.keys() == want.keys()
    for name, value in got.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, want[name], rtol=3e-6, err_msg=name)


@pytest.mark.parametrize("bits", [10, 12])
def test_quantiles_are_as_near_as_documented(bits, rng):
    qs = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)
    x = (rng.normal(0.3, 1, 5000) * 2.0 ** rng.integers(-30, 3, 5000)).astype(np.float32)
    got = update(ActivationStats(quantiles=qs, bits=bits), x).compute()
    finer = 2.0 ** (10 - bits)
    for q in qs:
        want = quantile(x, np.ones(x.size), q)
        error = abs(float(got[f"p{100 * q:g}"]) - want)
        assert error <= finer * max(2.0**-5 * abs(want), 2.0**-19 * np.abs(x).max()), q


def test_values_at_the_bound_are_saturated_and_minus_zero_is_dead():
    metric = ActivationStats(quantiles=(), saturation=0.75)
    got = metric.update(jnp.array([0.75, -0.75, 0.7499, -0.0, 1e-40, 1e-30])).compute()
    assert float(got["saturated"]) == np.float32(2 / 6)
    assert float(got["dead"]) == np.float32(2 / 6)


def test_squares_beyond_the_range_of_floats():
    for scale in (1e30, 1e-30):
        x = np.array([3, -4, 0, 5], np.float32) * np.float32(scale)
        got = update(ActivationStats(quantiles=()), x).compute()
        np.testing.assert_allclose(got["rms"], np.sqrt(50 / 4) * scale, rtol=1e-6)
        np.testing.assert_allclose(got["max_abs"], 5 * scale, rtol=1e-6)


def test_fractions_of_more_values_than_32_bits_count():
    metric = update(ActivationStats(quantiles=()), jnp.array([0.0, 1.0, 2.0]))
    for _ in range(40):
        metric = metric.merge(metric)
    metric = metric.update(jnp.zeros(1))
    parts = metric.profiles[0].parts
    high, low = (np.asarray(x, np.float64) for x in parts.double)
    assert (high + low).tolist() == [3 * 2**40 + 1, 2**40 + 1]


@excluding
def test_what_is_not_finite_is_counted_by_kind_and_layer(rng):
    arrays = of_layers(rng)
    arrays["embed"][0, 0] = (np.nan, np.inf, -np.inf)
    arrays["block0/mlp"][1, 1] = np.nan
    metric = ActivationStats(layers=LAYERS, on_invalid="exclude").update(arrays)
    counts = {kind: int(n) for kind, n in metric.reading().invalid[""].counts.items()}
    assert {kind: n for kind, n in counts.items() if n} == {"infinite": 2, "NaN": 2}
    finite = arrays["embed"][np.isfinite(arrays["embed"])]
    np.testing.assert_allclose(metric.compute()["embed/mean"], finite.mean(), rtol=1e-5)
    propagated = metric.replace(on_invalid="propagate").compute()
    assert all(np.isnan(value) for value in propagated.values())


def test_empty_batches_and_weights_of_zero(rng):
    metric = ActivationStats(quantiles=(0.5,), saturation=1.0)
    for x, weights in ((np.zeros((0, 3)), None), (np.full((2, 3), np.nan), np.zeros(2, bool))):
        values = metric.update(x.astype(np.float32), weights=weights).compute()
        assert len(values) == 7
        assert all(np.isnan(value) for value in values.values())


def test_integers_and_scalars():
    got = ActivationStats(quantiles=(0.5,)).update(7).compute()
    assert (got["mean"], got["p50"], got["dead"], got["std"]) == (7, 7, 0, 0)
    got = ActivationStats().update(np.array([0, 200], np.uint8)).compute()
    assert (got["mean"], got["max_abs"], got["dead"]) == (100, 200, 0.5)


def test_a_state_without_quantiles_is_small():
    def size(metric):
        return sum(np.asarray(x).nbytes for x in jax.tree.leaves(metric))

    assert size(ActivationStats(quantiles=())) < 200
    assert 20_000 < size(ActivationStats()) < 21_500


def test_other_arrays_are_ignored_and_missing_ones_named(rng):
    metric, arrays = ActivationStats(layers=LAYERS, quantiles=()), of_layers(rng)
    metric.update(arrays | {"logits": np.zeros((8, 2))})
    with pytest.raises(datarax.MetricInputError, match="block0/mlp missing; given: embed"):
        metric.update({"embed": arrays["embed"]})
    with pytest.raises(datarax.MetricTypeError, match="expected a dict of embed, block0/mlp"):
        metric.update(arrays["embed"])
    with pytest.raises(datarax.MetricTypeError, match="expected an array"):
        ActivationStats().update(arrays)


@pytest.mark.parametrize(
    "config",
    [
        {"layers": ()},
        {"layers": "embed"},
        {"layers": ("a", "a")},
        {"layers": ("a", 1)},
        {"quantiles": 0.5},
        {"quantiles": (1.5,)},
        {"saturation": 0},
        {"saturation": "high"},
        {"bits": 9},
    ],
)
def test_configurations_that_are_refused(config):
    with pytest.raises(datarax.MetricInputError, match=next(iter(config))):
        ActivationStats(**config)
