"""Integers that int32 does not hold: they are right or counted as invalid, and never wrap."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.numerics.limbs import equal_integers
from tests.helpers import update, x64

WRAPS = 2**32  # as int32 it is 0


@pytest.mark.parametrize(
    ("dtypes", "wide"),
    [(("uint32", "uint32"), False), (("int32", "uint32"), False)]
    + [((a, b), True) for a, b in (("int64", "int64"), ("uint64", "int32"), ("uint8", "int64"))],
)
def test_pass_at_k(dtypes: tuple[str, str], wide: bool, rng: np.random.Generator) -> None:
    most = 2**40 if dtypes[1] == "int64" else 3 * 10**9 if dtypes[1] == "uint32" else 2**31 - 1
    n = rng.integers(most // 2, most, 5)
    c = np.minimum(rng.integers(1, most // 2, 5), min(np.iinfo(dtypes[0]).max, most))
    with x64(wide):
        got = update(metrics.PassAtK(3), c.astype(dtypes[0]), n.astype(dtypes[1]))
        assert got.invalid_count() == 0
        want = np.mean([
            1 - math.comb(int(b - a), 3) / math.comb(int(b), 3) for a, b in zip(c, n, strict=True)
        ])  # fmt: skip
        np.testing.assert_allclose(got.compute(), want, rtol=1e-5)


def test_numbers_of_samples_that_would_wrap_to_valid_ones_are_invalid() -> None:
    with x64():
        c, n = np.int64([WRAPS + 1, 1, -WRAPS]), np.int64([4, WRAPS * 3 - 5, 4])
        assert update(metrics.PassAtK(2), c, n).invalid_count() == 2
    # Narrow dtypes do not hold k.
    got = update(metrics.PassAtK(200), jnp.int8([1, -1]), jnp.int8([100, 100]))
    assert got.invalid_count() == 2
    # A negative number, and one that as int32 would be negative.
    c, n = np.uint32([3 * 10**9]), np.int32([4])
    assert update(metrics.PassAtK(2), c, n).invalid_count() == 1


def test_edit_distance() -> None:
    with x64():
        ids = np.int64([[1, 2, 3], [1, 2, 3]])
        far = ids + np.int64([[0, WRAPS, 0], [0, 0, 0]])
        for preds, target in ((far, ids), (ids.astype(np.int32), far), (far, ids.astype(np.int8))):
            assert update(metrics.EditDistance(), preds, target).compute() == 0.5
        lengths = np.int64([WRAPS + 1, 2])
        seen = update(metrics.EditDistance(), ids, ids, pred_lengths=lengths)
        assert seen.invalid_count() == 1
        assert seen.statistic.mean == 1  # of the pair that can be used
    large = np.uint32([[3 * 10**9, 1]])
    wrapped = large.view(np.int32)
    assert update(metrics.EditDistance(), large, wrapped).compute() == 1
    lengths = np.uint32([3 * 10**9])
    seen = update(metrics.EditDistance(), large, large, target_lengths=lengths)
    assert seen.invalid_count() == 1
    assert update(metrics.EditDistance(), large, large.astype(np.uint32)).compute() == 0


def test_token_ids_of_two_dtypes() -> None:
    with x64():
        preds, target = np.int32([[1, 2, 3]]), np.int64([[1, 2 + WRAPS, 3]])
        for pair in ((preds, target), (target, preds)):
            np.testing.assert_allclose(update(metrics.TokenAccuracy(), *pair).compute(), 2 / 3)
            assert update(metrics.SequenceAccuracy(), *pair).compute() == 0
    narrow, wide = np.uint8([[1, 2, 3]]), np.int32([[1, 258, 3]])
    assert update(metrics.SequenceAccuracy(), narrow, wide).compute() == 0


def test_integers_of_any_dtypes_are_compared_by_value(rng: np.random.Generator) -> None:
    values = [-(2**63), -(2**31), -129, -1, 0, 1, 127, 128, 255, 256, 2**31 - 1, 2**31]
    values += [2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    dtypes = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]
    held = {a: [v for v in values if np.iinfo(a).min <= v <= np.iinfo(a).max] for a in dtypes}

    @jax.jit
    def compared(arrays: dict[str, jax.Array]) -> dict[tuple[str, str], jax.Array]:
        return {
            (a, b): equal_integers(arrays[a][:, None], arrays[b][None, :])
            for a in dtypes
            for b in dtypes
        }

    with x64():
        found = compared({a: np.asarray(x, a) for a, x in held.items()})
    assert len(found) == len(dtypes) ** 2
    for (a, b), got in found.items():
        np.testing.assert_array_equal(got, [[v == w for w in held[b]] for v in held[a]])


def labelled() -> dict[str, tuple[datarax.Metric, dict[str, Any], str]]:
    """Metrics of labels, what they take, and the argument that gets a label out of range."""
    labels, size = np.arange(4, dtype=np.int64) % 3, {"num_classes": 3}
    pair, scores = {"preds": labels, "target": labels}, np.eye(3, dtype=np.float32)[labels]
    boxes = np.float32([[[0, 0, 1, 1]]] * 4)
    found = {"boxes": boxes, "scores": boxes[..., 2], "labels": labels[:, None]}
    truth = {"target_boxes": boxes, "target_labels": labels[:, None]}
    segments = np.stack([labels, labels], -1).reshape(4, 1, 1, 2)
    points = {"features": np.float32([[0.0], [1.0], [2.0], [9.0]]), "labels": labels}
    groups = {"preds": scores[:, 0], "target": labels % 2, "groups": labels}
    return {
        "accuracy": (metrics.Accuracy(**size), pair, "target"),
        "predicted": (metrics.Accuracy(**size), pair, "preds"),
        "scores": (metrics.Accuracy(**size), {"preds": scores, "target": labels}, "target"),
        "confusion": (metrics.ConfusionMatrix(**size), pair, "preds"),
        "log loss": (metrics.LogLoss(**size), {"preds": scores, "target": labels}, "target"),
        "d2": (metrics.D2Brier(**size), {"preds": scores, "target": labels}, "target"),
        "calibration": (
            metrics.CalibrationError(**size),
            {"preds": scores, "target": labels},
            "target",
        ),
        "auroc": (metrics.AUROC(**size), {"preds": scores, "target": labels}, "target"),
        "perplexity": (metrics.Perplexity(), {"preds": scores, "target": labels}, "target"),
        "tokens": (metrics.TokenAccuracy(), {"preds": scores, "target": labels}, "target"),
        "rand": (metrics.AdjustedRand(num_classes=3, num_clusters=3), pair, "preds"),
        "clusters": (metrics.DaviesBouldin(num_clusters=3, num_features=1), points, "labels"),
        "detections": (metrics.MeanAveragePrecision(num_classes=3), found | truth, "labels"),
        "truth": (metrics.MeanAveragePrecision(num_classes=3), found | truth, "target_labels"),
        "panoptic": (
            metrics.PanopticQuality(num_classes=3, things=(0, 1), max_segments=3),
            {"preds": segments, "target": segments},
            "preds",
        ),
        "experts": (metrics.ExpertLoad(num_experts=3), {"experts": labels}, "experts"),
        "fairness": (metrics.GroupRates(num_groups=3), groups, "groups"),
        "items": (
            metrics.CatalogCoverage(num_items=3, k=1),
            {"preds": scores, "items": np.tile(labels[:, None], 3)},
            "items",
        ),
    }


with x64():
    LABELLED = labelled()


@pytest.mark.parametrize("name", LABELLED)
def test_labels_that_would_wrap_are_out_of_range(name: str) -> None:
    metric, given, wrong = LABELLED[name]
    spoilt = given[wrong].copy()
    spoilt[0] += WRAPS  # as int32, what it was
    with x64():
        assert update(metric.reset(), **given).invalid_count() == 0
        assert update(metric.reset(), **(given | {wrong: spoilt})).invalid_count() == 1


def test_slices_and_queries() -> None:
    with x64():
        ids = np.int64([0, 1, WRAPS, -WRAPS + 1])
        sliced = datarax.Sliced(metrics.Mean(), 2).update(np.float32([1, 2, 3, 4]), slices=ids)
        np.testing.assert_array_equal(sliced.compute()["slices"], [1, 2])
        scores, target = np.float32([2, 1, 2, 1]), np.int32([1, 0, 0, 1])
        query = np.int64([7, 7, 7 + WRAPS, 7 + WRAPS])
        assert metrics.MRR().update(scores, target, query=query).compute() == 0.75


@pytest.mark.parametrize(("dtype", "step"), [("uint32", 3 * 10**9), ("int64", WRAPS + 1)])
def test_a_step_beyond_int32_is_newer_than_all_others(dtype: str, step: int) -> None:
    with x64(dtype == "int64"):
        tree = {"w": jnp.float32([3.0, 4.0])}
        metric = metrics.TreeHealth(like=tree).update(tree, step=jnp.int32(2**31 - 2))
        newer = jax.tree.map(lambda x: 2 * x, tree)
        metric = metric.update(newer, step=jnp.asarray(step, dtype))
        assert metric.results()["param_norm"] == 10


@pytest.mark.parametrize("least", [2**53 + 1, 2**62 + 1, 2**63 - 2, -(2**53) - 1, -(2**63) + 1])
def test_extremes_of_integers_beyond_float64(least: int) -> None:
    with x64():
        x = np.array([least + 1, least])
        for seen in (metrics.MinMax().update(x), update(metrics.MinMax(), x)):
            assert {name: int(value) for name, value in seen.results().items()} == {
                "min": least,
                "max": least + 1,
            }
        assert metrics.Max().update(x[:0]).results() != 0  # NaN
        assert metrics.Max().update(np.array([0.5, 2.0**60])).results() == 2.0**60
