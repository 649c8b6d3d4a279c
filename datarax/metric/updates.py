"""The door of an update: what happens between a call of `update` and the method as it is written.

`Metric.__init_subclass__` puts `updating` around the `update` of each class. A call then goes

1. on NumPy arrays and numbers, to the method as it is written, which runs in NumPy;
2. of other arguments, through `_updated`, which decides where they are: on the host or on one CPU
   device (fetched, then as above); traced (`folded_in_program` in `algebra/devices.py`, where
   a replicated state counts once); or on an accelerator or several devices: `_on_devices`, which
   compiles a program for the configuration and the form of the arguments, `_Program`;
3. on an error, through `_explain`: which arguments there are, and what their leading axes are.

The method of a metric calls the `update` of its statistics. These are wrapped by `folding` of
`algebra/devices.py`, for those who call them alone, and because they may be given constants.
"""

from collections.abc import Callable
from functools import lru_cache, wraps

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import refuse_wide, x64_enabled
from datarax._errors import DataraxError, MetricInputError
from datarax._typing import PyTree
from datarax._xp import NEEDS_VALUES, any_traced, fetched, is_in_program, is_near, on_host, xp
from datarax.algebra.devices import folded, folded_in_program, refuse_result
from datarax.algebra.leading_axes import refuse_leading_axes
from datarax.algebra.pytrees import MeshNode
from datarax.algebra.saving import require_arrays
from datarax.algebra.state import walk
from datarax.distributed.placement import device_sets, outside_mesh, unreduced_axes
from datarax.metric.arguments import (
    is_numbers,
    named_arguments,
    refuse_unknown_arguments,
    update_signature,
)

Update = Callable[..., PyTree]
Leaves = list[PyTree]
Args = tuple[PyTree, ...]
Kwargs = dict[str, PyTree]

# Types, looked up in each update, which takes less time than `isinstance`. What is not here, an
# `np.int64` for example, only takes the longer way to the same result.
_ARRAYS = {np.ndarray, np.float32, np.float64, bool, int, float, type(None)}


def updating(method: Update) -> Update:
    """Wraps the `update` of a metric: it runs where the state and the arguments are.

    - Within a traced function, as it is written, on `jax.numpy`: also what is a constant there.
    - On arrays of NumPy, of Python or of one CPU device, as it is written, in NumPy: nothing is
      compiled.
    - With an array on an accelerator or on several devices, as one compiled program. If an argument
      is no array, a string for example, the metric's `calls` may make arrays of it; then the rest
      of the update is compiled. If it needs the values of its arguments, as `if x > 0` does, it
      runs as it is written.
    """

    # NumPy would warn of NaN, infinities and overflow, of which JAX says nothing. What matters of
    # them is counted, and told at the reading.
    quiet: Update = np.errstate(all="ignore")(method)

    @wraps(method)
    def update(self: PyTree, *args: object, **kwargs: object) -> PyTree:
        try:
            # Of NumPy arrays and numbers, what `_updated` does comes to the same.
            plain = _ARRAYS.issuperset(map(type, (*args, *kwargs.values())))
            if plain and self.is_on_host and not isinstance(self, MeshNode):
                new = quiet(self, *args, **kwargs)
            else:
                new = _updated(quiet, self, args, kwargs)
        except Exception as error:
            _explain(error, self, args, kwargs)
            raise
        if not isinstance(new, type(self)):
            refuse_result(self, "update", new)
        return new

    return update


def _updated(update: Update, metric: PyTree, args: Args, kwargs: Kwargs) -> PyTree:
    """The metric after its `update`, which runs where the data is."""
    # First, because a program of several devices may crash on deleted arrays.
    require_arrays(metric)
    if isinstance(metric, MeshNode):
        _refuse_unreduced(metric, args, kwargs)
        return outside_mesh(folded)(update, metric, args, kwargs)
    args, kwargs = _with_arrays(args, kwargs)
    leaves = jax.tree.leaves((metric, args, kwargs))
    if on_host(*leaves):
        return update(metric, *args, **kwargs)
    _refuse_unreduced(metric, args, kwargs)
    if any_traced(leaves):
        if not is_in_program():  # within `vmap` or `grad` alone, where `numeric` cannot know
            refuse_wide(_by_name(metric, args, kwargs))
        return folded_in_program(update, metric, (args, kwargs), leaves)
    if is_near(leaves):
        metric, args, kwargs = fetched((metric, args, kwargs))
        return update(metric, *args, **kwargs)
    return _on_devices(update, metric, args, kwargs)


@outside_mesh
def _on_devices(update: Update, metric: PyTree, args: Args, kwargs: Kwargs) -> PyTree:
    """As `_updated`, with an array on an accelerator or on several devices."""
    static = jax.tree.structure(metric)
    leaves, structure = jax.tree.flatten((args, kwargs))
    if all(map(_is_known, leaves)):
        return _program(update, static, structure)(metric, leaves, args, kwargs)
    # An argument is no array, a list of strings for example: `calls` may make arrays of it.
    calls = metric.calls(args, kwargs)
    leaves, structure = jax.tree.flatten(((calls,), {}))
    if all(map(_is_known, leaves)):
        return _program(_applied, static, structure)(metric, leaves, (calls,), {})
    refuse_wide(_by_name(metric, args, kwargs))
    return folded(update, metric, args, kwargs)


