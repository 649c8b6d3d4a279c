"""Finds the members of a collection that share a statistic."""

from collections.abc import Iterable

import jax

from datarax._typing import Structure
from datarax.metrics.base import Metric, shares_statistic, statistic_of


def reads_same_outputs(a: Metric, b: Metric) -> bool:
    """True if two metrics read statistics, and take them from the same outputs."""
    return shares_statistic(a) and shares_statistic(b) and a.outputs == b.outputs


def may_share(a: Metric, b: Metric) -> bool:
    """True if two metrics read statistics of one configuration, and of the same outputs."""
    if not reads_same_outputs(a, b):
        return False
    return jax.tree.structure(statistic_of(a)) == jax.tree.structure(statistic_of(b))


def shares_with(group: Metric, metric: Metric) -> bool:
    """True if two metrics read equal statistics of the same outputs, in the same state.

    Two states are the same if their arrays are the same objects. That holds for fresh statistics
    and for members that share one already. Values are never compared.
    """
    if not may_share(group, metric):
        return False
    a, b = statistic_of(group), statistic_of(metric)
    return all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def over_another(metric: Metric, others: Iterable[Metric]) -> Metric:
    """An empty metric over the statistic of another empty one that holds more."""
    for other in others:
        if reads_same_outputs(metric, other):
            metric = metric.over(statistic_of(other))
    return metric


def without_arrays(structure: Structure) -> Metric:
    """The metric of a structure, with a placeholder for each array."""
    # Placeholders other than None, which JAX would take for a subtree without leaves.
    return structure.unflatten([...] * structure.num_leaves)


def same_statistic(one: Structure, other: Structure) -> bool:
    """True if the metrics of two structures have equal statistics, or are equal themselves."""
    a, b = without_arrays(one), without_arrays(other)
    if shares_statistic(a) and shares_statistic(b):
        a, b = statistic_of(a), statistic_of(b)
    return jax.tree.structure(a) == jax.tree.structure(b)
