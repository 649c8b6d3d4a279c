"""How often 95 % intervals of few rows cover the true rate: `python benchmarks/few_rows.py`.

Each row is right with the probability that gives the rate, so there is one interval for each number
of right rows, and the coverage is exact. `--write docs/uncertainty.md` replaces the table there.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from datarax import Interval, Metric, metrics

SIZES, RATES = (10, 20, 50), (0.5, 0.9, 0.97, 1.0)
START, END = "<!-- few rows: begin -->\n", "<!-- few rows: end -->"

Update = tuple[Any, ...]
RANKED = np.array([0.9, 0.1])


def labels(right: np.ndarray) -> Update:
    return right.astype(np.int32), np.ones(len(right), np.int32)


def answers(right: np.ndarray) -> Update:
    return ["yes" if x else "no" for x in right], ["yes"] * len(right)


def ranking(right: np.ndarray) -> Update:
    return np.tile(RANKED, (len(right), 1)), np.stack([right, ~right], 1).astype(np.int32)


def samples(right: np.ndarray) -> Update:
    return right.astype(np.int32), np.ones(len(right), np.int32)


def same(rate: float) -> float:
    return rate


CASES: dict[str, tuple[Metric, Callable[[np.ndarray], Update], Callable[[float], float]]] = {
    "`Accuracy`": (metrics.Accuracy(), labels, same),
    "`Recall`": (metrics.Recall(), labels, same),
    "`JaccardIndex`": (metrics.JaccardIndex(), labels, same),
    # Of rows that are found or missed, F1 is 2 p / (1 + p).
    "`F1`": (metrics.F1(), labels, lambda rate: rate / (2 - rate)),
    "`TextExactMatch`": (metrics.TextExactMatch(), answers, same),
    "`TokenF1`": (metrics.TokenF1(), answers, same),
    "`HitRate`": (metrics.HitRate(k=1), ranking, same),
    "`RecallAtK`": (metrics.RecallAtK(k=1), ranking, same),
    "`PassAtK`": (metrics.PassAtK(k=1), samples, same),
}
"""By name: a metric, its update of rows that are right or wrong, and the share of right rows that
gives a rate."""


def ends(
    metric: Metric, update: Callable[[np.ndarray], Update], rows: int, **options: Any
) -> np.ndarray:
    """The intervals of 0 to `rows` right rows, (rows + 1, 2)."""
    found = []
    for right in range(rows + 1):
        given = {"cluster": np.arange(rows)} if options else {}
        seen = Interval(metric, **options).update(*update(np.arange(rows) < right), **given)
        results = seen.results()
        found.append([results["lower"], results["upper"]])
    return np.array(found)


def coverage(intervals: np.ndarray, rate: float, share: float) -> float:
    """The probability that the interval holds the rate, if this share of rows is right."""
    rows = len(intervals) - 1
    holds = (intervals[:, 0] <= rate) & (rate <= intervals[:, 1])
    return float(binom.pmf(np.arange(rows + 1), rows, share) @ holds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, help="the page whose table is replaced")
    args = parser.parse_args()
    head = ["metric", "rows", *(f"rate {rate:g}" for rate in RATES)]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for name, (metric, update, share) in CASES.items():
        for rows in SIZES:
            intervals = ends(metric, update, rows)
            shares = [coverage(intervals, rate, share(rate)) for rate in RATES]
            lines.append(
                f"| {name} | {rows} | " + " | ".join(f"{100 * x:.1f} %" for x in shares) + " |"
            )
            print(lines[-1], flush=True)
    if args.write:
        page = args.write.read_text()
        before, _, rest = page.partition(START)
        _, _, after = rest.partition(END)
        args.write.write_text(before + START + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
