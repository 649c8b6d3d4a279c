"""Doubles and limbs for the tests, and what they stand for, in exact rationals."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np

from datarax.numerics import DoubleFloat
from datarax.numerics.pairs import two_sum


def some_floats(rng, size, decades=12):
    """Floats of all magnitudes up to 10**decades, of both signs, and some zeros."""
    x = rng.standard_normal(size) * 10.0 ** rng.uniform(-decades, decades, size)
    return np.where(rng.random(size) < 0.1, 0.0, x).astype(np.float32)


def some_doubles(rng, size):
    """Normalised double-floats: the low part at most half an ulp of the high one."""
    high = some_floats(rng, size)
    low = (rng.uniform(-0.5, 0.5, size) * np.spacing(np.abs(high))).astype(np.float32)
    return DoubleFloat(*two_sum(jnp.asarray(high), jnp.asarray(low)))


def exact(double):
    """The numbers that a double-float stands for, as fractions."""
    high, low = (np.asarray(x) for x in double)
    return [
        Fraction(float(h)) + Fraction(float(x))
        for h, x in zip(high.ravel(), low.ravel(), strict=True)
    ]


def to_int(limbs):
    """The integers that limbs stand for, in Python."""
    high, low = (np.asarray(x) for x in limbs)
    return [(int(h) << 32) + int(x) for h, x in zip(high.ravel(), low.ravel(), strict=True)]


def from_int(values):
    """The limbs of Python's integers."""
    high, low = zip(*(divmod(int(v), 2**32) for v in values), strict=True)
    return jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.uint32)
