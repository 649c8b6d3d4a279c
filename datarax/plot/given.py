"""What figures are drawn from: metrics, results, or records of results over steps."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax.algebra.pytrees import children_of
from datarax.metric.base import Metric
from datarax.metric.values import flat_items

M = TypeVar("M", bound=Metric)
Record = dict[str, Any]
"""Results by name."""
RUN = (
    "a metric, its results, a sequence of records {step, name: value, ...} or of pairs "
    "(step, results), or the path of a file of JSON lines"
)


class Run(NamedTuple):
    """Results over steps."""

    steps: np.ndarray
    """Of shape (steps,), as floats."""
    records: list[Record]
    """The results of each step, by flat names."""

    def column(self, name: str) -> np.ndarray:
        """The numbers of this name at all steps; NaN where there are none."""
        return np.array([number_of(record.get(name)) for record in self.records], float)


class Source(NamedTuple):
    """What a figure is drawn from: reads what a user gives; the errors name the figure."""

    figure: str
    expected: str

    def error(self, reason: str) -> MetricInputError:
        """The error for a value that the figure cannot use, with the reason."""
        return MetricInputError(f"datarax.plot.{self.figure}: {reason}")

    def wrong_kind(self, given: object) -> MetricTypeError:
        """The error for an object of a type that the figure cannot show."""
        return MetricTypeError(
            f"datarax.plot.{self.figure}: expected {self.expected}; got {kind(given)}"
        )

    def results(self, given: object, *names: str) -> Record:
        """The results of a metric by name.

        Raises:
            MetricTypeError: there are no results by name, or one of `names` is missing.
        """
        results = fields_of(given)
        if results is None or not results.keys() >= {*names}:
            raise self.wrong_kind(given)
        return results

    def array(self, x: object) -> np.ndarray:
        """Numbers as a float array; None, as in JSON, is NaN."""
        try:
            return np.asarray(x, dtype=float)
        except (TypeError, ValueError):
            raise self.wrong_kind(x) from None

    def chosen(self, name: str | None, found: Sequence[str]) -> str:
        """The one name there is, or the one that is asked for.

        Raises:
            MetricInputError: it is not among those found, or there are several.
        """
        if name in found:
            return str(name)
        if name is None and len(found) == 1:
            return found[0]
        raise self.error(f"name={name!r}; expected one of {', '.join(map(repr, found))}")

    def run(self, given: Any, x: str = "step") -> Run:
        """The results over steps, in ascending order. A single metric or result is step 0.

        Args:
            given: as `RUN` says.
            x: the name of the step in records.

        Raises:
            MetricTypeError: `given` is none of these.
            MetricInputError: the file is not one of JSON lines, or a record has no step.
        """
        if isinstance(given, str | os.PathLike):
            given = _read_lines(Path(given))
        if isinstance(given, Metric | Mapping):
            # A single record may have a step; a metric has none.
            given = [((fields_of(given) or {}).get(x, 0), given)]
        try:
            given = list(given)
        except TypeError:
            raise self.wrong_kind(given) from None
        # By the step alone: records of the same step keep their order.
        rows = sorted((self._row(each, x) for each in given), key=lambda row: row[0])
        return Run(np.array([step for step, _ in rows], float), [record for _, record in rows])

    def _row(self, given: object, x: str) -> tuple[float, Record]:
        if isinstance(given, Mapping):
            if x not in given:
                has = ", ".join(map(str, given)) or "nothing"
                raise self.error(f"a record has no {x!r}; it has {has}")
            given = given[x], {name: value for name, value in given.items() if name != x}
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self.wrong_kind(given)
        step, results = number_of(given[0]), results_of(given[1])
        if not np.isfinite(step):
            raise self.error(f"{x}={given[0]!r}; expected a finite number")
        record = fields_of(results)
        return step, dict(flat_items({"value": results} if record is None else record))


def _read_lines(path: Path) -> list[object]:
    records = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue  # the end of a file, or a gap between two runs
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise MetricInputError(f"{path}, line {i}: expected JSON ({error})") from None
    return records


def results_of(given: object) -> Any:
    """The results of a metric; anything else as it is."""
    return given.results() if isinstance(given, Metric) else given


def fields_of(given: object) -> Record | None:
    """The results of a metric, a named tuple or a mapping as a dict with string keys, or None."""
    results = results_of(given)
    if hasattr(results, "_asdict"):  # a named tuple, such as the points of a curve
        results = results._asdict()
    return {str(name): x for name, x in results.items()} if isinstance(results, Mapping) else None


def of_statistic(kind: type[M], metric: Metric) -> M:
    """A metric of another kind that reads the statistic of this one, under its policy."""
    # Which outputs an update takes has no effect on what is read.
    names = (kind.fields.keys() & metric.fields.keys()) - {"outputs"}
    same = kind(**{name: getattr(metric, name) for name in sorted(names)})
    return same.replace(statistic=children_of(metric)["statistic"])


def checked_names(names: Sequence[str] | None, count: int, what: str) -> list[str]:
    """One name for each of `count` things; their numbers if there are no names.

    Raises:
        MetricInputError: there are more or fewer.
    """
    if names is None:
        return [str(i) for i in range(count)]
    # A string is a sequence of letters, which nobody means.
    if isinstance(names, str) or len(names) != count:
        raise MetricInputError(
            f"names={names!r}: expected a sequence of {count} names, one for each {what}"
        )
    return [str(name) for name in names]


PARTS = "value", "lower", "upper", "std_error"


def by_result(keys: Iterable[str], parts: Sequence[str] = PARTS) -> dict[str, dict[str, str]]:
    """By result, and by part of it such as "value" and "lower", the key of a number.

    The name of the part may stand anywhere in a key, because wrappers nest in either order:
    "loss/lower" and "lower/loss" are both the lower end of "loss".
    """
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        names = key.split("/")
        part = next((name for name in names if name in parts), "value")
        found.setdefault("/".join(name for name in names if name not in parts), {})[part] = key
    return found


def is_number(x: object) -> bool:
    """True if a result is one number, or None in the place of NaN."""
    # NumPy would read True as 1, and the text "3" as 3.
    return x is None or (not isinstance(x, bool | str | Mapping) and np.asarray(x).ndim == 0)


def number_of(x: Any) -> float:
    """A number, or NaN for anything else."""
    try:
        # JSON has no NaN: there it is None.
        return np.nan if x is None or not is_number(x) else float(x)
    except (TypeError, ValueError):
        return np.nan
