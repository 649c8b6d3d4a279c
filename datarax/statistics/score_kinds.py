"""`SCORE_KINDS`: what scores are taken for, and what in the data tells that they are not that.

The state counts the evidence, so that a reading can warn of all updates, also inside `jit`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax

from datarax._checks import is_integer
from datarax._typing import PyTree
from datarax._xp import none_true, xp
from datarax.algebra.state import State

ScoreKind = Literal["", "probabilities", "distributions", "softmax", "sigmoid", "losses"]
"""The kinds of scores: probabilities that are compared with a threshold, or with those of
other rows ("distributions"); logits of a softmax or of a sigmoid; losses `-log(p)`. "" counts no
evidence."""

FLOAT32_EPS = 2.0**-23


class OfProbabilities(State):
    """The base of states of probabilities, with the field `from_logits` if scores may be logits."""

    @property
    def takes_probabilities(self) -> bool:
        """True if scores that are no probabilities are invalid."""
        with_field: PyTree = self
        return not with_field.from_logits


def root_eps(x: jax.Array) -> float:
    """The root of the eps of the dtype of `x`; that of float32 for a finer one and for integers."""
    return max(eps_of(x), FLOAT32_EPS) ** 0.5


def eps_of(x: jax.Array) -> float:
    """The distance from 1 to the next float of the dtype of `x`; that of float32 for integers."""
    return FLOAT32_EPS if is_integer(x) else float(xp.finfo(x.dtype).eps)


class Evidence(NamedTuple):
    """How the evidence of one kind of scores is found, and what it means."""

    of: Callable[[PyTree, jax.Array], jax.Array]
    """The code of each row of scores, as floats or as `ClassRows`, and of the array that was given,
    whose dtype sets the tolerance: from 1 to `codes`, or 0 for no evidence."""
    codes: int
    """The number of codes."""
    is_doubtful: Callable[[Sequence[int]], bool]
    """True if the scores are probably of another kind, from how often each code was found."""
    what: str
    """The finding, for a warning; `{}` is how many."""
    advice: str
    """The advice of a warning."""


def _outside(x: jax.Array, given: jax.Array) -> jax.Array:
    return ((x < 0) | (x > 1)).astype(xp.int32)


def _other_sum(rows: PyTree, given: jax.Array) -> jax.Array:
    # NaN compares false: such a row is invalid.
    return (xp.abs(rows.total - 1) > root_eps(given)).astype(xp.int32)


def _distribution(rows: PyTree, given: jax.Array) -> jax.Array:
    # One class has the probability 1, or any logit: nothing tells which.
    if rows.size < 2:
        return xp.zeros(rows.scores.shape[:-1], xp.int32)
    is_like = rows.least >= 0
    if none_true(is_like):
        return xp.ones(is_like.shape, xp.int32)  # as of most logits, whose sum is not needed
    is_like &= xp.abs(rows.total - 1) <= max(FLOAT32_EPS**0.5, 4 * eps_of(given))
    return xp.where(is_like, xp.int32(2), xp.int32(1))


def _like_probability(x: jax.Array, given: jax.Array) -> jax.Array:
    code = (x < 0.25).astype(xp.int32) * 2 + (x > 0.75).astype(xp.int32) * 3
    return xp.where((x < 0) | (x > 1), xp.int32(1), code)


def _negative(x: jax.Array, given: jax.Array) -> jax.Array:
    return (x < -root_eps(given)).astype(xp.int32)


FEW = 64
"""With fewer scores, logits of a sigmoid cannot be told from probabilities."""

SCORE_KINDS: dict[str, Evidence] = {
    "probabilities": Evidence(
        _outside,
        1,
        lambda counts: counts[0] > 0,
        "{} scores were not from 0 to 1, and were compared with a threshold of probabilities",
        "If preds are logits, give from_logits=True; if they are other scores, give a threshold= "
        "that is not between 0 and 1, or scale them",
    ),
    "distributions": Evidence(
        _other_sum,
        1,
        lambda counts: counts[0] > 0,
        "{} rows of scores did not sum to 1, so they are no probabilities, and the scores of "
        "different rows were compared as they are",
        "If preds are logits, give from_logits=True, which compares their softmax; if not, give "
        "from_logits=False",
    ),
    # A row may be a distribution by chance, but not all rows.
    "softmax": Evidence(
        _distribution,
        2,
        lambda counts: counts[0] == 0 and counts[1] > 1,
        "all {} rows held numbers from 0 to 1 with a sum of 1, and their softmax was computed, as "
        "of logits",
        "If they are probabilities, give from_logits=False, or, to a metric that takes only "
        "logits, log(preds)",
    ),
    # Many logits may be from 0 to 1 if they hardly differ. These fill the range of a probability,
    # and end where it ends: half of them are near its ends.
    "sigmoid": Evidence(
        _like_probability,
        3,
        lambda counts: not counts[0] and min(counts[1:]) > 0 and sum(counts) >= FEW // 2,
        "no score was outside 0 to 1, and {} were below 1/4 or above 3/4, and their sigmoid was "
        "computed, as of logits",
        "If they are probabilities, give from_logits=False",
    ),
    "losses": Evidence(
        _negative,
        1,
        lambda counts: counts[0] > 0,
        "{} losses were negative, and a loss -log(p) is not",
        "If preds are logits, leave out from_losses=True; if they are logarithms of "
        "probabilities, give -preds",
    ),
}


def number_of_codes(kind: ScoreKind) -> int:
    """Returns the number of codes of evidence for a kind of scores."""
    return SCORE_KINDS[kind].codes if kind else 0


def evidence(kind: ScoreKind, scores: PyTree, given: jax.Array) -> jax.Array:
    """The code of each row of `scores`, the floats of the array that was `given`."""
    return SCORE_KINDS[kind].of(scores, given)


def doubt(kind: ScoreKind, counts: Sequence[int]) -> str | None:
    """The warning that the evidence asks for, from how often each code was found, or None."""
    row = SCORE_KINDS[kind]
    if not row.is_doubtful(counts):
        return None
    return f"{row.what.format(sum(counts))}. {row.advice}"
