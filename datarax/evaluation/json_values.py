"""The values of a key in the objects of JSON lines, also of a key within: "answers.text"."""

import json
from collections.abc import Sequence
from typing import Any

NOTHING = object()
"""The value of a key that an object does not have."""


def value_at(row: Any, name: str) -> Any:
    """The value of a key, or of one within: "answers.text"; `NOTHING` if there is none.

    Of a list of objects it is the list of their values.
    """
    if isinstance(row, list):
        found = [value_at(x, name) for x in row]
        return [None if x is NOTHING else x for x in found] if row else NOTHING
    if not isinstance(row, dict) or name in row:
        return row[name] if isinstance(row, dict) else NOTHING
    for place in (i for i, sign in enumerate(name) if sign == "."):
        below = row.get(name[:place])
        if isinstance(below, list) and not below:
            return []
        if (found := value_at(below, name[place + 1 :])) is not NOTHING:
            return found
    return NOTHING


def roots(name: str) -> Sequence[str]:
    """The keys whose values may hold a key within: "a" and "a.b" for "a.b.c"."""
    return [name[:i] for i, sign in enumerate(name) if sign == "."]


def may_have(text: bytes, key: str) -> bool:
    """True if some lines may have a key; False is certain."""
    return any(json.dumps(key, ensure_ascii=x).encode() in text for x in (True, False))


def mark_of(value: Any) -> str | None:
    """A single value as text, of an object that was read with numbers as text.

    Raises:
        ValueError: it is a list or an object.
    """
    if isinstance(value, list | dict):
        raise ValueError("no single value")
    return json.dumps(value) if isinstance(value, bool) else value
