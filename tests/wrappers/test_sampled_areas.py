"""Areas whose variance needs rows with several scores: averages over classes, and two models."""

import jax
import numpy as np
import pytest
import sklearn.metrics
from scipy import stats

import datarax
from datarax import Compare, Interval, Sliced, metrics
from tests.helpers import long, make_mesh

Z = stats.norm.ppf(0.975)


def gains(scores, positive):
    """The area, and what each row adds to it: the sum of their squares is DeLong's variance."""
    positive = np.asarray(positive, bool)
    p, n = positive.sum(), (~positive).sum()
    ranks = stats.rankdata(scores)
    below = (ranks[positive] - stats.rankdata(scores[positive])) / n
    above = 1 - (ranks[~positive] - stats.rankdata(scores[~positive])) / p
    found, area = np.zeros(len(scores)), below.mean()
    found[positive] = (below - area) / np.sqrt(p * (p - 1))
    found[~positive] = (above - area) / np.sqrt(n * (n - 1))
    return area, found


def of_classes(scores, target, average):
    """The same of an average over classes; `target` is one-hot, or of labels."""
    areas, each = zip(*map(gains, scores.T, target.T), strict=True)
    areas, each = np.array(areas), np.array(each)
    if average == "micro":
        area, found = gains(scores.reshape(-1), target.reshape(-1))
        return area, found.reshape(target.shape).sum(1)
    shares = np.ones(len(areas)) if average == "macro" else target.sum(0)
    shares = shares / shares.sum()
    area = shares @ areas
    found = shares @ each
    if average == "weighted":
        found = found + target @ (areas - area) / target.sum()
    return area, found


def drawn(rng, rows, size, labels=False, noise=0.3):
    """Scores of two models that rank alike, and the targets."""
    if labels:
        target = (rng.random((rows, size)) < 0.3).astype(np.int32)
        one_hot = target
    else:
        target = np.minimum(rng.geometric(0.4, rows) - 1, size - 1).astype(np.int32)
        one_hot = np.eye(size, dtype=np.int32)[target]
    logits = rng.normal(size=(rows, size)) + 1.5 * one_hot + rng.normal(size=(rows, 1))
    both = logits, logits + noise * rng.normal(size=(rows, size)) + 0.1 * one_hot
    if labels:
        return *(x.astype(np.float32) for x in both), target, one_hot
    return *(np.asarray(jax.nn.softmax(x), np.float32) for x in both), target, one_hot


def error_of(results, target, average="macro"):
    """The standard error from the interval, which holds all differences that the test allows."""
    target = target.reshape(len(target), -1)
    positives = target.sum(0)
    negatives = len(target) - positives
    size = (2 * positives * negatives / (positives + negatives)).min()
    size = target.any(1).sum() if average == "micro" else size
    return (results["upper"] - results["lower"]) / (2 * Z) * np.sqrt(1 - Z**2 / size), size


AVERAGES = "macro", "weighted", "micro"


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("labels", [False, True])
def test_averages_over_classes_equal_all_pairs(labels, average, rng):
    size = {"num_labels": 4} if labels else {"num_classes": 4}
    a, b, target, one_hot = drawn(rng, 500, 4, labels)
    area, own = of_classes(a, one_hot, average)
    other_area, other = of_classes(b, one_hot, average)
    for make, scale in ((metrics.AUROC, 1), (metrics.Gini, 2)):
        metric = make(average=average, **size)
        found = Interval(metric).update(a, target).results()
        np.testing.assert_allclose(found["value"], scale * area - (scale - 1), atol=1e-4)
        error = scale * np.sqrt((own**2).sum())
        np.testing.assert_allclose(found["std_error"], error, rtol=2e-3)
        pair = Compare(metric, method="formula").update(preds_a=a, preds_b=b, target=target)
        results = pair.results()
        difference = scale * (other_area - area)
        error = scale * np.sqrt(((other - own) ** 2).sum())
        np.testing.assert_allclose(results["difference"], difference, atol=2e-4)  # of two areas
        found, least = error_of(results, one_hot, average)
        np.testing.assert_allclose(found, error, rtol=5e-3)
        # The squares are about 0, as they are if the models are equal.
        error = np.sqrt(found**2 + results["difference"] ** 2 / least)
        p_value = 2 * stats.norm.sf(abs(results["difference"]) / error)
        np.testing.assert_allclose(results["p_value"], p_value, rtol=1e-4, atol=1e-6)


