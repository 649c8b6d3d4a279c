"""The ways to log that the documentation and the examples show pass an audit."""

import functools
import json
import tempfile

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics
from flax import linen, nnx
from flax.training import train_state
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.base import BaseEstimator

import datarax
import datarax.io
from datarax import metrics
from datarax.distributed import global_batch
from datarax.testing import audit
from datarax.training import StatefulMetric

ROWS, SIZE, LENGTH, VOCABULARY = 16, 24, 6, 8
TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)


@pytest.fixture
def batch(rng):
    lengths = rng.integers(2, LENGTH + 1, ROWS)
    ids = rng.integers(1, VOCABULARY, (ROWS, LENGTH)).astype(np.int32)
    return {
        "logits": rng.normal(size=(ROWS, 3)).astype(np.float32),
        "label": rng.integers(0, 3, ROWS).astype(np.int32),
        "real": np.ones(ROWS, bool),
        "country": rng.integers(0, 3, ROWS).astype(np.int32),
        "ids": ids,
        "targets": np.where(np.arange(LENGTH) < lengths[:, None], ids, -100),
        "text": rng.choice(["a cat sat", "the cat sat on", "a dog"], ROWS),
    }


def make_metrics():
    return datarax.Collection(
        {
            "accuracy": metrics.Accuracy(num_classes=3),
            "loss": metrics.Mean().from_outputs(values="loss"),
        }
    )


def padded(b):
    """The arrays of a batch with rows of zeros up to one size, so that a step is compiled once."""
    arrays = {name: b[name] for name in ("logits", "label", "real", "country", "ids", "targets")}
    pad = (0, SIZE - len(b["real"]))
    return {name: np.pad(x, [pad] + [(0, 0)] * (x.ndim - 1)) for name, x in arrays.items()}


def outputs(b):
    losses = optax.softmax_cross_entropy_with_integer_labels(b["logits"], b["label"])
    return {"preds": b["logits"], "target": b["label"], "loss": losses, "weights": b["real"]}


def step(held, b):
    return held.update(**outputs(b))


jitted = jax.jit(step)


def waited(x):
    """Simulated devices may deadlock if several programs with a collective are in flight."""
    return jax.block_until_ready(x)


def meshed(mesh):
    return mesh or Mesh(np.array(jax.local_devices()[:1]), ("data",))


def outside_jit(batches):
    held = make_metrics()
    for b in batches:
        log_probs = b["logits"] - np.logaddexp.reduce(b["logits"], 1, keepdims=True)
        losses = -log_probs[np.arange(len(b["label"])), b["label"]]
        real = b["real"]
        held = held.update(preds=b["logits"], target=b["label"], loss=losses, weights=real)
    return held.results()


def padded_step(batches):
    held = make_metrics()
    for b in batches:
        held = jitted(held, padded(b))
    return held.results()


def value_of_a_batch(batches):
    held = make_metrics()
    for b in batches:
        held = held.merge(jitted(held.reset(), padded(b)))
    return held.results()


def with_a_collector(batches, mesh=None):
    held = datarax.per_device(make_metrics(), meshed(mesh), "data")
    with datarax.AsyncMetricCollector(held) as collector:
        for b in batches:
            held = waited(jitted(held, padded(b)))
        collector.schedule_collection(held, step=1)
        return collector.collect_results()


def replicated(batches, mesh=None):
    rows = NamedSharding(meshed(mesh), P("data"))
    held = datarax.replicate(make_metrics(), meshed(mesh))
    for b in batches:
        held = waited(jitted(held, jax.device_put(padded(b), rows)))
    return held.results()


@nnx.jit
def nnx_step(stateful, b):
    stateful.update(**outputs(b))


def stateful(batches):
    held = StatefulMetric(make_metrics())
    for b in batches:
        nnx_step(held, padded(b))
    return held.results()


@functools.cache
def sharded(mesh):
    """The last section of "Inside shard_map": a scan on each device, and a sync."""

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def evaluate(b):
        start = make_metrics().varying("data")
        rows = jax.tree.map(lambda x: x[:, None], b)
        held, _ = jax.lax.scan(lambda held, row: (step(held, row), None), start, rows)
        return held.sync("data")

    return evaluate


def in_shard_map(batches, mesh=None):
    held = make_metrics()
    for b in batches:
        held = held.merge(waited(sharded(meshed(mesh))(padded(b))))
    return held.results()


@functools.partial(jax.pmap, axis_name="devices", in_axes=(None, 0), out_axes=None)
def add_new(held, b):
    return held.merge(step(held.reset(), b).sync("devices"))


def in_pmap(batches):
    held = make_metrics()
    for b in batches:
        parts = {name: x.reshape(8, -1, *x.shape[1:]) for name, x in padded(b).items()}
        held = waited(add_new(held, parts))
    return held.results()


def with_global_batches(batches, mesh=None):
    held = datarax.per_device(make_metrics(), meshed(mesh), "data")
    for b in batches:
        mine = {name: b[name][b["real"]] for name in ("logits", "label")}
        whole, real = global_batch(mine, meshed(mesh), "data", rows=SIZE)
        held = waited(jitted(held, {**whole, "real": real}))
    return held.results()


class TrainState(train_state.TrainState):
    metrics: datarax.Collection


@jax.jit
def linen_step(state, b):
    logits = state.apply_fn(state.params, b["logits"])
    return state.replace(metrics=step(state.metrics, {**b, "logits": logits}))


