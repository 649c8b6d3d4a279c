"""MaxText: a dict of scalars, the aux of a scan over micro-batches, written a step late."""

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import Mean, Ratio, Sum

STEPS, WINDOW, MICRO, ROWS, LENGTH, VOCAB = 6, 3, 4, 8, 16, 32
rng = np.random.default_rng(0)
params = {"embed": rng.normal(size=(VOCAB, 8)), "head": rng.normal(size=(8, VOCAB))}
params = jax.tree.map(jnp.float32, params)
tokens = rng.integers(1, VOCAB, (STEPS, MICRO, ROWS, LENGTH))
lengths = rng.integers(MICRO, LENGTH, (STEPS, MICRO, ROWS, 1))
lengths //= 1 + np.arange(MICRO)[:, None, None]  # later micro-batches have fewer tokens
tokens = np.where(np.arange(LENGTH) <= lengths, tokens, 0)  # 0 is padding


def micro_batch(params, ids):
    """The aux of one micro-batch: sums, and means such as that of the load of experts."""
    hidden = params["embed"][ids[:, :-1]]
    logits, targets = hidden @ params["head"], ids[:, 1:]
    xent = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]
    weights = targets != 0
    return {
        "total_loss": jnp.sum(xent, where=weights),
        "total_weights": weights.sum(),
        "moe_lb_loss": jnp.square(hidden).mean(),
    }


@jax.jit
def before(params, batch):
    """The scalars of a step: the aux is added up over the micro-batches."""
    aux = jax.lax.scan(lambda _, ids: (None, micro_batch(params, ids)), None, batch)[1]
    aux = jax.tree.map(lambda x: jnp.sum(x, 0), aux)
    return {
        "learning/loss": aux["total_loss"] / aux["total_weights"],
        "learning/moe_lb_loss": aux["moe_lb_loss"],
        "learning/total_weights": aux["total_weights"],
    }


@jax.jit(donate_argnames="metrics")
def after(metrics, params, batch):
    """The metrics take the aux with its axis of micro-batches, and each knows what to do."""
    aux = jax.lax.scan(lambda _, ids: (None, micro_batch(params, ids)), None, batch)[1]
    scalars = {
        "learning/loss": aux["total_loss"],
        "learning/moe_lb_loss": aux["moe_lb_loss"],
        "learning/total_weights": aux["total_weights"],
    }
    return metrics.update(**scalars)


RULES = {
    "learning/loss": Ratio().from_outputs(denominator="learning/total_weights"),  # over tokens
    "learning/*_loss": Mean(),  # of micro-batches
    "learning/total_weights": Sum(),
}


class Lines:
    """A writer, which gets the results of a window when they are there: some steps later."""

    def write(self, step, results):
        for name, value in results.items():
            print(f"after {step} {name} {value:.6f}")

    def flush(self):
        pass


logged = [before(params, batch) for batch in tokens]
for first in range(0, STEPS, WINDOW):  # the mean over steps, as of a curve that is smoothed
    for name in logged[0]:
        mean = np.mean([float(step[name]) for step in logged[first : first + WINDOW]])
        print(f"before {first + WINDOW} {name} {mean:.6f}")

metrics = datarax.Collection.from_rules(RULES, logged[0])
with datarax.AsyncMetricCollector(metrics, writer=Lines()) as collector:
    for number, batch in enumerate(tokens, 1):
        metrics = after(metrics, params, batch)
        if number % WINDOW == 0:
            metrics = collector.schedule_collection(metrics, step=number)
