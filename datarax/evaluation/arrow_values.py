"""Columns of Arrow as arrays of NumPy, or lists of strings; no copy where the layout allows it."""

from typing import Any, NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Lists of different lengths, end to end."""

    items: Any
    lengths: np.ndarray


def null_rows(column: Any) -> np.ndarray | None:
    """Which rows have no value, or one within a list that is none; None if all have one."""
    if isinstance(column, np.ndarray):
        return None
    absent = None
    if column.null_count:
        absent = _array(column.is_null())
    if not _is_list(column):
        return absent
    # `flatten` leaves out the items of null lists, whose length is taken as 0 below.
    within = null_rows(column.flatten())
    if within is None:
        return absent
    lengths = _lengths(column)
    rows = np.repeat(np.arange(len(column)), lengths)
    # One absent item makes the row absent.
    found = np.bincount(rows, within, len(column)) > 0
    return found if absent is None else absent | found


def values(column: Any) -> Any:
    """The values of a column without nulls: an array, a list of strings, or `Ragged`.

    Lists become the axes after the first; strings in lists become lists of strings.
    """
    if isinstance(column, np.ndarray):
        return column.tolist() if column.dtype.kind == "U" else column
    pa = _pyarrow()
    if isinstance(column.type, pa.BaseExtensionType):
        return values(column.storage)
    types = pa.types
    if types.is_dictionary(column.type):
        return values(column.dictionary_decode())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return column.to_pylist()
    if _is_list(column):
        inner = column.flatten()
        items = values(inner)
        # Strings, which stay in lists of Python.
        if isinstance(items, list):
            return column.to_pylist()
        if types.is_fixed_size_list(column.type):
            return items.reshape(len(column), column.type.list_size, *items.shape[1:])
        return Ragged(_even(items), _lengths(column))
    # NumPy would make Python objects of them.
    if types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return _array(column)


def _even(items: Any) -> Any:
    """Inner lists, which must have one length, as an axis."""
    if not isinstance(items, Ragged):
        return items
    width = int(items.lengths.max(initial=0))
    if (items.lengths != width).any():
        from datarax._errors import MetricInputError

        raise MetricInputError("a column holds lists of lists that have different lengths")
    return items.items.reshape(len(items.lengths), width, *items.items.shape[1:])


def _is_list(column: Any) -> bool:
    types = _pyarrow().types
    return (
        types.is_list(column.type)
        or types.is_large_list(column.type)
        or types.is_fixed_size_list(column.type)
    )


def _lengths(column: Any) -> np.ndarray:
    from datarax._optional import optional

    lengths = optional("pyarrow.compute", "parquet", "reading this file").list_value_length(column)
    return np.nan_to_num(_array(lengths)).astype(np.int64)


def _array(column: Any) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False)


def _pyarrow() -> Any:
    from datarax._optional import optional

    return optional("pyarrow", "parquet", "reading this file")
