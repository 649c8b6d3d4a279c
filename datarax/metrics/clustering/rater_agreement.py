"""Agreement of raters, of whom some may not have rated a subject: Krippendorff, Gwet."""

from typing import Literal, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, choice, is_integer, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, xp
from datarax.algebra.fields import field, state
from datarax.distributed.collectives import unsharded
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.sums import suffix_sums
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, out_of_range
from datarax.statistics.scatter_counts import ScatterCounts


class RatedSubjects(NamedTuple):
    """The ratings of subjects, of which some may be missing."""

    value: jax.Array
    """The value of each rating, int32 (..., R); 0 where there is none that can be used."""
    is_rating: jax.Array
    """The mask (..., R) of the ratings; false for subjects that do not count."""
    weight: jax.Array
    """The weight of each subject, a float (...)."""
    invalid: Invalid

    @property
    def raters(self) -> jax.Array:
        """The number of ratings of each subject, a float (...)."""
        return xp.sum(self.is_rating, -1, dtype=xp.int32).astype(self.weight.dtype)


def rated_subjects(ratings: ArrayLike, size: int, weights: Weights) -> RatedSubjects:
    """Checks ratings (..., R) of each subject by R raters: 0 to `size - 1`; -1 or NaN for none.

    Raises:
        MetricInputError: they have no axis of raters.
    """
    x = numeric(ratings, "ratings")
    if not x.ndim:
        raise MetricInputError("ratings of shape (); expected (..., R), one rating of each rater")
    x = unsharded(x, -1)  # raters are taken in pairs
    if is_integer(x):
        missing = x == -1 if np.issubdtype(x.dtype, np.signedinteger) else xp.zeros_like(x, bool)
        known = in_range(x, size)
    else:
        missing = (x == -1) | xp.isnan(x)
        known = (x >= 0) & (x < size) & (xp.floor(x) == x)
    w, invalid = rows_weight(out_of_range(xp.any(~known & ~missing, -1)), weights)
    is_rating = known & w.astype(xp.bool_)[..., None]
    value = xp.where(is_rating, x, xp.zeros((), x.dtype)).astype(xp.int32)
    return RatedSubjects(value, is_rating, as_float(w), invalid)


class Coincidences(CountsInvalid, kw_only=False):
    """How often two values coincide in the ratings of one subject, Krippendorff's matrix.

    A subject with m ratings adds 1 / (m - 1) for each ordered pair of them, so that each of its
    ratings counts once. Subjects with a rating out of range are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.clustering.rater_agreement import Coincidences
        >>> seen = Coincidences(2).update(jnp.array([[0, 0], [0, 1], [1, -1]]))
        >>> print(seen.matrix.to_float())
        [[2. 1.]
         [1. 0.]]
    """

    terms_by_row = False  # a subject adds one term for each pair of its ratings

    num_values: int
    """The number of values: ratings are from 0 to `num_values - 1`."""

    def __post_init__(self) -> None:
        positive_int(self.num_values, "num_values")
        self.table = ScatterCounts((self.num_values, self.num_values))

    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in ratings (..., R) of subjects by R raters; -1 or NaN for none."""
        batch = rated_subjects(ratings, self.num_values, weights)
        # Each pair of raters once: the table is made symmetric when it is read.
        first, second = np.triu_indices(batch.value.shape[-1], 1)
        both = batch.is_rating[..., first] & batch.is_rating[..., second]
        place = batch.value[..., first] * self.num_values + batch.value[..., second]
        each = batch.weight / xp.maximum(batch.raters - 1, 1)
        w = xp.where(both, each[..., None], 0)
        return self.with_batch(batch.invalid, table=self.table.add(place, w))

    @property
    def matrix(self) -> DoubleFloat:
        """The matrix (K, K), which is symmetric."""
        one_way = self.table.double
        return one_way + one_way.map(xp.transpose)


class KrippendorffAlpha(Metric):
    """Krippendorff's alpha: how reliably raters agree, with any number of ratings per subject.

    `1 - D_o / D_e`: the disagreement within subjects, over that of ratings drawn at random from
    all. 1 is perfect agreement, 0 that of chance. Two values c and k disagree by 0 or 1
    ("nominal"), by `(c - k)^2` ("interval"), or by the square of the number of ratings from one to
    the other ("ordinal"), where ratings of c and k itself count half. A subject with fewer than two
    ratings does not count. No data, no subject with two ratings, all ratings equal, or weights of
    all ratings of 1 or less together gives NaN. As `krippendorff.alpha`. K. Krippendorff (2011),
    Computing Krippendorff's alpha-reliability.

    Raises:
        MetricInputError: another `level`, or `num_values` is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KrippendorffAlpha
        >>> ratings = jnp.array([[0, 0, 0], [1, 1, -1], [2, 2, 1], [0, 0, -1]])  # -1: no rating
        >>> print(round(float(KrippendorffAlpha(num_values=3).update(ratings).compute()), 4))
        0.7097
    """

    higher_is_better = True
    level: Literal["nominal", "ordinal", "interval"] = "nominal"
    """The level of measurement, which says how much two values disagree."""
    num_values: int = field()
    """The number of values that a rating may have: 0 to `num_values - 1`."""

    statistic: Coincidences = state()

    def __post_init__(self) -> None:
        choice(self.level, ("nominal", "ordinal", "interval"), "level")
        self.statistic = Coincidences.from_fields(self)

    @shareable
    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            ratings: (..., R), the rating of each subject by each of R raters, whole numbers from 0
                to `num_values - 1` of any real dtype; NaN or -1 where a rater gave none. A subject
                with any other value is invalid.
            weights: of the subjects; broadcast against the leading axes. Weight w counts as w
                copies of the subject.

        Raises:
            MetricInputError: `ratings` have no axis of raters.
        """
        return self.replace(statistic=self.statistic.update(ratings, weights=weights))

    def compute(self) -> PyTree:
        matrix = self.statistic.matrix
        by_value = matrix.sum(1)
        total = by_value.sum()
        # Shares, so that no product overflows.
        matrix, share = matrix / total, by_value / total
        apart = self._disagreement(share)
        observed = (matrix * apart).sum((0, 1))
        expected = (share[:, None] * share[None, :] * apart).sum((0, 1))
        # One pair fewer of each rating: not with itself.
        alpha = 1 - observed / expected * ((total - 1) / total)
        return xp.where(total.to_float() > 1, alpha.to_float(), np.nan)

    def _disagreement(self, share: DoubleFloat) -> DoubleFloat:
        """How much each two values disagree, (K, K)."""
        value = np.arange(self.num_values)
        if self.level == "ordinal":
            # The shares of the ratings below each value, and half of those at it.
            middle = share.map(lambda x: x[::-1])
            middle = suffix_sums(middle).map(lambda x: x[::-1]) - share * 0.5
            apart = middle[:, None] - middle[None, :]
            return apart * apart
        apart = value[:, None] - value
        apart = apart**2 if self.level == "interval" else apart != 0
        return DoubleFloat.of(beside(share.high, apart.astype(share.dtype)))


