"""`CountSampling`: the standard error of functions of the counts of classes or labels."""

import jax
import numpy as np

from datarax._typing import PyTree
from datarax._xp import lax, vmap, xp
from datarax.metric.sampling import Sampling
from datarax.metric.squared_weights import SquaredPairs, SquaredWeights
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.statistics.class_counts import ClassCounts, ConfusionCounts

_MOST_CLASSES = 64
"""The classes of a table of kinds of rows, which takes 32 KiB."""
_MOST_LABELS = 22
"""The labels of a table of the kinds of each two of them, which takes 62 KB."""


class CountSampling(Sampling):
    """The standard error of a ratio of counts, or of another function of them."""

    def squares(self) -> SquaredWeights | SquaredPairs | None:
        """Of kinds of rows, by target and prediction: binary, and up to 64 classes; else None.

        Of up to 22 labels, by the kinds of each two of them. A row of several predictions has too
        many kinds.
        """
        counts = self.metric.statistic
        if type(counts) is not ClassCounts or counts.top_k > 1:
            return None
        value = jax.eval_shape(lambda metric: metric.value_and_bounds()[0], self.metric)
        if not isinstance(value, jax.ShapeDtypeStruct) or value.ndim > 1 or value.dtype == np.int32:
            return None
        if counts.num_labels is not None:
            return SquaredPairs(counts.emptied()) if counts.num_labels <= _MOST_LABELS else None
        if counts.num_classes is None:
            return SquaredWeights(counts.emptied())
        if counts.num_classes > _MOST_CLASSES:
            return None
        return SquaredWeights(ConfusionCounts.from_fields(self.metric))

    def variance(self, squares: PyTree) -> jax.Array:
        """The variance by the delta method.

        It is the sum over kinds of rows, by target and prediction, of their squared weights times
        the square of the derivative of the value by the weight of the kind: the value does not
        depend on the unit of weights, so the derivatives of all rows add up to 0. They are
        differences of values at counts a little greater and less; inside `jit` of floats.
        """
        cells = self.metric.statistic.cells
        counts = cells.double.to_float()  # (4, C)
        size = counts.shape[1]
        # So that rounding and curvature have about the same part in the error.
        steps = counts * xp.asarray(np.finfo(counts.dtype).eps ** (1 / 3), counts.dtype)

        def value_at(change: jax.Array) -> jax.Array:
            statistic = self.metric.statistic.replace(cells=cells.plus(DoubleFloat.of(change)))
            return self.metric.replace(statistic=statistic).value_and_bounds()[0]

        each = xp.reshape(xp.eye(4 * size, dtype=counts.dtype), (4 * size, 4, size)) * steps[None]
        apart = vmap(value_at)(each) - vmap(value_at)(-each)
        shape = apart.shape[1:]
        apart = xp.reshape(apart, (4, size, -1))
        some = (steps > 0)[..., None]
        # What no row has, no row changes.
        slopes = xp.where(some, apart / xp.where(some, 2 * steps[..., None], 1), 0)
        observations = self._observations(squares)
        if isinstance(squares, SquaredPairs):
            # A row changes the value by the sum over its labels.
            slopes = xp.reshape(slopes, (4 * size, -1))
            pairs = xp.reshape(squares.pairs.double.to_float(), (4 * size, 4 * size))
            variance = xp.sum(slopes * xp.matmul(pairs, slopes, precision=lax.Precision.HIGHEST), 0)
            variance = xp.maximum(variance, 0)
        else:
            by_kind = _slopes_by_kind(slopes)
            variance = xp.sum(squares.by_kind.to_float()[..., None] * by_kind * by_kind, (0, 1))
        variance = variance * observations / xp.maximum(observations - 1, 1)
        return xp.reshape(nan_where(observations < 1.5, variance), shape)

    def _observations(self, squares: PyTree) -> jax.Array:
        """The number of observations that weighted rows count as."""
        cells = self.metric.statistic.cells.double
        tp, fp, fn, tn = (cells[i] for i in range(4))
        total = (tp + fn) + (tn + fp)
        if isinstance(squares, SquaredPairs):
            diagonal = xp.arange(total.shape[0])
            own = squares.pairs.double.map(lambda x: x[:, diagonal, :, diagonal])
            return xp.max((total * total / own.sum((1, 2))).to_float())
        return (total[0] * total[0] / squares.by_kind.sum().sum()).to_float()


def _slopes_by_kind(slopes: jax.Array) -> jax.Array:
    """The derivatives by the weight of a row, by target and prediction, from those (4, C, ...)."""
    tp, fp, fn, tn = (slopes[i] for i in range(4))
    if len(tp) == 1:  # the positive class
        return xp.stack([xp.concatenate([tn, fp]), xp.concatenate([fn, tp])])
    others = xp.sum(tn, 0, keepdims=True) - tn
    by_kind = fn[:, None] + fp[None] + others[:, None] - tn[None]
    same = xp.eye(len(tp), dtype=xp.bool_)[..., None]
    return xp.where(same, (tp + others)[:, None], by_kind)
