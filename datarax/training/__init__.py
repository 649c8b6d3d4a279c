"""Metrics in a training loop: updated in place, collected without waiting, agreed on."""

from datarax.algebra.state_dicts import register_with_flax
from datarax.training.agreement import check_agreement as check_agreement
from datarax.training.collector import AsyncMetricCollector as AsyncMetricCollector
from datarax.training.stateful import StatefulMetric as StatefulMetric

register_with_flax()  # `stateful` has imported Flax
