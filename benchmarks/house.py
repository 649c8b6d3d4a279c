"""How much a reader has to know: names, lines of help and pages, calls, lines, questions.

    python benchmarks/house.py

Calls are those of Python functions in a second call of the same kind (`sys.setprofile`), where
nothing is compiled or loaded any more; "own" are those of the package, and the files are those that
hold them. Names are those that a class has or inherits, without those that begin with an
underscore. A question about the place asks where or how wide an array is.
"""

import ast
import inspect
import io
import os
import pydoc
import sys
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.append(str(Path(__file__).parent.parent))

import jax
import numpy as np

import datarax
from benchmarks.lines import PACKAGE, Lines
from datarax import metrics

OF_PLACE = {
    *("on_host", "is_on_host", "x64_enabled", "when_known", "none_true", "all_finite"),
    *("has_wide", "is_wide", "itemsize"),
}
PAGE_LINES = 300
"""The most lines that a page of the documentation should have."""
OF_OTHERS = {
    *("__name__", "__isabstractmethod__", "_fields", "_asdict"),  # Python has no type for these
    *("dtype", "shape", "size", "tolist"),  # of arrays of any library
    *("parent", "in_tracers", "val", "jaxpr", "eqns", "outvars"),  # of programs of JAX
    *("to_bytes", "metric"),  # of a module that may not be loaded, of a shell of any library
}
"""Attributes of objects that are not of datarax, which cannot be told by a class of it."""


def names_of(cls: type) -> tuple[set[str], set[str]]:
    """The methods and properties of a class, and its other attributes, without private ones."""
    methods, others = set[str](), set[str]()
    for base in cls.__mro__[:-1]:
        for name in {*vars(base), *inspect.get_annotations(base)}:
            value = inspect.getattr_static(base, name, None)
            is_method = callable(value) or isinstance(value, property | classmethod)
            if not name.startswith("_"):
                (methods if is_method else others).add(name)
    return methods, others - methods


def calls_of(function: Callable[[], object]) -> tuple[int, int, int]:
    """The calls in a function: all, those of the package, and the files that hold the latter."""
    files: list[str] = []

    def seen(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    own = [file for file in files if file.startswith(str(PACKAGE))]
    return len(files), len(own), len(set(own))


def second(function: Callable[[], object]) -> str:
    """The calls of a function that ran before, in words."""
    function()
    every, own, files = calls_of(function)
    return f"{every:,} calls; own {own:,} in {files} files"


def questions(folder: Path) -> int:
    """How often the modules of a folder ask for a place or a width, without imports."""
    found = 0
    for file in folder.rglob("*.py"):
        tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
        found += sum(
            token.type == tokenize.NAME
            and token.string in OF_PLACE
            and not token.line.startswith(("from", "import", "    " + token.string + ","))
            for token in tokens
        )
    return found


def probes(file: Path) -> int:
    """How often a module asks by a string whether an object of datarax has an attribute.

    That is `hasattr`, `getattr` with a default, and a look into `vars(x)`. What `__init_subclass__`
    asks of a class body is not counted, nor are `vars(self)["x"] = y`, which sets an attribute of
    an immutable object, and `getattr(state, name)` of a declared name: neither decides.
    """
    tree = ast.parse(file.read_text())
    bodies = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__init_subclass__"
    )
    of_bodies = {id(node) for body in bodies for node in ast.walk(body)}
    names = (asked_name(node) for node in ast.walk(tree) if id(node) not in of_bodies)
    return sum(name is not None and name not in OF_OTHERS for name in names)


def asked_name(node: ast.AST) -> object:
    """The name in an expression that asks whether an attribute is there; else None."""
    match node:
        case ast.Call(ast.Name("hasattr"), [_, ast.Constant(str(name))]):
            return name
        case ast.Call(ast.Name("getattr"), [_, ast.Constant(str(name)), _]):
            return name
        case ast.Call(ast.Attribute(ast.Call(ast.Name("vars")), "get" | "pop"), [first, *_]):
            return first.value if isinstance(first, ast.Constant) else None
        case ast.Compare(ast.Constant(str(name)), [ast.In() | ast.NotIn()], [within]):
            return name if isinstance(within, ast.Call) and is_vars(within.func) else None
    return None


