"""`TreeLayout`: the paths and shapes of the parameters of a model, and groups of them by path."""

import hashlib
import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax

from datarax._checks import positive_int
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax._xp import xp

Groups = int | tuple[tuple[str, str], ...] | None
"""The groups of leaves: by the first components of their paths, or by patterns with names."""


class TreeLayout(NamedTuple):
    """The paths and shapes of the float arrays in a pytree: hashable, so it can be configuration.

    Other leaves are left out: integers, random keys, functions, Python numbers.
    """

    paths: tuple[str, ...]
    """The path of each array, such as "layers/0/kernel", in the order of the tree."""
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tree: PyTree) -> "TreeLayout":
        """The layout of a pytree of arrays or `jax.ShapeDtypeStruct`s.

        Raises:
            MetricInputError: it holds no array of floats, or two with one path.
            MetricTypeError: it holds complex numbers.
        """
        leaves = named_leaves(tree)
        if not leaves:
            raise MetricInputError("like= holds no array of floats; give the parameters")
        paths, shapes = zip(*((path, tuple(x.shape)) for path, x in leaves), strict=True)
        double = sorted({path for path in paths if paths.count(path) > 1})
        if double:
            raise MetricInputError(f"like= has two leaves with the path {double[0]!r}")
        return cls(paths, shapes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each array."""
        return tuple(map(math.prod, self.shapes))

    def leaves_of(self, tree: PyTree, name: str) -> list[jax.Array]:
        """The float arrays of a tree, in the order of the layout; their shapes are not checked.

        Raises:
            MetricInputError: the tree has not the same leaves; names one.
        """
        found = dict(named_leaves(tree))
        # The first difference in the order of the layout; then leaves that it does not have.
        for path in dict.fromkeys(self.paths) | found:
            if path not in found:
                raise MetricInputError(
                    f"{name} has no array of floats at {path!r}, where like= has one; it has: "
                    f"{_listed(found)}"
                )
            if path not in self.paths:
                raise MetricInputError(
                    f"{name} has an array at {path!r}, where like= has none; like= has: "
                    f"{_listed(self.paths)}"
                )
        return [found[path] for path in self.paths]

    def grouped(self, groups: Groups) -> dict[str, tuple[int, ...]]:
        """The indices of the leaves of each group, by its name.

        Raises:
            MetricInputError: a pattern is no regular expression or matches no leaf; names both.
        """
        found: dict[str, tuple[int, ...]] = {}
        if isinstance(groups, int):
            for i, path in enumerate(self.paths):
                if path:  # "" is the path of an array that is no part of a tree
                    name = "/".join(path.split("/")[:groups])
                    found[name] = (*found.get(name, ()), i)
            return found
        for name, pattern in groups or ():
            found[name] = tuple(i for i, x in enumerate(self.paths) if re.search(pattern, x))
            if not found[name]:
                raise MetricInputError(
                    f"groups: {pattern!r}, of the group {name!r}, matches no leaf; the leaves are: "
                    f"{_listed(self.paths)}"
                )
        return found

    def __repr__(self) -> str:
        # Layouts that differ have different texts, without thousands of paths in an error.
        digest = hashlib.sha256(repr((self.paths, self.shapes)).encode()).hexdigest()[:8]
        return f"<{len(self.paths)} arrays, {sum(self.sizes)} entries, sha256 {digest}>"


def named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    """The float arrays of a pytree, each with its path.

    Raises:
        MetricTypeError: a leaf holds complex numbers; names it.
    """
    found = []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        # The array of a `flax` variable is its attribute `value`, which is no part of the name.
        if len(keys) > 1 and getattr(keys[-1], "name", None) in ("value", "raw_value"):
            keys = keys[:-1]
        path = jax.tree_util.keystr(keys, simple=True, separator="/")
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and xp.issubdtype(dtype, xp.complexfloating):
            raise MetricTypeError(f"the leaf {path!r} has dtype {dtype}; expected floats")
        if dtype is not None and xp.issubdtype(dtype, xp.floating):
            found.append((path, leaf))
    return found


def checked_groups(groups: Any) -> Groups:
    """The groups in a hashable form.

    Raises:
        MetricInputError: it is neither None, a positive integer nor a mapping from names to
            patterns; or a pattern is no regular expression.
    """
    # A dict becomes pairs, which can be hashed; pairs come from a copy of a metric.
    if isinstance(groups, int):
        positive_int(groups, "groups")
    if groups is None or isinstance(groups, int):
        return groups
    pairs: Any = tuple(groups.items()) if isinstance(groups, Mapping) else groups
    if not isinstance(pairs, tuple) or not all(map(_is_named_pattern, pairs)):
        raise MetricInputError(
            f"groups={groups!r}; expected a depth, or a dict from names to patterns of paths"
        )
    for name, pattern in pairs:
        try:
            re.compile(pattern)
        except re.error as error:
            raise MetricInputError(
                f"groups: {pattern!r}, of the group {name!r}, is no regular expression: {error}"
            ) from None
    return pairs or None


def _is_named_pattern(pair: Any) -> bool:
    is_pair = isinstance(pair, tuple) and len(pair) == 2
    return is_pair and all(isinstance(x, str) and x for x in pair)


def _listed(paths: Collection[str]) -> str:
    listed = [repr(path) for path in list(paths)[:20]]
    return ", ".join(listed + ["..."] * (len(paths) > 20)) or "none"
