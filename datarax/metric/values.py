"""The forms of a value: as a formula gives it, rounded, as arrays, as Python numbers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import jax
import numpy as np

from datarax._checks import is_integer
from datarax._typing import PyTree
from datarax._xp import none_true, xp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact, WholeOrFloat


class Presented:
    """A value that `compute` and `results` give in two forms. A subclass is a pytree."""

    def arrays(self) -> PyTree:
        """The value that `compute` gives."""
        raise NotImplementedError

    def listed(self) -> PyTree:
        """Returns what `results` gives. The arrays of this value are NumPy arrays by then."""
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OrNone(Presented):
    """An integer, or nothing. `results` gives it as an integer or a name, or None."""

    some: jax.Array
    """True if there is one, of shape ()."""
    value: jax.Array
    """An integer of shape (); any value if there is none."""
    names: tuple[str, ...] | None = dataclass_field(default=None, metadata={"static": True})
    """If given, the integer is an index of these names, and `results` gives the name."""

    def arrays(self) -> jax.Array:
        """The integer, or -1."""
        value = xp.asarray(self.value)
        return xp.where(self.some, value, xp.asarray(-1, value.dtype))

    def listed(self) -> int | str | None:
        """The integer or the name, or None."""
        if not self.some:
            return None
        value = int(self.value)
        return value if self.names is None else self.names[value]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ByGroup(Presented):
    """A dict of results in few arrays, because each result is work for a compiler inside `jit`.

    It stands for items with the names `prefix + column`, and for others as they are.
    """

    columns: dict[str, PyTree]
    """For each kind of value, those of all groups: the last axis is of groups."""
    others: dict[str, PyTree]
    prefixes: tuple[str, ...] = dataclass_field(metadata={"static": True})
    """For each group, what comes before the name of the column."""

    def arrays(self) -> dict[str, PyTree]:
        """The items, sorted by name."""
        items = {
            f"{prefix}{name}": jax.tree.map(lambda x, i=i: x[..., i], column, is_leaf=is_wide)
            for name, column in self.columns.items()
            for i, prefix in enumerate(self.prefixes)
        }
        # Sorted, as `jit` returns a dict.
        return dict(sorted((items | self.others).items()))

    listed = arrays


def rounded_doubles(value: PyTree) -> PyTree:
    """The value with each double-float rounded; an `Exact` stays, because `results` is exact."""
    return _map(lambda x: x.to_float() if isinstance(x, DoubleFloat) else x, value)


def nan_if(condition: jax.Array, value: PyTree) -> PyTree:
    """NaN where the condition holds; integers stay, because they have no NaN."""
    if none_true(condition):
        return value
    return _map(lambda x: _nan_where(condition, x), value)


def _map(
    function: Callable[[PyTree], PyTree],
    value: PyTree,
    is_leaf: Callable[[PyTree], bool] = lambda x: is_wide(x),
) -> PyTree:
    """The value with `function` of each of its numbers; most values are one, and no tree."""
    if isinstance(value, np.ndarray | np.generic):
        return function(value)
    return jax.tree.map(function, value, is_leaf=is_leaf)


def path_of(*names: str) -> str:
    """Names joined by "/"; those that are empty get no slash."""
    return "/".join(filter(None, names))


def presented(
    value: PyTree, form: Callable[[Presented], PyTree], leaf: Callable[[PyTree], PyTree]
) -> PyTree:
    """A value in which `form` replaces each value of two forms, and `leaf` each other one."""

    def one(x: PyTree) -> PyTree:
        if isinstance(x, Presented):
            return presented(form(x), form, leaf)
        return leaf(x)

    # A `Presented` is kept whole. What its form gives may hold others, which are presented in turn.
    return _map(one, value, lambda x: is_wide(x) or isinstance(x, Presented))


def flat_items(value: Mapping[str, PyTree]) -> Iterator[tuple[str, PyTree]]:
    """The items of nested dicts, with names like "outer/inner"."""
    for name, x in value.items():
        if isinstance(x, dict):
            yield from ((f"{name}/{key}", item) for key, item in flat_items(x))
        else:
            yield name, x


def listed(x: Presented) -> PyTree:
    return jax.tree.map(np.asarray, x, is_leaf=is_wide).listed()


def is_wide(x: object) -> bool:
    """True if a result has two parts. Such results are pytrees, and must be kept as leaves."""
    return isinstance(x, DoubleFloat | Exact)


def as_array(x: PyTree) -> PyTree:
    """A part of a value as an array on the devices, rounded to the default dtypes."""
    x = x.to_float() if isinstance(x, Exact) else x
    # Not `jnp.asarray`, which compiles a program for each shape.
    return x if isinstance(x, str | None | jax.Array) else jax.device_put(np.asarray(x))


def _nan_where(condition: jax.Array, x: PyTree) -> PyTree:
    """NaN where the condition holds; integers stay, because they have no NaN."""
    if isinstance(x, WholeOrFloat):
        return x.nan_where(condition)
    if isinstance(x, Exact):
        # The value is the sum of both parts, and NaN is put in both.
        parts = _nan_where(condition, x.high), _nan_where(condition, x.low)
        return x if x.is_integer else type(x)(*parts)
    x = xp.asarray(x)
    return x if is_integer(x) else xp.where(condition, xp.asarray(xp.nan, x.dtype), x)


def to_host(x: PyTree) -> PyTree:
    if isinstance(x, str | None):
        return x
    # A number of Python, which `json`, a format and a comparison take alike.
    array = np.asarray(x)
    return array.item() if array.ndim == 0 else array


def jsonable(x: PyTree) -> PyTree:
    """Results in the types that `json.dumps` takes: numbers, strings, lists and dicts."""
    if isinstance(x, dict):
        return {str(name): jsonable(value) for name, value in x.items()}
    if hasattr(x, "_asdict"):  # a named tuple
        return jsonable(x._asdict())
    if isinstance(x, list | tuple):
        return [jsonable(value) for value in x]
    return x.tolist() if hasattr(x, "tolist") else x
