"""What an update costs within `jit`, beside the program that one would write first.

Each row has a metric and the plain program for it: sums, counts, a scatter into bins. That program
checks nothing, takes no weights, and its float32 totals lose small values. Both fold one batch into
a donated state; the times are the least of many calls, in turns. The ratio is that of the times.

`python benchmarks/by_hand.py` prints all rows for a million values and for 10,240, and
`... Mean F1` only some. `--values` takes other numbers of values, and
`--write docs/performance/inside-jit.md` puts the table there. `--device` measures the GPU or the
TPU of this machine, as `make bench-gpu` and `make bench-tpu` do.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "--device" not in sys.argv:
    os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.__main__ import write
from datarax import Metric, metrics

VALUES = (1_000_000, 10_240)
CLASSES, VOCABULARY = 10, 8192
BINS = 15
KEYS = 2**16
"""The bins of a histogram of scores."""

Arrays = dict[str, Any]
Fold = Callable[..., tuple[Any, ...]]


# The programs by hand: each takes the arguments of the metric, and gives what is added up.


def total(x: jax.Array) -> tuple[Any, ...]:
    return jnp.sum(x), x.size


def spread(x: jax.Array) -> tuple[Any, ...]:
    return jnp.sum(x), jnp.sum(x * x), x.size


def of_errors(loss: Callable[..., jax.Array]) -> Fold:
    return lambda preds, target: total(loss(preds, target))


def r2(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return jnp.sum((preds - target) ** 2), *spread(target)


def explained(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return *spread(preds - target), *spread(target)


def pearson(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return jnp.sum(preds * target), *spread(preds), *spread(target)


def accuracy(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    labels = preds if preds.ndim == target.ndim else jnp.argmax(preds, -1)
    return jnp.sum(labels == target), target.size


def above(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    chosen = preds > 0.5
    return jnp.sum(chosen & (target == 1)), jnp.sum(chosen), jnp.sum(target), target.size


def by_class(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    labels, zeros = jnp.argmax(preds, -1), jnp.zeros(CLASSES, jnp.int32)
    right = zeros.at[target].add(labels == target)
    return right, zeros.at[target].add(1), zeros.at[labels].add(1)


def table(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return (jnp.zeros((CLASSES, CLASSES), jnp.int32).at[target, jnp.argmax(preds, -1)].add(1),)


def log_loss(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    picked = jnp.take_along_axis(jax.nn.log_softmax(preds), target[..., None], -1)
    return -jnp.sum(picked), target.size


def brier(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    one_hot = jax.nn.one_hot(target, preds.shape[-1])
    return jnp.sum((preds - one_hot) ** 2), target.size


def calibration(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    confidence, right = jnp.max(preds, -1), jnp.argmax(preds, -1) == target
    place = jnp.minimum((confidence * BINS).astype(jnp.int32), BINS - 1)
    columns = jnp.stack([jnp.ones_like(confidence), confidence, right], -1)
    return (jnp.zeros((BINS, 3)).at[place].add(columns),)


def hinge(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    is_target = jax.nn.one_hot(target, preds.shape[-1], dtype=bool)
    margin = jnp.sum(jnp.where(is_target, preds, 0), -1) - jnp.max(
        jnp.where(is_target, -jnp.inf, preds), -1
    )
    return total(jnp.maximum(0, 1 - margin))


def cosine(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    norms = jnp.linalg.norm(preds, axis=-1) * jnp.linalg.norm(target, axis=-1)
    return total(jnp.sum(preds * target, -1) / norms)


def divergence(p: jax.Array, q: jax.Array) -> tuple[Any, ...]:
    return total(jnp.sum(p * jnp.log(p / q), -1))


def keys(x: jax.Array) -> jax.Array:
    """The leading bits of floats, as integers in the order of the floats."""
    raw = jax.lax.bitcast_convert_type(x, jnp.int32)
    ordered = jnp.where(raw < 0, ~raw, raw | jnp.int32(-(2**31)))
    return jax.lax.shift_right_logical(ordered, jnp.int32(16))


def deviance(p: jax.Array, t: jax.Array) -> jax.Array:
    return 2 * (t * jnp.log(t / p) - t + p)


def events(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    p, t = preds >= 3, target >= 3
    return jnp.sum(p & t), jnp.sum(p | t)


def rows_right(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return jnp.sum(jnp.all(preds == target, -1)), target.shape[0]


def label_table(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return (jnp.zeros((CLASSES, CLASSES), jnp.int32).at[target, preds].add(1),)


def ranked(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    reached = jnp.arange(CLASSES) >= target[:, None]
    return total(jnp.sum((jnp.cumsum(preds, -1) - reached) ** 2, -1))


def bins(values: jax.Array) -> tuple[Any, ...]:
    place = jnp.clip((values + 4) * 2, 0, 15).astype(jnp.int32)
    return (jnp.zeros(16, jnp.int32).at[place].add(1),)


def curve(preds: jax.Array, target: jax.Array) -> tuple[Any, ...]:
    return (jnp.zeros((2, KEYS), jnp.int32).at[target, keys(preds)].add(1),)


def histogram(values: jax.Array) -> tuple[Any, ...]:
    return (jnp.zeros(KEYS, jnp.int32).at[keys(values)].add(1),)


def square(e: jax.Array) -> jax.Array:
    return e * e


class Row:
    """A metric, its inputs, and the program by hand; `add` adds what it gives to the state."""

    def __init__(
        self,
        metric: Metric,
        inputs: Callable[[np.random.Generator, int], Arrays],
        by_hand: Fold,
        add: Callable[[Any, Any], Any] = jnp.add,
        note: str = "",
    ):
        self.metric, self.inputs, self.by_hand, self.add = metric, inputs, by_hand, add
        self.name = type(metric).__name__ + (f", {note}" if note else "")


def values(rng: np.random.Generator, n: int) -> Arrays:
    return {"values": rng.normal(size=n).astype(np.float32)}


def positive(rng: np.random.Generator, n: int) -> Arrays:
    return {"values": rng.uniform(0.5, 2, n).astype(np.float32)}


def regression(rng: np.random.Generator, n: int) -> Arrays:
    target = rng.normal(3, 1, n)
    preds = target + rng.normal(size=n) / 4
    return {"preds": preds.astype(np.float32), "target": target.astype(np.float32)}


def above_zero(rng: np.random.Generator, n: int) -> Arrays:
    return {name: np.abs(x) + np.float32(0.1) for name, x in regression(rng, n).items()}


def logits(rng: np.random.Generator, n: int) -> Arrays:
    preds = rng.normal(size=(n // CLASSES, CLASSES)).astype(np.float32)
    return {"preds": preds, "target": rng.integers(0, CLASSES, len(preds), np.int32)}


def probabilities(rng: np.random.Generator, n: int) -> Arrays:
    given = logits(rng, n)
    return given | {"preds": np.asarray(jax.nn.softmax(given["preds"]))}


def labels(rng: np.random.Generator, n: int) -> Arrays:
    target = rng.integers(0, CLASSES, n // CLASSES, np.int32)
    return {"preds": np.roll(target, 1), "target": target}


def sequences(rng: np.random.Generator, n: int) -> Arrays:
    target = rng.integers(0, 9, (n // CLASSES, CLASSES), np.int32)
    return {"preds": np.where(rng.uniform(size=target.shape) < 0.1, 9, target), "target": target}


def binary(rng: np.random.Generator, n: int) -> Arrays:
    target = rng.integers(0, 2, n, np.int32)
    preds = (rng.uniform(size=n) + target).astype(np.float32) / 2
    return {"preds": preds, "target": target}


def tokens(rng: np.random.Generator, n: int) -> Arrays:
    preds = rng.normal(size=(max(n // VOCABULARY, 2), VOCABULARY)).astype(np.float32)
    return {"preds": preds, "target": rng.integers(0, VOCABULARY, len(preds), np.int32)}


def vectors(rng: np.random.Generator, n: int) -> Arrays:
    shape = (n // CLASSES, CLASSES)
    draw = {name: rng.normal(size=shape).astype(np.float32) for name in ("preds", "target")}
    return draw


def distributions(rng: np.random.Generator, n: int) -> Arrays:
    p, q = (probabilities(rng, n)["preds"] for _ in range(2))
    return {"preds": p, "target": q}


def rows() -> list[Row]:
    m = metrics
    return [
        Row(m.Mean(), values, total),
        Row(m.Sum(), values, lambda x: (jnp.sum(x),)),
        Row(m.Max(), values, lambda x: (jnp.max(x),), jnp.maximum),
        Row(m.Min(), values, lambda x: (jnp.min(x),), jnp.minimum),
        Row(m.MinMax(), values, lambda x: (jnp.max(x), jnp.max(-x)), jnp.maximum),
        Row(m.Std(), values, spread),
        Row(m.Variance(), values, spread),
        Row(m.Norm(), values, lambda x: (jnp.sum(x * x),)),
        Row(m.RootMeanSquare(), values, lambda x: total(x * x)),
        Row(m.GeometricMean(), positive, lambda x: total(jnp.log(x))),
        Row(m.HarmonicMean(), positive, lambda x: total(1 / x)),
        Row(m.MeanSquaredError(), regression, of_errors(lambda p, t: square(p - t))),
        Row(m.RootMeanSquaredError(), regression, of_errors(lambda p, t: square(p - t))),
        Row(m.MeanAbsoluteError(), regression, of_errors(lambda p, t: jnp.abs(p - t))),
        Row(
            m.MeanAbsolutePercentageError(),
            above_zero,
            of_errors(lambda p, t: jnp.abs((p - t) / t)),
        ),
        Row(
            m.MeanSquaredLogError(),
            above_zero,
            of_errors(lambda p, t: square(jnp.log1p(p) - jnp.log1p(t))),
        ),
        Row(
            m.SymmetricMeanAbsolutePercentageError(),
            above_zero,
            of_errors(lambda p, t: 2 * jnp.abs(p - t) / (jnp.abs(p) + jnp.abs(t))),
        ),
        Row(
            m.WeightedMeanAbsolutePercentageError(),
            above_zero,
            lambda preds, target: (jnp.sum(jnp.abs(preds - target)), jnp.sum(jnp.abs(target))),
        ),
        Row(m.MinkowskiDistance(3), regression, of_errors(lambda p, t: jnp.abs(p - t) ** 3)),
        Row(m.TweedieDeviance(1), above_zero, of_errors(deviance), note="Poisson"),
        Row(m.CriticalSuccessIndex(3), regression, events),
        Row(m.HuberLoss(), regression, of_errors(_huber)),
        Row(m.QuantileLoss(0.9), regression, of_errors(_pinball)),
        Row(m.LogCoshError(), regression, of_errors(lambda p, t: jnp.log(jnp.cosh(p - t)))),
        Row(
            m.MaxError(),
            regression,
            lambda preds, target: (jnp.max(jnp.abs(preds - target)),),
            jnp.maximum,
        ),
        Row(m.R2Score(), regression, r2),
        Row(m.RelativeSquaredError(), regression, r2),
        Row(m.ExplainedVariance(), regression, explained),
        Row(m.PearsonCorrCoef(), regression, pearson),
        Row(m.ConcordanceCorrCoef(), regression, pearson),
        Row(m.Accuracy(num_classes=CLASSES), logits, accuracy, note="logits"),
        Row(m.Accuracy(num_classes=CLASSES), labels, accuracy, note="labels"),
        Row(m.F1(num_classes=CLASSES), logits, by_class, note="macro"),
        Row(m.Precision(num_classes=CLASSES), logits, by_class, note="macro"),
        Row(m.JaccardIndex(num_classes=CLASSES), logits, by_class, note="macro"),
        Row(m.StatScores(num_classes=CLASSES), logits, by_class),
        Row(m.ConfusionMatrix(num_classes=CLASSES), logits, table),
        Row(m.CohenKappa(num_classes=CLASSES), logits, table),
        Row(m.MatthewsCorrCoef(num_classes=CLASSES), logits, table),
        Row(m.MutualInfo(num_classes=CLASSES), labels, label_table),
        Row(m.SequenceAccuracy(), sequences, rows_right),
        Row(m.F1(), binary, above, note="binary"),
        Row(m.Accuracy(), binary, lambda preds, target: above(preds, target), note="binary"),
        Row(m.LogLoss(num_classes=CLASSES, from_logits=True), logits, log_loss),
        Row(m.BrierScore(num_classes=CLASSES), probabilities, brier),
        Row(m.RankedProbabilityScore(num_classes=CLASSES), probabilities, ranked),
        Row(m.HingeLoss(num_classes=CLASSES), logits, hinge),
        Row(m.CalibrationError(num_classes=CLASSES), probabilities, calibration),
        Row(m.Perplexity(), tokens, log_loss, note="8k"),
        Row(m.TokenAccuracy(), tokens, accuracy, note="8k"),
        Row(m.CosineSimilarity(), vectors, cosine),
        Row(m.KLDivergence(), distributions, divergence),
        Row(m.Histogram(num_bins=16, range=(-4, 4)), values, bins),
        Row(m.AUROC(), binary, curve),
        Row(m.AveragePrecision(), binary, curve),
        Row(m.Median(), values, histogram),
    ]


def _huber(p: jax.Array, t: jax.Array) -> jax.Array:
    e = jnp.abs(p - t)
    return jnp.where(e < 1, e * e / 2, e - 0.5)


def _pinball(p: jax.Array, t: jax.Array) -> jax.Array:
    return jnp.maximum(0.9 * (t - p), 0.1 * (p - t))


def measure(row: Row, n: int, calls: int = 40) -> tuple[float, float]:
    """The least milliseconds of an update, by the metric and by hand."""
    batch = jax.device_put(row.inputs(np.random.default_rng(0), n))
    by_hand = jax.jit(
        lambda state, batch: jax.tree.map(row.add, state, row.by_hand(*batch.values())),
        donate_argnums=0,
    )
    ours = jax.jit(lambda metric, batch: metric.update(**batch), donate_argnums=0)
    shapes = jax.eval_shape(lambda batch: row.by_hand(*batch.values()), batch)
    plain = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    states = [jax.device_put(row.metric), plain]
    least = [float("inf")] * 2
    for call in range(calls):
        for i, update in enumerate((ours, by_hand)):
            start = time.perf_counter()
            states[i] = jax.block_until_ready(update(states[i], batch))
            if call:  # the first one compiles
                least[i] = min(least[i], time.perf_counter() - start)
    return 1e3 * least[0], 1e3 * least[1]


def table_of(chosen: list[str], sizes: list[int], calls: int) -> str:
    """The rows of these names, or all, as a table; it is printed while it is made."""
    heads = [f"{n:,} values: ms | by hand | ratio" for n in sizes]
    lines = [f"| metric | {' | '.join(heads)} |", "| --- |" + " ---: |" * 3 * len(sizes)]
    ratios: list[list[float]] = []
    for row in rows():
        if chosen and row.name.split(",")[0] not in chosen:
            continue
        times = [measure(row, n, calls) for n in sizes]
        ratios.append([ours / hand for ours, hand in times])
        cells = [f"{ours:.3f} | {hand:.3f} | {ours / hand:.1f}" for ours, hand in times]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    columns = list(zip(*ratios, strict=True))
    for what, of in (("median", np.median), ("worst", max)):
        lines.append(f"| **{what}** | {' | '.join(f'| | **{of(x):.1f}**' for x in columns)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What an update costs within `jit`.")
    parser.add_argument("names", nargs="*", help="of metrics; default: all")
    parser.add_argument("--values", type=int, nargs="+", default=VALUES, help="in a batch")
    parser.add_argument("--calls", type=int, default=40, help="of each program, in turns")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a page with marks for the table"
    )
    parser.add_argument("--device", action="store_true", help="measure the accelerator")
    options = parser.parse_args()
    if options.device:
        device = jax.devices()[0]
        if device.platform == "cpu":
            print("No GPU and no TPU is at hand: no update was timed beside one by hand.")
            return
        print(f"{device.device_kind}, jax {jax.__version__}")
        print(
            "Look at the ratios of the greatest batch. A pass over it costs as much as all that\n"
            "the program by hand does: at 2 or more, find out which passes are made, by a profile\n"
            "and by `python -m tests.operations`."
        )
    load = os.getloadavg()[0]
    table = table_of(options.names, list(options.values), options.calls)
    said = f"The load of the machine was {load:.1f} before, and {os.getloadavg()[0]:.1f} after."
    write(options.write, "by_hand", f"{table}\n\n{said}")


if __name__ == "__main__":
    main()
