"""Imports only go down: a module may import its own layer and those before it, nothing else."""

import ast
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import datarax

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(datarax.__file__).parent  # elsewhere where the wheel is tested
MAINTAINERS = sorted((ROOT / "docs/maintainers").glob("*.md"))

# Lowest first; the members of a row may not import each other. "datarax" is `__init__.py`: the
# public names, of whatever lies below it.
LAYERS = (
    ("_start",),
    ("_typing",),
    ("_errors",),
    ("_numbers",),
    ("_platform",),
    ("_optional",),
    ("_numpy_functions",),
    ("_xp",),
    ("_update_context",),
    ("_checks",),
    ("_x64",),
    ("numerics", "uncertainty"),
    ("distributed",),
    ("algebra",),
    ("statistics",),
    ("metric",),
    ("metrics",),
    ("wrappers",),
    ("training", "io", "plot"),
    ("testing",),
    ("evaluation",),
    ("datarax",),
    ("cli",),
)
RANKS = {layer: rank for rank, row in enumerate(LAYERS) for layer in row}

# What may be imported besides the standard library: everywhere, and in one layer or module more.
EVERYWHERE = {"jax", "numpy"}
MORE = {
    "_xp": {"scipy"},
    "metrics.segmentation.surface_distances": {"scipy"},
    "uncertainty": {"scipy"},
    "training": {"flax"},
    "training.keras_metric": {"keras"},
    # For type checkers, and where the package is there already.
    "plot": {"matplotlib"},
    "evaluation": {"pyarrow"},
    "io.console_writer": {"rich"},
    "io.parquet_writer": {"pyarrow"},
    "io.tensorboard_writer": {"tensorboardX"},
    "io.wandb_writer": {"wandb"},
    "cli.digits": {"flax", "optax", "sklearn"},
    "cli.demo": {"flax", "sklearn"},
    "cli.console_tables": {"rich"},
    "cli.evaluation_commands": {"rich"},
}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def layer(module: str) -> str:
    """`datarax.distributed.reduction` -> `distributed`; `datarax` -> `datarax`."""
    return module.split(".")[min(1, module.count("."))]


def imports(source: str) -> Iterator[str]:
    """The modules that a file imports, at its top or within a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide where they lead"
            for alias in node.names:
                # `from datarax.cli import demo` imports a module, `... import main` a name of one.
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)


def faults(module: str, source: str) -> list[str]:
    """What the file of `module` imports and may not."""
    mine, found = layer(module), []
    allowed = EVERYWHERE | MORE.get(mine, set()) | MORE.get(module.removeprefix("datarax."), set())
    for name in imports(source):
        top = name.partition(".")[0]
        if top == "datarax":
            theirs = layer(name)
            if theirs != mine and RANKS[theirs] >= RANKS[mine]:
                found.append(f"{mine} imports {name}, which is not below it")
        elif top not in allowed and top not in sys.stdlib_module_names:
            found.append(f"{module} imports {name}")
    return found


def test_every_file_has_a_layer():
    assert MODULES
    assert {layer(module) for module in MODULES} <= set(RANKS)


def test_imports_only_go_down():
    found = {module: faults(module, path.read_text()) for module, path in MODULES.items()}
    assert {module: each for module, each in found.items() if each} == {}


def unknown_files(text: str) -> list[str]:
    """The files that a page names and that do not exist: below the package, or below the root."""
    every = {path.name for path in (*PACKAGE.rglob("*"), *(ROOT / "tests").rglob("*.*"))}
    every |= {path.name for path in (ROOT / "benchmarks").rglob("*.py")}
    found = set(
        re.findall(r"[\w/]+\.(?:py|css|js|html|json)\b", " ".join(re.findall("`[^`]+`", text)))
    )
    return sorted(
        name
        for name in found
        if not ((PACKAGE / name).exists() or (ROOT / name).exists())
        and ("/" in name or name not in every)
    )


@pytest.mark.parametrize(
    "page", [ROOT / "docs/architecture.md", *MAINTAINERS], ids=lambda p: p.name
)
def test_the_pages_for_maintainers_name_files_that_exist(page):
    assert unknown_files(page.read_text()) == []


def test_a_planted_unknown_file_is_found():
    assert unknown_files("`algebra/state.py`, `gone.py`") == ["gone.py"]


def private_uses(source: str) -> list[str]:
    """The underscored names of other modules that a file imports, or takes as attributes.

    Its own are what it defines at its top, in its classes, or assigns to an attribute. Dunders, and
    the top-level modules such as `_errors` and `_checks` are not private.
    """
    tree = ast.parse(source)
    own = {
        "_replace",
        "_make",
        "_asdict",
        "_fields",
        "_src",
        "_exit",
    }  # of named tuples, of JAX, of `os`
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            own.add(node.value)  # `vars(self)["_name"] = ...`
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("datarax"):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            used.add(node.attr)
    private = {name for name in used if name.startswith("_") and not name.endswith("__")}
    return sorted(private - own)


def test_no_module_uses_a_private_name_of_another():
    found = {module: private_uses(path.read_text()) for module, path in MODULES.items()}
    assert {module: each for module, each in found.items() if each} == {}


def test_a_planted_private_name_is_found():
    planted = (
        "from datarax.algebra.state import _seal\nmetric._children\nself._mine = 1\nself._mine"
    )
    assert private_uses(planted) == ["_children", "_seal"]


def test_no_module_imports_itself_through_others():
    graph = {module: set(imports(path.read_text())) for module, path in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, with the cycle


ABOUT_THE_PLACE = (
    r"(?<!def )\b(?:on_host|x64_enabled|has_wide|has_float64|is_one|sums_in_float64"
    r"|errors_fit_float64)\(|\.(?:is_on_host|exceeds_parts|is_one)\b"
)
"""What asks whether a number is on the host, and whether float64 is there."""


def test_few_formulas_ask_for_the_place():
    # A statistic says what is computed; `numerics`, `_xp` and `algebra` know that there are two
    # places. What is left was measured: see the comment beside each.
    asked = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for module, path in MODULES.items()
        if layer(module) in ("statistics", "metrics")
        for line in path.read_text().splitlines()
        if re.search(ABOUT_THE_PLACE, line)
    ]
    assert 0 < len(asked) <= 16, asked


@pytest.mark.parametrize(
    ("module", "line", "fault"),
    [
        ("datarax.distributed.metrics", "from datarax.cli import main", "cli"),
        ("datarax.distributed.metrics", "def f():\n    import datarax.cli.demo", "cli"),
        ("datarax.distributed.metrics", "from datarax import Metric", "datarax"),
        ("datarax._errors", "from datarax.numerics.pairs import two_sum", "numerics"),
        ("datarax.io._orbax", "from datarax.training import StatefulMetric", "training"),
        ("datarax.plot.curves", "import datarax.io", "io"),
        ("datarax.distributed.metrics", "from flax import nnx", "flax"),
        ("datarax.cli.launch", "import flax.nnx", "flax"),
        ("datarax", "import rich", "rich"),
    ],
)
def test_a_planted_fault_is_found(module, line, fault):
    (found,) = faults(module, line)
    assert "import" in found
    assert fault in found.rpartition("imports")[2]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("datarax.cli.demo", "from flax import nnx\nfrom datarax.distributed import reduce_mean"),
        ("datarax.cli.launch", "from datarax import __version__"),
        ("datarax.training.stateful", "import flax, collections.abc, datarax._errors"),
        ("datarax", "from datarax._errors import DataraxError as DataraxError"),
    ],
)
def test_what_is_allowed_is_not_a_fault(module, line):
    assert faults(module, line) == []
