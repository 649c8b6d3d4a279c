"""How often each label met each other: what comparisons of two labellings are read from."""

from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import is_integer, numeric, positive_int, same_shape
from datarax._errors import MetricTypeError
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.labels import in_range
from datarax.statistics.scatter_counts import ScatterCounts
from datarax.statistics.state import State


class Contingency(State):
    """The weight of examples by target (rows) and prediction (columns).

    Args:
        rows: how many labels `target` may hold, 0 to `rows - 1`.
        columns: how many `preds` may hold.

    Exact to 2**48 without weights or with a mask. Examples with a label out of range are excluded
    and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Contingency
        >>> seen = Contingency(2, 3).update(jnp.array([0, 2, 2]), jnp.array([0, 1, 1]))
        >>> print(seen.table.value)
        [[1. 0. 0.]
         [0. 0. 2.]]
    """

    invalid = MetricAccumulator(0)

    def __init__(self, rows: int, columns: int):
        positive_int(rows, "rows")
        positive_int(columns, "columns")
        self.rows, self.columns = rows, columns
        self.table = ScatterCounts((rows, columns))

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in integer labels of one shape (...).

        Raises:
            MetricInputError: shapes that differ; shows both.
            MetricTypeError: labels that are no integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        for name, x in (("preds", preds), ("target", target)):
            if not is_integer(x):
                raise MetricTypeError(f"{name} has dtype {x.dtype}; expected integer labels")
        same_shape(preds, target)
        valid = in_range(preds, self.columns) & in_range(target, self.rows)
        w, invalid = rows_weight(valid, weights)
        row, column = (jnp.where(valid, x.astype(jnp.int32), jnp.int32(0)) for x in (target, preds))
        return self.replace(
            table=self.table.add(row * jnp.int32(self.columns) + column, w),
            invalid=self.invalid.update(invalid),
        )

    def margins(self) -> tuple[nx.Pair, nx.Pair, nx.Pair]:
        """The sums of rows, of columns, and of all, as pairs."""
        high, low = map(jnp.asarray, self.table.parts)
        rows, columns = nx.pair_sum((high, low)), nx.pair_sum((high.T, low.T))
        return rows, columns, nx.pair_sum(rows)

    def expanded(self) -> tuple[nx.Pair, nx.Pair, nx.Pair, nx.Pair]:
        """Cells (rows, columns), sums of rows (rows, 1), of columns (1, columns), all (1, 1)."""
        rows, columns, total = self.margins()

        def shaped(pair: nx.Pair, *shape: int) -> nx.Pair:
            return pair[0].reshape(shape), pair[1].reshape(shape)

        cells: Any = tuple(map(jnp.asarray, self.table.parts))
        return cells, shaped(rows, -1, 1), shaped(columns, 1, -1), shaped(total, 1, 1)


def sum_of_cells(pair: nx.Pair) -> nx.Pair:
    """The sum over a table, as a pair."""
    high, low = jax.tree.map(lambda x: x.reshape(-1), pair)
    return nx.pair_sum((high, low))
