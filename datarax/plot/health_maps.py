"""The figures of the health of a run: the load of experts, and norms by group over steps."""

from typing import TYPE_CHECKING

import numpy as np

from datarax.plot import canvas
from datarax.plot.given import RUN, Run, Source, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_EXPERTS = Source(
    "expert_load", "an ExpertLoad or its results, with 'share' of shape (E,) or (L, E)"
)
_HEALTH = Source("health", RUN)
_FIRST = "grad_norm", "update_norm", "param_norm"
_MAXIMA = "param_max", "grad_max", "update_max"
_NUMBERS = (*_FIRST, *_MAXIMA, "update_ratio", "grad_zeros", "nonfinite")


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
    results = _EXPERTS.results(metric, "share")
    share = _EXPERTS.array(results["share"])
    if share.ndim not in (1, 2) or not share.size:
        raise _EXPERTS.wrong_kind(metric)
    experts = share.shape[-1]
    if share.ndim == 1:
        ax = canvas.axes_of(ax, min(max(4.2, 2.6 + 0.12 * experts), 11.0), 3.2)
        _bars(ax, share)
    else:
        width = min(max(4.6, 2.2 + 0.12 * experts), 11.0)
        ax = canvas.axes_of(ax, width, min(max(2.4, 1.2 + 0.18 * len(share)), 9.0))
        _layers(ax, share * experts)
    canvas.name_ticks(ax, range(experts), "x")
    ax.set_xlabel("expert")
    if np.isfinite(share).any():
        said = []
        for what in ("balance", "dropped"):
            values = _EXPERTS.array(results.get(what))
            if np.isfinite(values).any():
                # Of several layers, the least and the greatest.
                ends = (canvas.number(float(end(values))) for end in (np.nanmin, np.nanmax))
                said.append(f"{what} {' to '.join(dict.fromkeys(ends))}")
        canvas.title(ax, ", ".join(said))
    else:
        canvas.say(ax, "no data")
    return canvas.figure_of(ax)


def _bars(ax: "Axes", share: np.ndarray) -> None:
    place = np.arange(len(share))
    ax.bar(place, np.nan_to_num(share), width=0.85, color=canvas.COLORS[0], alpha=0.7, linewidth=0)
    even = 1 / len(share)
    ax.axhline(even, color=canvas.ink_of(ax), linewidth=1, linestyle="--", label="even load")
    ax.set(xlim=(-0.6, len(share) - 0.4), ylabel="share of the assignments")
    canvas.grid(ax, "y")
    canvas.legend(ax)


def _layers(ax: "Axes", times: np.ndarray) -> None:
    missing = np.isnan(times)
    most = max(1.0, float(np.max(times, where=~missing, initial=1.0)))
    image = canvas.heat_map(ax, times, aspect="auto", vmin=0, vmax=most)
    _cross_out(ax, missing)
    ax.set_ylabel("layer")
    canvas.name_ticks(ax, range(len(times)), "y")
    if not missing.all():
        canvas.color_bar(ax, image, "share / even share")


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
    run = _HEALTH.run(metric, x)
    found = _by_name(run)
    if not found:
        raise Source("health", f"numbers of groups, as of TreeHealth: {RUN}").wrong_kind(metric)

    def values_of(name: str) -> np.ndarray:
        return np.array([run.column(key) for key in found[name].values()])

    if name is None:
        names = [first for first in _FIRST if first in found] or list(found)[:1]
        name = next((each for each in names if np.isfinite(values_of(each)).any()), names[0])
    name = _HEALTH.chosen(name, sorted(found))
    rows, values = found[name], values_of(name)
    given = np.array([[record.get(k) is not None for record in run.records] for k in rows.values()])
    ax = canvas.axes_of(ax, 6.6, min(max(2.2, 1.4 + 0.24 * len(rows)), 12.0))
    _steps_map(ax, run.steps, values, given, name)
    canvas.name_ticks(ax, list(rows), "y")
    ax.set(xlabel=x, ylabel="group")
    return canvas.figure_of(ax)


def _by_name(run: Run) -> dict[str, dict[str, str]]:
    """By the name of a number and by group, the key: "tree/head/grad_norm" is of "head"."""
    # A dict, which keeps the order of the groups.
    keys = {key: None for record in run.records for key, x in record.items() if is_number(x)}
    found: dict[str, dict[str, str]] = {}
    for last in _NUMBERS:
        owners = [owner for owner, _, name in (key.rpartition("/") for key in keys) if name == last]
        if not owners:
            continue
        # The owner of all groups comes first in the names of the others.
        whole = min(owners, key=len)
        if not all(owner == whole or owner.startswith(f"{whole}/") for owner in owners):
            whole = ""
        found[last] = {}
        for owner in sorted(owners, key=lambda owner: owner != whole):  # all of them, then groups
            group = owner.removeprefix(whole).removeprefix("/") or "all"
            found[last][group] = f"{owner}/{last}".lstrip("/")
    return found


def _steps_map(
    ax: "Axes", steps: np.ndarray, values: np.ndarray, given: np.ndarray, name: str
) -> None:
    from matplotlib.colors import LogNorm

    usable = np.isfinite(values) & (values > 0)
    # The first group is at the top, as in an image.
    ax.set(xlim=(-0.5, max(len(steps), 1) - 0.5), ylim=(len(values) - 0.5, -0.5))
    if not (usable | (values == 0)).any():
        canvas.say(ax, "no data")
        if not given.any():
            ax.set_xticks([])
            return
    low, high = 1.0, 10.0
    if usable.any():
        low, high = float(values[usable].min()), float(values[usable].max())
    # Norms that hardly differ get similar shades.
    if high / low < 4:
        low, high = low / 2, high * 2
    # A logarithm has no zero, so zeros look like the least value. It is not transparent: only what
    # is missing is.
    shown = np.ma.masked_invalid(np.where(values == 0, low, values))
    image = canvas.heat_map(ax, shown, 0.1, norm=LogNorm(low, high), aspect="auto")
    _cross_out(ax, given & ~np.isfinite(values))
    canvas.name_ticks(ax, [f"{step:g}" for step in steps], "x")
    canvas.color_bar(ax, image, name.replace("_", " "))


def _cross_out(ax: "Axes", cells: np.ndarray) -> None:
    """Hatches cells that have no number."""
    from matplotlib.patches import Rectangle

    for i, row in enumerate(cells):
        # Neighbours in a row are one patch.
        ends = np.flatnonzero(np.diff(np.concatenate([[False], row, [False]]).astype(int)))
        for start, end in zip(ends[::2], ends[1::2], strict=True):
            box = (float(start) - 0.5, i - 0.5), float(end - start), 1.0
            ax.add_patch(Rectangle(*box, linewidth=0.5, **canvas.HATCHED))
