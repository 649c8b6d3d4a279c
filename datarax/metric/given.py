"""Arguments that are known only when results are read, such as the seconds that have elapsed."""

from collections.abc import Iterable
from typing import NamedTuple, Self

from datarax._checks import real
from datarax._errors import MetricInputError
from datarax.metric.routing import joined

GivenNumbers = tuple[tuple[str, float], ...]
"""Arguments of `results` and their values."""


class Reader(NamedTuple):
    """A metric that reads an argument of `results`."""

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
        """The reader of a metric that is in a collection under this name."""
        return self._replace(path=joined(name, self.path))


def checked_given(readers: Iterable[Reader], given: GivenNumbers, caller: str) -> GivenNumbers:
    """The arguments of `results`, or of `schedule_collection`, as Python floats.

    Raises:
        MetricInputError: one is missing, is read by no metric, or is not a number of at least 0;
            names it, and the metric.
    """
    readers = list(readers)
    read = sorted({each.argument for each in readers})
    numbers = []
    for name, value in given:
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
