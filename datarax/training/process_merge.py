"""`merge_processes`: one metric of those that the processes hold, each for its own data."""

from functools import reduce
from typing import TypeVar

import jax
from flax import serialization

from datarax._checks import kind, timeout_seconds
from datarax._errors import MetricTypeError, NotAddressableError, TracedValueError
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced
from datarax.algebra.saving import require_arrays
from datarax.distributed.barrier import barrier_of
from datarax.distributed.placement import outside_mesh
from datarax.metric.base import Metric, without_copies
from datarax.training.agreement import agree

M = TypeVar("M", bound=Metric)


@outside_mesh
def merge_processes(metric: M, *, timeout: float | None = None) -> M:
    """The metrics of all processes, each with its own data, merged in the order of the ranks.

    For metrics that each process updates for itself: metrics of texts, evaluators that read their
    own files, states on the host. Every process must call it, in the same order, and gets the same
    result, bit for bit. On a single process it returns the metric.

    The states go through the key-value store of `jax.distributed`, not over the devices: process 0
    merges them on the host, and sends the result to all. Each process sends its state and receives
    one, in messages of 1 MiB. What was sent is deleted from the store afterwards.

    The result holds the data of all: read it, and go on with the metric of the process or with
    `reset()`. If each process updates the result and merges again, its data counts once for each.

    A metric that was updated with global arrays, or has copies on devices of other processes, holds
    the data of all processes already. It is refused.

    Args:
        metric: a metric or a `Collection`, on the host or on devices of this process. It is not
            changed, also where the call fails.
        timeout: the longest time in seconds of each wait for the other processes; `None` for no
            limit. There are three waits: until all have called, until process 0 has merged, and
            until all have received the result.

    Returns:
        The merged metric on every process, where `metric` is: on the host, or on its devices.

    Raises:
        MetricTypeError: `metric` is no metric; or it is called while a function is traced.
        MetricInputError: `timeout` is negative.
        NotAddressableError: this process holds only a part of the metric, or all hold the same one.
        DonatedStateError: a step donated the arrays of the metric.
        ConfigurationMismatchError: the processes hold other metrics or configurations; names the
            field. All processes raise it.
        MetricTimeoutError: some processes did not arrive in time, or failed; names them. All
            processes raise it, also those that arrive later.

    Example:
        >>> import datarax
        >>> rates = datarax.metrics.WER().update(["a b"], ["a c"])
        >>> print(datarax.merge_processes(rates, timeout=60).results())
        0.5
    """
    about = f"merge_processes({type(metric).__name__})"
    timeout_seconds(timeout)
    if jax.process_count() == 1:
        _check_own(metric, about)
        return metric
    barrier, rank = barrier_of("merge_processes"), jax.process_index()
    try:
        with barrier.aborting():
            _check_own(metric, about)
            own = fetched(without_copies(metric))
            if rank:
                barrier.publish("state", serialization.to_bytes(own))
        agree(barrier, own, timeout, about)
        with barrier.aborting():
            if not rank:
                empty, number = own.emptied(), barrier.round - 1
                states = (
                    serialization.from_bytes(empty, barrier.published("state", other, number))
                    for other in range(1, jax.process_count())
                )
                merged = reduce(lambda a, b: a.merge(b), states, own)
                barrier.publish("merged", serialization.to_bytes(merged))
        barrier.wait(timeout, about)
        with barrier.aborting():
            data = barrier.published("merged", 0, barrier.round - 1)
            result: PyTree = serialization.from_bytes(metric, data)
        barrier.wait(timeout, about)
    finally:
        barrier.withdraw()
    return result


def _check_own(metric: Metric, about: str) -> None:
    """Raises unless this process, and it alone, holds the metric."""
    if not isinstance(metric, Metric):
        raise MetricTypeError(f"merge_processes expects a datarax.Metric; got {kind(metric)}")
    if is_traced(metric):
        raise TracedValueError(
            f"{about}: the values are not known while a function is traced (jit, scan, vmap, "
            f"shard_map). Return the metric, and call merge_processes outside"
        )
    require_arrays(metric)
    if not all(map(is_addressable, jax.tree.leaves(metric))):
        raise NotAddressableError(
            f"{about}: the metric is on devices of several processes, so it holds their data "
            f"already; read it with results(), or merge its copies with sync()"
        )
