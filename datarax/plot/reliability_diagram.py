"""The reliability diagram: how often predictions of each confidence are right."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datarax.metrics.probabilistic.calibration import (
    CalibrationError,
    CalibrationMetric,
    ReliabilityDiagram,
)
from datarax.metrics.probabilistic.score_decomposition import ScoreDecomposition
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.isotonic import isotonic_blocks
from datarax.plot import canvas
from datarax.plot.given import Source, checked_names, of_statistic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE = Source(
    "reliability",
    "a CalibrationError, a ReliabilityDiagram or its results, or a ScoreDecomposition",
)
_NAMES = {
    "l1": "expected calibration error",
    "l2": "root mean square calibration error",
    "max": "greatest calibration error",
}


def reliability(
    metric: object, ax: "Axes | None" = None, *, names: Sequence[str] | None = None
) -> "Figure":
    """A reliability diagram: accuracy by confidence, the gaps between both, and counts below.

    Where bars end below the diagonal, predictions are too confident. Classwise and multilabel:
    a line for each class; more than ten are light lines.

    Of a `ScoreDecomposition`, there are no bins to choose: the line is the share of positives by
    isotonic regression on the forecasts (CORP), and the title has the parts of the score. The band
    is where the line of calibrated forecasts would be with a probability of 95 %, at each forecast
    by itself. It is drawn from 400 data sets with the given forecasts, whose targets are positive
    with the probability of the forecast; the seed is fixed. For this, forecasts are joined to at
    most 512 groups of about equal weight, and weights are rounded to whole numbers of examples, at
    least one a group. Where the line leaves the band, the forecasts are not calibrated. T.
    Dimitriadis, T. Gneiting and A. I. Jordan (2021), Stable reliability diagrams for probabilistic
    classifiers, https://doi.org/10.1073/pnas.2016191118.

    Args:
        metric: a `CalibrationError`, a `ReliabilityDiagram` or its results, or a
            `ScoreDecomposition`.
        ax: where to draw, instead of a new figure. The counts are drawn below it.
        names: the names of the classes or labels.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: as many names as classes are expected.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import CalibrationError
        >>> seen = CalibrationError(num_bins=2)
        >>> seen = seen.update(jnp.array([0.25, 0.5, 0.75, 1.0]), jnp.array([0, 1, 1, 1]))
        >>> bars = plot.reliability(seen).axes[0].containers[0]
        >>> print([float(bar.get_height()) for bar in bars])
        [0.5, 1.0]
    """
    if isinstance(metric, ScoreDecomposition):
        return isotonic_reliability(metric, ax, names=names)
    confidence, accuracy, weight, is_count = _diagram(metric)
    groups, bins = confidence.shape
    names = checked_names(names, groups, "class")
    ax, below = _panels(ax)
    canvas.diagonal(ax)
    some = np.isfinite(confidence) & np.isfinite(accuracy) & (weight > 0)
    # Shares are of each class; below, they are the mean over the classes.
    total = np.nansum(weight, 0) / (1 if is_count else groups)
    # Of several classes, the bars of the counts are those of bins of equal width.
    left, width = np.arange(bins) / bins, np.full(bins, 1 / bins)
    if not some.any():
        canvas.say(ax, "no data")
    elif groups == 1:
        seen = some[0]
        left, width = _places(confidence[0], seen)
        total = total[seen]
        _bars(ax, confidence[0][seen], accuracy[0][seen], left, width)
    else:
        _lines(ax, confidence, accuracy, some, names)
    if some.any():
        below.bar(left, total, width, align="edge", color=canvas.COLORS[0], alpha=0.55, linewidth=0)
    below.set_ylabel("examples" if is_count else "share")
    if isinstance(metric, CalibrationError):
        value = metric.results()
        if np.ndim(value) == 0:
            name = ("debiased " if metric.debias else "") + _NAMES[metric.norm]
            canvas.title(ax, f"{name} {canvas.number(value)}")
    return canvas.figure_of(ax)


def _diagram(given: object) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Confidence, accuracy and weight, (groups, bins); and whether weights are counts."""
    diagram = given
    if isinstance(given, CalibrationMetric):
        diagram = of_statistic(ReliabilityDiagram, given)
    parts = "confidence", "accuracy", "weight"
    results = _SOURCE.results(diagram, *parts)
    confidence, accuracy, weight = (np.atleast_2d(_SOURCE.array(results[part])) for part in parts)
    if isinstance(diagram, CalibrationMetric):
        # The diagram gives shares; the bins of a metric have the numbers of examples.
        counts = np.asarray(diagram.bins().weight.to_float(), float)
        return confidence, accuracy, np.where(np.isnan(weight), np.nan, counts), True
    return confidence, accuracy, weight, False


