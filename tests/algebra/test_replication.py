"""A state that is replicated over an axis of `shard_map` counts once, however it is used there."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax import Collection, Metric, MetricAccumulator, MetricTypeError
from datarax.metric.declared import shares_statistic
from datarax.metrics import Accuracy, Mean, Sum
from datarax.statistics import State
from datarax.statistics.scatter_counts import ScatterCounts
from tests.algebra.test_devices import Everything, a_batch, check
from tests.helpers import assert_same, collectives, draw, make_mesh, over_shards, place

DATA = {"data": 8}
BOTH = {"data": 4, "model": 2}


def run(function, mesh, in_specs, *args, out_specs=None):
    """Waits for the result, as devices that are simulated may deadlock otherwise."""
    mapped = over_shards(function, mesh, in_specs, P() if out_specs is None else out_specs)
    return jax.block_until_ready(mapped(*args))


def joined(batches):
    return [np.concatenate(each) for each in zip(*batches, strict=True)]


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_every_kind_of_state_carried_through_a_loop_of_steps(rng, kind):
    mesh = make_mesh(kind, DATA)
    step = over_shards(
        lambda m, *batch: m.update(*batch).sync("data"), mesh, (P(), *[P("data")] * 3), P()
    )
    metric, batches = Everything(), [a_batch(rng, 3) for _ in range(3)]
    for batch in batches:
        metric = jax.block_until_ready(
            step(place(metric, mesh, P()), *place(batch, mesh, P("data")))
        )
    check(metric, *joined(batches))
    assert collectives(step, metric, *place(batches[0], mesh, P("data"))) == {"all-reduce": 1}


def test_syncing_a_global_state_is_the_identity(rng):
    mesh, batch = make_mesh("auto", DATA), a_batch(rng, 3)

    def local(metric, *batch):
        once = metric.update(*batch).sync("data")
        return once, once.sync("data").sync("data"), metric.sync("data")

    function = over_shards(local, mesh, (P(), *[P("data")] * 3), P())
    start = Everything().update(*batch)
    once, again, untouched = jax.block_until_ready(function(start, *batch))
    check(once, *joined([batch, batch]))
    check(untouched, *batch)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    assert collectives(function, start, *batch) == {"all-reduce": 1}


def test_what_a_replicated_state_holds_counts_once_after_varying(rng):
    mesh, batches = make_mesh("auto", DATA), [a_batch(rng, 3) for _ in range(3)]

    def local(metric, *rows):
        start = metric.varying("data").varying("data")
        return lax.scan(lambda m, row: (m.update(*row), None), start, rows)[0].sync("data")

    rows = [np.stack(each) for each in zip(*batches[1:], strict=True)]
    specs = (P(), *[P(None, "data")] * 3)
    # The kept rows of a device come before those of the next, so the first batch has enough.
    check(run(local, mesh, specs, Everything().update(*batches[0]), *rows), *joined(batches))


def test_a_large_state_counts_once_too(rng):
    mesh, batches = make_mesh("auto", DATA), [a_batch(rng, 20_000) for _ in range(2)]

    def local(metric, *batch):
        return metric.update(*batch).sync("data")

    got = run(
        local, mesh, (P(), *[P("data")] * 3), Everything(20_000).update(*batches[0]), *batches[1]
    )
    check(got, *joined(batches))


def test_over_two_axes_of_which_the_data_vary_over_one(rng):
    mesh, x = make_mesh("auto", BOTH), draw(rng, (2, 16))
    names = ("data", "model")
    step = lambda m, x: m.update(x).sync(names)  # noqa: E731
    one = run(step, mesh, (P(), P("data")), Sum().update(x[0]), x[1])
    assert_same(one.compute(), x.sum(), np.float32)
    two = run(step, mesh, (P(), P(names)), one, x[0])
    assert_same(two.compute(), x.sum() + x[0].sum(), np.float32)


def test_a_state_that_varies_over_another_axis_than_the_data(rng):
    mesh, x = make_mesh("auto", BOTH), draw(rng, (8,))
    history = np.float32([3, 5])  # one for each device along "model"

    def local(history, x):
        metric = Sum().update(history)
        return metric.sync("data").compute()[None], metric.update(x).sync(
            ("model", "data")
        ).compute()

    alone, both = run(local, mesh, (P("model"), P("data")), history, x, out_specs=(P("model"), P()))
    np.testing.assert_array_equal(alone, history)
    # The devices along "model" hold different states, and each of them folds the same data.
    assert_same(both, history.sum() + 2 * x.sum(), np.float32)


def test_the_merge_of_a_global_state_with_that_of_each_device(rng):
    mesh, (old, new) = make_mesh("auto", DATA), (a_batch(rng, 3), a_batch(rng, 3))
    for merged in (lambda a, b: a.merge(b), lambda a, b: b.merge(a)):

        def local(metric, *batch, merged=merged):
            return merged(metric, Everything().update(*batch)).sync("data")

        got = run(local, mesh, (P(), *[P("data")] * 3), Everything().update(*old), *new)
        np.testing.assert_array_equal(
            got.counts.value,
            joined([old, new])[1][joined([old, new])[2] > 0].astype(np.int64).sum(0) - 7,
        )


def test_members_of_a_collection_one_by_one(rng):
    # The learning rate is the same on all devices, the loss is not.
    mesh, x = make_mesh("auto", DATA), draw(rng, (16,))
    start = Collection({"loss": Sum(), "rate": Sum().from_outputs(values="rate")})
    start = start.update(values=x, rate=jnp.float32(0.5))
    step = lambda m, x, r: m.update(values=x, rate=r).sync("data")  # noqa: E731
    got = run(step, mesh, (P(), P("data"), P()), start, x, jnp.float32(0.25)).compute()
    assert_same(got["loss"], 2 * x.sum(), np.float32)
    assert float(got["rate"]) == 0.75


class Sizes(Metric):
    """Counts what has no array of its own: the size of each device's batch."""

    seen = MetricAccumulator(0)
    peak = MetricAccumulator(0, "max")

    def update(self, values):
        return self.replace(seen=self.seen.update(values.size), peak=self.peak.update(values.size))

    def compute(self):
        return {"seen": self.seen.value, "peak": self.peak.value}


