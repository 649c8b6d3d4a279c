"""Ratings of players and thresholds: BradleyTerry, ConformalThreshold."""

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse.csgraph
from scipy.special import expit

from datarax import metrics
from tests.helpers import fsum
from tests.registry.aggregation import REALS
from tests.registry.case import Arrays, Case, Draw, Inputs
from tests.registry.distributions import BITS, width

PLAYERS = 4
Z95 = 1.959963984540054


def games(
    rng: np.random.Generator,
    size: int,
    *,
    apart: float = 0.5,
    players: Any = range(PLAYERS),
    tie: float = 0.2,
) -> Arrays:
    ids = np.asarray(players)
    first = rng.integers(0, len(ids), size)
    second = (first + rng.integers(1, len(ids), size)) % len(ids)
    won = rng.random(size) < expit(apart * (ids[first] - ids[second]))
    outcome = np.where(rng.random(size) < tie, 0.5, won)
    return {
        "first": ids[first].astype(np.int32),
        "second": ids[second].astype(np.int32),
        "outcome": outcome.astype(np.float32),
    }


def is_player(x: np.ndarray) -> np.ndarray:
    return (x >= 0) & (x < PLAYERS)


GAMES = Inputs(
    "games",
    draw=games,
    valid=lambda first, second, outcome: (
        is_player(first) & is_player(second) & (first != second) & np.isin(outcome, (0.0, 0.5, 1.0))
    ),
    spoil={
        "first": (-1, PLAYERS, 2**31 - 1),
        "second": (-1, PLAYERS),
        "outcome": (np.nan, np.inf, 0.25, 2.0, -1.0),
    },
    hard={
        "far apart": partial(games, apart=3.0, tie=0.05),
        "no ties": partial(games, tie=0.0),
        "only ties": partial(games, tie=1.0),
        "two players": partial(games, players=(1, 3)),
        "the best always wins": partial(games, apart=1e3, tie=0.0),
    },
)


def wins_of(
    w: np.ndarray, first: np.ndarray, second: np.ndarray, outcome: np.ndarray
) -> np.ndarray:
    wins = np.zeros((PLAYERS, PLAYERS))
    for weight, i, j, result in zip(w, first, second, outcome, strict=True):
        if weight > 0:
            wins[int(i), int(j)] += weight * result
            wins[int(j), int(i)] += weight * (1 - result)
    return wins


def group_of(wins: np.ndarray) -> np.ndarray:
    """The players of the largest strongly connected component; of equal ones, that of the first."""
    _, label = scipy.sparse.csgraph.connected_components(wins > 0, connection="strong")
    sizes = np.bincount(label)[label]
    return np.flatnonzero(label == label[sizes.argmax()])


def fit(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratings and errors of connected players, by a root of the derivatives of the likelihood.

    The last rating is minus the sum of the others.
    """
    k = len(wins)
    games = wins + wins.T
    basis = np.vstack([np.eye(k - 1), -np.ones(k - 1)])

    def surplus(free: np.ndarray) -> np.ndarray:
        r = basis @ free
        return basis.T @ (wins.sum(1) - (games * expit(r[:, None] - r)).sum(1))

    def curvature(free: np.ndarray) -> np.ndarray:
        r = basis @ free
        p = expit(r[:, None] - r)
        each = games * p * (1 - p)
        return basis.T @ (np.diag(each.sum(1)) - each) @ basis

    def loss(free: np.ndarray) -> float:
        r = basis @ free
        return float((wins * np.logaddexp(0, r - r[:, None])).sum())

    near = scipy.optimize.minimize(loss, np.zeros(k - 1), jac=lambda x: -surplus(x), tol=1e-6).x
    found = scipy.optimize.root(surplus, near, jac=lambda x: -curvature(x), tol=1e-14).x
    covariance = basis @ np.linalg.inv(curvature(found)) @ basis.T
    return basis @ found, np.sqrt(np.diagonal(covariance))


def bradley_terry(w: np.ndarray, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    wins, rating, error = wins_of(w, **inputs), *np.full((2, PLAYERS), np.nan)
    group = group_of(wins)
    if len(group) > 1:
        rating[group], error[group] = fit(wins[np.ix_(group, group)])
    return {
        "rating": rating,
        "std_error": error,
        "lower": rating - Z95 * error,
        "upper": rating + Z95 * error,
        "wins": wins,
    }


COVERAGE = 0.75


def as_scores(draw: Draw) -> Draw:
    return lambda rng, size: {"scores": draw(rng, size)["values"]}


SCORES = Inputs(
    "calibration scores",
    draw=as_scores(REALS.draw),
    valid=lambda scores: np.isfinite(scores),
    spoil={"scores": REALS.spoil["values"]},
    hard={name: as_scores(draw) for name, draw in REALS.hard.items()},
)


def conformal(w: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """The least score at or below which the weight is (n + 1) * coverage."""
    n = fsum(w)
    rank = Fraction(n + 1) * Fraction(COVERAGE)
    order = np.argsort(scores, kind="stable")
    reached = [i for i, up_to in zip(order, np.cumsum(w[order]), strict=True) if up_to >= rank]
    return {"threshold": float(scores[reached[0]]) if reached else math.inf}


CASES = [
    Case(
        "bradley_terry",
        metrics.BradleyTerry,
        GAMES,
        bradley_terry,
        {"num_players": PLAYERS},
        ulps=2,
        # The root of the oracle, where the ratings cancel.
        atol=lambda w, **inputs: 1e-6,
        without_float64=4,  # Newton's method in float32
        exact=True,
        empty={"wins": 0},
    ),
    Case(
        "conformal_threshold",
        metrics.ConformalThreshold,
        SCORES,
        conformal,
        {"coverage": COVERAGE, "bits": BITS},
        atol=lambda w, scores: width(w, scores),
        exact=True,
        empty=math.inf,
    ),
]
