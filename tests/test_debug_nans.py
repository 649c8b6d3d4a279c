"""`jax_debug_nans` stays silent over finite data, whatever the weights, and over reading it."""

import jax
import numpy as np
import pytest

from tests.registry import BATCH, GROUPS


# Updates outside `jit` are slow, so not all groups are run.
@pytest.mark.parametrize("name", list(GROUPS)[::8])
def test_silent_over_finite_data(name, rng):
    case = GROUPS[name][0]
    metric = case.make()
    batch = metric.arguments_from(case.inputs.draw(rng, BATCH))
    weights = rng.choice(np.float32([0, 0.5, 3]), BATCH)
    weights[: BATCH // 2] = 1
    with jax.debug_nans(True):
        seen = metric.update(**batch, weights=weights)
        seen.update(**batch, weights=np.zeros(BATCH, np.float32))
    if any(np.isnan(np.asarray(x)).any() for x in jax.tree.leaves(seen.compute())):
        return  # where the definition gives NaN, it is to be seen
    with jax.debug_nans(True):
        seen.compute()
        seen.results()
