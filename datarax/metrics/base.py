"""`Metric`: a state with a formula, `compute`, that reads it; and how results are read."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import as_float
from datarax._errors import (
    InvalidValuesError,
    InvalidValuesWarning,
    MetricInputError,
    UnknownMetricError,
)
from datarax._typing import OnInvalid, PyTree
from datarax.distributed.collectives import AxisName
from datarax.metrics.routing import Outputs, Route
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact, WholeOrFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.fields import field
from datarax.statistics.state import State, walk

Method = TypeVar("Method", bound=Callable[..., Any])


class Metric(State):
    """An immutable pytree with `update`, `merge`, `sync`, `compute` and `reset`.

    To define a metric, write a subclass:

    - Declare the configuration as annotated fields.
    - Create the state in the class body: accumulators or statistics. If it depends on the fields,
      create it in `__post_init__`.
    - Define `update`, which returns `self.replace(...)`, and `compute`, the formula.

    The base class provides the constructor, `merge`, `sync`, `reset`, saving, `on_invalid`, the
    compilation of `compute`, and what `per_device` and `Collection` need.

    To use `on_invalid`, count the values that cannot be used in an accumulator called `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> class Peak(datarax.Metric):
        ...     scale: float = 1.0
        ...     peak = datarax.MetricAccumulator(-jnp.inf, "max")
        ...     def update(self, values):
        ...         return self.replace(peak=self.peak.update(values))
        ...     def compute(self):
        ...         return self.scale * self.peak.value
        >>> print(Peak(scale=2.0), Peak(scale=2.0).update(jnp.array([1.0, 4.0])).compute())
        Peak(scale=2.0) 8.0
    """

    on_invalid: OnInvalid = "exclude"
    """What the result is if some data could not be used: NaN, infinities, labels out of range or
    negative weights. "exclude" leaves such data out. "propagate" makes the result NaN. "raise"
    raises `InvalidValuesError` when the result is read outside `jit`. Such data is always counted.
    """
    outputs: Outputs = field(default=(), init=False)
    """Pairs of an argument of `update` and the output of a step for it: see `from_outputs`."""

    owns_mesh: ClassVar[bool] = False
    """Whether the metric has its own mesh of devices, and so syncs without an axis name."""
    broadcast_arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of `update`, besides `weights`, that may be one value for all examples."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "compute" in vars(cls):
            cls.compute = _read_under_policy(cls.compute)

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with the batch folded in; no communication.

        If a class does not define `update`, its state called `statistic` is updated.
        """
        statistic: Any = self.children().get("statistic")
        if statistic is None:
            raise TypeError(f"{type(self).__name__} does not define update()")
        return self.replace(statistic=statistic.update(*args, **kwargs))

    def compute(self) -> PyTree:
        """The value: an array, or a pytree of arrays. NaN where there is no data."""
        return read(self).checked(type(self).__name__).rounded()

    def results(self) -> Any:
        """The value on the host, as Python numbers and NumPy arrays; waits until it is computed.

        Counts and sums are exact. If some data could not be used, the count is reported: a dict of
        results gets an item "<name>/invalid"; for a single result, there is a warning.

        Raises:
            InvalidValuesError: some data could not be used, and `on_invalid` is "raise".
        """
        return read(self).on_host(type(self).__name__)

    def invalid_count(self) -> Any:
        """How many values or examples could not be used; 0 for a metric that does not check."""
        total = MetricAccumulator(0)
        # Every state reports its own counts, so nothing is counted twice.
        for each in walk(self):
            for count in each.unusable():
                total = total.update(count)
        return total.value

    def from_outputs(self, **outputs: str | None) -> Self:
        """A copy that takes arguments of `update` from outputs of other names.

        For a metric in a `Collection`, whose `update` gets the outputs of a step by name.
        `Mean().from_outputs(values="loss")` takes the argument `values` from the output "loss".
        `None` leaves an optional argument out: `Mean().from_outputs(values="loss", weights=None)`
        does not take the weights that the other metrics share.

        Raises:
            UnknownMetricError: `update` has no argument of that name.
            MetricInputError: the name of an output is not a string, or a required argument is left
                out.
        """
        required = dict(arguments(self))
        for argument, output in outputs.items():
            if argument not in required:
                raise UnknownMetricError(
                    f"{type(self).__name__}.update has no argument {argument!r}; "
                    f"it has: {', '.join(required)}"
                )
            if not isinstance(output, str) and (output is not None or required[argument]):
                raise MetricInputError(
                    f"{type(self).__name__}.from_outputs({argument}={output!r}): expected the name "
                    f"of an output{'' if required[argument] else ', or None'}"
                )
        return self.with_parts({"outputs": tuple(sorted((dict(self.outputs) | outputs).items()))})

    # What wrappers use: a `Collection`, `per_device`, the collector. See docs/architecture.md.

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PyTree:
        """The update as a tree of `Call`s: one for each metric that is not a wrapper.

        A wrapper may change the arrays in it, for example pad them; `apply` then does the update.
        """
        takes = tuple(name for name, _ in arguments(self))
        return Call(args, dict(kwargs), type(self).__name__, takes, self.broadcast_arguments)

    def apply(self, calls: PyTree) -> Self:
        """The metric updated with the arguments in a tree from `calls`."""
        return self.update(*calls.args, **calls.kwargs)

    def arguments_from(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Picks the arguments of `update` from the named outputs of a step; ignores the others.

        Raises:
            MetricInputError: an output is missing; names it.
        """
        given = {}
        for route in self.routes():
            if route.output is None:
                continue
            if route.output in outputs:
                given[route.argument] = outputs[route.output]
            # An optional argument may be missing, unless `from_outputs` names an output for it.
            elif route.required or route.routed:
                raise MetricInputError(
                    f"{route.metric} needs the output {route.output!r} for its argument "
                    f"{route.argument!r}, and update() was given: "
                    f"{', '.join(sorted(outputs)) or 'none'}. Pass it, or name the right one with "
                    f".from_outputs({route.argument}=...)"
                )
        return given

    def routes(self) -> list[Route]:
        """The arguments of `update`, each with the output of a step that feeds it."""
        routes, name = dict(self.outputs), type(self).__name__
        return [
            Route(name, argument, routes.get(argument, argument), required, argument in routes)
            for argument, required in arguments(self)
        ]

    def reading(self) -> "Reading":
        """The value, and the count of what could not be used. `read` compiles it."""
        value = _formula(self)(self)
        # A double-float is an intermediate result: it is rounded. `results` needs an `Exact` as is.
        value = jax.tree.map(_round_double, value, is_leaf=_is_wide)
        invalid = self.invalid_count()
        if self.on_invalid == "propagate":
            value = jax.tree.map(lambda x: _nan_where(invalid > 0, x), value, is_leaf=_is_wide)
        return Reading(value, {"": invalid}, (("", self.on_invalid),))

    def synced_in_place(self, axis_name: AxisName | None) -> Self:
        """The metric that an object which is updated in place keeps after a sync: the global one.

        Raises:
            MetricInputError: `axis_name` is `None`; or it is given for a metric with its own mesh.
        """
        if axis_name is None:
            raise MetricInputError(
                f"sync: axis_name=None for a {type(self).__name__}; expected the name of a bound "
                f"axis"
            )
        return self.sync(axis_name)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments of `update` for one metric that is not a wrapper: a pytree of arrays."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    metric: str = dataclass_field(metadata={"static": True})
    """The name of the class of the metric."""
    takes: tuple[str, ...] = dataclass_field(metadata={"static": True})
    """The names of the arguments of its `update`."""
    broadcast: tuple[str, ...] = dataclass_field(metadata={"static": True})
    """The `broadcast_arguments` of the metric."""
    path: str = dataclass_field(default="", metadata={"static": True})
    """The name of the metric in a collection."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reading:
    """The record that `compute`, `results` and a collector take their results from."""

    value: PyTree
    """Arrays; but an `Exact` for a value that no array holds exactly."""
    invalid: dict[str, Any]
    """How many values could not be used, by the name of each metric in a collection. The name is ""
    if the metric is not a collection."""
    policies: tuple[tuple[str, str], ...] = dataclass_field(metadata={"static": True})
    """The `on_invalid` of each metric, by the same names."""

    def rounded(self) -> PyTree:
        """The value as arrays."""
        return jax.tree.map(_to_array, self.value, is_leaf=_is_wide)

    def checked(self, name: str) -> Self:
        """This reading, if the policies allow it; counts that are traced are not checked.

        Raises:
            InvalidValuesError: some data could not be used, and a policy is "raise".
        """
        for member, policy in self.policies:
            count = self.invalid[member]
            # Inside `jit` the count is not known, so nothing can be raised.
            if policy == "raise" and not isinstance(jax.tree.leaves(count)[0], Tracer):
                _refuse_invalid(member or name, int(count))
        return self

    def on_host(self, name: str) -> Any:
        """The value as Python numbers and NumPy arrays, after the policies; see `results`."""
        self.checked(name)
        results = jax.tree.map(_to_host, self.value, is_leaf=_is_wide)
        for member, policy in self.policies:
            count = int(self.invalid[member])
            if count == 0:
                continue
            if isinstance(results, dict):
                results[f"{member}/invalid".lstrip("/")] = count
            else:
                warnings.warn(
                    f"{name}: {count} values or examples could not be used "
                    f"(NaN, infinite or out of range); policy: {policy}",
                    InvalidValuesWarning,
                    stacklevel=3,
                )
        return results


@jax.jit
def read(metric: Metric) -> Reading:
    """The reading of a metric, on its devices: one program, compiled once per configuration."""
    # The outputs are copied. Otherwise an output that is also an input would share its buffer, and
    # a later step may donate that buffer.
    return jax.tree.map(jnp.copy, metric.reading())


def shareable(update: Method) -> Method:
    """Declares that an `update` only passes its arguments to `self.statistic.update`.

    Then metrics in a `Collection` that have equal statistics of the same outputs share one.
    """
    vars(update)["shareable"] = True
    return update


def shares_statistic(metric: Metric) -> bool:
    """Whether a metric may share its statistic: it has no other state, and only updates it."""
    update = type(metric).update
    # The base `update` only updates the statistic; any other one must be marked as `shareable`.
    declared = update is Metric.update or getattr(update, "shareable", False)
    return declared and tuple(metric.children()) == ("statistic",)


def arguments(metric: Metric) -> list[tuple[str, bool]]:
    """The named arguments of a metric's `update`, and whether each is required."""
    # Without an `update` of its own, a metric takes the arguments of its statistic.
    update = metric.update
    if type(metric).update is Metric.update and "statistic" in metric.children():
        update = metric.children()["statistic"].update
    return [
        (name, parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(update).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _read_under_policy(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the formula of a class: `compute` compiles it, rounds, and applies `on_invalid`."""

    @wraps(formula)
    def compute(self: Metric) -> Any:
        # A subclass overrides this `compute`, and calls it by `super()`: then it is the formula.
        if type(self).compute is not compute:
            return formula(self)
        return Metric.compute(self)

    vars(compute)["formula"] = formula
    return compute


def _formula(metric: Metric) -> Callable[..., Any]:
    """The `compute` that the class of the metric defines, without the wrapper."""
    formula = getattr(type(metric).compute, "formula", None)
    if formula is None:
        raise TypeError(f"{type(metric).__name__} does not define compute()")
    return formula


def _is_wide(x: Any) -> bool:
    """Whether a result has two parts. Such results are pytrees, and must be kept as leaves."""
    return isinstance(x, DoubleFloat | Exact)


def _round_double(x: Any) -> Any:
    return x.to_float() if isinstance(x, DoubleFloat) else x


def _to_array(x: Any) -> Any:
    return x.to_float() if isinstance(x, Exact) else x


def _nan_where(condition: Any, x: Any) -> Any:
    if isinstance(x, WholeOrFloat):
        return x.nan_where(condition)
    x = jnp.asarray(_to_array(x))
    x = x if jnp.issubdtype(x.dtype, jnp.floating) else as_float(x)
    return jnp.where(condition, jnp.asarray(jnp.nan, x.dtype), x)


def _to_host(x: Any) -> Any:
    array = np.asarray(x)
    return array.item() if array.ndim == 0 else array


def _refuse_invalid(name: str, count: int) -> None:
    if count:
        raise InvalidValuesError(
            f"{name}: {count} values or examples could not be used (NaN, infinite or out of "
            f'range), and on_invalid="raise"; "exclude" leaves them out, "propagate" gives NaN'
        )
