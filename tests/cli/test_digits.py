"""The demo's data and metrics, on fresh data."""

import jax.numpy as jnp
import numpy as np
import pytest

from datarax.cli import _digits
from datarax.cli._check import Predictions, reference
from datarax.distributed import reduce_custom


def test_batches_keep_every_example(rng):
    rows, size = int(rng.integers(1, 60)), int(rng.integers(1, 20))
    data = _digits.Batch(rng.normal(size=(rows, 3)), rng.integers(1, 9, rows), np.ones(rows, bool))
    batches = list(_digits.batches(data, size))
    assert len(batches) == _digits.num_batches(data, size)
    assert all(batch.images.shape == (size, 3) for batch in batches)
    images, labels, mask = map(np.concatenate, zip(*batches, strict=True))
    np.testing.assert_array_equal(images[mask], data.images)
    np.testing.assert_array_equal(labels[mask], data.labels)
    assert mask[:rows].all()
    assert not mask[rows:].any()


@pytest.mark.parametrize("devices", [1, 3, 8, 64])
def test_batch_size_divides(devices):
    size = _digits.batch_size(devices)
    assert size % devices == 0
    assert 128 <= size < 128 + devices


def test_shuffled_differs_by_epoch_and_repeats():
    train, _ = _digits.load()
    orders = [_digits.shuffled(train, epoch).labels for epoch in (1, 2, 1)]
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
        _digits.summary(jnp.asarray(x), _digits.Batch(None, jnp.asarray(y), jnp.asarray(m)))
        for x, y, m in zip(*(np.split(a, [3, 40]) for a in (logits, labels, mask)), strict=True)
    ]
    stacked = {name: jnp.stack([part[name] for part in parts]) for name in parts[0]}
    total = reduce_custom(stacked, _digits.REDUCTIONS, weights=_digits.by_examples(stacked))
    expected = reference(Predictions(logits, labels, mask))
    assert {name: value.item() for name, value in total.items()} == pytest.approx(
        expected, rel=1e-6, abs=1e-6
    )
