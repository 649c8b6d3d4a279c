"""LastValue, ExponentialMovingAverage and Rate beyond what the registry checks."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import ExponentialMovingAverage, LastValue, Mean, Rate
from tests.helpers import update, x64


@jax.jit
def fold_all(metric, values, steps):
    """One update a step, and the value after each."""

    def one(state, call):
        state = state.update(*call)
        return state, state.compute()

    return jax.lax.scan(one, metric, (values, steps))


def recursive(values, decay):
    """The bias-corrected average as Adam's authors write it, Algorithm 1, in float64."""
    moment, found = 0.0, []
    for t, value in enumerate(values.astype(np.float64), 1):
        moment = decay * moment + (1 - decay) * value
        found.append(moment / (1 - decay**t))
    return np.array(found)


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_one_value_a_step_is_the_average_of_adam(decay, rng):
    # 0.999 as a float32 would be off by 1e-5 of the value of a ramp after some thousand steps.
    steps = np.arange(20_000, dtype=np.int32)
    values = (steps + rng.normal(size=steps.size)).astype(np.float32)
    _, got = fold_all(ExponentialMovingAverage(decay=decay), values, steps)
    np.testing.assert_allclose(np.asarray(got), recursive(values, decay), rtol=3e-7, atol=1e-6)


def test_age_is_by_step():
    metric = ExponentialMovingAverage(decay=0.5)
    late = metric.update(8.0, step=10)
    assert late.update(2.0, step=12).compute() == (8 / 4 + 2) / 1.25
    assert late.update(2.0, step=7).compute() == (8 + 2 / 8) / 1.125
    assert late.update(2.0, step=10).compute() == 5
    masked = late.update(jnp.array([5.0]), step=12, weights=jnp.array([0.0]))
    assert (masked.compute(), int(masked.statistic.sums.step)) == (8, 10)
    # Very old values have a weight of zero.
    assert late.update(2.0, step=2**31 - 1).compute() == 2
    assert late.update(2.0, step=-(2**31)).compute() == 8


def test_the_order_of_batches_and_merges_does_not_matter(rng):
    values = rng.normal(3, 1, (6, 8)).astype(np.float32)
    steps = rng.permutation(6).astype(np.int32)
    for metric in (ExponentialMovingAverage(decay=0.8), LastValue()):
        parts = [update(metric, *call) for call in zip(values, steps, strict=True)]
        tree = parts[5].merge(parts[0]).merge(parts[3].merge(parts[1].merge(parts[4])))
        chain = metric
        for i in np.argsort(steps):
            chain = update(chain, values[i], steps[i])
        np.testing.assert_allclose(
            float(tree.merge(parts[2]).compute()), float(chain.compute()), rtol=3e-7
        )


def test_without_decay_it_is_the_mean(rng):
    values = rng.normal(size=40).astype(np.float32)
    steps = rng.integers(-(2**31), 2**31, 40).astype(np.int32)
    got = ExponentialMovingAverage(decay=1.0).update(values, steps).compute()
    np.testing.assert_allclose(float(got), float(Mean().update(values).compute()), rtol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 1.5, -0.5, float("nan"), "0.9", None, True])
def test_the_decay_is_checked(decay):
    with pytest.raises(datarax.MetricInputError, match="expected a number above 0, at most 1"):
        ExponentialMovingAverage(decay=decay)


def test_last_is_by_step_and_then_by_value():
    metric = LastValue().update(jnp.array([1.0, 9.0, 2.0]), step=jnp.array([5, 3, 5]))
    assert metric.compute() == 2
    assert metric.merge(LastValue().update(7.0, step=4)).compute() == 2
    assert metric.merge(LastValue().update(-7.0, step=6)).compute() == -7
    assert metric.update(1.5, step=5).compute() == 2
    assert np.isnan(metric.reset().compute())
    ends = LastValue().update(1.0, step=-(2**31)).update(2.0, step=2**31 - 1)
    assert ends.compute() == 2


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_the_last_valid_value():
    metric = LastValue(on_invalid="exclude").update(
        jnp.array([1.0, jnp.nan]), step=jnp.array([1, 2])
    )
    assert metric.compute() == 1
    assert int(metric.invalid_count()) == 1
    masked = LastValue().update(
        jnp.array([1.0, 2.0]), step=jnp.array([1, 2]), weights=jnp.array([True, False])
    )
    assert masked.compute() == 1
    assert int(masked.invalid_count()) == 0


