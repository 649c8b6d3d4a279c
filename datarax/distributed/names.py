"""Names of the leaves of a pytree of metrics, and options given by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from datarax._errors import UnknownMetricError


def named_leaves(metrics: Any) -> tuple[list[str], list[Any], Any]:
    """The leaves of `metrics`, `None` included, their names ("train/loss") and the structure."""
    pairs, treedef = jax.tree_util.tree_flatten_with_path(metrics, is_leaf=lambda x: x is None)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in pairs]
    return names, [leaf for _, leaf in pairs], treedef


def by_name(
    option: Any, names: Sequence[str], *, what: str, caller: str, default: Any
) -> list[Any]:
    """One value of `option` for each name.

    A mapping gives values by name: a full name ("train/loss"), the name of a group ("train", for
    all in it; the longest match wins), or nested as the metrics are. Anything else is everyone's.

    Raises:
        UnknownMetricError: a name that is neither a metric's nor a group's.
    """
    if not isinstance(option, Mapping):
        return [default if option is None else option] * len(names)
    given = dict(_flatten(option))
    for key in given:
        if not any(name == key or name.startswith(f"{key}/") for name in names):
            raise UnknownMetricError(
                f"{caller}: {what} names {key!r}, which the metrics do not have; "
                f"they have: {', '.join(map(repr, names)) or 'none'}"
            )
    chosen = []
    for name in names:
        keys = [key for key in given if name == key or name.startswith(f"{key}/")]
        chosen.append(given[max(keys, key=len)] if keys else default)
    return chosen


def _flatten(option: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in option.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
