"""Adjusted p-values and detectable differences, by what their procedures decide."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from datarax import MetricInputError, MetricTypeError
from datarax.uncertainty import adjust, detectable_difference


def holm(p: np.ndarray, level: float) -> np.ndarray:
    """The tests that Holm rejects: from the least p-value up, until one is too large."""
    rejected = np.zeros(p.size, bool)
    for k, i in enumerate(np.argsort(p)):
        if p[i] > level / (p.size - k):
            break
        rejected[i] = True
    return rejected


def bonferroni(p: np.ndarray, level: float) -> np.ndarray:
    return p <= level / p.size


def benjamini_hochberg(p: np.ndarray, level: float) -> np.ndarray:
    """All up to the greatest p-value that is at most its rank times the level over m."""
    below = [x for k, x in enumerate(sorted(p), 1) if x <= level * k / p.size]
    return p <= max(below, default=-1)


PROCEDURES: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "holm": holm,
    "bonferroni": bonferroni,
    "bh": benjamini_hochberg,
}


@pytest.mark.parametrize("method", PROCEDURES)
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_the_adjusted_p_value_is_the_least_level_that_rejects(rng, method, size):
    p = rng.random(size) ** rng.integers(1, 6)
    p[rng.random(size) < 0.3] = p[0]  # ties
    adjusted = adjust(p, method)
    assert adjusted.dtype == np.float64
    for i, level in enumerate(adjusted):
        assert p[i] <= level <= 1
        if level < 1:
            assert PROCEDURES[method](p, level * (1 + 1e-12))[i]
        assert not PROCEDURES[method](p, level * (1 - 1e-12))[i]


@pytest.mark.parametrize("method", PROCEDURES)
def test_nan_stays_and_does_not_count(rng, method):
    p = rng.random(7)
    with_nan = np.insert(p, [0, 3, 7], np.nan)
    adjusted = adjust(with_nan, method)
    np.testing.assert_array_equal(np.isnan(adjusted), np.isnan(with_nan))
    np.testing.assert_array_equal(adjusted[~np.isnan(adjusted)], adjust(p, method))
    assert np.isnan(adjust(np.full(3, np.nan), method)).all()


def test_the_form_stays():
    p = [0.01, 0.04, 0.03, 0.5]
    want = adjust(np.array(p))
    nested = adjust({"a": {"x": p[0], "y": np.float32(p[1])}, "b": np.array(p[2:]), "c": math.nan})
    assert nested["a"]["x"] == want[0]
    assert type(nested["a"]["x"]) is float
    assert nested["a"]["y"] == pytest.approx(want[1], rel=1e-6)
    np.testing.assert_array_equal(nested["b"], want[2:])
    assert math.isnan(nested["c"])
    assert list(adjust({"b": 0.1, "a": 0.2})) == ["b", "a"]
    np.testing.assert_array_equal(adjust(p), want)
    np.testing.assert_array_equal(adjust(np.reshape(p, (2, 2))), want.reshape(2, 2))
    np.testing.assert_array_equal(adjust(jnp.array([0.5, 0.25], jnp.bfloat16)), [0.5, 0.5])
    assert adjust({}) == {}
    assert adjust(np.empty(0)).shape == (0,)
    assert adjust(0.03) == 0.03


def test_what_is_no_p_value_is_refused():
    with pytest.raises(MetricInputError, match=r"p_values\['b'\]: 1.5 is no p-value"):
        adjust({"a": 0.5, "b": 1.5})
    with pytest.raises(MetricInputError, match=r"-0\.1"):
        adjust(np.array([0.5, -0.1]))
    with pytest.raises(MetricTypeError, match=r"p_values\['a'\]: expected numbers; got str"):
        adjust({"a": "0.5"})
    with pytest.raises(MetricTypeError, match="bool"):
        adjust(np.array([True]))
    with pytest.raises(MetricInputError, match=r"method='fdr'; expected one of 'holm'"):
        adjust(0.5, "fdr")


def test_the_difference_is_found_with_the_probability_asked_for():
    for power, confidence in ((0.8, 0.95), (0.9, 0.99), (0.5, 0.9)):
        error = 0.013
        found = detectable_difference(error, power=power, confidence=confidence)
        # The estimate is normal about the true difference, and must be beyond this edge.
        edge = stats.norm.ppf((1 + confidence) / 2) * error
        assert stats.norm.sf(edge, found, error) == pytest.approx(power, abs=1e-9)
    assert detectable_difference(0) == 0
    assert math.isnan(detectable_difference(math.nan))
    several = detectable_difference(np.array([[0.1, 0.2]]))
    assert isinstance(several, np.ndarray)
    np.testing.assert_allclose(several, [[0.28016, 0.56032]], rtol=1e-4)


def test_what_gives_no_difference_is_refused():
    with pytest.raises(MetricInputError, match="std_error=-1; expected numbers of at least 0"):
        detectable_difference(-1)
    with pytest.raises(MetricInputError, match=r"power=0.2; expected .* at least 0.5"):
        detectable_difference(1, power=0.2)
    with pytest.raises(MetricInputError, match=r"confidence=95; expected .* between 0 and 1"):
        detectable_difference(1, confidence=95)
    with pytest.raises(MetricTypeError, match="std_error: expected numbers; got str"):
        detectable_difference("1")
