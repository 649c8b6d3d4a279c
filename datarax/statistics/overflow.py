"""Whether sums of weights have left the range of floats."""

import jax

from datarax._checks import is_integer
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.algebra.traversal import walk
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.invalid_counts import InvalidCounts
from datarax.statistics.scatter_counts import ScatterCounts
from datarax.statistics.steps import DecayedSums


def overflowed(statistic: State) -> list[jax.Array]:
    """For each sum of floats in a statistic, whether one of its elements is not finite.

    Of a statistic that counts invalid rows. These are left out, so its sums are finite unless they
    overflow: a weight is below 2**128 in float32, but a sum of weights may be above. A
    `ScaledTotal` does not overflow, and may hold a sum of infinite values.
    """
    if not any(isinstance(child, InvalidCounts) for child in statistic.children().values()):
        return []
    sums = []
    for each in walk(statistic):
        if isinstance(each, ScatterCounts):
            sums.append(each.flushed[0])
        elif isinstance(each, DecayedSums):
            sums.append(each.weight[0])
        elif isinstance(each, MetricAccumulator) and each.reduce_op == MetricReduceOp.sum:
            sums.append(each.parts[0])
    return [~xp.all(xp.isfinite(x)) for x in sums if not is_integer(x)]
