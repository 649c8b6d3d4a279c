"""StepTime and Throughput beyond what the registry checks."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import Rate, StepTime, Throughput
from tests.helpers import quantile, update

excluding = pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")


def test_quantiles_of_many_steps_are_as_near_as_documented(rng):
    seconds = rng.gamma(3, 0.05, 10_000).astype(np.float32)
    seconds[rng.integers(10_000, size=5)] = 60  # checkpoints
    qs = (0.01, 0.5, 0.9, 0.99, 0.999)
    got = update(StepTime(quantiles=qs), seconds).compute()
    for q in qs:
        want = quantile(seconds, np.ones(seconds.size), q)
        assert abs(got[f"p{100 * q:g}"] - want) <= max(2.0**-8 * want, 2.0**-22 * 60), q
    assert got["max"] == seconds.max()
    np.testing.assert_allclose(got["mean"], seconds.astype(np.float64).mean(), rtol=1e-6)


def test_by_a_real_clock():
    metric, spent, waited = StepTime(), [], []
    for _ in range(4):
        start = time.perf_counter()
        time.sleep(0.002)
        waited.append(time.perf_counter() - start)
        time.sleep(0.002)
        spent.append(time.perf_counter() - start)
        metric = metric.update(spent[-1], waited[-1])
    got = metric.results()
    np.testing.assert_allclose(got["max"], max(spent), rtol=1e-6)
    np.testing.assert_allclose(got["waiting"], sum(waited) / sum(spent), rtol=1e-6)


def test_waiting_is_a_share_of_the_steps_that_measure_it():
    metric = StepTime().update(jnp.array([1.0, 3.0]))
    assert np.isnan(metric.compute()["waiting"])
    metric = metric.update(jnp.array([2.0, 2.0]), jnp.array([0.5, 1.5]))
    got = metric.compute()
    assert (got["waiting"], got["mean"], got["max"]) == (0.5, 2, 3)


@excluding
def test_durations_that_cannot_be_are_counted_and_excluded():
    seconds = np.array([1, -1, np.nan, np.inf, 2, 2, 2], np.float32)
    waiting = np.array([0.5, 0, 0, 0, 2.5, -0.5, 1], np.float32)
    metric = StepTime(on_invalid="exclude").update(seconds, waiting)
    assert int(metric.invalid_count()) == 5
    got = metric.compute()
    assert (got["max"], got["mean"], got["waiting"]) == (2, 1.5, 0.5)


def test_steps_of_no_time():
    got = StepTime().update(jnp.zeros(3), jnp.zeros(3)).compute()
    assert (got["p50"], got["max"], got["mean"]) == (0, 0, 0)
    assert np.isnan(got["waiting"])


def test_quantile_1_is_the_maximum():
    got = StepTime(quantiles=(0.5, 1.0)).update(jnp.array([1.0, 2.0, 7.0])).compute()
    assert set(got) == {"p50", "p100", "max", "mean", "waiting"}
    assert got["p100"] == got["max"] == 7


@pytest.mark.parametrize("config", [{"quantiles": (2.0,)}, {"quantiles": "p50"}, {"bits": 30}])
def test_configurations_that_are_refused(config):
    with pytest.raises(datarax.MetricInputError, match=next(iter(config))):
        StepTime(**config)


def test_throughput_is_two_rates(rng):
    tokens, examples = rng.integers(0, 5000, 9), rng.integers(0, 9, 9)
    elapsed = np.cumsum(rng.random(9)).astype(np.float32)
    got = update(Throughput(), tokens, examples, elapsed=elapsed).compute()
    for name, x in {"tokens_per_second": tokens, "examples_per_second": examples}.items():
        np.testing.assert_array_equal(got[name], update(Rate(), x, elapsed).compute())


def test_counts_beyond_32_bits_are_exact():
    metric = Throughput().update(2**30 + 1, 3, elapsed=1.0)
    for _ in range(10):
        metric = metric.merge(metric)
    for statistic, count in ((metric.tokens, 2**40 + 2**10), (metric.examples, 3 * 2**10)):
        high, low = (float(x) for x in statistic.counted.total.double)
        assert high + low == count


def test_one_of_two_counts_and_none():
    got = Throughput().update(examples=jnp.array([8, 8]), elapsed=jnp.array([1.0, 4.0])).compute()
    assert got["examples_per_second"] == 4
    assert np.isnan(got["tokens_per_second"])
    with pytest.raises(datarax.MetricInputError, match=r"give tokens=, examples="):
        Throughput().update(elapsed=1.0)


@excluding
def test_no_time_and_times_that_cannot_be():
    got = Throughput().update(5, 1, elapsed=0.0).compute()
    assert np.isnan([*got.values()]).all()
    metric = Throughput(on_invalid="exclude").update(5, elapsed=-1.0).update(6, elapsed=2.0)
    assert (metric.compute()["tokens_per_second"], int(metric.invalid_count())) == (3, 1)


def test_processes_that_work_at_the_same_time():
    one = Throughput().update(100, 2, elapsed=2.0)
    other = Throughput().update(300, 2, elapsed=4.0)
    merged = one.merge(other).compute()
    assert (merged["tokens_per_second"], merged["examples_per_second"]) == (100, 1)
