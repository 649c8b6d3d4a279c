"""Metrics for JAX and Flax programs that run on many devices and processes."""

# First of all, so that the command handles Ctrl-C from here on.
from datarax._start import INTERRUPTED as _INTERRUPTED  # noqa: F401  # isort: skip

from importlib import import_module
from typing import TYPE_CHECKING

# `as`: type checkers take a name that is imported in this form for a public one.
from datarax._errors import AxisNotBoundError as AxisNotBoundError
from datarax._errors import CheckpointError as CheckpointError
from datarax._errors import CollectorStateError as CollectorStateError
from datarax._errors import ConfigurationMismatchError as ConfigurationMismatchError
from datarax._errors import CutGroupsWarning as CutGroupsWarning
from datarax._errors import DataraxError as DataraxError
from datarax._errors import DonatedStateError as DonatedStateError
from datarax._errors import EvaluationError as EvaluationError
from datarax._errors import InvalidValuesError as InvalidValuesError
from datarax._errors import InvalidValuesWarning as InvalidValuesWarning
from datarax._errors import MetricInputError as MetricInputError
from datarax._errors import MetricTimeoutError as MetricTimeoutError
from datarax._errors import MetricTypeError as MetricTypeError
from datarax._errors import MissingExtraError as MissingExtraError
from datarax._errors import NotAddressableError as NotAddressableError
from datarax._errors import NoWordsWarning as NoWordsWarning
from datarax._errors import PlatformWarning as PlatformWarning
from datarax._errors import PrecisionWarning as PrecisionWarning
from datarax._errors import ReferencesWarning as ReferencesWarning
from datarax._errors import ScoresWarning as ScoresWarning
from datarax._errors import UndefinedMetricWarning as UndefinedMetricWarning
from datarax._errors import UnknownMetricError as UnknownMetricError
from datarax._errors import UnknownReductionError as UnknownReductionError
from datarax._errors import WindowError as WindowError
from datarax._errors import WriterError as WriterError
from datarax._errors import WriterWarning as WriterWarning

if TYPE_CHECKING:
    from datarax import distributed as distributed
    from datarax import evaluation as evaluation
    from datarax import io as io
    from datarax import metrics as metrics
    from datarax import numerics as numerics
    from datarax import plot as plot
    from datarax import statistics as statistics
    from datarax import testing as testing
    from datarax import training as training
    from datarax import uncertainty as uncertainty
    from datarax import wrappers as wrappers
    from datarax._platform import lowering_for as lowering_for
    from datarax.algebra.fields import field as field
    from datarax.distributed.merge_ops import MetricReduceOp as MetricReduceOp
    from datarax.evaluation.evaluator import evaluate as evaluate
    from datarax.metric.base import Metric as Metric
    from datarax.metric.replicate import replicate as replicate
    from datarax.metrics.probabilistic.mean_score import ElementwiseMean as ElementwiseMean
    from datarax.numerics.exact import Exact as Exact
    from datarax.statistics.accumulator import MetricAccumulator as MetricAccumulator
    from datarax.training.collector import AsyncMetricCollector as AsyncMetricCollector
    from datarax.training.process_merge import merge_processes as merge_processes
    from datarax.wrappers.best import Best as Best
    from datarax.wrappers.bootstrap import Bootstrap as Bootstrap
    from datarax.wrappers.classwise import Classwise as Classwise
    from datarax.wrappers.collection import Collection as Collection
    from datarax.wrappers.compare import Compare as Compare
    from datarax.wrappers.interval import Interval as Interval
    from datarax.wrappers.multi_output import MultiOutput as MultiOutput
    from datarax.wrappers.multi_task import MultiTask as MultiTask
    from datarax.wrappers.per_device import PerDevice as PerDevice
    from datarax.wrappers.per_device import per_device as per_device
    from datarax.wrappers.run_health import health as health
    from datarax.wrappers.sliced import Sliced as Sliced
    from datarax.wrappers.transformed import Transformed as Transformed
    from datarax.wrappers.window import Decayed as Decayed
    from datarax.wrappers.window import Window as Window

__version__ = "0.1.0"

# These load at first use, because they import JAX. Only `datarax.training` imports Flax.
_PACKAGES = (
    "distributed",
    "evaluation",
    "io",
    "metrics",
    "numerics",
    "plot",
    "statistics",
    "testing",
    "training",
    "uncertainty",
    "wrappers",
)
_LAZY = {
    "Exact": "datarax.numerics.exact",
    "MetricReduceOp": "datarax.distributed.merge_ops",
    "evaluate": "datarax.evaluation.evaluator",
    "ElementwiseMean": "datarax.metrics.probabilistic.mean_score",
    "Metric": "datarax.metric.base",
    "AsyncMetricCollector": "datarax.training.collector",
    "MetricAccumulator": "datarax.statistics.accumulator",
    "field": "datarax.algebra.fields",
    "merge_processes": "datarax.training.process_merge",
    "Best": "datarax.wrappers.best",
    "Bootstrap": "datarax.wrappers.bootstrap",
    "Classwise": "datarax.wrappers.classwise",
    "Collection": "datarax.wrappers.collection",
    "Compare": "datarax.wrappers.compare",
    "MultiTask": "datarax.wrappers.multi_task",
    "PerDevice": "datarax.wrappers.per_device",
    "Transformed": "datarax.wrappers.transformed",
    "per_device": "datarax.wrappers.per_device",
    "replicate": "datarax.metric.replicate",
    "Sliced": "datarax.wrappers.sliced",
    "Decayed": "datarax.wrappers.window",
    "Interval": "datarax.wrappers.interval",
    "MultiOutput": "datarax.wrappers.multi_output",
    "Window": "datarax.wrappers.window",
    "health": "datarax.wrappers.run_health",
    "lowering_for": "datarax._platform",
}


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"datarax.{name}")
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        # Only classes are looked for, as `from datarax import cli` also comes here: without JAX.
        if name[:1].isupper():
            message += _hint(name)
        raise AttributeError(message)
    # Python calls this function only for names that the module does not hold yet.
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def _hint(name: str) -> str:
    """Suggests what a name of no class here may mean, for the end of a message."""
    metrics = vars(import_module("datarax.metrics"))
    suggestion = import_module("datarax.metric.other_names").suggestion
    own = "" if name in metrics else suggestion(name, dict.fromkeys(__dir__()))
    return own or suggestion(name, metrics, "datarax.metrics.")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_PACKAGES})
