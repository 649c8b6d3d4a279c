"""Updates outside `jit`: each runs as one compiled program."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import x64_enabled
from datarax._errors import TracedValueError
from datarax._typing import PyTree
from datarax.distributed.placement import outside_mesh
from datarax.metrics.call import Call, is_call, is_numbers
from datarax.metrics.routing import naming
from datarax.statistics.argument_checks import ArgumentCheck, kept, recording
from datarax.statistics.donated import refuse_donated
from datarax.statistics.traversal import walk

# What a program raises when it is traced if it needs the values of its arguments.
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    TracedValueError,
)

_rows: ContextVar[int | None] = ContextVar("_rows", default=None)


@contextmanager
def padded_to(rows: int) -> Iterator[None]:
    """Pads the batches of all updates in the block to `rows` rows, whatever came before.

    So the arithmetic of an update depends on its batch alone, not on the sizes of earlier ones.
    """
    token = _rows.set(rows)
    try:
        yield
    finally:
        _rows.reset(token)


def compiled(update: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the `update` of a metric: with concrete arguments it runs as one compiled program.

    Within a traced function it runs as it is written; also if it needs the values of its arguments,
    as `if x > 0` does. If an argument is not an array or a number, a string for example, the
    metric's `calls` may make arrays of it; then the rest of the update is compiled. Otherwise it
    runs as it is written, too.

    A batch with another number of rows would be another program. So it is padded with rows of
    weight zero up to the size of an earlier batch, if every metric of datarax in it takes weights.
    """

    @outside_mesh
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        state, metric = jax.tree.flatten(self)
        leaves, structure = jax.tree.flatten(_with_arrays(args, kwargs))
        traced = any(isinstance(x, Tracer) for x in (*state, *leaves))
        if traced or getattr(self, "owns_mesh", False):
            return update(self, *args, **kwargs)
        if all(map(_is_known, leaves)):
            return _program(update, metric, structure)(self, leaves, args, kwargs)
        calls = self.calls(args, kwargs)
        leaves, structure = jax.tree.flatten(((calls,), {}))
        if all(map(_is_known, leaves)):
            return _program(_applied, metric, structure)(self, leaves, (calls,), {})
        return update(self, *args, **kwargs)

    @wraps(update)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_donated(self)
        try:
            return run(self, *args, **kwargs)
        except TypeError:
            self.refuse_unknown_arguments(args, kwargs)
            raise

    return checked


def _applied(metric: Any, calls: PyTree) -> Any:
    """The update after its `calls`."""
    return metric.apply(calls)


class _Program:
    """The compiled programs for one configuration and one structure of the arguments."""

    def __init__(self, update: Callable[..., Any], metric: Any, structure: Any):
        self.update, self.structure = update, structure
        states = list(walk(metric))
        # Of other metrics it is not known whether rows of weight zero change nothing.
        self.pads = all(
            type(each).__module__.startswith("datarax.") and getattr(each, "keeps_rows", True)
            for each in states
        )
        # A `per_device` metric puts batches on its mesh, which a program cannot.
        self.as_written = any(getattr(each, "owns_mesh", False) for each in states)
        self.checks: dict[ArgumentCheck, None] = {}
        # For each shape of the rows, the numbers of rows with a program: as given, and padded.
        self.sizes: dict[Any, tuple[set[int], set[int]]] = {}

        def updated(metric: Any, leaves: list[Any]) -> Any:
            with recording(leaves, self.checks):
                args, kwargs = structure.unflatten(leaves)
                return update(metric, *args, **kwargs)

        self.exact = jax.jit(updated)
        self.padded = jax.jit(lambda metric, calls: metric.apply(calls))

    def __call__(self, metric: Any, leaves: list[Any], args: Any, kwargs: Any) -> Any:
        if self.as_written:
            return self.update(metric, *args, **kwargs)
        rows = {x.shape[0] for x in leaves if np.ndim(x)}
        exact, padded = self.sizes.setdefault(tuple(map(_row, leaves)), (set(), set()))
        fixed = _rows.get()
        other = not rows <= exact if fixed is None else rows != {fixed}
        if len(rows) == 1 and (exact or fixed) and other and self.pads:
            (size,) = rows
            args, kwargs = self.structure.unflatten(leaves)
            calls = args[0] if self.update is _applied else metric.calls(args, kwargs)
            if _can_pad(calls):
                if not exact and not padded and kept() != "none":
                    # A padded program records no checks: its arrays are not the arguments.
                    with suppress(*_NEEDS_VALUES):
                        jax.eval_shape(self.exact, metric, leaves)
                wanted = _padded_size(size, {fixed} if fixed else exact | padded)
                padded.add(wanted)
                calls = _padded(calls, size, wanted)
                return self._checked(self.padded(metric, calls), leaves)
        try:
            result = self.exact(metric, leaves)
        except _NEEDS_VALUES:
            self.as_written = True
            return self.update(metric, *args, **kwargs)
        if len(rows) == 1:
            exact |= rows
        return self._checked(result, leaves)

    def _checked(self, result: Any, leaves: list[Any]) -> Any:
        # Shapes and dtypes were checked when the program was traced. Nothing waits for the result.
        for check, places, config, name in self.checks if kept() != "none" else ():
            with naming(name):
                check(*(None if i is None else leaves[i] for i in places), *config)
        return result


