"""Notes on numbers that stay in all variations: what their values for parts of the rows show."""

from collections.abc import Mapping, Sequence

import numpy as np

from datarax.testing.rounding import Rounding, as_double, is_float
from datarax.testing.rows import Rows, join, split

SAME, ADDS_UP = "the same for parts of the rows", "adds up over groups"
NOTES: Mapping[str, str] = {
    SAME: "a setting, an extreme that starts from a constant, or rows that are too alike",
    ADDS_UP: "a sum over groups, or a mean over a fixed number of them, where an absent one is 0",
}
"""The text of each note, for the report."""


def parts_of(rows: Rows) -> tuple[list[Rows], list[int]]:
    """One group, some, the others, and the first two parts together; and their numbers of groups.

    Without weights there are no parts. Without groups, parts are of rows, and have no numbers.
    """
    if rows.layout.weights is None:
        return [], []
    ids = rows.group_ids()
    count = int(ids.max())  # of the groups but the first
    sizes = [1, count // 2, count - count // 2]
    parts = split(rows, sizes, ids)
    return [*parts, join(parts[:2])], sizes if rows.layout.groups else []


def note_on(
    whole: np.ndarray,
    doubled: np.ndarray | None,
    parts: Sequence[np.ndarray | None],
    sizes: Sequence[int],
    rounding: Rounding,
) -> str | None:
    """The note on a number, or `None`.

    A mean over groups is between its parts, so it is no sum of parts of one sign. A sum over rows
    is doubled if each row is there twice. A count of groups has one value for each group, and a
    number of one group is 0 without it: they add up too, and get no note.

    Args:
        whole: the number for all rows.
        doubled: the number if each row is there twice; `None` if it is missing.
        parts: the number for each part of `parts_of`.
        sizes: the number of groups in each of the first three; none if there are no groups.
        rounding: the differences that rounding explains.
    """
    if any(x is None or x.shape != whole.shape for x in parts):
        return None
    one, some, others, first_two = (as_double(x) for x in parts if x is not None)
    value = as_double(whole)
    if all(np.array_equal(x, value, equal_nan=True) for x in (one, some, others, first_two)):
        return SAME
    if not sizes or not is_float(whole) or rounding.differs(whole, doubled):
        return None
    three = (one, some, others)
    adds_up = not rounding.differs(one + some, first_two)
    adds_up = adds_up and not rounding.differs(first_two + others, value)
    counts = [part / size for part, size in zip(three, sizes, strict=True)]
    is_count = not any(rounding.differs(each, counts[0]) for each in counts)
    return ADDS_UP if adds_up and np.all(three) and not is_count else None
