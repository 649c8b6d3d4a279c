"""`Window`: the value over the last updates, on any devices and however it is merged."""

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
from tests.helpers import bits, collectives_in, long, make_mesh, place
from tests.wrappers.over_time import SUBJECTS, value_of

SIZE, ROWS = 3, 16


def folded(metric, batches):
    for batch in batches:
        metric = metric.update(**batch)
    return metric


def draws(rng, subject, updates, rows=ROWS):
    return [subject.draw(rng, rows) for _ in range(updates)]


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_value_over_the_last_updates(name, rng):
    subject = SUBJECTS[name]
    metric, batches = Window(subject.metric, SIZE), draws(rng, subject, 5)
    for k, batch in enumerate(batches, 1):
        metric = metric.update(**batch)
        last = batches[max(0, k - SIZE) : k]
        want = value_of(subject, last, np.ones(len(last)))
        np.testing.assert_allclose(metric.compute(), want, rtol=1e-5)
        # The states are merged in another order than that of the updates.
        plain = folded(subject.metric, last).compute()
        np.testing.assert_allclose(metric.compute(), plain, rtol=1e-6)


def test_an_update_without_rows_is_an_update():
    metric = Window(metrics.Mean(), 2).update(np.array([5.0, 7.0], np.float32))
    metric = metric.update(np.array([3.0], np.float32), weights=np.zeros(1, np.float32))
    assert metric.compute() == 6.0
    assert np.isnan(metric.update(np.zeros(0, np.float32)).compute())


def test_invalid_data_leaves_the_window():
    metric = Window(metrics.Mean(), 2).update(np.array([1.0, np.nan], np.float32))
    with pytest.warns(datarax.InvalidValuesWarning, match="1 values or examples"):
        assert np.isnan(metric.results())
    with pytest.warns(datarax.InvalidValuesWarning):
        assert metric.replace(on_invalid="exclude").results() == 1.0
    assert int(metric.invalid_count()) == 1
    metric = metric.update(np.ones(1, np.float32)).update(np.ones(1, np.float32))
    assert (metric.results(), int(metric.invalid_count())) == (1.0, 0)


def window_of(rng, updates):
    subject = SUBJECTS["accuracy"]
    return folded(Window(subject.metric, SIZE), draws(rng, subject, updates))


@pytest.mark.parametrize(
    "updates", [(4, 4, 4), (1, 5, 3), (0, 2, 7), (9, 8, 1), (2, 0, 0)], ids=str
)
def test_merging_is_associative_commutative_and_has_an_identity(updates, rng):
    a, b, c = (window_of(rng, n) for n in updates)
    assert bits(a.merge(b).canonical()) == bits(b.merge(a).canonical())
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    assert bits(left.canonical()) == bits(right.canonical())
    assert bits(a.merge(a.reset()).canonical()) == bits(a.canonical())
    assert int(left.stack.number) == max(updates)


def test_a_merge_joins_updates_of_equal_number():
    def window(updates):
        batches = [{"values": np.float32([10**n])} for n in range(updates)]
        return folded(Window(metrics.Sum(), SIZE), batches)

    # Updates 3 to 5 of one, and 3 and 4 of the other.
    assert window(5).merge(window(4)).results() == 12_200


def test_jit_scan_and_donation_equal_updates_one_by_one(rng):
    subject = SUBJECTS["accuracy"]
    batches = draws(rng, subject, 7)
    empty = Window(subject.metric, SIZE)
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


def test_an_update_writes_one_state_into_the_ring(rng):
    # Two windows whose sizes differ a hundredfold: no operation of an update has their size, but
    # for the write into the ring, which is in place if the ring is donated.
    batch = SUBJECTS["accuracy"].draw(rng, ROWS)

    def program(size):
        metric = Window(metrics.ConfusionMatrix(num_classes=3), size)
        step = jax.jit(lambda m, b: m.update(**b), donate_argnums=0)
        return step.lower(metric, batch).compile()

    small, large = ((program(size).cost_analysis() or {})["flops"] for size in (8, 800))
    assert large < 1.5 * small


