"""The number of observations that weighted rows count as: in all, or by target and prediction."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.distributed.collectives import replicated
from datarax.metric.base import Metric
from datarax.metric.sampling import Sampling, Spread
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.class_counts import ClassCounts, ConfusionCounts
from datarax.statistics.weighted_total import WeightedTotal


class SummedSquares(NamedTuple):
    """Squared weights of positives and of negatives, each (1,)."""

    of_positives: DoubleFloat
    of_negatives: DoubleFloat


class SquaredCounts(Metric):
    """The squared weights of rows of one example each, by target and prediction.

    The variance of a weighted sum of independent rows is a sum over squared weights, and the state
    of the metric itself only has sums over weights. See `Sampling.squares`.
    """

    statistic: Any = state()

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in.

        Args:
            preds: as of the metric that the squares are for.
            target: as of that metric, with one example in each row.
            weights: of the rows.

        Raises:
            MetricInputError: rows hold several examples, which may depend on each other.
        """
        counts = self.statistic
        # Of several labels, the last axis is that of labels.
        has_labels = isinstance(counts, ClassCounts) and counts.num_labels is not None
        check_rows(target, "target", 2 if has_labels else 1)
        return self.with_parts(self.plus_rows(preds, target, weights))

    def plus_rows(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> dict[str, PyTree]:
        """The states with the rows of a batch."""
        raise TypeError(f"{type(self).__name__} does not define plus_rows()")


class SquaredWeights(SquaredCounts):
    """The squared weights of examples, in a statistic of counts by class.

    Args:
        statistic: a `ClassCounts` or a `ConfusionCounts`, without data.
    """

    def __init__(self, statistic: Any):
        self.statistic = statistic

    def plus_rows(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> dict[str, PyTree]:
        return {"statistic": self.statistic.update(preds, target, weights=squared_weights(weights))}

    @property
    def of_positives(self) -> DoubleFloat:
        """Of the examples of each class, (C,); of a `ClassCounts`."""
        tp, _, fn, _ = self._cells
        return tp + fn

    @property
    def of_negatives(self) -> DoubleFloat:
        """Of the examples of all other classes, (C,)."""
        _, fp, _, tn = self._cells
        return fp + tn

    def summed(self, classes: np.ndarray) -> "SummedSquares":
        """Over these classes, whose examples are examples of one binary task."""
        positives, negatives = self.of_positives[classes], self.of_negatives[classes]
        return SummedSquares(*(x.sum().reshape(1) for x in (positives, negatives)))

    @property
    def _cells(self) -> list[DoubleFloat]:
        cells = self.statistic.cells.double
        return [cells[i] for i in range(4)]

    @property
    def by_kind(self) -> DoubleFloat:
        """By target and prediction, (C, C); (2, 2) of a binary task."""
        if isinstance(self.statistic, ConfusionCounts):
            return self.statistic.matrix.double
        tp, fp, fn, tn = self._cells
        return stack([tn, fp, fn, tp], -1).reshape(2, 2)


class SquaredPairs(SquaredCounts):
    """The squared weights of rows of several labels, by the kinds of each two of their labels.

    The kind of a label is its target and its prediction: a true or false positive or negative.

    Args:
        statistic: a `ClassCounts` of labels, without data.
    """

    pairs: MetricAccumulator = state()
    """Of each two kinds of labels, (4, L, 4, L), in the order of `ClassCounts`."""

    def __init__(self, statistic: Any):
        self.statistic = statistic
        size = statistic.size
        self.pairs = MetricAccumulator(np.zeros((4, size, 4, size)))

    def plus_rows(self, preds: ArrayLike, target: ArrayLike, weights: Weights) -> dict[str, PyTree]:
        size = self.statistic.size
        chosen, positive, w, *_ = self.statistic.above_threshold(
            preds, target, weights, num_labels=size
        )
        chosen, positive, w = replicated((chosen, positive, w))
        kinds = xp.stack(
            [chosen & positive, chosen & ~positive, ~chosen & positive, ~(chosen | positive)], 1
        )
        w = as_float(xp.broadcast_to(w, chosen.shape))
        rows = xp.where(kinds, w[:, None], 0).reshape(len(w), 4 * size)
        # All pairs of labels at once: (4 L, rows) times (rows, 4 L). The precision keeps
        # accelerators from rounding the weights to bfloat16 or TF32.
        squares = xp.matmul(rows.T, rows, precision=lax.Precision.HIGHEST)
        added = DoubleFloat.of(squares.reshape(4, size, 4, size))
        return {"pairs": self.pairs.plus(added)}


class SquaredTotal(Metric):
    """The sum of the squared weights of values, or of pairs of them, that are not NaN."""

    statistic = WeightedTotal()

    def update(self, *values: ArrayLike, weights: Weights = None, **named: ArrayLike) -> Self:
        """A new metric with the batch folded in.

        Args:
            values: of shape (N,), by position or by name.
            weights: of the rows.
            named: see `values`.

        Raises:
            MetricInputError: rows hold several values, which may depend on each other.
        """
        given = [as_float(xp.asarray(x)) for x in (*values, *named.values())]
        # On an `Explicit` mesh, one of a pair may be sharded and the other not.
        given = replicated(given)
        total = functools.reduce(operator.sub, given)
        # Values of one row may depend on each other, and their squares do not say how much.
        check_rows(total, "values", 1)
        each = xp.where(xp.isnan(total), total, xp.ones((), total.dtype))
        return self.replace(statistic=self.statistic.update(each, weights=squared_weights(weights)))

    def observations(self, weight: DoubleFloat) -> jax.Array:
        """The number of observations that rows of this total weight count as."""
        return (weight * weight / self.statistic.weight.double).to_float()


class QuantileSampling(Sampling):
    """The standard error of a quantile of values in a `ValueHistogram`, which is that of Woodruff.

    Args:
        metric: what the quantile is of, with its data.
        q: the part of the weight, or several.
    """

    method = "woodruff"

    def __init__(self, metric: Metric, q: float | Sequence[float]):
        super().__init__(metric)
        self.q = q

    def squares(self) -> SquaredTotal:
        return SquaredTotal()

    def spread(self, value: jax.Array, squares: SquaredTotal, z: float) -> Spread:
        statistic, (least, greatest) = self.metric.statistic, self.metric.value_range
        ends = statistic.ends_of_quantile(self.q, z, squares.observations(statistic.total))
        lower, upper = xp.maximum(ends[0], least), xp.minimum(ends[1], greatest)
        # The method gives the ends, so the standard error is what would give an interval of their
        # width.
        return Spread(lower, upper, (upper - lower) / (2 * z))


def check_rows(x: ArrayLike, name: str, most_axes: int) -> None:
    """Raises if rows hold several examples, which may depend on each other."""
    if xp.ndim(x) > most_axes:
        raise MetricInputError(
            f"{name} of shape {xp.shape(x)}; an interval takes rows of one example each, which "
            f"are its observations. Reshape to one axis of examples if they are independent; else "
            f"there is Bootstrap"
        )


def squared_weights(weights: Weights) -> Weights:
    """The squares of weights; a mask is its own."""
    if weights is None:
        return None
    w = xp.asarray(weights)
    if w.dtype == xp.bool_:
        return w
    # Squares of integers or of half floats could overflow.
    w = as_float(w)
    return w * w
