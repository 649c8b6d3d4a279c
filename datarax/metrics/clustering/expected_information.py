"""The mutual information that is expected of two random labellings."""

import jax
import jax.numpy as jnp
from jax import lax

from datarax.metrics.clustering.contingency_table import Table
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.special import relative_deviance, stirling_ratio
from datarax.numerics.sums import sum_floats

_POINTS = 64  # on either side of the mode


def expected_mutual_information(table: Table) -> jax.Array:
    """The mean of the mutual information over all tables with these margins, in nats.

    The expectation of Vinh, Epps and Bailey (2010), rearranged so that nothing cancels. A cell x
    is hypergeometric with mean e, and adds the mean of `e * relative_deviance((x - e) / e)` to n
    times the information. Its probability is written with the deviances of the four cells of a
    2 x 2 table (the cell, the rest of its row, the rest of its column, all others), as by
    C. Loader (2000), Fast and accurate computation of binomial probabilities:

        p(x) is proportional to the product over the four cells of exp(-e D(t)) / S(cell),

    with `t = (cell - e) / e`, D the relative deviance and S the ratio of a factorial to Stirling's
    leading term. Up to 128 points around the mode are summed. Where the standard deviation exceeds
    8, they are every m-th point, at least four in each standard deviation: a sum over such a
    lattice of a smooth bell is exact far beyond the dtype. So the cost is that of 128 tables,
    whatever the counts. For weights that are not integers, factorials are gamma functions.
    """
    a, b, n = table.rows, table.columns, table.total
    not_a, not_b = n - a, n - b
    # Products are taken of shares of the total, as those of large counts would overflow.
    scale = power_of_two_near_reciprocal(n.high)

    def product(x: DoubleFloat, y: DoubleFloat) -> DoubleFloat:
        return (x * scale) * (y * scale)

    def over_total(scaled_product: DoubleFloat) -> jax.Array:
        return (scaled_product / (n * scale)).to_float() / scale

    expected = [over_total(product(x, y)) for x in (a, not_a) for y in (b, not_b)]
    mean = expected[0]
    # The values of the cell: `least`, `least + 1`, ..., `least + size`.
    least = where(a > not_b, a - not_b, DoubleFloat.of(0, a.dtype))
    size = jnp.floor(jnp.minimum((a - least).to_float(), (b - least).to_float()))
    mode = jnp.clip(jnp.round(mean - least.high), 0, jnp.maximum(size, 0))
    x = least + mode
    at_mode = [each.to_float() for each in (x, a - x, b - x, not_b - a + x)]
    signs = (1, -1, -1, 1)  # how the four cells change as x grows
    off_mean = over_total(product(x, n) - product(a, b))
    deviation = jnp.sqrt(mean * (expected[3] / n.high))
    step = jnp.maximum(jnp.floor(deviation / 4), 1)
    at_mode_ratios = [stirling_ratio(cell) for cell in at_mode]

    def relative_deviance_of(difference: jax.Array, e: jax.Array) -> jax.Array:
        t = jnp.where(e > 0, difference / jnp.where(e > 0, e, 1), 0)
        return relative_deviance(jnp.maximum(t, -1))

    def add_point(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        k = (i - _POINTS).astype(mean.dtype) * step
        difference = off_mean + k
        exponent, probability = jnp.zeros_like(mean), jnp.ones_like(mean)
        for sign, cell, ratio, e in zip(signs, at_mode, at_mode_ratios, expected, strict=True):
            exponent -= e * relative_deviance_of(sign * difference, e)
            probability *= ratio / stirling_ratio(jnp.maximum(cell + sign * k, 0))
        inside = (mode + k >= 0) & (mode + k <= size)
        probability = jnp.where(inside, probability * jnp.exp(exponent), 0)
        information = relative_deviance_of(difference, mean)
        return sums[0] + probability * information, sums[1] + probability

    # Zeros made of `mean`, so that in `shard_map` they vary over the devices as it does.
    start = jnp.zeros_like(mean) * mean
    total, weight = lax.fori_loop(jnp.int32(0), jnp.int32(2 * _POINTS), add_point, (start, start))
    information = jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1), 0)
    terms = jnp.where(mean > 0, mean * information, 0)
    return sum_floats(terms, (0, 1)).to_float() / table.size
