"""Masks of pixels as COCO encodes them, by the lengths of runs down the columns; on the host.

An encoded mask is a dict: `size`, its height and width, and `counts`, the lengths of runs of zeros
and ones in turn, beginning with zeros, as a list or compressed to text:
https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from datarax._errors import MetricInputError

RunLengths = Sequence[Sequence[Mapping[str, Any] | None]]
"""The masks of each image; None for padding."""


class Runs(NamedTuple):
    """The runs of ones of a mask, as places in its pixels in the order of columns."""

    starts: np.ndarray
    ends: np.ndarray
    height: int
    width: int

    @property
    def pixels(self) -> int:
        """The number of ones."""
        return int((self.ends - self.starts).sum())


def are_run_lengths(masks: object) -> bool:
    """True if masks are lists of dicts, one list for each image."""
    return isinstance(masks, list | tuple) and all(
        isinstance(row, list | tuple) and all(x is None or isinstance(x, Mapping) for x in row)
        for row in masks
    )


def runs_of(mask: Mapping[str, Any], name: str) -> Runs:
    """The runs of an encoded mask.

    Raises:
        MetricInputError: it is damaged; says how, and begins with `name`.
    """
    try:
        height, width = (int(x) for x in mask["size"])
        counts = mask["counts"]
    except (KeyError, TypeError, ValueError):
        raise MetricInputError(
            f"{name}: expected a dict with size=[height, width] and counts, got {mask!r:.60}"
        ) from None
    if isinstance(counts, str):
        counts = counts.encode()
    lengths = _decompressed(counts, name) if isinstance(counts, bytes) else np.asarray(counts)
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        if lengths.size:
            raise MetricInputError(f"{name}: the counts are no lengths of runs: {counts!r:.60}")
        lengths = np.zeros(0, np.int64)
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if ends.size else 0
    if total != height * width:
        raise MetricInputError(
            f"{name}: the counts are of {total:,} pixels, and its size is {height} x {width}"
        )
    ends = np.concatenate([ends, ends[-1:]]) if ends.size % 2 else ends
    return Runs(ends[0::2], ends[1::2], height, width)


def _decompressed(text: bytes, name: str) -> np.ndarray:
    """The lengths of runs that are written as text, six bits a letter."""
    letters = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    if not letters.size:
        return letters
    # A letter has five bits of a number, and whether more follow; the last has the sign as well.
    is_last = letters & 32 == 0
    if ((letters < 0) | (letters > 63)).any() or not is_last[-1]:
        raise MetricInputError(f"{name}: the counts are no compressed runs: {text[:40]!r}")
    starts = np.concatenate([[0], np.flatnonzero(is_last)[:-1] + 1])
    place = np.arange(letters.size) - np.repeat(starts, np.diff([*starts, letters.size]))
    if place.max() > 11:
        raise MetricInputError(f"{name}: the counts are no compressed runs: {text[:40]!r}")
    numbers = np.add.reduceat((letters & 31) << (5 * place), starts)
    is_negative = letters[is_last] & 16 != 0
    numbers -= np.where(is_negative, np.int64(1) << (5 * (place[is_last] + 1)), 0)
    # From the fourth number on, each is the difference to the one before the last.
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def common_pixels(found: Sequence[Runs], there: Sequence[Runs]) -> np.ndarray:
    """How many pixels each of some masks shares with each of others, (D, G)."""
    out = np.zeros((len(found), len(there)))
    sizes = [len(x.starts) for x in found]
    if not sum(sizes):
        return out
    starts, ends = (np.concatenate([x[i] for x in found]) for i in (0, 1))
    of = np.repeat(np.arange(len(found)), sizes)
    for g, other in enumerate(there):
        # The number of ones before a place rises by one a pixel within a run.
        places = np.stack([other.starts, other.ends], 1).ravel()
        lengths = other.ends - other.starts
        before = np.cumsum(np.stack([np.zeros_like(lengths), lengths], 1).ravel())
        if places.size:
            shared = np.interp(ends, places, before) - np.interp(starts, places, before)
            out[:, g] = np.bincount(of, shared, len(found))
    return out
