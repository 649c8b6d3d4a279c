"""The figures of a metric: curves, histograms and matrices from its state."""

import hashlib
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._errors import InvalidValuesWarning, PrecisionWarning, UndefinedMetricWarning
from datarax._optional import optional
from datarax.evaluation.row_scores import LENGTHS, ByLength
from datarax.metric.base import Metric, left_out
from datarax.metrics.aggregation.quantiles import Histogram, HistogramQuantile, Median
from datarax.metrics.classification.confusion_matrix import ConfusionMatrix
from datarax.metrics.curves.area_under_curve import AUROC, AveragePrecision
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.metrics.probabilistic.calibration import CalibrationError, CalibrationMetric
from datarax.metrics.probabilistic.score_decomposition import ScoreDecomposition
from datarax.metrics.regression.error_quantiles import MedianAbsoluteError
from datarax.metrics.regression.rank_correlation import SpearmanCorrCoef
from datarax.plot.canvas import align, new_axes, new_figure, svg
from datarax.plot.matrices import confusion_matrix
from datarax.plot.reliability_diagram import isotonic_reliability, reliability
from datarax.plot.score_figures import precision_recall, roc, score_histogram
from datarax.plot.slice_dots import binned
from datarax.plot.value_figures import distribution, error_quantiles, pairs
from datarax.wrappers.bootstrap import Bootstrap
from datarax.wrappers.classwise import Classwise
from datarax.wrappers.collection import Collection
from datarax.wrappers.interval import Interval
from datarax.wrappers.sliced import Sliced


class Picture(NamedTuple):
    """A figure for a page."""

    name: str
    """The stem of a file name: letters, digits, "_" and "-"."""
    title: str
    caption: str
    svg: str
    """Inline SVG: transparent, and text and axes in `currentColor`."""
    is_wide: bool = False
    """True for a picture that is larger than the others: a matrix for each of several labels."""


class _Kind(NamedTuple):
    title: str
    caption: str
    draw: Callable[..., Any]
    """Its name is that of the picture."""
    shows: type[Metric]
    """The class of the metrics that it can show."""
    prefers: type[Metric]
    """Which class shows its value in the figure, if metrics of several classes share a state."""
    if_has: str | None = None
    """A field that must be set in the metric, such as `bits` where it decides what the state is."""
    of_errors: bool | None = None
    """Whether the metric must take the errors of a regression; None if it may take any output."""


def errors(metric: Metric, ax: Any = None) -> Any:
    return distribution(metric, ax, label="prediction minus target")


def values(metric: Metric, ax: Any = None) -> Any:
    return distribution(metric, ax)


def scores(metric: Metric, ax: Any = None) -> Any:
    return distribution(metric, ax, label="score")


def score_by_length(metric: Metric, ax: Any = None) -> Any:
    # Lengths are integers: that of the bin from 4 to 6 is 4 or 5, and 4.5 is its middle.
    edges = [0.0, *(length - 0.5 for length in LENGTHS[1:])]
    figure = binned(metric, ax, edges=edges, label="length")
    shown = figure.axes[0]
    low, high = shown.get_ylim()
    # The ends of an interval may be beyond the scores.
    shown.set(ylabel="mean score", ylim=(max(low, -0.02), min(high, 1.02)))
    return figure


_WIDTH, _HEIGHT = 5.0, 3.9
"""The size of pictures in inches; those of wide ones depend on what they show."""
_BAND = "Where scores share a bin, a band holds the exact curve."
_KINDS = (
    _Kind(
        "Confusion matrix",
        "Targets in rows, predictions in columns. The colour is the share of the row.",
        confusion_matrix,
        ConfusionMatrix,
        ConfusionMatrix,
    ),
    _Kind("ROC curve", _BAND, roc, ScoreMetric, AUROC),
    _Kind("Precision and recall", _BAND, precision_recall, ScoreMetric, AveragePrecision),
    _Kind(
        "Scores",
        "How the scores of the positives and of the negatives of each class are distributed.",
        score_histogram,
        ScoreMetric,
        AUROC,
    ),
    _Kind(
        "Reliability",
        "Accuracy by confidence. Below the diagonal, predictions are too confident.",
        reliability,
        CalibrationMetric,
        CalibrationError,
    ),
    _Kind(
        "Reliability by isotonic regression",
        "The share of positives by forecast. Outside the band, forecasts are not calibrated.",
        isotonic_reliability,
        ScoreDecomposition,
        ScoreDecomposition,
    ),
    _Kind(
        "Predictions and targets",
        "Right predictions are on the dotted line. The colour is the number of examples; the "
        "outermost cells also have those beyond the axes.",
        pairs,
        SpearmanCorrCoef,
        SpearmanCorrCoef,
        "bits",
    ),
    _Kind(
        "Errors",
        "How the prediction minus the target is distributed. The outermost bars also have the "
        "errors beyond the axis.",
        errors,
        HistogramQuantile,
        Median,
        of_errors=True,
    ),
    _Kind(
        "Distribution",
        "How the numbers are distributed. The outermost bars also have those beyond the axis. "
        "Dashed line: the median.",
        values,
        HistogramQuantile,
        Median,
        of_errors=False,
    ),
    _Kind(
        "Quantiles of the error",
        "The absolute error that a share of the examples does not exceed.",
        error_quantiles,
        MedianAbsoluteError,
        MedianAbsoluteError,
    ),
    _Kind(
        "Scores of the rows",
        "How {name} is distributed over the rows, or over the queries.",
        scores,
        Histogram,
        Histogram,
    ),
    _Kind(
        "Score by length",
        "The mean score, with its interval, by the number of words of the reference, or by the "
        "number of documents of the query. Dashed line: the mean of all.",
        score_by_length,
        ByLength,
        ByLength,
    ),
)


