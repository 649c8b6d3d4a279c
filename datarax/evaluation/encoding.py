"""Converts columns of files to the outputs that metrics take: names of classes become numbers."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datarax._checks import default_float
from datarax._errors import MetricInputError

Rows = Any
"""One value for each row: an array whose first axis is of rows, or a list."""

NOT_A_CLASS = -1
"""The label of a value that is no class: metrics count it as out of range."""


@dataclass(frozen=True)
class Slicing:
    """The slices of the rows by the values of one column."""

    by: str
    """The name of the column."""
    values: tuple[Any, ...]
    """The value of each slice: strings, numbers, booleans, and None where there is no value."""
    other: bool = False
    """Whether the rows with other values are one more slice; else they are in none."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each slice."""
        shown = tuple(shown_value(value) for value in self.values)
        return (*shown, "other") if self.other else shown

    def ids(self, values: Rows) -> np.ndarray:
        """The number of the slice of each row."""
        places = {value: place for place, value in enumerate(self.values)}
        # A row of place -1 is in no slice.
        rest = len(self.values) if self.other else -1
        return np.array([places.get(known(x), rest) for x in listed(values)], np.int32)


@dataclass(frozen=True)
class Encoding:
    """How the columns of a batch become the outputs that metrics take.

    It is called with a dict of columns by output, and gives a dict of outputs. Copies and pickles
    are equal, so it can be sent to other processes.
    """

    task: str
    classes: tuple[str, ...] = ()
    """The names of the classes, where columns hold names: of targets, and of predicted labels."""
    scores: str | None = None
    slicings: tuple[Slicing, ...] = ()
    """Slice `i` has the column `slice_i`."""
    sets: tuple[str, ...] = ("preds",)
    """The names of the outputs that hold predictions."""

    def __call__(self, columns: Mapping[str, Rows]) -> dict[str, Any]:
        """The outputs of a batch of rows.

        Raises:
            MetricInputError: a column holds what the task cannot take.
        """
        out = dict(columns)
        rows = len(next(iter(out.values()))) if out else 0
        for place, slicing in enumerate(self.slicings):
            out[f"slice_{place}"] = slicing.ids(out[f"slice_{place}"])
        if self.slicings:
            out["ones"] = np.ones(rows, np.int32)
        if "weights" in out:
            out["weights"] = _numbers(out["weights"], "weights")
        # The tasks of classes have no method of their own.
        return getattr(self, f"_{self.task}", self._classes)(out)

    def _classes(self, out: dict[str, Any]) -> dict[str, Any]:
        """Of binary, multiclass and multilabel predictions."""
        out["target"] = self._labels(out["target"])
        for name in self.sets:
            labels = self.scores == "labels"
            out[name] = self._labels(out[name]) if labels else _numbers(out[name], name)
        return out

    def _labels(self, x: Rows) -> np.ndarray:
        """Labels as int32: names by their place among the classes, numbers as they are."""
        if not isinstance(x, np.ndarray) or x.dtype.kind in "OUS":
            places = {name: place for place, name in enumerate(self.classes)}
            values = listed(x)
            if any(isinstance(value, str) for value in values[:1]):
                return np.array([places.get(value, NOT_A_CLASS) for value in values], np.int32)
            x = np.asarray(values)
        if x.dtype.kind not in "biuf":
            raise MetricInputError(f"labels of type {x.dtype}; expected integers or names")
        limits = np.iinfo(np.int32)
        with np.errstate(invalid="ignore"):
            # A fraction, and an integer beyond 32 bits, is no class. NaN is not whole either.
            whole = (x == np.trunc(x)) if x.dtype.kind == "f" else np.ones(x.shape, bool)
            fits = whole & (x >= limits.min) & (x <= limits.max)
        return np.where(fits, x, NOT_A_CLASS).astype(np.int32)

    def _regression(self, out: dict[str, Any]) -> dict[str, Any]:
        target = _numbers(out["target"], "target", np.float64)
        out["target"] = target.astype(default_float())
        for name in self.sets:
            preds = _numbers(out[name], name, np.float64)
            if preds.shape != target.shape:
                raise MetricInputError(
                    f"predictions of shape {preds.shape[1:]} and targets of shape "
                    f"{target.shape[1:]} for each row; expected as many columns of both"
                )
            out[name] = preds.astype(default_float())
            # The difference is rounded once.
            out["error" + name.removeprefix("preds")] = (preds - target).astype(default_float())
        return out

    def _ranking(self, out: dict[str, Any]) -> dict[str, Any]:
        out["target"] = _numbers(out["target"], "target")
        for name in self.sets:
            out[name] = _numbers(out[name], name)
        queries = np.asarray(out["query"])
        # Within a batch, only which rows are of one query matters.
        _, out["query"] = np.unique(queries, return_inverse=True)
        out["query"] = out["query"].astype(np.int32)
        # The bootstrap draws by this id: a query is drawn as a whole.
        out["index"] = _hashed(queries)
        return out

    def _text(self, out: dict[str, Any]) -> dict[str, Any]:
        return out | {name: listed(out[name]) for name in (*self.sets, "target")}

    def _detection(self, out: dict[str, Any]) -> dict[str, Any]:
        for name in self.sets:
            end = name.removeprefix("preds")
            names = [f"boxes{end}", f"scores{end}", f"labels{end}"]
            out |= self._padded({each: out[each] for each in names}, f"valid{end}")
        truth = {name: out[name] for name in ("target_boxes", "target_labels")}
        return out | self._padded(truth, "target_valid")

    def _padded(self, columns: Mapping[str, Rows], valid: str) -> dict[str, Any]:
        """Lists of boxes, scores and labels as arrays, padded to the longest list."""
        given = {
            name: [_of_row(self, x, "boxes" in name, "labels" in name) for x in listed(rows)]
            for name, rows in columns.items()
        }
        counts = {name: [len(each) for each in rows] for name, rows in given.items()}
        (first, sizes), *others = counts.items()
        for name, other in others:
            if other != sizes:
                row = next(i for i, (a, b) in enumerate(zip(sizes, other, strict=True)) if a != b)
                raise MetricInputError(
                    f"an image has {sizes[row]} {first} and {other[row]} {name}; expected as many"
                )
        most = 1 << max(max(sizes, default=0) - 1, 0).bit_length()  # few sizes: few programs
        out: dict[str, Any] = {}
        for name, rows in given.items():
            tail = rows[0].shape[1:] if rows else ((4,) if "boxes" in name else ())
            kind = np.int32 if "labels" in name else np.float32
            out[name] = np.zeros((len(rows), most, *tail), kind)
            for place, each in enumerate(rows):
                out[name][place, : len(each)] = each
        out[valid] = np.arange(most)[None] < np.array(sizes, int)[:, None]
        return out


