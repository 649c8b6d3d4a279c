"""`Window` and `Decayed`: the value of a metric over its last updates."""

import math
from abc import abstractmethod
from fractions import Fraction
from typing import Self, TypeVar

import jax
import numpy as np

from datarax._checks import default_float, positive_int, python_int, real
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import beside, lax, vmap, xp
from datarax.algebra.devices import Asking, merge_copies
from datarax.algebra.fields import state
from datarax.algebra.rows import Target
from datarax.algebra.stack import Element, Stack
from datarax.algebra.state import State, walk
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import zeros
from datarax.metric.arguments import with_number
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaled_double import ScaledDouble
from datarax.wrappers.wrapper import Stacked, checked_metric

S = TypeVar("S")


class Numbered(Stack, kw_only=False, abstract=True):
    """A stack that counts updates. States are merged by the number of the update, not by time.

    Before two are merged, the one with fewer updates is brought to the number of the other. So
    devices that are updated together count an update once.

    Raises:
        MetricInputError: the states count updates themselves.
    """

    number: jax.Array = state()
    """The number of updates, int32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(each, Numbered) for each in walk(self.element.empty)):
            raise MetricInputError(
                "a metric that counts updates, such as Window or Decayed, cannot be within another "
                "one: the inner one would count each update of the outer one as its first"
            )

    def empty(self) -> dict[str, PyTree]:
        return super().empty() | {"number": zeros((), "int32")}

    def on_other_devices(self) -> Self:
        return self.emptied().with_parts({"number": self.number})

    @abstractmethod
    def brought_to(self, number: jax.Array) -> Self:
        """Ages this state, without new data, to the number of updates of a newer one."""

    def combine(self, other: Self) -> Self:
        # Only states of equal numbers can be merged place by place.
        newest = xp.maximum(self.number, other.number)
        return super(Numbered, self.brought_to(newest)).combine(other.brought_to(newest))

    def ask_maxima(self, index: jax.Array, size: int) -> Asking[Self]:
        (newest,) = yield [xp.asarray(self.number)]
        return (yield from super(Numbered, self.brought_to(newest)).ask_maxima(index, size))


class Ring(Numbered, kw_only=False):
    """The states of the last `size` updates. That of update n is at the place `n % size`."""

    def push(self, one: State) -> Self:
        """A copy with the state of one more update in the place of the oldest one."""
        number = self.number + xp.int32(1)
        place = (number % self.size).astype(xp.uint32)  # JAX looks for negative indices

        def put(x: ArrayLike, new: ArrayLike) -> jax.Array:
            return lax.dynamic_update_index_in_dim(xp.asarray(x), new, place, 0)

        # All arrays get one type, on an `Explicit` mesh that of the batch.
        states = jax.tree.map(put, *replicated((self.states, one)))
        return self.with_parts({"number": number, "states": states})

    def brought_to(self, number: jax.Array) -> Self:
        places = xp.arange(self.size, dtype=xp.int32)

        def held(number: jax.Array) -> jax.Array:
            """The number of the update at each place."""
            # The greatest n <= number with n % size == place. It is below 1 at unused places.
            return number - (number - places) % self.size

        stays = held(number) == held(xp.asarray(self.number))

        def kept(x: jax.Array, empty: jax.Array) -> jax.Array:
            return xp.where(lax.expand_dims(stays, range(1, xp.ndim(x))), x, empty)

        states = jax.tree.map(kept, self.states, self.emptied().states)
        return self.with_parts({"number": number, "states": states})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        # A window has forgotten by number already: `LeafState` refuses this, `Stack` would not.
        return super(Stack, self).weighted_by(factor)

    def whole(self) -> Metric:
        """The merge of the states."""
        return merge_copies(self.states, self.size)


class Fading(Numbered):
    """One state; the weight of its data halves every `half_life` updates."""

    half_life: float

    def __post_init__(self) -> None:
        super().__post_init__()
        # Raises if a state cannot lose weight.
        jax.eval_shape(lambda one: one.weighted_by(self._over_one()), self.element.empty)

    def whole(self) -> Metric:
        """The only state."""
        return _only(self.states, 0)

    def faded(self) -> PyTree:
        """The stacked state, with the weight that its data has after one more update."""
        return self.map(lambda one: one.weighted_by(self._over_one()))

    def push(self, states: State) -> Self:
        """The state that `faded` returned, with the data of one more update."""
        return self.with_parts({"number": self.number + xp.int32(1), "states": states})

    def brought_to(self, number: jax.Array) -> Self:
        factor = self._over(number - self.number)
        states = self.map(lambda one: one.weighted_by(factor))
        return self.with_parts({"number": number, "states": states})

    # A factor `2**(-updates / half_life)` is a double-float from 1/2 to 1 times a power of two.

    def _factor(self, updates: int) -> tuple[float, int]:
        """The factor over this many updates: a number from 1/2 to 1, and an exponent."""
        # Fractions, because the whole part must be exact for many updates. The bound of the
        # exponent keeps it in int32; the factor is 0 in any float long before.
        exponent = Fraction(updates) / Fraction(self.half_life)
        whole = math.floor(exponent)
        return 2.0 ** -float(exponent - whole), -min(whole, 2**24)

    def _over_one(self) -> ScaledDouble:
        number, exponent = self._factor(1)
        return ScaledDouble(DoubleFloat.of(number, default_float()), xp.int32(exponent))

    def _over(self, updates: jax.Array) -> ScaledDouble:
        """The factor over this many updates: the product of those over powers of two."""
        numbers, exponents = zip(*(self._factor(2**k) for k in range(31)), strict=True)
        high = np.array(numbers).astype(default_float())
        rest = (np.array(numbers) - high).astype(default_float())
        numbers = DoubleFloat(beside(updates, high), beside(updates, rest))
        exponents = np.asarray(exponents, np.int32)
        # 2**-(n / h) = product over the bits k of n of 2**-(2**k / h). The exponents are added as
        # integers, so that nothing underflows before the last step.
        bits = (updates >> xp.arange(31, dtype=xp.int32)) & 1

        def multiply(k: jax.Array, product: DoubleFloat) -> DoubleFloat:
            return where(bits[k] == 1, product * numbers[k], product)

        one = DoubleFloat.of(xp.ones_like(updates, default_float()))
        product = lax.fori_loop(xp.int32(0), xp.int32(31), multiply, one)
        return ScaledDouble(product, xp.sum(bits * exponents, dtype=xp.int32))


class _OverUpdates(Stacked):
    """The base of wrappers whose value depends on when data came, counted in updates."""

    def reading(self) -> Reading:
        return self.stack.whole().reading()

    def invalid_count(self) -> PyTree:
        return self.stack.whole().invalid_count()


class Window(_OverUpdates):
    """A metric of the last `size` updates.

    `update` takes what the metric's own `update` takes, and `compute` gives what its `compute`
    gives. The metric holds the states of the last `size` updates, which `compute` merges. An update
    costs what it costs the metric, and replaces the oldest state.

    Every call of `update` is an update, also if the batch is empty or all weights are zero. So the
    value depends on how data is split into batches. `reset` starts to count again; so does a
    collector, which resets what it collects.

    States are merged by the number of the update: the n-th updates of two metrics become one, and
    the newest `size` numbers are kept. Devices that are updated together have equal numbers, so a
    window over devices is one of `size` steps. In `pmap` and `shard_map(check_vma=False)`, keep the
    metric of each device, and sync it only to read it: a metric that is reset for each step would
    always be at its first update. Updates are counted up to `2**31`.

    Args:
        metric: a metric or a collection, without data. Not one that counts updates itself.
        size: how many updates the window has.

    Raises:
        MetricInputError: the metric has data or counts updates, or `size` is not positive.
        MetricTypeError: `metric` is not a metric, or `size` is not an integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Window
        >>> from datarax.metrics import Mean
        >>> loss = Window(Mean(), 2)
        >>> for batch in ([9.0, 9.0], [1.0, 2.0, 3.0], [7.0]):
        ...     loss = loss.update(jnp.array(batch))
        >>> print(loss.compute())
        3.25
    """

    size: int
    stack: Ring = state()

    def __init__(self, metric: Metric, size: int):
        metric = checked_metric(metric, "Window")
        self.size = size = python_int(size)
        positive_int(size, "size")
        self.stack = Ring.of(metric, size)

    def _apply(self, calls: PyTree) -> Self:
        calls = with_number(calls, self.stack.number)
        return self.with_parts({"stack": self.stack.push(self.metric.apply(calls))})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # The update of all places, which have rings of equal numbers.
        calls = with_number(calls, xp.max(self.stack.number))
        empty = jax.tree.map(lambda x: x[:, 0], self.stack.emptied().states)
        updated = empty.apply_at(calls, target)
        return self.with_parts({"stack": vmap(lambda x, y: x.push(y))(self.stack, updated)})


class Decayed(_OverUpdates):
    """A metric in which the weight of all data halves every `half_life` updates.

    `update` takes what the metric's own `update` takes, and `compute` gives what its `compute`
    gives: the value of the metric if the data of the k-th last update had its weights times
    `2**(-k / half_life)`, where k is 0 for the last one. Sums and counts are weighted ones. Maxima,
    minima, the range of the bins of scores, and the counts of what could not be used do not decay.

    Every call of `update` is an update, also if the batch is empty or all weights are zero. So the
    value depends on how data is split into batches. `reset` starts to count again; so does a
    collector, which resets what it collects.

    Before two metrics are merged, the one with fewer updates decays to the number of the other.
    Devices that are updated together have equal numbers. In `pmap` and
    `shard_map(check_vma=False)`, keep the metric of each device, and sync it only to read it: a
    metric that is reset for each step would always be at its first update. Updates are counted up
    to `2**31`.

    Weights are multiplied in double-floats. Means of values and of losses keep their value however
    long there is no new data. Counts of a class, of a bin or of a cell of a table are forgotten,
    each by itself, when they are below `2**-100`: after about a hundred half-lives without data. So
    are moments, such as those of `Std`, after about two hundred. Then there is no data.

    Args:
        metric: a metric or a collection, without data. Not one that keeps examples, has sums of
            integers, counts updates itself, or has `weights_repeat = False`.
        half_life: the number of updates after which data has half of its weight; need not be whole.

    Raises:
        MetricInputError: the metric has data or counts updates, or `half_life` is not a positive
            finite number.
        MetricTypeError: `metric` is not a metric, or a state of it cannot lose weight.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Decayed
        >>> from datarax.metrics import Mean
        >>> loss = Decayed(Mean(), half_life=1)
        >>> for batch in (4.0, 2.0, 1.0):
        ...     loss = loss.update(jnp.array(batch))
        >>> print(loss.compute() == (4 / 4 + 2 / 2 + 1) / (1 / 4 + 1 / 2 + 1))
        True
    """

    half_life: float
    stack: Fading = state()

    def __init__(self, metric: Metric, half_life: float):
        metric = checked_metric(metric, "Decayed")
        number = real(half_life, "half_life")
        if not (number > 0 and math.isfinite(number)):
            raise MetricInputError(f"half_life={half_life!r}; expected a positive, finite number")
        self.half_life = number
        self.stack = Fading(element=Element(metric), size=1, half_life=number)

    def _apply(self, calls: PyTree) -> Self:
        # The old data fades first: the data of an update has its full weight until the next one.
        updated = _only(self.stack.faded(), 0).apply(calls)
        return self.with_parts({"stack": self.stack.push(_as_stack(updated, 0))})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # Axis 0 is that of the places of an outer wrapper, axis 1 that of the stack.
        faded = vmap(lambda x: x.faded())(self.stack)
        updated = _as_stack(_only(faded, 1).apply_at(calls, target), 1)
        return self.with_parts({"stack": self.stack.push(updated)})


def _only(stacked: S, axis: int) -> S:
    """The only metric of a stack, whose states are along this axis."""
    return jax.tree.map(lambda x: lax.squeeze(x, (axis,)), stacked)


def _as_stack(metric: S, axis: int) -> S:
    """A metric as a stack of one, at this axis."""
    return jax.tree.map(lambda x: lax.expand_dims(x, (axis,)), metric)
