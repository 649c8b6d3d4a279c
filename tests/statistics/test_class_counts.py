"""`ClassCounts`: counts by class, against plain loops over the examples."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import MetricInputError, MetricTypeError
from datarax.statistics import ClassCounts
from tests.helpers import compiled_update, update

each_way = pytest.mark.parametrize("update", [update, compiled_update], ids=["host", "jit"])


def read(counts):
    """True positives, predicted positives, support, the total, and the examples not used.

    The counts must be whole numbers. A multiclass task has one total for all classes.
    """
    tp, fp, fn, tn = np.asarray(counts.cells.exact)
    total = tp + fp + fn + tn
    if counts.num_labels is None:
        assert counts.top_k > 1 or (total == total[0]).all()
        total = total[0]
    return [x.tolist() for x in (tp, tp + fp, tp + fn, total)] + [int(counts.invalid.value)]


def by_hand(scores, target, weights, size, top_k=1):
    """From the definition, one example at a time."""
    right, predicted, actual, total = np.zeros(size), np.zeros(size), np.zeros(size), 0.0
    for score, label, weight in zip(scores, target, weights, strict=True):
        top = sorted(range(size), key=lambda c: -score[c])[:top_k]
        for c in top:
            predicted[c] += weight
        right[label] += weight * (label in top)
        actual[label] += weight
        total += weight
    return [right.tolist(), predicted.tolist(), actual.tolist(), total, 0]


@pytest.mark.parametrize("size", [3, 64, 65])
@pytest.mark.parametrize("weighting", ["none", "mask", "integers"])
@each_way
def test_multiclass(rng, update, size, weighting):
    scores = rng.standard_normal((120, size)).astype(np.float32)
    target = rng.integers(0, size, 120)
    w = {"none": None, "mask": rng.random(120) < 0.5, "integers": rng.integers(0, 4, 120)}[
        weighting
    ]
    want = by_hand(scores, target, np.ones(120) if w is None else np.float64(w), size)
    counts = update(
        update(ClassCounts(num_classes=size), scores, target, weights=w), scores, target, weights=w
    )
    want = [(2 * np.asarray(x)).tolist() for x in want]
    assert read(counts) == want
    # Labels instead of scores, and more axes than one.
    labels = scores.argmax(-1)
    if w is not None:
        w = w.reshape(10, 12)
    counts = update(
        ClassCounts(num_classes=size), labels.reshape(10, 12), target.reshape(10, 12), weights=w
    )
    assert read(counts.merge(counts)) == want


@pytest.mark.parametrize("top_k", [1, 2, 4, 5])
def test_top_k(rng, top_k):
    scores = rng.standard_normal((80, 5)).astype(np.float32)
    target = rng.integers(0, 5, 80)
    counts = update(ClassCounts(num_classes=5, top_k=top_k), scores, target)
    assert read(counts) == by_hand(scores, target, np.ones(80), 5, top_k)


@pytest.mark.parametrize("top_k", [1, 2])
def test_zeros_of_both_signs_are_one_score(top_k):
    scores, target = np.float32([[-0.0, 0.0, 5.0 * (top_k - 1)]]), np.array([0])
    counts = update(ClassCounts(num_classes=3, top_k=top_k), scores, target)
    assert read(counts)[0] == [1, 0, 0]


def test_binary_and_multilabel(rng):
    scores = rng.random((90, 3)).astype(np.float32)
    target = rng.integers(0, 2, (90, 3))
    w = rng.integers(0, 3, 90)
    for threshold in (0.5, 0.3):
        chosen = scores > np.float32(threshold)
        want = [
            (w[:, None] * (chosen & (target == 1))).sum(0).tolist(),
            (w[:, None] * chosen).sum(0).tolist(),
            (w[:, None] * target).sum(0).tolist(),
            [w.sum()] * 3,
            0,
        ]
        counts = update(ClassCounts(num_labels=3, threshold=threshold), scores, target, weights=w)
        assert read(counts) == want
        each = np.broadcast_to(w[:, None], (90, 3))
        counts = update(
            ClassCounts(num_labels=3, threshold=threshold), scores, target, weights=each
        )
        assert read(counts) == want
        binary = update(ClassCounts(threshold=threshold), scores[:, 0], target[:, 0], weights=w)
        assert read(binary) == [want[0][:1], want[1][:1], want[2][:1], w.sum(), 0]


PAIRS = ["int8 int8", "int8 int32", "uint8 int8", "int16 uint8", "int32 bool", "uint32 int32"]


@pytest.mark.parametrize("dtypes", [*PAIRS, "int32 uint8", "int32 int8"])
def test_labels_of_every_dtype_and_out_of_range(rng, dtypes):
    # Other libraries accept the labels 0, 1, 7 and -100 for 3 classes: here such are excluded.
    def labels(dtype):
        if dtype == "bool":
            return rng.integers(0, 2, 200).astype(bool)
        info = np.iinfo(dtype)
        wild = rng.integers(info.min, info.max, 200, dtype, endpoint=True)
        return np.where(rng.random(200) < 0.5, rng.integers(0, 3, 200), wild).astype(dtype)

    target, preds = (labels(dtype) for dtype in dtypes.split())
    target[:4] = [0, 1, 7, np.asarray(-100).astype(target.dtype)]
    for size in (3, 300):
        valid = [
            0 <= int(t) < size and 0 <= int(p) < size for t, p in zip(target, preds, strict=True)
        ]
        counts = update(ClassCounts(num_classes=size), preds, target)
        good = np.asarray(valid)
        hits = target.astype(int)[good & (target.astype(int) == preds.astype(int))]
        assert read(counts) == [
            np.bincount(hits, minlength=size).tolist(),
            np.bincount(preds.astype(int)[good], minlength=size).tolist(),
            np.bincount(target.astype(int)[good], minlength=size).tolist(),
            good.sum(),
            (~good).sum(),
        ]


IGNORED = [(-100, "int8"), (255, "int8"), (-100, "uint8"), (156, "uint8"), (1, "int32")]


@pytest.mark.parametrize(("index", "dtype"), [*IGNORED, (-100, "bool"), (1, "bool")])
def test_ignored_targets(rng, dtype, index):
    # 156 is what -100 would be in uint8, and -1 what 255 would be in int8.
    info = np.iinfo("uint8" if dtype == "bool" else dtype)
    pool = (
        [0, 1]
        if dtype == "bool"
        else [v for v in (-100, -1, 0, 1, 2, 156, 255) if info.min <= v <= info.max]
    )
    target = rng.choice(pool, 100)
    scores = rng.standard_normal((100, 3)).astype(np.float32)
    scores[rng.random(100) < 0.1] = np.nan
    finite = np.isfinite(scores[:, 0])
    kept = (target != index) & (target >= 0) & (target < 3) & finite
    counts = update(ClassCounts(num_classes=3, ignore_index=index), scores, target.astype(dtype))
    _, predicted, actual, total, invalid = read(counts)
    assert actual == np.bincount(target[kept], minlength=3).tolist()
    assert (sum(predicted), total) == (kept.sum(), kept.sum())
    # Ignored is not invalid, whatever its scores.
    assert invalid == ((target != index) & ~kept).sum()
    binary = ClassCounts(ignore_index=index)
    counts = update(binary, scores[:, 0], target.astype(dtype))
    kept = (target != index) & ((target == 0) | (target == 1)) & finite
    assert read(counts)[3] == kept.sum()
    assert read(counts)[4] == ((target != index) & ~kept).sum()


def test_scores_that_cannot_be_used(rng):
    scores = np.float32([[0.1, 0.9], [np.nan, 1.0], [0.2, np.inf], [np.inf, 0.0], [0.7, 0.3]])
    target = np.asarray([1, 1, 1, 0, 1])
    assert read(update(ClassCounts(num_classes=2), scores, target)) == [
        [0, 1],
        [1, 1],
        [0, 2],
        2,
        3,
    ]
    w = np.float32([1, 0, 0, 1, -1])
    assert read(update(ClassCounts(num_classes=2), scores, target, weights=w)) == [
        [0, 1],
        [0, 1],
        [0, 1],
        1,
        2,
    ]
    # Multilabel: label by label.
    counts = update(ClassCounts(num_labels=2), scores, np.asarray([[1, 1]] * 5))
    assert read(counts) == [[1, 2], [1, 2], [3, 4], [3, 4], 3]
    counts = update(ClassCounts(), scores[:, 0], np.asarray([1, 1, 2, 0, -1]))
    assert read(counts) == [[0], [0], [1], 1, 4]


def test_counts_do_not_stall():
    # In one batch, and one more, with weights that are floats: a float32 scatter stops at 2**24.
    n, first = 2**16 + 6, 2**24
    labels = np.full(n, 7, np.int8)
    for size, dtype in ((8, jnp.bfloat16), (100, np.float32)):
        weights = np.ones(n, dtype)
        weights[0] = first
        counts = compiled_update(ClassCounts(num_classes=size), labels, labels, weights=weights)
        counts = counts.merge(update(counts.reset(), labels[:1], labels[:1]))
        once = [0] * 7 + [first + n] + [0] * (size - 8)
        assert read(counts) == [once, once, once, first + n, 0]


WEIGHTS = {
    "tenths": lambda rng, n: rng.integers(1, 30, n) / 10,
    "thirds": lambda rng, n: rng.integers(1, 30, n) / 3,
    "uniform": lambda rng, n: rng.random(n),
    "of all sizes": lambda rng, n: 10 ** rng.uniform(-30, 30, n),
    "some zero": lambda rng, n: rng.random(n) * (rng.random(n) < 0.5),
}


def exact_cells(chosen, actual, weights):
    """TP, FP, FN and TN by class, (4, C), in rational numbers, from booleans (N, C)."""
    w = [Fraction(float(x)) for x in np.asarray(weights, np.float32)]
    cells = (chosen & actual, chosen & ~actual, ~chosen & actual, ~chosen & ~actual)
    return [
        [sum((w[i] for i in np.flatnonzero(cell[:, c])), Fraction(0)) for c in range(cell.shape[1])]
        for cell in cells
    ]


def assert_exact(counts, want):
    """Each count is within a few roundings of a double-float of the exact one; zero is zero."""
    high, low = np.float64(counts.cells.double.high), np.float64(counts.cells.double.low)
    for got_row, want_row in zip(high + low, want, strict=True):
        for got, each in zip(got_row.tolist(), want_row, strict=True):
            assert abs(Fraction(got) - each) <= each * Fraction(1, 2**42)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("size", [2, 10, 70])
@each_way
def test_float_weights(rng, update, size, kind):
    # 70: where counting labels is a scatter. Most examples are of one class, so that the true
    # negatives of that class are few beside the total.
    n = 200
    target, labels = (np.where(rng.random(n) < 0.9, 1, rng.integers(0, size, n)) for _ in range(2))
    w = WEIGHTS[kind](rng, n).astype(np.float32)
    counts = update(ClassCounts(num_classes=size), labels, target, weights=w)
    counts = update(counts, labels[::-1], target[::-1], weights=w)
    labels, target = (np.concatenate([x, x[::-1]]) for x in (labels, target))
    classes, w = np.arange(size), np.concatenate([w, w])
    assert_exact(counts, exact_cells(labels[:, None] == classes, target[:, None] == classes, w))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_float_weights_of_binary_and_multilabel(rng, kind):
    scores, target = rng.random((200, 2)).astype(np.float32), rng.random((200, 2)) < [0.9, 0]
    w = WEIGHTS[kind](rng, 200).astype(np.float32)
    cells = exact_cells(scores > 0.5, target, w)
    assert_exact(update(ClassCounts(num_labels=2), scores, target, weights=w), cells)
    one = update(ClassCounts(), scores[:, 0], target[:, 0], weights=w)
    assert_exact(one, [row[:1] for row in cells])


def test_float_weights_of_top_k(rng):
    scores, target = rng.random((200, 5)).astype(np.float32), rng.integers(0, 5, 200)
    w = WEIGHTS["thirds"](rng, 200)
    chosen = np.argsort(-scores, 1)[:, :2, None] == np.arange(5)
    cells = exact_cells(chosen.any(1), target[:, None] == np.arange(5), w)
    counts = update(ClassCounts(num_classes=5, top_k=2), scores, target, weights=np.float32(w))
    assert_exact(counts, cells)


def test_shapes_that_do_not_go_together():
    # Another library gives 102.19 for (1000,) predictions against (1000, 1) labels.
    cases = [
        (ClassCounts(num_classes=3), (1000,), (1000, 1), "int32"),
        (ClassCounts(num_classes=3), (3,), (4,), "int32"),
        (ClassCounts(num_classes=3), (10, 4), (10,), "float32"),
        (ClassCounts(num_classes=3), (10, 3), (11,), "float32"),
        (ClassCounts(), (1000,), (1000, 1), "float32"),
        (ClassCounts(), (3,), (4,), "float32"),
        (ClassCounts(num_labels=3), (10, 3), (10,), "float32"),
        (ClassCounts(num_labels=3), (10, 1), (10, 3), "float32"),
    ]
    for counts, preds, target, dtype in cases:
        with pytest.raises(MetricInputError) as error:
            counts.update(jnp.zeros(preds, dtype), jnp.zeros(target, jnp.int32))
        assert str(preds) in str(error.value)
        assert str(target) in str(error.value)
    with pytest.raises(MetricInputError, match=r"\(10, 4\) for num_labels=3"):
        ClassCounts(num_labels=3).update(jnp.zeros((10, 4)), jnp.zeros((10, 4)))
    for counts in (ClassCounts(num_classes=3), ClassCounts(), ClassCounts(num_labels=1)):
        shape = (10,) if counts.num_labels is None else (10, 1)
        with pytest.raises(MetricInputError, match=r"weights of shape \(9,\)"):
            counts.update(jnp.zeros(shape, int), jnp.zeros(shape, int), weights=jnp.ones((9,)))


def test_types_that_do_not_fit():
    with pytest.raises(MetricTypeError, match="target has dtype float32"):
        ClassCounts(num_classes=3).update(jnp.zeros((4, 3)), jnp.zeros((4,)))
    with pytest.raises(MetricTypeError, match="or integer labels"):
        ClassCounts(num_classes=3).update(jnp.zeros((4,)), jnp.zeros((4,), int))
    with pytest.raises(MetricTypeError, match="preds"):
        ClassCounts().update(["zz"], [1])
    counts = ClassCounts(num_classes=3)
    with pytest.raises(MetricInputError, match="target: an integer does not fit"):
        jax.eval_shape(lambda: counts.update(np.asarray([1]), np.asarray([2**32 + 1])))
    assert counts.update(np.asarray([1]), np.asarray([2**32 + 1])).invalid.value == 1
    with pytest.raises(MetricInputError, match="needs scores"):
        ClassCounts(num_classes=3, top_k=2).update(jnp.zeros((4,), int), jnp.zeros((4,), int))


def test_configurations_that_make_no_sense():
    wrong = [
        ({"num_classes": 3, "num_labels": 3}, "exclude each other"),
        ({"num_classes": 1}, "num_classes=1"),
        ({"num_classes": 3.0}, "num_classes=3.0"),
        ({"num_labels": 0}, "num_labels=0"),
        ({"num_classes": 3, "top_k": 4}, "at most num_classes=3"),
        ({"num_classes": 3, "top_k": 0}, "top_k=0"),
        ({"top_k": 2}, "give num_classes="),
        ({"num_labels": 3, "top_k": 2}, "give num_classes="),
        ({"threshold": float("nan")}, "threshold=nan; expected a number"),
        ({"threshold": "high"}, "threshold='high'; expected a number"),
    ]
    for config, message in wrong:
        with pytest.raises(MetricInputError, match=message):
            ClassCounts(**config)


def test_ignored_labels_are_integers():
    preds, target = np.float32([0.9, 0.1]), np.array([1, 0])
    for index in ("pad", 0.5):
        with pytest.raises(MetricInputError, match=r"ignore_index=.*expected an integer or None"):
            ClassCounts(ignore_index=index).update(preds, target)
    # One that no target can hold ignores none.
    assert read(ClassCounts(ignore_index=2**70).update(preds, target)) == [[1], [1], [1], 2, 0]
