"""Levanter and Marin: running means of each tag, and the parents of tags, in an evaluation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import BitsPerByte, Mean

STEPS, ROWS, LENGTH, VOCAB = 6, 8, 16, 32
TAGS = "paloma/c4/en", "paloma/c4/de", "paloma/code", "wiki"
rng = np.random.default_rng(0)
domain = np.sort(rng.integers(0, len(TAGS), (STEPS, ROWS)), 0)  # of each row; they come in turn
logits = rng.normal(size=(STEPS, ROWS, LENGTH, VOCAB)).astype(np.float32)
logits *= 1 + domain[..., None, None]
tokens = rng.integers(0, VOCAB, (STEPS, ROWS, LENGTH))
longest = np.array([LENGTH, 3, 8, 5])[domain][..., None]
mask = np.arange(LENGTH) < rng.integers(1, longest + 1)
tags = domain[..., None] == np.arange(len(TAGS))
bytes_of = rng.integers(1, 9, VOCAB)


class RunningMean(NamedTuple):
    """The mean of all batches so far, and their total weight."""

    mean: jax.Array
    total: jax.Array

    def add(self, mean, weight):
        total = self.total + weight
        share = jnp.where(total > 0, weight / jnp.maximum(total, 1), 0)
        return RunningMean(self.mean + share * (mean - self.mean), total)


def losses_of(logits, tokens):
    """The loss and the number of bytes of each token."""
    chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - chosen, jnp.asarray(bytes_of)[tokens]


@jax.jit
def before(means, logits, tokens, mask, tags):
    """A step: the means of a batch, and of each tag in it, go into running means."""
    losses, num_bytes = losses_of(logits, tokens)

    def add(mean, add_up):
        """Each is weighed by its tokens, the bits per byte too."""
        nats, count, size = (add_up(jnp.where(mask, x, 0)) for x in (losses, 1, num_bytes))
        return {
            "loss": mean["loss"].add(nats / jnp.maximum(count, 1), count),
            "bpb": mean["bpb"].add(nats / jnp.maximum(size, 1) / jnp.log(2), count),
        }

    return {
        "overall": add(means["overall"], jnp.sum),
        "tags": add(means["tags"], lambda x: jnp.einsum("nt,ng->g", x, tags)),
    }


@jax.jit(donate_argnames="metrics")
def after(metrics, logits, tokens, mask, tags):
    """A step: a row counts in each of its tags, and in the parents of these."""
    losses, num_bytes = losses_of(logits, tokens)
    return metrics.update(losses=losses, num_bytes=num_bytes, mask=mask, tags=tags)


def parents(values):
    """The tags below each parent, weighed by what was read for their weights: their means."""
    names = {tag.rsplit("/", i)[0] for tag in TAGS for i in range(1, tag.count("/") + 1)}
    below = {name: [x.startswith(f"{name}/") for x in TAGS] for name in names}
    return {name: np.average(values, weights=values * x) for name, x in below.items()}


zeros = [RunningMean(jnp.zeros(shape), jnp.zeros(shape)) for shape in ((), len(TAGS))]
means = {
    name: {"loss": zero, "bpb": zero} for name, zero in zip(("overall", "tags"), zeros, strict=True)
}
members = {
    "bpb": BitsPerByte(from_losses=True).from_outputs(preds="losses", weights="mask"),
    "loss": Mean().from_outputs(values="losses", weights="mask"),
}
metrics = datarax.Sliced(datarax.Collection(members), len(TAGS), names=TAGS, by="tags", rollup="/")
for batch in zip(logits, tokens, mask, tags, strict=True):
    means = before(means, *batch)
    metrics = after(metrics, *batch)
for name in members:
    of_tags = np.asarray(means["tags"][name].mean)
    logged = dict(zip(TAGS, of_tags, strict=True)) | parents(of_tags)
    logged["overall"] = means["overall"][name].mean
    for tag, value in sorted(logged.items()):
        print(f"before {tag} {name} {value:.6f}")
for tag, values in metrics.results().items():
    for name, value in values.items():
        print(f"after {tag} {name} {value:.6f}")
