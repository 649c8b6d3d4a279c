"""Grain: each process reads a part of the examples, and the last batches are padded."""

import grain
import jax
import numpy as np
from sklearn.datasets import load_digits

import datarax
from datarax.distributed import global_batch
from datarax.metrics import AUROC, Accuracy

ROWS = 128  # of a batch of one process
x, y = load_digits(return_X_y=True)
x, y = x.astype("float32") / 16, (y >= 5).astype("int32")
weight = np.linalg.lstsq(x[:500], 2.0 * y[:500] - 1)[0].astype("float32")

# `drop_remainder` is off: an evaluation counts all examples.
mine = slice(jax.process_index(), None, jax.process_count())
dataset = grain.MapDataset.source(list(zip(x[500:], y[500:], strict=True)))
loader = dataset[mine].batch(ROWS, drop_remainder=False).to_iter_dataset()

mesh = jax.make_mesh((jax.device_count(),), ("data",))
metrics = datarax.Collection({"accuracy": Accuracy(from_logits=True), "auroc": AUROC()})
metrics = datarax.per_device(metrics, mesh, "data")


@jax.jit(donate_argnames="metrics")
def eval_step(metrics, x, y, real):
    return metrics.update(preds=x @ weight, target=y, weights=real)


# All processes must take the same number of steps. One that has no batch left passes an empty one.
longest = -(-len(dataset) // jax.process_count())
empty = np.zeros((0, 64), np.float32), np.zeros(0, np.int32)
batches = iter(loader)
for _ in range(0, longest, ROWS):
    # Pads the batch of this process to ROWS rows; `real` is false for the padding.
    batch, real = global_batch(next(batches, empty), mesh, "data", rows=ROWS)
    metrics = jax.block_until_ready(eval_step(metrics, *batch, real))
for name, value in metrics.results().items():
    print(f"{name} {value:.6f}")
