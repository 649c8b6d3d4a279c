"""The figures of curves over the thresholds of scores."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from datarax.metrics.curves.area_under_curve import AUROC, AveragePrecision
from datarax.metrics.curves.curve_points import ROC, CurveMetric, PrecisionRecallCurve
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.plot.canvas import (
    MOST_NAMED,
    Style,
    axes_of,
    figure_of,
    grid,
    ink_of,
    legend,
    line_style,
    number,
    say,
    shortened,
)
from datarax.plot.given import (
    array_of,
    checked_names,
    fields_of,
    of_statistic,
    results_of,
    wrong_kind,
)
from datarax.statistics.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curves(NamedTuple):
    """The points of the curves of some classes, of shape (classes, points)."""

    x: np.ndarray
    y: np.ndarray
    ties: np.ndarray
    """Whether the curve is known between a point and the next one: a tie, or no threshold."""
    areas: np.ndarray | None
    """The value of the given metric for each class, if it is the area under this curve."""


def roc(
    metric: object, ax: "Axes | None" = None, *, names: Sequence[str] | None = None
) -> "Figure":
    """ROC curves: the true positive rate over the false positive rate.

    All points lie on the exact curve. Between two of them there may be more thresholds, which share
    a bin: the exact curve is certainly within the band. Up to ten classes have a legend; more are
    drawn as light lines, with their mean over false positive rates.

    Args:
        metric: an `ROC`, its results, or another metric of scores such as `AUROC`, whose value is
            written to the legend.
        ax: where to draw, instead of a new figure.
        names: the names of the classes or labels.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: as many names as classes are expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import AUROC
        >>> seen = AUROC().update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> axes = plot.roc(seen).axes[0]
        >>> print(axes.get_title(), axes.lines[0].get_xdata())
        AUROC 0.75 [0.  0.  0.5 0.5 1. ]
    """
    curves = _curves(metric, "roc", ROC, ("fpr", "tpr"), AUROC)
    names = checked_names(names, len(curves.x), "class")
    ax = axes_of(ax, 4.6 if len(names) == 1 else 6.6)
    for i in range(len(curves.x)):
        x, y, ties = _without_repeats(curves.x[i], curves.y[i], curves.ties[i])
        style = line_style(i, len(names))
        ax.plot(x, y, label=_label(names[i], curves.areas, i), **style)
        # The curve rises from each point to the next, somewhere within their rectangle.
        if len(names) <= MOST_NAMED:
            known, line = np.repeat(ties[:-1], 2), np.repeat(y, 2)[1:-1]
            low, high = (np.where(known, line, np.repeat(end, 2)) for end in (y[:-1], y[1:]))
            _band(ax, np.repeat(x, 2)[1:-1], low, high, style)
    if len(names) > MOST_NAMED:
        at = np.linspace(0, 1, 201)
        rows = [_interpolated(at, x, y) for x, y in zip(curves.x, curves.y, strict=True)]
        _mean(ax, at, rows)
    if np.isfinite(curves.x + curves.y).any():
        ax.plot([0, 1], [0, 1], color=ink_of(ax), linewidth=0.8, linestyle=(0, (1, 3)), zorder=0.5)
    ax.set(xlabel="false positive rate", ylabel="true positive rate")
    _finish(ax, names, curves, "AUROC")
    return figure_of(ax)


def precision_recall(
    metric: object, ax: "Axes | None" = None, *, names: Sequence[str] | None = None
) -> "Figure":
    """Precision over recall.

    All points lie on the exact curve, and the line has the precision of the next higher recall, as
    in the definition of average precision. Where several scores share a bin, the exact curve is
    certainly within the band. Up to ten classes have a legend; more are drawn as light lines, with
    their mean.

    Args:
        metric: a `PrecisionRecallCurve`, its results, or another metric of scores such as
            `AveragePrecision`, whose value is written to the legend.
        ax: where to draw, instead of a new figure.
        names: the names of the classes or labels.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: as many names as classes are expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import PrecisionRecallCurve
        >>> seen = PrecisionRecallCurve()
        >>> seen = seen.update(jnp.array([-2.0, 3.0, 0.5, 8.0]), jnp.array([0, 0, 1, 1]))
        >>> print(plot.precision_recall(seen).axes[0].lines[0].get_xdata())
        [1.  1.  0.5 0.5 0. ]
    """
    pair = "recall", "precision"
    curves = _curves(metric, "precision_recall", PrecisionRecallCurve, pair, AveragePrecision)
    names = checked_names(names, len(curves.x), "class")
    ax = axes_of(ax, 4.6 if len(names) == 1 else 6.6)
    for i in range(len(curves.x)):
        # The thresholds ascend; without repeats they do so from the last point to the first.
        x, y, ties = _without_repeats(curves.x[i], curves.y[i], curves.ties[i])
        style = line_style(i, len(names))
        ax.plot(x, y, label=_label(names[i], curves.areas, i), drawstyle="steps-post", **style)
        if len(names) <= MOST_NAMED:
            _band(ax, *_precision_band(x[::-1], y[::-1], ties[::-1]), style)
    if len(names) > MOST_NAMED:
        at = np.linspace(0, 1, 201)
        rows = [_precision_at(at, x, y) for x, y in zip(curves.x, curves.y, strict=True)]
        _mean(ax, at, rows)
    ax.set(xlabel="recall", ylabel="precision")
    _finish(ax, names, curves, "average precision")
    return figure_of(ax)


def _curves(
    given: object,
    figure: str,
    kind: type[CurveMetric],
    pair: tuple[str, str],
    area: type[ScoreMetric],
) -> Curves:
    """The points of what is given, as a curve metric of this kind gives them."""
    expected = f"{kind.__name__}, its results, or another metric of scores such as {area.__name__}"
    metric, areas = None, None
    if isinstance(given, ScoreMetric) and isinstance(given.statistic, Scores):
        metric = given
        if not isinstance(metric, kind):
            metric = of_statistic(kind, metric)
        if isinstance(given, area) and getattr(given, "max_fpr", None) is None:
            whole = given if given.is_pooled or given.is_binary else given.replace(average=None)
            areas = np.atleast_1d(np.asarray(whole.results(), float))
    points = fields_of(results_of(given if metric is None else metric))
    if points is None or not {*pair, "thresholds"} <= points.keys():
        raise wrong_kind(figure, expected, given)
    x, y, thresholds = (
        np.atleast_2d(array_of(points[name], figure, expected)) for name in (*pair, "thresholds")
    )
    if metric is not None and metric.statistic.size == 1:
        x, y, thresholds = x[:1], y[:1], thresholds[:1]
    thresholds = np.broadcast_to(thresholds, x.shape)
    return Curves(x, y, _ties(metric, thresholds), areas)


def _ties(metric: CurveMetric | None, thresholds: np.ndarray) -> np.ndarray:
    """Which points are followed by the next threshold that there is, without others between.

    From the point of a lower threshold to that of a higher one there is one group of scores. If the
    group is a tie, no other threshold is between them.
    """
    none = np.zeros(thresholds.shape, bool)
    if metric is None:
        return none
    groups = metric.groups()
    occupied, is_tie, lowest = (
        np.asarray(x) for x in (groups.occupied, groups.is_tie, groups.lowest)
    )
    found = none.copy()
    for i, row in enumerate(thresholds):
        if occupied[i].sum() >= thresholds.shape[-1]:
            continue  # some groups have no point
        tied = occupied[i] & is_tie[i]
        descends = row[0] == np.inf
        # The group between two points is that of the lower of both thresholds.
        lower = np.append(row[1:], np.nan) if descends else row
        found[i] = np.isin(lower, lowest[i][tied])
    return found


def _without_repeats(
    x: np.ndarray, y: np.ndarray, ties: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A curve without points that equal the one before, which have no width."""
    repeats = np.append(False, (np.diff(x) == 0) & (np.diff(y) == 0))
    return x[~repeats], y[~repeats], ties[~repeats]


