"""Rank correlations of more rows than are kept: bounds hold the exact value, however bins join."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax import MetricInputError
from datarax.metrics import KendallTau, SpearmanCorrCoef
from datarax.metrics.regression.joint_bins import JointHistogram
from tests.helpers import merge, update

BOTH = [(SpearmanCorrCoef, scipy.stats.spearmanr), (KendallTau, scipy.stats.kendalltau)]
SIZE, BATCH = 4000, 1000


@jax.jit
def read(metric):
    value, bounds = metric.value_and_bounds()
    return value, bounds.ends


def pairs(rng):
    """Of a correlation and a size by chance; the range of later batches is greater."""
    correlation, scale = rng.uniform(-1, 1), 10.0 ** rng.integers(-6, 6)
    x, noise = rng.normal(size=(2, SIZE))
    y = correlation * x + np.sqrt(1 - correlation**2) * noise
    x, y = rng.choice((x, np.exp(x))), y * scale + rng.choice((0, 100 * scale))
    if rng.random() < 0.3:
        y = np.round(y / scale * 2)
    grown = 1 + np.arange(SIZE) // BATCH
    return (x * grown).astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize(("cls", "exact"), BOTH)
def test_bounds_hold_the_exact_value(cls, exact, rng):
    for _ in range(6):
        x, y = pairs(rng)
        times = rng.integers(0, 3, SIZE)
        metrics = [cls(bits=7, capacity=10)] * 2
        for i in range(0, SIZE, BATCH):
            rows, k = slice(i, i + BATCH), i // BATCH % 2
            w = times[rows].astype(np.float32)
            metrics[k] = update(metrics[k], x[rows], y[rows], weights=w)
        merged = merge(*metrics)
        value, (lower, upper) = jax.device_get(read(merged))
        want: Any = exact(np.repeat(x, times), np.repeat(y, times))[0]
        assert lower - 1e-6 <= want <= upper + 1e-6
        assert lower <= value <= upper
        assert upper - lower < 0.4
        host = merge(*(cls(bits=7, capacity=10).update(x, y, weights=times) for _ in "ab"))
        assert float(value) == pytest.approx(float(host.compute()), abs=1e-5)


@pytest.mark.parametrize(("cls", "exact"), BOTH)
def test_a_number_for_any_count_of_rows(cls, exact, rng):
    """By default: exact while the rows fit, then an estimate, whose bounds are said if wide."""
    rho = rng.uniform(0.3, 0.98) * rng.choice([-1, 1])
    x, noise = rng.normal(size=(2, 30_000))
    y = rho * x + np.sqrt(1 - rho**2) * noise
    few = cls().update(x[:8192], y[:8192])
    assert few.results() == pytest.approx(exact(x[:8192], y[:8192])[0], abs=1e-12)
    assert few.bounds()[0] == few.bounds()[1]
    want = exact(x, y)[0]
    for scale, given in (("plain", (x, y)), ("skewed", (np.exp(x), y**3))):
        many = cls().update(*(v[:20_000] for v in given)).update(*(v[20_000:] for v in given))
        with pytest.warns(datarax.PrecisionWarning, match=r"exact=True with a capacity= for all"):
            got = many.results()
        assert got == pytest.approx(want, abs=2e-3), scale
        assert int(many.invalid_count()) == 0
        lower, upper = many.bounds()
        assert lower <= want <= upper
    # What the warning advises gives the value; without a capacity for all, it is NaN.
    assert cls(exact=True, capacity=30_000).update(x, y).results() == pytest.approx(want, abs=1e-12)
    with pytest.warns(datarax.InvalidValuesWarning, match="21808 beyond the capacity"):
        assert np.isnan(cls(exact=True).update(x, y).results())


@pytest.mark.parametrize(("cls", "exact"), BOTH)
def test_few_distinct_values_are_exact_in_bins(cls, exact, rng):
    x, y = rng.integers(-3, 9, (2, 5000))
    found = cls(capacity=9).update(x, x + y)
    assert found.results() == pytest.approx(exact(x, x + y)[0], abs=1e-9)
    assert cls(capacity=9).update(x, 2 * x).results() == pytest.approx(1, abs=1e-12)
    assert cls(capacity=9).update(x, -x).results() == pytest.approx(-1, abs=1e-12)
    assert np.isnan(cls(capacity=9).update(x, x * 0).results())


def test_numbers_beyond_float32_have_no_certain_order():
    x = np.array([1.0, 2, 3, 1e300, 1e301, -1e305] * 3)
    y = np.arange(18.0)
    for cls, exact in BOTH:
        metric = cls(capacity=4).update(x, y)
        with pytest.warns(datarax.PrecisionWarning) as caught:
            metric.results()
        assert "beyond the range of float32" in str(caught[-1].message)
        assert [float(bound) for bound in metric.bounds()] == [-1, 1]
        assert cls(capacity=99).update(x[:4], y[:4]).results() == pytest.approx(
            exact(x[:4], y[:4])[0]
        )


def test_bounds_of_a_buffer():
    x = np.float32([1, 2, 3, 4])
    for cls, _ in BOTH:
        metric = update(cls(exact=True, capacity=4), x, x)
        assert [float(bound) for bound in read(metric)[1]] == [1, 1]
        metric = update(metric, x, x)
        assert [float(bound) for bound in read(metric)[1]] == [-1, 1]


@pytest.mark.filterwarnings("ignore")
def test_states_that_were_saved_without_a_table(rng):
    """Of a version that kept rows alone, or a table alone: as they are, and in slices."""
    x, y = rng.normal(size=(2, 300))
    x[7], y[3] = 2**40 + 1, np.nan

    def as_earlier(saved):
        if not isinstance(saved, dict):
            return saved
        config = saved.get("config", {})
        if isinstance(config, dict) and "exact" in config:
            kept = {name: value for name, value in config.items() if name != "exact"}
            saved = saved | {"config": kept | ({"bits": None} if "Spear" in saved["type"] else {})}
            if "Kendall" in saved["type"]:
                saved["config"].pop("bits")
        if isinstance(config, dict) and "element" in config:
            saved["config"]["element"] = config["element"].replace("exact=True, ", "")
        return {name: as_earlier(value) for name, value in saved.items()}

    for cls, _ in BOTH:
        for wrap, given in (
            (lambda metric: metric, {}),
            (lambda metric: datarax.Sliced(metric, 3), {"slices": np.arange(300) % 3}),
            (lambda metric: datarax.Interval(metric), {}),
        ):
            options = {"capacity": 512, "on_invalid": "exclude"}
            old = wrap(cls(**options, exact=True)).update(x, y, **given)
            saved = as_earlier(old.state_dict())
            now = wrap(cls(**options)).load_state_dict(saved)
            np.testing.assert_equal(now.results(), old.results())
            np.testing.assert_equal(
                wrap(cls(**options, exact=True)).load_state_dict(saved).results(), old.results()
            )
            # The table has the rows, too.
            fresh = wrap(cls(**options)).update(x, y, **given)
            more = [v.update(x[::-1], y, **given).results() for v in (now, fresh)]
            np.testing.assert_equal(*more)
        full = cls(capacity=100, exact=True).update(x, y)
        with pytest.raises(datarax.ConfigurationMismatchError, match=r"lost .* exact=True"):
            cls(capacity=100).load_state_dict(as_earlier(full.state_dict()))
    bins = JointHistogram(bits=7).update(x, y).saved()
    saved = as_earlier(SpearmanCorrCoef(exact=True).state_dict())
    saved["config"]["bits"], saved["state"]["statistic"] = 7, bins
    now = SpearmanCorrCoef(bits=7, on_invalid="exclude").load_state_dict(
        saved | {"config": saved["config"] | {"on_invalid": "exclude"}}
    )
    binned = SpearmanCorrCoef(bits=7, capacity=1, on_invalid="exclude").update(x, y)
    assert now.results() == binned.results()


@pytest.mark.parametrize("bits", [5, 14, 8.0])
def test_bits_out_of_range(bits):
    for cls, _ in BOTH:
        with pytest.raises(MetricInputError, match="bits="):
            cls(bits=bits)
