"""Packed collectives: one collective for each kind of reduction, for any number of arrays.

Arrays of any shapes are packed into one buffer before they are sent. XLA may merge the collectives
of a program or not; with packing, their number does not depend on that.

All functions take flat lists of arrays. They are valid only where `axis_name` is bound:
`shard_map`, `pmap`, or `vmap` with an axis name. Their results pass the replication check of
`shard_map`.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, get_abstract_mesh

from datarax._checks import x64_enabled
from datarax._errors import AxisNotBoundError
from datarax._typing import PyTree
from datarax._xp import lax as _either
from datarax._xp import on_host, xp

AxisName = str | tuple[str, ...]


def axis_names(axis_name: AxisName) -> tuple[str, ...]:
    """The names of one axis or several, as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)


_USE_REDUCER = (
    "on global arrays, inside jit or outside, use the variant whose name does not end in "
    "'_collective'"
)


def bound_axis_size(axis_name: AxisName, caller: str, elsewhere: str = _USE_REDUCER) -> int:
    """The number of devices along `axis_name`.

    Raises:
        AxisNotBoundError: it is not bound here. The message ends with what to do `elsewhere`.
    """
    names = axis_names(axis_name)
    if not names:
        raise AxisNotBoundError(f"{caller} needs at least one axis name; got an empty tuple")
    for name in names:
        try:
            lax.axis_size(name)
        except (NameError, ValueError):  # ValueError: JAX takes an integer for a position
            bound = tuple(getattr(get_abstract_mesh(), "manual_axes", ()))
            raise AxisNotBoundError(
                f"{caller} got axis_name={axis_name!r}, but no axis {name!r} is bound here "
                f"(bound by shard_map: {', '.join(map(repr, bound)) or 'none'}). Call it inside "
                f"shard_map or pmap over that axis; {elsewhere}."
            ) from None
    return lax.axis_size(names)


