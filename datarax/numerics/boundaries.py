"""Edges of masks, and how far every pixel is from them."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax import numerics as nx


def edges(mask: jax.Array) -> jax.Array:
    """Pixels of a mask (N, H, W) with one beside, above or below that is not of it.

    Beyond the image nothing is of it.
    """
    around = jnp.pad(mask, ((0, 0), (1, 1), (1, 1)))
    rows, columns = around[:, :, 1:-1], around[:, 1:-1]
    inner = rows[:, :-2] & rows[:, 2:] & columns[:, :, :-2] & columns[:, :, 2:]
    return mask & ~inner


def squared_distance(
    points: jax.Array, spacing: tuple[float, float], dtype: jnp.dtype
) -> jax.Array:
    """Of each pixel (N, H, W), the square of the distance to the nearest of the points.

    Infinite without points. Exact but for rounding: first within columns, by the last point above
    and the first below; then the least over columns (Saito and Toriwaki 1994): `H * W * W` steps
    an image, and the memory of one more image.
    """
    height, width = points.shape[1:]
    row = jnp.broadcast_to(jnp.arange(height, dtype=jnp.int32)[None, :, None], points.shape)
    far = jnp.int32(2 * height)
    above = lax.cummax(jnp.where(points, row, -far), axis=1)
    below = lax.cummin(jnp.where(points, row, 2 * far), axis=1, reverse=True)
    rows = jnp.minimum(row - above, below - row)
    infinite = jnp.asarray(jnp.inf, dtype)
    vertical = jnp.where(rows < far, rows.astype(dtype) * jnp.asarray(spacing[0], dtype), infinite)
    square = vertical * vertical
    columns = jnp.arange(width, dtype=jnp.int32)

    def through(k: jax.Array, least: jax.Array) -> jax.Array:
        aside = jnp.abs(columns - k).astype(dtype) * jnp.asarray(spacing[1], dtype)
        column = lax.dynamic_slice_in_dim(square, k, 1, 2)
        return jnp.minimum(least, column + (aside * aside)[None, None, :])

    return lax.fori_loop(jnp.int32(0), jnp.int32(width), through, square)


def percentile_of(values: jax.Array, where: jax.Array, percent: float) -> jax.Array:
    """The percentile of `values` (N, K) where the mask holds, as `numpy.percentile` by default.

    Not finite where nothing is in the mask.
    """
    if percent == 100:
        return jnp.max(jnp.where(where, values, jnp.asarray(-jnp.inf, values.dtype)), -1)
    ordered = jnp.sort(jnp.where(where, values, jnp.asarray(jnp.inf, values.dtype)), -1)
    last = jnp.maximum(jnp.sum(where, -1, dtype=jnp.int32) - 1, 0)
    # The place times the share, as a pair: a float32 would lose what lies between two values.
    share = Fraction(percent) / 100
    high = np.asarray(float(share), values.dtype)
    low = np.asarray(float(share - Fraction(float(high))), values.dtype)
    shares = (jnp.broadcast_to(x, last.shape) for x in (jnp.asarray(high), jnp.asarray(low)))
    place = nx.pair_scale((next(shares), next(shares)), last.astype(values.dtype))
    start = jnp.floor(place[0])
    below = jnp.minimum(start.astype(jnp.int32), last)
    above = jnp.minimum(below + 1, last)
    a, b = (jnp.take_along_axis(ordered, x[:, None], -1)[:, 0] for x in (below, above))
    return a + (b - a) * ((place[0] - start) + place[1])
