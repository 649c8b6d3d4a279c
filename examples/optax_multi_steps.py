"""Optax's `MultiSteps`: results for each optimizer step, over micro-batches of unequal weight."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import datarax
from datarax.metrics import Accuracy, Mean, Sum

ROWS, MICRO_STEPS = 64, 4
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
# 7 of 10 examples have a label, so the micro-batches differ in the number of examples that count.
y = np.where(np.random.default_rng(0).random(len(y)) < 0.7, y, -100)
expected = 0.7 * ROWS

optimizer = optax.MultiSteps(optax.sgd(0.5), every_k_schedule=MICRO_STEPS)
params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
opt_state = optimizer.init(params)
metrics = datarax.Collection(
    {
        "loss": Mean().from_outputs(values="loss"),
        "accuracy": Accuracy(num_classes=10),
        "examples": Sum().from_outputs(values="labelled", weights=None),
    }
)


@jax.jit(donate_argnames=("params", "opt_state", "metrics"))
def micro_step(params, opt_state, metrics, x, y):
    labelled = y >= 0

    def loss_of(params):
        logits = x @ params["w"] + params["b"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(labelled, y, 0))
        # MultiSteps averages the gradients of the micro-batches, as if all had the same weight.
        # So the sum is divided by one number for all of them, not by that of this micro-batch.
        return jnp.sum(losses, where=labelled) / expected, (losses, logits)

    grads, (losses, logits) = jax.grad(loss_of, has_aux=True)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    outputs = {"loss": losses, "preds": logits, "target": y, "labelled": labelled}
    # The metrics have no such problem: a total and a weight are added up.
    metrics = metrics.update(**outputs, weights=labelled)
    return optax.apply_updates(params, updates), opt_state, metrics


for number in range(3 * MICRO_STEPS):
    rows = slice(number * ROWS, (number + 1) * ROWS)
    params, opt_state, metrics = micro_step(params, opt_state, metrics, x[rows], y[rows])
    if optimizer.has_updated(opt_state):  # the last micro-step of an optimizer step
        for name, value in metrics.results().items():
            print(f"step-{int(opt_state.gradient_step)} {name} {value:.6g}")
        metrics = metrics.reset()
