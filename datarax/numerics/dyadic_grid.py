"""`DyadicGrid`: bins over the range of the values; if the range grows, bins are only joined."""

import operator
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._x64 import elementary_in_x64
from datarax._xp import lax, on_host, xp
from datarax.numerics.double_float import DoubleFloat, has_wide

SPECIAL = 2
"""The number of bins besides the `2**bits` of the range: for -infinity and infinity."""
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_as_column = operator.itemgetter(np.s_[:, None])


class DyadicGrid(NamedTuple):
    """The bins of each class: a function of its least and greatest finite value.

    Each number has a key, an integer in the order of the numbers. With e the greatest power of two
    in the range, the key of |x| counts floats in the `octaves` powers of two up to e, as the bits
    of a float do; below them it counts equal steps, down to 0. A bin is the numbers whose keys
    agree after a shift: so it is an interval, and narrow where numbers are small. `shift` is the
    least with which the keys of the range differ by less than `2**bits`; if the range holds both
    signs, the least with which all keys do. The place of a number is its shifted key modulo
    `2**bits`: so a range that grows leaves the bins in their places until e or `shift` changes.

    With `mirrored`, numbers x from 1/2 to 1 have the key of `1 - x` in reverse order, so that bins
    are as narrow toward 1 as toward 0, as probabilities need. A range that ends just above 1 then
    has far more keys below 1 than above. So keys from that of 1 on have a shift of their own,
    `above`: the least with which an eighth of the bins is enough for the numbers from 1 to the
    greatest, or `shift` if that is less. If the greatest is `1 + r` with r up to 1, bins above 1
    are at most `16 * r / 2**bits` wide, or hold one float. The room for them is taken from the
    lowest powers of two of `1 - x`: `start` is the lowest with narrow bins, and rises if there are
    numbers above 1.

    If the range grows, e, `start` and the shifts do not fall, and each bin is a union of earlier
    bins. So counts on a grid do not depend on the order in which the values came.
    """

    least: jax.Array
    """The least value of each class, (size,); infinity if there is none."""
    greatest: jax.Array
    """The greatest value of each class, (size,); -infinity if there is none."""
    first: jax.Array
    """The key of the least value, (size,), of any number if there is none."""
    bottom: jax.Array
    """The biased exponent of the lowest power of two with the bins of floats, (size,)."""
    shift: jax.Array
    """The number of bits of the keys that are cut, (size,)."""
    start: jax.Array
    """The same as `bottom`, of `1 - x`, (size,); not used if not `mirrored`."""
    above: jax.Array
    """The number of bits of the keys from that of 1 on that are cut, (size,); as `start`."""
    bits: int
    """There are `2**bits` bins; at least 10."""
    octaves: int
    mirrored: int
    """The number of powers of two of `1 - x` with narrow bins, about `octaves`; 0 if 1 is
    like any other number."""

    @classmethod
    def of_reach(cls, reach: jax.Array, *settings: int) -> "DyadicGrid":
        """The grid of `reach[0]` to `-reach[1]`, see `of`; on the host made once."""
        if on_host(reach):  # most updates leave the range as it is
            # Other grids must not ask: the question starts the devices.
            wide = issubclass(cls, WideGrid) and has_wide(reach.dtype)
            return _grid_on_host(cls, wide, reach.tobytes(), reach.dtype, reach.shape, *settings)
        return cls.of(reach[0], -reach[1], *settings)

    @classmethod
    def of(
        cls, least: jax.Array, greatest: jax.Array, bits: int, octaves: int, mirrored: int
    ) -> "DyadicGrid":
        """The grid of the range from `least` to `greatest`."""
        digits = _digits(least.dtype)
        ends = xp.where(least <= greatest, xp.stack([least, greatest]), np.ones((), least.dtype))
        top = _bits(xp.max(xp.abs(ends), 0)) >> digits
        bottom = xp.maximum(top - (octaves - 1), 1)
        lowest = _bias(least.dtype) - 1 - mirrored
        start = xp.full_like(bottom, lowest)
        grid = cls(least, greatest, bottom, bottom, bottom, start, bottom, bits, octaves, mirrored)
        first, last = grid._key(ends, bottom[None], start[None])
        every = (2 * (octaves + 1) + mirrored) << digits
        most = max(0, (every - 1).bit_length() - bits)
        shifts = xp.arange(most, dtype=first.dtype)[:, None]

        def least_shift(is_wide: jax.Array) -> jax.Array:
            return xp.sum(is_wide, 0, dtype=first.dtype)

        wide = (last[None] >> shifts) - (first[None] >> shifts) >= 1 << bits
        # Keys of numbers below zero are negative.
        shift = xp.where((first ^ last) < 0, np.asarray(most, first.dtype), least_shift(wide))
        grid = grid._replace(first=first, shift=shift)
        if not mirrored:
            return grid
        one, eighth = grid._split(bottom, start), 1 << (bits - 3)
        more = last - one
        above = xp.minimum(shift, least_shift(more[None] >> shifts >= eighth))
        has_mirror = bottom < _bias(least.dtype)
        above = xp.where(has_mirror, above, shift)
        # As many powers of two of `1 - x` as have room for the bins above 1; fewer if all keys
        # together leave bins free.
        ring = 1 << max(0, most + bits - digits)
        enough = max(ring // 16, (every >> digits) - 1 - ring * 7 // 8, 1)
        raised = xp.minimum((xp.minimum(more, eighth - 1) >> (digits - shift)) + 1, enough)
        raised = xp.where(has_mirror & (ends[1] > 1), raised, 0)
        # The key of the least value with this `start`.
        below = one - first
        below = xp.where(below > 0, _steps(below, raised + 1), below)
        first = one - (raised << digits) - below
        return grid._replace(first=first, start=start + raised, above=above)

    @property
    def scale(self) -> tuple[jax.Array, ...]:
        """The scale of the bins of each class: `bottom`, the shifts and `start`."""
        scale = self.bottom, self.shift, self.start, self.above
        return scale if self.mirrored else scale[:2]

    def with_scale(self, *scale: jax.Array) -> "DyadicGrid":
        """The same range with the bins of another scale."""
        return self._make([*self[:3], *scale, *self[3 + len(scale) :]])

    def differs_from(self, other: "DyadicGrid") -> jax.Array:
        """The mask of the classes that have other bins."""
        return reduce(operator.or_, map(operator.ne, self.scale, other.scale))

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "DyadicGrid":
        """The grid of other classes: `function` of each array, of shape (size,)."""
        return self._make([*map(function, self[:7]), *self[7:]])

    @property
    def slots(self) -> int:
        """The length of the table of a class."""
        return (1 << self.bits) + SPECIAL

    @property
    def has_values(self) -> jax.Array:
        """True for the classes that have a range."""
        return self.least <= self.greatest

    def place(self, x: jax.Array, rest: jax.Array | None = None) -> jax.Array:
        """The place of each number, (..., size), in the table of its class; not of NaN.

        `rest` may have more digits of 1 minus the number, for numbers from 1/2 to 1 that were
        rounded down to floats.
        """
        ring = 1 << self.bits
        own = self.with_scale(*(lax.expand_dims(y, range(x.ndim - 1)) for y in self.scale))
        place = own._cut(own._key(x, own.bottom, own.start, rest)) & (ring - 1)
        ends = xp.where(x < 0, xp.int32(ring), xp.int32(ring + 1))
        return xp.where(xp.isinf(x), ends, place.astype(xp.int32))

    def ranks(self) -> jax.Array:
        """The rank of each place but the special ones, in the order of values: (size, bins)."""
        return self._ranks(self._first())

    def lowest(self, rank: jax.Array) -> jax.Array:
        """The least number of the bins of these ranks, (size, ...): the bins from `least` on."""
        return self._lowest(self._first(), rank)

    def places_on(self, other: "DyadicGrid") -> jax.Array:
        """The place on another grid, whose bins are unions of these, of each place but the
        special ones: (size, bins)."""
        own, other = self._columns(), other._columns()
        first = self._first()
        moved = other._cut(own._key_on(other, own._uncut(first + self._ranks(first))))
        return (moved & ((1 << self.bits) - 1)).astype(xp.int32)

    def _first(self) -> jax.Array:
        """The number of the bin of the least value, (size, 1)."""
        return self._cut(self.first)[:, None]

    def _ranks(self, first: jax.Array) -> jax.Array:
        ring = 1 << self.bits
        return (xp.arange(ring, dtype=first.dtype)[None, :] - first) & (ring - 1)

    def _lowest(self, first: jax.Array, rank: jax.Array) -> jax.Array:
        own = self._columns()
        key = own._uncut(first + rank.astype(first.dtype))
        x = self._from_key(key, own.bottom, own.start)
        # Of a negative number, the greatest |x|: the float before the one of the next key.
        return xp.where(key < 0, -_float(_bits(x) - 1), x)

    def _columns(self) -> "DyadicGrid":
        """The grid for arrays of shape (size, ...)."""
        return self.with_scale(*map(_as_column, self.scale))

    def _cut(self, key: jax.Array) -> jax.Array:
        """The number of the bin of a key: it counts bins in ascending order."""
        if not self.mirrored:
            return key >> self.shift
        more = key - self._split(self.bottom, self.start)
        return more >> xp.where(more < 0, self.shift, self.above)

    def _uncut(self, number: jax.Array) -> jax.Array:
        """The lowest key of the bin of each number."""
        if not self.mirrored:
            return number << self.shift
        more = number << xp.where(number < 0, self.shift, self.above)
        return more + self._split(self.bottom, self.start)

    def _split(self, bottom: jax.Array, start: jax.Array) -> jax.Array:
        """The key from which on keys are cut by `above`: that of 1, if `1 - x` has keys.

        It is a multiple of `2**shift`.
        """
        digits, bias = _digits(self.least.dtype), _bias(self.least.dtype)
        return (2 * bias - bottom - start) << digits

    def holds_one(self, lowest: jax.Array) -> jax.Array:
        """The mask of the bins, given by their least number (size, ...), that hold one float."""
        own, digits = self._columns(), _digits(lowest.dtype)
        cut = xp.where(lowest < 1, own.shift, own.above) if self.mirrored else own.shift
        return (cut == 0) & (xp.abs(lowest) >= _float(own.bottom << digits))

    def relative_width(self) -> jax.Array:
        """The width of a bin relative to its values, (size,), in the powers of two of `octaves`."""
        return xp.exp2((self.shift - _digits(self.least.dtype)).astype(self.least.dtype))

    def _key(
        self, x: jax.Array, bottom: jax.Array, start: jax.Array, rest: jax.Array | None = None
    ) -> jax.Array:
        bits = _bits(xp.abs(x))
        if not self.mirrored:
            key = _steps(bits, bottom)
        else:
            _, extra = self._mirror(bottom, start)
            near = (x >= 0.5) & (x < 1) & (bottom < _bias(x.dtype))
            bits = xp.where(near, _bits(1 - x if rest is None else rest), bits)
            key = _steps(bits, xp.where(near, start, bottom))
            above = xp.where(x >= 1, key + extra, key)
            key = xp.where(near, self._split(bottom, start) - key, above)
        return xp.where(x < 0, ~key, key)

    def _key_on(self, other: "DyadicGrid", key: jax.Array) -> jax.Array:
        """The keys on another grid, whose scale is not lower, of numbers with these keys.

        Keys may have the last bits of any number of their bin. The result for a bin without numbers
        means nothing.
        """
        # A key counts as the bits of a float do, with `bottom` as the exponent of the first floats
        # that are not subnormal. So it is read as the bits of a float.
        bottom, end = self.bottom, other.bottom
        sign = key >> (8 * key.dtype.itemsize - 1)  # -1 of negative keys, whose bits are ~key
        bits = key ^ sign
        power = end - bottom + 1
        if not self.mirrored:
            return _steps(bits, power) ^ sign
        digits, bias = _digits(self.least.dtype), _bias(self.least.dtype)
        whole = 1 << digits
        middle, extra = self._mirror(bottom, self.start)
        one = _one(bottom, middle, digits, bias)
        near = (bottom < bias) & (key >= middle) & (key < one + extra)
        # The bin of 1 may begin below the key of 1, among keys that no number has.
        above = ~near & (key > one)
        # From 1/2 to 1, x is `1 - t * 2**-(digits + 1)` for an integer t. The mirror stays if it is
        # above `bottom`.
        stays = end < bias
        start = xp.where(stays, other.start, bias - 1)
        # Rounded up where the mirror ends: of numbers with more digits than a float, which are
        # below 1 by less than such a step, none may pass 1.
        up = xp.where(stays, 0, 1).astype(key.dtype)
        t = _steps(one + extra - key - up, start - self.start + 1) + up
        bits = xp.where(near, 2 * whole - t, xp.where(above, key - extra, bits))
        moved = _steps(bits, xp.where(near, end - bias + 2, power))
        moved = xp.where(above, moved + ((bias - 1 - other.start) << digits), moved)
        moved = xp.where(near & stays, other._split(end, other.start) - t, moved)
        return moved ^ sign

    def _mirror(self, bottom: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The key of 1/2, and how many keys `1 - x` adds."""
        digits, bias = _digits(self.least.dtype), _bias(self.least.dtype)
        return (bias - bottom) << digits, (bias - 1 - start) << digits

    def _from_key(self, key: jax.Array, bottom: jax.Array, start: jax.Array) -> jax.Array:
        """The least number with each key; of a negative key, that with the key `-key`.

        It is not subnormal. Keys below zero have no mirror.
        """
        dtype = _float_dtype(key.dtype)
        digits, bias, top = _digits(dtype), _bias(dtype), xp.finfo(dtype).max

        def plain(key: jax.Array, bottom: jax.Array) -> jax.Array:
            first = (bottom - 1) << digits
            bits = xp.minimum(key, _bits(xp.asarray(top, dtype)) - first) + first
            # A number of steps is a float, to which the power of two of a step is added.
            steps = _bits(key.astype(dtype)) + (bottom - bias - digits << digits)
            steps = xp.where(key == 0, 0, xp.maximum(steps, 1 << digits))  # not subnormal
            return _float(xp.where(key < 1 << digits, steps, bits))

        if not self.mirrored:
            return plain(xp.abs(key), bottom)
        middle, extra = self._mirror(bottom, start)
        end = middle + extra + (1 << digits)
        is_near = (bottom < bias) & (key >= middle) & (key < end)
        # The floats x from 1/2 to 1 are `1 - t * 2**-(digits + 1)` for integers t. Of those whose
        # key is not above `to_one`, the greatest t.
        to_one = xp.clip(end - key, 0, extra + (1 << digits))
        t = xp.ceil(plain(to_one + 1, start) * 2.0 ** (digits + 1)) - 1
        t = xp.maximum(t, 1)  # numbers with more digits than a float may be nearer to 1
        near = 1 - t * 2.0 ** -(digits + 1)
        one = _one(bottom, middle, digits, bias)
        above = key > one
        x = plain(xp.where(above, xp.maximum(key - extra, one), xp.abs(key)), bottom)
        return xp.where(is_near, near, xp.where(above, xp.maximum(x, 1), x))


def _toward_zero(x: Any) -> Any:
    """Float64 numbers, in the range of float32, rounded toward zero to float32."""
    near = x.astype(np.float32)
    return (near.view(np.int32) - (np.abs(near) > np.abs(x))).view(np.float32)


@lru_cache
def least_step_to_one(bits: int, octaves: int, mirrored: int) -> float:
    """The step of `1 - x` next to 1 in the widest mirrored grid of float32."""
    ends: Any = np.array([[-1], [2.0 ** (octaves - 2)]], np.float32)
    grid = DyadicGrid.of(ends[0], ends[1], bits, octaves, mirrored)
    return 2.0 ** (int(grid.start[0]) - _bias(ends.dtype) - _digits(ends.dtype))


@lru_cache(maxsize=64)
def _grid_on_host(
    cls: type[DyadicGrid],
    wide: bool,
    reach: bytes,
    dtype: np.dtype,
    shape: tuple[int, ...],
    *settings: int,
) -> DyadicGrid:
    ends: Any = np.frombuffer(reach, dtype).reshape(shape)
    return cls.of(ends[0], -ends[1], *settings)


class WideGrid(DyadicGrid):
    """The bins of float64 numbers, for double-floats of float32: x64 may be disabled.

    Its own arrays are float32 and int32. Where devices have no float64, the grid is that of the
    upper parts.
    """

    @classmethod
    def of(
        cls, least: jax.Array, greatest: jax.Array, bits: int, octaves: int, mirrored: int
    ) -> "WideGrid":
        if not has_wide(least.dtype):
            return cls(*DyadicGrid.of(least, greatest, bits, octaves, mirrored))
        with elementary_in_x64():
            # What a grid holds are integers, which have no derivative.
            low, high = (lax.stop_gradient(x).astype(xp.float64) for x in (least, greatest))
            grid = DyadicGrid.of(low, high, bits, octaves, mirrored)
            bottom, shift, start, above = (x.astype(xp.int32) for x in grid[3:7])
        # The first key has 64 bits, and is computed where it is needed.
        return cls(least, greatest, bottom, bottom, shift, start, above, bits, octaves, mirrored)

    def _in_float64(self, *, ordered: bool) -> DyadicGrid:
        """The grid of float64 numbers; with its first key if it is `ordered`."""
        least, greatest = (x.astype(xp.float64) for x in (self.least, self.greatest))
        bottom, shift, start, above = (x.astype(xp.int64) for x in self[3:7])
        grid = DyadicGrid(least, greatest, bottom, bottom, shift, start, above, *self[7:])
        if not ordered:
            return grid
        least = xp.where(self.has_values, least, 1)
        return grid._replace(first=grid._key(least, bottom, start))

    def place(self, x: DoubleFloat | jax.Array, rest: None = None) -> jax.Array:  # type: ignore[reportIncompatibleMethodOverride]
        if not has_wide(self.least.dtype):
            return super().place(x.high if isinstance(x, DoubleFloat) else x)
        if not isinstance(x, DoubleFloat) or x.is_on_host:
            if (narrow := self._of_floats()) is not None:
                return narrow.place(_toward_zero(x.wide) if isinstance(x, DoubleFloat) else x)
            x = DoubleFloat.of(x)
        high, low = x
        with elementary_in_x64():
            return self._in_float64(ordered=False).place(
                high.astype(xp.float64) + low.astype(xp.float64)
            )

    def _of_floats(self) -> DyadicGrid | None:
        """On the host, the grid by whose keys of 32 bits numbers have the same places, if any.

        A key of 64 bits is that of the number rounded toward zero to a float, and further bits.
        These are cut off, unless the bins are narrow.
        """
        if not on_host(self.shift):
            return None
        more = np.int32(_digits(_FLOAT64) - _digits(_FLOAT32))
        power = np.int32(_bias(_FLOAT64) - _bias(_FLOAT32))
        shift, bottom = self.shift - more, self.bottom - power
        if np.min(shift) < 0 or np.min(bottom) < 1 or self.mirrored:
            return None
        return DyadicGrid(*self)._replace(shift=shift, bottom=bottom)

    def ranks(self) -> jax.Array:
        if not has_wide(self.least.dtype):
            return super().ranks()
        with elementary_in_x64():
            return self._in_float64(ordered=True).ranks().astype(xp.int32)

    def places_on(self, other: DyadicGrid) -> jax.Array:
        if not (has_wide(self.least.dtype) and isinstance(other, WideGrid)):
            return DyadicGrid(*self).places_on(DyadicGrid(*other))
        with elementary_in_x64():
            other_wide = other._in_float64(ordered=False)
            return self._in_float64(ordered=True).places_on(other_wide)


def _steps(bits: jax.Array, bottom: jax.Array) -> jax.Array:
    """Counts the steps below each positive float, given as bits.

    From the power of two `bottom` on, a step leads from one float to the next; below, all steps are
    as large as the first of these.
    """
    # In integers: the compiler may reorder a product of floats so that it overflows.
    digits = _digits(_float_dtype(bits.dtype))
    power = xp.clip(bits >> digits, 1, bottom)
    return (bits - ((power - 1) << digits)) >> xp.minimum(bottom - power, digits + 1)


def _one(bottom: jax.Array, middle: jax.Array, digits: int, bias: int) -> jax.Array:
    """The key of 1 without those of `1 - x`. Numbers below 1 have at most this key."""
    return xp.where(bottom < bias, middle + (1 << digits), (1 << digits) >> (bottom - bias))


def _digits(dtype: np.dtype) -> int:
    """Returns the number of bits of the significand that are stored: 23 or 52."""
    return int(xp.finfo(dtype).nmant)


def _bias(dtype: np.dtype) -> int:
    """The biased exponent of 1."""
    return 1 - int(xp.finfo(dtype).minexp)


def _integer(dtype: np.dtype) -> np.dtype:
    return xp.dtype(f"int{xp.finfo(dtype).bits}")


def _float_dtype(dtype: np.dtype) -> np.dtype:
    return xp.dtype(f"float{8 * np.dtype(dtype).itemsize}")


def _bits(x: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(x, _integer(x.dtype))


def _float(bits: jax.Array) -> jax.Array:
    return lax.bitcast_convert_type(bits, _float_dtype(bits.dtype))
