"""Columns as text: those of a task of texts, and dates and times."""

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from datarax._errors import MetricInputError
from datarax._optional import optional
from datarax.evaluation.tables import Column

if TYPE_CHECKING:
    import pyarrow

Texts = str | tuple[str, ...]
"""One text, or several references."""
# The zeros that end the fraction of a second, before a zone.
_ZEROS = r"(?:(\.\d*[1-9])0+|\.0+)(Z|[+-]\d\d:?\d\d)?$"


def is_time(given: "pyarrow.DataType") -> bool:
    """True for dates, times of a day, both, and durations."""
    types = _pyarrow().types
    return types.is_temporal(given) and not types.is_interval(given)


def without_times(column: Column) -> Column:
    """The column, with dates and times as text: `2024-05-01 12:30:00.25`; none is None.

    A duration is `1 days 02:30:00.25`, as pandas writes it. The fraction of a second has no zeros
    at its end, so that its unit does not matter.
    """
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "m":
            return np.array([*map(_duration, column.ravel()), None], object)[:-1].reshape(
                column.shape
            )
        if column.dtype.kind != "M":
            return column
        shown = (re.sub(_ZEROS, r"\1", x) for x in np.datetime_as_string(column.ravel()).tolist())
        known = [None if x == "NaT" else x.replace("T", " ") for x in shown]
        return np.array([*known, None], object)[:-1].reshape(column.shape)
    array = _plain(column)
    if not is_time(array.type):
        return array
    if _pyarrow().types.is_duration(array.type):
        shown: Any = without_times(array.to_numpy(zero_copy_only=False))
        return _pyarrow().array(shown, _pyarrow().string())
    compute = optional("pyarrow.compute", "parquet", "reading this file")
    text = array.cast(_pyarrow().string())
    return compute.replace_substring_regex(text, _ZEROS, r"\1\2")


def _duration(x: np.timedelta64) -> str | None:
    """A duration as pandas writes it, without zeros at the end of the fraction."""
    if np.isnat(x):
        return None
    unit, count = np.datetime_data(x.dtype)
    if unit in ("Y", "M"):  # of no fixed length
        return str(x)
    per_second = 10 ** {"ms": 3, "us": 6, "ns": 9, "ps": 12, "fs": 15, "as": 18}.get(unit, 0)
    each = {"W": 604_800, "D": 86_400, "h": 3600, "m": 60}.get(unit, 1)
    ticks = int(x.astype(np.int64)) * count * each
    seconds, fraction = divmod(ticks, per_second)
    days, seconds = divmod(seconds, 86_400)
    sign = "+" if days < 0 else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = f"{fraction:0{len(str(per_second)) - 1}}".rstrip("0") if fraction else ""
    return f"{days} days {sign}{clock}{'.' if digits else ''}{digits}"


def marks_of(column: Column) -> list[str | None]:
    """Each value as text, as files of text have it, so that 17 equals "17"; None if there is none.

    A whole number is written without a fraction.
    """
    shown: Any = without_times(column)
    values = shown.tolist() if isinstance(shown, np.ndarray) else shown.to_pylist()
    return [x if x is None or isinstance(x, str) else _mark(x) for x in values]


def _mark(x: Any) -> str | None:
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, float):
        return None if x != x else str(int(x) if x.is_integer() else x)
    return str(x)


def references_of(columns: Sequence[Column]) -> Sequence[Texts]:
    """The references in each row of some columns: one as a string, several as a tuple.

    A column may hold a string in one row and a list of them in another. Numbers are read as they
    are written in the file, or as Python prints them. No reference is the reference "", as SQuAD
    2.0 has it for questions without an answer.
    """
    rows = zip(*map(_texts, columns), strict=True)
    return [_few([each for x in row for each in _as_list(x)]) for row in rows]


def texts_of(column: Column, name: str) -> list[str]:
    """The one text in each row of a column, which may be in a list.

    Raises:
        MetricInputError: a row has none, or several.
    """
    found: list[str] = []
    for row, x in enumerate(_texts(column)):
        if not isinstance(x, str) and len(x) != 1:
            held = f"a list of {len(x)} texts" if x else "an empty list"
            error = MetricInputError(f"the column {name!r} holds {held}; expected one text")
            error.row = row
            raise error
        found.append(x if isinstance(x, str) else x[0])
    return found


def _texts(column: Column) -> list[str] | list[list[str]]:
    """Each value as a string, or as a list of them. Lists within lists become one."""
    if isinstance(column, np.ndarray):
        shown: Any = without_times(column)
        if shown.ndim > 1:
            items = _texts(shown.ravel())
            return _cut(items, [shown[0].size if len(shown) else 0] * len(shown))
        # An item of an array has the fewest digits of its dtype, unlike that of a list.
        return list(map(str, shown))
    array, types = _plain(column), _pyarrow().types
    if types.is_list(array.type) or types.is_large_list(array.type):
        return _cut(_texts(array.flatten()), array.value_lengths().to_pylist())
    if types.is_fixed_size_list(array.type):
        return _cut(_texts(array.flatten()), [array.type.list_size] * len(array))
    if types.is_floating(array.type):
        return _texts(array.to_numpy(zero_copy_only=False))
    plain: Any = without_times(array)
    return list(map(str, plain.to_pylist()))


def _cut(items: Iterable[str | list[str]], lengths: Iterable[int]) -> list[list[str]]:
    """Items that lie end to end, as lists of these lengths."""
    left = iter(items)
    return [[each for x in islice(left, size) for each in _as_list(x)] for size in lengths]


def _as_list(x: str | list[str]) -> list[str]:
    return [x] if isinstance(x, str) else x


def _few(texts: list[str]) -> Texts:
    return tuple(texts) if len(texts) > 1 else texts[0] if texts else ""


def _plain(column: Any) -> Any:
    """The values of an extension type, or of a dictionary."""
    pa = _pyarrow()
    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _pyarrow() -> ModuleType:
    return optional("pyarrow", "parquet", "reading this file")
