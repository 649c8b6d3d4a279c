"""The strictest settings there are, before JAX makes its first device; and fresh data."""

import gc
import os
import re
import secrets
from pathlib import Path

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

DONE = pytest.StashKey[int]()


MAPS = Path("/proc/self/maps")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Frees compiled programs in time: each maps memory, of which a process has 65,530 at most.

    XLA crashes at that limit, which a worker reaches after some thousand tests.
    """
    item.session.stash[DONE] = item.session.stash.get(DONE, 0) + 1
    if item.session.stash[DONE] % 10 == 0 and MAPS.exists():
        with MAPS.open() as lines:
            if sum(1 for _ in lines) > 30_000:
                jax.clear_caches()
                gc.collect()


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random data in each test and run; a failure shows the line that repeats them."""
    seed = int(os.environ.get("DATARAX_TEST_SEED") or secrets.randbits(32))
    print(f"to repeat this test's data: DATARAX_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def programs():
    """The durations of the compilations in this test, one for each program."""
    durations = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            durations.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield durations
    jax.monitoring.unregister_event_duration_listener(listen)
