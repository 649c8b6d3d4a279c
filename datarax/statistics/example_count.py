"""`ExampleCount`: whether there are no examples, one, or several."""

from collections.abc import Generator
from typing import Self

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.algebra.row_merge import Packed, Target
from datarax.distributed.merge_ops import zeros
from datarax.numerics.scaled_double import ScaledDouble

_SEVERAL = 2


class ExampleCount(LeafState):
    """No example, one, or several: for formulas that need two.

    Weights count as repetitions, so one row of a weight above 1 is several examples. A row of any
    smaller weight is one example: the total of normalised weights does not tell how many rows there
    are.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.example_count import ExampleCount
        >>> for w in ([0.3, 0.0], [0.3, 0.7], [2.0, 0.0]):
        ...     print(ExampleCount().of(jnp.array(w)).is_single)
        True
        False
        False
    """

    number: jax.Array = state()
    """0, 1, or 2 for any number of more than one."""

    def empty(self) -> dict[str, PyTree]:
        return {"number": zeros((), "int32")}

    def of(self, w: jax.Array) -> Self:
        """The examples of a batch: booleans, or floats that are not negative."""
        several = (w > 1) if w.dtype != xp.bool_ else xp.zeros((), xp.bool_)
        least = xp.minimum(xp.sum(w.astype(xp.bool_), dtype=xp.int32), _SEVERAL)
        return self._holding(xp.where(xp.any(several), xp.int32(_SEVERAL), least))

    def _holding(self, number: jax.Array) -> Self:
        return self.with_parts({"number": xp.minimum(number, _SEVERAL)})

    @property
    def is_single(self) -> jax.Array:
        """Whether there is exactly one example."""
        return xp.asarray(self.number) == 1

    def combine(self, other: Self) -> Self:
        return self._holding(self.number + other.number)

    def canonical(self) -> Self:
        return self

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    @property
    def repeats(self) -> bool:
        return True

    def with_rows(self, rows: Self, target: Target) -> Generator[Packed, PyTree, Self]:
        total = yield Packed("sum", rows.number)
        return self.combine(self._holding(total))

    def to_mesh(self) -> list[Travel]:
        return [Travel("sum", [xp.asarray(self.number)])]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        return self._holding(arrays[0])
