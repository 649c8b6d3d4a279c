"""`MetricAccumulator`: the sum, maximum or minimum of all values it was updated with."""

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import is_integer, numeric, x64_enabled
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree
from datarax._x64 import made_once
from datarax._xp import lax, xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState, Travel
from datarax.algebra.rows import Merging, Packed, RowTerms, Target, rows_last
from datarax.distributed.merge_ops import (
    MergeOp,
    MetricReduceOp,
    Parts,
    identity,
    merge_op,
    state_dtype,
)
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.scaled_double import ScaledDouble, multiplied


class Constant(NamedTuple):
    """A hashable copy of an array, compared by value, so that an array can be configuration.

    If all elements are equal, only one is stored.
    """

    shape: tuple[int, ...]
    dtype: str
    """The name of the dtype. A default dtype is stored as "float" or "int", so that the constant is
    the same with x64 and without."""
    values: tuple[bool | int | float, ...]
    """The elements in row-major order, or a single one if all are equal."""

    @classmethod
    def of(cls, array: np.ndarray) -> "Constant":
        """The constant that equals an array."""
        dtype = array.dtype.name
        for kind in (float, int):
            if array.dtype in (np.dtype(kind), jax.dtypes.canonicalize_dtype(kind)):
                dtype = kind.__name__
        values = array.reshape(-1)
        # A table of a million zeros stays one number, which is cheap to hash and to compare.
        if values.size and (values == values[0]).all():
            values = values[:1]
        return cls(array.shape, dtype, tuple(values.tolist()))

    def array(self) -> np.ndarray:
        """The array, read-only."""
        values = np.asarray(self.values, xp.dtype(self.dtype))
        if values.size == 1:
            return np.broadcast_to(values[0], self.shape)
        return values.reshape(self.shape)

    def __repr__(self) -> str:
        values = repr(self.values[0] if len(self.values) == 1 else list(self.values))
        if len(self.values) > 16:
            digest = hashlib.sha256(repr(self.values).encode()).hexdigest()[:8]
            values = f"{len(self.values)} values (sha256 {digest})"
        named = values if self.dtype in ("float", "int") else f"{self.dtype}({values})"
        return named if self.shape == () else f"{named} of shape {self.shape}"


