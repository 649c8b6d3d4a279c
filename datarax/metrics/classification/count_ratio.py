"""Ratios of counts by class, averaged over classes: what most classification metrics are."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import choice, real
from datarax.metrics.base import Metric, check_policy
from datarax.statistics.class_counts import ClassCounts

AVERAGES = ("micro", "macro", "weighted", None)


class Counts(NamedTuple):
    """True and false positives and negatives by class, as pairs of floats of shape (C,)."""

    tp: nx.Pair
    fp: nx.Pair
    fn: nx.Pair
    tn: nx.Pair

    @classmethod
    def of(cls, statistic: ClassCounts) -> "Counts":
        """From the statistic."""
        accumulators = statistic.right, statistic.predicted, statistic.actual, statistic.total
        right, predicted, actual, total = (
            pair_broadcast(each.words, (statistic.size,)) for each in accumulators
        )
        fp, fn = pair_subtract(predicted, right), pair_subtract(actual, right)
        return cls(right, fp, fn, pair_subtract(pair_subtract(total, actual), fp))

    @property
    def predicted(self) -> nx.Pair:
        """How often each class was predicted."""
        return nx.pair_add(self.tp, self.fp)

    @property
    def unpredicted(self) -> nx.Pair:
        """How often each class was not predicted."""
        return nx.pair_add(self.tn, self.fn)

    @property
    def positives(self) -> nx.Pair:
        """How often each class was the target."""
        return nx.pair_add(self.tp, self.fn)

    @property
    def negatives(self) -> nx.Pair:
        """How often each class was not the target."""
        return nx.pair_add(self.tn, self.fp)

    @property
    def total(self) -> nx.Pair:
        """How many examples each class could be predicted for: all, but for ignored labels."""
        return nx.pair_add(self.positives, self.negatives)

    def summed(self) -> "Counts":
        """Over all classes, as one."""
        return Counts(*(tuple(x[None] for x in nx.pair_sum(each)) for each in self))  # type: ignore[arg-type]

    def scaled(self) -> "Counts":
        """All divided by one power of two, so that no product of three overflows or is lost."""
        scale = power_of(jnp.max(self.total[0]))
        return Counts(*((x[0] * scale, x[1] * scale) for x in self))


class CountMetric(Metric):
    """What reads counts by class: the arguments that make the statistic."""

    def _count(
        self,
        *,
        num_classes: int | None,
        num_labels: int | None,
        threshold: float,
        top_k: int,
        ignore_index: int | None,
        on_invalid: str,
    ) -> None:
        self.on_invalid = check_policy(on_invalid)
        self.statistic = ClassCounts(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            ignore_index=ignore_index,
        )

    @property
    def _is_binary(self) -> bool:
        return self.statistic.num_classes is None and self.statistic.num_labels is None


class CountRatio(CountMetric):
    """A ratio of counts for each class. A subclass says which in `_ratio`.

    Averages follow scikit-learn: "macro" and "weighted" are over the classes that occur, among
    the targets or the predictions; "weighted" by how often each is the target.
    """

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        threshold: float = 0.5,
        top_k: int = 1,
        average: str | None = "macro",
        zero_division: float = 0.0,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        choice(average, AVERAGES, "average")
        self.average, self.zero_division = average, undefined(zero_division)
        self._count(
            num_classes=num_classes,
            num_labels=num_labels,
            threshold=threshold,
            top_k=top_k,
            ignore_index=ignore_index,
            on_invalid=on_invalid,
        )

    def _ratio(self, counts: Counts) -> tuple[nx.Pair, nx.Pair]:
        """Numerator and denominator, by class."""
        raise TypeError(f"{type(self).__name__} does not define _ratio()")

    def _counts(self) -> Counts:
        """Those of the classes that the ratio is of."""
        return Counts.of(self.statistic)

    def _value(self) -> jax.Array:
        counts = self._counts()
        if self.average == "micro" and not self._is_binary:
            counts = counts.summed()
        part, of = self._ratio(counts)
        ratio = or_nan(divide(part, of, self.zero_division), counts.total[0])
        if self._is_binary or self.average == "micro":
            return ratio[0]
        if self.average is None:
            return ratio
        support = counts.positives[0]
        if self.statistic.num_classes is not None:
            occurs = support + counts.fp[0] > 0
            ratio = jnp.where(occurs, ratio, jnp.asarray(jnp.nan, ratio.dtype))
        weight = support if self.average == "weighted" else jnp.ones_like(support)
        return weighted_mean(ratio, weight)


def undefined(value: float) -> float | str:
    """What stands for 0/0, as configuration: NaN by name, as it is not equal to itself."""
    value = real(value, "zero_division", nan=True)
    return "nan" if math.isnan(value) else value


def divide(part: nx.Pair, of: nx.Pair, zero_division: float | str) -> jax.Array:
    """The quotient, with a stated value where the denominator is zero."""
    ratio = nx.pair_divide(part, of)
    return jnp.where(of[0] == 0, jnp.asarray(float(zero_division), ratio.dtype), ratio)


def or_nan(x: jax.Array, total: jax.Array) -> jax.Array:
    """NaN where there is no data."""
    return jnp.where(total > 0, x, jnp.asarray(jnp.nan, x.dtype))


def weighted_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`sum(weight * x) / sum(weight)` without NaN; the plain mean where all weights are zero."""
    some = ~jnp.isnan(x)
    zero = jnp.zeros((), x.dtype)
    weight = jnp.where(some, weight, zero)
    weight = jnp.where(jnp.sum(weight) > 0, weight, some.astype(x.dtype))
    # 0/0 is NaN: nothing to average.
    return jnp.sum(jnp.where(some, x, zero) * weight) / jnp.sum(weight)


def power_of(total: jax.Array) -> jax.Array:
    """The power of two that, times this float, is from 1/2 to 1; 1 where it is zero.

    Made of its bits: a quotient is a product with a rounded reciprocal where a compiler sees fit.
    """
    info = jnp.finfo(total.dtype)
    bits = jnp.dtype(f"int{info.bits}")
    exponent = jnp.frexp(total)[1].astype(bits)
    field = (jnp.asarray(1 - info.minexp, bits) - exponent) << jnp.asarray(info.nmant, bits)
    power = jax.lax.bitcast_convert_type(field, total.dtype)
    return jnp.where(total > 0, power, jnp.ones_like(total))


def pair_subtract(a: Any, b: Any) -> nx.Pair:
    """`a - b`."""
    return nx.pair_add(a, (-b[0], -b[1]))


def pair_broadcast(a: Any, shape: tuple[int, ...]) -> nx.Pair:
    """A pair in another shape."""
    return jnp.broadcast_to(jnp.asarray(a[0]), shape), jnp.broadcast_to(jnp.asarray(a[1]), shape)
