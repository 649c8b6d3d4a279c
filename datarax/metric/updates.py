"""Updates outside `jit`: on the host, or where the data is as one compiled program."""

from collections.abc import Callable
from functools import lru_cache, wraps

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import refuse_wide, x64_enabled
from datarax._errors import DataraxError, MetricInputError
from datarax._typing import PyTree
from datarax._xp import NEEDS_VALUES, fetched, is_in_program, is_near, is_traced, on_host, xp
from datarax.algebra.held_arrays import require_arrays
from datarax.algebra.replication import folding, refuse_result
from datarax.algebra.state import refuse_leading_axes, walk
from datarax.distributed.placement import device_sets, outside_mesh, unreduced_axes
from datarax.metric.arguments import is_numbers, named_arguments

Update = Callable[..., PyTree]
Leaves = list[PyTree]
Args = tuple[PyTree, ...]
Kwargs = dict[str, PyTree]

_ARRAYS = {np.ndarray, np.float32, np.float64, bool, int, float, type(None)}


def compiled(update: Update) -> Update:
    """Wraps the `update` of a metric: it runs where the state and the arguments are.

    - Within a traced function, as it is written, on `jax.numpy`: also what is a constant there.
    - On arrays of NumPy, of Python or of one CPU device, as it is written, in NumPy: nothing is
      compiled.
    - With an array on an accelerator or on several devices, as one compiled program. If an argument
      is no array, a string for example, the metric's `calls` may make arrays of it; then the rest
      of the update is compiled. If it needs the values of its arguments, as `if x > 0` does, it
      runs as it is written.
    """

    on_numpy: Update = np.errstate(all="ignore")(update)  # `folding` of arrays of the host
    update = folding(update)

    @outside_mesh
    def on_devices(
        self: PyTree, leaves: Leaves, structure: PyTree, args: Args, kwargs: Kwargs
    ) -> PyTree:
        metric = jax.tree.structure(self)
        if all(map(_is_known, leaves)):
            return _program(update, metric, structure)(self, leaves, args, kwargs)
        calls = self.calls(args, kwargs)
        leaves, structure = jax.tree.flatten(((calls,), {}))
        if all(map(_is_known, leaves)):
            return _program(_applied, metric, structure)(self, leaves, (calls,), {})
        refuse_wide(_by_name(self, args, kwargs))
        return update(self, *args, **kwargs)

    def run(self: PyTree, *args: object, **kwargs: object) -> PyTree:
        require_arrays(self)
        if type(self).owns_mesh:
            _refuse_unreduced(self, args, kwargs)
            return outside_mesh(update)(self, *args, **kwargs)
        state = jax.tree.leaves(self)
        leaves, structure = jax.tree.flatten(_with_arrays(args, kwargs))
        if on_host(*state, *leaves):
            args, kwargs = structure.unflatten(leaves)
            return update(self, *args, **kwargs)
        _refuse_unreduced(self, args, kwargs)
        if is_traced((state, leaves)):
            if not is_in_program():  # within `vmap` or `grad` alone, where `numeric` cannot know
                refuse_wide(_by_name(self, args, kwargs))
            return update(self, *args, **kwargs)
        if not is_near((*state, *leaves)):
            return on_devices(self, leaves, structure, args, kwargs)
        args, kwargs = structure.unflatten(fetched(leaves))
        return update(fetched(self), *args, **kwargs)

    @wraps(update)
    def checked(self: PyTree, *args: object, **kwargs: object) -> PyTree:
        try:
            # Of NumPy arrays and numbers, what `run` does comes to the same.
            plain = _ARRAYS.issuperset(map(type, (*args, *kwargs.values())))
            if plain and self.is_on_host and not self.owns_mesh:
                new = on_numpy(self, *args, **kwargs)
                if isinstance(new, type(self)):
                    return new
                refuse_result(self, "update", new)
            return run(self, *args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                self.refuse_unknown_arguments(args, kwargs)
            # NumPy and JAX only say that shapes differ. Before each update it would take time;
            # where the update fits by chance, the reading raises.
            if not isinstance(error, DataraxError):
                refuse_leading_axes(self)
            raise

    return checked


def _applied(metric: PyTree, calls: PyTree) -> PyTree:
    """The update after its `calls`."""
    return metric.apply(calls)


class _Program:
    """The compiled program for one configuration and one structure of the arguments."""

    def __init__(self, update: Update, metric: PyTree, structure: PyTree):
        self.update = update
        # A `per_device` metric puts batches on its mesh, which a program cannot.
        self.as_written = any(each.owns_mesh for each in walk(metric))

        def updated(metric: PyTree, leaves: Leaves) -> PyTree:
            args, kwargs = structure.unflatten(leaves)
            return update(metric, *args, **kwargs)

        self.program = jax.jit(updated)

    def __call__(self, metric: PyTree, leaves: Leaves, args: Args, kwargs: Kwargs) -> PyTree:
        if self.as_written:
            return self.update(metric, *args, **kwargs)
        try:
            return self.program(metric, leaves)
        except NEEDS_VALUES:
            self.as_written = True
            return self.update(metric, *args, **kwargs)
        except ValueError as error:
            is_one_set = len(device_sets(jax.tree.leaves((metric, leaves)))) < 2
            if isinstance(error, DataraxError) or is_one_set:
                raise
            if not metric.delegates:
                _refuse_two_meshes(metric, args, kwargs)
            return self.update(metric, *args, **kwargs)  # each metric where its own arrays are


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
    return named_arguments(metric.update_signature(), args, kwargs)


def _with_arrays(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments, with lists of numbers as arrays."""

    def array(x: object) -> PyTree:
        if not is_numbers(x):
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