class MetricAccumulator(ElementwiseState, kw_only=False):
    """An array that is accumulated by sum, maximum or minimum.

    Integer sums are exact up to 2**63. Float sums are compensated: they keep growing, however many
    batches there are. Neither needs x64. Values in bfloat16 and float16 are accumulated in float32.

    Args:
        initial_value: a Python number or a NumPy or JAX array. The accumulator has its shape and
            dtype. It counts once, however often the accumulator is merged or synced.
        reduce_op: `MetricReduceOp` or its name: "sum", "max", "min".

    Raises:
        MetricInputError: `reduce_op` is unknown, or `initial_value` is NaN or too large.
        MetricTypeError: `initial_value` is traced, or is not a number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import MetricAccumulator, MetricReduceOp
        >>> tokens = MetricAccumulator(0).update(jnp.array([3, 4]))
        >>> peak = MetricAccumulator(-jnp.inf, MetricReduceOp.max).update(2.5)
        >>> print(tokens.value, peak.value)
        7 2.5
    """

    initial_value: Any = 0
    reduce_op: MetricReduceOp | str = MetricReduceOp.sum

    parts: Parts = state()
    """One array, or two for a number that one does not hold: see `datarax.distributed.merge_ops`.
    They leave out `initial_value`, which is added when the value is read, so that it counts once.
    """

    def __post_init__(self) -> None:
        if self.reduce_op not in tuple(MetricReduceOp):
            allowed = ", ".join(repr(op.value) for op in MetricReduceOp)
            raise MetricInputError(
                f"MetricAccumulator: reduce_op={self.reduce_op!r}; use {allowed}"
            )
        self.reduce_op = MetricReduceOp(self.reduce_op)
        if not isinstance(self.initial_value, Constant):
            self.initial_value = Constant.of(_checked_initial(self.initial_value))
        dtype = state_dtype(self.reduce_op, np.dtype(xp.dtype(self.initial_value.dtype)))
        start = self.initial_value.array()
        whole = xp.issubdtype(dtype, xp.integer)
        # A sum of integers holds 64 bits, also where its dtype is int32: see `dtype`.
        values = start.astype(np.int64 if whole and self.reduce_op == "sum" else dtype)
        if whole and (values != start).any():
            raise MetricInputError(
                f"MetricAccumulator: initial_value={start.tolist()} does not fit {values.dtype}"
            )
        super().__post_init__()

    def empty(self) -> dict[str, Parts]:
        op: Any = self.reduce_op
        return {"parts": identity(op, self.initial_value.shape, self._state_dtype)}

    @property
    def _state_dtype(self) -> np.dtype:
        return state_dtype(
            MetricReduceOp(self.reduce_op), np.dtype(xp.dtype(self.initial_value.dtype))
        )

    @property
    def is_extreme(self) -> bool:  # type: ignore[override]
        return self.reduce_op != MetricReduceOp.sum

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `value`."""
        return self.initial_value.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the first part. An integer sum of dtype int32 has two parts: 64 bits."""
        return np.dtype(self.parts[0].dtype)

    @property
    def _is_whole(self) -> bool:
        return xp.issubdtype(self.dtype, xp.integer)

    @property
    def _row(self) -> MergeOp:
        """The record of the merge table for this accumulator."""
        op: Any = self.reduce_op
        return merge_op(op, self.dtype)

    def update(self, value: ArrayLike | Exact, *, where: ArrayLike | None = None) -> Self:
        """A new accumulator with `value` folded in.

        Args:
            value: of shape (..., *shape). The leading axes are a batch, and are reduced.
            where: a mask over the leading axes. Values that it excludes are ignored, even NaN.

        Raises:
            MetricInputError: the shape of `value` does not end in the shape of the accumulator, or
                an integer does not fit.
            MetricTypeError: `value` holds floats and the accumulator integers; or, for a maximum or
                minimum, integers of a dtype that does not fit the accumulator.
        """
        # JAX would reject or wrap a Python integer that does not fit 32 bits.
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            value = _python_int(int(value), self)
        if isinstance(value, Exact):
            return self.replace(parts=self._row.pairwise(self.parts, _parts(value, self)))
        # What a formula gives on the host, in float64, is not rounded.
        is_given = isinstance(value, np.ndarray) and value.dtype == np.float64
        x: Any = value if is_given else numeric(value, "MetricAccumulator: value")
        shape, dtype = self.shape, self.dtype
        batch = x.ndim - len(shape)
        if batch < 0 or x.shape[batch:] != shape:
            raise MetricInputError(
                f"MetricAccumulator of shape {self.shape} got a value of shape {x.shape}; "
                f"expected a shape that ends in {self.shape}"
            )
        whole, is_sum = self._is_whole, self.reduce_op is MetricReduceOp.sum
        if whole and not is_integer(x):
            raise MetricTypeError(
                f"MetricAccumulator of integers got a value of dtype {x.dtype}; give it a float "
                f"initial_value, or round the value"
            )
        if whole and not is_sum and x.dtype != dtype and not np.can_cast(x.dtype, dtype):
            raise MetricTypeError(
                f"MetricAccumulator: the {self.reduce_op} of {self.dtype} got a value of dtype "
                f"{x.dtype}; give it an initial_value of a dtype that holds both"
            )
        row = self._row
        # Half precision is widened. A maximum or minimum then converts values to its own dtype. A
        # sum does not: its merge operation sums integers exactly before it converts them.
        if xp.issubdtype(x.dtype, xp.floating):
            x = x.astype(np.promote_types(x.dtype, np.float32), copy=False)
        if not is_sum:
            x = x.astype(dtype)
        if where is not None:
            mask = xp.asarray(where, xp.bool_)
            fits = all(n in (1, m) for n, m in zip(mask.shape, x.shape, strict=False))
            if mask.ndim > batch or not fits:
                raise MetricInputError(
                    f"MetricAccumulator: where of shape {mask.shape} for a value of shape "
                    f"{x.shape}; expected a mask over its leading {batch} axes"
                )
            mask = lax.expand_dims(mask, range(mask.ndim, x.ndim))
            # An excluded value becomes the identity, which changes no sum, maximum or minimum.
            neutral = identity(MetricReduceOp(self.reduce_op), (), self.dtype)[0]
            x = xp.where(mask, x, xp.asarray(neutral, x.dtype))
        # Reduce the batch first, then merge its parts with those of the accumulator.
        folded = self._over_batch(x, batch)
        return self.with_parts({"parts": row.pairwise(self.parts, folded)})

    def _over_batch(self, x: jax.Array, batch: int) -> Parts:
        """The parts of an array reduced over its first `batch` axes."""
        return self._row.over_axis(x, tuple(range(batch)), self.dtype)

    @property
    def value(self) -> Any:
        """The accumulated value, with the initial value.

        An array; but an `Exact` for a sum of integers without x64.
        """
        parts = self._started()
        return Exact(*parts) if len(parts) == 2 and self._is_whole else parts[0]

    @property
    def exact(self) -> Any:
        """The value without rounding: for a float sum, an `Exact` that holds both parts."""
        parts = self._started()
        return Exact.of_parts(*parts) if len(parts) == 2 else parts[0]

    def _started(self) -> Parts:
        """The parts, merged with the initial value unless it is the identity."""
        parts, op = self.parts, self.reduce_op
        # For the usual start, the identity, no arithmetic is needed.
        if not _is_neutral(self.initial_value, op, self.dtype):
            parts = self._row.pairwise(parts, _initial_parts(self, self.initial_value.array()))
        return tuple(map(xp.asarray, parts))

    @property
    def double(self) -> DoubleFloat:
        """A sum of floats as a double-float: it keeps the digits that `value` rounds away."""
        return DoubleFloat(*self._started())

    def plus(self, value: DoubleFloat) -> Self:
        """A copy of this sum of floats with a double-float added."""
        return self.with_value(DoubleFloat(*self.parts) + value)

    def with_value(self, value: DoubleFloat) -> Self:
        """A copy of this sum of floats that holds `value`."""
        return self.with_parts({"parts": tuple(value)})

    def described(self) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        config, parts = super().described()
        return config | {"dtype": self.dtype.name}, parts  # it differs with x64

    def combine(self, other: Self) -> Self:
        return self.with_parts({"parts": self._row.pairwise(self.parts, other.parts)})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # An extreme does not depend on how often its value came.
        if self.reduce_op is not MetricReduceOp.sum:
            return self
        if self._is_whole:
            raise MetricTypeError(
                "a sum of integers cannot be multiplied by a factor, so it cannot lose weight with "
                "time; make it a sum of floats: MetricAccumulator(0.0)"
            )
        return self.with_value(multiplied(DoubleFloat(*map(xp.asarray, self.parts)), factor))

    def float_sums(self) -> list[jax.Array]:
        # The high part alone: it is not finite if the sum is not.
        is_sum = self.reduce_op is MetricReduceOp.sum
        return [self.parts[0]] if is_sum and not self._is_whole else []

    def by_row(self, rows: int) -> "RowValues":
        # Without the initial value, which counts once and not for each row.
        return _row_values(self.shape, self.dtype, self.reduce_op)

    def empty_element(self) -> "MetricAccumulator":
        return MetricAccumulator(np.zeros((), self.dtype), self.reduce_op)

    @property
    def _all_reduce(self) -> tuple[Callable[..., Any], Callable[..., Parts]] | None:
        """What puts the parts into an all-reduce, and takes them out; None if elements travel."""
        row = self._row
        # Narrow integers would travel as 32 bits.
        if row.to_mesh is None or row.from_mesh is None or self.dtype.itemsize < 4:
            return None
        return row.to_mesh, row.from_mesh

    def to_mesh(self) -> list[Travel]:
        if self._all_reduce is None:
            return super().to_mesh()
        to_mesh, _ = self._all_reduce
        return [Travel(*to_mesh(tuple(map(xp.asarray, self.parts))))]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        if self._all_reduce is None:
            return super().from_mesh(arrays)
        _, from_mesh = self._all_reduce
        return self.with_parts({"parts": from_mesh(arrays, self.dtype)})


