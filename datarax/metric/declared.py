"""What the body of a class of metrics defines, and whether its `update` allows to share a state."""

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any, TypeVar, cast

from datarax._typing import PyTree

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Shareable:
    """An `update` that is declared as `shareable`, until its class is made."""

    update: Callable[..., Any]

    def __get__(self, metric: Any, owner: type) -> Any:
        """A method, also of a class that is no metric, for `super()`."""
        return self if metric is None else MethodType(self.update, metric)


def shareable(update: Method) -> Method:
    """Declares that an `update` only passes its arguments to `self.statistic.update`.

    Then metrics in a `Collection` that have equal statistics of the same outputs share one.
    """
    return cast(Method, Shareable(update))


@dataclass(frozen=True)
class Declared:
    """The `update` and the formula of a class of metrics, before the engine wraps them."""

    update: Callable[..., Any] | None = None
    """None if it is that of `Metric`: then the state called `statistic` takes the arguments."""
    is_shareable: bool = True
    """True if the update only updates that state. That of `Metric` does."""
    formula: Callable[..., PyTree] | None = None
    """The method `compute` that the class defines; None without one."""

    @classmethod
    def by(cls, metric: type, base: "type[Any]") -> "Declared":
        """What a class declares, or inherits from classes below `base`, whose methods are wrapped.

        A class that is no `base` may define methods, too: they are not wrapped.
        """

        def owner(name: str) -> Any:
            return next(each for each in metric.__mro__ if name in vars(each))

        def inherited(name: str) -> "Declared | None":
            of = owner(name)
            return of.declared if of is not metric and issubclass(of, base) else None

        update, compute = inherited("update"), inherited("compute")
        formula = vars(owner("compute"))["compute"] if compute is None else compute.formula
        if update is not None:
            return cls(update.update, update.is_shareable, formula)
        own = vars(owner("update"))["update"]
        if isinstance(own, Shareable):
            return cls(own.update, True, formula)
        return cls(own, False, formula)


def shares_statistic(metric: PyTree) -> bool:
    """True if a metric may share its statistic: it has no other state, and only updates it."""
    metric = metric.read_from()
    return metric.declared.is_shareable and tuple(metric.children()) == ("statistic",)


def statistic_of(metric: PyTree) -> PyTree:
    """The only state of a metric for which `shares_statistic` holds."""
    return metric.read_from().children()["statistic"]
