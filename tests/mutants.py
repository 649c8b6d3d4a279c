"""Mutation testing: `python -m tests.mutants` changes one token at a time, and runs the tests.

A mutant that no test notices is a missing test, or an equivalent change. Each is made in a copy of
the tree, so the working tree is left alone. Not part of every run: `make mutants`.
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

from datarax.algebra.state import State, walk
from tests.registry import GROUPS

ROOT = Path(__file__).resolve().parent.parent

# The merge table; arithmetic, statistics and formulas are found.
BASE = {
    "datarax/distributed/merge_ops.py": [
        "tests/statistics/test_accumulator.py",
        "tests/algebra/test_devices.py",
        "tests/statistics/test_scatter_counts.py",
    ],
}
LAWS = (
    "test_hard_inputs",
    "test_no_example_and_one",
    "test_what_cannot_be_used_is_excluded_and_counted",
    "test_any_split_and_weights_agree_with_the_oracle",
)


def targets() -> dict[str, list[str]]:
    """Each file to mutate, and the tests that are to notice: its own, and the laws that read it."""
    found = dict(BASE)
    for folder in ("numerics", "statistics", "metrics"):
        for path in sorted((ROOT / "datarax" / folder).rglob("*.py")):
            if path.name not in ("__init__.py", "state.py", "base.py"):
                name = str(path.relative_to(ROOT))
                found[name] = [*_own(path), *_laws(name)]
    return {target: tests for target, tests in found.items() if tests}


def _own(path: Path) -> list[str]:
    """The test files that are named after a module, or import it."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return [
        str(test.relative_to(ROOT))
        for test in sorted(
            (ROOT / "tests" / path.parent.relative_to(ROOT / "datarax")).glob("test_*.py")
        )
        if test.stem == f"test_{path.stem.strip('_')}" or f"{module} import" in test.read_text()
    ]


def _laws(target: str) -> list[str]:
    module = target.removesuffix(".py").replace("/", ".")
    names = [
        name
        for name, group in GROUPS.items()
        if any(_uses(state, module) for case in group for state in walk(case.make()))
    ]
    # A base of many is noticed by any of them: a few will do.
    names = random.Random(target).sample(names, min(3, len(names)))
    return [f"tests/test_laws.py::{law}[{name}]" for law in LAWS for name in names]


def _uses(state: State, module: str) -> bool:
    ours = [base.__module__ for base in type(state).__mro__ if issubclass(base, State)]
    return any(module in (name, *_imported(name)) for name in ours)


@lru_cache
def _imported(module: str) -> tuple[str, ...]:
    """The modules of arithmetic, statistics and formulas that a module imports names of."""
    found = vars(sys.modules[module]).values()
    names = {getattr(x, "__module__", None) or getattr(x, "__name__", "") for x in found}
    folders = ("datarax.numerics.", "datarax.statistics.", "datarax.metrics.")
    return tuple(name for name in names if str(name).startswith(folders))


SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def places(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every place where one token can be changed: its number among the nodes, and what is there."""
    skip = {id(n) for node in ast.walk(tree) for n in _not_code(node)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in skip:
            continue
        if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
            yield number, f"{node.lineno}: {type(node.op).__name__}"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield number, f"{node.lineno}: {type(node.ops[0]).__name__}"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield number, f"{node.lineno}: {node.value}"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert | ast.Not):
            yield number, f"{node.lineno}: {type(node.op).__name__}"


def _not_code(node: ast.AST) -> Iterator[ast.AST]:
    """What is within messages and annotations: changing it changes no result."""
    parts: list[ast.AST | None] = []
    if isinstance(node, ast.JoinedStr | ast.Raise):
        parts = [node]
    elif isinstance(node, ast.FunctionDef):
        parts = [
            node.returns,
            *(arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg)),
        ]
    elif isinstance(node, ast.AnnAssign):
        parts = [node.annotation]
    for part in parts:
        if part is not None:
            yield from ast.walk(part)


def mutated(tree: ast.AST, number: int) -> str:
    """The source with the one change."""
    tree = copy.deepcopy(tree)
    node = next(node for i, node in enumerate(ast.walk(tree)) if i == number)
    if isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
    return ast.unparse(tree)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=40, help="so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    args = parser.parse_args()
    found = []
    tests_of = targets()
    for target in tests_of:
        tree = ast.parse((ROOT / target).read_text())
        found += [(target, tree, number, what) for number, what in places(tree)]
    chosen = random.Random(args.seed).sample(found, min(args.sample, len(found)))
    print(f"{len(chosen)} of {len(found)} mutants, seed {args.seed}", flush=True)
    survivors = []
    with copied() as folder:
        for target, tree, number, what in sorted(chosen, key=lambda c: (c[0], c[2])):
            killed = found_by(folder, {target: mutated(tree, number)}, tests_of[target])
            print(f"{'killed  ' if killed else 'SURVIVED'} {target}:{what}", flush=True)
            survivors += [] if killed else [f"{target}:{what}"]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return 0


NOTHING_FAILED = (
    pytest.ExitCode.OK,
    pytest.ExitCode.USAGE_ERROR,  # a test of this name is not there
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the tree, for the time of the block."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("datarax", "tests", "docs"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for part in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / part, folder / part)
        yield folder


def found_by(folder: Path, texts: dict[str, str], tests: list[str]) -> str:
    """How pytest reports the first test that fails in a copy of the tree with these texts.

    "" if none fails. The report starts with FAILED, or with ERROR if the test did not run, as by an
    error of collection. What ends the tests themselves, or takes too long, counts as found.
    """
    originals = {target: (folder / target).read_text() for target in texts}
    for target, text in texts.items():
        (folder / target).write_text(text)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    # Bytecode of a text that has changed within a second would be taken for that of the new one.
    # The processes that tests start import the copy, too.
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired:
        return "the time limit"
    finally:
        for target, text in originals.items():
            (folder / target).write_text(text)
    if done.returncode in NOTHING_FAILED:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) .+", done.stdout, re.MULTILINE)
    return failed[0] if failed else f"exit {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
