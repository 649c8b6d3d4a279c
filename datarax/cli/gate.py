"""A release gate: which conditions of `--fail-if` an evaluation, or a comparison, meets."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple, Self

from datarax._errors import MetricInputError
from datarax._xp import xp
from datarax.cli.conditions import OVERALL, Condition
from datarax.cli.console_tables import Summary
from datarax.evaluation.columns import alternatives
from datarax.evaluation.encoding import Configuration, Json
from datarax.evaluation.outcome import SUMMARY
from datarax.evaluation.tasks import better, built, listed_number
from datarax.numerics.special import t_p_value
from datarax.uncertainty import adjust

WHEN = ("clear", "measured", "possible")


class Place(NamedTuple):
    """All rows, or a slice."""

    by: str = ""
    """The column; "" for all rows."""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.by}={self.name}" if self.by else "all rows"


class Found(NamedTuple):
    """A value with its interval, or a difference."""

    value: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    rows: float = math.inf
    bounded: bool = False
    """True if the interval is right for few rows, too."""

    @classmethod
    def of(cls, row: Mapping[str, Any], value: str, rows: float | None) -> "Found":
        """The reading of a row of a summary, in which None is NaN."""
        numbers = (row.get(key) for key in (value, "lower", "upper"))
        x, lower, upper = (math.nan if each is None else float(each) for each in numbers)
        known = math.inf if rows is None else rows
        return cls(x, lower, upper, known, row.get("method") in ("wilson", "formula"))

    def minus(self, other: "Found") -> "Found":
        """The difference of two independent values.

        Its interval is that of G. Y. Zou and A. Donner (2008), Construction of confidence limits
        about effect measures, https://doi.org/10.1002/sim.3095.
        """
        value = self.value - other.value
        below = math.hypot(self.value - self.lower, other.upper - other.value)
        above = math.hypot(self.upper - self.value, other.value - other.lower)
        few, bounded = min(self.rows, other.rows), self.bounded and other.bounded
        return Found(value, value - below, value + above, few, bounded)

    def scaled(self, factor: float) -> "Found":
        """The same with an interval of another confidence."""
        lower, upper = (self.value + factor * (end - self.value) for end in self[1:3])
        return self._replace(lower=lower, upper=upper)

    def p_value(self, limit: float, confidence: float) -> float:
        """The probability that chance alone takes the value so far from the limit, or farther.

        It is two-sided, and `1 - confidence` where an end of the interval is at the limit. NaN
        without an interval. Values are taken as normal on each side; those of fewer rows as
        Student's t, unless the interval is made for few rows.
        """
        end = self.upper if limit > self.value else self.lower
        half, distance = abs(end - self.value), abs(limit - self.value)
        if math.isnan(half) or math.isinf(half):
            return math.nan
        if half == 0:
            return 0.0 if distance else 1.0
        z = distance / half * NormalDist().inv_cdf(0.5 + confidence / 2)
        if self.bounded or math.isinf(self.rows):
            return 2 * NormalDist().cdf(-z)
        t, df = (xp.asarray(x) for x in (z, self.rows - 1.0))
        return float(t_p_value(t, df))


Readings = Mapping[str, Mapping[Place, Found]]
"""By metric, its reading in each place."""


def readings_of(summary: Summary) -> Readings:
    """The values of an evaluation, or the differences of a comparison, with their intervals."""
    compared = "a" in summary["source"]
    value, found = ("difference" if compared else "value"), dict[str, dict[Place, Found]]()
    rows: float | None = summary["source"].get("rows")
    for row in summary["metrics"]:
        found[row["name"]] = {Place(): Found.of(row, value, rows)}
    for by in summary["slices"]:
        for row in by["rows"]:
            place, examples = Place(by["by"], row["name"]), row["examples"]
            of = {x["name"]: x for x in row["metrics"]} if compared else row["values"]
            for name, each in of.items():
                found.setdefault(name, {})[place] = Found.of(each, value, examples)
    return found


class Gate:
    """The conditions of a command, checked against what it will compute before it computes it.

    Args:
        conditions: those of `--fail-if`.
        when: "clear" if a condition fails where more than chance meets it; "measured" if the value
            decides; "possible" if it fails unless more than chance is against it.
        config: the settings of the evaluation.

    Raises:
        MetricInputError: a condition names what is not computed, or a folder that does not have it.
    """

    def __init__(self, conditions: Sequence[Condition], when: str, config: Configuration):
        self._when, self._config = when, config
        self._conditions = [self._checked(each) for each in conditions]
        folders = {each.against for each, _ in self._conditions} - {None}
        self._before = {folder: _Earlier.of(folder, config) for folder in folders if folder}
        for condition, _ in self._conditions:
            if condition.against is not None:
                self._check_there(condition, self._before[condition.against])

    def notes(self) -> Iterator[str]:
        """Says which conditions fail where a metric is good."""
        for condition, good in self._conditions:
            if good is not None and condition.is_below == (good == "lower"):
                yield (
                    f"--fail-if {condition.text!r} fails where {condition.name} is good: "
                    f"{good} is better"
                )

    def of(self, summary: Summary) -> list[Json]:
        """Each condition with its checks, and whether it fails."""
        found = readings_of(summary)
        return [self._judged(condition, found) for condition, _ in self._conditions]

    def _checked(self, condition: Condition) -> tuple[Condition, str | None]:
        """The condition with the name as it is listed, and which values of it are good."""
        config, argument = self._config, f"argument --fail-if {condition.text!r}"
        if config.compared and (condition.against or not condition.is_change):
            raise MetricInputError(
                f"{argument}: of a comparison, expected 'NAME drops NUMBER' or 'NAME rises "
                f"NUMBER', which is of b against a"
            )
        if not config.compared and condition.is_change and condition.against is None:
            raise MetricInputError(
                f"{argument}: expected 'against DIR', the folder of an earlier evaluation; or "
                f"datarax compare, which pairs the rows of two files"
            )
        spec, name = listed_number(condition.name, config.specs, config.task, config.size, argument)
        good = better(spec)
        if condition.is_change and good == {"drops": "lower", "rises": "higher"}[condition.sign]:
            other = "rises" if condition.sign == "drops" else "drops"
            raise MetricInputError(
                f"{argument}: {good} {name} is better; expected '{name} {other} ...'"
            )
        self._check_where(condition, argument)
        return condition._replace(name=name), good

    def _check_where(self, condition: Condition, argument: str) -> None:
        slicings, where = self._config.slicings, condition.where
        if where in ("", OVERALL):
            return
        columns = [each.by for each in slicings]
        known = [*columns, *(f"{each.by}={name}" for each in slicings for name in each.names)]
        if where not in known:
            column = where.partition("=")[0]
            hint = "" if column in columns else f"; --slice-by {column} makes them"
            raise MetricInputError(
                f"{argument}: there is no slice {where!r}{alternatives(where, known)}{hint}"
            )

    def _check_there(self, condition: Condition, earlier: "_Earlier") -> None:
        """Raises if the earlier evaluation does not have the metric, or not the slices."""
        config, name = self._config, condition.name
        problem = f"argument --fail-if {condition.text!r}: {str(condition.against)!r} has"
        if name not in earlier.readings:
            hint = alternatives(name, list(earlier.readings))
            raise MetricInputError(f"{problem} no {name!r}{hint}")
        if not any(_is_in(condition, place) for place in earlier.readings[name]):
            raise MetricInputError(f"{problem} no slice {condition.where!r} of {name!r}")
        spec, _ = listed_number(name, config.specs, config.task, config.size, problem)
        now = repr(built(spec, config.task, config.size, config.scores, "propagate"))
        if earlier.metrics[name] != now:
            raise MetricInputError(
                f"{problem} {earlier.metrics[name]} under the name {name!r}, and this is {now}"
            )

    def _judged(self, condition: Condition, found: Readings) -> Json:
        checks = [
            self._check(condition, place, each)
            for place, each in found.get(condition.name, {}).items()
            if _is_in(condition, place)
        ]
        checks = [check for check in checks if check]
        self._adjust(checks)
        for check in checks:
            check["failed"], check["why"] = self._verdict(condition, check)
        # A condition that nothing was checked for is not met by anything, and must not pass.
        return {
            "condition": condition.text,
            "name": condition.name,
            "failed": any(check["failed"] for check in checks) or not checks,
            "checks": checks,
        }

    def _check(self, condition: Condition, place: Place, found: Found) -> Json:
        """What is compared with the limit in one place; {} if there was no such place before."""
        check: Json = {"slice": str(place), "value": found.value, "before": None}
        if condition.against is not None:
            earlier = self._before[condition.against].readings[condition.name].get(place)
            if earlier is None:
                return {}
            check["before"] = earlier.value
            found = found.minus(earlier)
        p = found.p_value(condition.limit, self._config.confidence)
        ends = {"difference": found.value if condition.is_change else None}
        return (
            check
            | ends
            | {"lower": found.lower, "upper": found.upper, "compared": found.value, "p_value": p}
        )

    @staticmethod
    def _adjust(checks: Iterable[Json]) -> None:
        """Adjusts the p-values of slices by the method of Holm; that of all rows stays."""
        sliced = [check for check in checks if check["slice"] != str(Place())]
        adjusted = adjust([check["p_value"] for check in sliced])
        for check in checks:
            check["p_adjusted"] = check["p_value"]
        for check, p in zip(sliced, adjusted, strict=True):
            check["p_adjusted"] = p.item()

    def _verdict(self, condition: Condition, check: Json) -> tuple[bool, str]:
        """Whether a check fails the gate, and why."""
        x, p = check["compared"], check["p_adjusted"]
        if not math.isfinite(x):
            return True, "no value"
        met = condition.is_met(x)
        if self._when == "measured":
            return met, ""
        if math.isnan(p):
            return met, "no interval, so the value decides"
        is_clear = p < 1 - self._config.confidence
        why = "" if is_clear else "within chance"
        return (met or not is_clear if self._when == "possible" else met and is_clear), why


def _is_in(condition: Condition, place: Place) -> bool:
    return condition.where in ("", place.by or OVERALL, str(place))


class _Earlier(NamedTuple):
    """An earlier evaluation."""

    readings: Readings
    """Its values, with intervals of the confidence of this one."""
    metrics: Mapping[str, str]
    """Its metrics as one writes them in Python."""

    @classmethod
    def of(cls, folder: Path, config: Configuration) -> Self:
        """Reads the evaluation in a folder.

        Raises:
            MetricInputError: there is none, or it is of another task.
        """
        path = folder / SUMMARY if folder.is_dir() else folder
        try:
            summary = json.loads(path.read_text("utf-8"))
            task, complete = summary["task"], summary["source"]["complete"]
            found, metrics = (
                readings_of(summary),
                {x["name"]: x["metric"] for x in summary["metrics"]},
            )
            factor = _z(config.confidence) / _z(float(summary["confidence"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MetricInputError(
                f"argument --fail-if: {str(path)!r} is no {SUMMARY} of datarax evaluate --output"
            ) from error
        if task != config.task or not complete:
            what = f"of the task {task!r}" if task != config.task else "not complete"
            raise MetricInputError(
                f"argument --fail-if: the evaluation in {str(folder)!r} is {what}"
            )
        scaled = {
            name: {place: each.scaled(factor) for place, each in places.items()}
            for name, places in found.items()
        }
        return cls(scaled, metrics)


def _z(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)
