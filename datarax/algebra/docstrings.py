"""Docstrings of classes that explain the arguments of their constructors.

The explanation of a field stands once, as a string below the annotated attribute. Python does not
keep such strings, so they are read from the source, when a docstring is first asked for.
"""

import ast
import functools
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator

_WIDTH = 88
_SECTION = re.compile(r"^(?:Returns|Yields|Raises|Examples?):$", re.MULTILINE)
_ARGS = re.compile(r"^Args:\n(?:(?: .*)?\n)*?(?=\S|\Z)", re.MULTILINE)
_EXPLAINED = re.compile(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", re.MULTILINE)


class ExplainedArguments:
    """The `__doc__` of a class and its instances: what is written, with an "Args:" part."""

    def __init__(self, written: str):
        """
        Args:
            written: the docstring, as it is in the source.
        """
        self.written = written

    def __get__(self, instance: object, owner: type) -> str:
        return with_arguments(self.written, owner)


def with_arguments(text: str, cls: type) -> str:
    """A docstring of `cls` that explains the arguments of the constructor that it does not explain.

    An argument without an explanation, or of a class whose source is not there, is left out.
    """
    text = inspect.cleandoc(text) + "\n"
    args = _ARGS.search(text)
    known = _EXPLAINED.findall(args[0]) if args else ()
    explained = _explained_fields(cls)
    entries = [
        _entry(each, explained[each.name])
        for each in inspect.signature(cls).parameters.values()
        if each.name in explained and each.name not in known
    ]
    if not entries:
        return text.rstrip()
    section = _SECTION.search(text)
    at = section.start() if section else len(text)
    head = "Args:"
    if args:
        at, head = args.end(), ""
    before, after = text[:at].rstrip(), text[at:].strip()
    listed = "\n".join([*filter(None, [head]), *entries])
    return "\n\n".join(filter(None, [before + ("\n" if args else "\n\n") + listed, after]))


def _entry(parameter: inspect.Parameter, explanation: str) -> str:
    """The lines on an argument: its name, the explanation, and the default."""
    default = parameter.default
    if default is not parameter.empty:
        shown = getattr(default, "__name__", None) or repr(default)
        # A long one stands in the signature.
        explanation += f" Default: {shown}." if len(shown) <= _WIDTH else ""
    return textwrap.fill(
        f"{parameter.name}: {explanation}",
        _WIDTH,
        initial_indent=" " * 4,
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _explained_fields(cls: type) -> dict[str, str]:
    """The explanations of attributes by name: of each, that of the nearest base that has one."""
    explained: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        explained |= _explanations(base.__module__).get(base.__qualname__, {})
    return explained


@functools.cache
def _explanations(module: str) -> dict[str, dict[str, str]]:
    """The explanations of attributes by class and name; none if the source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):  # frozen, compiled, of a notebook
        return {}
    return {name: dict(_below_attributes(node.body)) for name, node in _classes(tree, "")}


def _classes(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes within a part of a module, by their qualified names."""
    for node in ast.iter_child_nodes(parent):
        inner = prefix
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            inner = f"{prefix}{node.name}."
        elif isinstance(node, ast.FunctionDef):
            inner = f"{prefix}{node.name}.<locals>."
        if isinstance(node, ast.stmt):
            yield from _classes(node, inner)


def _below_attributes(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """For each attribute of a class body with a string below it, its name and the string."""
    for attribute, below in itertools.pairwise(body):
        match attribute, below:
            case (
                ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]),
                ast.Expr(ast.Constant(str(text))),
            ):
                yield name, " ".join(text.split())
