"""Arguments of updates (`Call`), where they come from (`Route`), and arguments of `results`.

Also the errors of arguments that are missing, unknown, or would be ignored by mistake.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Self

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import real
from datarax._errors import DataraxError, MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree
from datarax._update_context import update_context
from datarax._xp import xp
from datarax.algebra.fields import listed_arguments
from datarax.algebra.pytrees import children_of
from datarax.metric.declared import only_updates_statistic

Outputs = tuple[tuple[str, str | None], ...]
"""Arguments of an update, and the outputs that feed them."""
GivenNumbers = tuple[tuple[str, float], ...]
"""Arguments of `results` and their values."""

# Names that other libraries, and users, give to weights; in lower case without underscores.
_WEIGHTS = {
    *("ispad", "ispadding", "isreal", "isvalid", "nonpad", "notpadding", "padding"),
    *("real", "valid", "where"),
}
# And what such names end in.
_WEIGHTS_END = ("mask", "masks", "weight", "weights")
# A name this similar to an argument is taken for a misspelling of it. Two adjacent letters that are
# swapped, and one letter too many or too few, are above it for names of five letters or more.
_SIMILAR = 0.8
_NONE: Mapping[str, PyTree] = MappingProxyType({})


@dataclass(frozen=True)
class Argument:
    """An argument of `results`, or of the `update`, of a metric."""

    metric: type
    """The class of the metric."""
    argument: str
    required: bool = True
    path: str = ""
    """The name of the metric in a collection."""

    @property
    def label(self) -> str:
        """The metric, as an error names it."""
        name = self.metric.__name__
        return f"{self.path!r} ({name})" if self.path else name

    def inside(self, name: str) -> Self:
        """The argument of a metric that is in a collection under this name."""
        return replace(self, path=joined(name, self.path))


@dataclass(frozen=True, kw_only=True)
class Route(Argument):
    """An argument of an `update`, and the output of a step that feeds it."""

    output: str | None
    """The name of the output; `None` if the argument is left out on purpose."""
    routed: bool
    """True if `from_outputs` names the output."""
    takes_all: bool = False
    """True if the metric gets all outputs, because a function takes its arguments from them."""


def joined(name: str, path: str) -> str:
    """The name of a metric that is called `path` in an inner collection called `name`."""
    return f"{name}/{path}" if name and path else name or path


class naming:
    """A block whose errors and warnings all have the name of a metric, if it has one.

    `args` and `kwargs` are the arguments of its update.
    """

    __slots__ = ("args", "kwargs", "name", "token")

    def __init__(
        self, name: str, args: tuple[PyTree, ...] = (), kwargs: Mapping[str, PyTree] = _NONE
    ):
        self.name, self.args, self.kwargs = name, args, kwargs

    def __enter__(self) -> None:
        context = update_context.get()
        name = joined(context.metric, self.name)
        self.token = update_context.set(context._replace(metric=name))

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        update_context.reset(self.token)
        if isinstance(error, DataraxError):
            # The error stays the same object, so that its class can be caught, and its traceback is
            # whole.
            start, text = "metric '", str(error)
            if text.startswith(start):  # from a metric of an inner collection
                text = f"{start}{joined(self.name, text.removeprefix(start))}"
            elif self.name:
                is_input = isinstance(error, MetricInputError)
                hint = _batch_mean_hint(self.args, self.kwargs) if is_input else ""
                text = f"{start}{self.name}': {text}{hint}"
            error.args = (text,)
        elif isinstance(error, Exception) and self.name:
            # The text of an error of others is kept: code may compare it.
            error.add_note(f"This was raised in the update of the metric {self.name!r}.")


def arguments_of(routes: Iterable[Route], outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The arguments of these routes, from the named outputs of a step; ignores the others.

    Raises:
        MetricInputError: an output is missing; names it.
    """
    given: dict[str, PyTree] = {}
    for route in routes:
        if route.output is None:
            continue
        if route.output in outputs:
            given[route.argument] = outputs[route.output]
        # An optional argument may be missing, unless `from_outputs` names an output for it.
        elif route.required or route.routed:
            raise MetricInputError(
                f"{route.metric.__name__} needs the output {route.output!r} for its argument "
                f"{route.argument!r}, and update() was given: "
                f"{', '.join(sorted(outputs)) or 'none'}. Pass it, or name the right one with "
                f".from_outputs({route.argument}=...). Where a step has the outputs of some "
                f"metrics only, put these in a collection of their own, in a MultiTask"
            )
    return given


