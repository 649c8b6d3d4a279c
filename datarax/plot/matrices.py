"""The figure of a confusion matrix."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from datarax._checks import choice
from datarax._numbers import number as number_of
from datarax.metrics.classification.confusion_matrix import ConfusionMatrix
from datarax.plot import canvas
from datarax.plot.given import Source, checked_names, results_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SOURCE = Source(
    "confusion_matrix",
    "a ConfusionMatrix, or its results: a matrix (C, C), or (L, 2, 2) of L labels",
)
_SUMS = {"true": (-1,), "pred": (-2,), "all": (-2, -1)}
_LABELS = {
    None: "examples",
    "true": "share of the target",
    "pred": "share of the prediction",
    "all": "share of all",
}


def confusion_matrix(
    metric: object,
    ax: "Axes | None" = None,
    *,
    normalize: Literal["true", "pred", "all"] | None = None,
    names: Sequence[str] | None = None,
) -> "Figure":
    """The counts of a confusion matrix: targets in rows, predictions in columns.

    The darkness of a cell is its share of its row, so that frequent classes do not hide the others;
    with `normalize`, the shown share. It grows with the square root, so that rare errors are seen.
    Cells have text where there is room for it. Multilabel: one matrix for each label.

    Args:
        metric: a `ConfusionMatrix`, or its results.
        ax: where to draw, instead of a new figure.
        normalize: "true" divides rows by their sums, "pred" columns, "all" the matrix.
        names: the names of the classes; of the labels for a multilabel task.

    Raises:
        MetricTypeError: `metric` is something else.
        MetricInputError: as many names as classes are expected; or `ax` is given, and there are
            several labels.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import plot
        >>> from datarax.metrics import ConfusionMatrix
        >>> seen = ConfusionMatrix(num_classes=2)
        >>> seen = seen.update(jnp.array([0, 1, 1, 1]), jnp.array([0, 0, 1, 1]))
        >>> figure = plot.confusion_matrix(seen, names=("ham", "spam"))
        >>> print([text.get_text() for text in figure.axes[0].texts])
        ['1', '1', '0', '2']
    """
    if normalize is not None:
        choice(normalize, tuple(_SUMS), "normalize")
    table, shown = _table(metric), normalize
    if isinstance(metric, ConfusionMatrix):
        shown = normalize or metric.normalize
    if table.ndim == 2:
        classes = checked_names(names, len(table), "class")
        side = min(max(3.6, 0.42 * len(table) + 1.8), 8.5)
        ax = canvas.axes_of(ax, side * 1.2, side)
        _draw(ax, table, classes, normalize, _LABELS[shown])
        return canvas.figure_of(ax)
    labels = checked_names(names, len(table), "label")
    if ax is not None and len(table) > 1:
        raise _SOURCE.error(
            f"{len(table)} labels do not fit into one ax; leave ax out, or draw one label: "
            f"results()[i]"
        )
    columns = int(np.ceil(np.sqrt(len(table))))  # nearly a square of panels
    several = canvas.panels(len(table), columns, 2.6, 2.6) if ax is None else [canvas.axes_of(ax)]
    for panel, one, label in zip(several, table, labels, strict=True):
        _draw(panel, one, ["0", "1"], normalize, None)
        canvas.title(panel, canvas.shortened(label))
    return canvas.figure_of(several[0])


def _table(given: object) -> np.ndarray:
    results = results_of(given)
    if np.ndim(results) == 0:
        raise _SOURCE.wrong_kind(given)
    table = _SOURCE.array(results)
    square = table.ndim in (2, 3) and table.shape[-1] == table.shape[-2]
    if not square or not table.size or (table.ndim == 3 and table.shape[-1] != 2):
        raise _SOURCE.error(f"shape {table.shape}; expected {_SOURCE.expected}")
    return table


def _share(table: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    # A class without examples has a row of zeros, not of NaN.
    total = np.nansum(table, axis=axes, keepdims=True)
    return np.divide(table, total, out=np.zeros_like(table), where=total != 0)


def _draw(
    ax: "Axes", table: np.ndarray, names: list[str], normalize: str | None, label: str | None
) -> None:
    from matplotlib.colors import PowerNorm

    ax.set(xlabel="predicted class", ylabel="target class")
    if not np.nansum(table) > 0:  # also if the policy made all counts NaN
        canvas.name_ticks(ax, names, "x")
        canvas.name_ticks(ax, names, "y")
        ax.set(xlim=(-0.5, len(table) - 0.5), ylim=(len(table) - 0.5, -0.5))
        canvas.say(ax, "no data")
        return
    values = _share(table, _SUMS[normalize]) if normalize else table
    # Counts are shaded by their share of the row: most counts of a skewed matrix look like zero.
    by_row = label == _LABELS[None]
    shades = _share(table, _SUMS["true"]) if by_row or label is None else values
    most = max(float(np.nanmax(shades)), np.finfo(float).tiny)
    image = canvas.heat_map(ax, shades, norm=PowerNorm(0.5, 0, most))
    for side in ax.spines.values():
        side.set_visible(True)
    canvas.name_ticks(ax, names, "x", room=min(canvas.inches(ax)))
    canvas.name_ticks(ax, names, "y", room=min(canvas.inches(ax)))
    # Weighted counts may be fractions. A matrix of zeros and ones alone is taken for shares.
    counts = bool((values == np.round(values)).all() and values.max() > 1)
    texts = [[_text(x, counts=counts) for x in row] for row in values]
    longest = max(len(text) for row in texts for text in row)
    # A character is about 0.6 of the size wide; a line needs 1.5 of it.
    room = 72 * min(canvas.inches(ax)) / len(table) * 0.85
    size = min(10.0, room / (0.62 * longest), room / 1.5)
    if size >= 5:
        for i, row in enumerate(texts):
            for j, text in enumerate(row):
                ink = {"color": canvas.ink_of(ax), "alpha": 0.5 if text == "0" else 1.0}
                ax.text(j, i, text, ha="center", va="center", fontsize=size, **ink)
    if label is not None:
        shaded = "share of the target's examples" if by_row else label
        canvas.color_bar(ax, image, shaded)


def _text(x: float, *, counts: bool) -> str:
    """A count as an integer of few characters; a share with two decimals."""
    if np.isnan(x):
        return "NaN"
    if not counts:
        return "0" if x == 0 else number_of(x, 2) if x >= 0.005 else "<.01"
    for power, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= power and x >= 1e4:
            return f"{canvas.number(x / power)}{unit}"
    return str(round(x))
