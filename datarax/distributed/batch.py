"""The way in: global arrays from what each process has read for itself."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax._checks import numeric
from datarax._errors import MetricInputError
from datarax.distributed.collectives import AxisName


def global_batch(
    batch: Any, mesh: Mesh, axis_names: AxisName, *, rows: int | None = None
) -> tuple[Any, jax.Array]:
    """Global arrays from each process's own examples, and a mask of which rows are real.

    A process-local array handed to a metric gives every process its own answer. This makes one
    array of all processes' rows, sharded over `axis_names`; processes may have different numbers
    of examples, or none: what is short of `rows` is padded, with weight zero. It does not
    communicate. Every process calls it, in the same order. Processes that hold the same part of
    those axes (a tensor axis across processes, say) must give the same rows.

    Args:
        batch: a pytree of arrays that share one leading axis, this process's examples.
        mesh: the mesh of all processes.
        axis_names: the mesh axis, or axes, over which the leading axis is sharded.
        rows: how many rows each process contributes, the same on all; by default the number this
            process has, which must then be the same everywhere. A multiple of the number of this
            process's devices along `axis_names`.

    Returns:
        The batch with global arrays of `rows` rows a process, and a boolean array of shape
        (global rows,), to be passed as `weights`.

    Raises:
        MetricInputError: leading axes that differ, more examples than `rows`, `rows` that the
            devices do not divide, or integers that do not fit the widest there are.

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
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    for name in names:
        if name not in mesh.axis_names:
            raise MetricInputError(
                f"global_batch: the mesh has no axis {name!r}; it has {mesh.axis_names}"
            )
    arrays = jax.tree.map(np.asarray, batch)
    sizes: set[int] = {x.shape[0] if x.ndim else -1 for x in jax.tree.leaves(arrays)}
    if len(sizes) != 1 or -1 in sizes:
        raise MetricInputError(
            "global_batch: expected arrays that share one leading axis; got shapes "
            + ", ".join(str(x.shape) for x in jax.tree.leaves(arrays))
        )
    for x in jax.tree.leaves(arrays):
        if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
            numeric(x, "global_batch")  # refuses what JAX would wrap
    size = sizes.pop()
    total = size if rows is None else rows
    sharding = NamedSharding(mesh, P(names))
    blocks = math.prod(mesh.shape[name] for name in names)
    # The blocks of the leading axis that this process's devices hold.
    spans = sharding.addressable_devices_indices_map((blocks,)).values()
    local = len({span[0].indices(blocks)[0] for span in spans if span is not None})
    if size > total or total % local:
        raise MetricInputError(
            f"global_batch: {size} examples for rows={total} and {local} devices of this process "
            f"along {names}; expected rows of at least {size}, and a multiple of {local}"
        )

    def placed(x: np.ndarray[Any, Any]) -> jax.Array:
        padded = np.zeros((total, *x.shape[1:]), x.dtype)
        padded[:size] = x
        shape = (total * (blocks // local), *x.shape[1:])
        return jax.make_array_from_process_local_data(sharding, padded, shape)

    return jax.tree.map(placed, arrays), placed(np.ones(size, np.bool_))