def psum(arrays: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Elementwise sums over the axis: one all-reduce for integers, one for floats."""
    # Addition in two's complement is the same for signed and unsigned integers, so both are sent
    # as signed.
    return _packed(arrays, lambda buffer: lax.psum(buffer, axis_name))


def pmax(keys: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """Elementwise maxima over the axis of the keys that `to_key` makes: one all-reduce.

    Minima travel as maxima, too.
    """
    return _packed(keys, lambda buffer: lax.pmax(buffer, axis_name))


def gather(arrays: Sequence[jax.Array], axis_name: AxisName) -> list[jax.Array]:
    """The arrays of every device, stacked along a new leading axis, bit for bit: one all-reduce.

    Each device writes the bits of its arrays into its own row of a buffer of zeros, and the
    buffers are summed as integers, which is exact. `lax.all_gather` is not used, because the
    replication check would type its result as varying between devices.
    """
    return unpack_words(lax.psum(own_row(arrays, axis_name), axis_name), arrays)


def own_row(arrays: Sequence[jax.Array], axis_name: AxisName) -> jax.Array:
    """Words with a row for each device: the bits of the arrays in that of this one, else zeros.

    The sum over the axis holds the bits of all devices; `unpack_words` reads them.
    """
    size, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
    flat = pack_words(arrays)
    mine = jnp.arange(size, dtype=jnp.int32) == index.astype(jnp.int32)
    return jnp.where(mine[:, None], flat[None, :], jnp.zeros((), flat.dtype))


def exchange(
    arrays: Sequence[jax.Array], axis_name: AxisName, groups: list[list[int]] | None
) -> list[jax.Array]:
    """Sends row `i` of each array to device `i` of the group: one all-to-all, bit for bit.

    The arrays have a row for each device of the group. Row `i` of a result is what device `i` sent
    to this one. The results vary between devices. `groups` divides the devices along the axis;
    with `None`, all are one group.
    """
    words = jax.vmap(pack_words)(list(arrays))
    words = lax.all_to_all(words, axis_name, 0, 0, axis_index_groups=groups)
    return unpack_words(words, [x[0] for x in arrays])


def replicated(tree: PyTree) -> PyTree:
    """Arrays replicated over an `Explicit` mesh, as a scatter requires; elsewhere as they are.

    Arrays that are on no mesh go to the mesh of the others, so that all have one type.
    """
    if on_host(tree):
        return tree
    tree = jax.tree.map(jnp.asarray, tree)
    meshes = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(tree))
    mesh = next((mesh for mesh in meshes if not mesh.empty), get_abstract_mesh())
    if not mesh.explicit_axes:
        return tree
    return _resharded(tree, NamedSharding(mesh, PartitionSpec()))


def unsharded(x: jax.Array, axis: int) -> jax.Array:
    """`x` with one axis replicated over an `Explicit` mesh, as a sort along it requires."""
    if on_host(x):
        return x
    x = jnp.asarray(x)
    sharding = jax.typeof(x).sharding
    spec = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    if spec[axis] is None:
        return x
    spec[axis] = None
    return _resharded(x, NamedSharding(sharding.mesh, PartitionSpec(*spec)))


# Jitted, as an eager `reshard` does not move an array of one device to a mesh.
_resharded = jax.jit(jax.sharding.reshard, static_argnums=1, inline=True)


def varying_axes(x: PyTree) -> frozenset[str]:
    """The axes of `shard_map` over which the type of an array says that devices may differ.

    Empty outside `shard_map`, and where its replication check is off.
    """
    if on_host(x):
        return frozenset()
    return axes_of_type(jax.typeof(x))


def axes_of_type(kind: PyTree) -> frozenset[str]:
    """The axes over which arrays of a type may differ."""
    if hasattr(kind, "vma"):
        return kind.vma
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else frozenset()


def is_checked(name: str) -> bool:
    """True if types say what varies over a bound axis: `shard_map` with its replication check."""
    return name in varying_axes(lax.axis_index(name))


def mark_varying(x: jax.Array, axis_name: AxisName) -> jax.Array:
    """`x` with the type that differs between devices along the named axes.

    The replication check of `shard_map` requires it, for example of the carry of a scan.
    """
    missing = tuple(n for n in axis_names(axis_name) if n not in varying_axes(x))
    return lax.pcast(jnp.asarray(x), missing, to="varying") if missing else x


# Keys: signed integers for any real dtype, whose maximum is the key of the maximum or the minimum.
# XLA's maximum between devices drops NaN on some backends; the key of NaN is the greatest integer,
# so it is kept.


def to_key(x: jax.Array, op: str = "max", *, has_nan: bool = True) -> jax.Array:
    """Signed integers in the order of `x`, with -0.0 below 0.0; in reverse for the `op` "min".

    The key of NaN is the greatest integer. No float has the least one as its key, and `from_key`
    turns that into NaN too. So it serves as the identity of the maximum: "no data". Without
    `has_nan`, `x` holds no NaN, which is not looked for.
    """
    bits = jnp.dtype(f"int{8 * x.dtype.itemsize}")
    if jnp.issubdtype(x.dtype, jnp.signedinteger):
        return _ordered(x, op)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return _ordered(_either.bitcast_convert_type(x, bits) ^ _least(bits), op)
    key = _ordered(_flip(_either.bitcast_convert_type(x, bits)), op)
    return xp.where(xp.isnan(x), ~_least(bits), key) if has_nan else key


def from_key(key: jax.Array, dtype: jnp.dtype, op: str = "max") -> jax.Array:
    """The value whose key is `key`; the inverse of `to_key`."""
    key = _ordered(key, op)
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return key
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return _either.bitcast_convert_type(key ^ _least(key.dtype), dtype)
    return _either.bitcast_convert_type(_flip(key), dtype)


def _ordered(key: jax.Array, op: str) -> jax.Array:
    # The complement reverses the order of integers.
    return key if op == "max" else ~key


def _least(dtype: jnp.dtype) -> np.ndarray:
    return np.asarray(np.iinfo(dtype).min, dtype)


def _flip(bits: jax.Array) -> jax.Array:
    # The bits of negative floats, read as integers, are in reverse order. Flipping all bits but
    # the sign corrects the order. The function is its own inverse.
    return xp.where(bits < 0, bits ^ ~_least(bits.dtype), bits)


def _packed(
    arrays: Sequence[jax.Array], collective: Callable[[jax.Array], jax.Array]
) -> list[jax.Array]:
    """Applies a collective to arrays that are concatenated into one buffer for each kind of dtype.

    A buffer has at least 32 bits per number, and as many as the widest array in it.
    """
    groups: dict[str, list[int]] = {}
    for i, x in enumerate(arrays):
        groups.setdefault(_kind(x), []).append(i)
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


def _kind(x: jax.Array) -> str:
    """The name of the dtype that carries an array, without the number of bits."""
    kinds = {jnp.integer: "int", jnp.floating: "float", jnp.complexfloating: "complex"}
    return next(name for kind, name in kinds.items() if jnp.issubdtype(x.dtype, kind))


# Words: the bits of arrays as unsigned integers, without gaps.


def pack_words(arrays: Sequence[jax.Array]) -> jax.Array:
    """The bits of all arrays as one vector of uint32; of uint64 with x64.

    With x64 there are sums of 64 bits, and words that travel in one buffer with them get that size.
    """
    words = [_to_words(x) for x in arrays]
    words = jnp.concatenate(words) if words else jnp.zeros((0,), jnp.uint32)
    if not x64_enabled():
        return words
    return lax.bitcast_convert_type(_filled_up(words, 2), jnp.uint64)


def _filled_up(x: jax.Array, size: int) -> jax.Array:
    """A vector as rows of `size`, the last one filled up with zeros."""
    return jnp.pad(x, (0, -x.size % size)).reshape(-1, size)


def _to_words(x: jax.Array) -> jax.Array:
    x = x.reshape(-1)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.concatenate([_to_words(x.real), _to_words(x.imag)])
    if x.dtype.itemsize < 4:
        x = _filled_up(x, 4 // x.dtype.itemsize)
    return lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)


def unpack_words(words: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """Arrays with the dtypes of `like` from rows of words; their shapes are (rows, *like.shape)."""
    rows, start, out = words.shape[0], 0, []
    if words.dtype.itemsize == 8:
        words = lax.bitcast_convert_type(words, jnp.uint32).reshape(rows, -1)
    for x in like:
        size = -(-x.size * x.dtype.itemsize // 4)  # rounded up to whole words
        part = lax.slice_in_dim(words, start, start + size, axis=1)
        out.append(_from_words(part, x.dtype)[:, : x.size].reshape((rows, *x.shape)))
        start += size
    return out


def _from_words(words: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if dtype == jnp.bool_:
        return _from_words(words, jnp.dtype(jnp.uint8)).astype(jnp.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.dtype(f"float{4 * dtype.itemsize}")
        real, imag = jnp.split(words, 2, axis=1)
        return lax.complex(_from_words(real, part), _from_words(imag, part))
    rows, wide = words.shape[0], dtype.itemsize // 4
    if wide > 1:
        words = words.reshape(rows, -1, wide)
    return lax.bitcast_convert_type(words, dtype).reshape(rows, -1)
