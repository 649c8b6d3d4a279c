"""What is exported is what is documented, and says what a reader needs."""

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator

from tests.test_layers import MODULES, ROOT

DOCUMENTED = [
    name
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for name in re.findall(r"^::: (datarax\S*)$", page.read_text(), re.MULTILINE)
]


def is_public(module: str) -> bool:
    """Packages, but not the modules within: those are exported. The command has its `--help`."""
    return MODULES[module].name == "__init__.py" and module != "datarax.cli"


def exported(body: list[ast.stmt]) -> Iterator[str]:
    """A module's public names as type checkers see them: defined there, or `import X as X`."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If):  # under TYPE_CHECKING, what loads when first used
            yield from exported(node.body)


def resolve(name: str) -> object:
    if name in MODULES:
        return importlib.import_module(name)
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


# The modules of engines are imported by name, as each needs a package of its own.
OF_ENGINES = ["datarax.evaluation.beam.CombineMetrics", "datarax.evaluation.spark.evaluate"]
EXPORTED = OF_ENGINES + [
    f"{module}.{name}"
    for module, path in MODULES.items()
    if is_public(module)
    for name in exported(ast.parse(path.read_text()).body)
    if not name.startswith("_") and f"{module}.{name}" not in MODULES
]


def test_exported_is_documented_and_the_reverse():
    # A function exported from two modules is documented once: compared are the objects.
    objects = {id(resolve(name)): name for name in EXPORTED}
    pages = {id(resolve(name)): name for name in DOCUMENTED}
    assert sorted(objects[i] for i in objects.keys() - pages.keys()) == []  # not documented
    assert sorted(pages[i] for i in pages.keys() - objects.keys()) == []  # not exported
    assert len(pages) == len(DOCUMENTED)  # none of them twice


def test_the_pages_name_exported_paths():
    assert sorted(set(DOCUMENTED) - set(EXPORTED)) == []


def test_each_has_a_docstring_with_an_example():
    lacking = []
    for name in DOCUMENTED:
        thing, text = resolve(name), inspect.getdoc(resolve(name)) or ""
        is_error = inspect.isclass(thing) and issubclass(thing, Exception)
        needs = (inspect.isfunction(thing) or inspect.isclass(thing)) and not is_error
        if not text or (needs and ">>>" not in text):
            lacking.append(name)
    assert lacking == []


def explained(name: str) -> set[str]:
    """The arguments that a docstring explains: those of a named tuple are its attributes."""
    text = (inspect.getdoc(resolve(name)) or "") + "\n"
    part = re.search(r"^(?:Args|Attributes):\n((?:(?: .*)?\n)*)", text, re.MULTILINE)
    return set(re.findall(r"^    \**(\w+): \S", part[1], re.MULTILINE)) if part else set()


def test_each_argument_is_explained():
    lacking = {}
    for name in EXPORTED:
        thing = resolve(name)
        is_enum = inspect.isclass(thing) and issubclass(thing, enum.Enum)
        is_error = inspect.isclass(thing) and issubclass(thing, Exception)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)) or is_enum or is_error:
            continue
        arguments = {
            each.name
            for each in inspect.signature(thing).parameters.values()
            # What passes on any arguments, as `State`, has none of its own.
            if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        }
        if arguments - explained(name):
            lacking[name] = sorted(arguments - explained(name))
    assert lacking == {}
