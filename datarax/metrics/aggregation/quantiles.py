"""Quantiles and histograms of values."""

from collections.abc import Sequence
from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, is_integer, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, OnInvalid, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field, state
from datarax.distributed.collectives import replicated
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import bounds_of
from datarax.metric.reading import Bounds
from datarax.metric.squared_weights import QuantileSampling
from datarax.metrics.aggregation.summary import ValueMetric
from datarax.numerics.exact import whole_or_float
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.scatter_counts import ScatterCounts
from datarax.statistics.value_histogram import Method, ValueHistogram, checked_q

MOST_COMPARED = 32
"""With how many edges a value is compared at once: XLA for CPUs makes an array of more results."""


class BinCounts(CountsInvalid, kw_only=False):
    """The weight of the values in each bin: below all edges, between two edges, above all edges."""

    edges: Sequence[float]
    """The edges: at least two finite numbers in increasing order. A bin includes its lower edge,
    not its upper edge; but the last bin includes both."""
    rounded: bool = False
    """True if values that are floats are compared with the edges rounded to their dtype, as
    `numpy.histogram` does for bins of equal width, or with the exact edges."""

    def __post_init__(self) -> None:
        given = self.edges
        try:
            self.edges = tuple(map(float, given))
        except (TypeError, ValueError):
            raise MetricInputError(f"edges={given!r}; expected numbers") from None
        increasing = np.isfinite(self.edges).all() and (np.diff(self.edges) > 0).all()
        if len(self.edges) < 2 or not increasing:
            raise MetricInputError(
                f"edges={given!r}; expected at least two finite numbers in increasing order"
            )
        # The first is below all bins, the last above all bins.
        self.counts = ScatterCounts((len(self.edges) + 1,))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        given = numeric(values, "values")
        x = replicated(as_float(given))
        w, invalid = rows_weight(not_finite(x), weights)
        edges, last = _thresholds(self.edges, default_float())
        if self.rounded and not is_integer(given):
            near = np.asarray(self.edges).astype(given.dtype).astype(default_float())
            edges, last = near, near[-1]
        # How many edges are at or below each value: 0 is below all bins, and `highest` above them,
        # except at the last edge, which belongs to the last bin.
        highest = len(edges)
        how = "compare_all" if highest <= MOST_COMPARED else "scan_unrolled"
        place = xp.searchsorted(xp.asarray(edges), x, side="right", method=how).astype(xp.int32)
        place = xp.where((place == highest) & (x <= xp.asarray(last)), highest - 1, place)
        return self.with_batch(invalid, counts=self.counts.add(place, w))


