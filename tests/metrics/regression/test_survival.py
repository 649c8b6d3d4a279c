"""`ConcordanceIndex`: many examples, ties, a capacity, refusals."""

import jax
import lifelines.utils
import numpy as np
import pytest

import datarax
from datarax.metrics import ConcordanceIndex
from tests.registry.survival import censored, concordance


def test_many_examples_as_lifelines(rng):
    for kind in ({}, {"times": range(20), "risks": np.arange(30) / 4}, {"share": 0.05}):
        given = censored(rng, 3000, **kind)
        want = lifelines.utils.concordance_index(given["time"], -given["risk"], given["event"])
        metric = ConcordanceIndex().update(**given)
        np.testing.assert_allclose(metric.results(), want, 1e-12)
        # In a program, where all pairs are compared.
        value = jax.jit(ConcordanceIndex.compute)(metric)
        np.testing.assert_allclose(value, want, 1e-6)


def test_weights_and_seconds_since_1970(rng):
    given = censored(rng, 200, times=1.7e9 + np.arange(40)) | {"event": rng.random(200) < 0.5}
    given["time"] = 1.7e9 + rng.integers(0, 40, 200)  # equal, rounded to float32
    w = rng.uniform(0, 3, 200)
    metric = ConcordanceIndex().update(**given, weights=w)
    want = concordance(np.float64(np.float32(w)), *(np.float64(x) for x in given.values()))
    np.testing.assert_allclose(metric.results(), want, 1e-12)


def test_beyond_the_capacity(rng):
    given = censored(rng, 50)
    metric = ConcordanceIndex(capacity=40).update(**given)
    with pytest.warns(datarax.InvalidValuesWarning, match="10 beyond the capacity"):
        assert np.isnan(metric.compute())
    kept = ConcordanceIndex().update(**{name: x[:40] for name, x in given.items()}).results()
    with pytest.warns(datarax.InvalidValuesWarning):
        assert metric.replace(on_invalid="exclude").results() == kept


def test_refusals():
    with pytest.raises(datarax.MetricInputError, match="capacity=0"):
        ConcordanceIndex(capacity=0)
    one, two = np.ones(1), np.ones(2)
    with pytest.raises(datarax.MetricInputError, match=r"risk of shape \(1,\) and time of shape"):
        ConcordanceIndex().update(one, two, two)
    with pytest.raises(datarax.MetricInputError, match=r"time of shape \(2,\) and event of shape"):
        ConcordanceIndex().update(two, two, one)
    assert ConcordanceIndex().update(two, two, np.array([2, np.nan])).invalid_count() == 2
