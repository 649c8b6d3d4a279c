"""Checks of arguments. Each error says what was expected, what was given, and what to do."""

import inspect
import math
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from datarax._errors import MetricInputError, MetricTypeError, PrecisionWarning
from datarax._typing import ArrayLike, PyTree
from datarax._update_context import update_context
from datarax._xp import BLOCK, is_in_program, on_host, xp

_PLAIN = {np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32)} | {
    np.dtype(name) for name in ("bool", "float16")
}
"""The dtypes of NumPy arrays that are taken as they are."""
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LEAST = float(np.finfo(np.float32).tiny)
"""The least normal float32."""
_FAINT = _LEAST * 2.0**24
"""Beside numbers below this, one that becomes 0 is more than a rounding error."""
_MOST = float(np.finfo(np.float32).max)
_TOO_LARGE = _MOST + 2.0**103
"""The least number that as a float32 is infinite: halfway to the next power of two's float."""


def numeric(
    x: ArrayLike, name: str, *, subnormals: bool = False, any_range: bool = False
) -> jax.Array:
    """`x` as an array of booleans, integers or floats: of NumPy, unless it is a JAX array.

    An array of NumPy keeps the digits of float64, in the range of the default float: numbers that
    are infinite there become infinite, and so count as such. `any_range=True` keeps them, where
    formula and state hold them.

    In an array of NumPy, numbers that are subnormal in the default float become 0, as CPUs and TPUs
    make them in a program; `subnormals=True` keeps them, where nothing depends on them.

    Warns:
        PrecisionWarning: float64 numbers become 0, and the others of the array are not far from it.

    Raises:
        MetricTypeError: `x` holds something other than numbers.
        MetricInputError: an integer in `x` does not fit 64 bits, or in a program those that JAX
            has; or `x` is a masked array of NumPy.
    """
    # Most arrays need no more than this look-up, which each update makes.
    if type(x) is np.ndarray:
        if x.dtype in _PLAIN:
            return x  # type: ignore[return-value]
        if x.dtype == _FLOAT32:
            return x if subnormals else without_subnormals(x)  # type: ignore[return-value]
    if isinstance(x, np.ma.MaskedArray):
        raise MetricInputError(
            f"{name}: numpy masked arrays are not supported; give weights= instead"
        )
    try:
        array: Any = x if isinstance(x, jax.Array) else np.asarray(x)
    except ValueError as error:
        raise _not_numbers(x, name) from error
    known = not isinstance(array, jax.Array)
    # NumPy makes objects of integers that do not fit 64 bits.
    if known and array.dtype == object and any(_is_too_large(each) for each in array.flat):
        raise MetricInputError(f"{name}: an integer does not fit 64 bits")
    # JAX has no text and no dates.
    if known and array.dtype.kind in "OSUMm":
        raise _not_numbers(x, name)
    # It has only the byte order of the machine.
    if known and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not (is_integer(array) or xp.issubdtype(array.dtype, xp.floating)):
        raise MetricTypeError(
            f"{name} has dtype {array.dtype}; expected booleans, integers or floats"
        )
    array = at_least_8_bits(array)
    if not known:
        return array
    if array.dtype.kind == "f" and array.dtype.itemsize >= 8:
        array = array.astype(_FLOAT64, copy=False)  # JAX has no longdouble
        if not x64_enabled():
            return array if any_range else _in_range_of_float32(array, name)  # type: ignore[return-value]
    elif array.dtype.itemsize == 8:  # the dtype that it has on devices: with x64 disabled, 32 bits
        array = _in_32_bits(array, name)
    return array if subnormals else without_subnormals(array)


def _in_32_bits(x: np.ndarray, name: str) -> np.ndarray:
    """Integers of 64 bits in 32, unless x64 is enabled, or NumPy alone uses those that do not fit.

    Raises:
        MetricInputError: one does not fit, and a program would cut it: to another label, or id.
    """
    narrow = x.astype(jax.dtypes.canonicalize_dtype(x.dtype))
    if (narrow == x).all():
        return narrow
    if is_in_program():
        raise _too_large(name)
    return x


