"""`xp`, `lax` and `special`: functions of NumPy and JAX, which run where their arguments are.

A formula is written once. Given NumPy arrays and Python numbers, it runs in NumPy, at once; given
JAX arrays, traced ones too, it runs in `jax.numpy`. One JAX array among the arguments is enough, so
constants may be NumPy arrays everywhere. This is not `array_namespace` of the Python array API,
which refuses NumPy arrays beside traced ones: see `docs/maintainers/what-is-compiled.md`.

What NumPy does in another way is in `_numpy_functions`; scatters are here: `at(x)[index].add(y)`
instead of `x.at[index].add(y)`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partialmethod, wraps
from importlib import import_module
from itertools import repeat
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import SingleDeviceSharding
from jax.typing import DTypeLike

from datarax._errors import TracedValueError
from datarax._numpy_functions import LAX, NUMPY, Host, zeros_of_one
from datarax._typing import ArrayLike, PyTree

R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., object])
NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
    TracedValueError,
)
"""What a function raises when it is traced if it needs the values of its arguments."""
Index = PyTree
"""An index of an array: an integer, a slice, `...`, an array of integers, or a tuple of these."""

# Types of what neither is a JAX array nor a pytree that may hold some, and types of JAX arrays. A
# dispatch looks each argument up; a type is added when it is first seen.
_HOST: set[type] = {np.ndarray, int, float, bool, type(None)}
_DEVICE: set[type] = set()


def on_host(*values: object) -> bool:
    """True if no argument is, or as a pytree holds, a JAX array."""
    for x in values:
        if (cls := type(x)) not in _HOST and (cls in _DEVICE or not _is_on_host(x)):
            return False
    return True


def _is_on_host(x: object) -> bool:
    """`on_host` of an object whose type is neither in `_HOST` nor in `_DEVICE`."""
    cls = type(x)
    if cls is tuple or cls is list:  # of axes, or of arrays
        return on_host(*x)  # type: ignore[misc]
    if cls is dict:
        return on_host(*x.values())  # type: ignore[attr-defined]
    if hasattr(cls, "is_on_host"):  # a state, for example, knows it
        return x.is_on_host  # type: ignore[attr-defined]
    if isinstance(x, tuple | list):
        parts: Iterable[object] = x
    elif issubclass(cls, jax.Array | Tracer | jax.ShapeDtypeStruct):
        _DEVICE.add(cls)
        return False
    elif jax.tree_util.all_leaves([x]):
        _HOST.add(cls)
        return True
    else:
        parts = jax.tree.leaves(x)
    return on_host(*parts)


def all_finite(x: Host | jax.Array) -> bool:
    """True if it is known that an array holds no NaN and no infinity: only of NumPy arrays."""
    if (cls := type(x)) not in _HOST and (cls in _DEVICE or not _is_on_host(x)):
        return False
    return bool(np.logical_and.reduce(np.isfinite(x), None))  # faster than `all` of NumPy


def none_true(*masks: Host | jax.Array) -> bool:
    """True if it is known that all elements of masks, or numbers, are False: only of NumPy arrays.

    So a formula leaves out what nothing needs. Of arrays in a program, nobody knows.
    """
    for mask in masks:
        if (cls := type(mask)) not in _HOST and (cls in _DEVICE or not _is_on_host(mask)):
            return False
        if mask if cls is np.bool_ else np.count_nonzero(mask):
            return False
    return True


BLOCK = 2**15
"""The number of elements of several arrays that fit in the cache of a processor."""


def by_blocks(function: Callable[..., R], axes: int, *arrays: PyTree) -> R:
    """`function(*arrays)`, where each element of the first `axes` axes is computed by itself.

    On the host, large arrays are computed in blocks, whose temporary arrays stay in the cache.
    """
    if max(x.size for x in arrays) <= BLOCK or not on_host(*arrays):
        return function(*arrays)
    shape = arrays[0].shape[:axes]
    flat = [x.reshape(-1, *x.shape[axes:]) for x in arrays]
    rows = len(flat[0])
    step = max(1, BLOCK * rows // max(x.size for x in arrays))
    parts = [function(*(x[i : i + step] for x in flat)) for i in range(0, rows, step)]
    return jax.tree.map(lambda *x: np.concatenate(x).reshape(shape + x[0].shape[1:]), *parts)


def blocks_of_rows(*arrays: PyTree, elements: int = BLOCK) -> Iterator[Sequence[PyTree]]:
    """Arrays of the host, or None, in blocks of rows that stay in the cache of a processor.

    Other arrays, and arrays of different numbers of rows, are one block.
    """
    given = [x for x in arrays if x is not None]

    def rows_of(x: PyTree) -> int | None:
        shape = getattr(x, "shape", ())  # a number of Python, or a list, has none
        # `on_host` last: mostly, they are arrays of NumPy.
        return shape[0] if shape and (type(x) is np.ndarray or on_host(x)) else None

    sizes = {rows_of(x) for x in given}
    rows = sizes.pop()
    if sizes or not rows or (size := math.prod(given[0].shape)) <= elements:
        yield arrays
        return
    step = max(1, elements * rows // size)
    for i in range(0, rows, step):
        yield [None if x is None else x[i : i + step] for x in arrays]


def when_known(function: Callable[..., R], *arrays: PyTree) -> R | None:
    """`function(*arrays)` of values that are known: of NumPy arrays. None in a program.

    For what is only said of a result, and for work that some values do not need.
    """
    return function(*arrays) if on_host(*arrays) else None


def replaced(mask: Host | jax.Array, x: jax.Array, other: PyTree) -> jax.Array:
    """`xp.where(mask, x, other)` of the shape and dtype of `x`.

    It is not to be kept, nor written to: it may be `x` itself, without a copy.
    """
    if on_host(mask, x) and np.count_nonzero(mask) == mask.size:  # mostly, all rows can be used
        return x
    return xp.where(mask, x, other)


def computed_where(
    mask: Host | jax.Array, function: Callable[..., PyTree], other: PyTree, *arrays: PyTree
) -> PyTree:
    """`xp.where(mask, function(*arrays), other)`, of a function of each element by itself.

    The mask has the shape of the result. On the host it is computed only where it is chosen.
    """
    if on_host(mask, other, *arrays):
        places = np.flatnonzero(mask)
        if 2 * places.size < mask.size:
            others, *given = np.broadcast_arrays(other, *arrays)
            found = np.array(others)
            found.reshape(-1)[places] = function(*(x.reshape(-1).take(places) for x in given))
            return found
    return xp.where(mask, function(*arrays), other)


def is_traced(tree: PyTree) -> bool:
    """True if any array of a pytree is traced."""
    return not on_host(tree) and any_traced(jax.tree.leaves(tree))


def any_traced(leaves: Iterable[object]) -> bool:
    """True if any of these leaves of a pytree is traced."""
    # Each update asks, so no generator, which would be a call for each leaf.
    return any(map(isinstance, leaves, repeat(Tracer)))


def is_in_program() -> bool:
    """True within a function that JAX traces into a program."""
    return isinstance(jax.numpy.zeros(()), Tracer)  # it gives a tracer exactly there


def is_addressable(x: object) -> bool:
    """True if this process can read the whole array."""
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def fetched(tree: PyTree) -> PyTree:
    """A pytree with NumPy arrays in place of JAX arrays; one transfer for all.

    Of an array that all processes hold, the copy of this process.
    """
    if on_host(tree):
        return tree
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

    def here(x: jax.Array) -> jax.Array:
        return x if is_addressable(x) or not x.is_fully_replicated else x.addressable_data(0)

    for i, x in zip(places, jax.device_get([here(leaves[i]) for i in places]), strict=True):
        leaves[i] = x
    return structure.unflatten(leaves)


def as_in_program(tree: PyTree, *, staged: bool = True) -> PyTree:
    """A pytree with the arrays and numbers of NumPy and Python as they are beside traced arrays.

    They become JAX arrays, in the dtypes that a program has: no float64, unless x64 is enabled.
    Integers that these do not hold stay as they are, so that checks of arguments name them.

    Args:
        tree: the pytree.
        staged: False to make no JAX arrays, but only round the floats of NumPy: `jax.numpy` rounds
            them too, but not within a block with 64-bit types.
    """

    def rounded(x: PyTree) -> PyTree:
        is_wide = isinstance(x, np.ndarray | np.floating) and x.dtype == np.float64
        return x.astype(jax.dtypes.canonicalize_dtype(np.float64)) if is_wide else x

    def array(x: PyTree) -> PyTree:
        if not is_constant(x):
            return x
        given = np.asarray(x)
        narrow = given.astype(jax.dtypes.canonicalize_dtype(given.dtype))
        if given.dtype.kind in "iu" and not (narrow == given).all():
            return x
        return jax.numpy.asarray(narrow)

    with np.errstate(over="ignore"):
        return jax.tree.map(array if staged else rounded, tree)


def has_constants(leaves: Sequence[object]) -> bool:
    """True if any leaf `is_constant`."""
    # Mostly, all are traced.
    return not _DEVICE.issuperset(map(type, leaves)) and any(map(is_constant, leaves))


def is_constant(x: object) -> bool:
    """True for a number, and for an array of NumPy, of a dtype that JAX has."""
    if not isinstance(x, np.ndarray | np.generic):
        return isinstance(x, bool | int | float) and abs(x) < 2**63
    number = x.dtype == np.bool_ or jax.numpy.issubdtype(x.dtype, np.number)
    is_masked = isinstance(x, np.ma.MaskedArray)
    return number and not is_masked and x.dtype.isnative and x.dtype.itemsize <= 8


def is_near(values: Iterable[object]) -> bool:
    """True if no value is a JAX array off this process's single CPU device."""
    return all(not isinstance(x, jax.Array) or _is_on_one_cpu(x) for x in values)


