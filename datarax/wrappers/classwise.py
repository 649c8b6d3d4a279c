"""The values of a metric by name, such as the name of a class."""

from dataclasses import replace

import jax

from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax.algebra.fields import field
from datarax.metric.arguments import joined
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.values import is_wide
from datarax.wrappers.wrapper import Wrapper, value_shapes

# A dict of results has the number of values that could not be used under this name.
_RESERVED = ("invalid",)


class Classwise(Wrapper):
    """The values of a metric by name: a dict with one entry for each name.

    The value of the metric has a leading axis with one entry for each name: the value of each class
    with `average=None`, for example. The dict is sorted by name, as all dicts of results are. In a
    `Collection`, results are called "recall/cat". Bounds are by name, too. The number of values
    that could not be used stays that of the metric: a dict of results has it as "invalid". No data
    gives what the metric gives.

    `update` takes what that of the metric takes, and nothing is copied or computed again: in a
    `Collection`, the metric shares its statistic as it does without names.

    Args:
        metric: a metric without copies for each device.
        names: distinct strings, in the order of the first axis of the value.

    Raises:
        MetricTypeError: `metric` is not such a metric, or a name is not a string.
        MetricInputError: the value of the metric does not have one entry for each name; or a name
            is empty, occurs twice, or is "invalid".

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.metrics import Recall
        >>> recall = datarax.Classwise(Recall(num_classes=2, average=None), ["cat", "dog"])
        >>> print(recall.update(jnp.array([0, 1, 1, 0]), jnp.array([0, 1, 1, 1])).results())
        {'cat': 1.0, 'dog': 0.6666666666666666}
    """

    names: tuple[str, ...] = field(kw_only=False)
    """The name of each entry of the first axis of the value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names = _checked(self.names)
        value = value_shapes(self.metric)
        shapes = [x.shape for x in jax.tree.leaves(value)]
        if not shapes or any(shape[:1] != (len(self.names),) for shape in shapes):
            raise MetricInputError(
                f"Classwise: {self.metric!r} gives values of shape "
                f"{', '.join(map(str, shapes)) or 'none'}, and there are {len(self.names)} names; "
                f"expected one entry of the first axis for each name. A metric of classes gives "
                f"one value for each with average=None"
            )

    def read_from(self) -> Metric:
        return self.metric.read_from()

    def reading(self) -> Reading:
        reading = self.metric.reading()
        # A metric that is a collection has several bounds, each by the name of a member.
        bounds = {
            joined(name, member): self._entry(ends, i)
            for i, name in enumerate(self.names)
            for member, ends in reading.bounds.items()
        }
        return replace(
            reading,
            value={name: self._entry(reading.value, i) for i, name in enumerate(self.names)},
            bounds=bounds,
            flat=False,
        )

    def _entry(self, value: PyTree, i: int) -> PyTree:
        return jax.tree.map(lambda x: x[i], value, is_leaf=is_wide)


def _checked(names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, tuple | list):
        raise MetricTypeError(f"Classwise: names={names!r}; expected a list of strings")
    for name in names:
        if not isinstance(name, str):
            raise MetricTypeError(f"Classwise: the name {name!r} is not a string")
        if not name or name in _RESERVED or names.count(name) > 1:
            why = "occurs twice" if names.count(name) > 1 else "cannot be used"
            raise MetricInputError(f"Classwise: the name {name!r} {why}; expected distinct names")
    return tuple(names)
