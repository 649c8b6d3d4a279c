"""What an update and a reading cost outside `jit`, beside torchmetrics.

datarax gets NumPy arrays and torchmetrics tensors of the same memory, on one thread. Each row has
an update of a state with 256 rows, and an empty state that is updated with 100,000 rows and read.
The times are the least processor time of many calls, in turns; the ratio is ours over theirs.

`make bench-host` runs it where torchmetrics is installed. Elsewhere `python benchmarks/host.py`
prints our times alone. Names choose metrics, as in `... Mean F1`, and `--write
docs/performance/outside-jit.md` puts the table there.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
sys.path.append(str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import by_hand
from benchmarks.by_hand import CLASSES, Arrays
from benchmarks.peers.__main__ import write
from datarax import Metric, metrics

torch: Any = None
with suppress(ImportError):
    torch = import_module("torch")

SMALL, LARGE = 256, 100_000
QUERIES = 100
"""The queries of a batch of 256 documents; larger batches have as many documents for each."""

Inputs = Callable[[np.random.Generator, int], Arrays]


class Row(NamedTuple):
    """A metric, its inputs, and the class and the arguments of the same metric of torchmetrics."""

    metric: Metric
    inputs: Inputs
    peer: str
    options: dict[str, Any] = {}  # noqa: RUF012 - not changed
    note: str = ""

    @property
    def name(self) -> str:
        return f"{type(self.metric).__name__}, {self.inputs.__name__.replace('_', ' ')}{self.note}"


def rows_of(inputs: Inputs) -> Inputs:
    """Inputs of so many rows, of those which count the values of all classes."""

    def of_rows(rng: np.random.Generator, n: int) -> Arrays:
        return inputs(rng, n * CLASSES)

    of_rows.__name__ = inputs.__name__
    return of_rows


values, regression, above_zero = by_hand.values, by_hand.regression, by_hand.above_zero
binary, logits, probabilities = (
    by_hand.binary,
    *map(rows_of, (by_hand.logits, by_hand.probabilities)),
)
labels, vectors, distributions = map(
    rows_of, (by_hand.labels, by_hand.vectors, by_hand.distributions)
)


def multilabel(rng: np.random.Generator, n: int) -> Arrays:
    preds = rng.random((n, CLASSES), np.float32)
    return {"preds": preds, "target": rng.integers(0, 2, preds.shape, np.int32)}


def continuous_labels(rng: np.random.Generator, n: int) -> Arrays:
    data = rng.normal(size=(n, CLASSES)).astype(np.float32)
    return {"data": data, "labels": rng.integers(0, CLASSES, n, np.int32)}


def queries(rng: np.random.Generator, n: int) -> Arrays:
    query = np.sort(rng.integers(0, max(QUERIES * n // SMALL, 1), n, np.int32))
    return binary(rng, n) | {"query": query}


def tokens(rng: np.random.Generator, n: int) -> Arrays:
    """Logits over 8192 tokens, as many numbers as the rows of other metrics have."""
    vocabulary = by_hand.VOCABULARY
    preds = rng.normal(size=(2, max(n * CLASSES // vocabulary // 2, 1), vocabulary))
    target = rng.integers(0, vocabulary, preds.shape[:2], np.int32)
    return {"preds": preds.astype(np.float32), "target": target}


def rows() -> Iterator[Row]:
    m, of_class = metrics, {"num_classes": CLASSES}
    yield Row(m.Mean(), values, "MeanMetric")
    for name in ("Sum", "Max", "Min"):
        yield Row(getattr(m, name)(), values, f"{name}Metric")
    of_labels = {"num_labels": CLASSES}
    counted = {
        "Accuracy": "Accuracy",
        "Precision": "Precision",
        "Recall": "Recall",
        "Specificity": "Specificity",
        "F1": "F1Score",
        "JaccardIndex": "JaccardIndex",
        "StatScores": "StatScores",
        "HammingDistance": "HammingDistance",
        "ConfusionMatrix": "ConfusionMatrix",
        "MatthewsCorrCoef": "MatthewsCorrCoef",
        "AUROC": "AUROC",
        "AveragePrecision": "AveragePrecision",
    }
    for ours, theirs in counted.items():
        one, several = getattr(m, ours)(), getattr(m, ours)(**of_class)
        peer, peer_of_several = (
            f"classification.{kind}{theirs}" for kind in ("Binary", "Multiclass")
        )
        yield Row(one, binary, peer)
        if ours in ("AUROC", "AveragePrecision"):
            # Without thresholds, theirs only stores the scores in an update.
            yield Row(several, probabilities, peer_of_several, of_class)
            binned, note = {"thresholds": 200}, "; 200 thresholds there"
            yield Row(one, binary, peer, binned, note)
            yield Row(several, probabilities, peer_of_several, of_class | binned, note)
        else:
            yield Row(several, logits, peer_of_several, of_class)
            yield Row(several, labels, peer_of_several, of_class)
    for ours in ("Accuracy", "F1", "AUROC"):
        peer = f"classification.Multilabel{counted[ours]}"
        yield Row(getattr(m, ours)(**of_labels), multilabel, peer, of_labels)
    yield Row(m.CohenKappa(**of_class), labels, "classification.MulticlassCohenKappa", of_class)
    ranked = {
        "CoverageError": "CoverageError",
        "LabelRankingAveragePrecision": "RankingAveragePrecision",
        "LabelRankingLoss": "RankingLoss",
    }
    for ours, theirs in ranked.items():
        peer = f"classification.Multilabel{theirs}"
        yield Row(getattr(m, ours)(), multilabel, peer, of_labels)
    yield Row(m.CalibrationError(), binary, "classification.BinaryCalibrationError")
    peer = "classification.MulticlassCalibrationError"
    yield Row(m.CalibrationError(**of_class), probabilities, peer, of_class)
    peer = "classification.MulticlassHingeLoss"
    yield Row(m.HingeLoss(**of_class), logits, peer, of_class)
    for name in ("MeanSquaredError", "MeanAbsoluteError", "R2Score", "ExplainedVariance"):
        yield Row(getattr(m, name)(), regression, name)
    for name in ("PearsonCorrCoef", "ConcordanceCorrCoef", "SpearmanCorrCoef", "LogCoshError"):
        yield Row(getattr(m, name)(), regression, name)
    for name in ("RelativeSquaredError", "NormalizedRootMeanSquaredError"):
        yield Row(getattr(m, name)(), regression, name)
    percentages = "MeanAbsolutePercentageError"
    for name in (percentages, f"Symmetric{percentages}", f"Weighted{percentages}"):
        yield Row(getattr(m, name)(), above_zero, name)
    yield Row(m.MeanSquaredLogError(), above_zero, "MeanSquaredLogError")
    yield Row(m.MinkowskiDistance(3), regression, "MinkowskiDistance", {"p": 3})
    yield Row(m.TweedieDeviance(1), above_zero, "TweedieDevianceScore", {"power": 1})
    yield Row(m.CriticalSuccessIndex(3), regression, "CriticalSuccessIndex", {"threshold": 3})
    yield Row(m.CosineSimilarity(), vectors, "CosineSimilarity", {"reduction": "mean"})
    yield Row(m.KLDivergence(), distributions, "KLDivergence")
    yield Row(m.JensenShannonDivergence(), distributions, "regression.JensenShannonDivergence")
    yield Row(m.Perplexity(), tokens, "text.Perplexity")
    clusters = {
        "MutualInfo": "MutualInfoScore",
        "NormalizedMutualInfo": "NormalizedMutualInfoScore",
        "AdjustedMutualInfo": "AdjustedMutualInfoScore",
        "Rand": "RandScore",
        "AdjustedRand": "AdjustedRandScore",
        "FowlkesMallows": "FowlkesMallowsIndex",
        "Homogeneity": "HomogeneityScore",
        "Completeness": "CompletenessScore",
        "VMeasure": "VMeasureScore",
    }
    for ours, theirs in clusters.items():
        yield Row(getattr(m, ours)(**of_class), labels, f"clustering.{theirs}")
    for name in ("CramersV", "TschuprowsT", "TheilsU"):
        yield Row(getattr(m, name)(**of_class), labels, f"nominal.{name}", of_class)
    for ours, theirs in {"MRR": "MRR", "NDCG": "NormalizedDCG", "RetrievalMAP": "MAP"}.items():
        yield Row(getattr(m, ours)(), queries, f"retrieval.Retrieval{theirs}")


def peer_of(row: Row) -> Callable[[], Any]:
    """Makes the metric of torchmetrics."""
    module, _, name = row.peer.rpartition(".")
    found = getattr(import_module(f"torchmetrics.{module}".rstrip(".")), name)
    return lambda: found(**row.options)


def tensor(x: np.ndarray) -> Any:
    found = torch.from_numpy(x)
    return found if x.dtype.kind == "f" else found.long()


def calls_of(row: Row) -> Iterator[list[Callable[[], object]]]:
    """Ours and that of torchmetrics, for both sizes: one update; an update and a reading."""
    small, large = (row.inputs(np.random.default_rng(0), n) for n in (SMALL, LARGE))
    used = row.metric.update(**small)
    ours = [lambda: used.update(**small), lambda: row.metric.update(**large).results()]
    if torch is None:
        yield from ([call] for call in ours)
        return
    make, (few, many) = (
        peer_of(row),
        [{name: tensor(x) for name, x in given.items()} for given in (small, large)],
    )
    # Metrics that store the batches grow with each update, so the state is made anew.
    state = make()

    def update() -> None:
        if any(isinstance(x, list) for x in state.metric_state.values()):
            state.reset()
        state.update(*few.values())

    def whole() -> None:
        metric = make()
        metric.update(*many.values())
        metric.compute()

    yield from ([our, their] for our, their in zip(ours, (update, whole), strict=True))


def least(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The least processor time of each call, in turns, of as many as take `seconds`."""
    for call in calls:
        call()
    found, stop, turns = [float("inf")] * len(calls), time.perf_counter() + seconds, 0
    while turns < 3 or time.perf_counter() < stop:
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            found[i] = min(found[i], time.process_time() - start)
        turns += 1
    return found


