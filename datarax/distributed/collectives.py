"""Packed collectives: any number of arrays, of any shape, in one collective a kind.

XLA may or may not merge the collectives of a program; packing the arrays into one buffer first
makes the count a property of the program. All functions here take flat lists of arrays, are
valid only where `axis_name` is bound (`shard_map`, `pmap`, `vmap` with an axis name), and return
values that `shard_map`'s replication check accepts as replicated.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, get_abstract_mesh

from datarax._errors import AxisNotBoundError

AxisName = str | tuple[str, ...]


def bound_axis_size(axis_name: AxisName, caller: str) -> int:
    """The number of devices along `axis_name`; `AxisNotBoundError` where it is not bound."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    if not names:
        raise AxisNotBoundError(f"{caller} needs at least one axis name; got an empty tuple")
    for name in names:
        try:
            lax.axis_size(name)
        except (NameError, ValueError):  # of an integer, say, which JAX takes for a position
            bound = tuple(getattr(get_abstract_mesh(), "manual_axes", ()))
            raise AxisNotBoundError(
                f"{caller} got axis_name={axis_name!r}, but no axis {name!r} is bound here "
                f"(bound by shard_map: {', '.join(map(repr, bound)) or 'none'}). Call it inside "
                f"shard_map or pmap over that axis; on global arrays, inside jit or outside, use "
                f"the variant whose name does not end in '_collective'."
            ) from None
    return math.prod(lax.axis_size(name) for name in names)


def psum(arrays: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Sum over the axis, elementwise: one all-reduce for integers, one for floats."""
    # Two's complement addition is the same for signed and unsigned: one carrier serves both.
    return _packed(arrays, _carrier_stem, lambda buffer: lax.psum(buffer, axis_name))


def pmax(keys: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Maximum over the axis, elementwise, of *keys* (see `to_key`): one all-reduce."""
    return _packed(keys, lambda key: "int", lambda buffer: lax.pmax(buffer, axis_name))


def pmin(keys: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Minimum over the axis, elementwise, of *keys* (see `to_key`): one all-reduce."""
    return _packed(keys, lambda key: "int", lambda buffer: lax.pmin(buffer, axis_name))


def gather(arrays: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Every device's arrays, stacked along a new leading axis, bit for bit: one all-reduce.

    Each device writes the bits of its arrays into its own slot of a zero buffer, and the buffers
    are summed: integers plus zeros are exact, and the replication check accepts a sum where it
    would call the result of `lax.all_gather` varying.
    """
    size, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    words = [to_words(x) for x in arrays]
    flat = jnp.concatenate(words) if words else jnp.zeros((0,), jnp.uint32)
    mine = jnp.arange(size, dtype=jnp.int32) == index.astype(jnp.int32)
    slots = jnp.where(mine[:, None], flat[None, :], jnp.uint32(0))
    slots = lax.psum(slots, axis_name)
    return unpack_words(slots, arrays)


def replicated(x: jax.Array) -> jax.Array:
    """`x` in full on every device of an `Explicit` mesh, where a scatter asks for that."""
    x = jnp.asarray(x)
    mesh = jax.typeof(x).sharding.mesh
    mesh = get_abstract_mesh() if mesh.empty else mesh
    if not mesh.explicit_axes:
        return x
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec()))


def mark_varying(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """`x`, typed as differing along the named axes, for `shard_map`'s replication check."""
    names = tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)
    kind = jax.typeof(x)
    varying = kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying
    missing = tuple(n for n in names if n not in varying)
    if not missing:
        return jnp.asarray(x)
    if hasattr(lax, "pcast"):
        return lax.pcast(jnp.asarray(x), missing, to="varying")
    return getattr(lax, "pvary")(jnp.asarray(x), missing)  # noqa: B009  (jax before pcast)


# Keys: an order-preserving map from any real dtype to signed integers. XLA's all-reduce drops
# NaN on some backends; as a key, NaN has a place in the order like any other value.


