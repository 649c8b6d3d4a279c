"""BradleyTerry: published ratings, likelihoods, groups of players, coverage, and misuse."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import datarax
from datarax.metrics import BradleyTerry
from tests.registry.ratings import fit


def of_wins(wins, **config):
    """The metric after one game for each pair that counts as often as the wins."""
    k = len(wins)
    first, second = np.divmod(np.arange(k * k), k)
    w = np.where(first == second, 0, np.asarray(wins, np.float32).ravel())
    return BradleyTerry(k, **config).update(first, second, np.ones(k * k), weights=w)


def test_two_players_have_the_log_odds_of_their_wins(rng):
    a, b = (int(x) for x in rng.integers(1, 10**6, 2))
    got = of_wins([[0, a], [b, 0]], confidence=0.9).results()
    apart = np.log(a / b)
    assert got["rating"] == pytest.approx([apart / 2, -apart / 2], rel=1e-13, abs=1e-14)
    # The variance of a log odds is 1 / a + 1 / b, and each rating is half of it.
    assert got["std_error"] == pytest.approx([np.sqrt(1 / a + 1 / b) / 2] * 2, rel=1e-9)
    z = (got["upper"] - got["rating"]) / got["std_error"]
    assert z == pytest.approx([1.6448536269514722] * 2, rel=1e-9)
    assert got["wins"].tolist() == [[0, a], [b, 0]]


def test_baseball_of_agresti():
    # A. Agresti (2013), Categorical data analysis, third edition, table 11.10: wins of the teams
    # of the American League East in 1987, rows over columns.
    wins = [
        [0, 7, 9, 7, 7, 9, 11],
        [6, 0, 7, 5, 11, 9, 9],
        [4, 6, 0, 7, 7, 8, 12],
        [6, 8, 6, 0, 6, 7, 10],
        [6, 2, 6, 7, 0, 7, 12],
        [4, 4, 5, 6, 6, 0, 6],
        [2, 4, 1, 3, 1, 7, 0],
    ]
    rating = of_wins(wins).results()["rating"]
    # Those of the book are relative to Baltimore, the last team.
    published = [1.581, 1.436, 1.294, 1.248, 1.107, 0.684, 0]
    assert rating - rating[-1] == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize("players", [3, 30])
def test_it_is_the_greatest_likelihood(rng, players):
    strength = rng.normal(0, 1.5, players)
    n = 60 * players
    first = rng.integers(0, players, n)
    second = (first + rng.integers(1, players, n)) % players
    outcome = np.where(rng.random(n) < expit(strength[first] - strength[second]), 1.0, 0.0)
    outcome[rng.random(n) < 0.1] = 0.5
    got = BradleyTerry(players).update(first, second, outcome).results()
    wins = np.zeros((players, players))
    np.add.at(wins, (first, second), outcome)
    np.add.at(wins, (second, first), 1 - outcome)
    np.testing.assert_array_equal(got["wins"], wins)
    rated = np.isfinite(got["rating"])
    assert rated.sum() > players // 2
    rating, error = fit(wins[np.ix_(rated, rated)])
    np.testing.assert_allclose(got["rating"][rated], rating, rtol=0, atol=1e-9)
    np.testing.assert_allclose(got["std_error"][rated], error, rtol=1e-8)


def test_ratings_far_apart_in_a_chain():
    # Each loses once to the next one, against a million wins: closed by the log odds of each pair.
    wins = np.zeros((4, 4))
    for i in range(3):
        wins[i, i + 1], wins[i + 1, i] = 1e6, 1
    metric = of_wins(wins)
    want = np.log(1e6) * (1.5 - np.arange(4))
    np.testing.assert_allclose(metric.results()["rating"], want, rtol=1e-9)
    np.testing.assert_allclose(jax.jit(lambda m: m.compute())(metric)["rating"], want, rtol=1e-6)


def test_players_outside_the_group_are_nan_and_named():
    first, second = [0, 1, 2, 3, 0], [1, 2, 0, 0, 4]
    metric = BradleyTerry(6).update(jnp.array(first), jnp.array(second), jnp.ones(5))
    with pytest.warns(datarax.PrecisionWarning, match="no rating of the players 3, 4, 5: "):
        got = metric.results()
    np.testing.assert_allclose(got["rating"], [0, 0, 0, np.nan, np.nan, np.nan], atol=1e-12)
    assert np.isnan(got["std_error"]).tolist() == [False] * 3 + [True] * 3
    assert got["wins"][3, 0] == 1
    with pytest.warns(datarax.PrecisionWarning, match="arena: no rating of the players 3, 4, 5: "):
        datarax.Collection({"arena": metric}).results()


def test_without_a_group_nobody_has_a_rating(rng):
    with pytest.warns(datarax.PrecisionWarning, match="0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"):
        got = BradleyTerry(12).update([0], [1], [1]).results()
    assert np.isnan(got["rating"]).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(BradleyTerry(12).results()["rating"]).all()
    spoilt = BradleyTerry(2).update([0, 1, 1], [1, 0, 1], [1, 1, 1])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert np.isnan(spoilt.results()["rating"]).all()
    assert [each.category for each in seen] == [datarax.InvalidValuesWarning]
    with pytest.warns(datarax.InvalidValuesWarning, match="1 out of range"):
        assert spoilt.replace(on_invalid="exclude").results()["rating"].tolist() == [0, 0]


def test_order_of_the_players_of_a_game_and_dtypes(rng):
    first, second = np.array([0, 1, 2, 0, 3]), np.array([1, 2, 3, 3, 0])
    outcome = rng.choice([0.5], 5)
    a = BradleyTerry(4).update(first, second, outcome)
    b = BradleyTerry(4).update(second.astype(np.uint8), first, jnp.asarray(outcome, jnp.bfloat16))
    np.testing.assert_array_equal(a.results()["wins"], b.results()["wins"].T)
    assert a.results()["wins"].sum() == 5


def test_intervals_cover(rng):
    truth = np.array([0.8, 0.1, -0.2, -0.7])
    covered = []
    for _ in range(300):
        first = rng.integers(0, 4, 400)
        second = (first + rng.integers(1, 4, 400)) % 4
        won = rng.random(400) < expit(truth[first] - truth[second])
        got = BradleyTerry(4).update(first, second, won).results()
        covered.append((got["lower"] < truth) & (truth < got["upper"]))
    # 1200 intervals of 300 data sets: the standard deviation of the share is at most 0.0126.
    assert 0.89 < np.mean(covered) < 0.99


def test_slices_and_weights(rng):
    first = rng.integers(0, 3, 60)
    second = (first + rng.integers(1, 3, 60)) % 3
    outcome, w = rng.choice([0, 0.5, 1], 60), rng.choice(np.float32([0, 1, 2.5]), 60)
    side = np.arange(60) % 2
    sliced = datarax.Sliced(BradleyTerry(3), num_slices=2)
    seen = sliced.update(first, second, outcome, slices=side, weights=w).results()
    for i in range(2):
        mine = side == i
        want = BradleyTerry(3).update(first[mine], second[mine], outcome[mine], weights=w[mine])
        for name, value in want.results().items():
            np.testing.assert_allclose(seen[str(i)][name], value, rtol=1e-9, atol=1e-9)


def test_misuse_is_refused():
    metric, wrong = BradleyTerry(3), datarax.MetricInputError
    with pytest.raises(wrong, match="num_players=1; expected an integer of at least 2"):
        BradleyTerry(1)
    with pytest.raises(wrong, match=r"num_players=2\.5; expected an integer"):
        BradleyTerry(2.5)
    with pytest.raises(wrong, match="confidence=95; expected a number between 0 and 1"):
        BradleyTerry(3, confidence=95)
    with pytest.raises(wrong, match=r"first of shape \(2,\) and second of shape \(1,\)"):
        metric.update([0, 1], [1], [1])
    with pytest.raises(wrong, match=r"first of shape \(2,\) and outcome of shape \(1,\)"):
        metric.update([0, 1], [1, 0], [1])
    with pytest.raises(datarax.MetricTypeError, match="first has dtype float"):
        metric.update([0.0], [1], [1])
    with pytest.raises(wrong, match="weights"):
        metric.update([0], [1], [1], weights=[1, 2])
