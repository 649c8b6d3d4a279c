"""`Sliced`: each slice is the metric of its rows, and overall is the metric of all."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, Interval, Sliced, metrics
from datarax.testing import assert_within_ulps, check_metric
from tests.helpers import make_mesh, place

SLICES = 3


def with_ids(rng, batch, slices=SLICES, by="slices", low=0):
    size = len(next(iter(batch.values())))
    return batch | {by: rng.integers(low, slices, size).astype(np.int32)}


def rows_of(batch, rows, by="slices"):
    return {name: x[rows] for name, x in batch.items() if name != by}


def accuracy(**config):
    return Sliced(metrics.Accuracy(num_classes=4), SLICES, **config)


def labels(rng, size):
    return {
        "preds": rng.integers(0, 4, size).astype(np.int32),
        "target": rng.integers(0, 4, size).astype(np.int32),
    }


def test_laws(rng):
    batches = [with_ids(rng, labels(rng, 16)) for _ in range(3)]
    members = {
        "mean": metrics.Mean().from_outputs(values="target"),
        "accuracy": metrics.Accuracy(num_classes=4),
        "confusion": metrics.ConfusionMatrix(num_classes=4),
        "std": metrics.Std().from_outputs(values="preds"),
    }
    sliced = Sliced(Collection(members), SLICES)
    check_metric(sliced, batches, empty=sliced.compute(), state_atol=1e-5, on_host=True)


def test_nested_slices_are_the_cross(rng):
    nested = Sliced(accuracy(by="language"), 2, by="domain")
    batches = [
        with_ids(rng, with_ids(rng, labels(rng, 32), SLICES, "language"), 3, "domain")
        for _ in range(3)
    ]
    for batch in batches:
        nested = nested.update(**batch)
    got, plain = nested.results(), metrics.Accuracy(num_classes=4)

    def want(domain, language):
        metric = plain
        for batch in batches:
            rows = np.ones(32, bool)
            for by, index in (("domain", domain), ("language", language)):
                rows &= True if index is None else batch[by] == index
            metric = metric.update(batch["preds"][rows], batch["target"][rows])
        return metric.results()

    assert got["overall"]["overall"] == want(None, None)
    for domain in range(2):
        assert got[str(domain)]["overall"] == want(domain, None)
        for language in range(SLICES):
            assert got[str(domain)][str(language)] == want(domain, language)
            assert got["overall"][str(language)] == want(None, language)
    assert got["unknown"] == sum(int((batch["domain"] == 2).sum()) for batch in batches)


def test_ids_out_of_range_count_overall_only(rng):
    batch = labels(rng, 6) | {"slices": np.array([0, 1, 2, 3, -1, 2**31 - 1], np.int32)}
    metric = accuracy(names=("de", "fr", "en")).update(**batch)
    assert metric.results()["unknown"] == 3
    hits = batch["preds"] == batch["target"]
    assert metric.results()["overall"] == np.float32(hits.mean())
    assert [metric.results()[name] for name in ("de", "fr", "en")] == list(map(float, hits[:3]))
    padded = accuracy().update(**batch, weights=np.array([1, 1, 1, 0, 1, 0], np.float32))
    assert padded.results()["unknown"] == 1
    assert "unknown" not in accuracy().update(**rows_of(batch, slice(3)), slices=1).results()


def test_an_id_out_of_range_among_fewer_rows_than_slices():
    seen = Sliced(metrics.Mean(), 50, by="slices")
    seen = seen.update(np.float32([1, 2, 3]), slices=np.int32([1, 99, 2]))
    results = seen.results()
    assert (results["1"], results["2"], results["overall"]) == (1, 3, 2)
    assert np.isnan(results["0"])


def test_an_id_of_any_integer_dtype(rng):
    batch = labels(rng, 8)
    for dtype in (np.uint8, np.int8, np.uint32, np.int64, np.bool_):
        ids = (np.arange(8) % 2).astype(dtype)
        got = Sliced(metrics.Accuracy(num_classes=4), 300).update(**batch, slices=ids).results()
        assert got["1"] == (batch["preds"] == batch["target"])[1::2].mean()


def test_invalid_rows_belong_to_their_slice():
    mean = Sliced(metrics.Mean(), 2).update(
        np.array([1.0, np.nan, 3.0], np.float32), slices=np.array([0, 1, 0])
    )
    with pytest.warns(datarax.InvalidValuesWarning, match="1 values or examples"):
        results = mean.results()
    assert (results["0"], results["invalid"]) == (2.0, 1)
    assert np.isnan(results["1"])
    assert np.isnan(results["overall"])
    with pytest.warns(datarax.InvalidValuesWarning):
        assert mean.replace(on_invalid="exclude").results()["overall"] == 2.0
    with pytest.raises(datarax.InvalidValuesError):
        mean.replace(on_invalid="raise").results()
    assert int(mean.invalid_count()) == 1


def test_counts_are_exact_past_2_to_the_24(rng):
    total = Sliced(Collection({"sum": metrics.Sum()}), 2)
    values = np.array([2**30, 2**30 + 1, 3], np.int32)
    step = jax.jit(lambda m: m.update(values=values, slices=np.array([0, 0, 1])))
    for _ in range(5):
        total = step(total)
    assert total.results()["0"]["sum"] == 5 * (2**31 + 1)
    assert total.results()["1"]["sum"] == 15


def test_sums_of_a_slice_are_not_absorbed_by_those_of_another():
    values = np.array([1e30, 1e-30, 3e-30, 1e30], np.float32)
    got = Sliced(metrics.Mean(), 2).update(values, slices=np.array([0, 1, 1, 0])).results()
    assert_within_ulps(got["0"], float(values[0]), 1)
    assert_within_ulps(got["1"], (float(values[1]) + float(values[2])) / 2, 1)


def test_many_rows_are_folded_in_parts(rng):
    batch = with_ids(rng, labels(rng, 20_001), 5)
    got = Sliced(metrics.Accuracy(num_classes=4), 5).update(**batch).results()
    hits = batch["preds"] == batch["target"]
    for index in range(5):
        assert got[str(index)] == np.float32(hits[batch["slices"] == index].mean())


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_devices_as_on_one(kind, rng):
    mesh = make_mesh(kind, {"d": 8})
    batch = with_ids(rng, labels(rng, 64), SLICES + 1)
    one = accuracy().update(**batch)
    apart = datarax.per_device(accuracy(), mesh, "d").update(**place(batch, mesh, P("d")))
    whole = jax.jit(lambda m, b: m.update(**b))(accuracy(), place(batch, mesh, P("d")))
    for got in (apart, whole):
        assert got.results() == one.results()


def test_sync_in_shard_map(rng):
    mesh = make_mesh("auto", {"d": 8})
    batch = with_ids(rng, labels(rng, 64), SLICES + 1)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def step(metric, batch):
        return metric.update(**batch).sync("d")

    assert step(accuracy(), batch).results() == accuracy().update(**batch).results()


def test_many_slices_are_synced_in_parts(rng):
    # More than a megabyte on all devices together.
    mesh = make_mesh("auto", {"d": 8})
    batch = with_ids(rng, labels(rng, 64), 20)
    metric = Sliced(metrics.ConfusionMatrix(num_classes=32), 20)
    one = metric.update(**batch).compute()
    got = datarax.per_device(metric, mesh, "d").update(**place(batch, mesh, P("d"))).compute()
    np.testing.assert_array_equal(got["slices"], one["slices"])
    np.testing.assert_array_equal(got["overall"], one["overall"])


def test_in_a_collection_by_name(rng):
    collection = Collection(
        {
            "accuracy": accuracy(names=("de", "fr", "en"), by="language"),
            "loss": Sliced(metrics.Mean(), 2, by="domain").from_outputs(
                values="loss", domain="source"
            ),
        }
    )
    collection = collection.update(
        **labels(rng, 6), language=np.arange(6) % 3, loss=np.arange(6.0), source=np.arange(6) // 3
    )
    results = collection.results()
    assert {"accuracy/overall", "accuracy/de", "accuracy/en", "loss/0", "loss/1"} < results.keys()
    assert (results["loss/0"], results["loss/1"]) == (1.0, 4.0)
    assert collection.compute()["accuracy/slices"].shape == (3,)
    with pytest.raises(datarax.MetricInputError, match="'language'"):
        collection.update(**labels(rng, 2), loss=np.ones(2), source=np.ones(2, np.int32))


@pytest.mark.parametrize("rollup", [None, "/"])
def test_checkpoints_and_copies(rng, rollup):
    empty = accuracy(names=("a/x", "a/y", "c"), rollup=rollup)
    metric = empty.update(**with_ids(rng, labels(rng, 16)))
    for again in (
        empty.load_state_dict(metric.state_dict()),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ):
        assert again.results() == metric.results()
        assert again.merge(metric).results() == metric.results()
    with pytest.raises(datarax.ConfigurationMismatchError, match="names"):
        accuracy().load_state_dict(metric.state_dict())


def test_one_collection_window_at_a_time(rng):
    batch = with_ids(rng, labels(rng, 16))
    metric = accuracy().update(**batch)
    with datarax.AsyncMetricCollector(metric) as collector:
        reset = collector.schedule_collection(metric)
        assert collector.collect_results() == metric.results()
    assert np.isnan(reset.results()["overall"])


@pytest.mark.parametrize("count", [0, 1])
def test_short_batches(count, rng):
    batch = with_ids(rng, labels(rng, count))
    for metric in (accuracy(), Sliced(metrics.ConfusionMatrix(num_classes=4), SLICES)):
        results = metric.update(**batch).results()
        want = metric.metric.update(**rows_of(batch, slice(None))).results()
        np.testing.assert_array_equal(results["overall"], want)


def test_what_takes_no_rows():
    tree = metrics.TreeHealth(like={"a": jnp.ones(3)})
    with pytest.raises(datarax.MetricInputError, match="no rows"):
        Sliced(tree, 2).update({"a": jnp.ones(3)}, slices=np.zeros(3, np.int32))


def test_a_metric_without_weights(rng):
    class Largest(datarax.Metric):
        peak = datarax.MetricAccumulator(-np.inf, "max")

        def update(self, values):
            return self.replace(peak=self.peak.update(values))

        def compute(self):
            return self.peak.value

    values = rng.normal(size=10).astype(np.float32)
    got = Sliced(Largest(), 2).update(values, slices=np.arange(10) % 2).results()
    assert (got["0"], got["1"]) == (values[::2].max(), values[1::2].max())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sliced(metrics.Mean(), 0), "num_slices=0"),
        (lambda: Sliced(metrics.Mean(), 2, names=("a",)), "1 names"),
        (lambda: Sliced(metrics.Mean(), 2, names=("a", "a")), "1 differ"),
        (lambda: Sliced(metrics.Mean(), 2, names=("a", "overall")), "'overall'"),
        (lambda: Sliced(metrics.Mean(), 2, by="values"), "by='values'"),
        (lambda: Sliced(metrics.Mean().update(1.0), 2), "without data"),
        (lambda: Sliced("accuracy", 2), "expects a datarax.Metric"),
        (lambda: Sliced(Sliced(metrics.Mean(), 2), 3), "by='slices'"),
        (lambda: Sliced(metrics.Mean(), 2).update(np.ones(3)), "slices="),
        (lambda: Sliced(metrics.Mean(), 2).update(np.ones(3), slices=np.zeros(2, int)), "3 rows"),
        (
            lambda: Sliced(metrics.Mean(), 2).update(np.ones(3), slices=np.ones((3, 3), bool)),
            r"\(3, 2\)",
        ),
        (lambda: Sliced(metrics.Mean(), 2).update(np.ones(3), slices=np.zeros(3)), "float64"),
        (
            lambda: Sliced(metrics.Mean(), 2).update(np.ones(3), slices=np.zeros((3, 2), int)),
            r"arrays of shapes \(3,\) with an id for each value of shape \(3, 2\)",
        ),
        (lambda: Sliced(metrics.Mean(), 2, rollup="/"), "give names="),
        (lambda: Sliced(metrics.Mean(), 1, names=("a",), rollup=""), "rollup=''"),
        (lambda: Sliced(metrics.Mean(), 1, names=("overall/a",), rollup="/"), "'overall'"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()


@pytest.mark.filterwarnings("ignore:.*all replicas have the same value")
@pytest.mark.parametrize("compiled", [False, True])
def test_slices_that_overlap(compiled, rng):
    rows, names = 40, ("code", "math", "long")
    batch, domain = labels(rng, rows), rng.integers(0, 2, rows).astype(np.int32)
    tags, weights = rng.random((rows, 3)) < 0.4, rng.random(rows).astype(np.float32)
    tags[0] = False
    metric = metrics.F1(num_classes=4)
    tagged = Sliced(metric, 3, names=names, by="tags")
    nested = Sliced(tagged, 2, names=("a", "b"), by="domain")
    drawn = datarax.Bootstrap(nested, 4)

    def updated(batch, tags, domain, weights):
        given = batch | {"tags": tags, "weights": weights}
        return (
            tagged.update(**given),
            nested.update(**given, domain=domain),
            drawn.update(**given, domain=domain, index=np.arange(rows)),
        )

    results = [
        each.results()
        for each in (jax.jit(updated) if compiled else updated)(batch, tags, domain, weights)
    ]

    def want(metric, mask, **given):
        return metric.update(**rows_of(batch, mask), weights=weights[mask], **given).results()

    assert results[0].keys() == {*names, "overall"}  # a row without tags is not unknown
    for i, name in enumerate(names):
        mask = tags[:, i]
        np.testing.assert_allclose(results[0][name], want(metric, mask), rtol=1e-5)
        for j, outer in enumerate("ab"):
            mask = tags[:, i] & (domain == j)
            np.testing.assert_allclose(results[1][outer][name], want(metric, mask), rtol=1e-5)
            spread = want(datarax.Bootstrap(metric, 4), mask, index=np.flatnonzero(mask))
            for end, value in spread.items():
                np.testing.assert_allclose(results[2][end][outer][name], value, rtol=1e-5)


def test_slices_that_overlap_on_devices(rng):
    values, tags = rng.normal(size=39).astype(np.float32), rng.random((39, 2)) < 0.4
    mean = datarax.Interval(metrics.Mean())
    on_devices = datarax.per_device(Sliced(mean, 2, by="tags"), make_mesh("auto", {"d": 8}), "d")
    results = on_devices.update(values, tags=tags).results()  # with a padded row
    for i in range(2):
        for name, value in mean.update(values[tags[:, i]]).results().items():
            np.testing.assert_allclose(results[str(i)][name], value, rtol=1e-5)


@pytest.mark.parametrize("number", [3, 40])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_infinite_loss_counts_in_its_own_slices_only(compiled, number, rng):
    rows = 24
    preds, target = rng.normal(size=(rows, 4)).astype(np.float32), np.arange(rows) % 4
    preds[5, target[5]] = -np.inf  # the loss of this row is infinite
    tags, domain = rng.random((rows, number)) < 0.5, np.arange(rows, dtype=np.int32) % 2
    tags[5, 0], tags[5, 1] = True, False
    sizes = rng.integers(1, 5, rows).astype(np.int32)
    metric = metrics.BitsPerByte()
    nested = Sliced(Sliced(metric, number, by="tags"), 2, by="domain")
    sliced = datarax.Collection({"tags": Sliced(metric, number, by="tags"), "both": nested})

    def updated(*given):
        names = "preds", "target", "num_bytes", "tags", "domain"
        return sliced.update(**dict(zip(names, given, strict=True)))

    given = preds, target, sizes, tags, domain
    results = (jax.jit(updated) if compiled else updated)(*given).results()
    assert results["tags/0"] == results["both/1/0"] == np.inf
    for i in range(number):
        for name, mask in ((f"tags/{i}", tags[:, i]), (f"both/1/{i}", tags[:, i] & (domain == 1))):
            want = metric.update(preds[mask], target[mask], num_bytes=sizes[mask]).results()
            np.testing.assert_allclose(results[name], want, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_token_has_its_slice(compiled, rng):
    shape, vocabulary = (6, 5), 7
    probs = rng.dirichlet(np.ones(vocabulary), shape).astype(np.float32)
    target = rng.integers(0, vocabulary, shape).astype(np.int32)
    mask = rng.random(shape) < 0.8
    ids = rng.integers(-1, SLICES + 1, shape).astype(np.int32)
    documents = rng.integers(0, 2, shape[0]).astype(np.int32)
    one = datarax.Collection({"loss": metrics.LogLoss(num_classes=vocabulary)})
    sliced = Sliced(one, SLICES, by="token")
    nested = Sliced(sliced, 2, by="document")
    interval = Sliced(Interval(metrics.Mean()), SLICES)

    def updated(probs, target, mask, ids, documents):
        given = {"preds": probs, "target": target, "weights": mask, "token": ids}
        return (
            sliced.update(**given),
            nested.update(**given, document=documents),
            interval.update(probs[..., 0], slices=ids, weights=mask),
        )

    run = jax.jit(updated) if compiled else updated
    results = [x.results() for x in run(probs, target, mask, ids, documents)]

    def loss(chosen):
        return one.update(preds=probs, target=target, weights=mask & chosen).results()["loss"]

    for i in range(SLICES):
        np.testing.assert_allclose(results[0][str(i)]["loss"], loss(ids == i), rtol=1e-6)
        for j in range(2):
            want = loss((ids == i) & (documents == j)[:, None])
            np.testing.assert_allclose(results[1][str(j)][str(i)]["loss"], want, rtol=1e-6)
        want = Interval(metrics.Mean()).update(probs[..., 0][mask & (ids == i)]).results()
        for name, value in want.items():
            np.testing.assert_allclose(results[2][str(i)][name], value, rtol=1e-5, err_msg=name)
    assert results[0]["overall"]["loss"] == pytest.approx(loss(True), rel=1e-6)
    assert results[0]["unknown"] == (mask & ((ids < 0) | (ids >= SLICES))).sum()


@pytest.mark.parametrize("overlapping", [False, True])
def test_groups_of_names(overlapping, rng):
    names, rows = ("web/en/a", "web/en/b", "web/de", "web", "code"), 32
    groups = {"web": [0, 1, 2, 3], "web/en": [0, 1]}
    values = rng.normal(size=rows).astype(np.float32)
    ids = rng.permutation(np.arange(rows) % 6).astype(np.int32)  # the last one is of no slice
    tags = rng.random((rows, 5)) < 0.3 if overlapping else ids[:, None] == np.arange(5)
    given = tags if overlapping else ids
    metric = Sliced(metrics.Std(), 5, names=names, rollup="/")
    mesh = make_mesh("auto", {"data": 8})
    for empty in (metric, datarax.per_device(metric, mesh, "data")):
        seen = empty.update(values, slices=given).update(values[::-1], slices=given[::-1])
        results = seen.results()
        chosen = {name: tags[:, i] for i, name in enumerate(names)}
        chosen |= {name: tags[:, below].any(1) for name, below in groups.items()}
        for name, some in chosen.items():
            expected = np.tile(values[some], 2).std(dtype=np.float64)
            np.testing.assert_allclose(results[name], expected, rtol=1e-5)
        assert set(results) - {"unknown"} == {*names, *groups, "overall"}
        assert seen.compute()["slices"].shape == (5,)
    again = metric.load_state_dict(metric.update(values, slices=given).state_dict())
    drawn = datarax.Bootstrap(metric, 4).update(values, slices=given, index=np.arange(rows))
    for name, value in again.results().items():
        if name != "unknown":
            np.testing.assert_allclose(drawn.results()["value"][name], value, rtol=1e-6)


def test_moments_by_tags_write_few_arrays_of_all_tags_and_rows(rng):
    rows, tags = 2048, 64
    x, y = rng.normal(size=(2, rows)).astype(np.float32)
    given = Sliced(metrics.R2Score(), tags), x, y, rng.random((rows, tags)) < 0.1
    update = jax.jit(lambda metric, x, y, tags: metric.update(x, y, slices=tags))
    memory = update.lower(*given).compile().memory_analysis().temp_size_in_bytes
    # Of float64: the mask for a product of matrices. It was 7 arrays with an array for each sum.
    assert memory < 5 * 8 * rows * tags
