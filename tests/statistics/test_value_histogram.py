"""Quantiles from bins: the bounds contain the exact quantile, and are as narrow as documented."""

import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.statistics import ValueHistogram
from tests.helpers import merge, quantile, update

SIZE = 500
QS = (0.0, 0.001, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0)
TINY = float(np.finfo(np.float32).tiny)

DRAWS = {
    "around zero": lambda rng: rng.normal(size=SIZE),
    "positive": lambda rng: rng.lognormal(0, 3, SIZE),
    "offset of 1e6": lambda rng: rng.normal(1e6, 1, SIZE),
    "negative": lambda rng: -rng.lognormal(size=SIZE),
    "toward one": lambda rng: 1 / (1 + np.exp(-8 - rng.normal(size=SIZE))),
    "times 1e30": lambda rng: rng.normal(size=SIZE) * 1e30,
    "times 1e-30": lambda rng: rng.normal(size=SIZE) * 1e-30,
    "subnormal": lambda rng: rng.normal(size=SIZE) * 1e-40,
    "signed zeros and ties": lambda rng: rng.choice([-2.5, -0.0, 0.0, 1.0], SIZE),
    "of both sizes": lambda rng: rng.normal(size=SIZE) * 10.0 ** rng.uniform(-30, 30, SIZE),
}
each_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def seen(values, weights=None):
    """A histogram of a few values, padded with values of weight zero: one program serves all."""
    missing = (0, SIZE - np.size(values))
    weights = np.ones(np.shape(values)) if weights is None else np.asarray(weights)
    values, weights = (np.pad(np.asarray(x, np.float32), missing) for x in (values, weights))
    return update(ValueHistogram(), values, weights=weights)


@each_draw
@pytest.mark.parametrize("method", ["inverted_cdf", "averaged_inverted_cdf"])
@pytest.mark.parametrize("bits", [10, 16])
def test_bounds_contain_the_exact_quantile(draw, method, bits, rng):
    for weights in (np.ones(SIZE), rng.integers(0, 3, SIZE), rng.choice([0, 0.125, 0.5], SIZE)):
        values = draw(rng).astype(np.float32)
        histogram = update(ValueHistogram(bits=bits), values, weights=weights.astype(np.float32))
        lower, upper = map(np.asarray, histogram.quantile_bounds(QS, method=method))
        estimate = np.asarray(histogram.quantile(QS, method=method))
        want = np.array([quantile(values, weights, q, method) for q in QS])
        # A mean of two is rounded, and so is interpolation.
        slack = np.spacing(np.abs(want).astype(np.float32)) + TINY
        assert (lower - slack <= want).all()
        assert (want <= upper + slack).all()
        assert (lower <= estimate).all()
        assert (estimate <= upper).all()
        ends = np.array([estimate[0], estimate[-1]])
        np.testing.assert_allclose(ends, want[[0, -1]], rtol=0, atol=TINY)
        if method == "inverted_cdf":
            width = histogram.relative_error * np.abs(want)
            # As documented, for values that are not too small beside the greatest.
            large = np.abs(want) >= 2.0**-122 * np.abs(values).max()
            assert (upper - lower <= width + slack)[large].all()
            assert (np.abs(estimate - want) <= width + slack)[large].all()


def test_ties_are_exact(rng):
    for values in (rng.choice(np.float32([-2.5, 0.1, 1e9]), SIZE), np.full(SIZE, 0.3, np.float32)):
        weights = np.ones(SIZE, np.float32)
        histogram = update(ValueHistogram(), values, weights=weights)
        lower, upper = map(np.asarray, histogram.quantile_bounds(QS))
        np.testing.assert_array_equal(lower, upper)
        np.testing.assert_array_equal(lower, [quantile(values, weights, q) for q in QS])


def test_bfloat16_is_exact(rng):
    values = np.asarray(jnp.asarray(rng.normal(size=SIZE), jnp.bfloat16))
    lower, upper = map(np.asarray, seen(values).quantile_bounds(QS))
    np.testing.assert_array_equal(lower, upper)
    want = np.quantile(values.astype(np.float64), QS, method="inverted_cdf")
    np.testing.assert_array_equal(lower, want)


