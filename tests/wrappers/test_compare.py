"""`Compare`: two models on the same examples, resampled alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Bootstrap, Collection, Compare, Sliced, metrics
from tests.helpers import bits, long, make_mesh, optimized, place


def accuracy(**config):
    return Compare(metrics.Accuracy(num_classes=3), **config)


def two_models(rng, size, *, right=(0.6, 0.7)):
    target = rng.integers(0, 3, size).astype(np.int32)
    hard = rng.uniform(size=size)

    def preds(share):
        hit = hard + rng.normal(0, 0.05, size) < share
        return np.where(hit, target, (target + 1) % 3).astype(np.int32)

    return {
        "preds_a": preds(right[0]),
        "preds_b": preds(right[1]),
        "target": target,
        "index": rng.permutation(10 * size)[:size].astype(np.int32),
    }


def test_the_difference_and_its_replicas(rng):
    batch = two_models(rng, 300)
    seen = accuracy(replicas=199).update(**batch)
    results, shared = seen.results(), {n: batch[n] for n in ("target", "index")}
    ends = {}
    for model in "ab":
        alone = Bootstrap(metrics.Accuracy(num_classes=3), 199)
        alone = alone.update(preds=batch[f"preds_{model}"], **shared)
        assert results[model] == alone.results()["value"]
        ends[model] = jax.vmap(lambda one: one.compute())(alone.stack.states)
    # Both models see the same replicas.
    apart = np.asarray(ends["b"]) - np.asarray(ends["a"])
    low, high = np.quantile(apart, [0.025, 0.975], method="weibull")
    np.testing.assert_allclose([results["lower"], results["upper"]], [low, high], atol=1e-6)
    assert results["difference"] == pytest.approx(results["b"] - results["a"], abs=1e-12)
    assert results.keys() == {"a", "b", "difference", "lower", "upper"}


@long
def test_the_interval_covers_the_difference(rng):
    trials, size = 4000, 300
    batch = [two_models(rng, size) for _ in range(trials)]
    batch = {name: np.stack([each[name] for each in batch]) for name in batch[0]}
    population = two_models(rng, 1_000_000)
    right = [np.mean(population[f"preds_{m}"] == population["target"]) for m in "ab"]
    true = right[1] - right[0]
    metric = accuracy(replicas=400)
    result = optimized(lambda b: jax.lax.map(lambda one: metric.update(**one).compute(), b))(batch)
    covered = (result["lower"] <= true) & (true <= result["upper"])
    assert 0.93 <= float(covered.mean()) <= 0.97


def test_the_paired_interval_is_narrower(rng):
    batch = two_models(rng, 500)
    paired = accuracy().update(**batch).results()
    alone = [
        Bootstrap(metrics.Accuracy(num_classes=3)).update(batch[f"preds_{m}"], batch["target"])
        for m in "ab"
    ]
    error = np.hypot(*(each.results()["std_error"] for each in alone))
    assert paired["upper"] - paired["lower"] < 0.8 * 2 * 1.96 * error


def test_with_an_index_neither_batches_nor_devices_matter(rng):
    batch = two_models(rng, 64)
    want = bits(accuracy().update(**batch).compute())
    parts = accuracy()
    for rows in np.split(rng.permutation(64), 4):
        parts = parts.update(**{name: x[rows] for name, x in batch.items()})
    assert bits(parts.compute()) == want
    mesh = make_mesh("auto", {"d": 8})
    apart = datarax.per_device(accuracy(), mesh, "d").update(**place(batch, mesh, P("d")))
    assert bits(apart.sync().compute()) == want


def test_by_position_and_of_other_arguments(rng):
    batch = two_models(rng, 50)
    by_name = accuracy().update(**{n: x for n, x in batch.items() if n != "index"})
    by_place = accuracy().update(batch["preds_a"], batch["preds_b"], batch["target"])
    assert bits(by_name.compute()) == bits(by_place.compute())
    losses = rng.normal(size=(2, 40)).astype(np.float32)
    results = Compare(metrics.Mean()).update(values_a=losses[0], values_b=losses[1]).results()
    np.testing.assert_allclose(results["difference"], np.diff(losses.mean(1))[0], rtol=1e-5)


def test_sums_are_subtracted_before_they_are_rounded():
    big = np.array([2**30, 2**30], np.int32)
    results = Compare(metrics.Sum()).update(values_a=big, values_b=big + np.array([1, 2])).results()
    assert results["difference"] == 3
    assert results["b"] == 2**31 + 3


def test_in_a_collection_and_with_slices(rng):
    batch = two_models(rng, 100)
    both = Collection({"accuracy": accuracy(), "size": metrics.Sum().from_outputs(values="ones")})
    both = both.update(**batch, ones=np.ones(100, np.int32))
    assert (
        both.results()["accuracy/difference"] == accuracy().update(**batch).results()["difference"]
    )
    inside = Compare(Collection({"f1": metrics.F1(num_classes=3)})).update(**batch).results()
    assert inside["difference"].keys() == {"f1"}
    ids = rng.integers(0, 2, 100).astype(np.int32)
    sliced = Compare(Sliced(metrics.Accuracy(num_classes=3), 2)).update(**batch, slices=ids)
    rows = {name: x[ids == 1] for name, x in batch.items()}
    want = accuracy().update(**rows).results()
    np.testing.assert_allclose(sliced.results()["lower"]["1"], want["lower"], atol=1e-6)


def test_state(rng):
    batches = [two_models(rng, 16) for _ in range(2)]
    seen = accuracy()
    for batch in batches:
        seen = seen.update(**batch)
    merged = accuracy().update(**batches[0]).merge(accuracy().update(**batches[1]))
    assert bits(merged.compute()) == bits(seen.compute())
    assert accuracy().load_state_dict(seen.state_dict()).results() == seen.results()
    assert np.isnan(seen.reset().results()["difference"])
    scanned, _ = jax.lax.scan(
        lambda m, b: (m.update(**b), None),
        jax.tree.map(jnp.asarray, accuracy()),
        jax.tree.map(lambda *x: jnp.stack(x), *batches),
    )
    assert bits(scanned.compute()) == bits(seen.compute())


def test_what_is_not_usable():
    seen = Compare(metrics.Mean()).update(
        values_a=np.array([1.0, 2.0], np.float32), values_b=np.array([1.0, np.nan], np.float32)
    )
    with pytest.warns(datarax.InvalidValuesWarning, match="b: 1 values"):
        results = seen.results()
    assert results["a"] == 1.0  # of the pair that both models have
    assert np.isnan(results["difference"])
    assert (results["b/invalid"], results["pairs/invalid"]) == (1, 1)
    assert int(seen.invalid_count()) == 1
    kept = seen.replace(on_invalid="exclude")
    with pytest.warns(datarax.InvalidValuesWarning), pytest.warns(datarax.PrecisionWarning):
        assert kept.results()["b"] == 1.0  # of one pair, which is the same in all replicas


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compare(metrics.Mean(), replicas=1), "replicas=1"),
        (lambda: Compare(metrics.Mean(), confidence=2), "confidence=2"),
        (lambda: Compare(metrics.Mean()).update(values=np.ones(3)), "values_a|preds_a"),
        (lambda: Compare(metrics.Mean()).update(np.ones(3)), "preds_a"),
        (lambda: Compare(metrics.Mean()).update(np.ones(3), np.ones(2)), "shape"),
        (lambda: Compare(metrics.Mean()).update(value_a=1.0, value_b=1.0), "values"),
        (lambda: Compare(metrics.Mean()).update(values_a=1.0), "pairs"),
        (lambda: Compare(metrics.Mean().update(1.0)), "without data"),
    ],
)
def test_misuse(make, message):
    with pytest.raises(datarax.DataraxError, match=message):
        make()
