"""Edit distances of ids against rapidfuzz, on lengths and dtypes that the registry lacks."""

import jax.numpy as jnp
import numpy as np
import pytest
from rapidfuzz.distance import Levenshtein

import datarax
from datarax.metrics import EditDistance
from datarax.metrics.language.edit_distance import edit_distance
from datarax.testing import assert_within_ulps
from tests.helpers import update_all


def test_each_distance_is_exact(rng):
    pairs, long, short = 200, 24, 9
    a = rng.integers(0, 4, (pairs, short)).astype(np.uint8)
    b = rng.integers(0, 4, (pairs, long)).astype(np.uint8)
    lengths = [rng.integers(0, n + 1, pairs).astype(np.int32) for n in (short, long)]
    used = [(list(x[:m]), list(y[:n])) for x, y, m, n in zip(a, b, *lengths, strict=True)]
    want = np.array([Levenshtein.distance(x, y) for x, y in used])
    np.testing.assert_array_equal(edit_distance(a, b, *map(jnp.asarray, lengths)), want)
    # Longer predictions or longer targets, and what is past a length does not matter.
    a[np.arange(short) >= lengths[0][:, None]] = 255
    plain, normalized = EditDistance(), EditDistance(normalize=True)
    shares = np.array([Levenshtein.normalized_distance(x, y) for x, y in used])
    for preds, target, m, n in ((a, b, *lengths), (b, a, *lengths[::-1])):
        got = update_all([plain, normalized], preds, target, pred_lengths=m, target_lengths=n)
        assert_within_ulps(got[0].compute(), want.mean(), 1)
        assert_within_ulps(got[1].compute(), shares.mean(), 2)


def test_sequences_without_lengths_count_in_full():
    metric = EditDistance().update(jnp.array([[1, 2, 3]]), jnp.array([[2, 3, 4, 5]]))
    assert metric.compute() == 3
    assert (
        EditDistance().update(jnp.zeros((2, 0), jnp.int32), jnp.ones((2, 3), jnp.int32)).compute()
        == 3
    )


def test_shapes_and_dtypes_are_checked():
    ids = jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(datarax.MetricInputError, match=r"\(2, 3\) and target of shape \(3, 3\)"):
        EditDistance().update(ids, jnp.zeros((3, 3), jnp.int32))
    with pytest.raises(datarax.MetricInputError, match=r"pred_lengths of shape \(3,\); expected"):
        EditDistance().update(ids, ids, pred_lengths=jnp.ones(3, jnp.int32))
    with pytest.raises(datarax.MetricTypeError, match="target_lengths has dtype float32"):
        EditDistance().update(ids, ids, target_lengths=jnp.ones(2))
    with pytest.raises(datarax.MetricTypeError, match="preds has dtype float32"):
        EditDistance().update(jnp.zeros((2, 3)), ids)
