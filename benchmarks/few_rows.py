"""How often intervals of few rows cover the true rate, and how often equal models have a winner.

`python benchmarks/few_rows.py` prints two tables, which `--write docs/uncertainty.md` replaces.

Each row is right with the probability that gives the rate, so there is one interval for each number
of right rows, and the coverage is exact. Of equal models, slices are drawn at random. A family of
101 slices has a false winner if one p-value is below 0.05 / 101, as by the method of Holm.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import binom

from datarax import Compare, Interval, Metric, metrics

SIZES, RATES = (10, 20, 50), (0.5, 0.9, 0.97, 1.0)
SLICES, FAMILY, SLICE_SIZES = 50_000, 101, (3, 6, 12, 20, 30)

Update = tuple[Any, ...]
RANKED = np.array([0.9, 0.1])


def labels(right: np.ndarray) -> Update:
    return right.astype(np.int32), np.ones(len(right), np.int32)


def answers(right: np.ndarray) -> Update:
    return ["yes" if x else "no" for x in right], ["yes"] * len(right)


def ranking(right: np.ndarray) -> Update:
    return np.tile(RANKED, (len(right), 1)), np.stack([right, ~right], 1).astype(np.int32)


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
    "`PassAtK`": (metrics.PassAtK(k=1), labels, same),
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


def coverages() -> Iterator[str]:
    """The lines of the table of coverages; metrics with the same numbers are in one line."""
    head = ["rows", *(f"rate {rate:g}" for rate in RATES), "metrics"]
    yield from (f"| {' | '.join(head)} |", "| --- " * len(head) + "|")
    for rows in SIZES:
        names: dict[str, list[str]] = {}
        for name, (metric, update, share) in CASES.items():
            found = ends(metric, update, rows)
            shares = [coverage(found, rate, share(rate)) for rate in RATES]
            names.setdefault(" | ".join(f"{100 * x:.1f} %" for x in shares), []).append(name)
        for numbers, each in names.items():
            yield f"| {rows} | {numbers} | {', '.join(each)} |"


Drawn = dict[str, np.ndarray]


def labels_of_two(rng: np.random.Generator, shape: tuple[int, int]) -> Drawn:
    target = rng.integers(0, 2, shape)
    return {"target": target} | {f"preds_{m}": target ^ (rng.random(shape) > 0.7) for m in "ab"}


def choices(values: list[float], share: list[float]) -> Callable[..., Drawn]:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Drawn:
        return {f"values_{m}": rng.choice(values, shape, p=share) for m in "ab"}

    return draw


def losses(rng: np.random.Generator, shape: tuple[int, int]) -> Drawn:
    return {f"values_{m}": rng.exponential(size=shape) for m in "ab"}


def differences(sizes: Callable[..., np.ndarray]) -> Callable[..., Drawn]:
    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Drawn:
        return {
            "values_a": np.zeros(shape),
            "values_b": rng.choice([-1, 1], shape) * sizes(rng, shape),
        }

    return draw


def word_errors(rng: np.random.Generator, shape: tuple[int, int]) -> Drawn:
    words = rng.integers(5, 25, shape)
    return {"denominator": words} | {f"numerator_{m}": rng.binomial(words, 0.1) for m in "ab"}


MODELS: dict[str, tuple[Metric, Callable[..., Drawn]]] = {
    "right or wrong: `Accuracy`": (metrics.Accuracy(), labels_of_two),
    "`F1`": (metrics.F1(), labels_of_two),
    "scores with parts: `Mean`": (
        metrics.Mean(),
        choices([0, 0.4, 0.5, 0.67, 0.8, 1], [0.2, 0.05, 0.1, 0.1, 0.05, 0.5]),
    ),
    "ratings from 1 to 5": (metrics.Mean(), choices([1, 2, 3, 4, 5], [0.05, 0.1, 0.2, 0.35, 0.3])),
    "word errors: `Ratio`": (metrics.Ratio(), word_errors),
    "losses, exponential": (metrics.Mean(), losses),
    "differences, normal": (metrics.Mean(), differences(lambda rng, shape: rng.normal(size=shape))),
    "differences of 1 or 2": (
        metrics.Mean(),
        differences(lambda rng, shape: rng.integers(1, 3, shape)),
    ),
    "differences, uniform": (metrics.Mean(), differences(lambda rng, shape: rng.random(shape))),
}
"""By name: a metric, and what two equal models give for rows in slices, each of this shape."""


@partial(jax.jit, static_argnums=0)
def compare(metric: Metric, batches: Drawn) -> dict[str, jax.Array]:
    """The results of each slice, which is along the first axis of each array."""
    compared = Compare(metric, method="formula")
    return jax.vmap(lambda batch: compared.update(**batch).compute())(batches)


def false_winners() -> Iterator[str]:
    """The lines of the table of families of slices that have a winner, though models are equal."""
    rng = np.random.default_rng(0)
    head = ["equal models", *(f"{rows} rows a slice" for rows in SLICE_SIZES)]
    yield from (f"| {' | '.join(head)} |", "| --- " * len(head) + "|")
    for name, (metric, draw) in MODELS.items():
        shares = []
        for rows in SLICE_SIZES:
            # Rows of weight 0 do not count, so one program serves all sizes.
            weights = np.broadcast_to(
                np.arange(max(SLICE_SIZES)) < rows, (SLICES, max(SLICE_SIZES))
            )
            batches = draw(rng, weights.shape) | {"weights": weights.astype(np.float32)}
            p_values = np.asarray(compare(metric, batches)["p_value"])
            wins = np.mean(p_values < 0.05 / FAMILY)  # NaN is no test
            shares.append(1 - (1 - wins) ** FAMILY)
        yield f"| {name} | " + " | ".join(f"{100 * x:.1f} %" for x in shares) + " |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, help="the page whose tables are replaced")
    args = parser.parse_args()
    for mark, table in (("few rows", coverages()), ("false winners", false_winners())):
        lines = []
        for line in table:
            print(line, flush=True)
            lines.append(line)
        if args.write:
            start, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
            before, _, rest = args.write.read_text().partition(start)
            _, _, after = rest.partition(end)
            args.write.write_text(before + start + "\n".join(lines) + "\n" + end + after)


if __name__ == "__main__":
    main()
