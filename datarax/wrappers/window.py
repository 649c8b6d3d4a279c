"""`Window`: the value of a metric over the last updates."""

from typing import Self

import jax

from datarax._checks import positive_int, python_int
from datarax._typing import PyTree
from datarax._xp import vmap
from datarax.algebra.fields import state
from datarax.algebra.row_merge import Target
from datarax.metrics.base import Metric
from datarax.metrics.reading import Reading
from datarax.wrappers.numbered import Ring
from datarax.wrappers.wrapper import Stacked, checked_metric


class Window(Stacked):
    """A metric of the last `size` updates.

    `update` takes what the metric's own `update` takes, and `compute` gives what its `compute`
    gives. The metric holds the states of the last `size` updates, which `compute` merges. An update
    costs what it costs the metric, and replaces the oldest state.

    Every call of `update` is an update, also if the batch is empty or all weights are zero. So the
    value depends on how data is split into batches. `reset` starts to count again; so does a
    collector, which resets what it collects.

    States are merged by the number of the update: the n-th updates of two metrics become one, and
    the newest `size` numbers are kept. Devices that are updated together have equal numbers, so a
    window over devices is one of `size` steps. In `pmap` and `shard_map(check_vma=False)`, keep the
    metric of each device, and sync it only to read it: a metric that is reset for each step would
    always be at its first update. Updates are counted up to `2**31`.

    Args:
        metric: a metric or a collection, without data. Not one that counts updates itself.
        size: how many updates the window has.

    Raises:
        MetricInputError: the metric has data or counts updates, or `size` is not positive.
        MetricTypeError: `metric` is not a metric, or `size` is not an integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Window
        >>> from datarax.metrics import Mean
        >>> loss = Window(Mean(), 2)
        >>> for batch in ([9.0, 9.0], [1.0, 2.0, 3.0], [7.0]):
        ...     loss = loss.update(jnp.array(batch))
        >>> print(loss.compute())
        3.25
    """

    size: int
    stack: Ring = state()

    def __init__(self, metric: Metric, size: int):
        metric = checked_metric(metric, "Window")
        self.size = size = python_int(size)
        positive_int(size, "size")
        self.stack = Ring.of(metric, size)

    def _apply(self, calls: PyTree) -> Self:
        return self.with_parts({"stack": self.stack.push(self.metric.apply(calls))})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # The update of all places, which have rings of equal numbers.
        empty = jax.tree.map(lambda x: x[:, 0], self.stack.reset().states)
        updated = empty.apply_at(calls, target)
        return self.with_parts({"stack": vmap(lambda x, y: x.push(y))(self.stack, updated)})

    def reading(self) -> Reading:
        return self.stack.merged().reading()

    def invalid_count(self) -> PyTree:
        return self.stack.merged().invalid_count()
