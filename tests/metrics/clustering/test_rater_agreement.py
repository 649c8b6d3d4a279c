"""`KrippendorffAlpha` and `GwetAC1`: published numbers, missing ratings, many values, refusals."""

import krippendorff
import numpy as np
import pytest

import datarax
from datarax import metrics

N = np.nan
# Twelve units and four observers: K. Krippendorff (2011), Computing Krippendorff's
# alpha-reliability, data C; in irrCAC, the program of Gwet, `cac.raw4raters`.
PUBLISHED = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, N],
        [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 3],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
    ]
).T


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_the_published_alpha(level, alpha):
    metric = metrics.KrippendorffAlpha(level=level, num_values=5).update(PUBLISHED - 1)
    assert round(metric.results(), 3) == alpha


def test_the_published_ac1():
    assert round(metrics.GwetAC1(num_categories=5).update(PUBLISHED - 1).results(), 5) == 0.77544


def test_a_missing_rating_is_nan_or_minus_one():
    made = metrics.KrippendorffAlpha(num_values=5), metrics.GwetAC1(num_categories=5)
    for metric in made:
        want = metric.update(PUBLISHED - 1).results()
        given = np.where(np.isnan(PUBLISHED), -1, PUBLISHED - 1)
        for dtype in (np.int8, np.int64, np.float32):
            assert metric.update(given.astype(dtype)).results() == want
        # Units in any shape, and unsigned ratings, of which none is missing.
        assert metric.update(given.reshape(3, 4, 4)).results() == want
        whole = given[2:9].astype(np.uint8)
        assert metric.update(whole).results() == metric.update(whole.astype(int)).results()


def test_ratings_that_weigh_one_together_or_less_give_no_alpha():
    """The correction for finite samples would be 0, or of the other sign: an alpha above 1."""
    metric, ratings = metrics.KrippendorffAlpha(num_values=5), PUBLISHED[1:9, 1:3] - 1
    for total, given in ((0.5, False), (1.0, False), (1.25, True)):
        weights = np.full(8, total / 16)
        value = metric.update(ratings, weights=weights).results()
        assert np.isnan(value) != given, total
        assert not given or value <= 1


@pytest.mark.parametrize("level", ["nominal", "ordinal", "interval"])
def test_many_raters_and_values(level, rng):
    raters, values = 25, 60
    true = rng.integers(0, values, (300, 1))
    ratings = np.clip(true + rng.integers(-3, 4, (300, raters)), 0, values - 1).astype(float)
    ratings[rng.random(ratings.shape) < 0.5] = np.nan
    want = krippendorff.alpha(
        ratings.T, level_of_measurement=level, value_domain=list(range(values))
    )
    metric = metrics.KrippendorffAlpha(level=level, num_values=values)
    np.testing.assert_allclose(metric.update(ratings).results(), want, 1e-12)


def test_what_has_no_value():
    alpha, gwet = metrics.KrippendorffAlpha(num_values=3), metrics.GwetAC1(num_categories=3)
    for ratings in (np.zeros((0, 3)), [[0, -1], [-1, 2]], [[0], [1]]):
        assert np.isnan(alpha.update(np.asarray(ratings, int)).results())
        assert np.isnan(gwet.update(np.asarray(ratings, int)).results())
    one = np.ones((5, 4), int)  # all ratings equal
    assert np.isnan(alpha.update(one).results())
    assert gwet.update(one).results() == 1


def test_refusals():
    with pytest.raises(datarax.MetricInputError, match="level='metric'"):
        metrics.KrippendorffAlpha(level="metric", num_values=3)
    with pytest.raises(datarax.MetricInputError, match="num_values=0"):
        metrics.KrippendorffAlpha(num_values=0)
    with pytest.raises(datarax.MetricInputError, match="num_categories=1"):
        metrics.GwetAC1(num_categories=1)
    with pytest.raises(datarax.MetricInputError, match=r"ratings of shape \(\); expected"):
        metrics.GwetAC1(num_categories=2).update(1)
    for value in (-2, 3, 0.5, np.inf):
        seen = metrics.KrippendorffAlpha(num_values=3).update(np.array([[0, value], [1, 1]]))
        assert seen.invalid_count() == 1
