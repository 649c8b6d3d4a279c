"""Several metrics as one: outputs are routed by name, and equal statistics are shared."""

from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from datarax._checks import kind
from datarax._errors import (
    MetricInputError,
    MetricTypeError,
    UnknownMetricError,
)
from datarax.metrics.base import Metric, Reading, shares_statistic

_Member = tuple[str, Any, int]


class Collection(Metric):
    """Metrics by name, updated together from the named outputs of a step; itself a metric.

    `update(**outputs)` hands each metric the outputs its `update` names; `from_outputs` on a
    metric renames them. `compute()` is a flat dict; a collection within gives "outer/inner".
    Metrics that read equal statistics of the same outputs share one, which is updated, synced and
    stored once. Outputs that no metric names are left alone.

    Args:
        metrics: from names to metrics.

    Raises:
        MetricTypeError: something that is not a metric.
        MetricInputError: no metrics, or a name that is no string or holds a "/".

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.metrics import Accuracy, Mean
        >>> metrics = datarax.Collection({
        ...     "loss": Mean().from_outputs(values="loss"),
        ...     "accuracy": Accuracy(num_classes=2),
        ... })
        >>> metrics = metrics.update(
        ...     loss=jnp.array([0.5, 1.5]), preds=jnp.array([1, 0]), target=jnp.array([1, 1])
        ... )
        >>> print(metrics.results())
        {'accuracy': 0.5, 'loss': 1.0}
    """

    # Each group is a metric, the first of those that share its state; each member is a name, the
    # structure of its metric, and its group, whose arrays fill that structure.
    groups: tuple[Metric, ...]
    members: tuple[_Member, ...]

    def __init__(self, metrics: Mapping[str, Metric]):
        if not isinstance(metrics, Mapping):
            raise MetricTypeError(
                f"Collection expects a dict of metrics; got {type(metrics).__name__}"
            )
        if not metrics:
            raise MetricInputError("Collection: expected at least one metric; got an empty dict")
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise MetricTypeError(
                    f"Collection: {name!r} is {kind(metric)}; expected a datarax.Metric"
                )
            if not isinstance(name, str) or not name or "/" in name:
                raise MetricInputError(
                    f"Collection: the name {name!r} must be a string without '/'"
                )
        groups: list[Metric] = []
        members: list[_Member] = []
        # In the order of names, so that every process packs the same arrays in the same place.
        for name in sorted(metrics):
            metric = metrics[name]
            shared = (i for i, group in enumerate(groups) if _shares(group, metric))
            index = next(shared, len(groups))
            if index == len(groups):
                groups.append(metric)
            members.append((name, jax.tree.structure(metric), index))
        # Where the statistic of a group can be derived from that of another, one serves both.
        finer = [next((f for f in groups if _derives(f, group)), group) for group in groups]
        kept = [group for group in groups if any(group is each for each in finer)]
        place = [next(i for i, k in enumerate(kept) if k is each) for each in finer]
        self.groups = tuple(kept)
        self.members = tuple((name, structure, place[i]) for name, structure, i in members)

    def __getitem__(self, name: str) -> Metric:
        for member, structure, index in self.members:
            if member == name:
                return _member_of(self.groups[index], structure)
        raise UnknownMetricError(
            f"Collection has no metric {name!r}; it has: {', '.join(map(repr, self))}"
        )

    def __iter__(self) -> Any:
        return (name for name, _, _ in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, name: object) -> bool:
        return any(member == name for member, _, _ in self.members)

    def items(self) -> list[tuple[str, Metric]]:
        """Names and metrics, in the order of names."""
        return [(name, self[name]) for name in self]

    def replace(self, /, **changes: Any) -> Self:
        """The collection with these members exchanged; each keeps its own state.

        Raises:
            UnknownMetricError: a name that the collection does not have.
        """
        for name in changes:
            self[name]  # raises for an unknown name
        return type(self)(dict(self.items()) | changes)

    def update(self, /, **outputs: Any) -> Self:
        """Each metric updated with the outputs it names.

        Raises:
            MetricInputError: an output that a metric needs is missing; names both.
        """
        return self.apply(self.calls((), outputs))

    def arguments_from(self, outputs: Mapping[str, Any], caller: str) -> dict[str, Any]:
        return dict(outputs)  # to the metrics within, each of which takes its own

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if args:
            raise MetricInputError(
                "Collection.update takes outputs by name: update(preds=..., target=...)"
            )
        calls = []
        for index, metric in enumerate(self.groups):
            name = next(name for name, _, group in self.members if group == index)
            given = metric.arguments_from(kwargs, f"Collection: metric {name!r}")
            calls.append(metric.calls((), given))
        return tuple(calls)

    def apply(self, calls: tuple[Any, ...]) -> Self:
        updated = (group.apply(call) for group, call in zip(self.groups, calls, strict=True))
        return self.with_parts({"groups": tuple(updated)})

    def combine(self, other: Any) -> Self:
        if self.members == other.members:
            return super().combine(other)
        # They differ in what shares a statistic, once a member of one has been replaced.
        return type(self)({name: metric.combine(other[name]) for name, metric in self.items()})

    def reading(self) -> Reading:
        readings = [(name, metric.reading()) for name, metric in self.items()]
        return Reading(
            _flat((name, each.value) for name, each in readings),
            _prefixed((name, each.invalid) for name, each in readings),
            tuple(_prefixed((name, dict(each.policies)) for name, each in readings).items()),
        )

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, dict(self.items())

    def restored(self, parts: dict[str, Any]) -> Self:
        # What shares a statistic here goes on to, unless it was saved with states that differ.
        leaders = {
            index: parts[name]
            for name, structure, index in reversed(self.members)
            if _same_statistic(structure, jax.tree.structure(self.groups[index]))
        }
        groups = tuple(leaders[i] for i in range(len(self.groups)))
        shared = self.with_parts({"groups": groups})
        if all(_all_equal(shared[name], part) for name, part in parts.items()):
            return shared
        kept: list[tuple[int, Metric]] = []
        for name, structure, index in self.members:
            part = parts[name]
            same = (other for i, other in kept if i == index and _all_equal(other, part))
            parts = parts | {name: structure.unflatten(jax.tree.leaves(next(same, part)))}
            kept.append((index, parts[name]))
        return type(self)(parts)

    def __repr__(self) -> str:
        # Without the arrays, which some members would have to be derived for.
        members = (f"{name!r}: {_without_arrays(of)!r}" for name, of, _ in self.members)
        return f"Collection({{{', '.join(members)}}})"


