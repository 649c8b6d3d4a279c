"""What a class of metrics defines, and whether its `update` allows to share a state."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from datarax._typing import PyTree

Method = TypeVar("Method", bound=Callable[..., Any])


def shareable(update: Method) -> Method:
    """Declares that an `update` only passes its arguments to `self.statistic.update`.

    Then metrics in a `Collection` that have equal statistics of the same outputs share one.
    """
    # A mark of the function, which a decorator above with `functools.wraps` keeps.
    vars(update)["shareable"] = True
    return update


class Declared(NamedTuple):
    """The `update` and the formula of a class of metrics."""

    update: Callable[..., Any] | None
    """None if it is that of `Metric`: then the state called `statistic` takes the arguments."""
    is_shareable: bool
    """True if the update only updates that state. That of `Metric` does."""
    formula: Callable[..., PyTree] | None
    """The method `compute` as it is written; None without one."""


def shares_statistic(metric: PyTree) -> bool:
    """True if a metric may share its statistic: it has no other state, and only updates it."""
    metric = metric.read_from()
    return metric.declared.is_shareable and tuple(metric.children()) == ("statistic",)


def statistic_of(metric: PyTree) -> PyTree:
    """The only state of a metric for which `shares_statistic` holds."""
    return metric.read_from().children()["statistic"]
