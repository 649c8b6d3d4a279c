"""Plain JAX: an epoch is one `scan` on a mesh, which donates parameters and metrics."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import datarax
from datarax.metrics import Accuracy, Mean

ROWS, EPOCHS = 128, 3
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
steps = len(x) // ROWS  # an epoch leaves out the examples that do not fill a batch

mesh = jax.make_mesh((jax.device_count(),), ("data",))
# The parameters are on the mesh too. Explicit axes, the default of `make_mesh`, require it; on Auto
# axes, the second call would compile once more without it.
params = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
params = jax.device_put(params, NamedSharding(mesh, P()))
metrics = datarax.Collection(
    {"loss": Mean().from_outputs(values="loss"), "accuracy": Accuracy(num_classes=10)}
)
metrics = datarax.per_device(metrics, mesh, "data")


def loss_of(params, x, y):
    logits = x @ params["w"] + params["b"]
    losses = -jnp.sum(jax.nn.log_softmax(logits) * jax.nn.one_hot(y, 10), -1)
    return losses.mean(), {"loss": losses, "preds": logits}


@jax.jit(donate_argnames=("params", "metrics"))
def epoch(params, metrics, x, y):
    def step(carry, batch):
        params, metrics = carry
        grads, outputs = jax.grad(loss_of, has_aux=True)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 0.5 * g, params, grads)
        return (params, metrics.update(**outputs, target=batch[1])), None

    return jax.lax.scan(step, (params, metrics), (x, y))[0]


def batches(order):
    """The examples as arrays of shape (steps, ROWS, ...), with sharded rows."""
    rows = order[: steps * ROWS].reshape(steps, ROWS)
    return jax.device_put((x[rows], y[rows]), NamedSharding(mesh, P(None, "data")))


rng = np.random.default_rng(0)
orders = [rng.permutation(len(x)) for _ in range(EPOCHS)]
with datarax.AsyncMetricCollector(metrics) as collector:
    for number, order in enumerate(orders, 1):
        params, metrics = jax.block_until_ready(epoch(params, metrics, *batches(order)))
        # The results of this epoch are read while the next one runs. `metrics` is empty again.
        metrics = collector.schedule_collection(metrics, step=number)
for number, results in collector.ready():
    for name, value in results.items():
        print(f"epoch-{number} {name} {value:.6f}")
