"""Summaries and pictures as evaluations give them, and worse ones, for tests of the report."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Names that a careless page would run, close an element with, hide, or break its layout by.
HOSTILE = (
    "<script>window.hit = 'script'</script>",
    "<img src=x onerror=\"window.hit = 'image'\">",
    "</style></title></script><svg onload=window.hit='svg'>",
    "\" onmouseover=\"window.hit='attribute'\" x='",
    "safe\u202egnp.exe\u2066",
    "a\x00b\nc\ud800",
    " ",
    "ein_sehr_langer_name_ohne_jede_luecke_" * 12,
    "\u05e2\u05d1\u05e8\u05d9\u05ea 123",
    "&amp; $title {x} %s {{ title }} {% set title = 1 %} {# title #}",
)


class Drawn(NamedTuple):
    """A picture, as the page takes them."""

    name: str
    title: str
    caption: str
    svg: str
    is_wide: bool = False


def valued(
    name: str, value: float | None, half: float | None = None, **more: Any
) -> dict[str, Any]:
    """A metric of a summary, with an interval of `value` plus and minus `half`."""
    lower = upper = error = None
    if value is not None and half is not None:
        lower, upper, error = value - half, value + half, half / 1.96
    return {
        "name": name,
        "metric": f"{name.title().replace('_', '')}(num_classes=200)",
        "value": value,
        "lower": lower,
        "upper": upper,
        "std_error": error,
        "method": None if error is None else "delta",
        "bounds": None,
        "better": "higher",
        "description": "The fraction of rows whose predicted class is the target.",
        **more,
    }


def summary_of(metrics: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "datarax": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "title": "predictions.parquet",
        "task": "binary",
        "config": {"task": "binary", "threshold": 0.5},
        "source": {
            "files": ["predictions.parquet"],
            "rows": 4096,
            "parts": {"done": 1, "total": 1},
            "complete": True,
        },
        "columns": {"preds": ["score"], "target": ["label"], "weights": None},
        "metrics": list(metrics),
        "by_class": None,
        "slices": [],
        "excluded": [],
        "confidence": 0.95,
        **more,
    }


def binary() -> dict[str, Any]:
    """A small evaluation without intervals, of which nothing is special."""
    return summary_of(
        [
            valued("accuracy", 0.9312),
            valued("auroc", 0.98213, bounds=[0.98208, 0.98217], description="The area under ROC."),
            valued("log_loss", 0.2134, better="lower", description="The mean negative log score."),
        ]
    )


def classes(rng: np.random.Generator, names: Sequence[str]) -> dict[str, Any]:
    def fractions() -> list[float | None]:
        values: list[float | None] = [*rng.beta(8, 2, len(names)).tolist()]
        values[len(names) // 2] = None
        return values

    columns = [{"name": name, "values": fractions()} for name in ("precision", "recall", "f1")]
    support = rng.integers(1, 90_000, len(names)).tolist()
    return {"classes": list(names), "columns": [*columns, {"name": "support", "values": support}]}


def slices(
    rng: np.random.Generator, by: str, names: Sequence[str], overall: Mapping[str, float]
) -> dict[str, Any]:
    rows = []
    for name in names:
        examples = int(np.exp(rng.uniform(3, 10)))
        values = {}
        for metric, mean in overall.items():
            value = float(np.clip(mean + rng.normal() * 0.3 / np.sqrt(examples), 0, 1))
            half = 2 * (value * (1 - value) / examples) ** 0.5 + 1e-3
            ends = {"lower": max(0.0, value - half), "upper": min(1.0, value + half)}
            values[metric] = {"value": value, **ends}
        rows.append({"name": name, "examples": examples, "values": values})
    rows[-1] = {
        "name": names[-1],
        "examples": 0,
        "values": {metric: {"value": None, "lower": None, "upper": None} for metric in overall},
    }
    return {"by": by, "rows": rows}


def rich(seed: int = 0) -> dict[str, Any]:
    """Everything at once: 200 classes, 60 slices, hostile names, no data, and an interruption."""
    rng = np.random.default_rng(seed)
    overall = {"accuracy": 0.9312, "f1": 0.884}
    metrics = [
        valued("accuracy", 0.93127, 0.0042),
        valued(
            "f1",
            0.8841,
            0.0061,
            description="The harmonic mean of precision and recall, "
            "of each class, averaged over the classes.",
        ),
        valued(
            "auroc",
            0.982134,
            0.0013,
            bounds=[0.98208, 0.98217],
            description="The probability that a row of the class scores higher than another.",
        ),
        valued(
            "log_loss",
            0.21344,
            0.0102,
            better="lower",
            description="The mean negative logarithm of the score of the target.",
        ),
        valued("perplexity", 14.731, 0.41, better="lower", description="The exponential of it."),
        valued(
            "calibration_error",
            3.17e-6,
            2.1e-7,
            better="lower",
            description="How far confidences are from how often they are right.",
        ),
        valued("tokens_seen", 3.1e11, better=None, description="How many tokens were scored."),
        valued("cohen_kappa", None, description="Agreement beyond chance."),
    ]
    countries = ("Austria", "Brazil", "Chile", "Denmark", "Estonia", "France", "Ghana", "Hungary")
    return summary_of(
        metrics,
        title="runs/2026-01-02/predictions-*.parquet",
        task="multiclass",
        config={"task": "multiclass", "num_classes": 200, "bootstrap": 200, "note": HOSTILE[0]},
        source={
            "files": [f"runs/2026-01-02/predictions-{i:05}-of-00024.parquet" for i in range(24)],
            "rows": 1_234_567,
            "parts": {"done": 3, "total": 10},
            "complete": False,
        },
        columns={
            "preds": [f"logit_{i}" for i in range(200)],
            "target": ["label"],
            "weights": None,
        },
        by_class=classes(rng, [*HOSTILE, *(f"class_{i}" for i in range(190))]),
        slices=[
            slices(
                rng,
                "country",
                [*HOSTILE, *(f"{c} {n}" for n in range(1, 7) for c in countries)],
                overall,
            ),
            slices(rng, "device", ["phone", "tablet", "desktop", "unknown"], {"accuracy": 0.9312}),
        ],
        excluded=[
            {
                "reason": "no value in column 'label'",
                "where": "label",
                "rows": 1203,
                "effect": "left out",
            },
            {
                "reason": "NaN, infinite or out of range",
                "where": "log_loss",
                "rows": 12,
                "effect": "the result is NaN",
            },
            {
                "reason": f"no value in column '{HOSTILE[1]}'",
                "where": HOSTILE[0],
                "rows": 1,
                "effect": "left out",
            },
        ],
    )


def drawn() -> list[Drawn]:
    """Two pictures that are coloured by the text around them, with equal ids in both."""
    x = np.linspace(0, 1, 60)
    points = " ".join(f"{40 + 400 * a:.1f},{300 - 280 * a**0.2:.1f}" for a in x)
    frame = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg xmlns="http://www.w3.org/2000/svg" '
        'width="460pt" height="345pt" viewBox="0 0 460 345">'
        "<metadata>made by hand</metadata>"
        '<defs><clipPath id="clip"><rect x="40" y="20" width="400" height="280"/></clipPath></defs>'
        '<path d="M40 20V300H440" fill="none" stroke="currentColor"/>'
        '<g font-size="12"><text x="40" y="318">0</text>'
        '<text x="432" y="318">1</text><text x="200" y="338">%s</text></g>%s</svg>'
    )
    curve = (
        f'<polyline points="{points}" clip-path="url(#clip)" style="fill: none; stroke: #3b82d6; '
        'stroke-width: 2"/><path d="M40 300L440 20" stroke="currentColor" stroke-dasharray="4"/>'
    )
    bars = '<g clip-path="url(#clip)">' + "".join(
        f'<rect x="{40 + 40 * i}" y="{300 - 27 * i - 10}" width="36" height="{27 * i + 10}" '
        'fill="#3b82d6"/>'
        for i in range(10)
    ) + "</g>"  # fmt: skip
    return [
        Drawn("roc", "ROC curve", "The band holds the curve for certain.",
              frame % ("false positive rate", curve)),
        Drawn("reliability", "Calibration", f"Confidence against accuracy. {HOSTILE[0]}",
              frame % ("confidence", bars)),
    ]  # fmt: skip


def compared(name: str, difference: float | None, half: float | None, p: float | None) -> dict:
    """A metric of a comparison; `half` is half of the interval, None for no interval."""
    ends = [None, None]
    if difference is not None and half is not None:
        ends = [difference - half, difference + half]
    clear = p is not None and p < 0.05
    return {
        "name": name,
        "a": 0.8123,
        "b": None if difference is None else 0.8123 + difference,
        "difference": difference,
        "lower": ends[0],
        "upper": ends[1],
        "p_value": p,
        "p_adjusted": None if p is None else min(1.0, 9 * p),
        "method": None if half is None else "bootstrap" if p is None else "formula",
        "excludes_zero": clear,
        "winner": "b" if clear else None,
        "better": "higher",
        "description": "The fraction of rows whose predicted class is the target.",
    }


def comparison() -> dict[str, Any]:
    """A comparison with hostile names, with and without intervals and p-values."""
    metrics = [
        compared("accuracy", 0.0112, 0.004, 3e-7),
        compared(HOSTILE[0], -0.002, 0.01, 0.34),
        compared("calibration_error", 3.1e-6, 2e-6, None),
        compared("cohen_kappa", None, None, None),
    ]
    rows = [
        {"name": name, "examples": 40 + i, "metrics": metrics[: 4 - i % 2]}
        for i, name in enumerate((*HOSTILE, "fr"))
    ]
    same = ("format", "datarax", "created", "task", "config", "columns", "confidence")
    summary = summary_of([])
    return {name: summary[name] for name in same} | {
        "title": HOSTILE[1],
        "positive_class": None,
        "source": {"a": HOSTILE[2], "b": "runs/b/" + "x" * 300, "rows": 12_345},
        "metrics": metrics,
        "slices": [{"by": HOSTILE[3], "rows": rows}],
        "excluded": [{"reason": "no value", "where": HOSTILE[1], "rows": 3, "effect": "left out"}],
        "notes": [f"{HOSTILE[0]}: a note"],
    }
