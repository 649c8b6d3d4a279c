"""The arithmetic of double-floats is tested in both ways that devices may have."""

import jax
import pytest

from datarax.numerics import double_float

IN_BOTH_WAYS = {"test_double_float", "test_limbs", "test_sums", "test_exact"}


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[-1] in IN_BOTH_WAYS:
        # In the scope of a module, so that all tests of one way come before those of the other.
        ways = ["float64", "pairs"]
        metafunc.parametrize("arithmetic", ways, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def arithmetic(request):
    """With float64, or as on a device without it."""
    if getattr(request, "param", "float64") == "pairs":
        jax.clear_caches()  # functions that were compiled for float64
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(double_float, "has_float64", lambda: False)
            yield
        jax.clear_caches()
    else:
        yield