def _applied(metric: PyTree, calls: PyTree) -> PyTree:
    """The update after its `calls`."""
    return metric.apply(calls)


def _explain(error: Exception, metric: PyTree, args: Args, kwargs: Kwargs) -> None:
    """Raises an error that says more than one of NumPy or JAX, if there is one.

    Raises:
        MetricTypeError: `update` takes no such arguments.
        MetricInputError: the arrays of the metric have leading axes, as out of `vmap`.
    """
    if isinstance(error, TypeError):
        refuse_unknown_arguments(metric, args, kwargs)
    # NumPy and JAX only say that shapes differ. Before each update it would take time; where the
    # update fits by chance, the reading raises.
    if not isinstance(error, DataraxError):
        refuse_leading_axes(metric)


class _Program:
    """The compiled program for one configuration and one structure of the arguments."""

    def __init__(self, update: Update, metric: PyTree, structure: PyTree):
        self.update = update
        # A `per_device` metric puts batches on its mesh, which a program cannot.
        self.as_written = any(isinstance(each, MeshNode) for each in walk(metric))

        def updated(metric: PyTree, leaves: Leaves) -> PyTree:
            return folded(update, metric, *structure.unflatten(leaves))

        self.program = jax.jit(updated)

    def __call__(self, metric: PyTree, leaves: Leaves, args: Args, kwargs: Kwargs) -> PyTree:
        if not self.as_written:
            try:
                return self.program(metric, leaves)
            # Remembered, so that only the first update of this form is traced in vain.
            except NEEDS_VALUES:
                self.as_written = True
            except ValueError as error:
                # JAX raises a ValueError for arrays on two sets of devices. Any other one is of the
                # update.
                is_one_set = len(device_sets(jax.tree.leaves((metric, leaves)))) < 2
                if isinstance(error, DataraxError) or is_one_set:
                    raise
                if not metric.delegates:
                    _refuse_two_meshes(metric, args, kwargs)
                # Each metric is updated where its own arrays are.
        return folded(self.update, metric, args, kwargs)


def _refuse_two_meshes(metric: PyTree, args: Args, kwargs: Kwargs) -> None:
    """Raises the error of an update with arrays of several meshes, which no program takes."""
    name, given = type(metric).__name__, _by_name(metric, args, kwargs)
    places = [
        f"{about} on the devices {sorted(device.id for device in group)}"
        for about, tree in (("its state", metric), *given.items())
        for group in device_sets(jax.tree.leaves(tree))
    ]
    raise MetricInputError(
        f"{name}.update: the arrays are on different devices: {'; '.join(dict.fromkeys(places))}. "
        f"An update needs them on the same: move them with jax.device_put; or make one {name} for "
        f"each mesh, and merge the two"
    ) from None


@lru_cache(maxsize=1024)
def _program(update: Update, metric: PyTree, arguments: PyTree) -> _Program:
    # Of the metric, the structure is enough, because it has the configuration.
    return _Program(update, metric.unflatten([None] * metric.num_leaves), arguments)


def _refuse_unreduced(metric: PyTree, args: Args, kwargs: Kwargs) -> None:
    """Raises if an argument is a sum over devices that is not added up yet.

    Raises:
        MetricInputError: says how to add it up.
    """
    if not any(map(unreduced_axes, jax.tree.leaves((args, kwargs)))):
        return
    for name, given in _by_name(metric, args, kwargs).items():
        for axes in filter(None, map(unreduced_axes, jax.tree.leaves(given))):
            raise MetricInputError(
                f"{type(metric).__name__}.update: {name} is unreduced over the mesh axes "
                f"{', '.join(axes)}: each device holds a part of a sum. Add the parts up first, "
                f"with jax.sharding.reshard(..., jax.P())"
            )


def _by_name(metric: PyTree, args: Args, kwargs: Kwargs) -> Kwargs:
    return named_arguments(update_signature(metric), args, kwargs)


def _with_arrays(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments, with lists of numbers as arrays."""

    def array(x: object) -> PyTree:
        if not isinstance(x, list | tuple):  # those that are leaves are numbers
            return x
        try:
            return np.asarray(x)
        except ValueError:  # lists of different lengths: the update raises
            return x

    def arrays(x: object) -> PyTree:
        return jax.tree.map(array, x, is_leaf=is_numbers)

    return tuple(map(arrays, args)), {name: arrays(x) for name, x in kwargs.items()}


def _is_known(x: object) -> bool:
    """True if `x` is an array or a number outside `jit` that JAX represents."""
    if isinstance(x, jax.Array):
        return not isinstance(x, Tracer)
    if isinstance(x, float | bool):
        return True
    if isinstance(x, int):
        return -(2**31) <= x < 2**31
    if not isinstance(x, np.ndarray | np.generic):
        return False
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8 and not x64_enabled():
        narrow = np.int32 if x.dtype.kind == "i" else np.uint32
        return bool((x.astype(narrow) == x).all())  # else the update raises, and names it
    return xp.issubdtype(x.dtype, xp.number) or x.dtype == np.bool_
