"""`LossSpikes` against a loop over the losses in plain Python, and the laws that it obeys."""

import copy
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import LossSpikes
from datarax.testing import assert_within_ulps, subject
from tests.helpers import collectives, make_mesh, over_shards
from tests.registry.steps import FENCE, KEPT, LEAST, by_definition, losses

CONFIG = {"fence": FENCE, "window": KEPT, "min_history": LEAST}


def fold(metric: Any, values: Any, steps: Any) -> Any:
    calls = [((np.float32(x),), {"step": np.int32(s)}) for x, s in zip(values, steps, strict=True)]
    return subject.fold(metric, calls)


def same(a: Any, b: Any) -> None:
    assert_within_ulps(subject.read(a)[0], subject.read(b)[0], 0, name="the value")
    assert_within_ulps(subject.numbers(a), subject.numbers(b), 0, name="the state")


@pytest.mark.parametrize("shift", [0.0, -10.0, 1e6])
def test_each_loss_is_judged_by_those_before_it(shift, rng):
    values = (losses(rng, 80) + shift).astype(np.float32)
    steps = np.cumsum(rng.integers(1, 4, 80)).astype(np.int32)
    got = fold(LossSpikes(**CONFIG), values, steps).results()
    want = by_definition(values, steps)
    assert (got["count"], got["last_step"]) == (want["count"], want["last_step"])
    np.testing.assert_equal(got["largest"], want["largest"])
    assert type(got["count"]) is int


def test_an_obvious_spike_with_the_defaults(rng):
    values = rng.normal(2.5, 0.01, 200).astype(np.float32)
    values[[60, 150]] = 4.0, 3.5
    got = fold(LossSpikes(), values, range(200)).results()
    assert (got["count"], got["last_step"]) == (2, 150)
    np.testing.assert_allclose(got["largest"], 1.5, atol=0.02)


def test_several_steps_at_once_are_judged_in_their_order(rng):
    values, steps = losses(rng, 40), np.arange(40, dtype=np.int32)
    one_by_one = fold(LossSpikes(**CONFIG), values, steps)
    order = rng.permutation(40)
    at_once = LossSpikes(**CONFIG).update(values[order], step=steps[order])
    same(at_once, one_by_one)
    halves = LossSpikes(**CONFIG)
    for part in (slice(0, 20), slice(20, 40)):
        halves = halves.update(values[part], step=steps[part])
    same(halves, one_by_one)


def test_the_loss_of_a_step_is_the_weighted_mean_of_its_values(rng):
    values = rng.integers(0, 9, (10, 6)).astype(np.float32)
    weights = rng.integers(0, 2, (10, 6)).astype(np.float32)
    weights[:, 0] = 1
    weights[3] = 0
    metric, config = LossSpikes(fence=0.0, min_history=1), {"fence": 0.0, "min_history": 1}
    means = [(x * w).sum() / w.sum() for x, w in zip(values, weights, strict=True) if w.sum()]
    want = by_definition(np.float32(means), [i for i in range(10) if i != 3], window=128, **config)
    rows = metric.update(values, np.arange(10), weights=weights).results()
    for step in range(10):
        metric = metric.update(values[step], step, weights=weights[step])
    for got in (rows, metric.results()):
        assert (got["count"], got["last_step"]) == (want["count"], want["last_step"])
        np.testing.assert_allclose(got["largest"], want["largest"], rtol=1e-6)


def test_what_is_not_finite_is_left_out_and_counted(rng):
    values = losses(rng, 30)
    with_nan = np.insert(values, [4, 9], [np.nan, np.inf]).astype(np.float32)
    got = fold(LossSpikes(**CONFIG), with_nan, range(32))
    want = by_definition(values, [i for i in range(32) if i not in (4, 10)])
    with pytest.warns(InvalidValuesWarning, match=r"2 values .*1 infinite"):
        results = got.results()
    assert (results["count"], results["last_step"]) == (want["count"], want["last_step"])
    with pytest.warns(InvalidValuesWarning):
        assert np.isnan(got.replace(on_invalid="propagate").results()["largest"])


