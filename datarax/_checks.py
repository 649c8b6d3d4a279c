"""What updates accept: every refusal says what was expected, what came, and what to do."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import MetricInputError, MetricTypeError


def numeric(x: Any, name: str) -> jax.Array:
    """A JAX array of booleans, integers or floats; integers that it cannot hold are refused."""
    try:
        array = x if isinstance(x, jax.Array) else jnp.asarray(x)
    except OverflowError as error:
        raise _too_large(name) from error
    except (TypeError, ValueError) as error:
        raise MetricTypeError(
            f"{name}: expected an array of numbers; got {type(x).__name__}"
        ) from error
    if not (is_integer(array) or jnp.issubdtype(array.dtype, jnp.floating)):
        raise MetricTypeError(
            f"{name} has dtype {array.dtype}; expected booleans, integers or floats"
        )
    # With x64 disabled, JAX wraps NumPy's 64-bit integers without a word.
    narrowed = isinstance(x, np.ndarray | np.generic) and x.itemsize > array.dtype.itemsize
    if narrowed and is_integer(array) and (x.astype(array.dtype) != x).any():
        raise _too_large(name)
    return array


def _too_large(name: str) -> MetricInputError:
    return MetricInputError(
        f"{name}: an integer does not fit the widest integers there are; enable x64, or pass floats"
    )


def kind(x: Any) -> str:
    """What a message calls something of the wrong type."""
    return f"the class {x.__name__}, not an instance" if isinstance(x, type) else type(x).__name__


def is_integer(x: jax.Array) -> bool:
    """Whether an array holds integers or booleans."""
    return x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer)


def all_finite(x: jax.Array) -> jax.Array:
    """Which rows of floats, along the last axis, hold neither NaN nor infinity."""
    # Not by the greatest: a maximum of floats may drop NaN, and is no faster.
    return jnp.all(jnp.isfinite(x), -1)


def as_float(x: jax.Array) -> jax.Array:
    """In the dtype that values are accumulated in, the default float."""
    return x.astype(default_float())


def default_float() -> Any:
    """float64 with x64 enabled, float32 without."""
    return jax.dtypes.canonicalize_dtype(float)


def x64_enabled() -> bool:
    """Whether arrays of 64 bits are to be had."""
    return default_float().itemsize == 8


def same_shape(a: jax.Array, b: jax.Array, names: tuple[str, str] = ("preds", "target")) -> None:
    """Refuses shapes that differ, even where they would broadcast."""
    if a.shape != b.shape:
        hint = ""
        if a.size == b.size:
            hint = f"; to mean the same, reshape one: {names[1]}.reshape({a.shape})"
        raise MetricInputError(
            f"{names[0]} of shape {a.shape} and {names[1]} of shape {b.shape}: expected the same "
            f"shape{hint}"
        )


def choice(value: Any, allowed: tuple[Any, ...], name: str) -> None:
    """Refuses a configuration value that is not one of those allowed."""
    if value not in allowed:
        raise MetricInputError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")


def positive_int(value: Any, name: str, *, least: int = 1) -> None:
    """Refuses a configuration value that is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MetricInputError(f"{name}={value!r}; expected an integer of at least {least}")


def real(value: Any, name: str, *, nan: bool = False) -> float:
    """A configuration value as a Python float; what is no number is refused, and so may NaN be."""
    try:
        number = None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (math.isnan(number) and not nan):
        raise MetricInputError(f"{name}={value!r}; expected a number{' or NaN' if nan else ''}")
    return number
