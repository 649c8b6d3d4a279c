"""Griffe reads the section "Examples:" as code, and "Example:" as prose: read both as code."""

import re
from typing import Any

import griffe


class Example(griffe.Extension):
    """Renames the heading before the docstring is parsed."""

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
