"""Scenic and Big Vision: `(sum, normalizer)` of each metric, added over devices in each step."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Ratio

STEPS, ROWS, CLASSES = 4, 16, 5
mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
rng = np.random.default_rng(0)
rows = ROWS * jax.device_count()
logits = rng.normal(size=(STEPS, rows, CLASSES)).astype(np.float32)
labels = rng.integers(0, CLASSES, (STEPS, rows))
mask = np.arange(rows) < rng.integers(1, rows + 1, (STEPS, 1))  # batches are padded


def metrics_of(logits, labels, mask):
    """`(sum, normalizer)` of each metric, on one device."""
    log_probs = jax.nn.log_softmax(logits)
    xent = -jnp.take_along_axis(log_probs, labels[:, None], -1)[:, 0]
    right = logits.argmax(-1) == labels
    count = mask.sum()
    return {
        "loss": (jnp.sum(xent, where=mask), count),
        "accuracy": (jnp.sum(right, where=mask), count),
        "entropy": (-jnp.sum((jnp.exp(log_probs) * log_probs).sum(-1), where=mask), count),
    }


def sharded(function, out_specs):
    """A step in which each device has its rows."""
    shards = P("batch")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(shards,) * 3, out_specs=out_specs))


before = sharded(lambda *batch: jax.lax.psum(metrics_of(*batch), "batch"), P())


@jax.jit(donate_argnames="metrics")
def after(metrics, logits, labels, mask):
    """Each device folds its pairs into its own copy: no collective until they are read."""
    pairs = sharded(lambda *batch: jax.tree.map(lambda x: x[None], metrics_of(*batch)), P("batch"))(
        logits, labels, mask
    )
    return metrics.update(
        **{
            name: {"numerator": total, "denominator": count}
            for name, (total, count) in pairs.items()
        }
    )


metrics = datarax.MultiTask({"loss": Ratio(), "accuracy": Ratio(), "entropy": Ratio()})
metrics = datarax.per_device(metrics, mesh, "batch")
logged = []
for batch in zip(logits, labels, mask, strict=True):
    batch = jax.device_put(batch, NamedSharding(mesh, P("batch")))
    logged.append(jax.block_until_ready(before(*batch)))
    metrics = jax.block_until_ready(after(metrics, *batch))
for name in logged[0]:
    ratios = [float(total) / float(count) for total, count in (step[name] for step in logged)]
    print(f"before {name} {np.mean(ratios):.6f}")
for name, value in metrics.results().items():
    print(f"after {name} {value:.6f}")
