"""`WideBins`: bins of values that may be integers of 32 bits. No value is rounded."""

from typing import Any

import jax

from datarax._xp import at, xp
from datarax.algebra.fields import state
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat, concatenate, has_wide, stack
from datarax.numerics.dyadic_grid import DyadicGrid, WideGrid
from datarax.statistics.adaptive_bins import AdaptiveBins, Contents, joined_counts, places_of
from datarax.statistics.extremes import Greatest


class WideBins(AdaptiveBins):
    """`AdaptiveBins` of double-floats: integers of 32 bits that differ by one have bins of their
    own, if their range has as many.

    Each bin keeps its least and greatest value as double-floats. On devices without float64, and
    with x64, values are rounded to the default float.
    """

    extremes: Greatest = state()  # type: ignore[reportIncompatibleVariableOverride]
    """The maxima of -x and of x in each bin, (2, size, slots)."""

    def empty(self) -> dict[str, Any]:
        return super().empty() | {"extremes": Greatest((2, self.size, self.slots))}

    def grid_of(self, reach: Any) -> DyadicGrid:
        return WideGrid.of(reach[0], -reach[1], self.bits, self.octaves, self.mirrored)

    def as_binned(self, x: Any, counted: jax.Array) -> tuple[Any, tuple[jax.Array, jax.Array]]:
        if not has_wide(x.dtype):
            x = DoubleFloat.of(x.high)
        some = counted & (xp.abs(x.high) >= float(xp.finfo(x.dtype).tiny))
        x = x.map(lambda part: xp.where(some, part, 0))
        high, low = x
        infinity = xp.asarray(xp.inf, high.dtype)
        least = xp.where(low < 0, xp.nextafter(high, -infinity), high)
        greatest = xp.where(low > 0, xp.nextafter(high, infinity), high)
        return x, (least, greatest)

    def extremes_with(self, place: jax.Array, x: Any) -> Any:
        size = self.size * self.slots
        index = xp.stack([place, place + size]).astype(xp.uint32).reshape(-1)
        table, values, index = replicated((self.extremes.double, stack([-x, x]), index))
        both = concatenate([table.reshape(2 * size), values.reshape(index.size)])

        def folded(number: jax.Array) -> jax.Array:
            return at(number[: 2 * size])[index].max(number[2 * size :], mode="drop")

        table = both.map(folded).reshape(*table.shape)
        return self.extremes.with_parts({"parts": tuple(table)})

    def joined(self, tables: dict[str, Any], old: DyadicGrid, new: DyadicGrid) -> dict[str, Any]:
        place = places_of(old, new)

        def count(x: jax.Array) -> jax.Array:
            return at(xp.zeros_like(x))[..., *place].add(x)

        return joined_counts(tables, count) | joined_doubles(tables, place)

    def contents(self) -> Contents:
        order = self.order(self.grid)

        def taken(x: jax.Array) -> jax.Array:
            return xp.take_along_axis(x, xp.broadcast_to(order, x.shape), -1)

        negated, greatest = (self.extremes.double[i].map(taken) for i in range(2))
        least, weights = -negated, self.counts.double.map(taken)
        is_tie = least >= greatest
        return Contents(
            weights, least.high, is_tie, least.high, greatest.high, stack([least, greatest])
        )


def joined_doubles(tables: dict[str, Any], place: tuple[jax.Array, jax.Array]) -> dict[str, Any]:
    """The table of extremes in other places."""

    def greatest(x: jax.Array) -> jax.Array:
        return at(xp.full_like(x, -xp.inf))[:, *place].max(x)

    high, low = DoubleFloat(*tables["extremes"]).map(greatest)
    return {"extremes": (high, xp.where(xp.isfinite(high), low, xp.zeros((), low.dtype)))}
