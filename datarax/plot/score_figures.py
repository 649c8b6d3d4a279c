"""The figures of scores: curves over their thresholds, and their distributions."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from datarax._checks import positive_int
from datarax.metrics.curves.area_under_curve import AUROC, AveragePrecision
from datarax.metrics.curves.curve_points import ROC, CurveMetric, PrecisionRecallCurve
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.plot import canvas
from datarax.plot.given import Source, checked_names, of_statistic
from datarax.statistics.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HISTOGRAM = Source(
    "score_histogram",
    "a metric of scores, such as AUROC, AveragePrecision or ROC, which holds the scores",
)
Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The points of a curve, x and y, with `ties`; or those of a band, x, low and high."""


class Curves(NamedTuple):
    """The points of the curves of some classes, of shape (classes, points)."""

    x: np.ndarray
    y: np.ndarray
    ties: np.ndarray
    """True if the curve is known between a point and the next one: a tie, or no threshold."""
    areas: np.ndarray | None
    """The value of the given metric for each class, if it is the area under this curve."""

    @property
    def known(self) -> np.ndarray:
        """Marks the points that are finite. A class without positives or negatives has none."""
        return np.isfinite(self.x) & np.isfinite(self.y)


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
    ax = _draw(curves, ax, names, "AUROC", _roc_band, np.interp)
    if curves.known.any():
        canvas.diagonal(ax, zorder=0.5)
    ax.set(xlabel="false positive rate", ylabel="true positive rate")
    return canvas.figure_of(ax)


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
    ax = _draw(curves, ax, names, "average precision", _precision_band, _precision_at, "steps-post")
    ax.set(xlabel="recall", ylabel="precision")
    return canvas.figure_of(ax)


def score_histogram(
    metric: object,
    ax: "Axes | None" = None,
    *,
    bins: int = 40,
    names: Sequence[str] | None = None,
) -> "Figure":
    """The distributions of the scores of positives and of negatives, for each class.

    Bars are shares of the weight of the positives, and of the negatives. The bars cover 0 to 1 for
    probabilities, otherwise the middle 99 % of the scores; scores beyond are in the first and last
    bars. Up to ten classes have a row each; of more, the positives are a heat map.

    Args:
        metric: a metric of scores, such as `AUROC`. Its results do not have the scores.
        ax: where to draw, instead of a new figure.
        bins: the number of bars.
        names: the names of the classes or labels.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: as many names as classes are expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import AUROC
        >>> seen = AUROC().update(jnp.array([0.1, 0.3, 0.2, 0.9]), jnp.array([0, 0, 1, 1]))
        >>> positives, negatives = plot.score_histogram(seen, bins=2).axes[0].patches
        >>> print(positives.get_data().values, negatives.get_data().values)
        [0.5 0.5] [1. 0.]
    """
    if not isinstance(metric, ScoreMetric) or not isinstance(metric.statistic, Scores):
        raise _HISTOGRAM.wrong_kind(metric)
    positive_int(bins, "bins")
    groups = metric.groups()
    both = np.stack([np.asarray(x.to_float(), float) for x in (groups.positives, groups.negatives)])
    scores = np.asarray(groups.lowest, float)
    names = checked_names(names, both.shape[1], "class")
    total = both.sum(-1, keepdims=True)
    edges = _edges(scores, (both / np.where(total > 0, total, 1)).sum(0), bins)
    rows = min(len(names), 12)
    ax = canvas.axes_of(ax, 6.6, 3.2 if rows == 1 else 1.4 + 0.45 * rows)
    ax.set_xlabel("score")
    if edges is None:
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    shares = _shares(scores, both, edges)
    ax.set_xlim(edges[0], edges[-1])
    if len(names) > canvas.MOST_NAMED:
        _heat(ax, shares[0], edges, names)
    else:
        _rows(ax, shares, edges, names)
    return canvas.figure_of(ax)


