"""The threshold of split conformal prediction, from scores of calibration examples."""

from typing import Self

from datarax._checks import finite_number
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field, state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.numerics.double_float import where
from datarax.statistics.value_histogram import ValueHistogram, exact_q, quantiles_of


class ConformalThreshold(Metric):
    """The threshold that a new score exceeds with at most a given probability.

    A dict with "threshold". Of n scores, it is at least the one of rank `ceil((n + 1) * coverage)`
    from below. If a new score is exchangeable with these, it is at or below the threshold with at
    least the probability `coverage`, whatever the distribution. With nonconformity scores of
    calibration examples, such as `1 - p` of the true class, the classes whose score is at or below
    the threshold are a prediction set that contains the true one so often.

    Scores are kept in bins that adapt to their range, see `datarax.statistics.ValueHistogram`. The
    threshold is the greatest score in the bin of that rank, so it is never too low; it is the score
    of that rank itself where the bin holds one distinct value; of float64, rounded up to float32.
    Too few scores, `(n + 1) * coverage > n`, give inf, also no scores. Weights count as
    repetitions.

    V. Vovk, A. Gammerman and G. Shafer (2005), Algorithmic learning in a random world;
    A. N. Angelopoulos and S. Bates (2021), A gentle introduction to conformal prediction,
    https://arxiv.org/abs/2107.07511, section 1.

    Raises:
        MetricInputError: a `coverage` that is not between 0 and 1, or `bits` that are not from 10
            to 22.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ConformalThreshold
        >>> print(ConformalThreshold(0.9).update(jnp.arange(1.0, 20.0)).results())
        {'threshold': 18.0}
        >>> print(ConformalThreshold(0.9).update(jnp.arange(1.0, 9.0)).results())
        {'threshold': inf}
    """

    coverage: float = field(kw_only=False)
    """The least probability that a new score is at or below the threshold, between 0 and 1."""
    bits: int = 16
    """The resolution of the bins, from 10 to 22: each bit more halves their width and doubles the
    memory. See `datarax.statistics.ValueHistogram`."""

    statistic: ValueHistogram = state()

    def __post_init__(self) -> None:
        expected = "a number between 0 and 1"
        self.coverage = finite_number(self.coverage, "coverage", expected, lambda x: 0 < x < 1)
        self.statistic = ValueHistogram.from_fields(self)

    @shareable
    def update(self, scores: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            scores: of any shape and real dtype; all are one population.
            weights: broadcast against the leading axes of `scores`, and count as repetitions. A
                score of weight zero does not count, even if it is NaN.

        Raises:
            MetricInputError: weights that do not broadcast; shows both shapes.
            MetricTypeError: scores or weights that are not numbers.
        """
        return self.replace(statistic=self.statistic.update(scores, weights=weights))

    def compute(self) -> dict[str, PyTree]:
        bins = self.statistic.bins.contents()
        n = bins.weights[0, 0].sum()
        least = exact_q(self.coverage)
        # The rank as a part of n. The greatest of n scores has the part 1.
        part = (n + 1) * least / where(n.high > 0, n, n + 1)
        _, _, upper = quantiles_of(bins, part, "inverted_cdf")
        # `least` is rounded to 2**-48, which must not turn 9 of 9 scores into more than there are.
        enough = (n.high > 0) & ((part - 1).to_float() <= 2.0**-44)
        return {"threshold": xp.where(enough, upper, xp.asarray(xp.inf, upper.dtype))}
