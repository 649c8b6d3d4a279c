"""Compares, saves and loads states, by configuration and named parts; also with Flax.

What has no arrays, because a compiled step donated them or it is abstract, is refused.
"""

import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import ClassVar, ParamSpec, Self, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from datarax._errors import ConfigurationMismatchError, DonatedStateError, MetricInputError
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced, on_host
from datarax.algebra.fields import REQUIRED, Config, Field
from datarax.distributed.placement import outside_mesh, placed_like, refuse_different

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def require_arrays(state: PyTree) -> None:
    """Raises if an array of a state is deleted, or if the state has shapes in place of arrays.

    Raises:
        DonatedStateError: the step that the state was passed to donated it; names its class.
        MetricInputError: it is abstract, as out of `jax.eval_shape`; names its class.
    """
    # No step donates an array of NumPy.
    for x in () if on_host(state) else jax.tree.leaves(state):
        if isinstance(x, jax.ShapeDtypeStruct):
            raise MetricInputError(
                f"{type(state).__name__}: this metric is abstract: it has shapes in place of "
                f"arrays, as out of jax.eval_shape, and so no data. Use the metric itself; an "
                f"abstract one only says what is restored: datarax.io.restore(path, like=metric), "
                f"metric.load_state_dict(saved)"
            )
        if isinstance(x, jax.Array) and not isinstance(x, Tracer) and x.is_deleted():
            raise DonatedStateError(
                f"{type(state).__name__}: the arrays of this metric are deleted, because a "
                f"compiled step that it was passed to donates them (donate_argnums). Go on with "
                f"the metric that the step returned"
            )


