"""Contingency tables: how often each label of one labelling met each label of the other."""

from typing import Self

from datarax._checks import is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricTypeError
from datarax._typing import ArrayLike, Weights
from datarax._xp import xp
from datarax.algebra.state import State
from datarax.statistics.batches import refuse_one_hot, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, out_of_range
from datarax.statistics.labels import in_range
from datarax.statistics.scatter_counts import ScatterCounts


class Contingency(State, kw_only=False):
    """The weight of examples by target (rows) and prediction (columns).

    Counts are exact to 2**48 without weights or with a mask. Examples with a label out of range
    are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Contingency
        >>> seen = Contingency(2, 3).update(jnp.array([0, 2, 2]), jnp.array([0, 1, 1]))
        >>> print(seen.table.value)
        [[1. 0. 0.]
         [0. 0. 2.]]
    """

    rows: int
    """How many labels `target` may hold: 0 to `rows - 1`."""
    columns: int
    """How many labels `preds` may hold: 0 to `columns - 1`."""

    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.rows, "rows")
        positive_int(self.columns, "columns")
        self.table = ScatterCounts((self.rows, self.columns))

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in integer labels of one shape (...).

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: the labels are not integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        for name, x in (("preds", preds), ("target", target)):
            if not is_integer(x):
                raise MetricTypeError(f"{name} has dtype {x.dtype}; expected integer labels")
        same_shape(preds, target)
        refuse_one_hot(preds, target, self.rows)
        unusable = out_of_range(~in_range(preds, self.columns), preds)
        unusable |= out_of_range(~in_range(target, self.rows), target)
        w, invalid = rows_weight(unusable, weights)
        row, column = (xp.where(unusable.mask, 0, x.astype(xp.int32)) for x in (target, preds))
        return self.replace(
            table=self.table.add(row * self.columns + column, w),
            invalid=self.invalid.update(invalid),
        )
