"""Cases of metrics of tokens, of sequences of them, and of samples that are right or not."""

from functools import partial
from math import comb
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.predictions import are_logits

VOCABULARY, LENGTH, LONGER, DRAWN = 6, 4, 6, 2


def weighted_mean(w: np.ndarray, scores: np.ndarray) -> float:
    used = w > 0
    total = fsum(w[used])
    return fsum(w[used] * scores[used]) / total if total else np.nan


def tokens(
    rng: np.random.Generator,
    size: int,
    *,
    ids: Any = range(VOCABULARY),
    logits: Any = None,
    sizes: Any = range(7),
) -> Arrays:
    shape = (size, LENGTH)
    if logits is None:
        preds = 2 * rng.normal(size=(*shape, VOCABULARY))
    else:
        preds = rng.choice(logits, (*shape, VOCABULARY))
    return {
        "preds": preds.astype(np.float32),
        "target": rng.choice(np.asarray(ids, np.int32), shape),
        "num_bytes": rng.choice(np.asarray(sizes, np.int32), shape),
    }


def padded_tokens(rng: np.random.Generator, size: int) -> Arrays:
    """Tokens of a vocabulary that is padded with one that never is."""
    drawn = tokens(rng, size, ids=range(VOCABULARY - 1))
    drawn["preds"][..., -1] = -np.inf
    return drawn


def impossible_tokens(rng: np.random.Generator, size: int) -> Arrays:
    """Tokens of which some have a logit of -inf."""
    drawn = tokens(rng, size)
    drawn["preds"][..., 0], drawn["target"][0] = -np.inf, 0
    return drawn


TOKENS = Inputs(
    "tokens",
    draw=tokens,
    valid=lambda preds, target, num_bytes: (
        are_logits(preds) & (target >= 0) & (target < VOCABULARY)
    ),
    spoil={"preds": (np.nan, np.inf), "target": (-1, VOCABULARY, -100, 2**31 - 1)},
    hard={
        "one id": partial(tokens, ids=(2,)),
        "ties": partial(tokens, logits=(-0.0, 0.0, 1.0)),
        "certain": partial(tokens, logits=(-8.0, 8.0)),
        "no bytes": partial(tokens, sizes=(0,)),
        "ruled out": padded_tokens,
        "impossible": impossible_tokens,
    },
)


def losses(preds: np.ndarray, target: np.ndarray) -> np.ndarray:
    """`-log softmax(preds)[target]` of each token."""
    own = np.take_along_axis(preds, target.astype(int)[..., None], -1)
    possible = own > -np.inf
    loss = np.log(np.exp(preds - np.where(possible, own, 0)).sum(-1))
    return np.where(possible[..., 0], loss, np.inf)


def usable(w: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """The tokens of positive weight."""
    return [x[w > 0] for x in (w, *arrays)]


def perplexity_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, num_bytes: np.ndarray
) -> float:
    w, preds, target = usable(w, preds, target)
    return float(np.exp(weighted_mean(w, losses(preds, target))))


def bits_per_byte_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, num_bytes: np.ndarray
) -> float:
    w, preds, target, num_bytes = usable(w, preds, target, num_bytes)
    total = fsum(w * num_bytes)
    return fsum(w * losses(preds, target)) / np.log(2) / total if total else np.nan


def token_accuracy_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, num_bytes: np.ndarray
) -> float:
    w, preds, target = usable(w, preds, target)
    best = np.argsort(-preds, -1, kind="stable")[..., :DRAWN]
    return weighted_mean(w, (best == target[..., None]).any(-1))


