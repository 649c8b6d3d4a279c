"""The one metric that a command folds a file into: the whole, its intervals, and its slices."""

from dataclasses import replace

import jax

from datarax._errors import MetricInputError
from datarax.evaluation.encoding import Configuration
from datarax.evaluation.row_scores import scored
from datarax.evaluation.tasks import CLASSES, TASKS, Spec, built, figures, needs_scores
from datarax.metric.base import Metric
from datarax.metric.other_names import snake_case
from datarax.metrics import Sum
from datarax.metrics.regression.rank_correlation import RankCorrelation
from datarax.wrappers.bootstrap import Bootstrap
from datarax.wrappers.collection import Collection
from datarax.wrappers.compare import Compare
from datarax.wrappers.interval import Interval
from datarax.wrappers.pairs import Pairs
from datarax.wrappers.sliced import Sliced

# The most bytes of a state that is held several times: once for each replica or slice.
_REPLICA_BYTES = 1 << 16
_SLICE_BYTES = 1 << 18
_SLICED_REPLICA_BYTES = 1 << 11


def assembled(config: Configuration) -> Collection:
    """The metric of an evaluation, without data.

    It is a collection of:

    - `whole`: all metrics by their names, each in an `Interval` if there is a formula for it;
      `figure/...` are only drawn, and `class/...` have a value for each class.
    - `drawn`: replicas of the other metrics whose states are small.
    - `slice_i`: the metrics of slicing `i`, and `slice_i_drawn` with replicas.

    Of two models, `models` has all metrics of both, `paired` the differences by formulas, and
    `drawn` those of replicas. The slices have `models` and `paired`.

    Raises:
        MetricInputError: a metric lacks an option, or refuses one.
    """
    metrics = {spec.name: _metric(spec, config) for spec in config.specs}
    # Memory decides: a state of a megabyte would be held once for each of some hundred replicas.
    drawn = _drawn(config, _REPLICA_BYTES)
    # How many rows a slice has, whatever they weigh.
    ones = Sum().from_outputs(values="ones", weights=None)
    resampling = {"replicas": config.bootstrap, "confidence": config.confidence}
    parts: dict[str, Metric]
    if config.compared:
        parts = _compared(metrics, config)
        if config.bootstrap and drawn:
            parts["drawn"] = Compare(Collection(drawn), **resampling)
    else:
        whole = {name: _with_interval(each, config) or each for name, each in metrics.items()}
        parts = {"whole": Collection(whole | _beside(config))}
        if config.bootstrap and drawn:
            parts["drawn"] = Bootstrap(Collection(drawn), **resampling)
    for place, slicing in enumerate(config.slicings):
        by, number = f"slice_{place}", len(slicing.names)
        small = _small(config, _SLICE_BYTES)
        if config.compared:
            sliced = _compared(small, config)
        else:
            sliced = {name: _with_interval(each, config) or each for name, each in small.items()}
        parts[by] = Sliced(Collection(sliced | {"examples": ones}), number, by=by)
        drawn = _drawn(config, _SLICED_REPLICA_BYTES)
        if config.bootstrap and drawn and not config.compared:
            of_slices = Sliced(Collection(drawn), number, by=by)
            parts[f"{by}_drawn"] = Bootstrap(of_slices, **resampling)
    return Collection(parts)


def without_formula(config: Configuration) -> list[str]:
    """The names of metrics that have no interval, and would have one by replicas."""
    return [] if config.bootstrap else list(_drawn(config, _REPLICA_BYTES))


def without_formula_of_clusters(config: Configuration) -> list[str]:
    """Those of `without_formula` that have a formula if rows are independent."""
    formula = _with_formula(replace(config, clustered=False)) if config.clustered else {}
    return [name for name in without_formula(config) if name in formula]


def extremes(config: Configuration) -> list[str]:
    """The names of metrics that are an extreme of the rows."""
    return [spec.name for spec in config.specs if _metric(spec, config).is_extreme]


def without_interval(config: Configuration) -> list[str]:
    """The names of metrics without a formula whose state is too large to be held in replicas."""
    small, formula = _small(config, _REPLICA_BYTES), _with_formula(config)
    return [spec.name for spec in config.specs if spec.name not in small | formula]


