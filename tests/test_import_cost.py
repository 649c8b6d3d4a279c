"""`import datarax` costs little more than `import jax`, counted in modules loaded."""

import subprocess
import sys
from functools import cache

import pytest

HEAVY = {"flax", "jinja2", "matplotlib", "optax", "orbax", "pytest", "rich", "scipy", "sklearn"}


@cache
def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# The most modules each may load beyond those of JAX.
@pytest.mark.parametrize(("module", "most"), [("datarax", 5), ("datarax.distributed", 25)])
def test_import_is_cheap(module, most):
    more = loaded_by(f"import {module}") - loaded_by("import jax")
    assert module in more
    assert len(more) <= most, sorted(more)
    assert {name.partition(".")[0] for name in more}.isdisjoint(HEAVY)


def test_the_command_checks_its_arguments_without_jax():
    """NumPy has threads, which take a Ctrl-C that is held while processes start."""
    for module in ("datarax", "datarax.cli", "datarax.cli.launch"):
        assert loaded_by(f"import {module}").isdisjoint({"jax", "numpy", *HEAVY}), module
