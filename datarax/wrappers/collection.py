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
from datarax.metrics._metric import Metric, delegates

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
        self.groups, self.members = tuple(groups), tuple(members)

    def __getitem__(self, name: str) -> Metric:
        for member, structure, group in self.members:
            if member == name:
                return structure.unflatten(jax.tree.leaves(self.groups[group]))
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
        return self._called([call[1:] for call in self._calls((), outputs)])

    def _routed(self, outputs: Mapping[str, Any], caller: str) -> dict[str, Any]:
        return dict(outputs)  # to the metrics within, each of which takes its own

    def _calls(self, args: Any, kwargs: Any) -> list[Any]:
        if args:
            raise MetricInputError(
                "Collection.update takes outputs by name: update(preds=..., target=...)"
            )
        calls = []
        for index, metric in enumerate(self.groups):
            name = next(name for name, _, group in self.members if group == index)
            calls += metric._calls((), metric._routed(kwargs, f"Collection: metric {name!r}"))
        return calls

    def _called(self, calls: list[Any]) -> Self:
        groups, rest = [], list(calls)
        for metric in self.groups:
            count = _count_calls(metric)
            groups.append(metric._called(rest[:count]))
            rest = rest[count:]
        return self._replace(groups=tuple(groups))

    def _merge(self, other: Any) -> Self:
        if self.members == other.members:
            return super()._merge(other)
        # They differ in what shares a statistic, once a member of one has been replaced.
        return type(self)({name: metric._merge(other[name]) for name, metric in self.items()})

    def _value(self) -> dict[str, Any]:
        """A flat dict of every metric's value."""
        return _flat((name, metric.compute()) for name, metric in self.items())

    def compute_exact(self) -> dict[str, Any]:
        return _flat((name, metric.compute_exact()) for name, metric in self.items())

    def _described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, dict(self.items())

    def _with_parts(self, parts: dict[str, Any]) -> Self:
        # What shares a statistic here goes on to, unless it was saved with states that differ.
        kept: list[tuple[int, list[Any]]] = []
        for name, _, group in self.members:
            leaves, structure = jax.tree.flatten(parts[name])
            same = (own for index, own in kept if index == group and _all_equal(own, leaves))
            shared = next(same, leaves)
            kept.append((group, shared))
            parts = parts | {name: structure.unflatten(shared)}
        return type(self)(parts)

    def _invalid_counts(self) -> dict[str, Any]:
        return _prefixed((name, metric._invalid_counts()) for name, metric in self.items())

    def _policies(self) -> dict[str, str]:
        return _prefixed((name, metric._policies()) for name, metric in self.items())

    def __repr__(self) -> str:
        return f"Collection({{{', '.join(f'{n!r}: {m!r}' for n, m in self.items())}}})"


def _shares(group: Metric, metric: Metric) -> bool:
    """Whether two metrics are declared over one statistic of the same outputs, in one state.

    The state is the same when its arrays are the same objects: those of fresh statistics are, and
    so are those of members that already share. Their values are never compared.
    """
    if not (delegates(group) and delegates(metric)) or group.outputs != metric.outputs:
        return False
    a, b = group.statistic, metric.statistic
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    return all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _all_equal(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def _count_calls(metric: Metric) -> int:
    if isinstance(metric, Collection):
        return sum(_count_calls(each) for each in metric.groups)
    return 1


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
