"""The best one-to-one matching of rows and columns, against SciPy's."""

import jax
import numpy as np
import pytest
import scipy.optimize

from datarax.numerics.assignment import best_matching


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (6, 6), (3, 8), (8, 3)])
def test_the_best_matching(shape, rng):
    match = jax.jit(best_matching)
    for high in (2, 5, 1000) * 4:
        gain = rng.integers(0, high, shape).astype(np.float32)
        got = np.asarray(match(gain))
        chosen = got[got >= 0]
        assert len(set(chosen)) == len(chosen) == min(shape)
        want = gain[scipy.optimize.linear_sum_assignment(-gain)].sum()
        assert gain[np.flatnonzero(got >= 0), chosen].sum() == want
