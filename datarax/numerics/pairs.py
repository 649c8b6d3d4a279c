"""Temporary: the functions on tuples that DoubleFloat replaces."""

from datarax.numerics import limbs as _l
from datarax.numerics import sums as _s
from datarax.numerics.double_float import DoubleFloat, two_product, two_sum  # noqa: F401

Pair = tuple
Wide = tuple
wide_add = _l.add_limbs
wide_negative = _l.negate_limbs
wide_from_int = _l.limbs_from_int
wide_sum = _l.sum_integers
cut_for_sum = _s.split_for_sum


def _D(a):
    return DoubleFloat(*a)


def _T(x):
    return (x.high, x.low)


def pair_add(a, b):
    return _T(_D(a) + _D(b))


def pair_scale(a, factor):
    return _T(_D(a) * factor)


def pair_product(a, b):
    return _T(_D(a) * _D(b))


def pair_divide(a, b):
    import jax
    import jax.numpy as jnp

    a, b = jax.tree.map(jnp.asarray, (tuple(a), tuple(b)))
    return (_D(a) / _D(b)).high


def pair_sum(a, axis=-1):
    import jax
    import jax.numpy as jnp

    return _T(_D(jax.tree.map(jnp.asarray, tuple(a))).sum(axis))


def pair_suffix_sums(a):
    return _T(_s.suffix_sums(_D(a)))


def float_sum(x, axes):
    return _T(_s.sum_floats(x, axes))


def pair_from_int(x, dtype):
    return _T(_l.double_from_int(x, dtype))


def wide_to_pair(a):
    return _T(_l.double_from_limbs(a))


def pair_subtract(a, b):
    return _T(_D(a) - _D(b))


def pair_broadcast(a, shape):
    import jax.numpy as jnp

    return _T(_D(tuple(map(jnp.asarray, a))).broadcast_to(shape))


def or_nan(x, total):
    from datarax.numerics.scaling import nan_where

    return nan_where(~(total > 0), x)


def divide(part, of, zero_division):
    import jax.numpy as jnp

    ratio = pair_divide(part, of)
    return jnp.where(of[0] == 0, jnp.asarray(float(zero_division), ratio.dtype), ratio)


def undefined(value):
    from datarax._checks import real

    return real(value, "zero_division", nan=True)


from datarax.numerics.scaling import power_of_two_near_reciprocal as power_of, weighted_mean  # noqa
