"""Sums of runs against NumPy, in float64."""

import jax
import numpy as np
import pytest

from datarax.numerics.run_sums import run_sums


@pytest.mark.parametrize("sums", [run_sums, jax.jit(run_sums)], ids=["NumPy", "jit"])
@pytest.mark.parametrize("size", [1, 2, 37, 600])
def test_sums_of_runs(rng, size, sums):
    run = np.sort(rng.integers(0, max(size // 4, 1), (3, size)), -1)
    x = rng.uniform(0, 1, (3, size)).astype(np.float32)
    differs = run[:, 1:] != run[:, :-1]
    edge = np.ones((3, 1), bool)
    first, last = np.append(edge, differs, -1), np.append(differs, edge, -1)
    total = sums(x, first, last)
    for row in range(3):
        want = np.bincount(run[row], x[row].astype(np.float64))[run[row]]
        got = np.float64(total.high[row]) + np.float64(total.low[row])
        np.testing.assert_allclose(got, np.where(first[row], want, 0), rtol=2.0**-44)


def test_the_sum_from_each_element_to_the_end_of_its_run(rng):
    x, last = rng.uniform(0, 1, (3, 20)).astype(np.float32), rng.random((3, 20)) < 0.2
    every = np.ones_like(last)
    for sums in (run_sums, jax.jit(run_sums)):
        total = sums(x, every, last)
        for row in range(3):
            for i in range(20):
                end = next((j for j in range(i, 20) if last[row, j]), 19)
                want = x[row, i : end + 1].astype(np.float64).sum()
                np.testing.assert_allclose(np.float64(total.high[row, i]), want, rtol=2.0**-23)
