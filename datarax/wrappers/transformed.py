"""A metric of other arguments, or with another result: functions before and after it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Self

import jax
import numpy as np

from datarax._checks import numeric
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metric.arguments import Route, is_numbers, refuse_ignored
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.wrappers.wrapper import Wrapper


class Transformed(Wrapper):
    """A metric whose arguments are made by a function, and whose value another function changes.

    With `inputs`, `update` takes whatever `inputs` takes, by name: the function gets the dict of
    all arguments, and returns a dict from which the metric takes its own by name, as from the
    outputs of a step: others are ignored, and `from_outputs` of the metric applies. In a
    `Collection` or a `StatefulMetric` the function gets all outputs of the step; so none of them is
    refused there for its name, such as `mask`. Without `inputs`, `update` takes what that of the
    metric takes.

    With `result`, `compute` gives `result(value)`, with the value as `compute` of the metric gives
    it: NaN where there is no data, or where data that cannot be used is propagated. A float that
    the function makes of such data is NaN, too. What `result` gives has no bounds, and is no longer
    exact beyond float32.

    Both functions are traced, so they use `jax.numpy`. `inputs` gets the arrays as they are given:
    of a `per_device` metric the global arrays, whose shards stay where they are if the function
    maps row by row. Weights are an argument as any other: return them, or they do not count.

    A function is configuration: two metrics can be merged if both have the same function object. A
    lambda that is written anew for each metric is another function, and so is compiled anew, and
    refused by `merge`, which names the field. Define functions once, at the top of a module; then
    copies and pickles work, too. A checkpoint compares functions by name.

    Args:
        metric: a metric without copies for each device.
        inputs: maps a dict of arguments to a dict of arguments of the metric; None: no change.
        result: maps the value to another pytree of arrays; None: no change.

    Raises:
        MetricTypeError: `metric` is not such a metric, or a function cannot be called or hashed.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> from datarax.metrics import Mean
        >>> def squared(outputs):
        ...     return {"values": (outputs["logits"] - outputs["labels"]) ** 2}
        >>> rmse = datarax.Transformed(Mean(), inputs=squared, result=jnp.sqrt)
        >>> rmse = rmse.update(logits=jnp.array([1.0, 5.0]), labels=jnp.array([1.0, 1.0]))
        >>> print(round(rmse.results(), 4))
        2.8284
    """

    inputs: Callable[[dict[str, PyTree]], Mapping[str, PyTree]] | None = field(
        default=None, kw_only=False
    )
    """Maps the dict of arguments of `update` to a dict that holds those of the metric."""
    result: Callable[[PyTree], PyTree] | None = field(default=None, kw_only=False)
    """Maps the value of the metric to the value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("inputs", "result"):
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise MetricTypeError(
                    f"Transformed: {name}={function!r}; expected a function or None"
                )

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        if self.inputs is None:
            return self.metric.calls(args, kwargs)
        if args:
            raise MetricInputError(
                f"Transformed.update takes arguments by name if inputs= is given, and got "
                f"{len(args)} by position"
            )
        mapped = self._mapped({name: _as_array(x, name) for name, x in kwargs.items()})
        refuse_ignored(self.metric.routes(), mapped, "Transformed: in what inputs= returned")
        return self.metric.calls((), self.metric.arguments_from(mapped))

    def _mapped(self, given: dict[str, PyTree]) -> Mapping[str, PyTree]:
        function: PyTree = self.inputs
        try:
            # A copy, because the function may change the dict that it gets.
            mapped = function(dict(given))
        except KeyError as error:
            # The key is a missing output, or else the function itself is wrong.
            (name,) = error.args or (None,)
            if not isinstance(name, str) or name in given:
                raise
            raise MetricInputError(
                f"Transformed: inputs needs the output {name!r}, and update() was given: "
                f"{', '.join(sorted(given)) or 'none'}"
            ) from error
        if not isinstance(mapped, Mapping):
            raise MetricTypeError(
                f"Transformed: inputs returned {type(mapped).__name__}; expected a dict of the "
                f"arguments of {type(self.metric).__name__}.update"
            )
        return mapped

    def routes(self) -> list[Route]:
        if self.inputs is None:
            return self.metric.routes()
        # The function gets all outputs, so none of them counts as ignored.
        return [Route(type(self), "inputs", False, output=None, routed=True, takes_all=True)]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return self.metric.arguments_from(outputs) if self.inputs is None else dict(outputs)

    def from_outputs(self, **outputs: str | None) -> Self:
        if self.inputs is not None:
            raise MetricInputError(
                "Transformed.from_outputs: inputs= gets all outputs by their names; choose them in "
                "that function, or call from_outputs on the metric within"
            )
        return super().from_outputs(**outputs)

    def read_from(self) -> Metric:
        return self if self.inputs is not None else self.metric.read_from()

    def reading(self) -> Reading:
        reading = self.metric.reading()
        if self.result is None:
            return reading
        value = jax.tree.map(xp.asarray, self.result(reading.rounded()))
        # The function may drop a NaN.
        # Bounds are dropped: a function that is not monotonic maps no ends to ends.
        return replace(reading, value=reading.propagated(value), bounds={}, flat=False)


def _as_array(x: PyTree, name: str) -> PyTree:
    """Lists of numbers and NumPy's numbers as JAX arrays, as they are within `jit`."""
    is_array = isinstance(x, np.ndarray | np.generic) and (
        x.dtype == np.bool_ or xp.issubdtype(x.dtype, xp.number)
    )
    return numeric(x, name) if is_array or is_numbers(x) else x
