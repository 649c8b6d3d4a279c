"""What figures are drawn from: metrics, results, or records of results over steps."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax.metrics.base import Metric
from datarax.metrics.reading import flat_items

M = TypeVar("M", bound=Metric)
Record = dict[str, Any]
"""Results by name."""


def wrong_kind(figure: str, expected: str, given: object) -> MetricTypeError:
    """The error for something that the figure cannot show."""
    return MetricTypeError(f"datarax.plot.{figure}: expected {expected}; got {kind(given)}")


def chosen(figure: str, name: str | None, found: Sequence[str]) -> str:
    """The one name there is, or the one that is asked for.

    Raises:
        MetricInputError: it is not among those found, or there are several.
    """
    if name in found:
        return str(name)
    if name is None and len(found) == 1:
        return found[0]
    raise MetricInputError(
        f"datarax.plot.{figure}: name={name!r}; expected one of {', '.join(map(repr, found))}"
    )


def results_of(given: object) -> Any:
    """The results of a metric; anything else as it is."""
    return given.results() if isinstance(given, Metric) else given


def of_statistic(kind: type[M], metric: Metric) -> M:
    """A metric of another kind that reads the statistic of this one, under its policy."""
    names = (kind.fields.keys() & metric.fields.keys()) - {"outputs"}
    same = kind(**{name: getattr(metric, name) for name in sorted(names)})
    return same.replace(statistic=metric.children()["statistic"])


def fields_of(given: Any) -> Record | None:
    """A named tuple or a mapping as a dict with string keys, or None."""
    if hasattr(given, "_asdict"):
        given = given._asdict()
    return {str(name): x for name, x in given.items()} if isinstance(given, Mapping) else None


def array_of(x: object, figure: str, expected: str) -> np.ndarray:
    """Numbers as a float array; None, as in JSON, is NaN."""
    try:
        return np.asarray(x, dtype=float)
    except (TypeError, ValueError):
        raise wrong_kind(figure, expected, x) from None


def checked_names(names: Sequence[str] | None, count: int, what: str) -> list[str]:
    """One name for each of `count` things; their numbers if there are no names.

    Raises:
        MetricInputError: there are more or fewer.
    """
    if names is None:
        return [str(i) for i in range(count)]
    if isinstance(names, str) or len(names) != count:
        raise MetricInputError(
            f"names={names!r}: expected a sequence of {count} names, one for each {what}"
        )
    return [str(name) for name in names]


class Run(NamedTuple):
    """Results over steps."""

    steps: np.ndarray
    """Of shape (steps,), as floats."""
    records: list[Record]
    """The results of each step, by flat names."""

    def column(self, name: str) -> np.ndarray:
        """The numbers of this name at all steps; NaN where there are none."""
        return np.array([_number(record.get(name)) for record in self.records], float)


RUN = (
    "a metric, its results, a sequence of records {step, name: value, ...} or of pairs "
    "(step, results), or the path of a file of JSON lines"
)


def run_of(given: Any, figure: str, x: str = "step") -> Run:
    """The results over steps, in ascending order. A single metric or result is step 0.

    Args:
        given: as `RUN` says.
        figure: the name of the figure, for errors.
        x: the name of the step in records.

    Raises:
        MetricTypeError: `given` is none of these.
        MetricInputError: the file is not one of JSON lines, or a record has no step.
    """
    if isinstance(given, str | os.PathLike):
        given = _read_lines(Path(given))
    if isinstance(given, Metric | Mapping):
        results = fields_of(results_of(given))
        step = (results or {}).get(x, 0)
        given = [(step, given)]
    if not isinstance(given, Sequence):
        try:
            given = list(given)
        except TypeError:
            raise wrong_kind(figure, RUN, given) from None
    rows = [_row(each, figure, x) for each in given]
    rows.sort(key=lambda row: row[0])
    return Run(np.array([step for step, _ in rows], float), [record for _, record in rows])


def _row(given: object, figure: str, x: str) -> tuple[float, Record]:
    if isinstance(given, Mapping):
        if x not in given:
            raise MetricInputError(
                f"datarax.plot.{figure}: a record has no {x!r}; it has "
                f"{', '.join(map(str, given)) or 'nothing'}"
            )
        given = given[x], {name: value for name, value in given.items() if name != x}
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise wrong_kind(figure, RUN, given)
    step, results = given
    results = results_of(results)
    record = fields_of(results)
    if record is None:
        record = {"value": results}
    number = _number(step)
    if not np.isfinite(number):
        raise MetricInputError(f"datarax.plot.{figure}: {x}={step!r}; expected a finite number")
    return number, dict(flat_items(record))


def _read_lines(path: Path) -> list[object]:
    records = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise MetricInputError(f"{path}, line {i}: expected JSON ({error})") from None
    return records


def _number(x: object) -> float:
    """A number, or NaN for anything else."""
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return np.nan
    try:
        array = np.asarray(x, dtype=float)
    except (TypeError, ValueError):
        return np.nan
    return float(array) if array.ndim == 0 else np.nan


def is_number(x: object) -> bool:
    """Whether a result is one number, or None in the place of NaN."""
    if x is None:
        return True
    return not isinstance(x, bool | str) and not isinstance(x, Mapping) and np.asarray(x).ndim == 0
