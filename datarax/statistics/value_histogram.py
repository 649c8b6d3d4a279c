"""`ValueHistogram`: values in bins over all floats, the statistic of quantiles."""

from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import jax
import numpy as np

from datarax._checks import as_float, choice, default_float, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import read_on_host, when_known, xp
from datarax.algebra.fields import state
from datarax.algebra.memo import computed_once
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.float_ranges import next_float
from datarax.numerics.limbs import as_double, is_rounded
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import suffix_sums
from datarax.statistics.adaptive_bins import AdaptiveBins, Contents, WideBins
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, is_nan

Method = Literal["inverted_cdf", "averaged_inverted_cdf"]
"""The definition of the quantile, by its name in `numpy.quantile`."""

# The relative tolerance for a cumulative weight that reaches its target. No float is exactly 0.1:
# without the tolerance, 0.1 of a weight of 10 would not be 1.
_NEAR = 2.0**-40


class ValueHistogram(CountsInvalid):
    """The weight of values of any size and sign, in bins that adapt to their range.

    The bins depend on the least and the greatest value, and become coarser as the range grows; see
    `datarax.numerics.dyadic_grid`. Each bin also keeps its least and its greatest value. So a
    quantile is exact if its bin holds copies of one value, and if `q` is 0 or 1. Infinities are
    values like others.

    Extremes are kept as float32 (float64 with x64), see `integers`. Float64 values of the host are
    rounded outward, so that the bounds hold for the values as they were given; in a program values
    are float32. Weights count as repetitions.
    `method` is as in `numpy.quantile`, definitions 1 and 2 of R. J. Hyndman and Y. Fan (1996), https://doi.org/10.2307/2684934:

    - "inverted_cdf": the least value such that the values up to it have at least a fraction `q` of
      the weight.
    - "averaged_inverted_cdf": the same; but if they have exactly the fraction `q`, the mean of that
      value and the next one, as in the median of an even number of values.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ValueHistogram
        >>> seen = ValueHistogram().update(jnp.array([-3.0, 0.25, 1e6, jnp.nan]))
        >>> print(seen.quantile(0.5), seen.quantile((0.0, 1.0)), seen.invalid.value)
        0.25 [-3.e+00  1.e+06] 1
    """

    bits: int = 16
    """There are `2**bits` bins, from 10 to 22. One more bit halves the width of a bin, and so the
    error of a quantile, and doubles the memory."""

    octaves: int = 124
    """The number of powers of two below the greatest value with bins of equal relative width.
    Below them, bins have equal width. Fewer make all bins narrower: 15 by a factor of 8."""

    integers: bool = False
    """True if integers of 32 bits are not rounded. The extremes of the bins then take twice the
    memory."""

    bins: AdaptiveBins = state()

    def __post_init__(self) -> None:
        positive_int(self.octaves, "octaves")
        bins = WideBins if self.integers else AdaptiveBins
        self.bins = bins(bits=self.bits, octaves=self.octaves)

    @property
    def relative_error(self) -> jax.Array:
        """The greatest error of a quantile, relative to its value, of shape ().

        It depends on the range of the values. With 124 octaves it is `2**(8 - bits)`, 0.4 % with 16
        bits, if there are values of both signs; and less for values of one sign, if they are of
        similar size. The error of values that are smaller than the greatest by a factor of more
        than `2**(octaves - 1)` may be larger; `quantile_bounds` are certain for them, too.
        """
        return self.bins.grid.relative_width()[0]

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN is excluded, and counted in `invalid` unless its weight is zero.
        """
        given = numeric(values, "values", any_range=True)
        x: Any
        if given.dtype == default_float() and not self.integers:  # mostly
            x = high = given
        elif self.integers:
            x = as_double(given)
            high = x.high
        else:
            # Float64 numbers of the host are rounded by the bins, which keep their bounds.
            x = high = as_float(given) if is_rounded(given) else given.astype(default_float())
        w, invalid = rows_weight(is_nan(high), weights)
        # Replicated first: JAX does not flatten several axes of a type that is sharded.
        x, w = replicated((x, xp.broadcast_to(w, x.shape)))
        bins = self.bins.plus_rows(x.reshape(-1, 1), w.reshape(-1, 1))
        return self.with_batch(invalid, bins=bins)

    def quantile(self, q: float | Sequence[float], *, method: Method = "inverted_cdf") -> jax.Array:
        """The quantile, or one quantile for each `q` of a tuple; NaN where there is no data.

        If the bin of the quantile holds several values, the quantile is interpolated by rank
        between the least and the greatest of them.
        """
        return self._quantiles(checked_q(q), method)[1]

    def quantile_bounds(
        self, q: float | Sequence[float], *, method: Method = "inverted_cdf"
    ) -> tuple[jax.Array, jax.Array]:
        """Bounds `(lower, upper)` on the exact quantile of the values as they were given.

        The bounds hold without weights, and with weights that add up exactly, such as masks and
        whole numbers. With other weights, the sums are rounded, which shifts `q` slightly: the
        bounds hold for the shifted `q`.
        """
        lower, _, upper = self._quantiles(checked_q(q), method)
        return lower, upper

    def are_apart_by_rounding(self, lower: Any, upper: Any) -> Any:
        """Where `quantile_bounds`, on the host, are apart by rounding alone, and that matters.

        That is where they are a float32 apart, and this is more than a thousandth of the range of
        the values; or where one of them is beyond the range of float32.
        """
        least, negated = np.asarray(self.bins.reach.value)[:, 0]
        with np.errstate(invalid="ignore", over="ignore"):
            gap, span = np.subtract(upper, lower), np.subtract(-negated, least, dtype=np.float64)
            most = np.maximum(np.abs(lower), np.abs(upper)).astype(np.float32)
            step = np.maximum(np.spacing(most), np.finfo(np.float32).tiny)
            by_rounding = (gap > 0) & (gap <= 1.5 * step) & (gap > 1e-3 * span)
        return by_rounding | (np.isinf(lower) != np.isinf(upper))

    def ends_of_quantile(
        self, q: float | Sequence[float], z: float, n: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The ends of an interval of the quantile, of `n` observations.

        They are the quantiles `z` standard errors of the rank apart from it, moved outward to their
        certain bounds. Infinite where so few observations have no such rank, NaN where `n` is not
        known.
        """
        exact, bins = exact_q(q), self.bins.contents()
        share = exact.to_float()
        apart = z * xp.sqrt(share * (1 - share) / xp.maximum(n, 1))
        known, ends = xp.isfinite(n), []
        for place, moved, beyond in ((0, -apart, -xp.inf), (2, apart, xp.inf)):
            at = (exact + moved).to_float()
            inside = (at > 0) & (at <= 1)
            # Of one dtype: JAX cannot lower a float64 of NumPy where two `vmap`s are around it.
            at = xp.where(inside, at, share.astype(at.dtype))
            end = quantiles_of(bins, DoubleFloat.of(at), "inverted_cdf")
            ends.append(nan_where(~known, xp.where(inside, end[place], beyond)))
        return ends[0], ends[1]

    @property
    def total(self) -> DoubleFloat:
        """The weight of all values."""
        return self.bins.contents().weights[0, 0].sum()

    @computed_once
    @read_on_host
    def _quantiles(self, q: float | tuple[float, ...], method: str) -> tuple[jax.Array, ...]:
        """The bounds and the estimate: see `quantiles_of`."""
        choice(method, get_args(Method), "method")
        return quantiles_of(self.bins.contents(), exact_q(q), method)


