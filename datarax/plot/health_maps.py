"""The figures of the health of a run: the load of experts, and norms by group over steps."""

from typing import TYPE_CHECKING

import numpy as np

from datarax.plot.canvas import (
    COLORS,
    HATCH,
    axes_of,
    color_bar,
    figure_of,
    grid,
    ink_of,
    legend,
    name_ticks,
    number,
    opacity,
    say,
)
from datarax.plot.given import (
    RUN,
    Run,
    array_of,
    chosen,
    fields_of,
    is_number,
    results_of,
    run_of,
    wrong_kind,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EXPERTS = "an ExpertLoad or its results, with 'share' of shape (E,) or (L, E)"
_FIRST = "grad_norm", "update_norm", "param_norm"


def expert_load(metric: object, ax: "Axes | None" = None) -> "Figure":
    """The share of the assignments that each expert gets.

    A line is the even load. With several layers, a heat map shows shares in units of the even load.

    Args:
        metric: an `ExpertLoad`, or its results.
        ax: where to draw, instead of a new figure.

    Raises:
        MetricTypeError: `metric` is something else.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import ExpertLoad
        >>> load = ExpertLoad(4).update(jnp.array([[0, 1], [0, 2], [0, 1], [0, 3]]))
        >>> axes = plot.expert_load(load).axes[0]
        >>> print([float(bar.get_height()) for bar in axes.patches])
        [0.5, 0.25, 0.125, 0.125]
    """
    results = fields_of(results_of(metric))
    if results is None or "share" not in results:
        raise wrong_kind("expert_load", _EXPERTS, metric)
    share = array_of(results["share"], "expert_load", _EXPERTS)
    if share.ndim not in (1, 2) or not share.size:
        raise wrong_kind("expert_load", _EXPERTS, metric)
    experts = share.shape[-1]
    if share.ndim == 1:
        ax = axes_of(ax, min(max(4.2, 2.6 + 0.12 * experts), 11.0), 3.2)
        _bars(ax, share)
    else:
        size = (
            min(max(4.6, 2.2 + 0.12 * experts), 11.0),
            min(max(2.4, 1.2 + 0.18 * len(share)), 9.0),
        )
        ax = axes_of(ax, *size)
        _layers(ax, share * experts)
    name_ticks(ax, list(range(experts)), "x")
    ax.set_xlabel("expert")
    if np.isfinite(share).any():
        said = [
            f"{what} {_spread(results[what])}"
            for what in ("balance", "dropped")
            if what in results and np.isfinite(_values(results[what])).any()
        ]
        ax.set_title(", ".join(said), fontsize="medium", color=ink_of(ax))
    else:
        say(ax, "no data")
    return figure_of(ax)


def _values(x: object) -> np.ndarray:
    return array_of(x, "expert_load", _EXPERTS).ravel()


def _spread(x: object) -> str:
    """A number, or the least and the greatest one."""
    values = _values(x)
    low, high = (number(float(end(values))) for end in (np.nanmin, np.nanmax))
    return low if low == high else f"{low} to {high}"


def _bars(ax: "Axes", share: np.ndarray) -> None:
    place = np.arange(len(share))
    ax.bar(place, np.nan_to_num(share), width=0.85, color=COLORS[0], alpha=0.7, linewidth=0)
    even = 1 / len(share)
    ax.axhline(even, color=ink_of(ax), linewidth=1, linestyle="--", label="even load")
    ax.set(xlim=(-0.6, len(share) - 0.4), ylabel="share of the assignments")
    grid(ax, "y")
    legend(ax)


def _layers(ax: "Axes", times: np.ndarray) -> None:
    missing = np.isnan(times)
    shades = {"cmap": opacity(), "interpolation": "none", "vmin": 0}
    most = float(np.nanmax(times)) if not missing.all() else 1.0
    image = ax.imshow(times, aspect="auto", vmax=max(most, 1.0), **shades)
    _cross_out(ax, missing)
    ax.set_ylabel("layer")
    name_ticks(ax, list(range(len(times))), "y")
    if not missing.all():
        color_bar(ax, image, "share / even share")


def health(
    metric: object, ax: "Axes | None" = None, *, name: str | None = None, x: str = "step"
) -> "Figure":
    """A heat map of the health of a model: a number of each group of parameters, over steps.

    The scale is logarithmic. Cells that are NaN or infinite are hatched, and those that were not
    given are empty.

    Args:
        metric: pairs `(step, results)` of `TreeHealth` or `datarax.health`, in which results may be
            metrics; or records `{"step": ..., ...}`, or the path of a file of JSON lines. A single
            metric or its results are one column.
        ax: where to draw, instead of a new figure.
        name: which number: "grad_norm", "update_ratio" and so on. By default the first that there
            is of "grad_norm", "update_norm" and "param_norm".
        x: the name of the step in records.

    Raises:
        MetricTypeError: `metric` is something else, or has no such numbers.
        MetricInputError: there is no number of this name.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> params = {"dense": jnp.array([3.0, 4.0]), "head": jnp.array([12.0])}
        >>> metrics = datarax.health(params)
        >>> steps = [(i, metrics.update(loss=1.0, params=params, step=i)) for i in range(3)]
        >>> image = datarax.plot.health(steps).axes[0].images[0]
        >>> print(image.get_array()[:, 0])
        [13.0 5.0 12.0]
    """
    run = run_of(metric, "health", x)
    found = _by_name(run)
    if not found:
        raise wrong_kind("health", f"numbers of groups, as of TreeHealth: {RUN}", metric)
    if name is None:
        seen = (known for known in _FIRST if known in found)
        name = next(
            (k for k in seen if any(_some(run.column(key)) for key in found[k].values())),
            next((k for k in _FIRST if k in found), next(iter(found))),
        )
    rows = found[chosen("health", name, sorted(found))]
    values = np.array([run.column(key) for key in rows.values()])
    given = np.array(
        [[record.get(key) is not None for record in run.records] for key in rows.values()]
    )
    ax = axes_of(ax, 6.6, min(max(2.2, 1.4 + 0.24 * len(rows)), 12.0))
    _steps_map(ax, run.steps, values, given, str(name))
    name_ticks(ax, list(rows), "y")
    ax.set(xlabel=x, ylabel="group")
    return figure_of(ax)


def _some(column: np.ndarray) -> bool:
    return bool(np.isfinite(column).any())


def _by_name(run: Run) -> dict[str, dict[str, str]]:
    """By the name of a number and by group, the key: "tree/head/grad_norm" is of "head"."""
    keys = list(
        dict.fromkeys(
            key for record in run.records for key, value in record.items() if is_number(value)
        )
    )
    known = (
        *_FIRST,
        "param_max",
        "grad_max",
        "update_max",
        "update_ratio",
        "grad_zeros",
        "nonfinite",
    )
    found: dict[str, dict[str, str]] = {}
    for last in known:
        owners = [
            key.removesuffix(last).rstrip("/")
            for key in keys
            if key == last or key.endswith(f"/{last}")
        ]
        if not owners:
            continue
        # The owner of all groups comes first in the names of the others.
        whole = min(owners, key=len)
        if any(owner != whole and not owner.startswith(f"{whole}/") and whole for owner in owners):
            whole = ""
        rows = {}
        for owner in sorted(owners, key=lambda owner: (owner != whole, owners.index(owner))):
            group = "all" if owner == whole else owner.removeprefix(f"{whole}/" if whole else "")
            rows[group] = f"{owner}/{last}".lstrip("/")
        found[last] = rows
    return found


def _steps_map(
    ax: "Axes", steps: np.ndarray, values: np.ndarray, given: np.ndarray, name: str
) -> None:
    from matplotlib.colors import LogNorm

    usable = np.isfinite(values) & (values > 0)
    ax.set(xlim=(-0.5, max(len(steps), 1) - 0.5), ylim=(len(values) - 0.5, -0.5))
    if not given.any() or not (usable.any() or (values == 0).any()):
        say(ax, "no data")
        if not given.any() or not len(steps):
            ax.set_xticks([])
            return
    low, high = 1.0, 10.0
    if usable.any():
        low, high = float(values[usable].min()), float(values[usable].max())
    if high / low < 4:
        low, high = low / 2, high * 2
    # Zeros look like the least value. It is not transparent: only what is missing is.
    shown = np.where(values == 0, low, values)
    shown = np.ma.masked_invalid(shown)
    image = ax.imshow(
        *(shown,),
        cmap=opacity(0.1),
        norm=LogNorm(low, high),
        interpolation="none",
        aspect="auto",
    )
    _cross_out(ax, given & ~np.isfinite(values))
    labels = [f"{step:g}" for step in steps]
    name_ticks(ax, labels, "x")
    color_bar(ax, image, name.replace("_", " "))


def _cross_out(ax: "Axes", cells: np.ndarray) -> None:
    """Hatches cells that have no number."""
    from matplotlib.patches import Rectangle

    for i, row in enumerate(cells):
        # Neighbours in a row are one patch.
        ends = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(int)))
        for start, end in zip(ends[::2], ends[1::2], strict=True):
            box = (float(start) - 0.5, i - 0.5), float(end - start), 1.0
            look = {"facecolor": "none", "edgecolor": COLORS[4], "hatch": HATCH, "linewidth": 0.5}
            ax.add_patch(Rectangle(*box, **look))
