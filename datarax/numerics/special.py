"""Special functions that lose no digits by cancellation."""

import math
import operator
from functools import lru_cache, reduce
from statistics import NormalDist
from typing import Any

import jax
import numpy as np

from datarax._checks import x64_enabled
from datarax._xp import beside, computed_where, lax, on_host, replaced, special, xp
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaled_double import scaled_power
from datarax.numerics.scaling import exponent_of, power_of_two, significand, times_power_of_two
from datarax.numerics.sums import sum_floats


def x_minus_log1p(x: jax.Array) -> jax.Array:
    """`x - log(1 + x)` for `x >= 0`, within 4 ulp of a float32, and 32 ulp of a float64.

    Below 1/8, where the two terms nearly cancel, it is a series: `x**2 / 2 - x**3 / 3 + ...`.
    """
    coefficients = [(-1) ** k / k for k in range(2, 12 if x.dtype.itemsize < 8 else 20)]
    small = xp.minimum(x, xp.asarray(0.125, x.dtype))
    series = xp.polyval(xp.asarray([*reversed(coefficients), 0.0, 0.0], x.dtype), small)
    return xp.where(x < 0.125, series, x - xp.log1p(x))


def relative_deviance(t: jax.Array) -> jax.Array:
    """`(1 + t) log(1 + t) - t` for `t >= -1`, within 12 ulp; about `t**2 / 2` near zero.

    It is never negative. With `t = (x - e) / e`, `e` times this is the deviance of a count x from
    its expectation e. From -1/2 to 1, where the terms nearly cancel, it is computed by the series
    of `artanh(s)` with `s = t / (2 + t)`.
    """
    near = (t > -0.5) & (t < 1)
    # log(1 + t) = 2 artanh(s) = 2 (s + s**3 / 3 + ...), and t = 2 s / (1 - s).
    s = xp.where(near, t / (2 + xp.where(near, t, 1)), 0)
    square, series = s * s, xp.zeros_like(s)
    for k in range(35 if t.dtype.itemsize == 8 else 17, 1, -2):
        series = series * square + 2 / k
    close = square * (2 + (1 + s) * s * series) / (1 - s)
    grown = xp.maximum(1 + t, 0)
    far = grown * xp.log(xp.where(grown > 0, grown, 1)) - t
    return xp.where(near, close, far)


def stirling_ratio(m: jax.Array) -> jax.Array:
    """`m! / (m / e)**m` for real `m >= 0`, about `sqrt(2 pi m)`; `m!` is `gamma(m + 1)`.

    Computed by Stirling's series; for m below 4 by the series at `m + 4` and the recurrence
    `(m + 1)! = (m + 1) m!`. Within 12 ulp of a float32, and within 1e-9 relative of a float64; on
    the host, where the series starts at 16, within 1e-14.
    """
    steps = 16 if on_host(m) else 4
    small = m < steps
    x = xp.where(small, m + steps, m)
    r = 1 / (x * x)
    series = (1 / 12 - r * (1 / 360 - r * (1 / 1260 - r * (1 / 1680 - r / 1188)))) / x
    stirling = xp.sqrt(x * (2 * math.pi)) * xp.exp(series)
    low = xp.where(small, m, 1)
    shift = low * xp.log1p(steps / xp.where(low > 0, low, 1)) - steps
    product = reduce(operator.mul, (low + k for k in range(1, steps)))
    ratio = (low + steps) ** (steps - 1) / product
    return xp.where(small, stirling * xp.exp(shift) * ratio, stirling)


