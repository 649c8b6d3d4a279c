"""A metric of several sources whose order does not matter."""

from typing import Literal, Self

from datarax._checks import as_float, kind, numeric, same_shape
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metric.base import Metric
from datarax.metrics.audio.signal_metric import SignalMetric
from datarax.numerics.assignment import best_matching
from datarax.statistics.batches import rows_weight

_DECIBELS = 1e4  # what an infinite ratio counts as, where sources are matched


class PermutationInvariant(Metric):
    """A metric of mixtures, in the best order of their predicted sources.

    The mean over mixtures of the mean over sources of `metric`, where each prediction is matched to
    one target so that this is greatest (or least). The matching is found by the Hungarian
    algorithm, from the table of all pairs of a mixture: S**2 values, rather than all orders. A
    mixture with an invalid pair is invalid. No data gives NaN.

    D. Yu and others (2017), Permutation invariant training,
    https://doi.org/10.1109/ICASSP.2017.7952154.

    Raises:
        MetricTypeError: `metric` is no metric of pairs of signals: `SNR`, `SISDR` and so on.
        MetricInputError: a policy `on_invalid` of `metric`: give it to this one.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import SNR, PermutationInvariant
        >>> target = jnp.array([[[1.0, -1.0, 1.0], [2.0, 2.0, -2.0]]])
        >>> preds = 1.1 * target[:, ::-1]  # in the other order
        >>> print(round(float(PermutationInvariant(SNR()).update(preds, target).compute()), 3))
        20.0
    """

    metric: SignalMetric = field(kw_only=False)
    """The metric of a pair of signals."""
    mode: Literal["max", "min"] = "max"
    """The best order has the greatest mean with "max", and the least with "min"."""

    def __post_init__(self) -> None:
        if not isinstance(self.metric, SignalMetric) or self.metric.several:
            raise MetricTypeError(
                f"PermutationInvariant: metric={kind(self.metric)}; expected a metric of pairs of "
                f"signals, such as SISDR()"
            )
        if self.metric.on_invalid != "propagate":
            raise MetricInputError(
                f"PermutationInvariant(metric) with on_invalid={self.metric.on_invalid!r} of the "
                f"metric; give on_invalid= to PermutationInvariant"
            )

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the mixtures folded in; no communication.

        Args:
            preds: the predicted sources (..., S, T).
            target: the sources, of the same shape.
            weights: of the mixtures; broadcast against the leading axes.

        Raises:
            MetricInputError: the shapes differ, or have less than two axes.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim < 2 or not preds.shape[-2]:
            raise MetricInputError(f"preds of shape {preds.shape}; expected sources (..., S, T)")
        values, unusable = self.metric.pairwise(preds[..., :, None, :], target[..., None, :, :])
        gain = xp.nan_to_num(values, nan=0.0, posinf=_DECIBELS, neginf=-_DECIBELS)
        matching = xp.vectorize(best_matching, signature="(s,t)->(s)")
        place = matching(gain if self.mode == "max" else -gain)
        targets = xp.arange(preds.shape[-2], dtype=xp.int32)
        matched = place[..., None] == targets.reshape((1,) * place.ndim + (-1,))
        value = xp.sum(xp.where(matched, values, 0), (-1, -2)) / len(targets)
        w, invalid = rows_weight(unusable.any((-1, -2)), weights)
        total = self.metric.statistic.add(as_float(value), w, invalid)
        return self.with_parts({"metric": self.metric.replace(statistic=total)})

    def compute(self) -> PyTree:
        return self.metric.statistic.mean
