"""`replicate`: places a metric on the devices of a mesh, so that a step is compiled once."""

from typing import TypeVar

import jax
from jax.sharding import Mesh, NamedSharding

from datarax._checks import kind
from datarax._errors import MetricTypeError, NotAddressableError
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced
from datarax.algebra.pytrees import MeshNode
from datarax.algebra.saving import requiring_arrays
from datarax.algebra.state import is_untouched, marked_untouched, walk
from datarax.distributed.placement import full_spec, is_same_everywhere, outside_mesh, sharded
from datarax.metric.base import Metric

M = TypeVar("M", bound=Metric)


@outside_mesh
@requiring_arrays
def replicate(metric: M, mesh: Mesh) -> M:
    """Places a metric on a mesh: every device holds the whole state.

    Use it for a metric that is carried through a compiled step whose other arguments are on a
    mesh. The step returns its state on the mesh, so a metric that comes from the host at first is
    another type of argument, and the step would be compiled a second time. `reset`,
    `load_state_dict` and `datarax.io.restore` keep a state where it is.

    A replicated metric is global: an update with sharded arrays communicates. `per_device` keeps a
    copy for each device instead, whose updates do not. Nothing is compiled here. On several
    processes, all must call it.

    Args:
        metric: a plain metric or a `Collection`, on the host or on any devices. What it has
            accumulated is kept.
        mesh: a `jax.sharding.Mesh`, with `Auto` or `Explicit` axes.

    Returns:
        The same metric with its arrays replicated over the mesh. Arrays that are there already
        are not copied.

    Raises:
        MetricTypeError: `metric` is no metric, or has copies for each device; `mesh` is no mesh.
        NotAddressableError: there are several processes, and they hold different states; or this
            process does not hold the whole state.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> loss = datarax.replicate(datarax.metrics.Mean(), mesh)
        >>> step = jax.jit(lambda loss, values: loss.update(values))
        >>> for _ in range(2):
        ...     loss = step(loss, jnp.array([1.0, 2.0]))
        >>> print(loss.results(), loss.reset().results())
        1.5 nan
    """
    if not isinstance(metric, Metric):
        holds = isinstance(getattr(metric, "metric", None), Metric)
        raise MetricTypeError(
            f"replicate expects a plain datarax.Metric; got {kind(metric)}"
            f"{', whose .metric is one' if holds else ''}"
        )
    if not isinstance(mesh, Mesh):
        raise MetricTypeError(f"replicate expects a jax.sharding.Mesh; got {kind(mesh)}")
    name = type(metric).__name__
    if any(isinstance(each, MeshNode) for each in walk(metric)):
        raise MetricTypeError(
            f"replicate expects a metric without copies for each device; got a {name} that is, or "
            f"holds, a per_device metric, which is on its mesh already"
        )

    def there(x: PyTree) -> NamedSharding:
        return NamedSharding(mesh, full_spec(mesh, x.ndim))

    leaves, structure = jax.tree.flatten(metric)
    if is_traced(leaves):
        return structure.unflatten([jax.device_put(x, there(x)) for x in leaves])
    # So that a second call, as in a loop, copies nothing and waits for no other process.
    if all(isinstance(x, jax.Array) and x.sharding == there(x) for x in leaves):
        return metric
    if not all(is_addressable(x) or x.is_fully_replicated for x in leaves):
        raise NotAddressableError(
            f"replicate({name}): this process does not hold the whole state; expected a metric on "
            f"the host, or replicated over its devices"
        )
    arrays = fetched(leaves)
    # By bytes: NaN equals itself, and -0.0 does not equal 0.0.
    data = (x.tobytes() for x in arrays)
    if not is_same_everywhere(data, mesh.devices.flatten().tolist()):
        raise NotAddressableError(
            f"replicate({name}): the processes hold different states; call replicate on an empty "
            f"metric, and update it with global arrays (datarax.distributed.global_batch)"
        )
    placed = structure.unflatten([sharded(x, there(x)) for x in arrays])
    # The arrays are copies, by which an empty state is no longer known as one.
    return marked_untouched(placed) if is_untouched(metric) else placed
