"""What measures of association read from a contingency table, without cancellation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax.numerics.pairs import pair_subtract, power_of
from datarax.statistics.contingency import Contingency, sum_of_cells


class Table(NamedTuple):
    """Cells (R, K), sums of rows (R, 1), of columns (1, K), and all (1, 1), as pairs."""

    cells: nx.Pair
    rows: nx.Pair
    columns: nx.Pair
    total: nx.Pair

    @classmethod
    def of(cls, seen: Contingency) -> "Table":
        """The table that has been counted."""
        return cls(*seen.expanded())

    @property
    def size(self) -> jax.Array:
        """The total weight."""
        return self.total[0][0, 0]

    def in_parts(self) -> "Table":
        """All over the power of two next to the total: products neither overflow nor vanish."""
        return Table(*(scaled(x, self.size) for x in self))

    def expected(self) -> tuple[jax.Array, jax.Array]:
        """Cells if rows and columns were independent, `e`, and `t = (cell - e) / e`, or 0."""
        independent = nx.pair_product(self.rows, self.columns)
        apart = pair_subtract(nx.pair_product(self.cells, self.total), independent)
        t = nx.pair_divide(apart, independent)
        e = nx.pair_divide(independent, self.total)
        some = independent[0] > 0
        zero = jnp.zeros((), e.dtype)
        return jnp.where(some, e, zero), jnp.where(some, t, zero)


def plus(*pairs: nx.Pair) -> nx.Pair:
    """The sum of pairs, which may broadcast."""
    total, *rest = pairs
    for pair in rest:
        total = nx.pair_add(total, pair)
    return total


def total_of(values: jax.Array) -> jax.Array:
    """The sum over a table of floats of one sign."""
    return nx.float_sum(values.reshape(-1), (0,))[0]


def entropy(sums: nx.Pair, total: nx.Pair) -> jax.Array:
    """`sum(p * log(1 / p))` of the shares of a total, each term to a few units in the last place.

    Near a share of one the logarithm is taken of what it lacks, which a pair holds exactly.
    """
    p, rest = nx.pair_divide(sums, total), nx.pair_divide(pair_subtract(total, sums), total)
    half, one = jnp.asarray(0.5, p.dtype), jnp.ones((), p.dtype)
    small = -jnp.log(jnp.where(p > 0, p, one))
    large = -jnp.log1p(-jnp.minimum(rest, half))
    return total_of(p * jnp.where(rest < half, large, small))


def divergence(t: jax.Array) -> jax.Array:
    """`(1 + t) * log(1 + t) - t`, for t of at least -1: never negative, and about `t * t / 2`.

    Weighted by expected cells, this is the likelihood ratio of a table without cancellation: the
    second terms add up to nothing. Near zero by the series of artanh(s), s = t / (2 + t).
    """
    one, two = jnp.ones((), t.dtype), jnp.asarray(2, t.dtype)
    near = (t > -one / two) & (t < one)
    s = jnp.where(near, t / (two + jnp.where(near, t, one)), jnp.zeros((), t.dtype))
    square, series = s * s, jnp.zeros_like(s)
    for k in range(35 if t.dtype.itemsize == 8 else 17, 1, -2):
        series = series * square + jnp.asarray(2 / k, t.dtype)
    close = square * (two + (one + s) * s * series) / (one - s)
    grown = jnp.maximum(one + t, jnp.zeros((), t.dtype))
    far = grown * jnp.log(jnp.where(grown > 0, grown, one)) - t
    return jnp.where(near, close, far)


def mutual_information(table: Table) -> jax.Array:
    """The mutual information of rows and columns, in nats; NaN where there is no data."""
    table = table.in_parts()
    e, t = table.expected()
    return total_of(e * divergence(t)) / jnp.where(table.size > 0, table.size, jnp.nan)


def mean_square_contingency(table: Table) -> jax.Array:
    """Pearson's chi-squared statistic over the total weight; NaN where there is no data."""
    table = table.in_parts()
    e, t = table.expected()
    return total_of(e * t * t) / jnp.where(table.size > 0, table.size, jnp.nan)


def pairs_of(table: Table) -> tuple[nx.Pair, nx.Pair, nx.Pair, nx.Pair]:
    """Ordered pairs of examples: together in both, in rows only, in columns only, in neither.

    Each is a sum of terms that are not negative, so that nothing cancels. All are over about the
    square of the total, so that products of two do not overflow.
    """
    cells, rows, columns, total = table
    one = jnp.ones((1, 1), cells[0].dtype), jnp.zeros((1, 1), cells[0].dtype)
    in_row, in_column = pair_subtract(rows, cells), pair_subtract(columns, cells)
    apart = pair_subtract(pair_subtract(total, rows), in_column)
    others = pair_subtract(cells, one), in_row, in_column, apart
    cells = scaled(cells, table.size)
    both, row, column, neither = (
        sum_of_cells(nx.pair_product(cells, scaled(x, table.size))) for x in others
    )
    return both, row, column, neither


def scaled(pair: nx.Pair, by: jax.Array) -> nx.Pair:
    """A pair over the power of two next to `by`, exactly: products of such do not overflow."""
    factor = power_of(by)
    return pair[0] * factor, pair[1] * factor
