"""`Exact`: counts and sums that are too large for a 32-bit dtype, without rounding."""

import operator
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import jax
import numpy as np
from jax.typing import DTypeLike

from datarax._typing import Array, ArrayLike, PyTree
from datarax._xp import xp
from datarax.numerics import pairs
from datarax.numerics.double_float import DoubleFloat, split
from datarax.numerics.limbs import Limbs, double_from_limbs, limbs_from_int


@jax.tree_util.register_pytree_node_class
class Exact:
    """An array of exact numbers. Each is stored in two 32-bit parts.

    The value of a count is an `Exact` if x64 is disabled. It is a pytree of two arrays, so it
    passes through `jit`, `scan` and collectives.

    On the host, `int(x)`, `float(x)` and `np.asarray(x)` are exact; the array has dtype int64, or
    float64 if it may hold fractions. Comparisons are exact. The quotient of two is rounded once.
    All other arithmetic converts it to the nearest float: of parts that are NumPy arrays to
    float64, of JAX arrays to float32. JAX functions convert it to the nearest float32.

    Args:
        high: the upper 32 bits of integers, int32; or the upper part of double-floats.
        low: the lower 32 bits, uint32, of the same shape; or the lower part of double-floats.

    Example:
        >>> import datarax
        >>> tokens = datarax.MetricAccumulator(0).update(2_000_000_000).update(2_000_000_000)
        >>> print(int(tokens.value), tokens.value > 3_999_999_999)
        4000000000 True
    """

    __slots__ = ("high", "low")
    # NumPy arrays defer to this class in mixed arithmetic.
    __array_priority__ = 200
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __init__(self, high: PyTree, low: PyTree):
        self.high, self.low = high, low

    @staticmethod
    def of(whole: ArrayLike) -> "Exact":
        """Integers of 64 bits, as a NumPy array."""
        whole = np.asarray(whole, np.int64)
        return Exact((whole >> 32).astype(np.int32), whole.astype(np.uint32))

    @classmethod
    def of_parts(cls, high: PyTree, low: PyTree) -> "Self | jax.Array":
        """Numbers with these parts of 32 bits; of those of float64, the upper part."""
        return cls(high, low) if high.dtype.itemsize == 4 else high

    def tree_flatten(self) -> tuple[Limbs, None]:
        return (self.high, self.low), None

    @classmethod
    def tree_unflatten(cls, _: None, words: PyTree) -> "Exact":
        return cls(*words)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.high.shape

    @property
    def ndim(self) -> int:
        return self.high.ndim

    @property
    def size(self) -> int:
        return self.high.size

    @property
    def dtype(self) -> np.dtype:
        """The dtype of `np.asarray(x)`: int64, or float64 if fractions are possible."""
        return np.dtype("int64" if self.is_integer else "float64")

    @property
    def is_integer(self) -> bool:
        """True if the numbers are integers: the parts are limbs, not a double-float."""
        return xp.issubdtype(self.low.dtype, xp.integer)

    def to_double(self) -> DoubleFloat:
        """The numbers as double-floats."""
        if self.is_integer:
            return double_from_limbs((self.high, self.low))
        return DoubleFloat(self.high, self.low)

    def to_float(self) -> jax.Array:
        """The nearest float: on the host of float64, on devices float32."""
        return self.to_double().to_float()

    def __jax_array__(self) -> jax.Array:
        return jax.numpy.asarray(self.to_double().high)

    def block_until_ready(self) -> "Exact":
        jax.block_until_ready((self.high, self.low))
        return self

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        high, low = np.asarray(self.high), np.asarray(self.low)
        if self.is_integer:
            exact = (high.astype(np.int64) << 32) | low.astype(np.int64)
        else:
            exact = high.astype(np.float64) + low.astype(np.float64)
        return np.asarray(exact, dtype)

    def item(self) -> int | float:
        return np.asarray(self).item()

    def tolist(self) -> PyTree:
        return np.asarray(self).tolist()

    def __int__(self) -> int:
        return int(np.asarray(self).item())

    def __index__(self) -> int:
        return operator.index(np.asarray(self).item())

    def __float__(self) -> float:
        return float(np.asarray(self).item())

    def __bool__(self) -> bool:
        return bool(np.asarray(self).item())

    def __len__(self) -> int:
        return len(self.high)

    def __getitem__(self, index: PyTree) -> "Exact":
        return Exact(self.high[index], self.low[index])

    def __iter__(self) -> Iterator["Exact"]:
        return (self[i] for i in range(len(self)))  # JAX clamps an index past the end

    def __repr__(self) -> str:
        if isinstance(self.high, jax.core.Tracer):  # type: ignore[attr-defined]
            return f"Exact({self.high}, {self.low})"
        return str(np.asarray(self))

    def __format__(self, spec: str) -> str:
        return format(np.asarray(self).item() if self.ndim == 0 else np.asarray(self), spec)

    def __truediv__(self, other: "Operand") -> jax.Array:
        other = _exact(other)
        if isinstance(other, Exact):
            return (self.to_double() / other.to_double()).to_float()
        return self.to_float() / other

    def _order(self, other: "Operand") -> tuple[jax.Array, jax.Array]:
        """Two masks: where self is less than `other`, and where it equals `other`."""
        other = _exact(other)
        if not isinstance(other, Exact):
            return self.to_float() < other, self.to_float() == other
        a, b = self, other
        # Parts are compared in turn, so both must be of one kind: limbs, or double-floats.
        if a.is_integer != b.is_integer:
            a, b = a.to_double(), b.to_double()
        x, y = (a.high, a.low), (b.high, b.low)
        return pairs.less(x, y), pairs.equal(x, y)

    def __eq__(self, other: "Operand") -> jax.Array:  # type: ignore[override]
        return self._order(other)[1]

    def __ne__(self, other: "Operand") -> jax.Array:  # type: ignore[override]
        return ~self._order(other)[1]

    def __lt__(self, other: "Operand") -> jax.Array:
        return self._order(other)[0]

    def __le__(self, other: "Operand") -> jax.Array:
        less, same = self._order(other)
        return less | same

    def __gt__(self, other: "Operand") -> jax.Array:
        return ~(self <= other)

    def __ge__(self, other: "Operand") -> jax.Array:
        return ~self._order(other)[0]


