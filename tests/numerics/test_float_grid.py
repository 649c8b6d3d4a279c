"""Which bin a float falls into, and the least float of each bin."""

import jax
import numpy as np
import pytest

from datarax.numerics.float_grid import FloatGrid


@pytest.mark.parametrize("bits", [10, 16])
def test_bins_are_monotone_and_begin_at_their_lowest(rng, bits):
    grid = FloatGrid(bits)
    bins = jax.jit(grid.bin)
    lowest = grid.lowest()[:-1]  # the last would be of infinity
    normal = np.abs(lowest) >= np.finfo(np.float32).tiny
    # Bins of 1 - x, below 1, that no float falls into have the lowest of the next.
    some = normal & (np.append(np.diff(lowest), 1) > 0)
    assert some.sum() > 0.9 * grid.size
    np.testing.assert_array_equal(bins(lowest[some]), np.flatnonzero(some))
    below = np.nextafter(lowest[some][1:], np.float32(-np.inf))
    assert (np.asarray(bins(below)) < np.flatnonzero(some)[1:]).all()
    x = np.sort(rng.normal(size=20_000) * 10.0 ** rng.integers(-30, 30, 20_000)).astype(np.float32)
    place = np.asarray(bins(x))
    assert (np.diff(place) >= 0).all()
    assert (lowest[place] <= x).all()
    assert ((place >= 0) & (place < grid.size - 1)).all()


def test_as_fine_toward_1_as_toward_0():
    grid = FloatGrid(16)
    near = np.float32(2.0) ** -np.arange(3, 20, dtype=np.float32)
    bins = jax.jit(grid.bin)
    for x in (near, 1 - near):
        assert len(set(np.asarray(bins(x)).tolist())) == len(near)