@pytest.mark.parametrize("metric", [LastValue(), ExponentialMovingAverage(decay=0.5)])
def test_steps_broadcast_on_leading_axes(metric):
    values = jnp.array([[1.0, 3.0], [5.0, 7.0]])
    each = metric.update(values, step=jnp.array([1, 0]))
    full = metric.update(values, step=jnp.array([[1, 1], [0, 0]]))
    assert each.compute() == full.compute()
    assert metric.update(values, step=jnp.array([[1, 0]])).compute() != full.compute()
    assert each.compute() == (3 if isinstance(metric, LastValue) else (4 + 6) / 3)
    for step in (jnp.array([0, 1, 2]), jnp.zeros((2, 2, 1), jnp.int32)):
        with pytest.raises(datarax.MetricInputError, match=r"step of shape .* \(2, 2\)"):
            metric.update(values, step=step)
    for step in (1.0, jnp.array(True)):
        with pytest.raises(datarax.MetricTypeError, match="expected integers"):
            metric.update(values, step=step)


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_steps_beyond_32_bits_are_excluded_and_counted():
    metric = LastValue(on_invalid="exclude").update(
        jnp.array([1.0, 2.0]), step=jnp.array([3, 2**31], jnp.uint32)
    )
    assert (float(metric.compute()), int(metric.invalid_count())) == (1, 1)
    with x64():
        metric = LastValue(on_invalid="exclude").update(
            jnp.array([1.0, 2.0]), step=jnp.array([3, 2**32])
        )
        assert (float(metric.compute()), int(metric.invalid_count())) == (1, 1)


def test_in_a_collection():
    metrics = {
        "last": LastValue().from_outputs(values="loss"),
        "average": ExponentialMovingAverage(decay=0.5).from_outputs(values="loss"),
        "rate": Rate().from_outputs(values="tokens"),
    }
    collection = datarax.Collection(metrics)
    for step, loss in enumerate((4.0, 1.0)):
        collection = collection.update(loss=loss, step=step, tokens=300, elapsed=step + 1.0)
    assert collection.results() == {"last": 1.0, "average": 2.0, "rate": 300.0}


def test_rate_by_a_real_clock():
    metric, tokens, start = Rate(), 0, time.perf_counter()
    for count in (100, 50, 700):
        time.sleep(0.01)
        tokens += count
        elapsed = time.perf_counter() - start
        metric = metric.update(count, elapsed=elapsed)
    np.testing.assert_allclose(float(metric.compute()), tokens / elapsed, rtol=3e-7)


def test_rate_of_two_processes():
    # Two processes that work at the same time for 2 and 4 s: counts add up, times do not.
    one = Rate().update(jnp.array([10, 20]), elapsed=jnp.array([1.0, 2.0]))
    other = Rate().update(50, elapsed=4.0)
    assert one.compute() == 15
    assert one.merge(other).compute() == 20


def test_rate_counts_exactly():
    metric = Rate().update(2**24 + 1, elapsed=1.0)
    for _ in range(10):
        metric = metric.merge(metric)
    assert float(metric.update(1024, elapsed=1024.0).compute()) == 2**24 + 2


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_rate_excludes_invalid_values():
    metric = Rate(on_invalid="exclude").update(
        jnp.array([10, 20, 30]), elapsed=jnp.array([2.0, -1.0, jnp.nan])
    )
    assert (float(metric.compute()), int(metric.invalid_count())) == (5, 2)
    assert np.isnan(Rate().update(3, elapsed=0.0).compute())
    with pytest.raises(datarax.MetricInputError, match=r"elapsed of shape \(3,\)"):
        Rate().update(jnp.ones((2,)), elapsed=jnp.ones((3,)))
