"""HTML made of elements: text is escaped unless an element made it, so nothing can be forgotten."""

import html
import re
import unicodedata
from collections.abc import Iterable
from itertools import chain
from typing import TypeAlias

EMPTY = {"input"}
DRAWN = {"line", "circle"}  # within SVG, an element without content must be closed

# What a reader does not see: controls, bidi overrides, lone surrogates, separators of lines.
# The two joiners stay: scripts and emoji need them.
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
JOINERS = "\u200c\u200d"


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"


def visible(text: object) -> str:
    """`text` on one line, with what cannot be seen, or reorders the rest, as "⟨U+202E⟩"."""
    text = str(text)
    if not text.strip():
        return f'"{text}"' if text.isprintable() else repr(text)
    if text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(c):04X}⟩" if unicodedata.category(c) in INVISIBLE and c not in JOINERS else c
        for c in text
    )


def join(content: Content) -> Html:
    """The HTML of text, elements, and lists of them; `None` is left out."""
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, str):
        return Html(html.escape(content))
    return Html("".join(join(part) for part in content))


def tag(element: str, *content: Content, **attributes: object) -> Html:
    """An element: `tag("td", "a < b", class_="n", data_v=1)`.

    An attribute that is `True` has no value, `None` and `False` leave it out; "_" becomes "-".
    """
    written = [element]
    for name, value in attributes.items():
        name = name.strip("_").replace("_", "-")
        if value is True:
            written.append(name)
        elif value is not None and value is not False:
            written.append(f'{name}="{html.escape(str(value))}"')
    opened = " ".join(written)
    if element in DRAWN:
        return Html(f"<{opened}/>")
    return Html(f"<{opened}>" if element in EMPTY else f"<{opened}>{join(content)}</{element}>")


def named(text: object, element: str = "span", **attributes: object) -> Html:
    """A name that comes from the data: isolated from the text around it, shortened by the style."""
    shown = visible(text)
    # Where a long name may be broken, as long as it is not one word.
    parts = [(part, Html("<wbr>")) for part in re.split(r"(?<=[_/])(?=[^_/])", shown)]
    name = tag(
        "bdi",
        list(chain.from_iterable(parts))[:-1],
        class_="name",
        title=shown if len(shown) > 40 else None,
    )
    return tag(element, name, **attributes)
