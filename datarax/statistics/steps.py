"""What is newest, by a step that is given: the last value, and a total in which older ones fade."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax import numerics as nx
from datarax._checks import as_float, default_float, is_integer, numeric, rows_weight
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.state import State

_FIRST = -(2**31)


def _none(dtype: Any) -> Any:
    """The maximum of nothing."""
    return identity(MetricReduceOp.max, (), np.dtype(dtype))[0]


class Newest(State):
    """The value of the greatest step; of several, the greatest."""

    step: jax.Array
    value: jax.Array

    def __init__(self):
        self.step, self.value = _none("int32"), _none(default_float())

    def of(self, x: jax.Array, step: jax.Array, counts: jax.Array) -> Self:
        """The newest of a batch, of those that count."""
        newest = jnp.max(step, initial=jnp.int32(_FIRST), where=counts)
        low = jnp.asarray(-jnp.inf, x.dtype)
        # -0.0 becomes 0.0, as a maximum of both is either.
        x = jnp.where(x == 0, jnp.zeros((), x.dtype), x)
        last = jnp.max(x, initial=low, where=counts & (step == newest))
        return self.replace(step=newest, value=last)

    def _merge(self, other: Any) -> Self:
        a, b = self, other
        greater = jnp.where(a.step < b.step, b.value, jnp.maximum(a.value, b.value))
        return self.replace(
            step=jnp.maximum(a.step, b.step),
            value=jnp.where(a.step > b.step, a.value, greater),
        )

    def _reset(self) -> Self:
        return _stacked(type(self)(), self)


class Faded(State):
    """The sums of `w * x` and of `w`, each times `decay` for every step since."""

    step: jax.Array
    total: nx.Pair
    weight: nx.Pair

    def __init__(self, decay: float):
        self.decay = decay
        zero = zeros((), np.dtype(default_float()).name)
        self.step, self.total, self.weight = _none("int32"), (zero, zero), (zero, zero)

    def of(self, x: jax.Array, w: jax.Array, step: jax.Array) -> Self:
        """The sums of a batch; `step` broadcasts against `x` and its weights `w`."""
        counts, zero = w > 0, jnp.zeros((), x.dtype)
        step = jnp.broadcast_to(step, x.shape)
        newest = jnp.max(step, initial=jnp.int32(_FIRST), where=counts)
        w = w * self._faded(newest, step)[0]
        axes = tuple(range(x.ndim))
        total = nx.float_sum(jnp.where(counts, x, zero) * w, axes)
        return self.replace(step=newest, total=total, weight=nx.float_sum(w, axes))

    def _faded(self, newest: jax.Array, step: jax.Array) -> nx.Pair:
        """`decay ** (newest - step)`, as a pair: a float32 would err more with every update."""
        # Unsigned, the difference of any two is right.
        since = newest.astype(jnp.uint32) - step.astype(jnp.uint32)
        dtype = default_float()
        squares = np.array([self.decay ** (2**k) for k in range(32)])
        high = squares.astype(dtype)
        low = (squares - high).astype(dtype)
        factors = jnp.asarray(high), jnp.asarray(low)

        def multiply(k: jax.Array, power: nx.Pair) -> nx.Pair:
            bit = (since >> k.astype(jnp.uint32)) & jnp.uint32(1)
            more = nx.pair_product(power, (factors[0][k], factors[1][k]))
            return jnp.where(bit == 1, more[0], power[0]), jnp.where(bit == 1, more[1], power[1])

        one = jnp.ones_like(since, dtype)
        return lax.fori_loop(jnp.int32(0), jnp.int32(32), multiply, (one, jnp.zeros_like(one)))

    def _merge(self, other: Any) -> Self:
        newest = jnp.maximum(self.step, other.step)
        mine, others = (each._faded(newest, jnp.asarray(each.step)) for each in (self, other))
        return self.replace(
            step=newest,
            total=nx.pair_add(
                nx.pair_product(self.total, mine), nx.pair_product(other.total, others)
            ),
            weight=nx.pair_add(
                nx.pair_product(self.weight, mine), nx.pair_product(other.weight, others)
            ),
        )

    def _reset(self) -> Self:
        return _stacked(type(self)(self.decay), self)


def _stacked(empty: Any, like: Any) -> Any:
    # A stacked state (one copy a device, say) stays stacked.
    if jnp.shape(like.step) == ():
        return empty
    return jax.tree.map(lambda e, leaf: np.broadcast_to(e, jnp.shape(leaf)), empty, like)


class LastStep(State):
    """The value of the greatest step."""

    invalid = MetricAccumulator(0)

    def __init__(self):
        self.newest = Newest()

    def update(self, values: Any, step: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `step` and `weights` broadcast on their leading axes."""
        x = as_float(numeric(values, "values"))
        step, known = _steps(step, x)
        w, invalid = rows_weight(jnp.isfinite(x) & known, weights)
        counts = jnp.broadcast_to(w.astype(jnp.bool_), x.shape)
        return self.replace(
            newest=self.newest._merge(self.newest.of(x, step, counts)),
            invalid=self.invalid.update(invalid),
        )


class FadedTotal(State):
    """A total and a weight in which each step back counts `decay` times as much."""

    invalid = MetricAccumulator(0)

    def __init__(self, decay: float):
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise MetricInputError(f"decay={decay!r}; expected a number above 0, at most 1")
        self.faded = Faded(float(decay))

    def update(self, values: Any, step: Any, *, weights: Any = None) -> Self:
        """Folds in `values` of any shape; `step` and `weights` broadcast on their leading axes."""
        x = as_float(numeric(values, "values"))
        step, known = _steps(step, x)
        w, invalid = rows_weight(jnp.isfinite(x) & known, weights)
        w = jnp.broadcast_to(as_float(w), x.shape)
        return self.replace(
            faded=self.faded._merge(self.faded.of(x, w, step)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def mean(self) -> jax.Array:
        """NaN where there is no data."""
        return nx.pair_divide(self.faded.total, self.faded.weight)


def on_leading_axes(x: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """`x` with axes of one appended, so that it broadcasts against values of `shape`."""
    fits = x.ndim <= len(shape) and all(n in (1, m) for n, m in zip(x.shape, shape, strict=False))
    if not fits:
        raise MetricInputError(
            f"{name} of shape {x.shape} does not broadcast against the leading axes of the values, "
            f"of shape {shape}"
        )
    return lax.expand_dims(x, range(x.ndim, len(shape)))


def _steps(step: Any, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Steps as int32 that broadcast against the values, and which of them are in its range."""
    step = numeric(step, "step")
    if not is_integer(step) or step.dtype == jnp.bool_:
        raise MetricTypeError(f"step has dtype {step.dtype}; expected integers")
    step = on_leading_axes(step, values.shape, "step")
    narrow = step.astype(jnp.int32)
    known = (narrow.astype(step.dtype) == step) & ((narrow < 0) == (step < 0))
    return jnp.broadcast_to(narrow, values.shape), jnp.broadcast_to(known, values.shape)