class SubjectShares(CountsInvalid, kw_only=False):
    """The share of each category in the ratings of a subject, and how many pairs agree: totals.

    Each subject counts alike, whatever its number of ratings. Subjects with a rating out of range
    are excluded and counted in `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.clustering.rater_agreement import SubjectShares
        >>> seen = SubjectShares(2).update(jnp.array([[0, 0, 0, 1], [1, -1, -1, -1]]))
        >>> print(seen.shares.value, seen.agreement.value, seen.compared.value)
        [0.75 1.25] 0.5 1.0
    """

    num_categories: int
    """The number of categories: ratings are from 0 to `num_categories - 1`."""

    agreement = MetricAccumulator(0.0)
    """Of subjects with two ratings or more, the share of pairs of ratings that agree."""
    compared = MetricAccumulator(0.0)
    """The weight of these subjects."""

    def __post_init__(self) -> None:
        positive_int(self.num_categories, "num_categories", least=2)
        self.shares = MetricAccumulator(np.zeros(self.num_categories))

    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in ratings (..., R) of subjects by R raters; -1 or NaN for none."""
        size = self.num_categories
        value, is_rating, w, invalid = batch = rated_subjects(ratings, size, weights)
        raters = batch.raters
        category = np.arange(size, dtype=np.int32).reshape((1,) * value.ndim + (-1,))
        chosen = is_rating[..., None] & (value[..., None] == beside(value, category))
        counts = xp.sum(chosen, -2, dtype=xp.int32).astype(w.dtype)
        pairs = raters * (raters - 1)
        agreeing = xp.sum(counts * (counts - 1), -1) / xp.maximum(pairs, 1)
        compared = xp.where(raters > 1, w, 0)
        return self.with_batch(
            invalid,
            shares=self.shares.update(counts * (w / xp.maximum(raters, 1))[..., None]),
            agreement=self.agreement.update(compared * agreeing),
            compared=self.compared.update(compared),
        )


class GwetAC1(Metric):
    """Gwet's AC1: how much more often raters agree than by chance, stable for rare categories.

    `(P - Q) / (1 - Q)`, with P the mean over subjects of the share of pairs of ratings that agree,
    and `Q = sum(p_k (1 - p_k)) / (K - 1)` over the K categories, with p_k the mean over subjects of
    the share of ratings in category k. Where nearly all ratings are in one category, Q is near 0,
    and that of `CohenKappa` and `FleissKappa` near 1. A subject with one rating counts in p_k
    only. No subject with two ratings gives NaN. K. L. Gwet (2008), Computing inter-rater
    reliability and its variance in the presence of high agreement,
    https://doi.org/10.1348/000711006X126600.

    Raises:
        MetricInputError: `num_categories` is not an integer of at least 2.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GwetAC1
        >>> ratings = jnp.array([[0, 0, 0], [1, 1, -1], [1, 1, 0], [0, 0, -1]])  # -1: no rating
        >>> print(round(float(GwetAC1(num_categories=2).update(ratings).compute()), 4))
        0.6757
    """

    higher_is_better = True
    num_categories: int
    """The number of categories: ratings are from 0 to `num_categories - 1`."""

    statistic: SubjectShares = state()

    def __post_init__(self) -> None:
        self.statistic = SubjectShares.from_fields(self)

    @shareable
    def update(self, ratings: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            ratings: (..., R), the category of each subject by each of R raters, whole numbers from
                0 to `num_categories - 1` of any real dtype; NaN or -1 where a rater gave none. A
                subject with any other value is invalid.
            weights: of the subjects; broadcast against the leading axes.

        Raises:
            MetricInputError: `ratings` have no axis of raters.
        """
        return self.replace(statistic=self.statistic.update(ratings, weights=weights))

    def compute(self) -> PyTree:
        seen = self.statistic
        share = seen.shares.double
        share = share / share.sum()
        agreement = seen.agreement.double / seen.compared.double
        chance = (share * (1 - share)).sum() / (self.num_categories - 1)
        return ((agreement - chance) / (1 - chance)).to_float()
