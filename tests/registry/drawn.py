"""Random data drawn by Hypothesis, number by number, so that what fails is shrunk."""

import math
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st
from scipy.special import ndtri

_STEPS = 2**15
# Hypothesis limits how much one example may draw: the numbers after so many come from a seed.
_MOST = 600


class DrawnGenerator:
    """The methods of `numpy.random.Generator` that the registry uses, on numbers from Hypothesis.

    Each number is made of one integer, which shrinks to 0: a normal number to its mean, an integer
    to the lowest, a choice to the first. Ties and extremes come more often than by chance.
    """

    def __init__(self, data: Any):
        self.draw = data.draw
        self.left = _MOST

    def _integers(self, low: int, high: int, size: Any) -> np.ndarray:
        shape = () if size is None else size
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.left -= math.prod(shape)
        if self.left < 0:
            rng = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1), label="seed"))
            return rng.integers(low, high, shape, endpoint=True)
        elements = st.integers(low, high)
        return self.draw(hnp.arrays(np.int64, shape, elements=elements, fill=st.nothing()))

    def integers(self, low: int, high: int | None = None, size: Any = None) -> Any:
        low, high = (0, low) if high is None else (low, high)
        drawn = self._integers(int(low), int(high) - 1, size)
        return int(drawn) if size is None else drawn

    def random(self, size: Any = None) -> Any:
        return (self._integers(0, 2 * _STEPS - 1, size) + 0.5) / (2 * _STEPS)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return low + (np.asarray(high) - low) * self.random(size)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        if size is None:
            size = np.broadcast_shapes(np.shape(loc), np.shape(scale))
        drawn = self._integers(1 - _STEPS, _STEPS - 1, size)
        return np.asarray(loc) + np.asarray(scale) * ndtri(0.5 + drawn / (2 * _STEPS))

    def lognormal(self, mean: Any = 0.0, sigma: Any = 1.0, size: Any = None) -> Any:
        return np.exp(self.normal(mean, sigma, size))

    def choice(self, a: Any, size: Any = None, replace: bool = True) -> Any:
        a = np.arange(a) if isinstance(a, int) else np.asarray(a)
        if not replace:
            return self.permutation(a)[:size]
        return a[self._integers(0, len(a) - 1, size)]

    def permutation(self, a: Any) -> np.ndarray:
        a = np.arange(a) if isinstance(a, int) else np.asarray(a)
        return a[list(self.draw(st.permutations(range(len(a)))))]

    def multinomial(self, n: Any, pvals: Any) -> np.ndarray:
        n, edges = np.asarray(n), np.cumsum(pvals)[:-1]
        kinds = np.searchsorted(edges, self.random((*n.shape, int(n.max(initial=0)))))
        counted = np.arange(kinds.shape[-1]) < n[..., None]
        return ((kinds[..., None] == np.arange(len(pvals))) & counted[..., None]).sum(-2)
