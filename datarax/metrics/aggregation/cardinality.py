"""How many distinct values there were."""

import jax

from datarax.metrics.base import Metric, check_policy
from datarax.statistics.distinct import Distinct


class Cardinality(Metric):
    """An estimate of how many distinct values there were, in constant memory (HyperLogLog).

    `update(values, *, weights=None)`: integers or floats of any shape, users or tokens by their
    numbers, say; values of weight zero do not count, other weights are of no matter. Values are
    told apart by what they are, not by dtype: 3, 3 as uint8 and 3.0 are one, and so are -0.0 and
    0.0. The error is about normal with the standard deviation `standard_error`, 0.8 % at the
    default precision and less for counts below some thousands. No data gives 0.

    P. Flajolet, E. Fusy, O. Gandouet, F. Meunier (2007), https://doi.org/10.46298/dmtcs.3545,
    with the estimator of O. Ertl (2017), https://arxiv.org/abs/1702.01284, which needs no
    correction for small counts.

    Args:
        precision: from 4 to 16; there are `2**precision` registers of a byte, and the standard
            error is `1.04 / sqrt(2**precision)`.
        on_invalid: as for `Mean`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Cardinality
        >>> metric = Cardinality().update(jnp.arange(3000) % 50)
        >>> print(f"{metric.compute():.0f} +- {metric.standard_error:.2%}")
        50 +- 0.81%
    """

    def __init__(self, *, precision: int = 14, on_invalid: str = "exclude"):
        self.on_invalid = check_policy(on_invalid)
        self.statistic = Distinct(precision)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate, as a part of it."""
        return self.statistic.standard_error

    def compute(self) -> jax.Array:
        return self.statistic.count()
