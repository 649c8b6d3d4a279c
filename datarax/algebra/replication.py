"""Replicated states inside `shard_map`: they count once, however many devices hold them.

With the replication check on, the type of an array says over which axes of the mesh it varies. A
state that does not vary over an axis is replicated: all devices along it hold the same data. If
such a state becomes varying, for example by an update with the data of each device, only the first
device along the axis keeps what it holds, and the others start empty. So a later `sync` counts it
once. What `jax.lax.all_gather` gave is replicated too, although its type says that it varies: see
`gathered`. Where the types say nothing (`pmap`, `check_vma=False`), each device owns the state that
it holds.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ClassVar, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from datarax._errors import MetricTypeError
from datarax._typing import PyTree
from datarax._xp import (
    NEEDS_VALUES,
    as_in_program,
    fetched,
    is_constant,
    is_near,
    is_traced,
    lax,
    on_host,
    xp,
)
from datarax.algebra.gathered import gathered_axes, same_axes
from datarax.algebra.pytrees import Leaf, Tree, map_leaf_states
from datarax.distributed.collectives import is_checked, mark_varying, varying_axes


def axes_of(tree: PyTree) -> frozenset[str]:
    """The axes over which any array in a pytree varies."""
    # Only a traced array may vary: outside a traced function this costs nothing.
    traced = (x for x in jax.tree.leaves(tree) if isinstance(x, Tracer))
    return frozenset().union(*map(varying_axes, traced))


def made_varying(state: Tree, data: PyTree) -> Tree:
    """A state before an update with data: varying over the axes over which the data varies.

    What it holds counts on the first device, as `counted_once` says. But where all devices hold
    the same gathered data, each keeps the state, so that all of it stays equal until it is synced.
    """
    axes = axes_of(data)
    if not axes:
        return state
    gathered = gathered_axes(data, axes)
    state = counted_once(state, axes - gathered)
    if not gathered:
        return state
    return jax.tree.map(lambda x: mark_varying(x, tuple(sorted(gathered))), state)


def counted_once(state: Tree, axes: Iterable[str]) -> Tree:
    """A state made varying over `axes`; a leaf state that is replicated counts on one device."""
    return map_leaf_states(lambda leaves: [_on_first(leaf, axes) for leaf in leaves], state)


def _on_first(leaf: Leaf, axes: Iterable[str]) -> Leaf:
    """A leaf state that counts on the first device only along the axes over which it is equal."""
    own = axes_of(leaf)
    if own:
        own -= gathered_axes(leaf, own.intersection(axes))
    missing = tuple(sorted(frozenset(axes) - own))
    if not missing:
        return leaf
    return _kept_on_first(leaf, missing)


def _kept_on_first(leaf: Leaf, missing: tuple[str, ...]) -> Leaf:
    first = lax.axis_index(missing) == 0

    def kept(x: jax.Array, other: jax.Array) -> jax.Array:
        here = x if x is other else xp.where(first, x, other)
        return mark_varying(here, missing)

    return jax.tree.map(kept, leaf, leaf.on_other_devices())


def gathered_once(states: list[Leaf], names: Iterable[str]) -> list[Leaf]:
    """Leaf states of which the devices along `names` have data of their own: see `_on_first`.

    Those that hold what was gathered from all devices keep it on the first one. So do those beside
    them that are equal on all devices, because an update did not change them.
    """
    of = [axes_of(leaf).intersection(names) for leaf in states]
    if not any(of):
        return states
    gathered = frozenset().union(
        *(gathered_axes(x, own) for x, own in zip(states, of, strict=True))
    )
    if not gathered:
        return states
    found = []
    for leaf, own in zip(states, of, strict=True):
        once = same_axes(leaf, own & gathered)
        found.append(_kept_on_first(leaf, tuple(sorted(once))) if once else leaf)
    return found


def axes_to_merge(leaf: Leaf, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the bound axes `names` over which each device has data of its own."""
    varying = axes_of(leaf)
    return tuple(name for name in names if name in varying or not is_checked(name))


class _Folds(Protocol):
    """What `folding` looks at of a state: see `State`."""

    delegates: ClassVar[bool]
    holds_arrays: ClassVar[bool]

    @property
    def is_on_host(self) -> bool: ...


_State = TypeVar("_State", bound=_Folds)
_Arguments = ParamSpec("_Arguments")
_Fold = Callable[Concatenate[_State, _Arguments], _State]


def folding(method: _Fold[_State, _Arguments]) -> _Fold[_State, _Arguments]:
    """Wraps a method that folds data into a state, such as `update`: it runs where the data is.

    Raises:
        MetricTypeError: the method does not return a state of the class.
    """
    quiet: Any = np.errstate(all="ignore")(method)

    @wraps(method)
    def fold(self: _State, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _State:
        # Within the update of a metric all arrays are on the host already, or traced.
        if self.is_on_host and on_host(*args, *kwargs.values()):
            new = quiet(self, *args, **kwargs)
        else:
            new = folded(quiet, self, args, kwargs)
        if not isinstance(new, type(self)):
            refuse_result(self, method.__name__, new)
        return new

    return fold


def folded(method: Callable[..., _State], state: _State, args: Any, kwargs: Any) -> _State:
    """The state after a method that folds data into it, some of which are JAX arrays."""
    of_host = on_host(*args, *kwargs.values())
    leaves, given = jax.tree.leaves((state, args, kwargs)), (args, kwargs)
    if is_traced(leaves):
        return folded_in_program(method, state, given, leaves)
    if not of_host and is_near(leaves):
        state, args, kwargs = fetched((state, args, kwargs))
    elif of_host and state.holds_arrays:
        state = fetched(state)
    return method(state, *args, **kwargs)


def folded_in_program(
    method: Callable[..., _State], state: _State, given: Any, leaves: list[PyTree]
) -> _State:
    """As `folded`, of arrays some of which are traced: then no part of it runs on the host.

    All become JAX arrays. A method that then needs the values of a constant, such as a shape, gets
    it as it is. Inside `shard_map`, the state first becomes varying over the axes over which the
    data vary.
    """

    def run(state: _State, given: Any, *, staged: bool) -> _State:
        state = as_in_program(state) if staged else state
        args, kwargs = as_in_program(given, staged=staged)
        state = state if state.delegates else made_varying(state, given)
        return method(state, *args, **kwargs)

    if not any(map(is_constant, leaves)):
        return run(state, given, staged=False)
    try:
        return run(state, given, staged=True)
    except (*NEEDS_VALUES, TypeError, IndexError):  # `x[:n]` of a traced n is the latter
        return run(state, given, staged=False)


def refuse_result(state: object, method: str, result: object) -> NoReturn:
    """Raises the error of a method that folds data into a state, and returns something else.

    Raises:
        MetricTypeError: names the class and the method.
    """
    got = "None" if result is None else f"an object of type {type(result).__name__}"
    raise MetricTypeError(
        f"{type(state).__name__}.{method} returned {got}; expected the updated "
        f"{type(state).__name__}. A state is immutable: write `return self.replace(...)`"
    )
