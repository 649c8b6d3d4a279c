"""States that count updates: a ring of the last ones, and a state that decays with each."""

from fractions import Fraction
from math import floor
from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import default_float
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import beside, lax, xp
from datarax.algebra.device_merge import merge_stack, reached_by
from datarax.algebra.fields import state
from datarax.algebra.pytrees import leaf_states
from datarax.algebra.stack import Stack
from datarax.algebra.state import State
from datarax.distributed.collectives import replicated
from datarax.distributed.merge_ops import zeros
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaled_double import ScaledDouble


class Numbered(Stack, kw_only=False):
    """A stack that counts updates. States are merged by the number of the update, not by time.

    Before two are merged, the one with fewer updates is brought to the number of the other. So
    devices that are updated together count an update once.

    Raises:
        MetricInputError: the states count updates themselves.
    """

    rowwise: ClassVar[bool] = False

    number: jax.Array = state()
    """How many updates there were, int32."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(reached_by(leaf) for leaf in leaf_states(self.element.empty)):
            raise MetricInputError(
                "a metric that counts updates, such as Window or Decayed, cannot be within another "
                "one: the inner one would count each update of the outer one as its first"
            )

    def empty(self) -> dict[str, PyTree]:
        return super().empty() | {"number": zeros((), "int32")}

    def elsewhere(self) -> Self:
        return self.reset().with_parts({"number": self.number})

    def reached(self) -> list[jax.Array]:
        return [xp.asarray(self.number)]

    def combine(self, other: Self) -> Self:
        newest = [xp.maximum(self.number, other.number)]
        return super(Numbered, self.brought_to(newest)).combine(other.brought_to(newest))


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

    def brought_to(self, newest: list[jax.Array]) -> Self:
        (number,), places = newest, xp.arange(self.size, dtype=xp.int32)

        def held(number: jax.Array) -> jax.Array:
            """The number of the update at each place."""
            return number - (number - places) % self.size

        stays = held(number) == held(xp.asarray(self.number))

        def kept(x: jax.Array, empty: jax.Array) -> jax.Array:
            return xp.where(lax.expand_dims(stays, range(1, xp.ndim(x))), x, empty)

        states = jax.tree.map(kept, self.states, self.reset().states)
        return self.with_parts({"number": number, "states": states})

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return super(Stack, self).weighted_by(factor)  # raises

    def merged(self) -> PyTree:
        """The merge of the states."""
        empty = self.reset().states
        return merge_stack(self.states, empty, lambda a, b: a.combine(b), self.size)


class Fading(Numbered):
    """One state; the weight of its data halves every `half_life` updates."""

    half_life: float

    def __post_init__(self) -> None:
        super().__post_init__()
        # Raises if a state cannot lose weight.
        jax.eval_shape(lambda one: one.weighted_by(self._over_one()), self.element.empty)

    def faded(self) -> PyTree:
        """The stacked state, with the weight that its data has after one more update."""
        return self.map(lambda one: one.weighted_by(self._over_one()))

    def push(self, states: State) -> Self:
        """The state that `faded` returned, with the data of one more update."""
        return self.with_parts({"number": self.number + xp.int32(1), "states": states})

    def brought_to(self, newest: list[jax.Array]) -> Self:
        factor = self._over(newest[0] - self.number)
        states = self.map(lambda one: one.weighted_by(factor))
        return self.with_parts({"number": newest[0], "states": states})

    # A factor `2**(-updates / half_life)` is a double-float from 1/2 to 1 times a power of two.

    def _factor(self, updates: int) -> tuple[float, int]:
        """The factor over this many updates: a number from 1/2 to 1, and an exponent."""
        exponent = Fraction(updates) / Fraction(self.half_life)
        whole = floor(exponent)
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
        bits = (updates >> xp.arange(31, dtype=xp.int32)) & 1

        def multiply(k: jax.Array, product: DoubleFloat) -> DoubleFloat:
            return where(bits[k] == 1, product * numbers[k], product)

        one = DoubleFloat.of(xp.ones_like(updates, default_float()))
        product = lax.fori_loop(xp.int32(0), xp.int32(31), multiply, one)
        return ScaledDouble(product, xp.sum(bits * exponents, dtype=xp.int32))
