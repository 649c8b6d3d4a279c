"""The settings of an evaluation, and how they turn columns of files into outputs of metrics."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.columns import INDEX
from datarax.evaluation.row_scores import with_scores
from datarax.evaluation.table_batches import (
    NOT_A_CLASS,
    as_floats,
    numbered,
    padded,
    power_of_two,
)
from datarax.evaluation.tables import Outputs, Rows
from datarax.evaluation.tasks import Spec, hashable
from datarax.wrappers.clusters import CLUSTER, narrow_ids

CLUSTERS = 4096
"""The cells of the table of clusters, which takes 64 KiB for each metric."""
Value = str | int | float | bool | None
"""A value of a column by which rows are sliced; None where there is none."""


@dataclass(frozen=True)
class Slicing:
    """The slices of the rows by the values of one column."""

    by: str
    """The name of the column."""
    values: tuple[Value, ...]
    """The value of each slice: strings, numbers, booleans, and None where there is no value."""
    other: bool = False
    """True if the rows with other values are one more slice; else they are in none."""

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


Json = dict[str, Any]
"""An object of JSON."""
_TRUE = ("target_boxes", "target_labels")


@dataclass(frozen=True)
class Configuration:
    """The settings from which `assembled` makes the metric of an evaluation.

    A command makes it from its arguments. `planned` completes it with what the files hold.
    """

    task: str
    specs: tuple[Spec, ...] = ()
    size: int | None = None
    """The number of classes, labels or outputs."""
    names: tuple[str, ...] | None = None
    """The names of the classes or labels."""
    named: bool = False
    """True if columns hold these names instead of numbers."""
    scores: str | None = None
    assumed_order: tuple[str, ...] = ()
    """The columns of scores that are taken for `names`, in this order, because nothing says it."""
    positive_column: str | None = None
    """The column of scores of a binary task whose name says the positive class."""
    pairs: tuple[tuple[str, str], ...] = ()
    """The columns of predictions and of targets that belong together, if that has to be said."""
    target_order: tuple[int, ...] = ()
    """The places of the columns of targets in the order of those of predictions, if they differ."""
    groups: tuple[str, ...] = ()
    """Of logs, by score: what the output `log` holds in the rows that should have it."""
    cells: int = CLUSTERS
    """The size of the tables of clusters."""
    slicings: tuple[Slicing, ...] = ()
    bootstrap: int = 0
    """The number of replicas of metrics without a formula for their interval."""
    confidence: float = 0.95
    on_invalid: str = "propagate"
    weighted: bool = False
    clustered: bool = False
    """True if rows with one value of the output `cluster` are one observation."""
    pictures: bool = False
    """True if curves and the like are to be drawn."""
    rows: bool = False
    """True if the rows with the largest losses are kept."""
    missing_values: tuple[str, ...] = ()
    """The strings and numbers that were read as no value."""
    box_format: str | None = None
    """The format of boxes, a name of `BOX_FORMATS`; None if it was not said."""
    detections: int | None = None
    """How many detections there are, if that is known."""
    ground_truth: str | None = None
    """The file that holds all images of the evaluation, and its version; None of tables."""
    empty_is_zero: bool = False
    """True if queries without relevant documents have 0 in the mean, as in trec_eval."""
    remarks: tuple[str, ...] = ()
    """What was noticed in the files before they were evaluated."""
    compared: bool = False
    """True if there are the predictions of two models, `preds_a` and `preds_b`."""

    def as_json(self) -> Json:
        """A dict that JSON can hold; `of_json` reads it."""
        return asdict(self) | {"specs": [spec.as_json() for spec in self.specs]}

    @classmethod
    def of_json(cls, saved: Json) -> Self:
        """The configuration that `as_json` gave."""
        specs = tuple(map(Spec.of_json, saved["specs"]))
        slicings = (
            Slicing(**each | {"values": hashable(each["values"])}) for each in saved["slicings"]
        )
        names = hashable(saved["names"])
        order = hashable(saved.get("assumed_order", ()))
        own = {"specs": specs, "names": names, "slicings": tuple(slicings), "assumed_order": order}
        own |= {
            name: hashable(saved.get(name, ()))
            for name in ("missing_values", "pairs", "target_order", "groups", "remarks")
        }
        return cls(**saved | own)

    @property
    def positive_class(self) -> str | None:
        """The class that scores of a binary task are of, and why; None where it is 1 by definition.

        Names that are not in the order of the alphabet were given in theirs.
        """
        if self.task != "binary" or not self.named or self.names is None:
            return None
        if self.positive_column is not None:
            why = f"named by the column {self.positive_column}; --classes sets it"
            return f"{self.names[-1]} ({why})"
        by_alphabet = list(self.names) == sorted(self.names)
        why = "last in the alphabet; --classes sets it" if by_alphabet else "set by --classes"
        return f"{self.names[-1]} ({why})"

    @property
    def ends(self) -> tuple[str, ...]:
        """The ends of the names of the outputs that each model predicts."""
        return ("_a", "_b") if self.compared else ("",)

    def outputs(self, name: str) -> list[str]:
        """The outputs of each model that have this name."""
        return [name + end for end in self.ends]

    def encoding(self, columns: Mapping[str, Rows]) -> Outputs:
        """The outputs that metrics take, made from the columns of a batch by output.

        Raises:
            MetricInputError: a column holds what the task cannot take.
        """
        out = dict(columns)
        rows = len(next(iter(out.values()))) if out else 0
        for place, slicing in enumerate(self.slicings):
            out[f"slice_{place}"] = slicing.ids(out[f"slice_{place}"])
        if self.slicings:
            # The metric `examples` of `assembled` sums them: the rows of each slice.
            out["ones"] = np.ones(rows, np.int32)
        if "weights" in out:
            out["weights"] = _floats(out["weights"], "weights")
        if self.target_order:
            out["target"] = np.asarray(out["target"])[:, list(self.target_order)]
        # The tasks of classes have no method of their own.
        out = getattr(self, f"_{self.task}", self._classes)(out)
        if self.pictures and not self.compared:
            out = with_scores(self.task, out)
        if self.clustered:
            # The bootstrap draws a cluster as a whole.
            out[CLUSTER], out[INDEX] = _cluster_ids(out[CLUSTER]), _hashed(out[CLUSTER])
        return out

    def _classes(self, out: Outputs) -> Outputs:
        """Of binary, multiclass and multilabel predictions."""
        out["target"] = self._labels(out["target"])
        labels = self.scores == "labels"
        for name in self.outputs("preds"):
            out[name] = self._labels(out[name]) if labels else _floats(out[name], name)
        return out

    def _labels(self, x: Rows) -> np.ndarray:
        """Labels as int32: names by their place among the classes, numbers as they are."""
        if not is_numeric(x):
            values = listed(x)
            if any(isinstance(value, str) for value in values[:1]):
                return numbered(values, (self.named and self.names) or ())
            x = np.asarray(values)
        if x.dtype.kind not in "biuf":
            raise MetricInputError(f"labels of type {x.dtype}; expected integers or names")
        limits = np.iinfo(np.int32)
        with np.errstate(invalid="ignore"):
            # A fraction, and an integer beyond 32 bits, is no class. NaN is not whole either.
            whole = (x == np.trunc(x)) if x.dtype.kind == "f" else np.ones(x.shape, bool)
            fits = whole & (x >= limits.min) & (x <= limits.max)
        return np.where(fits, x, NOT_A_CLASS).astype(np.int32)

    def _regression(self, out: Outputs) -> Outputs:
        target = out["target"] = _reals(out["target"], "target")
        for end in self.ends:
            preds = out[f"preds{end}"] = _reals(out[f"preds{end}"], f"preds{end}")
            if preds.shape != target.shape:
                raise MetricInputError(
                    f"predictions of shape {preds.shape[1:]} and targets of shape "
                    f"{target.shape[1:]} for each row; expected as many columns of both"
                )
            out[f"error{end}"] = _difference(preds, target)
        return out

    def _score(self, out: Outputs) -> Outputs:
        if self.groups:
            return self._log_scores(out)
        for end in self.ends:
            scores = out[f"preds{end}"] = _reals(out[f"preds{end}"], f"preds{end}")
            # Each column is measured by itself.
            if scores.ndim == 2:
                out |= {f"preds_{i}{end}": column for i, column in enumerate(scores.T)}
        return out

    def _log_scores(self, out: Outputs) -> Outputs:
        """Of logs: rows without a number of a score have weight zero for it."""
        log, weights = np.asarray(out["log"]), out.get("weights", np.float64(1))
        out = out | {"log": np.zeros(len(log), np.int32)}  # metrics take no strings
        scores = {end: _table(out[f"preds{end}"], len(log)) for end in self.ends}
        # Of two models, a row is a question, and counts as the fewer samples that one has of it.
        counts = [_table(out[f"counts{end}"], len(log)) for end in self.ends if self.compared]
        for i, group in enumerate(self.groups):
            present = log == group
            for end, table in scores.items():
                present &= ~np.isnan(table[:, i])
                out[f"preds_{i}{end}"] = table[:, i]
            times = np.minimum(*(table[:, i] for table in counts)) if counts else 1.0
            out[f"weights_{i}"] = np.where(present, weights * times, 0.0)
        return out

    def _ranking(self, out: Outputs) -> Outputs:
        for name in (*self.outputs("preds"), "target"):
            out[name] = _floats(out[name], name)
        queries = np.asarray(out["query"])
        # Within a batch, only which rows are of one query matters.
        _, out["query"] = np.unique(queries, return_inverse=True)
        out["query"] = out["query"].astype(np.int32)
        # The bootstrap draws by this id: a query is drawn as a whole.
        out[INDEX] = _hashed(queries)
        return out

    def _text(self, out: Outputs) -> Outputs:
        return out | {name: listed(out[name]) for name in (*self.outputs("preds"), "target")}

    def _detection(self, out: Outputs) -> Outputs:
        for end in self.ends:
            names = [f"boxes{end}", f"scores{end}", f"labels{end}"]
            out |= self._padded({each: out[each] for each in names}, f"valid{end}")
        truth = {name: out[name] for name in (*_TRUE, "crowd", "area") if name in out}
        return out | self._padded(truth, "target_valid")

    def _padded(self, columns: Mapping[str, Rows], valid: str) -> Outputs:
        """Lists of boxes, scores and labels as arrays, padded to the longest list."""
        given = {
            name: [self._of_row(i, x, name) for i, x in enumerate(listed(rows))]
            for name, rows in columns.items()
        }
        counts = {name: [len(each) for each in rows] for name, rows in given.items()}
        (first, sizes), *others = counts.items()
        for name, other in others:
            if other != sizes:
                row = next(i for i, (a, b) in enumerate(zip(sizes, other, strict=True)) if a != b)
                error = MetricInputError(
                    f"an image has {sizes[row]} {first} and {other[row]} {name}; expected as many"
                )
                error.row = row
                raise error
        width = power_of_two(max(sizes, default=0))
        real = np.arange(width) < np.array(sizes, int)[:, None]
        out = {name: padded(np.concatenate(rows), real) for name, rows in given.items()}
        return out | {valid: real}

    def _of_row(self, row: int, x: Rows, name: str) -> np.ndarray:
        """The boxes (D, 4), the scores or the labels (D,) of one image."""
        if "labels" in name or name == "crowd":
            return self._labels(np.asarray(x if x is not None else [], object))
        # `concatenate` refuses an empty list, and `[[]]` is a list of no numbers.
        flat = [] if x is None else np.concatenate([np.ravel(each) for each in x] or [[]])
        try:
            numbers = as_floats(np.asarray(flat if np.size(flat) else np.zeros(0)))
            return numbers.reshape(-1, 4) if "boxes" in name else numbers
        except ValueError as cause:
            error = MetricInputError(
                f"an image has {np.size(flat)} coordinates of boxes; expected four for each box"
            )
            error.row = row
            raise error from cause


def _table(values: Rows, rows: int) -> np.ndarray:
    """Numbers with None or NaN where there is none, as floats of shape (rows, columns)."""
    return np.asarray(values, np.float64).reshape(rows, -1)


def listed(values: Rows) -> list[Any]:
    """The values of rows as Python objects."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def is_numeric(values: Rows) -> bool:
    """True if they are an array of numbers, and so hold no strings and no lists."""
    return isinstance(values, np.ndarray) and values.dtype.kind not in "OUS"


