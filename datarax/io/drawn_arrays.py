"""Matrices and curves as small images, drawn with NumPy, for writers that show images."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from datarax.io.writer import Items

_SIDE = 256
_MARGIN = 16


def drawn(items: Items) -> Iterator[tuple[str, Literal["image", "histogram", "value"], Any]]:
    """Results as a writer that shows images takes them: by name, how to show it, and what.

    Matrices, and the points of curves, are images; other arrays are the numbers of a histogram.
    """
    for name, value in items.items():
        image = image_of(value)
        if image is not None:
            yield name, "image", image
        elif isinstance(value, np.ndarray | list):
            values = np.asarray(value)
            # A histogram of NaN or infinity has no range.
            finite = values[np.isfinite(values)] if values.dtype.kind in "biuf" else values[:0]
            if finite.size:
                yield name, "histogram", finite.ravel()
        elif hasattr(value, "_fields"):
            yield from drawn({f"{name}/{field}": x for field, x in value._asdict().items()})
        elif value is not None:
            yield name, "value", value


def image_of(value: object) -> np.ndarray | None:
    """An image (H, W, 3), uint8, of a matrix or of the points of a curve; None for other values."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.size:
        return _matrix(value.astype(np.float64))
    if isinstance(value, tuple) and hasattr(value, "_fields") and len(value) >= 2:
        # The points of a curve begin with x and y; thresholds come after them.
        x, y = (np.asarray(axis, np.float64) for axis in value[:2])
        if x.ndim == 1 and x.shape == y.shape and x.size:
            return _curve(x, y)
    return None


def _matrix(values: np.ndarray) -> np.ndarray:
    """Rows are scaled by their sums, as the rates of a confusion matrix; darker is more."""
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    totals = np.maximum(np.abs(values).sum(1, keepdims=True), np.finfo(np.float64).tiny)
    shares = np.clip(values / totals, 0, 1)
    light = np.array([247.0, 251.0, 255.0])
    # The root makes small shares visible.
    colours = light + shares[..., None] ** 0.5 * (np.array([8.0, 48.0, 107.0]) - light)
    scale = max(1, _SIDE // max(values.shape))
    return colours.round().astype(np.uint8).repeat(scale, 0).repeat(scale, 1)


def _curve(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A line in the unit square, with a frame."""
    image = np.full((_SIDE + 2 * _MARGIN, _SIDE + 2 * _MARGIN, 3), 255, np.uint8)
    low, high = _MARGIN, _MARGIN + _SIDE - 1
    image[[low, high], low : high + 1] = image[low : high + 1, [low, high]] = 160
    known = np.isfinite(x) & np.isfinite(y)
    x, y = np.clip(x[known], 0, 1), np.clip(y[known], 0, 1)
    if not x.size:
        return image
    # Along the line in steps of less than a pixel; a curve may go up, so not as a function of x.
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    steps = np.linspace(0, along[-1], int(2 * _SIDE * along[-1]) + 2)
    columns = np.interp(steps, along, x) * (_SIDE - 1) + _MARGIN
    rows = (1 - np.interp(steps, along, y)) * (_SIDE - 1) + _MARGIN
    for shift in (0, 1):
        image[rows.round().astype(int) - shift, columns.round().astype(int)] = (0, 90, 181)
    return image
