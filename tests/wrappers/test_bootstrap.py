"""`Bootstrap`: intervals that cover, and that no mesh and no batching changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Bootstrap, Collection, Sliced, metrics
from datarax.statistics import WeightedTotal
from datarax.wrappers.bootstrap import poisson_counts, thresholds
from tests.helpers import bits, make_mesh, optimized, place


def accuracy(**config):
    return Bootstrap(metrics.Accuracy(num_classes=4), **config)


def labels(rng, size):
    return {
        "preds": rng.integers(0, 4, size).astype(np.int32),
        "target": rng.integers(0, 4, size).astype(np.int32),
        "index": rng.permutation(10 * size)[:size].astype(np.int32),
    }


def counts_of(index, replicas=200, seed=0):
    """The counts of a `Bootstrap`, by its mean of the rows one at a time."""
    size = len(index)
    eye = np.eye(size, dtype=np.float32)
    total = Bootstrap(metrics.Sum(), replicas, seed=seed)
    values = [values_of(total.update(row, index=index)) for row in eye]
    return np.stack(values, 1)  # (replicas, size)


def values_of(bootstrap):
    """The values of the replicas."""
    states = jax.device_get(bootstrap.stack.states)
    size = len(jax.tree.leaves(states)[0])
    values = [jax.tree.map(lambda x, i=i: x[i], states).compute() for i in range(size)]
    return jax.tree.map(lambda *x: np.stack(x), *values)


def test_the_counts_are_poisson(rng):
    keys = jnp.asarray(rng.integers(0, 2**32, 20_000, dtype=np.uint32))
    counts = np.asarray(poisson_counts(keys, 100, int(rng.integers(2**31))))
    # A uniform variate has 2**16 values: a probability is a multiple of 2**-16.
    want = np.diff([0, *thresholds(), 2**16]) / 2**16
    exact = scipy.stats.poisson.pmf(np.arange(9), 1)
    np.testing.assert_allclose(want, exact, rtol=0, atol=2 / 2**16)
    seen = np.bincount(counts.ravel())
    assert scipy.stats.chisquare(seen, want * counts.size).pvalue > 1e-6
    # Neither rows nor replicas go together.
    for x in (counts, counts.T):
        r = np.corrcoef(x[:, :50].astype(float).T)[np.triu_indices(50, 1)]
        assert abs(r.mean()) < 5 / np.sqrt(len(x) * len(r))
        assert abs(r).max() < 6 / np.sqrt(len(x))


def test_the_mean_of_the_counts_is_one():
    # By definition: over all 2**16 values that a uniform variate has.
    uniform = np.arange(2**16)
    assert (uniform[:, None] >= np.array(thresholds())).sum() == 2**16


@pytest.mark.parametrize(
    ("metric", "draw"),
    [
        (metrics.Accuracy(num_classes=4), None),
        (metrics.F1(num_classes=4), None),
        (metrics.ConfusionMatrix(num_classes=4), None),
        (metrics.Accuracy(num_labels=3), "labels"),
        (metrics.Mean(), "values"),
        (metrics.Sum(), "values"),
        (metrics.Std(), "values"),
        (metrics.Median(), "values"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, datarax.Metric) else str(x),
)
@pytest.mark.parametrize("weighted", [False, True])
def test_replicas_are_the_metric_of_repeated_rows(metric, draw, weighted, rng):
    size, replicas = 24, 6
    index = rng.permutation(1000)[:size].astype(np.int32)
    if draw == "values":
        batch = {"values": rng.normal(3, 2, size).astype(np.float32)}
    elif draw == "labels":
        batch = {
            "preds": rng.uniform(size=(size, 3)).astype(np.float32),
            "target": rng.integers(0, 2, (size, 3)).astype(np.int32),
        }
    else:
        batch = {name: rng.integers(0, 4, size).astype(np.int32) for name in ("preds", "target")}
    if weighted:
        # In quarters, a count times a weight is exact: the median jumps where a sum is half of all.
        batch["weights"] = (rng.integers(0, 4, size) / 4).astype(np.float32)
    seen = Bootstrap(metric, replicas).update(**batch, index=index)
    got = values_of(seen)
    for counts, value in zip(counts_of(index, replicas), got, strict=True):
        rows = np.repeat(np.arange(size), counts.astype(int))
        want = metric.update(**{name: x[rows] for name, x in batch.items()}).compute()
        np.testing.assert_allclose(value, want, rtol=2e-6, atol=1e-6)


class MeanByPeak(datarax.Metric):
    """Of a user: it keeps a maximum beside other data."""

    mean = WeightedTotal()
    peak = datarax.MetricAccumulator(-jnp.inf, "max")

    def update(self, values):
        return self.replace(mean=self.mean.update(values), peak=self.peak.update(values))

    def compute(self):
        return self.mean.mean / self.peak.value


def test_replicas_within_jit_have_the_maxima_of_their_rows(rng):
    values, index = rng.uniform(1, 9, 12).astype(np.float32), np.arange(12)
    seen = jax.jit(lambda m: m.update(values, index=index))(Bootstrap(MeanByPeak(), 6))
    for counts, value in zip(counts_of(index, 6), values_of(seen), strict=True):
        rows = np.repeat(values, counts.astype(int))
        np.testing.assert_allclose(value, rows.mean() / rows.max(), rtol=1e-5)


def test_scores_of_a_table_within_jit(rng):
    batch = {"preds": rng.random((6, 3), np.float32), "target": rng.integers(0, 3, 6)}
    metric = Bootstrap(metrics.ConfusionMatrix(num_classes=3), 4)
    host, jitted = (
        update(metric, batch | {"index": np.arange(6)})
        for update in (lambda m, b: m.update(**b), jax.jit(lambda m, b: m.update(**b)))
    )
    np.testing.assert_array_equal(values_of(jitted), values_of(host))


def test_the_result_is_of_the_replicas(rng):
    seen = accuracy(replicas=199).update(**labels(rng, 500))
    values = np.asarray(values_of(seen), np.float64)
    results = seen.results()
    low, high = np.quantile(values, [0.025, 0.975], method="weibull")
    np.testing.assert_allclose([results["lower"], results["upper"]], [low, high], rtol=1e-6)
    np.testing.assert_allclose(results["std_error"], values.std(ddof=1), rtol=1e-5)
    assert seen.results().keys() == {"value", "lower", "upper", "std_error"}


def test_with_an_index_neither_batches_nor_devices_matter(rng):
    batch = labels(rng, 64)
    whole = accuracy().update(**batch)
    want = bits(whole.compute())
    parts = accuracy()
    order = rng.permutation(64)
    for rows in np.split(order, 4):
        parts = parts.update(**{name: x[rows] for name, x in batch.items()})
    assert bits(parts.compute()) == want
    merged = accuracy().update(**{n: x[:5] for n, x in batch.items()})
    merged = merged.merge(accuracy().update(**{n: x[5:] for n, x in batch.items()}))
    assert bits(merged.compute()) == want
    for kind in ("auto", "explicit"):
        mesh = make_mesh(kind, {"d": 8})
        apart = datarax.per_device(accuracy(), mesh, "d").update(**place(batch, mesh, P("d")))
        assert bits(apart.sync().compute()) == want
        glob = jax.jit(lambda m, b: m.update(**b))(accuracy(), place(batch, mesh, P("d")))
        assert bits(glob.compute()) == want


def test_the_interval_covers(rng):
    # The interval of 95 % covers the true value in 93 to 97 % of data sets. There are so many of
    # them that chance alone does not leave that range.
    trials, size, p = 4000, 400, 0.7
    hits = rng.uniform(size=(trials, size)) < p
    values = rng.gamma(4.0, 0.5, (trials, size)).astype(np.float32)  # of mean 2
    index = np.arange(trials * size).reshape(trials, size)
    metric = Bootstrap(
        Collection(
            {
                "accuracy": metrics.Accuracy(num_classes=2),
                "mean": metrics.Mean().from_outputs(values="values"),
            }
        ),
        199,
    )

    @optimized
    def interval(batch):
        return jax.lax.map(lambda one: metric.update(**one).compute(), batch)

    result = interval(
        {
            "preds": hits.astype(np.int32),
            "target": np.ones(hits.shape, np.int32),
            "values": values,
            "index": index.astype(np.int32),
        }
    )
    for name, true in (("accuracy", p), ("mean", 2.0)):
        covered = (result["lower"][name] <= true) & (true <= result["upper"][name])
        assert 0.93 <= float(covered.mean()) <= 0.97, name
    # The standard errors are those of theory.
    np.testing.assert_allclose(
        result["std_error"]["accuracy"].mean(), np.sqrt(p * (1 - p) / size), rtol=0.02
    )
    np.testing.assert_allclose(result["std_error"]["mean"].mean(), 1 / np.sqrt(size), rtol=0.02)


def test_rows_of_one_id_are_drawn_together(rng):
    # 50 users of 20 equal rows each: the error is that of 50, not of 1,000.
    users = np.repeat(np.arange(50), 20).astype(np.int32)
    values = np.repeat(rng.normal(size=50), 20).astype(np.float32)
    seen = Bootstrap(metrics.Mean(), 500)
    by_user = seen.update(values, index=users).results()["std_error"]
    np.testing.assert_allclose(by_user, values.std() / np.sqrt(50), rtol=0.15)
    assert seen.update(values).results()["std_error"] < by_user / 3


def test_without_an_index_equal_rows_count_apart():
    ones = np.ones(16, np.float32)
    seen = Bootstrap(metrics.Sum(), 50)
    for _ in range(2):
        seen = seen.update(ones)
    totals = np.asarray(values_of(seen))
    # 32 independent variates: if those of a batch were repeated, all totals would be even.
    assert (totals % 2 == 1).any()
    np.testing.assert_allclose(totals.mean(), 32, atol=5 * np.sqrt(32 / 50))


def test_without_an_index_on_devices(rng):
    mesh = make_mesh("auto", {"d": 8})
    values = np.ones(64, np.float32)
    seen = datarax.per_device(Bootstrap(metrics.Sum(), 400), mesh, "d")
    results = seen.update(place(values, mesh, P("d"))).results()
    # Were the variates of the devices the same, the error would be sqrt(8) times as large.
    np.testing.assert_allclose(results["std_error"], 8, rtol=0.25)


def test_what_is_not_usable(rng):
    values = np.array([1, 2, np.nan, 4], np.float32)
    seen = Bootstrap(metrics.Mean(), 50).update(values, index=np.arange(4))
    with pytest.warns(datarax.InvalidValuesWarning):
        results = seen.results()
    assert all(np.isnan(results[name]) for name in ("value", "lower", "upper", "std_error"))
    assert results["invalid"] == 1
    with pytest.warns(datarax.InvalidValuesWarning):
        results = seen.replace(on_invalid="exclude").results()
    clean = Bootstrap(metrics.Mean(), 50).update(values[[0, 1, 3]], index=np.array([0, 1, 3]))
    assert {n: results[n] for n in clean.results()} == clean.results()
    for empty in (Bootstrap(metrics.Mean(), 50), Bootstrap(metrics.Accuracy(num_classes=4), 50)):
        assert all(np.isnan(x) for x in empty.results().values())
    none = Bootstrap(metrics.Mean(), 50).update(
        np.zeros(0, np.float32), index=np.zeros(0, np.int32)
    )
    assert all(np.isnan(x) for x in none.results().values())


def test_rows_of_weight_zero_do_not_count(rng):
    batch = labels(rng, 32)
    mask = rng.integers(0, 2, 32).astype(bool)
    masked = accuracy().update(**batch, weights=mask)
    kept = accuracy().update(**{name: x[mask] for name, x in batch.items()})
    assert bits(masked.compute()) == bits(kept.compute())


def test_without_an_index_rows_of_weight_zero_change_no_draw(rng):
    batch = labels(rng, 64)
    del batch["index"]
    mask = rng.integers(0, 2, 64).astype(bool)
    want = accuracy(seed=3)
    for part in (slice(0, 40), slice(40, 64)):
        want = want.update(**{name: x[part][mask[part]] for name, x in batch.items()})
    seen = accuracy(seed=3).update(**{n: x[:40] for n, x in batch.items()}, weights=mask[:40])
    # Padded, because there is a program for 40 rows.
    seen = seen.update(**{n: x[40:] for n, x in batch.items()}, weights=mask[40:])
    assert bits(seen.compute()) == bits(want.compute())


def test_a_member_without_weights_keeps_its_rows(rng):
    values, mask = rng.normal(size=50).astype(np.float32), np.zeros(50, bool)
    both = {"masked": metrics.Mean(), "whole": metrics.Mean().from_outputs(weights=None)}
    results = Bootstrap(Collection(both)).update(values=values, weights=mask).results()
    assert results["std_error"]["whole"] > 0
    assert np.isnan(results["value"]["masked"])


def test_in_a_collection_and_of_slices(rng):
    batch = labels(rng, 200)
    collection = Collection({"accuracy": accuracy(), "f1": metrics.F1(num_classes=4)})
    results = collection.update(**batch).results()
    assert {"accuracy/value", "accuracy/lower", "accuracy/upper", "f1"} <= results.keys()
    assert results["accuracy/value"] == accuracy().update(**batch).results()["value"]

    ids = rng.integers(0, 3, 200).astype(np.int32)
    sliced = Bootstrap(Sliced(metrics.Accuracy(num_classes=4), 3)).update(**batch, slices=ids)
    lower, upper = (sliced.results()[end] for end in ("lower", "upper"))
    for index in range(3):
        rows = {name: x[ids == index] for name, x in batch.items()}
        want = accuracy().update(**rows).results()
        np.testing.assert_allclose(lower[str(index)], want["lower"], rtol=1e-6)
        np.testing.assert_allclose(upper[str(index)], want["upper"], rtol=1e-6)
    other = Sliced(accuracy(), 3).update(**batch, slices=ids).results()
    np.testing.assert_allclose(other["1"]["lower"], lower["1"], rtol=1e-6)


def test_checkpoint_scan_and_donation(rng):
    batches = [labels(rng, 16) for _ in range(3)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    folded = accuracy()
    step = jax.jit(lambda m, b: m.update(**b), donate_argnums=0)
    folded = jax.tree.map(jnp.array, folded)
    for batch in batches:
        folded = step(folded, batch)
    scanned, _ = jax.lax.scan(
        lambda m, b: (m.update(**b), None), jax.tree.map(jnp.asarray, accuracy()), stacked
    )
    assert bits(scanned.compute()) == bits(folded.compute())
    again = accuracy().load_state_dict(folded.state_dict())
    assert again.results() == folded.results()
    with pytest.raises(datarax.ConfigurationMismatchError, match="seed"):
        accuracy(seed=1).load_state_dict(folded.state_dict())
    assert np.isnan(folded.reset().results()["value"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bootstrap(metrics.Mean(), 1), "replicas=1"),
        (lambda: Bootstrap(metrics.Mean(), 2.5), "replicas=2.5"),
        (lambda: Bootstrap(metrics.Mean(), confidence=1.0), "confidence=1.0"),
        (lambda: Bootstrap(metrics.Mean(), confidence=np.nan), "confidence=nan"),
        (lambda: Bootstrap(metrics.Mean(), seed=0.5), "seed=0.5"),
        (lambda: Bootstrap("mean"), "expects a datarax.Metric"),
        (lambda: Bootstrap(metrics.Mean().update(1.0)), "without data"),
        (lambda: Bootstrap(metrics.Mean()).update(np.ones(3), index=np.arange(2)), "3 rows"),
        (lambda: Bootstrap(metrics.Mean()).update(np.ones(3), index=np.ones(3)), "float64"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()


class Peak(datarax.Metric):
    """Of a user: only the way of merging says that it is an extreme."""

    peak = datarax.MetricAccumulator(-jnp.inf, "max")
    invalid = datarax.MetricAccumulator(0)

    def update(self, values, *, weights=None):
        return self.replace(peak=self.peak.update(values))

    def compute(self):
        return self.peak.value


EXTREMES = [
    metrics.Max(),
    metrics.Min(),
    metrics.MinMax(),
    metrics.MaxError(),
    metrics.MaxError(num_outputs=2),
    metrics.Norm(ord=float("inf")),
    metrics.Cardinality(),
    Peak(),
    Sliced(metrics.Max(), 2),
    datarax.Window(metrics.Max(), 2),
    datarax.Transformed(metrics.Max()),
    datarax.Classwise(metrics.MaxError(num_outputs=2, multioutput="raw_values"), ("a", "b")),
    Collection({"a": metrics.Max(), "b": Collection({"c": metrics.Min()})}),
    Sliced(Collection({"a": metrics.Max(), "b": metrics.Mean()}), 2),
]


@pytest.mark.parametrize("metric", EXTREMES, ids=repr)
def test_an_extreme_has_no_interval_by_resampling(metric):
    for wrap in (Bootstrap, datarax.Compare, lambda metric: Bootstrap(Collection({"x": metric}))):
        with pytest.raises(datarax.MetricInputError, match="no replica can go beyond the data"):
            wrap(metric)


def test_metrics_that_keep_maxima_beside_other_data_are_no_extremes():
    for metric in (
        *(metrics.Sum(), metrics.GeometricMean(), metrics.AUROC(), metrics.Median()),
        *(metrics.NormalizedRootMeanSquaredError(), metrics.KendallTau(), metrics.LogLoss()),
    ):
        assert not metric.is_extreme
        Bootstrap(metric, 2)


@pytest.mark.parametrize("jitted", [False, True])
def test_an_extreme_in_a_collection_has_a_value_only(rng, jitted):
    values = rng.normal(size=40).astype(np.float32)
    inner = Collection({"least": metrics.Min(), "std": metrics.Std()})
    both = Collection(
        {"inner": inner, "ends": metrics.MinMax(), "mean": metrics.Mean(), "peak": Peak()}
    )
    seen = Bootstrap(both, 20).update(values=values, index=np.arange(40))
    alone = Bootstrap(metrics.Mean(), 20).update(values, index=np.arange(40)).results()
    read = jax.jit(lambda seen: seen.compute())(seen) if jitted else seen.results()
    assert read["value"].keys() == {
        *("inner/least", "inner/std", "ends/min", "ends/max", "mean", "peak")
    }
    assert read["value"]["ends/max"] == read["value"]["peak"] == values.max()
    for name in ("lower", "upper", "std_error"):
        assert read[name].keys() == {"inner/std", "mean"}
        np.testing.assert_allclose(read[name]["mean"], alone[name], rtol=1e-6)
    pair = {"values_a": values, "values_b": values + 1}
    compared = datarax.Compare(both, replicas=20).update(**pair).results()
    assert compared["difference"].keys() == read["value"].keys()
    assert compared["lower"].keys() == compared["upper"].keys() == {"inner/std", "mean"}
