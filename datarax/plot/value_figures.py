"""The figures of values: how they are distributed, and pairs of a prediction and a target."""

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from datarax._checks import positive_int
from datarax.algebra.pytrees import children_of
from datarax.metric.base import Metric
from datarax.metrics.aggregation.quantiles import Histogram
from datarax.metrics.regression.joint_bins import JointHistogram
from datarax.plot import canvas
from datarax.plot.given import Source
from datarax.statistics.value_histogram import ValueHistogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S = TypeVar("S")

_DISTRIBUTION = Source(
    "distribution", "a Histogram, or a metric of quantiles such as Median or MedianAbsoluteError"
)
_ERRORS = Source("error_quantiles", "a MedianAbsoluteError")
_PAIRS = Source("pairs", "a SpearmanCorrCoef without exact=True")
_MIDDLE = 0.005, 0.995
_MARKED = 0.5, 0.9, 0.99


def distribution(
    metric: object, ax: "Axes | None" = None, *, bins: int = 40, label: str = "value"
) -> "Figure":
    """The distribution of values as bars, which are shares of their weight.

    The bars of a `Histogram` are its bins. Those of a metric of quantiles cover the middle 99 % of
    the values. Values beyond are in the first and the last bar. A dashed line stands at the median
    of the values where the metric holds their quantiles.

    Args:
        metric: a `Histogram`; or a metric that keeps a histogram of all values, such as `Median`,
            `Quantile` or `MedianAbsoluteError`.
        ax: where to draw, instead of a new figure.
        bins: the number of bars, of a metric of quantiles.
        label: what the values are.

    Raises:
        MetricTypeError: `metric` is something else.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import Histogram
        >>> seen = Histogram(num_bins=2, range=(0, 1)).update(jnp.array([0.1, 0.2, 0.4, 0.9]))
        >>> print(plot.distribution(seen).axes[0].patches[0].get_data().values)
        [0.75 0.25]
    """
    positive_int(bins, "bins")
    middle = None
    if isinstance(metric, Histogram):
        found = metric.results()
        edges, counts = np.asarray(metric.edges, float), np.array(found["counts"], float)
        counts[0] += found["below"]
        counts[-1] += found["above"]
    else:
        low, high, weight = _values(_statistic(metric, ValueHistogram, _DISTRIBUTION))
        edges = _edges(low, high, weight, bins)
        counts = weight @ _spread(low, high, edges)
        if weight.sum() > 0:
            middle = float(_quantile(low, high, weight, 0.5))
    ax = canvas.axes_of(ax, 5.2, 3.6)
    ax.set(xlabel=label, ylabel="share", xlim=(edges[0], edges[-1]))
    if not counts.sum() > 0:
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    look: canvas.Style = {"facecolor": canvas.COLORS[0], "alpha": 0.55, "linewidth": 0}
    ax.stairs(counts / counts.sum(), edges, fill=True, **look)
    ax.set_ylim(0, None)
    canvas.grid(ax, "y")
    if middle is not None:
        ax.axvline(middle, color=canvas.ink_of(ax), linewidth=1, linestyle="--")
        canvas.title(ax, f"median {canvas.number(middle)}")
    return canvas.figure_of(ax)


def error_quantiles(metric: object, ax: "Axes | None" = None) -> "Figure":
    """The absolute error that a given share of the examples does not exceed.

    The curve is drawn up to 99 % of the examples, and 50, 90 and 99 % are marked and in the title.

    Args:
        metric: a `MedianAbsoluteError`, which keeps a histogram of all errors.
        ax: where to draw, instead of a new figure.

    Raises:
        MetricTypeError: `metric` is something else.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import MedianAbsoluteError
        >>> preds, target = jnp.array([1.0, 2.0, 90.0]), jnp.array([1.0, 4.0, 0.0])
        >>> seen = MedianAbsoluteError().update(preds, target)
        >>> print(plot.error_quantiles(seen).axes[0].get_title())
        50 %: 2, 90 %: 90, 99 %: 90
    """
    statistic = _statistic(metric, ValueHistogram, _ERRORS)
    at = np.linspace(0, _MARKED[-1], 100)
    errors = np.asarray(statistic.quantile(tuple(at.tolist())), float)
    marks = np.asarray(statistic.quantile(_MARKED), float)
    ax = canvas.axes_of(ax, 5.2, 3.6)
    ax.set(xlabel="share of the examples", ylabel="absolute error, at most", xlim=(0, 1))
    if not np.isfinite(marks).all():
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    ax.plot(at, errors, color=canvas.COLORS[0])
    ax.plot(_MARKED, marks, color=canvas.COLORS[0], marker="o", markersize=4, linestyle="none")
    said = (f"{100 * q:g} %: {canvas.number(x)}" for q, x in zip(_MARKED, marks, strict=True))
    canvas.title(ax, ", ".join(said))
    ax.set_ylim(0, 1.1 * marks[-1] or 1)
    canvas.grid(ax)
    return canvas.figure_of(ax)