def _thresholds(edges: Sequence[float], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The edges rounded to the dtype of the values, so that each value stays in its exact bin.

    A value is at or above an edge exactly if it is at or above the least float that is not below
    the edge; it is at or below the last edge exactly if it is at or below the greatest float that
    is not above the edge.
    """
    exact = np.asarray(edges)
    near = exact.astype(dtype)
    infinity = np.asarray(np.inf, dtype)
    up = np.where(near < exact, np.nextafter(near, infinity), near)
    down = np.where(near > exact, np.nextafter(near, -infinity), near)
    return up, down[-1]


class HistogramQuantile(ValueMetric):
    """A quantile that is read from bins which adapt to the values; a subclass says which one."""

    tasks = ("score",)
    bits: int = 16
    """The resolution of the bins, from 10 to 22: each bit more halves their width and doubles the
    memory. See `datarax.statistics.ValueHistogram`."""

    statistic: ValueHistogram = state()

    def __post_init__(self) -> None:
        self.statistic = ValueHistogram.from_fields(self)

    def definition(self) -> tuple[float | Sequence[float], Method]:
        """The part of the weight, or several, and the method; see `ValueHistogram.quantile`."""
        raise TypeError(f"{type(self).__name__} does not define definition()")

    @property
    def relative_error(self) -> jax.Array:
        """The greatest error of the estimate, relative to the value; see `ValueHistogram`."""
        return self.statistic.relative_error

    def compute(self) -> PyTree:
        q, method = self.definition()
        return self.statistic.quantile(q, method=method)

    @outside_mesh
    def bounds(self) -> tuple[jax.Array, jax.Array]:
        """`(lower, upper)`: certain to contain the exact quantile of the values as they were given.

        They are the least and the greatest value in its bin, in the shape of `compute`, rounded
        outward to float32. Inside `jit`, values are float32 before.
        """
        return bounds_of(self)

    def sampling(self) -> QuantileSampling:
        return QuantileSampling(self, self.definition()[0])

    def value_and_bounds(self) -> tuple[PyTree, Bounds]:
        q, method = self.definition()
        bounds = Bounds(*self.statistic.quantile_bounds(q, method=method))
        by_rounding = self.statistic.are_apart_by_rounding
        return super().value_and_bounds()[0], bounds.rounded_where(by_rounding)


class Quantile(HistogramQuantile):
    """Quantiles of values of any size and sign, estimated without a range, with certain bounds.

    `compute` gives a scalar, or for several `q` an array (Q,). Values are kept in bins that adapt
    to their range, see `datarax.statistics.ValueHistogram`. `relative_error` is the greatest error
    of the estimate, and `bounds()` contain the exact quantile. The estimate is exact where a bin
    holds one distinct value, as for ties, and for `q` of 0 and 1. Infinities are values. No data
    gives NaN.

    As `numpy.quantile(..., method="inverted_cdf")`: a quantile is one of the values. NumPy's
    default, linear interpolation between neighbours, is not defined under weights. R. J. Hyndman
    and Y. Fan (1996), https://doi.org/10.2307/2684934.

    Raises:
        MetricInputError: a `q` that is not from 0 to 1, or `bits` that are not from 10 to 22.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Quantile
        >>> metric = Quantile((0.5, 0.99)).update(jnp.arange(-1000, 1001))
        >>> print(metric.compute(), metric.relative_error)
        [  0. 980.] 0.00390625
        >>> print(*metric.bounds())
        [  0. 980.] [  0. 981.]
    """

    q: float | Sequence[float] = field(kw_only=False)
    """A number from 0 to 1, or a tuple of such numbers."""
    method: Method = "inverted_cdf"
    """"inverted_cdf" gives the least value at or below which a part `q` of the weight lies;
    "averaged_inverted_cdf" gives its mean with the next value where that part is exactly `q`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.q = checked_q(self.q)

    def definition(self) -> tuple[float | Sequence[float], Method]:
        return self.q, self.method


class Median(HistogramQuantile):
    """The weighted median; of an even number of values, the mean of the middle two.

    An estimate as `Quantile` gives it, with the same `bounds()` and `relative_error`. No data gives
    NaN. As `numpy.median`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Median
        >>> print(Median().update(jnp.array([1e9, 3.0, -5.0, 2.0])).compute())
        2.5
    """

    def definition(self) -> tuple[float | Sequence[float], Method]:
        return 0.5, "averaged_inverted_cdf"


class Histogram(ValueMetric):
    """The weight of values by bins with given edges, and below and above all bins.

    `compute` gives a dict: "counts" (B,), the total weight in each bin; "below" and "above", the
    weight of values outside of all bins, which `numpy.histogram` drops. Bins are half-open,
    `[edge, next)`, except the last, which includes its upper edge, as in `numpy.histogram`.
    `results` and a collector give integers, or floats if weights make any of them a fraction. No
    data gives 0.

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

    on_invalid: OnInvalid = "exclude"
    """The policy for data that cannot be used: "exclude" leaves it out, "propagate" makes results
    that are floats NaN, "raise" raises `InvalidValuesError` when the result is read. The default is
    "exclude" because the results are counts."""
    edges: Sequence[float] | None = None
    """The edges of the bins in increasing order, one more than there are bins."""
    num_bins: int | None = None
    """Instead of `edges`: the number of bins of equal width in `range`, which gives the `edges`. As
    in `numpy.histogram`, these edges are rounded to the dtype of the values, and given edges are
    not: float32 values of 0.7 are in the bin from 0.7 of ten bins from 0 to 1."""
    range: tuple[float, float] | None = None
    """`(lowest, highest)`: the outer edges of `num_bins` bins."""

    statistic: BinCounts = state()

    def __post_init__(self) -> None:
        edges, uniform = self.edges, self.num_bins is not None
        if uniform and self.range is not None:
            edges, self.range = _equal_bins(self.num_bins, self.range)
        # `edges` may be given beside `num_bins` if they agree, as in a copy with a changed field.
        differ = uniform and self.edges not in (None, edges)
        if uniform != (self.range is not None) or edges is None or differ:
            raise MetricInputError("Histogram: give edges=, or both num_bins= and range=")
        self.statistic = BinCounts(edges, rounded=uniform)
        self.edges = self.statistic.edges

    def compute(self) -> PyTree:
        counts = whole_or_float(self.statistic.counts.double)
        return {"counts": counts[1:-1], "below": counts[0], "above": counts[-1]}


def _equal_bins(
    num_bins: int | None, limits: tuple[float, float]
) -> tuple[tuple[float, ...], tuple[float, float]]:
    """The edges of bins of equal width, and the outer ones."""
    positive_int(num_bins, "num_bins")
    try:
        lowest, highest = map(float, limits)
    except (TypeError, ValueError):
        raise MetricInputError(f"range={limits!r}; expected (lowest, highest)") from None
    edges = np.linspace(lowest, highest, num_bins + 1).tolist()  # type: ignore[operator]
    return tuple(edges), (lowest, highest)
