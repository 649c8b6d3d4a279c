"""`State`: an immutable pytree that can be merged, synced over devices, reset and saved.

A `State` holds configuration (its declared fields, which are static) and children (accumulators and
other states). `merge`, `sync`, `reset` and saving are defined here once: each applies to every
child in turn. A `LeafState` holds arrays instead of children, and defines how they merge.
"""

import enum
import inspect
import math
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import numpy as np

from datarax._errors import DataraxError, MetricInputError, MetricTypeError, NotAddressableError
from datarax._typing import PyTree
from datarax._xp import fetched, is_near, is_traced, on_host
from datarax.algebra.devices import axes_of, counted_once, folding, sync_states
from datarax.algebra.docstrings import ExplainedArguments
from datarax.algebra.fields import (
    OPTIONAL_STATE,
    REQUIRED,
    Config,
    Field,
    Ungiven,
    bound_arguments,
    bound_fields,
    collect_fields,
    constructor_signature,
    field,
    shown_fields,
    state,
    unrestored,
)
from datarax.algebra.leading_axes import find_leading_axes, refuse_leading_axes
from datarax.algebra.lineage import note_reset, without_mark
from datarax.algebra.pytrees import (
    ArrayNode,
    MeshNode,
    StateNode,
    children_of,
    holds_arrays,
    is_state,
    make_children,
    map_leaf_states,
    register_pytree,
    states_in,
)
from datarax.algebra.saving import (
    Parts,
    Saveable,
    SavedState,
    check_configuration,
    loaded_parts,
    register_with_flax,
    requiring_arrays,
)
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName
from datarax.distributed.inputs import axes_of_whole
from datarax.distributed.placement import device_sets, outside_mesh, placed_like, placed_near
from datarax.numerics.scaled_double import ScaledDouble

_NOT_VARYING = "elsewhere no array varies over devices, and the metric is used as it is"
_NO_SYNC = (
    "elsewhere no sync is needed: a metric that is updated with global arrays is global, and "
    "compute() of a per_device metric merges its copies"
)


def _is_method(x: object) -> bool:
    return callable(x) or isinstance(x, property)


@dataclass_transform(
    eq_default=False, kw_only_default=True, field_specifiers=(field, state, unrestored)
)
class _StateType(type):
    """Creates an instance: makes its states, runs its constructor, then freezes it."""

    hidden_names: frozenset[str]
    _unlisted: frozenset[str]
    # Else the docstring above hides this, and `help` finds no docstring that is a descriptor.
    __doc__ = vars(type)["__doc__"]

    if not TYPE_CHECKING:  # a checker takes the type of an instance from its constructor

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            register_with_flax()
            self: Any = object.__new__(cls)
            # A state in a class body is a template: each instance gets a new state with the same
            # fields. The template itself may have the wrong dtypes, because x64 may have been
            # enabled or disabled since the class was defined.
            for name, template in cls._templates.items():
                vars(self)[name] = _made_anew(template)
            # A constructor of the class itself may set fewer than all fields.
            fields: dict[str, Field] = cls.fields
            vars(self).update(
                {n: f.default for n, f in fields.items() if f.default is not REQUIRED}
            )
            try:
                self.__init__(*args, **kwargs)
            except TypeError as error:
                if not isinstance(error, DataraxError):  # of a constructor of its own
                    bound_arguments(cls, args, kwargs)
                raise
            return _seal(self)

    def __dir__(cls) -> list[str]:
        """Lists the methods and properties that `help` shows; the signature has the fields."""
        hidden = cls.hidden_names | cls._unlisted
        shown = (name for name in super().__dir__() if name not in hidden)
        return [name for name in shown if _is_method(getattr(cls, name, None))]


