"""The summary of an evaluation: what was computed from what files, as plain JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from datarax._errors import UndefinedMetricWarning
from datarax._typing import PyTree
from datarax.evaluation import largest_losses
from datarax.evaluation.encoding import Configuration, Json
from datarax.evaluation.outcome import Outcome
from datarax.evaluation.slice_tests import with_p_values
from datarax.evaluation.table_batches import NOT_A_CLASS
from datarax.evaluation.tasks import Spec, better, built, described
from datarax.metric.base import read
from datarax.metric.reading import Bounds, Reading
from datarax.metric.unusable import Undefined, Unusable
from datarax.metric.values import flat_items
from datarax.statistics.invalid_counts import BEYOND_CAPACITY
from datarax.wrappers.collection import Collection
from datarax.wrappers.interval import Interval

Number = int | float | np.number
Values = Mapping[str, PyTree]
"""The values of metrics, by name."""
Ends = dict[str, Json]
"""The intervals of metrics, by name: each with the items `_ENDS`."""
_NUMBERS = "lower", "upper", "std_error"
_ENDS = *_NUMBERS, "method"
FORMAT = 1
"""The version of the layout of the summary."""
_PER_CLASS = "_per_class"
"""What the name of a value for each class ends in, of a metric with several values."""

NAN_EFFECT = "the result is NaN; --on-invalid exclude leaves such rows out"


def head_of(outcome: Outcome, version: str) -> Json:
    """Returns the beginning of the summaries of evaluations and of comparisons."""
    return {
        "format": FORMAT,
        "datarax": version,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "title": outcome.title,
        "task": outcome.config.task,
        "positive_class": outcome.config.positive_class,
        "config": outcome.config.as_json(),
    }


def summary_of(outcome: Outcome, version: str) -> Json:
    """The summary of an evaluation by this version of datarax; NaN and infinities are None.

    Its keys are those of `metrics.json`: see the page on evaluating files.
    """
    config, metric = outcome.config, outcome.metric
    whole = read(metric["whole"]).checked("", warns=False)  # raises, if the policy is "raise"
    formulas = _formulas(metric["whole"])
    values, ends = _apart(whole.on_host(), formulas)
    ends |= of_replicas(metric, "drawn")
    rows = list(_rows(config, values, ends, whole.bounds))
    of_slices = [read(metric[f"slice_{place}"]) for place in range(len(config.slicings))]
    slices = [_slices(config, i, metric, each, formulas) for i, each in enumerate(of_slices)]
    with_p_values(slices, rows, outcome.rows, config)
    by_class, done = _by_class(config, values), len(outcome.done)
    absent = (
        {"reason": f"no value in column {x!r}", "where": x, "rows": rows, "effect": "left out"}
        for x, rows in outcome.excluded.items()
    )
    return plain(
        head_of(outcome, version)
        | {
            "source": {
                "files": [file.path for file in outcome.files],
                "rows": outcome.rows,
                "parts": {"done": done, "total": outcome.total},
                "complete": done == outcome.total,
            },
            "columns": outcome.columns,
            "metrics": rows,
            "by_class": by_class,
            "slices": slices,
            "largest_losses": largest_losses.as_json(config, outcome.worst),
            "excluded": [*absent, *_unusable(whole, config, _of_labels(outcome))],
            "confidence": config.confidence,
            "notes": [
                *score_notes(whole),
                *undefined_notes(config, whole, of_slices),
                *_not_defined(whole, rows),
                *_not_listed(config, rows, by_class),
            ],
        }
    )


def _not_defined(whole: Reading, rows: Sequence[Json]) -> list[str]:
    """Says which numbers are NaN although all rows can be used."""
    said = {name for name, each in whole.invalid.items() if each.is_some}
    names = [
        row["name"]
        for row in rows
        if np.isnan(row["value"]) and said.isdisjoint((row["name"], row["name"].split("/")[0]))
    ]
    if not names:
        return []
    return [
        f"{', '.join(names)}: NaN, because these rows define no value: they are too few, lack a "
        f"class, are all equal, or have the weight 0"
    ]


def _not_listed(config: Configuration, rows: Sequence[Json], by_class: Json | None) -> list[str]:
    """Says which metrics have no number in the tables, because their values are arrays."""
    columns = () if by_class is None else by_class["columns"]
    shown = {each["name"].split("/")[0] for each in (*rows, *columns)}
    names = [spec.name for spec in config.specs if spec.name.split("/")[0] not in shown]
    said = "its value is an array, which is not listed; datarax.evaluate in Python gives it"
    return [f"{name}: {said}" for name in names]


def score_notes(reading: Reading) -> list[str]:
    """Says once which metrics got scores of another kind than they take them for.

    Not of figures and tables by class, which have the same scores.
    """
    found: dict[str, list[str]] = {}
    for name, said in reading.doubts():
        if not name.startswith(("figure/", "class/")):
            said = said.replace("give from_logits=True", "give --scores logits")
            said = said.replace("give from_logits=False", "give --scores probabilities")
            found.setdefault(said, []).append(name)
    return [f"{', '.join(names)}: {said}" for said, names in found.items()]


def undefined_notes(
    config: Configuration, whole: Reading, slices: Sequence[Reading], *, below: str = ""
) -> list[str]:
    """Says once a metric which ratios are 0/0 and count as 0; and once more, in which slices.

    `below` is the path of the metrics in a slice. A value by class is said only if its metric is
    not listed, too.
    """
    found: dict[str, str] = {}
    for name, each in whole.undefined_parts(UndefinedMetricWarning):
        if not name.startswith("figure/"):
            found[name] = _with_names(each, config).said()
    for name in [name for name in found if name.startswith("class/")]:
        said, listed = found.pop(name), name.removeprefix("class/")
        found.setdefault(listed, f"{said.split(';')[0]}, in the table by class")
    lines = [f"{name}: {said}" for name, said in found.items()]
    for slicing, reading in zip(config.slicings, slices, strict=True):
        for name, each in reading.undefined_parts(UndefinedMetricWarning):
            if each.groups is not None and name.startswith(below):
                groups = [f"{slicing.by}={slice_name}" for slice_name in slicing.names]
                said = _with_names(replace(each, groups=groups), config).said()
                lines.append(f"{name.removeprefix(below)}: {said}")
    return lines


def _with_names(undefined: Undefined, config: Configuration) -> Undefined:
    """The same, with the names of classes or labels in place of their numbers."""
    if config.names is None:
        return undefined
    numbers: Sequence[Any] = undefined.labels or range(len(config.names))
    return replace(undefined, labels=[config.names[i] for i in numbers])


def numbers(config: Configuration, values: Values) -> Iterator[tuple[Spec, str, Number]]:
    """Each number of each metric, with its name."""
    for spec in config.specs:
        # One score of a log may have its name below that of another: "match" and "match/strict".
        below = [x.name for x in config.specs if x.name.startswith(f"{spec.name}/")]
        for name, value in values.items():
            # A metric that gives several numbers has them below its name; `bool` is a subclass of
            # `int`.
            of_spec = name == spec.name or name.startswith(f"{spec.name}/")
            of_spec &= not any(name == x or name.startswith(f"{x}/") for x in below)
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if of_spec and number and not name.endswith("/invalid"):
                yield spec, name, value


def _rows(
    config: Configuration, values: Values, ends: Ends, bounds: Mapping[str, Bounds]
) -> Iterator[Json]:
    """The rows of the metrics: one for each number that they give."""
    for spec, name, value in numbers(config, values):
        # Bounds are of a metric with one number; those within an `Interval` are of its value.
        certain = bounds.get(f"{name}/value") or (bounds.get(name) if name == spec.name else None)
        yield {
            "name": name,
            # As one writes it in Python. The policy is among the settings of the whole summary.
            "metric": repr(built(spec, config.task, config.size, config.scores, "propagate")),
            "value": value,
            **{end: ends.get(name, {}).get(end) for end in _ENDS},
            # NumPy's scalars are no JSON.
            "bounds": None if certain is None else [np.asarray(end).item() for end in certain.ends],
            "better": better(spec),
            "description": described(spec, config.task),
        }


def _formulas(whole: PyTree) -> dict[str, str]:
    """The methods of the intervals by formulas, by the name of the metric."""
    return {name: each.method for name, each in whole.items() if isinstance(each, Interval)}


def _apart(results: Values, formulas: Mapping[str, str]) -> tuple[dict[str, PyTree], Ends]:
    """The values of metrics, and the intervals of those that have formulas."""
    values, ends = dict(flat_items(results)), {}
    for name, how in formulas.items():
        if f"{name}/value" in values:
            found = {end: values.pop(f"{name}/{end}") for end in ("value", *_NUMBERS)}
            values[name], ends[name] = found.pop("value"), found | {"method": how}
    return values, ends


def of_replicas(metric: Collection, member: str) -> Ends:
    """The intervals of a `Bootstrap` or a `Compare` with replicas, if the member is there."""
    if member not in metric:
        return {}
    results = read(metric[member]).on_host()
    ends = {end: dict(flat_items(results[end])) for end in _ENDS if end in results}
    return {
        name: {end: each[name] for end, each in ends.items()} | {"method": "bootstrap"}
        for name in ends["lower"]
    }


def _by_class(config: Configuration, values: Values) -> Json | None:
    classes = list(config.names or map(str, range(config.size or 0)))
    listed = {spec.name for spec in config.specs}
    columns = []
    for name, value in values.items():
        if name == "class/support":
            value = np.asarray(value)[:, -1]  # the last of the counts
        if name.endswith(_PER_CLASS):  # "mean_average_precision/map_per_class"
            columns.append({"name": name.removesuffix(_PER_CLASS), "values": value.tolist()})
        # Metrics that were asked for with average=None are listed by class too.
        elif np.shape(value) == (len(classes),) and (name.startswith("class/") or name in listed):
            columns.append({"name": name.removeprefix("class/"), "values": value.tolist()})
    return {"classes": classes, "columns": columns} if columns else None


def _slices(
    config: Configuration,
    place: int,
    metric: Collection,
    reading: Reading,
    formulas: Mapping[str, str],
) -> Json:
    """The values of one slicing, from its reading, with intervals where there are any."""
    slicing, by = config.slicings[place], f"slice_{place}"
    results, drawn = reading.on_host(), of_replicas(metric, f"{by}_drawn")
    rows = []
    for number, name in enumerate(slicing.names):
        values, ends = _apart(results[str(number)], formulas)
        examples = values.pop("examples")
        found = {
            key: {"value": value}
            | {end: (ends.get(key) or drawn.get(f"{number}/{key}") or {}).get(end) for end in _ENDS}
            for _, key, value in numbers(config, values)
        }
        rows.append({"name": name, "examples": examples, "values": found})
    return {"by": slicing.by, "rows": _worst_first(config, rows)}


def _worst_first(config: Configuration, rows: list[Json]) -> list[Json]:
    """The slices by the first metric that has a value in them; those without a value are last.

    They stay in their order if neither high nor low values of this metric are good.
    """
    first = next((key for row in rows for key in row["values"]), None)
    of = {key: spec for row in rows for spec, key, _ in numbers(config, _values_of(row))}
    good = better(of[first]) if first is not None else None
    if good is None:
        return rows
    sign = 1 if good == "higher" else -1

    def key(row: Json) -> tuple[bool, float]:
        value = float(row["values"].get(first, {}).get("value", math.nan))
        return math.isnan(value), 0.0 if math.isnan(value) else sign * value

    return sorted(rows, key=key)


def _values_of(row: Json) -> Values:
    return {key: each["value"] for key, each in row["values"].items()}


def _of_labels(outcome: Outcome) -> str:
    """The columns that hold labels, for a message."""
    config, columns = outcome.config, outcome.columns
    outputs = ["target", *(config.outputs("preds") if config.scores == "labels" else ())]
    names = [repr(name) for output in outputs for name in columns.get(output) or ()]
    return f"{'one of the columns' if len(names) > 1 else 'column'} {', '.join(names)}"


def wrong_labels(unusable: Unusable, columns: str) -> str:
    """Describes what is wrong with the labels in columns."""
    if unusable.labels and unusable.example == NOT_A_CLASS:
        return (
            f"{columns} holds fractions, numbers below 0 or unknown names{unusable.expected}. For "
            f"such targets there is --task regression; labels of -1 and 1 are written as 0 and 1"
        )
    if not unusable.shift and not unusable.expected:
        return ""
    said = f"{columns} holds {float(unusable.example):g}{unusable.expected}"
    return f"{said}. {unusable.shift}" if unusable.shift else said


def _unusable(reading: Reading, config: Configuration, columns: str) -> Iterator[Json]:
    """Lists what metrics could not use; one row for all metrics that could not use the same."""
    found: dict[tuple[str, int, str], list[str]] = {}
    policies, invalid = dict(reading.policies), jax.device_get(reading.invalid)
    # Of a metric that refuses scores too, the example is a label if others refuse it.
    labels = {float(each.example) for each in invalid.values() if not each.takes_probabilities}
    for name, unusable in invalid.items():
        if not unusable.is_some or name.startswith(("figure/", "class/")):
            continue
        for kind, count in unusable.counts.items():
            if int(count):
                effect = NAN_EFFECT if policies[name] == "propagate" else "left out"
                if kind == BEYOND_CAPACITY and effect == NAN_EFFECT:
                    effect = "the result is NaN; :capacity=N keeps N rows"
                # No advice to leave rows out where labels that are shifted explain them.
                if kind == "out of range" and float(unusable.example) in labels:
                    only_labels = replace(unusable, takes_probabilities=False)
                    if wrong := wrong_labels(only_labels, columns):
                        # Labels such as 255 may stand for rows that are to be left out.
                        remedy = unusable.shift or float(unusable.example) == NOT_A_CLASS
                        effect = f"{effect.split(';')[0] if remedy else effect}: {wrong}"
                # Metrics of the same columns mostly refuse the same rows, which are listed once.
                key = (kind or "cannot be used", int(count), effect)
                found.setdefault(key, []).append(name)
    for (reason, rows, effect), names in found.items():
        all_of_them = len(names) == len(config.specs) > 1
        where = "all metrics" if all_of_them else ", ".join(names)
        yield {"reason": reason, "where": where, "rows": rows, "effect": effect}


def plain(x: Any) -> Any:
    """The value with None for NaN and infinities, which JSON does not have."""
    if isinstance(x, Mapping):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    if isinstance(x, np.generic):
        x = x.item()
    return None if isinstance(x, float) and not math.isfinite(x) else x
