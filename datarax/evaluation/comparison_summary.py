"""The summary of a comparison of two models on the same rows, as plain JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from datarax.evaluation.encoding import Configuration, Json
from datarax.evaluation.joined_rows import ONLY
from datarax.evaluation.outcome import Outcome
from datarax.evaluation.outcome_summary import (
    NAN_EFFECT,
    Ends,
    Values,
    head_of,
    numbers,
    of_replicas,
    plain,
    score_notes,
    undefined_notes,
)
from datarax.evaluation.slice_tests import FEWEST_ROWS
from datarax.evaluation.tasks import better, built, described
from datarax.metric.base import read
from datarax.metric.reading import Reading
from datarax.metric.values import flat_items
from datarax.uncertainty import adjust
from datarax.wrappers.collection import Collection


def comparison_of(
    outcome: Outcome, version: str, sources: Mapping[str, str], notes: Sequence[str]
) -> Json:
    """The summary of a comparison by this version of datarax; NaN and infinities are None.

    `p_adjusted` is the p-value by Holm's method, over all metrics and slices of the summary. The
    `winner` is "a" or "b", or "differs" if neither high nor low values are good; None if that is
    not clear, and for intervals by replicas of fewer than 30 rows.
    """
    config, metric = outcome.config, outcome.metric
    excluded = [
        {"reason": _excluded(*key.split(":", 1)), "where": key.partition(":")[2], "rows": rows}
        | {"effect": "left out of both"}
        # The key has the model before the column: "a:score".
        for key, rows in outcome.excluded.items()
    ]
    models = read(metric["models"]).checked("", warns=False)
    of_slices = [read(metric[f"slice_{place}"]) for place in range(len(config.slicings))]
    rows, slices = _rows(config, metric, models), _slices(config, of_slices)
    every = [*rows, *(row for by in slices for of in by["rows"] for row in of["metrics"])]
    # NaN, of metrics without a p-value, stays NaN and is no test.
    for row, p in zip(every, adjust([row["p_value"] for row in every]), strict=True):
        row["p_adjusted"] = p.item()
        # Replicas of few rows vary too little.
        few = row["method"] == "bootstrap" and outcome.rows < FEWEST_ROWS
        row["winner"] = None if few else _winner(row, 1 - config.confidence)
    for row in every:
        row["why"] = _why(row, sliced=row not in rows, rows=outcome.rows)
    return plain(
        head_of(outcome, version)
        | {
            "source": {**sources, "rows": outcome.rows},
            "columns": outcome.columns,
            "metrics": rows,
            "slices": slices,
            "excluded": [*excluded, *_lost(config, models)],
            "confidence": config.confidence,
            "notes": [
                *notes,
                *score_notes(models),
                *undefined_notes(config, models, of_slices, below="models/"),
            ],
        }
    )


def _excluded(model: str, column: str) -> str:
    """Why rows of a model are left out."""
    if model.startswith(ONLY):
        return f"their {column!r} is in {model.removeprefix(ONLY)} alone"
    return f"no value in column {column!r} of {model}"


def _lost(config: Configuration, reading: Reading) -> Iterator[Json]:
    """Lists the rows that one model cannot be used for; metrics that lose the same are together."""
    policies, found = dict(reading.policies), {}
    for name, unusable in reading.invalid.items():
        pairs, _, of = name.partition("/")
        lost = int(np.asarray(unusable.total))
        if pairs == "pairs" and lost:
            effect = NAN_EFFECT if policies[name] == "propagate" else "left out of both"
            found.setdefault((lost, effect), []).append(of)
    for (lost, effect), names in found.items():
        where = "all metrics" if len(names) == len(config.specs) > 1 else ", ".join(names)
        reason = "cannot be used for one of the two models"
        yield {"reason": reason, "where": where, "rows": lost, "effect": effect}


def _rows(config: Configuration, metric: Collection, models: Reading) -> list[Json]:
    """The metrics of two models, with their differences and the intervals of those."""
    results = {"models": models.on_host()}
    if "paired" in metric:
        results["paired"] = read(metric["paired"]).checked("", warns=False).on_host()
    results = dict(flat_items(results))
    return _compared(config, results, of_replicas(metric, "drawn"))


def _slices(config: Configuration, readings: Sequence[Reading]) -> list[Json]:
    """The same for each slice of each slicing."""
    found = []
    for slicing, reading in zip(config.slicings, readings, strict=True):
        results, rows = reading.on_host(), []
        for number, name in enumerate(slicing.names):
            of_slice = dict(flat_items(results[str(number)]))
            compared = _compared(config, of_slice, {})
            rows.append({"name": name, "examples": of_slice["examples"], "metrics": compared})
        found.append({"by": slicing.by, "rows": rows})
    return found


def _compared(config: Configuration, results: Values, drawn: Ends) -> list[Json]:
    """The rows of metrics, from results whose names begin with "models/" and "paired/"."""

    def below(prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): x for name, x in results.items() if name.startswith(prefix)
        }

    rows, b = [], below("models/b/")
    metrics = (built(x, config.task, config.size, config.scores, "propagate") for x in config.specs)
    extreme = {x.name: each.is_extreme for x, each in zip(config.specs, metrics, strict=True)}
    for spec, name, value in numbers(config, below("models/a/")):
        found = drawn.get(name) or below(f"paired/{name}/") | {"method": "formula"}
        lower, upper = (found.get(end, math.nan) for end in ("lower", "upper"))
        # Without an interval it is not known whether the difference is more than chance.
        known = math.isfinite(lower) and math.isfinite(upper)
        rows.append(
            {
                "name": name,
                "a": value,
                "b": b[name],
                "difference": b[name] - value,
                "lower": lower,
                "upper": upper,
                "p_value": found.get("p_value", math.nan),
                "method": found["method"] if known else None,
                "excludes_zero": not lower <= 0 <= upper if known else None,
                "better": better(spec),
                "is_extreme": extreme[spec.name],
                "description": described(spec, config.task),
            }
        )
    return rows


def _why(row: Json, *, sliced: bool, rows: int) -> str:
    """Why there is no winner; "" if there is one."""
    is_extreme = row.pop("is_extreme")
    if row["winner"] is not None:
        return ""
    if not (math.isfinite(row["a"]) and math.isfinite(row["b"])):
        return "no value"
    if row["method"] is not None:
        few = row["method"] == "bootstrap" and rows < FEWEST_ROWS
        return f"fewer than {FEWEST_ROWS} rows" if few else "within chance"
    if is_extreme:
        return "no interval: an extreme of the rows has none"
    if row["difference"] == 0:
        return "no interval: the models do not differ"
    if sliced:
        return "no interval: no formula, and slices are not resampled"
    return "no interval: too few rows, or no formula and a state too large to resample"


def _winner(row: Json, level: float) -> str | None:
    """Returns "a", "b" or "differs" if the difference is more than chance, else None."""
    p = row["p_adjusted"]
    if not row["excludes_zero"] if math.isnan(p) else p >= level:
        return None
    if row["better"] is None:  # neither high nor low values are good, as of a bias
        return "differs"
    return "b" if (row["difference"] > 0) == (row["better"] == "higher") else "a"
