"""Metrics in a training loop: updated in place, collected without waiting, agreed on."""

from importlib import import_module
from typing import TYPE_CHECKING

from datarax.algebra.saving import register_with_flax
from datarax.training.agreement import check_agreement as check_agreement
from datarax.training.collector import AsyncMetricCollector as AsyncMetricCollector
from datarax.training.stateful import StatefulMetric as StatefulMetric

if TYPE_CHECKING:
    from datarax.training.keras_metric import KerasMetric as KerasMetric

register_with_flax()  # `stateful` has imported Flax


def __getattr__(name: str) -> object:
    if name != "KerasMetric":  # it loads at first use, because it imports Keras
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = import_module("datarax.training.keras_metric").KerasMetric
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), "KerasMetric"})
