"""The best of a sequence of values, and when it came."""

import functools
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np

from datarax._checks import default_float, numeric
from datarax._typing import ArrayLike
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import ElementwiseState

_MOST = 2**31 - 1


class BestValue(ElementwiseState):
    """The best of the values so far, its step, and how many values there were.

    NaN is never the best. Of equal values the one of the least step is kept, so that merging is
    associative and commutative. Without a value other than NaN, the best is NaN and its step -1.

    Example:
        >>> from datarax.wrappers.best_value import BestValue
        >>> best = BestValue(mode="min").update(3.0).update(1.0).update(2.0)
        >>> print(best.value, best.step, best.count)
        1.0 1 3
    """

    rowwise: ClassVar[bool] = False
    is_extreme: ClassVar[bool] = True

    mode: Literal["max", "min"] = "max"
    """Whether the greatest or the least value is the best."""

    value: jax.Array = state()
    """The best value, in the default float dtype."""
    step: jax.Array = state()
    """The number of values before the best one, int32."""
    count: jax.Array = state()
    """The number of values, int32; it stays at 2**31 - 1 from there on."""

    def empty(self) -> dict[str, Any]:
        return dict(_empty(np.dtype(default_float()).name))

    def update(self, value: ArrayLike) -> Self:
        """Folds in one value, of shape ()."""
        value = numeric(value, "value").astype(default_float())
        # -0.0 becomes 0.0: both are equal, and merging would keep either of them.
        new = {"value": xp.where(value == 0, 0, value), "step": self.count, "count": xp.int32(1)}
        return self.combine(self.with_parts(new))

    def combine(self, other: Any) -> Self:
        is_better = other.value > self.value if self.mode == "max" else other.value < self.value
        is_earlier = (other.value == self.value) & (other.step < self.step)
        is_first = xp.isnan(self.value) & ~xp.isnan(other.value)
        wins = is_better | is_earlier | is_first
        return self.with_parts(
            {
                "value": xp.where(wins, other.value, self.value),
                "step": xp.where(wins, other.step, self.step),
                "count": self.count + xp.minimum(other.count, _MOST - self.count),
            }
        )


@functools.cache
def _empty(dtype: str) -> tuple[tuple[str, Any], ...]:
    arrays = {"value": np.asarray(np.nan, dtype), "step": np.int32(-1), "count": np.int32(0)}
    found = {name: np.array(x) for name, x in arrays.items()}
    for array in found.values():
        array.flags.writeable = False
    return tuple(found.items())
