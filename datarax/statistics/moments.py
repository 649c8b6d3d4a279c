"""Mean and central moments, merged pairwise: no digits are lost if the mean is far from zero."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp

from datarax._checks import as_float, default_float, numeric
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat, two_sum
from datarax.numerics.limbs import float_or_double
from datarax.statistics.batches import rows_weight
from datarax.statistics.fields import state
from datarax.statistics.invalid_counts import InvalidCounts, not_finite
from datarax.statistics.leaf_state import LeafState
from datarax.statistics.state import State

Parts = tuple[jax.Array, jax.Array]


class CentralMoments(LeafState, kw_only=False):
    """The total weight, the mean, and sums of powers of the distances from the mean.

    All are double-floats. Two states are merged by the pairwise formulas of Chan, Golub and LeVeque
    (1979), extended to third and fourth powers by Pébay (2008), https://doi.org/10.2172/1028931.

    Args:
        shape: the shape of one example.
        order: the highest power, from 2 to 4.
    """

    shape: tuple[int, ...] = ()
    order: int = 2

    count: Parts = state()
    """The total weight."""
    mean: Parts = state()
    """The weighted mean; 0 where the weight is zero."""
    powers: tuple[Parts, ...] = state()
    """`sum(w * (x - mean)**k)` for k from 2 to `order`."""

    def empty(self) -> dict[str, Any]:
        zero = zeros(self.shape, default_float().name)
        powers = tuple((zero, zero) for _ in range(2, self.order + 1))
        return {"count": (zero, zero), "mean": (zero, zero), "powers": powers}

    def of(self, x: jax.Array | DoubleFloat, w: jax.Array) -> Self:
        """The moments of rows `x` (N, *shape), weighted by `w`, which broadcasts against it."""
        w = jnp.broadcast_to(w, x.shape)
        n, mean, d = about_mean(x, w, len(self.shape))
        axes = tuple(range(x.ndim - len(self.shape)))
        powers = [DoubleFloat.of(jnp.sum(w * d**k, axes)) for k in range(2, self.order + 1)]
        return self.holding(DoubleFloat.of(n), mean, powers)

    def holding(self, count: DoubleFloat, mean: DoubleFloat, powers: Sequence[DoubleFloat]) -> Self:
        """A copy that holds these moments."""
        return self.with_parts(
            {
                "count": tuple(count),
                "mean": tuple(mean),
                "powers": tuple(tuple(power) for power in powers),
            }
        )

    def doubles(self) -> tuple[DoubleFloat, DoubleFloat, list[DoubleFloat]]:
        """The count, the mean, and the sums of powers."""
        count, mean, *powers = (
            DoubleFloat(*map(jnp.asarray, x)) for x in (self.count, self.mean, *self.powers)
        )
        return count, mean, powers

    def mean_distance(self, other: Self) -> tuple[jax.Array, jax.Array]:
        """The distance `d` of the two means, and the factor `n * m / (n + m)`, of weights n and m.

        The merged sum of squares is the sum of both plus `d * d * factor`.
        """
        (n, mean, _), (m, other_mean, _) = self.doubles(), other.doubles()
        factor = n.high * _share(m, n + m)
        # If one side is empty, d is set to 0: its square could overflow, and inf * 0 is NaN.
        apart = (other_mean - mean).high
        return jnp.where(factor != 0, apart, jnp.zeros((), apart.dtype)), factor

    def combine(self, other: Any) -> Self:
        (n, mean, powers), (m, other_mean, other_powers) = self.doubles(), other.doubles()
        total = n + m
        share, rest = _share(m, total), _share(n, total)
        d, factor = self.mean_distance(other)
        # The merged mean is `share * d` above the mean of self, and `rest * d` below that of other.
        # `cross[k - 2]` is what the k-th power gains from this. `a` and `b` are the powers of self
        # and of other, from k = 2 on.
        cross = [d * d * factor]
        a, b = ([p.high for p in each] for each in (powers, other_powers))
        if self.order > 2:
            cross.append(d**3 * factor * (rest - share) + 3 * d * (rest * b[0] - share * a[0]))
        if self.order > 3:
            cross.append(
                d**4 * factor * (rest * rest - rest * share + share * share)
                + 6 * d * d * (rest * rest * b[0] + share * share * a[0])
                + 4 * d * (rest * b[1] - share * a[1])
            )
        merged = [p + q + c for p, q, c in zip(powers, other_powers, cross, strict=True)]
        return self.holding(total, mean + (other_mean - mean) * share, merged)

    def canonical(self) -> Self:
        return self

    def to_mesh(self) -> tuple[str, list[jax.Array]]:
        return "gather", []

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        raise TypeError("moments are gathered")


def _share(part: DoubleFloat, total: DoubleFloat) -> jax.Array:
    """`part / total`; 0 if the total is 0."""
    some = total.high != 0
    safe = total.map(lambda x: jnp.where(some, x, jnp.ones((), x.dtype)))
    share = (part / safe).high
    return jnp.where(some, share, jnp.zeros((), share.dtype))


def about_mean(
    x: jax.Array | DoubleFloat, w: jax.Array, ndim: int
) -> tuple[jax.Array, DoubleFloat, jax.Array]:
    """The total weight and the mean of rows of `ndim` axes, and `x - mean` of each row.

    Values of weight zero are ignored. If all values are equal, `x - mean` is exactly 0.
    """
    x, low = x if isinstance(x, DoubleFloat) else (x, None)
    axes = tuple(range(x.ndim - ndim))
    zero = jnp.zeros((), x.dtype)
    counts = w != zero
    x = jnp.where(counts, x, zero)
    n = jnp.sum(w, axes)
    some = n != 0
    safe = jnp.where(some, n, jnp.ones((), n.dtype))
    # The mean is computed in two steps. The second step is the mean of `x - first`: it corrects the
    # rounding of the first. `first` has one bit less than the dtype, so that no compiler can fuse
    # the unrounded quotient into the subtraction.
    info = jnp.finfo(x.dtype)
    first = jax.lax.reduce_precision(jnp.sum(w * x, axes) / safe, info.nexp, info.nmant - 1)
    # The first mean is clipped to the range of the data, so that the mean of equal values is that
    # value.
    infinity = jnp.asarray(jnp.inf, x.dtype)
    least = jnp.min(jnp.where(counts, x, infinity), axes, initial=infinity)
    greatest = jnp.max(jnp.where(counts, x, -infinity), axes, initial=-infinity)
    first = jnp.where(some, jnp.clip(first, least, greatest), zero)
    d = x - jnp.broadcast_to(first, x.shape)
    if low is not None:
        d = d + jnp.where(counts, low, zero)
    second = jnp.sum(w * d, axes) / safe
    d = d - jnp.broadcast_to(second, x.shape)
    return n, DoubleFloat(*two_sum(first, second)), d


class Moments(State, kw_only=False):
    """The weighted mean, variance and higher moments of examples, for each element of `shape`.

    Args:
        shape: the shape of one example; `()` for scalars.
        order: 2 for mean and variance; 3 adds skewness; 4 adds kurtosis.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Moments
        >>> seen = Moments().update(jnp.array([10001.0, 10003.0]))
        >>> print(seen.mean, seen.variance())
        10002.0 1.0
    """

    shape: tuple[int, ...] = ()
    order: Literal[2, 3, 4] = 2

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        self.central = CentralMoments(self.shape, self.order)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of shape (..., *shape); `weights` broadcast against the leading axes.

        Examples that hold a NaN or an infinity are excluded, and counted in `invalid`.
        """
        values = numeric(values, "values")
        # A finite float64 may be infinite in the dtype of the moments.
        x = float_or_double(values)
        values = as_float(values)
        batch = x.ndim - len(self.shape)
        if batch < 0 or x.shape[batch:] != self.shape:
            raise MetricInputError(
                f"values of shape {x.shape}; expected a shape that ends in {self.shape}"
            )
        w, invalid = rows_weight(not_finite(values, tuple(range(batch, x.ndim))), weights)
        w = jax.lax.expand_dims(as_float(w), range(w.ndim, x.ndim))
        return self.replace(
            central=self.central.combine(self.central.of(x, w)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def count(self) -> jax.Array:
        """The total weight."""
        return self.central.count[0]

    @property
    def mean(self) -> jax.Array:
        """The weighted mean; NaN where there is no data."""
        return _where_some(self.count, self.central.mean[0])

    def variance(self, ddof: float = 0) -> jax.Array:
        """The sum of squares about the mean over `count - ddof`; NaN if that is not positive."""
        n = self.count - jnp.asarray(ddof, self.count.dtype)
        return _where_some(jnp.maximum(n, 0), self.central.powers[0][0] / jnp.where(n > 0, n, 1))

    @property
    def skewness(self) -> jax.Array:
        """The third standardised moment, biased, as `scipy.stats.skew`; NaN for constant data."""
        self._need(3, "skewness")
        # sqrt(n) * m3 / m2**1.5, divided in two steps: m2**1.5 could overflow.
        m2, m3 = (p[0] for p in self.central.powers[:2])
        n = jnp.sqrt(self.count)
        return _where_some(self.count * m2, n * (m3 / _safe(m2)) / jnp.sqrt(_safe(m2)))

    @property
    def kurtosis(self) -> jax.Array:
        """The fourth standardised moment minus 3, biased, as `scipy.stats.kurtosis`.

        NaN for constant data.
        """
        self._need(4, "kurtosis")
        # n * m4 / m2**2 - 3, divided in two steps: m2**2 could overflow.
        m2, m4 = self.central.powers[0][0], self.central.powers[2][0]
        return _where_some(self.count * m2, self.count * (m4 / _safe(m2)) / _safe(m2) - 3)

    def _need(self, order: int, name: str) -> None:
        if self.central.order < order:
            raise MetricInputError(
                f"Moments of order={self.central.order} hold no {name}; it needs order={order}"
            )


def _safe(x: jax.Array) -> jax.Array:
    return jnp.where(x == 0, jnp.ones((), x.dtype), x)


def _where_some(count: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.where(count > 0, value, jnp.asarray(jnp.nan, value.dtype))
