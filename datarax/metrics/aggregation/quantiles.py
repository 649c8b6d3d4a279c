"""Quantiles and histograms of whatever a step puts out."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from datarax._checks import choice, positive_int
from datarax._errors import MetricInputError
from datarax.metrics.base import Metric, check_policy
from datarax.numerics.exact import Exact
from datarax.statistics.bin_counts import BinCounts
from datarax.statistics.value_histogram import METHODS, ValueHistogram, check_q


class Quantile(Metric):
    """Quantiles of values of any size and sign, without a range: the estimate, and sure bounds.

    `update(values, *, weights=None)`: `values` of any shape and real dtype, all one population;
    `weights` broadcast against their leading axes and count as repetitions. `compute` gives a
    scalar, or for a tuple of `q` an array (Q,); no data gives NaN. Values are kept as float32 in
    bins of relative width `2**(9 - bits)`, see `datarax.statistics.ValueHistogram`: that is the
    most by which the estimate may be off (`relative_error`), and it is exact where a bin holds one
    distinct value, so for ties, for bfloat16 at 16 bits, and for `q` of 0 and 1.

    NumPy interpolates linearly between neighbours by default, which is not defined under weights;
    here a quantile is by default one of the values, as `numpy.quantile(..., method=
    "inverted_cdf")`. Hyndman and Fan (1996), https://doi.org/10.2307/2684934.

    Args:
        q: a number from 0 to 1, or a tuple of such.
        method: "inverted_cdf", the least value at or below which lies a part `q` of the weight,
            or "averaged_inverted_cdf", its mean with the next where that part is exactly `q`.
        bits: of the bins, from 10 to 22; each bit more halves their width and doubles memory.
        on_invalid: as for `Mean`.

    Raises:
        MetricInputError: a `q`, a `method` or `bits` other than these.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Quantile
        >>> metric = Quantile(q=(0.5, 0.99)).update(jnp.arange(-1000, 1001))
        >>> print(metric.compute(), metric.relative_error)
        [  0. 980.] 0.0078125
        >>> print(*metric.bounds())
        [  0. 980.] [  0. 983.]
    """

    def __init__(
        self,
        *,
        q: float | Sequence[float],
        method: str = "inverted_cdf",
        bits: int = 16,
        on_invalid: str = "exclude",
    ):
        choice(method, METHODS, "method")
        self.q, self.method = check_q(q), method
        self.on_invalid = check_policy(on_invalid)
        self.statistic = ValueHistogram(bits=bits)

    @property
    def relative_error(self) -> float:
        """How far the estimate may be off, as a part of the value."""
        return self.statistic.relative_error

    def compute(self) -> jax.Array:
        return self.statistic.quantile(self.q, method=self.method)

    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to hold the exact quantile of the values as float32.

        They are the least and the greatest value of its bin, in the shape of `compute`.
        """
        return self.statistic.quantile_bounds(self.q, method=self.method)


class Median(Quantile):
    """The weighted median; of an even number of values the mean of the middle two.

    As `numpy.median`. `update`, `bounds()` and `relative_error` as for `Quantile`; no data gives
    NaN.

    Args:
        bits: of the bins, as for `Quantile`.
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Median
        >>> print(Median().update(jnp.array([1e9, 3.0, -5.0, 2.0])).compute())
        2.5
    """

    def __init__(self, *, bits: int = 16, on_invalid: str = "exclude"):
        super().__init__(q=0.5, method="averaged_inverted_cdf", bits=bits, on_invalid=on_invalid)


class Histogram(Metric):
    """The weight of values by bins with given edges, and of those below and above all bins.

    `update(values, *, weights=None)` as for `Mean`. `compute` gives a dict: "counts" (B,), the
    total weight of each bin; "below" and "above", that of what lies outside. No data gives 0.
    `edges` are those of the bins. Bins are half-open, `[edge, next)`, but the last, which holds
    its upper edge, as in `numpy.histogram`; that drops what lies outside without a word.

    Args:
        edges: of the bins, in increasing order; or
        num_bins: how many bins of equal width there are in
        range: `(lowest, highest)`.
        on_invalid: as for `Mean`.

    Raises:
        MetricInputError: neither `edges`, nor `num_bins` and `range`, or all of them; or edges that
            are not finite or do not increase.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Histogram
        >>> metric = Histogram(num_bins=2, range=(0, 1))
        >>> seen = metric.update(jnp.array([0.0, 0.2, 0.5, 1.0, -3.0])).compute()
        >>> print(seen["counts"], seen["below"], seen["above"], metric.edges)
        [2. 2.] 1.0 0.0 (0.0, 0.5, 1.0)
    """

    def __init__(
        self,
        *,
        edges: Sequence[float] | None = None,
        num_bins: int | None = None,
        range: tuple[float, float] | None = None,
        on_invalid: str = "exclude",
    ):
        if (edges is None) == (num_bins is None) or (num_bins is None) != (range is None):
            raise MetricInputError("Histogram: give edges=, or both num_bins= and range=")
        if edges is None:
            positive_int(num_bins, "num_bins")
            lowest, highest = _bounds_of(range)
            edges = np.linspace(lowest, highest, num_bins + 1).tolist()  # type: ignore[operator]
        self.on_invalid = check_policy(on_invalid)
        self.statistic = BinCounts(edges)

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the bins, one more than there are bins."""
        return self.statistic.edges

    def compute(self) -> dict[str, Any]:
        return self._parts(self.statistic.counts.exact)

    def _parts(self, counts: jax.Array | Exact) -> dict[str, Any]:
        return {
            "counts": counts[1:-1],
            "below": counts[0],
            "above": counts[-1],
        }


def _bounds_of(range: Any) -> tuple[float, float]:
    try:
        lowest, highest = map(float, range)
    except (TypeError, ValueError):
        raise MetricInputError(f"range={range!r}; expected (lowest, highest)") from None
    return lowest, highest