Operand = Exact | Array | bool | int | float


def whole_or_float(double: DoubleFloat) -> "Exact | jax.Array":
    """Sums of weights, which on the host are integers if all of them are whole numbers.

    They stay floats above what repeated addition keeps exactly: `2**48` of float32 parts, `2**62`
    of float64 parts. Within a program, where only `compute` reads them, they are as of `exact`.
    """
    if not double.is_on_host:
        return exact(double)
    high, low = double
    most = 2.0**48 if double.dtype.itemsize == 4 else 2.0**62
    fits = (high == np.round(high)) & (low == np.round(low)) & (np.abs(high) <= most)
    whole = [np.where(fits, part, 0).astype(np.int64) for part in (high, low)]
    return WholeOrFloat(Exact.of(whole[0] + whole[1]), double, ~fits.all())


def exact(double: DoubleFloat) -> "Exact | jax.Array":
    """A double-float without rounding: an `Exact` of both parts; with x64, the upper part."""
    return Exact(double.high, double.low) if double.dtype.itemsize == 4 else double.high


@jax.tree_util.register_pytree_node_class
class Kept(Exact):
    """Numbers of the data, such as a greatest one, of which both parts keep 48 bits.

    As a NumPy array, each is the shortest decimal number with these parts, if one of 14 digits has
    them: so 0.1 as a float64 is 0.1 again. Otherwise, it is the sum of both parts, as of an
    `Exact`. A number of one part is exact.
    """

    __slots__ = ()

    @staticmethod
    def value_of(double: DoubleFloat) -> jax.Array:
        """Numbers in one array: of NumPy as `Kept` gives it, and in a program the upper part."""
        return xp.asarray(Kept.of_parts(*double)) if double.is_on_host else double.high

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        exact = super().__array__()
        if np.count_nonzero(self.low):
            near = [float(f"{x:.14g}") for x in exact.flat]
            near = np.reshape(np.asarray(near, np.float64), exact.shape)
            high, low = split(near)
            same = (high == np.asarray(self.high)) & (low == np.asarray(self.low))
            exact = np.where(same, near, exact)
        return np.asarray(exact, dtype)

    def __getitem__(self, index: PyTree) -> "Kept":
        return Kept(self.high[index], self.low[index])


