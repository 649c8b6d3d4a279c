"""`KerasMetric`: a datarax metric in `model.compile` of Keras 3, on JAX."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax._errors import MetricInputError, MetricTypeError
from datarax._optional import optional
from datarax._xp import is_traced
from datarax.metric.arguments import refuse_ignored
from datarax.metric.base import Metric
from datarax.metric.other_names import snake_case
from datarax.metric.values import flat_items
from datarax.wrappers.collection import Collection
from datarax.wrappers.wrapper import checked_metric, value_shapes

if TYPE_CHECKING:
    import keras
else:
    keras = optional("keras", "keras", 'KerasMetric, with KERAS_BACKEND="jax" in the environment,')

Array = jax.Array | np.ndarray


@keras.saving.register_keras_serializable(package="datarax")
class KerasMetric(keras.Metric):
    """A `keras.Metric` around any datarax metric, for the JAX backend of Keras 3.

    Its whole state is in variables of Keras, one for each array, of its own dtype. So it works in
    `fit` and `evaluate`, in compiled steps and with `run_eagerly`, and on several devices with
    `keras.distribution`.

    `y_pred` of a model is `preds` of the metric, `y_true` is `target` and `sample_weight` is
    `weights`. A metric with other arguments says which it takes: `Mean().from_outputs(values=
    "preds")`. A last axis of length 1 is left out: of predictions, as those of `Dense(1)`, and of
    targets and weights that have as many axes as the predictions. Keras gives sample weights to
    `weighted_metrics=` only. It gives no metric its masks: padding needs sample weights of 0.

    Inside a compiled step, `result` is what `compute` gives, and Keras reads it in each step. At
    the end of an epoch it is what `results` gives: double precision, and warnings about data that
    could not be used. `keras_metric.metric` is the datarax metric, with its `results()` and
    `bounds()`.

    Keras saves neither the state nor the configuration of the metric with a model: load it with
    `keras.saving.load_model(path, compile=False)` and compile it again.

    Args:
        metric: a metric or a collection, without data, whose value is one number, or a dict of
            numbers. A dict of metrics becomes a `Collection`.
        name: the name in the logs of Keras. The numbers of a dict are logged as "name/key", without
            a name as "key". The default for one number is that of the class: "auroc".

    Raises:
        MissingExtraError: Keras cannot be imported; when `KerasMetric` itself is imported.
        MetricTypeError: `metric` is not a metric, or is a `per_device` metric.
        MetricInputError: Keras runs on another backend; the metric has data; its value is not made
            of numbers; or it reads an argument of `results`, such as `elapsed=`.

    Example:
        >>> import numpy as np
        >>> from datarax.metrics import F1
        >>> from datarax.training import KerasMetric
        >>> f1 = KerasMetric(F1())  # or model.compile(..., metrics=[KerasMetric(F1())])
        >>> f1.update_state(np.array([1, 0, 1]), np.array([[0.9], [0.8], [0.7]]))
        >>> print(f1.name, f1.result())
        f1 0.8
        >>> f1.reset_state()
        >>> print(f1.result())
        nan
    """

    def __init__(self, metric: Metric | Mapping[str, Metric], name: str | None = None):
        if keras.backend.backend() != "jax":
            raise MetricInputError(
                f"KerasMetric needs the JAX backend of Keras; got {keras.backend.backend()!r}. Set "
                f'KERAS_BACKEND="jax" in the environment before Keras is imported'
            )
        metric = Collection(metric) if isinstance(metric, Mapping) else metric
        metric = checked_metric(metric, "KerasMetric")
        _check_value(metric)
        super().__init__(name=name or snake_case(type(metric).__name__))
        self._prefix = f"{name}/" if name else ""
        leaves, self._structure = jax.tree.flatten(metric)
        self._leaves = [
            self.add_variable(x.shape, lambda *_, x=x, **__: _own(x), x.dtype.name) for x in leaves
        ]

    @property
    def metric(self) -> Metric:
        """The metric with the data so far, an immutable value."""
        return jax.tree.unflatten(self._structure, [x.value for x in self._leaves])

    def update_state(
        self, y_true: Array, y_pred: Array, sample_weight: Array | None = None
    ) -> None:
        """Updates the metric in place with a batch.

        Raises:
            MetricInputError: there are sample weights, and the metric takes none.
        """
        axes = len(y_pred.shape)
        outputs = {"preds": y_pred, "target": y_true, "weights": sample_weight}
        outputs = {
            name: x[..., 0] if len(x.shape) == axes > 1 and x.shape[-1] == 1 else x
            for name, x in outputs.items()
            if x is not None
        }
        refuse_ignored(self.metric.routes(), outputs, "KerasMetric.update_state")
        self._assign(self.metric.update(**self.metric.arguments_from(outputs)))

    def result(self) -> Any:
        """The value: a number, or a dict of numbers; of a compiled step, arrays of shape ()."""
        metric = self.metric
        value = metric.compute() if is_traced(metric) else metric.results()
        if not isinstance(value, dict):
            return value
        return {f"{self._prefix}{key}": x for key, x in flat_items(value)}

    def reset_state(self) -> None:
        """Resets the metric to its empty state, in place."""
        self._assign(self.metric.reset())

    def _assign(self, metric: Metric) -> None:
        for variable, x in zip(self._leaves, jax.tree.leaves(metric), strict=True):
            variable.assign(_own(x))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        raise MetricTypeError(
            f"KerasMetric {config.get('name')!r} is not saved with a model. Load the model with "
            f"keras.saving.load_model(path, compile=False), and compile it with its metrics again"
        )


def _own(x: Array) -> jax.Array:
    """A copy of a NumPy array: steps donate their variables, and empty metrics share arrays."""
    return jnp.asarray(x if isinstance(x, jax.Array) else np.array(x))


def _check_value(metric: Metric) -> None:
    """Raises unless the value of a metric is made of numbers, which are known without more."""
    shapes = [x.shape for x in jax.tree.leaves(value_shapes(metric))]
    if any(shapes):
        raise MetricInputError(
            f"KerasMetric: Keras logs numbers, and the value of {metric!r} has arrays of shapes "
            f"{', '.join(map(str, filter(None, shapes)))}. Choose an average=, or name the values "
            f"with Classwise(metric, names)"
        )
    reads = sorted({each.argument for each in metric.readers()})
    if reads:
        raise MetricInputError(
            f"KerasMetric: {metric!r} reads {', '.join(reads)} of results(), and Keras does not "
            f"give it"
        )
