"""The mutual information that is expected of two labellings drawn at random."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from datarax import numerics as nx
from datarax.metrics.clustering.contingency_table import Table, divergence, plus, scaled, total_of
from datarax.numerics.pairs import pair_subtract, power_of

_POINTS = 64  # on either side of the mode


def expected_mutual_information(table: Table) -> jax.Array:
    """The mean of the mutual information over all tables of these margins, in nats.

    The expectation by Vinh, Epps and Bailey (2010), in other terms. A cell is hypergeometric with
    the mean `e`, so that `n` times the information it is expected to add is the mean of
    `e * divergence((x - e) / e)`. Its probabilities are taken in Loader's form (2000), as
    deviances of the four cells of a 2 x 2 table, where nothing cancels however large the counts
    are. Up to 128 points around the mode are summed; where the standard deviation exceeds 8,
    every m-th, with at least four in each standard deviation, as the sum over a lattice of
    a smooth bell is then exact far beyond the dtype. So the cost is that of 128 tables, whatever
    the counts. For weights that are no integers, factorials are gamma functions.
    """
    a, b, n = table.rows, table.columns, table.total
    not_a, not_b = pair_subtract(n, a), pair_subtract(n, b)
    zero, one = jnp.zeros((), a[0].dtype), jnp.ones((), a[0].dtype)

    def part(x: nx.Pair) -> nx.Pair:
        return scaled(x, n[0])

    def mean_of(product: nx.Pair) -> jax.Array:
        return nx.pair_divide(product, part(n)) / power_of(n[0])

    # Of parts of the total, as products of large counts would overflow.
    products = [nx.pair_product(part(x), part(y)) for x in (a, not_a) for y in (b, not_b)]
    e = [mean_of(product) for product in products]
    mean = e[0]
    # The lattice: from the least value of the cell, in steps of one.
    floor = pair_subtract(a, not_b)
    floor = tuple(jnp.where(floor[0] > zero, x, jnp.zeros_like(x)) for x in floor)
    least: nx.Pair = floor[0], floor[1]
    size = jnp.floor(jnp.minimum(pair_subtract(a, least)[0], pair_subtract(b, least)[0]))
    mode = jnp.clip(jnp.round(mean - least[0]), zero, jnp.maximum(size, zero))
    x = plus(least, (mode, jnp.zeros_like(mode)))
    cells = [
        x[0],
        pair_subtract(a, x)[0],
        pair_subtract(b, x)[0],
        plus(pair_subtract(not_b, a), x)[0],
    ]
    off = mean_of(pair_subtract(nx.pair_product(part(x), part(n)), products[0]))
    deviation = jnp.sqrt(mean * (e[3] / n[0]))
    step = jnp.maximum(jnp.floor(deviation / 4), one)
    signs = (1, -1, -1, 1)
    at_mode = [_excess(cell) for cell in cells]

    def share(at: jax.Array, expected: jax.Array) -> jax.Array:
        some = expected > zero
        return jnp.where(some, at / jnp.where(some, expected, one), zero)

    def point(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        k = (i - _POINTS).astype(mean.dtype) * step
        at = off + k
        exponent, weight = jnp.zeros_like(at), jnp.ones_like(at)
        for sign, cell, there, expected in zip(signs, cells, at_mode, e, strict=True):
            exponent -= expected * divergence(jnp.maximum(share(sign * at, expected), -one))
            weight *= there / _excess(jnp.maximum(cell + sign * k, zero))
        inside = (mode + k >= zero) & (mode + k <= size)
        weight = jnp.where(inside, weight * jnp.exp(exponent), zero)
        value = divergence(jnp.maximum(share(at, mean), -one))
        return sums[0] + weight * value, sums[1] + weight

    start = jnp.zeros_like(mean) * mean
    total, weight = lax.fori_loop(jnp.int32(0), jnp.int32(2 * _POINTS), point, (start, start))
    each = jnp.where(weight > zero, total / jnp.where(weight > zero, weight, one), zero)
    return total_of(jnp.where(mean > zero, mean * each, zero)) / table.size


def _excess(m: jax.Array) -> jax.Array:
    """`m! / (m / e)**m`, by Stirling's series at `m + 4` where m is small."""
    small = m < 4
    four, one = jnp.asarray(4, m.dtype), jnp.ones((), m.dtype)
    x = jnp.where(small, m + four, m)
    r = one / (x * x)
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / x
    stirling = jnp.sqrt(x * (2 * math.pi)) * jnp.exp(series)
    low = jnp.where(small, m, one)
    shift = low * jnp.log1p(four / jnp.where(low > 0, low, one)) - four
    product = (low + 1) * (low + 2) * (low + 3)
    return jnp.where(small, stirling * jnp.exp(shift) * (low + four) ** 3 / product, stirling)
