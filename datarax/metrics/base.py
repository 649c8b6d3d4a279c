"""`Metric`: a state, and a formula that reads it."""

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
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.fields import field
from datarax.statistics.state import State, walk

Outputs = tuple[tuple[str, str], ...]
Method = TypeVar("Method", bound=Callable[..., Any])


class Metric(State):
    """An immutable pytree with `update`, `merge`, `sync`, `compute` and `reset`.

    A metric of one's own declares its configuration as annotated fields with defaults, its state
    as accumulators or statistics in the class body (or in `__post_init__`, where the state depends
    on the fields), and defines `update`, which returns `self.replace(...)`, and `compute`, the
    formula. Everything else follows: the constructor, merging, syncing, resetting, saving, the
    policy for data that cannot be used, compiled reading, `per_device`, and use in a `Collection`.

    Values that cannot be used are counted in an accumulator called `invalid`, if there is one.

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
    """What the result is where some data could not be used: NaN, infinities, labels that no class
    has, negative weights. "exclude" leaves them out, "propagate" makes the result NaN, "raise"
    raises `InvalidValuesError` when it is read outside `jit`. They are counted in each case."""
    outputs: Outputs = field(default=(), init=False)
    """Which output of a step feeds which argument of `update`; see `from_outputs`."""

    owns_mesh: ClassVar[bool] = False
    """Whether the metric is laid out over a mesh of its own, and syncs without an axis name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "compute" in vars(cls):
            cls.compute = _read_under_policy(cls.compute)

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with the batch folded in; no communication.

        A class that does not define it hands the batch to its state called `statistic`.
        """
        statistic: Any = self.children().get("statistic")
        if statistic is None:
            raise TypeError(f"{type(self).__name__} does not define update()")
        return self.replace(statistic=statistic.update(*args, **kwargs))

    def compute(self) -> PyTree:
        """The value: an array, or a pytree of arrays. NaN where there is no data."""
        return read(self).checked(type(self).__name__).rounded()

    def results(self) -> Any:
        """The value on the host, as Python numbers and NumPy arrays; waits for it.

        Counts and sums come back exact. Where data had to be excluded, a dict of results holds
        the count under "<name>/invalid", and a single result warns.

        Raises:
            InvalidValuesError: data could not be used, and `on_invalid` is "raise".
        """
        return read(self).on_host(type(self).__name__)

    def invalid_count(self) -> Any:
        """How many values or examples could not be used; 0 for a metric that does not check."""
        total = MetricAccumulator(0)
        for each in walk(self):
            for count in each.unusable():
                total = total.update(count)
        return total.value

    def from_outputs(self, **outputs: str) -> Self:
        """The same metric, told which output of a step feeds which argument of `update`.

        For use in a `Collection`: `Mean().from_outputs(values="loss")`.

        Raises:
            UnknownMetricError: an argument that `update` does not have.
            MetricInputError: an output that is no name.
        """
        allowed = [name for name, _ in arguments(self)]
        for argument, output in outputs.items():
            if not isinstance(output, str):
                raise MetricInputError(
                    f"{type(self).__name__}.from_outputs({argument}={output!r}): expected the name "
                    f"of an output"
                )
            if argument not in allowed:
                raise UnknownMetricError(
                    f"{type(self).__name__}.update has no argument {argument!r}; "
                    f"it has: {', '.join(allowed)}"
                )
        return self.with_parts({"outputs": tuple(sorted((dict(self.outputs) | outputs).items()))})

    # What a metric tells a wrapper: how it takes its arguments, and how it is read.

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PyTree:
        """An update as a tree of `Call`s, one for each plain metric within; `apply` does them."""
        return Call(args, dict(kwargs), type(self).__name__, tuple(n for n, _ in arguments(self)))

    def apply(self, calls: PyTree) -> Self:
        """The metric updated by the calls of `calls`, whose arrays may have been changed."""
        return self.update(*calls.args, **calls.kwargs)

    def arguments_from(self, outputs: Mapping[str, Any], caller: str) -> dict[str, Any]:
        """The outputs of a step that `update` names, as its arguments; others are left alone.

        Raises:
            MetricInputError: a missing output; names it and `caller`.
        """
        routes, given = dict(self.outputs), {}
        for argument, required in arguments(self):
            output = routes.get(argument, argument)
            if output in outputs:
                given[argument] = outputs[output]
            elif required or argument in routes:
                raise MetricInputError(
                    f"{caller} ({type(self).__name__}) needs the output "
                    f"{output!r} for its argument {argument!r}, and update() was given: "
                    f"{', '.join(sorted(outputs)) or 'none'}. Pass it, or name the right one with "
                    f".from_outputs({argument}=...)"
                )
        return given

    def reading(self) -> "Reading":
        """The value and what could not be used, in one traversal; traced by `read`."""
        value = _formula(self)(self)
        value = jax.tree.map(_round_double, value, is_leaf=_is_wide)
        invalid = self.invalid_count()
        if self.on_invalid == "propagate":
            value = jax.tree.map(lambda x: _nan_where(invalid > 0, x), value, is_leaf=_is_wide)
        return Reading(value, {"": invalid}, (("", self.on_invalid),))

    def synced_in_place(self, axis_name: AxisName | None) -> Self:
        """What a holder that is updated in place holds after a sync: the global metric.

        Raises:
            MetricInputError: no axis name, or one for a metric that owns its mesh.
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
    """The arguments of one plain metric's `update`: a pytree of arrays."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    metric: str = dataclass_field(metadata={"static": True})
    """The name of its class."""
    takes: tuple[str, ...] = dataclass_field(metadata={"static": True})
    """The names of the arguments of its `update`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reading:
    """What is read of a metric: all that `compute`, `results` and a collector give."""

    value: PyTree
    """Arrays, and `Exact` where an array would have to be rounded."""
    invalid: dict[str, Any]
    """How much data could not be used, by the name of the member of a collection; "" for itself."""
    policies: tuple[tuple[str, str], ...] = dataclass_field(metadata={"static": True})
    """What to do about it, by the same names."""

    def rounded(self) -> PyTree:
        """The value as arrays."""
        return jax.tree.map(_to_array, self.value, is_leaf=_is_wide)

    def checked(self, name: str) -> Self:
        """The same.

        Raises:
            InvalidValuesError: data could not be used, and a policy is "raise".
        """
        for member, policy in self.policies:
            count = self.invalid[member]
            if policy == "raise" and not isinstance(jax.tree.leaves(count)[0], Tracer):
                _refuse_invalid(member or name, int(count))
        return self

    def on_host(self, name: str) -> Any:
        """The value as Python numbers and NumPy arrays, under the policies; see `results`."""
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
    """What is read of a metric, on its devices: one program, compiled once a configuration."""
    # Copies: an output that is an input would share its buffer, which a later step may donate.
    return jax.tree.map(jnp.copy, metric.reading())