@jax.tree_util.register_pytree_node_class
class WholeOrFloat(Exact):
    """Sums of numbers that are exact integers if only integers were added, and otherwise floats.

    Which of the two is not known until the program has run, so both are held. As an `Exact` and in
    arithmetic it is the float. On the host, it is an array of int64 or of float64: also of float64
    if a sum of integers does not fit 64 bits.
    """

    __slots__ = ("is_float", "whole")

    def __init__(self, whole: PyTree, double: DoubleFloat, is_float: jax.Array):
        """
        Args:
            whole: the sums of the integers: an `Exact`, or an array of int64.
            double: the sums of all numbers.
            is_float: whether any number was not an integer; of shape ().
        """
        super().__init__(double.high, double.low)
        self.whole, self.is_float = whole, is_float

    def tree_flatten(self) -> tuple[PyTree, None]:
        return (self.whole, self.high, self.low, self.is_float), None

    @classmethod
    def tree_unflatten(cls, _: None, words: PyTree) -> "WholeOrFloat":
        # JAX may pass any objects as words, so nothing is computed here.
        self = object.__new__(cls)
        self.whole, self.high, self.low, self.is_float = words
        return self

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        whole, floats = np.asarray(self.whole), super().__array__()
        # A sum that has wrapped differs from the float by a multiple of 2**64.
        is_float = np.asarray(self.is_float).any() or (np.abs(floats - whole) > 2**63).any()
        return np.asarray(floats if is_float else whole, dtype, copy=copy)

    def __getitem__(self, index: PyTree) -> "WholeOrFloat":
        double = DoubleFloat(self.high[index], self.low[index])
        return WholeOrFloat(self.whole[index], double, self.is_float)

    def nan_where(self, condition: jax.Array) -> "WholeOrFloat":
        """NaN, which is a float, where the condition holds."""
        double = self.to_double().map(lambda x: xp.where(condition, xp.asarray(xp.nan, x.dtype), x))
        return WholeOrFloat(self.whole, double, self.is_float | xp.any(condition))


def _exact(x: Operand) -> Operand:
    """Converts integers to `Exact`; returns everything else unchanged."""
    if isinstance(x, bool | int | np.integer):
        return Exact.of(x) if -(2**63) <= int(x) < 2**63 else x
    if not (isinstance(x, Array) and (x.dtype == np.bool_ or xp.issubdtype(x.dtype, xp.integer))):
        return x
    return Exact.of(x) if isinstance(x, np.ndarray) else Exact(*limbs_from_int(x))


def _arithmetic(name: str, *, reflected: bool) -> Callable[[Exact, Operand], jax.Array]:
    """The method for an operator, such as `__add__`: it works on the nearest float32."""
    function = getattr(operator, name)

    def method(self: Exact, other: Operand) -> jax.Array:
        other = _exact(other)
        a, b = self.to_float(), other.to_float() if isinstance(other, Exact) else other
        return function(b, a) if reflected else function(a, b)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow"):
    setattr(Exact, f"__{_name}__", _arithmetic(_name, reflected=False))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Exact, f"__r{_name}__", _arithmetic(_name, reflected=True))
