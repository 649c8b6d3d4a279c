"""Random texts for the tests of metrics of strings."""

from itertools import pairwise

import numpy as np

from tests.registry.texts import WORDS


def text(rng: np.random.Generator, most: int = 12, least: int = 0) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(least, most)))


def edited(rng: np.random.Generator, source: str) -> str:
    """A text with some of the words of another one, and others, in nearly their order."""
    words = [word for word in source.split() if rng.uniform() < 0.8]
    for _ in range(rng.integers(0, 3)):
        words.insert(rng.integers(0, len(words) + 1), rng.choice(WORDS))
    if len(words) > 3 and rng.uniform() < 0.3:
        words = [*words[2:], *words[:2]]
    return " ".join(words)


def pairs(rng: np.random.Generator, size: int, *, least: int = 0) -> tuple[list[str], list[str]]:
    target = [text(rng, least=least) for _ in range(size)]
    return [edited(rng, each) for each in target], target


def with_references(
    rng: np.random.Generator, size: int, several: int = 3
) -> tuple[list[str], list[tuple[str, ...]]]:
    # Tuples, because N lists of N references warn.
    preds, target = pairs(rng, size)
    return preds, [(each, *(edited(rng, each) for _ in range(several - 1))) for each in target]


def batches(rng: np.random.Generator, size: int, count: int) -> list[slice]:
    ends = [0, *np.sort(rng.integers(0, size + 1, count - 1)), size]
    return [slice(a, b) for a, b in pairwise(ends)]