_DRAWS, _MOST_GROUPS, _SEED = 400, 512, 0
_BAND = 0.025, 0.975


def isotonic_reliability(
    metric: ScoreDecomposition, ax: "Axes | None" = None, *, names: Sequence[str] | None = None
) -> "Figure":
    """The isotonic curve, with the band of calibrated forecasts; see `reliability`."""
    checked_names(names, 1, "class")
    ax, below = _panels(ax, "share of positives", "forecast")
    canvas.diagonal(ax)
    groups = metric.statistic.scaled_groups()
    # The counts: what scales them is a power of two.
    p, n = (
        np.asarray(x.to_float(), float)[0] / float(groups.scale)
        for x in (groups.positives, groups.negatives)
    )
    used = p + n > 0
    p, n, x = p[used], n[used], np.asarray(groups.lowest, float)[0][used]
    results = metric.results()
    if np.isnan(results["score"]):
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    at, low, high = _calibrated_band(x, p + n)
    color = canvas.COLORS[0]
    look: canvas.Style = {"color": canvas.ink_of(ax), "alpha": 0.15, "linewidth": 0}
    ax.fill_between(at, low, high, label="95 % of calibrated\nforecasts", **look)
    first, last, share = _curve(p, n)
    # Each block is a level line from its first to its last forecast.
    ends = np.stack([x[first], x[last]], -1).ravel()
    marker: canvas.Style = {"marker": "o", "markersize": 3} if len(share) <= 8 else {}
    ax.plot(ends, np.repeat(share, 2), color=color, label="isotonic\nregression", **marker)
    edges = np.linspace(0, 1, 41)
    counts = np.histogram(x, edges, weights=p + n)[0]
    below.bar(edges[:-1], counts, 1 / 40, align="edge", color=color, alpha=0.55, linewidth=0)
    below.set_ylabel("examples")
    canvas.legend(ax)
    found = {name: canvas.number(value) for name, value in results.items()}
    kind = "Brier score" if metric.score == "brier" else "log loss"
    canvas.title(
        ax,
        f"{kind} {found['score']}: miscalibration {found['miscalibration']},\n"
        f"discrimination {found['discrimination']}, uncertainty {found['uncertainty']}",
        "small",
    )
    return canvas.figure_of(ax)


