"""`Invalid`: the rows of a batch that cannot be used; `InvalidCounts`: how many there were."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from itertools import filterfalse
from typing import ClassVar, Self, TypeVar

import jax
import numpy as np

from datarax._checks import as_float, float_dtype, is_integer
from datarax._typing import ArrayLike, PyTree
from datarax._xp import all_finite, faster_in_numpy, lax, none_true, on_host, xp
from datarax.algebra.fields import state
from datarax.algebra.fold import Fold, Term, in_one_pass, reduced
from datarax.algebra.pytrees import children_of, is_node, states_in
from datarax.algebra.rows import RowTerms
from datarax.algebra.state import State, count_of_invalid, walk
from datarax.distributed.merge_ops import MetricReduceOp
from datarax.numerics.exact import Exact
from datarax.numerics.scaled_double import ScaledDouble
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.score_kinds import ScoreKind, evidence, number_of_codes

KINDS = (
    "infinite",
    "NaN",
    "out of range",
    "with weights that are NaN, infinite or negative",
)
"""Why a row is invalid, by its code from 4 to 7. A row has the highest code that applies."""
_EVIDENCE, _INFINITE, _NAN, _OUT_OF_RANGE, _NO_WEIGHT = 3, 4, 5, 6, 7
_ALL_CODES = tuple(range(1, _NO_WEIGHT + 1))
BEYOND_CAPACITY = "beyond the capacity"
"""The kind of rows that a buffer did not keep."""
NOT_SAMPLED = "beyond the capacity of the sample"
"""The kind of rows that did not fit, where the result is an estimate from those that did."""


Count = ArrayLike | Exact
S = TypeVar("S", bound=State)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Invalid:
    """The rows that cannot be used, and why; and those that are evidence of other scores."""

    code: jax.Array
    """For each row, the code of a kind if it cannot be used, else a code of `score_kinds`, from 0
    to 3, as int32: XLA reduces floats beside codes of 8 bits more slowly."""
    value: jax.Array | None = None
    """For each row, the value that is out of range; -inf for other rows. None if not known."""
    codes: tuple[int, ...] = field(default=_ALL_CODES, metadata={"static": True})
    """The codes that a row may have, besides 0: the others need not be counted."""

    @property
    def is_on_host(self) -> bool:
        """True if no array is a JAX array."""
        return on_host(self.code, self.value)

    @property
    def mask(self) -> jax.Array:
        """The mask of the invalid rows."""
        return self.code > _EVIDENCE

    @property
    def usable(self) -> jax.Array:
        """The mask of the other rows."""
        return self.code <= _EVIDENCE

    @property
    def is_empty(self) -> bool:
        """True if it is known that no row is invalid, nor evidence."""
        return not self.codes or none_true(self.code)

    def __getitem__(self, index: int | slice | tuple | jax.Array | np.ndarray) -> "Invalid":
        return jax.tree.map(lambda x: x[index], self)

    def __or__(self, other: "Invalid") -> "Invalid":
        """Rows that are invalid in either."""
        if self.code.shape == other.code.shape and other.is_empty:
            return self
        # The higher code is that of the kind to report; see `KINDS`.
        code = xp.maximum(self.code, other.code)
        value = other.value if self.value is None else self.value
        if self.value is not None and other.value is not None:
            value = xp.maximum(self.value, other.value)
        return Invalid(code, value, tuple(sorted({*self.codes, *other.codes})))

    def where(self, mask: jax.Array) -> "Invalid":
        """The same rows, but only those in a mask."""
        if self.code.shape == xp.shape(mask) and self.is_empty:
            return self
        value = None if self.value is None else xp.where(mask, self.value, -xp.inf)
        return Invalid(xp.where(mask, self.code, xp.int32(0)), value, self.codes)

    def any(self, axes: tuple[int, ...]) -> "Invalid":
        """Groups of rows along `axes`, each invalid if one of its rows is."""
        return in_one_pass(self.of_groups(axes))[0]

    def of_groups(self, axes: tuple[int, ...]) -> Fold:
        """The fold of `any`."""
        rows = [self.code] if self.value is None else [self.code, self.value]
        along = tuple(sorted(axis % self.code.ndim for axis in axes))

        def finish(code: jax.Array, value: jax.Array | None = None) -> Invalid:
            return Invalid(xp.maximum(code, 0), value, self.codes)

        return Fold([Term(x, along, "max") for x in rows], finish)


def not_finite(x: jax.Array, axes: int | tuple[int, ...] = (), *others: jax.Array) -> Invalid:
    """The rows that hold a NaN or an infinity, in `x` or in other arrays of its shape.

    A row extends along `axes`.
    """
    found = [*filterfalse(_is_known_finite, (x, *others))]
    if not found:
        return _none(x, axes)
    # Of magnitudes as integers, in the order of floats, NaN is above infinity. A comparison of
    # integers takes less time. The greatest one says the kind that counts.
    found = [y if y.dtype == float_dtype(y) else as_float(y) for y in found]
    info = xp.finfo(found[0].dtype)
    whole = xp.dtype(f"int{info.bits}")
    most = xp.asarray(np.iinfo(whole).max, whole)
    sizes = [lax.bitcast_convert_type(y, whole) & most for y in found]
    if axes != ():
        along = sorted(axis % x.ndim for axis in (axes if isinstance(axes, tuple) else (axes,)))
        sizes = reduced([Term(size, tuple(along), "max") for size in sizes])
    size = reduce(xp.maximum, sizes)
    infinity = xp.asarray(((1 << info.nexp) - 1) << info.nmant, whole)
    code = xp.where(size == infinity, xp.int32(_INFINITE), xp.int32(_NAN))
    return Invalid(xp.where(size < infinity, xp.int32(0), code), codes=(_INFINITE, _NAN))


def not_logits(x: jax.Array, axes: int | tuple[int, ...] = ()) -> Invalid:
    """The rows that cannot be logits; a row extends along `axes`.

    -inf is a legal logit, of a class that is ruled out; but not of all classes of a row.
    """
    if _is_known_finite(x):
        return _none(x, axes)
    if axes == ():
        return Invalid(_logit_code(x), codes=(_INFINITE, _NAN))
    return of_logit_codes(xp.max(logit_codes(x), axes, initial=-_INFINITE))


def logit_codes(x: jax.Array) -> jax.Array:
    """Codes of logits, of which a row has the absolute value of the greatest one."""
    # A row that is ruled out as a whole keeps the code of -inf.
    return xp.where(xp.isneginf(x), xp.int32(-_INFINITE), _logit_code(x))


def of_logit_codes(greatest: jax.Array | None, shape: tuple[int, ...] = ()) -> Invalid:
    """The invalid rows, from the greatest code of each: see `logit_codes`. Without codes, none."""
    if greatest is None:
        none: PyTree = np.zeros(shape, np.int32)
        return Invalid(none, codes=())
    return Invalid(xp.abs(greatest).astype(xp.int32), codes=(_INFINITE, _NAN))


def infinite_or_nan(infinite: jax.Array, nan: jax.Array) -> Invalid:
    """The rows in two masks: those that hold an infinity, and those that hold a NaN."""
    code = xp.where(infinite, xp.int32(_INFINITE), xp.int32(0))
    return Invalid(xp.where(nan, xp.int32(_NAN), code), codes=(_INFINITE, _NAN))


def _logit_code(x: jax.Array) -> jax.Array:
    return xp.where(xp.isnan(x), xp.int32(_NAN), xp.isposinf(x).astype(xp.int32) * _INFINITE)


def _is_known_finite(x: jax.Array) -> bool:
    return is_integer(x) or all_finite(x)


def _none(x: jax.Array, axes: int | tuple[int, ...]) -> Invalid:
    """No row is invalid."""
    shape = x.shape
    if axes != ():
        # A row has one code, whatever the axes along which it extends.
        gone = {axis % x.ndim for axis in (axes if isinstance(axes, tuple) else (axes,))}
        shape = [n for axis, n in enumerate(shape) if axis not in gone]
    none: PyTree = np.zeros(shape, np.int32)
    return Invalid(none, codes=())


def is_nan(x: jax.Array, axes: int | tuple[int, ...] = ()) -> Invalid:
    """The rows that hold a NaN; a row extends along `axes`."""
    if axes != ():
        # A sum is NaN if one term is, and faster than a disjunction. A maximum may drop NaN.
        x = xp.sum(xp.where(xp.isinf(x), 0, x) * 0, axes)
    return Invalid(xp.isnan(x).astype(xp.int32) * _NAN, codes=(_NAN,))


def out_of_range(
    bad: jax.Array, value: jax.Array | Callable[[], jax.Array] | None = None
) -> Invalid:
    """The rows in the mask `bad`, which hold `value`, or what it returns if it is a function."""
    return _of_kind(_OUT_OF_RANGE, bad, value)


def evidence_of(kind: ScoreKind, scores: PyTree, given: jax.Array) -> Invalid:
    """The rows that are evidence that scores are of another kind: see `score_kinds`.

    Args:
        kind: what the scores are taken for.
        scores: floats; of kinds of rows of classes, `ClassRows`.
        given: the scores as they were given.
    """
    codes = tuple(range(1, number_of_codes(kind) + 1))
    return Invalid(evidence(kind, scores, given), codes=codes)


def no_weights(w: jax.Array) -> Invalid:
    """The rows whose weights, floats, are NaN, infinite or negative."""
    return _of_kind(_NO_WEIGHT, ~((w >= 0) & (w < xp.inf)))


def _of_kind(
    code: int, bad: jax.Array, value: jax.Array | Callable[[], jax.Array] | None = None
) -> Invalid:
    """The rows in the mask `bad`, all of one kind."""
    if none_true(bad):  # mostly, on the host, so no code need be compared again
        return _none(bad, ())
    if value is not None:
        value = value() if callable(value) else value
        value = xp.where(bad, value.astype(xp.float32), -xp.inf)
    return Invalid(bad.astype(xp.int32) * code, value, (code,))


class InvalidCounts(State, kw_only=False):
    """Counts the rows that could not be used, by kind, and an example of a value out of range.

    Also how many rows are evidence that scores are of another kind than they are taken for.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.invalid_counts import InvalidCounts, not_finite
        >>> x = jnp.array([1.0, jnp.nan, jnp.inf, jnp.nan])
        >>> counts = InvalidCounts().update(not_finite(x))
        >>> print(counts.value, counts.counts.value)
        3 [1 2 0 0]
    """

    scores: ScoreKind = ""
    """The kind that scores are taken for, if there are scores: see `score_kinds`."""
    counts: MetricAccumulator = state()
    """The number of rows of each kind, then of each code of evidence; exact to 2**63."""
    largest = MetricAccumulator(-np.inf, MetricReduceOp.max)
    """The largest value out of range, where values are known."""

    def __post_init__(self) -> None:
        self.counts = MetricAccumulator(np.zeros(len(self._codes), np.int32))

    @property
    def _codes(self) -> tuple[int, ...]:
        kinds = range(_INFINITE, _NO_WEIGHT + 1)
        return (*kinds, *range(1, number_of_codes(self.scores) + 1))

    def update(self, invalid: Invalid | jax.Array) -> Self:
        """Folds in a batch of rows: from `rows_weight`, or a mask of those out of range."""
        if not isinstance(invalid, Invalid):
            invalid = out_of_range(xp.asarray(invalid, xp.bool_))
        return self if invalid.is_empty else in_one_pass(self.counting(invalid))[0]

    def counting(self, invalid: Invalid) -> Fold:
        """Folds in a batch of rows, of which some may be invalid."""
        # Those of each row by itself, if the state keeps rows apart.
        apart = int(isinstance(self.counts, RowTerms))
        rows = tuple(range(apart, invalid.code.ndim))
        # A row has one code, so each row counts for at most one kind.
        # Codes that no row can have need no reduction.
        counted = [code for code in self._codes if code in invalid.codes]
        terms = [Term(invalid.code == code, rows) for code in counted]
        if invalid.value is not None:
            terms.append(Term(as_float(invalid.value), rows, "max"))

        def finish(*found: jax.Array) -> Self:
            of_code = dict(zip(counted, found, strict=False))
            none = xp.zeros(invalid.code.shape[:apart], xp.int32)
            counts = xp.stack([of_code.get(code, none) for code in self._codes], apart)
            changes = {"counts": self.counts.update(counts)}
            if invalid.value is not None:
                # One example is enough for a message, and a maximum is the same on any number of
                # devices.
                changes["largest"] = self.largest.update(found[-1])
            return self.with_parts(changes)

        return Fold(terms, finish)

    def weighted_by(self, factor: ScaledDouble) -> Self:
        return self

    @property
    def value(self) -> Count:
        """The number of rows that could not be used, of all kinds."""
        return sum_of_counts(self.unusable().values())

    def unusable(self) -> dict[str, Count]:
        counts: PyTree = self.by_kind
        return {kind: counts[i] for i, kind in enumerate(KINDS)}

    @property
    def by_kind(self) -> Count:
        """The number of rows of each of `KINDS`."""
        counts = self.counts.value
        return counts[: len(KINDS)] if self.scores else counts

    def evidence(self) -> Count:
        """The number of rows of each code of evidence."""
        return self.counts.value[len(KINDS) :]

    def example(self) -> jax.Array:
        """The largest value out of range; -inf if there is none, or it is not known."""
        return self.largest.value


def with_batch(state: S, invalid: Invalid, **changes: PyTree) -> S:
    """A copy with these children, and with the invalid examples of a batch counted.

    Children that are a `Fold` are reduced together, and with the invalid examples. The state has
    `InvalidCounts` named `invalid`.
    """
    # On the host it mostly is, and nothing need be reduced for it.
    if not invalid.is_empty:
        changes["invalid"] = children_of(state)["invalid"].counting(invalid)
    if Fold in map(type, changes.values()):
        changes = dict(zip(changes, in_one_pass(*changes.values()), strict=True))
    return state.with_parts(changes)


class CountsInvalid(State):
    """A statistic that counts the examples that it cannot use."""

    terms_by_row: ClassVar[bool] = True

    invalid = InvalidCounts()

    with_batch = with_batch


def with_invalid_of(before: S, after: S) -> S:
    """The state `after` an update, with the counts of invalid rows that it had `before`."""
    if isinstance(after, InvalidCounts):
        return before
    if isinstance(after, RowTerms):
        return after
    parts = jax.tree.map(
        lambda x, y: with_invalid_of(x, y) if isinstance(y, State) else y,
        children_of(before),
        children_of(after),
        is_leaf=is_node,
    )
    return after.with_parts(parts)


def counting_by_row(state: S, rows: int) -> S:
    """The state, whose counts of invalid rows keep the rows of a batch apart: see `RowTerms`."""
    if isinstance(state, InvalidCounts):
        parts: PyTree = {name: each.by_row(rows) for name, each in children_of(state).items()}
        return state.with_parts(parts)

    invalid = count_of_invalid(state)

    def one(part: PyTree) -> PyTree:
        if part is invalid and isinstance(part, MetricAccumulator):
            return part.by_row(rows)
        return jax.tree.map(
            lambda x: counting_by_row(x, rows) if isinstance(x, State) else x,
            part,
            is_leaf=is_node,
        )

    return state.with_parts({name: one(x) for name, x in children_of(state).items()})


def rows_with_counts(state: State, rows: int) -> jax.Array:
    """Marks the rows of a batch that a state of `counting_by_row` has counted, (rows,)."""
    found: PyTree = np.zeros(rows, np.bool_)  # a NumPy array if nothing counts invalid rows
    for each in walk(state):
        counts = each.counts if isinstance(each, InvalidCounts) else count_of_invalid(each)
        # Several terms of one row, as of the labels of an example, are marked together.
        if not isinstance(counts, RowTerms) or not counts.num_rows or counts.num_rows % rows:
            continue
        for part in jax.tree.leaves(counts):
            some = part[: len(KINDS)] if isinstance(each, InvalidCounts) else part[None]
            found = found | xp.any(xp.reshape(some != 0, (len(some), rows, -1)), (0, 2))
    return found


def counts_alike(before: State, after: State) -> bool:
    """True if two states on the host have counted the same invalid rows."""
    coming: list[tuple[PyTree, PyTree]] = [(before, after)]
    while coming:
        one, other = coming.pop()
        # What an update does not change stays the same object, so most of the state is not looked
        # at.
        if one is other or isinstance(one, np.ndarray | np.generic):
            continue
        if type(one) is tuple:
            coming.extend(zip(one, other, strict=True))
        elif not isinstance(one, State):
            coming.extend(zip(states_in(one), states_in(other), strict=True))
        else:
            counts = one.counts if isinstance(one, InvalidCounts) else count_of_invalid(one)
            for name, x in children_of(one).items():
                y = getattr(other, name)
                if x is not counts or not isinstance(x, MetricAccumulator):
                    coming.append((x, y))
                elif not all(map(np.array_equal, jax.tree.leaves(x), jax.tree.leaves(y))):
                    return False
    return True


def sum_of_counts(counts: Iterable[Count]) -> Count:
    """The sum of several counts, or arrays of counts of one shape, exact to 2**63."""
    first, *others = counts or [0]
    return _sum_of(first, *others) if others else first


def _sum_in_numpy(*counts: Count) -> Count:
    if all(isinstance(each, Exact) for each in counts):
        first, *others = map(np.asarray, counts)
        return Exact.of(sum(others, first))
    return _accumulated(*counts)


@faster_in_numpy(_sum_in_numpy)
def _sum_of(*counts: Count) -> Count:
    return _accumulated(*counts)


def _accumulated(*counts: Count) -> Count:
    total = MetricAccumulator(np.zeros(np.shape(counts[0]), np.int32))
    for count in counts:
        total = total.update(count)
    return total.value
