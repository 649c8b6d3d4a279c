"""Moments, quantiles and extremes of values, and how many are zero or saturated."""

from collections.abc import Sequence
from numbers import Real
from typing import Self

import jax
import numpy as np

from datarax._checks import default_float, numeric, real, refuse_ignored
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.limbs import has_many_digits
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, not_finite
from datarax.statistics.moments import CentralMoments
from datarax.statistics.scaled_total import ScaledTotal, quotient
from datarax.statistics.value_histogram import ValueHistogram

OCTAVES = 15
"""Quantiles far below the greatest value need no narrow bins: those of 15 powers of two are."""


class ValueProfile(CountsInvalid):
    """Mean, deviation, root mean square, extremes, quantiles, and parts of values.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.value_profile import ValueProfile
        >>> profile = ValueProfile(quantiles=(), saturation=2.0)
        >>> for name, value in profile.update(jnp.array([0.0, 3.0, -4.0, 1.0])).values().items():
        ...     print(name, value)
        mean 0.0
        std 2.5495097567963922
        rms 2.5495097567963922
        max_abs 4.0
        dead 0.25
        saturated 0.5
    """

    quantiles: Sequence[float] = (0.01, 0.5, 0.99)
    """Numbers from 0 to 1; none for no histogram."""
    saturation: float | None = None
    """Values of at least this magnitude are saturated."""
    bits: int = 10
    """The histogram has `2**bits` bins, of 20 bytes."""

    moments = CentralMoments()
    greatest = MetricAccumulator(-np.inf, MetricReduceOp.max)
    """The greatest magnitude."""
    histogram: tuple[ValueHistogram, ...] = state()
    """The histogram, or nothing."""
    parts: ScaledTotal = state()
    """The weight of all values, of zeros, and of saturated values."""

    def __post_init__(self) -> None:
        self.quantiles = checked_quantiles(self.quantiles)
        if not self.quantiles:
            refuse_ignored(self, "bits", "without quantiles")
        if self.saturation is not None:
            self.saturation = real(self.saturation, "saturation")
            if self.saturation <= 0:
                raise MetricInputError(f"saturation={self.saturation!r}; expected it above 0")
        histogram = ValueHistogram(bits=self.bits, octaves=OCTAVES)
        self.histogram = (histogram,) if self.quantiles else ()
        self.parts = ScaledTotal((2 if self.saturation is None else 3,))

    def update(self, values: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `values` of any shape; `weights` broadcast against their leading axes.

        NaN and infinities are excluded and counted, unless their weight is zero.
        """
        given = numeric(values, "values")
        x = given if given.dtype == np.float64 else given.astype(default_float())
        w, invalid = rows_weight(not_finite(x), weights)
        w = xp.broadcast_to(w, x.shape)
        # Values of weight zero may be NaN, which no comparison and no maximum should see.
        size = xp.where(w.astype(xp.bool_), xp.abs(x), 0)
        # Some devices flush subnormal numbers to zero, so all of them count as zero.
        kinds = [xp.ones(x.shape, xp.bool_), size < float(xp.finfo(default_float()).tiny)]
        if self.saturation is not None:
            # Both in one dtype, so that 0.1 as float32 reaches a saturation of 0.1.
            kinds.append(size >= xp.asarray(self.saturation, x.dtype))
        return self.with_batch(
            invalid,
            moments=self.moments.combine(self.moments.of(x, w, many_digits=has_many_digits(given))),
            greatest=self.greatest.update(size, where=w.astype(xp.bool_)),
            histogram=tuple(each.update(x, weights=w) for each in self.histogram),
            parts=self.parts.plus(*((kind, w) for kind in kinds)),
        )

    def values(self) -> dict[str, jax.Array]:
        """The results by name; NaN where there is no data."""
        count, mean, (squares,) = self.moments.scaled()
        variance, none = squares / count, count.double.high == 0
        found = {
            "mean": nan_where(none, mean.to_float()),
            "std": variance.root(),
            # Two terms that are not negative: no digits cancel.
            "rms": (mean * mean + variance).root(),
            "max_abs": nan_where(none, self.greatest.value),
            "dead": quotient(self.parts[1], self.parts[0]),
        }
        if self.saturation is not None:
            found["saturated"] = quotient(self.parts[2], self.parts[0])
        for each in self.histogram:
            found |= percentiles(each, self.quantiles)
        return found


def checked_quantiles(quantiles: Sequence[float]) -> tuple[float, ...]:
    """Checks several quantiles, or none, and returns them as Python floats from 0 to 1."""
    each = tuple(quantiles) if isinstance(quantiles, tuple | list) else None
    if each is None or not all(isinstance(q, Real) and 0 <= q <= 1 for q in each):
        raise MetricInputError(f"quantiles={quantiles!r}; expected a tuple of numbers from 0 to 1")
    return tuple(map(float, each))


def percentiles(histogram: ValueHistogram, quantiles: Sequence[float]) -> dict[str, jax.Array]:
    """Quantiles by name."""
    values = histogram.quantile(tuple(quantiles))
    return {quantile_name(q): values[i] for i, q in enumerate(quantiles)}


def quantile_name(q: float) -> str:
    """The name of a quantile in results: "p50" for 0.5, "p99.9" for 0.999."""
    # 12 digits, because 100 * q has rounding errors: 100 * 0.07 is 7.000000000000001.
    return f"p{100 * q:.12g}"