def shareable(update: Method) -> Method:
    """Declares that an `update` does no more than hand its arguments to `self.statistic`.

    In a `Collection`, metrics over equal statistics of the same outputs then share one.
    """
    vars(update)["shareable"] = True
    return update


def shares_statistic(metric: Metric) -> bool:
    """Whether a metric is no more than a statistic and a formula that reads it."""
    update = type(metric).update
    declared = update is Metric.update or getattr(update, "shareable", False)
    return declared and tuple(metric.children()) == ("statistic",)


def arguments(metric: Metric) -> list[tuple[str, bool]]:
    """The named arguments of a metric's `update`, and whether each is required."""
    update = metric.update
    if type(metric).update is Metric.update and "statistic" in metric.children():
        update = metric.children()["statistic"].update
    return [
        (name, parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(update).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _read_under_policy(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The public `compute` of a class that defines one: compiled, rounded, under its policy."""

    @wraps(formula)
    def compute(self: Metric) -> Any:
        if type(self).compute is not compute:  # `super().compute()`, a part of another formula
            return formula(self)
        return Metric.compute(self)

    vars(compute)["formula"] = formula
    return compute


def _formula(metric: Metric) -> Callable[..., Any]:
    formula = getattr(type(metric).compute, "formula", None)
    if formula is None:
        raise TypeError(f"{type(metric).__name__} does not define compute()")
    return formula


def _is_wide(x: Any) -> bool:
    return isinstance(x, DoubleFloat | Exact)


def _round_double(x: Any) -> Any:
    return x.to_float() if isinstance(x, DoubleFloat) else x


def _to_array(x: Any) -> Any:
    return x.to_float() if isinstance(x, Exact) else x


def _nan_where(condition: Any, x: Any) -> jax.Array:
    x = _to_array(x)
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
