"""Inputs that lie on edges: on thresholds, on edges of bins, equal scores, powers of two.

Random floats never lie there. There the host, which computes in float64, and a program, which
computes in float32, could decide in different ways.
"""

from collections.abc import Callable, Mapping

import numpy as np

from tests.registry.case import Arrays, Inputs

SHARES = np.float32([0, 0.1, 0.2, 0.3, 1 / 3, 0.4, 0.5, 0.6, 2 / 3, 0.7, 0.8, 0.9, 1])
"""Thresholds, and edges of 2, 3, 5, 10 and 15 bins."""
ROWS = ((1, 0, 0, 0), (0.5, 0.5, 0, 0), (0.5, 0.25, 0.25, 0), (1 / 3, 1 / 3, 1 / 3, 0))
"""Probabilities with ties, of up to four classes."""


def _are_probabilities(x: np.ndarray) -> bool:
    if x.ndim < 2 or x.shape[-1] < len(ROWS[0]) or x.min() < 0:
        return False
    return bool(np.allclose(x.sum(-1), 1, atol=1e-5))


def shares(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Of numbers from 0 to 1 thresholds and edges of bins; of others small multiples of 1/4."""
    if _are_probabilities(x):
        rows = np.float32(ROWS)[rng.integers(0, len(ROWS), x.shape[:-1])]
        wide = np.zeros(x.shape, np.float32)
        wide[..., : rows.shape[-1]] = rows
        return rng.permuted(wide, axis=-1)
    if x.min() >= 0 and x.max() <= 1:
        return rng.choice(SHARES, x.shape)
    return np.round(x * 4) / np.float32(4)


def neighbours(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """`shares`, some of them the next float above or below."""
    if _are_probabilities(x):
        return shares(rng, x)
    x = shares(rng, x)
    toward = rng.choice(np.float32([0, 1, np.nan]), x.shape)
    return np.where(np.isnan(toward), x, np.nextafter(x, toward))


def powers_of_two(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """The power of two nearest to each number."""
    if _are_probabilities(x):
        return shares(rng, x)
    exponent = np.frexp(np.where(x == 0, 1, x))[1]
    return (np.sign(x) * np.ldexp(np.float32(1), exponent - 1)).astype(x.dtype)


def equal_rows(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """All numbers of a row are equal, in half of the rows; with one axis, of all examples."""
    if _are_probabilities(x):
        return np.full_like(x, 1 / x.shape[-1])
    equal = rng.random(len(x)) < 0.5
    out = x.copy()
    out[equal] = x[equal][..., :1] if x.ndim > 1 else x[:1]
    return out


def subnormals(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """A third of the numbers are subnormal, or the least normal number."""
    if _are_probabilities(x):
        return shares(rng, x)
    tiny = rng.choice(np.float32([1e-40, 3e-40, 2.0**-126, 1e-45]), x.shape)
    return np.where(rng.random(x.shape) < 1 / 3, np.copysign(tiny, x), x)


def flushed(x: np.ndarray) -> np.ndarray:
    """Float32 numbers with the subnormal ones as 0, as metrics count them."""
    if x.dtype != np.float32:
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


KINDS: Mapping[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "shares": shares,
    "neighbours": neighbours,
    "powers of two": powers_of_two,
    "equal rows": equal_rows,
    "subnormals": subnormals,
}


def on_edges(inputs: Inputs, kind: str, rng: np.random.Generator, size: int) -> Arrays:
    """Ordinary inputs with their floats moved to edges of this kind."""
    move = KINDS[kind]
    return {
        name: move(rng, x).astype(np.float32) if x.dtype == np.float32 and x.size else x
        for name, x in inputs.draw(rng, size).items()
    }
