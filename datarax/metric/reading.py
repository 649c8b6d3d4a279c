"""`Reading`: what is read from a metric in one program: its value, bounds, and what is invalid."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from dataclasses import replace as dataclass_replace
from typing import Self

import jax
import numpy as np

from datarax._checks import default_float, is_integer, warn
from datarax._errors import (
    CutGroupsWarning,
    InvalidValuesError,
    InvalidValuesWarning,
    PrecisionWarning,
    ScoresWarning,
    UndefinedMetricWarning,
)
from datarax._numbers import number
from datarax._typing import PyTree
from datarax._xp import none_true, on_host, xp
from datarax.algebra.leaf_state import LeafState
from datarax.algebra.state import State, walk
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact, WholeOrFloat
from datarax.numerics.float_ranges import outward
from datarax.statistics.cut_groups import CutGroups
from datarax.statistics.invalid_counts import (
    KINDS,
    NOT_SAMPLED,
    Count,
    InvalidCounts,
    sum_of_counts,
)
from datarax.statistics.score_kinds import doubt

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
        return bool(_any_nonzero((self.by_kind, self.others)))

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
        if any(int(count) for kind, count in self.counts.items() if kind != NOT_SAMPLED):
            return _EFFECTS[policy]
        return "and were left out: the result is an estimate from the others"

    @property
    def hint(self) -> str:
        """Says what else to do about it, for the end of a message."""
        full = any(int(self.others.get(kind, 0)) for kind in ("beyond the capacity", NOT_SAMPLED))
        hint = ". A larger capacity= holds more examples" if full else ""
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


def unusable(metric: State) -> Unusable:
    """Adds up what a metric and all its states could not use."""
    by_kind: list[Count] = []
    others: dict[str, list[Count]] = {}
    example = xp.asarray(-np.inf, default_float())
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
            example = xp.maximum(example, each.largest.value)
            if each.scores:
                evidence.setdefault(each.scores, []).append(each.evidence())
            continue
        if isinstance(each, CutGroups):
            cut = each.found() if cut is None else cut | each.found()
            continue
        remedy = remedy or _remedy_of(each)
        if labels is None and "num_classes" in each.fields:
            labels = _labels_of(each)
        for kind, count in each.unusable().items():
            others.setdefault(kind, []).append(count)
        # Invalid rows are left out, so sums of floats are finite unless they overflow: a weight is
        # below 2**128 in float32, but a sum of weights may be above. A `ScaledTotal` does not
        # overflow, and may hold a sum of infinite values.
        if counts_invalid and isinstance(each, LeafState):
            overflows += [~xp.all(xp.isfinite(x)) for x in each.float_sums()]
        within = each.states_within()
        counts_invalid = counts_invalid or any(isinstance(x, InvalidCounts) for x in within)
        coming += [(x, counts_invalid) for x in reversed(within)]
    totals = {kind: sum_of_counts(several) for kind, several in others.items()}
    overflow = functools.reduce(xp.logical_or, overflows, np.zeros((), np.bool_))
    # On devices it is not known here, so it is always listed.
    if not none_true(overflow):
        totals[OVERFLOWED] = overflow.astype(xp.int32)
    found = {kind: sum_of_counts(several) for kind, several in evidence.items()}
    total = sum_of_counts(by_kind) if by_kind else None
    return Unusable(total, totals, example, found, cut, *(labels or (None, False)), remedy)


def _remedy_of(state: State) -> str:
    """Says what to do about scores that are no probabilities, if a state refuses those."""
    if not getattr(state, "takes_probabilities", False):
        return ""
    if "from_logits" not in state.fields:
        return "Divide each row by its sum, which must be 1; of logits, give their softmax"
    several = vars(state).get("num_classes") is not None
    rows = "; else divide each row by its sum, which must be 1" if several else ""
    return f"If preds are logits, give from_logits=True{rows}"


def _labels_of(state: State) -> tuple[int | None, bool]:
    """Returns the number of labels that a state takes, 2 if binary; and `takes_probabilities`."""
    routes = getattr(state, "routes", list)()
    # Without targets, the classes are those of scores alone.
    if routes and not any("target" in route.argument for route in routes):
        return None, False
    refuses = any(getattr(part, "takes_probabilities", False) for part in walk(state))
    return vars(state)["num_classes"] or 2, refuses


class Presented:
    """A value that `compute` and `results` give in two forms. A subclass is a pytree."""

    def arrays(self) -> PyTree:
        """The value that `compute` gives."""
        raise NotImplementedError

    def listed(self) -> PyTree:
        """Returns what `results` gives. The arrays of this value are NumPy arrays by then."""
        raise NotImplementedError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OrNone(Presented):
    """An integer, or nothing. `results` gives it as an integer or a name, or None."""

    some: jax.Array
    """True if there is one, of shape ()."""
    value: jax.Array
    """An integer of shape (); any value if there is none."""
    names: tuple[str, ...] | None = dataclass_field(default=None, metadata={"static": True})
    """If given, the integer is an index of these names, and `results` gives the name."""

    def arrays(self) -> jax.Array:
        """The integer, or -1."""
        value = xp.asarray(self.value)
        return xp.where(self.some, value, xp.asarray(-1, value.dtype))

    def listed(self) -> int | str | None:
        """The integer or the name, or None."""
        if not self.some:
            return None
        value = int(self.value)
        return value if self.names is None else self.names[value]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ByGroup(Presented):
    """A dict of results in few arrays, because each result is work for a compiler inside `jit`.

    It stands for items with the names `prefix + column`, and for others as they are.
    """

    columns: dict[str, PyTree]
    """For each kind of value, those of all groups: the last axis is of groups."""
    others: dict[str, PyTree]
    prefixes: tuple[str, ...] = dataclass_field(metadata={"static": True})
    """For each group, what comes before the name of the column."""

    def arrays(self) -> dict[str, PyTree]:
        """The items, sorted by name."""
        items = {
            f"{prefix}{name}": jax.tree.map(lambda x, i=i: x[..., i], column, is_leaf=is_wide)
            for name, column in self.columns.items()
            for i, prefix in enumerate(self.prefixes)
        }
        # Sorted, as `jit` returns a dict.
        return dict(sorted((items | self.others).items()))

    listed = arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bounds:
    """The lower and the upper bound of a value."""

    lower: PyTree
    upper: PyTree
    widest: float | None = dataclass_field(default=None, metadata={"static": True})
    """`results` warns if they are farther apart than this; None: never."""
    remedy: str = dataclass_field(default="more bits= narrows this", metadata={"static": True})
    """The advice of the warning."""
    rounded: PyTree = None
    """On the host: true where the bounds are apart because numbers were rounded when they were
    stored, and that matters; None if it is not known. Then `results` warns, too."""

    def by_name(self) -> Iterator[tuple[str, PyTree, PyTree]]:
        """The lower and the upper bound of each number, with its name; of a single one, ""."""
        if not isinstance(self.lower, dict):
            yield "", self.lower, self.upper
        else:
            upper = dict(flat_items(self.upper))
            yield from ((name, x, upper[name]) for name, x in flat_items(self.lower))

    @property
    def ends(self) -> tuple[PyTree, PyTree]:
        """Both."""
        return self.lower, self.upper

    def rounded_outward(self) -> tuple[PyTree, PyTree]:
        """Both, as `bounds()` of a metric gives them: in the default float dtype.

        On the host they have float64, and are rounded so that what was between them still is. Those
        that are equal are rounded to one float.
        """
        pairs = jax.tree.map(_rounded_outward, self.lower, self.upper)
        return jax.tree.transpose(jax.tree.structure(self.lower), jax.tree.structure((0, 0)), pairs)


def _rounded_outward(lower: PyTree, upper: PyTree) -> tuple[PyTree, PyTree]:
    if not on_host(lower, upper) or np.dtype(default_float()) != np.float32:
        return lower, upper
    ends = [np.asarray(x, np.float64) for x in (lower, upper)]
    (low, _), (_, high) = map(outward, ends)
    with np.errstate(over="ignore"):
        near = [x.astype(np.float32) for x in ends]
    apart = ends[0] != ends[1]
    return np.where(apart, low, near[0]), np.where(apart, high, near[1])


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reading:
    """The record that `compute`, `results` and a collector take their results from."""

    value: PyTree
    """Arrays; but an `Exact` for a value that no array holds exactly."""
    invalid: dict[str, Unusable]
    """The data that could not be used, by the name of each metric in a collection. The name is ""
    if the metric is not a collection."""
    bounds: dict[str, Bounds]
    """The bounds of the value of each metric that has bounds, by its name."""
    policies: tuple[tuple[str, str], ...] = dataclass_field(metadata={"static": True})
    """The `on_invalid` of each metric, by the same names."""
    flat: bool = dataclass_field(default=False, metadata={"static": True})
    """True if nested dicts are given as one dict, with names like "outer/inner"."""
    undefined: dict[str, tuple[Undefined, ...]] = dataclass_field(default_factory=dict)
    """The parts of the value of each metric that the data does not define, by its name."""

    def rounded(self) -> PyTree:
        """The value as arrays."""
        with np.errstate(over="ignore"):
            return self._flattened(_presented(self.value, lambda x: x.arrays(), as_array))

    def _flattened(self, value: PyTree) -> PyTree:
        return dict(flat_items(value)) if self.flat else value

    def propagated(self, value: PyTree) -> PyTree:
        """NaN where the value of the metric is NaN by its policy, for a value made of that value.

        The value of a collection stays, because it is not known which members it depends on.
        """
        if dict(self.policies).get("") != "propagate":
            return value
        return nan_if(self.invalid[""].mask, value)

    def checked(self, name: str, *, warns: bool = True) -> Self:
        """This reading, which is not traced; warns if some data could not be used.

        Args:
            name: the name of a metric that is not in a collection.
            warns: whether to warn of such data; errors are always raised.

        Raises:
            InvalidValuesError: some data could not be used, and a policy is "raise".
        """
        found = [(member or name, policy, self.invalid[member]) for member, policy in self.policies]
        found = [each for each in found if each[2].is_some]
        for member, policy, invalid in found:
            if policy == "raise":
                raise InvalidValuesError(
                    f'{member}: {invalid.described()}, and on_invalid="raise"; "exclude" leaves '
                    f'such data out, "propagate" gives NaN{invalid.hint}'
                )
        if found and warns:
            lines = [
                f"{member}: {invalid.described()}, {invalid.effect(policy)}{invalid.hint}"
                for member, policy, invalid in found
            ]
            warn("\n".join(lines), InvalidValuesWarning)
        return self

    def warned_of_undefined(
        self, name: str, category: type[Warning] = UndefinedMetricWarning
    ) -> Self:
        """This reading; warns of the parts that the data does not define, once a metric."""
        for member, each in self.undefined_parts(category):
            warn(f"{member or name}: {each.said()}", category)
        return self

    def undefined_parts(self, category: type[Warning]) -> Iterator[tuple[str, Undefined]]:
        """The name of each metric that has such parts, of which this category warns, with them."""
        for member, several in self.undefined.items():
            for each in several:
                if each.category is category and np.any(each.where):
                    yield member, each

    def warned_of_scores(self, name: str) -> Self:
        """This reading; warns if scores were probably of another kind than they are taken for."""
        for member, said in self.doubts():
            warn(f"{member or name}: {said}", ScoresWarning)
        return self

    def doubts(self) -> Iterator[tuple[str, str]]:
        """The name of each metric whose scores were probably of another kind, with the advice."""
        for member, invalid in self.invalid.items():
            by_kind: PyTree = invalid.evidence
            for kind, counts in by_kind.items():
                if said := doubt(kind, [int(count) for count in np.asarray(counts)]):
                    yield member, said

    def warned(self, name: str) -> Self:
        """This reading; warns as `warned_of_scores`, if the data does not define the value, if
        groups were cut, and if the bounds of a value are farther apart than the metric allows."""
        self.warned_of_undefined(name).warned_of_scores(name)
        for member, invalid in self.invalid.items():
            if invalid.cut is not None and np.any(invalid.cut):
                warn(f"{member or name}: {CUT}", CutGroupsWarning)
        for member, bounds in self.bounds.items():
            if bounds.rounded is not None and np.any(bounds.rounded):
                at = np.argmax(np.ravel(bounds.rounded))
                ends = (float(np.ravel(x)[at]) for x in bounds.ends)
                low, high = (number(end, digits=12) for end in ends)
                warn(
                    f"{member or name}: the exact value is only known to be between {low} and "
                    f"{high}, because a state keeps fewer digits than the float64 numbers have; "
                    f"subtract what they have in common before the update, such as the first of "
                    f"them",
                    PrecisionWarning,
                )
            if bounds.widest is None:
                continue
            for part, lower, upper in bounds.by_name():
                # Bounds that are NaN, as without data, or both infinite have no gap.
                with np.errstate(invalid="ignore"):
                    gap = np.ravel(np.subtract(upper, lower))
                if (gap > bounds.widest).any():
                    at = np.nanargmax(gap)
                    low, high = (number(float(np.ravel(x)[at])) for x in (lower, upper))
                    warn(
                        f"{_path(member or name, part)}: the exact value is only known to be "
                        f"between {low} and {high}, because many scores share a bin; "
                        f"{bounds.remedy}",
                        PrecisionWarning,
                    )
                    break  # one number for each metric
        return self.warned_of_undefined(name, PrecisionWarning)

    def on_host(self, *, bounds: bool = False) -> PyTree:
        """The value as Python numbers and NumPy arrays; a dict gets the items "<name>/invalid".

        Args:
            bounds: whether to add the items "<name>/lower" and "<name>/upper" for each number that
                has bounds. Then the result is a dict: a single value gets the name "value".
        """
        results = self._flattened(_presented(self.value, _listed, _to_host))
        if bounds and not isinstance(results, dict):
            results = {"value": results}
        if isinstance(results, dict):
            # The name of a metric outside a collection is empty.
            results |= {
                _path(member, "invalid"): int(invalid.total)
                for member, invalid in self.invalid.items()
                if invalid.is_some
            }
        if bounds:
            for member, ends in self.bounds.items():
                for part, *values in ends.by_name():
                    for end, value in zip(("lower", "upper"), values, strict=True):
                        results[_path(member, part, end)] = jax.tree.map(_to_host, value)
        return results


_EFFECTS = {
    "propagate": "so the result is NaN. To leave such data out, read "
    'metric.replace(on_invalid="exclude"), or give its weights= as 0',
    "exclude": "and were left out. If the result should be NaN instead, read "
    'metric.replace(on_invalid="propagate")',
}


_SHIFTED = {"propagate": "so the result is NaN", "exclude": "and were left out"}
"""The same, where no advice to leave labels out is given: another one explains them."""


def rounded_doubles(value: PyTree) -> PyTree:
    """The value with each double-float rounded; an `Exact` stays, because `results` is exact."""
    return _map(lambda x: x.to_float() if isinstance(x, DoubleFloat) else x, value)


def nan_if(condition: jax.Array, value: PyTree) -> PyTree:
    """NaN where the condition holds; integers stay, because they have no NaN."""
    if none_true(condition):
        return value
    return _map(lambda x: _nan_where(condition, x), value)


def _map(
    function: Callable[[PyTree], PyTree],
    value: PyTree,
    is_leaf: Callable[[PyTree], bool] = lambda x: is_wide(x),
) -> PyTree:
    """The value with `function` of each of its numbers; most values are one, and no tree."""
    if isinstance(value, np.ndarray | np.generic):
        return function(value)
    return jax.tree.map(function, value, is_leaf=is_leaf)


def _path(*names: str) -> str:
    """Names joined by "/"; those that are empty get no slash."""
    return "/".join(filter(None, names))


def _presented(
    value: PyTree, form: Callable[[Presented], PyTree], leaf: Callable[[PyTree], PyTree]
) -> PyTree:
    """A value in which `form` replaces each value of two forms, and `leaf` each other one."""

    def one(x: PyTree) -> PyTree:
        if isinstance(x, Presented):
            return _presented(form(x), form, leaf)
        return leaf(x)

    return _map(one, value, lambda x: is_wide(x) or isinstance(x, Presented))


def flat_items(value: Mapping[str, PyTree]) -> Iterator[tuple[str, PyTree]]:
    """The items of nested dicts, with names like "outer/inner"."""
    for name, x in value.items():
        if isinstance(x, dict):
            yield from ((f"{name}/{key}", item) for key, item in flat_items(x))
        else:
            yield name, x


def _listed(x: Presented) -> PyTree:
    return jax.tree.map(np.asarray, x, is_leaf=is_wide).listed()


def is_wide(x: object) -> bool:
    """True if a result has two parts. Such results are pytrees, and must be kept as leaves."""
    return isinstance(x, DoubleFloat | Exact)


def as_array(x: PyTree) -> PyTree:
    """A part of a value as an array on the devices, rounded to the default dtypes."""
    x = x.to_float() if isinstance(x, Exact) else x
    # Not `jnp.asarray`, which compiles a program for each shape.
    return x if isinstance(x, str | None | jax.Array) else jax.device_put(np.asarray(x))


def _nan_where(condition: jax.Array, x: PyTree) -> PyTree:
    """NaN where the condition holds; integers stay, because they have no NaN."""
    if isinstance(x, WholeOrFloat):
        return x.nan_where(condition)
    if isinstance(x, Exact):
        # The value is the sum of both parts, and NaN is put in both.
        parts = _nan_where(condition, x.high), _nan_where(condition, x.low)
        return x if x.is_integer else type(x)(*parts)
    x = xp.asarray(x)
    return x if is_integer(x) else xp.where(condition, xp.asarray(xp.nan, x.dtype), x)


def _to_host(x: PyTree) -> PyTree:
    if isinstance(x, str | None):
        return x
    array = np.asarray(x)
    return array.item() if array.ndim == 0 else array


def jsonable(x: PyTree) -> PyTree:
    """Results in the types that `json.dumps` takes: numbers, strings, lists and dicts."""
    if isinstance(x, dict):
        return {str(name): jsonable(value) for name, value in x.items()}
    if hasattr(x, "_asdict"):  # a named tuple
        return jsonable(x._asdict())
    if isinstance(x, list | tuple):
        return [jsonable(value) for value in x]
    return x.tolist() if hasattr(x, "tolist") else x
