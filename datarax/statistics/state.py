"""State: immutable pytrees that merge. Everything distributed follows from this one class.

A `State` holds arrays (leaves), other states (children), and configuration (static). What a class
assigns in `__init__` decides which is which. Merging, syncing, resetting and saving are written
here once, over the children; only the classes that hold arrays themselves say what merging means.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import x64_enabled
from datarax._errors import ConfigurationMismatchError, MetricTypeError
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.statistics.device_merge import merge_atoms, merge_stack

SMALL_STATE_BYTES = 1 << 20
"""Up to this many bytes a device, `sync` is one collective in all; above, one a kind."""


class _Sealing(type):
    """Freezes an instance when `__init__` is done; tells state from configuration."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        self: Any = object.__new__(cls)
        x64 = x64_enabled()
        for base in reversed(cls.__mro__):
            for name, value in vars(base).items():
                if isinstance(value, State):
                    # A class body may have run before x64 was switched: then it is made anew.
                    made_with, make = vars(value).get("_made", (x64, None))
                    vars(self)[name] = value if made_with == x64 else make()
        self.__init__(*args, **kwargs)
        _seal(self)
        if not states_in((args, kwargs)):
            vars(self)["_made"] = x64, partial(cls, *args, **kwargs)
        return self


class State(metaclass=_Sealing):
    """An immutable pytree with an identity and an associative `merge`.

    Attributes that are states (or tuples, lists or dicts of them) are the children; arrays are
    allowed in the classes of this package that define how they merge; all else is configuration,
    which must be hashable and is static under `jit`.
    """

    _children: tuple[str, ...] = ()
    _aux: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten(cls), _flatten)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._aux is not None:
            raise AttributeError(
                f"{type(self).__name__} is immutable: .replace({name}=...) returns a changed copy"
            )
        vars(self)[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted")

    def replace(self, **changes: Any) -> Self:
        """A copy with these attributes exchanged."""
        for name in changes:
            if not hasattr(self, name):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._replace(**changes)

    def _replace(self, **changes: Any) -> Self:
        copy: Any = object.__new__(type(self))
        vars(copy).update(vars(self))
        vars(copy).pop("_made", None)
        vars(copy).update(changes)
        if changes.keys() <= set(self._children):
            return copy
        vars(copy)["_aux"] = None
        return _seal(copy)

    # What a class that holds arrays defines; for all others it follows from the children.

    def _merge(self, other: Any) -> Self:
        return self._over_children(lambda a, b: a._merge(b), other)

    def _reset(self) -> Self:
        return self._over_children(lambda a: a._reset())

    def _canonical(self) -> Self:
        """The one form of all states that hold the same."""
        return self._over_children(lambda a: a._canonical() if isinstance(a, State) else a)

    def read_as(self, other: "State") -> "State | None":
        """What `other`, fed the same inputs, would hold; None unless this state tells."""
        return None

    def _over_mesh(self) -> tuple[str, list[jax.Array]] | None:
        """The elementwise collective that merges this state, and its operands, if one does."""
        return None

    def _from_mesh(self, arrays: list[jax.Array]) -> Self:
        raise TypeError(type(self).__name__)

    # The lifecycle.

    def merge(self, other: Self) -> Self:
        """The two as if one had seen both streams of data.

        Raises:
            ConfigurationMismatchError: another class, configuration or shape; names the field.
        """
        check_same(self, other, "merge")
        return self._merge(other)

    def reset(self) -> Self:
        """The same, empty: the identity of `merge`."""
        return self._reset()

    def sync(self, axis_name: AxisName) -> Self:
        """The merge over all devices along `axis_name`, on every one of them.

        Only inside `shard_map` or `pmap`. One collective for everything while the state is small
        (`SMALL_STATE_BYTES` a device): every device gathers all copies and merges them in the
        same order, so the result is deterministic and `out_specs=P()` accepts it. Above that, one
        all-reduce for each kind: sums of integers, of floats, maxima, minima; and a gather for
        what no elementwise collective merges.

        Raises:
            AxisNotBoundError: `axis_name` is not bound here.
        """
        size = collectives.bound_axis_size(axis_name, f"{type(self).__name__}.sync")
        leaves, treedef = jax.tree.flatten(self)
        if sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= SMALL_STATE_BYTES:
            gathered = collectives.gather([jnp.asarray(leaf) for leaf in leaves], axis_name)
            return merge_stack(treedef.unflatten(gathered), size)
        # The atoms: states that hold arrays, and say how those merge.
        atoms, treedef = jax.tree.flatten(self, is_leaf=_is_atom)
        return treedef.unflatten(merge_atoms(atoms, axis_name, size))

    def varying(self, axis_name: AxisName) -> Self:
        """The same state, marked as differing between the devices along `axis_name`.

        A state made outside `shard_map` counts as replicated, and the first local update makes it
        varying: mark it before it becomes the carry of a `lax.scan` or `lax.while_loop`.
        """
        return jax.tree.map(lambda leaf: collectives.mark_varying(leaf, axis_name), self)

    # What comparing, describing and saving see: configuration, and parts by name.

    def _described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict(self._aux[1]), {name: getattr(self, name) for name in self._children}

    def _with_parts(self, parts: dict[str, Any]) -> Self:
        return self._replace(**parts)

    def state_dict(self) -> dict[str, Any]:
        """A plain nested dict: the class, the configuration, and NumPy arrays."""
        config, parts = self._described()
        return {
            "type": type_name(self),
            "config": {name: plain(value) for name, value in config.items()},
            "state": {name: _saved(part) for name, part in parts.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> Self:
        """This state with the arrays of `state_dict`.

        Raises:
            ConfigurationMismatchError: they are of another class, configuration, shape or dtype;
                names the field. Nothing is half-loaded.
        """
        return self._load(state_dict, type(self).__name__)

    def _load(self, saved: Any, where: str) -> Self:
        return self._with_parts(_checked_parts(self, saved, where))

    def _over_children(self, function: Callable[..., Any], *others: Self) -> Self:
        def apply(name: str) -> Any:
            parts = [getattr(each, name) for each in (self, *others)]
            return jax.tree.map(function, *parts, is_leaf=lambda x: isinstance(x, State))

        return self._replace(**{name: apply(name) for name in self._children})

    def __repr__(self) -> str:
        config = ", ".join(f"{name}={value!r}" for name, value in config_of(self))
        return f"{type(self).__name__}({config})"


def states_in(tree: Any) -> list[State]:
    """The outermost states in a pytree."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, State))
    return [leaf for leaf in leaves if isinstance(leaf, State)]


def walk(state: State) -> Iterator[State]:
    """A state and all states within it."""
    yield state
    for name in state._children:
        for child in states_in(getattr(state, name)):
            yield from walk(child)


def _is_atom(node: Any) -> bool:
    return isinstance(node, State) and not any(
        states_in(getattr(node, name)) for name in node._children
    )


# Sealing, and the pytree.


def _seal(self: State) -> Any:
    children, config = [], []
    for name, value in vars(self).items():
        if name in ("_children", "_aux", "_made"):
            continue
        if _holds_state(value, type(self)):
            children.append(name)
            continue
        try:
            hash(value)
        except TypeError:
            kind = "an array" if hasattr(value, "dtype") else f"a {type(value).__name__}"
            raise MetricTypeError(
                f"{type(self).__name__}.{name} is {kind}: configuration must be hashable (a "
                f"number, a string, a tuple), and arrays belong in a MetricAccumulator"
            ) from None
        config.append(name)
    children, config = tuple(sorted(children)), tuple(sorted(config))
    vars(self)["_children"] = children
    vars(self)["_aux"] = (children, tuple((name, vars(self)[name]) for name in config))
    return self


def _holds_state(value: Any, owner: type[State]) -> bool:
    if isinstance(value, State):
        return True
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value:
        return all(_holds_state(item, owner) for item in value)
    return owner._merge is not State._merge and hasattr(value, "dtype") and hasattr(value, "shape")


def config_of(state: State) -> tuple[tuple[str, Any], ...]:
    """The configuration, by name, in order."""
    return state._aux[1]


def _flatten(self: State) -> tuple[tuple[Any, ...], Any]:
    return tuple(vars(self)[name] for name in self._children), self._aux


def _flatten_with_keys(self: State) -> tuple[tuple[Any, ...], Any]:
    keyed = ((jax.tree_util.GetAttrKey(n), vars(self)[n]) for n in self._children)
    return tuple(keyed), self._aux


def _unflatten(cls: type[State]) -> Callable[[Any, Any], State]:
    def unflatten(aux: Any, children: Any) -> State:
        self = object.__new__(cls)
        names, config = aux
        vars(self).update(config)
        vars(self).update(zip(names, children, strict=True))
        vars(self)["_children"], vars(self)["_aux"] = names, aux
        return self

    return unflatten


# Comparing, saving.


def type_name(state: State) -> str:
    """The class by its full name."""
    return f"{type(state).__module__}.{type(state).__qualname__}"


def check_same(a: Any, b: Any, action: str) -> None:
    """Raises `ConfigurationMismatchError`, which names the field, unless the two may merge."""
    difference = find_difference(a, b, type(a).__name__)
    if difference:
        raise ConfigurationMismatchError(f"cannot {action}: {difference}")


def find_difference(a: Any, b: Any, path: str) -> str | None:
    """The first place where two states differ in class, configuration, structure or shape."""
    structured = State | dict | tuple | list
    if type(a) is not type(b) and (isinstance(a, structured) or isinstance(b, structured)):
        return f"{path} is a {type(a).__name__} in one and a {type(b).__name__} in the other"
    if isinstance(a, State):
        (ours, a), (theirs, b) = a._described(), b._described()
        for name in sorted(ours.keys() | theirs.keys()):
            mine, other = ours.get(name, "not there"), theirs.get(name, "not there")
            if mine != other:
                return f"{path}.{name} is {mine!r} in one and {other!r} in the other"
    if isinstance(a, structured):
        a, b = _items(a), _items(b)
        if a.keys() != b.keys():
            return f"{path} holds {sorted(a)} in one and {sorted(b)} in the other"
        return next((d for k in a if (d := find_difference(a[k], b[k], f"{path}.{k}"))), None)
    ours, theirs = (f"{x.dtype}{list(x.shape)}" for x in (a, b))
    return None if ours == theirs else f"{path} is {ours} in one and {theirs} in the other"


def _items(value: Any) -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {str(key): item for key, item in pairs}


def plain(value: Any) -> Any:
    """A configuration value as JSON holds it, the same in every process."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return str(value) if isinstance(value, str) else value
    # A function goes by its name: the address differs from process to process.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _saved(part: Any) -> Any:
    if isinstance(part, State):
        return part.state_dict()
    if isinstance(part, dict | tuple | list):
        return {key: _saved(item) for key, item in _items(part).items()}
    return np.array(part)


def _checked_parts(state: State, saved: Any, where: str) -> dict[str, Any]:
    """The parts of `state` with the arrays of a state dict; raises where they do not fit."""
    whole = isinstance(saved, dict) and {"type", "config", "state"} <= saved.keys()
    if not (whole and isinstance(saved["config"], dict)):
        keys = f" with {sorted(map(str, saved))}" if isinstance(saved, dict) else ""
        raise ConfigurationMismatchError(
            f"{where}: expected a dict with 'type', 'config' and 'state', as state_dict() gives; "
            f"got a {type(saved).__name__}{keys}"
        )
    if saved["type"] != type_name(state):
        raise ConfigurationMismatchError(
            f"{where} is a {type_name(state)}; the saved state is of a {saved['type']}"
        )
    config, parts = state._described()
    here = {name: plain(value) for name, value in config.items()}
    for name in sorted(here.keys() | saved["config"].keys()):
        ours, theirs = (each.get(name, "not there") for each in (here, saved["config"]))
        if ours != theirs:
            raise ConfigurationMismatchError(
                f"{where}.{name} is {theirs!r} in the saved state and {ours!r} here"
            )
    return _loaded(parts, saved["state"], where)


def _loaded(like: Any, saved: Any, where: str) -> Any:
    if isinstance(like, State):
        return like._load(saved, where)
    if isinstance(like, dict | tuple | list):
        parts = _items(like)
        if not isinstance(saved, dict) or saved.keys() != parts.keys():
            got = sorted(saved) if isinstance(saved, dict) else f"a {type(saved).__name__}"
            raise ConfigurationMismatchError(
                f"{where}: the saved state holds {got}; expected {sorted(parts)}"
            )
        loaded = {key: _loaded(part, saved[key], f"{where}.{key}") for key, part in parts.items()}
        if isinstance(like, dict):
            return dict(zip(like, loaded.values(), strict=True))
        return type(like)(loaded.values())
    array = np.array(saved)  # a copy, so that the state is no one else's
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ConfigurationMismatchError(
            f"{where} is {array.dtype}{list(array.shape)} in the saved state; "
            f"expected {like.dtype}{list(like.shape)}"
        )
    return array
