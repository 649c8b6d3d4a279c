"""Values in bins that need no range, from which quantiles are computed."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import as_float, choice, default_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.float_grid import Layout
from datarax.numerics.scaling import nan_where
from datarax.numerics.sums import suffix_sums
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.scatter_counts import ScatterCounts, extreme_at
from datarax.statistics.state import State

Method = Literal["inverted_cdf", "averaged_inverted_cdf"]
"""A definition of the quantile, as `numpy.quantile` names them."""

# A cumulative weight this near to its target has reached it: 0.1 of 10 is 1, and no float is 0.1.
_NEAR = 2.0**-40


class ValueHistogram(State):
    """The weight of values, of any size and sign, by bins of constant relative width.

    A bin is the upper `bits` of a float32: the sign, 8 bits of the exponent, the rest of the
    significand. Each bin also keeps its least and greatest value, so that quantiles are exact where
    a bin holds copies of one value, and for `q` of 0 and 1.

    A quantile is that of the values as float32. Weights count as repetitions. `method` is as in
    `numpy.quantile`: "inverted_cdf" gives the least value at or below which a part `q` of the
    weight lies; "averaged_inverted_cdf" gives its mean with the next value where that part is
    exactly `q`, as in the median of an even number of values. R. J. Hyndman and Y. Fan (1996),
    definitions 1 and 2, https://doi.org/10.2307/2684934.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ValueHistogram
        >>> seen = ValueHistogram().update(jnp.array([-3.0, 0.25, 1e6, jnp.nan]))
        >>> print(seen.quantile(0.5), seen.quantile((0.0, 1.0)), seen.invalid.value)
        0.25 [-3.e+00  1.e+06] 1
    """

    bits: int = 16
    """From 10 to 22. A bin, and with it the error of a quantile, is at most `2**(9 - bits)` wide
    relative to its value: 0.8 % at 16 bits, with 68,000 bins; each bit more halves the width and
    doubles the memory. Only for values below 1.2e-38 is the error larger, up to 2e-40 absolute."""

    invalid = MetricAccumulator(0)

    def __post_init__(self) -> None:
        bits = self.bits
        if isinstance(bits, bool) or not isinstance(bits, int) or not 10 <= bits <= 22:
            raise MetricInputError(f"bits={bits!r}; expected an integer from 10 to 22")
        size = self.layout.size
        self.counts = ScatterCounts((size,))
        self.least = MetricAccumulator(np.full(size, np.inf, np.float32), MetricReduceOp.min)
        self.greatest = MetricAccumulator(np.full(size, -np.inf, np.float32), MetricReduceOp.max)

    @property
    def layout(self) -> Layout:
        """Which bin a value falls into."""
        return Layout(self.bits)

    @property
    def relative_error(self) -> float:
        """The greatest error of a quantile, relative to its value."""
        return 2.0 ** (9 - self.bits)

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        x = numeric(values, "values").astype(jnp.float32)
        w, invalid = rows_weight(jnp.isfinite(x), weights)
        counts = w.astype(jnp.bool_)
        # -0.0 becomes 0.0, and so does a value that a processor may flush to zero.
        x = jnp.where(counts & (x != 0), x, 0)
        place = jnp.where(counts, self.layout.bin(x), self.layout.size)
        return self.replace(
            counts=self.counts.add(place, w),
            least=extreme_at(self.least, place, x),
            greatest=extreme_at(self.greatest, place, x),
            invalid=self.invalid.update(invalid),
        )

    def quantile(self, q: float | Sequence[float], *, method: Method = "inverted_cdf") -> jax.Array:
        """The quantile, or one for each of a tuple of `q`; NaN where there is no data.

        In a bin of several values it is interpolated by rank between the least and the greatest.
        """
        return _quantiles(self, *_checked(q, method))[1]

    def quantile_bounds(
        self, q: float | Sequence[float], *, method: Method = "inverted_cdf"
    ) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to contain the exact quantile of the values as float32.

        Certain without weights, and with weights that add up exactly, such as masks and whole
        numbers. With other weights, certain for a `q` that differs by the rounding of their sums.
        """
        lower, _, upper = _quantiles(self, *_checked(q, method))
        return lower, upper


def checked_q(q: float | Sequence[float]) -> float | tuple[float, ...]:
    """One or several `q` as configuration: Python floats from 0 to 1."""
    try:
        each = tuple(map(float, q)) if isinstance(q, tuple | list) else float(q)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        each = ()
    several = each if isinstance(each, tuple) else (each,)
    if not several or not all(0 <= x <= 1 for x in several):
        raise MetricInputError(f"q={q!r}; expected a number from 0 to 1, or a tuple of such")
    return each


def _checked(q: float | Sequence[float], method: str) -> tuple[DoubleFloat, str]:
    choice(method, get_args(Method), "method")
    # An array, not a static argument, so that one program serves all `q`.
    exact, dtype = np.asarray(checked_q(q), np.float64), default_float()
    high = exact.astype(dtype)
    low = (exact - high).astype(dtype)
    return DoubleFloat(jnp.asarray(high), jnp.asarray(low)), method


@partial(jax.jit, static_argnames="method")
def _quantiles(seen: ValueHistogram, q: DoubleFloat, method: str) -> tuple[jax.Array, ...]:
    """The lower bound, the estimate and the upper bound of quantiles, of the shape of `q`."""
    flat = q.reshape(-1)
    found = _at_rank(seen, flat, above=False)
    if method == "averaged_inverted_cdf":
        others = _at_rank(seen, flat, above=True)
        found = tuple(a * 0.5 + b * 0.5 for a, b in zip(found, others, strict=True))
    return tuple(x.reshape(q.shape) for x in found)


def _at_rank(seen: ValueHistogram, q: DoubleFloat, *, above: bool) -> tuple[jax.Array, ...]:
    """The first value up to which the weight reaches its target, or with `above` exceeds it.

    Gives the lower bound, the estimate and the upper bound, each of shape (Q,).
    """
    counts = seen.counts.double
    up_to = suffix_sums(counts[::-1])[::-1]  # the weight of each bin and of all before it
    total = up_to[-1]
    target = q * total
    target = target + target.high * (_NEAR if above else -_NEAR)

    # Every target against every bin, (Q, B).
    some, columns, rows = counts.high > 0, up_to[None, :], target[:, None]
    reached = some[None, :] & (columns > rows if above else columns >= rows)
    last = jnp.max(jnp.where(some, jnp.arange(some.size, dtype=jnp.int32), 0))
    place = jnp.where(reached.any(-1), jnp.argmax(reached, -1).astype(jnp.int32), last)

    least, greatest = (as_float(x.value)[place] for x in (seen.least, seen.greatest))
    n = counts.high[place]
    before = up_to[place] - counts[place]
    rest = (target - before).high
    rank = jnp.floor(rest) if above else jnp.ceil(rest) - 1
    # A bin of weight one or less has no ranks: the middle.
    part = jnp.where(n > 1, rank / jnp.where(n > 1, n - 1, 1), 0.5)
    lower = jnp.where(q == 1, greatest, least)
    upper = jnp.where(q == 0, least, greatest)
    estimate = jnp.clip(least + (greatest - least) * jnp.clip(part, 0, 1), lower, upper)
    return tuple(nan_where(~(total.high > 0), x) for x in (lower, estimate, upper))
