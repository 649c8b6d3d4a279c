"""The names of the leaves of a pytree of metrics, and options that are given by name."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from datarax._errors import UnknownMetricError
from datarax._typing import PyTree


def named_leaves(
    metrics: PyTree, is_leaf: Callable[[PyTree], bool] = lambda x: False
) -> tuple[list[str], list[PyTree], PyTree]:
    """The names ("train/loss") and the leaves of `metrics`, and its structure.

    `None` is a leaf, so that it passes through a reducer, and so is what `is_leaf` chooses.
    """
    pairs, treedef = jax.tree_util.tree_flatten_with_path(
        metrics, is_leaf=lambda x: x is None or is_leaf(x)
    )
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in pairs]
    return names, [leaf for _, leaf in pairs], treedef


def by_name(
    option: PyTree, names: Sequence[str], *, what: str, caller: str, default: PyTree
) -> list[PyTree]:
    """The value of `option` for each name.

    In a mapping, a key is the full name of a metric ("train/loss") or of a group of metrics
    ("train"); the longest key that matches counts. A mapping may be nested like the metrics.
    An `option` that is not a mapping is the value for every name.

    Raises:
        UnknownMetricError: a key is the name of neither a metric nor a group.
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


def _flatten(option: Mapping[str, PyTree], prefix: str = "") -> Iterator[tuple[str, PyTree]]:
    for key, value in option.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value
