"""What a reading says of data that could not be used, and of undefined parts of a value."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from dataclasses import replace as dataclass_replace
from itertools import repeat
from typing import Self

import jax
import numpy as np

from datarax._checks import default_float
from datarax._errors import (
    PrecisionWarning,
)
from datarax._typing import PyTree
from datarax._xp import none_true, xp
from datarax.algebra.leaf_state import LeafState
from datarax.algebra.state import State, walk
from datarax.statistics.cut_groups import CutGroups
from datarax.statistics.invalid_counts import (
    BEYOND_CAPACITY,
    KINDS,
    NOT_SAMPLED,
    Count,
    InvalidCounts,
    sum_of_counts,
)
from datarax.statistics.score_kinds import OfProbabilities

OVERFLOWED = "sum of weights beyond the range of floats"
"""The kind of what is counted if a sum of weights has overflowed: then there is no result."""


CUT = (
    "rows with one id of query= were in several updates, or on several devices, where "
    "each part counted by itself, so the result is wrong. Put all rows of an id in one update: end "
    "batches where an id ends, and sort by id what is split over devices. If the ids are numbered "
    "anew in each update, and their rows are in no order, nothing is wrong"
)
"""The warning if `CutGroups` has found that groups were cut."""


_LISTED = 10  # indices in a warning


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unusable:
    """The data that a metric could not use."""

    by_kind: Count | None
    """The number of rows of each of `KINDS`, in one array: a program needs them apart nowhere."""
    others: dict[str, Count]
    """The number of values or examples of other kinds."""
    example: jax.Array
    """The largest value that is out of range; -inf if it is not known."""
    evidence: dict[str, Count] = dataclass_field(default_factory=dict)
    """By what scores are taken for, how often each code of evidence was found: see `score_kinds`.
    These are no data that could not be used."""
    cut: PyTree = None
    """True if groups of rows were cut by updates; None if there are no groups."""
    labels: int | None = dataclass_field(default=None, metadata={"static": True})
    """The number of labels, from 0; None if the metric takes no labels."""
    takes_probabilities: bool = dataclass_field(default=False, metadata={"static": True})
    """True if the example may be a score, as the metric refuses those that are no probabilities."""
    remedy: str = dataclass_field(default="", metadata={"static": True})
    """The advice for scores that are no probabilities, if the metric refuses those."""

    @property
    def counts(self) -> dict[str, Count]:
        """Counts of values or examples, by kind: "NaN", "infinite", "out of range" and so on."""
        by_kind: PyTree = self.by_kind
        if by_kind is None:
            return self.others
        return dict(sorted({**self.others, **dict(zip(KINDS, by_kind, strict=True))}.items()))

    @property
    def mask(self) -> jax.Array:
        """True if there is any that spoils the result, as an array of shape ()."""
        if NOT_SAMPLED not in self.others:
            return self._any
        # Without the rows that did not fit a sample: an estimate from the others is a result.
        others = {kind: count for kind, count in self.others.items() if kind != NOT_SAMPLED}
        return _any_nonzero((self.by_kind, others))

    @property
    def total(self) -> PyTree:
        """The count over all kinds."""
        return sum_of_counts(self.counts.values())

    @property
    def overflow(self) -> jax.Array:
        """True if a sum of weights has overflowed, as an array of shape ()."""
        return xp.asarray(self.others.get(OVERFLOWED, False), xp.bool_)

    @property
    def is_some(self) -> bool:
        """True if there is any, on the host."""
        return bool(self._any)

    # Kept, because the mask, the messages and `results` all ask for it.
    @functools.cached_property
    def _any(self) -> jax.Array:
        """True if there is any, as an array of shape ()."""
        return _any_nonzero((self.by_kind, self.others))

    def described(self) -> str:
        """Describes how many values of each kind could not be used, for a message."""
        counts = {kind: int(count) for kind, count in self.counts.items() if int(count)}
        kinds = [f"{count} {kind}" for kind, count in counts.items() if kind]
        example = float(self.example)
        if "out of range" in counts and example > -np.inf:
            kinds.append(f"for example {example:.9g}")
        listed = f" ({', '.join(kinds)})" if kinds else ""
        described = f"{sum(counts.values())} values or examples could not be used{listed}"
        return described + self.expected

    @property
    def expected(self) -> str:
        """Says what labels must be, if the example is a number that is none of them."""
        example = float(self.example)
        if self.labels is None or not example.is_integer() or 0 <= example < self.labels:
            return ""
        labels = "0 and 1" if self.labels == 2 else f"0 to {self.labels - 1}"
        scores = ", and probabilities from 0 to 1" if self.takes_probabilities else ""
        return f"; expected {labels} as labels{scores}"

    @property
    def shift(self) -> str:
        """Says what to do if labels are numbered from 1, which explains the example."""
        if self.labels is None or self.example != self.labels:
            return ""
        counted = "1 and 2" if self.labels == 2 else f"from 1 to {self.labels}"
        return f"If labels are {counted}, subtract 1 from them"

    def effect(self, policy: str) -> str:
        """Says what became of the result, for a message."""
        if self.shift:
            return f"{_SHIFTED[policy]}. {self.shift}"
        if self.others.get(OVERFLOWED):
            return "so the result is NaN. Give smaller weights=: only their ratios matter to a mean"
        if self._kinds == {BEYOND_CAPACITY}:
            return _OF_FULL_BUFFERS[policy]
        if self._kinds - {NOT_SAMPLED}:
            return _EFFECTS[policy]
        return "and were left out: the result is an estimate from the others"

    @property
    def _kinds(self) -> set[str]:
        return {kind for kind, count in self.counts.items() if int(count)}

    @property
    def hint(self) -> str:
        """Says what else to do about it, for the end of a message."""
        full = self._kinds & {BEYOND_CAPACITY, NOT_SAMPLED}
        is_said = self._kinds == {BEYOND_CAPACITY}
        hint = ". A larger capacity= holds more examples" if full and not is_said else ""
        if self.remedy and int(self.counts.get("out of range", 0)):
            hint += f". {self.remedy}"
        return hint


def _any_nonzero(counts: PyTree) -> jax.Array:
    """True if any count is not zero, as an array of shape ()."""
    leaves = jax.tree.leaves(counts)
    if none_true(*leaves):  # mostly
        return np.bool_(False)  # type: ignore[return-value]
    parts = [part != 0 for part in leaves]
    parts = [xp.any(part) if part.ndim else part for part in parts]
    return functools.reduce(xp.logical_or, parts, xp.zeros((), xp.bool_))


def unusable(metric: State, takes_target: Callable[[State], bool]) -> Unusable:
    """Adds up what a metric and all its states could not use.

    Where a state takes no target, its classes are not those of labels.
    """
    by_kind: list[Count] = []
    others: dict[str, list[Count]] = {}
    examples: list[jax.Array] = []
    overflows: list[jax.Array] = []
    evidence: dict[str, list[Count]] = {}
    cut: PyTree = None
    labels: tuple[int | None, bool] | None = None
    remedy = ""
    # Each state with whether it, or one that it is within, counts invalid rows. Every state reports
    # its own counts, so nothing is counted twice.
    coming = [(metric, False)]
    while coming:
        each, counts_invalid = coming.pop()
        if isinstance(each, InvalidCounts):
            by_kind.append(each.by_kind)
            examples.append(each.largest.value)
            if each.scores:
                evidence.setdefault(each.scores, []).append(each.evidence())
            continue
        if isinstance(each, CutGroups):
            cut = each.found() if cut is None else cut | each.found()
            continue
        if isinstance(each, OfProbabilities) and each.takes_probabilities:
            remedy = remedy or _remedy_of(each)
        if labels is None and "num_classes" in each.fields:
            labels = _labels_of(each) if takes_target(each) else (None, False)
        for kind, count in each.unusable().items():
            others.setdefault(kind, []).append(count)
        # Invalid rows are left out, so sums of floats are finite unless they overflow: a weight is
        # below 2**128 in float32, but a sum of weights may be above. A `ScaledTotal` does not
        # overflow, and may hold a sum of infinite values.
        if counts_invalid and isinstance(each, LeafState):
            overflows += [~xp.all(xp.isfinite(x)) for x in each.float_sums()]
        within = each.states_within()
        counts_invalid = counts_invalid or InvalidCounts in map(type, within)
        # Reversed, as the last one is looked at next: so states are visited in the order of their
        # names.
        coming += zip(reversed(within), repeat(counts_invalid))
    totals = {kind: sum_of_counts(several) for kind, several in others.items()}
    # On devices it is not known here, so it is always listed.
    if not none_true(*overflows):
        totals[OVERFLOWED] = functools.reduce(xp.logical_or, overflows).astype(xp.int32)
    found = {kind: sum_of_counts(several) for kind, several in evidence.items()}
    total = sum_of_counts(by_kind) if by_kind else None
    if not examples:
        examples.append(np.asarray(-np.inf, default_float()))  # type: ignore[arg-type]
    example = functools.reduce(xp.maximum, examples)
    return Unusable(total, totals, example, found, cut, *(labels or (None, False)), remedy)


def _remedy_of(state: PyTree) -> str:
    """Says what to do about scores that are no probabilities, which a state refuses."""
    if "from_logits" not in state.fields:
        return "Divide each row by its sum, which must be 1; of logits, give their softmax"
    several = "num_classes" in state.fields and state.num_classes is not None
    rows = "; else divide each row by its sum, which must be 1" if several else ""
    return f"If preds are logits, give from_logits=True{rows}"


def _labels_of(state: PyTree) -> tuple[int | None, bool]:
    """Returns the number of labels that a state takes, 2 if binary; and `takes_probabilities`."""
    refuses = any(
        part.takes_probabilities for part in walk(state) if isinstance(part, OfProbabilities)
    )
    return state.num_classes or 2, refuses


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Undefined:
    """Marks the parts of a value that the data, as it is kept, does not define.

    They are NaN, a convention, or an estimate.
    """

    where: jax.Array
    """The mask of these parts."""
    reason: str = dataclass_field(metadata={"static": True})
    """The text of the warning; "{}" stands for their indices on the last axis."""
    category: type[Warning] = dataclass_field(default=PrecisionWarning, metadata={"static": True})
    """An `UndefinedMetricWarning` is given by `compute` too, others by `results` alone."""
    labels: Sequence[object] | None = dataclass_field(default=None, metadata={"static": True})
    """If given, what the warning calls each part, in place of its index."""
    groups: Sequence[object] | None = dataclass_field(default=None, metadata={"static": True})
    """If given, the names of slices, which are the first axis of the mask."""

    def unless(self, condition: jax.Array) -> Self:
        """The same, with no parts where a condition holds."""
        return dataclass_replace(self, where=self.where & ~condition)

    def of_groups(self, names: Sequence[object]) -> Self:
        """The same of slices with these names, the first on the first axis of the mask."""
        return dataclass_replace(self, where=self.where[: len(names)], groups=names)

    def said(self) -> str:
        """The warning, which lists the first indices."""
        where = np.nonzero(np.atleast_1d(self.where))
        text = self.reason.format(_listed_names(where[-1], self.labels))
        if self.groups is None:
            return text
        return f"in slices {_listed_names(where[0], self.groups)}: {text}"


def _listed_names(indices: np.ndarray, names: Sequence[object] | None) -> str:
    found = np.unique(indices)
    shown = [str(i if names is None else names[i]) for i in found[:_LISTED]]
    return ", ".join(shown) + (f" and {len(found) - _LISTED} more" if len(found) > _LISTED else "")


_EFFECTS = {
    "propagate": "so the result is NaN. To leave such data out, read "
    'metric.replace(on_invalid="exclude"), or give its weights= as 0',
    "exclude": "and were left out. If the result should be NaN instead, read "
    'metric.replace(on_invalid="propagate")',
}

_OF_FULL_BUFFERS = {
    "propagate": "so the result is NaN. Give a capacity= of at least the number of examples; or "
    'read that of the examples that were kept, metric.replace(on_invalid="exclude")',
    "exclude": "and were left out. Give a capacity= of at least the number of examples",
}


_SHIFTED = {"propagate": "so the result is NaN", "exclude": "and were left out"}
"""The same, where no advice to leave labels out is given: another one explains them."""
