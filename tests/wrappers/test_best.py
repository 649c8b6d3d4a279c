"""The best value after each update, and its step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from datarax import (
    AsyncMetricCollector,
    Best,
    Classwise,
    Collection,
    ConfigurationMismatchError,
    InvalidValuesWarning,
    MetricInputError,
    MetricTypeError,
    Transformed,
    per_device,
)
from datarax.distributed import all_gather
from datarax.metrics import Accuracy, LastValue, Mean, Recall, Sum
from datarax.testing.laws import LAWS
from datarax.testing.subject import Subject
from datarax.training import StatefulMetric
from datarax.wrappers.best import BestValue
from tests.helpers import collectives, draw, make_mesh, over_shards, place

# What it keeps depends on the order of updates, and a copy for each device is refused.
BROKEN = {
    "merge is associative",
    "two merged metrics equal one metric that was updated with all batches",
    "the split of examples into batches does not matter",
    "the order of examples does not matter",
    "inside shard_map, varying() gives the type of a carry, and sync() a replicated type",
    "per_device equals one device",
}

update = jax.jit(lambda metric, *args: metric.update(*args))


def values_after(batches, weights=None):
    """The mean after each batch, from its definition."""
    seen = np.cumsum([np.sum(x, dtype=np.float64) for x in batches])
    return np.float32(seen / np.cumsum([np.size(x) for x in batches]))


@pytest.mark.parametrize("law", sorted(LAWS.keys() - BROKEN))
def test_laws(law, rng):
    batches = [draw(rng, (16,)) for _ in range(3)]
    empty = {"value": np.nan, "step": -1}
    LAWS[law](Subject(Best(Mean(), "min"), batches, 1, 0.0, 0.0, empty, True, True))


def test_merging_the_bests_is_associative(rng):
    for mode in ("max", "min"):
        a, b, c = (
            update_all(BestValue(mode=mode), rng.choice([1.0, 2.0, np.nan, -0.0], rng.integers(4)))
            for _ in range(3)
        )
        for x, y in ((a.merge(b), b.merge(a)), (a.merge(b).merge(c), a.merge(b.merge(c)))):
            np.testing.assert_equal(read(x), read(y))


def update_all(best, values):
    for value in values:
        best = best.update(value)
    return best


def read(best):
    return [np.asarray(x) for x in (best.value, best.step, best.count)]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_it_is_the_best_so_far(mode, rng):
    batches = [draw(rng, (rng.integers(1, 9),)) for _ in range(9)]
    best, means = Best(Mean(), mode), values_after(batches)
    index = np.argmax if mode == "max" else np.argmin
    for i, batch in enumerate(batches):
        best = best.update(batch)
        step = int(index(means[: i + 1]))
        assert best.results() == {"value": means[step], "step": step}
        assert best.metric.results() == means[i]
    assert best.compute()["step"].dtype == jnp.int32
    scanned = lax.scan(
        lambda m, x: (m.update(x), None), Best(Mean(), mode), np.stack([b[:1] for b in batches])
    )[0]
    first = values_after([b[:1] for b in batches])
    assert scanned.results() == {"value": first[index(first)], "step": index(first)}


def test_no_data_and_nan():
    nothing = {"value": np.nan, "step": -1}
    best = Best(LastValue())
    np.testing.assert_equal(best.results(), nothing)
    best = update(best, np.zeros(0, np.float32), np.zeros(0, np.int32))  # its value is NaN
    np.testing.assert_equal(best.results(), nothing)
    best = update(best, np.float32([3.0]), np.int32([0]))
    assert best.results() == {"value": 3.0, "step": 1}
    assert update(best, np.float32([2.0]), np.int32([1])).results() == {"value": 3.0, "step": 1}
    np.testing.assert_equal(best.reset().results(), nothing)
    assert int(best.reset().best.count) == 0


def test_the_policy_applies_to_each_update():
    batches = [np.float32([1, 1]), np.float32([np.nan, 5]), np.float32([0])]
    strict, lenient = Best(Mean()), Best(Mean(on_invalid="exclude"))
    for batch in batches:
        strict, lenient = strict.update(batch), lenient.update(batch)
    with pytest.warns(InvalidValuesWarning, match=r"Best: 1 values"):
        got = strict.results()
    assert np.isnan(got["value"])
    assert got["invalid"] == 1
    with pytest.warns(InvalidValuesWarning):
        assert lenient.results() == {"value": np.float32(7 / 3), "step": 1, "invalid": 1}
    with pytest.warns(InvalidValuesWarning):  # what there was before the data was invalid
        assert strict.replace(on_invalid="exclude").results()["value"] == 1.0


def test_merge_takes_the_better():
    low = Best(Mean()).update(1.0).update(0.0)
    high = Best(Mean()).update(0.0).update(5.0).update(-9.0)
    for both in (low.merge(high), high.merge(low)):
        assert both.results() == {"value": 2.5, "step": 1}
        assert both.metric.results() == np.float32(-3 / 5)
        assert int(both.best.count) == 5
    tie = Best(Mean()).update(-1.0).update(6.0)  # 2.5 at step 1, too
    assert tie.merge(high).results() == high.results()
    with pytest.raises(ConfigurationMismatchError, match=r"Best.mode is 'max' in one and 'min'"):
        low.merge(Best(Mean(), "min"))


def test_steps_do_not_wrap():
    best = BestValue().update(1.0)
    most = best.with_parts({"count": jnp.int32(2**31 - 1)})
    assert int(most.update(2.0).count) == int(most.merge(most).count) == 2**31 - 1
    assert int(most.update(2.0).step) == 2**31 - 1


@pytest.mark.parametrize("axes", ["auto", "explicit"])
def test_global_arrays_are_read_as_a_whole(rng, axes):
    mesh, batches = make_mesh(axes, {"data": 8}), [draw(rng, (16,)) for _ in range(4)]
    best, means = Best(Mean()), values_after(batches)
    for batch in batches:
        best = jax.block_until_ready(update(best, place(batch, mesh, P("data"))))
    assert best.results() == {"value": means.max(), "step": means.argmax()}


def test_the_data_of_one_device_is_refused():
    mesh = make_mesh("auto", {"data": 8})
    for metric in (Best(Mean()), Collection({"x": Mean(), "best": Best(Mean())})):
        with pytest.raises(MetricTypeError, match=r"per_device: Best reads the value of all data"):
            per_device(metric, mesh, "data")
    x = np.arange(8, dtype=np.float32)
    with pytest.raises(
        MetricInputError, match=r"Best.update: the data vary .* along data, so each"
    ):
        over_shards(lambda m, x: m.update(x).compute(), mesh, (P(), P("data")), P())(
            Best(Mean()), x
        )
    with pytest.raises(MetricInputError, match=r"along data"):
        over_shards(lambda m, x: m.varying("data").update(x), mesh, (P(), P()), P("data"))(
            Best(Mean()), x
        )

    def gathered(metric, x):
        return metric.update(all_gather({"x": x}, "data", tiled=True)["x"]).compute()

    got = jax.block_until_ready(over_shards(gathered, mesh, (P(), P("data")), P())(Best(Mean()), x))
    assert (got["value"], got["step"]) == (3.5, 0)
    # Data that are equal on all devices are all data, and stay what they are in a sync.
    same = over_shards(lambda m, x: m.update(x).sync("data").compute(), mesh, (P(), P()), P())
    got = jax.block_until_ready(same(Best(Mean()), x))
    assert (got["value"], got["step"]) == (3.5, 0)
    assert not collectives(same, Best(Mean()), x)


def test_a_window_has_a_best_of_its_own():
    best = Best(Mean())
    with AsyncMetricCollector(best) as collector:
        for window in ((1.0, 5.0), (4.0, 2.0)):
            for value in window:
                best = best.update(value)
            best = collector.schedule_collection(best)
        results = [collector.collect_results() for _ in range(2)]
    assert results == [{"value": 3.0, "step": 1}, {"value": 4.0, "step": 0}]


def test_a_donated_state_and_the_shell():
    step = jax.jit(lambda metric, x: metric.update(x), donate_argnums=0)
    best = Best(Mean())
    kept = step(best, 3.0).compute()
    best = step(step(step(Best(Mean()), 3.0), 9.0), 0.0)
    assert best.results() == {"value": 6.0, "step": 1}
    assert kept["value"] == 3.0
    shell = StatefulMetric({"loss": Best(Mean(), "min")})
    shell.update(values=1.0)
    shell.update(values=3.0)
    assert shell.results() == {"loss/value": 1.0, "loss/step": 0}
    loaded = Best(Mean()).load_state_dict(best.state_dict())
    assert loaded.update(100.0).results() == {"value": 28.0, "step": 3}


def test_batches_of_several_sizes_share_programs(rng, programs):
    best = Best(Accuracy(num_classes=3))
    for rows in (8, 7, 5):
        best = best.update(*rng.integers(0, 3, (2, rows)))
    updates = len(programs)
    for rows in (6, 3, 4, 2):
        best = best.update(*rng.integers(0, 3, (2, rows)))
    assert len(programs) == updates
    assert int(best.best.count) == 7


def test_integers_are_floats():
    assert Best(Sum()).update(3).update(-1).results() == {"value": 3.0, "step": 0}


@pytest.mark.parametrize(
    ("metric", "mode", "error", "words"),
    [
        (
            Recall(num_classes=3, average=None),
            "max",
            MetricInputError,
            r"an array of shape \(3,\)",
        ),
        (
            Collection({"a": Mean()}),
            "max",
            MetricInputError,
            r"expected one number. Choose one",
        ),
        (Best(Mean()), "max", MetricInputError, r"expected one number"),
        (Mean(), "highest", MetricInputError, r"mode='highest'; expected one of 'max', 'min'"),
        (Mean, "max", MetricTypeError, r"Best expects a datarax.Metric; got the class Mean"),
        (3, "max", MetricTypeError, r"got int"),
    ],
)
def test_misuse(metric, mode, error, words):
    with pytest.raises(error, match=words):
        Best(metric, mode)


def test_fields():
    assert repr(Best(Mean(), "min")) == "Best(metric=Mean(), mode='min')"
    seen = Best(Mean()).update(1.0)
    with pytest.raises(MetricInputError, match=r"collected under another configuration"):
        seen.replace(mode="min")
    with pytest.raises(MetricTypeError, match=r"it takes: metric, mode"):
        Best(Mean(), step=3)
    names = ["a", "b", "c"]
    recall = Classwise(Recall(num_classes=3, average=None), names)
    worst = Best(Transformed(recall, result=lambda value: value["b"]), "min")
    assert worst.update([0, 1, 2], [0, 1, 1]).results() == {"value": 0.5, "step": 0}