@pytest.mark.parametrize("method", ["inverted_cdf", "averaged_inverted_cdf"])
def test_few_values_agree_with_numpy(method, rng):
    for size in (1, 2, 3, 4, 10):
        # Each number of seven bits has its own bin.
        values = rng.choice(256, size, replace=False) / 8 - 16
        histogram = seen(values)
        want = np.quantile(values, QS, method=method)
        np.testing.assert_array_equal(np.asarray(histogram.quantile(QS, method=method)), want)


def test_weights_agree_with_numpy(rng):
    values = np.exp2(rng.permutation(SIZE) / 8 - 30).astype(np.float32)
    weights = rng.integers(0, 9, SIZE)
    got = update(ValueHistogram(), values, weights=weights).quantile(QS)
    # NumPy 2.0 takes a value of weight zero for the quantile 0.
    some = weights > 0
    want = np.quantile(values[some], QS, weights=weights[some], method="inverted_cdf")
    np.testing.assert_array_equal(np.asarray(got), want)


def test_large_counts():
    # float32 cumulative weights could not tell 2**30 from 2**30 + 1.
    histogram = seen([1.0, 2.0, 3.0], [2.0**30, 1.0, 2.0**30])
    assert histogram.quantile(0.5) == 2
    million = seen(np.arange(SIZE), np.full(SIZE, 1e6))
    for _ in range(5):
        million = merge(million, million)
    # Of 32 * 500 million, half is reached exactly at 249.
    assert million.quantile(0.5, method="averaged_inverted_cdf") == 249.5


def test_q_is_the_decimal_number_written():
    histogram = seen(np.arange(10))
    for k in range(1, 11):
        assert histogram.quantile(k / 10) == k - 1


def test_interpolated_by_rank_within_a_bin():
    # Beside a number of another sign, the 64 integers from 2**14 share a bin of width 2**6.
    histogram = seen([-1, *2**14 + np.arange(64)])
    assert histogram.quantile(17 / 65) == 2**14 + 15
    assert histogram.relative_error == 2.0**-8
    lower, upper = histogram.quantile_bounds(0.25)
    assert (lower, upper) == (2**14, 2**14 + 63)


def test_no_data_and_invalid_values():
    some = seen([np.nan, np.inf, -np.inf, 3.0])
    assert int(some.invalid.value) == 1
    assert some.quantile((0.0, 0.5, 1.0)).tolist() == [-np.inf, 3, np.inf]
    none = seen([np.nan, 1.0], [1.0, 0.0])
    assert int(none.invalid.value) == 1
    lower, upper = none.quantile_bounds((0.0, 0.5, 1.0))
    assert np.isnan(lower).all()
    assert np.isnan(upper).all()
    assert np.isnan(none.quantile((0.0, 0.5, 1.0))).all()


def test_shapes_and_dtypes(rng):
    histogram = ValueHistogram()
    values = rng.integers(-9, 9, (4, 5)).astype(np.int32)
    weights = np.array([1, 0, 2, 1], np.float32)
    got = histogram.update(values, weights=weights).quantile(0.5)
    want = np.quantile(np.repeat(values, weights.astype(int), 0), 0.5, method="inverted_cdf")
    assert got.shape == ()
    assert got.dtype == np.float64  # on the host
    assert float(got) == want
    assert histogram.quantile((0.5,)).shape == (1,)


@pytest.mark.parametrize("bits", [9, 23, 16.0, True])
def test_bits_are_checked(bits):
    with pytest.raises(datarax.MetricInputError, match="expected an integer from 10 to 22"):
        ValueHistogram(bits=bits)


@pytest.mark.parametrize("q", [-0.1, 1.5, float("nan"), (), (0.5, 2), "half", None])
def test_q_is_checked(q):
    with pytest.raises(datarax.MetricInputError, match="expected a number from 0 to 1"):
        ValueHistogram().quantile(q)


def test_methods_are_checked():
    with pytest.raises(datarax.MetricInputError, match="method='linear'"):
        ValueHistogram().quantile_bounds(0.5, method="linear")