def _is_on_one_cpu(x: jax.Array) -> bool:
    # An array on a mesh of one device stays there, as on a mesh of several.
    if not isinstance(x.sharding, SingleDeviceSharding) or not x.is_fully_addressable:
        return False
    return next(iter(x.sharding.device_set)).platform == "cpu"


def compiled(*static: str) -> Callable[[Function], Function]:
    """Wraps a function so that it is compiled for JAX arrays; it runs at once in NumPy.

    Args:
        *static: the names of the arguments that are no arrays.
    """

    def wrap(function: Function) -> Function:
        program = jax.jit(function, static_argnames=static)

        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            run = function if on_host(*args, *kwargs.values()) else program
            return run(*args, **kwargs)

        return call  # type: ignore[return-value]

    return wrap


def faster_in_numpy(
    in_numpy: Callable[..., object],
    *,
    looks_at: Callable[..., tuple[object, ...]] | None = None,
    x64: bool = True,
) -> Callable[[Function], Function]:
    """Wraps a function that has a twin: of NumPy arrays alone, the twin runs in its place.

    Most formulas need none, because `xp` runs in NumPy too. A twin is for an algorithm that is good
    for a compiler and slow in NumPy: a reduction of many operands, a comparison of all pairs. The
    comment at its use says by how much.

    Args:
        in_numpy: the twin. It takes the same arguments, and comes to the same.
        looks_at: returns, of the arguments, the arrays that tell for all of them where they are.
            Without it, each array of each argument is looked at.
        x64: False if the twin saves nothing where programs have float64.
    """

    def wrap(function: Function) -> Function:
        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            arrays = looks_at(*args, **kwargs) if looks_at else (*args, *kwargs.values())
            if on_host(*arrays) and (x64 or not jax.config.jax_enable_x64):  # type: ignore[attr-defined]
                return in_numpy(*args, **kwargs)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return wrap