def checked_q(q: float | Sequence[float]) -> float | tuple[float, ...]:
    """Checks one `q` or several, and returns them as Python floats from 0 to 1."""
    try:
        each = tuple(map(float, q)) if isinstance(q, tuple | list) else float(q)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        each = ()
    several = each if isinstance(each, tuple) else (each,)
    if not several or not all(0 <= x <= 1 for x in several):
        raise MetricInputError(f"q={q!r}; expected a number from 0 to 1, or a tuple of such")
    return each


def exact_q(q: float | Sequence[float]) -> DoubleFloat:
    """`q` as double-floats, because `q * total` must have more digits than a float32."""
    # Arrays, not static arguments, so that one compiled program serves all `q`.
    exact, dtype = np.asarray(checked_q(q), np.float64), default_float()
    high = exact.astype(dtype)
    return DoubleFloat(high, (exact - high).astype(dtype))


def quantiles_of(bins: Contents, q: DoubleFloat, method: str) -> tuple[jax.Array, ...]:
    """The lower bounds, the estimates and the upper bounds of quantiles, shaped as `q`."""
    flat = q.reshape(-1)
    counts = bins.weights[0, 0]
    up_to = suffix_sums(counts[::-1])[::-1]  # the cumulative weight, each bin included
    found = _at_rank(bins, up_to, flat, above=False)
    if method == "averaged_inverted_cdf":
        # The two values differ only if the cumulative weight is exactly `q` of the total.
        others = _at_rank(bins, up_to, flat, above=True)
        found = tuple(a * 0.5 + b * 0.5 for a, b in zip(found, others, strict=True))
    return tuple(x.reshape(q.shape) for x in found)