def fair_coin_p_value(n: jax.Array, difference: jax.Array) -> jax.Array:
    """The probability that heads and tails of `n` fair throws differ by at least `difference`.

    `min(1, 2 P(X <= k))` with X binomial and `k = (n - difference) / 2`: the two-sided p-value of
    the sign test. For real `n >= difference >= 0` it is `2 I(n - k, k + 1)` at 1/2, the regularized
    incomplete beta function. Within 1e-8 relative of a float64 for `n` up to 1e12; of a float32
    within `12 (1 - log(p))` ulp. 1 if `n` is zero.
    """
    some = n > 0
    n = xp.where(some, n, 1)
    d = xp.where(some, difference, 0)
    k, share = (n - d) / 2, d / n
    if on_host(n, d):
        return xp.where(some, xp.minimum(2 * special.betainc(n - k, k + 1, 0.5), 1), 1)
    # The probability of k heads.
    deviance = n / 2 * (relative_deviance(share) + relative_deviance(-share))
    term = stirling_ratio(n) / (stirling_ratio(k) * stirling_ratio(n - k)) * xp.exp(-deviance)
    # I(a, b) = term(a) + I(a + 1, b). Each step makes the integrand of the rest one degree smoother
    # at its end, where it has a singularity if n is no integer.
    head = xp.zeros_like(n)
    for j in range(_STEPS):
        head = head + term
        term = term * ((n + 1 + j) / (2 * (n - k + 1 + j)))
    # I(a, b) = 2 a term(a) times the integral of (1 - u)**(a - 1) (1 + u)**(b - 1) over 0 to 1. The
    # integrand decreases, and is below exp(-_DECAY) from `end` on.
    slope, curve = d + (_STEPS - 1), (n + (_STEPS - 1)) / 2
    end = 2 * _DECAY / (slope + xp.sqrt(slope * slope + 4 * curve * _DECAY))
    end = xp.minimum(end, 1)[..., None]
    nodes, weights = (xp.asarray(x, n.dtype) for x in np.polynomial.legendre.leggauss(_NODES))
    u = end * (1 + lax.expand_dims(nodes, range(n.ndim))) / 2
    integrand = xp.exp(k[..., None] * xp.log1p(-u * u) + slope[..., None] * xp.log1p(-u))
    integral = xp.sum(integrand * lax.expand_dims(weights, range(n.ndim)) * end / 2, -1)
    tail = head + 2 * (n - k + _STEPS) * term * integral
    return xp.where(some, xp.minimum(tail, 1), 1)


_STEPS, _NODES, _DECAY = 8, 48, 40.0


def t_p_value(t: jax.Array, df: jax.Array) -> jax.Array:
    """The probability that Student's t of `df` degrees of freedom is beyond `t >= 0` in size.

    NaN for fewer than 1. On the host within 1e-10 relative. Within `jit` it is the incomplete beta
    function up to 64 degrees of freedom; beyond, the normal approximation of D. Wallace (1959),
    Bounds on normal approximations to Student's and the chi-square distributions, whose relative
    error is below 1e-3 for p-values above 1e-6.
    """
    some = df >= 1
    df = xp.where(some, df, 1)
    if on_host(t, df):
        return xp.where(some, special.betainc(df / 2, 0.5, df / (df + t * t)), xp.nan)
    few = xp.minimum(df, _TABLED)
    exact = special.betainc(few / 2, xp.full_like(few, 0.5), few / (few + t * t))
    z = xp.sqrt(df * xp.log1p(t * t / df)) * ((8 * df + 1) / (8 * df + 3))
    p = xp.where(df <= _TABLED, exact, special.erfc(z / 2**0.5))
    return xp.where(some, p, xp.nan)


def t_quantile(confidence: float, df: jax.Array) -> jax.Array:
    """The number that Student's t of `df` degrees of freedom is within, with this probability.

    `df` holds whole numbers; NaN for fewer than 1. Up to 64, it is from a table; beyond, by the
    expansion of R. Fisher and E. Cornish (1960), within 1e-9 relative.
    """
    table = _quantiles_of_t(confidence)
    some = df >= 1  # false for NaN
    df = xp.where(some, df, 1)
    place = xp.minimum(df, _TABLED).astype(xp.int32) - 1
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    inverse = 1 / df
    many = xp.polyval(xp.asarray(terms[::-1], inverse.dtype), inverse)
    found = xp.where(df <= _TABLED, beside(place, table.astype(inverse.dtype))[place], many)
    return xp.where(some, found, xp.nan)


_TABLED = 64


@lru_cache
def _quantiles_of_t(confidence: float) -> np.ndarray:
    """`t_quantile` of 1 to `_TABLED` degrees of freedom, by bisection of `t_p_value`."""
    df: Any = np.arange(1, _TABLED + 1, dtype=np.float64)
    # In powers of two, as the quantile of one degree of freedom may be large.
    low, high = np.full(_TABLED, -1074.0), np.full(_TABLED, 1023.0)
    with np.errstate(all="ignore"):
        for _ in range(80):
            middle = (low + high) / 2
            t: Any = np.exp2(middle)
            beyond = t_p_value(t, df) > 1 - confidence
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    return np.exp2((low + high) / 2)


def entropy(counts: DoubleFloat, total: DoubleFloat) -> jax.Array:
    """The entropy `sum(p * log(1 / p))` of the shares `p = counts / total`, over all axes, in nats.

    No term is negative, and each is within 4 ulp of a float32. For a share above 1/2, `log(p)` is
    computed as `log1p(-rest)` with `rest = 1 - p`: near 1, the logarithm would magnify the rounding
    of p, but `total - counts` is exact in double-floats.
    """
    p, rest = (counts / total).to_float(), ((total - counts) / total).to_float()
    of_small = -xp.log(xp.where(p > 0, p, 1))
    of_large = -xp.log1p(-xp.minimum(rest, 0.5))
    terms = p * xp.where(rest < 0.5, of_large, of_small)
    return sum_floats(terms, tuple(range(terms.ndim))).to_float()


