"""Metrics of tokens and sequences: what the cases of the registry do not cover."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import (
    Accuracy,
    BitsPerByte,
    CalibrationError,
    Perplexity,
    SequenceAccuracy,
    TokenAccuracy,
)
from datarax.testing import assert_within_ulps
from tests.helpers import make_mesh, place, update, update_all, value_of
from tests.registry.language import losses

V = 512


def batch_of(rng, shape=(4, 6), size=V, dtype="bfloat16"):
    logits = jnp.asarray(4 * rng.normal(size=(*shape, size)), dtype)
    target = rng.integers(0, size, shape).astype(np.int32)
    # Some tokens are predicted nearly for certain, so that their losses are near zero.
    logits = logits.at[0, 0, target[0, 0]].set(40)
    return logits, target, rng.integers(0, 6, shape).astype(np.int32)


def largest_sent(text):
    """The most elements that a collective of a compiled program gives."""
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    found = re.findall(rf" = (.*?) (?:{kinds})(?:-start)?\(", text)
    shapes = [shape for each in found for shape in re.findall(r"\w+\[([\d,]*)\]", each)]
    assert shapes
    return max(int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_sharded_vocabulary_is_not_gathered(kind, rng):
    logits, target, num_bytes = batch_of(rng)
    mesh = make_mesh(kind, {"data": 2, "tensor": 4})
    sharded = place(logits, mesh, P("data", None, "tensor"))
    labels = place({"target": target, "num_bytes": num_bytes}, mesh, P("data"))
    metric = datarax.Collection(
        {
            "perplexity": Perplexity(),
            "bits": BitsPerByte(),
            "right": TokenAccuracy(top_k=200),
            "whole": SequenceAccuracy(),
            "calibration": CalibrationError(num_classes=V, from_logits=True),
        }
    )
    compiled = jax.jit(lambda metric, x: metric.update(**x)).lower(
        metric, {"preds": sharded, **labels}
    )
    compiled = compiled.compile()
    assert largest_sent(compiled.as_text()) < V // 4  # the logits that a device holds of a token
    values = jax.block_until_ready(compiled(metric, {"preds": sharded, **labels})).compute()

    x = np.asarray(logits).astype(np.float64)
    each = losses(x, target)
    assert_within_ulps(values["perplexity"], np.exp(each.mean()), 96)
    assert_within_ulps(values["bits"], each.sum() / np.log(2) / num_bytes.sum(), 8)
    best = np.argsort(-x, -1, kind="stable")
    rank = (best == target[..., None]).argmax(-1)
    assert_within_ulps(values["right"], (rank < 200).mean(), 1)
    assert_within_ulps(values["whole"], (rank == 0).all(-1).mean(), 1)
    # Of one token after another, as of any other examples.
    flat = update(metric["calibration"], logits.reshape(-1, V), target.reshape(-1))
    assert_within_ulps(values["calibration"], np.asarray(flat.compute()), 2)


def test_losses_instead_of_logits(rng):
    logits, target, num_bytes = batch_of(rng, dtype="float32")
    given = np.array(optax.softmax_cross_entropy_with_integer_labels(logits, target))
    want = given.astype(np.float64)
    target[1, 2:], given[1, 2], given[0, 0] = -100, np.nan, np.nan
    mask = np.ones(target.shape, bool)
    mask[0, 0] = False
    used = mask & (target != -100)
    config = {"from_losses": True, "ignore_index": -100}
    metrics = datarax.Collection({"p": Perplexity(**config), "b": BitsPerByte(**config)})
    seen = metrics.update(preds=given, target=target, num_bytes=num_bytes, weights=mask)
    values = seen.compute()
    assert_within_ulps(values["p"], np.exp(want[used].mean()), 32)
    assert_within_ulps(values["b"], want[used].sum() / np.log(2) / num_bytes[used].sum(), 8)
    assert seen.invalid_count() == 0
    # The same from the logits.
    config["from_losses"] = False
    assert_within_ulps(
        value_of(Perplexity(**config), logits, target, weights=mask), values["p"], 64
    )


def test_what_losses_need():
    with pytest.raises(datarax.MetricInputError, match="got no target; expected token ids"):
        Perplexity().update(jnp.zeros((2, 3)))
    with pytest.raises(datarax.MetricInputError, match="ignore_index=0 without target"):
        Perplexity(from_losses=True, ignore_index=0).update(jnp.zeros(3))
    with pytest.raises(datarax.MetricInputError, match=r"\(3,\) and target of shape \(4,\)"):
        Perplexity(from_losses=True).update(jnp.zeros(3), jnp.zeros(4, jnp.int32))
    with pytest.raises(datarax.MetricInputError, match=r"num_bytes of shape \(1,\)"):
        BitsPerByte(from_losses=True).update(jnp.zeros(3), num_bytes=jnp.ones(1))


def test_bytes_that_no_text_has_are_counted():
    metric = BitsPerByte(from_losses=True, on_invalid="exclude")
    loss = jnp.full(5, np.log(2), jnp.float32)
    num_bytes = jnp.array([1.0, -1.0, jnp.nan, 3.0, -7.0])
    seen = update(metric, loss, num_bytes=num_bytes, weights=jnp.array([1.0, 1, 1, 1, 0]))
    with pytest.warns(datarax.InvalidValuesWarning, match="2 "):
        assert_within_ulps(seen.compute(), 0.5, 1)


def test_top_k_of_tokens_is_that_of_classes(rng):
    preds = rng.integers(-2, 3, (8, 5, 7)).astype(np.float32)  # with many ties
    target = rng.integers(-1, 7, (8, 5)).astype(np.int32)
    config = {"top_k": 3, "ignore_index": -1}
    both = [TokenAccuracy(**config), Accuracy(num_classes=7, average="micro", **config)]
    got, want = (metric.compute() for metric in update_all(both, preds, target))
    assert got == want
    used, ids = target >= 0, preds.argmax(-1).astype(np.int32)
    want = sklearn.metrics.accuracy_score(target[used], ids[used])
    assert_within_ulps(value_of(TokenAccuracy(ignore_index=-1), ids, target), want, 1)


def test_whole_sequences(rng):
    logits, target, _ = batch_of(rng, (8, 3), 4, "float32")
    target = np.where(rng.random((8, 3)) < 0.7, np.asarray(logits).argmax(-1), target)
    weights = rng.choice(np.float32([0, 0.5, 2]), (8, 3))
    right = np.asarray(logits).argmax(-1) == target
    w = weights.max(-1).astype(np.float64)
    want = (w * (right | (weights == 0)).all(-1)).sum() / w.sum()
    metric = SequenceAccuracy(on_invalid="exclude")
    spoilt = logits.at[:, :, 0].add(jnp.where(weights == 0, jnp.nan, 0))  # where nothing looks
    seen = update(metric, spoilt, target, weights=weights)
    assert_within_ulps(seen.compute(), want, 1)
    assert seen.invalid_count() == 0
    seen = update(metric, logits, np.where(np.arange(3) == 1, -1, target), weights=weights)
    assert seen.invalid_count() == (weights[:, 1] > 0).sum()


@pytest.mark.parametrize(
    ("make", "preds", "target", "message"),
    [
        (TokenAccuracy, (2, 3, 7), (2, 4), r"preds of shape \(2, 3, 7\) and target of shape"),
        (partial(TokenAccuracy, top_k=8), (2, 7), (2,), "top_k=8; expected at most 7"),
        (TokenAccuracy, (), (3,), r"preds of shape \(\); expected logits of shape \(..., V\)"),
        (SequenceAccuracy, (4,), (), "target has no axes"),
    ],
)
def test_shapes_are_checked(make, preds, target, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        make().update(jnp.zeros(preds), jnp.zeros(target, jnp.int32))


def test_arguments_are_checked():
    ids = jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(datarax.MetricInputError, match="top_k=0"):
        TokenAccuracy(top_k=0)
    with pytest.raises(datarax.MetricInputError, match="top_k=2 needs logits"):
        TokenAccuracy(top_k=2).update(ids, ids)
    with pytest.raises(datarax.MetricTypeError, match="preds has dtype float32; expected integer"):
        TokenAccuracy().update(jnp.zeros((2, 3)), ids)
    with pytest.raises(datarax.MetricTypeError, match="target has dtype float32"):
        SequenceAccuracy().update(ids, jnp.zeros((2, 3)))
