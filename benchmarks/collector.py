"""The cost of metrics in a training loop, in four loops.

The loops have no metrics, metrics that are not collected, metrics with a collector, and metrics
that the loop waits for. An MLP learns scikit-learn's digits on the default device, which is a GPU
if there is one. The host draws and distorts each batch while the device computes the one before,
as in a real loop; waiting for a value every few steps prevents that. The four loops take turns, so
that a slower phase of the machine affects all of them.
"""

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import datarax
from datarax.metrics import Accuracy, Mean

BATCH, HIDDEN, EVERY = 512, 512, 10
STEPS, ROUNDS = 50, 20  # steps in a turn, and turns of each loop

OPTIMIZER = optax.adam(1e-3)
METRICS = datarax.Collection(
    {"loss": Mean().from_outputs(values="loss"), "accuracy": Accuracy(num_classes=10)}
)


def initial(rng: np.random.Generator) -> Any:
    sizes = [64, HIDDEN, HIDDEN, 10]
    weights = [rng.normal(0, (2 / n) ** 0.5, (n, m)) for n, m in itertools.pairwise(sizes)]
    params = [jnp.asarray(w, jnp.float32) for w in weights]
    return params, OPTIMIZER.init(params)


def learn(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
    params, optimizer = state

    def losses(params: list[jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        x = images
        for w in params[:-1]:
            x = jax.nn.relu(x @ w)
        logits = x @ params[-1]
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return loss.mean(), (loss, logits)

    grads, (loss, logits) = jax.grad(losses, has_aux=True)(params)
    updates, optimizer = OPTIMIZER.update(grads, optimizer)
    return (optax.apply_updates(params, updates), optimizer), loss, logits


@jax.jit
def plain_step(state: Any, images: jax.Array, labels: jax.Array) -> Any:
    return learn(state, images, labels)[0]


@jax.jit
def step(state: Any, metrics: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    state, loss, logits = learn(state, images, labels)
    return state, metrics.update(loss=loss, preds=logits, target=labels)


class Loop:
    """One of the four loops. A turn runs `STEPS` steps and returns the mean seconds per step."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.rng = np.random.default_rng(0)
        self.images, self.labels = images, labels
        self.state, self.metrics = initial(self.rng), METRICS
        self.collector = datarax.AsyncMetricCollector(METRICS, max_in_flight=4).bind()
        self.read: list[Any] = []
        self.worked = 0.0  # processor seconds of this thread, which exclude waiting

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rng.integers(0, len(self.labels), BATCH)
        noise = self.rng.normal(0, 0.1, (BATCH, 64)).astype(np.float32)
        return self.images[rows] + noise, self.labels[rows]

    def without(self, i: int) -> None:
        self.state = plain_step(self.state, *self.batch())

    def uncollected(self, i: int) -> None:
        self.state, self.metrics = step(self.state, self.metrics, *self.batch())

    def collected(self, i: int) -> None:
        self.uncollected(i)
        if i % EVERY == EVERY - 1:
            start = time.thread_time()
            self.metrics = self.collector.schedule_collection(self.metrics, step=i)
            self.read += self.collector.ready()
            self.worked += time.thread_time() - start

    def blocking(self, i: int) -> None:
        self.uncollected(i)
        if i % EVERY == EVERY - 1:
            self.read.append({name: float(x) for name, x in self.metrics.compute().items()})
            self.metrics = self.metrics.reset()

    def turn(self, one: Callable[[int], None]) -> float:
        start = time.perf_counter()
        for i in range(STEPS):
            one(i)
        jax.block_until_ready(self.state)
        return (time.perf_counter() - start) / STEPS


def main() -> None:
    data, target = load_digits(return_X_y=True)
    images, labels = (data / 16).astype(np.float32), target.astype(np.int32)
    loops = {
        "no metrics": Loop.without,
        "metrics, no collection": Loop.uncollected,
        f"collector every {EVERY} steps": Loop.collected,
        f"blocking float() every {EVERY} steps": Loop.blocking,
    }
    made = {label: Loop(images, np.asarray(labels)) for label in loops}
    seconds: dict[str, list[float]] = {label: [] for label in loops}
    for turn in range(ROUNDS + 1):
        for label, one in loops.items():
            took = made[label].turn(one.__get__(made[label]))
            if turn:
                seconds[label].append(took)
            else:  # the first compiles
                made[label].worked = 0.0
    device = jax.devices()[0]
    print(f"jax {jax.__version__}, {device.device_kind}, {os.cpu_count()} cores")
    print(f"an MLP of {HIDDEN} units, batches of {BATCH}; {ROUNDS} turns of {STEPS} steps\n")
    print(f"{'':32}{'milliseconds per step':>21}{'over no collection':>23}")
    # The ratio is taken turn by turn, because a slower phase of the machine affects both loops.
    base = np.array(seconds["metrics, no collection"])
    for label, times in seconds.items():
        ratio = float(np.median(np.array(times) / base))
        print(f"{label:32}{1e3 * float(np.median(times)):>21.3f}{100 * (ratio - 1):>22.1f}%")
    collected = made[list(loops)[2]]
    worked = collected.worked / ROUNDS / STEPS
    share = 100 * worked / float(np.median(base))
    print(f"\ncollector's own work: {1e3 * worked:.3f} milliseconds per step, {share:.1f}%")
    print(f"last results: {collected.read[-1]}")


if __name__ == "__main__":
    main()
