"""Errors and texts of files on one line of a terminal."""

import codecs
import errno
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from datarax._errors import DataraxError

DEBUG = "DATARAX_DEBUG"
"""The environment variable with which errors keep their stack traces."""


def described(error: Exception) -> str:
    """Describes an error in words."""
    # The text of an `OSError` begins with its number, which says nothing to most users.
    if isinstance(error, OSError) and error.strerror:
        where = f"{printable(str(error.filename), 300)!r}: " if error.filename else ""
        full = " (use another folder, or free some space)" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror}{full}"
    if isinstance(error, MemoryError):
        # An error itself is true, also without a text.
        return f"{str(error) or 'there is not enough memory'}; a smaller --batch-size needs less"
    if isinstance(error, DataraxError):
        return str(error)
    text = ": ".join(filter(None, (type(error).__name__, str(error))))
    return f"{text} ({DEBUG}=1 shows where)"


def printable(text: str, limit: int = 1000) -> str:
    """The text in one line, without characters that control a terminal, and not too long."""
    text = re.sub(r"\s*\n\s*", " ", text.strip())
    # Names come from files: an escape sequence could change what a terminal shows.
    text = "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)
    if len(text) <= limit:
        return text
    # The end of an error says what is wrong, also after a path of some thousand letters.
    half = limit // 2
    return f"{text[: half - 3]}...{text[half - limit :]}"


_PLAIN = {"·": "-", "±": "~", "…": ".", "–": "-", "×": "x", "≠": "!="}  # noqa: RUF001


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What replaces the characters that an encoding does not have, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(x) or encodable(x, "ascii") for x in text), error.end


codecs.register_error("datarax.plain", _in_ascii)


def encodable(text: str, encoding: str) -> str:
    """The text with escapes for the characters that an encoding does not have."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


@contextmanager
def plain_output() -> Iterator[None]:
    """In this block, what stdout cannot encode, as on a terminal of ASCII, is written in ASCII."""
    stream, errors = sys.stdout, getattr(sys.stdout, "errors", None)
    if not isinstance(stream, io.TextIOWrapper) or errors is None:
        yield
        return
    stream.reconfigure(errors="datarax.plain")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # it is full or closed, which was an error before
            stream.reconfigure(errors=errors)
