"""The arithmetic of double-floats is tested in both ways that devices may have."""

import pytest

import datarax

IN_BOTH_WAYS = {"test_double_float", "test_limbs", "test_sums", "test_exact", "test_scaled_double"}


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[-1] in IN_BOTH_WAYS:
        # In the scope of a module, so that all tests of one way come before those of the other.
        ways = ["float64", "pairs"]
        metafunc.parametrize("arithmetic", ways, indirect=True, scope="module")


@pytest.fixture(autouse=True, scope="module")
def arithmetic(request):
    """With float64, or as on a device without it."""
    pairs = getattr(request, "param", "float64") == "pairs"
    with datarax.lowering_for("tpu" if pairs else "cpu"):
        yield
