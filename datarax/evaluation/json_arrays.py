"""A JSON array of objects as JSON lines, piece by piece, so that it need not fit in memory."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

_QUOTE, _COMMA, _BREAKS = ord('"'), ord(","), (ord("\n"), ord("\r"))
_STEPS = np.zeros(256, np.int8)
"""How much deeper the text is after a sign."""
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_SIGNS = np.zeros(256, bool)
"""The signs that decide where an object ends."""
_SIGNS[list(b'"[]{},\n\r')] = True


def lines_of_array(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    """The objects of an array, each as a line, in pieces of whole lines.

    Args:
        pieces: the text, as UTF-8; its pieces end anywhere.
        most: the largest number of bytes of an object.

    Raises:
        ValueError: the text is no array of objects, an object is too large, or the text is cut.
    """
    text, number, is_open, is_closed = b"", 0, False, False
    for piece in pieces:
        text += piece
        if not is_open:
            text = text.lstrip()
            if not text:
                continue
            if text[:1] != b"[":
                raise ValueError(
                    f"it begins with {_shown(text)}; expected an array of objects, "
                    f"[{{...}}, {{...}}]: a file with an object in each line ends in .jsonl"
                )
            text, is_open = text[1:], True
        if not is_closed:
            lines, text, is_closed, number = _lines(text, number)
            if lines:
                yield lines
            if len(text) > most and not is_closed:
                raise ValueError(
                    f"the object {number + 1:,} of the array is longer than {most:,} bytes: "
                    f"{_shown(text)}"
                )
        if is_closed and text.strip():
            raise ValueError(
                f"after the end of the array follows {_shown(text.strip())}; expected one array: a "
                f"file with a value in each line ends in .jsonl"
            )
    if not is_open:
        raise ValueError("it holds nothing; expected an array of objects, [{...}, {...}]")
    if not is_closed:
        raise ValueError(f"the array has no end: the file was cut after object {number:,}")


def _lines(text: bytes, number: int) -> tuple[bytes, bytes, bool, int]:
    """Takes whole objects from a text that begins between two of them.

    Returns the lines, the text that is left, whether the array has ended, and the number of
    objects so far, which is `number` before.
    """
    # An escaped quote ends no string. First the pairs, as a backslash may be escaped too.
    plain = text.replace(rb"\\", b"  ").replace(rb"\"", b"  ") if b"\\" in text else text
    signs = np.frombuffer(plain, np.uint8)
    at = np.flatnonzero(_SIGNS[signs])
    kinds = signs[at]
    quotes = kinds == _QUOTE
    within = np.cumsum(quotes, dtype=np.int32) % 2 == 1
    is_break = np.isin(kinds, _BREAKS)
    depth = np.cumsum(np.where(within, 0, _STEPS[kinds]), dtype=np.int32)
    ends = np.flatnonzero(depth < 0)
    is_closed = ends.size > 0
    commas = at[(kinds == _COMMA) & ~within & (depth == 0)]
    if is_closed:
        stop = int(at[ends[0]])
        commas = commas[commas < stop]
        if kinds[ends[0]] != ord("]"):
            raise ValueError("a brace closes what no brace opens")
    elif commas.size:
        stop = int(commas[-1])
    else:
        return b"", text, False, number
    cuts = [-1, *commas[commas < stop].tolist(), stop]
    below = at < stop
    if (is_break & within & below).any():
        raise ValueError("a string holds a line break; expected \\n in its place")
    opens = (kinds == ord("{")) & (depth == 1) & ~within & below
    held = len(cuts) - 1
    if is_closed and held == 1 and number == 0 and not text[:stop].strip():
        held = 0  # an empty array
    if int(opens.sum()) != held:
        for place, (start, end) in enumerate(pairwise(cuts), number + 1):
            element = text[start + 1 : end].strip()
            if element[:1] != b"{":
                shown = _shown(element) if element else "nothing"
                raise ValueError(f"element {place:,} of the array is {shown}; expected an object")
        raise ValueError(
            f"a comma is missing between two of the objects from object {number + 1:,} on"
        )
    out = np.frombuffer(text, np.uint8)[:stop].copy()
    out[at[is_break & below]] = ord(" ")
    out[cuts[1:-1]] = ord("\n")
    lines = out.tobytes() + b"\n" if held else b""
    return lines, text[stop + 1 :], is_closed, number + held


def _shown(text: bytes) -> str:
    """The start of a text, for an error."""
    return repr(text[:40].decode("utf-8", "replace"))