def refuse_wide(arrays: PyTree, about: str = "") -> None:
    """Raises if an integer of NumPy or Python is one that a program without x64 would cut.

    Args:
        arrays: a dict of arguments, or a pytree in one.
        about: what the names of the arguments are put behind in the message.

    Raises:
        MetricInputError: an integer does not fit 32 bits; names its argument.
    """
    for path, x in jax.tree_util.tree_leaves_with_path(arrays):
        if isinstance(x, int):
            x = np.asarray(x)
        is_known = isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu"
        if is_known and (x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) != x).any():
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise _too_large(about + (name or "array"))


def _in_range_of_float32(x: np.ndarray, name: str) -> np.ndarray:
    """Float64 numbers; those that a float32 does not hold are infinite, or 0 if they are small."""
    size = np.abs(x)
    small = (size < _LEAST) & (size > 0)
    if small.any():
        if np.max(size) < _FAINT and update_context.get().checks != "none":
            warn(
                f"{name}: the numbers are as small as the least float32, and those below "
                f"{_LEAST:.2g} count as 0. Multiply them first, for example by 2.0**100",
                PrecisionWarning,
            )
        x = np.where(small, np.copysign(0.0, x), x)
    return large_as_infinite(x)


def is_beyond_float32(*arrays: Any) -> bool:
    """True if float64 numbers on the host, without x64, are beyond the range of float32."""
    if x64_enabled() or not on_host(*arrays):
        return False
    wide = (x for x in arrays if x.dtype == _FLOAT64)
    return any(float(np.max(np.abs(x), initial=0)) > _MOST for x in wide)


def large_as_infinite(x: Any) -> Any:
    """`x` with infinities in place of float64 numbers of NumPy that a float32 does not hold."""
    if type(x) is not np.ndarray or x.dtype != _FLOAT64 or x64_enabled():
        return x
    size = np.abs(x)
    large = (size >= _TOO_LARGE) & (size < np.inf)
    return np.where(large, np.copysign(np.inf, x), x) if large.any() else x


def without_subnormals(x: np.ndarray) -> Any:
    """`x` with 0 in place of numbers that are subnormal in its dtype and in float32."""
    most = _subnormal_bits(x.dtype)
    flat = x.reshape(-1)
    for i in range(0, flat.size if most else 0, BLOCK):  # in blocks that stay in the cache
        if np.minimum.reduce(_bits_below(flat[i : i + BLOCK]), initial=most) < most:
            return np.where(_bits_below(flat).reshape(x.shape) < most, x.dtype.type(0), x)
    return x


def _bits_below(x: np.ndarray) -> np.ndarray:
    """The bits without the sign, minus 1: up to those of a normal number for a subnormal one."""
    bits = np.left_shift(x.view(f"u{x.itemsize}"), 1)
    bits -= 1  # a zero wraps to the greatest integer
    return bits


@lru_cache(maxsize=256)
def _subnormal_bits(dtype: np.dtype) -> int:
    """Counts the bit patterns of one sign, shifted by one place, from 0 to a normal number.

    0 for integers, and for floats of fewer exponent bits than float32: devices keep those.
    """
    if (
        not xp.issubdtype(dtype, np.floating)
        or xp.finfo(dtype).minexp > np.finfo(np.float32).minexp
    ):
        return 0
    return 2 ** (xp.finfo(dtype).nmant + 1) - 1


def integers(
    x: ArrayLike, name: str, expected: str = "integers", *, booleans: bool = False
) -> jax.Array:
    """`x` as an array of integers; or of booleans, if they are allowed.

    Raises:
        MetricTypeError: `x` has another dtype; the message says what is `expected`.
    """
    array = numeric(x, name)
    if not is_integer(array) or (array.dtype == xp.bool_ and not booleans):
        raise MetricTypeError(f"{name} has dtype {array.dtype}; expected {expected}")
    return array


