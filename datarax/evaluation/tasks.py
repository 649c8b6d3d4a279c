"""Tasks: which metrics the command computes, and from which columns."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from datarax import metrics as catalogue
from datarax._errors import MetricInputError, UnknownMetricError
from datarax.metrics.base import Metric


class Spec(NamedTuple):
    """One metric to compute: a class of the catalogue with some of its options."""

    name: str
    """As it is listed; unique in one evaluation."""
    metric: str
    """The name of the class in `datarax.metrics`."""
    options: tuple[tuple[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A dict that JSON can hold; `of_json` reads it."""
        return {"name": self.name, "metric": self.metric, "options": dict(self.options)}

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> "Spec":
        """The spec that `as_json` gave.

        Raises:
            UnknownMetricError: the catalogue has no class of this name.
        """
        if saved["metric"] not in CLASSES:
            raise UnknownMetricError(f"there is no metric {saved['metric']!r}")
        options = ((key, hashable(value)) for key, value in saved["options"].items())
        return cls(saved["name"], saved["metric"], tuple(options))


@dataclass(frozen=True)
class Task:
    """A kind of predictions."""

    takes: str
    """What the columns of predictions and targets hold, for messages."""
    families: tuple[str, ...]
    """The folders of `datarax/metrics` whose metrics can be computed."""
    outputs: frozenset[str]
    """The outputs that metrics may take, besides `weights`."""
    defaults: tuple[str, ...]
    """The metrics without `--metrics`, as it takes them."""
    size: str | None = None
    """The field of metrics that says how many classes, labels or outputs there are."""
    figures: tuple[str, ...] = ()
    """Metrics that are only drawn."""
    by_class: tuple[str, ...] = ()
    """Metrics that have a value for each class."""


_PAIR = frozenset({"preds", "target"})
_SCORES = ("classification", "curves", "probabilistic")
_BY_CLASS = ("precision", "recall", "f1")
TASKS: Mapping[str, Task] = {
    "binary": Task(
        "one column of scores, or of 0 and 1, and one of labels",
        _SCORES,
        _PAIR,
        (
            "accuracy",
            "balanced_accuracy=accuracy:average=macro",
            "f1",
            "precision",
            "recall",
            "matthews_corr_coef",
            "log_loss",
            "brier_score",
            "auroc",
            "average_precision",
            "calibration_error",
        ),
        None,
        ("confusion_matrix", "roc", "precision_recall_curve", "reliability_diagram"),
    ),
    "multiclass": Task(
        "one column of scores for each class, or one of predicted labels, and one of labels",
        (*_SCORES, "clustering"),
        _PAIR,
        (
            "accuracy",
            "top_5_accuracy=accuracy:top_k=5",
            "balanced_accuracy=accuracy:average=macro",
            "macro_f1=f1",
            "matthews_corr_coef",
            "log_loss",
            "brier_score",
            "auroc",
            "calibration_error",
        ),
        "num_classes",
        ("confusion_matrix", "reliability_diagram"),
        _BY_CLASS,
    ),
    "multilabel": Task(
        "one column of scores and one of 0 and 1 for each label",
        _SCORES,
        _PAIR,
        (
            "exact_match",
            "accuracy",
            "macro_f1=f1",
            "micro_f1=f1:average=micro",
            "precision",
            "recall",
            "log_loss",
            "brier_score",
            "auroc",
            "average_precision",
            "calibration_error",
        ),
        "num_labels",
        ("reliability_diagram",),
        _BY_CLASS,
    ),
    "regression": Task(
        "columns of numbers",
        ("regression", "aggregation"),
        _PAIR | {"error"},
        (
            "mae=mean_absolute_error",
            "rmse=root_mean_squared_error",
            "median_absolute_error",
            "max_error",
            "bias=mean",
            "r2=r2_score",
            "pearson_corr_coef",
        ),
        "num_outputs",
    ),
    "ranking": Task(
        "a row for each document: its score, its relevance, and the id of its query",
        ("ranking",),
        _PAIR | {"query"},
        (
            "ndcg_at_10=ndcg:k=10",
            "mrr",
            "map=retrieval_map",
            "precision_at_10=precision_at_k:k=10",
            "recall_at_10=recall_at_k:k=10",
            "hit_rate_at_10=hit_rate:k=10",
        ),
    ),
    "text": Task(
        "one column of strings, and one of references",
        ("language",),
        _PAIR,
        ("bleu", "chrf", "rouge", "exact_match=text_exact_match", "token_f1", "wer", "cer"),
    ),
    "detection": Task(
        "columns of lists: boxes, scores and labels; boxes and labels of the ground truth",
        ("vision",),
        frozenset(
            ("boxes", "scores", "labels", "target_boxes", "target_labels", "valid", "target_valid")
        ),
        ("mean_average_precision",),
        "num_classes",
    ),
}