def requiring_arrays(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wraps a function of states: it raises if one of them holds no arrays.

    Before the call, because a compiled program of several devices may crash on deleted arrays.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for each in args:
            require_arrays(each)
        return function(*args, **kwargs)

    return call


# Comparing, saving and loading.

Parts = dict[str, PyTree]
"""The parts of an object, by name."""
SavedState = dict[str, PyTree]
"""Nested dicts of strings, numbers and arrays."""
Plain = bool | int | float | str | list | None
"""What JSON can hold of a configuration."""

FORMAT = 5
"""The version of the layout of `state_dict()`, and of what the arrays of a state mean."""


class Saveable:
    """The base of objects that have a configuration and named parts.

    A part is an array, another `Saveable`, or a pytree of both.
    """

    fields: ClassVar[dict[str, Field]]

    def described(self) -> tuple[Config, Parts]:
        """The configuration and the parts, each by name: all that is compared and saved."""
        raise TypeError(f"{type(self).__name__} does not define described()")

    @outside_mesh
    @requiring_arrays
    def state_dict(self) -> SavedState:
        """A plain nested dict: format version, class, configuration, and NumPy arrays."""
        return {"format": FORMAT, **self.saved()}

    def saved(self) -> SavedState:
        """The same as `state_dict()`, without the format version."""
        # From the host, where taking a stack apart compiles nothing.
        leaves = jax.tree.leaves(self)
        known = not is_traced(leaves) and all(
            is_addressable(x) or x.is_fully_replicated for x in leaves
        )
        config, parts = (fetched(self) if known else self).described()
        return {
            "type": type_name(self),
            "config": {name: plain(value) for name, value in config.items()},
            "state": _saved_part(parts),
        }

    @outside_mesh
    def load_state_dict(self, state_dict: SavedState, *, partial: bool = False) -> Self:
        """A copy of this state that holds the arrays of `state_dict`, where those of this one are.

        All processes that share its devices must call it. Outputs keep the names of this state.

        Args:
            state_dict: what `state_dict()` of an equal state gave.
            partial: whether a `Collection` may have other members: its own others start empty.

        Raises:
            ConfigurationMismatchError: another format, class, configuration, shape or dtype was
                saved, or no member in common; names the field.
            NotAddressableError: processes that share the devices pass different arrays.
        """
        where = type(self).__name__
        check_is_saved(state_dict, where)
        # The first format had no number.
        found = state_dict.get("format", 1)
        if found != FORMAT:
            raise ConfigurationMismatchError(
                f"{where}: the saved state has format {found!r}, and this version of datarax reads "
                f"format {FORMAT}; load it with the version that wrote it"
            )
        loaded = self.loaded(state_dict, where, partial=partial)
        refuse_different(state_dict["state"], self, where)
        return loaded

    def emptied(self) -> Self:
        """The empty state of the same configuration."""
        raise TypeError(f"{type(self).__name__} does not define emptied()")

    def loaded(self, saved: SavedState, where: str, *, partial: bool = False) -> Self:
        """A copy of this state that holds the arrays of `saved`, a dict from `saved()`.

        `where` is the name of this state in error messages; `partial` as in `load_state_dict`.
        """
        raise TypeError(f"{type(self).__name__} does not define loaded()")


def loaded_parts(like: Saveable, saved: SavedState, where: str, *, partial: bool) -> Parts:
    """The parts of a state from a dict of `saved()`, which is checked.

    Raises:
        ConfigurationMismatchError: the saved state is not of the class and configuration of `like`.
    """
    check_is_saved(saved, where)
    if _without_modules(str(saved["type"])) != type_name(like):
        raise ConfigurationMismatchError(
            f"{where} is a {type_name(like)}; the saved state is of a {saved['type']}"
        )
    config, parts = like.described()
    here = {name: plain(value) for name, value in config.items()}
    free = {name for name, field in like.fields.items() if not field.restored}
    # A field that is newer than the saved state had its default: what the class did before.
    earlier = {
        name: plain(field.default)
        for name, field in like.fields.items()
        if name in here and field.default is not REQUIRED
    }
    there = earlier | saved["config"]
    for name in sorted((here.keys() | there.keys()) - free):
        ours, theirs = (each.get(name, "not there") for each in (here, there))
        if ours != theirs:
            raise ConfigurationMismatchError(
                f"{where}.{name} is {theirs!r} in the saved state and {ours!r} here"
            )
    return _loaded_part(parts, saved["state"], where, partial)


def type_name(state: Saveable | type[Saveable]) -> str:
    """The name of the class that is saved. For a class of datarax, it is without the modules.

    So a class may move between the modules of the package, and saved states can still be loaded.
    """
    cls = state if isinstance(state, type) else type(state)
    return _without_modules(f"{cls.__module__}.{cls.__qualname__}")


def _without_modules(name: str) -> str:
    """The name of a class of datarax without its modules, which states saved earlier have."""
    return f"datarax.{name.rpartition('.')[2]}" if name.startswith("datarax.") else name


def check_configuration(a: PyTree, b: PyTree, action: str) -> None:
    """Raises `ConfigurationMismatchError`, which names the field, if the two cannot be merged."""
    difference = find_difference(a, b, type(a).__name__)
    if difference:
        raise ConfigurationMismatchError(f"cannot {action}: {difference}")


def find_difference(a: PyTree, b: PyTree, path: str) -> str | None:
    """A description of the first difference in class, configuration, structure or shape.

    None if there is no difference. `path` is the name of the two in the description.
    """
    structured = Saveable | dict | tuple | list
    if type(a) is not type(b) and (isinstance(a, structured) or isinstance(b, structured)):
        return f"{path} is a {type(a).__name__} in one and a {type(b).__name__} in the other"
    if isinstance(a, Saveable):
        (ours, a), (theirs, b) = a.described(), b.described()
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(name, "not there"), theirs.get(name, "not there")
            # The identity is compared first, because NaN does not equal itself.
            if mine is not other and mine != other:
                return f"{path}.{name} is {mine!r} in one and {other!r} in the other"
    # `described` has turned a state into the dict of its parts.
    if isinstance(a, structured):
        a, b = _items(a), _items(b)
        if a.keys() != b.keys():
            return f"{path} holds {sorted(a)} in one and {sorted(b)} in the other"
        return next((d for k in a if (d := find_difference(a[k], b[k], f"{path}.{k}"))), None)
    ours, theirs = (f"{x.dtype}{list(x.shape)}" for x in (a, b))
    return None if ours == theirs else f"{path} is {ours} in one and {theirs} in the other"


def plain(value: object) -> Plain:
    """A configuration value in a form that JSON can hold, and that is equal in every process."""
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [plain(item) for item in value]
    if isinstance(value, float) and value != value:
        return "nan"  # NaN does not equal itself, the string does
    for of in (float, str):  # also of a subclass, such as a member of a string enumeration
        if isinstance(value, of):
            return of(value)
    if value is None or isinstance(value, bool | int):
        return value
    # The `repr` of a function contains its address, which differs between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _saved_part(part: PyTree) -> PyTree:
    if isinstance(part, Saveable):
        return part.saved()
    if isinstance(part, dict | tuple | list):
        return {key: _saved_part(item) for key, item in _items(part).items()}
    return np.array(part)


def _items(value: dict | tuple | list) -> Parts:
    """The items of a dict, tuple or list by key or index, as strings."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {str(key): item for key, item in pairs}


def _is_saved(saved: PyTree) -> bool:
    whole = isinstance(saved, dict) and {"type", "config", "state"} <= saved.keys()
    return whole and isinstance(saved["config"], dict)


def check_is_saved(saved: PyTree, where: str) -> None:
    """Raises `ConfigurationMismatchError` unless it is a dict as from `saved()`."""
    if not _is_saved(saved):
        keys = f" with {sorted(map(str, saved))}" if isinstance(saved, dict) else ""
        raise ConfigurationMismatchError(
            f"{where}: expected a dict with 'type', 'config' and 'state', as state_dict() gives; "
            f"got a {type(saved).__name__}{keys}"
        )


def _loaded_part(like: PyTree, saved: PyTree, where: str, partial: bool) -> PyTree:
    """The saved part in the structure of the part `like`, and where its arrays are; checked."""
    if isinstance(like, Saveable):
        return like.loaded(saved, where, partial=partial)
    if isinstance(like, dict | tuple | list):
        parts = _items(like)
        if not isinstance(saved, dict) or saved.keys() != parts.keys():
            got = sorted(saved) if isinstance(saved, dict) else f"a {type(saved).__name__}"
            raise ConfigurationMismatchError(
                f"{where}: the saved state holds {got}; expected {sorted(parts)}"
            )
        loaded = {
            key: _loaded_part(part, saved[key], f"{where}.{key}", partial)
            for key, part in parts.items()
        }
        if isinstance(like, dict):
            return dict(zip(like, loaded.values(), strict=True))
        return type(like)(loaded.values())
    try:
        array = np.asarray(saved)
    except ValueError:  # nested lists of different lengths
        array = np.empty((), object)
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ConfigurationMismatchError(
            f"{where} is {array.dtype}{list(array.shape)} in the saved state; "
            f"expected {like.dtype}{list(like.shape)}"
        )
    # A copy, because the caller may change its array later.
    return placed_like(like, np.array(array))


_unregistered: list[type[Saveable]] = []


def register_with_flax(*classes: type[Saveable]) -> None:
    """Registers these classes with `flax.serialization`, or later if Flax is not loaded yet.

    Flax is not imported for that: it takes a second. The classes that wait are registered by the
    next call that finds Flax: when a class is defined, when a state is made or updated, and when
    `datarax.training`, which imports Flax, is imported.
    """
    _unregistered.extend(classes)
    if not _unregistered:
        return
    flax = sys.modules.get("flax.serialization")
    if flax is None or not hasattr(flax, "to_bytes"):  # not loaded, or not wholly
        return
    while _unregistered:
        cls = _unregistered.pop()
        if not flax.is_serializable(cls):  # a user may have registered it
            flax.register_serialization_state(
                cls,
                lambda state: state.state_dict(),
                lambda state, saved: state.load_state_dict(saved),
            )
