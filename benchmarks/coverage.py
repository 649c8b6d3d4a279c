"""How often 95 % intervals cover the true value: `python benchmarks/coverage.py [--write PAGE]`.

Each data set is simulated, so the true value is known. It is folded in one batch, in 37 merged
ones, and over 8 simulated devices. `--write docs/interval-coverage.md` replaces the table there.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from datarax import Compare, Interval
from datarax.metrics import (
    AUROC,
    F1,
    Accuracy,
    AveragePrecision,
    CohenKappa,
    ConcordanceCorrCoef,
    ExplainedVariance,
    KendallTau,
    MatthewsCorrCoef,
    Mean,
    Median,
    PearsonCorrCoef,
    R2Score,
    RootMeanSquaredError,
    SpearmanCorrCoef,
)

PARTS, DEVICES, CHUNK = 37, 8, 500
ROWS = PARTS * DEVICES  # 296, and twice as many
START, END = "<!-- coverage: begin -->\n", "<!-- coverage: end -->"
Rows = dict[str, np.ndarray]


class Case(NamedTuple):
    """An interval, data sets for it, and the true value."""

    name: str
    interval: Any
    draw: Callable[[np.random.Generator, int], Rows]
    """Makes as many data sets: arrays (sets, rows)."""
    truth: float
    most_sets: int = 10_000
    """Fewer data sets, for a state of 64 KiB whose merges take long."""


def normal(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    return {"values": rng.normal(size=(sets, rows)).astype(np.float32)}


def exponential(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    return {"values": rng.exponential(size=(sets, rows)).astype(np.float32)}


def predicted(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    """Biased predictions, correlated with the target by 0.8."""
    target, noise = rng.normal(size=(2, sets, rows))
    preds = 0.8 * target + 0.6 * noise + 0.5
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


def weighted(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    weights = rng.exponential(size=(sets, rows)).astype(np.float32)
    return exponential(rng, sets, rows) | {"weights": weights}


def clustered(rng: np.random.Generator, sets: int, rows: int, first: int = 0) -> Rows:
    """Eight rows in each cluster, in a random order."""
    cluster = np.stack([rng.permutation(rows) // 8 for _ in range(sets)])
    common = np.take_along_axis(rng.normal(size=(sets, rows)), cluster, 1)
    values = common + rng.normal(size=(sets, rows))
    return {"values": values.astype(np.float32), "cluster": (cluster + first).astype(np.int32)}


def naive(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    return {"values": clustered(rng, sets, rows)["values"]}


def hits(rng: np.random.Generator, sets: int, rows: int, share: float) -> Rows:
    preds = (rng.random((sets, rows)) < share).astype(np.int32)
    return {"preds": preds, "target": np.ones_like(preds)}


def scores(rng: np.random.Generator, sets: int, rows: int, share: float = 0.5) -> Rows:
    """Two normal distributions, one apart."""
    target = (rng.random((sets, rows)) < share).astype(np.int32)
    preds = (rng.normal(size=(sets, rows)) + target).astype(np.float32)
    return {"preds": preds, "target": target}


def two_labels(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    """As `scores`, of two labels whose scores depend on each other."""
    common, *own = rng.normal(size=(3, sets, rows))
    target = (rng.random((sets, rows, 2)) < 0.5).astype(np.int32)
    preds = np.stack([0.6 * common + 0.8 * each for each in own], -1) + target
    return {"preds": preds.astype(np.float32), "target": target}


def two_models(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    """As `scores`, of two models that are equally good, and whose scores depend on each other."""
    common, *own = rng.normal(size=(3, sets, rows))
    target = (rng.random((sets, rows)) < 0.5).astype(np.int32)
    a, b = ((0.8 * common + 0.6 * each + target).astype(np.float32) for each in own)
    return {"preds_a": a, "preds_b": b, "target": target}


CELLS = np.array([[30, 6, 4], [5, 20, 5], [2, 8, 20]]) / 100
"""The probability of each target (row) and prediction (column)."""


def labels(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    cell = rng.choice(9, (sets, rows), p=CELLS.ravel()).astype(np.int32)
    return {"preds": cell % 3, "target": cell // 3}


def errors(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    preds, target = rng.normal(size=(2, sets, rows)).astype(np.float32)
    return {"preds": preds, "target": target}


def pairs(rng: np.random.Generator, sets: int, rows: int) -> Rows:
    common, a, b = rng.exponential(size=(3, sets, rows))
    return {
        "values_a": (common + a).astype(np.float32),
        "values_b": (common + b / 2).astype(np.float32),
    }


def average_precision(share: float) -> float:
    """The true value for `scores`, by an integral over the scores of the positives."""
    x = np.linspace(-8, 9, 200_001)
    density = np.exp(-((x - 1) ** 2) / 2) / np.sqrt(2 * np.pi)
    above = np.array([1 - NormalDist().cdf(float(each)) for each in x[::20]])
    false = np.interp(x, x[::20], above) * (1 - share)
    found = np.interp(x, x[::20], [1 - NormalDist(1).cdf(float(e)) for e in x[::20]]) * share
    return float(np.trapezoid(density * found / np.maximum(found + false, 1e-300), x))


def cases() -> list[Case]:
    """All cases; those with a number have so many rows."""
    margins = CELLS.sum(0), CELLS.sum(1)
    right, chance = np.trace(CELLS), margins[0] @ margins[1]
    mcc = (right - chance) / np.sqrt((1 - (margins[0] ** 2).sum()) * (1 - (margins[1] ** 2).sum()))
    macro = float(np.mean(2 * CELLS.diagonal() / (margins[0] + margins[1])))
    area = NormalDist().cdf(0.5**0.5)
    three: dict[str, Any] = {"num_classes": 3}
    few, many = ROWS, 2 * ROWS
    mean = Interval(Mean())
    return [
        Case("mean, normal", mean, partial(normal, rows=few), 0.0),
        Case("mean, exponential", mean, partial(exponential, rows=many), 1.0),
        Case("mean, exponential, weighted", mean, partial(weighted, rows=many), 1.0),
        Case(
            "mean, 74 clusters",
            Interval(Mean(), clusters=128),
            partial(clustered, rows=many),
            0.0,
        ),
        Case(
            "mean, 74 clusters, hashed to 1,024 cells",
            Interval(Mean(), clusters=1024),
            partial(clustered, rows=many, first=2**20),
            0.0,
        ),
        Case("mean, 74 clusters, taken as 592 rows", mean, partial(naive, rows=many), 0.0),
        Case(
            "accuracy of 0.93, Wilson",
            Interval(Accuracy(num_classes=2)),
            partial(hits, rows=many, share=0.93),
            0.93,
        ),
        Case("RMSE", Interval(RootMeanSquaredError()), partial(errors, rows=few), 2**0.5),
        Case(
            "macro F1, 3 classes",
            Interval(F1(average="macro", **three)),
            partial(labels, rows=many),
            macro,
        ),
        Case(
            "MCC, 3 classes", Interval(MatthewsCorrCoef(**three)), partial(labels, rows=many), mcc
        ),
        Case(
            "kappa, 3 classes",
            Interval(CohenKappa(**three)),
            partial(labels, rows=many),
            (right - chance) / (1 - chance),
        ),
        Case("AUROC of 0.76, DeLong", Interval(AUROC(bits=10)), partial(scores, rows=few), area),
        Case(
            "average precision, a third positive",
            Interval(AveragePrecision(bits=10)),
            partial(scores, rows=many, share=1 / 3),
            average_precision(1 / 3),
        ),
        Case(
            "macro AUROC of 2 labels, 2,000 data sets",
            Interval(AUROC(num_labels=2, bits=10)),
            partial(two_labels, rows=few),
            area,
            most_sets=2000,
        ),
        Case(
            "difference of paired AUROC, 2,000 data sets",
            Compare(AUROC(bits=10), method="formula"),
            partial(two_models, rows=few),
            0.0,
            most_sets=2000,
        ),
        Case(
            "median, exponential",
            Interval(Median(bits=12)),
            partial(exponential, rows=few),
            np.log(2),
        ),
        *(
            Case(name, Interval(metric), partial(predicted, rows=few), truth)
            for name, metric, truth in (
                ("R2 of 0.35", R2Score(), 0.35),
                ("explained variance of 0.6", ExplainedVariance(), 0.6),
                ("correlation of 0.8", PearsonCorrCoef(), 0.8),
                ("concordance of 0.71", ConcordanceCorrCoef(), 1.6 / 2.25),
                (
                    "Spearman's rho of 0.79",
                    SpearmanCorrCoef(capacity=few),
                    6 / np.pi * np.arcsin(0.4),
                ),
                ("Kendall's tau of 0.59", KendallTau(capacity=few), 2 / np.pi * np.arcsin(0.8)),
            )
        ),
        Case(
            "difference of paired means",
            Compare(Mean(), method="formula"),
            partial(pairs, rows=few),
            -0.5,
        ),
    ]


def programs(interval: Any) -> dict[str, Callable[[Rows], dict[str, jax.Array]]]:
    """The interval of each of many data sets, folded in several ways."""

    def in_one(rows: Rows) -> Any:
        return interval.update(**rows).compute()

    def merged(rows: Rows) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), rows)
        folded, _ = lax.scan(lambda m, x: (m.merge(interval.update(**x)), None), interval, parts)
        return folded.compute()

    def on_device(rows: Rows) -> Any:
        return interval.update(**rows).sync("d").compute()

    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("d",))
    spec = PartitionSpec(None, "d")
    shared = jax.shard_map(
        jax.vmap(on_device), mesh=mesh, in_specs=spec, out_specs=PartitionSpec(), check_vma=False
    )
    return {
        "one batch": jax.jit(jax.vmap(in_one)),
        f"{PARTS} merged": jax.jit(jax.vmap(merged)),
        f"{DEVICES} devices": jax.jit(shared),
    }


def coverage(case: Case, data_sets: int) -> list[float]:
    """How often the interval covers the truth, for each way."""
    found, data_sets = [], min(data_sets, case.most_sets)
    for run in programs(case.interval).values():
        rng, covered = np.random.default_rng(0), 0
        for _ in range(data_sets // CHUNK):
            ends = run(case.draw(rng, CHUNK))
            covered += int(((ends["lower"] <= case.truth) & (case.truth <= ends["upper"])).sum())
        found.append(covered / (data_sets // CHUNK * CHUNK))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-sets", type=int, default=10_000)
    parser.add_argument("names", nargs="*", help="cases to run; all of them by default")
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    args = parser.parse_args()
    head = ["interval", "one batch", f"{PARTS} merged batches", f"{DEVICES} devices"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- |"]
    for case in (x for x in cases() if not args.names or x.name in args.names):
        shares = " | ".join(f"{100 * x:.1f} %" for x in coverage(case, args.data_sets))
        lines.append(f"| {case.name} | {shares} |")
        print(lines[-1], flush=True)
    if args.write:
        page = args.write.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        args.write.write_text(before + START + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