@lru_cache(maxsize=1024)
def _program(update: Callable[..., Any], metric: Any, arguments: Any) -> _Program:
    # Of the metric, the structure is enough, because it has the configuration.
    return _Program(update, metric.unflatten([None] * metric.num_leaves), arguments)


def _padded_size(size: int, sizes: set[int]) -> int:
    """The number of rows to which a batch is padded: one for which there is a program, if any."""
    return min((each for each in sizes if each >= size), default=1 << (size - 1).bit_length())


def _can_pad(calls: PyTree) -> bool:
    """Whether all metrics take weights, and all arrays are on one device."""
    each = jax.tree.leaves(calls, is_leaf=is_call)
    arrays = (x for x in jax.tree.leaves(calls) if isinstance(x, jax.Array))
    return all("weights" in call.takes for call in each) and all(
        len(x.sharding.device_set) == 1 for x in arrays
    )


def _padded(calls: PyTree, size: int, wanted: int) -> PyTree:
    """The calls of an update of `size` rows, with rows of weight zero added."""

    def pad(x: Any) -> Any:
        # With NumPy, because each shape would be another program.
        return np.pad(x, [(0, wanted - size)] + [(0, 0)] * (np.ndim(x) - 1)) if np.ndim(x) else x

    def padded(call: Call) -> Call:
        args, kwargs = call.by_name
        if not any(map(np.ndim, jax.tree.leaves((args, kwargs)))):
            return call  # of one value for the batch, such as its mean loss: it has no rows
        weights = kwargs.get("weights")
        weights = np.ones(size, np.bool_) if weights is None else np.asarray(weights)
        if not weights.ndim:
            weights = np.broadcast_to(weights, size)
        args, kwargs = jax.tree.map(pad, (args, kwargs | {"weights": weights}))
        return replace(call, args=args, kwargs=kwargs)

    return jax.tree.map(padded, calls, is_leaf=is_call)


def _row(x: Any) -> Any:
    """What the rows of an argument have in common: shape and dtype."""
    return np.shape(x)[1:], getattr(x, "dtype", type(x))


def _with_arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments, with lists of numbers as arrays."""

    def array(x: Any) -> Any:
        if not is_numbers(x):
            return x
        try:
            return np.asarray(x)
        except ValueError:  # lists of different lengths: the update raises
            return x

    def arrays(x: Any) -> Any:
        return jax.tree.map(array, x, is_leaf=is_numbers)

    return tuple(map(arrays, args)), {name: arrays(x) for name, x in kwargs.items()}


def _is_known(x: Any) -> bool:
    """Whether `x` is an array or a number outside `jit` that JAX represents."""
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
    return jnp.issubdtype(x.dtype, jnp.number) or x.dtype == np.bool_
