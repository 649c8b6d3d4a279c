"""`FirstPlace`: the least step at which something was found, and where."""

from typing import Any, Self

import jax
import numpy as np

from datarax._xp import xp
from datarax.distributed.merge_ops import MetricReduceOp, identity
from datarax.statistics.fields import state
from datarax.statistics.leaf_state import ElementwiseState

_NONE = 2**31 - 1


class FirstPlace(ElementwiseState):
    """The least step at which something was found; and of the places at that step, the least."""

    step: jax.Array = state()
    place: jax.Array = state()

    def empty(self) -> dict[str, Any]:
        none = identity(MetricReduceOp.min, (), np.dtype("int32"))[0]
        return {"step": none, "place": none}

    def of(self, found: jax.Array, step: jax.Array) -> Self:
        """The first of the places (n,) at which something was found at a step."""
        place = xp.min(xp.arange(found.size, dtype=xp.int32), initial=xp.int32(_NONE), where=found)
        return self.with_parts({"step": step, "place": place}).numbered(step)

    def numbered(self, step: jax.Array) -> Self:
        """The same place at another step."""
        return self.with_parts({"step": xp.where(self.some, step, xp.int32(_NONE))})

    @property
    def some(self) -> jax.Array:
        """Whether anything was found."""
        return xp.asarray(self.place) < _NONE

    def combine(self, other: Any) -> Self:
        a, b = self, other
        earlier = (a.step < b.step) | ((a.step == b.step) & (a.place < b.place))
        return jax.tree.map(lambda x, y: xp.where(earlier, x, y), a, b)
