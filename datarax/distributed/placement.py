"""Where arrays are placed, and where the library's own programs run.

`global_batch` makes global arrays from the examples that each process has read for itself. All else
serves the library: its programs run where their arrays are, whatever mesh the caller has set.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from datarax._checks import refuse_wide
from datarax._errors import MetricInputError, NotAddressableError
from datarax._typing import PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName

Function = TypeVar("Function", bound=Callable[..., object])
Tree = TypeVar("Tree")

_NO_MESH = Mesh(np.empty((), dtype=object), ())


def outside_mesh(function: Function) -> Function:
    """Wraps a function so that, outside `jit`, its programs run where its arguments are.

    Inside `jax.set_mesh`, JAX refuses programs and single operations on arrays of one device, and
    puts NumPy arrays on all devices of the mesh. Within a traced function nothing changes.
    """

    @wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        # Also where no mesh is set: JAX compiles a program once for each mesh that is set, or none.
        try:
            context = jax.set_mesh(_NO_MESH)
        except ValueError:  # within a traced function
            context = nullcontext()
        with context:
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def is_tracing() -> bool:
    """True within a function that JAX traces, whatever its arguments are."""
    try:
        with jax.set_mesh(_NO_MESH):
            return False
    except ValueError:
        return True


@outside_mesh
def placed_like(like: PyTree, tree: Tree) -> Tree:
    """Puts the NumPy arrays of a pytree where the arrays of `like`, of the same structure, are.

    They get the same devices and shardings; those that are NumPy arrays in `like` stay on the
    host. The arrays of `like` may be deleted. Nothing is compiled, and within a traced function
    nothing is moved.
    """
    leaves, structure = jax.tree.flatten(tree)
    pairs = list(zip(jax.tree.leaves(like), leaves, strict=True))
    if not any(_moves(*pair) for pair in pairs) or is_tracing():
        return tree
    return structure.unflatten([_put(x, y) if _moves(x, y) else y for x, y in pairs])


@outside_mesh
def placed_near(like: PyTree, tree: Tree) -> Tree:
    """`placed_like`, also for arrays of another structure than that of `like`.

    These are all where the first array of `like` is: replicated over its mesh.
    """
    if jax.tree.structure(like) == jax.tree.structure(tree):
        return placed_like(like, tree)
    first: PyTree = next(iter(jax.tree.leaves(like)), None)

    def put(x: PyTree) -> PyTree:
        if not isinstance(first.sharding, NamedSharding):
            return _put(first, x)
        mesh: PyTree = first.sharding.mesh
        return sharded(x, NamedSharding(mesh, full_spec(mesh, x.ndim)))

    return jax.tree.map(lambda x: put(x) if _moves(first, x) else x, tree)


def device_sets(leaves: Iterable[PyTree]) -> set[frozenset[PyTree]]:
    """The sets of devices of the arrays, without arrays that JAX may move.

    A program takes arrays of one set.
    """
    arrays = [x for x in leaves if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
    return {frozenset(x.sharding.device_set) for x in arrays if x.committed}


def _moves(like: object, x: object) -> bool:
    on_device = isinstance(like, jax.Array) and not isinstance(like, Tracer)
    return on_device and not isinstance(x, jax.Array)


def _put(like: jax.Array, x: PyTree) -> jax.Array:
    """An array of the host where `like` is."""
    if not like.committed:
        # `device_put` with a sharding commits the array, and a step would be compiled for it.
        with jax.default_device(next(iter(like.sharding.device_set))):
            return jax.device_put(x)
    return sharded(x, like.sharding)


def sharded(x: PyTree, sharding: jax.sharding.Sharding) -> jax.Array:
    """An array of the host, equal on all processes, with this sharding; nothing is compiled."""
    x = np.asarray(x)
    return _from_shards(x.shape, x.dtype, sharding, lambda index: x[index])


def _from_shards(
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: jax.sharding.Sharding,
    shard: Callable[[tuple[slice, ...]], np.ndarray],
) -> jax.Array:
    """The array whose shard at each index is `shard(index)`.

    Its transfers are explicit, so `jax.transfer_guard("disallow")` allows them: those of
    `jax.make_array_from_callback` are not.
    """
    places: PyTree = sharding.addressable_devices_indices_map(shape)
    kind = sharding.memory_kind
    parts = [
        jax.device_put(shard(index), SingleDeviceSharding(device, memory_kind=kind))
        for device, index in places.items()
    ]
    if any(isinstance(x, Tracer) for x in parts):  # `device_put` is an operation of a program
        return jax.make_array_from_callback(shape, sharding, lambda index: shard(index or ()))
    dtype = jax.dtypes.canonicalize_dtype(dtype)  # of a process without shards
    return jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=dtype)


def unreduced_axes(x: object) -> tuple[str, ...]:
    """The `Explicit` axes over which an array is a sum that is not added up yet."""
    if not isinstance(x, jax.Array):
        return ()
    spec = getattr(jax.typeof(x).sharding, "spec", None)
    return tuple(sorted(getattr(spec, "unreduced", ()) or ()))


def full_spec(mesh: Mesh, ndim: int, names: tuple[str, ...] = ()) -> PartitionSpec:
    """The spec of an array whose first axis is sharded over `names`, as a program returns it.

    `jit` keeps an entry of its cache for each form of a spec, although they mean the same. On
    `Explicit` axes a program returns one with an entry for each dimension, on `Auto` axes a short
    one.
    """
    explicit = explicit_axes(mesh)
    is_full = bool(explicit) and set(names) <= set(explicit)
    first = (names,) if names else ()
    return PartitionSpec(*first, *[None] * (ndim - len(first) if is_full else 0))


def explicit_axes(mesh: Mesh) -> tuple[str, ...]:
    """The names of the `Explicit` axes of a mesh."""
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in types if kind is AxisType.Explicit)


def refuse_different(data: PyTree, like: PyTree, caller: str) -> None:
    """Raises if the processes that share devices of `like` hold different data.

    Raises:
        NotAddressableError: the processes, which all must call it, hold different data.
    """
    arrays = [x for x in jax.tree.leaves(like) if isinstance(x, jax.Array)]
    shared = [x for x in arrays if not isinstance(x, Tracer) and not x.is_fully_addressable]
    devices = {device for x in shared for device in x.sharding.device_set}
    parts = (np.asarray(x).tobytes() for x in jax.tree.leaves(data))
    if devices and not is_same_everywhere(parts, sorted(devices, key=lambda each: each.id)):
        raise NotAddressableError(
            f"{caller}: the processes hold different arrays, and the state is on devices of all of "
            f"them, which must hold the same; pass the same data on every process"
        )


def mesh_of(tree: PyTree) -> jax.sharding.Mesh | None:
    """The mesh of several devices over which all arrays are replicated; None if there is none.

    Arrays that are traced have none. Shapes with shardings stand for arrays.
    """
    leaves = jax.tree.leaves(tree)
    if not leaves or not all(map(_is_replicated, leaves)):
        return None
    first, *others = (leaf.sharding.mesh for leaf in leaves)
    return first if all(mesh == first for mesh in others) else None


def _is_replicated(x: object) -> bool:
    if not isinstance(x, jax.Array | jax.ShapeDtypeStruct) or isinstance(x, Tracer):
        return False
    sharding = x.sharding
    is_named = isinstance(sharding, NamedSharding)
    return is_named and len(sharding.device_set) > 1 and sharding.is_fully_replicated


def everywhere(tree: PyTree, mesh: jax.sharding.Mesh) -> PyTree:
    """Arrays on one device, equal on all processes, replicated over a mesh."""
    sharding = NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(lambda x: sharded(x, sharding), tree)


@outside_mesh
def is_same_everywhere(data: Iterable[bytes], devices: Sequence[PyTree]) -> bool:
    """True if the processes of these devices, which all must call it, hold the same data.

    They exchange a hash over the devices. Within one process nothing is done, nor on a process that
    has none of the devices.
    """
    processes = {device.process_index for device in devices}
    if len(processes) == 1 or jax.process_index() not in processes:
        return True
    sha = hashlib.sha256()
    for part in data:
        sha.update(part)
    own = np.frombuffer(sha.digest(), np.uint32)
    mesh = Mesh(np.array(devices), ("all",))
    rows = sharded(
        np.broadcast_to(own, (len(devices), own.size)), NamedSharding(mesh, PartitionSpec("all"))
    )
    return bool(_rows_are_equal(rows, mesh))


@partial(jax.jit, static_argnums=1)
def _rows_are_equal(rows: jax.Array, mesh: Mesh) -> jax.Array:
    equal = (rows.min(0) == rows.max(0)).all()
    return jax.lax.with_sharding_constraint(equal, NamedSharding(mesh, PartitionSpec()))


def global_batch(
    batch: PyTree, mesh: Mesh, axis_names: AxisName, *, rows: int | None = None
) -> tuple[PyTree, jax.Array]:
    """Makes global arrays from the examples of each process, and a mask of the real rows.

    If a metric is updated with an array that only one process holds, each process gets its own
    result. This function joins the rows of all processes into one array, sharded over
    `axis_names`. Processes may have different numbers of examples, or none: each process pads its
    examples to `rows` rows, and the mask is false for the padding.

    It does not communicate. Every process must call it, in the same order. If two processes hold
    the same part of those axes (for example with a tensor axis across processes), they must pass
    the same rows.

    Args:
        batch: a pytree with this process's examples: arrays that share one leading axis.
        mesh: the mesh of all processes.
        axis_names: the mesh axis, or axes, over which the leading axis is sharded.
        rows: the number of rows of each process after padding, the same on every process. It must
            be a multiple of the number of this process's devices along `axis_names`. The default
            is the number of examples of this process, which must then be the same on every
            process.

    Returns:
        The batch as global arrays with `rows` rows for each process, and a boolean array of shape
        (global rows,). Pass the latter to `update` as `weights`.

    Raises:
        MetricInputError: the leading axes differ; or a process has more examples than `rows`; or
            `rows` is not divisible by the number of devices; or an integer does not fit 32 bits,
            without x64.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import datarax
        >>> from datarax.distributed import global_batch
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> batch, real = global_batch({"loss": np.ones(5, np.float32)}, mesh, "data", rows=8)
        >>> mean = datarax.per_device(datarax.metrics.Mean(), mesh, "data")
        >>> print(batch["loss"].shape, int(real.sum()))
        (8,) 5
        >>> print(mean.update(batch["loss"], weights=real).compute())
        1.0
    """
    names = collectives.axis_names(axis_names)
    for name in names:
        if name not in mesh.axis_names:
            raise MetricInputError(
                f"global_batch: the mesh has no axis {name!r}; it has {mesh.axis_names}"
            )
    arrays = jax.tree.map(np.asarray, batch)
    leaves = jax.tree.leaves(arrays)
    sizes: set[int] = {x.shape[0] if x.ndim else -1 for x in leaves}
    if len(sizes) != 1 or -1 in sizes:
        raise MetricInputError(
            "global_batch: expected arrays that share one leading axis; got shapes "
            + ", ".join(str(x.shape) for x in leaves)
        )
    refuse_wide(arrays, "global_batch: ")
    size = sizes.pop()
    total = size if rows is None else rows
    sharding = NamedSharding(mesh, PartitionSpec(names))
    blocks = math.prod(mesh.shape[name] for name in names)
    # The leading axis is cut into `blocks` equal blocks. Several devices may hold the same block
    # (along other axes of the mesh), so the distinct blocks of this process are counted.
    spans = sharding.addressable_devices_indices_map((blocks,)).values()
    held = sorted({span[0].indices(blocks)[0] for span in spans if span is not None})
    local = len(held)
    if size > total or total % local:
        raise MetricInputError(
            f"global_batch: got {size} examples for rows={total} and {local} devices of this "
            f"process along {names}; expected rows to be at least {size} and a multiple of {local}"
        )

    def placed(x: np.ndarray) -> jax.Array:
        padded = np.zeros((total, *x.shape[1:]), x.dtype)
        padded[:size] = x
        length = total // local  # of a block

        def shard(index: tuple[slice, ...]) -> np.ndarray:
            if not length:
                return padded
            start = length * held.index(index[0].indices(length * blocks)[0] // length)
            return padded[start : start + length]

        return _from_shards((length * blocks, *x.shape[1:]), x.dtype, sharding, shard)

    return jax.tree.map(placed, arrays), placed(np.ones(size, np.bool_))
