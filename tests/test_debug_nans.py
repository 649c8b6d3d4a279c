"""`jax_debug_nans` stays silent over finite data, whatever the weights, and over reading it."""

import jax
import numpy as np
import pytest

from datarax import metrics

X, TARGET = np.float32([1, 2, 3, 5]), np.float32([1, 3, 2, 4])
OF_VALUES = (
    metrics.Mean,
    metrics.Sum,
    metrics.Max,
    metrics.Std,
    metrics.Norm,
    metrics.HarmonicMean,
)
OF_PAIRS = (
    metrics.MeanSquaredError,
    metrics.R2Score,
    metrics.PearsonCorrCoef,
    metrics.HuberLoss,
    metrics.NormalizedRootMeanSquaredError,
)


@pytest.mark.parametrize("make", [*OF_VALUES, *OF_PAIRS])
def test_silent_over_finite_data(make):
    batch = (X,) if make in OF_VALUES else (X, TARGET)
    with jax.debug_nans(True):
        seen = make().update(*batch, weights=np.float32([1, 0, 1, 1]))
        seen.compute()
        seen.results()
        seen.update(*batch, weights=np.zeros(4, np.float32))
        make().update(*batch, weights=np.zeros(4, np.float32))