def _shares(group: Metric, metric: Metric) -> bool:
    """Whether two metrics are declared over one statistic of the same outputs, in one state.

    The state is the same when its arrays are the same objects: those of fresh statistics are, and
    so are those of members that already share. Their values are never compared.
    """
    if (
        not (shares_statistic(group) and shares_statistic(metric))
        or group.outputs != metric.outputs
    ):
        return False
    a, b = group.statistic, metric.statistic
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    return all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _derives(finer: Metric, coarser: Metric) -> bool:
    """Whether that of the other can be derived from the statistic of one, with no data yet."""
    if (
        not (shares_statistic(finer) and shares_statistic(coarser))
        or finer.outputs != coarser.outputs
    ):
        return False
    derived = finer.statistic.derive(coarser.statistic) is not None
    return derived and _is_fresh(finer) and _is_fresh(coarser)


def _is_fresh(metric: Metric) -> bool:
    leaves, empty = jax.tree.leaves(metric), jax.tree.leaves(metric.reset())
    return all(x is y for x, y in zip(leaves, empty, strict=True))


def _member_of(group: Metric, structure: Any) -> Metric:
    """The metric of a structure, from the state of its group."""
    leaves = jax.tree.leaves(group)
    if shares_statistic(group):
        member = _without_arrays(structure)
        read = group.statistic.derive(member.statistic)
        if read is not None:
            return member.replace(statistic=read.reset() if _is_fresh(group) else read)
    return structure.unflatten(leaves)


def _without_arrays(structure: Any) -> Any:
    return structure.unflatten([None] * structure.num_leaves)


def _same_statistic(a: Any, b: Any) -> bool:
    """Whether metrics of these structures hold equal statistics, or are equal."""
    a, b = _without_arrays(a), _without_arrays(b)
    if shares_statistic(a) and shares_statistic(b):
        a, b = a.statistic, b.statistic
    return jax.tree.structure(a, is_leaf=_is_none) == jax.tree.structure(b, is_leaf=_is_none)


def _is_none(x: Any) -> bool:
    return x is None


def _all_equal(ours: Metric, theirs: Metric) -> bool:
    a, b = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    return len(a) == len(b) and all(
        np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b, strict=True)
    )


def _flat(values: Any) -> dict[str, Any]:
    flat = {}
    for name, value in values:
        if isinstance(value, dict):
            flat |= _flat((f"{name}/{key}", item) for key, item in value.items())
        else:
            flat[name] = value
    return flat


def _prefixed(parts: Any) -> dict[str, Any]:
    return {f"{n}/{key}".rstrip("/"): value for n, part in parts for key, value in part.items()}
