"""64 bits that look random, from the value of a number: the same for equal numbers of any dtype."""

import jax
import jax.numpy as jnp
from jax import lax

from datarax import numerics as nx
from datarax._checks import is_integer

# Odd numbers with no pattern of bits: of the fractional parts of the roots of 2, 3, 5, 7, 11, 13.
_ROUNDS = (0x6A09E667, 0xBB67AE85, 0x3C6EF373, 0xA54FF53B, 0x510E527F, 0x9B05688D)
_FRACTION = 0x5BE0CD19  # marks what is no integer


def hashed(x: jax.Array) -> nx.Pair:
    """Two uint32 words for each finite number; distinct ones of 32 bits have distinct words.

    Equal numbers have equal ones, whatever their dtype: 3, 3 as uint8 and 3.0; -0.0 and 0.0.
    """
    left, right = _words(x)
    # A Feistel network: whatever its rounds do, it maps 64 bits one to one.
    for key in _ROUNDS:
        left, right = right, left ^ _mixed(right ^ jnp.uint32(key))
    return left, right


def _mixed(x: jax.Array) -> jax.Array:
    """Every bit of the result depends on every bit of `x`."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * jnp.uint32(0x85EBCA77)
    return x ^ (x >> 16)


def _words(x: jax.Array) -> nx.Pair:
    """64 bits that tell numbers apart by value: an integer's own, or a float's."""
    if is_integer(x):
        return _of_integer(x)
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.float32)
    size = jnp.abs(x)
    whole = (size == jnp.floor(size)) & (size < 2.0**63)
    # Both parts are exact: their bits are some of the float's.
    size = jnp.where(whole, size, jnp.zeros((), x.dtype))
    high = jnp.floor(size * 2.0**-32)
    words = high.astype(jnp.int32), (size - high * 2.0**32).astype(jnp.uint32)
    minus = nx.wide_negative(words)
    words = tuple(jnp.where(x < 0, a, b) for a, b in zip(minus, words, strict=True))
    integer = lax.bitcast_convert_type(words[0], jnp.uint32), words[1]
    return _chosen(whole, integer, _of_fraction(x))


def _of_integer(x: jax.Array) -> nx.Pair:
    if x.dtype.itemsize == 8:
        return _halves(lax.bitcast_convert_type(x, jnp.uint64))
    if x.dtype == jnp.uint32:
        return jnp.zeros(x.shape, jnp.uint32), x
    x = x.astype(jnp.int32)
    return lax.bitcast_convert_type(x >> 31, jnp.uint32), lax.bitcast_convert_type(x, jnp.uint32)


def _of_fraction(x: jax.Array) -> nx.Pair:
    if x.dtype.itemsize == 4:
        mark = jnp.full(x.shape, _FRACTION, jnp.uint32)
        return mark, lax.bitcast_convert_type(x, jnp.uint32)
    narrow = x.astype(jnp.float32)
    own = _halves(lax.bitcast_convert_type(x, jnp.uint64))
    return _chosen(narrow.astype(x.dtype) == x, _of_fraction(narrow), own)


def _chosen(which: jax.Array, a: nx.Pair, b: nx.Pair) -> nx.Pair:
    return jnp.where(which, a[0], b[0]), jnp.where(which, a[1], b[1])


def _halves(bits: jax.Array) -> nx.Pair:
    low = jnp.asarray(0xFFFFFFFF, bits.dtype)
    return (bits >> jnp.asarray(32, bits.dtype)).astype(jnp.uint32), (bits & low).astype(jnp.uint32)
