"""ConformalThreshold: the order statistic of the definition, its coverage, and misuse."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax.metrics import ConformalThreshold


@pytest.mark.parametrize("coverage", [0.5, 0.7, 0.8, 0.9, 0.95, 0.99])
def test_it_is_the_score_of_the_rank_of_the_definition(coverage, rng):
    # The coverage as it is written: 0.9 of 10 is 9, and not a little more.
    share = Fraction(str(coverage))
    metric, want = ConformalThreshold(coverage), math.inf
    for n in range(1, 121):
        scores = rng.permutation(n).astype(np.float32)
        rank = math.ceil((n + 1) * share)
        want = rank - 1 if rank <= n else math.inf
        metric = ConformalThreshold(coverage).update(scores)
        assert metric.results() == {"threshold": want}, n
    # Bins of equal numbers of small scores hold one value each, so the program agrees.
    assert float(jax.jit(lambda m: m.compute())(metric)["threshold"]) == want


def test_it_is_never_below_the_score_of_the_rank(rng):
    scores = rng.lognormal(0, 3, 5000).astype(np.float32)
    want = np.sort(scores)[math.ceil(5001 * 0.9) - 1]
    got = ConformalThreshold(0.9, bits=10).update(scores).results()["threshold"]
    assert want <= got <= want * 1.3


def test_it_covers_new_scores(rng):
    covered = []
    for _ in range(200):
        old, new = rng.normal(size=(2, 99))
        covered.append(new <= ConformalThreshold(0.8).update(old).results()["threshold"])
    # The share has a standard deviation of at most 0.04 * sqrt(2) / sqrt(200) = 0.004.
    assert 0.78 < np.mean(covered) < 0.83


def test_weights_repeat_and_masks_leave_out():
    scores = jnp.array([3.0, 1.0, jnp.nan, 2.0])
    metric = ConformalThreshold(0.5)
    got = metric.update(scores, weights=jnp.array([1.0, 5.0, 0.0, 1.0])).results()
    assert got == {"threshold": 1.0}
    assert metric.update(scores[:0]).results() == {"threshold": math.inf}
    with pytest.warns(datarax.InvalidValuesWarning, match="1 NaN"):
        assert math.isnan(metric.update(scores).results()["threshold"])


def test_misuse_is_refused():
    for wrong in (0, 1, 90, "0.9", math.nan, True):
        with pytest.raises(datarax.MetricInputError, match="expected a number between 0 and 1"):
            ConformalThreshold(wrong)
    with pytest.raises(datarax.MetricInputError, match="bits"):
        ConformalThreshold(0.9, bits=3)