def _at_rank(
    bins: Contents, up_to: DoubleFloat, q: DoubleFloat, *, above: bool
) -> tuple[jax.Array, ...]:
    """The first value at which the cumulative weight reaches `q` of the total weight.

    With `above`, the first value at which it exceeds that. Returns the lower bound, the estimate
    and the upper bound, each of shape (Q,).
    """
    counts, total = bins.weights[0, 0], up_to[-1]
    target = q * total
    target = target + target.high * (_NEAR if above else -_NEAR)

    # Compare every target with every bin: (Q, B).
    some, columns, rows = counts.high > 0, up_to[None, :], target[:, None]
    reached = some[None, :] & (columns > rows if above else columns >= rows)
    # Rounding may keep the last bin from reaching its target: then take the last one with weight.
    last = xp.max(xp.where(some, xp.arange(some.size, dtype=xp.int32), 0))
    place = xp.where(reached.any(-1), xp.argmax(reached, -1).astype(xp.int32), last)

    ends: Any = bins.least, bins.greatest
    least, greatest = (DoubleFloat.of(x[0, place]).to_float() for x in ends)
    # Interpolate by rank: of n values in the bin, the first has rank 0 and the last rank n - 1.
    n = counts.to_float()[place]
    before = up_to[place] - counts[place]
    rest = (target - before).to_float()
    rank = xp.floor(rest) if above else xp.ceil(rest) - 1
    # A bin of weight 1 or less has no ranks: take the middle.
    part = xp.where(n > 1, rank / xp.where(n > 1, n - 1, 1), 0.5)
    # The quantiles 0 and 1 are the extremes of the data, which are known exactly; within a float if
    # they were rounded.
    first, last = least, greatest
    if bins.beyond is not None and not when_known(_are_inside, q):
        first, last = _ends(bins, least, greatest)
    lower = xp.where(q == 1, last, least)
    upper = xp.where(q == 0, first, greatest)
    # The difference of two infinite values would be NaN.
    width = xp.where(greatest > least, greatest - least, 0)
    estimate = xp.clip(least + width * xp.clip(part, 0, 1), lower, upper)
    # A number beyond the range of floats is between the greatest one and infinity.
    estimate = xp.where(xp.isinf(width), xp.where(xp.isinf(greatest), greatest, least), estimate)
    return tuple(nan_where(~(total.high > 0), x) for x in (lower, estimate, upper))


def _are_inside(q: DoubleFloat) -> Any:
    return np.all((q.high > 0) & (q.high < 1))


def _ends(bins: Contents, least: jax.Array, greatest: jax.Array) -> tuple[jax.Array, jax.Array]:
    """An upper bound of the least of all values, and a lower bound of the greatest one.

    They matter where `least` and `greatest` are those of the bin that holds it.
    """
    found = []
    for beyond, end, toward in zip(bins.beyond, (least, greatest), (1, -1), strict=True):  # type: ignore[arg-type]
        next_one = next_float(end.astype(default_float()), toward * np.inf).astype(end.dtype)
        found.append(xp.where(beyond[0], next_one, end))
    return xp.minimum(found[0], greatest), xp.maximum(found[1], least)