def to_key(x: jax.Array, nan_is: str) -> jax.Array:
    """Signed integers in the order of `x`, -0.0 below 0.0; NaN becomes the "lowest" or "highest".

    The other end of the integers' range is no number's key: `from_key` reads it as NaN too, which
    makes it the identity of the extremum, "no data".
    """
    bits = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return x
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return lax.bitcast_convert_type(x, bits) ^ jnp.array(jnp.iinfo(bits).min, bits)
    key = _flip(lax.bitcast_convert_type(x, bits))
    info = jnp.iinfo(bits)
    nan = jnp.array(info.max if nan_is == "highest" else info.min, bits)
    return jnp.where(jnp.isnan(x), nan, key)


def from_key(key: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The value whose key is `key`; the inverse of `to_key`."""
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return key
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return lax.bitcast_convert_type(key ^ jnp.array(jnp.iinfo(key.dtype).min, key.dtype), dtype)
    return lax.bitcast_convert_type(_flip(key), dtype)


def _flip(bits: jax.Array) -> jax.Array:
    # Floats of negative sign order backwards: flip all but their sign. Its own inverse.
    return jnp.where(bits < 0, bits ^ jnp.array(jnp.iinfo(bits.dtype).max, bits.dtype), bits)


def _packed(
    arrays: Sequence[jax.Array],
    stem: Callable[[jax.Array], str],
    collective: Callable[[jax.Array], jax.Array],
) -> list[jax.Array]:
    groups: dict[str, list[int]] = {}
    for i, x in enumerate(arrays):
        groups.setdefault(stem(x), []).append(i)
    result = list(arrays)
    for name, members in groups.items():
        bits = 8 * max(8 if name == "complex" else 4, *(arrays[i].dtype.itemsize for i in members))
        carrier = jnp.dtype(f"{name}{bits}")
        parts = [arrays[i].reshape(-1).astype(carrier) for i in members]
        buffer, start = collective(jnp.concatenate(parts)), 0
        for i in members:
            x = arrays[i]
            part = lax.slice_in_dim(buffer, start, start + x.size)
            result[i] = part.astype(x.dtype).reshape(x.shape)
            start += x.size
    return result


def _carrier_stem(x: jax.Array) -> str:
    kinds = {jnp.integer: "int", jnp.floating: "float", jnp.complexfloating: "complex"}
    return next(stem for kind, stem in kinds.items() if jnp.issubdtype(x.dtype, kind))


# Words: the bits of any array as unsigned 32-bit integers, and back.


def to_words(x: jax.Array) -> jax.Array:
    """The bits of `x` as a vector of uint32, one word or two an element."""
    x = x.reshape(-1)
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint32)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.concatenate([to_words(x.real), to_words(x.imag)])
    if x.dtype.itemsize == 8:
        return lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return bits.astype(jnp.uint32)


def unpack_words(words: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """The arrays of `like`'s shapes and dtypes from rows of words: shape (rows, *like.shape)."""
    rows, start, out = words.shape[0], 0, []
    for x in like:
        size = _words_of(x)
        part = lax.slice_in_dim(words, start, start + size, axis=1)
        out.append(_from_words(part, x.dtype).reshape((rows, *x.shape)))
        start += size
    return out


def _words_of(x: jax.Array) -> int:
    return x.size * (2 if x.dtype.itemsize == 8 else 4 if x.dtype.itemsize == 16 else 1)


def _from_words(words: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if dtype == jnp.bool_:
        return words.astype(jnp.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.dtype(f"float{4 * dtype.itemsize}")
        real, imag = jnp.split(words, 2, axis=1)
        return lax.complex(_from_words(real, part), _from_words(imag, part))
    if dtype.itemsize == 8:
        return lax.bitcast_convert_type(words.reshape(words.shape[0], -1, 2), dtype)
    bits = words.astype(jnp.dtype(f"uint{8 * dtype.itemsize}"))
    return lax.bitcast_convert_type(bits, dtype)
