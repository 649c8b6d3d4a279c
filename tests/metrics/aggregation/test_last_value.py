"""LastValue without steps: the state numbers the updates, wherever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import datarax
from datarax import InvalidValuesWarning
from datarax.metrics import LastValue
from tests.helpers import compiled_update, make_mesh, over_shards, place


def test_the_last_update_wins(rng):
    values = rng.normal(size=8).astype(np.float32)
    metric = LastValue()
    for value in values:
        metric = metric.update(value)
    scanned = jax.jit(lambda m, x: lax.scan(lambda m, v: (m.update(v), None), m, x)[0])
    assert metric.compute() == scanned(LastValue(), values).compute() == values[-1]
    # A reset starts to count again, and no data is NaN.
    assert np.isnan(metric.reset().results())
    assert metric.reset().update(1.5).results() == 1.5


def test_an_update_without_a_value_that_counts_changes_nothing():
    metric = LastValue().update(3.0).update(np.zeros(0)).update(7.0, weights=0)
    assert metric.results() == 3
    spoilt = metric.update(np.nan)
    with pytest.warns(InvalidValuesWarning, match="1 NaN"):
        assert np.isnan(spoilt.results())
    with pytest.warns(InvalidValuesWarning):
        assert spoilt.replace(on_invalid="exclude").results() == 3


def test_of_merged_states_the_one_that_was_updated_more_often():
    often, seldom = LastValue().update(1.0).update(2.0), LastValue().update(9.0)
    assert often.merge(seldom).results() == seldom.merge(often).results() == 2
    assert often.merge(seldom).update(5.0).results() == 5
    # Of equally many, the greater value; the empty state is the identity.
    assert often.merge(LastValue().update(9.0).update(8.0)).results() == 8
    assert often.merge(LastValue()).results() == 2
    loaded = LastValue().load_state_dict(often.state_dict()).update(0.5)
    assert loaded.merge(often).results() == 0.5


def test_devices_number_an_update_alike_also_without_rows():
    mesh = make_mesh("auto", {"data": 8})
    step = jax.jit(lambda m, x, w: m.update(x, weights=w), donate_argnums=0)
    metric, plain = datarax.per_device(LastValue(), mesh, "data"), LastValue()
    first, second = np.float32(np.arange(8)), np.float32(np.arange(8) - 20)
    # In the first update, only one device has a row that counts: not the one that has the last.
    for values, w in ((first, np.arange(8) == 0), (second, np.arange(8) == 7)):
        given = place((values, w), mesh, P("data"))
        metric, plain = step(metric, *given), plain.update(values, weights=w)
    assert metric.results() == plain.results() == -13


def test_a_replicated_state_keeps_its_number_on_all_devices():
    mesh = make_mesh("auto", {"data": 8})

    def step(metric, values):
        return metric.update(values).sync("data")

    metric = LastValue()
    for values in (np.arange(8), np.arange(8) - 20):
        given = place(np.float32(values), mesh, P("data"))
        metric = over_shards(step, mesh, (P(), P("data")), P())(metric, given)
    assert metric.results() == -13


def test_slices_replicas_and_windows_number_updates_too(rng):
    batches = [(np.float32([4, 3]), [0, 1]), (np.float32([2]), [0]), (np.float32([1, 0]), [1, 1])]
    host = compiled = datarax.Sliced(LastValue(), 3)
    window, nested = (
        datarax.Window(LastValue(), 2),
        datarax.Sliced(datarax.Window(LastValue(), 2), 2),
    )
    for values, ids in batches:
        host = host.update(values, slices=np.array(ids))
        compiled = compiled_update(compiled, values, slices=np.array(ids))
        window = window.update(values)
        nested = nested.update(values, slices=np.array(ids))
    for sliced in (host, compiled):
        got = sliced.results()
        assert (got["0"], got["1"], got["overall"]) == (2, 1, 1)
        assert np.isnan(got["2"])
    assert window.results() == 1
    assert (nested.results()["0"], nested.results()["1"]) == (2, 1)
    drawn = datarax.Bootstrap(LastValue(), 8).update(np.full(40, 5.0)).update(np.full(40, -2.0))
    with pytest.warns(datarax.PrecisionWarning, match="all replicas have the same value"):
        assert drawn.results()["value"] == -2


def test_in_a_collection_with_others_that_have_steps():
    metrics = datarax.Collection(
        {
            "rate": LastValue().from_outputs(values="rate", step=None),
            "eval": LastValue().from_outputs(values="eval"),
        }
    )
    update = jax.jit(lambda m, outputs: m.update(**outputs))
    for i in range(3):
        outputs = {"rate": jnp.float32(-i), "eval": jnp.float32(i), "step": 5 - i}
        metrics = update(metrics, outputs)
    assert metrics.results() == {"rate": -2.0, "eval": 0.0}
