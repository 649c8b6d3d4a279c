"""Flax NNX: metrics that `nnx.jit` updates in place, on all devices, read once an epoch."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import datarax
from datarax.distributed import global_batch
from datarax.metrics import F1, Accuracy, Mean
from datarax.training import StatefulMetric

ROWS, EPOCHS = 256, 2
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16

# On Auto axes, JAX decides how the arrays of the step are sharded. On Explicit axes, the default of
# `make_mesh`, model and loss must say it where it is ambiguous.
mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
model = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
# All state is on the mesh from the start. Otherwise the second step, whose model comes from the
# first one, compiles once more.
for node in (model, optimizer):
    nnx.update(node, jax.device_put(nnx.state(node), NamedSharding(mesh, P())))
collection = datarax.Collection(
    {
        "loss": Mean().from_outputs(values="loss"),
        "accuracy": Accuracy(num_classes=10),
        "f1": F1(num_classes=10),
    }
).from_outputs(preds="logits", target="labels")  # the names that the step below gives them
# Each device has a state of its own, so an update communicates nothing. For NNX, all metrics are
# one Variable.
metrics = StatefulMetric(datarax.per_device(collection, mesh, "data"))


def forward(model, x, y, real):
    logits = model(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
    return jnp.sum(losses, where=real) / ROWS, (losses, logits)


@nnx.jit(donate_argnames="metrics")
def train_step(model, optimizer, metrics, x, y, real):
    (loss, (losses, logits)), grads = nnx.value_and_grad(forward, has_aux=True)(model, x, y, real)
    optimizer.update(model, grads)
    # The losses of the examples, not their mean: so the weights leave the padding out.
    metrics.update(loss=losses, logits=logits, labels=y, weights=real)
    return loss


@nnx.jit(donate_argnames="metrics")
def eval_step(model, metrics, x, y, real):
    _, (losses, logits) = forward(model, x, y, real)
    metrics.update(loss=losses, logits=logits, labels=y, weights=real)


def batches():
    for start in range(0, len(x), ROWS):
        rows = slice(start, start + ROWS)
        # Padded to ROWS rows: a shorter batch would compile each step once more.
        batch, real = global_batch({"x": x[rows], "y": y[rows]}, mesh, "data", rows=ROWS)
        yield {**batch, "real": real}


def report(phase):
    for name, value in metrics.results().items():
        print(f"{phase} {name} {value:.6f}")
    metrics.reset()


for epoch in range(1, EPOCHS + 1):
    for batch in batches():
        # Only simulated devices need the wait.
        jax.block_until_ready(train_step(model, optimizer, metrics, **batch))
    report(f"epoch-{epoch}")
for batch in batches():
    eval_step(model, metrics, **batch)
report("trained")
