"""The parts that all figures share: axes, colours, and labels that do not overlap."""

import hashlib
import io
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from datarax._checks import kind
from datarax._errors import MetricTypeError
from datarax._numbers import number as number_of
from datarax._numbers import trimmed
from datarax._optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.image import AxesImage

Style = dict[str, Any]
"""Arguments of a call of Matplotlib that say how something looks."""

INK = "#010203"
"""The colour of text and axes. It looks black, and no other artist has it: `svg` replaces it."""

# Each colour has a contrast of at least 3 to white and to a dark page. Neighbours differ in
# lightness.
COLORS = "#206aab", "#289567", "#d0354e", "#e27508", "#a25ebd"
LINES = "-", "--", ":", "-."
MARKERS = "o", "s", "^", "D", "v"
HATCHED: Style = {"facecolor": "none", "edgecolor": COLORS[4], "hatch": "////"}
MOST_NAMED = 10
"""The number of series that have a colour and a line in the legend."""


def axes_of(ax: "Axes | None", width: float = 5.2, height: float = 4.2) -> "Axes":
    """The axes to draw in: those given, or those of a new figure of this size in inches."""
    if ax is None:
        return new_axes(new_figure(width, height))
    if not isinstance(ax, optional("matplotlib.axes", "plot", "datarax.plot").Axes):
        raise MetricTypeError(f"ax: expected matplotlib.axes.Axes or None; got {kind(ax)}")
    return ax


def new_figure(width: float, height: float) -> "Figure":
    """A figure that pyplot does not know, so that nobody has to close it."""
    module = optional("matplotlib.figure", "plot", "datarax.plot")
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained")
    # Jupyter shows figures by itself only after pyplot has made one. It asks other objects.
    vars(figure)["_repr_png_"] = partial(_png, figure)
    return figure


def align(figures: "Sequence[Figure]") -> None:
    """Gives the axes of several figures of one size the same place.

    Each figure has what `new_figure` makes: a layout, and axes one below the other, with a colour
    bar or a legend beside them. The margins become the widest that any of the figures needs, and
    the cells of an image need not be square.
    """
    for figure in figures:
        for ax in _without_bars(figure):
            ax.set_aspect("auto")
        _lay_out(figure, 1)
    if not figures:
        return
    left, bottom, right, top = _common_box(figures)
    for figure in figures:
        box, layout = _box(figure), cast("Any", figure.get_layout_engine())
        less = left - box[0], bottom - box[1], box[2] - right, box[3] - top
        layout.set(rect=(less[0], less[1], 1 - less[0] - less[2], 1 - less[1] - less[3]))
        _lay_out(figure, 1)
    # Labels have moved a little: the axes get the place that all have.
    common = _common_box(figures)
    for figure in figures:
        box = _box(figure)
        figure.set_layout_engine("none")
        scale = (common[2:] - common[:2]) / (box[2:] - box[:2])
        for ax in _without_bars(figure):
            ends = ax.get_position(original=True).get_points()
            (x0, y0), (x1, y1) = common[:2] + (ends - box[:2]) * scale
            ax.set_position((x0, y0, x1 - x0, y1 - y0))


def _common_box(figures: "Sequence[Figure]") -> np.ndarray:
    boxes = np.array([_box(figure) for figure in figures])
    return np.concatenate([boxes[:, :2].max(0), boxes[:, 2:].min(0)])


def _box(figure: "Figure") -> np.ndarray:
    """The left, lower, right and upper end of the axes together, in parts of the figure."""
    boxes = np.array([ax.get_position(original=True).extents for ax in _without_bars(figure)])
    return np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])


def _without_bars(figure: "Figure") -> "list[Axes]":
    """The axes of a figure that are no colour bars."""
    return [ax for ax in figure.axes if not hasattr(ax, "_colorbar")]


def _lay_out(figure: "Figure", times: int) -> None:
    layout = figure.get_layout_engine()
    if layout is not None:
        for _ in range(times):  # it is found step by step
            layout.execute(figure)


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def new_axes(figure: "Figure", *place: "int | SubplotSpec") -> "Axes":
    """Axes of a figure; text and lines are in ink unless the user's style has a colour for them."""
    return inked(figure.add_subplot(*place))


