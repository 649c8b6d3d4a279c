"""Isotonic regression against scikit-learn, on the host and in a program."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.isotonic import isotonic_blocks

in_program = jax.jit(lambda p, n: isotonic_blocks(DoubleFloat.of(p), DoubleFloat.of(n)))
N = 64


def staircase():
    """Rises, and then falls at the end, so that groups are pooled one after the other."""
    return np.append(np.arange(1.0, N), 0), np.append(np.full(N - 1, float(N)), 3e5)


DRAWS = {
    "rising": lambda rng: (rng.integers(0, np.arange(1, N + 1)), rng.integers(0, N, N)),
    "random": lambda rng: rng.integers(0, 3, (2, N)),
    "falling": lambda rng: (N - np.arange(N), np.arange(N)),
    "staircase": lambda rng: staircase(),
    "equal shares": lambda rng: np.tile(rng.integers(0, 3, N), (2, 1)),
    "no positives": lambda rng: (np.zeros(N), rng.integers(0, 3, N)),
    "no negatives": lambda rng: (rng.integers(0, 3, N), np.zeros(N)),
    "thirds": lambda rng: rng.integers(0, 4, (2, N)) / 3,
    "nothing": lambda rng: np.zeros((2, N)),
}


def fitted(blocks, used):
    """The value of each group that has weight, from the blocks."""
    p, n = (np.asarray(x.to_float(), float) for x in blocks[:2])
    count = int((p + n > 0).sum())
    assert (p + n > 0)[:count].all()
    first = np.asarray(blocks.first)
    assert (first[count:] == N).all()
    ends = np.append(first[:count], N)
    lengths = [used[start:end].sum() for start, end in pairwise(ends)]
    return np.repeat(p[:count] / (p + n)[:count], lengths)


@pytest.mark.parametrize("kind", DRAWS)
def test_it_is_that_of_scikit_learn(kind, rng):
    p, n = (np.asarray(x, np.float32) for x in DRAWS[kind](rng))
    used = p + n > 0
    want = np.zeros(0)
    if used.any():
        share, w = (p / np.where(used, p + n, 1))[used], (p + n)[used]
        want = IsotonicRegression().fit_transform(np.arange(used.sum()), share, sample_weight=w)
    host = isotonic_blocks(DoubleFloat.of(p), DoubleFloat.of(n))
    np.testing.assert_allclose(fitted(host, used), want, rtol=0, atol=1e-6)
    # Shares rise strictly: pooling is complete, and no block can be split into equal ones.
    count = int((host.first < N).sum())
    a, b = (np.asarray(x.to_float())[:count] for x in host[:2])
    assert (a[:-1] * b[1:] < a[1:] * b[:-1]).all()
    for got, expected in zip(in_program(p, n), host, strict=True):
        got, expected = (x.to_float() if isinstance(x, DoubleFloat) else x for x in (got, expected))
        np.testing.assert_allclose(np.asarray(got), expected, rtol=2.0**-23)


def test_several_at_once_are_each_as_alone(rng):
    several = rng.integers(0, 3, (2, 5, N)).astype(np.float32)
    got = jax.vmap(in_program)(*several)
    for i, one in enumerate(np.moveaxis(several, 1, 0)):
        want = jax.tree.leaves(in_program(*one))
        for a, b in zip(jax.tree.leaves(got), want, strict=True):
            np.testing.assert_array_equal(np.asarray(a)[i], np.asarray(b))
