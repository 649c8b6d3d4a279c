"""`Call`: the arguments of one update of one metric, which a wrapper may change."""

from dataclasses import dataclass, field, replace

import jax
import numpy as np
from jax.core import Tracer

from datarax._typing import ArrayLike, PyTree
from datarax._xp import xp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments of `update` for one metric that is not a wrapper: a pytree of arrays."""

    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    metric: str = field(metadata={"static": True})
    """The name of the class of the metric."""
    takes: tuple[str, ...] = field(metadata={"static": True})
    """The names of the arguments of its `update`."""
    broadcast: tuple[str, ...] = field(metadata={"static": True})
    """The `broadcast_arguments` of the metric."""
    path: str = field(default="", metadata={"static": True})
    """The name of the metric in a collection."""
    rows: bool = field(default=True, metadata={"static": True})
    """True if the arrays share a leading axis of examples. If not, all devices get all of them, and
    the metric counts them once."""
    together: str | None = field(default=None, metadata={"static": True})
    """The integer argument that groups rows: all rows with one value must be in one update."""
    numbered_by: str | None = field(default=None, metadata={"static": True})
    """The `numbered_by` of the metric."""

    @property
    def by_name(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments, all by name if the names of all positional ones are known."""
        # An `update` with `*args` has no names for all of them.
        if len(self.args) > len(self.takes):
            return self.args, self.kwargs
        return (), dict(zip(self.takes, self.args, strict=False)) | self.kwargs

    @property
    def grouped(self) -> bool:
        """True if the argument `together` is given, so that terms are of groups of rows."""
        return self.by_name[1].get(self.together or "") is not None

    @property
    def unweighted(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments as `by_name` has them, without the weights."""
        args, kwargs = self.by_name
        return args, {name: x for name, x in kwargs.items() if name != "weights"}


def is_call(x: object) -> bool:
    """True if `x` is a `Call`, for `is_leaf` of the functions of `jax.tree`."""
    return isinstance(x, Call)


def with_argument(calls: PyTree, name: str, value: PyTree) -> PyTree:
    """A tree of `Call`s, each with one more argument: of each row, or one for all."""

    def one(call: Call) -> Call:
        args, kwargs = call.by_name
        # Like one of the `broadcast_arguments`, it may be one value for all rows.
        broadcast = (*call.broadcast, name)
        return replace(call, args=args, kwargs=kwargs | {name: value}, broadcast=broadcast)

    return jax.tree.map(one, calls, is_leaf=is_call)


def with_number(calls: PyTree, number: ArrayLike) -> PyTree:
    """A tree of `Call`s, in which those that are numbered and have no number get this one."""

    def one(call: Call) -> Call:
        args, kwargs = call.by_name
        name = call.numbered_by
        if name is None or kwargs.get(name) is not None:
            return call
        return replace(call, args=args, kwargs=kwargs | {name: number})

    return jax.tree.map(one, calls, is_leaf=is_call)


def taken_from(calls: PyTree, name: str) -> tuple[PyTree, PyTree]:
    """Returns what `with_argument` added, None if nothing, and the calls without it."""

    def one(call: Call) -> Call:
        kwargs = {key: x for key, x in call.kwargs.items() if key != name}
        broadcast = tuple(key for key in call.broadcast if key != name)
        return replace(call, kwargs=kwargs, broadcast=broadcast)

    first = jax.tree.leaves(calls, is_leaf=is_call)[0]
    return first.kwargs.get(name), jax.tree.map(one, calls, is_leaf=is_call)


def with_empty_rows(arrays: PyTree, count: int) -> PyTree:
    """Arrays with rows of zeros after their own, which are to have the weight zero."""
    return jax.tree.map(
        lambda x: xp.pad(x, [(0, count)] + [(0, 0)] * (x.ndim - 1)) if count else x, arrays
    )


def is_numbers(x: object) -> bool:
    """True if `x` is a list of numbers or of such lists, which becomes an array."""
    return isinstance(x, list | tuple) and all(
        is_numbers(item) or isinstance(item, bool | int | float | np.generic) for item in x
    )


def split_over(call: Call, devices: int) -> int | None:
    """A value of the argument `together` that has rows on several devices; None if there is none.

    Also None if the values are not known on this process. Rows of weight zero do not count.
    """
    _, given = call.by_name
    values, weights = given.get(call.together or ""), given.get("weights")
    if values is None or not all(x is None or _is_known(x) for x in (values, weights)):
        return None
    values = np.asarray(values)
    some = np.ones(values.shape, bool) if weights is None else np.asarray(weights) != 0
    parts = zip(np.split(values, devices), np.split(some, devices), strict=True)
    # Each device has a value once, so a value that occurs twice is on several devices.
    each, counts = np.unique(
        np.concatenate([np.unique(x[used]) for x, used in parts]), return_counts=True
    )
    return int(each[counts > 1][0]) if (counts > 1).any() else None


def _is_known(x: ArrayLike) -> bool:
    # Values that are traced, on other processes or donated cannot be read.
    return not isinstance(x, jax.Array) or (
        not isinstance(x, Tracer) and x.is_fully_addressable and not x.is_deleted()
    )
