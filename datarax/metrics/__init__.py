"""The catalogue: each metric a statistic, and a formula that reads it."""

from datarax.metrics.aggregation import Max as Max
from datarax.metrics.aggregation import Mean as Mean
from datarax.metrics.aggregation import Min as Min
from datarax.metrics.aggregation import Std as Std
from datarax.metrics.aggregation import Sum as Sum
from datarax.metrics.aggregation import Variance as Variance
from datarax.metrics.aggregation import WeightedMean as WeightedMean
from datarax.metrics.classification import Accuracy as Accuracy
from datarax.metrics.curves import AUROC as AUROC
from datarax.metrics.curves import AveragePrecision as AveragePrecision