def _draw(
    curves: Curves,
    ax: "Axes | None",
    names: Sequence[str] | None,
    area: str,
    band: Callable[[np.ndarray, np.ndarray, np.ndarray], Points],
    value_at: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    drawstyle: str = "default",
) -> "Axes":
    """Draws the curves, the bands around them, and what they have in common.

    Args:
        curves: what to draw.
        ax: where to draw, instead of new axes.
        names: the names of the classes.
        area: the name of the area under a curve.
        band: from x, y and ties, the band in which the exact curve is.
        value_at: from some places, x and y, the values of the curve at these places.
        drawstyle: how Matplotlib joins the points.
    """
    names = checked_names(names, len(curves.x), "class")
    ax = canvas.axes_of(ax, 4.6 if len(names) == 1 else 6.6)
    few = len(names) <= canvas.MOST_NAMED
    for i, name in enumerate(names):
        x, y, ties = _without_repeats(curves.x[i], curves.y[i], curves.ties[i])
        label, style = canvas.shortened(name), canvas.line_style(i, len(names))
        if curves.areas is not None:
            label += f"  {canvas.number(curves.areas[i])}"
        ax.plot(x, y, label=label, drawstyle=drawstyle, **style)
        at, low, high = band(x, y, ties) if few else (x, y, y)
        # Elsewhere it is thinner than the line, and thousands of points would be drawn for nothing.
        visible = high - low > 1e-3
        if visible.any():
            ax.fill_between(at, low, high, visible, color=style["color"], alpha=0.2, linewidth=0)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02))
    canvas.grid(ax)
    values = [] if curves.areas is None else [x for x in curves.areas if np.isfinite(x)]
    seen = np.flatnonzero(curves.known.any(-1))
    if not len(seen):
        canvas.say(ax, "no data\n(or no positives,\nor no negatives)")
    elif not few:
        at, known = np.linspace(0, 1, 201), curves.known
        rows = [value_at(at, curves.x[i][known[i]], curves.y[i][known[i]]) for i in seen]
        label = f"mean of {len(seen)} classes"
        if values:
            label += f"\n{area} {canvas.number(float(np.mean(values)))}"
        (mean,) = ax.plot(at, np.mean(rows, 0), color=canvas.ink_of(ax), linewidth=2, label=label)
        canvas.legend(ax, handles=[mean])
    elif len(names) > 1:
        canvas.legend(ax, title=area if values else None)
    if 0 < len(seen) < len(names):
        canvas.title(ax, f"{len(names) - len(seen)} of {len(names)} without data", "small")
    if len(names) == 1 and curves.areas is not None:
        canvas.title(ax, f"{area} {canvas.number(curves.areas[0])}")
    return ax


def _curves(
    given: object,
    figure: str,
    kind: type[CurveMetric],
    pair: tuple[str, str],
    area: type[ScoreMetric],
) -> Curves:
    """The points of what is given, as a curve metric of this kind gives them."""
    source = Source(
        figure, f"{kind.__name__}, its results, or another metric of scores such as {area.__name__}"
    )
    metric, areas = None, None
    if isinstance(given, ScoreMetric) and isinstance(given.statistic, Scores):
        metric = given
        if not isinstance(metric, kind):
            metric = of_statistic(kind, metric)
        if isinstance(given, area) and getattr(given, "max_fpr", None) is None:
            whole = given if given.is_pooled or given.is_binary else given.replace(average=None)
            areas = np.atleast_1d(np.asarray(whole.results(), float))
    parts = (*pair, "thresholds")
    points = source.results(given if metric is None else metric, *parts)
    x, y, thresholds = (np.atleast_2d(source.array(points[part])) for part in parts)
    if metric is not None and metric.statistic.size == 1:
        x, y, thresholds = x[:1], y[:1], thresholds[:1]
    thresholds = np.broadcast_to(thresholds, x.shape)
    return Curves(x, y, _ties(metric, thresholds), areas)


def _ties(metric: CurveMetric | None, thresholds: np.ndarray) -> np.ndarray:
    """Marks the points that the next threshold follows, without others between.

    From the point of a lower threshold to that of a higher one there is one group of scores. If the
    group is a tie, no other threshold is between them.
    """
    found = np.zeros(thresholds.shape, bool)
    if metric is None:
        return found
    groups = metric.groups()
    occupied = np.asarray(groups.occupied)
    tied, lowest = occupied & np.asarray(groups.is_tie), np.asarray(groups.lowest)
    for i, row in enumerate(thresholds):
        if occupied[i].sum() >= len(row):
            continue  # some groups have no point
        # The group between two points is that of the lower of both thresholds.
        lower = np.append(row[1:], np.nan) if row[0] == np.inf else row
        found[i] = np.isin(lower, lowest[i][tied[i]])
    return found


def _without_repeats(x: np.ndarray, y: np.ndarray, ties: np.ndarray) -> Points:
    """A curve without points that equal the one before, which have no width."""
    repeats = np.append(False, (np.diff(x) == 0) & (np.diff(y) == 0))
    return x[~repeats], y[~repeats], ties[~repeats]


