"""Equinox: metrics beside the model under `filter_jit`, a bfloat16 evaluation in one `scan`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import datarax
from datarax.metrics import Accuracy, LogLoss, Mean

ROWS = 128
x, y = load_digits(return_X_y=True)
x, y = x.astype("float32") / 16, (y >= 5).astype("int32")

model = eqx.nn.MLP(64, 2, 32, 1, key=jax.random.key(0))
optimizer = optax.adam(1e-2)
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
# An argument of the step, not a field of the model: the optimizer would train its float arrays.
loss = Mean()


@eqx.filter_jit(donate="all-except-first")
def train_step(batch, model, opt_state, loss):
    x, y = batch

    def losses_of(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y)
        return losses.mean(), losses

    grads, losses = eqx.filter_grad(losses_of, has_aux=True)(model)
    updates, opt_state = optimizer.update(grads, opt_state)
    return eqx.apply_updates(model, updates), opt_state, loss.update(losses)


@eqx.filter_jit
def evaluate(model, metrics, batches):
    def body(metrics, batch):
        x, y, real = batch
        logits = jax.vmap(model)(x)
        return metrics.update(preds=logits, target=y, weights=real), None

    return jax.lax.scan(body, metrics, batches)[0]


def stacked(array):
    """Batches of ROWS rows along a new leading axis; zeros fill the last one."""
    rows = jnp.pad(array, [(0, -len(array) % ROWS)] + [(0, 0)] * (array.ndim - 1))
    return rows.reshape(-1, ROWS, *array.shape[1:])


for start in range(0, len(x) - ROWS + 1, ROWS):
    rows = slice(start, start + ROWS)
    model, opt_state, loss = train_step((x[rows], y[rows]), model, opt_state, loss)
print(f"train loss {loss.results():.6f}")

# Metrics count and sum in higher precision, whatever the dtype of their inputs is.
half = jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_inexact_array(a) else a, model)
metrics = datarax.Collection(
    {"accuracy": Accuracy(num_classes=2), "loss": LogLoss(num_classes=2, from_logits=True)}
)
real = jnp.ones(len(x), bool)
batches = (stacked(x.astype(jnp.bfloat16)), stacked(y), stacked(real))
metrics = evaluate(half, metrics, batches)
for name, value in metrics.results().items():
    print(f"bfloat16 {name} {value:.6f}")
