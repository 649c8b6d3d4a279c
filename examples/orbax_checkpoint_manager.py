"""Orbax's `CheckpointManager`: metrics beside the model, restored in the middle of an epoch."""

import tempfile

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import datarax
import datarax.io
from datarax.metrics import Accuracy, Mean

ROWS, STEPS, EVERY = 128, 14, 5
x, y = load_digits(return_X_y=True)
x = x.astype("float32") / 16
optimizer = optax.sgd(0.5, momentum=0.9)
folder = tempfile.mkdtemp()


@jax.jit(donate_argnames=("state", "metrics"))
def train_step(state, metrics, x, y):
    def loss_of(params):
        logits = x @ params["w"] + params["b"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), (losses, logits)

    grads, (losses, logits) = jax.grad(loss_of, has_aux=True)(state["params"])
    updates, opt_state = optimizer.update(grads, state["opt_state"])
    params = optax.apply_updates(state["params"], updates)
    metrics = metrics.update(loss=losses, preds=logits, target=y)
    return {"params": params, "opt_state": opt_state, "step": state["step"] + 1}, metrics


def save(manager, state, metrics):
    # An array, which does not depend on the number of devices, and a description, which is checked
    # when restoring. Orbax keeps the item name "metrics" for itself.
    arrays, info = datarax.io.pack(metrics)
    items = {
        "state": ocp.args.StandardSave(state),
        "metric_state": ocp.args.StandardSave(arrays),
        "metric_info": ocp.args.JsonSave(info),
    }
    manager.save(int(state["step"]), args=ocp.args.Composite(**items))


def restore(manager, state, metrics):
    items = {
        "state": ocp.args.StandardRestore(state),
        "metric_state": ocp.args.StandardRestore(),
        "metric_info": ocp.args.JsonRestore(),
    }
    saved = manager.restore(manager.latest_step(), args=ocp.args.Composite(**items))
    arrays, info = saved["metric_state"], saved["metric_info"]
    return saved["state"], datarax.io.unpack(arrays, info, like=metrics)


def train(devices, until):
    """Trains on the first devices up to a step, from the newest checkpoint if there is one."""
    mesh = Mesh(jax.devices()[:devices], ("data",))
    params = {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}
    state = {"params": params, "opt_state": optimizer.init(params), "step": jnp.int32(0)}
    state = jax.device_put(state, NamedSharding(mesh, P()))
    metrics = datarax.Collection(
        {"loss": Mean().from_outputs(values="loss"), "accuracy": Accuracy(num_classes=10)}
    )
    metrics = datarax.per_device(metrics, mesh, "data")
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(folder, options=options) as manager:
        if manager.latest_step() is not None:
            state, metrics = restore(manager, state, metrics)
            print(f"restored-at step {int(state['step'])}")
        while (step := int(state["step"])) < until:
            rows = slice(step * ROWS, (step + 1) * ROWS)
            batch = jax.device_put((x[rows], y[rows]), NamedSharding(mesh, P("data")))
            state, metrics = train_step(state, metrics, *batch)
            if int(state["step"]) % EVERY == 0:
                save(manager, state, metrics)
    return metrics.results()


train(jax.device_count(), until=STEPS // 2)  # this job ends in the middle of the epoch
half = max(1, jax.device_count() // 2)
for name, value in train(half, until=STEPS).items():
    print(f"epoch {name} {value:.6f}")
