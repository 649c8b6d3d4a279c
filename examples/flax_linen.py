"""Flax Linen: metrics in the train state, which the step donates."""

import jax
import jax.numpy as jnp
import optax
from flax import linen, serialization
from flax.training import train_state
from sklearn.datasets import load_digits

import datarax
from datarax.metrics import Accuracy, Mean

ROWS, EPOCHS = 128, 2
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16


class TrainState(train_state.TrainState):
    metrics: datarax.Collection  # a metric is a pytree, so it is a field like any other


net = linen.Dense(10)
state = TrainState.create(
    apply_fn=net.apply,
    params=net.init(jax.random.key(0), x[:1]),
    tx=optax.sgd(0.5),
    metrics=datarax.Collection(
        {"loss": Mean().from_outputs(values="loss"), "accuracy": Accuracy(num_classes=10)}
    ),
)


@jax.jit(donate_argnames="state")
def train_step(state, x, y):
    def loss_of(params):
        logits = state.apply_fn(params, x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return jnp.sum(losses) / ROWS, (losses, logits)

    grads, (losses, logits) = jax.grad(loss_of, has_aux=True)(state.params)
    metrics = state.metrics.update(loss=losses, preds=logits, target=y)
    return state.apply_gradients(grads=grads).replace(metrics=metrics)


for epoch in range(1, EPOCHS + 1):
    for start in range(0, len(x), ROWS):
        # The last batch is shorter. That costs a second compilation, but no wrong number: each
        # example counts once.
        state = train_step(state, x[start : start + ROWS], y[start : start + ROWS])
    for name, value in state.metrics.results().items():
        print(f"epoch-{epoch} {name} {value:.6f}")
    if epoch < EPOCHS:
        state = state.replace(metrics=state.metrics.reset())

# The checkpoint of the state holds the metrics. Restoring refuses metrics of another configuration.
saved = serialization.to_bytes(state)
restored = jax.device_put(serialization.from_bytes(state, saved))
print(f"restored accuracy {restored.metrics.results()['accuracy']:.6f}")
