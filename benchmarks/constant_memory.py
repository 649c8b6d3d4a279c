"""Time and memory of standard errors and intervals: `python benchmarks/constant_memory.py`.

datarax folds batches of 1,000,000 rows on the host, and reads the result once. The references have
all rows in memory: NumPy, SciPy and scikit-learn, by the textbook formulas. Each runs in a process
of its own. Its time is processor time, without that of drawing the rows; its memory is the peak of
the process less what it had before.

Names choose statistics, as in `... mean auroc`, and `--write docs/interval-coverage.md` puts the
table there.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
sys.path.append(str(Path(__file__).parent.parent))

import jax
import numpy as np
import scipy.stats

from benchmarks.peers.__main__ import write

SIZES, BATCH = (10**4, 10**6, 10**8), 10**6
CLUSTERS = 1000
Rows = dict[str, np.ndarray]


class Statistic(NamedTuple):
    """A number that both ways give, from the same rows."""

    name: str
    result: str
    """Its name in `results()`."""
    make: Callable[[], Any]
    draw: Callable[[np.random.Generator, int], Rows]
    in_memory: Callable[..., float]


def values(rng: np.random.Generator, n: int) -> Rows:
    return {"values": rng.exponential(size=n).astype(np.float32)}


def clustered(rng: np.random.Generator, n: int) -> Rows:
    cluster = rng.integers(0, CLUSTERS, n).astype(np.int32)
    shift = np.sin(np.arange(CLUSTERS))[cluster]
    return {"values": (rng.normal(size=n) + shift).astype(np.float32), "cluster": cluster}


def binary(rng: np.random.Generator, n: int) -> Rows:
    target = rng.random(n) < 0.3
    return {"preds": rng.normal(target).astype(np.float32), "target": target}


def forecasts(rng: np.random.Generator, n: int) -> Rows:
    """Probabilities that are too confident."""
    z = rng.normal(0, 1.5, n)
    preds = (1 / (1 + np.exp(-1.5 * z))).astype(np.float32)
    return {"preds": preds, "target": rng.random(n) < 1 / (1 + np.exp(-z))}


def paired(rng: np.random.Generator, n: int) -> Rows:
    both = rng.normal(size=n)
    a, b = ((both + rng.normal(x, 1, n)).astype(np.float32) for x in (0, 0.1))
    return {"a": a, "b": b}


def judged(rng: np.random.Generator, n: int) -> Rows:
    target = rng.random(n).astype(np.float32)
    near = np.clip(target + rng.normal(0, 0.2, n), 0, 1).astype(np.float32)
    return {"judged": near, "target": target, "labelled": rng.random(n) < 0.01}


def two_models(rng: np.random.Generator, n: int) -> Rows:
    """Scores of two models that rank alike."""
    target = rng.random(n) < 0.3
    common = rng.normal(target)
    a, b = ((common + rng.normal(0, 0.3, n)).astype(np.float32) for _ in range(2))
    return {"a": a, "b": b, "target": target}


def error_of_mean(values: np.ndarray) -> float:
    return values.std(ddof=1, dtype=np.float64) / len(values) ** 0.5


def error_of_clusters(values: np.ndarray, cluster: np.ndarray) -> float:
    apart = values - values.mean(dtype=np.float64)
    sums = np.bincount(cluster, apart, CLUSTERS)
    return (np.sum(sums**2) * CLUSTERS / (CLUSTERS - 1)) ** 0.5 / len(values)


def shares_below(preds: np.ndarray, own: np.ndarray) -> np.ndarray:
    """For each row of a class, the share of the other class that scores below, from midranks.

    X. Sun and W. Xu (2014), https://doi.org/10.1109/LSP.2014.2337313.
    """
    ranks = scipy.stats.rankdata(preds)[own]
    return (ranks - scipy.stats.rankdata(preds[own])) / (len(own) - own.sum())


def error_of_auroc(preds: np.ndarray, target: np.ndarray) -> float:
    """DeLong's."""
    return sum(np.var(shares_below(preds, x), ddof=1) / x.sum() for x in (target, ~target)) ** 0.5


def upper_of_aurocs(a: np.ndarray, b: np.ndarray, target: np.ndarray) -> float:
    """The upper end of DeLong's interval of the difference."""
    apart = {
        x: shares_below(b, own) - shares_below(a, own) for x, own in ((1, target), (0, ~target))
    }
    error = sum(np.var(x, ddof=1) / len(x) for x in apart.values()) ** 0.5
    return float(apart[1].mean() + scipy.stats.norm.ppf(0.975) * error)


def lower_of_median(values: np.ndarray) -> float:
    """The binomial interval of the rank."""
    n = len(values)
    place = int(scipy.stats.binom.ppf(0.025, n, 0.5))
    return float(np.partition(values, place - 1)[place - 1])


