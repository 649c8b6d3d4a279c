"""Whether the `update` of a class of metrics only updates its statistic, which may be shared."""

from collections.abc import Callable
from typing import Any, TypeVar

from datarax._typing import PyTree
from datarax.algebra.pytrees import children_of

Method = TypeVar("Method", bound=Callable[..., Any])


def shareable(update: Method) -> Method:
    """Declares that an `update` only passes its arguments to `self.statistic.update`.

    Then metrics in a `Collection` that have equal statistics of the same outputs share one.
    """
    # A mark of the function, which a decorator above with `functools.wraps` keeps.
    vars(update)["shareable"] = True
    return update


def only_updates_statistic(update: Callable[..., Any]) -> bool:
    """True if an `update` is `shareable`. That of `Metric` is."""
    return getattr(update, "shareable", False)


def shares_statistic(metric: PyTree) -> bool:
    """True if a metric may share its statistic: it has no other state, and only updates it."""
    metric = metric.read_from()
    if not only_updates_statistic(type(metric).update):
        return False
    return tuple(children_of(metric)) == ("statistic",)


def statistic_of(metric: PyTree) -> PyTree:
    """The only state of a metric for which `shares_statistic` holds."""
    return children_of(metric.read_from())["statistic"]
