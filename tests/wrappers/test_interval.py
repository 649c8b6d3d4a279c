"""`Interval`: standard errors of the delta method, and intervals of Wilson."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Bootstrap, Collection, Interval, Sliced, metrics
from datarax.metric.rows import by_rows, rows_of
from datarax.testing.laws import LAWS, OF_PROGRAMS
from datarax.testing.subject import Subject
from datarax.wrappers.interval import terms_of_rows
from tests.helpers import long, make_mesh, place
from tests.registry import BATCH, CASES

Z = 1.959963984540054


def test_of_a_mean(rng):
    values = rng.normal(1000, 2, 50).astype(np.float32)
    results = Interval(metrics.Mean()).update(values).results()
    error = scipy.stats.sem(values.astype(np.float64))
    np.testing.assert_allclose(results["std_error"], error, rtol=1e-5)
    np.testing.assert_allclose(results["lower"], values.mean() - Z * error, rtol=1e-6)
    np.testing.assert_allclose(results["upper"], values.mean() + Z * error, rtol=1e-6)
    assert results["value"] == metrics.Mean().update(values).results()


def test_far_from_zero(rng):
    values = (1e6 + rng.integers(-8, 8, 2000)).astype(np.float32)
    seen = Interval(metrics.Mean())
    for part in np.split(values, 5):
        seen = seen.update(part)
    want = scipy.stats.sem(values.astype(np.float64))
    np.testing.assert_allclose(seen.results()["std_error"], want, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 37])
@pytest.mark.parametrize("offset", [1e3, 1e4])
def test_unequal_weights_far_from_zero_inside_jit(offset, parts, rng):
    """What varies is a thousandth of the sums of squares from which it is computed."""
    x = (offset + 0.3 * rng.normal(size=37 * 64)).astype(np.float32)
    y = (x + 0.3 + 0.1 * rng.normal(size=x.size)).astype(np.float32)
    w = rng.random(x.size, np.float32)
    interval, compare = Interval(metrics.Mean()), datarax.Compare(metrics.Mean(), method="formula")
    fold = jax.jit(
        lambda one, two, x, y, w: (
            one.update(x, weights=w),
            two.update(values_a=x, values_b=y, weights=w),
        )
    )
    for batch in zip(*(np.split(each, parts) for each in (x, y, w)), strict=True):
        interval, compare = fold(interval, compare, *batch)

    def error(values: np.ndarray) -> float:
        wide = w.astype(np.float64)
        apart = wide * (values - np.average(values, weights=wide))
        n = len(values)
        return np.sqrt(n / (n - 1) * (apart**2).sum()) / wide.sum()

    x, y = x.astype(np.float64), y.astype(np.float64)
    np.testing.assert_allclose(interval.results()["std_error"], error(x), rtol=1e-4)
    ends = compare.results()
    half = (ends["upper"] - ends["lower"]) / 2
    t = scipy.stats.t.ppf(0.975, len(x) - 1)
    np.testing.assert_allclose(half / t, error(y - x), rtol=1e-4)


def test_it_stays_in_the_range_of_the_metric():
    correct = np.int32([10, 10, 0, 10])
    interval = Interval(metrics.PassAtK(k=1), method="delta")
    results = interval.update(correct, np.full(4, 10, np.int32)).results()
    error = scipy.stats.sem([1, 1, 0, 1])
    assert results["upper"] == 1 < results["value"] + Z * error
    np.testing.assert_allclose(results["lower"], 0.75 - Z * error, rtol=1e-6)


@pytest.mark.parametrize("right", [0, 1, 60, 80])
def test_of_a_proportion(right):
    target = np.ones(80, np.int32)
    preds = (np.arange(80) < right).astype(np.int32)
    results = Interval(metrics.Accuracy(num_classes=2), 0.9).update(preds, target).results()
    want = scipy.stats.binomtest(right, 80).proportion_ci(0.9, method="wilson")
    np.testing.assert_allclose([results["lower"], results["upper"]], want, atol=1e-6)
    p = right / 80
    np.testing.assert_allclose(results["std_error"], np.sqrt(p * (1 - p) / 80), atol=1e-7)


def ratio_error(a, b):
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    return np.sqrt(((a - a.sum() / b.sum() * b) ** 2).sum()) / b.sum()


def test_of_ratios_of_counts(rng):
    preds, target = rng.integers(0, 2, (2, 300)).astype(np.int32)
    tp, fp, fn = (preds * target, preds * (1 - target), (1 - preds) * target)
    for metric, a, b in (
        (metrics.Precision(), tp, tp + fp),
        (metrics.Recall(), tp, tp + fn),
        (metrics.F1(), 2 * tp, 2 * tp + fp + fn),
        (metrics.JaccardIndex(), tp, tp + fp + fn),
    ):
        results = Interval(metric).update(preds, target).results()
        n = (b > 0).sum()
        correction = 1 if metric.is_proportion else np.sqrt(n / (n - 1))
        error = ratio_error(a, b) * correction
        np.testing.assert_allclose(results["std_error"], error, rtol=1e-5)
        assert results["value"] == metric.update(preds, target).results()


def test_with_weights_and_by_class(rng):
    preds, target = rng.integers(0, 3, (2, 200)).astype(np.int32)
    w = (rng.integers(0, 4, 200) / 3).astype(np.float32)
    seen = Interval(metrics.Recall(num_classes=3, average=None)).update(preds, target, weights=w)
    results = seen.results()
    for label in range(3):
        b = w * (target == label)
        error = ratio_error(b * (preds == label), b)
        np.testing.assert_allclose(results["std_error"][label], error, rtol=1e-5)
        p, n = results["value"][label], b.sum() ** 2 / (b.astype(np.float64) ** 2).sum()
        center, half = (p + Z**2 / (2 * n)), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        np.testing.assert_allclose(
            results["lower"][label], (center - half) / (1 + Z**2 / n), rtol=1e-5
        )


def test_rows_are_the_observations(rng):
    # 40 documents of 10 equal losses: the error is that of 40.
    losses = np.repeat(rng.normal(size=(40, 1)), 10, 1).astype(np.float32)
    mask = rng.integers(0, 2, (40, 10)).astype(bool)
    results = Interval(metrics.Mean()).update(losses, weights=mask).results()
    a, b = (losses * mask).sum(1), mask.sum(1)
    n = (b > 0).sum()
    want = ratio_error(a, b) * np.sqrt(n / (n - 1))
    np.testing.assert_allclose(results["std_error"], want, rtol=1e-4)


@pytest.mark.parametrize("metric", [metrics.NDCG(), metrics.MRR(), metrics.HitRate(k=2)], ids=repr)
def test_documents_in_rows_of_their_own_are_observations_by_query(metric, rng):
    """With `query`, the score of a query depends on several rows, and it is one observation."""
    queries, depth = 40, 5
    scores, other = rng.random((2, queries, depth))
    target, cluster = rng.integers(0, 2, scores.shape), np.arange(queries) // 4
    order = rng.permutation(scores.size)
    query = np.repeat(np.arange(queries), depth)[order]
    flat, relevant = scores.ravel()[order], target.ravel()[order]

    def check(got, expected):
        assert expected["lower"] < expected["upper"]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)

    whole = Interval(metric).update(scores, target).results()
    check(Interval(metric).update(flat, relevant, query=query).results(), whole)
    if isinstance(metric, metrics.MRR):  # of one, as a program takes seconds to compile
        folded = jax.jit(lambda *x: Interval(metric).update(x[0], x[1], query=x[2]))
        check(folded(flat, relevant, query).results(), whole)
    clustered = Interval(metric, clusters=16)
    check(
        clustered.update(flat, relevant, query=query, cluster=cluster[query]).results(),
        clustered.update(scores, target, cluster=cluster).results(),
    )
    compare = datarax.Compare(metric, method="formula")
    pair = {"preds_a": flat, "preds_b": other.ravel()[order], "target": relevant}
    check(
        compare.update(**pair, query=query).results(),
        compare.update(preds_a=scores, preds_b=other, target=target).results(),
    )


def test_of_functions_of_a_mean(rng):
    """The standard error of the mean times the slope of the function."""
    x, y = rng.normal(size=(2, 300)).astype(np.float32)
    squares = (x - y).astype(np.float64) ** 2
    for metric in (metrics.RootMeanSquaredError(), metrics.MeanSquaredError(squared=False)):
        error = scipy.stats.sem(squares) / (2 * np.sqrt(squares.mean()))
        results = Interval(metric).update(x, y).results()
        np.testing.assert_allclose(results["std_error"], error, rtol=1e-6)
        inside = jax.jit(lambda m, x, y: m.update(x, y).compute())(Interval(metric), x, y)
        np.testing.assert_allclose(inside["std_error"], error, rtol=1e-5)
        clustered = Interval(metric, clusters=300).update(x, y, cluster=np.arange(300)).results()
        np.testing.assert_allclose(clustered["std_error"], error, rtol=1e-6)
    loss = rng.exponential(size=300).astype(np.float32)
    results = Interval(metrics.Perplexity(from_losses=True)).update(loss).results()
    error = np.exp(loss.mean()) * scipy.stats.sem(loss.astype(np.float64))
    np.testing.assert_allclose(results["std_error"], error, rtol=1e-5)
    with pytest.raises(datarax.MetricInputError, match="needs a ratio"):
        datarax.Compare(metrics.RootMeanSquaredError(), method="formula")


def test_it_covers(rng):
    trials, size, p = 2000, 60, 0.93
    hits = (rng.uniform(size=(trials, size)) < p).astype(np.int32)
    metric = Interval(metrics.Accuracy(num_classes=2))
    result = jax.jit(jax.vmap(lambda x: metric.update(x, jnp.ones_like(x)).compute()))(hits)
    covered = ((result["lower"] <= p) & (p <= result["upper"])).mean()
    assert 0.93 <= float(covered) <= 0.985


def test_agrees_with_the_bootstrap(rng):
    batch = {
        "preds": rng.normal(size=(800, 3)).astype(np.float32),
        "target": rng.integers(0, 3, 800).astype(np.int32),
    }
    for metric in (metrics.LogLoss(num_classes=3, from_logits=True), metrics.ExactMatch):
        if metric is metrics.ExactMatch:
            metric = metrics.ExactMatch(num_labels=3)
            batch = {name: rng.integers(0, 2, (800, 3)).astype(np.int32) for name in batch}
        fast = Interval(metric).update(**batch).results()
        slow = Bootstrap(metric, 2000).update(**batch).results()
        np.testing.assert_allclose(fast["std_error"], slow["std_error"], rtol=0.1)


def test_of_errors(rng):
    preds, target = rng.normal(size=(2, 100)).astype(np.float32)
    error = np.abs(preds.astype(np.float64) - target)
    for metric, values in (
        (metrics.MeanAbsoluteError(), error),
        (metrics.MeanSquaredError(), error**2),
        (metrics.LogCoshError(), np.log(np.cosh(error))),
    ):
        results = Interval(metric).update(preds, target).results()
        np.testing.assert_allclose(results["std_error"], scipy.stats.sem(values), rtol=1e-4)


# A row of weight 2 is one observation, and not two: the error is not that of repeated rows.
BROKEN = {
    "an integer weight equals a repetition",
    "an example of weight zero does not count, whatever it holds",  # with weights of 2, too
}


@pytest.mark.parametrize("law", sorted(LAWS.keys() - BROKEN - OF_PROGRAMS))
def test_laws(law, rng):
    batches = [{"values": rng.normal(size=16).astype(np.float32)} for _ in range(3)]
    subject = Interval(metrics.Mean())
    LAWS[law](Subject(subject, batches, 32, 1e-5, 1e-4, np.nan, True, True, on_host=True))


def test_on_devices_in_collections_and_slices(rng):
    mesh = make_mesh("explicit", {"d": 8})
    batch = {
        "preds": rng.integers(0, 3, 64).astype(np.int32),
        "target": rng.integers(0, 3, 64).astype(np.int32),
    }
    accuracy = Interval(metrics.Accuracy(num_classes=3))
    want = accuracy.update(**batch).results()
    apart = datarax.per_device(accuracy, mesh, "d").update(**place(batch, mesh, P("d")))
    for name, value in apart.results().items():
        np.testing.assert_allclose(value, want[name], rtol=1e-6)
    collection = Collection({"accuracy": accuracy}).update(**batch)
    assert collection.results() == {f"accuracy/{name}": x for name, x in want.items()}
    ids = (np.arange(64) % 2).astype(np.int32)
    sliced = Sliced(accuracy, 2).update(**batch, slices=ids).results()
    half = accuracy.update(**{name: x[ids == 1] for name, x in batch.items()}).results()
    np.testing.assert_allclose(list(sliced["1"].values()), list(half.values()), rtol=1e-6)


@pytest.mark.parametrize("weight", [1e-30, 1e30])
def test_of_great_and_small_weights(weight, rng):
    values = rng.normal(size=50).astype(np.float32)
    plain = Interval(metrics.Mean()).update(values).results()
    weighted = Interval(metrics.Mean()).update(values, weights=np.full(50, weight, np.float32))
    np.testing.assert_allclose(list(weighted.results().values()), list(plain.values()), rtol=1e-4)


def test_rows_of_weight_zero_do_not_count(rng):
    values = rng.normal(size=20).astype(np.float32)
    mask = rng.integers(0, 2, 20).astype(bool)
    mask[:2] = True
    kept = Interval(metrics.Mean()).update(values[mask]).results()
    masked = Interval(metrics.Mean()).update(np.where(mask, values, np.nan), weights=mask).results()
    np.testing.assert_allclose(list(masked.values()), list(kept.values()), rtol=1e-6)


def test_no_data_and_what_is_not_usable():
    empty = Interval(metrics.Mean()).results()
    assert all(np.isnan(x) for x in empty.values())
    one = Interval(metrics.Mean()).update(np.float32([2.0])).results()
    assert one["value"] == 2
    assert np.isnan(one["std_error"])
    seen = Interval(metrics.Mean()).update(np.float32([1, np.nan, 3]))
    with pytest.warns(datarax.InvalidValuesWarning):
        assert all(np.isnan(x) for n, x in seen.results().items() if n != "invalid")
    with pytest.warns(datarax.InvalidValuesWarning):
        results = seen.replace(on_invalid="exclude").results()
    assert results["value"] == 2
    np.testing.assert_allclose(results["std_error"], 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(metrics.LogAUC()), "there is no formula for LogAUC"),
        (lambda: Interval(metrics.F1(num_classes=65, average="macro")), "there is no formula"),
        (lambda: Interval(Collection({"mean": metrics.Mean()})), "there is no formula"),
        (lambda: Interval(metrics.AUROC(), method="wilson"), "is for proportions"),
        (lambda: Interval(metrics.AUROC(), method="delta"), "is that of method='delong'"),
        (lambda: Interval(metrics.Mean(), method="delong"), "is that of method='delta'"),
        (lambda: Interval(metrics.Mean(), 95), "confidence=95"),
        (lambda: Interval(metrics.Mean(), method="wilson"), "proportions"),
        (lambda: Interval(metrics.Mean(), method="wald"), "method"),
        (lambda: Interval(metrics.Mean().update(1.0)), "without data"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()


FOLDED = [
    (0, "no"),
    pytest.param(1, "float", marks=long),
    pytest.param(200, "no", marks=long),
    (200, "boolean"),
    (200, "float, and invalid rows"),
]


@pytest.mark.parametrize(("rows", "weights"), FOLDED)
def test_the_host_equals_a_program(rows, weights, rng):
    scores, x, y = (rng.normal(size=(rows, *n)).astype(np.float32) for n in ((3,), (), ()))
    labels = rng.integers(0, 3, rows).astype(np.int32)
    if weights == "float, and invalid rows":
        scores[0], x[1], labels[2] = np.nan, np.inf, 9
    w = rng.random(rows, np.float32) * (rng.random(rows) > 0.2)
    given = {"no": {}, "boolean": {"weights": w > 0}}.get(weights, {"weights": w})
    of_metrics = (
        (metrics.Mean(), (x,)),
        (metrics.Mean(), (scores,)),
        (metrics.MeanSquaredError(), (x, y)),
        (metrics.MeanAbsoluteError(num_outputs=3, multioutput="raw_values"), (scores, -scores)),
        (metrics.LogLoss(num_classes=3, from_logits=True), (scores, labels)),
        (metrics.Accuracy(num_classes=3), (scores, labels)),
        (metrics.Precision(num_classes=3, average=None, ignore_index=1), (scores, labels)),
        (metrics.ExactMatch(num_labels=3), (scores, (scores > 0.3).astype(np.int32))),
    )
    # All of them with float weights and without; half of them otherwise, as programs are many.
    some = {0: slice(0, None, 2), 1: slice(1, None, 2)}.get(rows, slice(None))
    some = slice(1, None, 2) if weights == "boolean" else some
    each = [(Interval(metric), arguments) for metric, arguments in of_metrics[some]]

    def updated(each):
        return [empty.update(*arguments, **given) for empty, arguments in each]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for on_host, on_device in zip(updated(each), jax.jit(updated)(each), strict=True):
            want = on_device.results()
            for name, value in on_host.results().items():
                np.testing.assert_allclose(value, want[name], rtol=2e-6, atol=1e-6, err_msg=name)


def test_rows_kept_apart_are_the_rows_one_by_one(rng):
    seen = 0
    for case in CASES:
        metric = case.traceable().reset()
        if isinstance(metric, Interval) or jax.eval_shape(lambda m=metric: m.as_ratio()) is None:
            continue
        arrays = case.arrays(case.inputs.draw(rng, BATCH))
        calls = metric.calls((), metric.arguments_from(arrays))
        rows = rows_of(calls)
        with np.errstate(invalid="ignore"):  # a distance may be infinite
            apart = terms_of_rows(metric, calls, rows)
            for row in (0, rows - 1):
                one = jax.tree.map(lambda x, i=row: x[i], by_rows(calls, rows))
                for x, y in zip(apart, metric.apply(one).as_ratio(), strict=True):
                    np.testing.assert_allclose(
                        x.to_float()[row], y.to_float(), rtol=1e-6, atol=1e-12, err_msg=case.id
                    )
        value = np.asarray(metric.apply(calls).reading().value)
        least, greatest = metric.value_range
        assert np.all(np.isnan(value) | (least <= value) & (value <= greatest)), case.id
        seen += 1
    assert seen > 80
