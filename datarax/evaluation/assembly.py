"""The one metric that a command folds a file into: the whole, its intervals, and its slices."""

from dataclasses import replace

import jax

from datarax.evaluation.encoding import Configuration
from datarax.evaluation.paired_parts import MODELS, PREDICTED
from datarax.evaluation.tasks import CLASSES, TASKS, Spec, built, needs_scores
from datarax.metrics import Sum
from datarax.metrics.base import Metric
from datarax.metrics.other_names import snake_case
from datarax.wrappers.bootstrap import Bootstrap
from datarax.wrappers.collection import Collection
from datarax.wrappers.compare import Compare
from datarax.wrappers.sliced import Sliced

# The most bytes of a state that is held several times: once for each replica or slice.
_REPLICA_BYTES = 1 << 16
_SLICE_BYTES = 1 << 18
_SLICED_REPLICA_BYTES = 1 << 11
_COARSE_BITS = (12, 10)
"""The bits of metrics that hold scores in bins, where their states are held several times."""


def assembled(config: Configuration) -> Collection:
    """The metric of an evaluation, without data.

    It is a collection of:

    - `whole`: all metrics by their names; `figure/...` are only drawn, and `class/...` have a value
      for each class.
    - `interval`: replicas of the metrics whose states are small.
    - `slice_i`: the metrics of slicing `i`, and `slice_i_interval` with replicas.

    Raises:
        MetricInputError: a metric lacks an option, or refuses one.
    """
    metrics = {spec.name: _metric(spec, config) for spec in config.specs}
    resampling = {"replicas": config.bootstrap, "confidence": config.confidence}
    # Memory decides: a state of a megabyte would be held once for each of some hundred replicas.
    drawn = _resampled(config, _REPLICA_BYTES)
    # Both models see the same rows: one target, and two sets of predictions.
    if config.compared:
        parts: dict[str, Metric] = {
            model: Collection({name: _of_model(each, model) for name, each in metrics.items()})
            for model in MODELS
        }
        return Collection(
            parts | ({"compared": Compare(Collection(drawn), **resampling)} if drawn else {})
        )
    parts = {"whole": Collection(metrics | _beside(config))}
    if config.bootstrap and drawn:
        parts["interval"] = Bootstrap(Collection(drawn), **resampling)
    # How many rows a slice has, whatever they weigh.
    ones = Sum().from_outputs(values="ones", weights=None)
    for place, slicing in enumerate(config.slicings):
        by, number = f"slice_{place}", len(slicing.names)
        sliced = _small(config, _SLICE_BYTES) | {"examples": ones}
        parts[by] = Sliced(Collection(sliced), number, by=by)
        drawn = _resampled(config, _SLICED_REPLICA_BYTES)
        if config.bootstrap and drawn:
            of_slices = Sliced(Collection(drawn), number, by=by)
            parts[f"{by}_interval"] = Bootstrap(of_slices, **resampling)
    return Collection(parts)


def without_interval(config: Configuration) -> list[str]:
    """The names of metrics whose state is too large to be held once for each replica."""
    drawn = _small(config, _REPLICA_BYTES)
    return [spec.name for spec in config.specs if config.bootstrap and spec.name not in drawn]


def without_slices(config: Configuration) -> list[str]:
    """The names of metrics whose state is too large to be held once for each slice."""
    sliced = _small(config, _SLICE_BYTES)
    return [spec.name for spec in config.specs if config.slicings and spec.name not in sliced]


def _metric(spec: Spec, config: Configuration) -> Metric:
    return built(spec, config.task, config.size, config.scores, config.on_invalid)


def _small(config: Configuration, limit: int) -> dict[str, Metric]:
    """The metrics small enough to hold many states, with fewer bins where that makes them small."""
    found = {}
    for spec in config.specs:
        metric = _metric(spec, config)
        # Fewer bins until it fits. The metric of all rows keeps all of its bins.
        for bits in _COARSE_BITS if "bits" in metric.fields else ():
            if _bytes(metric) > limit:
                coarse = dict(spec.options) | {"bits": bits}
                metric = _metric(spec._replace(options=tuple(coarse.items())), config)
        if _bytes(metric) <= limit:
            found[spec.name] = metric
    return found


def _resampled(config: Configuration, limit: int) -> dict[str, Metric]:
    """The metrics of `_small` whose uncertainty replicas can estimate."""
    return {name: each for name, each in _small(config, limit).items() if not each.is_extreme}


def _bytes(metric: Metric) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(metric))


def _of_model(metric: Metric, model: str) -> Metric:
    """The metric that takes the outputs of one of two models."""
    routes = {
        route.argument: f"{route.output}_{model}"
        for route in metric.routes()
        # All others, such as targets and weights, are of both models. The errors and the masks of
        # the predictions come from `Configuration.encoding`.
        if route.output in (*PREDICTED, "error", "valid")
    }
    return metric.from_outputs(**routes)


def _beside(config: Configuration) -> dict[str, Metric]:
    """The metrics that are drawn, and those that are listed for each class."""
    task = TASKS[config.task]
    by_name = {snake_case(name): name for name in CLASSES}
    found = {}
    for name in task.figures if config.pictures else ():
        spec = Spec(f"figure/{name}", by_name[name])
        if not (config.scores == "labels" and needs_scores(spec)):
            # A value may be NaN by the policy; a picture shows the rows that can be used.
            found[spec.name] = _metric(spec, replace(config, on_invalid="exclude"))
    for name in task.by_class:
        spec = Spec(f"class/{name}", by_name[name], (("average", None),))
        found[spec.name] = _metric(spec, config)
    if task.by_class:
        found["class/support"] = _metric(Spec("class/support", "StatScores"), config)
    return found