def pictures(metric: Metric, *, names: Sequence[str] | None = None) -> list[Picture]:
    """The figures of a metric, or of the members of a collection, also within other wrappers.

    A confusion matrix; ROC, precision-recall curve and histogram of scores; a reliability diagram.
    Metrics whose states are equal have one of each kind. All pictures have one size, and their axes
    stand in the same place. Data that could not be used are left out, also if the value of the
    metric is NaN because of them; the caption says so.

    Args:
        metric: a metric with data.
        names: the names of the classes or labels, for figures that have as many.

    Raises:
        MissingExtraError: Matplotlib is not installed.
    """
    style = optional("matplotlib.style", "plot", "pictures()")
    members = list(_members(metric))
    found = []
    for kind in _KINDS:
        groups: dict[Hashable, list[tuple[str, Metric]]] = {}
        for path, each in members:
            if isinstance(each, kind.shows) and _fits(kind, each):
                # Equal states give the same figure: those that members of a collection share, and
                # those of metrics of the same data within wrappers.
                groups.setdefault(_contents(each), []).append((path, each))
        for group in groups.values():
            preferred = [member for member in group if isinstance(member[1], kind.prefers)]
            path, each = (preferred or group)[0]
            found.append((kind, path, len(groups) == 1, each))
    with style.context("default"), warnings.catch_warnings():
        # Reading the values warns of the same.
        warnings.simplefilter("ignore", InvalidValuesWarning)
        warnings.simplefilter("ignore", PrecisionWarning)
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        drawn = [_drawn(*each, names=names) for each in found]
        align([figure for figure, picture in drawn if not picture.is_wide])
        return [picture._replace(svg=svg(figure)) for figure, picture in drawn]


def _fits(kind: _Kind, metric: Metric) -> bool:
    """True if a metric of the class of a kind has the field and the output that it needs."""
    if kind.if_has and not getattr(metric, kind.if_has):
        return False
    takes_errors = any(route.output == "error" for route in metric.routes())
    return kind.of_errors in (None, takes_errors)


def _contents(metric: Metric) -> Hashable:
    """Equal for metrics of one kind of state with equal contents."""
    state = getattr(metric, "statistic", metric)
    arrays = (np.asarray(x) for x in jax.tree.leaves(state))
    digests = (hashlib.sha256(x.tobytes()).digest() for x in arrays)
    return (jax.tree.structure(state), *digests)


def _members(metric: Metric, path: str = "") -> Iterator[tuple[str, Metric]]:
    """The metrics of a collection, and those that hold all data within wrappers."""
    if isinstance(metric, Collection):
        for name, member in metric.items():
            yield from _members(member, f"{path}/{name}" if path else name)
    elif isinstance(metric, ByLength):
        yield path, metric
    elif isinstance(metric, Bootstrap | Classwise | Interval | Sliced):
        yield from _members(metric.metric, path)
    else:
        yield path, metric


def _drawn(
    kind: _Kind, path: str, is_only: bool, metric: Metric, *, names: Sequence[str] | None
) -> tuple[Any, Picture]:
    """A figure, and its picture without the SVG. The path is in the title of one of several."""
    metric = metric if isinstance(metric, ByLength) else metric.replace(on_invalid="exclude")
    sizes = {getattr(metric, size, None) for size in ("num_classes", "num_labels")} - {None}
    if isinstance(metric, ConfusionMatrix):
        # A binary matrix has two classes, but no field that says so.
        sizes = sizes or {2}
    # A figure with one curve has no classes to name, also if the metric has classes.
    grouped = isinstance(metric, CalibrationMetric) and metric.has_one_group
    single = isinstance(metric, ScoreMetric) and metric.statistic.size == 1
    fits = names is not None and len(names) in sizes and not (grouped or single)
    # The matrices of several labels have axes each, in a figure of their own size.
    is_wide = isinstance(metric, ConfusionMatrix) and (metric.num_labels or 1) > 1
    ax = None if is_wide else new_axes(new_figure(_WIDTH, _HEIGHT))
    figure = kind.draw(metric, ax, **({"names": names} if fits else {}))
    # The value would be NaN because of these rows; the figure is of the other rows.
    unusable = left_out(metric)
    caption = kind.caption.replace("{name}", path.rpartition("/")[2])
    path = "" if is_only else path
    if unusable.is_some:
        caption += f" {unusable.described()}, and are left out."
    # The path has the names of the members, which users choose.
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{path}-{kind.draw.__name__}".lstrip("-"))
    title = f"{kind.title}: {path}" if path else kind.title
    return figure, Picture(stem, title, caption, "", is_wide)
