"""ExpertLoad beyond what the registry checks: hostile ids, drops, layers, router logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import datarax
from datarax import MetricInputError
from datarax.metrics import ExpertLoad
from tests.helpers import assert_same, update

NAN = ("share", "max_share", "max_expert", "entropy", "balance", "dropped")
excluding = pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")


def counted(ids, size):
    return np.bincount(np.asarray(ids).ravel(), minlength=size)


@pytest.mark.parametrize("size", [1, 3, 64, 65, 257])
@pytest.mark.parametrize("shape", [(50,), (40, 2), (4, 10, 3)])
def test_against_scipy(size, shape, rng):
    ids = rng.integers(0, rng.integers(size) + 1, shape).astype(np.int32)
    got = update(ExpertLoad(size), ids).compute()
    share = counted(ids, size) / ids.size
    assert_same(got["share"], share, np.float32, ulps=1)
    assert_same(got["max_share"], share.max(), np.float32, ulps=1)
    assert int(got["max_expert"]) == share.argmax()
    assert got["dropped"] == 0
    np.testing.assert_allclose(got["entropy"], stats.entropy(share), rtol=1e-6, atol=1e-6)
    # The balance is 1 / (1 + CV**2), of the coefficient of variation of the load.
    np.testing.assert_allclose(got["balance"], 1 / (1 + stats.variation(share) ** 2), rtol=3e-7)


def test_even_and_collapsed_loads():
    even = ExpertLoad(8).update(jnp.arange(64) % 8).compute()
    assert even["balance"] == 1
    assert_same(even["entropy"], np.log(8), np.float32, ulps=1)
    collapsed = ExpertLoad(8).update(jnp.full((5, 2), 6)).compute()
    assert collapsed["balance"] == 1 / 8
    assert (collapsed["entropy"], collapsed["max_expert"], collapsed["max_share"]) == (0, 6, 1)
    assert not np.signbit(collapsed["entropy"])


def test_the_entropy_of_almost_one_expert_keeps_its_digits():
    size = 3_000_000  # no float32 is the share of the first
    ids = np.zeros(size, np.int32)
    ids[:2] = 1
    share = np.array([size - 2, 2]) / size
    want = -(share[1] * np.log(share[1]) + share[0] * np.log1p(-share[1]))
    assert_same(update(ExpertLoad(2), ids).compute()["entropy"], want, np.float32, ulps=2)


def test_of_equal_loads_the_first_and_of_almost_equal_ones_the_greater():
    metric = ExpertLoad(4).update(jnp.array([2, 1, 2, 1, 3]))
    assert metric.compute()["max_expert"] == 1
    for _ in range(26):  # float32 does not tell 2**27 from 2**27 + 1
        metric = metric.merge(metric)
    assert metric.update(jnp.array([2])).compute()["max_expert"] == 2


def test_counts_beyond_the_integers_of_float32_and_of_32_bits():
    metric = ExpertLoad(2).update(jnp.array([0, 1, 1]))
    for _ in range(40):
        metric = metric.merge(metric)
    metric = metric.update(jnp.array([0]))
    high, low = (np.asarray(x, np.float64) for x in metric.statistic.routed)
    assert (high + low).tolist() == [[2**40 + 1, 2**41]]


@excluding
@pytest.mark.parametrize(
    ("ids", "invalid"),
    [
        (np.array([0, 3, -1, 4, 2**31 - 1, -(2**31)], np.int32), 4),
        (np.array([0, 3, 4, 255], np.uint8), 2),
        (np.array([0, 3, -1, -128, 127], np.int8), 3),
        (np.array([0, 3, 2**32 - 1, 2**31], np.uint32), 2),  # as int32 these are negative
    ],
)
def test_ids_out_of_range_are_counted_and_excluded(ids, invalid):
    metric = ExpertLoad(4, on_invalid="exclude").update(ids)
    assert int(metric.invalid_count()) == invalid
    assert metric.compute()["share"].tolist() == [0.5, 0, 0, 0.5]
    results = metric.results()
    assert results["invalid"] == invalid
    under = metric.replace(on_invalid="propagate").compute()
    assert all(np.isnan(under[name]).all() for name in NAN)


def test_narrow_ids_of_many_experts():
    got = update(ExpertLoad(300), np.array([0, 255, 255], np.uint8)).compute()
    assert got["max_expert"] == 255


@pytest.mark.parametrize("ids", [jnp.ones(3), jnp.ones(3, jnp.bool_), jnp.ones(3, jnp.bfloat16)])
def test_ids_must_be_integers(ids):
    with pytest.raises(datarax.MetricTypeError, match="expected integer ids"):
        ExpertLoad(2).update(ids)


def test_dropped_as_a_mask_of_tokens_of_assignments_and_as_a_number(rng):
    ids = rng.integers(0, 4, (12, 2))
    by_assignment = rng.random((12, 2)) < 0.4
    by_token = rng.random(12) < 0.4
    want = {"assignments": by_assignment.mean(), "tokens": by_token.mean(), "number": 5 / 24}
    given = {"assignments": by_assignment, "tokens": by_token, "number": 5}
    for name, dropped in given.items():
        got = update(ExpertLoad(4), ids, dropped=dropped).compute()
        assert_same(got["dropped"], want[name], np.float32, ulps=1)
    for dtype in (np.int32, np.float32, jnp.bfloat16):
        got = update(ExpertLoad(4), ids, dropped=by_token.astype(dtype)).compute()
        assert_same(got["dropped"], by_token.mean(), np.float32, ulps=1)
    # As routed: the shares include what was dropped.
    everything = update(ExpertLoad(4), ids, dropped=True).compute()
    assert everything["dropped"] == 1
    assert_same(everything["share"], counted(ids, 4) / 24, np.float32, ulps=1)


def test_dropped_is_weighted_as_the_assignments(rng):
    ids, dropped = rng.integers(0, 4, (12, 2)), rng.random((12, 2)) < 0.4
    weights = (rng.integers(1, 9, 12) / 3).astype(np.float32)
    got = update(ExpertLoad(4), ids, dropped=dropped, weights=weights).compute()
    w = np.repeat(weights.astype(np.float64), 2).reshape(12, 2)
    assert_same(got["dropped"], (w * dropped).sum() / w.sum(), np.float32, ulps=1)
    share = np.array([w[ids == e].sum() for e in range(4)]) / w.sum()
    assert_same(got["share"], share, np.float32, ulps=1)


@excluding
def test_dropped_that_is_no_mask_and_no_number_that_can_be():
    ids = jnp.array([0, 1, 2])
    metric = ExpertLoad(3, on_invalid="exclude")
    for dropped in ([0, 2, 0], [0, -1, 0], [0.0, np.nan, 0.0], [0.0, 0.5, 0.0]):
        seen = metric.update(ids, dropped=np.array(dropped))
        assert int(seen.invalid_count()) == 1
        assert seen.compute()["share"].tolist() == [0.5, 0, 0.5]
    for dropped in (4, -1, np.float32(np.nan), np.float32(np.inf)):
        seen = metric.update(ids, dropped=dropped)
        assert int(seen.invalid_count()) == 1
        assert seen.compute()["dropped"] == 0
    # Of two usable assignments, three cannot have been dropped.
    assert int(metric.update(ids, dropped=3, weights=ids > 0).invalid_count()) == 1


def test_a_number_of_dropped_assignments_is_exact_and_has_no_weights():
    metric = ExpertLoad(2)
    for dropped, size in ((3, 7), (0, 0), (5, 5)):  # padded to one size
        metric = metric.update(np.zeros(size, np.int32), dropped=dropped)
    assert metric.results()["dropped"] == np.float32(8 / 12)
    with pytest.raises(datarax.MetricInputError, match="give a mask"):
        metric.update(jnp.zeros(3, jnp.int32), dropped=1, weights=jnp.ones(3))
    with pytest.raises(datarax.MetricInputError, match="give a mask"):
        ExpertLoad(2, num_layers=2).update(
            jnp.zeros((2, 3), jnp.int32), dropped=1, layer=jnp.arange(2)
        )


@pytest.mark.parametrize("dropped", [None, np.zeros((0, 2), bool), 0])
def test_empty_batches(dropped):
    empty = ExpertLoad(3).update(np.zeros((0, 2), np.int32), dropped=dropped)
    assert all(np.isnan(empty.compute()[name]).all() for name in NAN)
    assert empty.update(np.array([[1, 1]])).compute()["share"].tolist() == [0, 1, 0]


def test_layers_are_those_of_metrics_of_one_layer(rng):
    layers, tokens = 3, 20
    ids = rng.integers(0, 5, (layers, tokens, 2)).astype(np.int32)
    dropped, mask = rng.random(ids.shape) < 0.2, rng.random((layers, tokens)) < 0.8
    logits = rng.normal(0, 3, (layers, tokens, 5)).astype(np.float32)
    given = {"dropped": dropped, "weights": mask, "router_logits": logits}
    at_once = update(ExpertLoad(5, num_layers=layers), ids, layer=np.arange(layers), **given)
    one_by_one = ExpertLoad(5, num_layers=layers)
    for i in rng.permutation(layers):
        mine = {name: x[i] for name, x in given.items()}
        one_by_one = one_by_one.update(ids[i], layer=i, **mine)
        alone = update(ExpertLoad(5), ids[i], **mine).compute()
        for name, value in alone.items():
            np.testing.assert_array_equal(at_once.compute()[name][i], value, name)
    for name, value in at_once.compute().items():
        np.testing.assert_allclose(one_by_one.compute()[name], value, rtol=3e-7)


@excluding
def test_a_layer_that_there_is_not_is_invalid(rng):
    metric = ExpertLoad(2, num_layers=2, on_invalid="exclude")
    metric = metric.update(jnp.array([0, 1, 1, 1]), layer=jnp.array([0, 1, 2, -1]))
    assert int(metric.invalid_count()) == 2
    assert metric.compute()["share"].tolist() == [[1, 0], [0, 1]]


def test_layer_and_num_layers_go_together():
    ids = jnp.zeros(3, jnp.int32)
    with pytest.raises(datarax.MetricInputError, match="num_layers=2 needs layer="):
        ExpertLoad(3, num_layers=2).update(ids)
    with pytest.raises(datarax.MetricInputError, match="layer= is given"):
        ExpertLoad(3).update(ids, layer=0)
    with pytest.raises(datarax.MetricTypeError, match="layer has dtype float64"):
        ExpertLoad(3, num_layers=2).update(ids, layer=1.0)
    with pytest.raises(datarax.MetricInputError, match="layer of shape"):
        ExpertLoad(3, num_layers=2).update(ids, layer=jnp.zeros(2, jnp.int32))


@pytest.mark.parametrize("config", [{"num_experts": 0}, {"num_experts": 2.0}, {"num_layers": 0}])
def test_sizes_must_be_positive_integers(config):
    with pytest.raises(datarax.MetricInputError, match="expected an integer of at least 1"):
        ExpertLoad(**{"num_experts": 2} | config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("offset", [0, 300, -2000])
def test_router_z_loss_against_scipy(dtype, offset, rng):
    logits = jnp.asarray(rng.normal(offset, 3, (40, 6)), dtype)
    ids, weights = rng.integers(0, 6, (40, 2)), rng.integers(0, 3, 40).astype(np.float32)
    got = update(ExpertLoad(6), ids, router_logits=logits, weights=weights).compute()
    z = special.logsumexp(np.asarray(logits, np.float64), axis=-1)
    want = np.average(np.square(z), weights=weights)
    np.testing.assert_allclose(got["router_z_loss"], want, rtol=2e-6)


@excluding
def test_logits_that_cannot_be_used_leave_the_counts_as_they_are():
    logits = np.zeros((4, 2), np.float32)
    logits[0, 0] = -np.inf  # an expert that is masked out
    logits[1] = -np.inf
    logits[2, 1] = np.nan
    metric = ExpertLoad(2, on_invalid="exclude").update(
        np.array([1, 1, 0, 0]), router_logits=logits
    )
    assert int(metric.invalid_count()) == 2
    got = metric.compute()
    assert got["share"].tolist() == [0.5, 0.5]
    np.testing.assert_allclose(got["router_z_loss"], np.log(2) ** 2 / 2, rtol=1e-6)


def test_router_z_loss_of_large_logits_does_not_overflow():
    logits = np.full((4, 2), 1e19, np.float32)
    got = update(ExpertLoad(2), np.zeros(4, np.int32), router_logits=logits).compute()
    np.testing.assert_allclose(got["router_z_loss"], 1e38, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4,), (3, 2), (4, 3), (4, 2, 2, 2)])
def test_logits_of_other_shapes_are_refused(shape):
    with pytest.raises(datarax.MetricInputError, match="router_logits of shape"):
        ExpertLoad(2).update(jnp.zeros((4, 2), jnp.int32), router_logits=jnp.zeros(shape))


def test_within_jit_and_scan(rng):
    ids = rng.integers(0, 4, (5, 16, 2)).astype(np.int32)

    @jax.jit
    def run(metric, ids):
        return jax.lax.scan(lambda m, x: (m.update(x, dropped=x == 0), None), metric, ids)[0]

    got = run(ExpertLoad(4), ids).compute()
    assert_same(got["share"], counted(ids, 4) / ids.size, np.float32, ulps=1)
    assert_same(got["dropped"], (ids == 0).mean(), np.float32, ulps=1)


def test_the_greatest_violation_and_its_quantiles_over_layers(rng):
    layers, experts = 10, 8
    counts = rng.integers(1, 50, (layers, experts))
    counts[3] = 7  # an even load
    counts[6] = 0  # no data
    counts[8] = [0, 0, 0, 0, 0, 9, 0, 0]
    ids = np.concatenate([np.repeat(np.arange(experts), row) for row in counts])
    layer = np.repeat(np.arange(layers), counts.sum(1))
    load = ExpertLoad(experts, num_layers=layers, quantiles=(0, 0.07, 0.7, 1)).update(
        ids, layer=layer
    )
    want = np.array([row.max() / row.mean() - 1 if row.any() else np.nan for row in counts])
    got = load.results()
    np.testing.assert_allclose(got["max_violation"], want, rtol=1e-14)
    assert got["max_violation"][[3, 8]].tolist() == [0, experts - 1]
    known = want[~np.isnan(want)]
    for name, q in (("p0", 0), ("p7", 0.07), ("p70", 0.7), ("p100", 1)):
        value = np.quantile(known, q, method="inverted_cdf")
        assert got[f"max_violation_{name}"] == pytest.approx(value, rel=1e-14)
    # Without layers there are none; without data they are NaN.
    assert not any("_p" in name for name in ExpertLoad(experts).update(ids).results())
    assert np.isnan(load.reset().results()["max_violation_p100"])
    with pytest.raises(MetricInputError, match="quantiles="):
        ExpertLoad(4, num_layers=2, quantiles=(1.5,))
