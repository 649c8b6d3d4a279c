"""Figures of metrics, from computed values."""

from datarax.plot.health_maps import expert_load as expert_load
from datarax.plot.health_maps import health as health
from datarax.plot.matrices import confusion_matrix as confusion_matrix
from datarax.plot.power_curves import power as power
from datarax.plot.reliability_diagram import reliability as reliability
from datarax.plot.runs import history as history
from datarax.plot.runs import quantiles as quantiles
from datarax.plot.score_figures import precision_recall as precision_recall
from datarax.plot.score_figures import roc as roc
from datarax.plot.score_figures import score_histogram as score_histogram
from datarax.plot.slice_dots import binned as binned
from datarax.plot.slice_dots import slices as slices
from datarax.plot.value_figures import distribution as distribution
from datarax.plot.value_figures import error_quantiles as error_quantiles
from datarax.plot.value_figures import pairs as pairs
