"""How differently groups of examples are treated."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import is_integer, numeric, positive_int, real, same_shape
from datarax._errors import MetricTypeError
from datarax.metrics.base import Metric, check_policy
from datarax.numerics.pairs import pair_subtract, power_of
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import examples
from datarax.statistics.labels import count_labels, in_range
from datarax.statistics.state import State


class GroupCounts(State):
    """For each group: examples, positives, positive predictions, and those that are right."""

    invalid = MetricAccumulator(0)

    def __init__(self, *, num_groups: int, threshold: float, ignore_index: int | None):
        self.num_groups = num_groups
        self.threshold, self.ignore_index = real(threshold, "threshold"), ignore_index
        self.right = MetricAccumulator(np.zeros(num_groups))
        self.predicted = MetricAccumulator(np.zeros(num_groups))
        self.actual = MetricAccumulator(np.zeros(num_groups))
        self.total = MetricAccumulator(np.zeros(num_groups))

    def update(self, preds: Any, target: Any, groups: Any, *, weights: Any = None) -> Self:
        """Folds in scores, 0/1 targets and group numbers, all of one shape."""
        groups = numeric(groups, "groups")
        batch = examples(preds, target, weights, ignore_index=self.ignore_index)
        same_shape(batch.preds, groups, ("preds", "groups"))
        if not is_integer(groups):
            raise MetricTypeError(
                f"groups has dtype {groups.dtype}; expected integers below {self.num_groups}"
            )
        known, zero = in_range(groups, self.num_groups), jnp.zeros((), batch.weight.dtype)
        w = jnp.where(known, batch.weight, zero)
        chosen = batch.preds > jnp.asarray(self.threshold, batch.preds.dtype)

        def count(which: jax.Array) -> jax.Array:
            return count_labels(groups, jnp.where(which, w, zero), self.num_groups)

        return self.replace(
            right=self.right.update(count(chosen & batch.target)),
            predicted=self.predicted.update(count(chosen)),
            actual=self.actual.update(count(batch.target)),
            total=self.total.update(count(known)),
            invalid=self.invalid.update(batch.invalid | (~known & batch.weight.astype(jnp.bool_))),
        )


class GroupFairness(Metric):
    """How far apart groups are in how often they are selected, and found.

    A dict of four numbers. The demographic parity compares the groups' selection rates, positive
    predictions / examples; the equal opportunity their true positive rates, TP / (TP + FN). The
    "..._difference" is the greatest rate less the least, 0 at best; the "..._ratio" the least by
    the greatest, 1 at best.

    `update(preds, target, groups, *, weights=None)`: scores (...), 0/1 targets (...), and integers
    (...) that say which group each example is of. A group without data (for the equal opportunity,
    without a positive) is left out; NaN where that leaves none. A ratio of 0 to 0 is NaN.

    Args:
        num_groups: how many groups there are, numbered from 0.
        threshold: a score above it predicts the positive class.
        ignore_index: a target that leaves its example out, uncounted.
        on_invalid: "exclude", "propagate" or "raise", as for `Accuracy`; a group out of range is
            invalid.

    Raises:
        MetricInputError: shapes that are not the same; shows both.
        MetricTypeError: groups that are no integers.

    As `demographic_parity_difference`, `equal_opportunity_difference` and their ratios in
    Fairlearn. M. Hardt, E. Price and N. Srebro (2016), Equality of opportunity in supervised
    learning, https://arxiv.org/abs/1610.02413.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GroupFairness
        >>> preds, target = jnp.array([0.9, 0.8, 0.7, 0.2]), jnp.array([1, 0, 1, 1])
        >>> fairness = GroupFairness(num_groups=2).update(preds, target, jnp.array([0, 0, 1, 1]))
        >>> for name, value in fairness.compute().items():
        ...     print(name, value)
        demographic_parity_difference 0.5
        demographic_parity_ratio 0.5
        equal_opportunity_difference 0.5
        equal_opportunity_ratio 0.5
    """

    def __init__(
        self,
        *,
        num_groups: int,
        threshold: float = 0.5,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        positive_int(num_groups, "num_groups")
        self.on_invalid = check_policy(on_invalid)
        self.statistic = GroupCounts(
            num_groups=num_groups, threshold=threshold, ignore_index=ignore_index
        )

    def compute(self) -> dict[str, jax.Array]:
        counts = self.statistic
        return _spread(counts.predicted, counts.total, "demographic_parity") | _spread(
            counts.right, counts.actual, "equal_opportunity"
        )


def _spread(counts: MetricAccumulator, of: MetricAccumulator, name: str) -> dict[str, jax.Array]:
    """The difference and the ratio of the extreme rates."""
    part, whole = (tuple(map(jnp.asarray, each.parts)) for each in (counts, of))
    rate = nx.pair_divide(part, whole)  # type: ignore[arg-type]
    scale = power_of(jnp.max(whole[0]))
    infinity = jnp.asarray(jnp.inf, rate.dtype)
    most = jnp.argmax(jnp.where(jnp.isnan(rate), -infinity, rate))
    least = jnp.argmin(jnp.where(jnp.isnan(rate), infinity, rate))

    def at(group: jax.Array, pair: Any) -> nx.Pair:
        return pair[0][group] * scale, pair[1][group] * scale

    # a / n - b / m and (b / m) / (a / n), as one quotient each.
    high = nx.pair_product(at(most, part), at(least, whole))
    low = nx.pair_product(at(least, part), at(most, whole))
    both = nx.pair_product(at(most, whole), at(least, whole))
    return {
        f"{name}_difference": nx.pair_divide(pair_subtract(high, low), both),
        f"{name}_ratio": nx.pair_divide(low, high),
    }
