"""The differences of two numbers that rounding explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from datarax.testing.rows import Rows

NUDGES = 12
"""The number of calls with rows that differ by roundings."""
SINGLE = float(np.finfo(np.float32).eps)
"""The epsilon of float32, in which JAX computes and most totals are kept."""


@dataclass(frozen=True)
class Rounding:
    """The largest difference between two calls that rounding explains, for one logged number.

    Attributes:
        absolute: the part that comes from the spread over orders; of the shape of the number.
        relative: the part of the larger of two compared numbers.
    """

    absolute: np.ndarray
    relative: float

    def bound(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The largest accepted difference of two numbers, for each of their elements."""
        # A number may have another shape in some calls.
        same = self.absolute.shape == a.shape
        absolute = self.absolute if same else self.absolute.max(initial=0.0)
        return np.maximum(absolute, self.relative * np.maximum(np.abs(a), np.abs(b)))

    def differs(self, a: np.ndarray | None, b: np.ndarray | None) -> bool:
        """True if rounding does not explain the difference; a shape or a number may be missing.

        NaN equals NaN, an infinity equals itself, and two integers must be equal.
        """
        if a is None or b is None or a.shape != b.shape:
            return a is not b
        if not is_float(a) and not is_float(b):
            return not np.array_equal(a, b)
        a, b = as_double(a), as_double(b)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            near = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= self.bound(a, b))
        return not near.all()


def measure_rounding(
    first: np.ndarray,
    orders: Sequence[np.ndarray | None],
    rows: Rows,
    nudged: Sequence[np.ndarray | None] = (),
) -> Rounding:
    """The rounding of a number, by its values for several orders of the rows of one batch.

    `nudged` are its values for rows whose floats differ by roundings (`Rows.nudge`). They show how
    much larger a rounding becomes where terms cancel, as in a variance or a difference of totals.
    Batches have roundings of their own, which no order of one batch shows, so the absolute part is
    then at least four times what the nudges change, with the same limit.

    The absolute part is four times the spread of these values, at most `n * epsilon * scale` for
    `n` rows and the epsilon of float32. The scale is the magnitude of the number or of the rows'
    floats, as the terms of a sum may cancel. A number or rows in half precision also explain a
    spread of a few of its units, not of `n`: a correct sum of them does not round each addition.

    The values of a few orders are often equal by chance, and what is float64 in one batch may be
    added up in float32. So the relative part is at least `2 * sqrt(n)` epsilons, which is what the
    roundings of a sum come to, and one rounding in the dtype of the number.
    """
    n, value = len(rows), as_double(first)
    floats = [x for x in rows.columns.values() if is_float(x)]
    scale = np.maximum(np.abs(value), max(map(_magnitude, floats), default=0.0))
    spread, response = (_largest_difference(first, each) for each in (orders, nudged))
    most = n * SINGLE
    for eps in {epsilon(x) for x in (first, *floats)}:
        if eps > SINGLE and (spread <= 4 * eps * scale).all():
            most = max(most, 4 * eps)
    relative = max(2 * math.sqrt(n) * SINGLE, epsilon(first))
    # Where nothing cancels, the nudges change a number by at most half of that.
    response = np.where(2 * response > relative * np.abs(value), response, 0.0)
    explained = 4 * np.maximum(spread, response)
    return Rounding(np.minimum(explained, most * scale), relative)


def _largest_difference(first: np.ndarray, others: Sequence[np.ndarray | None]) -> np.ndarray:
    """The largest difference from a number for each of its elements; 0 where there is none."""
    value = as_double(first)
    same = [as_double(x) for x in others if x is not None and x.shape == first.shape]
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        spread = np.max([abs(x - value) for x in same] or [np.zeros(value.shape)], axis=0)
    return np.nan_to_num(spread, posinf=0.0)


def _magnitude(x: np.ndarray) -> float:
    """The median magnitude of the finite numbers of an array; 0 if there are none."""
    finite = np.abs(as_double(x[np.isfinite(x)]))
    return float(np.median(finite)) if finite.size else 0.0


def is_float(x: np.ndarray) -> bool:
    """True if an array holds floats or complex numbers, of half precision too."""
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def as_double(x: np.ndarray) -> np.ndarray:
    """A number of any dtype in double precision."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def epsilon(x: np.ndarray) -> float:
    """The epsilon of the dtype of an array; 0 for integers."""
    return float(jnp.finfo(x.dtype).eps) if is_float(x) else 0.0
