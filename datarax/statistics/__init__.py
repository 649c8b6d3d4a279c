"""What is stored: mergeable sufficient statistics."""

from datarax.statistics._state import State as State
from datarax.statistics.accumulator import MetricAccumulator as MetricAccumulator
from datarax.statistics.buffer import Buffer as Buffer
from datarax.statistics.class_counts import ClassCounts as ClassCounts
from datarax.statistics.contingency import Contingency as Contingency
from datarax.statistics.cross_moments import CrossMoments as CrossMoments
from datarax.statistics.cross_moments import Residuals as Residuals
from datarax.statistics.moments import Moments as Moments
from datarax.statistics.score_buffer import ScoreBuffer as ScoreBuffer
from datarax.statistics.score_histogram import ScoreHistogram as ScoreHistogram
from datarax.statistics.value_histogram import ValueHistogram as ValueHistogram
from datarax.statistics.weighted import WeightedTotal as WeightedTotal
