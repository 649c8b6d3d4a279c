"""The base of the metrics of pairs of signals: one `update`."""

from typing import ClassVar, Self

import jax

from datarax._checks import numeric, same_shape
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.distributed.collectives import unsharded
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.numerics.double_float import computed_in_float64
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import Invalid, not_finite, out_of_range


class SignalMetric(MeanScore):
    """The mean over signals of how near a prediction is to its target; a subclass defines `score`.

    Computed in float64 where devices have it, and rounded once for each signal.
    """

    terms_by_row = True
    higher_is_better = True
    several: ClassVar[bool] = False
    """True if a signal is several sources (S, T), which `score` takes together."""

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the signals folded in; no communication.

        Args:
            preds: signals (..., T), of any real dtype.
            target: signals of the same shape. One that holds a NaN or an infinity, or for which
                the metric has no value, is invalid.
            weights: of the signals; broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ, or have no axis.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        values, unusable = self.pairwise(preds, target)
        w, invalid = rows_weight(unusable, weights)
        return self.replace(statistic=self.statistic.add(values, w, invalid))

    def pairwise(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, Invalid]:
        """The value of each pair of signals (..., T), whose leading axes broadcast, and which
        pairs have none; of several sources, the signals are (..., S, T)."""
        axes = (-2, -1) if self.several else (-1,)
        shape = preds.shape[-len(axes) :]
        if len(shape) < len(axes) or 0 in shape:
            expected = "sources (..., S, T)" if self.several else "signals (..., T)"
            raise MetricInputError(f"preds of shape {preds.shape}; expected {expected}")
        for axis in axes:
            preds, target = unsharded(preds, axis), unsharded(target, axis)
        each = "(s,t)" if self.several else "(t)"
        score = xp.vectorize(self.score, signature=f"{each},{each}->(),()")
        values, defined = computed_in_float64(score, preds, target)
        bad = xp.maximum(not_finite(preds, axes).code, not_finite(target, axes).code)
        return values, Invalid(bad) | out_of_range(~defined)

    def score(self, preds: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The value of two signals, and whether there is one."""
        raise TypeError(f"{type(self).__name__} does not define score()")
