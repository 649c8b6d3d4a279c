"""The figures of a run: learning curves, and quantiles over steps."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datarax._errors import MetricInputError
from datarax.metrics.aggregation.quantiles import Quantile
from datarax.metrics.base import Metric
from datarax.metrics.reading import flat_items
from datarax.plot.canvas import (
    COLORS,
    LINES,
    MARKERS,
    MOST_NAMED,
    axes_of,
    figure_of,
    grid,
    ink_of,
    legend,
    line_style,
    new_axes,
    new_figure,
    number,
    say,
    shortened,
)
from datarax.plot.given import Run, chosen, is_number, run_of, wrong_kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDS = "lower", "upper"
_MOST_PANELS = 20


def history(
    records: object,
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] | None = None,
    x: str = "step",
) -> "Figure":
    """Learning curves: results over steps, with their intervals.

    Results whose names have the same last part, as "train/loss" and "test/loss", are in one panel.
    Where there are "loss/lower" and "loss/upper", or "lower/loss" and "upper/loss", or those of a
    dict of "value", "lower" and "upper", the band is the interval. NaN is a gap.

    Args:
        records: `{"step": ..., name: value, ...}` for each step, as a `JSONLWriter` writes them;
            or pairs `(step, results)`, in which results may be a metric; or the path of a file of
            JSON lines. Results that are not numbers are left out.
        ax: where to draw all of them, instead of a new figure.
        names: the names of the results to draw, instead of all.
        x: the name of the step in records.

    Raises:
        MetricTypeError: `records` is something else.
        MetricInputError: a name that no record has, or more than 20 panels.

    Example:
        >>> from datarax import plot
        >>> records = [
        ...     {"step": 0, "train/loss": 2.0, "test/loss": 2.5},
        ...     {"step": 100, "train/loss": 1.0, "test/loss": float("nan")},
        ... ]
        >>> figure = plot.history(records)
        >>> print([line.get_label() for line in figure.axes[0].lines])
        ['test', 'train']
    """
    run = run_of(records, "history", x)
    columns = _columns(run)
    # What is never a number is left out, unless there is nothing else.
    some = [name for name, (key, *_) in columns.items() if not np.isnan(run.column(key)).all()]
    found = some or list(columns)
    if names is not None:
        wanted = [names] if isinstance(names, str) else list(names)
        for name in wanted:
            if name not in columns:
                raise MetricInputError(
                    f"datarax.plot.history: no numbers called {name!r}; there are: "
                    f"{', '.join(columns) or 'none'}"
                )
        found = wanted
    panels: dict[str, list[str]] = {}
    for name in found:
        panels.setdefault(name.rpartition("/")[2], []).append(name)
    if ax is not None or len(panels) <= 1:
        alone = axes_of(ax, 6.0, 3.6)
        _panel(alone, run, columns, found, next(iter(panels)) if len(panels) == 1 else "", x)
        return figure_of(alone)
    if len(panels) > _MOST_PANELS:
        raise MetricInputError(
            f"datarax.plot.history: {len(panels)} results make too many panels; choose some of "
            f"them with names=: {', '.join(found[:40])}"
        )
    across = 2 if len(panels) <= 4 else 3
    down = -(-len(panels) // across)
    figure = new_figure(4.6 * across, 2.9 * down)
    for i, (title, members) in enumerate(panels.items()):
        _panel(new_axes(figure, down, across, i + 1), run, columns, members, title, x)
    return figure


def _columns(run: Run) -> dict[str, tuple[str, str, str]]:
    """By name, the keys of the value and of the ends of its interval."""
    keys = {key for record in run.records for key, value in record.items() if is_number(value)}
    columns = {}
    for key in sorted(keys):
        parts = key.split("/")
        if any(part in (*_ENDS, "std_error", "invalid") for part in parts):
            continue
        name = "/".join(part for part in parts if part != "value") or "value"
        options = [[f"{key}/{end}" for end in _ENDS]]
        options += [
            ["/".join([*parts[:i], end, *parts[i:]]) for end in _ENDS] for i in range(len(parts))
        ]
        if "value" in parts:
            at = parts.index("value")
            options.insert(0, ["/".join([*parts[:at], end, *parts[at + 1 :]]) for end in _ENDS])
        ends = next((pair for pair in options if keys.issuperset(pair)), ["", ""])
        columns[name] = (key, ends[0], ends[1])
    return columns


def _panel(
    ax: "Axes",
    run: Run,
    columns: dict[str, tuple[str, str, str]],
    names: list[str],
    title: str,
    x: str,
) -> None:
    many = len(names) > MOST_NAMED
    shown = False
    for i, name in enumerate(names):
        value, lower, upper = (run.column(key) for key in columns[name])
        seen = np.isfinite(value)
        shown |= bool(seen.any())
        style = line_style(i, len(names))
        if len(run.steps) <= 40 and not many:
            style |= {"marker": MARKERS[i % len(MARKERS)], "markersize": 3.5}
        elif not many and seen.sum() and not (seen[1:] & seen[:-1]).any():
            style |= {"marker": ".", "linestyle": "none"}
        label = name.removesuffix(title).rstrip("/") or name
        ax.plot(run.steps, value, label=shortened(label), **style)
        if np.isfinite(lower + upper).any() and not many:
            band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
            if len(run.steps) > 1:
                ax.fill_between(run.steps, lower, upper, **band)
            else:
                ax.vlines(run.steps, lower, upper, color=style["color"])
    _steps_axis(ax, x)
    ax.set_ylabel(shortened(title) if title else "value")
    if not shown:
        ax.set(yticks=[])
        say(ax, "no data")
    elif many:
        ax.set_title(f"{len(names)} results", fontsize="medium", color=ink_of(ax))
    elif len(names) > 1:
        legend(ax)


def _steps_axis(ax: "Axes", x: str) -> None:
    grid(ax)
    ax.set_xlabel(x)
    ax.locator_params(axis="x", integer=True, nbins=6)


def quantiles(
    metric: object,
    ax: "Axes | None" = None,
    *,
    q: Sequence[float] | None = None,
    name: str | None = None,
    x: str = "step",
) -> "Figure":
    """Quantiles over steps: the middle one as a line, and a band between each pair around it.

    Args:
        metric: pairs `(step, metric or results)` of a `Quantile` or an `ActivationStats`, or
            records `{"step": ..., ...}`; or one metric or its results, which is step 0. Results are
            an array for several `q`, or numbers with names such as "p1", "p50", "p99".
        ax: where to draw, instead of a new figure.
        q: the quantiles of arrays; a `Quantile` says them itself.
        name: which results to draw, if there are several: the layer of `ActivationStats`, or the
            name in a collection.
        x: the name of the step in records.

    Raises:
        MetricTypeError: `metric` is something else, or has no quantiles.
        MetricInputError: `q` does not fit the results; or `name` is none of the names, or is left
            out and there are several.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import Quantile
        >>> seen = Quantile((0.1, 0.5, 0.9))
        >>> steps = [(i, seen.update(jnp.arange(11.0) * i)) for i in (1, 2, 3)]
        >>> print(plot.quantiles(steps).axes[0].lines[0].get_ydata())
        [ 5. 10. 15.]
    """
    if q is None:
        q = _own_q(metric)
    run = run_of(metric, "quantiles", x)
    found = _quantile_rows(run, None if q is None else tuple(q))
    if not found:
        raise wrong_kind("quantiles", "quantiles, as numbers p1, p50, ... or with q=", metric)
    title = chosen("quantiles", name, sorted(found))
    rows = found[title]
    levels = sorted(rows)
    values = np.array([rows[level] for level in levels])
    ax = axes_of(ax, 6.4, 3.6)
    _bands(ax, run.steps, levels, values)
    _steps_axis(ax, x)
    ax.set_ylabel(shortened(title) if title not in ("", "value") else "value")
    return figure_of(ax)


def _own_q(given: object) -> Sequence[float] | None:
    """The quantiles that a metric says, or the first metric of pairs."""
    if isinstance(given, list | tuple) and given and isinstance(given[0], list | tuple):
        given = given[0][-1]
    if isinstance(given, Metric) and isinstance(given, Quantile):
        return tuple(np.atleast_1d(np.asarray(given.q, float)).tolist())
    return None


def _quantile_rows(run: Run, q: tuple[float, ...] | None) -> dict[str, dict[float, list[float]]]:
    """By name and quantile, the values at all steps."""
    found: dict[str, dict[float, list[float]]] = {}
    for i, record in enumerate(run.records):
        for key, value in dict(flat_items(record)).items():
            owner, _, last = key.rpartition("/")
            level = re.fullmatch(r"p(\d+(?:\.\d+)?)", last)
            if level and is_number(value):
                items = {float(level[1]) / 100: value}
            elif q is not None and value is not None and np.size(np.asarray(value)) == len(q):
                owner, items = key, dict(zip(q, np.ravel(value), strict=True))
            elif q is not None and key == "value":
                raise MetricInputError(
                    f"datarax.plot.quantiles: {np.size(np.asarray(value))} values for {len(q)} "
                    f"quantiles {q}"
                )
            else:
                continue
            rows = found.setdefault(owner, {})
            for at, number_ in items.items():
                row = rows.setdefault(at, [np.nan] * len(run.records))
                row[i] = np.nan if number_ is None else float(number_)
    return found


def _bands(ax: "Axes", steps: np.ndarray, levels: list[float], values: np.ndarray) -> None:
    """The outermost pair first; each band covers the one before in part, so that it is darker."""
    if not np.isfinite(values).any():
        ax.set(yticks=[])
        say(ax, "no data")
        return
    marker = {"marker": "o", "markersize": 3.5} if len(steps) <= 40 else {}
    names = [f"{number(100 * level)} %" for level in levels]
    pairs = len(levels) // 2
    middle = pairs if len(levels) % 2 else None
    if middle is not None:
        ax.plot(steps, values[middle], color=COLORS[0], label=names[middle], **marker)
    for i in range(pairs):
        low, high, label = values[i], values[-1 - i], f"{names[i]} to {names[-1 - i]}"
        if len(steps) > 1:
            ax.fill_between(
                *(steps, low, high), color=COLORS[0], alpha=0.22, linewidth=0, label=label
            )
        else:
            thick = 1 + 4 * i
            ax.vlines(steps, low, high, color=COLORS[0], alpha=0.5, linewidth=thick, label=label)
        edge = {"color": COLORS[0], "linewidth": 0.8, "linestyle": LINES[1 + i % 3]}
        for line in (low, high):
            ax.plot(steps, line, **edge, **marker)
    legend(ax)
