"""The docstring of a class explains its arguments, from the strings below its fields."""

import inspect
import pydoc
import subprocess
import sys
from typing import Any

import pytest

import datarax
from datarax.metrics import ConfusionMatrix
from datarax.statistics import State


class Base(State):
    """A base.

    Raises:
        ValueError: never.
    """

    first: int = 1
    """The first,
    in two lines."""
    second: str = "two"
    """The second."""
    unexplained: int = 3


class Derived(Base):
    """A derived class."""

    second: str = "zwei"
    first: int = 10
    """The first, restated."""
    last: float = datarax.field(kw_only=False)
    """The last."""


class Silent(Derived):
    last = 0.5


class Own(Base):
    """A class with a constructor of its own.

    Args:
        second: explained by the class,
            in two lines.

    Example:
        none
    """

    def __init__(self, second, first=7):
        super().__init__(second=second, first=first)


def test_explanations_come_before_the_next_section():
    assert Base.__doc__ == (
        "A base.\n\n"
        "Args:\n"
        "    first: The first, in two lines. Default: 1.\n"
        "    second: The second. Default: 'two'.\n\n"
        "Raises:\n"
        "    ValueError: never."
    )


def test_the_nearest_explanation_and_the_own_default_count():
    assert Derived.__doc__ == (
        "A derived class.\n\n"
        "Args:\n"
        "    last: The last.\n"
        "    second: The second. Default: 'zwei'.\n"
        "    first: The first, restated. Default: 10."
    )


def test_arguments_that_the_class_explains_stay():
    assert Own.__doc__ == (
        "A class with a constructor of its own.\n\n"
        "Args:\n"
        "    second: explained by the class,\n"
        "        in two lines.\n"
        "    first: The first, in two lines. Default: 7.\n\n"
        "Example:\n"
        "    none"
    )


def test_a_class_without_a_docstring_has_none():
    assert Silent.__doc__ is None
    assert inspect.getdoc(Silent) == Derived.__doc__


@pytest.mark.parametrize("thing", [ConfusionMatrix, ConfusionMatrix()])
def test_help_shows_it(thing):
    assert thing.__doc__ == inspect.getdoc(thing) == inspect.getdoc(ConfusionMatrix)
    shown = pydoc.render_doc(thing, renderer=pydoc.TextDoc())
    assert "num_classes: The number of classes of a multiclass task." in shown
    assert "Methods defined here:" in shown.replace("\b", "")


def test_without_the_source_the_docstring_is_as_written():
    namespace: dict[str, Any] = {"__name__": "nowhere", "State": State}
    exec('class Typed(State):\n    """As typed."""\n    size: int = 1\n    """Size."""', namespace)
    assert namespace["Typed"].__doc__ == "As typed."


def test_no_source_is_read_at_import():
    code = """
import linecache, datarax.metrics as m
read = lambda: any(each.endswith("count_ratio.py") for each in linecache.cache)
print(m.F1, read(), m.F1.__doc__ is None, read())
"""

    def printed(*options: str) -> str:
        command = [sys.executable, *options, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed().split()[2:] == ["False", "False", "True"]
    assert printed("-OO").split()[2:] == ["False", "True", "False"]  # it removes docstrings