def read_on_host(method: Function) -> Function:
    """Wraps a method, or a function, of a state: outside `jit` it gets the state on the host."""

    quiet = np.errstate(all="ignore")(method)

    @wraps(method)
    def read(state: PyTree, *args: object, **kwargs: object) -> object:
        if on_host(state):
            return quiet(state, *args, **kwargs)
        if is_traced(state):
            return method(state, *args, **kwargs)
        return quiet(fetched(state), *args, **kwargs)

    return read  # type: ignore[return-value]


class _Either:
    """The functions of two modules under the names of both, each dispatched on its arguments."""

    def __init__(self, host: str, device: str, own: dict[str, Callable[..., PyTree]]):
        self._host, self._device, self._own = host, device, own

    def __getattr__(self, name: str) -> PyTree:
        # The modules are imported when they are first used: SciPy takes a tenth of a second.
        device = getattr(import_module(self._device), name)
        host = self._own.get(name) or getattr(import_module(self._host), name, device)
        if name in _OF_DTYPES:
            found = lru_cache(maxsize=4096)(device)
        elif isinstance(host, type) or not callable(host):  # a dtype, or a constant
            found = host
        else:
            found = _either(host, device)
        setattr(self, name, found)
        return found


_OF_DTYPES = ("issubdtype", "finfo", "iinfo", "broadcast_shapes", "promote_types")
"""Functions of dtypes and shapes alone. Those of JAX know bfloat16. They are asked often."""


