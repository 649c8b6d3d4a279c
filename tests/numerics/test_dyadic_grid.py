"""The bins of a range: intervals in the order of numbers, which a larger range only joins."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.dyadic_grid import DyadicGrid, WideGrid

SIZE = 400
TINY = float(np.finfo(np.float32).tiny)
GRIDS = {"fine": (16, 20, 20), "coarse": (10, 10, 10), "values": (12, 124, 0)}
each_grid = pytest.mark.parametrize("shape", GRIDS.values(), ids=GRIDS)

KINDS = {
    "logits": lambda rng: rng.normal(size=SIZE) * 3,
    "of any scale": lambda rng: rng.normal(size=SIZE) * 10.0 ** rng.uniform(-8, 8),
    "uniform": lambda rng: rng.random(SIZE),
    "probabilities": lambda rng: 1 / (1 + np.exp(-6 * rng.normal(size=SIZE))),
    "saturated": lambda rng: 1 - 10.0 ** rng.uniform(-8, 0, SIZE),
    "offset": lambda rng: 10.0 ** rng.uniform(-4, 4) + rng.normal(size=SIZE),
    "around 1": lambda rng: 1 + rng.normal(size=SIZE) * 10.0 ** rng.uniform(-8, 0),
    "around 1, of all scales": lambda rng: (
        1 + rng.choice([-1, 1], SIZE) * 10.0 ** rng.uniform(-8, rng.uniform(-6, 1), SIZE)
    ),
    "above 1": lambda rng: 1 + 10.0 ** rng.uniform(-8, rng.uniform(-6, 2), SIZE),
    "of all scales": lambda rng: rng.normal(size=SIZE) * 10.0 ** rng.uniform(-30, 30, SIZE),
    "negative": lambda rng: -rng.lognormal(0, 5, SIZE),
    "at edges": lambda rng: rng.choice([0.5, 1.0, 0.25, 2.0, -1.0, 0.0, 0.75, 1 - 2**-24], SIZE),
    "tiny": lambda rng: rng.random(SIZE) * 1e-36,
    "tiny, of many scales": lambda rng: 10.0 ** rng.uniform(-38, -28, SIZE),
}


@partial(jax.jit, static_argnums=2)
def places(ends, x, shape):
    """The place of each number, the shift, and the rank and the least number of its bin."""
    grid = DyadicGrid.of(*ends[:, None], *shape)
    place = grid.place(x[:, None])[:, 0]
    rank = grid.ranks()[0][place]
    return place, grid.shift[0], rank, grid.lowest(rank[None])[0]


def of(x, shape):
    ends = np.array([x.min(), x.max()])
    return map(np.asarray, places(ends, x, shape))


def drawn(rng, kind):
    x = KINDS[kind](rng).astype(np.float32)
    return np.where(np.abs(x) < TINY, np.float32(0), x)


@each_grid
@pytest.mark.parametrize("kind", KINDS)
def test_bins_are_intervals_in_order(rng, shape, kind):
    x = np.sort(drawn(rng, kind))
    place, _, rank, lowest = of(x, shape)
    assert rank.min() == 0
    assert rank.max() < 2 ** shape[0]
    assert (np.diff(rank) >= 0).all()
    assert len(set(place.tolist())) == len(set(rank.tolist()))
    assert (lowest <= x).all()
    first = np.flatnonzero(np.diff(rank)) + 1
    assert (lowest[first] > x[first - 1]).all()


@each_grid
def test_a_larger_range_only_joins_bins(rng, shape):
    for _ in range(60):
        some, more = (drawn(rng, kind) for kind in rng.choice(list(KINDS), 2))
        some = np.resize(some[: rng.integers(1, SIZE)], SIZE)
        both = np.array([min(some.min(), more.min()), max(some.max(), more.max())])
        old, shift, *_ = of(some, shape)
        new, wider, *_ = map(np.asarray, places(both, some, shape))
        assert wider >= shift
        # Numbers of one bin stay in one bin.
        pairs = set(zip(old.tolist(), new.tolist(), strict=True))
        assert len(pairs) == len(set(old.tolist()))


@each_grid
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_move_to_those_that_hold_them(rng, shape, dtype):
    with np.errstate(all="ignore"):
        for _ in range(150):
            some, more = (drawn(rng, kind).astype(dtype) for kind in rng.choice(list(KINDS), 2))
            some = some[: rng.integers(1, SIZE)]
            # Of a greatest value far above 1, the numbers below 1 lose their mirror.
            more = more * dtype(2.0 ** rng.integers(-4, 30))
            least, greatest = some.min(keepdims=True), some.max(keepdims=True)
            old = DyadicGrid.of(least, greatest, *shape)
            least = np.minimum(least, more.min(keepdims=True))
            new = DyadicGrid.of(least, np.maximum(greatest, more.max(keepdims=True)), *shape)
            inside = np.array([0, 0.25, 0.5, 0.75, 1 - 2**-24, 1, 1 + 2**-23, 1.5], dtype)
            inside = np.concatenate([some, np.clip(inside, some.min(), some.max())])
            inside = np.where(np.abs(inside) < TINY, dtype(0), inside)
            place = old.place(inside[:, None])[:, 0]
            want = new.place(inside[:, None])[:, 0]
            np.testing.assert_array_equal(old.places_on(new)[0][place], want)


def test_infinities_have_places_of_their_own():
    x = np.full(SIZE, np.inf, np.float32)
    x[:2] = -np.inf, 1
    place, *_ = map(np.asarray, places(np.float32([1, 1]), x, (10, 10, 10)))
    assert place[0] == 2**10
    assert (place[2:] == 2**10 + 1).all()
    assert place[1] < 2**10


def test_a_narrow_range_far_from_zero_has_narrow_bins(rng):
    x = (1000 + rng.normal(size=SIZE)).astype(np.float32)
    place, *_ = of(x, (16, 20, 20))
    # The floats there are 6e-5 apart; a bin holds two of them.
    assert len(set(place.tolist())) > 0.45 * len(set(x.tolist()))


def test_as_fine_toward_1_as_toward_0():
    x = np.resize(2.0 ** -np.arange(3, 20, dtype=np.float32), SIZE).astype(np.float32)
    both = np.float32([2.0**-24, 1])
    low, *_ = map(np.asarray, places(both, x, (16, 20, 20)))
    high, *_ = map(np.asarray, places(both, 1 - x, (16, 20, 20)))
    assert len(set(low.tolist())) == len(set(high.tolist())) == 17


@pytest.mark.parametrize("bits", [10, 12, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_from_1_on_bins_are_narrow_whatever_is_below(rng, bits, dtype):
    octaves = 10 if bits < 14 else 20
    spacing = float(np.finfo(dtype).eps)
    for _ in range(30):
        r = dtype(10.0 ** rng.uniform(-6, 0))
        least, greatest = dtype([rng.choice([0, 0.3, 1 - r])]), dtype([1]) + r
        with np.errstate(all="ignore"):
            grid = DyadicGrid.of(least, greatest, bits, octaves, octaves)
            x = np.sort(1 + r * rng.random(100).astype(dtype))
            place = grid.place(x[:, None])[:, 0]
        apart = np.diff(x) > max(16 * r / 2**bits, 0.5 * spacing)
        assert (np.diff(place)[apart] != 0).all()


@pytest.mark.parametrize("bits", [12, 14, 16])
@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
def test_a_narrow_range_around_1_has_narrow_bins(rng, bits, scale):
    octaves = 10 if bits < 14 else 20
    x = (1 + scale * np.clip(rng.normal(size=SIZE), -4, 4)).astype(np.float32)
    place, *_ = of(x, (bits, octaves, octaves))
    # Of equal bins in the range: an eighth of them, or one for each float.
    coarse = np.unique(np.floor((x - x.min()) / (np.ptp(x) * 8 / 2**bits)))
    assert len(set(place.tolist())) >= 0.9 * min(len(coarse), len(set(x.tolist())))


def test_what_is_above_1_leaves_the_bins_near_0_and_1_as_they_are(rng):
    x = np.concatenate([10.0 ** rng.uniform(-6, 0, SIZE // 2), 1 - 10.0 ** rng.uniform(-4, 0, 200)])
    x = np.sort(x[x < 1]).astype(np.float32)
    for shape in (GRIDS["fine"], GRIDS["coarse"]):
        alone, shift, *_ = map(np.asarray, places(np.float32([1e-6, 1]), x, shape))
        beside, wider, *_ = map(np.asarray, places(np.float32([1e-6, 1.3]), x, shape))
        assert shift == wider
        if shape == GRIDS["fine"]:
            assert len(set(alone.tolist())) == len(set(beside.tolist()))


def test_without_values():
    grid = DyadicGrid.of(jnp.array([jnp.inf]), jnp.array([-jnp.inf]), 10, 10, 10)
    assert not grid.has_values[0]
    assert jnp.isfinite(grid.lowest(jnp.zeros((1, 1), jnp.int32))).all()


@pytest.mark.parametrize("bits", [6, 8, 10, 13])
def test_floats_have_the_places_of_float64_on_the_host(bits, rng):
    """Where 32 bits of a number tell its bin, these alone place it; else all 64 do."""
    narrow = 0
    for low, high in (
        (-4, 5),
        (1000, 1000.001),
        (1000, 1001),
        (1e-30, 1e30),
        (-1e-37, 1),
        (0, 2**24),
        (-7, -1),
    ):
        x = np.concatenate(
            [rng.uniform(low, high, 500), 2.0 ** rng.integers(-130, 20, 500), [low, high, 0.0]]
        )
        x = np.clip(np.concatenate([x, -x, np.nextafter(x, 0)]), low, high)[:, None]
        for given in (x.astype(np.float32), x):
            x64 = given.astype(np.float64)
            reach = np.float32([[x64.min()], [-x64.max()]])
            reach = np.nextafter(reach, np.float32(-np.inf))
            grid = WideGrid.of_reach(reach, bits, 15, 0)
            assert isinstance(grid, WideGrid)
            want = grid._in_float64(ordered=False).place(x64)
            values = given if given.dtype == np.float32 else DoubleFloat.of_float64(x64)
            np.testing.assert_array_equal(grid.place(values), want)
            narrow += grid._of_floats() is None
    assert 0 < narrow < 14
