"""`ExampleCount`: whether there are no examples, one, or several."""

from typing import Self

import jax

from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term, in_one_pass
from datarax.algebra.leaf_state import LeafState, Travel
from datarax.algebra.rows import Merging, Packed, RowTerms, Target
from datarax.distributed.merge_ops import zeros
from datarax.numerics.scaled_double import ScaledDouble

_SEVERAL = 2


class ExampleCount(LeafState):
    """Counts examples as none, one or several, because some formulas need two.

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
        return in_one_pass(self.emptied().plus_rows(w))[0]

    def plus_rows(self, w: jax.Array) -> Fold:
        """This number with the examples of a batch added."""
        axes, is_mask = self._reduced(w), w.dtype == xp.bool_
        terms = [Term(w if is_mask else w != 0, axes)]
        if not is_mask:
            # A row of weight 2 is two examples. So is one of any weight above 1: only whole weights
            # count examples.
            terms.append(Term(w > 1, axes))

        def finish(number: jax.Array, several: jax.Array | None = None) -> Self:
            if several is not None:
                number = number + several
            # Cut off before the sum, which could overflow.
            return self._holding(self.number + xp.minimum(number, _SEVERAL))

        return Fold(terms, finish)

    def _reduced(self, w: jax.Array) -> tuple[int, ...]:
        """The axes of weights over which examples are counted."""
        return tuple(range(w.ndim))

    def _holding(self, number: jax.Array) -> Self:
        return self.with_parts({"number": xp.minimum(number, _SEVERAL)})

    @property
    def is_single(self) -> jax.Array:
        """True if there is exactly one example."""
        return xp.asarray(self.number) == 1

    def combine(self, other: Self) -> Self:
        return self._holding(self.number + other.number)

    def canonical(self) -> Self:
        return self

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    def by_row(self, rows: int) -> "RowExamples":
        return RowExamples()

    def to_mesh(self) -> list[Travel]:
        return [Travel("sum", [xp.asarray(self.number)])]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        return self._holding(arrays[0])


class RowExamples(RowTerms, ExampleCount):
    """The number of examples of each row."""

    @property
    def num_rows(self) -> int | None:
        return self.number.shape[0] if self.number.ndim else None

    def _reduced(self, w: jax.Array) -> tuple[int, ...]:
        return tuple(range(1, w.ndim))

    def added_to(self, stacked: ExampleCount, target: Target) -> Merging:
        (total,) = yield Packed("sum", [self.number])
        return stacked.combine(stacked._holding(total))