@pytest.mark.parametrize(
    ("name", "kind"), [("f1", "auto"), pytest.param("auroc", "explicit", marks=long)]
)
def test_on_devices_as_on_one(name, kind, rng):
    mesh, subject = make_mesh(kind, {"d": 8}), SUBJECTS[name]
    batches = draws(rng, subject, 4)
    empty = Window(subject.metric, SIZE)
    apart, whole = datarax.per_device(empty, mesh, "d"), empty
    step = jax.jit(lambda m, b: m.update(**b))
    for batch in batches:
        batch = place(batch, mesh, P("d"))
        apart, whole = apart.update(**batch), step(whole, batch)
    want = folded(empty, batches).results()
    assert whole.results() == pytest.approx(want, rel=1e-6)
    assert apart.results() == pytest.approx(want, rel=1e-6)


def test_per_device_keeps_the_number_of_the_update(rng):
    # The copies of a metric that has data: it counts once, and its updates count on all devices.
    mesh, subject = make_mesh("auto", {"d": 8}), SUBJECTS["accuracy"]
    batches = draws(rng, subject, 5)
    before = folded(Window(subject.metric, SIZE), batches[:2])
    apart = datarax.per_device(before, mesh, "d")
    for batch in batches[2:4]:
        apart = apart.update(**place(batch, mesh, P("d")))
    assert apart.results() == folded(before, batches[2:4]).results()
    saved = datarax.per_device(before.reset(), mesh, "d").load_state_dict(apart.state_dict())
    again = saved.update(**place(batches[4], mesh, P("d")))
    assert again.results() == folded(before, batches[2:]).results()


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_replicated_window_goes_on_inside_shard_map(kind, rng):
    mesh, subject = make_mesh(kind, {"d": 4, "m": 2}), SUBJECTS["accuracy"]
    batches = draws(rng, subject, 6)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def step(metric, batch):
        return metric.update(**batch).sync("d")

    metric = want = Window(subject.metric, SIZE)
    for batch in batches:
        metric, want = step(metric, place(batch, mesh, P("d"))), want.update(**batch)
        assert metric.results() == want.results()

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(None, "d")), out_specs=P())
    def epoch(metric, stacked):
        def body(metric, batch):
            return metric.update(**batch), None

        return jax.lax.scan(body, metric.varying("d"), stacked)[0].sync("d")

    stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
    stacked = place(stacked, mesh, P(None, "d"))
    assert epoch(metric, stacked).results() == folded(want, batches).results()


def test_devices_that_lag_are_brought_to_the_newest_update(rng):
    # In parts, as the copies take more than a megabyte. A buffer places its rows by how many the
    # devices before it have: those of updates that left the window must not be among them.
    mesh = make_mesh("auto", {"d": 8})
    values = rng.normal(size=(8, 2, 40)).astype(np.float32)
    spearman = Window(metrics.SpearmanCorrCoef(exact=True, capacity=8000), 2)

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())
    def step(metric, values):
        device = jax.lax.axis_index("d")

        def body(i, metric):
            updated = metric.update(values[0, 0] + i, values[0, 1])
            late = (device % 2 == 1) & (i >= 1)
            return jax.tree.map(lambda x, y: jnp.where(late, x, y), metric, updated)

        return jax.lax.fori_loop(0, 3, body, metric.varying("d")).sync("d")

    want = metrics.SpearmanCorrCoef(exact=True, capacity=8000)
    for device in range(0, 8, 2):
        for i in (1, 2):
            want = want.update(values[device, 0] + np.float32(i), values[device, 1])
    assert step(spearman, values).results() == pytest.approx(want.results(), rel=1e-6)


def test_updates_do_not_communicate_and_a_sync_takes_few_collectives(rng):
    mesh = make_mesh("auto", {"d": 8})
    batch = SUBJECTS["auroc"].draw(rng, 64)
    small = {"mean": Window(metrics.Mean().from_outputs(values="preds"), 4)}
    large = small | {"auroc": Window(metrics.AUROC(), 2)}
    for members, most in ((small, 1), (large, 5)):
        apart = datarax.per_device(Collection(members), mesh, "d")
        batch = place(batch, mesh, P("d"))
        update = jax.jit(lambda m, b: m.update(**b)).lower(apart, batch).compile()
        assert collectives_in(update.as_text()) == {}
        sync = jax.jit(lambda m: m.sync()).lower(apart).compile()
        assert 1 <= sum(collectives_in(sync.as_text()).values()) <= most


