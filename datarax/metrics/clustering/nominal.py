"""Association of nominal variables, and agreement of raters."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, choice, is_integer, numeric, positive_int
from datarax._errors import MetricInputError, MetricTypeError
from datarax.metrics.base import Metric, check_policy
from datarax.metrics.clustering.contingency_table import (
    Table,
    entropy,
    mean_square_contingency,
    mutual_information,
    scaled,
)
from datarax.metrics.clustering.pair_counting import OfTable
from datarax.numerics.pairs import pair_subtract
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import rows_weight
from datarax.statistics.state import State


class Association(OfTable):
    """How far two nominal variables go together."""

    def __init__(
        self, *, num_classes: int, num_preds: int | None = None, on_invalid: str = "exclude"
    ):
        self._over(num_classes, num_preds, ("num_classes", "num_preds"), on_invalid)


class ByRank(Association):
    """A measure that takes the categories that occur into account, and may correct its bias."""

    def __init__(
        self,
        *,
        num_classes: int,
        num_preds: int | None = None,
        bias_correction: bool = False,
        on_invalid: str = "exclude",
    ):
        super().__init__(num_classes=num_classes, num_preds=num_preds, on_invalid=on_invalid)
        choice(bias_correction, (False, True), "bias_correction")
        self.bias_correction = bias_correction

    def _degrees(self, table: Table) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The mean square contingency, and one less than the rows and columns that occur.

        Corrected for bias as by Bergsma (2013): a category of r less one becomes
        `(r - 1) (n - r) / (n - 1)`.
        """
        square = mean_square_contingency(table)
        occur = [jnp.sum(side[0] > 0).astype(square.dtype) for side in (table.rows, table.columns)]
        rows, columns = (x - 1 for x in occur)
        if self.bias_correction:
            high, low = table.total[0][0, 0], table.total[1][0, 0]
            n = (high - 1) + low
            square = jnp.maximum(square - rows * columns / n, jnp.zeros((), square.dtype))
            rows, columns = (
                jnp.where(n > 0, (r - 1) * (((high - r) + low) / n), jnp.zeros_like(n))
                for r in occur
            )
        some = (rows > 0) & (columns > 0)
        nothing = jnp.asarray(jnp.nan, square.dtype)
        return square, jnp.where(some, rows, nothing), jnp.where(some, columns, nothing)


class CramersV(ByRank):
    """Cramér's V: the root of chi-squared over its greatest value, from 0 to 1.

    `sqrt(chi2 / n / min(r - 1, k - 1))`, r and k the numbers of categories that occur.
    `update(preds, target, *, weights=None)`: integer categories of one shape (...), of two
    variables that are treated alike. No data, and a variable with one category, give NaN. SciPy:
    `stats.contingency.association`, which has no correction of bias.

    H. Cramér (1946), Mathematical Methods of Statistics, section 21.9; W. Bergsma (2013),
    https://doi.org/10.1016/j.jkss.2012.10.002.

    Args:
        num_classes: how many categories `target` may hold, from 0.
        num_preds: how many `preds` may hold; by default as many.
        bias_correction: whether to take away what independent variables score on average; NaN
            then also where there are no more examples than categories.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import CramersV
        >>> metric = CramersV(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.5774
    """

    def _read(self, table: Table) -> jax.Array:
        square, rows, columns = self._degrees(table)
        return jnp.sqrt(square / jnp.minimum(rows, columns))


class TschuprowsT(ByRank):
    """Tschuprow's T: as Cramér's V, over the geometric mean of the degrees of freedom.

    `sqrt(chi2 / n / sqrt((r - 1) (k - 1)))`. 1 only where both variables have as many categories.
    `update` as for `CramersV`. No data, and a variable with one category, give NaN. SciPy:
    `stats.contingency.association(method="tschuprow")`.

    A. A. Tschuprow (1939), Principles of the Mathematical Theory of Correlation.

    Args:
        num_classes: as for `CramersV`.
        num_preds: as for `CramersV`.
        bias_correction: as for `CramersV`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TschuprowsT
        >>> metric = TschuprowsT(num_classes=3)
        >>> metric = metric.update(jnp.array([0, 0, 1, 2]), jnp.array([0, 0, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.8409
    """

    def _read(self, table: Table) -> jax.Array:
        square, rows, columns = self._degrees(table)
        return jnp.sqrt(square / (jnp.sqrt(rows) * jnp.sqrt(columns)))


class PearsonsContingency(Association):
    """Pearson's contingency coefficient, `sqrt(chi2 / (n + chi2))`: from 0 to less than 1.

    `update` as for `CramersV`. No data gives NaN, a variable with one category 0. SciPy:
    `stats.contingency.association(method="pearson")`.

    K. Pearson (1904), On the Theory of Contingency.

    Args:
        num_classes: as for `CramersV`.
        num_preds: as for `CramersV`.
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PearsonsContingency
        >>> metric = PearsonsContingency(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(metric.compute())
        0.5
    """

    def _read(self, table: Table) -> jax.Array:
        square = mean_square_contingency(table)
        return jnp.sqrt(square / (1 + square))


