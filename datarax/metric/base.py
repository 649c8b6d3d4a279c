"""`Metric`: a state with a formula, `compute`, that reads it; and how results are read."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np

from datarax._errors import (
    MetricInputError,
    MetricTypeError,
    TracedValueError,
    UnknownMetricError,
)
from datarax._typing import OnInvalid, PyTree
from datarax._xp import fetched, is_traced, on_host
from datarax.algebra.fields import unrestored
from datarax.algebra.leading_axes import refuse_leading_axes
from datarax.algebra.memo import given_number, one_reading
from datarax.algebra.pytrees import FlatNode, MeshNode, children_of
from datarax.algebra.rows import Target
from datarax.algebra.saving import require_arrays, requiring_arrays
from datarax.algebra.state import State
from datarax.distributed.placement import everywhere, mesh_of, outside_mesh
from datarax.metric.arguments import (
    Argument,
    Call,
    GivenNumbers,
    Outputs,
    Route,
    arguments,
    arguments_of,
    checked_given,
    own_update,
    refuse_unknown_arguments,
    routes_of,
)
from datarax.metric.declared import shareable
from datarax.metric.other_names import argument_suggestion
from datarax.metric.reading import Bounds, Reading
from datarax.metric.rows import unusable_rows, updated_at
from datarax.metric.sampling import Ratio, Sampling
from datarax.metric.unusable import Undefined, Unusable, unusable
from datarax.metric.updates import updating
from datarax.metric.values import as_array, jsonable, nan_if, rounded_doubles
from datarax.numerics.scaled_double import ScaledDouble

Formula = Callable[..., PyTree]

_FOR_USERS = {
    *("update", "compute", "results", "merge", "sync", "reset", "replace"),
    *("state_dict", "load_state_dict", "from_outputs", "on_invalid", "invalid_count"),
    *("higher_is_better", "tasks"),
}


_OF_ALL = {
    *("merge", "sync", "reset", "replace", "state_dict", "load_state_dict"),
    *("from_outputs", "invalid_count"),
}
"""What `help` of a metric leaves out, because it is the same in all of them."""


class Metric(FlatNode, State, door=updating):
    """An immutable pytree with `update`, `merge`, `sync`, `compute` and `reset`.

    To define a metric, write a subclass:

    - Declare the configuration as annotated fields.
    - Create the state in the class body: accumulators or statistics. If it depends on the fields,
      create it in `__post_init__`.
    - Define `update`, which returns `self.replace(...)`, and `compute`, the formula.

    The base class provides the constructor, `merge`, `sync`, `reset`, saving, `on_invalid`, the
    reading on the host, and what `per_device` and `Collection` need.

    To use `on_invalid`, count the values that cannot be used in a state called `invalid`: a
    `datarax.statistics.InvalidCounts`, or an accumulator of integers.

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

    on_invalid: OnInvalid = "propagate"
    """The policy for data that could not be used, at reading: "propagate" makes a result NaN unless
    it is an integer, "exclude" leaves such data out, "raise" raises `InvalidValuesError` outside
    `jit`. `metric.replace(on_invalid="exclude")` reads the same state in the other way."""
    outputs: Outputs = unrestored(default=(), init=False)
    """Pairs of an argument of `update` and the output of a step for it: see `from_outputs`."""

    # What the class is. `datarax evaluate` reads nothing else of it; see docs/own-metric.md.
    higher_is_better: ClassVar[bool | None] = None
    """True if a better model has a higher value; None if neither direction is better, or if the
    metric gives several numbers with different ones."""
    tasks: ClassVar[tuple[str, ...]] = ()
    """The tasks of `datarax evaluate` whose columns are the arguments of `update`."""
    needs_scores: ClassVar[bool] = False
    """True if predicted labels are not enough, because `update` takes scores."""
    value_range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """The least and the greatest value that the metric can have. The ends of an `Interval` are
    within."""
    short_name: ClassVar[str] = ""
    """Another name for `--metrics`, such as "mae". Subclasses do not inherit it."""

    weights_repeat: ClassVar[bool] = True
    """True if a row of weight 2 counts as the row twice; False if it is one observation, as in the
    formula of a standard error."""

    hidden_names = frozenset({"outputs"})
    broadcast_arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of `update`, besides `weights`, that may be one value for all examples."""
    together_by: ClassVar[str | None] = None
    """The integer argument of `update` that groups rows: all rows with one value must be in one
    update, and with `per_device` on one device."""
    reads: ClassVar[tuple[str, ...]] = ()
    """The arguments of `results` that the value depends on: numbers that are known only then. The
    formula gets them from `given_number`."""

    _formula: ClassVar[Formula | None] = None
    """The `compute` as the class defines it."""

    def __init_subclass__(cls, **kwargs: bool) -> None:
        super().__init_subclass__(door=updating, **kwargs)
        # What a base class of the catalogue hides, its subclasses hide too.
        hidden = (each.hidden_names for each in cls.__mro__ if issubclass(each, State))
        common = {n for n in _OF_ALL if getattr_static(cls, n) is getattr_static(Metric, n)}
        cls._unlisted = frozenset(common)
        cls.hidden_names = (frozenset(type.__dir__(Metric)) - _FOR_USERS).union(*hidden)
        if "compute" in vars(cls):
            cls._formula = cls.compute
            cls.compute = _read_under_policy(cls.compute)
        if "update" in vars(cls) and "terms_by_row" not in vars(cls):
            cls.terms_by_row = False  # it is said of the update that is replaced

    @shareable
    def update(self, *args: Any, **kwargs: Any) -> Self:
        """A new metric with the batch folded in; no communication.

        If a class does not define `update`, its state called `statistic` is updated.
        """
        statistic: PyTree = children_of(self).get("statistic")
        if statistic is None:
            raise TypeError(f"{type(self).__name__} does not define update()")
        return self.replace(statistic=statistic.update(*args, **kwargs))

    @outside_mesh
    def compute(self) -> PyTree:
        """The value: an array, or a pytree of arrays. NaN where there is no data.

        Outside `jit`, it warns if some data could not be used (`InvalidValuesWarning`), and if
        scores are probably of another kind than they are taken for (`ScoresWarning`).

        Raises:
            InvalidValuesError: some data could not be used, and `on_invalid` is "raise".
        """
        if is_traced(self):  # inside `jit` the counts are not known, so nothing can be said
            return placed_as(self, _read_in_program(self).rounded())
        name = type(self).__name__
        reading = _read_on_host(self).checked(name)
        reading.warned_of_undefined(name).warned_of_scores(name)
        return placed_as(self, reading.rounded())

    @outside_mesh
    def results(self, *, as_json: bool = False, **given: float) -> Any:
        """The value on the host, as Python numbers and NumPy arrays; waits until it is computed.

        Counts and sums are exact. It warns of data that could not be used, which a dict of results
        counts as "<name>/invalid", of scores of another kind, and of a value whose bounds are far
        apart. `help(datarax.Metric)` has the methods of all metrics: `merge`, `reset`, `sync`, ...

        Args:
            as_json: whether to return only what `json.dumps` takes.
            **given: what is known only now, such as `elapsed=` for `Sum(per="elapsed")`.

        Raises:
            InvalidValuesError: some data could not be used, and `on_invalid` is "raise".
            MetricInputError: an argument is missing, is read by no metric, or is negative.
            MetricTypeError: it is called while a function is traced, as within `jit`.
        """
        name = type(self).__name__
        if is_traced(self):
            raise TracedValueError(
                f"{name}.results() gives Python numbers, which are not known while a function is "
                f"traced (jit, scan, vmap, shard_map). Call compute() there; or return the metric, "
                f"and call results() outside"
            )
        # All of the state in one transfer, and then in NumPy: nothing is compiled, and float64 is
        # kept.
        reading = _read_on_host(self, tuple(given.items()))
        results = reading.checked(name).warned(name).on_host()
        return jsonable(results) if as_json else results

    if not TYPE_CHECKING:  # a checker says itself that it cannot be called

        def __call__(self, *args: Any, **kwargs: Any) -> None:
            raise MetricTypeError(
                f"{type(self).__name__}: a metric is updated and then read, not called. Write "
                f"metric = metric.update(...), and metric.compute() or metric.results()"
            )

    @classmethod
    def constructor_hint(cls, kwargs: Mapping[str, Any]) -> str:
        return argument_suggestion(kwargs, inspect.signature(cls).parameters)

    def __dir__(self) -> list[str]:
        """Lists what a user of the metric needs, and what its class adds; not what wrappers use."""
        hidden = {name for name in self.hidden_names if name[0] != "_"}
        return [name for name in super().__dir__() if name not in hidden]

    @outside_mesh
    @requiring_arrays
    def invalid_count(self) -> jax.Array:
        """Counts the values or examples that could not be used; 0 without checks."""
        return left_out(self).total

    def from_outputs(self, **outputs: str | None) -> Self:
        """A copy that takes arguments of `update` from outputs of other names.

        For a member of a `Collection`: `Mean().from_outputs(values="loss", weights=None)` takes
        `values` from the output "loss", and no weights.

        Raises:
            UnknownMetricError: `update` has no argument of that name.
            MetricInputError: a name is not a string, or a required argument is left out.
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
        # Sorted, so that the order of several calls makes no other configuration.
        return self.with_parts({"outputs": tuple(sorted((dict(self.outputs) | outputs).items()))})

    # What wrappers use: a `Collection`, `per_device`, the collector.
    # docs/maintainers/adding-a-metric.md lists it.

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        """The update as a tree of `Call`s: one for each metric that is not a wrapper.

        A wrapper may change the arrays in it, for example pad them; `apply` then does the update.

        Raises:
            MetricTypeError: `update` takes no such arguments.
        """
        # Cached for each class, as the arguments are looked at in each update.
        takes = tuple(name for name, _ in arguments(self))
        # A fast check of the names only. `update` itself finds an argument that is missing.
        if len(args) > len(takes) or not kwargs.keys() <= set(takes):
            refuse_unknown_arguments(self, args, kwargs)
        return Call(
            args,
            dict(kwargs),
            type(self).__name__,
            takes,
            self.broadcast_arguments,
            together=self.together_by,
        )

    def apply(self, calls: PyTree) -> Self:
        """The metric updated with the arguments in a tree from `calls`."""
        return self.update(*calls.args, **calls.kwargs)

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        """Stacked metrics of this configuration, each updated with its rows of a batch.

        Every array of `self` has a leading axis of `target.size`.
        """
        return updated_at(self, calls, target)

    def unusable_rows(self, calls: PyTree) -> PyTree:
        """For each `Call`, marks the rows that the metric cannot use, (rows,)."""
        return unusable_rows(self, calls)

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Picks the arguments of `update` from the named outputs of a step; ignores the others.

        Raises:
            MetricInputError: an output is missing; names it.
        """
        return arguments_of(self.routes(), outputs)

    def routes(self) -> list[Route]:
        """The arguments of `update`, each with the output of a step that feeds it."""
        # A list of its own: what is cached must not change.
        return list(routes_of(type(self), own_update(self), self.outputs))

    def readers(self) -> list[Argument]:
        """The arguments of `results` that it reads."""
        return [Argument(type(self), argument) for argument in self.reads]

    def given_number(self, argument: str) -> float:
        """An argument of `results`, for a formula; NaN if it is not given, as within `jit`."""
        number = given_number(argument)
        return math.nan if number is None else number

    def reading(self) -> Reading:
        """The value, and the count of what could not be used."""
        # Together, because both may need the same sums.
        value, bounds = self.value_and_bounds()
        value, invalid = rounded_doubles(value), left_out(self)
        # A sum that has overflowed has no value under any policy.
        spoilt = invalid.mask if self.on_invalid == "propagate" else invalid.overflow
        value, bounds = nan_if(spoilt, (value, bounds))
        # Inside `jit` nothing can be said.
        undefined = self.undefined_parts() if on_host(spoilt) else None
        return Reading(
            value,
            {"": invalid},
            {} if bounds is None else {"": bounds},
            (("", self.on_invalid),),
            undefined={} if undefined is None else {"": (undefined.unless(spoilt),)},
        )

    def undefined_parts(self) -> Undefined | None:
        """The parts of the value, on the host, of which a reading warns; None if there are none."""
        return None

    def value_and_bounds(self) -> tuple[PyTree, Bounds | None]:
        """The value by the formula, and bounds on it if the metric has any.

        A metric that has bounds defines this method, so that one program computes both.
        """
        formula = type(self)._formula
        if formula is None:
            raise TypeError(f"{type(self).__name__} does not define compute()")
        return formula(self), None

    is_proportion: ClassVar[bool] = False
    """True if `as_ratio` gives a part of a whole, so that its value is between 0 and 1."""

    def as_ratio(self) -> Ratio | None:
        """The numerator and the denominator, if the value is a ratio of two sums over examples.

        They have the shape of the value. None for other metrics.
        """
        return None

    def sampling(self) -> Sampling:
        """What is added up for the standard error of the value, and what follows from it."""
        return Sampling(self)

    def weighted_by(self, factor: ScaledDouble) -> Self:
        if not self.weights_repeat:
            raise MetricTypeError(
                f"{type(self).__name__} cannot be multiplied by a factor: each row is one "
                f"observation, whatever its weight, so its data cannot lose weight with time"
            )
        return super().weighted_by(factor)

    def read_from(self) -> "Metric":
        """The metric whose state it reads: itself, or that of a wrapper which changes no update."""
        return self


def read(metric: Metric, given: GivenNumbers = ()) -> Reading:
    """The reading of a metric: on the host, outside `jit`, and within a traced function there.

    A metric with one copy for each device is merged first. `given` are arguments of `results`.
    """
    return _read_in_program(metric, given) if is_traced(metric) else _read_on_host(metric, given)


def _read_in_program(metric: Metric, given: GivenNumbers = ()) -> Reading:
    """The reading of a traced metric, in which a number that is not given is NaN."""
    require_arrays(metric)
    refuse_leading_axes(metric)
    with one_reading(given):
        return metric.reading()


def _read_on_host(metric: Metric, given: GivenNumbers = ()) -> Reading:
    """The reading of a metric whose arrays are known."""
    if not metric.is_on_host:  # only arrays of JAX are ever deleted
        require_arrays(metric)
    refuse_leading_axes(metric)
    metric = without_copies(metric)
    with np.errstate(all="ignore"):
        metric = metric if metric.is_on_host else fetched(metric)
        given = checked_given(metric.readers(), given, f"{type(metric).__name__}.results")
        with one_reading(given):
            return metric.reading()


def without_copies(metric: Metric) -> Metric:
    """The metric, merged if it has a copy for each device."""
    return metric.merge_copies() if isinstance(metric, MeshNode) else metric


def left_out(metric: Metric) -> Unusable:
    """Adds up what a metric and all its states could not use."""

    def takes_target(each: State) -> bool:
        routes = each.routes() if isinstance(each, Metric) else []
        return not routes or any("target" in route.argument for route in routes)

    return unusable(metric, takes_target)


def placed_as(metric: Metric, value: PyTree) -> PyTree:
    """A value that was read from a metric, on all the devices of the metric."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite
        value = jax.tree.map(as_array, value)
    mesh = metric.mesh if isinstance(metric, MeshNode) else mesh_of(metric)
    if mesh is None or is_traced(value):
        return value
    return everywhere(value, mesh)


def bounds_of(metric: Metric) -> PyTree:
    """Returns the result of `bounds` of a metric, outside and inside `jit`."""
    return placed_as(metric, read(metric).bounds[""].rounded_outward())


def _read_under_policy(formula: Formula) -> Formula:
    """Wraps the formula of a class: `compute` rounds it, and applies `on_invalid`."""

    @wraps(formula)
    def compute(self: Metric) -> PyTree:
        # A subclass overrides this `compute`, and calls it by `super()`: then it is the formula.
        if type(self).compute is not compute:
            return formula(self)
        return Metric.compute(self)

    return compute