def lower_of_difference(a: np.ndarray, b: np.ndarray) -> float:
    apart = b.astype(np.float64) - a
    return float(apart.mean() - scipy.stats.norm.ppf(0.975) * error_of_mean(apart))


def error_of_judged(judged: np.ndarray, target: np.ndarray, labelled: np.ndarray) -> float:
    """The rectified mean with the best weight of the judge: Angelopoulos and others (2023)."""
    f, y = judged[labelled].astype(np.float64), target[labelled].astype(np.float64)
    rest = judged[~labelled].astype(np.float64)
    n, m = len(f), len(rest)
    weight = np.clip(np.cov(f, y)[0, 1] / ((1 + n / m) * judged.var(dtype=np.float64)), 0, 1)
    return float(np.var(weight * rest) / m + np.var(y - weight * f) / n) ** 0.5


def miscalibration(preds: np.ndarray, target: np.ndarray) -> float:
    from sklearn.isotonic import IsotonicRegression

    x, y = preds.astype(np.float64), target.astype(np.float64)
    fit = IsotonicRegression().fit_transform(x, y)
    return float(np.mean((x - y) ** 2) - np.mean((fit - y) ** 2))


def statistics() -> list[Statistic]:
    from datarax import Interval
    from datarax.metrics import AUROC, Mean, Median, PredictionPoweredMean, ScoreDecomposition
    from datarax.wrappers import Compare

    return [
        Statistic("mean", "std_error", lambda: Interval(Mean()), values, error_of_mean),
        Statistic(
            "mean, 1,000 clusters",
            "std_error",
            lambda: Interval(Mean(), clusters=CLUSTERS),
            clustered,
            error_of_clusters,
        ),
        Statistic("median", "lower", lambda: Interval(Median()), values, lower_of_median),
        Statistic("AUROC", "std_error", lambda: Interval(AUROC()), binary, error_of_auroc),
        Statistic(
            "difference of means",
            "lower",
            lambda: Compare(Mean(), method="formula"),
            paired,
            lower_of_difference,
        ),
        Statistic(
            "difference of AUROCs",
            "upper",
            lambda: Compare(AUROC(), method="formula"),
            two_models,
            upper_of_aurocs,
        ),
        Statistic(
            "PPI++ mean", "std_error", lambda: PredictionPoweredMean(), judged, error_of_judged
        ),
        Statistic(
            "miscalibration",
            "miscalibration",
            lambda: ScoreDecomposition(),
            forecasts,
            miscalibration,
        ),
    ]


def batches(of: Statistic, size: int) -> Iterator[Rows]:
    rng = np.random.default_rng(0)
    for start in range(0, size, BATCH):
        yield of.draw(rng, min(BATCH, size - start))


def by_datarax(of: Statistic, size: int) -> tuple[float, ...]:
    def folded(metric: Any, rows: Rows) -> Any:
        names = ("a", "b") if "a" in rows else ()  # of `Compare`, they have no names
        return metric.update(
            *(rows[x] for x in names), **{k: x for k, x in rows.items() if k not in names}
        )

    metric, taken = of.make(), 0.0
    folded(metric, next(batches(of, 100))).results()  # what is done once
    before = peak()
    for rows in batches(of, size):
        start = time.process_time()
        metric = folded(metric, rows)
        taken += time.process_time() - start
    start = time.process_time()
    found = metric.results()[of.result]
    held = sum(x.nbytes for x in jax.tree.leaves(metric))
    return found, taken + time.process_time() - start, peak() - before, held


def in_memory(of: Statistic, size: int) -> tuple[float, ...]:
    of.in_memory(**next(batches(of, 100)))
    before = peak()
    parts = list(batches(of, size))
    rows = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    start = time.process_time()
    found = of.in_memory(**rows)
    return found, time.process_time() - start, peak() - before, 0


def peak() -> float:
    """The most memory that the process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


WAYS = {"datarax": by_datarax, "in memory": in_memory}


def measured(name: str, way: str, size: int) -> list[float]:
    command = [sys.executable, __file__, name, "--measure", way, str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(x) for x in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="STATISTIC")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a page with a mark")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "ROWS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    chosen = [x for x in statistics() if not args.names or x.name in args.names]
    if args.measure:
        print(*WAYS[args.measure[0]](chosen[0], int(args.measure[1])))
        return
    lines = [
        "| | rows | datarax, s | MiB | state, KB | in memory, s | MiB | apart |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in chosen:
        for size in SIZES:
            ours, taken, most, held = measured(each.name, "datarax", size)
            line = f"| {each.name} | {size:,} | {taken:.3f} | {most:.0f} | {held / 1e3:.1f} |"
            theirs, taken, most, _ = measured(each.name, "in memory", size)
            line += f" {taken:.3f} | {most:,.0f} | {abs(ours / theirs - 1):.0e} |"
            lines.append(line)
    write(args.write, "memory", "\n".join(lines))


if __name__ == "__main__":
    main()
