"""Poisson counts for the bootstrap: a function of keys, the same on any device."""

import math
from functools import lru_cache

import jax
import numpy as np

from datarax._xp import xp
from datarax.numerics.hashing import mixed

_STEPS = 1 << 16


def poisson_counts(keys: jax.Array, replicas: int, seed: int) -> jax.Array:
    """For each key and each replica, a Poisson variate of mean 1: (keys, replicas) int8.

    Each hash of 32 bits gives two uniform variates of 16 bits. Their distribution is that of a
    Poisson variate within 2e-5; its mean is exactly 1, so that sums are not biased, and the
    greatest count is 8.

    Args:
        keys: hashes, (N,) uint32.
        replicas: how many variates for each key.
        seed: another seed gives other variates.
    """
    half = -(-replicas // 2)
    streams = mixed(xp.arange(half, dtype=xp.uint32) + xp.uint32(seed * 0x9E3779B9 % 2**32))
    bits = mixed(keys[:, None] ^ streams[None, :])
    uniform = xp.concatenate([bits >> xp.uint32(16), bits & xp.uint32(_STEPS - 1)], -1)
    uniform = uniform[:, :replicas].astype(xp.uint16)
    counts = xp.zeros(uniform.shape, xp.int8)
    for threshold in thresholds():
        counts = counts + (uniform >= xp.uint16(threshold)).astype(xp.int8)
    return counts


@lru_cache
def thresholds() -> tuple[int, ...]:
    """A variate is at least k where the uniform variate is at least the threshold of k."""
    below = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(12)]) * _STEPS
    steps = [round(x) for x in below if round(x) < _STEPS]
    # The mean is the sum of the probabilities of "at least k". Rounding is corrected at k = 1.
    steps[0] += sum(_STEPS - x for x in steps) - _STEPS
    return tuple(steps)
