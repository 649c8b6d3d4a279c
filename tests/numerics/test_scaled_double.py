"""Powers of differences, and their sums, against exact rationals."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax.algebra.fold import Term, reduced
from datarax.numerics.scaled_double import unit_difference
from tests.numerics.doubles import some_floats


@pytest.mark.parametrize("power", range(1, 7))
@pytest.mark.parametrize("kind", ["near", "far", "of all sizes"])
def test_a_sum_of_powers_of_differences(rng, power, kind):
    x, y = some_floats(rng, 400), some_floats(rng, 400)
    if kind == "near":
        x = np.float32(rng.uniform(1e6, 2e6, 400))
        y = np.float32(x + np.spacing(x) * rng.integers(-2, 3, 400))
        x[-1], y[-1] = 1e-6, 3e-6
    elif kind == "far":
        x, y = np.float32([3e38] * 400), np.float32([-3e38] * 400)

    @jax.jit
    def total(x, y):
        (found,) = reduced([Term(abs(unit_difference(x, y)) ** power, (0,))])
        return *found.double, found.exponent

    high, low, exponent = total(jnp.asarray(x), jnp.asarray(y))
    got = (Fraction(float(high)) + Fraction(float(low))) * Fraction(2) ** int(exponent)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    want = sum(abs(Fraction(a) - Fraction(b)) ** power for a, b in pairs)
    assert abs(got - want) <= want / 2**26
