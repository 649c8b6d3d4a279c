"""Measures how far common ways to compute a metric drift from its value, for docs/drift.md.

    python benchmarks/drift.py          prints the numbers
    python benchmarks/drift.py --write  also draws the figures of the page

Each function gives the numbers of one figure: by name, the error at each `x`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from datarax import metrics as m

DOCS = Path(__file__).parent.parent / "docs" / "drift"


class Measured(NamedTuple):
    title: str
    x_label: str
    y_label: str
    x: list[float]
    lines: dict[str, list[float]]


def counts() -> Measured:
    """A count of rows, one batch of 2**20 at a time, past 2**24 and 2**31."""

    def body(carry, _):
        by_one, batches, integer, metric = carry
        # A float32 that is near n and to which 1 is added for each row: the rounding of n + 1.
        by_one = jnp.where(by_one + 1 == by_one, by_one, by_one + 2**20)
        row = by_one, batches + jnp.float32(2**20), integer + jnp.int32(2**20)
        return (*row, metric.update(jnp.int32(2**20))), (*row, metric.compute())

    start = jnp.float32(0), jnp.float32(0), jnp.int32(0), m.Sum()
    steps = 3 * 2**11
    _, (by_one, _, integer, ours) = jax.lax.scan(body, start, None, length=steps)
    rows = (np.arange(steps) + 1.0) * 2**20
    lines = {"float32, + 1": by_one, "int32": integer, "datarax.Sum": np.append(ours[1:], rows[-1])}
    shown = [*range(0, steps, 64), steps - 1]
    return Measured(
        "Rows counted",
        "rows seen (billions)",
        "rows counted (billions)",
        [rows[i] / 1e9 for i in shown],
        {name: [float(y[i]) / 1e9 for i in shown] for name, y in lines.items()},
    )


def totals() -> Measured:
    """The mean of a million losses near 2.5, from running sums of less and less precision."""
    losses = np.random.default_rng(0).gamma(5.0, 0.5, 2**20).astype(np.float32)
    sizes = [2**k for k in range(6, 21)]

    sums = {
        name: np.add.accumulate(losses.astype(dtype), dtype=dtype).astype(np.float64)
        for name, dtype in {"bfloat16": jnp.bfloat16, "float32": jnp.float32}.items()
    }
    exact = {n: losses[:n].astype(np.float64).mean() for n in sizes}
    lines = {
        f"running sum in {name}": [abs(y[n - 1] / n / exact[n] - 1) for n in sizes]
        for name, y in sums.items()
    }
    metric, seen, ours = m.Mean(), 0, []
    for n in sizes:
        metric, seen = metric.update(losses[seen:n]), n
        ours.append(abs(metric.results() / exact[n] - 1))
    lines["datarax.Mean"] = ours
    return Measured("Mean loss", "losses", "relative error", [float(n) for n in sizes], lines)


def means_of_batches() -> Measured:
    """Metrics averaged over batches, against those of all rows, by the size of the batch."""
    rng = np.random.default_rng(1)
    rows, classes = 2**14, 20
    target = rng.choice(classes, rows, p=rng.dirichlet(np.full(classes, 0.5)))
    preds = np.where(rng.random(rows) < 0.7, target, rng.integers(0, classes, rows))
    positive = rng.random(rows) < 0.05
    scores = (rng.normal(size=rows) + 1.2 * positive).astype(np.float32)
    labels, none = np.arange(classes), cast(Any, 0)
    f1 = f1_score(target, preds, labels=labels, average="macro", zero_division=none)
    precision = average_precision_score(positive, scores)
    sizes = [16, 32, 64, 128, 256, 512, 1024, 2048]
    lines: dict[str, list[float]] = {
        "macro F1, mean of batches": [],
        "average precision, mean of batches": [],
    }
    ours = {"macro F1, datarax": [], "average precision, datarax": []}
    for size in sizes:
        batches = [slice(i, i + size) for i in range(0, rows, size)]
        each = [
            f1_score(target[b], preds[b], labels=labels, average="macro", zero_division=none)
            for b in batches
        ]
        lines["macro F1, mean of batches"].append(float(np.mean(each)) - f1)
        areas = [
            average_precision_score(positive[b], scores[b]) for b in batches if positive[b].any()
        ]
        lines["average precision, mean of batches"].append(float(np.mean(areas)) - precision)
        macro, area = m.F1(num_classes=classes, average="macro"), m.AveragePrecision()
        for b in batches:
            macro = macro.update(preds[b], target[b])
            area = area.update(scores[b], positive[b].astype(np.int32))
        ours["macro F1, datarax"].append(macro.results() - f1)
        ours["average precision, datarax"].append(area.results() - precision)
    return Measured(
        "Averages of batches", "rows in a batch", "error", [float(n) for n in sizes], lines | ours
    )


def thresholds() -> Measured:
    """AUROC of the same order of scores, on 200 even thresholds from 0 to 1, as they saturate."""
    rng = np.random.default_rng(2)
    positive = rng.random(20_000) < 0.3
    logits = rng.normal(size=positive.size) + 1.5 * positive
    exact = roc_auc_score(positive, logits)
    shifts = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    fixed, ours = [], []
    for shift in shifts:
        scores = (1 / (1 + np.exp(-(logits + shift)))).astype(np.float32)
        edges = np.linspace(0, 1, 200)
        tpr = np.array([np.mean(scores[positive] >= t) for t in edges])[::-1]
        fpr = np.array([np.mean(scores[~positive] >= t) for t in edges])[::-1]
        area = np.trapezoid(np.append(0, tpr), np.append(0, fpr))
        fixed.append(abs(float(area) - exact))
        # The exact value of what is passed: sigmoid in float32 makes ties of its own.
        reference = roc_auc_score(positive, scores)
        area = m.AUROC().update(scores, positive.astype(np.int32)).results()
        ours.append(abs(area - reference))
    return Measured(
        "AUROC of saturated probabilities",
        "shift of the logits",
        "error",
        shifts,
        {"200 even thresholds": fixed, "datarax.AUROC": ours},
    )


FIGURES: dict[str, Callable[[], Measured]] = {
    "counts": counts,
    "totals": totals,
    "batches": means_of_batches,
    "thresholds": thresholds,
}
LOGARITHMIC = {"totals": ("log", "log"), "batches": ("log", "linear")}


def draw(name: str, measured: Measured) -> None:
    """Writes one figure, for light and for dark pages."""
    styles = ("o--", "s-.", "^:", "D-")
    for mode, ink in (("light", "#202020"), ("dark", "#e0e0e0")):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.subplots()
        names = list(measured.lines)
        for i, (label, y) in enumerate(measured.lines.items()):
            mine = label.startswith("datarax") or label.endswith("datarax")
            style = "-" if mine else styles[i % len(styles)]
            colour = ("#0072b2" if i < len(names) - 1 else "#009e73") if mine else None
            axes.plot(
                measured.x, y, style, label=label, markevery=max(1, len(y) // 12),
                markersize=4, linewidth=2.2 if mine else 1.4,
                color=colour or ("#d55e00" if i == 0 else "#cc79a7"),
            )  # fmt: skip
        x_scale, y_scale = LOGARITHMIC.get(name, ("linear", "linear"))
        axes.set(xlabel=measured.x_label, ylabel=measured.y_label, xscale=x_scale, yscale=y_scale)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, labelcolor=ink, fontsize=9)
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set_color(ink)
        axes.tick_params(which="both", colors=ink)
        for spine in axes.spines.values():
            spine.set_color(ink)
        DOCS.mkdir(exist_ok=True)
        path = DOCS / f"{name}-{mode}.png"
        figure.savefig(path, dpi=110, transparent=True, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="draw the figures of docs/drift.md")
    write = parser.parse_args().write
    for name, measure in FIGURES.items():
        measured = measure()
        sys.stdout.write(f"\n{measured.title}: {measured.y_label} by {measured.x_label}\n")
        step = max(1, len(measured.x) // 8)
        for i in sorted({*range(0, len(measured.x), step), len(measured.x) - 1}):
            row = "  ".join(f"{label} {y[i]:.3g}" for label, y in measured.lines.items())
            sys.stdout.write(f"{measured.x[i]:>10.4g}  {row}\n")
        if write:
            draw(name, measured)


if __name__ == "__main__":
    main()
