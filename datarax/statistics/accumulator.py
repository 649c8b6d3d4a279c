"""The leaf that metrics are built from."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import numeric, x64_enabled
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed.merge_ops import MetricReduceOp, Words, identity, merge_op, state_dtype
from datarax.numerics.exact import Exact
from datarax.statistics.state import State


class _Initial(NamedTuple):
    """An array as configuration: hashable, compared by value; one value stands for all equal."""

    shape: tuple[int, ...]
    dtype: str
    values: tuple[Any, ...]

    def array(self) -> np.ndarray[Any, Any]:
        # Integers in all their 64 bits, whatever words they are kept in.
        values = np.asarray(self.values, "int64" if self.dtype == "int32" else self.dtype)
        return np.full(self.shape, values[0]) if values.size == 1 else values.reshape(self.shape)


class MetricAccumulator(State):
    """One array, accumulated by sum, maximum or minimum.

    Integer sums are exact up to 2**63 and float sums are compensated, so that no number of
    batches makes them stall, both without x64; bfloat16 and float16 are accumulated in float32.

    Args:
        initial_value: a Python number or a NumPy or JAX array; its shape and dtype are the
            accumulator's. It counts once, however often the accumulator is merged or synced.
        reduce_op: `MetricReduceOp` or its name: "sum", "max", "min".

    Raises:
        MetricInputError: an unknown `reduce_op`, or an `initial_value` that does not fit or is NaN.
        MetricTypeError: an `initial_value` that is traced, or no number.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import MetricAccumulator, MetricReduceOp
        >>> tokens = MetricAccumulator(0).update(jnp.array([3, 4]))
        >>> peak = MetricAccumulator(-jnp.inf, MetricReduceOp.max).update(2.5)
        >>> print(tokens.value, peak.value)
        7 2.5
    """

    op: MetricReduceOp
    initial: _Initial
    words: Words

    def __init__(
        self, initial_value: Any = 0, reduce_op: MetricReduceOp | str = MetricReduceOp.sum
    ):
        if reduce_op not in tuple(MetricReduceOp):
            allowed = ", ".join(repr(op.value) for op in MetricReduceOp)
            raise MetricInputError(f"MetricAccumulator: reduce_op={reduce_op!r}; use {allowed}")
        if isinstance(initial_value, Tracer):
            raise MetricTypeError(
                "MetricAccumulator: initial_value is traced, and it is configuration: pass a "
                "Python number or a NumPy array instead"
            )
        start = np.asarray(initial_value)
        whole = start.dtype == np.bool_ or jnp.issubdtype(start.dtype, jnp.integer)
        if not (whole or jnp.issubdtype(start.dtype, jnp.floating)):
            raise MetricTypeError(f"MetricAccumulator: initial_value has dtype {start.dtype}")
        self.op = MetricReduceOp(reduce_op)
        dtype = state_dtype(self.op, start.dtype)
        wide = whole and self.op is MetricReduceOp.sum
        values = start.astype(np.int64 if wide else dtype).reshape(-1)
        if whole and (values != start.reshape(-1)).any():
            raise MetricInputError(
                f"MetricAccumulator: initial_value={initial_value!r} does not fit {values.dtype}"
            )
        if not whole and np.isnan(values).any():
            raise MetricInputError("MetricAccumulator: initial_value is NaN; all results would be")
        if values.size and (values == values[0]).all():
            values = values[:1]
        self.initial = _Initial(start.shape, dtype.name, tuple(values.tolist()))
        self.words = identity(self.op, start.shape, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `value`."""
        return self.initial.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype values are kept in; an integer sum of int32 counts to 2**63 all the same."""
        return np.dtype(self.initial.dtype)

    def update(self, value: Any, *, where: Any = None) -> Self:
        """A new accumulator with `value` folded in.

        Args:
            value: of shape (..., *shape): leading axes are a batch, and are reduced.
            where: a mask over those leading axes; what it excludes is not looked at.

        Raises:
            MetricInputError: a shape that does not end in the accumulator's, or an integer that
                does not fit.
            MetricTypeError: floats into an integer accumulator, or, for a maximum or minimum,
                integers of a dtype that it does not hold.
        """
        if isinstance(value, Exact):
            return self._with(
                merge_op(self.op, self.dtype).pairwise(self.words, _words(value, self))
            )
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            value = _python_int(int(value), self)
            if isinstance(value, tuple):
                return self._with(merge_op(self.op, self.dtype).pairwise(self.words, value))
        x = numeric(value, "MetricAccumulator: value")
        batch = x.ndim - len(self.shape)
        if batch < 0 or x.shape[batch:] != self.shape:
            raise MetricInputError(
                f"MetricAccumulator of shape {self.shape} got a value of shape {x.shape}; "
                f"expected a shape that ends in {self.shape}"
            )
        if jnp.issubdtype(self.dtype, jnp.integer) and not (
            x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer)
        ):
            raise MetricTypeError(
                f"MetricAccumulator of integers got a value of dtype {x.dtype}; give it a float "
                f"initial_value, or round the value"
            )
        whole = jnp.issubdtype(self.dtype, jnp.integer)
        if whole and self.op is not MetricReduceOp.sum and not np.can_cast(x.dtype, self.dtype):
            raise MetricTypeError(
                f"MetricAccumulator: the {self.op} of {self.dtype} got a value of dtype {x.dtype}; "
                f"give it an initial_value of a dtype that holds both"
            )
        row = merge_op(self.op, self.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
            x = x.astype(jnp.float32)
        if self.op is not MetricReduceOp.sum:
            x = x.astype(self.dtype)
        if where is not None:
            mask = jnp.asarray(where, jnp.bool_)
            fits = all(n in (1, m) for n, m in zip(mask.shape, x.shape, strict=False))
            if mask.ndim > batch or not fits:
                raise MetricInputError(
                    f"MetricAccumulator: where of shape {mask.shape} for a value of shape "
                    f"{x.shape}; expected a mask over its leading {batch} axes"
                )
            mask = jax.lax.expand_dims(mask, range(mask.ndim, x.ndim))
            neutral = identity(self.op, (), self.dtype)[0]
            x = jnp.where(mask, x, jnp.asarray(neutral, x.dtype))
        folded = row.over_axis(x, tuple(range(batch)), self.dtype)
        return self._with(row.pairwise(self.words, folded))

    @property
    def value(self) -> Any:
        """What has been accumulated, the initial value included.

        Sums of integers are an `Exact` where x64 is disabled; all else is an array.
        """
        words = self._started()
        if len(words) == 1 or jnp.issubdtype(self.dtype, jnp.floating):
            return words[0]
        return Exact(*words)

    @property
    def exact(self) -> Any:
        """As `value`, but float sums with the part that `value` rounds away, as `Exact`."""
        words = self._started()
        return Exact(*words) if len(words) == 2 and self.dtype.itemsize == 4 else words[0]

    def _started(self) -> Words:
        """The words, the initial value included."""
        start = self.initial.array()
        words = self.words
        neutral = identity(self.op, (), self.dtype)[0]
        if not np.array_equal(start, np.broadcast_to(neutral, start.shape)):
            words = merge_op(self.op, self.dtype).pairwise(words, _initial_words(self, start))
        return tuple(map(jnp.asarray, words))

    def _with(self, words: Words) -> Self:
        return self.replace(words=tuple(words))

    def _merge(self, other: Any) -> Self:
        return self._with(merge_op(self.op, self.dtype).pairwise(self.words, other.words))

    def _reset(self) -> Self:
        empty = identity(self.op, self.shape, self.dtype)
        # A stacked state (one copy a device, say) stays stacked.
        shapes = [jnp.shape(word) for word in self.words]
        if all(shape == self.shape for shape in shapes):
            return self._with(empty)
        return self._with(tuple(np.broadcast_to(e, s) for e, s in zip(empty, shapes, strict=True)))

    def _over_mesh(self) -> tuple[str, list[jax.Array]]:
        words = tuple(map(jnp.asarray, self.words))
        return merge_op(self.op, self.dtype).over_mesh(words)

    def _from_mesh(self, arrays: list[jax.Array]) -> Self:
        return self._with(merge_op(self.op, self.dtype).from_mesh(arrays, self.dtype))


def _initial_words(acc: MetricAccumulator, start: np.ndarray[Any, Any]) -> Words:
    if len(acc.words) == 1:
        return (jnp.asarray(start, acc.dtype),)
    if jnp.issubdtype(acc.dtype, jnp.integer):
        return jnp.asarray((start >> 32).astype(np.int32)), jnp.asarray(start.astype(np.uint32))
    return jnp.asarray(start), jnp.zeros(start.shape, acc.dtype)


def _python_int(value: int, acc: MetricAccumulator) -> Any:
    """A Python integer of any size: words for a sum of integers, else what JAX is to make of it."""
    info = np.iinfo(np.int32)
    if acc.op is not MetricReduceOp.sum and jnp.issubdtype(acc.dtype, jnp.integer):
        info = np.iinfo(acc.dtype)
        if not info.min <= value <= info.max:
            raise MetricInputError(
                f"MetricAccumulator: {value} does not fit the {acc.op} of {acc.dtype}"
            )
        return jnp.asarray(value, acc.dtype)
    if info.min <= value <= info.max:
        return value
    if acc.op is MetricReduceOp.sum and acc.dtype == np.int32 and acc.shape == ():
        if not -(2**63) <= value < 2**63:
            raise MetricInputError(f"MetricAccumulator: {value} does not fit 64 bits")
        high, low = divmod(value, 2**32)
        return jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.uint32)
    return value if x64_enabled() else float(value)


def _words(value: Exact, acc: MetricAccumulator) -> Words:
    if value.shape != acc.shape or acc.op is not MetricReduceOp.sum or len(acc.words) != 2:
        raise MetricInputError(
            f"an Exact of shape {value.shape} can only be added to a sum of that shape; "
            f"this is a {acc.op} of shape {acc.shape}"
        )
    if jnp.issubdtype(acc.dtype, jnp.integer):
        return value.high, value.low
    return value.as_pair()