class RowValues(RowTerms, MetricAccumulator):
    """The sums, maxima or minima of the values of each row of a batch."""

    def empty(self) -> dict[str, Parts]:
        return {"parts": identity(MetricReduceOp(self.reduce_op), (), self._state_dtype)}

    @property
    def num_rows(self) -> int | None:
        return self.parts[0].shape[-1] if self.parts[0].ndim else None

    def _over_batch(self, x: jax.Array, batch: int) -> Parts:
        parts = self._row.over_axis(x, tuple(range(1, batch)), self.dtype)
        return tuple(map(rows_last, parts))

    def added_to(self, stacked: MetricAccumulator, target: Target) -> Merging:
        row = self._row
        if row.to_mesh is None or row.from_mesh is None:
            (folded,) = yield Packed("sum", [DoubleFloat(*self.parts)])
        else:
            how, arrays = row.to_mesh(self.parts)
            merged = []
            for x in arrays:
                merged += yield Packed(how, [x])
            if how == "max":  # a place without rows gets the identity
                _, neutral = row.to_mesh(tuple(map(xp.asarray, row.identity((), self.dtype))))
                merged = [xp.maximum(x, e) for x, e in zip(merged, neutral, strict=True)]
            folded = row.from_mesh(merged, self.dtype)
        return stacked.with_parts({"parts": row.pairwise(stacked.parts, folded)})


