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
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datarax._checks import numeric
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName

Function = TypeVar("Function", bound=Callable[..., object])

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

    def put(x: jax.Array) -> jax.Array:
        return jax.make_array_from_callback(x.shape, sharding, lambda _: x)

    return jax.tree.map(put, tree)


@outside_mesh
def is_same_everywhere(data: Iterable[bytes], devices: Sequence[PyTree]) -> bool:
    """Whether the processes of these devices, which all must call it, hold the same data.

    They exchange a hash over the devices. Within one process nothing is done.
    """
    if len({device.process_index for device in devices}) == 1:
        return True
    sha = hashlib.sha256()
    for part in data:
        sha.update(part)
    own = np.frombuffer(sha.digest(), np.uint32)
    mesh = Mesh(np.array(devices), ("all",))
    rows = jax.make_array_from_callback(
        (len(devices), own.size),
        NamedSharding(mesh, PartitionSpec("all")),
        lambda index: np.broadcast_to(own, (len(devices), own.size))[index],
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
            `rows` is not divisible by the number of devices; or an integer does not fit the
            widest integer dtype.

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
    for x in leaves:
        if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
            numeric(x, "global_batch")  # raises if JAX would truncate an integer
    size = sizes.pop()
    total = size if rows is None else rows
    sharding = NamedSharding(mesh, PartitionSpec(names))
    blocks = math.prod(mesh.shape[name] for name in names)
    # The leading axis is cut into `blocks` equal blocks. Several devices may hold the same block
    # (along other axes of the mesh), so the distinct blocks of this process are counted.
    spans = sharding.addressable_devices_indices_map((blocks,)).values()
    local = len({span[0].indices(blocks)[0] for span in spans if span is not None})
    if size > total or total % local:
        raise MetricInputError(
            f"global_batch: got {size} examples for rows={total} and {local} devices of this "
            f"process along {names}; expected rows to be at least {size} and a multiple of {local}"
        )

    def placed(x: np.ndarray) -> jax.Array:
        padded = np.zeros((total, *x.shape[1:]), x.dtype)
        padded[:size] = x
        shape = (total * (blocks // local), *x.shape[1:])
        return jax.make_array_from_process_local_data(sharding, padded, shape)

    return jax.tree.map(placed, arrays), placed(np.ones(size, np.bool_))