def table_of(chosen: list[str], seconds: float) -> str:
    """The rows of these names, or all, as a table; it is printed while it is made."""
    heads = f"{SMALL} rows: µs | torchmetrics | ratio", f"{LARGE:,} rows: ms | torchmetrics | ratio"
    lines = [f"| metric | {' | '.join(heads)} |", "| --- |" + " ---: |" * 6]
    ratios: list[list[float]] = []
    print("\n".join(lines))
    for row in rows():
        if chosen and row.name.split(",")[0] not in chosen:
            continue
        cells: list[str] = []
        for calls, scale in zip(calls_of(row), (1e6, 1e3), strict=True):
            ours, *theirs = least(calls, seconds)
            cells.append(f"{ours * scale:.3g}")
            cells += [f"{their * scale:.3g} | {ours / their:.1f}" for their in theirs] or ["|"]
            ratios.append([ours / their for their in theirs])
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if torch is not None:
        for what, of in (("median", np.median), ("worst", max)):
            both = [of([r for (r,) in ratios[i::2]]) for i in range(2)]
            lines.append(f"| **{what}** | {' | '.join(f'| | **{x:.1f}**' for x in both)} |")
        print("\n".join(lines[-2:]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a call outside `jit` costs.")
    parser.add_argument("names", nargs="*", help="of metrics; default: all")
    parser.add_argument("--seconds", type=float, default=0.3, help="for the calls of each cell")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a page with marks for the table"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    # The allocator returns memory to the system, which clears it again, until a process has freed
    # a large array once; a process that holds a batch of a model has.
    np.ones(3_900_000)
    if torch is not None:
        torch.set_num_threads(1)
    load = os.getloadavg()[0]
    table = table_of(options.names, options.seconds)
    said = f"The load of the machine was {load:.1f} before, and {os.getloadavg()[0]:.1f} after."
    if options.write:
        write(options.write, "host", f"{table}\n\n{said}")


if __name__ == "__main__":
    main()
