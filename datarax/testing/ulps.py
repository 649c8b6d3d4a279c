"""Comparison of numbers in units in the last place."""

import jax
import jax.numpy as jnp
import numpy as np

from datarax._typing import ArrayLike, PyTree
from datarax.numerics.exact import Exact


class Unequal(AssertionError):
    """Two pytrees differ by more than the tolerance."""

    member: str | None = None
    """The name of the member whose values differ, if the metric is a collection."""


def assert_within_ulps(
    got: PyTree, want: PyTree, ulps: float = 0, *, atol: float = 0.0, name: str = "value"
) -> None:
    """Raises unless two pytrees have the same structure and shapes, and nearly equal numbers.

    NaN equals only NaN, an infinity equals only itself, and two integers must be equal. If both
    arrays are JAX arrays, their dtypes must be the same; the dtypes of NumPy arrays and Python
    numbers are not compared.

    Args:
        got: a pytree of arrays, `Exact` or numbers. Its dtypes set the unit in the last place.
        want: a pytree of the same structure.
        ulps: the largest accepted difference, in units in the last place of the larger number.
        atol: an absolute difference that is accepted too, for results in which terms cancel.
        name: the name of the value in the message.

    Raises:
        AssertionError: the message has the place in the pytree, both numbers and their difference.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.testing import assert_within_ulps
        >>> assert_within_ulps(jnp.float32(0.1), 0.1, ulps=0.5)
        >>> try:
        ...     assert_within_ulps(jnp.float32(0.500001), 0.5, ulps=2, name="accuracy")
        ... except AssertionError as error:
        ...     print(error)
        accuracy is 0.5000010132789612, expected 0.5: 17 ulps apart, 2 are allowed
    """
    leaves, structure = flatten(got)
    others, expected = flatten(want)
    if structure != expected:
        raise Unequal(f"{name} has the structure {structure}, expected {expected}")
    for (path, a), (_, b) in zip(leaves, others, strict=True):
        _compare(a, b, ulps, atol, name + jax.tree_util.keystr(path))


def flatten(tree: PyTree) -> tuple[list[tuple[PyTree, PyTree]], PyTree]:
    """Pairs of path and leaf, and the structure; an `Exact` is a leaf."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, Exact))


def _compare(
    got: ArrayLike | Exact, want: ArrayLike | Exact, ulps: float, atol: float, name: str
) -> None:
    a, b = np.asarray(got), np.asarray(want)
    if a.shape != b.shape:
        raise Unequal(f"{name} has the shape {a.shape}, expected {b.shape}")
    if isinstance(got, jax.Array) and isinstance(want, jax.Array) and a.dtype != b.dtype:
        raise Unequal(f"{name} has the dtype {a.dtype}, expected {b.dtype}")
    whole = _is_whole(a) and _is_whole(b)
    if whole:  # integers must be equal: `ulps` and `atol` are for floats
        equal, unit = a == b, np.ones(a.shape)
    else:
        dtype = got.high.dtype if isinstance(got, Exact) else a.dtype
        # In float64, where the difference of two float32 numbers is exact.
        a, b = a.astype(np.float64), b.astype(np.float64)
        unit = _unit(np.fmax(np.abs(a), np.abs(b)), dtype)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            equal = (a == b) | (np.isnan(a) & np.isnan(b))
            equal |= np.abs(a - b) <= np.maximum(ulps * unit, atol)
    if equal.all():
        return
    # The message shows the first difference, and counts all.
    place = tuple(map(int, np.argwhere(~equal)[0]))
    x, y = a[place].item(), b[place].item()
    message = f"{name}{list(place) if place else ''} is {x!r}, expected {y!r}"
    if np.isfinite(x) and np.isfinite(y) and not whole:
        message += f": {abs(x - y) / unit[place]:.3g} ulps apart, {ulps:g} are allowed"
        message += f", or a distance of {atol:.3g}" if atol else ""
    if a.size > 1:
        message += f" ({int((~equal).sum())} of {a.size} differ)"
    raise Unequal(message)


def _is_whole(x: np.ndarray) -> bool:
    return x.dtype == np.bool_ or jnp.issubdtype(x.dtype, jnp.integer)


def _unit(magnitude: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The unit in the last place of magnitudes in a float dtype; NaN if a magnitude is not finite.

    For other dtypes, it is the unit of float32.
    """
    info = jnp.finfo(dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32)
    # Below the least normal number, units are all the same.
    exponent = np.frexp(np.maximum(magnitude, float(info.tiny)))[1]
    return np.where(np.isfinite(magnitude), np.ldexp(1.0, exponent - 1 - info.nmant), np.nan)