CLASSES: Mapping[str, type[Metric]] = {
    name: each
    for name, each in vars(catalogue).items()
    if isinstance(each, type) and issubclass(each, Metric) and name == each.__name__
}
# The others have a higher value when predictions are better.
_LOWER = frozenset(
    (
        "BrierScore",
        "CER",
        "CalibrationError",
        "CoverageError",
        "EqualErrorRate",
        "FallOut",
        "HammingDistance",
        "HingeLoss",
        "HuberLoss",
        "LabelRankingLoss",
        "LogCoshError",
        "LogLoss",
        "MER",
        "MaxError",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogError",
        "MedianAbsoluteError",
        "MinkowskiDistance",
        "NormalizedRootMeanSquaredError",
        "QuantileLoss",
        "RankedProbabilityScore",
        "RelativeSquaredError",
        "RootMeanSquaredError",
        "SelfBLEU",
        "SymmetricMeanAbsolutePercentageError",
        "TER",
        "TweedieDeviance",
        "WER",
        "WIL",
        "WeightedMeanAbsolutePercentageError",
    )
)
_OF_ERRORS = ("Max", "Mean", "Min", "Std", "Variance")
"""Aggregations that regression has of the prediction minus the target."""
_NEITHER = frozenset(
    (
        *_OF_ERRORS,
        "ClassificationReport",
        "ConfusionMatrix",
        "CramersV",
        "DETCurve",
        "GainCurve",
        "LiftCurve",
        "LikelihoodRatios",
        "PairConfusionMatrix",
        "PearsonsContingency",
        "PrecisionRecallCurve",
        "ROC",
        "ReliabilityDiagram",
        "StatScores",
        "TheilsU",
        "TschuprowsT",
    )
)
# They take distributions, or ensembles.
_NOT_COLUMNS = frozenset(
    ("ContinuousRankedProbabilityScore", "JensenShannonDivergence", "KLDivergence")
)


def snake_case(name: str) -> str:
    """The name of a class as the command has it: "MatthewsCorrCoef" is "matthews_corr_coef"."""
    name = name.replace("IoU", "Iou")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def built(spec: Spec, task: str, size: int | None, scores: str | None, on_invalid: str) -> Metric:
    """The metric of a spec, without data.

    Args:
        spec: what to make.
        task: a name of `TASKS`.
        size: how many classes, labels or outputs there are; None where the task has no such number.
        scores: "logits", "probabilities", "labels", or None where the task has no scores.
        on_invalid: as of each metric.

    Raises:
        MetricInputError: an option is missing or has a value that the metric refuses.
    """
    cls, fields = CLASSES[spec.metric], fields_of(CLASSES[spec.metric])
    given: dict[str, Any] = dict(spec.options) | {"on_invalid": on_invalid}
    size_field = TASKS[task].size
    if size_field in fields:
        given[size_field] = size
    # Without a threshold, the highest logit is also the highest probability.
    of_classes = size_field == "num_classes" and "threshold" in fields
    if "from_logits" in fields and scores == "logits" and not of_classes:
        given["from_logits"] = True
    missing = [name for name, required in fields.items() if required and name not in given]
    if missing:
        options = "".join(f":{name}=..." for name in missing)
        raise MetricInputError(
            f"the metric {spec.name!r} needs {', '.join(missing)}: write "
            f"{snake_case(spec.metric)}{options}"
        )
    if scores == "labels" and needs_scores(spec):
        raise MetricInputError(
            f"the metric {spec.name!r} needs scores, and --preds names one column of predicted "
            f"labels; name one column of scores for each class"
        )
    try:
        metric = cls(**given)
    except (MetricInputError, TypeError) as error:
        raise MetricInputError(f"the metric {spec.name!r}: {error}") from error
    if task == "regression" and spec.metric in _OF_ERRORS:
        return metric.from_outputs(values="error")
    return metric


def described(spec: Spec) -> str:
    """One sentence on the metric."""
    options = dict(spec.options)
    if spec.metric == "Mean":
        return "The mean of the prediction minus the target."
    if spec.metric == "Accuracy" and options.get("average") == "macro":
        return "The mean over the classes of the fraction of their examples that are predicted."
    if spec.metric == "Accuracy" and "top_k" in options:
        return f"The fraction of examples whose class is among the {options['top_k']} best scores."
    text = (inspect.getdoc(CLASSES[spec.metric]) or "").split("\n\n")[0].replace("\n", " ")
    return text.replace("`", "").replace(" (multilabel: of labels)", "")


def better(spec: Spec) -> str | None:
    """Whether a "higher" or a "lower" value is better; None if neither is."""
    if spec.metric in _NEITHER:
        return None
    return "lower" if spec.metric in _LOWER else "higher"


def fields_of(cls: type[Metric]) -> dict[str, bool]:
    """The configuration of a class, and whether each field must be given."""
    parameters = inspect.signature(cls).parameters.values()
    return {each.name: each.default is inspect.Parameter.empty for each in parameters}


def of_task(task: str) -> list[str]:
    """The names of the classes that a task can compute."""
    return [name for name, cls in CLASSES.items() if computable(cls, task)]


def computable(cls: type[Metric], task: str) -> bool:
    """Whether the outputs and the sizes of a task are what a class needs."""
    row, family = TASKS[task], cls.__module__.split(".")[2]
    if family not in row.families or cls.__name__ in _NOT_COLUMNS:
        return False
    fields = fields_of(cls)
    sizes = {"num_classes", "num_labels", "num_outputs", "num_groups", "num_features", "features"}
    if any(fields.get(name) and name != row.size for name in sizes):
        return False
    if row.size in ("num_classes", "num_labels") and row.size not in fields:
        return False
    update = inspect.signature(cls.update)
    required = (x for x in update.parameters.values() if x.default is inspect.Parameter.empty)
    taken = {each.name for each in required} - {"self"}
    if task == "regression" and taken == {"values"}:
        return cls.__name__ in _OF_ERRORS
    strings = "Sequence[str]" in str(update)
    return taken <= row.outputs and strings == (task == "text")


def needs_scores(spec: Spec) -> bool:
    """Whether a metric of classes takes no predicted labels."""
    family = CLASSES[spec.metric].__module__.split(".")[2]
    return family in ("curves", "probabilistic") or dict(spec.options).get("top_k", 1) > 1


def hashable(value: Any) -> Any:
    """A list as a tuple, because options are configuration."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value