class State(StateNode, Saveable, metaclass=_StateType):
    """An immutable pytree with an identity and an associative `merge`.

    Annotated class attributes are fields: they declare the configuration, and are the keyword
    arguments of the constructor. Their values must be hashable, and are static under `jit`. A field
    annotated with a `Literal` or `bool` accepts only the values that the annotation allows.

    All other attributes are set in the class body or in `__post_init__`. `__post_init__` runs after
    the fields are set. It checks them, and makes the states that depend on them.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import MetricAccumulator
        >>> from datarax.statistics import State
        >>> class Above(State):
        ...     limit: float = 0.0
        ...     count = MetricAccumulator(0)
        ...
        ...     def update(self, values):
        ...         return self.replace(count=self.count.update(values > self.limit))
        >>> above = Above(limit=1.5).update(jnp.array([1.0, 2.0, 3.0]))
        >>> print(above.merge(above).count.value)
        4
    """

    fields: ClassVar[dict[str, Field]] = {}
    """The fields of the class and its bases, by name."""
    _templates: ClassVar[dict[str, "State"]] = {}
    """The states that the class body and those of its bases define, by name."""
    hidden_names: ClassVar[frozenset[str]] = frozenset()
    """The names that `help` and the tab key leave out: they are not for users. Those that a class
    lists are left out of it and of its subclasses, and so are most of `Metric`."""
    _unlisted: ClassVar[frozenset[str]] = frozenset()
    """The names that only `help` leaves out."""
    delegates: ClassVar[bool] = False
    """True if `update` only passes arguments on to other states, and each takes its own."""

    _on_host: bool | None = None
    """`is_on_host`, once it was asked for."""
    _is_untouched: bool = False
    """True for what `reset` returned."""

    terms_by_row: ClassVar[bool] = False
    """True if each term that an update adds is of one row of its arguments, and the terms are in
    the order of the rows. Then one update gives the terms of all rows: see `rows.RowTerms`."""

    # Set for each subclass: its own `update`, wrapped, and the signature of its constructor.
    update: ClassVar[Callable[..., Any]]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls,
        kw_only: bool = True,
        door: Callable[[Callable[..., Any]], Callable[..., Any]] = folding,
        **kwargs: bool,
    ) -> None:
        # `door` is the decorator of an `update` that the class defines.
        super().__init_subclass__(**kwargs)
        inherited: dict[str, Field] = {}
        # If several bases have a field of the same name, the first base wins.
        for base in cls.__bases__:
            if issubclass(base, State):
                inherited |= {n: f for n, f in base.fields.items() if n not in inherited}
        cls.fields = collect_fields(cls, inherited, is_state, kw_only)
        if "update" in vars(cls):
            cls.update = door(vars(cls)["update"])
        for name, value in list(vars(cls).items()):
            if isinstance(value, State):
                setattr(cls, name, _Template(name, value))
            elif value is OPTIONAL_STATE:
                setattr(cls, name, _Optional(name))
        cls._templates = {
            name: value.template
            for base in reversed(cls.__mro__)
            for name, value in vars(base).items()
            if isinstance(value, _Template)
        }
        if cls.__init__ is State.__init__:
            cls.__signature__ = constructor_signature(cls.fields)
        else:  # a constructor of its own: its signature, without `self`
            own = inspect.signature(cls.__init__)
            cls.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])
        if cls.__doc__:
            cls.__doc__ = ExplainedArguments(cls.__doc__)  # type: ignore[assignment]
        register_with_flax(cls)
        register_pytree(cls)

    def __init__(self, *args: Hashable, **kwargs: Hashable):
        vars(self).update(bound_fields(type(self), args, kwargs))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Checks the fields, and makes the states that depend on them."""

    @classmethod
    def constructor_hint(cls, kwargs: Config) -> str:
        """Suggests what to write in place of arguments that the constructor does not take.

        It follows the list of those that it takes.
        """
        return ""

    @classmethod
    def from_fields(cls, owner: "State", **others: Hashable) -> Self:
        """An instance that copies the values of the fields it has in common with `owner`.

        A metric makes its statistic in this way. `others` are further arguments, and take
        precedence over the fields of `owner`.
        """
        names = [name for name in cls.fields if name in owner.fields]
        return cls(**{name: getattr(owner, name) for name in names} | others)

    def __setattr__(self, name: str, value: object) -> None:
        if self._aux is not None:
            raise AttributeError(
                f"{type(self).__name__} is immutable: .replace({name}=...) returns a changed copy"
            )
        vars(self)[name] = value

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be deleted")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> PyTree:
            # Called for what is no attribute, or not yet: a child of a flat state.
            if name in self._children and make_children(self):
                return vars(self)[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> Parts:
        children_of(self)  # of a flat state, they are made
        # What is derived is made again, and a mark is one of this process.
        return {name: x for name, x in vars(self).items() if name not in _UNSAVED}

    def __setstate__(self, attributes: Parts) -> None:
        # For `pickle` and `copy`. The static part is built again in this process.
        vars(self).update(attributes)
        _seal(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with these attributes changed: states, or fields that affect no update.

        Raises:
            AttributeError: an attribute does not exist.
            MetricInputError: with the new field, the same data would have given another state.
        """
        for name in changes:
            if not hasattr(self, name):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if changes.keys().isdisjoint(self.fields):
            return self.with_parts(changes)
        config = {name: value for name, value in changes.items() if name in self.fields}
        copy = self._reconfigured(config)
        return copy.with_parts({name: v for name, v in changes.items() if name not in config})

    def _made_with(self, fields: Config) -> Self:
        """A new instance with these fields, for the data that this one holds."""
        return type(self)(**fields)

    def _reconfigured(self, changes: Config) -> Self:
        """A copy with these fields changed: a new instance that takes over the children."""
        if type(self).__init__ is not State.__init__:  # its arguments are not the fields
            return self.with_parts(changes)
        given = {name: getattr(self, name) for name in self.fields} | changes
        fresh = self._made_with({n: v for n, v in given.items() if self.fields[n].init})
        set_later = {name: v for name, v in given.items() if not self.fields[name].init}
        parts = {name: getattr(self, name) for name in self._children}
        # The structure of a child includes its configuration, but not the values of its arrays.
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

    def with_parts(self, parts: Parts) -> Self:
        """A copy with these attributes changed, without the checks of `replace`."""
        register_with_flax()
        copy = object.__new__(type(self))
        attributes = vars(copy)
        attributes.update(vars(self))
        for name in _DERIVED:
            attributes.pop(name, None)
        # The copy drops the arrays of a flat state, so children that stay are made from them first.
        if self._arrays is not None and not parts.keys() >= set(self._children):
            attributes.update(children_of(self))
        attributes.update(parts)
        if parts.keys() <= set(self._children):  # the static part stays as it is
            return copy
        attributes["_aux"] = None
        return _seal(copy)

    # Methods that apply to every child. A `LeafState` overrides them.

    def combine(self, other: Self) -> Self:
        """The merge of the two, without the checks of `merge`."""
        return self._over_children(lambda a, b: a.combine(b), other)

    def canonical(self) -> Self:
        """The canonical form: states that hold the same data have equal canonical forms."""
        return self._over_children(lambda a: a.canonical())

    def emptied(self) -> Self:
        """The empty state of the same configuration, on the host."""
        return self._over_children(lambda a: a.emptied())

    def weighted_by(self, factor: ScaledDouble) -> Self:
        """The state if the weight of all its data were multiplied by a factor, at most 1.

        Maxima and minima stay, and so do the counts of what could not be used. Sums below `2**-100`
        become 0.

        Raises:
            MetricTypeError: the state, or one within it, cannot be multiplied.
        """
        data = self._children_of_data()
        return self.with_parts(
            jax.tree.map(lambda x: x.weighted_by(factor), data, is_leaf=is_state)
        )

    @property
    def is_extreme(self) -> bool:
        """True if all that it holds of data are maxima and minima, so that repeated data changes
        nothing. What could not be used does not count."""
        parts = jax.tree.leaves(self._children_of_data(), is_leaf=is_state)
        return bool(parts) and all(isinstance(x, State) and x.is_extreme for x in parts)

    def unusable(self) -> dict[str, PyTree]:
        """Counts the values that this state could not use, by kind: "NaN", "out of range", ...

        It leaves out what its children could not use: `walk` visits them, too.
        """
        count = count_of_invalid(self)
        # The accumulator of a class that does not know the kind. An `InvalidCounts` is visited.
        return {"": count.value} if holds_arrays(count) else {}

    # Resetting, merging, syncing, saving.

    def reset(self) -> Self:
        """An empty state of the same configuration: the identity of `merge`.

        Its arrays are where those of this state are. This state may be donated.
        """
        traced = is_traced(self)
        note_reset(self, traced)
        empty = self.emptied()
        placed = empty if self.is_on_host else placed_like(self, empty)
        without_mark(placed)
        is_new = placed is not empty or (isinstance(self, MeshNode) and not traced)
        return marked_untouched(placed) if is_new else empty

    @outside_mesh
    @requiring_arrays
    def merge(self, other: Self) -> Self:
        """The state that results if one state sees the data of both; it is where this one is.

        Raises:
            ConfigurationMismatchError: class, configuration or shape differ; names the field.
            MetricInputError: the arrays of one alone have a leading axis, as out of `vmap`.
            NotAddressableError: the two are on devices of different processes.
        """
        if isinstance(other, State) and find_leading_axes(self) != find_leading_axes(other):
            refuse_leading_axes(self)
            refuse_leading_axes(other)
        check_configuration(self, other, "merge")
        # Inside `shard_map`, one of the two may be replicated, and the other not.
        both = axes_of((self, other))
        if both:
            return counted_once(self, both).combine(counted_once(other, both))
        if axes := len(find_leading_axes(self)):
            return _combine_in_program(self, other, axes)
        leaves = jax.tree.leaves((self, other))
        if is_traced(leaves):
            return self.combine(other)
        # A program takes the arrays of one set of devices. What is on one CPU, or on several sets,
        # is merged in NumPy.
        groups = set() if is_near(leaves) else device_sets(leaves)
        if len(groups) == 1:
            return _combine_in_program(self, other, 0)
        if len({frozenset(x.process_index for x in group) for group in groups}) > 1:
            raise NotAddressableError(
                f"{type(self).__name__}.merge: the two are on devices of different processes, so "
                f"not every process holds both; merge them with datarax.merge_processes"
            )
        with np.errstate(all="ignore"):
            merged = fetched(self).combine(fetched(other))
        # Of two meshes, it is placed where this one is.
        return placed_near(self, merged) if groups else merged

    def sync(self, axis_name: AxisName) -> Self:
        """Merges the states of all devices along `axis_name`: all get the same, bit for bit.

        Call it inside `shard_map` or `pmap`. A state that is replicated along the axis counts once.
        In `pmap`, and with `check_vma=False`, JAX does not tell which are: there, sync only what is
        new, `m = m.merge(m.reset().update(x).sync(axis_name))`.

        Raises:
            AxisNotBoundError: `axis_name` is not bound here.
        """
        collectives.bound_axis_size(axis_name, f"{type(self).__name__}.sync", _NO_SYNC)
        names = collectives.axis_names(axis_name)
        return map_leaf_states(lambda states: sync_states(states, names), self)

    def varying(self, axis_name: AxisName) -> Self:
        """The same state, marked as varying over the devices along `axis_name`.

        Call it inside `shard_map`, before a replicated state becomes the carry of a `lax.scan`,
        whose type an update must not change. What the state holds still counts once. Name the axes
        over which the data differ.

        Raises:
            AxisNotBoundError: `axis_name` is not bound here.
        """
        collectives.bound_axis_size(axis_name, f"{type(self).__name__}.varying", _NOT_VARYING)
        names = collectives.axis_names(axis_name)
        # Without the replication check, JAX does not tell what is replicated, and each device owns
        # what it holds.
        checked = [name for name in names if collectives.is_checked(name)]
        state = counted_once(self, checked)
        return jax.tree.map(lambda leaf: collectives.mark_varying(leaf, names), state)

    def states_within(self) -> "list[State]":
        """The states that `walk` visits next: the children, or the states within them."""
        return states_in(*map(getattr, repeat(self), self._children))

    def _children_of_data(self) -> Parts:
        """The children, without the counts of what could not be used."""
        invalid = count_of_invalid(self)
        return {name: child for name, child in children_of(self).items() if child is not invalid}

    @property
    def is_on_host(self) -> bool:
        """True if no array is a JAX array. Looked up once, as a state is immutable."""
        known = self._on_host
        if known is None:
            # Of a flat state without children yet, the arrays.
            flat = self._arrays
            held = flat[0] if flat else map(getattr, repeat(self), self._children)
            known = vars(self)["_on_host"] = on_host(*held)
        return known

    def described(self) -> tuple[Config, Parts]:
        return {name: getattr(self, name) for name, _ in self._aux[1]}, children_of(self)

    def loaded(self, saved: SavedState, where: str, *, partial: bool = False) -> Self:
        loaded = self.with_parts(loaded_parts(self, saved, where, partial=partial))
        without_mark(loaded)
        return loaded

    def _over_children(self, function: Callable[..., Any], *others: Self) -> Self:
        """A copy in which `function` of each child, and of its likes in `others`, replaces it."""

        def apply(name: str) -> PyTree:
            parts = [getattr(each, name) for each in (self, *others)]
            return jax.tree.map(function, *parts, is_leaf=is_state)

        return self.with_parts({name: apply(name) for name in self._children})

    def __repr__(self) -> str:
        shown = [shown_fields(self)]
        if type(self).__init__ is not State.__init__:
            shown += [f"{n}={getattr(self, n)!r}" for n, _ in self._aux[1] if n not in self.fields]
        return f"{type(self).__name__}({', '.join(filter(None, shown))})"


