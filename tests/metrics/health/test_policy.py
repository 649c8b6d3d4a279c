"""Policies: the divergence from a reference, clipped ratios, the spread of rewards in groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from scipy.special import rel_entr

import datarax
from datarax import InvalidValuesWarning, MetricInputError, MetricTypeError
from datarax.metrics import ApproxKL, ClipFraction, GroupSpread
from tests.helpers import assert_same, compiled_update, make_mesh, over_shards, place, softmax, x64


def by_definition(values, group):
    """The three numbers, from a loop over the groups, in float64."""
    values = np.asarray(values, np.float64)
    each = [values[group == g] for g in np.unique(group)]
    stds = [x.std(ddof=1) for x in each if x.size > 1]
    return {
        "mean": values.mean(),
        "std": np.mean(stds) if stds else np.nan,
        "zero_share": np.mean([x == 0 for x in stds]) if stds else np.nan,
    }


def rewards(rng, groups=6, rows=48):
    return rng.integers(0, 3, rows).astype(np.float32), rng.integers(0, groups, rows)


# ApproxKL.


def test_k1_and_k3_are_unbiased(rng):
    logits = rng.normal(size=5)
    own, other = softmax(np.stack([logits, logits + rng.normal(0, 0.2, 5)]))
    drawn = rng.choice(5, 200_000, p=own)
    pair = np.log(own)[drawn], np.log(other)[drawn]
    truth = rel_entr(own, other).sum()
    spread = {}
    for estimator in ("k1", "k3"):
        metric = datarax.Interval(ApproxKL(estimator=estimator)).update(*pair)
        got = metric.results()
        assert abs(got["value"] - truth) < 6 * got["std_error"] + 1e-6
        spread[estimator] = got["std_error"]
    assert spread["k3"] < spread["k1"]


def test_near_policies_keep_their_digits(rng):
    own = rng.normal(-2, 1, 64).astype(np.float32)
    other = np.nextafter(own, np.float32(0))
    d = other.astype(np.float64) - own
    want = np.float32((d**2 / 2).mean())  # the next term is smaller by d / 3
    for update in (lambda *x: ApproxKL().update(*x), lambda *x: compiled_update(ApproxKL(), *x)):
        assert_same(jnp.asarray(update(own, other).compute()), want, ulps=8)
    naive = np.mean(np.exp(other - own) - 1 - (other - own))
    assert abs(naive / want - 1) > 0.01
    assert ApproxKL().update(own, own).compute() == 0


def test_bfloat16_log_probabilities_are_subtracted_in_float32(rng):
    own, other = (jnp.asarray(rng.normal(-20, 1, 256), jnp.bfloat16) for _ in range(2))
    d = np.asarray(other, np.float64) - np.asarray(own, np.float64)
    got = compiled_update(ApproxKL(estimator="k1"), own, other).compute()
    assert_same(got, np.float32(-d.mean()), ulps=1)


def test_masked_tokens_may_be_anything(rng):
    own, other = rng.normal(-2, 1, (2, 4, 8)).astype(np.float32)
    mask = rng.random((4, 8)) < 0.5
    mask[0, 0] = True
    want = ApproxKL().update(own[mask], other[mask]).results()
    own[~mask], other[~mask] = np.nan, -np.inf
    assert ApproxKL().update(own, other, weights=mask).results() == pytest.approx(want, rel=1e-14)
    got = compiled_update(ApproxKL(), own, other, weights=mask)
    assert_same(got.compute(), np.float32(want), ulps=2)
    assert np.isnan(ApproxKL().update(own, other, weights=np.zeros((4, 8))).results())


def test_an_impossible_token_is_counted():
    metric = ApproxKL().update([-1.0, -2.0], [-np.inf, -2.0])
    with pytest.warns(InvalidValuesWarning, match="1 infinite"):
        assert np.isnan(metric.results())


def test_misuse_of_approx_kl():
    with pytest.raises(MetricInputError, match="estimator='k4'"):
        ApproxKL(estimator="k4")
    with pytest.raises(
        MetricInputError, match=r"log_probs of shape \(2, 3\) and reference_log_pro"
    ):
        ApproxKL().update(np.ones((2, 3)), np.ones((2, 1)))
    with pytest.raises(MetricTypeError, match="reference_log_probs"):
        ApproxKL().update(np.ones(3))


# ClipFraction.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_bounds_are_those_of_a_clip_in_the_dtype_of_the_ratios(dtype, rng):
    ratio = jnp.asarray(np.exp(rng.normal(0, 0.4, 64)), dtype)
    ratio = ratio.at[:4].set(jnp.asarray([0.8, 1.2, 1.0, 0.0], dtype))
    changed = jnp.clip(ratio, 0.8, 1.2) != ratio
    assert ClipFraction().update(ratio).results() == np.mean(np.asarray(changed))


def test_with_an_advantage_only_where_the_gradient_is_zero(rng):
    ratio = np.exp(rng.normal(0, 0.4, (16, 8))).astype(np.float32)
    advantage = rng.normal(size=16).astype(np.float32)
    advantage[3] = 0

    def surrogate(ratio):
        a = advantage[:, None]
        return jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).sum()

    gradient = np.asarray(jax.grad(surrogate)(ratio))
    want = ((gradient == 0) & (advantage != 0)[:, None]).mean()
    assert ClipFraction().update(ratio, advantage).results() == want
    assert ClipFraction().update(ratio).results() > want
    assert ClipFraction().update(ratio, np.float32(0)).results() == 0


def test_its_interval_is_that_of_a_proportion():
    got = datarax.Interval(ClipFraction()).update(np.full(50, 1.0)).results()
    assert (got["value"], got["lower"]) == (0, 0)
    assert 0.05 < got["upper"] < 0.1


@pytest.mark.parametrize("name", ["low", "high"])
@pytest.mark.parametrize("value", [-0.1, np.nan, "0.2", None, True])
def test_misuse_of_clip_fraction(name, value):
    with pytest.raises(MetricInputError, match=f"{name}=.*expected a number of at least 0"):
        ClipFraction(**{name: value})


def test_ratios_and_advantages_that_cannot_be_used():
    metric = ClipFraction().update([np.nan, np.inf, -0.5, 1.0, 2.0], [1.0, 1.0, 1.0, np.nan, 1.0])
    with pytest.warns(InvalidValuesWarning, match=r"1 infinite.*example -0\.5"):
        assert np.isnan(metric.results())
    with pytest.warns(InvalidValuesWarning):
        assert metric.replace(on_invalid="exclude").results() == 1
    with pytest.raises(MetricInputError, match="advantage of shape"):
        ClipFraction().update(np.ones((4, 2)), np.ones(2))


# GroupSpread.


@pytest.mark.parametrize("num_groups", [6, None])
def test_groups_against_a_loop(num_groups, rng):
    values, group = rewards(rng)
    want = by_definition(values, group)
    host = GroupSpread(num_groups=num_groups).update(values, group).results()
    program = compiled_update(GroupSpread(num_groups=num_groups), values, group).compute()
    for name, value in want.items():
        assert host[name] == pytest.approx(value, rel=1e-13, nan_ok=True)
        assert program[name] == pytest.approx(value, rel=1e-6, nan_ok=True)


def test_a_group_may_be_in_several_updates_and_on_several_devices(rng):
    values, group = rewards(rng)
    values += np.float32(1000)
    want = by_definition(values, group)
    metric = GroupSpread(num_groups=6)
    for part in np.split(np.arange(48), 3):
        metric = metric.update(values[part], group[part])
    mesh = make_mesh("auto", {"data": 4, "model": 2})
    given = place((values, group), mesh, P(("data", "model")))
    copies = datarax.per_device(GroupSpread(num_groups=6), mesh, ("data", "model")).update(*given)
    inside = over_shards(
        lambda v, g: GroupSpread(num_groups=6).update(v, g).sync(("data", "model")),
        mesh,
        P(("data", "model")),
        P(),
    )
    for got in (metric.results(), copies.results(), inside(*given).results()):
        assert got == {name: pytest.approx(x, rel=1e-6) for name, x in want.items()}


def test_groups_without_a_number_belong_to_one_update(rng):
    values, group = rewards(rng)
    ids = rng.choice(2**31 - 1, 6, replace=False)[group] * rng.choice([-1, 1])
    want = by_definition(values, group)
    assert GroupSpread().update(values, ids).results() == {
        name: pytest.approx(x, rel=1e-13) for name, x in want.items()
    }
    # The same id in the next update is another group.
    twice = GroupSpread().update(values, ids).update(values, ids)
    assert twice.results() == pytest.approx(want, rel=1e-13)
    split = GroupSpread().update([0.0], [5]).update([2.0], [5])
    assert split.results()["mean"] == 1
    assert np.isnan(split.results()["std"])
    mesh = make_mesh("auto", {"data": 8})
    with pytest.raises(MetricInputError, match=r"group=\d+ has rows on several devices"):
        datarax.per_device(GroupSpread(), mesh, "data").update(values, np.zeros(48, int))
    # With each group on one device.
    order = np.repeat(np.arange(8), 6)
    copies = datarax.per_device(GroupSpread(), mesh, "data").update(values, order)
    assert copies.results() == pytest.approx(by_definition(values, order), rel=1e-6)


@pytest.mark.parametrize("num_groups", [6, None])
def test_slices_are_of_the_rows_in_them(num_groups, rng):
    values, group = rewards(rng)
    ids = rng.integers(0, 2, 48)
    metric = datarax.Sliced(GroupSpread(num_groups=num_groups), 2)
    for update in (lambda **x: metric.update(**x), lambda **x: compiled_update(metric, **x)):
        got = update(values=values, group=group, slices=ids).results()
        for i in range(2):
            want = by_definition(values[ids == i], group[ids == i])
            assert got[str(i)] == pytest.approx(want, rel=1e-6, nan_ok=True)
        assert got["overall"] == pytest.approx(by_definition(values, group), rel=1e-6)


@pytest.mark.parametrize("num_groups", [3, None])
def test_weights_are_repetitions_and_masks_deletions(num_groups, rng):
    values, group = rewards(rng, 3, 12)
    w = rng.integers(0, 3, 12)
    w[0] = 2
    make = lambda: GroupSpread(num_groups=num_groups)  # noqa: E731
    want = by_definition(np.repeat(values, w), np.repeat(group, w))
    values[w == 0] = np.nan
    got = make().update(values, group, weights=w.astype(np.float32)).results()
    assert got == pytest.approx(want, rel=1e-12, nan_ok=True)
    for weights in (np.zeros(12), np.zeros(12, bool)):
        empty = make().update(values, group, weights=weights).results()
        assert all(map(np.isnan, empty.values()))
    assert all(map(np.isnan, make().update(np.zeros(0), np.zeros(0, int)).results().values()))


@pytest.mark.parametrize("num_groups", [2, None])
def test_tokens_of_a_group_and_values_that_cannot_be_used(num_groups):
    # Of two axes: each value is a row of its group.
    metric = GroupSpread(num_groups=num_groups).update([[1.0, 3.0], [5.0, 5.0]], [0, 1])
    assert metric.results() == pytest.approx({"mean": 3.5, "std": 0.5**0.5, "zero_share": 0.5})
    spoilt = metric.update([np.nan, np.inf], [1, 1])
    with pytest.warns(InvalidValuesWarning, match="1 NaN, 1 infinite"):
        assert np.isnan(spoilt.results()["std"])
    with pytest.warns(InvalidValuesWarning):
        kept = spoilt.replace(on_invalid="exclude").results()
    assert kept["std"] == metric.results()["std"]


def test_ids_out_of_range_are_counted():
    metric = GroupSpread(num_groups=2).update([1.0, 2.0, 3.0], [0, 2, -1])
    with pytest.warns(InvalidValuesWarning, match="2 out of range, for example 2"):
        assert np.isnan(metric.results()["mean"])


def test_equal_values_are_equal_whatever_their_size(rng):
    for scale in (1e-30, 0.1, 1e30):
        values, group = rewards(rng, 5)
        values = np.float32(scale) * rng.normal(size=5).astype(np.float32)[group]
        metric = GroupSpread(num_groups=5)
        for part in np.split(rng.permutation(48), 4):
            metric = compiled_update(metric, values[part], group[part])
        assert metric.results()["zero_share"] == 1
        assert metric.results()["std"] == 0


def test_with_x64(rng):
    values, group = rewards(rng)
    with x64():
        metric = jax.jit(lambda m, *x: m.update(*x))(GroupSpread(num_groups=6), values, group)
        assert metric.results() == pytest.approx(by_definition(values, group), rel=1e-13)


def test_misuse_of_group_spread():
    with pytest.raises(MetricInputError, match="num_groups=0"):
        GroupSpread(num_groups=0)
    with pytest.raises(MetricTypeError, match="group has dtype"):
        GroupSpread().update([1.0], [0.0])
    with pytest.raises(MetricInputError, match=r"group of shape \(3,\) does not broadcast"):
        GroupSpread().update(np.ones(2), np.arange(3))
    with pytest.raises(MetricInputError, match=r"weights of shape \(3,\) do"):
        GroupSpread().update(np.ones(2), np.arange(2), weights=np.ones(3))
    with pytest.raises(MetricTypeError, match="group"):
        GroupSpread().update(np.ones(2))