def panels(count: int, columns: int, width: float, height: float) -> "list[Axes]":
    """The axes of the panels of a new figure, row by row. Each has this size, in inches."""
    rows = -(-count // columns)  # rounded up: the last row may have fewer
    figure = new_figure(width * columns, height * rows)
    return [new_axes(figure, rows, columns, i + 1) for i in range(count)]


def inked(ax: "Axes", ink: str | None = None) -> "Axes":
    """The axes, with text and lines in the given colour or that of the user's style."""
    if ink is None:
        from matplotlib.colors import to_hex

        ink = INK if to_hex(ink_of(ax)) == "#000000" else ink_of(ax)
    ax.tick_params(which="both", color=ink, labelcolor=ink)
    for each in (ax.xaxis.label, ax.yaxis.label, ax.title):
        each.set_color(ink)
    for side, spine in ax.spines.items():
        spine.set_color(ink)
        spine.set_visible(side in ("left", "bottom"))
    ax.patch.set_visible(False)
    return ax


def figure_of(ax: "Axes") -> "Figure":
    """The figure of the axes."""
    return cast("Figure", ax.figure)


def ink_of(ax: "Axes") -> str:
    """The colour of the labels of the axes."""
    return str(ax.xaxis.label.get_color())


def grid(ax: "Axes", axis: Literal["both", "x", "y"] = "both") -> None:
    ax.grid(visible=True, axis=axis, color=ink_of(ax), alpha=0.15, linewidth=0.6)
    ax.set_axisbelow(True)


def line_style(i: int, count: int = 1, marker_size: float = 0) -> Style:
    """Colour and dashes of the series `i`, of which no two of the first twenty are alike in both.

    Of a `count` that is too great to tell them apart, all are light lines. Others have markers, if
    `marker_size` is not 0.
    """
    if count > MOST_NAMED:
        return {"color": COLORS[0], "linewidth": 0.8, "alpha": max(0.12, min(0.5, 12 / count))}
    style: Style = {"color": COLORS[i % len(COLORS)], "linestyle": LINES[i % len(LINES)]}
    marker = {"marker": MARKERS[i % len(MARKERS)], "markersize": marker_size}
    return style | marker if marker_size else style


def legend(ax: "Axes", **more: object) -> None:
    """A legend right of the axes, where it covers nothing."""
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0}
    look = {"frameon": False, "labelcolor": ink_of(ax), "fontsize": "small"}
    # The colour of the labels is not that of a title.
    ax.legend(**place | look | more).get_title().set_color(ink_of(ax))


def title(ax: "Axes", text: str, size: str = "medium") -> None:
    """A title in the colour of the other text."""
    ax.set_title(text, fontsize=size, color=ink_of(ax))


def say(ax: "Axes", message: str) -> None:
    """Writes a message in the middle of axes that have nothing else to show."""
    centered = {"ha": "center", "va": "center", "transform": ax.transAxes, "wrap": True}
    ax.text(0.5, 0.5, message, color=ink_of(ax), **centered)


def diagonal(ax: "Axes", **look: Any) -> None:
    """A dotted line from (0, 0) to (1, 1)."""
    ax.plot([0, 1], [0, 1], color=ink_of(ax), linewidth=0.8, linestyle=(0, (1, 3)), **look)


