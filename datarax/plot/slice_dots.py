"""The figures of the slices of the data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.metric.values import flat_items
from datarax.plot import canvas
from datarax.plot.given import PARTS, Source, by_result, is_number, number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE = Source(
    "slices",
    "a Sliced metric or its results, {slice: value or {'value', 'lower', 'upper'}, 'overall': ...}",
)
_DRAWN = ("value", "lower", "upper")
_PARTS = (*PARTS, "slices")


def slices(
    metric: object, ax: "Axes | None" = None, *, name: str | None = None, sort: bool = True
) -> "Figure":
    """The value of each slice as a dot with its interval, and that of all data as a line.

    Args:
        metric: `Sliced(Interval(...))`, `Sliced(Bootstrap(...))`, `Bootstrap(Sliced(...))` or
            another `Sliced` metric, or its results. Without intervals there are only dots.
        ax: where to draw, instead of a new figure.
        name: which result to draw, if the slices are of a collection.
        sort: whether the greatest value is at the top; otherwise slices keep their order. Slices
            without data are at the bottom.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: `name` is none of the results, or is left out and there are several.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Sliced, plot
        >>> from datarax.metrics import Accuracy
        >>> seen = Sliced(Accuracy(num_classes=3), 2, names=("de", "fr"))
        >>> seen = seen.update(
        ...     jnp.array([0, 1, 2, 2]), jnp.array([0, 0, 1, 2]), slices=jnp.array([0, 0, 1, 1])
        ... )
        >>> print([text.get_text() for text in plot.slices(seen).axes[0].get_yticklabels()])
        ['de', 'fr']
    """
    overall, rows, title = _rows(metric, name)
    shown = list(rows)
    if sort:
        # The stable order of equal values is that of the slices; NaN is last.
        shown.sort(key=lambda label: (np.isnan(rows[label]["value"]), -rows[label]["value"]))
    values, low, high = (np.array([rows[label][part] for label in shown]) for part in _DRAWN)
    place = np.arange(len(rows))
    ax = canvas.axes_of(ax, 6.0, min(max(2.2, 1.1 + 0.22 * len(rows)), 24.0))
    ax.hlines(place, low, high, color=canvas.COLORS[0], linewidth=1.6)
    ax.plot(values, place, linestyle="none", marker="o", markersize=4.5, color=canvas.COLORS[0])
    ink = canvas.ink_of(ax)
    if np.isfinite(overall["value"]):
        ax.axvline(overall["value"], color=ink, linewidth=1, linestyle="--", label="overall")
        if np.isfinite(overall["lower"] + overall["upper"]):
            ax.axvspan(overall["lower"], overall["upper"], color=ink, alpha=0.1, linewidth=0)
        # Above the axes: the dots may be anywhere within.
        canvas.legend(ax, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=None)
    ax.set_ylim(len(rows) - 0.5, -0.5)  # the first slice is at the top
    labels = [
        canvas.shortened(label, 20) + ("" if np.isfinite(x) else " (no data)")
        for label, x in zip(shown, values, strict=True)
    ]
    canvas.name_ticks(ax, labels, "y", size=7.5)
    ax.set(ylabel="slice", xlabel=canvas.shortened(title or "value"))
    canvas.grid(ax)
    if not np.isfinite(values).any():
        ax.set_xticks([])
        canvas.say(ax, "no data")
    return canvas.figure_of(ax)


def binned(
    metric: object,
    ax: "Axes | None" = None,
    *,
    edges: Sequence[float],
    label: str = "bin",
    name: str | None = None,
) -> "Figure":
    """The value of slices that are bins of a number, such as a length, over that number.

    Intervals are vertical lines, and the dashed line is the value of all data. Each value stands in
    the middle of its bin. The axis is logarithmic if the bins with data are of positive numbers,
    and the last ends at more than 30 times the end of the first.

    Args:
        metric: a `Sliced` metric or its results, as in `slices`; without names, and the ids of the
            slices are the numbers of the bins.
        ax: where to draw, instead of a new figure.
        edges: the edges of the bins, one more than there are slices. Bins without data at either
            end are not drawn.
        label: what the number is.
        name: which result to draw, if the slices are of a collection.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: the number of edges is another, or they do not increase; the slices have
            names; or `name` is as in `slices`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Sliced, plot
        >>> from datarax.metrics import Mean
        >>> values, length = jnp.array([0.9, 0.7, 0.2]), jnp.array([0, 0, 1])
        >>> score = Sliced(Mean(), 2).update(values, slices=length)
        >>> line = plot.binned(score, edges=(0, 10, 20), label="words").axes[0].lines[0]
        >>> print(line.get_xdata(), line.get_ydata().round(3))
        [ 5. 15.] [0.8 0.2]
    """
    overall, rows, title = _rows(metric, name, "binned")
    ends = np.asarray(edges, float)
    numbered = rows.keys() == {str(i) for i in range(len(rows))}
    if not numbered or ends.shape != (len(rows) + 1,) or not (np.diff(ends) > 0).all():
        raise MetricInputError(
            f"datarax.plot.binned: {len(rows)} slices and edges={edges!r}; expected slices without "
            f"names, and increasing edges, one more than there are slices"
        )
    # Results are in the order of their keys as texts.
    parts = {part: np.array([rows[str(i)][part] for i in range(len(rows))]) for part in _DRAWN}
    seen = np.isfinite(parts["value"])
    values, low, high = (parts[part][seen] for part in _DRAWN)
    left, right = ends[:-1][seen], ends[1:][seen]
    ax = canvas.axes_of(ax, 5.2, 3.6)
    ax.set(xlabel=label, ylabel=canvas.shortened(title or "value"))
    canvas.grid(ax)
    if not seen.any():
        canvas.say(ax, "no data")
        return canvas.figure_of(ax)
    middle = left / 2 + right / 2
    if left[0] >= 0 and right[-1] > 30 * right[0]:
        # A bin from 0 on has no other place on this axis.
        left = np.where(left > 0, left, right / 2)
        middle = np.sqrt(left * right)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:g}")
    color = canvas.COLORS[0]
    ax.plot(middle, values, color=color, marker="o", markersize=4.5, linewidth=1)
    ax.vlines(middle, low, high, color=color, linewidth=1.6)
    if np.isfinite(overall["value"]):
        ax.axhline(overall["value"], color=canvas.ink_of(ax), linewidth=1, linestyle="--")
    ax.set_xlim(float(left[0]), float(right[-1]))
    return canvas.figure_of(ax)


def _rows(
    given: object, name: str | None, figure: str = "slices"
) -> tuple[dict[str, float], dict[str, dict[str, float]], str]:
    """The numbers of all data, those of each slice, and the name of the result."""
    source = _SOURCE._replace(figure=figure)
    results = source.results(given)
    if isinstance(results.get("value"), Mapping):
        # Bootstrap(Sliced(...)): the parts are outside, the slices within.
        slices = {part: x for part, x in results.items() if isinstance(x, Mapping)}
        results = {
            key: {part: x[key] for part, x in slices.items() if key in x} for key in slices["value"]
        }
    if "overall" not in results:
        raise source.wrong_kind(given)
    flat = {
        key: _by_result(x)
        for key, x in results.items()
        if key != "unknown" and key.rpartition("/")[2] != "invalid"
    }
    name = source.chosen(name, sorted({result for x in flat.values() for result in x}))
    none = dict.fromkeys(_DRAWN, np.nan)
    rows = {key: none | x.get(name, {}) for key, x in flat.items()}
    overall = rows.pop("overall")
    if not rows:
        raise source.wrong_kind(given)
    metric: Any = given
    while hasattr(metric, "metric"):
        metric = metric.metric
    # Without a name, that of the class within the wrappers.
    return overall, rows, name or ("" if metric is given else type(metric).__name__)


def _by_result(x: Any) -> dict[str, dict[str, float]]:
    """By result, the value and the ends of its interval: of one slice."""
    items = dict(flat_items(x)) if isinstance(x, Mapping) else {"value": x}
    drawn = [key for key, x in items.items() if is_number(x) and not _is_of_test(key, items)]
    keys = by_result(drawn, _PARTS)
    return {
        result: {part: number_of(items[key]) for part, key in of_parts.items()}
        for result, of_parts in keys.items()
    }


def _is_of_test(key: str, items: Mapping[str, Any]) -> bool:
    """True for the p-values that an evaluation has beside a value, which are no results."""
    prefix, slash, last = key.rpartition("/")
    return last in ("p_value", "p_adjusted") and f"{prefix}{slash}value" in items
