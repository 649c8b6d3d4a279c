"""The expected mutual information of two random labellings."""

import jax

from datarax._xp import lax, xp
from datarax.metrics.clustering.contingency_table import ContingencyTable
from datarax.numerics.double_float import DoubleFloat, where
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.special import relative_deviance, stirling_ratio
from datarax.numerics.sums import sum_floats

_POINTS = 64  # how many points are summed on either side of the mode


def expected_mutual_information(table: ContingencyTable) -> jax.Array:
    """The mean mutual information, in nats, of all tables with the row and column sums of `table`.

    It is the expectation of Vinh, Epps and Bailey (2010), in a form in which no digits cancel:

        sum over all cells of E[e D((x - e) / e)] / n,

    with n the total, D the relative deviance, and x the value of the cell, which has a
    hypergeometric distribution with mean e. The probability of x is computed as by C. Loader
    (2000), Fast and accurate computation of binomial probabilities, from four cells: the cell, the
    rest of its row, the rest of its column, and all others:

        p(x) is proportional to the product over the four cells of exp(-e D(t)) / S(cell),

    with `t = (cell - e) / e`, and S the ratio of a factorial to the leading term of Stirling's
    formula. Weights that are not integers have gamma functions as factorials.

    The expectation is a sum over up to 128 values of x around the mode. If the standard deviation
    is 8 or more, it is a sum over every m-th value, with at least four values in each standard
    deviation. Such a sum over a smooth bell curve is exact far beyond the dtype. So the cost is
    that of 128 tables, whatever the counts are.
    """
    a, b, n = table.rows, table.columns, table.total
    not_a, not_b = n - a, n - b
    # Counts are scaled by the total before they are multiplied: large products would overflow.
    scale = power_of_two_near_reciprocal(n.high)

    def product(x: DoubleFloat, y: DoubleFloat) -> DoubleFloat:
        return (x * scale) * (y * scale)

    def over_total(scaled_product: DoubleFloat) -> jax.Array:
        return (scaled_product / (n * scale)).to_float() / scale

    # The expected values of the four cells; in a 2 x 2 table, (cell, row), (column, others).
    expected = [over_total(product(x, y)) for x in (a, not_a) for y in (b, not_b)]
    mean = expected[0]
    # The possible values of the cell: `least`, `least + 1`, ..., `least + size`.
    least = where(a > not_b, a - not_b, DoubleFloat.of(0, a.dtype))
    size = xp.floor(xp.minimum((a - least).to_float(), (b - least).to_float()))
    mode = xp.clip(xp.round(mean - least.high), 0, xp.maximum(size, 0))
    x = least + mode
    at_mode = [each.to_float() for each in (x, a - x, b - x, not_b - a + x)]
    signs = (1, -1, -1, 1)  # how the four cells change as x grows
    off_mean = over_total(product(x, n) - product(a, b))
    # The variance of the hypergeometric is a b (n - a) (n - b) / (n^2 (n - 1)); here with n^3.
    deviation = xp.sqrt(mean * (expected[3] / n.high))
    step = xp.maximum(xp.floor(deviation / 4), 1)
    at_mode_ratios = [stirling_ratio(cell) for cell in at_mode]

    def relative_deviance_of(difference: jax.Array, e: jax.Array) -> jax.Array:
        t = xp.where(e > 0, difference / xp.where(e > 0, e, 1), 0)
        return relative_deviance(xp.maximum(t, -1))

    def add_point(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # The point `mode + k`. Its probability is relative to S at the mode: a common factor
        # cancels in the quotient of the two sums.
        k = (i - _POINTS).astype(mean.dtype) * step
        difference = off_mean + k
        exponent, probability = xp.zeros_like(mean), xp.ones_like(mean)
        for sign, cell, ratio, e in zip(signs, at_mode, at_mode_ratios, expected, strict=True):
            exponent = exponent - e * relative_deviance_of(sign * difference, e)
            probability = probability * (ratio / stirling_ratio(xp.maximum(cell + sign * k, 0)))
        inside = (mode + k >= 0) & (mode + k <= size)
        probability = xp.where(inside, probability * xp.exp(exponent), 0)
        information = relative_deviance_of(difference, mean)
        return sums[0] + probability * information, sums[1] + probability

    # Zeros that are computed from `mean`, so that inside `shard_map` they vary over the same axes.
    start = xp.zeros_like(mean) * mean
    total, weight = lax.fori_loop(xp.int32(0), xp.int32(2 * _POINTS), add_point, (start, start))
    information = xp.where(weight > 0, total / xp.where(weight > 0, weight, 1), 0)
    terms = xp.where(mean > 0, mean * information, 0)
    return sum_floats(terms, (0, 1)).to_float() / table.size