def _not_numbers(x: object, name: str) -> MetricTypeError:
    of = f" of dtype {x.dtype}" if isinstance(x, np.ndarray | np.generic) else ""
    hint = ""
    if isinstance(x, np.ndarray) and x.dtype == object:
        # Not converted here: the dtype would depend on the values, and differ between batches.
        hint = f". Convert it first, with {name}.astype(float) or {name}.astype(int)"
    return MetricTypeError(
        f"{name}: expected an array of numbers; got {type(x).__name__}{of}{hint}"
    )


def _is_too_large(x: object) -> bool:
    return isinstance(x, int) and not -(2**63) <= x < 2**64


def _too_large(name: str) -> MetricInputError:
    return MetricInputError(
        f"{name}: an integer does not fit 32 bits, the widest that a program has; number the ids, "
        f"update outside jit with arrays of NumPy, or enable x64"
    )


def at_least_8_bits(x: jax.Array) -> jax.Array:
    """`x`, or if its dtype has fewer than 8 bits (int4, uint2) as int8 or uint8.

    JAX has few operations on such dtypes.
    """
    if xp.issubdtype(x.dtype, xp.integer) and xp.iinfo(x.dtype).bits < 8:
        return x.astype(xp.uint8 if xp.issubdtype(x.dtype, xp.unsignedinteger) else xp.int8)
    return x


def kind(x: object) -> str:
    """Names a value of the wrong type, for an error message."""
    return f"the class {x.__name__}, not an instance" if isinstance(x, type) else type(x).__name__


def is_integer(x: jax.Array) -> bool:
    """True if the dtype of an array is an integer dtype or bool."""
    return _is_integer(x.dtype)


@lru_cache(maxsize=4096)
def _is_integer(dtype: np.dtype) -> bool:
    return dtype == np.bool_ or bool(xp.issubdtype(dtype, np.integer))


def warn_if_rounded(x: PyTree, name: str) -> None:
    """Warns if an array of NumPy holds integers of 64 bits that float64 does not hold.

    Warns:
        PrecisionWarning: it does, so different integers may be equal floats.
    """
    is_wide = isinstance(x, np.ndarray) and x.dtype.kind in "iu" and x.dtype.itemsize == 8
    if not is_wide or update_context.get().checks == "none":
        return
    with np.errstate(invalid="ignore"):  # 2**64 is no integer of 64 bits
        is_rounded = (x.astype(_FLOAT64).astype(x.dtype) != x).any()
    if is_rounded:
        warn(
            f"{name}: integers beyond 2**53 are rounded to float64, so some may count as equal. "
            f"Subtract the least of them before the update, as integers",
            PrecisionWarning,
        )


def warn_of_rounded(**given: PyTree) -> None:
    """`warn_if_rounded` of each by its name; with x64, double-floats hold all integers."""
    if not x64_enabled():
        for name, x in given.items():
            warn_if_rounded(x, name)


def as_float(x: jax.Array) -> jax.Array:
    """`x` as floats for formulas: on the host of float64, on devices of the default dtype."""
    return x.astype(_FLOAT64 if type(x) is np.ndarray else float_dtype(x))


def float_dtype(x: jax.Array) -> np.dtype:
    """The dtype of floats in formulas of `x`: on the host float64, on devices the default one."""
    return _FLOAT64 if on_host(x) else default_float()


def default_float() -> np.dtype:
    """The default float dtype: float64 if x64 is enabled, else float32."""
    return jax.dtypes.canonicalize_dtype(float)


