"""Tests that need packages of other engines: collected where all are, as in `make engines`."""

from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = ("apache_beam", "dask", "inspect_ai", "lm_eval", "moto", "polars", "pyspark", "ray")
collect_ignore_glob = [] if all(map(find_spec, PACKAGES)) else ["test_*.py"]

# Of the engines themselves, which use what other packages have deprecated, and leave files open.
WARNINGS = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of the engines are no errors; those of datarax are."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for name in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{name}"))
