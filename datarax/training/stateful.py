"""A metric that is updated in place: the Flax NNX shell."""

from typing import Any

from flax import nnx

from datarax._checks import kind
from datarax._errors import MetricTypeError
from datarax.metrics.base import Metric


class StatefulMetric(nnx.Metric):
    """A `flax.nnx.Metric` around any datarax metric, with its whole state in one `nnx.Variable`.

    Works alone, in `nnx.MultiMetric`, and under `nnx.jit`, `nnx.scan`, and `nnx.split` and
    `nnx.merge` inside `shard_map`. However many metrics a `Collection` holds, NNX sees one
    Variable, so a step pays the dispatch of one.

    Args:
        metric: a datarax metric: plain, a `Collection`, or `per_device`.

    Raises:
        MetricTypeError: something that is not a datarax metric.

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

    def __init__(self, metric: Metric):
        if not isinstance(metric, Metric):
            raise MetricTypeError(f"StatefulMetric expects a datarax.Metric; got {kind(metric)}")
        self.state = MetricState(metric)

    @property
    def metric(self) -> Metric:
        """The metric as it stands: an immutable value."""
        return self.state.get_value()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Folds a batch in, in place; arguments as the metric's own `update`.

        Named outputs are routed as in a `Collection`: `from_outputs` is respected, and what the
        metric does not name is left alone, as `nnx.MultiMetric` wants it.
        """
        metric = self.metric
        if not args:
            kwargs = metric.arguments_from(kwargs, "StatefulMetric: the metric")
        self.state.set_value(metric.update(*args, **kwargs))

    def sync(self, axis_name: Any = None) -> None:
        """Merges over the devices along `axis_name`, in place; only inside `shard_map` or `pmap`.

        Nothing is left to do for `per_device`: it takes no axis name, keeps its layout, and merges
        in `compute`.

        Raises:
            MetricInputError: an axis name for `per_device`, or none for another metric.
        """
        self.state.set_value(self.metric.synced_in_place(axis_name))

    def compute(self) -> Any:
        """The value; see `Metric.compute`."""
        return self.metric.compute()

    def reset(self) -> None:
        """Empties the metric, in place."""
        self.state.set_value(self.metric.reset())


class MetricState(nnx.Variable):
    """The one Variable of a `StatefulMetric`; its value is the metric, a pytree."""
