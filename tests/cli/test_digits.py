"""The demo's data and metrics, on fresh data."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from datarax.cli import digits
from datarax.cli.demo import reference
from tests.helpers import make_mesh, place


def test_batches_keep_every_example(rng):
    rows = int(rng.integers(1, 500))
    data = digits.Digits(rng.normal(size=(rows, 3)), rng.integers(1, 9, rows))
    batches = list(digits.batches(data))
    assert [len(batch.labels) for batch in batches[:-1]] == [128] * (len(batches) - 1)
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    np.testing.assert_array_equal(images, data.images)
    np.testing.assert_array_equal(labels, data.labels)


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_a_placed_batch_is_padded_to_the_devices(rng, devices):
    mesh = make_mesh("auto", {"data": devices})
    size = digits.padded(128, mesh)
    assert size % devices == 0
    assert 128 <= size < 128 + devices
    rows = int(rng.integers(0, 128))
    batch = digits.Digits(rng.normal(size=(rows, 3)), rng.integers(1, 9, rows))
    placed = digits.place(batch, mesh)
    assert placed.images.shape == (size, 3)
    assert len(placed.images.addressable_shards) == devices
    np.testing.assert_array_equal(placed.mask, np.arange(size) < rows)
    np.testing.assert_array_equal(np.asarray(placed.labels)[:rows], batch.labels)


def test_shuffled_differs_by_epoch_and_repeats():
    train, _ = digits.load()
    orders = [digits.shuffled(train, epoch).labels for epoch in (1, 2, 1)]
    np.testing.assert_array_equal(orders[0], orders[2])
    assert (orders[0] != orders[1]).any()
    assert sorted(orders[0]) == sorted(train.labels)


def test_summaries_of_unequal_parts_add_up(rng):
    logits = rng.normal(0, 4, (60, 10)).astype(np.float32)
    labels = rng.integers(0, 10, 60).astype(np.int32)
    mask = rng.random(60) < 0.6
    mask[40:] = False  # the last part has no example at all
    logits[~mask] = np.nan
    parts = [
        jax.jit(digits.summary)(x, digits.Batch(None, y, m))
        for x, y, m in zip(*(np.split(a, [3, 40]) for a in (logits, labels, mask)), strict=True)
    ]
    expected = reference(logits[mask], labels[mask])
    assert digits.total(parts) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_metrics_of_a_step_are_those_of_its_examples_and_need_no_collective(rng):
    mesh = make_mesh("auto", {"data": 2})
    metrics = digits.make_metrics(mesh)
    model, optimizer = digits.make_model(mesh)
    predictions, seen = [], []
    for rows in (128, 5):
        images = rng.random((rows, 64), np.float32)
        labels = rng.integers(0, 10, rows, np.int32)
        batch = digits.place(digits.Digits(images, labels), mesh)
        out = digits.train_step(model, optimizer, metrics, batch)
        logits = np.asarray(jax.block_until_ready(out)["logits"])
        predictions.append(logits[:rows])
        seen.append(labels)
    labels = np.concatenate(seen)
    expected = reference(np.concatenate(predictions), labels)
    assert metrics.metric.results() == pytest.approx(expected, rel=1e-6)
    update = jax.jit(lambda metric, **outputs: metric.update(**outputs))
    outputs = {
        "present": batch.mask,
        "weights": batch.mask,
        "target": batch.labels,
        "preds": logits,
    }
    outputs |= {"losses": jnp.ones(128), "confidence": jnp.ones(128)}
    placed = place(outputs, mesh, P("data"))
    text = update.lower(metrics.metric, **placed).compile().as_text()
    assert not re.search("all-(reduce|gather|to-all)|collective-permute", text)