def _curve(p: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first and the last group of each block, and its share of positives."""
    blocks = isotonic_blocks(DoubleFloat.of(p), DoubleFloat.of(n))
    first = np.asarray(blocks.first)
    first = first[first < len(p)]
    a, b = (np.asarray(x.to_float(), float)[: len(first)] for x in blocks[:2])
    return first, np.append(first[1:], len(p)) - 1, a / (a + b)


def _calibrated_band(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """Forecasts, and the lower and the upper end of the band at each of them."""
    place = (np.cumsum(weight) - weight / 2) * (_MOST_GROUPS / weight.sum())
    _, group = np.unique(place.astype(int), return_inverse=True)
    total = np.bincount(group, weight)
    at = np.clip(np.bincount(group, weight * x) / total, 0, 1)
    size = np.maximum(np.rint(total), 1).astype(np.int64)
    lines = []
    for positives in np.random.default_rng(_SEED).binomial(size, at, (_DRAWS, len(at))):
        first, last, share = _curve(positives.astype(float), (size - positives).astype(float))
        lines.append(np.repeat(share, last - first + 1))
    ends = np.quantile(lines, _BAND, axis=0)
    if len(at) == 1:  # a band has a width
        at, ends = at + np.array([-0.01, 0.01]), np.repeat(ends, 2, 1)
    return at, *ends


def _places(confidence: np.ndarray, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The left ends and widths of the bars of the bins that hold something.

    Bins of equal width are where they are. Those of equal mass end between their mean confidences.
    """
    bins = len(confidence)
    place, x = np.arange(bins)[some], confidence[some]
    # A bin of equal width holds its mean confidence, but for rounding.
    if (np.abs(x * bins - place - 0.5) <= 0.5 + 1e-3).all():
        return place / bins, np.full(len(x), 1 / bins)
    # Each ends halfway to its neighbour, and the outermost are symmetric about their confidence.
    half = np.diff(x) / 2 if len(x) > 1 else np.array([0.5 / bins])
    ends = np.concatenate([x[:1] - half[0], x[:-1] + half[: len(x) - 1], x[-1:] + half[-1]])
    ends = np.clip(ends, 0, 1)
    return ends[:-1], np.diff(ends)


def _bars(
    ax: "Axes", confidence: np.ndarray, accuracy: np.ndarray, left: np.ndarray, width: np.ndarray
) -> None:
    from matplotlib.colors import to_rgba

    color = canvas.COLORS[0]
    bars: canvas.Style = {"align": "edge", "linewidth": 0.8}
    seen: canvas.Style = {"facecolor": to_rgba(color, 0.45), "edgecolor": color}
    gap: canvas.Style = {"bottom": accuracy, "label": "gap to the\nconfidence"}
    means: canvas.Style = {"marker": "o", "markersize": 4, "linestyle": "none"}
    ax.bar(left, accuracy, width, label="accuracy", **bars, **seen)
    ax.bar(left, confidence - accuracy, width, **bars, **gap, **canvas.HATCHED)
    ax.plot(confidence, accuracy, color=canvas.ink_of(ax), label="mean of the bin", **means)
    canvas.legend(ax)


def _lines(
    ax: "Axes", confidence: np.ndarray, accuracy: np.ndarray, some: np.ndarray, names: list[str]
) -> None:
    for i, (name, seen) in enumerate(zip(names, some, strict=True)):
        style = canvas.line_style(i, len(names), 4)
        ax.plot(confidence[i][seen], accuracy[i][seen], label=canvas.shortened(name), **style)
    if len(names) <= canvas.MOST_NAMED:
        canvas.legend(ax)
    else:
        canvas.title(ax, f"{len(names)} classes")


def _panels(
    ax: "Axes | None", vertical: str = "accuracy", horizontal: str = "confidence"
) -> "tuple[Axes, Axes]":
    """Axes for the diagram, and for the counts below it, with the same horizontal axis."""
    ax = canvas.axes_of(ax, 6.6, 5.0)
    below = canvas.inked(_below(ax), canvas.ink_of(ax))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), ylabel=vertical)
    canvas.grid(ax)
    ax.tick_params(axis="x", labelbottom=False)
    below.set_xlabel(horizontal)
    below.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    canvas.grid(below, "y")
    return ax, below


def _below(ax: "Axes") -> "Axes":
    """Axes below these, in their place of a grid of subplots if they have one."""
    place = ax.get_subplotspec()
    if place is None:
        return ax.inset_axes((0, -0.34, 1, 0.28), sharex=ax)
    # An inset is not known to the layout of the figure, which would cut off its label.
    upper, lower = place.subgridspec(2, 1, height_ratios=(4, 1))
    ax.set_subplotspec(upper)
    return canvas.figure_of(ax).add_subplot(lower, sharex=ax)
