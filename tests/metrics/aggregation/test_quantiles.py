"""Quantile, Median and Histogram beyond what the registry checks: bounds, edges, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import datarax
from datarax.metrics import Histogram, Median, Quantile
from tests.helpers import make_mesh, place, update, x64

SIZE = 400


def test_bounds_and_errors_are_as_documented(rng):
    qs = (0.01, 0.5, 0.95, 0.999)
    metric = Quantile(qs)
    widths = 2**-8, 2**-9, 2**-20  # of both signs, of one sign, of one size
    draws = rng.normal(size=SIZE), rng.lognormal(0, 9, SIZE), rng.normal(1e6, 1, SIZE)
    for values, width in zip(draws, widths, strict=True):
        values = values.astype(np.float32)
        seen = update(metric, values)
        assert seen.relative_error <= width
        want = np.quantile(values, qs, method="inverted_cdf")
        lower, upper = map(np.asarray, seen.bounds())
        assert (lower <= want).all()
        assert (want <= upper).all()
        assert (np.abs(np.asarray(seen.compute()) - want) <= width * np.abs(want)).all()


def test_a_bit_more_halves_the_bins(rng):
    values = rng.uniform(1, 2, SIZE).astype(np.float32)
    # With a value of another sign, 10 bits make 4 bins from 1 to 2.
    # The bounds are values that were seen, so the first and the last of [1.25, 1.5) are among them.
    values[:3] = -1, 1.25, np.nextafter(np.float32(1.5), np.float32(0))
    q = np.mean(values <= 1.3)  # close to 0.3; the quantile is the greatest value up to 1.3
    widths = []
    for bits in (10, 12):
        # The bins of 1.3 are [1.25, 1.5) and [1.25, 1.3125) or the next.
        lower, upper = update(Quantile(q, bits=bits), values).bounds()
        widths.append(float(upper - lower))
        assert widths[-1] < 2.0 ** (8 - bits)
    assert widths[0] > 0.24 > 2 * widths[1]


def test_definitions_of_the_quantile():
    # Hyndman and Fan (1996), definitions 1 and 2, of four values: 1 is reached at 0.25 exactly.
    values = jnp.array([4.0, 1.0, 3.0, 2.0])
    qs = (0, 0.25, 0.26, 0.5, 1)
    one = update(Quantile(qs, method="inverted_cdf"), values).compute()
    two = update(Quantile(qs, method="averaged_inverted_cdf"), values).compute()
    assert one.tolist() == [1, 1, 2, 2, 4]
    assert two.tolist() == [1, 1.5, 2, 2.5, 4]


def test_median(rng):
    for size in (5, 6):
        values = rng.choice(100, size, replace=False).astype(np.float32)
        assert float(update(Median(), values).compute()) == np.median(values)
    assert np.isnan(Median().compute())
    lower, upper = update(Median(), np.arange(6, dtype=np.float32)).bounds()
    assert (lower, upper) == (2.5, 2.5)


def test_share_one_statistic(rng):
    values = rng.normal(size=SIZE).astype(np.float32)
    collection = datarax.Collection({"median": Median(), "tails": Quantile((0.05, 0.95))})
    seen = collection.update(values=values)
    alone = jax.tree.leaves(Median())
    assert len(jax.tree.leaves(seen)) == len(alone)
    assert float(seen.compute()["median"]) == float(Median().update(values).compute())


def test_numbers_beyond_float32_with_x64():
    with x64():
        metric = Quantile((0.0, 0.5, 1.0)).update(jnp.array([1.0, 1 + 1e-12, 1e300]))
        assert metric.compute().tolist() == [1, 1 + 1e-12, 1e300]
        assert int(metric.invalid_count()) == 0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"q": 1.5}, "q=1.5; expected a number from 0 to 1"),
        ({"q": (0.5, "a")}, "expected a number from 0 to 1"),
        ({"q": 0.5, "method": "linear"}, "method='linear'; expected one of 'inverted_cdf'"),
        ({"q": 0.5, "bits": 8}, "bits=8; expected an integer from 10 to 22"),
        ({"q": 0.5, "on_invalid": "ignore"}, "on_invalid='ignore'"),
    ],
)
def test_configuration_of_a_quantile_is_checked(config, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        Quantile(**config)


# Decimal edges are not floats: values next to them show whether an edge was rounded.
EDGES = {
    "tenths": {"range": (0, 1), "num_bins": 10},
    "thirds": {"range": (-1, 1), "num_bins": 3},
    "uneven": {"edges": (-3.0, 0.1, 0.3, 0.7, 1e9)},
    "one bin": {"edges": (0.7, 0.7000001)},
}


@pytest.mark.parametrize("config", EDGES.values(), ids=EDGES)
def test_histogram_agrees_with_numpy_at_the_edges(config, rng):
    metric = Histogram(**config)
    edges = np.array(metric.edges)
    near = edges.astype(np.float32)
    values = [near, np.nextafter(near, np.float32(9e9)), np.nextafter(near, np.float32(-9e9))]
    values = [np.where(np.abs(x) < np.finfo(np.float32).tiny, 0, x) for x in values]
    values = np.concatenate([*values, rng.normal(size=SIZE - 3 * near.size).astype(np.float32)])
    seen = update(metric, values).compute()
    want = np.histogram(values, **_as_numpy(config))[0]  # of float32 values, as the metric's
    np.testing.assert_array_equal(np.asarray(seen["counts"]), want)
    outer = edges.astype(np.float32) if "range" in config else edges
    assert float(seen["below"]) == (values < outer[0]).sum()
    assert float(seen["above"]) == (values > outer[-1]).sum()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "float64"])
def test_histogram_of_values_on_the_edges(dtype):
    with x64(dtype == "float64"):
        for limits, bins in (((0, 1), 10), ((0, 0.3), 3), ((-1, 1), 4)):
            metric = Histogram(num_bins=bins, range=limits)
            values = np.asarray(metric.edges).astype(jnp.dtype(dtype))
            seen = metric.update(values).replace(on_invalid="propagate").compute()
            if dtype == "int32":
                want = np.histogram(values, bins, limits)[0]
            else:  # each edge is in the bin above it, and the last in the last bin
                want = [1] * (bins - 1) + [2]
            assert np.asarray(seen["counts"]).tolist() == list(want)
            assert (seen["below"], seen["above"]) == (0, 0)
    assert Histogram(num_bins=10, range=(0, 1)).update(0.7).compute()["counts"][7] == 1


def _as_numpy(config):
    if "edges" in config:
        return {"bins": np.array(config["edges"])}
    return {"bins": config["num_bins"], "range": config["range"]}


def test_histogram_of_many_is_exact():
    metric = Histogram(edges=(0, 1, 2)).update(jnp.array([0.5, 1.5]))
    for _ in range(35):
        metric = metric.merge(metric)
    more = metric.update(jnp.array([1.5, 9.0]))
    results = more.results()
    assert results["counts"].tolist() == [2**35, 2**35 + 1]
    assert (results["below"], results["above"]) == (0, 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "give edges=, or both num_bins= and range="),
        ({"num_bins": 3}, "give edges=, or both"),
        ({"edges": (0, 1), "num_bins": 3, "range": (0, 1)}, "give edges=, or both"),
        ({"edges": (0, 1), "range": (0, 1)}, "give edges=, or both"),
        ({"num_bins": 0, "range": (0, 1)}, "num_bins=0; expected an integer of at least 1"),
        ({"num_bins": 2, "range": 3}, r"range=3; expected \(lowest, highest\)"),
        ({"num_bins": 2, "range": (1, 1)}, "in increasing order"),
        ({"edges": (0, 0)}, "in increasing order"),
        ({"edges": (0,)}, "at least two"),
        ({"edges": (0, float("inf"))}, "finite"),
        ({"edges": (0, float("nan"))}, "finite"),
        ({"edges": ("a", 1)}, "expected numbers"),
        ({"edges": 3}, "expected numbers"),
    ],
)
def test_configuration_of_a_histogram_is_checked(config, message):
    with pytest.raises(datarax.MetricInputError, match=message):
        Histogram(**config)


def test_several_axes_that_are_sharded_over_explicit_axes(rng):
    values = rng.normal(0, 1, (16, 3, 4)).astype(np.float32)
    weights = rng.integers(0, 3, (16, 3)).astype(np.float32)
    mesh = make_mesh("explicit", {"data": 8})
    on_mesh = [place(x, mesh, P("data")) for x in (values, weights)]
    got = jax.block_until_ready(update(Median(), on_mesh[0], weights=on_mesh[1]))
    want = update(Median(), values, weights=weights).compute()
    assert jax.tree.map(np.asarray, got).compute() == want