def _precision_band(
    recall: np.ndarray, precision: np.ndarray, ties: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and the greatest precision at each recall, for points of ascending recall.

    Between two points, the true positives rise from the first to the second, and the false ones
    are at least those of the first and at most those of the second.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        false = np.where(recall > 0, recall * (1 / precision - 1), 0.0)
    false = np.maximum.accumulate(np.nan_to_num(false))
    within = np.linspace(0, 1, 9 if len(recall) < 200 else 2)
    start, end = recall[:-1, None], recall[1:, None]
    at = start + (end - start) * within
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = at / (at + false[1:, None]), at / (at + false[:-1, None])
    low, high = (np.where(at > 0, x, y) for x, y in ((low, 0.0), (high, 1.0)))
    # A tie has one precision, that of its own threshold, which is the lower one.
    known = (ties[1:])[:, None]
    low, high = (np.where(known, precision[1:, None], x) for x in (low, high))
    return at.ravel(), low.ravel(), high.ravel()


def _interpolated(at: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    known = np.isfinite(x) & np.isfinite(y)
    return np.interp(at, x[known], y[known]) if known.any() else np.full(len(at), np.nan)


def _precision_at(at: np.ndarray, recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The precision at the least recall of the curve that is at least the given one."""
    known = np.isfinite(recall) & np.isfinite(precision)
    if not known.any():
        return np.full(len(at), np.nan)
    recall, precision = recall[known][::-1], precision[known][::-1]
    place = np.searchsorted(recall, at * (1 - 1e-6), side="left")
    return precision[np.minimum(place, len(recall) - 1)]


def _label(name: str, areas: np.ndarray | None, i: int) -> str:
    return shortened(name) if areas is None else f"{shortened(name)}  {number(areas[i])}"


def _band(ax: "Axes", x: np.ndarray, low: np.ndarray, high: np.ndarray, style: Style) -> None:
    # Elsewhere it is thinner than the line, and thousands of points would be drawn for nothing.
    visible = high - low > 1e-3
    if visible.any():
        ax.fill_between(x, low, high, visible, color=style["color"], alpha=0.2, linewidth=0)


def _mean(ax: "Axes", at: np.ndarray, rows: list[np.ndarray]) -> None:
    some = [row for row in rows if np.isfinite(row).any()]
    if some:
        label = f"mean of {len(some)} classes"
        ax.plot(at, np.mean(some, 0), color=ink_of(ax), linewidth=2, label=label)


def _finish(ax: "Axes", names: list[str], curves: Curves, title: str) -> None:
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
    grid(ax)
    missing = [
        i
        for i, (x, y) in enumerate(zip(curves.x, curves.y, strict=True))
        if not (np.isfinite(x) & np.isfinite(y)).any()
    ]
    if len(missing) == len(names):
        say(ax, "no data\n(or no positives,\nor no negatives)")
    elif len(names) > 1:
        values = [] if curves.areas is None else [x for x in curves.areas if np.isfinite(x)]
        if len(names) <= MOST_NAMED:
            legend(ax, title=title if values else None)
        else:
            handles, labels = ax.get_legend_handles_labels()
            if values:
                labels[-1] += f"\n{title} {number(float(np.mean(values)))}"
            legend(ax, handles=handles[-1:], labels=labels[-1:])
        if missing:
            ax.set_title(f"{len(missing)} of {len(names)} without data", fontsize="small")
    if len(names) == 1 and curves.areas is not None:
        ax.set_title(f"{title} {number(curves.areas[0])}", fontsize="medium")
