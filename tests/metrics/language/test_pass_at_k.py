"""The estimate of pass@k against exact rationals, where the formula would cancel."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

import datarax
from datarax.metrics import PassAtK
from datarax.metrics.language.pass_at_k import pass_at_k
from datarax.testing import assert_within_ulps
from tests.helpers import update


@pytest.mark.parametrize("k", [1, 10, 100])
def test_each_problem_agrees_with_exact_rationals(k, rng):
    n = np.concatenate([rng.integers(k, 2 * k + 20, 60), rng.integers(k, 10**6, 20)])
    c = np.minimum(n, np.concatenate([rng.integers(0, k + 20, 60), rng.integers(0, 3, 20)]))
    both = zip(c.tolist(), n.tolist(), strict=True)
    want = [1 - Fraction(comb(b - a, k), comb(b, k)) for a, b in both]
    got = pass_at_k(c.astype(np.int32), n.astype(np.int32), k)
    # Each of k logarithms and their sum; where all terms are alike, the sum errs by its depth.
    assert_within_ulps(got, np.array(want, np.float64), 16)


def test_too_few_samples_are_counted():
    c, n = np.int32([1, 0, 5, -1, 2]), np.int32([2, 1, 4, 4, 4])
    seen = update(PassAtK(2, on_invalid="exclude"), c, n)
    with pytest.warns(datarax.InvalidValuesWarning, match="3 "):
        assert_within_ulps(seen.compute(), (1 + 5 / 6) / 2, 2)
    with pytest.raises(datarax.MetricInputError, match="k=0"):
        PassAtK(k=0)
    with pytest.raises(datarax.MetricTypeError, match="num_correct has dtype float32"):
        PassAtK(k=1).update(np.float32([1]), np.int32([2]))