def sequences(
    rng: np.random.Generator, size: int, *, ids: int = 3, right: float = 0.9, most: int = 12
) -> Arrays:
    target = rng.integers(0, ids, (size, LENGTH)).astype(np.int32)
    other = rng.integers(0, ids, (size, LENGTH)).astype(np.int32)
    samples = rng.integers(DRAWN, most, size).astype(np.int32)
    return {
        "preds": np.where(rng.random((size, LENGTH)) < right, target, other).astype(np.int32),
        "target": target,
        "pred_lengths": rng.integers(0, LENGTH + 1, size).astype(np.int32),
        "target_lengths": rng.integers(0, LENGTH + 1, size).astype(np.int32),
        "num_correct": np.floor(rng.random(size) * (samples + 1)).astype(np.int32),
        "num_samples": samples,
    }


def in_full(
    preds: np.ndarray,
    target: np.ndarray,
    pred_lengths: np.ndarray,
    target_lengths: np.ndarray,
    num_correct: np.ndarray,
    num_samples: np.ndarray,
) -> np.ndarray:
    lengths = np.stack([pred_lengths, target_lengths])
    known = ((lengths >= 0) & (lengths <= LENGTH)).all(0) & (target >= 0).all(-1)
    return known & (num_correct >= 0) & (num_correct <= num_samples) & (num_samples >= DRAWN)


# Each row that is spoilt is of no use to any of the three metrics.
SEQUENCES = Inputs(
    "sequences",
    draw=sequences,
    valid=in_full,
    spoil={
        "target": (-1, -100),
        "pred_lengths": (-1, LENGTH + 1, 2**31 - 1),
        "num_samples": (-1, 0, DRAWN - 1),
    },
    hard={
        "one id": partial(sequences, ids=1),
        "all right": partial(sequences, right=1.0),
        "as few samples as are drawn": partial(sequences, most=DRAWN + 1),
        "many samples": partial(sequences, most=2**20),
    },
)


def sequence_accuracy_of(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, **others: np.ndarray
) -> float:
    return weighted_mean(w, (preds == target).all(-1))


def edit_distance_of(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    pred_lengths: np.ndarray,
    target_lengths: np.ndarray,
    **others: np.ndarray,
) -> float:
    used = usable(w, preds, target, pred_lengths, target_lengths)
    distances = [
        Levenshtein.distance(a[: int(m)].tolist(), b[: int(n)].tolist())
        for a, b, m, n in zip(*used[1:], strict=True)
    ]
    return weighted_mean(used[0], np.array(distances, np.float64))


def pass_at_k_of(
    w: np.ndarray, num_correct: np.ndarray, num_samples: np.ndarray, **others: np.ndarray
) -> float:
    w, c, n = usable(w, num_correct, num_samples)
    fails = [comb(int(b - a), DRAWN) / comb(int(b), DRAWN) for a, b in zip(c, n, strict=True)]
    return weighted_mean(w, 1 - np.array(fails, np.float64))


CASES = [
    Case(
        "perplexity",
        metrics.Perplexity,
        TOKENS,
        perplexity_of,
        # The mean of -log(p), here below 16, errs by 6 units, and its exponential by 16 times that.
        ulps=16 * 6,
        together="tokens",
    ),
    Case(
        "bits_per_byte",
        metrics.BitsPerByte,
        TOKENS,
        bits_per_byte_of,
        ulps=8,  # the loss 6, the product with 1 / log(2), the quotient
        together="tokens",
    ),
    Case(
        "token_accuracy",
        metrics.TokenAccuracy,
        TOKENS,
        token_accuracy_of,
        {"top_k": DRAWN},
        together="tokens",
    ),
    Case(
        "sequence_accuracy",
        metrics.SequenceAccuracy,
        SEQUENCES,
        sequence_accuracy_of,
        together="sequences",
        exact=True,
    ),
    Case(
        "edit_distance",
        metrics.EditDistance,
        SEQUENCES,
        edit_distance_of,
        together="sequences",
        exact=True,
    ),
    Case(
        "pass_at_k",
        metrics.PassAtK,
        SEQUENCES,
        pass_at_k_of,
        {"k": DRAWN},
        ulps=8,  # the share, twice its logarithm, their sum, the exponential, the mean
        together="sequences",
    ),
]
