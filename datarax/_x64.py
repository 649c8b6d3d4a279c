"""64-bit types within a program that runs without x64, also where the program is differentiated.

JAX differentiates the operations of an inner `jit`, a `scan` or a `checkpoint` after these are
traced, when x64 is off again. Then its rules round their float64 constants to float32, and fail. So
a function that runs with 64-bit types has a rule of its own, which enables them again.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial, wraps
from typing import TypeVar

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from datarax._checks import x64_enabled
from datarax._typing import PyTree
from datarax._xp import on_host

R = TypeVar("R")
Changes = Sequence[jax.Array | None]
"""The tangents of arrays; None where an array does not change."""
Derivative = Callable[[list[PyTree], Changes], tuple[PyTree, Changes]]
"""Takes the leaves of the arguments of a function and their changes. Returns the result of the
function, and the changes of the floats among its leaves."""


def in_x64(function: Callable[..., R], *arrays: PyTree, elementary: bool = False) -> R:
    """`function(*arrays)` with 64-bit types, which NumPy has without x64.

    The function uses no other arrays that depend on what is differentiated.

    Args:
        function: any function of the arrays.
        *arrays: arrays and numbers, and pytrees of these.
        elementary: whether it does only what `elementary_in_x64` allows.
    """
    if on_host(*arrays):
        return function(*arrays)
    if x64_enabled():  # of the whole program, or around this call
        return function(*arrays)
    if elementary:
        with jax.enable_x64(True):
            return function(*arrays)
    leaves, structure = jax.tree.flatten(arrays)

    def flat(*leaves: PyTree) -> R:
        return function(*structure.unflatten(leaves))

    return differentiable(_enabling(flat), partial(_changes_in_x64, flat), *leaves)


def made_once(function: Callable[..., R]) -> Callable[..., R]:
    """Wraps a function that makes what is never changed: made once for each argument.

    The arguments are by position, and hashable. With x64, what is made has other dtypes.
    """

    @lru_cache(maxsize=4096)
    def made(x64: bool, *args: Hashable) -> R:
        return function(*args)

    @wraps(function)
    def find(*args: Hashable) -> R:
        return made(x64_enabled(), *args)

    return find


def elementary_in_x64(*values: PyTree) -> AbstractContextManager[object]:
    """A block with 64-bit types for elementary operations; NumPy alone has them without it.

    It may add, multiply, compare, choose, move and convert numbers, and do anything with integers:
    JAX's derivatives of these make no constants. All else is a function for `in_x64`.
    """
    return nullcontext() if values and on_host(*values) else jax.enable_x64(True)


def differentiable(function: Callable[..., R], derivative: Derivative, *leaves: PyTree) -> R:
    """`function(*leaves)`, which JAX differentiates by `derivative`.

    The derivative is linear in the changes, and can be differentiated itself.
    """
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]
    if not any(map(_is_inexact, map(leaves.__getitem__, places))):
        return function(*leaves)  # integers have no derivative
    given = [None if i in places else x for i, x in enumerate(leaves)]

    def filled(operands: Sequence[PyTree]) -> list[PyTree]:
        found = list(given)
        for i, x in zip(places, operands, strict=True):
            found[i] = x
        return found

    @jax.custom_jvp
    def call(*operands: jax.Array) -> R:
        return function(*filled(operands))

    @partial(call.defjvp, symbolic_zeros=True)
    def _(operands: tuple[jax.Array, ...], tangents: tuple[PyTree, ...]) -> tuple[R, PyTree]:
        changes: list[jax.Array | None] = [None] * len(given)
        for i, change in zip(places, tangents, strict=True):
            changes[i] = None if isinstance(change, SymbolicZero) else change
        result, found = derivative(filled(operands), changes)
        each = iter(found)

        def change_of(x: jax.Array) -> PyTree:
            change = next(each) if _is_inexact(x) else None
            # A zero of JAX has the type that the change of an integer or a float must have.
            return zero_from_primal(x, symbolic_zeros=True) if change is None else change

        return result, jax.tree.map(change_of, result)

    return call(*map(leaves.__getitem__, places))


def _enabling(function: Callable[..., R]) -> Callable[..., R]:
    def call(*args: PyTree) -> R:
        with jax.enable_x64(True):
            return function(*args)

    return call


def _changes_in_x64(
    flat: Callable[..., R], leaves: list[PyTree], changes: Changes
) -> tuple[R, Changes]:
    """The `Derivative` that JAX finds of the operations of `flat`."""
    moving = [i for i, change in enumerate(changes) if change is not None]
    structures = []

    def linearized(leaves: list[PyTree]) -> tuple[R, list[jax.Array]]:
        def of_moving(*operands: jax.Array) -> R:
            found = list(leaves)
            for i, x in zip(moving, operands, strict=True):
                found[i] = x
            return flat(*found)

        result, linear = jax.linearize(of_moving, *(leaves[i] for i in moving))
        slopes, structure = jax.tree.flatten(linear)
        structures.append(structure)  # holds no arrays
        return result, slopes

    # What is not linear is by itself, and is differentiated in its turn by a rule. The rest is
    # elementary.
    result, slopes = in_x64(linearized, leaves)
    with elementary_in_x64():
        found = structures[-1].unflatten(slopes)(*(changes[i] for i in moving))
    return result, [x for x in jax.tree.leaves(found) if x.dtype != jax.dtypes.float0]


def _is_inexact(x: jax.Array) -> bool:
    return bool(jax.numpy.issubdtype(x.dtype, np.inexact))
