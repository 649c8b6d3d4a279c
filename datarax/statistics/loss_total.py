"""The table of losses; `LossTotal`: the sum of a loss, and its divisor."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Self, TypeVar

import jax
import numpy as np

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._x64 import elementary_in_x64, in_x64
from datarax._xp import by_blocks, replaced, xp
from datarax.algebra.fold import sums_of_products
from datarax.numerics.double_float import DoubleFloat, each_part, errors_fit_float64
from datarax.numerics.limbs import (
    float_or_double,
    with_difference,
)
from datarax.numerics.scaled_double import (
    ScaledDouble,
    scaled_power,
    unit_difference,
)
from datarax.numerics.scaled_sums import scaled_part
from datarax.numerics.scaling import one_where_zero, power_of_two, times_power_of_two
from datarax.numerics.special import log_cosh, tweedie_deviance
from datarax.statistics.batches import pairs
from datarax.statistics.invalid_counts import CountsInvalid
from datarax.statistics.scaled_total import ScaledTotal, quotient
from datarax.statistics.thresholds import rounded_to

LossName = Literal[
    "squared",
    "absolute",
    "squared log",
    "absolute percentage",
    "symmetric percentage",
    "weighted percentage",
    "log cosh",
    "huber",
    "quantile",
    "power",
    "tweedie",
    "critical success",
    "cosine",
]

R = TypeVar("R")
Function = Callable[[jax.Array, jax.Array, float], jax.Array]
Scaled = tuple[jax.Array, jax.Array]
Arrays = tuple[jax.Array, jax.Array, jax.Array]
OfError = Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array | Scaled]


class Loss(NamedTuple):
    """One row of the table; its functions take predictions, targets and the parameter."""

    value: OfError
    """The loss, which is summed. It also takes the errors, `preds - target`, after the targets:
    for large integers they are more exact than the difference of both as floats. A loss that may
    leave the range of floats is two arrays: `part * 2**exponent`."""
    scale: Function | None = None
    """The divisor, which is summed too; `None` for the weight, which gives the mean."""
    domain: Callable[[jax.Array, jax.Array, float], jax.Array] | None = None
    """The mask of the finite values for which the loss is defined; `None` for all."""
    degree: Callable[[float], int] = lambda parameter: 0
    """If it is not 0: the power of the errors that the value is. Such losses get errors that do not
    overflow, in float64 or as a `ScaledDouble`."""
    fits_float64: Callable[[float], bool] = lambda parameter: False
    """True if any sum of `w * part * 2**exponent` of float32 numbers is in the range of float64."""
    of_rows: bool = False
    """True if an example is a row, of any length, with one loss."""
    compares: bool = False
    """True if the functions take only which values are at least the parameter, as booleans."""


def _squared_log(p: jax.Array, t: jax.Array, e: jax.Array, _: float) -> jax.Array:
    # The absolute value of log(1 + p) - log(1 + t), as the logarithm of a ratio: nothing cancels.
    ratio = xp.abs(e) / (1 + xp.minimum(p, t))
    return xp.log1p(ratio) ** 2


def _symmetric_percentage(p: jax.Array, t: jax.Array, e: jax.Array, _: float) -> jax.Array:
    # Over the greater of both, because their sum may overflow, and half of it underflow.
    p, t = xp.abs(p), xp.abs(t)
    greatest = one_where_zero(xp.maximum(p, t))
    return xp.abs(e) / greatest * (2 / (1 + xp.minimum(p, t) / greatest))


def _huber(p: jax.Array, t: jax.Array, e: jax.Array, delta: float) -> jax.Array:
    # Both branches in one: e * e / 2 up to delta, delta * (e - delta / 2) above.
    e = xp.abs(e)
    inner = xp.minimum(e, delta)
    return inner * (e - inner / 2)


def _quantile(p: jax.Array, t: jax.Array, e: jax.Array, q: float) -> jax.Array:
    # (1 - q) (p - t) where the prediction is too high, else q (t - p).
    return abs(e) * xp.where(e > 0, 1 - q, q).astype(e.dtype)


def _power(p: jax.Array, t: jax.Array, e: jax.Array, power: float) -> Scaled:
    part, exponents = scaled_power(xp.abs(e), power)
    return xp.where(e == 0, 0, part), exponents


def _degree_of_power(power: float) -> int:
    """A whole power of which the powers of float32 are in the range of float64; else 0."""
    return int(power) if power in range(1, 7) else 0


def _whole_power(p: jax.Array, t: jax.Array, e: jax.Array, power: float) -> jax.Array | Scaled:
    degree = _degree_of_power(power)
    return abs(e) ** degree if degree else _power(p, t, e, power)


def _length(square: jax.Array) -> jax.Array:
    return one_where_zero(xp.sqrt(square))


def _row_cosines(x: jax.Array, y: jax.Array) -> jax.Array:
    """The cosine of the angle between rows of `x` and `y`, both (..., D); 0 for a row of zeros.

    Within `D + 8` units of `2**-24` (`2**-53` for float64), whatever the lengths of the rows.
    """
    both, *squares = sums_of_products(x, y)
    if not isinstance(both, ScaledDouble):  # no product over- or underflows
        x_length, y_length = (each_part(square, _length) for square in squares)
        cosine = both / x_length / y_length
        return xp.clip(cosine.to_float() if isinstance(cosine, DoubleFloat) else cosine, -1, 1)
    # Floats are enough for the lengths: the root of a part times an even power of two.
    square = squares[0].double.high * squares[1].double.high
    exponent = squares[0].exponent + squares[1].exponent
    lengths = xp.sqrt(square * ((exponent & 1) + 1).astype(square.dtype))
    # The products have no greater exponent than the lengths. Those of zeros are 0.
    power = power_of_two(both.exponent - (exponent >> 1), square.dtype)
    lengths = xp.maximum(lengths, xp.finfo(lengths.dtype).tiny)
    return xp.clip(both.double.high / lengths * power, -1, 1)


def _tweedie_domain(p: jax.Array, t: jax.Array, power: float) -> jax.Array:
    # Normal: any mean. Below 0, extreme stable: positive means. From 1 to 2, Poisson and compound
    # Poisson: also targets of 0. From 2, gamma and inverse Gaussian: positive targets.
    if power == 0:
        return xp.ones(t.shape, xp.bool_)
    if power < 0:
        return p > 0
    return (p > 0) & ((t >= 0) if power < 2 else (t > 0))


LOSSES: dict[LossName, Loss] = {
    "squared": Loss(lambda p, t, e, _: e**2, degree=lambda _: 2),
    "absolute": Loss(lambda p, t, e, _: abs(e), degree=lambda _: 1),
    "squared log": Loss(_squared_log, domain=lambda p, t, _: (p > -1) & (t > -1)),
    "absolute percentage": Loss(lambda p, t, e, least: xp.abs(e) / xp.maximum(xp.abs(t), least)),
    "symmetric percentage": Loss(_symmetric_percentage),
    "weighted percentage": Loss(
        lambda p, t, e, _: abs(e), lambda p, t, _: xp.abs(t), degree=lambda _: 1
    ),
    "log cosh": Loss(lambda p, t, e, _: log_cosh(xp.abs(e))),
    "huber": Loss(_huber),
    "quantile": Loss(_quantile, degree=lambda _: 1),
    "power": Loss(
        _whole_power,
        degree=_degree_of_power,
        fits_float64=lambda power: power <= 6,
    ),
    "tweedie": Loss(
        lambda p, t, e, power: tweedie_deviance(p, t, power, e) if power else e**2,
        domain=_tweedie_domain,
        degree=lambda power: 2 if power == 0 else 0,
        fits_float64=lambda power: abs(2 - power) <= 4,
    ),
    # Events are values of at least the threshold: hits, and hits, misses and false alarms.
    "critical success": Loss(
        lambda p, t, e, _: p & t,
        lambda p, t, _: p | t,
        compares=True,
    ),
    "cosine": Loss(lambda p, t, e, _: _row_cosines(p, t), of_rows=True),
}


def _counted(convert: Callable[..., R], counts: jax.Array, *given: jax.Array) -> R:
    """Predictions, targets and errors, where excluded examples are 1, and their errors 0.

    Every loss is defined for these, so that none is NaN.
    """
    return convert(*(replaced(counts, x, xp.ones((), x.dtype)) for x in given))


def _without_error(p: jax.Array, t: jax.Array) -> Arrays:
    """The predictions and the targets as floats; no error is used."""
    x = as_float(p)
    return x, as_float(t), x


def _reaching(p: jax.Array, t: jax.Array, threshold: float) -> Arrays:
    """The predictions and the targets that reach a threshold, as booleans; no error is used."""
    return _reaches(p, threshold), _reaches(t, threshold), as_float(p)


def _with_scaled_error(p: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array, ScaledDouble]:
    """Predictions, targets and errors that do not overflow, nor do their products."""
    return as_float(p), as_float(t), unit_difference(float_or_double(p), float_or_double(t))


def _reaches(x: jax.Array, threshold: float) -> jax.Array:
    """True for the values that are at least the threshold; large integers are not rounded."""
    value = float_or_double(x)
    is_rounded = not isinstance(value, DoubleFloat)
    return value >= (rounded_to(x.dtype, threshold) if is_rounded else threshold)


class LossTotal(CountsInvalid, kw_only=False):
    """The sum of `w * loss(preds, target)`, and its divisor: mostly the sum of `w`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import LossTotal
        >>> seen = LossTotal("huber", 1.0).update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(seen.total.value, seen.scale.value, seen.mean)
        2.0 2.0 1.0
    """

    loss: LossName
    """"squared", "absolute", "squared log", "absolute percentage", "symmetric percentage",
    "weighted percentage", "log cosh", "huber", "quantile", "power", "tweedie", "critical
    success" or "cosine"."""
    parameter: float = 0.0
    """The parameter of the loss, where it has one."""
    shape: tuple[int, ...] = ()
    """The shape of one example; `()` for scalars. For "cosine" an example is a row of any
    length."""

    def __post_init__(self) -> None:
        self.parameter, self.shape = float(self.parameter), tuple(self.shape)
        self.sums = ScaledTotal((2, *self.shape))

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in `preds` and `target` of one shape, (..., *shape).

        Examples that hold a NaN or an infinity, or for which the loss is not defined, are excluded
        and counted.
        """
        row, parameter, shape = LOSSES[self.loss], self.parameter, self.shape
        if row.of_rows:
            shape = numeric(preds, "preds").shape[-1:]
            if not shape:
                raise MetricInputError("preds of shape (); expected rows, of shape (..., D)")
        degree = row.degree(parameter)
        p, t, w, invalid = pairs(
            preds, target, weights, shape, row.domain, parameter, any_range=degree > 0
        )
        error, scale = self.terms(p, t, w)
        sums = self.sums.plus(error, scale)
        return self.with_batch(invalid, sums=sums, **self.with_targets(t, scale[1]))

    def terms(
        self, p: jax.Array, t: jax.Array, w: jax.Array
    ) -> tuple[tuple[Any, jax.Array | None], tuple[jax.Array, jax.Array]]:
        """What `ScaledTotal.plus` takes for the losses of examples, and for their divisors.

        Args:
            p: predictions, as `pairs` returns them.
            t: targets.
            w: the weight of each example, zero for those that cannot be used.
        """
        row, parameter = LOSSES[self.loss], self.parameter
        degree = row.degree(parameter)
        counts = w.astype(xp.bool_)
        if not row.of_rows:  # of those, (..., 1)
            counts = xp.broadcast_to(counts, p.shape)
        w = w[..., 0] if row.of_rows else xp.broadcast_to(w, p.shape)
        # Where there is no float64, or its errors would overflow, a loss is a part and an exponent.
        fits = errors_fit_float64(p, t, beside=w)
        if degree and not fits:
            value, scale = self._losses(counts, *_counted(_with_scaled_error, counts, p, t))
        else:
            convert: Any = partial(with_difference, in_float64=degree > 0)
            if row.of_rows:
                convert = _without_error
            elif row.compares:
                convert = partial(_reaching, threshold=parameter)

            def losses(counts: jax.Array, *given: jax.Array) -> tuple[PyTree, jax.Array]:
                arrays = _counted(convert, counts, *given)  # before 64-bit types are enabled
                if degree:
                    return in_x64(self._losses, counts, *arrays)
                return self._losses(counts, *arrays)

            # Losses have several temporary arrays of the size of the batch, which stay in the cache
            # by blocks.
            value, scale = by_blocks(losses, len(counts.shape) - row.of_rows, counts, p, t)
        if isinstance(value, tuple):
            if fits and (degree or row.fits_float64(parameter)):
                with elementary_in_x64(*value):
                    value = times_power_of_two(value[0].astype(xp.float64), value[1])
            else:
                value = scaled_part(*value)
        # The powers of errors of 0 are 0: no mask is needed.
        # A mask less is an operation less on each row.
        mask = None if isinstance(value, ScaledDouble) and w.dtype == np.bool_ and degree else w
        return (value, mask), (scale, w)

    def _losses(
        self, counts: jax.Array, p: jax.Array, t: jax.Array, e: Any
    ) -> tuple[PyTree, jax.Array]:
        """The loss of each example, and its divisor."""
        row = LOSSES[self.loss]
        value = row.value(p, t, e, self.parameter)
        if row.scale:
            return value, row.scale(p, t, self.parameter)
        examples = counts[..., 0] if row.of_rows else counts
        return value, xp.ones_like(examples)

    def with_targets(self, target: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        """What else a subclass keeps of the targets and their weights: the changed children."""
        return {}

    @property
    def total(self) -> ScaledTotal:
        """The sum of `w * loss`."""
        return self.sums[0]

    @property
    def scale(self) -> ScaledTotal:
        """The sum of the divisors."""
        return self.sums[1]

    @property
    def mean(self) -> jax.Array:
        """The total over the scale; NaN where the scale is zero."""
        return quotient(self.total, self.scale)