def test_in_a_collection_beside_slices(rng):
    subject = SUBJECTS["accuracy"]
    both = Collection(
        {
            "recent": Window(subject.metric, 2),
            "sliced": Sliced(subject.metric, 2),
            "loss": Window(metrics.Mean(), 2).from_outputs(values="loss"),
        }
    )
    batches = [
        batch | {"slices": np.arange(ROWS) % 2, "loss": rng.random(ROWS).astype(np.float32)}
        for batch in draws(rng, subject, 4)
    ]
    results = folded(both, batches).results()
    assert results["recent"] == np.float32(
        value_of(subject, [_rows(b) for b in batches[2:]], [1, 1])
    )
    loss = np.concatenate([batch["loss"] for batch in batches[2:]])
    assert results["loss"] == pytest.approx(loss.mean(), rel=1e-6)
    assert results["sliced/overall"] == folded(subject.metric, map(_rows, batches)).results()


def _rows(batch):
    return {name: batch[name] for name in ("preds", "target")}


def test_nested_with_slices(rng):
    subject = SUBJECTS["accuracy"]
    batches = [b | {"slices": rng.integers(0, 2, ROWS)} for b in draws(rng, subject, 5)]
    inside = folded(Window(Sliced(subject.metric, 2), SIZE), batches).results()
    outside = folded(Sliced(Window(subject.metric, SIZE), 2), batches).results()
    assert inside == outside
    for index in range(2):
        last = [{n: x[b["slices"] == index] for n, x in _rows(b).items()} for b in batches[2:]]
        assert inside[str(index)] == np.float32(value_of(subject, last, np.ones(3)))


def test_checkpoints_and_copies(rng):
    metric = window_of(rng, 5)
    empty, batch = metric.reset(), SUBJECTS["accuracy"].draw(rng, ROWS)
    for again in (
        empty.load_state_dict(metric.state_dict()),
        copy.deepcopy(metric),
        pickle.loads(pickle.dumps(metric)),
    ):
        assert bits(again.update(**batch)) == bits(metric.update(**batch))
        assert again.merge(metric).results() == metric.results()
    with pytest.raises(datarax.ConfigurationMismatchError, match="size"):
        Window(metrics.Accuracy(num_classes=3), 4).load_state_dict(metric.state_dict())
    with pytest.raises(datarax.ConfigurationMismatchError):
        Window(metrics.Accuracy(num_classes=4), SIZE).load_state_dict(metric.state_dict())


def test_a_collector_starts_the_window_again(rng):
    metric = window_of(rng, 5)
    with datarax.AsyncMetricCollector(metric) as collector:
        reset = collector.schedule_collection(metric)
        assert collector.collect_results() == metric.results()
    assert np.isnan(reset.results())
    assert int(reset.stack.number) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(metrics.Mean(), 0), "size=0"),
        (lambda: Window(metrics.Mean(), 2.5), "size=2.5"),
        (lambda: Window(metrics.Mean(), True), "size=True"),
        (lambda: Window(metrics.Mean().update(1.0), 2), "without data"),
        (lambda: Window("mean", 2), "expects a datarax.Metric"),
        (lambda: Window(_per_device(), 2), "copies for each device"),
        (lambda: Window(Window(metrics.Mean(), 2), 2), "counts updates"),
        (lambda: Window(Sliced(Decayed(metrics.Mean(), 2), 2), 2), "counts updates"),
        (lambda: Window(metrics.Mean(), 2).merge(Window(metrics.Mean(), 3)), "size"),
        (lambda: Window(metrics.Mean(), 2).from_outputs(loss="x"), "no argument 'loss'"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()


def _per_device():
    return datarax.per_device(metrics.Mean(), make_mesh("auto", {"d": 8}), "d")
