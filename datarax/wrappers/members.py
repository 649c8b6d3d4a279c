"""The members of a collection: which of them share a state, and where each finds its arrays.

A part of a collection is a metric, or a stack of the statistics of several metrics. Several members
may share the state of a metric, or one of a stack.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from datarax._typing import PyTree, Structure
from datarax._xp import fetched
from datarax.algebra.stack import Stack
from datarax.algebra.state import State
from datarax.metric.base import Metric
from datarax.metric.declared import shares_statistic, statistic_of
from datarax.metric.finer import ReadsFiner
from datarax.wrappers.member_stacks import alike, stacked
from datarax.wrappers.wrapper import Wrapper

Slots = list[list[PyTree]]
"""For each part of a collection, its states, as any pytrees with their arrays."""


class Member(NamedTuple):
    """A member of a collection. Its arrays are those of a state in a part."""

    name: str
    structure: Structure
    """The structure of the metric without arrays."""
    part: int
    """The index of the part that has its state."""
    place: int
    """The place of the state in a `Stack`; 0 in any other part."""

    @property
    def where(self) -> tuple[int, int]:
        """The part and the place: the same for members that share a state."""
        return self.part, self.place

    def filled(self, slots: Slots) -> Metric:
        """The metric, given all states."""
        state = slots[self.part][self.place]
        if isinstance(state, Metric) and not shares_statistic(state):  # no other member has it
            return state
        return self.structure.unflatten(state if type(state) is list else jax.tree.leaves(state))


class Members(tuple[Member, ...]):
    """The members of a collection, sorted by name."""

    @cached_property
    def firsts(self) -> list[Member]:
        """The first member of each state, in the order of the states."""
        found: dict[tuple[int, int], Member] = {}
        for each in self:
            found.setdefault(each.where, each)
        return list(found.values())

    @cached_property
    def unfilled(self) -> list[Metric]:
        """Those without arrays."""
        return [without_arrays(each.structure) for each in self.firsts]

    def __reduce__(self) -> tuple[type, tuple[tuple[Member, ...]]]:
        return type(self), (tuple(self),)


def arrange_members(
    metrics: Mapping[str, Metric], *, shares: bool
) -> tuple[tuple[Metric | Stack, ...], Members]:
    """The parts and the members of a collection of these metrics.

    Args:
        metrics: by name.
        shares: whether all metrics get the same outputs, so that equal statistics are shared.
    """
    empty = [metric for metric in metrics.values() if shares and metric.is_untouched]
    groups: list[Metric] = []
    of_group: list[tuple[str, Structure, int]] = []
    # Members are sorted by name, so that all processes pack their arrays in the same order.
    for name in sorted(metrics):
        metric, index = metrics[name], len(groups)
        if shares:
            if any(metric is each for each in empty):
                metric = over_another(metric, empty)
            shared = (i for i, group in enumerate(groups) if shares_with(group, metric))
            index = next(shared, index)
        if index == len(groups):
            groups.append(metric)
        of_group.append((name, jax.tree.structure(metric), index))
    parts: list[Metric | Stack] = []
    where: dict[int, tuple[int, int]] = {}
    for indices in alike(groups):
        where |= {index: (len(parts), place) for place, index in enumerate(indices)}
        several = [groups[index] for index in indices]
        parts.append(stacked(several) if len(several) > 1 else several[0])
    members = Members(Member(name, structure, *where[i]) for name, structure, i in of_group)
    return tuple(parts), members


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
            metric = _over(metric, statistic_of(other))
    return metric


def _over(metric: Metric, statistic: State) -> Metric:
    if isinstance(metric, Wrapper):
        return metric.with_metric(_over(metric.metric, statistic))
    return metric.over(statistic) if isinstance(metric, ReadsFiner) else metric


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


def share_equal_statistics(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The same metrics, in which equal statistics are the same arrays, so that they are shared.

    As such metrics get the same outputs, their statistics stay equal.
    """
    kept: dict[str, Metric] = {}
    for name, metric in metrics.items():
        equal = (x for x in kept.values() if may_share(x, metric) and equal_arrays(x, metric))
        kept[name] = jax.tree.structure(metric).unflatten(jax.tree.leaves(next(equal, metric)))
    return kept


def equal_arrays(ours: Metric, theirs: Metric) -> bool:
    """True if the arrays of two metrics have equal values."""
    a, b = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    if len(a) != len(b):
        return False
    # What is the same array need not be fetched.
    pairs = fetched([(x, y) for x, y in zip(a, b, strict=True) if x is not y])
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)
