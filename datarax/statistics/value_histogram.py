"""Values in bins that need no range: what quantiles are read from."""

from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, choice, default_float, numeric
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.float_grid import Layout
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at
from datarax.statistics.state import State

METHODS = ("inverted_cdf", "averaged_inverted_cdf")

# A cumulative weight so near to its target has reached it: 0.1 of 10 is 1, though no float is 0.1.
_NEAR = 2.0**-40


class ValueHistogram(State):
    """The weight of values, of any size and sign, by bins of constant relative width.

    A bin is the upper `bits` of a float32: sign, 8 of exponent, the rest of significand. Each also
    keeps its least and greatest value, so that quantiles are exact where a bin holds one value or
    none but copies of one, and extremes always.

    Args:
        bits: from 10 to 22. A bin, and with it a quantile, is `2**(9 - bits)` wide at most, as a
            part of its value: 0.8 % at 16 bits, with 68,000 bins; each bit more halves the width
            and doubles memory. Only values below 1.2e-38 are coarser, to a distance of 2e-40.

    A quantile is that of the values as float32. Weights count as repetitions. `method` is as in
    `numpy.quantile`: "inverted_cdf", the least value at or below which lies a part `q` of the
    weight, or "averaged_inverted_cdf", its mean with the next value where that part is exactly `q`,
    as in the median of an even number of values. R. J. Hyndman and Y. Fan (1996), definitions 1
    and 2, https://doi.org/10.2307/2684934.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ValueHistogram
        >>> seen = ValueHistogram().update(jnp.array([-3.0, 0.25, 1e6, jnp.nan]))
        >>> print(seen.quantile(0.5), seen.quantile((0.0, 1.0)), seen.invalid.value)
        0.25 [-3.e+00  1.e+06] 1
    """

    invalid = MetricAccumulator(0)

    def __init__(self, *, bits: int = 16):
        if isinstance(bits, bool) or not isinstance(bits, int) or not 10 <= bits <= 22:
            raise MetricInputError(f"bits={bits!r}; expected an integer from 10 to 22")
        self.bits = bits
        size = self.layout.size
        self.counts = ScatterCounts((size,))
        self.least = MetricAccumulator(np.full(size, np.inf, np.float32), MetricReduceOp.min)
        self.greatest = MetricAccumulator(np.full(size, -np.inf, np.float32), MetricReduceOp.max)

    @property
    def layout(self) -> Layout:
        """How values fall into bins."""
        return Layout(self.bits)

    @property
    def relative_error(self) -> float:
        """How far a quantile may be off, as a part of its value."""
        return 2.0 ** (9 - self.bits)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = numeric(values, "values").astype(jnp.float32)
        w, invalid = rows_weight(jnp.isfinite(x), weights)
        counts = w.astype(jnp.bool_)
        # -0.0 becomes 0.0, and so does what a processor may flush to zero.
        x = jnp.where(counts & (x != 0), x, jnp.float32(0))
        place = jnp.where(counts, self.layout.bin(x), jnp.int32(self.layout.size))
        return self.replace(
            counts=self.counts.add(place, w),
            least=extreme_at(self.least, place, x),
            greatest=extreme_at(self.greatest, place, x),
            invalid=self.invalid.update(invalid),
        )

    def quantile(self, q: float | tuple[float, ...], *, method: str = "inverted_cdf") -> jax.Array:
        """The quantile, or one for each of a tuple of `q`; NaN where there is no data.

        Within a bin of several values it is interpolated by rank between the least and greatest.
        """
        return _read(self, *_checked(q, method))[1]

    def quantile_bounds(
        self, q: float | tuple[float, ...], *, method: str = "inverted_cdf"
    ) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to hold the exact quantile of the values as float32.

        Certain without weights, and with any that add up exactly, as masks and whole numbers do;
        with others, for a `q` that is off by the rounding of their sums.
        """
        lower, _, upper = _read(self, *_checked(q, method))
        return lower, upper


def check_q(q: Any) -> float | tuple[float, ...]:
    """The one or several `q` as configuration: Python floats from 0 to 1."""
    try:
        each = tuple(float(x) for x in q) if isinstance(q, tuple | list) else float(q)
    except (TypeError, ValueError):
        each = ()
    several = each if isinstance(each, tuple) else (each,)
    if not several or not all(0 <= x <= 1 for x in several):
        raise MetricInputError(f"q={q!r}; expected a number from 0 to 1, or a tuple of such")
    return each


def _checked(q: Any, method: str) -> tuple[Any, Any, str]:
    choice(method, METHODS, "method")
    # A pair, whose sum is q: an argument, so that one program serves all.
    q = np.asarray(check_q(q), np.float64)
    high = q.astype(default_float())
    return high, (q - high).astype(default_float()), method


@partial(jax.jit, static_argnames="method")
def _read(
    seen: ValueHistogram, high: jax.Array, low: jax.Array, method: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The lower bound, the estimate and the upper bound of quantiles, of the shape of `q`."""
    q = high.reshape(-1), low.reshape(-1)
    found = _at_rank(seen, q, above=False)
    if method == "averaged_inverted_cdf":
        half = jnp.asarray(0.5, default_float())
        others = _at_rank(seen, q, above=True)
        found = tuple(a * half + b * half for a, b in zip(found, others, strict=True))
    return tuple(x.reshape(high.shape) for x in found)  # type: ignore[return-value]


