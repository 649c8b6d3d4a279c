"""Every metric under plain `jit` on arrays that are sharded over `Explicit` axes.

An operation that does not accept the sharding of its operands raises an error when it is traced.
Which operations do so differs between versions of jax. So every metric is traced here. Other tests
check the numbers, for some of the metrics.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import MetricInputError
from datarax.metrics import ConfusionMatrix, Mean
from tests.helpers import make_mesh, place
from tests.registry import (
    BATCH,
    BUNDLES,
    ENGINE_BUNDLES,
    ENGINE_GROUPS,
    EVERYWHERE,
    GROUPS,
    arrays_of,
)

LAYOUTS = (
    ({"data": 8}, P("data")),
    ({"data": 2, "model": 2}, P("data", "model")),
    ({"data": 2, "model": 2}, P(None, "model")),
)


def fitting(batch, axes, spec):
    """The batch on a mesh, each array sharded along those of its dimensions that divide."""
    mesh = make_mesh("explicit", axes)
    return {
        name: place(
            x,
            mesh,
            P(
                *(
                    a if n % axes.get(a, 1) == 0 else None
                    for a, n in zip(spec, x.shape, strict=False)
                )
            ),
        )
        for name, x in batch.items()
    }


def everything(metric, batch):
    """What one does with a metric."""
    metric = metric.update(**batch)
    metric = metric.merge(metric.reset())
    return metric, metric.compute(), metric.invalid_count()


def again(metric, batch):
    """A second update finds the state on the mesh of the first."""
    return everything(metric.update(**batch), batch)


def layouts_of(name):
    """Metrics, dtypes, layouts and weights: each metric with one of them.

    The representatives have another, in turns, or all of them: so each layout, and each pair of
    a layout, a dtype, and weights or none, is that of many.
    """
    weighted = {"weights": jnp.ones(BATCH, jnp.float32)}
    yield BUNDLES[name], "float32", LAYOUTS[0], weighted
    if name in ENGINE_GROUPS:
        others = [
            ("bfloat16", LAYOUTS[0], {}),
            ("float32", LAYOUTS[1], {}),
            ("bfloat16", LAYOUTS[2], {}),
            ("bfloat16", LAYOUTS[1], weighted),
            ("float32", LAYOUTS[2], weighted),
        ]
        turn = list(ENGINE_GROUPS).index(name) % len(others)
        for each in others if EVERYWHERE else others[turn : turn + 1]:
            yield ENGINE_BUNDLES[name], *each


@pytest.mark.parametrize("name", GROUPS)
def test_every_metric_is_traced(name, rng):
    group = GROUPS[name]
    drawn = group[0].inputs.draw(rng, BATCH)
    for bundle, dtype, (axes, spec), weights in layouts_of(name):
        halves = {key: x.astype(dtype) for key, x in drawn.items() if x.dtype == np.float32}
        batch = jax.tree.map(jnp.asarray, arrays_of(group, drawn | halves))
        # What is counted of a text is made on the host: only its rows are ever sharded.
        if "model" in axes and (group[0].host or all(x.ndim == 1 for x in batch.values())):
            continue
        run = again if name in ENGINE_GROUPS else everything
        jax.eval_shape(run, bundle, fitting(batch | weights, axes, spec))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_two_updates_of_a_table_that_is_on_no_mesh(wrap, rng):
    preds, target = rng.integers(0, 3, (2, BATCH)).astype(np.int32)
    batch = place({"preds": preds, "target": target}, make_mesh("explicit", {"data": 8}), P("data"))
    twice = wrap(lambda metric, batch: metric.update(**batch).update(**batch))
    got = jax.block_until_ready(twice(ConfusionMatrix(num_classes=3), batch))
    want = np.zeros((3, 3))
    np.add.at(want, (target, preds), 2)
    np.testing.assert_array_equal(got.compute(), want)


@pytest.mark.parametrize("per_device", [False, True])
def test_an_array_that_is_not_added_up_yet_is_refused_by_name(per_device):
    mesh = make_mesh("explicit", {"data": 8})
    metric = datarax.per_device(Mean(), mesh, "data") if per_device else Mean()

    @jax.jit
    def update(metric, x, w):
        parts = jnp.matmul(x, w, out_sharding=P(None, None, unreduced={"data"}))
        return metric.update(parts), metric.update(values=jax.sharding.reshard(parts, P()))

    with jax.set_mesh(mesh):
        x = jax.device_put(np.ones((8, 16), np.float32), P(None, "data"))
        w = jax.device_put(np.ones((16, 2), np.float32), P("data", None))
        with pytest.raises(
            MetricInputError, match=r"update: (values|argument 0) is unreduced .* data: each"
        ):
            update(metric, x, w)