@functools.cache
def new_state():
    net = linen.Dense(3)
    params = net.init(jax.random.key(0), jnp.ones((1, 3)))
    return TrainState.create(
        apply_fn=net.apply, params=params, tx=optax.sgd(0.1), metrics=make_metrics()
    )


def in_a_train_state(batches):
    state = new_state()
    for b in batches:
        state = linen_step(state, padded(b))
    return state.metrics.results()


filtered = equinox.filter_jit(step)


def with_equinox(batches):
    held = make_metrics()
    for b in batches:
        held = filtered(held, padded(b))
    return held.results()


def micro_steps(batches, micro=1):
    """As with Optax's MultiSteps: an update in each micro-step."""
    held = make_metrics()
    for b in batches:
        for i in range(micro):
            held = jitted(held, padded({name: x[i::micro] for name, x in b.items()}))
    return held.results()


def with_a_writer(batches, folder):
    with (
        datarax.io.JSONLWriter(folder / "log.jsonl") as writer,
        datarax.AsyncMetricCollector(make_metrics(), writer=writer) as collector,
    ):
        held = make_metrics()
        for b in batches:
            held = jitted(held, padded(b))
        collector.schedule_collection(held, step=1)
    return json.loads((folder / "log.jsonl").read_text().splitlines()[-1])


def continued(batches, folder):
    """Saved before the last batch, and restored."""
    held = make_metrics()
    for b in batches[:-1]:
        held = jitted(held, padded(b))
    path = tempfile.mkdtemp(dir=folder) + "/metrics"
    datarax.io.save(path, held)
    held = datarax.io.restore(path, like=make_metrics())
    return jitted(held, padded(batches[-1])).results()


SLICED = datarax.Sliced(make_metrics(), 3, names=("de", "fr", "it"), by="country")
sliced_step = jax.jit(lambda held, b: held.update(**outputs(b), country=b["country"]))


def slices(batches):
    held = SLICED
    for b in batches:
        held = sliced_step(held, padded(b))
    return held.results()


def next_token(given):
    return {"preds": given["logits"][:, :-1], "target": given["labels"][:, 1:]}


TOKENS = datarax.Collection(
    {
        "accuracy": datarax.Transformed(
            metrics.TokenAccuracy(ignore_index=-100), inputs=next_token
        ),
        "perplexity": datarax.Transformed(metrics.Perplexity(ignore_index=-100), inputs=next_token),
        # The mean over the tokens of a batch, whose weight is their number.
        "loss": metrics.Mean().from_outputs(values="loss", weights="tokens"),
    }
)


@jax.jit
def token_step(held, b):
    labels = jnp.where(b["real"][:, None], b["targets"], -100)
    logits, real = jnp.asarray(TABLE)[b["ids"]], labels[:, 1:] != -100
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits[:, :-1], jnp.where(real, labels[:, 1:], 0)
    )
    loss, tokens = jnp.mean(losses, where=real), jnp.sum(real)
    return held.update(logits=logits, labels=labels, loss=loss, tokens=tokens)


def language_model(batches):
    held = TOKENS
    for b in batches:
        held = token_step(held, padded(b))
    return held.results()


def scorer(batches):
    """A metric in `make_scorer`, which gets all rows of a fold."""
    target = np.concatenate([b["label"][b["real"]] for b in batches])
    preds = np.concatenate([b["logits"][b["real"]].argmax(1) for b in batches])
    metric = metrics.F1(num_classes=3)

    def score(y_true, y_pred):
        return metric.update(preds=y_pred, target=y_true).results()

    class Model(BaseEstimator):
        def predict(self, x):
            return x

    return {"f1": sklearn.metrics.make_scorer(score)(Model(), preds, target)}


def generated_text(batches):
    held = datarax.Collection({"wer": metrics.WER(), "exact": metrics.TextExactMatch()})
    for b in batches:
        texts = b["text"][b["real"]].tolist()
        if texts:
            held = held.update(preds=texts, target=["a cat sat on"] * len(texts))
    return held.results()


MASKED = {"mask": "real"}
DEVICES = {"mask": "real", "devices": [8]}
WAYS = {
    "outside jit": (outside_jit, MASKED),
    "a padded step": (padded_step, MASKED),
    "the value of a batch": (value_of_a_batch, MASKED),
    "a collector": (with_a_collector, DEVICES),
    "replicate": (replicated, DEVICES),
    "nnx.jit": (stateful, MASKED),
    "shard_map": (in_shard_map, DEVICES),
    "pmap": (in_pmap, MASKED),
    "global_batch": (with_global_batches, DEVICES),
    "a train state": (in_a_train_state, MASKED),
    "Equinox": (with_equinox, MASKED),
    "micro-steps": (micro_steps, {**MASKED, "micro": [2, 4]}),
    "a writer": (with_a_writer, MASKED),
    "checkpoints": (continued, MASKED),
    "slices": (slices, MASKED),
    "a language model": (language_model, MASKED),
    "scikit-learn": (scorer, MASKED),
    "generated text": (generated_text, MASKED),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_the_documentation_shows_passes(batch, tmp_path, way):
    procedure, arguments = WAYS[way]
    if procedure in (with_a_writer, continued):
        procedure = functools.partial(procedure, folder=tmp_path)
    report = audit(procedure, batch, **arguments)
    report.raise_if_changed()
    assert report.unstable == report.expected == []
    assert len(report.bounds) > 0
