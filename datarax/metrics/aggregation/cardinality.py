"""How many distinct values there were."""

from datarax._typing import OnInvalid, PyTree
from datarax.algebra.fields import state
from datarax.metrics.aggregation.value_metric import ValueMetric
from datarax.statistics.distinct import Distinct


class Cardinality(ValueMetric):
    """An estimate of how many distinct values there were, in constant memory (HyperLogLog).

    Values may be integers or floats, the numbers of users or tokens for example. Whether a weight
    is zero decides if its values count; its size does not matter. Values are compared by value,
    not by dtype: 3, 3 as uint8 and 3.0 are one value, and so are -0.0 and 0.0. The error is close
    to normal, with the standard deviation `standard_error`: 0.8 % at the default precision, and
    less for counts below a few thousand. No data gives 0.

    P. Flajolet, E. Fusy, O. Gandouet, F. Meunier (2007), https://doi.org/10.46298/dmtcs.3545,
    with the estimator of O. Ertl (2017), https://arxiv.org/abs/1702.01284, which needs no
    correction for small counts.

    Raises:
        MetricInputError: a `precision` that is not an integer from 4 to 16.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import Cardinality
        >>> metric = Cardinality().update(jnp.arange(3000) % 50)
        >>> print(f"{metric.compute():.0f} +- {metric.standard_error:.2%}")
        50 +- 0.81%
    """

    on_invalid: OnInvalid = "exclude"
    """As in `Metric`. The default is "exclude" because the result is a count."""
    precision: int = 14
    """From 4 to 16: there are `2**precision` registers of one byte, and the standard error is
    `1.04 / sqrt(2**precision)`."""

    statistic: Distinct = state()

    def __post_init__(self) -> None:
        self.statistic = Distinct.from_fields(self)

    @property
    def standard_error(self) -> float:
        """The standard deviation of the estimate, relative to it."""
        return self.statistic.standard_error

    def compute(self) -> PyTree:
        return self.statistic.count()
