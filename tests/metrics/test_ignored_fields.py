"""A field of a configuration that has no effect is refused, where it was ignored."""

import pytest

from datarax import MetricInputError, metrics
from datarax.evaluation.tasks import CLASSES, fields_of
from datarax.metrics.classification.count_ratio import CountRatio, TaskMetric
from datarax.metrics.curves.area_under_curve import AreaMetric
from datarax.metrics.regression.per_output import PerOutput


def without_required(*bases: type) -> list[str]:
    """The metrics of the catalogue that are of these classes, and need no field."""
    classes = {name: cls for name, cls in CLASSES.items() if issubclass(cls, bases)}
    return [name for name, cls in classes.items() if not any(fields_of(cls).values())]


# The class, what is ignored, and what else is given; without the first it is a configuration.
IGNORED = [
    *((name, {"threshold": 0.3}, {"num_classes": 3}) for name in without_required(TaskMetric)),
    *(
        (name, {"average": average}, {})
        for name in without_required(CountRatio, AreaMetric)
        for average in ("macro", "weighted", None)
    ),
    *((name, {"multioutput": "raw_values"}, {}) for name in without_required(PerOutput)),
    ("R2Score", {"multioutput": "variance_weighted"}, {}),
    ("CriticalSuccessIndex", {"multioutput": "raw_values"}, {"threshold": 0.5}),
    ("StatScores", {"average": "micro"}, {}),
    ("F1", {"average": "micro"}, {}),
    ("F1", {"top_k": 2}, {}),
    ("F1", {"top_k": 2}, {"num_labels": 3}),
    ("F1", {"from_logits": True}, {"num_classes": 3}),
    ("F1", {"num_labels": 3}, {"num_classes": 3}),
    ("LogLoss", {"average": None}, {"num_classes": 3}),
    ("CalibrationError", {"average": None}, {"num_classes": 3}),
    ("CalibrationError", {"classwise": True}, {}),
    ("AUROC", {"capacity": 100}, {}),
    ("AUROC", {"bits": 12}, {"exact": True, "capacity": 100}),
    ("AUROC", {"max_fpr": 0.5}, {"multi_class": "ovo", "num_classes": 3}),
    ("SpearmanCorrCoef", {"bits": 8}, {"exact": True}),
    ("KendallTau", {"bits": 8}, {"exact": True}),
    ("ContinuousRankedProbabilityScore", {"fair": True}, {"forecast": "normal"}),
    ("BLEU", {"smooth_value": 0.5}, {}),
    ("BLEU", {"smooth_value": 0.5}, {"smooth_method": "none"}),
    ("TER", {"asian_support": True}, {}),
    ("ActivationStats", {"bits": 12}, {"quantiles": ()}),
    ("Histogram", {"num_bins": 3}, {"edges": (0.0, 1.0)}),
]


@pytest.mark.parametrize(("name", "ignored", "others"), IGNORED, ids=str)
def test_a_field_without_effect_is_refused(name, ignored, others):
    cls, (field,) = getattr(metrics, name), ignored
    cls(**others)
    with pytest.raises(MetricInputError, match=field):
        cls(**others, **ignored)


def test_the_fields_are_taken_where_they_have_an_effect():
    metrics.F1(threshold=0.3)
    metrics.F1(threshold=0.3, num_labels=3, average=None)
    # A value that is the default, given or not, is the same configuration.
    metrics.F1(threshold=0.5, num_classes=3)
    for cls in (metrics.F1, metrics.AUROC):
        left_out, given = cls(num_classes=3), cls(num_classes=3, average="macro")
        assert left_out.average == "macro"
        assert left_out.merge(given)
        assert cls().replace(on_invalid="exclude").on_invalid == "exclude"
    metrics.AUROC(num_classes=3, average="weighted")
    metrics.MeanSquaredError(num_outputs=2, multioutput="raw_values")
    metrics.CalibrationError(num_classes=3, classwise=True, average=None)
    metrics.BLEU(smooth_method="floor", smooth_value=0.5)
    metrics.TER(normalized=True, asian_support=True)
