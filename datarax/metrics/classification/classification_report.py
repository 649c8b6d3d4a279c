"""The classification report: precision, recall and F1 of all classes, and their averages."""

from collections.abc import Sequence

import jax

from datarax._errors import MetricInputError
from datarax._typing import PyTree, ZeroDivision
from datarax._xp import xp
from datarax.algebra.fields import Ungiven
from datarax.metric.unusable import Undefined
from datarax.metrics.classification.count_ratio import (
    CountMetric,
    Counts,
    checked_labels,
    checked_zero_division,
    quotient,
    undefined_ratio,
)
from datarax.numerics.double_float import concatenate
from datarax.numerics.exact import whole_or_float
from datarax.numerics.scaling import nan_where, weighted_mean
from datarax.statistics.batches import class_of

_COLUMNS = ("precision", "recall", "f1-score")
_AVERAGES = ("accuracy", "micro avg", "macro avg", "weighted avg")


class ClassificationReport(CountMetric):
    """Precision, recall, F1 and support of each class, their averages, and the accuracy.

    `compute` gives a nested dict: for each class and for "macro avg" and "weighted avg" a dict of
    "precision", "recall", "f1-score" and "support"; and "accuracy", of a multilabel task or of some
    `labels` "micro avg" in its place. A binary task has two classes, 0 and 1. `text()` gives the
    dict as a table. No data gives NaN.

    As `sklearn.metrics.classification_report(output_dict=True)`, which leaves out the rows of
    classes that neither occur nor are predicted. The averages leave them out too. There is no
    "samples avg". The values are those of `Precision`, `Recall` and `F1`, and in a `Collection` the
    report shares their statistic.

    Raises:
        MetricInputError: `names` are not distinct, not as many as there are classes, or one is the
            name of an average. Or `labels` are not different classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ClassificationReport
        >>> report = ClassificationReport(num_classes=3, names=("cat", "dog", "fox"))
        >>> report = report.update(jnp.array([0, 0, 2, 2, 1]), jnp.array([0, 1, 2, 2, 2]))
        >>> print(report.text())
                      precision    recall  f1-score   support
        <BLANKLINE>
                 cat       0.50      1.00      0.67         1
                 dog       0.00      0.00      0.00         1
                 fox       1.00      0.67      0.80         3
        <BLANKLINE>
            accuracy                           0.60         5
           macro avg       0.50      0.56      0.49         5
        weighted avg       0.70      0.60      0.61         5
    """

    names: Sequence[str] | None = None
    """The name of each class, of those in `labels` if it is given; by default its number."""
    labels: Sequence[int] | None = None
    """The classes, or labels, that have a row and are averaged, in this order; `None` for all. As
    in scikit-learn, a class that is given here counts in an average if it does not occur, too; and
    without some classes there is no accuracy, but "micro avg"."""
    zero_division: ZeroDivision = Ungiven(0.0)
    """The value where a ratio is 0/0. NaN excludes such a class from the average. If it is not
    given, or is "warn", reading the report outside `jit` gives an `UndefinedMetricWarning`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.zero_division = checked_zero_division(self.zero_division)
        if self.labels is not None:
            self.labels = checked_labels(self, self.labels)
        if self.names is None:
            return
        self.names = tuple(map(str, self.names))
        size = len(self._classes)
        if len({*self.names, *_AVERAGES}) != size + len(_AVERAGES) or len(self.names) != size:
            raise MetricInputError(
                f"names={self.names!r}; expected {size} distinct names, none of them one of "
                f"{', '.join(_AVERAGES)}"
            )

    @property
    def _classes(self) -> Sequence[int]:
        """The classes that have a row."""
        every = range(2 if self.is_binary else self.statistic.size)
        return every if self.labels is None else self.labels

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class that has a row."""
        return tuple(map(str, self._classes) if self.names is None else self.names)

    @property
    def _has_accuracy(self) -> bool:
        """True if each example has one of the classes."""
        ignored = {class_of(self.ignore_index, self.num_classes)}
        every = {*range(self.num_classes or 2)} - ignored
        return self.num_labels is None and (self.labels is None or {*self.labels} == every)

    def _counts(self) -> Counts:
        """The counts of the classes that have a row."""
        counts = Counts.by_class(self.statistic)
        return (counts.of_both_classes() if self.is_binary else counts).of_labels(self.labels)

    def compute(self) -> PyTree:
        counts = self._counts()
        some, by_class = counts.total.high.sum() > 0, self._ratios(counts)
        support = counts.positives.map(lambda x: nan_where(~some, x))
        occurs = support.high + counts.fp.high > 0
        # As in scikit-learn, every label counts, and only the classes that occur or are predicted.
        if self.num_labels is not None or self.labels is not None:
            occurs = xp.ones_like(occurs)
        # Of one kind: integers, or floats if weights make any of them a fraction.
        counted = whole_or_float(concatenate([support, support.sum()[None]]))
        values: dict[str, PyTree] = {
            name: {column: x[i] for column, x in by_class.items()} | {"support": counted[i]}
            for i, name in enumerate(self.class_names)
        }
        everything = {"support": counted[-1]}
        together = {name: x[0] for name, x in self._ratios(counts.summed()).items()}
        # Each example has one class, so the recall of all classes together is the accuracy.
        if self._has_accuracy:
            values["accuracy"] = together["recall"]
        else:
            values["micro avg"] = together | everything
        number = support.to_float()
        for name, weights in (("macro", xp.ones_like(number)), ("weighted", number)):
            weights = xp.where(occurs, weights, 0)
            means = {column: weighted_mean(x, weights) for column, x in by_class.items()}
            values[f"{name} avg"] = means | everything
        return values

    def undefined_parts(self) -> Undefined | None:
        if not isinstance(self.zero_division, Ungiven):
            return None
        c = self._counts()
        either = (c.predicted_positives.high == 0) | (c.positives.high == 0)
        undefined = either & (c.total.high > 0)
        return undefined_ratio(undefined, self.num_labels is not None, self.labels)

    def _ratios(self, c: Counts) -> dict[str, jax.Array]:
        ratios = {
            "precision": (c.tp, c.predicted_positives),
            "recall": (c.tp, c.positives),
            "f1-score": (c.tp * 2, c.tp * 2 + c.fp + c.fn),
        }
        return {
            name: nan_where(c.total.high <= 0, quotient(*ratio, self.zero_division))
            for name, ratio in ratios.items()
        }

    def text(self, digits: int = 2) -> str:
        """The report as a table, in the layout of scikit-learn.

        Args:
            digits: how many decimals values have.
        """
        values, wide = self.results(), max(9, digits + 3)
        width = max(map(len, (*self.class_names, "weighted avg")))

        def line(name: str, cells: Sequence[str]) -> str:
            return " ".join([f"{name:>{width}s} ", *(f"{cell:>{wide}s}" for cell in cells)])

        def shown(x: float) -> str:
            return f"{x:.{digits}f}"

        def row(name: str) -> str:
            of_row = values[name]
            if name == "accuracy":
                support = values["macro avg"]["support"]
                cells = ["", "", shown(of_row)]
            else:
                support = of_row["support"]
                cells = [shown(of_row[column]) for column in _COLUMNS]
            is_whole = float(support).is_integer()
            return line(name, [*cells, f"{support:.{0 if is_whole else digits}f}"])

        averages = [name for name in _AVERAGES if name in values]
        rows = [line("", [*_COLUMNS, "support"]), "", *map(row, self.class_names), ""]
        return "\n".join([*rows, *map(row, averages)])