def without_slices(config: Configuration) -> list[str]:
    """The names of metrics whose state is too large to be held once for each slice."""
    sliced = _small(config, _SLICE_BYTES)
    return [spec.name for spec in config.specs if config.slicings and spec.name not in sliced]


def _with_interval(metric: Metric, config: Configuration) -> Interval | None:
    """The interval of a metric by a formula; None if it has none."""
    try:
        return Interval(metric, config.confidence, clusters=_clusters(config))
    except MetricInputError:
        return None


def _paired(metric: Metric, config: Configuration) -> Compare | None:
    """The difference of two models in a metric, by a formula; None if it has none."""
    try:
        return Compare(
            metric, method="formula", confidence=config.confidence, clusters=_clusters(config)
        )
    except MetricInputError:
        return None


def _clusters(config: Configuration) -> int | None:
    return config.cells if config.clustered else None


def _with_formula(config: Configuration) -> dict[str, Metric]:
    """The intervals by formulas, by the name of the metric."""
    interval = _paired if config.compared else _with_interval
    found = ((spec.name, interval(_metric(spec, config), config)) for spec in config.specs)
    return {name: each for name, each in found if each}


def _compared(metrics: dict[str, Metric], config: Configuration) -> dict[str, Metric]:
    """The metrics of two models, and the differences by formulas."""
    parts: dict[str, Metric] = {"models": Pairs(Collection(metrics))}
    paired = {name: x for name, each in metrics.items() if (x := _paired(each, config))}
    return parts | ({"paired": Collection(paired)} if paired else {})


def _drawn(config: Configuration, limit: int) -> dict[str, Metric]:
    """The metrics whose uncertainty replicas estimate, because there is no formula for it."""
    formula = _with_formula(config)
    return {
        name: each
        for name, each in _small(config, limit).items()
        if name not in formula and not each.is_extreme
    }


def _metric(spec: Spec, config: Configuration) -> Metric:
    return built(spec, config.task, config.size, config.scores, config.on_invalid)


def _small(config: Configuration, limit: int) -> dict[str, Metric]:
    """The metrics small enough to hold many states, with fewer bins where that makes them small."""
    found = {}
    for spec in config.specs:
        metric = _metric(spec, config)
        # Fewer bins until it fits. The metric of all rows keeps all of its bins.
        for bits in _coarse_bits(metric):
            if _bytes(metric) > limit:
                coarse = dict(spec.options) | {"bits": bits}
                metric = _metric(spec._replace(options=tuple(coarse.items())), config)
        if _bytes(metric) <= limit:
            found[spec.name] = metric
    return found


def _coarse_bits(metric: Metric) -> tuple[int, ...]:
    """For a metric that holds values in bins, `bits` of less memory; with `exact`, it has none."""
    if "bits" not in metric.fields or vars(metric).get("exact"):
        return ()
    return (6,) if isinstance(metric, RankCorrelation) else (12, 10)


def _bytes(metric: Metric) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(metric))


def _beside(config: Configuration) -> dict[str, Metric]:
    """The metrics that are drawn, and those that are listed for each class."""
    task = TASKS[config.task]
    by_name = {snake_case(name): name for name in CLASSES}
    found = {}
    # Errors of several outputs may differ in size, so a picture of all of them shows nothing.
    several = config.task in ("regression", "score") and config.size is not None
    several |= bool(config.groups)
    for spec in figures(config.task) if config.pictures and not several else ():
        if not (config.scores == "labels" and needs_scores(spec)):
            # A value may be NaN by the policy; a picture shows the rows that can be used.
            found[spec.name] = _metric(spec, replace(config, on_invalid="exclude"))
    if config.pictures:
        found |= {f"figure/{name}": each for name, each in scored(config.task).items()}
    for name in task.by_class:
        spec = Spec(f"class/{name}", by_name[name], (("average", None),))
        found[spec.name] = _metric(spec, config)
    if task.by_class:
        found["class/support"] = _metric(Spec("class/support", "StatScores"), config)
    return found
