"""The strictest settings there are, before JAX makes its first device; and fresh data."""

import os
import re
import secrets

_flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count=8".strip()
os.environ["JAX_PLATFORMS"] = "cpu"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# A first call compiles, so no deadline; a failure prints what reproduces it.
hypothesis.settings.register_profile("datarax", deadline=None, print_blob=True)
hypothesis.settings.load_profile("datarax")


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random data in each test and run; a failure shows the line that repeats them."""
    seed = int(os.environ.get("DATARAX_TEST_SEED") or secrets.randbits(32))
    print(f"to repeat this test's data: DATARAX_TEST_SEED={seed}")
    return np.random.default_rng(seed)