def refuse_ignored(routes: list[Route], outputs: Mapping[str, PyTree], caller: str) -> None:
    """Raises if an output would be ignored although its name shows that it is meant for a metric.

    `routes` are those of all metrics that get the outputs. If one of them takes all, no output is
    ignored.

    Raises:
        MetricInputError: no metric takes the output, and its name is one that is used for weights,
            or is similar to that of an optional argument that was not given; names both.
    """
    if any(map(attrgetter("takes_all"), routes)):
        return
    named = {each.output for each in routes}
    # Mostly all outputs are taken, and no names need be compared.
    if outputs.keys() <= named:
        return
    absent = [each for each in routes if each.output is not None and each.output not in outputs]
    weights = [each for each in routes if each.argument == "weights"]
    # If every metric says by `from_outputs` where its weights come from, nothing is missing.
    open_weights = not weights or not all(each.routed for each in weights)
    for name, output in outputs.items():
        if name in named or output is None:
            continue
        if open_weights and is_taken_for_weights(name):
            raise MetricInputError(_taken_for_weights(name, weights, caller))
        for each in absent:
            if _similar(name, each.output):
                raise MetricInputError(
                    f"{caller}: no metric takes the output {name!r}, and {each.label} takes "
                    f"{each.output!r}, which was not given: rename the output, or name it with "
                    f".from_outputs({each.argument}={name!r})"
                )


def refuse_untaken(routes: list[Route], outputs: Mapping[str, PyTree], caller: str) -> None:
    """Raises if an output is taken by none of these routes, which are those of all metrics.

    Raises:
        MetricInputError: names the outputs, and those that are taken.
    """
    taken = {route.output for route in routes}
    untaken = [repr(name) for name in outputs if name not in taken]
    if untaken and not any(route.takes_all for route in routes):
        raise MetricInputError(
            f"{caller}: no metric takes the output {', '.join(untaken)}, and strict=True; the "
            f"metrics take {', '.join(sorted(repr(x) for x in taken if x is not None))}. Leave the "
            f"output out, or name the metric that takes it with .from_outputs"
        )


def own_update(metric: PyTree) -> Callable[..., PyTree]:
    """The function that takes the arguments of a metric: one without names passes them on."""
    update = type(metric).update
    if not _arguments(update) and only_updates_statistic(update):
        statistic = children_of(metric).get("statistic")
        return update if statistic is None else type(statistic).update
    return update


def arguments(metric: PyTree) -> list[tuple[str, bool]]:
    """The named arguments of a metric's `update`, and whether each is required."""
    return _arguments(own_update(metric))


def update_signature(metric: PyTree) -> inspect.Signature:
    """The arguments that the `update` of a metric takes."""
    return _signature(own_update(metric))


@lru_cache(maxsize=4096)
def _signature(update: Callable[..., PyTree]) -> inspect.Signature:
    """The signature of a method without `self`."""
    signature = inspect.signature(update)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@lru_cache(maxsize=4096)
def _arguments(update: Callable[..., PyTree]) -> list[tuple[str, bool]]:
    return [
        (name, parameter.default is inspect.Parameter.empty)
        for name, parameter in _signature(update).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


@lru_cache(maxsize=4096)
def routes_of(cls: type, update: Callable[..., PyTree], outputs: Outputs) -> tuple[Route, ...]:
    """The arguments of the update of a class, and the outputs that feed them."""
    given = dict(outputs)
    return tuple(
        Route(
            cls,
            argument,
            required,
            output=given.get(argument, argument),
            routed=argument in given,
        )
        for argument, required in _arguments(update)
    )


def refuse_unknown_arguments(
    metric: PyTree, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]
) -> None:
    """Raises if the `update` of a metric cannot be called with these arguments.

    Raises:
        MetricTypeError: an argument is missing, or unknown; lists those that it takes.
    """
    signature = update_signature(metric)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        free = signature.parameters.keys() - kwargs.keys()
        unknown = [name for name in kwargs if name not in signature.parameters]
        # An unknown name says more than the argument that is missing because of it.
        what = f"got an unexpected keyword argument {unknown[0]!r}" if unknown else error
        message = f"{type(metric).__name__}.update: {what}; it takes: {listed_arguments(signature)}"
        for name in unknown:
            near = [each for each in sorted(free) if _similar(name, each)]
            if is_taken_for_weights(name):
                weights = "weights" in signature.parameters
                message += f". Pass {name} as weights=" if weights else ", and no weights"
            elif near:
                message += f". Did you mean {near[0]}=?"
        raise MetricTypeError(message) from None


