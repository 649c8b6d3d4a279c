"""Where the library's own programs run, whatever mesh the caller has set."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from datarax._typing import PyTree

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
