"""Errors and texts of files on one line of a terminal."""

import errno
import re

from datarax._errors import DataraxError

DEBUG = "DATARAX_DEBUG"
"""The environment variable with which errors keep their stack traces."""


def described(error: Exception) -> str:
    """What went wrong, in words."""
    # The text of an `OSError` begins with its number, which says nothing to most users.
    if isinstance(error, OSError) and error.strerror:
        where = f"{str(error.filename)!r}: " if error.filename else ""
        full = " (use another folder, or free some space)" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror}{full}"
    if isinstance(error, MemoryError):
        return f"{error or 'there is not enough memory'}; a smaller --batch-size needs less"
    if isinstance(error, DataraxError):
        return str(error)
    return f"{type(error).__name__}: {error} ({DEBUG}=1 shows where)"


def printable(text: str, limit: int = 1000) -> str:
    """The text in one line, without characters that control a terminal, and not too long."""
    text = re.sub(r"\s*\n\s*", " ", text.strip())
    # Names come from files: an escape sequence could change what a terminal shows.
    text = "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