def is_vars(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "vars"


def five() -> dict[str, datarax.Metric]:
    """The metrics of a collection for a classifier."""
    return {
        "loss": metrics.Mean().from_outputs(values="loss"),
        "accuracy": metrics.Accuracy(num_classes=10),
        "precision": metrics.Precision(num_classes=10),
        "recall": metrics.Recall(num_classes=10),
        "f1": metrics.F1(num_classes=10),
    }


def journeys() -> None:
    """Prints the calls of updates and readings."""
    rng = np.random.default_rng(0)
    x, target = rng.random(64, np.float32), rng.integers(0, 10, 64).astype(np.int32)
    mean = metrics.Mean().update(x)
    print("update of a mean:", second(lambda: mean.update(x)))
    print("results of a mean:", second(lambda: mean.results()))
    batch = {"loss": x, "preds": target, "target": target}
    collection = datarax.Collection(five())

    def trace() -> None:
        # A new function each time, which JAX has not traced yet.
        jax.make_jaxpr(lambda metric, batch: metric.update(**batch))(collection, batch)

    print("trace of five metrics:", second(trace))
    mesh = jax.make_mesh((8,), ("data",))
    for name, metric, given in (
        ("a mean", metrics.Mean(), (x,)),
        ("an AUROC", metrics.AUROC(), (x, target % 2)),
    ):
        copies = datarax.per_device(metric, mesh, "data").update(*given)
        print(f"results of per_device({name}):", second(copies.results))


def documentation() -> None:
    """Prints the lengths of the help of all metrics, and of the pages of docs/."""
    helps = {
        name: pydoc.plain(pydoc.render_doc(cls)).count("\n")
        for name, cls in vars(metrics).items()
        if isinstance(cls, type) and issubclass(cls, datarax.Metric) and name == cls.__name__
    }
    longest = max(helps, key=helps.__getitem__)
    print(f"lines of the longest help of {len(helps)} metrics: {helps[longest]}, of {longest}")
    root = PACKAGE.parent
    lengths = {
        str(page.relative_to(root)): page.read_text().count("\n")
        for page in (root / "docs").rglob("*.md")
    }
    long = sorted((name for name in lengths if lengths[name] > PAGE_LINES), key=lengths.__getitem__)
    named = ", ".join(f"{name} ({lengths[name]})" for name in long) or "none"
    print(f"pages: {len(lengths)}; longer than {PAGE_LINES} lines: {named}")
    longest = max(lengths, key=lengths.__getitem__)
    print(f"lines of the longest page: {lengths[longest]}, of {longest}")


def main() -> None:
    methods, others = map(len, names_of(datarax.Metric))
    print(f"names of Metric: {methods} methods and properties, {others} attributes")
    own = vars(datarax.Collection).items()
    count = sum(
        name[:2] != "__" and (callable(x) or isinstance(x, property | classmethod | staticmethod))
        for name, x in own
    )
    print(f"methods and properties of Collection itself: {count}")
    text = pydoc.plain(pydoc.render_doc(metrics.SpearmanCorrCoef))
    print(f"lines of help(SpearmanCorrCoef): {text.count(chr(10))}")
    for metric in (metrics.SpearmanCorrCoef(), datarax.Bootstrap(metrics.Mean(), 10)):
        shown = [name for name in dir(metric) if name[0] != "_"]
        print(f"names on the tab key of {type(metric).__name__}: {len(shown)}")
    documentation()
    journeys()
    for folder in ("algebra", "metric", "wrappers", "statistics"):
        if (PACKAGE / folder).exists():
            print(f"code lines of {folder}/: {Lines.of(PACKAGE / folder).code:,}")
    asked = sum(questions(PACKAGE / folder) for folder in ("statistics", "metrics"))
    print(f"questions about the place in statistics/ and metrics/: {asked}")
    catalogue = [x for f in ("statistics", "metrics") for x in (PACKAGE / f).rglob("*.py")]
    twins = sum(file.read_text().count("@faster_in_numpy(") for file in catalogue)
    print(f"functions with a twin in NumPy, there: {twins}")
    engine = [file for folder in ("algebra", "metric") for file in (PACKAGE / folder).rglob("*.py")]
    asked = sum(map(probes, engine))
    print(f"attributes of its own objects asked for by a string in algebra/ and metric/: {asked}")
    lines = Lines.of(PACKAGE)
    print(f"comments in a hundred lines: {100 * lines.comments / lines.code:.1f}")


if __name__ == "__main__":
    main()