def named_arguments(
    signature: inspect.Signature, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]
) -> dict[str, PyTree]:
    """The arguments of an update by their names, for a message; by place if they have none."""
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call of the update says so
        given = {"": args, **kwargs}
    named: dict[str, PyTree] = {}
    for name, x in given.items():
        kind = signature.parameters[name].kind if name in signature.parameters else None
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= x
        elif not name or kind is inspect.Parameter.VAR_POSITIONAL:
            named |= {f"argument {i}": each for i, each in enumerate(x)}
        else:
            named[name] = x
    return named


@lru_cache(maxsize=4096)
def is_taken_for_weights(name: str) -> bool:
    """True if the name of an output is one that is used for weights."""
    if _letters(name) == "weights":  # itself, or a misspelling of it
        return False
    return _letters(name) in _WEIGHTS or name.lower().endswith(_WEIGHTS_END)


def _batch_mean_hint(args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> str:
    """A hint if weights of the examples are given together with one value for the whole batch."""
    data = (*args, *(x for name, x in kwargs.items() if name != "weights"))
    if _size(kwargs.get("weights")) <= 1 or not data or any(_size(x) != 1 for x in data):
        return ""
    return (
        ". If its value is already the mean of the batch, leave the weights of the examples out "
        "with .from_outputs(weights=None), or pass one value for each example"
    )


def _taken_for_weights(name: str, weights: list[Route], caller: str) -> str:
    start = f"{caller}: no metric takes the output {name!r}, which looks like weights"
    if not weights:
        return f"{start}, and no metric here takes weights: leave it out, or give it another name"
    return (
        f"{start}: pass it as weights=, or name it with .from_outputs(weights={name!r}); "
        f".from_outputs(weights=None) leaves weights out for one metric. If it is not meant for "
        f"the metrics, leave it out"
    )


@lru_cache(maxsize=4096)
def _similar(name: str, output: str | None) -> bool:
    a, b = _letters(name), _letters(output or "")
    # A misspelling rarely changes the first letter: "heights" is not "weights".
    if not a or a[:1] != b[:1]:
        return False
    return difflib.SequenceMatcher(None, a, b).ratio() >= _SIMILAR


def _size(x: PyTree) -> int:
    """The number of values of an array or a number; 0 for anything else."""
    return 1 if isinstance(x, bool | int | float) else getattr(x, "size", 0)


def _letters(name: str) -> str:
    return name.lower().replace("_", "")


def checked_given(readers: Iterable[Argument], given: GivenNumbers, caller: str) -> GivenNumbers:
    """The arguments of `results`, or of `schedule_collection`, as Python floats.

    Raises:
        MetricInputError: one is missing, is read by no metric, or is not a number of at least 0;
            names it, and the metric.
    """
    readers = list(readers)
    numbers = []
    for name, value in given:
        read = sorted({each.argument for each in readers})
        if name not in read:
            listed = ", ".join(f"{each}=" for each in read) or "nothing"
            raise MetricInputError(
                f"{caller}({name}=...): no metric reads {name!r}; read here: {listed}"
            )
        number = real(value, f"{caller}: {name}")
        if not 0 <= number < float("inf"):
            raise MetricInputError(
                f"{caller}: {name}={value!r}; expected a finite number of at least 0"
            )
        numbers.append((name, number))
    known = dict(given)
    for each in readers:
        if each.required and each.argument not in known:
            raise MetricInputError(
                f"{caller}: {each.label} reads {each.argument!r}, which was not given; write "
                f"results({each.argument}=...), or schedule_collection(..., {each.argument}=...)"
            )
    return tuple(numbers)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments of `update` for one metric that is not a wrapper: a pytree of arrays."""

    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]
    metric: str = field(metadata={"static": True})
    """The name of the class of the metric."""
    takes: tuple[str, ...] = field(metadata={"static": True})
    """The names of the arguments of its `update`."""
    broadcast: tuple[str, ...] = field(metadata={"static": True})
    """The `broadcast_arguments` of the metric."""
    path: str = field(default="", metadata={"static": True})
    """The name of the metric in a collection."""
    rows: bool = field(default=True, metadata={"static": True})
    """True if the arrays share a leading axis of examples. If not, all devices get all of them, and
    the metric counts them once."""
    together: str | None = field(default=None, metadata={"static": True})
    """The integer argument that groups rows: all rows with one value must be in one update."""
    numbered_by: str | None = field(default=None, metadata={"static": True})
    """The `numbered_by` of the metric."""

    @property
    def by_name(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments, all by name if the names of all positional ones are known."""
        # An `update` with `*args` has no names for all of them.
        if len(self.args) > len(self.takes):
            return self.args, self.kwargs
        return (), dict(zip(self.takes, self.args, strict=False)) | self.kwargs

    @property
    def grouped(self) -> bool:
        """True if the argument `together` is given, so that terms are of groups of rows."""
        return self.by_name[1].get(self.together or "") is not None

    @property
    def unweighted(self) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments as `by_name` has them, without the weights."""
        args, kwargs = self.by_name
        return args, {name: x for name, x in kwargs.items() if name != "weights"}


def is_call(x: object) -> bool:
    """True if `x` is a `Call`, for `is_leaf` of the functions of `jax.tree`."""
    return isinstance(x, Call)


def with_argument(calls: PyTree, name: str, value: PyTree) -> PyTree:
    """A tree of `Call`s, each with one more argument: of each row, or one for all."""

    def one(call: Call) -> Call:
        args, kwargs = call.by_name
        # Like one of the `broadcast_arguments`, it may be one value for all rows.
        broadcast = (*call.broadcast, name)
        return replace(call, args=args, kwargs=kwargs | {name: value}, broadcast=broadcast)

    return jax.tree.map(one, calls, is_leaf=is_call)


def with_number(calls: PyTree, number: ArrayLike) -> PyTree:
    """A tree of `Call`s, in which those that are numbered and have no number get this one."""

    def one(call: Call) -> Call:
        args, kwargs = call.by_name
        name = call.numbered_by
        if name is None or kwargs.get(name) is not None:
            return call
        return replace(call, args=args, kwargs=kwargs | {name: number})

    return jax.tree.map(one, calls, is_leaf=is_call)


def taken_from(calls: PyTree, name: str) -> tuple[PyTree, PyTree]:
    """Returns what `with_argument` added, None if nothing, and the calls without it."""

    def one(call: Call) -> Call:
        kwargs = {key: x for key, x in call.kwargs.items() if key != name}
        broadcast = tuple(key for key in call.broadcast if key != name)
        return replace(call, kwargs=kwargs, broadcast=broadcast)

    first = jax.tree.leaves(calls, is_leaf=is_call)[0]
    return first.kwargs.get(name), jax.tree.map(one, calls, is_leaf=is_call)


def with_empty_rows(arrays: PyTree, count: int) -> PyTree:
    """Arrays with rows of zeros after their own, which are to have the weight zero."""
    return jax.tree.map(
        lambda x: xp.pad(x, [(0, count)] + [(0, 0)] * (x.ndim - 1)) if count else x, arrays
    )


def is_numbers(x: object) -> bool:
    """True if `x` is a list of numbers or of such lists, which becomes an array."""
    # A named tuple is a tree, of which the update reads the fields.
    return (
        isinstance(x, list | tuple)
        and not hasattr(x, "_fields")
        and all(is_numbers(item) or isinstance(item, bool | int | float | np.generic) for item in x)
    )


def split_over(call: Call, devices: int) -> int | None:
    """A value of the argument `together` that has rows on several devices; None if there is none.

    Also None if the values are not known on this process. Rows of weight zero do not count.
    """
    _, given = call.by_name
    values, weights = given.get(call.together or ""), given.get("weights")
    if values is None or not all(x is None or _is_readable(x) for x in (values, weights)):
        return None
    values = np.asarray(values)
    some = np.ones(values.shape, bool) if weights is None else np.asarray(weights) != 0
    parts = zip(np.split(values, devices), np.split(some, devices), strict=True)
    # Each device has a value once, so a value that occurs twice is on several devices.
    each, counts = np.unique(
        np.concatenate([np.unique(x[used]) for x, used in parts]), return_counts=True
    )
    return int(each[counts > 1][0]) if (counts > 1).any() else None


def _is_readable(x: ArrayLike) -> bool:
    # Values that are traced, on other processes or donated cannot be read.
    return not isinstance(x, jax.Array) or (
        not isinstance(x, Tracer) and x.is_fully_addressable and not x.is_deleted()
    )
