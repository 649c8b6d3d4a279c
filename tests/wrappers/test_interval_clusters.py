"""`Interval(..., clusters=)`: standard errors where rows of a cluster depend on each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax import Bootstrap, Collection, Interval, Sliced, metrics
from tests.helpers import make_mesh, place

CELLS, Z = 64, 1.959963984540054


def clustered_error(a, b, cluster):
    """Of a ratio of sums, by the definition: residual totals of clusters, and G / (G - 1)."""
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    residuals = a - a.sum() / b.sum() * b
    totals = [residuals[cluster == c].sum() for c in np.unique(cluster[b != 0])]
    n = len(totals)
    return np.sqrt(np.square(totals).sum() * n / (n - 1)) / b.sum()


def drawn(rng, rows=400, clusters=CELLS):
    cluster = rng.integers(0, clusters, rows).astype(np.int32)
    values = rng.normal(size=rows) + rng.normal(size=clusters)[cluster] + 1000
    return {
        "values": values.astype(np.float32),
        "weights": (rng.integers(0, 4, rows) / 3).astype(np.float32),
        "cluster": cluster,
    }


def error_of(batch):
    w = batch["weights"].astype(np.float64)
    return clustered_error(batch["values"] * w, w, batch["cluster"])


def close(got, want, rtol=1e-6):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol)


def test_equals_the_definition_and_a_regression_on_a_constant(rng):
    batch = drawn(rng)
    results = Interval(metrics.Mean(), clusters=CELLS).update(**batch).results()
    np.testing.assert_allclose(results["std_error"], error_of(batch), rtol=1e-6)
    # The sandwich (X'X)^-1 X' B X (X'X)^-1 of X = 1 is the sum of squared totals over n**2.
    x, c = batch["values"].astype(np.float64), batch["cluster"]
    design, residuals = np.ones((len(x), 1)), x - x.mean()
    bread = np.linalg.inv(design.T @ design)
    scores = [design[c == g].T @ residuals[c == g] for g in np.unique(c)]
    covariance = bread @ sum(np.outer(s, s) for s in scores) @ bread
    want = np.sqrt(covariance[0, 0] * len(scores) / (len(scores) - 1))
    plain = Interval(metrics.Mean(), clusters=CELLS).update(batch["values"], cluster=c)
    np.testing.assert_allclose(plain.results()["std_error"], want, rtol=1e-6)


def test_rows_of_their_own_clusters_are_independent(rng):
    values = rng.normal(size=50).astype(np.float32)
    apart = Interval(metrics.Mean(), clusters=50)
    got = apart.update(values, cluster=rng.permutation(50).astype(np.int32)).results()
    close(got, Interval(metrics.Mean()).update(values).results())
    # A cluster of equal rows is one row, however many there are.
    repeated = apart.update(np.repeat(values, 7), cluster=np.repeat(np.arange(50), 7)).results()
    close(repeated, got)


def test_of_proportions_and_ratios_by_class(rng):
    preds, target = rng.integers(0, 3, (2, 300)).astype(np.int32)
    cluster = rng.integers(0, 20, 300).astype(np.int32)
    given = {"preds": preds, "target": target, "cluster": cluster}
    recall = metrics.Recall(num_classes=3, average=None)
    results = Interval(recall, clusters=20).update(**given).results()
    for label in range(3):
        b = target == label
        error = clustered_error(b & (preds == label), b, cluster)
        np.testing.assert_allclose(results["std_error"][label], error, rtol=1e-5)
        p, groups = results["value"][label], len(np.unique(cluster[b]))
        # To both variances a quarter of one cluster is added.
        variance = error**2 * (groups - 1) / groups
        n = (p * (1 - p) + 0.25 / groups) / (variance + 0.25 / groups**2)
        center, half = p + Z**2 / (2 * n), Z * np.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        np.testing.assert_allclose(
            [results["lower"][label], results["upper"][label]],
            [(center - half) / (1 + Z**2 / n), (center + half) / (1 + Z**2 / n)],
            rtol=1e-5,
        )
    accuracy = Interval(metrics.Accuracy(num_classes=3), clusters=20)
    right = accuracy.update(target, target, cluster=cluster).results()
    assert right["std_error"] == 0
    # All are right: as many observations as clusters.
    np.testing.assert_allclose(right["lower"], 20 / (20 + Z**2), rtol=1e-6)
    assert right["upper"] == 1


def test_one_result_in_parts_slices_programs_and_on_devices(rng):
    batch = drawn(rng, 400, 90)  # some ids are hashed
    empty = Interval(metrics.Mean(), clusters=CELLS)
    want = empty.update(**batch).results()
    close(jax.jit(lambda m, b: m.update(**b))(empty, batch).results(), want)
    merged = empty
    for index in np.array_split(rng.permutation(400), 37):
        merged = merged.merge(empty.update(**{name: x[index] for name, x in batch.items()}))
    close(merged.results(), want)
    mesh = make_mesh("explicit", {"d": 8})
    close(jax.jit(lambda m, b: m.update(**b))(empty, place(batch, mesh, P("d"))).results(), want)
    apart = datarax.per_device(empty, mesh, "d").update(**place(batch, mesh, P("d")))
    close(apart.results(), want)
    close(apart.sync().results(), want)
    slices = rng.integers(0, 3, 400).astype(np.int32)
    sliced = Sliced(empty, 3).update(**batch, slices=slices)
    close(sliced.results()["overall"], want)
    own = empty.update(**{name: x[slices == 1] for name, x in batch.items()}).results()
    close(sliced.results()["1"], own)
    again = Sliced(empty, 3).load_state_dict(sliced.state_dict())
    assert again.results() == sliced.results()
    drawn_twice = Bootstrap(empty, 4).update(**batch, index=np.arange(400)).results()
    assert np.isfinite(drawn_twice["std_error"]["std_error"])
    outputs = Collection({"loss": empty.from_outputs(values="loss", cluster="question")})
    named = {"loss": batch["values"], "weights": batch["weights"], "question": batch["cluster"]}
    assert outputs.update(**named).results() == {f"loss/{name}": x for name, x in want.items()}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_hashed_ids_are_right_in_expectation(dtype, rng):
    clusters, cells = 600, 256
    ids = rng.permutation(clusters).astype(dtype) + 1000
    ids = ids * (2**33 + 1) if dtype == np.int64 else ids
    cluster = ids[rng.integers(0, clusters, 2400)]
    values = (rng.normal(size=2400) + rng.normal(size=2 * clusters)[cluster % clusters]).astype(
        np.float32
    )
    want = clustered_error(values, np.ones(2400), cluster)
    empty = Interval(metrics.Mean(), clusters=cells)
    # Other ids of the same clusters are other hashes.
    shifts = [int(x) for x in rng.integers(2_000, 2**30, 60)]
    found = [empty.update(values, cluster=cluster + s).results()["std_error"] for s in shifts]
    ratios = (np.array(found) / want) ** 2 * (cells - 1) / cells
    deviation = np.sqrt(2 / cells)
    assert abs(ratios.mean() - 1) < 5 * deviation / np.sqrt(len(found))
    assert 0.6 * deviation < ratios.std() < 1.3 * deviation


def test_what_does_not_count():
    empty = Interval(metrics.Mean(), clusters=4)
    assert all(np.isnan(x) for x in empty.results().values())
    one = empty.update(np.float32([1, 2]), cluster=np.int32([3, 3])).results()
    assert one["value"] == 1.5
    assert all(np.isnan(one[name]) for name in ("std_error", "lower", "upper"))
    values, cluster = np.float32([1, 2, 5, np.nan]), np.int32([0, 0, 1, 2])
    want = empty.update(values[:3], cluster=cluster[:3]).results()
    padded = empty.update(values, cluster=cluster, weights=np.float32([1, 1, 1, 0]))
    assert padded.results() == want
    nothing = np.zeros(0, np.float32)
    assert padded.update(nothing, cluster=np.zeros(0, np.int32)).results() == want
    bad = empty.update(values, cluster=cluster)
    with pytest.warns(datarax.InvalidValuesWarning):
        assert all(np.isnan(x) for name, x in bad.results().items() if name != "invalid")
    with pytest.warns(datarax.InvalidValuesWarning):
        left_out = bad.replace(on_invalid="exclude").results()
    assert {name: left_out[name] for name in want} == want
    # Narrow values and ids, in a program too.
    low = empty.update(jnp.bfloat16([1, 2, 5]), cluster=cluster[:3].astype(np.uint8)).results()
    assert low == want


def test_many_rows_and_the_size_of_the_state(rng):
    empty = Interval(metrics.Mean(), clusters=4096)
    extra = sum(x.nbytes for x in jax.tree.leaves(empty.sums))
    assert extra == 64 * 1024
    batch = drawn(rng, 70_000, 4096)  # more than are added at once
    results = empty.update(**batch).results()
    w = batch["weights"].astype(np.float64)
    residuals = w * (batch["values"] - np.average(batch["values"], weights=w))
    totals = np.bincount(batch["cluster"], residuals)
    want = np.sqrt((totals**2).sum() * 4096 / 4095) / w.sum()
    np.testing.assert_allclose(results["std_error"], want, rtol=1e-6)


@pytest.mark.parametrize("weight", [1e-30, 1e30])
def test_of_great_and_small_weights(weight, rng):
    batch = drawn(rng) | {"weights": np.full(400, weight, np.float32)}
    got = Interval(metrics.Mean(), clusters=CELLS).update(**batch).results()
    np.testing.assert_allclose(got["std_error"], error_of(batch), rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "pass cluster="),
        ({"cluster": np.float32([0, 1, 2])}, "expected integer ids"),
        ({"cluster": np.int32([0, 1])}, r"of shape \(3,\)"),
        ({"cluster": np.int32([0, 1, 2]), "index": 1}, "index"),
    ],
)
def test_misuse(given, message):
    empty = Interval(metrics.Mean(), clusters=4)
    with pytest.raises(datarax.DataraxError, match=message):
        empty.update(np.float32([1, 2, 3]), **given)
    with pytest.raises(datarax.DataraxError, match="cluster"):
        Interval(metrics.Mean()).update(np.float32([1, 2]), cluster=np.int32([0, 1]))
    for clusters in (1, 2.5, "many"):
        with pytest.raises(datarax.DataraxError, match="clusters"):
            Interval(metrics.Mean(), clusters=clusters)