# Laws. Those about order and about halves of a stream do not hold: see the class.


@pytest.fixture
def three(rng):
    metric = LossSpikes(**CONFIG)
    steps = rng.permutation(60).astype(np.int32).reshape(3, 20)
    return metric, [fold(metric, losses(rng, 20), np.sort(each)) for each in steps]


def test_merging_obeys_the_laws(three):
    _, (a, b, c) = three
    same(subject.merge(a, a.reset()), a)
    same(subject.merge(a.reset(), a), a)
    same(subject.merge(a, b), subject.merge(b, a))
    same(subject.merge(subject.merge(a, b), c), subject.merge(a, subject.merge(b, c)))
    merged = subject.merge(subject.merge(a, b), c).results()["count"]
    assert merged == sum(each.results()["count"] for each in (a, b, c))


def test_a_merged_metric_judges_by_the_newest_losses_of_both(three):
    _, (a, b, _) = three
    merged = subject.merge(a, b)
    kept = np.sort(np.concatenate([a.recent.step, b.recent.step]))[-12:]
    np.testing.assert_array_equal(merged.recent.step, kept)


def test_jit_eager_scanned_mapped_and_copied_are_equal(rng):
    metric, values = LossSpikes(**CONFIG), losses(rng, 24)
    calls = [((x,), {"step": np.int32(i)}) for i, x in enumerate(values)]
    used, eager = subject.fold(metric, calls), metric
    for call in calls:
        eager = subject.apply(eager, call)
    same(eager, used)
    stacked = subject.on_host(lambda *xs: np.stack(xs), *calls)
    same(subject.scanned(metric, stacked), used)
    jax.eval_shape(subject.looped, metric, stacked)
    same(metric.load_state_dict(used.state_dict()), used)
    for each in (copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        same(each, used)
    same(used.reset(), metric)
    state, more = subject.on_host(lambda x: np.stack([x, x]), (used, calls[-1]))
    mapped = jax.tree.map(lambda x: x[1], subject.vmapped(state, more)[0])
    same(mapped, subject.fold(used, calls[-1:]))
    empty = metric.compute()
    assert (int(empty["count"]), int(empty["last_step"])) == (0, -1)
    assert np.isnan(empty["largest"])


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_over_devices(kind, rng):
    mesh = make_mesh(kind, {"data": 8})
    values = losses(rng, 30)
    want = fold(LossSpikes(**CONFIG), values, range(30))

    # A loss that all devices hold counts once; the mean of what they hold is such a loss.
    def step(metric, shard, number):
        return metric.update(jax.lax.pmean(jnp.mean(shard), "data"), number).sync("data")

    program = over_shards(step, mesh, (P(), P("data"), P()), P())
    copies, metric = datarax.per_device(LossSpikes(**CONFIG), mesh, "data"), LossSpikes(**CONFIG)
    noise = np.arange(8, dtype=np.float32) - 3.5  # sums to 0 exactly
    update = jax.jit(lambda copies, x, number: copies.update(x, number))
    for number, value in enumerate(values):
        shards = jax.device_put(
            np.float32(np.round(value * 64) / 64) + noise, jax.NamedSharding(mesh, P("data"))
        )
        metric = jax.block_until_ready(program(metric, shards, jnp.int32(number)))
        copies = update(copies, jnp.float32(value), jnp.int32(number))
    rounded = fold(LossSpikes(**CONFIG), np.round(values * 64) / 64, range(30))
    same(jax.device_get(metric), rounded)
    same(jax.device_get(jax.block_until_ready(copies.sync())), want)
    assert not collectives(update, copies, jnp.float32(1), jnp.int32(0))


def test_misuse_is_refused():
    with pytest.raises(MetricInputError, match="values of shape"):
        LossSpikes().update(1.0, step=jnp.arange(3))
    with pytest.raises(MetricTypeError, match="integers"):
        LossSpikes().update(1.0, step=0.5)
    for config in ({"fence": -1.0}, {"window": 0}, {"window": 4}, {"min_history": 0}):
        with pytest.raises(MetricInputError):
            LossSpikes(**config)