def known(value: Value) -> Value:
    """The value by which a row is sliced: None for NaN."""
    # Only NaN differs from itself.
    return None if isinstance(value, float) and value != value else value


def shown_value(value: Value) -> str:
    """The name of the slice of this value."""
    if value is None:
        return "(no value)"
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shortened(text: str, most: int) -> str:
    """The text with at most this many letters, for a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _numbers(x: Rows, name: str) -> np.ndarray:
    """Numbers as an array.

    Raises:
        MetricInputError: they are no numbers, or lists of different lengths.
    """
    try:
        array = np.asarray(x)
    except ValueError:
        raise MetricInputError(f"{name} holds lists of different lengths") from None
    if array.dtype.kind not in "biuf":
        kind = "strings" if array.dtype.kind in "OUS" else f"values of type {array.dtype}"
        raise MetricInputError(f"{name} holds {kind}; expected numbers")
    return array


def _floats(x: Rows, name: str) -> np.ndarray:
    """Numbers as floats."""
    return as_floats(_numbers(x, name))


def _reals(x: Rows, name: str) -> np.ndarray:
    """Numbers as floats, or as integers if they are."""
    array = _numbers(x, name)
    return array if array.dtype.kind in "iu" else as_floats(array)


def _difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x - y` as float64; integers are subtracted before they are rounded."""
    if x.dtype.kind == y.dtype.kind == "i":
        return (x.astype(np.int64) - y.astype(np.int64)).astype(np.float64)
    return x.astype(np.float64) - y.astype(np.float64)


