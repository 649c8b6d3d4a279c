"""The figure of the scores of positives and negatives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datarax._checks import positive_int
from datarax.metrics.curves.score_metric import ScoreMetric
from datarax.plot import canvas
from datarax.plot.given import Source, checked_names
from datarax.statistics.scores import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE = Source(
    "score_histogram",
    "a metric of scores, such as AUROC, AveragePrecision or ROC, which holds the scores",
)


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
        raise _SOURCE.wrong_kind(metric)
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
