"""Double-floats: pairs of floats whose sum is the number, with twice the digits of one float.

A double-float of float32 parts has about 48 significant bits. Error bounds here are relative to the
result, in units of `u**2`, with `u = 2**-24` (`2**-53` for float64 parts).
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, NamedTuple, Self

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._checks import as_float, default_float, is_beyond_float32, x64_enabled
from datarax._platform import lowered_for
from datarax._typing import ArrayLike, PyTree
from datarax._x64 import Changes, differentiable, elementary_in_x64, in_x64
from datarax._xp import all_finite, lax, on_host, xp
from datarax.numerics import pairs

Operator = Callable[[PyTree, PyTree], PyTree]
_FLOAT32 = np.dtype(np.float32)
_HOST = (np.ndarray, np.float64)
"""The types of one array of float64 on the host."""


class Arithmetic(NamedTuple):
    """The arithmetic of numbers that are two arrays: with other pairs, and with floats."""

    add: Operator
    add_float: Operator
    subtract: Operator
    subtract_float: Operator
    multiply: Operator
    scale: Operator
    divide: Operator


@jax.tree_util.register_pytree_node_class
class DoubleFloat:
    """The number `high + low`: two arrays of one float dtype and shape.

    `|low|` is at most half an ulp of `high`, so `high` is the nearest float. Operators take
    double-floats, arrays of the same dtype, and Python numbers; shapes broadcast. A Python number
    is not rounded to a float: `x * 0.1` multiplies by the double-float nearest to 0.1. Round once,
    at the end of a formula, with `to_float`.

    Within a formula, a double-float of float32 parts is one array of float64 where the devices have
    float64, whether or not x64 is enabled: each operation is one instruction. Its parts are made
    when they are asked for. On TPUs, and with float64 parts, it is always two arrays.

    Args:
        high: the nearest float to each number.
        low: the rest of each number; of the dtype and shape of `high`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.numerics import DoubleFloat
        >>> large = DoubleFloat.of(jnp.float32(1e8)) + 1
        >>> print((large - 1e8).to_float(), jnp.float32(1e8) + 1 - jnp.float32(1e8))
        1.0 0.0
    """

    __slots__ = ("_parts", "_wide")
    # NumPy arrays defer to this class in mixed arithmetic.
    __array_priority__ = 200
    __hash__: ClassVar[None] = None  # type: ignore[assignment]
    _arithmetic: ClassVar[Arithmetic]

    def __init__(self, high: PyTree, low: PyTree):
        self._parts = high, low
        self._wide = _joined(high, low) if is_one(high) else None

    def _hold(self, parts: PyTree, wide: jax.Array | None) -> Self:
        """Holds both parts, the number in one array of float64, or both forms."""
        self._parts, self._wide = parts, wide
        return self

    @classmethod
    def _made(cls, number: PyTree) -> Self:
        """A double-float from one array of float64, or from its two parts."""
        if isinstance(number, tuple):
            return cls(*number)
        made = object.__new__(cls)
        made._parts, made._wide = None, number
        return made

    @classmethod
    def of(cls, x: PyTree, dtype: DTypeLike | None = None) -> "DoubleFloat":
        """Converts a float array, or numbers of another type with parts in `dtype`.

        It is exact for floats, and for integers of up to 32 bits.
        """
        if isinstance(x, DoubleFloat):
            return x
        if isinstance(x, int | float) and dtype is not None:
            if has_wide(dtype):
                return cls._made(np.asarray(x, np.float64))
            number = float(x)
            high = np.asarray(number, dtype)
            rest = number - float(high) if math.isfinite(number) else 0.0
            return cls(high, np.asarray(rest, dtype))
        if type(x) is np.ndarray and dtype is None and x.dtype == _FLOAT32:  # mostly
            return cls._made(x.astype(np.float64))
        x = x if type(x) is np.ndarray else xp.asarray(x)
        if is_one(x, dtype):
            return cls._made(_cast(x, np.float64))
        x = x if dtype is None else x.astype(dtype)
        return cls(x, xp.zeros_like(x))

    @classmethod
    def of_float64(cls, x: jax.Array) -> "DoubleFloat":
        """The double-floats of float32 parts whose numbers one array of float64 holds."""
        return cls._made(x)

    @property
    def finite(self) -> "FiniteDouble":
        """The same number, which is known to be finite."""
        return object.__new__(FiniteDouble)._hold(self._parts, self._wide)

    @property
    def is_on_host(self) -> bool:
        """True if no array is a JAX array."""
        return on_host(self._wide, *(self._parts or ()))

    def tree_flatten(self) -> tuple[pairs.Pair, None]:
        high, low = self
        return (high, low), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: PyTree) -> "DoubleFloat":
        # JAX may pass any objects as parts, so nothing is computed here.
        return object.__new__(cls)._hold(tuple(parts), None)

    @property
    def high(self) -> jax.Array:
        """The nearest float."""
        return self._parts[0] if self._parts else _cast(self._number, np.float32)

    @property
    def low(self) -> jax.Array:
        """The rest, rounded to a float; 0 if `high` is not finite."""
        return self._parts[1] if self._parts else in_x64(split, self._number, elementary=True)[1]

    @property
    def wide(self) -> jax.Array:
        """The number in one array of float64; only for double-floats that are one array."""
        return self._number if self._wide is None else self._wide

    @property
    def _number(self) -> jax.Array:
        """The number in one array of float64, if the parts are float32."""
        return _joined(*self._parts) if self._wide is None else self._wide

    @property
    def is_one(self) -> bool:
        """True if the number is one array of float64 within a formula."""
        return self._wide is not None or is_one(self._parts[0])

    @property
    def exceeds_parts(self) -> bool:
        """True if the number may have more digits than its two parts: on the host, in float64."""
        return self.is_on_host and self.dtype == _FLOAT32

    @property
    def rough(self) -> "DoubleFloat | jax.Array":
        """The number itself if it is one array of float64, or else its nearest float."""
        return self if self.is_one else self.high

    def to_float(self) -> jax.Array:
        """The nearest float: on the host of float64, on devices of the dtype of the parts."""
        if type(self._wide) in _HOST:
            return self._wide  # type: ignore[return-value]
        return self._number if self.is_one and self.is_on_host else self.high

    # Arithmetic. That of float64 parts is in `pairs`.

    def to_integer(self, dtype: DTypeLike) -> jax.Array:
        """Whole numbers below 2**53 as integers, which wrap; -inf becomes the least integer.

        Only for double-floats that are one array.
        """
        with elementary_in_x64():
            least = xp.float64(np.iinfo(dtype).min)
            whole = xp.where(xp.isneginf(self._number), least, self._number)
            return whole.astype(xp.int64).astype(dtype)

    def _with(self, other: "Operand", wide: Operator, pair: Operator) -> PyTree:
        """The result of `wide` of two arrays of float64, or of `pair` of the parts of both."""
        a = self._wide
        if isinstance(other, int | float) and a is not None:
            if type(a) in _HOST:
                return wide(a, np.float64(other))
            return in_x64(wide, a, np.float64(other), elementary=wide is not _quotient)
        other = self._operand(other)
        b = other._wide
        if type(a) in _HOST and type(b) in _HOST:
            return wide(a, b)
        if self.is_one and other.is_one:
            return in_x64(wide, self._number, other._number, elementary=wide is not _quotient)
        return pair(tuple(self), tuple(other))

    def __add__(self, other: "Operand") -> "DoubleFloat":
        """The sum, within 2 units of the sum of both magnitudes."""
        if self._is_beside_float(other):
            return self._made(self._arithmetic.add_float(tuple(self), other))
        return self._made(self._with(other, operator.add, self._arithmetic.add))

    __radd__ = __add__

    def __neg__(self) -> "DoubleFloat":
        return self._each(operator.neg)

    def __sub__(self, other: "Operand") -> "DoubleFloat":
        """The difference, within 2 units of the sum of both magnitudes."""
        if self._is_beside_float(other):
            return self._made(self._arithmetic.subtract_float(tuple(self), other))
        return self._made(self._with(other, operator.sub, self._arithmetic.subtract))

    def __rsub__(self, other: "Operand") -> "DoubleFloat":
        return self._operand(other) - self

    def __mul__(self, other: "Operand") -> "DoubleFloat":
        """The product, within 5 units; a product with a power of two is exact."""
        if isinstance(other, int | float) and not self.is_one and _is_power_of_two(other):
            return self.map(lambda part: part * part.dtype.type(other))
        if self._is_beside_float(other):
            return self._made(self._arithmetic.scale(tuple(self), other))
        return self._made(self._with(other, operator.mul, self._arithmetic.multiply))

    __rmul__ = __mul__

    def corrected(self, by: jax.Array) -> "DoubleFloat":
        """The sum with floats that are not above a few ulps of the number; or the number is 0."""
        if not self._is_beside_float(by):
            return self + by
        high, low = self
        return self._made(pairs.fast_two_sum(high, low + by))

    def times_power(self, power: jax.Array) -> "DoubleFloat":
        """The product with powers of two: each part by itself, which is exact and costs little."""
        return self * power if self.is_one else self.map(lambda part: part * power)

    def __truediv__(self, other: "Operand") -> "DoubleFloat":
        """The quotient, within 10 units, its `high` within 0.51 ulp; NaN where the divisor is 0."""
        return self._made(self._with(other, _quotient, self._arithmetic.divide))

    def over(self, divisor: "DoubleFloat") -> "DoubleFloat":
        """The quotient by double-floats that are not 0."""
        if self.is_one and divisor.is_one:
            return self._made(in_x64(operator.truediv, self._number, divisor._number))
        return DoubleFloat(*pairs.quotient((self.high, self.low), (divisor.high, divisor.low)))

    def share_of(self, total: "DoubleFloat") -> jax.Array:
        """The quotient by a total as floats; 0 where the total is 0."""
        some = total.high != 0
        if not total.is_one:
            return self.high / xp.where(some, total.high, xp.ones((), total.dtype))
        return (self / total.map(lambda x: xp.where(some, x, xp.ones((), x.dtype)))).to_float()

    def __rtruediv__(self, other: "Operand") -> "DoubleFloat":
        return self._operand(other) / self

    def sum(self, axis: int | tuple[int, ...] = -1) -> "DoubleFloat":
        """The sum over axes, by double-float additions; XLA chooses their order."""
        if self.is_one:
            return self._each(lambda x: xp.sum(x, axis))
        axes = (axis,) if isinstance(axis, int) else axis
        axes = tuple(a % self.ndim for a in axes)
        reduce, changes = partial(_sum_of_pairs, axes), partial(_changes_of_sum, axes)
        return DoubleFloat(*differentiable(reduce, changes, *self))

    def _is_beside_float(self, other: "Operand") -> bool:
        """True if the number is two arrays, and the other one array of a device."""
        return isinstance(other, jax.Array) and not (self.is_one or is_one(other))

    def _operand(self, other: "Operand") -> "DoubleFloat":
        return other if isinstance(other, DoubleFloat) else DoubleFloat.of(other, self.dtype)

    # Comparisons are exact.

    def __lt__(self, other: "Operand") -> jax.Array:
        if type(other) is int and other == 0 and not self.is_one:
            return self.high < 0  # its sign is that of the number
        return self._with(other, operator.lt, pairs.less)

    def __gt__(self, other: "Operand") -> jax.Array:
        if type(other) is int and other == 0 and not self.is_one:
            return self.high > 0
        return self._operand(other) < self

    def __le__(self, other: "Operand") -> jax.Array:
        return self._with(other, operator.le, pairs.less_or_equal)

    def __ge__(self, other: "Operand") -> jax.Array:
        return self._operand(other) <= self

    def __eq__(self, other: "Operand") -> jax.Array:  # type: ignore[override]
        return self._with(other, operator.eq, pairs.equal)

    def __ne__(self, other: "Operand") -> jax.Array:  # type: ignore[override]
        return ~(self == other)

    # Attributes and methods of an array.

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._parts[0] if self._wide is None else self._wide).shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the parts."""
        return _FLOAT32 if self.is_one else np.dtype(self._parts[0].dtype)

    def map(self, function: Callable[[jax.Array], jax.Array]) -> "DoubleFloat":
        """Applies `function` to the number, or to both parts, whose dtypes differ.

        It may move or select elements, negate or scale them by powers of two. All else is for
        `apply`: JAX could not differentiate it in an inner `jit`.
        """
        if type(self._wide) in _HOST or (self.is_one and self.is_on_host):
            if has_float64():
                with elementary_in_x64():
                    return self._made(function(self._number))
            # The function may use arrays of a program without float64, as `where` with a condition.
            with np.errstate(over="ignore"):
                high, low = self
            result = function(high)
            if not on_host(result):
                return type(self)(result, function(low))
        return _together(function, self)

    def _each(self, function: Callable[[jax.Array], jax.Array]) -> "DoubleFloat":
        """As `map`, for a function that uses no other arrays."""
        if type(self._wide) in _HOST:
            return self._made(function(self._wide))  # type: ignore[arg-type]
        if not self.is_one:
            return self.map(function)
        return self._made(in_x64(function, self._number, elementary=True))

    def apply(self, function: Callable[..., jax.Array], *arrays: PyTree) -> "DoubleFloat":
        """As `map`, for a function that is not elementary; it uses no arrays but these.

        Where the number is one array, it may be any function of it.
        """
        if not self.is_one or _needs_parts(arrays):
            return type(self)(*(function(part, *arrays) for part in self))
        return self._made(in_x64(function, self._number, *arrays))

    def computed(self, function: Callable[..., PyTree], *arrays: jax.Array) -> "DoubleFloat":
        """`function(add, number, *arrays)`: the number is an array or a pair, which `add` adds.

        For loops, whose carry is then one array where it can be.
        """
        if not self.is_one or _needs_parts(arrays):
            return DoubleFloat(*function(pairs.add, tuple(self), *arrays))
        return self._made(in_x64(partial(function, operator.add), self._number, *arrays))

    def evaluated(self, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """`function` of the number, rounded to a float: of the nearest float where it is a pair.

        It uses no other arrays.
        """
        if not self.is_one:
            return function(self.high)
        value = in_x64(function, self._number)
        return value if on_host(value) else _cast(value, np.float32)

    def __getitem__(self, index: PyTree) -> "DoubleFloat":
        if type(self._wide) in _HOST and on_host(index):
            return self._made(self._wide[index])  # type: ignore[index]
        return _together(lambda x: x[index], self, beside=index)

    def __iter__(self) -> Iterator[jax.Array]:
        """Unpacks into `high, low`."""
        if self._parts and (self._wide is None or not on_host(self._wide)):
            return iter(self._parts)
        if type(self._wide) in _HOST:
            return iter(split(self._wide))
        return iter(in_x64(split, self._number, elementary=True))

    def kept(self) -> "DoubleFloat":
        """The same, computed once by a compiler that would compute it again for each use."""
        if self.is_on_host:
            return self
        parts = (self._number,) if self.is_one else tuple(self)
        with elementary_in_x64():
            held = lax.optimization_barrier(parts)
        return self._made(held[0] if len(held) == 1 else held)

    def reshape(self, *shape: int) -> "DoubleFloat":
        return self._each(lambda x: x.reshape(shape))

    def broadcast_to(self, shape: tuple[int, ...]) -> "DoubleFloat":
        return self._each(lambda x: xp.broadcast_to(x, shape))

    def __repr__(self) -> str:
        return f"DoubleFloat({self.high}, {self.low})"


DoubleFloat._arithmetic = Arithmetic(
    pairs.add,
    pairs.add_float,
    pairs.subtract,
    pairs.subtract_float,
    pairs.multiply,
    pairs.scale,
    pairs.divide,
)


@jax.tree_util.register_pytree_node_class
class FiniteDouble(DoubleFloat):
    """A double-float that is finite, as all results of its operators are.

    Two arrays then need half the operations. Products may have a `low` of up to three ulps of
    `high`; sums and quotients are as of any double-float. No divisor is 0.
    """

    __slots__ = ()
    _arithmetic: ClassVar[Arithmetic] = Arithmetic(
        pairs.add_finite,
        pairs.add_float_finite,
        pairs.subtract_finite,
        pairs.subtract_float_finite,
        pairs.product,
        pairs.scale_finite,
        pairs.divide_finite,
    )


Operand = DoubleFloat | ArrayLike


def has_float64() -> bool:
    """True if the devices that run the program have float64; TPUs only emulate a part of it."""
    return lowered_for() in ("cpu", "gpu")


def has_wide(dtype: DTypeLike) -> bool:
    """True if double-floats of such parts are one array on the devices."""
    return dtype == np.float32 and has_float64()


def sums_in_float64(*arrays: PyTree) -> bool:
    """True if floats are added up in float64: on the host, and in programs that have it."""
    return on_host(*arrays) or has_float64()


def errors_fit_float64(x: jax.Array, y: jax.Array, *, beside: jax.Array) -> bool:
    """True if float64 is there for `x - y` and its square, and holds them: of float32 numbers."""
    if not on_host(x, y, beside):
        return has_wide(default_float())
    return not x64_enabled() and not is_beyond_float32(x, y)


def computed_in_float64(function: Callable[..., PyTree], *arrays: jax.Array) -> PyTree:
    """`function(*arrays)` in float64, although x64 is disabled.

    On devices its floats are rounded at the end; on those without float64, such as TPUs, it runs in
    float32. `function` returns a pytree of arrays.
    """
    dtype = default_float()
    if on_host(*arrays) or not has_float64():
        return function(*map(as_float, arrays))

    def rounded(*arrays: jax.Array) -> PyTree:
        value = function(*(x.astype(xp.float64) for x in arrays))
        return jax.tree.map(lambda x: x.astype(dtype) if x.dtype == xp.float64 else x, value)

    return in_x64(rounded, *arrays)


def is_one(x: PyTree, dtype: DTypeLike | None = None) -> bool:
    """True if double-floats of such parts are one array: also on the host of a TPU."""
    given: np.dtype = x.dtype if dtype is None else np.dtype(dtype)
    if not on_host(x):
        return has_wide(given)
    # A formula on the host computes with float64, but parts are float64 only where x64 is enabled.
    return given == np.float32 or (given == np.float64 and not jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def _cast(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    if on_host(x):
        return x.astype(dtype, copy=False)
    return in_x64(operator.methodcaller("astype", dtype), x, elementary=True)


def _joined(high: PyTree, low: PyTree) -> jax.Array:
    if on_host(high, low):
        return np.asarray(np.add(high, low, dtype=np.float64))  # type: ignore[return-value]
    parts = _cast(high, np.float64), _cast(low, np.float64)
    return in_x64(operator.add, *parts, elementary=True)


def _sum_of_pairs(axes: tuple[int, ...], *parts: jax.Array) -> pairs.Pair:
    zero = xp.zeros((), parts[0].dtype)
    return lax.reduce(parts, (zero, zero), pairs.add, axes)


def _changes_of_sum(
    axes: tuple[int, ...], parts: Sequence[jax.Array], changes: Changes
) -> tuple[pairs.Pair, Changes]:
    """The `Derivative` of `_sum_of_pairs`."""
    found = [None if change is None else xp.sum(change, axes) for change in changes]
    return differentiable(
        partial(_sum_of_pairs, axes), partial(_changes_of_sum, axes), *parts
    ), found


def split(wide: PyTree) -> pairs.Pair:
    """The two parts of float64 numbers; on devices, where x64 is enabled."""
    high = wide.astype(np.float32)
    low = (wide - high.astype(np.float64)).astype(np.float32)
    if all_finite(low):  # mostly; `where` takes longer
        return high, low
    return high, xp.where(xp.isfinite(high), low, np.float32(0))


def _is_power_of_two(x: float) -> bool:
    return abs(math.frexp(x)[0]) == 0.5


def _quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    if on_host(a, b) and np.count_nonzero(b) == b.size:
        return a / b
    # Divide by 1 where the divisor is zero, and set NaN at the end.
    some = b != 0
    nan = np.asarray(np.nan, np.float64)  # made by JAX, it would raise under `jax_debug_nans`
    return xp.where(some, a / xp.where(some, b, 1.0), nan)


def each_part(x: PyTree, function: Callable[[jax.Array], jax.Array]) -> PyTree:
    """`function` of an array, or of the number or the parts of a double-float: see `map`."""
    return x.map(function) if isinstance(x, DoubleFloat) else function(x)


def where(condition: jax.Array, a: DoubleFloat, b: DoubleFloat) -> DoubleFloat:
    """`jnp.where` of double-floats."""
    x: PyTree = a._wide
    y: PyTree = b._wide
    if type(x) in _HOST and type(y) in _HOST and on_host(condition):
        return DoubleFloat._made(xp.where(condition, x, y))
    return _together(lambda x, y: xp.where(condition, x, y), a, b, beside=condition)


def float_difference(x: jax.Array, y: jax.Array) -> FiniteDouble:
    """`x - y` without rounding, of floats whose difference is finite."""
    if is_one(x) and is_one(y):
        return (DoubleFloat.of(x) - y).finite
    return FiniteDouble(*pairs.two_difference(x, y))


def float_product(x: jax.Array, y: jax.Array) -> FiniteDouble:
    """`x * y` without rounding, of floats whose product is finite."""
    if is_one(x) and is_one(y):
        return (DoubleFloat.of(x) * y).finite
    return FiniteDouble(*pairs.exact_product(x, y))


def stack(doubles: Sequence[DoubleFloat], axis: int = 0) -> DoubleFloat:
    """`jnp.stack` of double-floats."""
    return _together(lambda *x: xp.stack(x, axis), *doubles)


def concatenate(doubles: Sequence[DoubleFloat], axis: int = 0) -> DoubleFloat:
    """`jnp.concatenate` of double-floats."""
    return _together(lambda *x: xp.concatenate(x, axis), *doubles)


def rounded(linear: Callable[..., jax.Array], *doubles: DoubleFloat) -> jax.Array:
    """A linear function of double-floats as a float; it uses nothing else that is an array.

    Of a sum or a difference it is within an ulp, and costs three operations where numbers are
    pairs.
    """
    if all(x.is_one for x in doubles) and not _needs_parts([x._number for x in doubles]):
        return DoubleFloat._made(
            in_x64(linear, *(x._number for x in doubles), elementary=True)
        ).to_float()
    high, low = (linear(*parts) for parts in zip(*doubles, strict=True))
    return high + low


def _needs_parts(beside: PyTree) -> bool:
    """True if numbers of the host, used with these arrays, are in a program without float64."""
    return not on_host(beside) and not has_float64()


def _together(
    function: Callable[..., jax.Array], *doubles: DoubleFloat, beside: PyTree = None
) -> DoubleFloat:
    """`function` of the numbers or of their parts, which uses no arrays but those `beside`."""
    cls = FiniteDouble if all(isinstance(x, FiniteDouble) for x in doubles) else DoubleFloat
    numbers = [x._number for x in doubles if x.is_one]
    if len(numbers) < len(doubles) or _needs_parts(beside):
        return cls(*(function(*parts) for parts in zip(*doubles, strict=True)))
    with elementary_in_x64():
        return cls._made(function(*numbers))


def greater(a: pairs.Pair, b: pairs.Pair) -> pairs.Pair:
    """The greater of two double-floats, as two arrays."""
    x, y = DoubleFloat(*a), DoubleFloat(*b)
    return tuple(where(x < y, y, x))  # type: ignore[return-value]


def greatest_with(
    held: pairs.Pair, x: DoubleFloat, counts: jax.Array, axes: tuple[int, ...]
) -> pairs.Pair:
    """The greatest of double-floats over axes, where a mask holds, and of one that is held."""
    if not x64_enabled() and x.is_on_host and on_host(counts):
        return greatest_on_host(held, x.wide, counts, axes)
    least = xp.asarray(-xp.inf, x.dtype)
    high = xp.max(x.high, axes, initial=least, where=counts)
    # Among the values with the greatest high part, the greatest low part.
    counts = counts & (x.high == xp.broadcast_to(high, x.shape))
    low = xp.max(x.low, axes, initial=least, where=counts)
    return greater(held, (high, xp.where(xp.isfinite(low), low, xp.zeros((), x.dtype))))


def greatest_on_host(held: PyTree, x: PyTree, counts: PyTree, axes: tuple[int, ...]) -> pairs.Pair:
    """`greatest_with` in NumPy, of arrays of float64."""
    if np.count_nonzero(counts) < x.size:
        x = np.where(counts, x, -np.inf)
    greatest = np.maximum.reduce(x, axes, initial=-np.inf)
    return split(np.maximum(np.add(*held, dtype=np.float64), greatest))