def _cluster_ids(values: Rows) -> np.ndarray:
    """The id of each row's cluster, of 32 bits: a small number is its own id."""
    ids = np.asarray(values)
    if ids.dtype.kind == "f":
        return _whole_apart(ids, narrow_ids)
    return narrow_ids(ids) if ids.dtype.kind in "iu" else _hashed(values)


def _whole_apart(ids: np.ndarray, of_integers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The numbers of floats, which for a whole one are those of the integer, as pandas writes it.

    So they do not depend on the other rows of the batch.
    """
    whole = (ids == np.trunc(ids)) & (np.abs(ids) < 2.0**63)
    found = of_integers(ids[whole].astype(np.int64))
    out = np.empty(ids.shape, found.dtype)
    out[whole], out[~whole] = found, _hashed_texts(ids[~whole])
    return out


def _hashed(values: Rows) -> np.ndarray:
    """A 32-bit number for each value, equal in every process and run."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return _whole_apart(array, _hashed)
    if array.dtype.kind in "iu":
        wide = array.astype(np.uint64)
        # The finalizer of MurmurHash3.
        wide = (wide ^ (wide >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        return (wide >> np.uint64(32)).astype(np.uint32).view(np.int32)
    return _hashed_texts(array)


def _hashed_texts(values: np.ndarray) -> np.ndarray:
    numbers = [zlib.crc32(str(value).encode()) for value in listed(values)]
    return np.array(numbers, np.uint32).view(np.int32)
