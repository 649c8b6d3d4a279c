"""Several metrics as one: outputs are routed by name, and equal statistics are shared."""

from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from datarax._errors import (
    ConfigurationMismatchError,
    MetricInputError,
    MetricTypeError,
    UnknownMetricError,
)
from datarax.metrics._metric import Metric, delegates, routed

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
                    f"Collection: {name!r} is {_kind(metric)}; expected a datarax.Metric"
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

    def replace(self, **changes: Any) -> Self:
        """The collection with these members exchanged; each keeps its own state.

        Raises:
            UnknownMetricError: a name that the collection does not have.
        """
        if changes.keys() <= {"groups", "members", "outputs", "on_invalid"}:
            return super().replace(**changes)
        for name in changes:
            self[name]  # raises for an unknown name
        return type(self)(dict(self.items()) | changes)

    def update(self, **outputs: Any) -> Self:
        """Each metric updated with the outputs it names.

        Raises:
            MetricInputError: an output that a metric needs is missing; names both.
        """
        return self._called([call[1:] for call in self._calls((), outputs)])

    def _calls(self, args: Any, kwargs: Any) -> list[Any]:
        if args:
            raise MetricInputError(
                "Collection.update takes outputs by name: update(preds=..., target=...)"
            )
        calls = []
        for index, metric in enumerate(self.groups):
            if isinstance(metric, Collection):
                calls += metric._calls((), kwargs)
                continue
            name = next(name for name, _, group in self.members if group == index)
            calls += metric._calls((), routed(metric, kwargs, f"Collection: metric {name!r}"))
        return calls

    def _called(self, calls: list[Any]) -> Self:
        groups, rest = [], list(calls)
        for metric in self.groups:
            count = _count_calls(metric)
            groups.append(metric._called(rest[:count]))
            rest = rest[count:]
        return self.replace(groups=tuple(groups))

    def compute(self) -> dict[str, Any]:
        """A flat dict of every metric's value."""
        return _flat((name, metric.compute()) for name, metric in self.items())

    def compute_exact(self) -> dict[str, Any]:
        return _flat((name, metric.compute_exact()) for name, metric in self.items())

    def _described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, dict(self.items())

    def _with_parts(self, parts: dict[str, Any]) -> Self:
        groups: dict[int, Metric] = {}
        for name, _, group in self.members:
            kept = groups.setdefault(group, parts[name])
            pairs = zip(jax.tree.leaves(kept), jax.tree.leaves(parts[name]), strict=True)
            if not all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs):
                raise ConfigurationMismatchError(
                    f"Collection: {name!r} shares its statistic with another metric here, and was "
                    f"saved with one of its own"
                )
        return self.replace(groups=tuple(groups[i] for i in range(len(self.groups))))

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


def _count_calls(metric: Metric) -> int:
    if isinstance(metric, Collection):
        return sum(_count_calls(each) for each in metric.groups)
    return 1


def _flat(values: Any) -> dict[str, Any]:
    flat = {}
    for name, value in values:
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat


def _prefixed(parts: Any) -> dict[str, Any]:
    return {f"{n}/{key}".rstrip("/"): value for n, part in parts for key, value in part.items()}


def _kind(x: Any) -> str:
    return f"the class {x.__name__}, not an instance" if isinstance(x, type) else type(x).__name__
