"""Fields: annotated class attributes that become the arguments of the constructor."""

import inspect
from collections.abc import Callable, Hashable, Mapping
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Union, get_args, get_origin

import jax
import numpy as np
from jax.core import Tracer

from datarax._checks import choice
from datarax._errors import MetricTypeError
from datarax._typing import PyTree

REQUIRED = inspect.Parameter.empty
Config = dict[str, Hashable]
"""The configuration of a state: the values of its fields, by name."""


class Field(NamedTuple):
    """Makes an annotated class attribute an argument of the constructor."""

    default: Hashable = REQUIRED
    kw_only: bool = True
    init: bool = True
    annotation: object = None
    means: Hashable = REQUIRED
    restored: bool = True


class Ungiven(float):
    """The default of a field that is a number, for which it matters whether it was given.

    It equals the number, but in the static part of a pytree the two differ.
    """


class Declared(Protocol):
    """An object with fields: see `State`."""

    fields: ClassVar[dict[str, Field]]

    @classmethod
    def constructor_hint(cls, kwargs: Config) -> str: ...


def field(
    *,
    default: Hashable = REQUIRED,
    kw_only: bool = True,
    init: bool = True,
    means: Hashable = REQUIRED,
) -> Any:
    """Declares a field with options that an annotation and a default cannot express.

    Args:
        default: the value if the argument is not given. Without a default, it is required.
        kw_only: False if the argument may also be given by position.
        init: False if the constructor has no such argument. The field keeps its default until
            `__post_init__` or `replace` sets it.
        means: the value that `__post_init__` sets in place of the default, if there is one. A
            `repr` leaves it out, as it leaves out the default.

    Example:
        >>> import datarax
        >>> class CountAbove(datarax.Metric):
        ...     threshold: float = datarax.field(kw_only=False)
        ...     count = datarax.MetricAccumulator(0)
        ...     def update(self, values):
        ...         return self.replace(count=self.count.update(values > self.threshold))
        ...     def compute(self):
        ...         return self.count.value
        >>> print(CountAbove(0.5), CountAbove(0.5).threshold)
        CountAbove(threshold=0.5) 0.5
    """
    return Field(default, kw_only, init, means=means)


def unrestored(*, default: Hashable = REQUIRED, init: bool = True) -> Any:
    """Declares a field that may differ from that of a saved state, because it is none of the state.

    Args:
        default: as for `field`.
        init: as for `field`.
    """
    return Field(default, init=init, restored=False)


_STATE, OPTIONAL_STATE = Field(init=False), Field(init=False)  # compared by identity


def state(*, init: Literal[False] = False, optional: bool = False) -> Any:
    """Declares an attribute that holds state, so that its annotation does not make it a field.

    `__post_init__` sets the attribute; of a `LeafState`, `empty` does. One that is `optional` may
    be left out: then the instance has no such child, and the attribute is None.
    """
    return OPTIONAL_STATE if optional else _STATE


def collect_fields(
    cls: type, inherited: Mapping[str, Field], is_state: Callable[[object], bool], kw_only: bool
) -> dict[str, Field]:
    """The fields of a class and its bases; of keyword arguments, its own come first.

    A class body may change an inherited field. An attribute of that name without an annotation
    sets a new default. A `ClassVar` or a property of that name removes the field: it is no longer
    an argument.
    """
    body, annotations, own = vars(cls), _annotations(cls), {}
    for name, annotation in annotations.items():
        value = body.get(name, Field())
        if name.startswith("_") or isinstance(value, property) or is_state(value):
            continue
        if _is_class_var(annotation):
            continue
        if value is _STATE:
            delattr(cls, name)  # a marker, not a default
            continue
        if value is OPTIONAL_STATE:  # the class of states replaces it
            continue
        if not isinstance(value, Field):
            value = Field(value)
        elif name in body:
            delattr(cls, name)
        own[name] = value._replace(annotation=annotation, kw_only=value.kw_only and kw_only)
    kept = {}
    for name, given in inherited.items():
        fixed = isinstance(body.get(name), property) or _is_class_var(annotations.get(name))
        if name not in own and not fixed:
            kept[name] = given._replace(default=body[name]) if name in body else given
    # By position, those of the bases come first, as in a dataclass.
    return {n: f for n, f in kept.items() if not f.kw_only} | own | kept


