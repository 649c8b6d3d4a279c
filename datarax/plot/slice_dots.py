"""The figure of the slices of the data."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax.metrics.reading import flat_items
from datarax.plot.canvas import (
    COLORS,
    axes_of,
    figure_of,
    grid,
    ink_of,
    name_ticks,
    say,
    shortened,
)
from datarax.plot.given import chosen, fields_of, is_number, results_of, wrong_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EXPECTED = (
    "a Sliced metric or its results, {slice: value or {'value', 'lower', 'upper'}, 'overall': ...}"
)
_PARTS = ("value", "lower", "upper", "std_error", "slices")


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
    order = list(range(len(rows)))
    values = np.array([row["value"] for row in rows.values()])
    if sort:
        # The stable order of equal values is that of the slices; NaN is last.
        order.sort(key=lambda i: (np.isnan(values[i]), -values[i]))
    labels = [list(rows)[i] for i in order]
    ends = [[list(rows.values())[i][end] for i in order] for end in ("lower", "upper")]
    values, place = values[order], np.arange(len(rows))
    ax = axes_of(ax, 6.0, min(max(2.2, 1.1 + 0.22 * len(rows)), 24.0))
    low, high = (np.array(x, float) for x in ends)
    ax.hlines(place, low, high, color=COLORS[0], linewidth=1.6)
    ax.plot(values, place, linestyle="none", marker="o", markersize=4.5, color=COLORS[0])
    ink = ink_of(ax)
    if np.isfinite(overall["value"]):
        ax.axvline(overall["value"], color=ink, linewidth=1, linestyle="--", label="overall")
        if np.isfinite(overall["lower"] + overall["upper"]):
            span = {"color": ink, "alpha": 0.1, "linewidth": 0}
            ax.axvspan(overall["lower"], overall["upper"], **span)
        ax.legend(
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            frameon=False,
            fontsize="small",
            labelcolor=ink,
        )
    ax.set_ylim(len(rows) - 0.5, -0.5)
    said = ["" if np.isfinite(x) else " (no data)" for x in values]
    labels = [shortened(label, 20) + end for label, end in zip(labels, said, strict=True)]
    name_ticks(ax, labels, "y", size=7.5)
    ax.set(ylabel="slice", xlabel=shortened(title) if title else "value")
    grid(ax)
    if not np.isfinite(values).any():
        ax.set_xticks([])
        say(ax, "no data")
    return figure_of(ax)


def _rows(
    given: object, name: str | None
) -> tuple[dict[str, float], dict[str, dict[str, float]], str]:
    """The numbers of all data, those of each slice, and the name of the result."""
    results = fields_of(results_of(given))
    if results is not None and "value" in results and isinstance(results["value"], Mapping):
        # Bootstrap(Sliced(...)): the parts are outside, the slices within.
        slices = {part: dict(x) for part, x in results.items() if isinstance(x, Mapping)}
        results = {
            key: {part: x[key] for part, x in slices.items() if key in x} for key in slices["value"]
        }
    if results is None or "overall" not in results:
        raise wrong_kind("slices", _EXPECTED, given)
    flat = {key: _by_result(x) for key, x in results.items() if key != "unknown"}
    flat = {key: x for key, x in flat.items() if key.rpartition("/")[2] != "invalid"}
    found = sorted({result for x in flat.values() for result in x})
    name = chosen("slices", name, found)
    none = dict.fromkeys(("value", "lower", "upper"), np.nan)
    rows = {key: none | x.get(name, {}) for key, x in flat.items()}
    overall = rows.pop("overall")
    if not rows:
        raise wrong_kind("slices", _EXPECTED, given)
    title = name
    if not title:
        metric: Any = getattr(given, "metric", None)
        while hasattr(metric, "metric"):
            metric = metric.metric
        title = type(metric).__name__ if metric is not None else ""
    return overall, rows, title


def _by_result(x: Any) -> dict[str, dict[str, float]]:
    """By result, the value and the ends of its interval: of one slice."""
    items = dict(flat_items(x)) if isinstance(x, Mapping) else {"value": x}
    found: dict[str, dict[str, float]] = {}
    for key, value in items.items():
        if not is_number(value):
            continue
        parts = key.split("/")
        kind = next((part for part in parts if part in _PARTS), "value")
        result = "/".join(part for part in parts if part not in _PARTS)
        found.setdefault(result, {})[kind] = np.nan if value is None else float(value)
    return found
