"""Contingency tables of two labellings, and the base classes of the metrics computed from them."""

from typing import ClassVar, NamedTuple, Self

import jax

from datarax._checks import positive_int
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where, power_of_two_near_reciprocal
from datarax.numerics.special import entropy, relative_deviance
from datarax.numerics.sums import sum_floats
from datarax.statistics.contingency import Contingency


class PairCounts(NamedTuple):
    """The weights of pairs of examples, by whether the two have the same label.

    Two examples are together in rows if they are in the same row: they have one class. They are
    together in columns if they are in the same column: they have one cluster. Pairs are ordered,
    and all weights are scaled by one factor.
    """

    both: DoubleFloat
    """Together in both labellings."""
    row: DoubleFloat
    """Together in rows only: the same class, different clusters."""
    column: DoubleFloat
    """Together in columns only: the same cluster, different classes."""
    neither: DoubleFloat
    """Together in neither."""


class ContingencyTable(NamedTuple):
    """A contingency table of R rows (classes) and K columns (clusters), and its sums.

    All are double-floats.
    """

    cells: DoubleFloat
    """The weight of the examples in each cell, (R, K)."""
    rows: DoubleFloat
    """The sums of the rows, (R, 1)."""
    columns: DoubleFloat
    """The sums of the columns, (1, K)."""
    total: DoubleFloat
    """The sum of all, (1, 1)."""

    @classmethod
    def of(cls, statistic: Contingency) -> "ContingencyTable":
        """The table from the counts of a statistic."""
        cells = statistic.table.double
        rows, columns = cells.sum(1)[:, None], cells.sum(0)[None, :]
        return cls(cells, rows, columns, rows.sum(0)[None, :])

    @property
    def size(self) -> jax.Array:
        """The total weight."""
        return self.total.to_float()[0, 0]

    @property
    def row_entropy(self) -> jax.Array:
        """The entropy of the distribution over the rows, in nats."""
        return entropy(self.rows, self.total)

    @property
    def column_entropy(self) -> jax.Array:
        """The entropy of the distribution over the columns, in nats."""
        return entropy(self.columns, self.total)

    def scaled(self) -> "ContingencyTable":
        """The table times one power of two, so that products of two cannot over- or underflow."""
        scale = power_of_two_near_reciprocal(self.size)
        return ContingencyTable(*(each * scale for each in self))

    def mutual_information(self) -> jax.Array:
        """The mutual information of rows and columns, in nats; NaN where there is no data.

        `sum(e * relative_deviance((cell - e) / e)) / total`, with e the expected cell. No term is
        negative, so no digits cancel if rows and columns are nearly independent. Within 10 units of
        2**-24.
        """
        table = self.scaled()
        e, t = table._expected()
        return table._mean_of(e * relative_deviance(t))

    def mean_square_contingency(self) -> jax.Array:
        """Pearson's chi-squared statistic over the total weight; NaN where there is no data.

        `sum((cell - e)**2 / e) / total`, with e the expected cell. Within 8 units of 2**-24.
        """
        table = self.scaled()
        e, t = table._expected()
        # With t = (cell - e) / e, (cell - e)**2 / e = e * t * t.
        return table._mean_of(e * t * t)

    def pairs(self) -> PairCounts:
        """The pairs of examples, divided by about the square of the total.

        The division keeps products of two of them from overflowing. An example of weight w counts
        as w examples, and is not a pair with itself. All are sums of products that are not
        negative, so no digits cancel; only `both` subtracts the pairs of an example with itself.
        """
        cells, rows, columns, total = self
        in_row, in_column = rows - cells, columns - cells
        elsewhere = total - rows - in_column
        scale = power_of_two_near_reciprocal(self.size)

        def sum_with(others: DoubleFloat) -> DoubleFloat:
            # Each example of a cell makes a pair with each of the `others` of that cell.
            return ((cells * scale) * (others * scale)).sum((0, 1))

        return PairCounts(
            both=sum_with(cells - 1),
            row=sum_with(in_row),
            column=sum_with(in_column),
            neither=sum_with(elsewhere),
        )

    def _expected(self) -> tuple[jax.Array, jax.Array]:
        """The expected cells `e` of independent rows and columns, and `t = (cell - e) / e`.

        Both are 0 in empty rows and columns.
        """
        # t = (cell * total - row * column) / (row * column), in double-floats: the numerator keeps
        # its digits if rows and columns are nearly independent.
        independent = self.rows * self.columns
        t = (self.cells * self.total - independent) / independent
        e = independent / self.total
        some = independent.high > 0
        return xp.where(some, e.to_float(), 0), xp.where(some, t.to_float(), 0)

    def _mean_of(self, terms: jax.Array) -> jax.Array:
        """The sum of `terms` (R, K), divided by the total weight; NaN where there is no data."""
        return sum_floats(terms, (0, 1)).to_float() / nan_where(self.size <= 0, self.size)


class TableMetric(Metric):
    """A metric that is computed from a contingency table. A subclass defines `of_table`."""

    tasks = ("multiclass",)
    num_classes: int
    """The number of labels that `target` may hold: 0 to `num_classes - 1`."""
    preds_size: ClassVar[str]
    """The name of the field with the number of labels of `preds`: `num_classes` if it is None."""

    statistic: Contingency = state()

    def __post_init__(self) -> None:
        positive_int(self.num_classes, "num_classes")
        if getattr(self, self.preds_size) is None:
            setattr(self, self.preds_size, self.num_classes)
        positive_int(getattr(self, self.preds_size), self.preds_size)
        self.statistic = Contingency(self.num_classes, getattr(self, self.preds_size))

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: integer labels (...), from 0.
            target: integer labels of the shape of `preds`.
            weights: broadcast against the leading axes; weight w counts as w repetitions.

        Raises:
            MetricInputError: the shapes differ; shows both.
            MetricTypeError: the labels are not integers.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    def of_table(self, table: ContingencyTable) -> jax.Array:
        """The value for a table that is not empty."""
        raise TypeError(f"{type(self).__name__} does not define of_table()")

    def compute(self) -> PyTree:
        table = ContingencyTable.of(self.statistic)
        return nan_where(~(table.size > 0), self.of_table(table))


class Clustering(TableMetric):
    """A comparison of clusters (`preds`) with known classes (`target`), in any numbering."""

    higher_is_better = True
    preds_size = "num_clusters"
    num_clusters: int | None = None
    """The number of labels of `preds`: 0 to `num_clusters - 1`; by default `num_classes`."""
