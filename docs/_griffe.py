"""What the site shows of a class: its declared fields as arguments, and examples as code."""

import importlib
import inspect
import re
from typing import Any

import griffe


class Example(griffe.Extension):
    """Griffe reads "Examples:" as code, and "Example:" as prose: renames the heading."""

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)


class Fields(griffe.Extension):
    """Lists the fields of a class, inherited ones too, with the text where they are declared."""

    def on_package(self, *, pkg: Any, **kwargs: Any) -> None:
        documented: dict[str, str] = {}
        classes = list(_classes(pkg))
        for each in classes:
            for name, member in each.members.items():
                if member.is_attribute and member.docstring:
                    documented[f"{each.path}.{name}"] = member.docstring.value
        for each in classes:
            _add_fields(each, documented)


def _classes(obj: Any) -> Any:
    for member in list(obj.members.values()):
        if member.is_alias:
            continue
        if member.is_class:
            yield member
        if member.is_class or member.is_module:
            yield from _classes(member)


def _add_fields(obj: Any, documented: dict[str, str]) -> None:
    module, _, name = obj.path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # a class within a class or function
        return
    fields = {n: f for n, f in getattr(cls, "fields", {}).items() if f.init}
    if not fields or not obj.docstring or "__init__" in vars(cls):
        return
    lines = []
    for field in fields:
        places = (f"{base.__module__}.{base.__qualname__}.{field}" for base in cls.__mro__)
        text = next((documented[place] for place in places if place in documented), "")
        lines.append(f"    {field}: " + " ".join(text.split()))
    text = obj.docstring.value
    if "\nArgs:\n" not in text:
        start = re.search(r"(?m)^(Raises|Example|Examples):$", text)
        place = start.start() if start else len(text)
        text = text[:place].rstrip() + "\n\nArgs:\n" + "\n".join(lines) + "\n\n" + text[place:]
        obj.docstring.value = text
    kinds = {
        inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
        inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    }
    parameters = [
        griffe.Parameter(
            given.name,
            kind=kinds[given.kind],
            annotation=_shown(given.annotation),
            default=None if given.default is given.empty else repr(given.default),
        )
        for given in inspect.signature(cls).parameters.values()
    ]
    constructor = griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
    obj.set_member("__init__", constructor)


def _shown(annotation: Any) -> str:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(typing|collections\.abc|datarax(\.\w+)*)\.", "", text)
