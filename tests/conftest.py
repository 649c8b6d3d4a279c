"""The strictest settings there are, before JAX makes its first device; and fresh data, or fixed."""

import ctypes
import gc
import itertools
import os
import re
import secrets
from importlib import metadata
from pathlib import Path
from typing import Any

_flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", os.environ.get("XLA_FLAGS", ""))
_flags += " --xla_force_host_platform_device_count=8"
# Most of the time goes into compiling, of programs that run once. These options halve it. Another
# part of the suite runs with the default ones: see CONTRIBUTING.md.
if not os.environ.get("DATARAX_TEST_OPTIMIZED"):
    _flags += (
        " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        " --xla_cpu_parallel_codegen_split_count=1"
    )
    # Newer versions do not know it, and an unknown option aborts.
    if tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11):
        _flags += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = _flags.strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["KERAS_BACKEND"] = "jax"

import hypothesis  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax._src import compilation_cache  # noqa: E402

from tests import processes  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_traceback_in_locations_limit", 0)  # nobody reads these locations

# A folder in which compiled programs are kept for later runs.
CACHE = os.environ.get("DATARAX_TEST_CACHE", "")
if CACHE:
    jax.config.update("jax_compilation_cache_dir", CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
_keep = compilation_cache.put_executable_and_time


def keep(key: str, name: str, executable: Any, *args: Any) -> None:
    """Keeps programs of one device: some devices wait for ever in a large one that was kept."""
    if len(executable.local_devices()) == 1:
        _keep(key, name, executable, *args)


# Reading needs no change, as what is not kept is not found. JAX has no option for this.
compilation_cache.put_executable_and_time = keep

SEED = os.environ.get("DATARAX_TEST_SEED")

# A first call compiles, so no deadline; a failure prints what reproduces it.
hypothesis.settings.register_profile(
    "datarax", deadline=None, print_blob=True, derandomize=bool(SEED)
)
hypothesis.settings.load_profile("datarax")


def shares_programs(nodeid: str) -> str:
    """Equal for tests that compile the same programs: a module, or one group of the registry.

    Those of the environment of two processes use the same two.
    """
    module, _, test = nodeid.partition("::")
    _, _, parameters = test.partition("[")
    if parameters.endswith("-two processes]"):
        return f"{module}[two processes"
    by_group = module.endswith(("test_laws.py", "test_environments.py"))
    return f"{module}[{parameters.partition('-')[0]}" if by_group else module


MOST_CACHED = 2**30
"""Bytes of compiled programs that are kept from one run to the next."""


def pytest_configure(config: pytest.Config) -> None:
    """Removes the programs that were used the longest ago, where they are too many."""
    # Whether random games connect all players is chance; tests of the warning ask for it.
    config.addinivalue_line("filterwarnings", "ignore:.*no rating of the players")
    if hasattr(config, "workerinput") or not CACHE or not Path(CACHE).is_dir():
        return
    files = sorted(Path(CACHE).iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    total = 0
    for file in files:
        total += file.stat().st_size
        if total > MOST_CACHED:
            file.unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests that compile the same programs go to one worker, one after the other."""
    from xdist.scheduler import LoadScopeScheduling

    # Not the marks of `--dist loadgroup`: xdist 3.8 passes them on in a name that pytest 9.2 drops.
    class ByProgram(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shares_programs(nodeid)

    return ByProgram(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The garbage collector never looks again at modules and tests, of which there are many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # tracing makes many objects that live long


# Compiled programs take memory, and memory maps: a process has 65,530, and XLA crashes there.
MOST_BYTES, MOST_MAPS = 3 * 2**29, 30_000
STATM, MAPS = Path("/proc/self/statm"), Path("/proc/self/maps")
# Listing the maps takes up to 20 ms, and a test adds at most a few hundred.
EVERY, _tests = 8, itertools.count()
_held = [0]
"""How many bytes were resident after the programs were last freed."""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Frees compiled programs in time; earlier where no later test uses the same ones."""
    if not STATM.exists():
        return
    last = nextitem is None or shares_programs(item.nodeid) != shares_programs(nextitem.nodeid)
    maps = 0
    if next(_tests) % EVERY == 0:
        with MAPS.open() as lines:
            maps = sum(1 for _ in lines)
    grown = resident() - _held[0]
    if grown > (MOST_BYTES // 2 if last else MOST_BYTES) or maps > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
        # Otherwise the allocator keeps what compiling used, which is half of the memory and more.
        ctypes.CDLL(None).malloc_trim(0)
        _held[0] = resident()


def pytest_sessionfinish() -> None:
    """Ends the processes that several tests have used."""
    processes.close()


def resident() -> int:
    """How many bytes of memory this process has."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh random data in each test and run; a failure shows the line that repeats them."""
    return np.random.default_rng(seed())


@pytest.fixture(scope="module")
def module_rng() -> np.random.Generator:
    """The same for fixtures that the tests of a module share."""
    return np.random.default_rng(seed())


def seed() -> int:
    """A fresh seed, or that of the environment; printed, so that a failure shows it."""
    chosen = int(SEED or secrets.randbits(32))
    print(f"to repeat this test's data: DATARAX_TEST_SEED={chosen}")
    return chosen


@pytest.fixture
def programs():
    """The durations of the compilations in this test, one for each program; none is cached."""
    durations = []
    cached(False)

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            durations.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield durations
    jax.monitoring.unregister_event_duration_listener(listen)
    cached(True)


def cached(enabled: bool) -> None:
    """Whether compiled programs are taken from the folder of `CACHE`, and kept there."""
    jax.config.update("jax_enable_compilation_cache", enabled)
    compilation_cache.reset_cache()  # JAX asks for the option only once
