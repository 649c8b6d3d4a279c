"""AUROC, average precision and similar metrics: bounds that hold, exact values, scikit-learn's."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import sklearn.metrics

import datarax
from datarax import MetricInputError, ScoresWarning, metrics
from datarax.metrics import AUROC, AveragePrecision, Gini, LogAUC, Max, Median
from datarax.testing import check_metric
from tests.helpers import update, x64
from tests.registry.curves import log_auc_of

AREAS = {
    AUROC: sklearn.metrics.roc_auc_score,
    AveragePrecision: sklearn.metrics.average_precision_score,
}
each_area = pytest.mark.parametrize("cls", AREAS, ids=lambda cls: cls.__name__)


def read(metric, *others):
    """Other metrics over the statistic of one, which is then updated and compiled but once."""
    return [other.replace(statistic=metric.statistic) for other in others]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# Of normal scores with a mean by class: whatever a model may put out.
KINDS = {
    "logits": lambda z, rng: z,
    "probabilities": lambda z, rng: sigmoid(z),
    "saturated": lambda z, rng: sigmoid(z + 12),
    "saturated, at the other end": lambda z, rng: sigmoid(z - 60),
    "below 0.002": lambda z, rng: 0.002 * sigmoid(z),
    "offset by -10": lambda z, rng: z - 10,
    "offset by -100": lambda z, rng: z - 100,
    "huge": lambda z, rng: z * 1e36,
    "tiny": lambda z, rng: z * 1e-30,
    "around 1": lambda z, rng: 1 + z * rng.choice([1e-2, 1e-4, 1e-6]),
    "rounded": lambda z, rng: np.round(z),
    "two values": lambda z, rng: (z > 0).astype(float),
    "zeros of both signs": lambda z, rng: np.where(z > 2, z, np.copysign(0.0, z)),
    "one bin": lambda z, rng: 1.5 + rng.integers(0, 8, z.shape) * 2.0**-23,
    "one bin, perfect": lambda z, rng: 1.5 + (z > 1) * 2.0**-23,
    "around 1/2 and 1": lambda z, rng: (1 + (z > 1)) / 2 + rng.integers(-2, 3, z.shape) * 2.0**-24,
    "constant": lambda z, rng: np.full(z.shape, -3.0),
    "around 0": lambda z, rng: z * rng.choice([1e-28, 1e-10, 1.0, 1e10], z.shape),
}


def scores_of(rng, kind, size):
    """Scores as float32, and 0/1 targets of which each occurs."""
    target = (rng.random(size) < rng.uniform(0.1, 0.9)).astype(np.int32)
    target[..., :2] = 0, 1
    z = rng.normal(size=size) * 3 + 2 * target
    return KINDS[kind](z, rng).astype(np.float32), target


def exact_areas(preds, target, w):
    """AUROC and average precision of each row, in float64, from the definitions."""
    preds, w = preds.astype(np.float64), w.astype(np.float64)
    pos, neg = np.where(target == 1, w, 0), np.where(target == 0, w, 0)
    above = preds[:, :, None] > preds[:, None, :]
    tied = preds[:, :, None] == preds[:, None, :]
    won = np.einsum("dij,di,dj->d", above + 0.5 * tied, pos, neg)
    true, found = (np.einsum("dji,dj->di", above | tied, x) for x in (pos, w))
    precision = (pos * true / np.where(found > 0, found, 1)).sum(1) / pos.sum(1)
    return won / (pos.sum(1) * neg.sum(1)), precision


SETS, SIZE = 2_000, 20


def test_bounds_hold_the_exact_value_of_two_thousand_data_sets(rng):
    kinds = rng.permutation(np.resize(list(KINDS), SETS))
    preds, target = (
        np.stack(x) for x in zip(*(scores_of(rng, k, SIZE) for k in kinds), strict=True)
    )
    w = np.where(rng.random((SETS, 1)) < 0.5, 1, rng.uniform(0.01, 3, (SETS, SIZE)))
    w = w.astype(np.float32)

    @jax.jit
    def bounds(args):
        metrics = (cls(bits=10).update(*args[:2], weights=args[2]) for cls in AREAS)
        return [(*metric.bounds(), metric.compute()) for metric in metrics]

    found = jax.lax.map(bounds, (preds, target, w), batch_size=100)
    truths = exact_areas(preds, target, w)
    # scikit-learn is slow, and agrees.
    for i in rng.choice(SETS, 100, replace=False):
        for score, truth in zip(AREAS.values(), truths, strict=True):
            assert abs(score(target[i], preds[i], sample_weight=w[i]) - truth[i]) < 1e-12
    # One rounding of a ratio of sums; then a dozen, of terms that are all positive.
    for (lower, upper, value), truth, slack in zip(found, truths, (2e-7, 1.5e-6), strict=True):
        wrong = ~((lower <= truth * (1 + slack)) & (truth * (1 - slack) <= upper))
        assert not wrong.any(), (kinds[wrong], lower[wrong], truth[wrong], upper[wrong])
        # Which two programs may round apart.
        assert ((lower * (1 - slack) <= value) & (value * (1 - slack) <= upper)).all()
        assert (lower == upper)[np.isin(kinds, ("two values", "constant"))].all()
        # They tell something: those of other kinds differ, though not by all that they could.
        assert 0 < np.mean(np.asarray(upper - lower)) < 0.5


@each_area
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_hold_at_the_default_size(rng, cls, kind):
    preds, target = scores_of(rng, kind, 1000)
    w = rng.uniform(0, 2, 1000).astype(np.float32)
    metric = update(cls(), preds, target, weights=w)
    lower, upper = metric.bounds()
    truth = AREAS[cls](target, preds, sample_weight=w)
    assert lower - 1e-6 <= truth <= upper + 1e-6
    assert lower - 1e-6 <= metric.compute() <= upper + 1e-6


@each_area
@pytest.mark.parametrize(
    "kind", ["two values", "rounded", "zeros of both signs", "constant", "bfloat16"]
)
def test_true_ties_leave_nothing_open(rng, cls, kind):
    preds, target = scores_of(rng, "logits" if kind == "bfloat16" else kind, 1000)
    if kind == "bfloat16":
        preds = np.asarray(jnp.asarray(preds, jnp.bfloat16))
    elif kind == "zeros of both signs":
        preds = np.minimum(preds, 0)
    metric = update(cls(), preds, target)
    lower, upper = metric.bounds()
    assert lower == metric.compute() == upper
    assert abs(float(lower) - AREAS[cls](target, preds.astype(float))) < 1e-6


@pytest.mark.parametrize("kind", ["logits", "probabilities", "saturated"])
def test_estimates_at_the_default_size(rng, kind):
    target = (rng.random(20_000) < 0.3).astype(np.int32)
    z = rng.normal(size=20_000) * 3 + 2 * target
    preds = {"logits": z, "probabilities": sigmoid(z), "saturated": sigmoid(z + 8)}[kind]
    preds = preds.astype(np.float32)
    for cls, score in AREAS.items():
        metric = update(cls(), preds, target)
        assert abs(float(metric.compute()) - score(target, preds)) < 5e-4
        lower, upper = metric.bounds()
        assert lower <= score(target, preds) <= upper
        if cls is AUROC:
            assert upper - lower < 5e-3


@pytest.mark.parametrize("config", [{"num_classes": 4}, {"num_labels": 4}], ids=str)
def test_multiclass_and_multilabel_agree_with_scikit_learn(rng, config):
    target = rng.integers(0, 4, 300)
    labels = (target[:, None] == np.arange(4)).astype(np.int32)
    if "num_labels" in config:
        target = labels = (rng.random((300, 4)) < (0.1, 0.3, 0.5, 0.9)).astype(np.int32)
        labels[:2] = [[0], [1]]
    logits = rng.normal(size=(300, 4)) + 2 * labels
    preds = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    metrics = {
        (cls, average): cls(**config, average=average)
        for cls, average in (
            (AUROC, "macro"),
            (AUROC, "weighted"),
            (AUROC, None),
            (AveragePrecision, "macro"),
        )
    }
    buffer = AUROC(**config, exact=True, capacity=300)
    half = [update(buffer, preds[i::2], target[i::2]) for i in range(2)]
    exact = half[0].merge(half[1])
    binned = update(metrics[AUROC, None], preds, target)
    for (cls, average), metric in metrics.items():
        want = AREAS[cls](labels, preds, average=average)
        np.testing.assert_allclose(read(exact, metric)[0].compute(), want, rtol=1e-6)
        if average is None:
            lower, upper = read(binned, metric)[0].bounds()
            assert ((lower <= want + 1e-6) & (want - 1e-6 <= upper)).all()
        elif cls is AUROC and "num_classes" in config:
            # By its own name for it; it wants a sum of 1, in float64.
            sums = preds.astype(float) / preds.astype(float).sum(1, keepdims=True)
            ovr = sklearn.metrics.roc_auc_score(target, sums, multi_class="ovr", average=average)
            np.testing.assert_allclose(want, ovr, atol=1e-4)


def test_partial_areas_agree_with_scikit_learn(rng):
    preds, target = scores_of(rng, "logits", 500)
    w = rng.uniform(0, 2, 500).astype(np.float32)
    for scores in (preds, np.round(preds)):
        exact = update(AUROC(exact=True, capacity=500), scores, target, weights=w)
        binned = update(AUROC(), scores, target, weights=w)
        for max_fpr in (0.05, 1.0):
            want = sklearn.metrics.roc_auc_score(target, scores, sample_weight=w, max_fpr=max_fpr)
            metric = AUROC(max_fpr=max_fpr)
            np.testing.assert_allclose(read(exact, metric)[0].compute(), want, rtol=1e-6)
            lower, upper = read(binned, metric)[0].bounds()
            assert lower - 1e-6 <= want <= upper + 1e-6


def scores_around(rng, centre, scale, dtype=np.float32):
    z = rng.normal(size=20_000)
    return (centre + scale * z).astype(dtype), (z + rng.normal(size=z.size) > 0).astype(np.int32)


@pytest.mark.parametrize("bits", [12, 16])
@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])
@pytest.mark.parametrize("centre", [-1, 0.5, 1, 2])
def test_scores_around_a_power_of_two_are_told_apart(rng, centre, scale, bits):
    preds, target = scores_around(rng, centre, scale)
    metric = AUROC(bits=bits)
    for rows in np.split(rng.permutation(preds.size), 4):
        metric = metric.update(preds[rows], target[rows])
    truth, (lower, upper) = sklearn.metrics.roc_auc_score(target, preds), metric.bounds()
    assert lower - 1e-6 <= truth <= upper + 1e-6
    assert upper - lower < 10 / 2**bits
    assert abs(metric.compute() - truth) < 1e-6 + 0.1 * (upper - lower)


def test_scores_around_1_are_told_apart_in_every_dtype(rng):
    preds, target = scores_around(rng, 1, 0.1, jnp.bfloat16)
    metric = update(AUROC(), preds, target)
    truth = sklearn.metrics.roc_auc_score(target, preds.astype(np.float32))
    np.testing.assert_allclose([metric.compute(), *metric.bounds()], truth, atol=1e-6)
    with x64():
        for scale in (1e-2, 1e-6, 1e-12):
            preds, target = scores_around(rng, 1, scale, np.float64)
            metric = update(AUROC(), preds, target)
            lower, upper = metric.bounds()
            truth = sklearn.metrics.roc_auc_score(target, preds)
            assert lower - 1e-9 <= truth <= upper + 1e-9
            assert upper - lower < 10 / 2**16


def test_the_area_over_logarithms():
    target = np.repeat([0, 1], 50)
    chance = update(LogAUC(fpr_range=(0.001, 1.0)), np.zeros(100, np.float32), target)
    # "a random selection has a logAUC of 14.462%", Mysinger and Shoichet 2010.
    np.testing.assert_allclose(chance.compute(), 0.14462, atol=5e-6)
    perfect = update(LogAUC(), target.astype(np.float32), target)
    np.testing.assert_allclose(perfect.compute(), 1, rtol=1e-6)


def test_the_area_over_logarithms_is_within_its_bounds(rng):
    preds, target = scores_of(rng, "offset by -100", 500)
    preds[0] = -1e6  # so that many scores share a bin
    metric = LogAUC(fpr_range=(0.01, 0.5))
    lower, upper = read(update(AUROC(), preds, target), metric)[0].bounds()
    truth = log_auc_of(np.ones(500), preds, target, low=0.01, high=0.5)
    assert lower < truth < upper
    exact = read(update(AUROC(exact=True, capacity=500), preds, target), metric)[0]
    np.testing.assert_allclose(exact.compute(), truth, rtol=2e-6)


def test_gini_is_twice_the_area_less_one(rng):
    preds, target = scores_of(rng, "logits", 300)
    area = update(AUROC(), preds, target)
    (gini,) = read(area, Gini())
    np.testing.assert_allclose(gini.compute(), 2 * area.compute() - 1, atol=2e-7)
    np.testing.assert_allclose(gini.bounds(), 2 * np.array(area.bounds()) - 1, atol=2e-7)
    # The other way round, but for the mirrored half of the bins.
    (other,) = read(update(AUROC(), np.round(-preds), target), Gini())
    (same,) = read(update(AUROC(), np.round(preds), target), Gini())
    assert other.compute() == -same.compute()


# Exact values, from a buffer.


@each_area
@pytest.mark.parametrize("kind", KINDS)
def test_exact_values(rng, cls, kind):
    preds, target = scores_of(rng, kind, 200)
    w = rng.choice([0, 0.5, 1, 7], 200).astype(np.float32)
    w[:2] = 1
    metric = cls(exact=True, capacity=256)
    for rows in np.split(np.arange(200), 4):
        metric = update(metric, preds[rows], target[rows], weights=w[rows])
    want = AREAS[cls](target, preds, sample_weight=w)
    np.testing.assert_allclose(metric.compute(), want, rtol=1e-6)
    assert metric.bounds() == (metric.compute(), metric.compute())
    assert metric.invalid_count() == 0


def test_exact_metrics_obey_the_laws(rng):
    batches = [
        {
            "preds": (rng.integers(0, 9, (8, 2)) / 8).astype(np.float32),
            "target": rng.integers(0, 2, (8, 2)),
        }
        for _ in range(3)
    ]
    config = {"num_labels": 2, "exact": True, "capacity": 512}
    members = {cls.__name__: cls(**config) for cls in AREAS}
    # The precision, its product, their sum, the quotient, and the mean over classes.
    members = datarax.Collection(members)
    check_metric(members, batches, ulps=14, compare_states=False, on_host=True)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_what_does_not_fit_the_buffer_is_reported():
    preds, target = np.float32([0.1, 0.2, np.nan, 0.4, 0.6, 0.5]), np.array([0, 1, 0, 0, 1, 1])
    metric = update(AUROC(exact=True, capacity=3, on_invalid="exclude"), preds, target)
    assert metric.invalid_count() == 3
    assert metric.compute() == 0.5  # of the first three that can be used
    # All that is certain of the others.
    assert metric.bounds() == (0, 1)
    assert update(Gini(exact=True, capacity=3, on_invalid="exclude"), preds, target).bounds() == (
        -1,
        1,
    )
    with pytest.warns(datarax.InvalidValuesWarning, match="3 values or examples"):
        metric.results()
    results = datarax.Collection({"auroc": metric}).results()
    assert results == {"auroc": 0.5, "auroc/invalid": 3}
    assert metric.merge(metric).invalid_count() == 3 + 3 + 3
    assert metric.reset().invalid_count() == 0
    strict = update(AUROC(exact=True, capacity=3, on_invalid="raise"), preds, target)
    with pytest.raises(datarax.InvalidValuesError):
        strict.results()
    assert np.isnan(
        update(AUROC(exact=True, capacity=3, on_invalid="propagate"), preds, target).compute()
    )


def test_subnormal_logits_of_a_softmax_are_zero():
    least = np.finfo(np.float32).tiny
    logits = np.float32([[-1e-45, -46.5, -least], [0, -46.5, -least], [-20, 1e-40, -1e-40]])
    empty, target = metrics.ROC(num_classes=3, from_logits=True), np.int32([2, 0, 1])
    host = empty.update(logits, target)
    compiled = jax.jit(lambda metric, *given: metric.update(*given))(empty, logits, target)
    jax.tree.map(np.testing.assert_array_equal, host.canonical(), compiled.canonical())


def test_subnormal_scores_are_zero(rng):
    target = (rng.random(100) < 0.5).astype(np.int32)
    subnormal = rng.choice(np.float32([1e-40, -1e-40, 1e-45, 0.0, -0.0]), 100)
    for metric in (AUROC(), AUROC(exact=True, capacity=100)):
        value = update(metric, subnormal, target)
        assert value.compute() == value.bounds()[0] == value.bounds()[1] == 0.5


def test_examples_without_weight_take_no_room():
    preds, target = np.float32([np.nan, 0.3, 0.2, 0.1]), np.array([0, 1, 9, 0])
    metric = update(AUROC(exact=True, capacity=2), preds, target, weights=np.array([0, 1, 0, 2]))
    assert metric.invalid_count() == 0
    assert metric.compute() == 1


def test_64_bits():
    with x64():
        preds, target = np.array([0.5, 0.5 + 1e-12]), np.array([0, 1])
        exact = update(AUROC(exact=True, capacity=2), preds, target)
        assert exact.compute() == 1
        assert update(exact, preds, target).invalid_count() == 2
        for scores in (preds, 1e300 * (1 + preds)):
            binned = update(AUROC(), scores, target)
            assert binned.compute() == 1
            assert binned.bounds() == (1, 1)
            assert binned.compute().dtype == np.float64


# Where the libraries that people use today go wrong.


@each_area
def test_a_score_is_a_score(rng, cls):
    """Raw logits, scores all below 0.002, any batches: the same order, the same value."""
    preds, target = scores_of(rng, "rounded", 256)
    want = AREAS[cls](target, preds)
    for scores in (preds, 0.002 * (preds + 40) / 80, preds * 1e30):
        values = set()
        for size in (1, 8, 256):
            metric = cls()
            for rows in np.split(np.arange(256), 256 // size):
                metric = update(metric, scores[rows].astype(np.float32), target[rows])
            values.add(float(metric.compute()))
        (value,) = values
        np.testing.assert_allclose(value, want, rtol=1e-6)


def test_memory_is_constant():
    metric = AUROC()
    size = sum(x.nbytes for x in jax.tree.leaves(metric))
    preds, target = (jax.ShapeDtypeStruct((1_000_000,), t) for t in (np.float32, np.int32))
    compiled = jax.jit(lambda m, p, t: m.update(p, t)).lower(metric, preds, target).compile()
    # A few bytes a score, and a state that is what it was.
    assert compiled.memory_analysis().temp_size_in_bytes < 40_000_000
    assert sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(compiled.out_info)) == size


def test_billions_of_examples(rng):
    preds, target = scores_of(rng, "logits", 500)
    for cls in AREAS:
        first = update(cls(bits=12), preds, target)
        metric = first
        for _ in range(30):  # 5e11 examples
            metric = metric.merge(metric)
        np.testing.assert_allclose(metric.compute(), first.compute(), atol=2e-3)
        np.testing.assert_allclose(metric.bounds(), first.bounds(), rtol=1e-6)


def test_nan_is_excluded_from_batches_of_any_shape(rng):
    for shape in ((64, 64), (1024, 100), (2, 9000)):
        preds = rng.normal(size=shape).astype(np.float32)
        preds[0, shape[1] // 2] = np.nan
        target = rng.integers(0, shape[1], shape[0])
        metric = AUROC(num_classes=shape[1], bits=10, from_logits=False).update(preds, target)
        assert metric.invalid_count() == 1


# Refusals.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"average": "samples"}, "average='samples'; expected one of"),
        ({"max_fpr": 0}, "max_fpr=0; expected a number above 0 to 1"),
        ({"max_fpr": 1.5}, "max_fpr=1.5"),
        ({"max_fpr": "all"}, "max_fpr='all'"),
        ({"bits": 9}, "bits=9; expected an integer from 10 to 22"),
        ({"exact": True}, "expected capacity="),
        ({"exact": True, "capacity": 0}, "capacity=0"),
        ({"exact": True, "capacity": 10, "bits": 12}, "no bits="),
        ({"capacity": 10}, "capacity=10 is for exact=True"),
        ({"num_classes": 2, "num_labels": 2}, "exclude each other"),
        ({"on_invalid": "ignore"}, "on_invalid='ignore'"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(config, message):
    with pytest.raises(MetricInputError, match=message):
        AUROC(**config)


@pytest.mark.parametrize("fpr_range", [(0.0, 0.1), (0.2, 0.1), (0.1, 0.1), (0.1, 2.0), 0.1])
def test_ranges_that_are_refused(fpr_range):
    with pytest.raises(MetricInputError, match="fpr_range"):
        LogAUC(fpr_range=fpr_range)


@pytest.mark.parametrize("exact", [{}, {"exact": True, "capacity": 8}], ids=["binned", "exact"])
def test_inputs_that_are_refused(exact):
    with pytest.raises(MetricInputError, match=r"\(3,\).*\(4,\)"):
        AUROC(**exact).update(np.zeros(3, np.float32), np.zeros(4, np.int32))
    with pytest.raises(MetricInputError, match=r"\(4, 2\).*\(4,\).*num_classes=3"):
        AUROC(num_classes=3, **exact).update(np.zeros((4, 2), np.float32), np.zeros(4, np.int32))
    with pytest.raises(MetricInputError, match=r"num_labels=3; expected \(\.\.\., 3\)"):
        AUROC(num_labels=3, **exact).update(np.zeros((4, 2), np.float32), np.zeros((4, 2)))
    with pytest.raises(MetricInputError, match="weights of shape"):
        AUROC(**exact).update(np.zeros(4, np.float32), np.zeros(4), weights=np.ones(3))
    with pytest.raises(datarax.ConfigurationMismatchError, match="max_fpr"):
        AUROC(max_fpr=0.5, **exact).merge(AUROC(**exact))


@pytest.mark.parametrize("exact", [{}, {"exact": True, "capacity": 64}], ids=["binned", "exact"])
def test_integers_are_scores(exact, rng):
    target = rng.integers(0, 2, 64)
    scores = rng.integers(0, 9, 64) + 2 * target
    metric = AUROC(**exact)
    want = sklearn.metrics.roc_auc_score(target, scores)
    for dtype in ("int8", "uint8", "int32", "int64", "float32"):
        assert metric.update(scores.astype(dtype), target).results() == pytest.approx(want)
    assert metric.update(scores.tolist(), target.tolist()).results() == pytest.approx(want)
    on_devices = jax.jit(lambda m, x, y: m.update(x, y))(metric, jnp.asarray(scores), target)
    assert on_devices.results() == pytest.approx(want)
    guesses = scores > 5
    want = sklearn.metrics.roc_auc_score(target, guesses)
    assert metric.update(guesses, target).results() == pytest.approx(want)
    # Of several classes, scores of different rows are compared: large ones are not shifted.
    labels = rng.integers(0, 3, 64)
    votes = rng.integers(0, 9, (64, 3)) + 2 * np.eye(3, dtype=int)[labels]
    areas = AUROC(num_classes=3, average=None, from_logits=False, **exact)
    by_class = [sklearn.metrics.roc_auc_score(labels == c, votes[:, c]) for c in range(3)]
    for scale in (1, 2**22):
        got = areas.update(votes * scale, labels).results()
        np.testing.assert_allclose(got, by_class, rtol=1e-12)


@pytest.mark.parametrize("weights", [None, "by row"])
def test_the_capacity_is_of_examples(weights, rng):
    p, target = rng.dirichlet(np.ones(3), 50).astype(np.float32), rng.integers(0, 3, 50)
    w = None if weights is None else rng.uniform(0.5, 2, 50).astype(np.float32)
    one_hot = np.eye(3, dtype=int)[target]
    kept: dict = {"average": "micro", "exact": True, "capacity": 50}
    for cls, score in AREAS.items():
        want = score(one_hot, p, average="micro", sample_weight=w)
        several = cls(num_classes=3, from_logits=False, **kept)
        assert several.update(p, target, weights=w).results() == pytest.approx(want, rel=1e-6)
        labels = cls(num_labels=3, **kept)
        assert labels.update(p, one_hot, weights=w).results() == pytest.approx(want, rel=1e-6)
        # Two updates, merged: as many examples fit.
        a, b = (several.update(p[i], target[i]) for i in (slice(30), slice(30, None)))
        want = score(one_hot, p, average="micro")
        assert a.merge(b).results() == pytest.approx(want, rel=1e-6)
        assert several.update(p, target).update(p[:1], target[:1]).invalid_count() == 1


def test_wide_bounds_warn_and_are_read_from_a_collection(rng):
    target = np.resize([0, 1], 500)
    preds = (rng.normal(size=500) + target + 1000).astype(np.float32)
    preds[0] = -1e9  # so large for the spread of the others that many scores share a bin
    metrics = datarax.Collection(
        {
            "area": AUROC(),
            "narrow": AUROC(exact=True, capacity=500),
            "middle": Median().from_outputs(values="preds", weights=None),
            "size": Max().from_outputs(values="preds", weights=None),
        }
    )
    metrics = metrics.update(preds=preds, target=target)
    bounds = metrics.bounds()
    assert sorted(bounds) == ["area", "middle", "narrow"]
    lower, upper = bounds["area"]
    assert lower <= sklearn.metrics.roc_auc_score(target, preds) <= upper
    assert bounds["area"] == cast(AUROC, metrics["area"]).bounds()
    assert bounds["middle"][0] <= np.median(preds) <= bounds["middle"][1]
    assert upper - lower > 0.01
    ends = f"area: the exact value .* between {lower:.4f} and {upper:.4f}"
    with pytest.warns(datarax.PrecisionWarning, match=ends) as caught:
        metrics.results()
    assert len(caught) == 1
    with datarax.AsyncMetricCollector(metrics, bounds=True) as collector:
        collector.schedule_collection(metrics)
        with pytest.warns(datarax.PrecisionWarning, match=ends):
            results = collector.collect_results()
    # Bounds of float32 are rounded outward.
    assert (
        float(lower)
        <= results["area/lower"]
        < float(np.nextafter(np.float32(lower), np.float32(1)))
    )
    assert (
        float(np.nextafter(np.float32(upper), np.float32(0)))
        < results["area/upper"]
        <= float(upper)
    )
    assert results["narrow/lower"] == results["narrow"] == results["narrow/upper"]
    assert "size/lower" not in results


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_classes_against_each_other(rng, average):
    logits, target = rng.normal(size=(500, 4)), rng.integers(0, 4, 500).astype(np.int32)
    logits[np.arange(500), target] += 1
    preds = scipy.special.softmax(logits, -1).astype(np.float32)
    metric = AUROC(num_classes=4, average=average, multi_class="ovo")
    metric = update(update(metric, preds[:250], target[:250]), preds[250:], target[250:])
    rows = preds.astype(np.float64) / preds.astype(np.float64).sum(-1, keepdims=True)
    want = sklearn.metrics.roc_auc_score(target, rows, average=average, multi_class="ovo")
    lower, upper = map(float, metric.bounds())
    assert lower - 1e-6 <= want <= upper + 1e-6
    assert upper - lower < 1e-3
    assert lower <= float(metric.compute()) <= upper


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_labels": 3},
        {"num_classes": 3, "average": None},
        {"num_classes": 3, "average": "micro"},
        {"num_classes": 3, "max_fpr": 0.1},
        {"num_classes": 3, "exact": True, "capacity": 10},
    ],
)
def test_what_classes_against_each_other_cannot_have(config):
    with pytest.raises(MetricInputError, match='multi_class="ovo" with'):
        AUROC(multi_class="ovo", **config)


@pytest.mark.parametrize("exact", [{}, {"exact": True, "capacity": 1000}])
def test_labels_as_one_task(rng, exact):
    preds = rng.random((200, 3)).astype(np.float32)
    target = (rng.random((200, 3)) < (0.1, 0.5, 0.7)).astype(np.int32)
    preds[:2], target[:2] = [[0.7], [np.nextafter(np.float32(0.7), 1)]], [[0], [1]]  # in one bin
    w = rng.uniform(0.1, 1, 200).astype(np.float32)
    metric = update(AUROC(num_labels=3, average="micro", **exact), preds, target, weights=w)
    want = sklearn.metrics.roc_auc_score(target, preds, average="micro", sample_weight=w)
    lower, upper = map(float, metric.bounds())
    assert lower - 1e-6 <= want <= upper + 1e-6
    assert (upper == lower) == bool(exact)
    assert upper - lower < 1e-3
    assert lower <= float(metric.compute()) <= upper


# Logits.


def log_odds(logits):
    """Of the softmax of logits, in float64: log(p / (1 - p))."""
    x = logits.astype(np.float64)
    others = [scipy.special.logsumexp(np.delete(x, c, 1), axis=1) for c in range(x.shape[1])]
    return x - np.stack(others, 1)


def close_pairs(z, target):
    """The share of the pairs of a positive and a negative whose log-odds are nearly equal.

    Rounding may change their order: that of the float32 log-odds, and that of float64 probabilities
    near 1, of which reference values are computed.
    """
    (p, n), near_one = (z[target], z[~target]), 2.0**-52 * np.exp(np.minimum(z, 700))
    error = 2.0**-19 * np.maximum(1, np.abs(z)) + near_one
    close = np.abs(p[:, None] - n) <= error[target][:, None] + error[~target]
    return close.mean()


@pytest.mark.parametrize("classes", [2, 3, 20])
def test_logits_are_compared_by_their_softmax(rng, classes):
    size, configs = 1000, [("float32", 1, 0), ("float32", 1, 100), ("float32", 10, 0)]
    target = np.resize(np.arange(classes), size).astype(np.int32)
    empty = {cls: cls(num_classes=classes, average=None, from_logits=True) for cls in AREAS}
    for dtype, scale, offset in [*configs, ("bfloat16", 3, 0)]:
        x = rng.normal(size=(size, classes)) + rng.normal(size=(size, 1))
        x[np.arange(size), target] += 1.5
        logits = jnp.asarray(scale * x + offset, dtype)
        seen = empty[AUROC].update(logits, target)
        x = np.asarray(logits, np.float64)
        p, z = scipy.special.softmax(x, -1), log_odds(x)
        close = np.array([close_pairs(z[:, c], target == c) for c in range(classes)])
        for cls, metric in zip(AREAS, read(seen, *empty.values()), strict=True):
            want = [AREAS[cls](target == c, p[:, c]) for c in range(classes)]
            lower, upper = map(np.asarray, metric.bounds())
            # A negative that passes a positive changes its precision by at most 1.
            allowed = close * (1 if cls is AUROC else size) + 1e-6
            assert (lower - allowed <= want).all()
            assert (want <= upper + allowed).all()
            if cls is AUROC:
                assert (upper - lower < 0.02).all()


def test_probabilities_near_0_and_1_keep_their_order():
    # In float32 the softmax of the first three is 1, and that of the others is below 1e-38.
    logits = np.float32([[90, 0], [60, 0], [30, 0], [-90, 0], [-200, 0], [-1e9, 0], [-np.inf, 0]])
    target = np.array([1, 0, 1, 0, 1, 0, 0]) == 0
    for config in ({}, {"exact": True, "capacity": 7}):
        metric = AUROC(num_classes=2, average=None, from_logits=True, **config)
        lower, upper = metric.update(logits, target.astype(np.int32)).bounds()
        # Of the last two, which are impossible, both are of one class.
        order = np.array([7, 6, 5, 4, 3, 2, 2])
        want = sklearn.metrics.roc_auc_score(~target, order)
        np.testing.assert_allclose(lower, [want, want], rtol=1e-6)
        np.testing.assert_allclose(upper, [want, want], rtol=1e-6)


def test_the_forms_of_logits(rng):
    """Pooled classes, pairs of classes, labels, and one class."""
    logits = 4 * rng.normal(size=(300, 3)).astype(np.float32)
    target = np.resize(np.arange(3), 300).astype(np.int32)
    p = scipy.special.softmax(logits.astype(np.float64), -1)
    micro = AUROC(num_classes=3, average="micro", from_logits=True).update(logits, target)
    want = sklearn.metrics.roc_auc_score(np.eye(3)[target].ravel(), p.ravel())
    pairs = AUROC(num_classes=3, multi_class="ovo", from_logits=True).update(logits, target)
    of_pairs = sklearn.metrics.roc_auc_score(target, p, multi_class="ovo")
    ones = np.eye(3, dtype=np.int32)[target]
    labels = AUROC(num_labels=3, from_logits=True).update(logits, ones)
    of_labels = sklearn.metrics.roc_auc_score(ones, logits)
    one = AUROC(from_logits=True).update(logits[:, 0], ones[:, 0])
    of_one = sklearn.metrics.roc_auc_score(ones[:, 0], logits[:, 0])
    for metric, expected in zip(
        (micro, pairs, labels, one), (want, of_pairs, of_labels, of_one), strict=True
    ):
        lower, upper = map(float, metric.bounds())
        assert lower - 1e-4 <= expected <= upper + 1e-4  # of 100 * 200 pairs, one is 5e-5
        assert upper - lower < 2e-3


def test_thresholds_of_logits_are_probabilities(rng):
    logits = np.float32([-np.inf, -2.0, 0.5, 3.0, 40.0])
    target = np.array([0, 1, 0, 1, 1])
    points = {"num_points": 6, "from_logits": True}
    for of_two in (False, True):
        preds, config = logits, points
        if of_two:  # the first class has the score 0
            preds = np.stack([np.zeros(5, np.float32), logits], -1)
            config = points | {"num_classes": 2}
        curve = metrics.ROC(**config).update(preds, target).compute()
        thresholds = np.asarray(curve.thresholds)
        want = [np.inf, *scipy.special.expit(np.float64(logits[::-1]))]
        np.testing.assert_allclose(thresholds[1] if of_two else thresholds, want, rtol=1e-6)
    point = metrics.RecallAtFixedPrecision(min_precision=0.9, from_logits=True)
    point = point.update(logits, target).compute()
    np.testing.assert_allclose(point["threshold"], scipy.special.expit(3.0), rtol=1e-6)


def test_rows_that_are_no_logits_are_invalid():
    inf, nan = np.inf, np.nan
    rows = np.float32([[0, -inf, 1], [-inf] * 3, [0, inf, 1], [nan, 0, 1], [3, 1, 2], [0, 0, 9]])
    for config in ({}, {"exact": True, "capacity": 6}, {"multi_class": "ovo"}):
        metric = AUROC(num_classes=3, from_logits=True, on_invalid="exclude", **config)
        seen = metric.update(rows, np.array([0, 0, 0, 0, 1, 2]))
        assert seen.invalid_count() == 3
        with pytest.warns(datarax.InvalidValuesWarning, match="1 NaN, 2 infinite"):
            assert np.isfinite(seen.compute())


def test_what_logits_share_in_a_collection(rng):
    members = {
        "left out": AUROC(num_classes=3),
        "as they are": AveragePrecision(num_classes=3, from_logits=False),
        "true": AUROC(num_classes=3, from_logits=True),
        "also": metrics.ROC(num_classes=3, from_logits=True),
    }
    together = datarax.Collection(members)
    states = together.states_within()
    assert len(states) == 3
    p = rng.dirichlet(np.ones(3), 40).astype(np.float32)
    batch = {"preds": np.log(p) + 3, "target": np.resize(np.arange(3), 40)}
    together = together.update(**batch)
    with pytest.warns(ScoresWarning, match="left out.*from_logits=True.*from_logits=False") as seen:
        together.results()
    assert len(seen) == 1
    for name in ("true", "also"):
        alone = members[name].update(**batch)
        jax.tree.map(np.testing.assert_array_equal, together[name].compute(), alone.compute())
    with pytest.raises(datarax.ConfigurationMismatchError, match="from_logits"):
        members["true"].merge(members["left out"])
    # Of one class or of labels, nothing is checked.
    of_one = datarax.Collection({"a": AUROC(), "b": AUROC(from_logits=False)})
    states = of_one.states_within()
    assert len(states) == 1


@pytest.mark.parametrize("cls", [LogAUC, AUROC, AveragePrecision, Gini])
def test_perfect_separation_is_one_and_not_more(cls):
    # The sums of LogAUC are of float32 logarithms, of one sign. Each is rounded either way, by at
    # most an ulp; how depends on NumPy's code for the processor.
    least = 1 - 2**-23 if cls is LogAUC else 1
    for negatives in (1, 3, 7, 333):
        for positives in (1, 10):
            target = np.repeat([0, 1], [negatives, positives])
            seen = cls().update(np.linspace(-1, 1, target.size, dtype=np.float32), target)
            values = [seen.results(), *map(float, seen.bounds()), float(seen.compute())]
            assert all(least <= x <= 1 for x in values), (negatives, positives, values)
