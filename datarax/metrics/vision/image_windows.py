"""Weighted means over the windows of images, and the variances within them."""

from typing import NamedTuple

import jax
import numpy as np

from datarax._xp import beside, lax, xp

Taps = np.ndarray
"""The weights of a window along one axis, in float64."""


def gaussian_taps(radius: int, sigma: float) -> Taps:
    """The weights of a Gaussian window of `2 * radius + 1` places, with a sum of 1."""
    place = np.arange(-radius, radius + 1) / sigma
    weights = np.exp(-0.5 * place**2)
    return weights / weights.sum()


def uniform_taps(size: int) -> Taps:
    """Equal weights with a sum of 1."""
    return np.full(size, 1 / size)


def window_means(x: jax.Array, taps: Taps, axes: tuple[int, ...]) -> jax.Array:
    """The weighted mean over each window that lies within the image.

    The window is the product of one and the same `taps` along each of `axes`, so each of these axes
    gets shorter by `len(taps) - 1`.
    """
    weights = beside(x, taps.astype(x.dtype))
    for axis in axes:
        size = x.shape[axis] - len(taps) + 1

        def add(i: jax.Array, total: jax.Array, x: jax.Array = x, axis: int = axis) -> jax.Array:
            return total + lax.dynamic_slice_in_dim(x, i, total.shape[axis], axis) * weights[i]

        # A loop: unrolled, the program would be long, and convolutions are slow on CPUs.
        first = lax.slice_in_dim(x, 0, size, axis=axis) * weights[0]
        x = lax.fori_loop(xp.int32(1), xp.int32(len(taps)), add, first)
    return x


class LocalMoments(NamedTuple):
    """Means and variances of two images over their windows."""

    mean_x: jax.Array
    mean_y: jax.Array
    var_x: jax.Array
    var_y: jax.Array
    var_difference: jax.Array
    """The variance of `x - y`."""
    noise: jax.Array
    """A bound of the rounding of `var_x + var_y`: below it, both are constant in the window."""

    @property
    def covariance(self) -> jax.Array:
        """The covariance of both images."""
        return (self.var_x + self.var_y - self.var_difference) / 2


def local_moments(x: jax.Array, y: jax.Array, taps: Taps, axes: tuple[int, ...]) -> LocalMoments:
    """The moments of two images over the windows of `window_means`."""
    # The mean of squares minus the square of the mean loses the digits that the image's own mean
    # takes, so that is subtracted first. The difference of the images is exact where they are near.
    center = xp.mean(y, axes, keepdims=True)
    difference = x - y
    x, y = x - center, y - center
    several = xp.stack([x, y, x * x, y * y, difference, difference * difference])
    x, y, xx, yy, d, dd = window_means(several, taps, tuple(axis + 1 for axis in axes))
    noise = 64 * float(xp.finfo(x.dtype).eps) * (xx + yy)
    variances = [xp.maximum(squares - m * m, 0) for squares, m in ((xx, x), (yy, y), (dd, d))]
    return LocalMoments(x + center, y + center, *variances, noise=noise)


def halved(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Images of half the size along `axes`: the means of two neighbours, without an odd last."""
    for axis in axes:
        size = x.shape[axis] // 2 * 2
        even, odd = (lax.slice_in_dim(x, i, size, 2, axis) for i in (0, 1))
        x = (even + odd) / 2
    return x