def _roc_band(x: np.ndarray, y: np.ndarray, ties: np.ndarray) -> Points:
    """The curve rises from each point to the next, somewhere within their rectangle."""
    known, line = np.repeat(ties[:-1], 2), np.repeat(y, 2)[1:-1]
    low, high = (np.where(known, line, np.repeat(end, 2)) for end in (y[:-1], y[1:]))
    return np.repeat(x, 2)[1:-1], low, high


def _precision_band(recall: np.ndarray, precision: np.ndarray, ties: np.ndarray) -> Points:
    """The least and the greatest precision at each recall.

    Between two points, the true positives rise from the first to the second, and the false ones
    are at least those of the first and at most those of the second.
    """
    # The thresholds ascend; from the last point to the first, recalls do so.
    recall, precision, ties = recall[::-1], precision[::-1], ties[::-1]
    # In units of all positives: precision = recall / (recall + false), solved for the false ones.
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


def _precision_at(at: np.ndarray, recall: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The precision at the least recall of the curve that is at least the given one."""
    recall, precision = recall[::-1], precision[::-1]
    # A little less, because recalls of float32 may be rounded down from the one that is asked for.
    place = np.searchsorted(recall, at * (1 - 1e-6), side="left")
    return precision[np.minimum(place, len(recall) - 1)]


def _edges(scores: np.ndarray, weight: np.ndarray, bins: int) -> np.ndarray | None:
    """The edges of the bars; None without data."""
    seen = (weight > 0) & np.isfinite(scores)
    if not (weight > 0).any():
        return None
    x, w = scores[seen], weight[seen]
    if ((x >= 0) & (x <= 1)).all():
        return np.linspace(0, 1, bins + 1)
    order = np.argsort(x)
    x, share = x[order], np.cumsum(w[order]) / w.sum()
    low, high = (x[min(np.searchsorted(share, q), len(x) - 1)] for q in (0.005, 0.995))
    # Equal scores have a width, too. Halves, because the difference may overflow.
    pad = max((high / 2 - low / 2) * 0.04, abs(low) * 1e-3, abs(high) * 1e-3, 1e-6)
    return np.linspace(low - pad, high + pad, bins + 1)


def _shares(scores: np.ndarray, both: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of each bar, (2, classes, bars); NaN where there are no scores."""
    # Scores beyond the edges are in the first and last bars; so is the last edge itself.
    place = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, len(edges) - 2)
    counts = np.zeros((*both.shape[:2], len(edges) - 1))
    for kind, row in np.ndindex(both.shape[:2]):
        counts[kind, row] = np.bincount(place[row], both[kind, row], len(edges) - 1)
    total = counts.sum(-1, keepdims=True)
    return np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0)


def _rows(ax: "Axes", shares: np.ndarray, edges: np.ndarray, names: list[str]) -> None:
    """A row for each class, the first one at the top; all in one scale."""
    count = len(names)
    # The highest bar of all classes leaves a gap to the row above.
    scale = 0.85 / float(np.nanmax(shares)) if count > 1 else 1.0
    ink = canvas.ink_of(ax)
    looks: dict[str, canvas.Style] = {
        "positives": {"facecolor": canvas.COLORS[0], "alpha": 0.55, "linewidth": 0},
        "negatives": canvas.HATCHED | {"edgecolor": ink, "linewidth": 1.0},
    }
    for i in range(count):
        base = float(count - 1 - i)
        for (label, look), share in zip(looks.items(), shares[:, i], strict=True):
            if np.isnan(share).any():
                continue
            # Once in the legend; a class may have no positives or no negatives.
            once = None if label in ax.get_legend_handles_labels()[1] else label
            ax.stairs(base + share * scale, edges, baseline=base, fill=True, label=once, **look)
        if np.isnan(shares[:, i]).all():
            ax.text(edges[len(edges) // 2], base + 0.2, "no data", ha="center", color=ink)
    if count == 1:
        ax.set_ylabel("share")
        ax.set_ylim(0, None)
        canvas.grid(ax, "y")
    else:
        ax.set_ylabel("class")
        canvas.name_ticks(ax, names[::-1], "y")
        ax.set_ylim(-0.05, count)
        for i in range(count):
            ax.axhline(i, color=ink, linewidth=0.5, alpha=0.4)
    canvas.legend(ax)


def _heat(ax: "Axes", shares: np.ndarray, edges: np.ndarray, names: list[str]) -> None:
    """The scores of the positives, a row for each class."""
    extent = (edges[0], edges[-1], len(names) - 0.5, -0.5)
    image = canvas.heat_map(ax, shares, extent=extent, aspect="auto", vmin=0)
    canvas.name_ticks(ax, names, "y")
    ax.set_ylabel("class")
    canvas.color_bar(ax, image, "share of the positives")
