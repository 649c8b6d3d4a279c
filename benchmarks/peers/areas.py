"""The AUROC of a million scores: from arrays on the device to a number on the host."""
# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import metrax
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC

import datarax
from benchmarks.peers import by_hand
from benchmarks.peers.reading import often
from benchmarks.peers.tables import goal, interleaved, runs, spread, table

SIZE = 1_000_000
METRAX = "metrax, its 200 thresholds"

Score = Callable[[Any, Any], float]


@jax.jit
def histogram_by_hand(preds: jax.Array, target: jax.Array) -> jax.Array:
    key = by_hand.ordered_key(preds, 16)
    return by_hand.area(jnp.zeros((2, 1 << 16), jnp.int32).at[target, key].add(1))


@jax.jit
def sort_by_hand(preds: jax.Array, target: jax.Array) -> jax.Array:
    """The exact area: a positive counts the negatives below it, and half of those equal to it."""
    ordered, target = jax.lax.sort((preds, target), num_keys=1)
    negatives = jnp.cumsum(1 - target)
    starts = jnp.concatenate([jnp.array([True]), ordered[1:] != ordered[:-1]])
    before = jax.lax.cummax(jnp.where(starts, negatives - (1 - target), 0))
    ends = jnp.concatenate([starts[1:], jnp.array([True])])
    through = jax.lax.cummin(jnp.where(ends, negatives, SIZE), reverse=True)
    positives = jnp.sum(target)
    # In float32 the counts are rounded, once each.
    below = jnp.where(target == 1, (before + through).astype(jnp.float32) / 2, 0)
    return jnp.sum(below) / positives / (SIZE - positives)


@jax.jit
def by_metrax(preds: jax.Array, target: jax.Array) -> jax.Array:
    return metrax.AUCROC.from_model_output(preds, target).compute()


@jax.jit
def limit(preds: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.sum(preds) + jnp.sum(target).astype(preds.dtype)


def by_torchmetrics(thresholds: int | None) -> Score:
    def score(preds: Any, target: Any) -> float:
        metric = BinaryAUROC(thresholds=thresholds)
        metric.update(preds, target)
        return float(metric.compute())

    return score


def on_device(score: Callable[..., jax.Array]) -> Score:
    return lambda preds, target: float(score(preds, target))


def main() -> None:
    torch.set_num_threads(1)  # see contestants.py
    rng = np.random.default_rng(0)
    target = (rng.random(SIZE) < 0.3).astype(np.int32)
    logits = (rng.normal(size=SIZE) * 3 + 2 * target).astype(np.float32)
    inputs = {
        "logits": logits,
        "probabilities": (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32),
    }
    truth = {name: roc_auc_score(target, preds) for name, preds in inputs.items()}
    contestants: dict[str, tuple[Score, Callable[[np.ndarray], Any]]] = {
        "datarax": (
            lambda preds, target: datarax.metrics.AUROC().update(preds, target).results(),
            jnp.asarray,
        ),
        "by hand, a histogram": (on_device(histogram_by_hand), jnp.asarray),
        "by hand, a sort": (on_device(sort_by_hand), jnp.asarray),
        "scikit-learn": (lambda preds, target: roc_auc_score(target, preds), lambda x: x),
        "torchmetrics, scores stored": (by_torchmetrics(None), torch.from_numpy),
        "torchmetrics, 100 thresholds": (by_torchmetrics(100), torch.from_numpy),
        METRAX: (on_device(by_metrax), jnp.asarray),
    }
    calls, wrong = {}, {}
    for name, (score, convert) in contestants.items():
        args = {kind: (convert(preds), convert(target)) for kind, preds in inputs.items()}
        wrong[name] = [f"{abs(score(*args[kind]) - truth[kind]):.0e}" for kind in inputs]
        calls[name] = often(lambda score=score, args=args["logits"]: score(*args))
    arrays = jnp.asarray(logits), jnp.asarray(target)
    calls["reading the inputs once"] = often(lambda: float(limit(*arrays)))
    # That of metrax needs 3 GB. The next call would have to wait until they are freed.
    last = {METRAX: calls.pop(METRAX)}
    times = interleaved(calls, runs()) | interleaved(last, runs())
    base = times["datarax"]
    table(
        ["", "milliseconds", "of datarax", "error, of logits", "error, of probabilities"],
        [
            [name, spread(x, 1e3), spread(x / base), *wrong.get(name, ["", ""])]
            for name, x in times.items()
        ],
    )
    ratio = times["scikit-learn"] / base
    goal("at least 60 times as fast as scikit-learn", ratio, least=60)


if __name__ == "__main__":
    main()