@made_once
def _row_values(shape: tuple[int, ...], dtype: np.dtype, op: Any) -> RowValues:
    """`MetricAccumulator.by_row`."""
    neutral = identity(op, (), dtype)[0].item()
    return RowValues(Constant(shape, dtype.name, (neutral,)), op)


@lru_cache(maxsize=4096)
def _is_neutral(start: Constant, op: Any, dtype: np.dtype) -> bool:
    neutral = identity(op, (), dtype)[0]
    return np.array_equal(start.array(), np.broadcast_to(neutral, start.shape))


def _checked_initial(value: ArrayLike) -> np.ndarray:
    """The initial value as a NumPy array of booleans, integers or floats without NaN."""
    if isinstance(value, Tracer):
        raise MetricTypeError(
            "MetricAccumulator: initial_value is traced, but it is configuration: pass a "
            "Python number or a NumPy array instead"
        )
    start = np.asarray(value)
    whole = start.dtype == np.bool_ or xp.issubdtype(start.dtype, xp.integer)
    if not (whole or xp.issubdtype(start.dtype, xp.floating)):
        raise MetricTypeError(f"MetricAccumulator: initial_value has dtype {start.dtype}")
    if not whole and np.isnan(start).any():
        raise MetricInputError("MetricAccumulator: initial_value is NaN: all results would be NaN")
    return start


def _initial_parts(acc: MetricAccumulator, start: np.ndarray) -> Parts:
    """The initial value in the form of the parts: a value, two limbs, or a double-float."""
    # Also a sum of integers with x64, which one int64 holds.
    if len(acc.parts) == 1:
        return (xp.asarray(start, acc.dtype),)
    if acc._is_whole:
        return _parts(Exact.of(start), acc)
    return xp.asarray(start), xp.zeros(start.shape, acc.dtype)


def _python_int(value: int, acc: MetricAccumulator) -> ArrayLike | Exact:
    """Converts a Python integer of any size, which JAX may not be able to do.

    Returns an `Exact` for a scalar sum of integers if 32 bits are too few; else an array or a
    number.
    """
    info = np.iinfo(np.int32)
    if acc.reduce_op is not MetricReduceOp.sum and acc._is_whole:
        info = np.iinfo(acc.dtype)
        if not info.min <= value <= info.max:
            raise MetricInputError(
                f"MetricAccumulator: {value} does not fit the {acc.reduce_op} of {acc.dtype}"
            )
        return xp.asarray(value, acc.dtype)
    if info.min <= value <= info.max:
        return value
    if acc.reduce_op is MetricReduceOp.sum and acc.dtype == np.int32 and acc.shape == ():
        if not -(2**63) <= value < 2**63:
            raise MetricInputError(f"MetricAccumulator: {value} does not fit 64 bits")
        return Exact.of(value)
    # JAX takes no such integer, and a sum of floats rounds it in any case.
    return value if x64_enabled() else float(value)


def _parts(value: Exact, acc: MetricAccumulator) -> Parts:
    """The parts of an `Exact`, in the form of the parts of the accumulator."""
    is_sum = acc.reduce_op is MetricReduceOp.sum and (acc._is_whole or len(acc.parts) == 2)
    if not is_sum or (value.shape != acc.shape and not isinstance(acc, RowTerms)):
        raise MetricInputError(
            f"an Exact of shape {value.shape} can only be added to a sum of that shape; "
            f"this is a {acc.reduce_op} of shape {acc.shape}"
        )
    if not acc._is_whole:
        return tuple(value.to_double())
    if len(acc.parts) == 2:
        return value.high, value.low
    high, low = (x.astype(acc.dtype) for x in (value.high, value.low))  # int64, with x64
    return ((high << 32) | low,)
