"""A metric without arrays, donated or abstract, says so wherever it is used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from datarax import (
    AsyncMetricCollector,
    Collection,
    DonatedStateError,
    MetricInputError,
    PerDevice,
    Sliced,
    io,
    per_device,
    replicate,
)
from datarax.metrics import Max, Mean, Sum
from datarax.training import StatefulMetric
from tests.helpers import draw, make_mesh


@jax.jit(donate_argnums=0)
def step(metric, values):
    return metric.update(values=values)


def donated(metric, values):
    """A metric whose arrays a step has deleted, and the one that the step returned."""
    metric = jax.tree.map(jnp.array, metric)
    return metric, jax.block_until_ready(step(metric, values))


@pytest.mark.parametrize("metric", [Mean(), Collection({"a": Sum(), "b": Max()})], ids=repr)
def test_every_use_names_the_metric_and_the_donation(rng, metric):
    values = draw(rng, (8,))
    old, new = donated(metric, values)
    expected = f"^{type(metric).__name__}: .*deleted.*donate.*the metric that the step returned"
    for use in (
        lambda: old.update(values=values),
        lambda: old.merge(new),
        lambda: new.merge(old),
        old.compute,
        old.results,
        old.state_dict,
        StatefulMetric(old).results,
    ):
        with pytest.raises(DonatedStateError, match=expected):
            use()
    with AsyncMetricCollector(metric) as collector:
        with pytest.raises(DonatedStateError, match=expected):
            collector.schedule_collection(old)
        # The collector is as before: the metric that the step returned is collected.
        collector.schedule_collection(new)
        assert collector.collect_results() == new.results()
    assert old.reset().update(values=values).results() == new.results()


def test_a_metric_with_copies_and_one_that_is_wrapped(rng):
    values, mesh = draw(rng, (8,)), make_mesh("auto", {"data": 8})
    old = per_device(Mean(), mesh, "data")
    new = jax.block_until_ready(step(old, values))
    # A compiled program of several devices may crash on deleted arrays, so the check comes before.
    for read in (new.compute, new.results, new.sync, lambda: new.merge(new), new.state_dict):
        jax.block_until_ready(read())
    uses = (lambda: old.update(values), lambda: new.merge(old), lambda: old.merge(new))
    for use in (*uses, old.compute, old.results, old.sync, old.state_dict):
        with pytest.raises(DonatedStateError, match=r"^PerDevice: .*donate"):
            use()
    inner, _ = donated(Mean(), values)
    with pytest.raises(DonatedStateError, match=r"^Collection: .*donate"):
        Collection({"a": inner}).results()
    # Another error of a state that is there stays as it is.
    with pytest.raises(ValueError, match="needs the slice"):
        Sliced(Mean(), 2).update(values)


@pytest.mark.parametrize(
    "make",
    [
        Mean,
        lambda: Collection({"a": Sum(), "b": Max(), "c": Sum()}),
        lambda: Sliced(Mean(), 3),
        lambda: per_device(Mean(), make_mesh("auto", {"data": 8}), "data"),
    ],
    ids=("metric", "collection", "wrapper", "per_device"),
)
def test_an_abstract_metric_only_says_what_is_restored(tmp_path, rng, make):
    abstract, mesh = jax.eval_shape(make), make_mesh("auto", {"data": 8})
    given = {"values": draw(rng, (8,))}
    if isinstance(abstract, Sliced):
        given["slices"] = rng.integers(0, 3, 8).astype(np.int32)
    seen = make().update(**given)
    uses = [
        lambda: abstract.update(**given),
        lambda: abstract.merge(seen),
        lambda: seen.merge(abstract),
        abstract.compute,
        abstract.results,
        abstract.invalid_count,
        abstract.state_dict,
        lambda: io.save(tmp_path / "abstract", abstract),
        StatefulMetric(abstract).results,
    ]
    if not isinstance(abstract, PerDevice):
        uses.append(lambda: replicate(abstract, mesh))
        uses.append(lambda: per_device(abstract, mesh, "data"))
    for use in uses:
        with pytest.raises(MetricInputError, match=r"^\w+: this metric is abstract"):
            use()
    io.save(tmp_path / "seen", seen)
    want = seen.results()
    for back in (
        io.restore(tmp_path / "seen", like=abstract),
        abstract.load_state_dict(seen.state_dict()),
        abstract.reset().merge(seen),
    ):
        jax.tree.map(np.testing.assert_array_equal, back.results(), want)
    with AsyncMetricCollector(abstract) as collector:
        with pytest.raises(MetricInputError, match="is abstract"):
            collector.schedule_collection(abstract)
        collector.schedule_collection(seen)
        jax.tree.map(np.testing.assert_array_equal, collector.collect_results(), want)