class TheilsU(Association):
    """Theil's U, the uncertainty coefficient: the share of one variable's entropy that the other
    explains.

    `U(target | preds) = I(target, preds) / H(target)`: how well `preds` tells `target`; with
    `given="target"` the other direction. `update` as for `CramersV`. No data gives NaN, and so
    does nothing to explain, a variable with one category; in all else it is `Homogeneity` (the
    other direction `Completeness`), which then is 1.

    H. Theil (1970), https://doi.org/10.1086/224909.

    Args:
        num_classes: as for `CramersV`.
        num_preds: as for `CramersV`.
        given: the variable that explains: "preds" or "target".
        on_invalid: as for `Rand`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TheilsU
        >>> metric = TheilsU(num_classes=2)
        >>> metric = metric.update(jnp.array([0, 0, 1, 1]), jnp.array([0, 1, 1, 1]))
        >>> print(round(float(metric.compute()), 4))
        0.3837
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_preds: int | None = None,
        given: str = "preds",
        on_invalid: str = "exclude",
    ):
        super().__init__(num_classes=num_classes, num_preds=num_preds, on_invalid=on_invalid)
        choice(given, ("preds", "target"), "given")
        self.given = given

    def _read(self, table: Table) -> jax.Array:
        explained = table.rows if self.given == "preds" else table.columns
        # 0/0 is NaN: nothing to explain.
        return jnp.minimum(mutual_information(table) / entropy(explained, table.total), 1)


class Ratings(State):
    """Ratings by category, and pairs of ratings of one subject: all, and those that agree."""

    invalid = MetricAccumulator(0)
    agreeing = MetricAccumulator(0.0)
    pairs = MetricAccumulator(0.0)

    def __init__(self, num_categories: int):
        self.num_categories = num_categories
        self.ratings = MetricAccumulator(np.zeros(num_categories))

    def update(self, ratings: Any, *, weights: Any = None) -> Self:
        """Folds in counts of ratings (..., K), of each subject by category."""
        counts = numeric(ratings, "ratings")
        if not is_integer(counts) or counts.dtype == jnp.bool_:
            raise MetricTypeError(f"ratings has dtype {counts.dtype}; expected integer counts")
        if counts.shape[-1:] != (self.num_categories,):
            raise MetricInputError(
                f"ratings of shape {counts.shape} for num_categories={self.num_categories}; "
                f"expected (..., {self.num_categories}), how many raters chose each category"
            )
        w, invalid = rows_weight(jnp.all(counts >= 0, -1), weights)
        some, zero = w.astype(jnp.bool_), jnp.zeros((), counts.dtype)
        x = as_float(jnp.where(some[..., None], counts, zero))
        w, raters = as_float(w), jnp.sum(x, -1)
        return self.replace(
            ratings=self.ratings.update(x * w[..., None]),
            agreeing=self.agreeing.update(w * jnp.sum(x * (x - 1), -1)),
            pairs=self.pairs.update(w * (raters * (raters - 1))),
            invalid=self.invalid.update(invalid),
        )


class FleissKappa(Metric):
    """Fleiss' kappa: how much more raters agree than by chance.

    `(P - Q) / (1 - Q)`, P the share of pairs of ratings of one subject that agree, Q the sum of
    the squared shares of the categories. `update(ratings, *, weights=None)`: integer counts of
    shape (..., K), how many raters put each subject into each category. No data, no subject with
    two ratings, and all ratings in one category give NaN.

    Fleiss has as many raters for each subject. Where they differ in number, each pair of ratings
    counts the same here, so that subjects with more of them weigh more. Exact while the ratings
    of a subject are fewer than 4096.

    J. L. Fleiss (1971), https://doi.org/10.1037/h0031619.

    Args:
        num_categories: K, how many categories there are.
        on_invalid: for negative counts and weights: "exclude" the subject and count it,
            "propagate" (the result is NaN), or "raise" when read on the host.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import FleissKappa
        >>> metric = FleissKappa(num_categories=2).update(jnp.array([[3, 0], [0, 3], [2, 1]]))
        >>> print(round(float(metric.compute()), 4))
        0.55
    """

    def __init__(self, *, num_categories: int, on_invalid: str = "exclude"):
        positive_int(num_categories, "num_categories")
        self.num_categories, self.on_invalid = num_categories, check_policy(on_invalid)
        self.statistic = Ratings(num_categories)

    def compute(self) -> jax.Array:
        counts = self.statistic
        high, low = map(jnp.asarray, counts.ratings.parts)
        size, all_pairs = jnp.sum(high), counts.pairs.parts[0]
        ratings: Any = scaled((high, low), jnp.broadcast_to(size, high.shape))
        agreeing, pairs = (
            scaled(each.parts, jnp.asarray(all_pairs)) for each in (counts.agreeing, counts.pairs)
        )
        total = nx.pair_sum(ratings)
        rest = pair_subtract(total, ratings)
        chance = nx.pair_sum(nx.pair_product(ratings, ratings))
        beyond = nx.pair_sum(nx.pair_product(ratings, rest))
        square = nx.pair_product(total, total)
        above = pair_subtract(nx.pair_product(agreeing, square), nx.pair_product(pairs, chance))
        return nx.pair_divide(above, nx.pair_product(pairs, beyond))
