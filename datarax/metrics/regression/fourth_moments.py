"""The variance of a metric of two variables, from their moments up to the fourth."""

from collections.abc import Mapping
from itertools import product
from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import as_float
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.fold import in_one_pass
from datarax.metric.base import Metric
from datarax.metric.sampling import Sampling
from datarax.metric.squared_weights import check_rows
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.limbs import float_or_double, has_many_digits
from datarax.numerics.scaled_double import ScaledDouble
from datarax.numerics.scaling import exponent_of, nan_where
from datarax.statistics.batches import pairs
from datarax.statistics.moments import CentralMoments

Coefficients = Mapping[tuple[int, int], ScaledDouble]
"""The coefficient of `u**i * v**j` by `(i, j)`, for `i + j` up to 2."""
_FARTHEST = 2.0**36
"""The greatest quotient of the two variances of which the fourth moments keep digits."""
_ROUNDING = 2.0**-44
"""A sum that is less than this part of its terms is what rounding has left of zero."""


class MomentSampling(Sampling):
    """The standard error of a smooth function of moments, by output: see `FourthMoments`."""

    of_errors: ClassVar[bool] = False
    """True if the first of the two variables is `preds - target`, False if it is `preds`."""

    def squares(self) -> "FourthMoments | None":
        if not self.metric.is_by_output:
            return None
        return FourthMoments(shape=self.metric.example_shape, of_errors=self.of_errors)


class FourthMoments(Metric):
    """The moments up to the fourth of two variables, weighted by squared weights.

    A metric that is a smooth function of means, variances and a covariance has an influence of each
    row that is a polynomial of degree two in both variables. The mean of its square, which is the
    variance of the metric, is then a sum of moments up to the fourth. Those of products follow from
    the powers of five sums of the variables, whose moments merge as any others: the identity
    `(u + v)**4 + (u - v)**4 - 2 u**4 - 2 v**4 = 12 u**2 v**2` and its like.

    Args:
        shape: the shape of one example, `()` or `(num_outputs,)`.
        of_errors: True if the first variable is `preds - target`, False if it is `preds`. The
            second one is the target.
    """

    shape: tuple[int, ...] = ()
    of_errors: bool = False
    moments: CentralMoments = state()
    """Those of u, v, u + v, u - v and u + 2 v, on the first axis of the shape."""

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)
        self.moments = CentralMoments((5, *self.shape), 4)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in.

        Args:
            preds: predictions, (N, *shape).
            target: of the same shape.
            weights: of the rows.

        Raises:
            MetricInputError: rows hold several examples, which may depend on each other.
        """
        check_rows(target, "target", 1 + len(self.shape))
        p, t, w, _ = pairs(preds, target, weights, self.shape)
        u, v = (DoubleFloat.of(float_or_double(x)) for x in (p, t))
        u = u - v if self.of_errors else u
        if w.dtype != np.bool_:
            w = as_float(w) * as_float(w)  # squares of integers could overflow
        sums = stack([u, v, u + v, u - v, u + v * 2], 1)
        w = xp.broadcast_to(xp.expand_dims(w, 1), sums.shape)
        many = has_many_digits(p) or has_many_digits(t)
        (moments,) = in_one_pass(self.moments.plus_rows(sums, w, many_digits=many))
        return self.with_parts({"moments": moments})

    def variance(
        self,
        influence: Coefficients,
        means: tuple[ScaledDouble, ScaledDouble],
        weight: ScaledDouble,
    ) -> jax.Array:
        """The variance of a metric: `n / (n - 1) * sum (w influence)**2 / (sum w)**2`.

        Weighted rows count as n = (sum w)**2 / sum w**2 observations.

        Args:
            influence: the derivative of the metric by the weight of a row, times the weight of all
                rows, as a polynomial of the distances u and v from the means.
            means: the means of both variables.
            weight: that of all rows.

        Returns:
            An array of `shape`: 0 where no row has an influence, and NaN for fewer than two
            observations, and where one variance is more than 2**36 times the other.
        """
        count, mean, powers = self.moments.scaled()
        # Powers of distances are far below their unit if the mean is far from zero.
        second, third, fourth = (each.normalized() for each in powers)
        # In units near the standard deviations, no power overflows.
        units = [exponent_of((second[i] / count[0]).root()) for i in range(2)]

        def in_units(x: ScaledDouble, i: int, j: int) -> DoubleFloat:
            unit = units[0] * i + units[1] * j
            return ScaledDouble(x.double, x.exponent - unit).normalized().to_double()

        def moment(x: ScaledDouble, i: int, j: int) -> DoubleFloat:
            return in_units(x / count[0], i, j)

        u2, v2, sum2 = (second[i] for i in range(3))
        u3, v3, sum3, apart3 = (third[i] for i in range(4))
        u4, v4, sum4, apart4, twice4 = (fourth[i] for i in range(5))
        squares = (sum4 + apart4 - u4 * 2 - v4 * 2) * (1 / 12)  # u**2 v**2
        both = (sum4 - apart4) * (1 / 8)  # u**3 v + u v**3
        cubes = (twice4 - u4 - squares * 24 - v4 * 16 - both * 8) * (1 / 24)  # u v**3
        one = DoubleFloat.of(xp.ones(self.shape, count.double.dtype))
        moments = {
            (0, 0): one,
            (1, 0): one * 0,
            (0, 1): one * 0,
            (2, 0): moment(u2, 2, 0),
            (1, 1): moment((sum2 - u2 - v2) * 0.5, 1, 1),
            (0, 2): moment(v2, 0, 2),
            (3, 0): moment(u3, 3, 0),
            (2, 1): moment((sum3 - apart3 - v3 * 2) * (1 / 6), 2, 1),
            (1, 2): moment((sum3 + apart3 - u3 * 2) * (1 / 6), 1, 2),
            (0, 3): moment(v3, 0, 3),
            (4, 0): moment(u4, 4, 0),
            (3, 1): moment(both - cubes, 3, 1),
            (2, 2): moment(squares, 2, 2),
            (1, 3): moment(cubes, 1, 3),
            (0, 4): moment(v4, 0, 4),
        }
        # The moments are about the means by squared weights, from which those by weights differ.
        d, e = ((mean[i] - means[i]) for i in range(2))
        d, e = in_units(d, 1, 0), in_units(e, 0, 1)
        zero = ScaledDouble.of(xp.zeros(self.shape, count.double.dtype))

        places = ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2))
        c = {(i, j): in_units(influence.get((i, j), zero), -i, -j) for i, j in places}
        moved = c | {
            (0, 0): c[0, 0]
            + c[1, 0] * d
            + c[0, 1] * e
            + c[2, 0] * d * d
            + c[1, 1] * d * e
            + c[0, 2] * e * e,
            (1, 0): c[1, 0] + c[2, 0] * d * 2 + c[1, 1] * e,
            (0, 1): c[0, 1] + c[0, 2] * e * 2 + c[1, 1] * d,
        }
        total, size = one * 0, xp.zeros(self.shape, one.dtype)
        for (a, x), (b, y) in product(moved.items(), repeat=2):
            term = x * y * moments[a[0] + b[0], a[1] + b[1]]
            total, size = total + term, size + xp.abs(term.to_float())
        square = total.to_float()
        square = xp.where(square > size * _ROUNDING, square, 0)
        n = (weight / count[0] * weight).to_float()
        far = (u2 / v2).to_float()
        far = (far > _FARTHEST) | (far < 1 / _FARTHEST) & (far > 0)
        return nan_where(far | ~(n > 1), square / xp.maximum(n - 1, _ROUNDING))