axes_of_whole.register(State, find_leading_axes)

S = TypeVar("S", bound=State)


# How an instance is frozen. How it is flattened and unflattened is in `pytrees`.


class _Nan(enum.Enum):
    """Stands for NaN in the static part of a pytree, because NaN does not equal itself.

    A member of an enumeration equals itself, also after pickling.
    """

    NAN = "nan"


_DERIVED = ("_arrays", "_on_host", "_is_untouched", "_apart")
_UNSAVED = ("_aux", "_mark", *_DERIVED)
_OWN = ("_children", *_UNSAVED)


def _seal(self: S) -> S:
    """Sorts the attributes into children and static ones, and so freezes the instance."""
    children, config = [], []
    for name, value in vars(self).items():
        if name in _OWN:
            continue
        if _holds_state(value, type(self)):
            children.append(name)
            continue
        if isinstance(value, float) and math.isnan(value):
            # `math.nan` for every NaN: `find_difference` compares configurations by identity first.
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
    # Sorted, so that the order of assignments in a constructor makes no other configuration.
    children, config = tuple(sorted(children)), tuple(sorted(config, key=lambda pair: pair[0]))
    vars(self)["_children"] = children
    nans = tuple(name for name, value in config if value is _Nan.NAN)
    ungiven = tuple(name for name, value in config if type(value) is Ungiven)
    vars(self)["_aux"] = (children, config, nans, ungiven)
    return self


