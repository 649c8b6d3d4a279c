"""`Metric`: a statistic, and a pure function that reads it."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from datarax._checks import as_float, choice
from datarax._errors import (
    InvalidValuesError,
    InvalidValuesWarning,
    MetricInputError,
    UnknownMetricError,
)
from datarax.numerics.exact import Exact
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.state import State, walk


class Metric(State):
    """An immutable pytree with `update`, `merge`, `sync`, `compute` and `reset`.

    A metric of one's own assigns accumulators or statistics in its class body or in `__init__`,
    and defines `compute`. Where its state is one statistic called `statistic`, `update` hands it
    the batch; else it defines `update`, and returns `self.replace(...)`. Everything else
    follows: merging, syncing, resetting, saving, `per_device`, and use in a `Collection`.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> class MaxMetric(datarax.Metric):
        ...     peak = datarax.MetricAccumulator(-jnp.inf, "max")
        ...     def update(self, values):
        ...         return self.replace(peak=self.peak.update(values))
        ...     def compute(self):
        ...         return self.peak.value
        >>> print(MaxMetric().update(jnp.array([1.0, 4.0])).update(2.0).compute())
        4.0
    """

    statistic: Any
    on_invalid: str = "exclude"
    outputs: tuple[tuple[str, str], ...] = ()

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with the batch folded in; no communication."""
        return self.replace(statistic=self.statistic.update(*args, **kwargs))

    def compute(self) -> Any:
        """The value: an array, or a pytree of arrays. NaN where there is no data."""
        value = _value(self)
        self._refuse_invalid()
        return value

    def compute_exact(self) -> Any:
        """As `compute`, with counts and sums as `Exact` where `compute` has to round them."""
        return self.compute()

    def _value(self) -> Any:
        raise TypeError(f"{type(self).__name__} does not define compute()")

    def _under_policy(self) -> Any:
        """The value, or NaN if some of the data could not be used and is to propagate."""
        value = self._value()
        if self.on_invalid != "propagate":
            return value
        bad = self.invalid_count() > 0
        floats = jax.tree.map(lambda x: x if _is_float(x) else as_float(x), value)
        return jax.tree.map(lambda x: jnp.where(bad, jnp.asarray(jnp.nan, x.dtype), x), floats)

    def _refuse_invalid(self) -> None:
        """Raises where `on_invalid` says so, once the counts can be read."""
        names = [name for name, policy in self._policies().items() if policy == "raise"]
        counts = self._invalid_counts() if names else {}
        for name in names:
            if not isinstance(jax.tree.leaves(counts[name])[0], Tracer):
                _refuse_invalid(name or type(self).__name__, int(counts[name]))

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
        return self.replace(outputs=tuple(sorted((dict(self.outputs) | outputs).items())))

    def invalid_count(self) -> Any:
        """How many values or examples could not be used; 0 for a metric that does not check."""
        counts = [vars(each)["invalid"] for each in walk(self) if "invalid" in each._children]
        total, *rest = counts or [MetricAccumulator(0)]
        for count in rest:
            total = total.merge(count)
        return total.value

    def _routed(self, outputs: Mapping[str, Any], caller: str) -> dict[str, Any]:
        """The outputs that `update` names, as its arguments; others are left alone."""
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

    # An update in two steps, so that a wrapper can prepare the arguments of each metric within.

    def _calls(self, args: Any, kwargs: Any) -> list[tuple["Metric", Any, Any]]:
        return [(self, args, kwargs)]

    def _called(self, calls: list[Any]) -> Self:
        ((args, kwargs),) = calls
        return self.update(*args, **kwargs)

    def _plain(self) -> "Metric":
        return self

    def _invalid_counts(self) -> dict[str, Any]:
        return {"": self.invalid_count()}

    def _policies(self) -> dict[str, str]:
        return {"": self.on_invalid}

    def results(self) -> Any:
        """The value on the host, as Python numbers and NumPy arrays; waits for it.

        Counts and sums come back exact. Where data had to be excluded, a dict of results holds
        the count under "<name>/invalid", and a single result warns.

        Raises:
            InvalidValuesError: data could not be used, and `on_invalid` is "raise".
        """
        return read_results(self, report(self))


def arguments(metric: Metric) -> list[tuple[str, bool]]:
    """The named arguments of a metric's `update`, and whether each is required."""
    function = metric.statistic.update if delegates(metric) else metric.update
    return [
        (name, parameter.default is inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def delegates(metric: Metric) -> bool:
    """Whether a metric is no more than a statistic and a way to read it."""
    return type(metric).update is Metric.update and metric._children == ("statistic",)


@jax.jit
def _value(metric: Metric) -> Any:
    # Compiled once a configuration: outside jit, a formula of many small steps would be slow.
    return metric._under_policy()


@jax.jit
def report(metric: Metric) -> tuple[Any, dict[str, Any]]:
    """What `read_results` reads, on the devices."""
    plain = metric._plain()
    # Copies: an output that is an input would share its buffer, which a later step may donate.
    return jax.tree.map(jnp.copy, (plain.compute_exact(), plain._invalid_counts()))


def read_results(metric: Metric, reported: tuple[Any, dict[str, Any]]) -> Any:
    """The results of `report`, on the host, under the metric's policy for invalid values."""
    value, counts = reported
    results = jax.tree.map(_to_host, value, is_leaf=lambda x: isinstance(x, Exact))
    policies = metric._policies()
    for name, count in counts.items():
        invalid = int(count)
        if invalid == 0:
            continue
        if policies[name] == "raise":
            _refuse_invalid(name or type(metric).__name__, invalid)
        if isinstance(results, dict):
            results[f"{name}/invalid".lstrip("/")] = invalid
        else:
            warnings.warn(
                f"{type(metric).__name__}: {invalid} values or examples could not be used "
                f"(NaN, infinite or out of range); policy: {policies[name]}",
                InvalidValuesWarning,
                stacklevel=3,
            )
    return results


def _refuse_invalid(name: str, count: int) -> None:
    if count:
        raise InvalidValuesError(
            f"{name}: {count} values or examples could not be used (NaN, infinite or out of "
            f'range), and on_invalid="raise"; "exclude" leaves them out, "propagate" gives NaN'
        )


def check_policy(on_invalid: str) -> str:
    """Refuses an unknown policy."""
    choice(on_invalid, ("exclude", "propagate", "raise"), "on_invalid")
    return on_invalid


def _is_float(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _to_host(x: Any) -> Any:
    array = np.asarray(x)
    return array.item() if array.ndim == 0 else array
