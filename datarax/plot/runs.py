"""The figures of a run: learning curves, and quantiles over steps."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from datarax.metrics.aggregation.quantiles import Quantile
from datarax.plot import canvas
from datarax.plot.given import RUN, Run, Source, by_result, is_number, number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = dict[str, tuple[str, str, str]]
"""By the name of a result, the keys of its value and of the ends of its interval."""

_HISTORY = Source("history", RUN)
_QUANTILES = Source("quantiles", RUN)
_MOST_PANELS = 20
_FEW_STEPS = 40
"""Up to so many steps have a marker each."""


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
    run = _HISTORY.run(records, x)
    columns = _columns(run)
    # What is never a number is left out, unless there is nothing else.
    some = [name for name, (key, *_) in columns.items() if not np.isnan(run.column(key)).all()]
    found = some or list(columns)
    if names is not None:
        found = [names] if isinstance(names, str) else list(names)
        for name in found:
            if name not in columns:
                there = ", ".join(columns) or "none"
                raise _HISTORY.error(f"no numbers called {name!r}; there are: {there}")
    # "train/loss" and "test/loss" are both in the panel "loss".
    panels: dict[str, Columns] = {}
    for name in found:
        panels.setdefault(name.rpartition("/")[2], {})[name] = columns[name]
    if ax is not None or len(panels) <= 1:
        alone = canvas.axes_of(ax, 6.0, 3.6)
        shown = {name: columns[name] for name in found}
        _panel(alone, run, shown, next(iter(panels)) if len(panels) == 1 else "", x)
        return canvas.figure_of(alone)
    if len(panels) > _MOST_PANELS:
        raise _HISTORY.error(
            f"{len(panels)} results make too many panels; choose some of them with names=: "
            f"{', '.join(found[:40])}"
        )
    several = canvas.panels(len(panels), 2 if len(panels) <= 4 else 3, 4.6, 2.9)
    for panel, (title, members) in zip(several, panels.items(), strict=True):
        _panel(panel, run, members, title, x)
    return canvas.figure_of(several[0])


def _columns(run: Run) -> Columns:
    """By name, the keys of the value and of the ends of its interval; "" if there are none."""
    numbers = {key for record in run.records for key, value in record.items() if is_number(value)}
    keys = sorted(key for key in numbers if "invalid" not in key.split("/"))
    found = {name or "value": x for name, x in by_result(keys).items() if "value" in x}
    return {
        name: (found[name]["value"], found[name].get("lower", ""), found[name].get("upper", ""))
        for name in sorted(found, key=lambda name: found[name]["value"])
    }


def _panel(ax: "Axes", run: Run, columns: Columns, title: str, x: str) -> None:
    many, few = len(columns) > canvas.MOST_NAMED, len(run.steps) <= _FEW_STEPS
    shown = False
    for i, (name, keys) in enumerate(columns.items()):
        value, lower, upper = map(run.column, keys)
        seen = np.isfinite(value)
        shown |= bool(seen.any())
        style = canvas.line_style(i, len(columns), 3.5 if few else 0)
        if not few and not many and seen.any() and not (seen[1:] & seen[:-1]).any():
            # No two neighbours are known, so a line would show nothing.
            style |= {"marker": ".", "linestyle": "none"}
        # The title of the panel says the rest of the name.
        label = name.removesuffix(title).rstrip("/") or name
        ax.plot(run.steps, value, label=canvas.shortened(label), **style)
        if np.isfinite(lower + upper).any() and not many:
            _band(ax, run.steps, lower, upper, {"color": style["color"]}, alpha=0.18)
    _label_axes(ax, x, title)
    if not shown:
        ax.set(yticks=[])
        canvas.say(ax, "no data")
    elif many:
        canvas.title(ax, f"{len(columns)} results")
    elif len(columns) > 1:
        canvas.legend(ax)


def _band(
    ax: "Axes",
    steps: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    look: canvas.Style,
    alpha: float,
) -> None:
    """A band over the steps; over one step, where it would have no width, a line."""
    if len(steps) > 1:
        ax.fill_between(steps, low, high, **look | {"alpha": alpha, "linewidth": 0})
    else:
        ax.vlines(steps, low, high, **look)


def _label_axes(ax: "Axes", x: str, title: str) -> None:
    canvas.grid(ax)
    ax.set(xlabel=x, ylabel=canvas.shortened(title or "value"))
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
    q = _own_q(metric) if q is None else tuple(q)
    run = _QUANTILES.run(metric, x)
    found = _quantile_rows(run, q)
    if not found:
        expected = "quantiles, as numbers p1, p50, ... or with q="
        raise _QUANTILES._replace(expected=expected).wrong_kind(metric)
    title = _QUANTILES.chosen(name, sorted(found))
    rows = found[title]
    ax = canvas.axes_of(ax, 6.4, 3.6)
    _bands(ax, run.steps, sorted(rows), np.array([rows[level] for level in sorted(rows)]))
    _label_axes(ax, x, title)
    return canvas.figure_of(ax)


def _own_q(given: object) -> tuple[float, ...] | None:
    """The quantiles that a metric says, or the first metric of pairs."""
    # All metrics of a run have the same configuration.
    if isinstance(given, list | tuple) and given and isinstance(given[0], list | tuple):
        given = given[0][-1]
    return tuple(np.atleast_1d(given.q).tolist()) if isinstance(given, Quantile) else None


def _quantile_rows(run: Run, q: tuple[float, ...] | None) -> dict[str, dict[float, list[float]]]:
    """By name and quantile, the values at all steps."""
    found: dict[str, dict[float, list[float]]] = {}
    for i, record in enumerate(run.records):
        for key, value in record.items():
            owner, _, last = key.rpartition("/")
            # "p50" and "p99.9" are quantiles, in percent.
            level = re.fullmatch(r"p(\d+(?:\.\d+)?)", last)
            if level and is_number(value):
                items = {float(level[1]) / 100: value}
            elif q is not None and value is not None and np.size(value) == len(q):
                owner, items = key, dict(zip(q, np.ravel(value), strict=True))
            elif q is not None and key == "value":
                count = np.size(np.asarray(value))
                raise _QUANTILES.error(f"{count} values for {len(q)} quantiles {q}")
            else:
                continue
            rows = found.setdefault(owner, {})
            for at, x in items.items():
                rows.setdefault(at, [np.nan] * len(run.records))[i] = number_of(x)
    return found


def _bands(ax: "Axes", steps: np.ndarray, levels: list[float], values: np.ndarray) -> None:
    """The outermost pair first; each band covers the one before in part, so that it is darker."""
    if not np.isfinite(values).any():
        ax.set(yticks=[])
        canvas.say(ax, "no data")
        return
    marker = {"marker": "o", "markersize": 3.5} if len(steps) <= _FEW_STEPS else {}
    names = [f"{canvas.number(100 * level)} %" for level in levels]
    # Levels ascend: the first and the last are a pair, and so on inwards.
    pairs, has_middle = divmod(len(levels), 2)
    if has_middle:
        ax.plot(steps, values[pairs], color=canvas.COLORS[0], label=names[pairs], **marker)
    for i in range(pairs):
        low, high = values[i], values[-1 - i]
        look = {"color": canvas.COLORS[0], "label": f"{names[i]} to {names[-1 - i]}"}
        _band(ax, steps, low, high, look | {"alpha": 0.5, "linewidth": 1 + 4 * i}, alpha=0.22)
        edge = {"color": canvas.COLORS[0], "linewidth": 0.8, "linestyle": canvas.LINES[1 + i % 3]}
        for line in (low, high):
            ax.plot(steps, line, **edge, **marker)
    canvas.legend(ax)
