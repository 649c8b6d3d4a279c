"""`Decayed`: data loses half of its weight in so many updates, on any devices, for any time."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Collection, Decayed, Sliced, Window, metrics
from datarax.algebra.pytrees import children_of, leaf_states
from datarax.metrics.clustering.point_sample import UniformSample
from datarax.metrics.regression.joint_bins import PairRows
from datarax.statistics.buffer import Rows
from tests.helpers import bits, collectives_in, long, make_mesh, place
from tests.registry import GROUPS, of_each_statistic
from tests.wrappers.over_time import SUBJECTS, value_of

HALF_LIFE, ROWS = 1.7, 16


def folded(metric, batches):
    for batch in batches:
        metric = metric.update(**batch)
    return metric


def draws(rng, subject, updates, rows=ROWS):
    return [subject.draw(rng, rows) for _ in range(updates)]


def weights_of(updates, half_life=HALF_LIFE):
    return 2.0 ** (-np.arange(updates)[::-1] / half_life)


@pytest.mark.parametrize("name", SUBJECTS)
def test_older_updates_weigh_less(name, rng):
    subject = SUBJECTS[name]
    metric, batches = Decayed(subject.metric, HALF_LIFE), draws(rng, subject, 6)
    for k, batch in enumerate(batches, 1):
        metric = metric.update(**batch)
        want = value_of(subject, batches[:k], weights_of(k))
        np.testing.assert_allclose(metric.compute(), want, rtol=1e-5)


def test_sums_are_those_of_the_decayed_weights(rng):
    batches = [rng.integers(-(2**30), 2**30, 4).astype(np.int32) for _ in range(5)]
    total = Decayed(metrics.Sum(), 3)
    for batch in batches:
        total = total.update(batch)
    sums = [batch.astype(np.float64).sum() for batch in batches]
    want = np.dot(weights_of(5, 3), sums)
    assert total.results() == pytest.approx(want, rel=1e-7, abs=1e-7 * 2**30)


@pytest.mark.parametrize(
    "metric",
    [
        datarax.Interval(metrics.Mean()),
        datarax.Interval(metrics.Mean(), clusters=8),
        datarax.Interval(metrics.AUROC()),
        datarax.Compare(metrics.Mean(), method="formula"),
    ],
    ids=repr,
)
def test_intervals_do_not_decay(metric):
    """Squares of weights would need the square of the factor: the error was too wide."""
    with pytest.raises(datarax.MetricTypeError, match="cannot be multiplied by a factor"):
        Decayed(metric, 2)
    Decayed(datarax.Compare(metrics.Mean(), replicas=4), 2)


_DECAYS = of_each_statistic(GROUPS)


@pytest.mark.parametrize("name", _DECAYS)
def test_each_statistic_decays_or_says_that_it_cannot(name, rng):
    case = _DECAYS[name][0]
    config = {"on_invalid": "exclude"} if case.inputs.spoil else {}
    metric = case.traceable(**config)
    rows = [state for state in leaf_states(metric) if isinstance(state, Rows | UniformSample)]
    kept = any(not isinstance(state, PairRows) for state in rows)  # those are beside a table
    if kept or not metric.weights_repeat:
        with pytest.raises(datarax.MetricTypeError, match="cannot be multiplied by a factor"):
            Decayed(metric, 2)
        return
    decayed = Decayed(metric, 2)
    # No quarter of an odd number is whole, so no edge of equal mass is a matter of rounding.
    rows = ROWS + 1
    drawn = [case.arrays(case.inputs.draw(rng, rows)) for _ in range(3)]
    batches = [metric.arguments_from(batch) for batch in drawn]
    decayed, plain = folded(decayed, batches), metric
    if "weights" not in {route.argument for route in metric.routes()}:
        return
    for batch, weight in zip(batches, (0.5, 2**-0.5, 1.0), strict=True):
        plain = plain.update(**batch, weights=np.full(rows, weight, np.float32))
    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)
    jax.tree.map(close, decayed.compute(), plain.compute())


def test_an_update_without_rows_is_an_update():
    metric = Decayed(metrics.Sum(), 1).update(np.array([8.0], np.float32))
    metric = metric.update(np.array([3.0], np.float32), weights=np.zeros(1, np.float32))
    assert metric.results() == 4.0
    assert metric.update(np.zeros(0, np.float32)).results() == 2.0


def test_invalid_data_is_not_forgotten():
    metric = Decayed(metrics.Mean(), 1).update(np.array([1.0, np.nan], np.float32))
    for _ in range(3):
        metric = metric.update(np.ones(1, np.float32))
    assert int(metric.invalid_count()) == 1
    with pytest.warns(datarax.InvalidValuesWarning, match="1 values or examples"):
        assert np.isnan(metric.results())
    with pytest.warns(datarax.InvalidValuesWarning):
        assert metric.replace(on_invalid="exclude").results() == 1.0


def after(metric, updates, batch):
    """The metric after as many updates with one batch, in one program."""
    metric = jax.tree.map(jnp.asarray, metric)
    return jax.jit(lambda m: jax.lax.fori_loop(0, updates, lambda _, m: m.update(**batch), m))(
        metric
    )


@pytest.mark.parametrize("half_life", [1000.0, 1e6 / 3])
def test_a_million_updates_do_not_drift(half_life):
    # The total of constant values is a geometric sum; the first batch is what is left of it.
    updates = 1_000_000
    first = Decayed(metrics.Sum(), half_life).update(np.array([2.0**20], np.float32))
    total = after(first, updates, {"values": np.array([0.1], np.float32)}).results()
    decay = 2.0 ** (-1 / half_life)
    value = float(np.float32(0.1))
    want = value * (1 - decay**updates) / -np.expm1(-np.log(2) / half_life)
    want += 2.0**20 * 2.0 ** (-updates / half_life)
    assert total == pytest.approx(want, rel=1e-8)


def test_a_million_updates_without_data_underflow_into_no_nonsense():
    nothing = np.zeros(2, np.float32)
    mean = Decayed(metrics.Mean(), 1).update(np.array([3.0, 5.0], np.float32))
    mean = after(mean, 1_000_000, {"values": np.ones(2, np.float32), "weights": nothing})
    assert mean.compute() == 4.0  # the quotient of sums that are both below 2**-1000000
    assert after(mean, 1, {"values": np.ones(2, np.float32)}).compute() == 1.0
    std = Decayed(metrics.Std(), 1).update(np.array([3.0, 5.0], np.float32))
    for updates, value in ((100, 1.0), (100, np.nan), (1_000_000, np.nan)):
        std = after(std, updates, {"values": np.ones(2, np.float32), "weights": nothing})
        np.testing.assert_array_equal(std.compute(), np.float32(value))
    # A class without data, beside one that has some in each update.
    recall = Decayed(metrics.Recall(num_classes=3, average=None), 1)
    recall = recall.update(np.array([1, 1, 2, 0]), np.array([1, 1, 1, 0]))
    zeros = {"preds": np.zeros(2, np.int32), "target": np.zeros(2, np.int32)}
    for updates, value in ((90, 2 / 3), (1_000_000, 0)):
        recall = after(recall, updates, zeros)
        np.testing.assert_array_equal(recall.compute(), np.array([1, value, 0], np.float32))


def decayed(rng, updates):
    subject = SUBJECTS["accuracy"]
    return folded(Decayed(subject.metric, HALF_LIFE), draws(rng, subject, updates))


def assert_near(a, b):
    assert int(a.stack.number) == int(b.stack.number)
    np.testing.assert_allclose(a.compute(), b.compute(), rtol=1e-6)


@pytest.mark.parametrize("updates", [(4, 4, 4), (1, 5, 3), (0, 2, 7), (9, 8, 1)], ids=str)
def test_merging_is_associative_commutative_and_has_an_identity(updates, rng):
    a, b, c = (decayed(rng, n) for n in updates)
    assert bits(a.merge(b).canonical()) == bits(b.merge(a).canonical())
    assert_near(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert bits(a.merge(a.reset()).canonical()) == bits(a.canonical())


@pytest.mark.parametrize("behind", [0, 1, 3, 1000])
def test_a_merge_decays_the_one_with_fewer_updates(behind, rng):
    mean, half_life = metrics.Sum(), 7.3
    older = Decayed(mean, half_life).update(np.array([2.0**30], np.float32))
    newer = after(Decayed(mean, half_life), 1 + behind, {"values": np.zeros(1, np.float32)})
    want = 2.0**30 * 2.0 ** (-behind / half_life)
    for merged in (older.merge(newer), newer.merge(older)):
        assert merged.results() == pytest.approx(want, rel=1e-12)
        assert int(merged.stack.number) == 1 + behind


@pytest.mark.parametrize("half_life", [1e-30, 0.37, 1, 64, 1e30])
def test_any_half_life(half_life):
    total = Decayed(metrics.Sum(), half_life)
    for _ in range(3):
        total = total.update(np.array([4.0], np.float32))
    want = sum(4 * 2.0 ** (-k / half_life) if k / half_life < 1000 else 0 for k in range(3))
    assert total.results() == pytest.approx(want, rel=1e-12)
    later = Decayed(metrics.Sum(), half_life).update(np.array([0.0], np.float32))
    for _ in range(5):
        later = later.update(np.array([0.0], np.float32))
    want = sum(4 * 2.0 ** (-k / half_life) if k / half_life < 1000 else 0 for k in range(3, 6))
    assert total.merge(later).results() == pytest.approx(want, rel=1e-12)


def test_jit_scan_and_donation_equal_updates_one_by_one(rng):
    subject = SUBJECTS["f1"]
    batches = draws(rng, subject, 7)
    empty = Decayed(subject.metric, HALF_LIFE)
    want = folded(empty, batches)
    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}

    @jax.jit
    def scanned(metric, stacked):
        return jax.lax.scan(lambda m, batch: (m.update(**batch), None), metric, stacked)[0]

    assert bits(scanned(empty, stacked)) == bits(want)
    traces = []

    @partial(jax.jit, donate_argnums=0)
    def step(metric, batch):
        traces.append(1)
        return metric.update(**batch)

    metric = jax.tree.map(jnp.array, empty)
    for batch in batches:
        metric = step(metric, batch)
    assert bits(metric) == bits(want)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("name", "kind"), [("std", "explicit"), pytest.param("auroc", "auto", marks=long)]
)
def test_on_devices_as_on_one(name, kind, rng):
    mesh, subject = make_mesh(kind, {"d": 8}), SUBJECTS[name]
    batches = draws(rng, subject, 4)
    empty = Decayed(subject.metric, HALF_LIFE)
    apart, whole = datarax.per_device(empty, mesh, "d"), empty
    step = jax.jit(lambda m, b: m.update(**b))
    for batch in batches:
        batch = place(batch, mesh, P("d"))
        apart, whole = apart.update(**batch), step(whole, batch)
    want = folded(empty, batches).results()
    assert whole.results() == pytest.approx(want, rel=2e-6)
    assert apart.results() == pytest.approx(want, rel=2e-6)
    assert collectives_in(jax.jit(lambda m: m.sync()).lower(apart).compile().as_text())


def test_per_device_keeps_the_number_of_the_update(rng):
    mesh, subject = make_mesh("auto", {"d": 8}), SUBJECTS["accuracy"]
    batches = draws(rng, subject, 4)
    before = folded(Decayed(subject.metric, HALF_LIFE), batches[:2])
    apart = datarax.per_device(before, mesh, "d")
    for batch in batches[2:]:
        apart = apart.update(**place(batch, mesh, P("d")))
    assert apart.results() == pytest.approx(folded(before, batches[2:]).results(), rel=1e-6)
    assert int(children_of(apart.sync())["stack"].number) == 4
    update = jax.jit(lambda m, b: m.update(**b)).lower(apart, place(batches[0], mesh, P("d")))
    assert collectives_in(update.compile().as_text()) == {}
    sync = jax.jit(lambda m: m.sync()).lower(apart).compile()
    assert collectives_in(sync.as_text()) == {"all-reduce": 1}


def test_a_replicated_metric_goes_on_inside_shard_map(rng):
    mesh, subject = make_mesh("explicit", {"d": 4, "m": 2}), SUBJECTS["accuracy"]

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def step(metric, batch):
        return metric.update(**batch).sync("d")

    metric = want = Decayed(subject.metric, HALF_LIFE)
    for batch in draws(rng, subject, 5):
        metric, want = step(metric, place(batch, mesh, P("d"))), want.update(**batch)
        assert_near(metric, want)


def test_devices_that_lag_decay_to_the_newest_update(rng):
    # In parts, as the copies take more than a megabyte; the bins are merged after the decay.
    mesh, subject = make_mesh("auto", {"d": 8}), SUBJECTS["auroc"]
    batch = subject.draw(rng, 128)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def step(metric, batch):
        late = jax.lax.axis_index("d") % 2 == 1
        once = metric.varying("d").update(**batch)
        nothing = {name: x[:0] for name, x in batch.items()}
        twice = once.update(**nothing).update(**nothing)
        return jax.tree.map(lambda x, y: jnp.where(late, x, y), once, twice).sync("d")

    got = step(Decayed(subject.metric, 1), batch)
    assert int(got.stack.number) == 3
    np.testing.assert_allclose(got.compute(), subject.metric.update(**batch).compute(), rtol=1e-6)


def test_in_a_collection_and_nested_with_slices(rng):
    subject = SUBJECTS["accuracy"]
    both = Collection(
        {
            "recent": Decayed(subject.metric, 2),
            "sliced": Sliced(Decayed(subject.metric, 2), 2),
            "faded": Decayed(Sliced(subject.metric, 2), 2),
            "last": Window(subject.metric, 1),
        }
    )
    batches = [b | {"slices": rng.integers(0, 3, ROWS)} for b in draws(rng, subject, 4)]
    results = folded(both, batches).results()
    weights = weights_of(4, 2)
    rows = [{name: b[name] for name in ("preds", "target")} for b in batches]
    want = value_of(subject, rows, weights)
    assert results["recent"] == pytest.approx(want, rel=1e-6)
    for index in range(2):
        of = [
            {n: x[b["slices"] == index] for n, x in r.items()}
            for b, r in zip(batches, rows, strict=True)
        ]
        want = value_of(subject, of, weights)
        assert results[f"sliced/{index}"] == pytest.approx(want, rel=1e-6)
        assert results[f"faded/{index}"] == pytest.approx(want, rel=1e-6)
    unknown = sum(int((b["slices"] == 2).sum()) for b in batches)
    assert results.get("faded/unknown", 0) == results.get("sliced/unknown", 0) == unknown
    assert results["last"] == np.float32(value_of(subject, rows[-1:], [1]))


def test_checkpoints_and_copies(rng):
    metric, batch = decayed(rng, 5), SUBJECTS["accuracy"].draw(rng, ROWS)
    for again in (
        metric.reset().load_state_dict(metric.state_dict()),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ):
        assert bits(again.update(**batch)) == bits(metric.update(**batch))
        assert again.merge(metric).results() == pytest.approx(metric.results(), rel=1e-6)
    with pytest.raises(datarax.ConfigurationMismatchError, match="half_life"):
        Decayed(metrics.Accuracy(num_classes=3), 2).load_state_dict(metric.state_dict())


def test_a_collector_starts_to_count_again(rng):
    metric = decayed(rng, 5)
    with datarax.AsyncMetricCollector(metric) as collector:
        reset = collector.schedule_collection(metric)
        assert collector.collect_results() == metric.results()
    assert np.isnan(reset.results())
    assert int(reset.stack.number) == 0


class Counter(datarax.Metric):
    """A metric of a user, with a sum of integers."""

    count = datarax.MetricAccumulator(0)

    def update(self, values):
        return self.replace(count=self.count.update(values))

    def compute(self):
        return self.count.value


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decayed(metrics.Mean(), 0), "half_life=0"),
        (lambda: Decayed(metrics.Mean(), -1.0), "half_life=-1"),
        (lambda: Decayed(metrics.Mean(), float("nan")), "half_life=nan"),
        (lambda: Decayed(metrics.Mean(), float("inf")), "half_life=inf"),
        (lambda: Decayed(metrics.Mean(), "2"), "half_life"),
        (lambda: Decayed(metrics.Mean().update(1.0), 2), "without data"),
        (lambda: Decayed(3, 2), "expects a datarax.Metric"),
        (lambda: Decayed(_per_device(), 2), "copies for each device"),
        (lambda: Decayed(metrics.SpearmanCorrCoef(exact=True), 2), "WeightedRows cannot"),
        (lambda: Decayed(Counter(), 2), "a sum of integers"),
        (lambda: Decayed(Collection({"a": metrics.Mean(), "b": Counter()}), 2), "a sum of int"),
        (lambda: Decayed(Window(metrics.Mean(), 2), 2), "counts updates"),
        (lambda: Decayed(Sliced(Decayed(metrics.Mean(), 2), 2), 2), "counts updates"),
        (lambda: Decayed(metrics.Mean(), 2).merge(Decayed(metrics.Mean(), 3)), "half_life"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()


def _per_device():
    return datarax.per_device(metrics.Mean(), make_mesh("auto", {"d": 8}), "d")