def heat_map(ax: "Axes", values: np.ndarray, least: float = 0.0, **look: Any) -> "AxesImage":
    """Values as cells of one colour, from the `least` opacity to opaque.

    They are readable on light and on dark pages. The darkest colour has a contrast of 4.4 to black
    text and of 4.7 to white text.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    color = "#3a78b5"
    shades = LinearSegmentedColormap.from_list("datarax", [to_rgba(color, least), to_rgba(color)])
    return ax.imshow(values, cmap=shades, interpolation="none", **look)


def color_bar(ax: "Axes", image: "AxesImage", label: str) -> "Colorbar":
    """A scale for an image, at its right."""
    from matplotlib import ticker
    from matplotlib.colors import LogNorm

    bar = figure_of(ax).colorbar(image, ax=ax, label=label, shrink=0.8, pad=0.02)
    low, high = image.get_clim()
    if isinstance(image.norm, LogNorm) and low and high and high > 6 * low:
        # Matplotlib's labels at 2, 3, 4 and 6 overlap on a scale of more than this.
        bar.minorlocator = ticker.LogLocator(subs=(2, 4))
        # Up to two decades all of them get a label, as there may be one power of ten alone.
        bar.minorformatter = ticker.LogFormatterSciNotation(minor_thresholds=(2, 2))
    ink = ink_of(ax)
    bar.ax.tick_params(which="both", color=ink, labelcolor=ink)
    bar.ax.yaxis.label.set_color(ink)
    bar.outline.set_edgecolor(ink)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)  # lines would show between its steps
    return bar


def shortened(name: object, most: int = 24) -> str:
    """A label of at most so many characters."""
    text = str(name).replace("\n", " ")
    text = text if len(text) <= most else text[: most - 1] + "…"
    return re.sub(r"(?<!\\)\$", r"\\$", text)  # a dollar is no formula


def inches(ax: "Axes") -> tuple[float, float]:
    """About the width and height of the axes, before their layout is known."""
    box, dpi = ax.bbox, figure_of(ax).dpi
    return float(0.9 * box.width / dpi), float(0.9 * box.height / dpi)


def name_ticks(
    ax: "Axes",
    names: Sequence[object],
    axis: Literal["x", "y"],
    *,
    size: float = 8.0,
    room: float | None = None,
) -> None:
    """Names at 0, 1, 2, ... of an axis: all, or as many of them as do not touch.

    Args:
        names: one for each place.
        axis: "x" or "y".
        size: of the text, in points.
        room: the length of the axis in inches, if it is known.
    """
    width, height = inches(ax)
    # Of small axes, long names would leave nothing.
    most = int(min(max(0.4 * 72 * min(width, height) / (0.6 * size), 12), 30))
    labels = [shortened(name, most) for name in names]
    room = room or (width if axis == "x" else height)
    points = 72 * room / max(len(labels), 1)
    longest = max(map(len, labels), default=0) * 0.7 * size
    # Names are turned where they are wider than their places; of numbers, fewer are shown.
    numbers = all(re.fullmatch(r"[-+.\de]+", label) for label in labels)
    upright = axis == "x" and longest > points and not numbers
    needed = longest + size if axis == "x" and numbers else 1.4 * size
    # Of many labels, every second, fifth or tenth and so on: round numbers are easy to count from.
    steps = [factor * 10**power for power in range(6) for factor in (1, 2, 5)]
    step = next((s for s in steps if points * s >= needed), len(labels))
    places = np.arange(0, len(labels), max(step, 1))
    target = ax.xaxis if axis == "x" else ax.yaxis
    target.set_ticks(places, [labels[i] for i in places], fontsize=size)
    if upright:
        ax.tick_params(axis="x", rotation=90)


def number(x: float) -> str:
    """A number for a title or a cell, where there is room for three digits."""
    return trimmed(number_of(x, digits=3)) if np.isfinite(x) else "NaN"


def svg(figure: "Figure") -> str:
    """A figure as inline SVG: its background is transparent, text and axes have the page's colour.

    Figures of the same values give the same text: there are no dates and no random ids. The ids of
    different pictures differ, so that they can be on one page. Text is drawn as paths, so that it
    does not depend on the fonts of the page.
    """
    from matplotlib import rc_context

    _lay_out(figure, 3)  # drawing makes the last step
    file = io.StringIO()
    with rc_context(
        {"svg.hashsalt": "datarax", "svg.fonttype": "path", "image.composite_image": False}
    ):
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=none)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A style sheet would hold for the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = text.replace("<svg ", '<svg style="stroke-linejoin:round;stroke-linecap:butt" ', 1)
    text = text.replace(INK, "currentColor")
    # Only what is referred to needs an id.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    prefix = "d" + hashlib.sha256(text.encode()).hexdigest()[:10]
    text = re.sub(
        r'\s+id="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text
    )
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
    # A hundredth of a point is enough, and paths are most of the text.
    text = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    return re.sub(r"\n\s*", "\n", text).strip()