def x64_enabled() -> bool:
    """True if JAX has 64-bit dtypes."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def same_shape(a: jax.Array, b: jax.Array, names: tuple[str, str] = ("preds", "target")) -> None:
    """Raises unless both arrays have the same shape, even where the two would broadcast."""
    if a.shape != b.shape:
        hint = ""
        if a.size == b.size:
            hint = f"; if both hold the same examples, reshape one: {names[1]}.reshape({a.shape})"
        raise MetricInputError(
            f"{names[0]} of shape {a.shape} and {names[1]} of shape {b.shape}: expected the same "
            f"shape{hint}"
        )


def choice(value: object, allowed: tuple[object, ...], name: str) -> None:
    """Raises unless a configuration value is one of `allowed`."""
    if value not in allowed:
        raise MetricInputError(f"{name}={value!r}; expected one of {', '.join(map(repr, allowed))}")


def refuse_ignored(owner: Any, name: str, where: str) -> None:
    """Raises if a configuration field was given, by its default, where it has no effect.

    Args:
        owner: the metric or statistic, with its `fields`.
        name: the name of the field.
        where: why it has no effect, for the end of the message.

    Raises:
        MetricInputError: the value is not the default; shows it.
    """
    # Also by type: True equals 1, and 1.0 equals 1.
    value, default = getattr(owner, name), owner.fields[name].default
    if type(value) is not type(default) or value != default:
        raise MetricInputError(f"{name}={value!r} has no effect {where}; leave it out")


def resolve_average(owner: Any, is_binary: bool, where: str) -> Any:
    """The `average` of a metric: "macro" for its default "auto", unless the task is binary.

    Raises:
        MetricInputError: an average is given in a binary task, which has one value; `where` is the
            reason that it has no effect.
    """
    if is_binary:
        refuse_ignored(owner, "average", where)
        return owner.average
    field = owner.fields["average"]
    return field.means if owner.average == field.default else owner.average


def python_int(value: Any) -> Any:
    """A NumPy integer as a Python number, so that it is hashable and compared by value."""
    return value.item() if isinstance(value, np.integer) else value


def check_function(value: object, name: str, of: str) -> None:
    """Raises unless an option is a function, which can be hashed as all configuration."""
    if not callable(value):
        raise MetricTypeError(f"{name}={kind(value)}; expected a function of {of}")
    try:
        hash(value)
    except TypeError as error:
        raise MetricTypeError(
            f"{name}={kind(value)} cannot be hashed; expected a function, for example one "
            f"defined at the top of a module that calls it"
        ) from error


def positive_int(value: object, name: str, *, least: int = 1) -> None:
    """Raises unless a configuration value is an integer of at least `least`."""
    # `True` is an `int`, and likely an argument in the wrong place.
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MetricInputError(f"{name}={value!r}; expected an integer of at least {least}")


def real(value: Any, name: str, *, nan: bool = False) -> float:
    """A configuration value as a Python float.

    Raises:
        MetricInputError: the value is not a number, or it is NaN and `nan` is false.
    """
    try:
        number = None if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (math.isnan(number) and not nan):
        raise MetricInputError(f"{name}={value!r}; expected a number{' or NaN' if nan else ''}")
    return number


def timeout_seconds(timeout: float | None) -> float | None:
    """A timeout in seconds; None for no limit.

    Raises:
        MetricInputError: it is negative, or not a number.
    """
    if timeout is not None and real(timeout, "timeout") < 0:
        raise MetricInputError(f"timeout={timeout!r}; expected seconds, or None")
    return timeout


def finite_number(value: Any, name: str, expected: str, fits: Callable[[Any], bool]) -> float:
    """A configuration value that is a finite number as a Python float.

    Raises:
        MetricInputError: it is no such number, or does not fit; says what is `expected`.
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (is_number and abs(value) <= sys.float_info.max and fits(value)):
        raise MetricInputError(f"{name}={value!r}; expected {expected}")
    return float(value)


def checked_confidence(confidence: float, caller: str) -> float:
    """A confidence as a float.

    Raises:
        MetricInputError: it is not between 0 and 1.
    """
    number = real(confidence, "confidence")
    if not 0 < number < 1:
        raise MetricInputError(
            f"{caller}: confidence={confidence!r}; expected a number between 0 and 1"
        )
    return number


_BETWEEN = {"datarax", "numpy", "jax", "jaxlib", "flax", "contextlib", "functools"}
"""The packages whose code may run between the line of a caller and a warning of datarax."""


def warn(message: str, category: type[Warning]) -> None:
    """Warn of the line of the caller: the last one outside datarax and the libraries it uses.

    Python shows equal warnings of one line only once, so a line of a library, which all callers
    share, would also hide the warnings of others.
    """
    if metric := update_context.get().metric:
        message = f"metric {metric!r}: {message}"
    frame, depth = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)
