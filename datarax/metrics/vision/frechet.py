"""The Fréchet distance of two normal distributions."""

import jax

from datarax._xp import xp
from datarax.numerics.double_float import DoubleFloat, concatenate
from datarax.numerics.matrix_product import matrix_product


def frechet_distance(
    means: tuple[DoubleFloat, DoubleFloat], covariances: tuple[DoubleFloat, DoubleFloat]
) -> jax.Array:
    """`|m - n|**2 + tr(A + B - 2 sqrt(A B))`, of means (F,) and covariances (F, F).

    The trace of the root of `A B` is the sum of the singular values of `R^T S`, for any `R` and `S`
    with `A = R R^T` and `B = S S^T`. So neither matrix needs an inverse, and only the eigenvalues
    of each are rooted: that of the product would lose half of the digits of those near zero. In
    float64 where the devices have it. NaN where an argument is. D. C. Dowson and B. V. Landau
    (1982), https://doi.org/10.1016/0047-259X(82)90077-X.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.numerics import DoubleFloat
        >>> from datarax.metrics.vision.frechet import frechet_distance
        >>> zero, one = DoubleFloat.of(jnp.zeros(2)), DoubleFloat.of(jnp.eye(2))
        >>> print(frechet_distance((zero, zero), (one, one * 4)))
        2.0
    """
    (size,) = means[0].shape
    rows = concatenate([*covariances, *(mean.reshape(1, size) for mean in means)])
    return rows.evaluated(_distance)


def _distance(rows: jax.Array) -> jax.Array:
    size = rows.shape[1]
    known = xp.all(xp.isfinite(rows))
    rows = xp.where(known, rows, 0)  # decompositions of NaN may not end
    a, b, apart = rows[:size], rows[size : 2 * size], rows[-2] - rows[-1]
    product = matrix_product(_factor(a).T, _factor(b))
    common = xp.sum(xp.linalg.svd(product, compute_uv=False))
    distance = xp.sum(apart * apart) + xp.trace(a) + xp.trace(b) - 2 * common
    # Of equal distributions, rounding may leave less than zero.
    return xp.where(known, xp.maximum(distance, 0), xp.nan)


def _factor(a: jax.Array) -> jax.Array:
    """A matrix `R` with `R R^T = a`, of a symmetric matrix without negative eigenvalues."""
    values, vectors = xp.linalg.eigh(a)
    return vectors * xp.sqrt(xp.maximum(values, 0))[None]