def _either(host: Callable[..., R], device: Callable[..., R]) -> Callable[..., R]:
    of_host, of_devices, is_on_host = _HOST, _DEVICE, _is_on_host

    def call(*args: object, **kwargs: object) -> R:
        # `on_host`, written out: this is called for each operation.
        for x in args:
            if (cls := type(x)) not in of_host and (cls in of_devices or not is_on_host(x)):
                return device(*args, **kwargs)
        if kwargs and not on_host(*kwargs.values()):
            return device(*args, **kwargs)
        return host(*args, **kwargs)

    call.__name__ = device.__name__
    return call


class _At:
    """`x.at` of JAX, for both: indices out of range are dropped."""

    def __init__(self, x: ArrayLike, index: Index = ()):
        self._x, self._index = x, index

    def __getitem__(self, index: Index) -> "_At":
        return _At(self._x, index)

    def _changed(self, what: str, y: ArrayLike, **how: str) -> PyTree:
        index = self._index if isinstance(self._index, tuple) else (self._index,)
        if not on_host(self._x, y, *index):
            return getattr(jax.numpy.asarray(self._x).at[self._index], what)(y, **how)
        x = np.asarray(self._x)
        scattered = _axes_of(index, x.ndim)
        # Indices out of range get a spare cell at the end of their axis, which is cut off.
        spare, safe = np.zeros((x.ndim, 2), int), list(index)
        for i, axis in scattered:
            each, n = np.asarray(index[i]), x.shape[axis]
            if each.size and (each.min() < 0 or each.max() >= n):
                each = each.astype(np.int64)
                each = np.where(each < 0, each + n, each)
                each = np.where((each < 0) | (each >= n), n, each)
                spare[axis, 1] = 1
            safe[i] = each
        is_padded, places = spare.any(), tuple(safe)
        padded = np.pad(x, spare) if is_padded else x.copy()
        if what == "set":
            padded[places] = y
        elif len(scattered) == len(index) - any(each is Ellipsis for each in index) and (
            scattered[-1:] == [(len(index) - 1, x.ndim - 1)]
        ):
            _scatter(_UFUNCS[what], padded, [safe[i] for i, _ in scattered], y)
        else:
            _UFUNCS[what].at(padded, places, y)
        return padded[tuple(slice(n) for n in x.shape)] if is_padded else padded

    set = partialmethod(_changed, "set")
    add = partialmethod(_changed, "add")
    max = partialmethod(_changed, "max")
    multiply = partialmethod(_changed, "multiply")


_UFUNCS = {"add": np.add, "max": np.maximum, "multiply": np.multiply}


def _scatter(ufunc: np.ufunc, x: Host, index: list[Host], y: ArrayLike) -> None:
    """`ufunc.at(x, (..., *index), y)` in place, in an eighth of the time if there are several.

    NumPy is fast where one flat array is indexed by one flat array.
    """
    axes = x.shape[x.ndim - len(index) :]
    places, leading = np.broadcast_arrays(*index), x.shape[: x.ndim - len(index)]
    tables = x.reshape(math.prod(leading), math.prod(axes))
    values = np.broadcast_to(y, (*leading, *places[0].shape))
    place = np.ravel_multi_index(places, axes).ravel()
    for table, each in zip(tables, values.reshape(len(tables), -1), strict=True):
        ufunc.at(table, place, each)


def _axes_of(index: tuple[Index, ...], ndim: int) -> list[tuple[int, int]]:
    """For each entry of an index that is an array: its place in the index, and its axis."""
    at = next((i for i, each in enumerate(index) if each is Ellipsis), len(index))
    return [
        (i, i if i < at else ndim - len(index) + i)
        for i, each in enumerate(index)
        if each is not Ellipsis and not isinstance(each, slice)
    ]


