"""The cost of a collection, compared with a function written by hand and with scikit-learn.

The metrics are accuracy, macro F1, one-vs-rest AUROC, confusion matrix, calibration error and mean
loss, on 200 batches of 1024 x 100 logits. The function written by hand accumulates the same numbers
and nothing else: its 32-bit counts overflow, its float totals lose small values, it has no weights,
and it does not check values. The two take turns, batch by batch; the median of the updates is
reported.
"""

import os
import time
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import sklearn.metrics

import datarax
from datarax import metrics

BATCHES, ROWS, CLASSES, BINS = 200, 1024, 100, 15
KEY_BITS = 12  # the leading bits of a float32 that choose a bin, as in `AUROC(num_classes=100)`


def collection() -> datarax.Collection:
    return datarax.Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=CLASSES),
            "f1": metrics.F1(num_classes=CLASSES, average="macro"),
            "auroc": metrics.AUROC(num_classes=CLASSES, from_logits=True),
            "confusion": metrics.ConfusionMatrix(num_classes=CLASSES),
            "calibration": metrics.CalibrationError(num_classes=CLASSES, from_logits=True),
            "loss": metrics.Mean().from_outputs(values="loss"),
        }
    )


def empty_by_hand() -> dict[str, jax.Array]:
    return {
        "confusion": jnp.zeros((CLASSES, CLASSES), jnp.int32),
        "scores": jnp.zeros((2, CLASSES, 1 << KEY_BITS), jnp.int32),
        "bins": jnp.zeros((3, BINS), jnp.float32),
        "loss": jnp.zeros((2,), jnp.float32),
    }


def by_hand(state: Any, preds: jax.Array, target: jax.Array, loss: jax.Array) -> Any:
    chosen = jnp.argmax(preds, -1)
    confidence = 1 / jnp.sum(jnp.exp(preds - jnp.max(preds, -1, keepdims=True)), -1)
    place = jnp.minimum((confidence * BINS).astype(jnp.int32), BINS - 1)
    columns = jnp.stack([jnp.ones_like(confidence), confidence, chosen == target])
    bits = jax.lax.bitcast_convert_type(jax.nn.softmax(preds), jnp.int32)
    ordered = jnp.where(bits < 0, ~bits, bits | jnp.int32(-(2**31)))
    key = jax.lax.shift_right_logical(ordered, jnp.int32(32 - KEY_BITS))
    classes = jnp.arange(CLASSES)[None, :]
    positive = (target[:, None] == classes).astype(jnp.int32)
    return {
        "confusion": state["confusion"].at[target, chosen].add(1),
        "scores": state["scores"].at[positive, classes, key].add(1),
        "bins": state["bins"].at[:, place].add(columns),
        "loss": state["loss"] + jnp.stack([loss.sum(), jnp.float32(loss.size)]),
    }


def main() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES, (BATCHES, ROWS)).astype(np.int32)
    logits = rng.normal(size=(BATCHES, ROWS, CLASSES)).astype(np.float32)
    np.put_along_axis(
        logits, target[..., None], np.take_along_axis(logits, target[..., None], -1) + 2, -1
    )
    loss = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), target[..., None], -1)[
        ..., 0
    ]
    batches = [tuple(map(jnp.asarray, batch)) for batch in zip(logits, target, loss, strict=True)]

    ours = jax.jit(
        lambda m, preds, target, loss: m.update(preds=preds, target=target, loss=loss),
        donate_argnums=0,
    )
    candidates = {
        "datarax": (ours, collection()),
        "by hand": (jax.jit(by_hand, donate_argnums=0), empty_by_hand()),
    }
    states, times = {}, {name: [] for name in candidates}
    for name, (step, state) in candidates.items():
        start = time.perf_counter()
        states[name] = jax.block_until_ready(step(state, *batches[0]))
        print(f"{name}: compiled in {time.perf_counter() - start:.1f} s")
    for batch in batches[1:]:
        for name, (step, _) in candidates.items():
            start = time.perf_counter()
            states[name] = jax.block_until_ready(step(states[name], *batch))
            times[name].append(time.perf_counter() - start)
    for name, taken in times.items():
        print(f"{name}: {np.median(taken) * 1e3:.3f} ms per batch")
    print(f"ratio: {np.median(times['datarax']) / np.median(times['by hand']):.2f}")

    start = time.perf_counter()
    results = states["datarax"].results()
    print(f"\nresults of all batches: {time.perf_counter() - start:.2f} s, with compilation")
    start = time.perf_counter()
    preds, labels = logits.reshape(-1, CLASSES), target.reshape(-1)
    scores = np.asarray(jax.nn.softmax(preds.astype(np.float32)))
    chosen = preds.argmax(-1)
    want = {
        "accuracy": sklearn.metrics.accuracy_score(labels, chosen),
        "f1": sklearn.metrics.f1_score(labels, chosen, average="macro"),
        "auroc": np.mean(
            [sklearn.metrics.roc_auc_score(labels == c, scores[:, c]) for c in range(CLASSES)]
        ),
        "loss": loss.mean(dtype=np.float64),
    }
    matrix = sklearn.metrics.confusion_matrix(labels, chosen)
    print(f"scikit-learn, on all stored batches: {time.perf_counter() - start:.2f} s")
    for name, value in want.items():
        print(f"{name:>12} {results[name]:.8f}  scikit-learn {value:.8f}")
    print(f"{'confusion':>12} equal: {np.array_equal(results['confusion'], matrix)}")


if __name__ == "__main__":
    main()
