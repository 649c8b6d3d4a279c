"""A Hugging Face style model: a dict of outputs, labels of -100, and the mean loss of a batch."""

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import Mean, Perplexity, TokenAccuracy

ROWS, LENGTH, VOCABULARY = 8, 16, 32
rng = np.random.default_rng(0)


def collate(texts):
    """Texts of any lengths as a batch of one shape: a new shape would compile a new program."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    mask = np.zeros((ROWS, LENGTH), np.int32)
    for row, text in enumerate(texts):  # there may be fewer texts than rows
        ids[row, : len(text)], mask[row, : len(text)] = text, 1
    # The mask alone does not reach the metrics: the label -100 marks what does not count.
    return {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask, ids, -100)}


def model(params, input_ids, attention_mask, labels):
    """Returns the dict of a causal language model: logits in bfloat16, the loss as one number."""
    logits = (params["table"][input_ids] @ params["head"]).astype(jnp.bfloat16)
    shifted, real = labels[:, 1:], labels[:, 1:] != -100
    log_probs = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    nll = -jnp.take_along_axis(log_probs, jnp.where(real, shifted, 0)[..., None], -1)[..., 0]
    return {"loss": jnp.mean(nll, where=real), "logits": logits}


def next_token(outputs):
    """The logits at a position are those of the next token, so the labels are shifted by one."""
    return {"preds": outputs["logits"][:, :-1], "target": outputs["labels"][:, 1:]}


metrics = datarax.Collection(
    {
        "accuracy": datarax.Transformed(TokenAccuracy(ignore_index=-100), inputs=next_token),
        "perplexity": datarax.Transformed(Perplexity(ignore_index=-100), inputs=next_token),
        # The mean over the tokens of a batch: its weight is their number.
        "loss": Mean().from_outputs(values="loss", weights="tokens"),
    }
)


@jax.jit
def eval_step(params, metrics, batch):
    outputs = model(params, **batch)
    tokens = jnp.sum(batch["labels"][:, 1:] != -100)
    return metrics.update(**outputs, **batch, tokens=tokens)


params = {
    "table": rng.normal(size=(VOCABULARY, 8)).astype(np.float32),
    "head": rng.normal(size=(8, VOCABULARY)).astype(np.float32),
}
texts = [rng.integers(1, VOCABULARY, rng.integers(2, LENGTH + 1)) for _ in range(29)]
for start in range(0, len(texts), ROWS):
    metrics = eval_step(params, metrics, collate(texts[start : start + ROWS]))
for name, value in metrics.results().items():
    print(f"{name} {value:.6f}")