def _holds_state(value: object, owner: type[State]) -> bool:
    """True if an attribute is a child: a state, states in containers, or arrays if `owner` may."""
    if isinstance(value, State):
        return True
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and value:
        return all(_holds_state(item, owner) for item in value)
    return issubclass(owner, ArrayNode) and hasattr(value, "dtype") and hasattr(value, "shape")


class _Template:
    """A state in a class body. Instances have a child of that name, made when it is asked for."""

    def __init__(self, name: str, template: State):
        self.name, self.template = name, template

    def __get__(self, owner: State | None, _: type | None = None) -> State:
        # An instance that has made its children has the child as an attribute, and so never calls
        # this.
        return self.template if owner is None else owner.__getattr__(self.name)  # type: ignore


class _Optional:
    """A state that an instance may lack: None, unless it has a child of that name."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, owner: State | None, _: type | None = None) -> State | None:
        if owner is None or self.name not in owner._children:
            return None
        return owner.__getattr__(self.name)  # type: ignore


def _made_anew(template: State) -> State:
    """A new state with the fields of `template`, or `template` if it has its own constructor."""
    given = {name: getattr(template, name) for name, each in template.fields.items() if each.init}
    is_declared = type(template).__init__ is State.__init__
    return type(template)(**given) if is_declared else template


def is_untouched(state: State) -> bool:
    """True for a new state, and for what `reset` returned. Values are never compared."""
    # All empty states of one configuration share their arrays on the host.
    now, new = jax.tree.leaves(state), jax.tree.leaves(state.emptied())
    is_new = all(x is y for x, y in zip(now, new, strict=True))
    return is_new or state._is_untouched


def marked_untouched(empty: S) -> S:
    """The state itself, an empty one on devices; so `is_untouched` is true of this object."""
    vars(empty)["_is_untouched"] = True
    return empty


@partial(jax.jit, static_argnums=2)
def _combine_in_program(a: S, b: S, axes: int) -> S:
    """`a.combine(b)`; with leading axes, of each of the states with the one at its place."""
    combine = type(a).combine
    for _ in range(axes):
        combine = jax.vmap(combine)
    return combine(a, b)


def count_of_invalid(state: PyTree) -> PyTree:
    """The child that counts what a state could not use; None if it has none of that name."""
    # The name is public: `Metric` says that a metric of a user counts in a state called `invalid`.
    return state.invalid if "invalid" in state._children else None


def walk(root: State) -> Iterator[State]:
    """Yields a state, and all states within it."""
    coming = [root]
    while coming:
        each = coming.pop()
        yield each
        coming.extend(reversed(each.states_within()))
