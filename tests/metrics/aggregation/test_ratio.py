"""Ratios of totals, against exact sums: tokens of micro-batches, signs, padding, devices."""

from fractions import Fraction
from functools import partial
from operator import mul

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import Mean, Ratio
from tests.helpers import (
    DTYPES,
    assert_same,
    compiled_update,
    draw,
    make_mesh,
    over_shards,
    place,
    wide,
)


def exact(numerator, denominator, weights=None):
    """The ratio of two sums in rational numbers."""
    w = np.ones(np.shape(numerator)) if weights is None else weights
    above, below, w = (
        [*map(Fraction, wide(x).ravel().tolist())] for x in (numerator, denominator, w)
    )
    return float(sum(map(mul, above, w)) / sum(map(mul, below, w)))


def test_it_is_the_mean_over_tokens_and_not_that_of_micro_batches(rng):
    tokens = rng.integers(1, 4096, 8).astype(np.int32)
    sums = (rng.uniform(0, 12, 8) * tokens).astype(np.float32)

    @jax.jit
    def step(metric, sums, tokens):
        return lax.scan(lambda m, pair: (m.update(*pair), None), metric, (sums, tokens))[0]

    scanned, stacked = step(Ratio(), sums, tokens), Ratio().update(sums, tokens)
    assert_same(scanned.compute(), np.float32(exact(sums, tokens)), ulps=1)
    assert stacked.results() == pytest.approx(exact(sums, tokens), rel=1e-14)
    assert Mean().update(sums / tokens).results() != pytest.approx(stacked.results(), rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_both_may_differ(rng, dtype):
    above, below = draw(rng, (4, 16), dtype), draw(rng, (4, 16), "int32")
    below[0, 0] += 1 - below.sum()  # so that the total is not zero
    assert_same(Ratio().update(above, below).compute(), np.float32(exact(above, below)), ulps=1)
    got = compiled_update(Ratio(), above, below).compute()
    assert_same(got, np.float32(exact(above, below)), ulps=1)


def test_numbers_of_any_sign_and_totals_that_cancel(rng):
    above, below = rng.normal(size=(2, 64)).astype(np.float32)
    below = np.concatenate([below, -below, [np.float32(0.125)]])
    above = np.concatenate([above, -above, [np.float32(-3)]])
    order = rng.permutation(below.size)
    assert Ratio().update(above[order], below[order]).results() == -24
    # A total of zero below: not infinite, whatever the sign of the one above.
    for value in (1.0, -1.0, 0.0):
        assert np.isnan(Ratio().update([value, 0], [2.5, -2.5]).results())


def test_no_data_is_nan_without_a_warning():
    for metric in (
        Ratio(),
        Ratio().update(np.zeros((0, 3)), np.zeros((0, 3))),
        Ratio().update([np.nan, 1.0], [1.0, np.inf], weights=[0, 0]),
        Ratio().update(5.0, 0),
    ):
        assert np.isnan(metric.results())


def test_ten_billion_tokens():
    # A float32 total of tokens would stop growing at 2**24 times the size of a batch.
    step = lambda m, _: (m.update(jnp.float32(2.5) * 2**20, jnp.int32(2**20)), None)  # noqa: E731
    metric = jax.jit(lambda: lax.scan(step, Ratio(), None, length=10_000)[0])()
    assert metric.results() == 2.5
    assert float(metric.statistic.sums[1].exact) == 10_000 * 2**20


def test_weights_multiply_both(rng):
    above, below = draw(rng, (6, 3)), draw(rng, (6, 3))
    below[0, 0] += 200
    w = np.float32([0, 1 / 3, 1e-30, 1e30, 0.1, 2])
    want = exact(above, below, np.repeat(w, 3))
    above[0], below[0, 1] = np.nan, np.inf  # of weight zero
    assert Ratio().update(above, below, weights=w).results() == pytest.approx(want, rel=1e-6)
    mask = np.array([0, 1, 1, 0, 1, 1], bool)
    kept = Ratio().update(above[mask], below[mask]).results()
    assert Ratio().update(above, below, weights=mask).results() == kept


def test_pairs_that_cannot_be_used_are_counted():
    above, below = np.float32([np.nan, 1, 2, np.inf, 3]), np.float32([np.nan, np.inf, 4, 1, -1])
    metric = Ratio().update(above, below)
    with pytest.warns(InvalidValuesWarning, match=r"could not be used \(1 NaN, 2 infinite\)"):
        assert np.isnan(metric.results())
    with pytest.warns(InvalidValuesWarning, match="left out"):
        assert metric.replace(on_invalid="exclude").results() == 5 / 3


def test_bad_input():
    with pytest.raises(MetricInputError, match=r"numerator of shape \(3,\) and denominator of sha"):
        Ratio().update(np.ones(3), 2.0)
    with pytest.raises(MetricInputError, match="weights of shape"):
        Ratio().update(np.ones(3), np.ones(3), weights=np.ones(4))
    with pytest.raises(MetricTypeError, match="denominator"):
        Ratio().update(np.ones(3), ["a", "b", "c"])
    with pytest.raises(MetricTypeError, match="denominator"):
        Ratio().update(np.ones(3))
    with pytest.raises(MetricTypeError, match="Pass mask as weights="):
        Ratio().update(np.ones(3), np.ones(3), mask=np.ones(3))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_shards_of_two_axes_one_of_them_empty_of_weight(rng, kind):
    mesh = make_mesh(kind, {"data": 4, "model": 2})
    spec = P(("data", "model"))
    above, below = draw(rng, (16,)), draw(rng, (16,), "int32")
    below[5] += 1000
    w = np.ones(16, bool)
    w[2:4] = False  # one device has no pair that counts
    want = np.float32(exact(above[w], below[w]))
    above[2] = np.nan
    given = place((above, below, w), mesh, spec)
    plain = jax.jit(lambda m, a, b, w: m.update(a, b, weights=w))(Ratio(), *given)
    assert_same(jnp.asarray(plain.compute()), want, ulps=1)
    # Inside `shard_map`, and one copy for each device, whose buffers are donated.
    local = over_shards(
        lambda a, b, w: Ratio().update(a, b, weights=w).sync(("data", "model")), mesh, spec, P()
    )
    assert_same(local(*given).compute(), want, ulps=1)
    step = partial(jax.jit, donate_argnums=0)(lambda m, a, b, w: m.update(a, b, weights=w))
    copies = step(datarax.per_device(Ratio(), mesh, ("data", "model")), *given)
    assert_same(copies.compute(), want, ulps=1)


def test_an_interval_of_it_is_that_of_a_ratio_estimator(rng):
    above, below = rng.normal(3, 1, 200), rng.uniform(0.5, 2, 200)
    above, below = (x.astype(np.float32).astype(np.float64) for x in (above, below))
    r = above.sum() / below.sum()
    error = np.sqrt(((above - r * below) ** 2).sum() * 200 / 199) / below.sum()
    got = datarax.Interval(Ratio()).update(np.float32(above), np.float32(below)).results()
    assert got["value"] == pytest.approx(r, rel=1e-13)
    assert got["std_error"] == pytest.approx(error, rel=1e-9)


def test_slices_and_replicas(rng):
    above, below, ids = (
        draw(rng, (40,)),
        rng.uniform(1, 2, 40).astype(np.float32),
        np.arange(40) % 3,
    )
    sliced = datarax.Sliced(Ratio(), 3).update(above, below, slices=ids).results()
    for i in range(3):
        want = exact(above[ids == i], below[ids == i])
        assert sliced[str(i)] == pytest.approx(want, rel=1e-12)
    drawn = datarax.Bootstrap(Ratio(), 50).update(above, below).results()
    assert drawn["lower"] < drawn["value"] < drawn["upper"]


def test_ratios_of_one_collection_are_one_stack(rng):
    names = ("a", "b", "c")
    metrics = datarax.Collection(
        {n: Ratio().from_outputs(numerator=n, denominator="tokens") for n in names}
    )
    assert len(jax.tree.leaves(metrics)) == len(jax.tree.leaves(metrics["a"]))
    outputs = {n: draw(rng, (8,)) for n in names} | {"tokens": np.arange(1, 9)}
    got = jax.jit(lambda m, x: m.update(**x))(metrics, outputs).results()
    for name in names:
        assert got[name] == pytest.approx(exact(outputs[name], outputs["tokens"]), rel=1e-14)
