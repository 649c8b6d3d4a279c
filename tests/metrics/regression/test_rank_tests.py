"""Tests by rank correlations: SciPy's p-values, bounds on them, and what is not defined."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats

import datarax
from datarax.metrics import KendallTau, KendallTest, SpearmanCorrCoef, SpearmanTest

BOTH: list[Any] = [
    (SpearmanTest, SpearmanCorrCoef, scipy.stats.spearmanr),
    (KendallTest, KendallTau, scipy.stats.kendalltau),
]
# One program for all sizes.
SIZE = 256


@jax.jit
def read(metric, x, y, w):
    return metric.update(x, y, weights=w).value_and_bounds()[0]


def samples(rng):
    """Pairs without ties and with them, of few and many examples, in agreement or not."""
    for n in (2, 3, 4, 8, 9, 20, 33, 34, 40, 200):
        x, noise = rng.normal(size=(2, n))
        y = rng.choice([-1, 0, 0.3, 1]) * x + noise
        yield "unequal", x, y
        yield "some ties", np.round(x, 1), np.round(y)
        yield "two values", x > np.sort(x)[n // 4], y > np.sort(y)[1 - n % 2]
        yield "one apart", np.arange(n) == rng.integers(n), np.arange(n) == rng.integers(n)
        # No pair is discordant, or one, or two.
        up = np.arange(n)
        for k in range(3):
            swapped = up.copy()
            for i in range(0, 2 * k, 2):
                swapped[i : i + 2] = swapped[i : i + 2][::-1]
            yield f"{k} discordant", up, swapped
            yield f"{k} concordant", up, -swapped


@pytest.mark.filterwarnings("ignore:An input array is constant")
@pytest.mark.parametrize(("cls", "_", "exact"), BOTH)
def test_p_values_are_those_of_scipy(cls, _, exact, rng):
    metric = cls(capacity=SIZE, bits=6)
    for name, x, y in samples(rng):
        x, y = np.float32(x), np.float32(y)
        n = len(x)
        with np.errstate(all="ignore"):
            want = [float(each) for each in exact(np.float64(x), np.float64(y))]
        if n == 2 and not np.isnan(want[0]):
            want[1] = 1.0  # SciPy's Spearman test says NaN
        host = metric.update(x, y).value_and_bounds()[0]
        padded = [np.pad(v, (0, SIZE - n)) for v in (x, y, np.ones(n, np.float32))]
        traced = jax.device_get(read(metric, *padded))
        if abs(want[0]) > 1 - 1e-12 and cls is SpearmanTest and n > 2:
            want[1] = 0.0  # of a perfect correlation, which SciPy rounds
        for found, rtol in ((host, 1e-9), (traced, 2e-3 if cls is SpearmanTest else 2e-4)):
            np.testing.assert_allclose(found["correlation"], want[0], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(
                found["p_value"],
                want[1],
                rtol=rtol,
                atol=1e-13 if rtol < 1e-8 else 1e-9,
                err_msg=f"{name} {n}",
            )


@pytest.mark.parametrize(("cls", "_", "exact"), BOTH)
def test_weights_are_repetitions(cls, _, exact, rng):
    x, y = rng.integers(0, 12, (2, 60)).astype(np.float32)
    w = rng.integers(0, 4, 60).astype(np.float32)
    want = exact(np.repeat(x, w.astype(int)), np.repeat(y, w.astype(int)))
    for capacity in (64, 1):  # of rows, and of bins that hold one value each
        found = cls(capacity=capacity).update(x, y, weights=w).results()
        np.testing.assert_allclose([found["correlation"], found["p_value"]], want, rtol=1e-6)


@pytest.mark.parametrize(("cls", "single", "exact"), BOTH)
def test_bounds_hold_both_numbers(cls, single, exact, rng):
    """Of more examples than are kept, the p-value is that of the estimate."""
    for scale in (0, 0.02, 0.05, 0.2):
        x, noise = rng.normal(size=(2, 3000))
        y = np.round(scale * x + noise, rng.integers(0, 3))
        metric = cls(capacity=10, bits=8).update(x, y)
        value, (lower, upper) = metric.compute(), metric.bounds()
        want = dict(zip(("correlation", "p_value"), exact(x, y), strict=True))
        for name, number in want.items():
            assert lower[name] - 1e-6 <= number <= upper[name] + 1e-6
            assert lower[name] <= value[name] <= upper[name]
        assert value["correlation"] == single(capacity=10, bits=8).update(x, y).compute()
        assert value["correlation"] == pytest.approx(want["correlation"], abs=2e-3)
        # It is as far off as 2e-3 of a correlation makes it.
        assert value["p_value"] == pytest.approx(want["p_value"], abs=0.15)
    with pytest.warns(datarax.PrecisionWarning, match=r"Test.* only known to be between"):
        metric.results()
    few = cls(capacity=3000).update(x, y)
    assert few.bounds()[0] == few.bounds()[1]


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_defined():
    x = np.arange(6.0)
    for cls, *_ in BOTH:
        none = {"correlation": np.nan, "p_value": np.nan}
        for metric in (
            cls(),
            cls().update(x[:1], x[:1]),
            cls().update(x, x * 0),
            cls(capacity=2).update(x, x * 0),
            cls(capacity=3, exact=True).update(x, x),
        ):
            found = metric.results()
            np.testing.assert_equal({name: found[name] for name in none}, none)
        lower, upper = cls(capacity=3, exact=True, on_invalid="exclude").update(x, x).bounds()
        assert lower == {"correlation": -1, "p_value": 0}
        assert upper == {"correlation": 1, "p_value": 1}
        # Several numbers beyond float32 count as equal.
        lower, upper = cls().update(x * 1e300, x).bounds()
        assert (lower["p_value"], upper["p_value"]) == (0, 1)


def test_numbers_that_a_state_rounds(rng):
    x = 2.0**40 + rng.normal(size=50)
    for cls, *_ in BOTH:
        with pytest.warns(datarax.PrecisionWarning, match="Test/correlation: .* fewer digits"):
            cls(capacity=2).update(x, x).results()


def test_tests_and_correlations_share_their_statistic():
    both = datarax.Collection(
        {
            "rho": SpearmanCorrCoef(),
            "tau": KendallTau(),
            "of_rho": SpearmanTest(),
            "of_tau": KendallTest(),
        }
    )
    x = np.float32([1, 2, 30, 4])
    found = both.update(preds=x, target=np.sort(x)).results()
    assert found["rho"] == found["of_rho/correlation"]
    assert found["tau"] == found["of_tau/correlation"]
    assert len(both.states_within()) == 1