def at(x: ArrayLike) -> _At:
    """`x.at` of a NumPy or a JAX array: `at(x)[index].add(y)` is a new array."""
    return _At(x)


def taken_from_rows(x: jax.Array, order: jax.Array) -> jax.Array:
    """The elements of the rows of tables (..., m, n) at places (m, k) in each row: (..., m, k)."""
    if on_host(x, order):  # in a tenth of the time
        size, slots = x.shape[-2:]
        place = order + slots * np.arange(size)[:, None]
        return x.reshape(*x.shape[:-2], size * slots).take(place, -1)
    return xp.take_along_axis(x, xp.broadcast_to(order, (*x.shape[:-1], order.shape[-1])), -1)


def vmap(
    function: Callable[..., R], in_axes: int | tuple[int | None, ...] = 0, out_axes: int = 0
) -> Callable[..., R]:
    """`jax.vmap`; on the host a loop."""

    def call(*args: PyTree) -> R:
        if not on_host(*args):
            return jax.vmap(function, in_axes, out_axes)(*args)
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        mapped = {
            i: jax.tree.map(lambda leaf, axis=axis: np.moveaxis(leaf, axis, 0), x) if axis else x
            for i, (x, axis) in enumerate(zip(args, axes, strict=True))
            if axis is not None
        }
        leaves, structure = jax.tree.flatten(mapped)
        size = len(leaves[0])
        if size == 0:  # the result of one row of zeros says which arrays there are
            leaves = zeros_of_one(leaves)
        rows = (structure.unflatten(row) for row in zip(*leaves, strict=True))
        results = [function(*(row.get(i, x) for i, x in enumerate(args))) for row in rows]
        stacked = jax.tree.map(lambda *x: xp.stack(x, out_axes), *results)
        return stacked if size else jax.tree.map(lambda x: np.delete(x, 0, out_axes), stacked)

    return call


def beside(x: object, constant: Host) -> Host | jax.Array:
    """A NumPy array where the array `x` is, so that `x` may index it, or a loop run over it."""
    return constant if on_host(x) else jax.numpy.asarray(constant)


# What dispatches by itself.


def _asarray(x: ArrayLike, dtype: DTypeLike | None = None, **kwargs: PyTree) -> jax.Array:
    # JAX 0.8 loses the sharding of a JAX array within `vmap`.
    if isinstance(x, jax.Array) and dtype in (None, x.dtype) and not kwargs:
        return x
    return jax.numpy.asarray(x, dtype, **kwargs)


def _vectorize(function: Callable[..., R], **kwargs: PyTree) -> Callable[..., PyTree]:
    def call(*args: Host) -> PyTree:
        if not on_host(*args):
            return jax.numpy.vectorize(function, **kwargs)(*args)
        run = np.vectorize(function, **kwargs)
        if len(args[0]):
            return run(*args)
        return jax.tree.map(lambda x: x[:0], run(*zeros_of_one(args)))

    return call


def _clip(x: jax.Array, low: jax.Array | float, high: jax.Array | float) -> jax.Array:
    return xp.minimum(xp.maximum(x, low), high)


def _nextafter(x: jax.Array, toward: jax.Array) -> jax.Array:
    """`jnp.nextafter`, which JAX does not differentiate: as a constant."""
    return jax.numpy.nextafter(*map(jax.lax.stop_gradient, (x, toward)))


if TYPE_CHECKING:
    import jax.numpy as xp
    from jax import lax

    special: PyTree
else:
    xp = _Either("numpy", "jax.numpy", NUMPY)
    # Modules, and functions that dispatch by themselves.
    vars(xp).update(asarray=_either(np.asarray, _asarray), vectorize=_vectorize, clip=_clip)
    vars(xp).update(nextafter=_either(np.nextafter, _nextafter))
    vars(xp).update({x: _Either(f"numpy.{x}", f"jax.numpy.{x}", {}) for x in ("linalg", "fft")})
    lax = _Either("jax.lax", "jax.lax", LAX)
    special = _Either("scipy.special", "jax.scipy.special", {})
