"""State: immutable pytrees that merge. Everything distributed follows from this one class.

A `State` holds configuration (declared fields, static) and state (accumulators and other states,
its children). Merging, syncing, resetting and saving are written here once, over the children.
Only a `LeafState` holds arrays itself, and says what merging means for them.
"""

import enum
import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.statistics.device_merge import merge_leaf_states, merge_stack
from datarax.statistics.fields import (
    Field,
    bound_fields,
    collect_fields,
    constructor_signature,
    field,
    shown_fields,
    state,
)
from datarax.statistics.state_dicts import Saveable, check_same

SMALL_STATE_BYTES = 1 << 20
"""Up to this many bytes a device, `sync` is one collective in all; above, one for each kind."""


@dataclass_transform(kw_only_default=True, field_specifiers=(field, state))
class _StateType(type):
    """Makes an instance: its arguments, the states of its class, its hook; then freezes it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        self: Any = object.__new__(cls)
        # States in a class body are templates: each instance makes its own from their fields, as
        # the dtypes of a state depend on whether x64 is enabled when it is made.
        for name, template in cls.templates.items():  # type: ignore[attr-defined]
            vars(self)[name] = _made_anew(template)
        vars(self).update({n: f.default for n, f in cls.fields.items() if not f.init})  # type: ignore[attr-defined]
        self.__init__(*args, **kwargs)
        return _seal(self)


class State(Saveable, metaclass=_StateType):
    """An immutable pytree with an identity and an associative `merge`.

    Configuration is declared as annotated class attributes, which are the keyword arguments of the
    constructor; their values must be hashable, and are static under `jit`. An attribute whose
    annotation is a `Literal` or `bool` takes no other value. All other attributes are set in the
    class body or in `__post_init__`, which runs after the fields are set: it checks them, and
    makes the state that depends on them.
    """

    fields: ClassVar[dict[str, Field]] = {}
    templates: ClassVar[dict[str, "State"]] = {}
    holds_arrays: ClassVar[bool] = False

    _children: tuple[str, ...] = ()
    _aux: Any = None

    def __init_subclass__(cls, kw_only: bool = True, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited: dict[str, Field] = {}
        for base in cls.__bases__:
            inherited |= {
                n: f for n, f in getattr(base, "fields", {}).items() if n not in inherited
            }
        cls.fields = collect_fields(cls, inherited, lambda x: isinstance(x, State), kw_only)
        bodies = [vars(base) for base in reversed(cls.__mro__)]
        cls.templates = {
            name: value
            for body in bodies
            for name, value in body.items()
            if isinstance(value, State)
        }
        if cls.__init__ is State.__init__:
            cls.__signature__ = constructor_signature(cls.fields)
        else:  # a constructor of its own: its signature, without `self`
            own = inspect.signature(cls.__init__)
            cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])
        jax.tree_util.register_pytree_with_keys(cls, _flatten_with_keys, _unflatten(cls), _flatten)

    def __init__(self, *args: Any, **kwargs: Any):
        vars(self).update(bound_fields(type(self), args, kwargs))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Checks the fields, and makes the state that depends on them."""

    @classmethod
    def from_fields(cls, owner: "State", **others: Any) -> Self:
        """One whose fields have the values of `others`, or of the fields of `owner` so called."""
        names = [name for name in cls.fields if name in owner.fields]
        return cls(**{name: getattr(owner, name) for name in names} | others)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._aux is not None:
            raise AttributeError(
                f"{type(self).__name__} is immutable: .replace({name}=...) returns a changed copy"
            )
        vars(self)[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted")

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        vars(self).update(attributes)
        vars(self)["_aux"] = None
        _seal(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with these attributes changed.

        A state keeps its place; a field of configuration may change if the same data would have
        led to the same state under it: `metric.replace(on_invalid="raise")`.

        Raises:
            AttributeError: an attribute that there is not.
            MetricInputError: configuration under which the state would have been another.
        """
        for name in changes:
            if not hasattr(self, name):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        config = {name: value for name, value in changes.items() if name in self.fields}
        copy = self._reconfigured(config) if config else self
        return copy.with_parts({name: v for name, v in changes.items() if name not in config})

    def _reconfigured(self, changes: dict[str, Any]) -> Self:
        if type(self).__init__ is not State.__init__:
            return self.with_parts(changes)
        given = {name: getattr(self, name) for name in self.fields} | changes
        fresh = type(self)(**{name: v for name, v in given.items() if self.fields[name].init})
        set_later = {name: v for name, v in given.items() if not self.fields[name].init}
        parts = {name: getattr(self, name) for name in self._children}
        same = fresh._children == self._children and all(
            jax.tree.structure(getattr(fresh, name)) == jax.tree.structure(part)
            for name, part in parts.items()
        )
        if not same:
            names = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            raise MetricInputError(
                f"{type(self).__name__}.replace({names}): the state was collected under another "
                f"configuration; make a new {type(self).__name__}"
            )
        return fresh.with_parts(parts | set_later)

    def with_parts(self, parts: dict[str, Any]) -> Self:
        """A copy with these attributes, not checked: see `replace`."""
        copy: Any = object.__new__(type(self))
        vars(copy).update(vars(self))
        vars(copy).update(parts)
        if parts.keys() <= set(self._children):
            return copy
        vars(copy)["_aux"] = None
        return _seal(copy)

    # What follows from the children; a leaf state defines it.

    def combine(self, other: Self) -> Self:
        """The two merged, without a check that they may be: see `merge`."""
        return self._over_children(lambda a, b: a.combine(b), other)

    def canonical(self) -> Self:
        """The one form of all states that hold the same data."""
        return self._over_children(lambda a: a.canonical())

    def reset(self) -> Self:
        """The same, empty: the identity of `merge`."""
        return self._over_children(lambda a: a.reset())

    def derive(self, coarser: "State") -> "State | None":
        """What `coarser`, fed the same inputs, would hold; None unless this state tells."""
        return None

    def unusable(self) -> list[Any]:
        """Counts of what this state itself, without its children, could not use."""
        count = self.children().get("invalid")
        return [] if count is None else [count.value]

    # The lifecycle.

    def merge(self, other: Self) -> Self:
        """The two as if one had seen both streams of data.

        Raises:
            ConfigurationMismatchError: another class, configuration or shape; names the field.
        """
        check_same(self, other, "merge")
        return self.combine(other)

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
        states, treedef = jax.tree.flatten(self, is_leaf=lambda x: isinstance(x, LeafState))
        return treedef.unflatten(merge_leaf_states(states, axis_name, size))

    def varying(self, axis_name: AxisName) -> Self:
        """The same state, marked as differing between the devices along `axis_name`.

        A state made outside `shard_map` counts as replicated, and the first local update makes it
        varying: mark it before it becomes the carry of a `lax.scan` or `lax.while_loop`.
        """
        return jax.tree.map(lambda leaf: collectives.mark_varying(leaf, axis_name), self)

    def children(self) -> dict[str, Any]:
        """The states, or pytrees of states (of a leaf state: the arrays), by attribute."""
        return {name: getattr(self, name) for name in self._children}

    def described(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: getattr(self, name) for name, _ in self._aux[1]}, self.children()

    def restored(self, parts: dict[str, Any]) -> Self:
        return self.with_parts(parts)

    def _over_children(self, function: Callable[..., Any], *others: Self) -> Self:
        def apply(name: str) -> Any:
            parts = [getattr(each, name) for each in (self, *others)]
            return jax.tree.map(function, *parts, is_leaf=lambda x: isinstance(x, State))

        return self.with_parts({name: apply(name) for name in self._children})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_fields(self)})"


# Freezing, and the pytree.


class _Nan(enum.Enum):
    """NaN in the static part of a pytree: it equals itself, also after pickling."""

    NAN = "nan"


def _seal(self: State) -> Any:
    children, config = [], []
    for name, value in vars(self).items():
        if name in ("_children", "_aux"):
            continue
        if _holds_state(value, type(self)):
            children.append(name)
            continue
        if isinstance(value, float) and math.isnan(value):
            vars(self)[name], value = math.nan, _Nan.NAN
        try:
            hash(value)
        except TypeError:
            kind = "an array" if hasattr(value, "dtype") else f"a {type(value).__name__}"
            raise MetricTypeError(
                f"{type(self).__name__}.{name} is {kind}: configuration must be hashable (a "
                f"number, a string, a tuple), and arrays belong in a MetricAccumulator"
            ) from None
        config.append((name, value))
    children, config = tuple(sorted(children)), tuple(sorted(config, key=lambda pair: pair[0]))
    vars(self)["_children"] = children
    vars(self)["_aux"] = (children, config)
    return self


def _holds_state(value: Any, owner: type[State]) -> bool:
    if isinstance(value, State):
        return True
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value:
        return all(_holds_state(item, owner) for item in value)
    return owner.holds_arrays and hasattr(value, "dtype") and hasattr(value, "shape")


def _flatten(self: State) -> tuple[tuple[Any, ...], Any]:
    return tuple(vars(self)[name] for name in self._children), self._aux


def _flatten_with_keys(self: State) -> tuple[tuple[Any, ...], Any]:
    keyed = ((jax.tree_util.GetAttrKey(n), vars(self)[n]) for n in self._children)
    return tuple(keyed), self._aux


def _unflatten(cls: type[State]) -> Callable[[Any, Any], State]:
    def unflatten(aux: Any, children: Any) -> State:
        self = object.__new__(cls)
        names, config = aux
        for name, value in config:
            vars(self)[name] = math.nan if value is _Nan.NAN else value
        vars(self).update(zip(names, children, strict=True))
        vars(self)["_children"], vars(self)["_aux"] = names, aux
        return self

    return unflatten


class LeafState(State):
    """A state that holds arrays, and says how they merge; a missing method is an error.

    A subclass declares its configuration as any `State`, and defines five methods: `empty`,
    `combine`, `canonical`, and for merging over a mesh `to_mesh` and `from_mesh`.
    """

    holds_arrays: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        required = ("empty", "combine", "canonical", "to_mesh", "from_mesh")
        base = {name: getattr(LeafState, name) for name in required}
        missing = [name for name in required if getattr(cls, name) is base[name]]
        if missing:
            raise TypeError(
                f"{cls.__name__} is a LeafState, and does not define {', '.join(missing)}"
            )

    def __post_init__(self) -> None:
        vars(self).update(self.empty())

    @abstractmethod
    def empty(self) -> dict[str, Any]:
        """The arrays of no data, by attribute: NumPy arrays, the same objects in each call."""

    @abstractmethod
    def combine(self, other: Any) -> Self:
        """The two merged: associative and commutative, with `empty` as the identity."""

    @abstractmethod
    def canonical(self) -> Self:
        """The one form of all states that hold the same data."""

    @abstractmethod
    def to_mesh(self) -> tuple[str, list[jax.Array]]:
        """Which elementwise collective merges this state, and its operands.

        "sum", "max" or "min"; `("gather", [])` where none does: copies are gathered and combined.
        """

    @abstractmethod
    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        """The merged state, from what the collective gives for the operands of `to_mesh`."""

    def reset(self) -> Self:
        # A stacked state (one copy a device, say) stays stacked: its arrays have leading axes.
        def shaped(empty: Any, now: Any) -> Any:
            return (
                empty if jnp.shape(now) == empty.shape else np.broadcast_to(empty, jnp.shape(now))
            )

        empty = self.empty()
        return self.with_parts({n: jax.tree.map(shaped, empty[n], getattr(self, n)) for n in empty})


def states_in(tree: Any) -> list[State]:
    """The outermost states in a pytree."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, State))
    return [leaf for leaf in leaves if isinstance(leaf, State)]


def walk(root: State) -> Iterator[State]:
    """A state and all states within it."""
    yield root
    for child in root.children().values():
        for each in states_in(child):
            yield from walk(each)


def _made_anew(template: State) -> State:
    given = {name: getattr(template, name) for name, each in template.fields.items() if each.init}
    is_declared = type(template).__init__ is State.__init__
    return type(template)(**given) if is_declared else template