def softplus(x: jax.Array) -> jax.Array:
    """`log(1 + exp(x))`, within 4 ulp, without overflow or cancellation."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))


def score_of(scores: jax.Array, label: jax.Array) -> jax.Array:
    """The score (..., 1) of each label (...), of scores (..., C).

    By comparing every class with the label: if the classes are sharded over devices, only this
    score travels. An index would gather all scores.
    """
    classes = lax.broadcasted_iota(xp.int32, scores.shape, scores.ndim - 1)
    is_label = classes == label[..., None]
    return xp.sum(xp.where(is_label, scores, xp.zeros((), scores.dtype)), -1, keepdims=True)


def softmax_log_odds(logits: jax.Array) -> jax.Array:
    """`log(p / (1 - p))` of the softmax p of logits (..., C), for each class.

    It has the order of p, also where p itself rounds to 0 or 1. Of two classes it is the difference
    of the logits, rounded once. A logit of -inf gives -inf; a class beside which all others have
    -inf gives infinity.
    """
    classes = lax.broadcasted_iota(xp.int32, logits.shape, logits.ndim - 1)
    top = xp.max(logits, -1, keepdims=True)
    highest = xp.min(xp.where(logits == top, classes, logits.shape[-1]), -1, keepdims=True)
    is_highest = classes == highest  # one class, the first of equal ones
    below = logits - top
    others = xp.where(is_highest, -xp.inf, below)
    second = xp.max(others, -1, keepdims=True)
    start = xp.where(second > -xp.inf, second, 0)
    terms = xp.exp(others - start)
    total = xp.sum(terms, -1, keepdims=True)
    # Beside a class that is not the highest, the highest has the weight 1, which is at least that
    # of the class: so the difference of the sums loses no digits of the logarithm.
    beside = xp.log1p(xp.exp(second) * (total - terms))
    return xp.where(is_highest, -(start + xp.log(total)), below - beside)


def kl_div(
    p: jax.Array,
    q: jax.Array,
    difference: jax.Array | None = None,
    log_ratio: jax.Array | None = None,
) -> jax.Array:
    """`p * log(p / q) - p + q`, within 8 ulp, 16 of a float64, as `scipy.special.kl_div`.

    It is never negative, even if `p` and `q` are nearly equal. `difference` is `q - p`, rounded
    once, and `log_ratio` is `log(p / q)`, if they are known more exactly than from both. The result
    is infinite where `q` is zero and `p` is not. A subnormal `p` counts as zero.
    """
    both = p + q
    s = (q - p if difference is None else difference) / replaced(both > 0, both, 1)
    # XLA makes an array of this quotient. Without a barrier it makes others for what both use.
    p, q, s = lax.optimization_barrier((p, q, s))
    difference = q - p if difference is None else difference
    terms, near_one = (8, 1 / 3) if p.dtype.itemsize == 4 else (9, 1 / 8)

    def near(p: jax.Array, s: jax.Array, difference: jax.Array) -> jax.Array:
        # log(q / p) = 2 atanh(s) = 2 (s + s**3 / 3 + ...), and difference - 2 p s = difference * s.
        square = xp.square(s)
        series = xp.zeros_like(s)
        for k in reversed(range(terms)):
            series *= square  # on the host in place
            series += 1 / (2 * k + 3)
        return s * (difference - 2 * p * square * series)

    some = p >= xp.finfo(p.dtype).tiny
    if log_ratio is None:
        log_ratio = -xp.log(q / replaced(some, p, 1))
    far = replaced(some, difference + p * log_ratio, q)
    return computed_where(xp.abs(s) < near_one, near, far, p, s, difference)


def log_cosh(x: jax.Array) -> jax.Array:
    """`log(cosh(x))` for `x >= 0`, within 10 ulp; it does not overflow."""

    def near(x: jax.Array) -> jax.Array:
        # log1p(2 sinh(x / 2)**2), where 2 sinh(x / 2)**2 = expm1(-x)**2 / (2 exp(-x)).
        decay = xp.expm1(-xp.minimum(x, 1))
        return xp.log1p(decay * decay / (2 * (1 + decay)))

    log_2 = 0.6931471805599453
    return computed_where(x < 1, near, (x - log_2) + xp.log1p(xp.exp(-2 * x)), x)


def tweedie_deviance(
    p: jax.Array, t: jax.Array, power: float, e: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The deviance of a target `t` from the mean `p` of a Tweedie distribution.

    `2 (t**(2 - k) / ((1 - k) (2 - k)) - t p**(1 - k) / (1 - k) + p**(2 - k) / (2 - k))` with k the
    power; for k of 1 and 2, the limit. `p` must be positive unless the power is 0; `t` must not be
    negative if the power is at least 1, and must be positive if it is at least 2. Within 64 ulp,
    also if `p` and `t` are nearly equal, or the power is near 1 or 2. `e` is `p - t`, which may be
    known more exactly than both.

    The deviance is `part * 2**exponent` of the two arrays that are returned, floats and int32: at
    most scales of `p` and `t` it leaves the range of floats. `p` broadcasts to the shape of `t`.
    """
    if power == 0:
        part = significand(e)
        return part * part, 2 * exponent_of(e)
    if power == 1 and on_host(p, t) and not x64_enabled():
        # Numbers in the range of float32, in float64: no quotient of them leaves its range.
        return kl_div(t, p, e), xp.ones(np.shape(t), xp.int32)
    n, m = exponent_of(t) - exponent_of(p), significand(t) / significand(p)
    if power == 1:
        unit = xp.maximum(exponent_of(t), exponent_of(p))
        log = xp.log(xp.where(t > 0, m, 1)) + n.astype(m.dtype) * math.log(2)
        t, p, e = (times_power_of_two(x, -unit) for x in (t, p, e))
        divergence = kl_div(t, p, e, log)
        return significand(divergence), exponent_of(divergence) + unit + 1
    # The deviance is 2 p**a g(t / p), where g(1) = g'(1) = 0 and g''(1) = 1.
    a = 2 - power
    u = -e / p
    # Near t = p the terms of g nearly cancel. There it is a Taylor series:
    # ((1 + u)**a - 1 - a u) / (a (a - 1)) = u**2 / 2 (1 + (a - 2) / 3 u (1 + (a - 3) / 4 u (...))).
    # At |u| = 0.5, what is cut off is below 2**-24, or 2**-53 for float64.
    is_near = xp.abs(u) < 0.5
    v = xp.where(is_near, u, 0)
    series = xp.ones_like(v)
    for k in range(24 if t.dtype.itemsize < 8 else 52, 1, -1):
        series = 1 + (a - k) / (k + 1) * v * series
    near = v * v / 2 * series
    # Elsewhere g is computed from its terms, with r = t / p = m * 2**n, which may leave the range
    # of floats. Below power 2, t may be 0, and below 0 negative: then the logarithm is replaced.
    is_positive = (t > 0) | (power >= 2)
    log = xp.log(xp.where(is_positive, m, 1)) + n.astype(m.dtype) * math.log(2)
    log = xp.where(is_positive, log, 0)
    # The powers of both at once; for a power of 2, that of t has no effect.
    bases = [xp.where(is_near, p, p)]  # of the shape of `t`, and sharded as `t`
    if power != 2:
        bases.append(xp.where(is_positive, t, 1))
    scale, exponents = scaled_power(xp.stack(bases), a)
    # All terms are in units of `2**unit`, in which none overflows.
    unit = xp.where(is_near, 0, xp.maximum(n, 0))
    is_far = ~is_near & (xp.abs(a * log) > 16)
    grown = n
    if power != 2:
        grown = xp.where(is_far, exponents[-1] - exponents[0], 0)  # the exponent of r**a
        unit = xp.maximum(unit, grown)
    one, ratio = power_of_two(-unit, m.dtype), m * power_of_two(xp.minimum(n - unit, 0), m.dtype)
    above = ratio - one  # r - 1
    if power == 2:
        terms = above - log * one
    elif 1 < power < 1.5:
        # (r (r**b - 1) / b - (r - 1)) / a with b = a - 1, in which nothing is divided by 1 - power.
        b = 1 - power
        terms = (ratio * (xp.expm1(b * log) / b) - above) / a
    else:
        close = xp.expm1(xp.where(is_far, 0, a * log)) * one
        far = scale[-1] / scale[0] * power_of_two(grown - unit, m.dtype) - one
        power_less_one = xp.where(is_positive, xp.where(is_far, far, close), -one)
        terms = (power_less_one - a * above) / (a * (a - 1))
    g = xp.where(is_near, near, terms)
    return significand(g) * scale[0], exponents[0] + unit + exponent_of(g) + 1