def _of_row(encoding: Encoding, x: Any, boxes: bool, labels: bool) -> np.ndarray:
    """The boxes (D, 4), the scores or the labels (D,) of one image."""
    if labels:
        return encoding._labels(np.asarray(x if x is not None else [], object))
    # `concatenate` refuses an empty list, and `[[]]` is a list of no numbers.
    flat = [] if x is None else np.concatenate([np.ravel(each) for each in x] or [[]])
    try:
        numbers = np.asarray(flat, np.float32)
        return numbers.reshape(-1, 4) if boxes else numbers
    except ValueError as error:
        raise MetricInputError(
            f"an image has {np.size(flat)} coordinates of boxes; expected four for each box"
        ) from error


def listed(values: Rows) -> list[Any]:
    """The values of rows as Python objects."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def known(value: Any) -> Any:
    """The value by which a row is sliced: None for NaN."""
    # Only NaN differs from itself.
    return None if isinstance(value, float) and value != value else value


def shown_value(value: Any) -> str:
    """The name of the slice of this value."""
    if value is None:
        return "(no value)"
    if isinstance(value, str):
        return value or "(empty)"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:.12g}"
        if isinstance(value, float)
        else str(value)
    )


def _numbers(x: Rows, name: str, dtype: Any = None) -> np.ndarray:
    """Numbers as floats."""
    try:
        array = np.asarray(x)
    except ValueError:
        raise MetricInputError(f"{name} holds lists of different lengths") from None
    if array.dtype.kind not in "biuf":
        kind = "strings" if array.dtype.kind in "OUS" else f"values of type {array.dtype}"
        raise MetricInputError(f"{name} holds {kind}; expected numbers")
    if array.dtype == np.float16 and dtype is None:
        return array  # metrics know how far it is rounded
    with np.errstate(over="ignore"):  # beyond the range is infinite, which metrics count
        return array.astype(dtype or default_float())


def _hashed(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    """A 32-bit number for each value, equal in every process and run."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        wide = array.astype(np.uint64)
        # The finalizer of MurmurHash3.
        wide = (wide ^ (wide >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)
    numbers = [zlib.crc32(str(value).encode()) for value in listed(array)]
    return np.array(numbers, np.uint32).view(np.int32)