def pairs(metric: object, ax: "Axes | None" = None, *, bins: int = 40) -> "Figure":
    """Predictions over targets: how many pairs there are in each cell, which is a square.

    Both axes cover the middle 99 % of the predictions and of the targets; pairs beyond are in the
    outermost cells. Right predictions are on the dotted line. The darkness grows with the square
    root of the number of pairs.

    Args:
        metric: a `SpearmanCorrCoef` or a `KendallTau`, which count all pairs in a table; without
            `exact=True`.
        ax: where to draw, instead of a new figure.
        bins: the number of cells of a row.

    Raises:
        MetricTypeError: `metric` is something else.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import SpearmanCorrCoef
        >>> seen = SpearmanCorrCoef(bits=8).update(jnp.array([0.0, 0, 9]), jnp.array([0.0, 9, 9]))
        >>> print(plot.pairs(seen, bins=2).axes[0].images[0].get_array())
        [[1. 1.]
         [0. 1.]]
    """
    from matplotlib.colors import PowerNorm

    positive_int(bins, "bins")
    statistic = _statistic(metric, JointHistogram, _PAIRS)
    weights = np.asarray(statistic.table().weights.to_float(), float)
    ends = np.asarray(statistic.bins.ends(), float)  # (2, 2, slots): least and greatest of each
    ax = canvas.axes_of(ax, 5.2, 4.2)
    ax.set(xlabel="target", ylabel="prediction")
    total = weights.sum()
    if not total > 0:
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    sides = []
    for of, own in enumerate((weights.sum(1), weights.sum(0))):
        seen = own > 0
        sides.append((ends[0, of][seen], ends[1, of][seen], own[seen]))
        weights = weights.compress(seen, of)
    limits = [_quantile(low, high, own, q) for low, high, own in sides for q in _MIDDLE]
    edges = _padded(min(limits), max(limits), bins)
    rows, columns = (_spread(low, high, edges) for low, high, _ in sides)
    table = rows.T @ weights @ columns
    extent = (edges[0], edges[-1], edges[0], edges[-1])
    norm = PowerNorm(0.5, 0, float(table.max()))
    image = canvas.heat_map(ax, table, norm=norm, extent=extent, origin="lower")
    ax.plot(edges[[0, -1]], edges[[0, -1]], color=canvas.ink_of(ax), linewidth=0.8, linestyle=":")
    canvas.grid(ax)
    canvas.color_bar(ax, image, "examples in a cell")
    return canvas.figure_of(ax)


def _statistic(metric: object, kind: type[S], source: Source) -> S:
    """The statistic of a metric, of the kind that the figure draws."""
    statistic = children_of(metric).get("statistic") if isinstance(metric, Metric) else None
    if not isinstance(statistic, kind):
        raise source.wrong_kind(metric)
    return statistic


def _values(statistic: ValueHistogram) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least and the greatest value of each bin that holds finite values, and its weight."""
    found = statistic.bins.contents()
    weight = np.asarray(found.weights.to_float(), float)[0, 0]
    low, high = (np.asarray(x, float)[0] for x in (found.least, found.greatest))
    seen = (weight > 0) & np.isfinite(low) & np.isfinite(high)
    return low[seen], high[seen], weight[seen]


def _quantile(low: np.ndarray, high: np.ndarray, weight: np.ndarray, q: float) -> float:
    """About the value up to which there is the share `q` of the weight."""
    share = np.cumsum(weight) / weight.sum()
    place = min(int(np.searchsorted(share, q)), len(share) - 1)
    return float(low[place] / 2 + high[place] / 2)


def _edges(low: np.ndarray, high: np.ndarray, weight: np.ndarray, bins: int) -> np.ndarray:
    """The edges of bars for the middle of the values; from 0 to 1 without data."""
    if not weight.sum() > 0:
        return np.linspace(0, 1, bins + 1)
    least, most = (_quantile(low, high, weight, q) for q in _MIDDLE)
    return _padded(least, most, bins)


def _padded(least: float, most: float, bins: int) -> np.ndarray:
    """Edges of equal width, a little beyond both ends; equal ends have a width, too."""
    # Halves, because the difference may overflow.
    pad = max((most / 2 - least / 2) * 0.04, abs(least) * 1e-3, abs(most) * 1e-3, 1e-6)
    return np.linspace(least - pad, most + pad, bins + 1)


def _spread(low: np.ndarray, high: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of each interval in each cell, (intervals, cells).

    The values of an interval count as evenly spaced, and those beyond the cells as in the outermost
    ones. An interval of one value is in one cell.
    """
    inner, width = edges[None, 1:-1], (high - low)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.clip((inner - low[:, None]) / width, 0, 1)
    below = np.where(width > 0, below, inner > low[:, None])
    nothing, all_of_it = np.zeros((len(low), 1)), np.ones((len(low), 1))
    return np.diff(np.concatenate([nothing, below, all_of_it], 1), axis=1)
