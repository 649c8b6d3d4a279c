"""A metric that is updated in place, for Flax NNX."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
from flax import nnx

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax.algebra.pytrees import MeshNode
from datarax.distributed.collectives import AxisName
from datarax.distributed.placement import placed_like
from datarax.metric.arguments import refuse_ignored
from datarax.metric.base import Metric
from datarax.wrappers.collection import Collection


class StatefulMetric(nnx.Metric):
    """A `flax.nnx.Metric` around any datarax metric, with its whole state in one `nnx.Variable`.

    It works alone and in `nnx.MultiMetric`, under `nnx.jit` and `nnx.scan`, and inside `shard_map`
    with `nnx.split` and `nnx.merge`. A `Collection` of any size is one Variable for NNX, so the
    cost of dispatching a step does not grow with the number of metrics.

    Args:
        metric: a datarax metric: plain, a `Collection`, or `per_device`. A dict of metrics becomes
            a `Collection`.

    Raises:
        MetricTypeError: `metric` is not a datarax metric.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.training import StatefulMetric
        >>> loss = StatefulMetric(datarax.metrics.Mean())
        >>> loss.update(values=jnp.array([1.0, 2.0]))
        >>> print(loss.compute())
        1.5
        >>> loss.reset()
        >>> print(loss.compute())
        nan
    """

    def __init__(self, metric: Metric | Mapping[str, Metric]):
        self.state: MetricState = MetricState(_checked(metric))

    @property
    def metric(self) -> Metric:
        """The current metric, an immutable value.

        It can be assigned: `stateful.metric = datarax.io.restore(path, like=stateful.metric)`.
        Arrays on the host go to where those of the current metric are, if that has the same
        configuration. A dict of metrics becomes a `Collection`.

        Raises:
            MetricTypeError: what is assigned is not a datarax metric.
        """
        return self.state.get_value()

    @metric.setter
    def metric(self, metric: Metric | Mapping[str, Metric]) -> None:
        new, now = _checked(metric), self.metric
        same = jax.tree.structure(new) == jax.tree.structure(now)
        self.state.set_value(placed_like(now, new) if same else new)

    if not TYPE_CHECKING:

        def __setattr__(self, name: str, value: PyTree) -> None:
            # Flax registers what is assigned as an attribute of the object, before a property of
            # its class could take it.
            if isinstance(getattr(type(self), name, None), property):
                object.__setattr__(self, name, value)
            else:
                super().__setattr__(name, value)

    def update(self, *args: PyTree, **kwargs: PyTree) -> None:
        """Updates the metric in place with a batch; the arguments are those of its `update`.

        Keyword arguments are outputs of the step, as in a `Collection`: `from_outputs` applies, and
        outputs that the metric does not take are ignored, as in `nnx.MultiMetric`, except those
        whose names show that they are meant for it, such as `mask`.

        Raises:
            MetricInputError: an output that the metric needs is missing; or the metric does not
                take an output with a name that is used for weights, or one that is similar to an
                argument that was not given. See `Collection.update`.
        """
        metric = self.metric
        if not args:
            # Arguments by position are those of the metric itself, not outputs of a step.
            refuse_ignored(metric.routes(), kwargs, "StatefulMetric.update")
            kwargs = metric.arguments_from(kwargs)
        self.state.set_value(metric.update(*args, **kwargs))

    def sync(self, axis_name: AxisName | None = None) -> None:
        """Merges the metric over the devices along `axis_name`, in place.

        Call it inside `shard_map` or `pmap`. For a `per_device` metric, it takes no axis name and
        does nothing: such a metric keeps its layout and merges in `compute`.

        Raises:
            MetricInputError: `axis_name` is given for a `per_device` metric, or is missing for
                another metric.
        """
        metric = self.metric
        if axis_name is not None:
            self.state.set_value(metric.sync(axis_name))
        elif not isinstance(metric, MeshNode):
            raise MetricInputError(
                f"sync: axis_name=None for {type(metric).__name__}; expected the name of a bound "
                f"axis"
            )

    def merge(self, metric: Metric) -> None:
        """Merges another metric of the same configuration into this one, in place.

        Raises:
            ConfigurationMismatchError: the two differ in class or configuration; names the field.
        """
        self.state.set_value(self.metric.merge(metric))

    def compute(self) -> PyTree:
        """The value of the metric; see `Metric.compute`."""
        return self.metric.compute()

    def results(self, *, as_json: bool = False, **given: float) -> PyTree:
        """The value on the host, as Python numbers and NumPy arrays; see `Metric.results`."""
        return self.metric.results(as_json=as_json, **given)

    def reset(self) -> None:
        """Resets the metric to its empty state, in place."""
        self.state.set_value(self.metric.reset())


def _checked(metric: Metric | Mapping[str, Metric]) -> Metric:
    if isinstance(metric, Mapping):
        metric = Collection(metric)
    if not isinstance(metric, Metric):
        raise MetricTypeError(f"StatefulMetric expects a datarax.Metric; got {kind(metric)}")
    return metric


class MetricState(nnx.Variable[Metric]):
    """The only Variable of a `StatefulMetric`. Its value is the metric, a pytree."""