def _at_rank(seen: ValueHistogram, q: nx.Pair, *, above: bool) -> tuple[jax.Array, ...]:
    """The first value up to which the weight reaches its target, or (`above`) exceeds it."""
    dtype = q[0].dtype
    counts = seen.counts.parts
    upto = _running(counts)
    total = upto[0][-1], upto[1][-1]
    target = nx.pair_product(q, total)
    slack = target[0] * jnp.asarray(_NEAR if above else -_NEAR, dtype)
    target = nx.pair_add(target, (slack, jnp.zeros_like(slack)))

    some = counts[0] > 0
    beyond = _exceeds(upto, target)
    reached = some[None, :] & (beyond if above else beyond | _equals(upto, target))
    last = jnp.max(jnp.where(some, jnp.arange(some.size, dtype=jnp.int32), 0))
    place = jnp.where(reached.any(-1), jnp.argmax(reached, -1).astype(jnp.int32), last)

    least, greatest = (as_float(x.value)[place] for x in (seen.least, seen.greatest))
    n = counts[0][place]
    # How many of the bin lie below the target: the weight up to the bin's end, less its own.
    before = nx.pair_add((upto[0][place], upto[1][place]), (-n, -counts[1][place]))
    rest = nx.pair_add(target, (-before[0], -before[1]))[0]
    rank = jnp.floor(rest) if above else jnp.ceil(rest) - 1
    # Fewer than one, by weights that are parts of one, have no rank: the middle.
    part = jnp.where(n > 1, rank / jnp.where(n > 1, n - 1, 1), jnp.asarray(0.5, dtype))
    lower = jnp.where((q[0] == 1) & (q[1] == 0), greatest, least)
    upper = jnp.where((q[0] == 0) & (q[1] == 0), least, greatest)
    estimate = least + (greatest - least) * jnp.clip(part, 0, 1)
    estimate = jnp.clip(estimate, lower, upper)
    nan = jnp.asarray(jnp.nan, dtype)
    return tuple(jnp.where(total[0] > 0, x, nan) for x in (lower, estimate, upper))


def _running(counts: nx.Pair) -> nx.Pair:
    """For each bin, the weight of it and all before it."""
    high, low = nx.pair_suffix_sums((counts[0][::-1], counts[1][::-1]))
    return high[::-1], low[::-1]


def _exceeds(a: nx.Pair, b: nx.Pair) -> jax.Array:
    # Every target against every bin.
    b = b[0][:, None], b[1][:, None]
    a = a[0][None, :], a[1][None, :]
    return (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] > b[1]))


def _equals(a: nx.Pair, b: nx.Pair) -> jax.Array:
    return (a[0][None, :] == b[0][:, None]) & (a[1][None, :] == b[1][:, None])
