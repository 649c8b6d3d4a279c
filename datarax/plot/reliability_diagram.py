"""The reliability diagram: how often predictions of each confidence are right."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datarax.metrics.probabilistic.calibration import (
    CalibrationError,
    CalibrationMetric,
    ReliabilityDiagram,
)
from datarax.plot.canvas import (
    COLORS,
    HATCH,
    MARKERS,
    MOST_NAMED,
    axes_of,
    figure_of,
    grid,
    ink_of,
    inked,
    legend,
    line_style,
    new_axes,
    new_figure,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EXPECTED = "a CalibrationError or a ReliabilityDiagram, or the results of the latter"
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

    Args:
        metric: a `CalibrationError` or a `ReliabilityDiagram`, or the results of the latter.
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
    confidence, accuracy, weight, is_count = _diagram(metric)
    groups, bins = confidence.shape
    names = checked_names(names, groups, "class")
    ax, below = _panels(ax)
    ax.plot([0, 1], [0, 1], color=ink_of(ax), linewidth=0.8, linestyle=(0, (1, 3)))
    some = np.isfinite(confidence) & np.isfinite(accuracy) & (weight > 0)
    if not some.any():
        say(ax, "no data")
    elif groups == 1:
        _bars(ax, confidence[0][some[0]], accuracy[0][some[0]], *_places(confidence[0], some[0]))
    else:
        _lines(ax, confidence, accuracy, some, names)
    total = np.nansum(weight, 0) / (1 if is_count else groups)
    left = np.arange(bins) / bins
    if groups == 1 and some.any():
        left, width = _places(confidence[0], some[0])
        total = total[some[0]]
    else:
        width = np.full(bins, 1 / bins)
    if some.any():
        below.bar(left, total, width, align="edge", color=COLORS[0], alpha=0.55, linewidth=0)
    below.set_ylabel("examples" if is_count else "share")
    if isinstance(metric, CalibrationError):
        value = metric.results()
        if np.ndim(value) == 0:
            title = f"{_NAMES[metric.norm]} {number(value)}"
            ax.set_title(title, fontsize="medium", color=ink_of(ax))
    return figure_of(ax)


def _diagram(given: object) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Confidence, accuracy and weight, (groups, bins); and whether weights are counts."""
    diagram = given
    if isinstance(given, CalibrationMetric):
        diagram = of_statistic(ReliabilityDiagram, given)
    results = fields_of(results_of(diagram))
    if results is None or not {"confidence", "accuracy", "weight"} <= results.keys():
        raise wrong_kind("reliability", _EXPECTED, given)
    confidence, accuracy, weight = (
        np.atleast_2d(array_of(results[name], "reliability", _EXPECTED))
        for name in ("confidence", "accuracy", "weight")
    )
    if isinstance(diagram, CalibrationMetric):
        counts = np.asarray(diagram.bins().weight.to_float(), float)
        return confidence, accuracy, np.where(np.isnan(weight), np.nan, counts), True
    return confidence, accuracy, weight, False


def _places(confidence: np.ndarray, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The left ends and widths of the bars of the bins that hold something.

    Bins of equal width are where they are. Those of equal mass end between their mean confidences.
    """
    bins = len(confidence)
    number, x = np.arange(bins)[some], confidence[some]
    if (np.abs(x * bins - number - 0.5) <= 0.5 + 1e-3).all():
        return number / bins, np.full(len(x), 1 / bins)
    half = np.diff(x) / 2 if len(x) > 1 else np.array([0.5 / bins])
    ends = np.concatenate([x[:1] - half[0], x[:-1] + half[: len(x) - 1], x[-1:] + half[-1]])
    ends = np.clip(ends, 0, 1)
    return ends[:-1], np.diff(ends)


def _bars(
    ax: "Axes", confidence: np.ndarray, accuracy: np.ndarray, left: np.ndarray, width: np.ndarray
) -> None:
    from matplotlib.colors import to_rgba

    ink = ink_of(ax)
    look = {"align": "edge", "linewidth": 0.8}
    ax.bar(
        *(left, accuracy, width),
        facecolor=to_rgba(COLORS[0], 0.45),
        edgecolor=COLORS[0],
        label="accuracy",
        **look,
    )
    ax.bar(
        *(left, confidence - accuracy, width),
        bottom=accuracy,
        facecolor="none",
        edgecolor=COLORS[4],
        hatch=HATCH,
        label="gap to the\nconfidence",
        **look,
    )
    ax.plot(
        *(confidence, accuracy),
        marker="o",
        markersize=4,
        linestyle="none",
        color=ink,
        label="mean of the bin",
    )
    legend(ax)


def _lines(
    ax: "Axes", confidence: np.ndarray, accuracy: np.ndarray, some: np.ndarray, names: list[str]
) -> None:
    many = len(names) > MOST_NAMED
    for i, name in enumerate(names):
        style = line_style(i, len(names))
        if not many:
            style |= {"marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        seen = some[i]
        ax.plot(confidence[i][seen], accuracy[i][seen], label=shortened(name), **style)
    if not many:
        legend(ax)
    else:
        ax.set_title(f"{len(names)} classes", fontsize="medium", color=ink_of(ax))


def _panels(ax: "Axes | None") -> "tuple[Axes, Axes]":
    """Axes for the diagram, and for the counts below it, with the same horizontal axis."""
    if ax is None:
        figure = new_figure(6.6, 5.0)
        places = figure.add_gridspec(2, 1, height_ratios=(4, 1))
        ax = new_axes(figure, places[0])
        below = inked(figure.add_subplot(places[1], sharex=ax), ink_of(ax))
    else:
        ax = axes_of(ax)
        below = inked(_below(ax), ink_of(ax))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
    grid(ax)
    ax.tick_params(axis="x", labelbottom=False)
    below.set_xlabel("confidence")
    below.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    grid(below, "y")
    return ax, below


def _below(ax: "Axes") -> "Axes":
    """Axes below these, in their place of a grid of subplots if they have one."""
    place = ax.get_subplotspec()
    if place is None:
        return ax.inset_axes((0, -0.34, 1, 0.28), sharex=ax)
    # An inset is not known to the layout of the figure, which would cut off its label.
    upper, lower = place.subgridspec(2, 1, height_ratios=(4, 1))
    ax.set_subplotspec(upper)
    return figure_of(ax).add_subplot(lower, sharex=ax)