def _annotations(cls: type) -> dict[str, object]:
    """The annotations of a class body; text where they cannot be evaluated, as a name is local."""
    try:
        # Evaluated, because a module may have postponed annotations, which are text.
        return inspect.get_annotations(cls, eval_str=True)
    except Exception:  # whatever evaluating them raises
        return inspect.get_annotations(cls)


def _is_class_var(annotation: object) -> bool:
    return "ClassVar" in str(annotation)


def constructor_signature(fields: Mapping[str, Field]) -> inspect.Signature:
    """The signature of a constructor whose arguments are these fields."""
    keyword, positional = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            name,
            keyword if given.kw_only else positional,
            default=given.default,
            annotation=given.annotation,
        )
        for name, given in fields.items()
        if given.init
    ]
    # A signature has positional parameters first. The sort is stable, so each kind keeps its order.
    return inspect.Signature(sorted(parameters, key=lambda p: p.kind))


def bound_arguments(cls: type[Declared], args: tuple[Hashable, ...], kwargs: Config) -> Config:
    """The arguments of a constructor by name.

    Raises:
        MetricTypeError: an argument is missing or unknown; lists the arguments.
    """
    signature = inspect.signature(cls)
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise MetricTypeError(
            f"{cls.__name__}: {error}; it takes: {listed_arguments(signature)}"
            f"{cls.constructor_hint(kwargs)}"
        ) from None


def listed_arguments(signature: inspect.Signature) -> str:
    """The names of the arguments; those that are given by name alone end in "="."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [
        f"{name}=" if each.kind is each.KEYWORD_ONLY else name
        for name, each in signature.parameters.items()
        if each.kind not in variable
    ]
    return ", ".join(names) or "no arguments"


def bound_fields(cls: type[Declared], args: tuple[Hashable, ...], kwargs: Config) -> Config:
    """The value of each field, from the arguments of a constructor.

    Raises:
        MetricTypeError: an argument is missing or unknown; lists the arguments.
        MetricInputError: the annotation does not allow a value.
    """
    given = bound_arguments(cls, args, kwargs)
    # Defaults are checked too, because a subclass may set one that the annotation does not allow.
    values = {name: given.get(name, field.default) for name, field in cls.fields.items()}
    for name, value in values.items():
        if cls.fields[name].annotation is not Any:  # else the dtype may matter
            values[name] = value = _python_numbers(value)
        allowed = allowed_values(cls.fields[name].annotation)
        if allowed is not None:
            choice(value, allowed, name)
    return values


def _python_numbers(value: PyTree) -> PyTree:
    """NumPy scalars, and arrays without axes whose value is known, as Python numbers.

    They may be the elements of a tuple or a list.
    """
    if type(value) in (tuple, list):
        return type(value)(map(_python_numbers, value))
    is_array = isinstance(value, np.ndarray | jax.Array) and not isinstance(value, Tracer)
    # So a configuration is hashable, and compares and is saved as the same number, whichever
    # library it came from.
    if isinstance(value, np.generic) or (is_array and value.ndim == 0):
        return value.item()
    return value


def allowed_values(annotation: object) -> tuple[Hashable, ...] | None:
    """The values that an annotation allows: a `Literal`, `bool`, `None`, or a union of these.

    None for any other annotation, which is not checked.
    """
    if annotation is bool:
        return (False, True)
    if annotation is None or annotation is type(None):
        return (None,)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        parts = [allowed_values(each) for each in get_args(annotation)]
        if all(part is not None for part in parts):
            return tuple(value for part in parts for value in part or ())
    return None


def shown_fields(instance: Declared) -> str:
    """`name=value` for each field that differs from its default, for a `repr`."""
    shown = []
    for name, given in instance.fields.items():
        value = getattr(instance, name)
        # The types are compared, because True == 1; the identity, because NaN != NaN.
        same = any(
            value is each or (type(value) is type(each) and value == each)
            for each in (given.default, given.means)
        )
        if given.init and not same:
            shown.append(f"{name}={value!r}")
    return ", ".join(shown)
