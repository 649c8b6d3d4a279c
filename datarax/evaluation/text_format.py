"""The options of files of text, and errors about values that are no numbers."""

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from datarax._errors import MetricInputError
from datarax.evaluation.identity import FileIdentity

_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+|inf|infinity|nan)(e[-+]?\d+)?\s*", re.IGNORECASE)
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""The first bytes of files in other encodings; those of UTF-32 begin as those of UTF-16."""
_COMPRESSED = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
"""The first bytes of compressed files."""
_TABLES = {
    b"PAR1": "Parquet: let its name end in .parquet",
    b"ARROW1": "Arrow: let its name end in .arrow",
    b"PK\x03\x04": "a ZIP archive, as .xlsx and .npz are: name it so, or write it as text",
}
"""The first bytes of files that are no text, and what to do."""
OTHER_ENCODING = "give its encoding, such as --encoding latin-1 (encoding='latin-1' in Python)"


HARNESSES = ("inspect", "lm-eval")
"""The evaluation harnesses whose logs are read."""


class LogSource(NamedTuple):
    """Logs of an evaluation harness that are read together."""

    harness: str
    files: tuple[FileIdentity, ...] = ()
    by_task: bool = False
    """Whether the names of scores have the task before them, because there are several."""
    by_model: bool = False
    """The same of the model."""
    questions: bool = False
    """Whether a row is a question with the means of its samples, instead of a sample."""


class TextFormat(NamedTuple):
    """How files of text are written, and which values stand for a missing one in any file."""

    delimiter: str | None = None
    """The sign between the fields of CSV; None for that of the format."""
    encoding: str = "utf-8"
    decimal: str = "."
    """The decimal point of CSV."""
    missing_values: tuple[str, ...] = ()
    """Strings and numbers that are read as no value, in files of all formats."""
    layout: str = ""
    """What a file is, if it is no table; a name of `files.LAYOUTS`."""
    beside: FileIdentity | None = None
    """The other file that a file of this layout is read with, such as the ground truth."""
    logs: LogSource | None = None
    """The logs, if the files are those of an evaluation harness."""
    among: tuple[FileIdentity, ...] = ()
    """The runs of TREC that are compared, if any: their tables have the same rows."""
    all_queries: bool = False
    """True if judged queries count that a run of TREC does not have."""

    @classmethod
    def checked(
        cls,
        delimiter: str | None,
        encoding: str,
        decimal: str,
        missing_values: str | Sequence[str],
        harness: str | None = None,
    ) -> Self:
        """The options, after a check.

        Raises:
            MetricInputError: one is not what is expected; names it.
        """
        given = {"tab": "\t", "\\t": "\t"}.get(delimiter or "", delimiter)
        if given is None:
            pass
        elif len(given) != 1 or not given.isascii() or given.isalnum() or given in '"\r\n\0':
            raise MetricInputError(
                f"delimiter is {delimiter!r}; expected one sign, such as ',', ';', '|' or 'tab'"
            )
        if decimal not in (".", ","):
            raise MetricInputError(f"decimal is {decimal!r}; expected '.' or ','")
        try:
            "".encode(encoding).decode(encoding)
        except (LookupError, ValueError):
            raise MetricInputError(
                f"encoding is {encoding!r}; expected the name of an encoding of text, such as "
                f"'utf-8', 'utf-16' or 'latin-1'"
            ) from None
        found = (missing_values,) if isinstance(missing_values, str) else tuple(missing_values)
        if not all(isinstance(each, str) for each in found):
            raise MetricInputError(f"missing_values is {missing_values!r}; expected strings")
        if harness not in (None, *HARNESSES):
            raise MetricInputError(
                f"format is {harness!r}; expected {' or '.join(map(repr, HARNESSES))}, or None for "
                f"the formats that the ends of file names say"
            )
        logs = None if harness is None else LogSource(harness)
        return cls(given, encoding, decimal, found, logs=logs)

    @property
    def is_utf8(self) -> bool:
        """True if the bytes of a file need no conversion."""
        return codecs.lookup(self.encoding).name == "utf-8"

    def check_start(self, start: bytes) -> None:
        """Checks the first bytes of a file that is read as UTF-8.

        Raises:
            ValueError: they are of another encoding, or of no text.
        """
        packed = next((end for mark, end in _COMPRESSED.items() if start.startswith(mark)), None)
        if packed is not None:
            raise ValueError(f"it is compressed: let its name end in {packed}")
        table = next((said for mark, said in _TABLES.items() if start.startswith(mark)), None)
        if table is not None:
            raise ValueError(f"it is no text; its first bytes are those of {table}")
        found = next((name for mark, name in _MARKS if start.startswith(mark)), None)
        if found is None and b"\0" in start[:4]:
            found = "utf-16-be" if start[:1] == b"\0" else "utf-16-le"
        if found is not None:
            raise ValueError(
                f"it is no UTF-8: its first bytes are those of {found}; give --encoding {found} "
                f"(encoding={found!r} in Python)"
            )


def is_number(text: str) -> bool:
    """True if a text is a number with a decimal point."""
    return _NUMBER.fullmatch(text) is not None


def no_number(texts: Iterable[object]) -> str | None:
    """The first text that is no number; None if there is none."""
    return next((x for x in texts if isinstance(x, str) and not is_number(x)), None)


def other_delimiter(line: str, delimiter: str = ",") -> str:
    """The end of an error about a line whose fields another sign separates; "" if none does."""
    mark = max(";\t|,", key=line.count)
    if line.count(mark) <= line.count(delimiter):
        return ""
    shown = repr("tab" if mark == "\t" else mark)
    return (
        f"; its fields look separated by {shown}: give --delimiter {shown} (delimiter={shown} in "
        f"Python)"
    )


def how_to_write(text: str) -> str | None:
    """Says what to write for a text that holds numbers, for an error; None if it holds none."""
    bare = text.strip()
    if re.fullmatch(r"[-+]?[\d.,]+\s*%", bare):
        return "write a number without the percent sign, such as 0.87 for 87%"
    if re.fullmatch(r"[-+]?(\d*,\d+|\d{1,3}(\.\d{3})+,\d+)(e[-+]?\d+)?", bare, re.IGNORECASE):
        return "for decimal commas, give --decimal ',' (decimal=',' in Python)"
    if re.fullmatch(r"[\w.]+\(\s*[-+\[(]*\.?\d.*\)", bare, re.DOTALL):
        return "it is the text of an object; write its number, such as x.item()"
    if re.fullmatch(r"[\[(]+\s*[-+]?\.?\d.*[\])]", bare, re.DOTALL):
        return "it is a list as text; write a column for each number, or lists in JSON or Parquet"
    return None


def refuse_text(column: str, text: str, where: str = "", expected: str = "a number") -> str:
    """The error about a text where a number is expected."""
    # Without a look at the sign, only the user knows what the value stands for.
    advice = how_to_write(text) or (
        f"if it stands for a missing value, give --missing-values {text!r} "
        f"(missing_values=[{text!r}] in Python)"
    )
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"the column {column!r} has the value {shown!r}{where}; expected {expected}: {advice}"