def test_a_number_counts_on_each_device_whose_data_it_belongs_to():
    mesh = make_mesh("auto", DATA)
    step = lambda m, x: m.update(x).sync("data")  # noqa: E731
    got = run(step, mesh, (P(), P("data")), Sizes().update(jnp.ones(100)), jnp.ones(24))
    assert got.results() == {"seen": 124, "peak": 100}


def test_statistics_alone(rng):
    mesh, x = make_mesh("auto", DATA), np.arange(8, dtype=np.int32)

    def local(acc, table, x):
        on = jnp.ones(x.shape, jnp.bool_)
        return acc.update(x).sync("data"), table.add(x // 4, on).sync("data")

    start = (
        MetricAccumulator(100).update(5),
        ScatterCounts((2,)).add(jnp.zeros(3, jnp.int32), jnp.ones(3, jnp.bool_)),
    )
    acc, table = run(local, mesh, (P(), P(), P("data")), *start, x)
    assert int(acc.value) == 105 + 28
    np.testing.assert_array_equal(table.value, [7, 4])


def test_where_types_do_not_tell_only_what_is_new_is_synced(rng):
    # As the documentation says to write it: for `pmap`, and without the replication check.
    x, y = draw(rng, (2, 16))
    add = lambda m, x: m.merge(m.reset().update(x).sync("data"))  # noqa: E731
    start = Sum().update(x)
    mesh = make_mesh("auto", DATA)
    unchecked = jax.jit(
        jax.shard_map(add, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    )
    mapped = jax.pmap(add, axis_name="data", in_axes=(None, 0), out_axes=None)
    for got in (
        unchecked(start, y),
        mapped(start, y.reshape(8, 2)),
        run(add, mesh, (P(), P("data")), start, y),
    ):
        assert_same(jax.block_until_ready(got).compute(), (x + y).sum(), np.float32)


def test_in_pmap_each_device_owns_its_state(rng):
    x = draw(rng, (8, 5))
    update = jax.pmap(lambda x: Mean().update(x))
    sync = jax.pmap(lambda m: m.sync("i").compute(), axis_name="i")
    got = jax.block_until_ready(sync(jax.block_until_ready(update(x))))
    np.testing.assert_allclose(got, np.full(8, x.mean(dtype=np.float64)), 1e-6)


# What `update` returns.


class Forgets(Metric):
    total = MetricAccumulator(0)

    def update(self, values):  # type: ignore[override]
        self.replace(total=self.total.update(values))

    def compute(self):
        return self.total.value


class Another(Metric):
    total = MetricAccumulator(0)

    def update(self, values):  # type: ignore[override]
        return self.total.update(values)


class StateOnly(State):
    def update(self, values):
        return values


@pytest.mark.parametrize("made", [Forgets, Another, StateOnly])
def test_an_update_that_does_not_return_the_metric_is_an_error(made):
    with pytest.raises(MetricTypeError, match=rf"{made.__name__}\.update returned .*self\.replace"):
        made().update(3)
    with pytest.raises(MetricTypeError, match=made.__name__):
        jax.jit(lambda: made().update(3))()


def test_the_signature_and_the_marks_of_an_update_are_kept():
    assert list(inspect.signature(Accuracy().update).parameters) == ["preds", "target", "weights"]
    assert shares_statistic(Sum())
