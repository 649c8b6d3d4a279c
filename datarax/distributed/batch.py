"""Making global arrays from the examples that each process has read for itself."""

import math

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax._checks import numeric
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.distributed import collectives
from datarax.distributed.collectives import AxisName


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
    sizes: set[int] = {x.shape[0] if x.ndim else -1 for x in jax.tree.leaves(arrays)}
    if len(sizes) != 1 or -1 in sizes:
        raise MetricInputError(
            "global_batch: expected arrays that share one leading axis; got shapes "
            + ", ".join(str(x.shape) for x in jax.tree.leaves(arrays))
        )
    for x in jax.tree.leaves(arrays):
        if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
            numeric(x, "global_batch")  # raises if JAX would truncate an integer
    size = sizes.pop()
    total = size if rows is None else rows
    sharding = NamedSharding(mesh, P(names))
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
