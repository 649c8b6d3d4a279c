"""Reductions of numbers in two parts, `Exact` and `DoubleFloat`, over axes and between devices.

Each part alone means nothing: the sum of the low limbs of -1 and 1 is 2**32.
"""

import math
from collections.abc import Callable, Sequence

import jax

from datarax._errors import MetricInputError
from datarax._xp import lax, xp
from datarax.distributed.collectives import AxisName, own_row, unpack_words
from datarax.distributed.merge_ops import worst
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import sum_limbs

TwoParts = Exact | DoubleFloat


def is_two_parts(leaf: object) -> bool:
    """Whether a leaf is a number in two parts."""
    return isinstance(leaf, TwoParts)


def reduce_two_parts(
    op: str, x: TwoParts, w: jax.Array | None, axes: tuple[int, ...], about: str
) -> TwoParts | jax.Array:
    """The reduction of `x` over `axes`.

    Sums and extremes have the type of `x`; but a sum of integers with weights that are not a mask
    is a double-float, rounded, and so is every mean.

    Args:
        op: "mean", "sum", "max" or "min".
        x: an `Exact` or a `DoubleFloat`.
        w: weights that broadcast against `x`, or None; for an extreme, zero excludes an element.
        axes: the axes, not negative.
        about: the caller and the metric, for errors.
    """
    high, low = xp.asarray(x.high), xp.asarray(x.low)
    w = None if w is None else xp.broadcast_to(w, high.shape)
    if op in ("max", "min"):
        return _like(x, *extreme(op, (high, low), w, axes, about))
    whole = xp.issubdtype(low.dtype, xp.integer)
    if op == "sum" and whole and (w is None or w.dtype == xp.bool_):
        return Exact(*sum_limbs((high, low), axes, True if w is None else w))
    if w is not None:
        some = w.astype(xp.bool_)
        high, low = (xp.where(some, part, xp.zeros((), part.dtype)) for part in (high, low))
    double = Exact(high, low).to_double()
    if w is not None and w.dtype != xp.bool_:
        double = double * w.astype(double.dtype)
    total = double.sum(axes)
    if op == "sum":
        return total.to_float() if whole else _like(x, *total)
    if w is None:
        count = DoubleFloat.of(math.prod(x.shape[a] for a in axes), total.dtype)
        return (total / count.broadcast_to(total.shape)).to_float()
    return (total / DoubleFloat.of(w.astype(total.dtype)).sum(axes)).to_float()


def _like(x: TwoParts, high: jax.Array, low: jax.Array) -> TwoParts:
    return DoubleFloat(high, low) if isinstance(x, DoubleFloat) else Exact(high, low)


def extreme(
    op: str, parts: Sequence[jax.Array], w: jax.Array | None, axes: tuple[int, ...], about: str
) -> list[jax.Array]:
    """The maximum or minimum of numbers in one part or two, over axes, that count by `w`.

    NaN if one of them is NaN, and for floats of which none counts.
    """
    high, whole = parts[0], xp.issubdtype(parts[-1].dtype, xp.integer)
    is_empty = math.prod(high.shape[a] for a in axes) == 0
    if whole and is_empty:
        raise MetricInputError(
            f"{about} of shape {high.shape} has no elements, so it has no {op}, and integers have "
            f"no NaN to return; expected at least one element"
        )
    counts = True if w is None else w.astype(xp.bool_)
    # NaN is detected separately: XLA's maximum between shards drops NaN on some backends.
    is_nan = False
    if not whole:
        none = is_empty if w is None else lax.squeeze(~xp.any(counts, axes, keepdims=True), axes)
        is_nan = xp.any(xp.isnan(high) & counts, axes) | none
    best, found = (xp.max if op == "max" else xp.min), []
    # The best high part; and of the elements that have it, the best low part.
    for part in parts:
        top = best(part, axes, keepdims=True, where=counts, initial=worst(op, part.dtype))
        counts = counts & (part == top)
        top = lax.squeeze(top, axes)
        found.append(top if whole else xp.where(is_nan, xp.asarray(xp.nan, part.dtype), top))
    return found


def gathered_two_parts(
    op: str, x: TwoParts, w: jax.Array | None, axis_name: AxisName, about: str
) -> tuple[str, list[jax.Array], Callable[..., TwoParts | jax.Array]]:
    """The kind of collective, what each device adds to it, and the function of its output.

    The sum over devices holds the bits of all of them, which each device then reduces.
    """
    given = [xp.asarray(x.high), xp.asarray(x.low)]
    given += [] if w is None else [xp.broadcast_to(w, given[0].shape)]

    def finish(rows: jax.Array) -> TwoParts | jax.Array:
        high, low, *weights = unpack_words(rows, given)
        return reduce_two_parts(
            op, _like(x, high, low), weights[0] if weights else None, (0,), about
        )

    return "sum", [own_row(given, axis_name)], finish