def test_two_models_of_a_binary_task(rng):
    target = (rng.random(700) < 0.3).astype(np.int32)
    common = rng.normal(size=700) + target
    a, b = (common + 0.3 * rng.normal(size=700) for _ in range(2))
    for scale in (1, 1e-6, 1e20):  # ranks alone matter
        x, y = (scale * each.astype(np.float32) for each in (a, b))
        (first, own), (second, other) = gains(x, target), gains(y, target)
        error = np.sqrt(((other - own) ** 2).sum())
        seen = Compare(metrics.AUROC(), method="formula").update(x, y, target)
        results = seen.results()
        np.testing.assert_allclose(results["difference"], second - first, atol=1e-4)
        found, _ = error_of(results, target)
        np.testing.assert_allclose(found, error, rtol=5e-3)
    apart = abs(found - np.sqrt((own**2).sum() + (other**2).sum()))
    assert apart > 0.3 * error  # the models are not independent
    # A table of both scores in each slice, on devices and in a program.
    empty = Compare(metrics.AUROC(bits=12), method="formula")
    want = empty.update(x, y, target).results()
    slices = rng.integers(0, 2, 700).astype(np.int32)
    sliced = Sliced(empty, 2).update(x, y, target, slices=slices).results()
    half = empty.update(*(each[slices == 1] for each in (x, y, target))).results()
    mesh = make_mesh("auto", {"d": 4})
    apart = datarax.per_device(empty, mesh, "d").update(x, y, target).results()
    traced = jax.jit(lambda m, *args: m.update(*args))(empty, x, y, target).results()
    for found, expected in ((sliced["1"], half), (apart, want), (traced, want)):
        np.testing.assert_allclose([*found.values()], [*expected.values()], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("average", AVERAGES)
def test_more_rows_than_the_sample_holds(average, rng):
    a, b, target, one_hot = drawn(rng, 30_000, 5)
    _, own = of_classes(a, one_hot, average)
    _, other = of_classes(b, one_hot, average)
    metric = metrics.AUROC(num_classes=5, average=average)
    found = Interval(metric).update(a, target).results()["std_error"]
    np.testing.assert_allclose(found, np.sqrt((own**2).sum()), rtol=0.1)
    seen = Compare(metric, method="formula").update(a, b, target)
    found, _ = error_of(seen.results(), one_hot, average)
    np.testing.assert_allclose(found, np.sqrt(((other - own) ** 2).sum()), rtol=0.25)


def derived(value, weights):
    """The standard error of a value, from its derivatives by the weight of each row."""
    step = 1e-6
    ends = [
        [value(weights + sign * step * (np.arange(len(weights)) == i)) for sign in (1, -1)]
        for i in range(len(weights))
    ]
    slopes = np.subtract(*np.array(ends).T) / (2 * step)
    return np.sqrt(((weights * slopes) ** 2).sum())


@pytest.mark.parametrize(
    "average", [AVERAGES[0], *(pytest.param(x, marks=long) for x in AVERAGES[1:])]
)
def test_average_precision_by_the_definition(average, rng):
    a, b, target, one_hot = drawn(rng, 250, 3)
    b = np.clip(b + 0.1 * rng.random(b.shape), 0, 1).astype(np.float32)

    def value(scores):
        def of(w):
            return sklearn.metrics.average_precision_score(
                one_hot, scores, average=average, sample_weight=w
            )

        return of

    w = np.ones(250)
    metric = metrics.AveragePrecision(num_classes=3, average=average, from_logits=False)
    found = Interval(metric).update(a, target).results()
    np.testing.assert_allclose(found["std_error"], derived(value(a), w), rtol=0.03)
    seen = Compare(metric, method="formula").update(a, b, target).results()
    error = derived(lambda w: value(b)(w) - value(a)(w), w)
    np.testing.assert_allclose(error_of(seen, one_hot, average)[0], error, rtol=0.05)


@pytest.mark.parametrize("wrapper", [Interval, lambda x: Compare(x, method="formula")])
def test_rows_that_cannot_be_used_classes_without_examples_and_weights(wrapper, rng):
    a, b, target, _ = drawn(rng, 300, 4)
    both = (a, b) if wrapper is not Interval else (a,)
    empty = wrapper(metrics.AUROC(num_classes=6, on_invalid="exclude", from_logits=False))
    wide = [np.pad(x, [(0, 0), (0, 2)]) for x in both]
    three = wrapper(metrics.AUROC(num_classes=4, from_logits=False))
    want = three.update(*both, target).results()
    # Two classes have no positives: they are left out of the average.
    found = empty.update(*wide, target).results()
    np.testing.assert_allclose([*found.values()], [*want.values()], rtol=1e-4, atol=1e-7)
    # Rows of weight 0, or with a NaN, or a target out of range, are left out.
    some = rng.random(300) < 0.7
    kept = three.update(*(x[some] for x in both), target[some]).results()
    masked = three.update(*both, target, weights=some).results()
    broken = [np.where(some[:, None], x, np.nan) for x in wide]
    with pytest.warns(datarax.InvalidValuesWarning):
        left_out = empty.update(*broken, target).results()
    with pytest.warns(datarax.InvalidValuesWarning):
        other = empty.update(*wide, np.where(some, target, 9)).results()
    for found in (masked, left_out, other):
        same = [found[name] for name in kept]
        np.testing.assert_allclose(same, [*kept.values()], rtol=1e-3, atol=1e-6)
    twice = three.update(*both, target, weights=np.full(300, 2.0)).results()
    np.testing.assert_allclose([*twice.values()], [*want.values()], rtol=1e-5, atol=1e-8)


def test_a_row_that_one_model_cannot_use(rng):
    target = rng.integers(0, 2, 300).astype(np.int32)
    a = (rng.normal(size=300) + target).astype(np.float32)
    b = np.where(np.arange(300) < 20, np.nan, a + 0.2 * rng.normal(size=300)).astype(np.float32)
    empty = Compare(metrics.AUROC(on_invalid="exclude"), method="formula")
    with pytest.warns(datarax.InvalidValuesWarning):
        results = empty.update(a, b, target).results()
    assert results["pairs/invalid"] == 20
    (area, own), (_, other) = gains(a[20:], target[20:]), gains(b[20:], target[20:])
    np.testing.assert_allclose(results["a"], area, atol=1e-3)
    error = np.sqrt(((other - own) ** 2).sum())
    np.testing.assert_allclose(error_of(results, target[20:])[0], error, rtol=5e-3)


def test_labels_of_a_row_that_cannot_be_used(rng):
    # A score of NaN leaves out one label of its row: as with an ignored target.
    a, _, target, _ = drawn(rng, 300, 3, labels=True)
    a[:60, 1] = np.nan
    ignored = target.copy()
    ignored[:60, 1] = 7
    for average in ("macro", "weighted"):
        metric = metrics.AUROC(num_labels=3, average=average, on_invalid="exclude", ignore_index=7)
        want = Interval(metric).update(np.nan_to_num(a), ignored).results()
        with pytest.warns(datarax.InvalidValuesWarning):
            found = Interval(metric).update(a, target).results()
        same = [found[name] for name in want]
        np.testing.assert_allclose(same, [*want.values()], rtol=1e-6)


def test_models_that_are_equal_separated_or_empty(rng):
    empty = Compare(metrics.AUROC(), method="formula")
    assert all(np.isnan(x) for x in empty.results().values())
    scores, target = rng.normal(size=50).astype(np.float32), rng.integers(0, 2, 50)
    with pytest.warns(datarax.PrecisionWarning, match="their difference has no interval"):
        same = empty.update(scores, scores, target).results()
    assert (same["difference"], same["p_value"]) == (0, 1)
    assert np.isnan([same["lower"], same["upper"]]).all()
    with pytest.warns(datarax.PrecisionWarning, match="their difference has no interval"):
        apart = empty.update(scores + 9 * target, scores + 8 * target, target).results()
    assert (apart["a"], apart["difference"], apart["p_value"]) == (1, 0, 1)
    one = empty.update(scores[:3], scores[1:4], np.array([1, 0, 0])).results()
    assert np.isnan(one["lower"])


def test_what_is_refused(rng):
    target = rng.integers(0, 2, 20)
    scores = rng.random(20)
    seen = Compare(metrics.AUROC(), method="formula")
    with pytest.raises(datarax.MetricInputError, match="all else once"):
        seen.update(
            preds_a=scores, preds_b=scores, target=target, weights_a=scores, weights_b=scores
        )
    for make in (
        lambda: Compare(metrics.AUROC(), method="formula", clusters=8),
        lambda: Compare(metrics.AUROC(max_fpr=0.1), method="formula"),
        lambda: Compare(metrics.AUROC(num_classes=200), method="formula"),
        lambda: Interval(metrics.AUROC(num_classes=200)),
    ):
        with pytest.raises(datarax.MetricInputError, match="formula"):
            make()
    wide = Interval(metrics.AUROC(num_classes=3))
    with pytest.raises(datarax.MetricInputError, match="one example each"):
        wide.update(rng.dirichlet(np.ones(3), (4, 5)), rng.integers(0, 3, (4, 5)))


def test_state_of_constant_size():
    for make in (
        lambda: Interval(metrics.AUROC(num_classes=10)),
        lambda: Interval(metrics.AUROC(num_labels=20)),
        lambda: Interval(metrics.AveragePrecision(num_classes=60)),
    ):
        whole = make()
        inner = sum(x.nbytes for x in jax.tree.leaves(whole.metric))
        assert sum(x.nbytes for x in jax.tree.leaves(whole)) - inner <= 1 << 16
    pair = Compare(metrics.AUROC(num_classes=10), method="formula")
    assert sum(x.nbytes for x in jax.tree.leaves(pair.sampled)) <= 1 << 17


@long
def test_it_covers(rng):
    """Macro averages, and differences of two models; benchmarks/coverage.py has more data sets."""
    truth, covered = 0.7602499389, np.zeros(2)  # the normal distribution function at 1 / sqrt(2)
    single = Interval(metrics.AUROC(num_labels=2, bits=10))
    pair = Compare(metrics.AUROC(bits=10), method="formula")
    for _ in range(200):
        target = rng.integers(0, 2, (150, 2)).astype(np.int32)
        common = rng.normal(size=(150, 2))
        scores = (common + target).astype(np.float32)
        results = single.update(scores, target).results()
        covered[0] += results["lower"] <= truth <= results["upper"]
        other = 0.8 * common + 0.6 * rng.normal(size=(150, 2)) + target
        results = pair.update(scores[:, 0], other[:, 0].astype(np.float32), target[:, 0]).results()
        covered[1] += results["lower"] <= 0 <= results["upper"]
    assert (covered >= 178).all()
    assert (covered <= 199).all()
