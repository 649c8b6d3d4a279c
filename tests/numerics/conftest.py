"""The arithmetic of double-floats is tested in both ways that devices may have."""

import jax
import pytest

from datarax.numerics import double_float

IN_BOTH_WAYS = {"test_double_float", "test_limbs", "test_sums", "test_exact"}


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[-1] in IN_BOTH_WAYS:
        metafunc.parametrize("arithmetic", ["float64", "pairs"], indirect=True)


@pytest.fixture(autouse=True)
def arithmetic(request, monkeypatch):
    """With float64, or as on a device without it."""
    if getattr(request, "param", "float64") == "pairs":
        jax.clear_caches()  # functions that were compiled for float64
        monkeypatch.setattr(double_float, "has_float64", lambda: False)
        yield
        jax.clear_caches()
    else:
        yield
