"""Metrics out of `vmap` and `pmap`: several, and no call takes them for one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.algebra.leading_axes import find_leading_axes
from datarax.distributed import collect_from_devices
from tests.helpers import make_mesh

ROWS = np.arange(24.0, dtype=np.float32).reshape(8, 3)


def repeated(metric, size=8):
    """As `vmap` returns it; nothing is compiled."""
    return jax.tree.map(lambda x: np.stack([x] * size), metric)


MADE = {
    "Mean": metrics.Mean().update(ROWS[0]),
    "Max": metrics.Max().update(ROWS[0]),
    "AUROC": metrics.AUROC().update(np.array([0.1, 0.7]), np.array([0, 1])),
    "ConfusionMatrix": metrics.ConfusionMatrix(num_classes=3).update([0, 1], [0, 2]),
    "Collection": datarax.Collection({"a": metrics.Mean(), "b": metrics.Std()}).update(values=1.0),
    "Sliced": datarax.Sliced(metrics.Mean(), 2).update(np.ones(2), slices=np.arange(2)),
    "Window": datarax.Window(metrics.Mean(), 2).update(1.0),
}
SAID = r"^{}: its arrays have a leading axis of 8, .* take one with .* or merge .*collect_from_dev"


@pytest.mark.parametrize("name", MADE)
def test_a_leading_axis_is_named(name):
    metric = MADE[name]
    assert find_leading_axes(metric) == find_leading_axes(metric.reset()) == ()
    several = repeated(metric)
    assert find_leading_axes(several) == (8,)
    assert find_leading_axes(repeated(several, 2)) == (2, 8)
    for call in (
        several.compute,
        several.results,
        lambda: several.merge(metric),
        lambda: metric.merge(several),
    ):
        with pytest.raises(datarax.MetricInputError, match=SAID.format(name)):
            call()
    assert find_leading_axes(several.merge(several)) == (8,)  # each with each
    for one in collect_from_devices({"m": several, "x": np.arange(3)})["m"]:
        assert type(one) is type(metric)
        np.testing.assert_equal(one.results(), metric.results())
    assert collect_from_devices(metric) is metric


def test_an_update_names_it_or_the_reading_does():
    with pytest.raises(datarax.MetricInputError, match=SAID.format("AUROC")):
        repeated(metrics.AUROC()).update(ROWS[0] / 9, np.array([0, 1, 1]))
    for metric, rows in ((metrics.Mean(), ROWS[:1]), (metrics.PearsonCorrCoef(), ROWS[:2])):
        with pytest.raises(datarax.MetricInputError, match=SAID.format(type(metric).__name__)):
            repeated(metric).update(*rows).results()


def test_what_the_message_says_works():
    several = jax.vmap(lambda x: metrics.Mean().update(x))(jnp.asarray(ROWS))
    assert jax.tree.map(lambda x: x[0], several).results() == 1.0
    merged = functools.reduce(lambda a, b: a.merge(b), collect_from_devices(several))
    assert merged.results() == ROWS.mean()
    # Within `vmap`, each is one.
    np.testing.assert_allclose(jax.vmap(lambda m: m.compute())(several), ROWS.mean(1))


def test_a_metric_on_a_mesh_knows_its_copies():
    on_mesh = datarax.per_device(metrics.Mean(), make_mesh("auto", {"data": 8}), "data")
    assert find_leading_axes(on_mesh) == ()
    assert collect_from_devices(on_mesh) is on_mesh
