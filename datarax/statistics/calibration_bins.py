"""`CalibrationBins`: how often predictions of each confidence are right."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import lax, replaced, special, xp
from datarax.algebra.fields import field, state
from datarax.algebra.fold import Fold, Term, in_one_pass
from datarax.algebra.pytrees import children_of
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat, sums_in_float64
from datarax.numerics.float_grid import FloatGrid, default_bits, equal_width
from datarax.numerics.scatter import scatter_sums
from datarax.numerics.sums import suffix_sums
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import Examples, check_task, class_of, examples, is_class
from datarax.statistics.invalid_counts import CountsInvalid, InvalidCounts
from datarax.statistics.score_kinds import FLOAT32_EPS, OfProbabilities


class Bins(NamedTuple):
    """The content of each bin, of shape (groups, bins)."""

    weight: DoubleFloat
    """The total weight of the examples."""
    confidence: DoubleFloat
    """The weighted sum of their confidences."""
    correct: DoubleFloat
    """The total weight of the correct ones."""


class CalibrationBins(CountsInvalid, OfProbabilities):
    """By bin of confidence: the weight of the examples, their confidences, and the correct ones.

    The confidence of a binary example or of a label is the probability of the positive class; it
    is correct if the target is 1. Examples that cannot be used are excluded and counted in
    `invalid`.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import CalibrationBins
        >>> preds, target = jnp.array([0.25, 0.5, 1.0]), jnp.array([0, 1, 1])
        >>> seen = CalibrationBins(num_bins=2).update(preds, target)
        >>> print(seen.weight.value, seen.confidence.value, seen.correct.value)
        [[2. 1.]] [[0.75 1.  ]] [[1. 1.]]
    """

    terms_by_row = False

    num_bins: int | None = field(default=15, kw_only=False)
    """The number of bins of equal width over 0 to 1. A bin excludes its lower edge, except that the
    first includes 0. `None` stores cells, which are narrow bins: bins of equal mass are computed
    from them. The width of a cell is a constant fraction of the distance to the nearer of 0 and 1:
    `2**-7` for up to 2 groups, `2**-5` up to 16, `2**-3` up to 256, else 1/2."""
    num_classes: int | None = None
    """Multiclass: scores (..., C) and integer labels (...)."""
    num_labels: int | None = None
    """Multilabel: scores and 0/1 targets (..., L), with one group of bins per label. Neither:
    binary, scores (...) and 0/1 targets (...)."""
    classwise: bool = False
    """Multiclass: whether each class is judged against the rest, in its own group of bins. If not,
    only the class of the highest probability is judged, the first of equal ones."""
    from_logits: bool = False
    """True if the scores are logits (of a softmax for multiclass, else of a sigmoid) or
    probabilities."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid."""

    weight: MetricAccumulator = state()
    confidence: MetricAccumulator = state()
    correct: MetricAccumulator = state()

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        if self.num_bins is not None:
            positive_int(self.num_bins, "num_bins")
        if self.classwise and self.num_classes is None:
            raise MetricInputError("classwise=True is for multiclass; give num_classes=")
        if self.from_logits:
            self.invalid = InvalidCounts("sigmoid" if self.num_classes is None else "softmax")
        # Sums, not means, so that bins can be merged.
        empty = np.zeros((self.groups, self.num_bins or _cells(self.groups).size))
        self.weight = MetricAccumulator(empty)
        self.confidence = MetricAccumulator(empty)
        self.correct = MetricAccumulator(empty)

    @property
    def groups(self) -> int:
        """The number of groups of bins: C, L, or 1."""
        return (self.num_classes if self.classwise else self.num_labels) or 1

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: multiclass targets are not integers.
        """
        seen = examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            probabilities=self.takes_probabilities,
            from_logits=self.from_logits,
            kind=self.invalid.scores,
            ignore_index=self.ignore_index,
            by_label=not self.classwise,
        )
        confidence, correct = self._judged(seen)
        weight = seen.weight
        if self.num_labels is None:
            weight = xp.broadcast_to(weight[..., None], confidence.shape)
        confidence, correct, weight = (
            replicated(x).reshape(-1, self.groups) for x in (confidence, correct, weight)
        )
        counts = weight.astype(xp.bool_)
        # NaN times a weight of 0 would be NaN, and would be scattered.
        confidence = replaced(counts, confidence, 0)
        # On the host too, the bin is that of the nearest default float: 1/3 is above 5/15; not of
        # confidences that were given as float64.
        dtype = confidence.dtype if seen.eps < FLOAT32_EPS else default_float()
        near = confidence.astype(dtype)
        if self.num_bins is None:
            place = _cells(self.groups).of(near)
        else:
            place = equal_width(near, self.num_bins)
        invalid = seen.invalid
        sums, counted = in_one_pass(
            _sums_by_bin(place, weight, confidence, correct, self.weight.shape[1]),
            self.invalid if invalid.is_empty else self.invalid.counting(invalid),
        )
        changes = zip(("weight", "confidence", "correct"), sums, strict=True)
        children = children_of(self)
        added = {name: children[name].plus(each) for name, each in changes}
        return self.with_parts(added | {"invalid": counted})

    def _judged(self, seen: Examples) -> tuple[jax.Array, jax.Array]:
        """The confidences, and which are correct: (..., groups)."""
        x, target = as_float(seen.preds), seen.target
        if self.num_classes is None:
            p = _rounded_once(special.expit, x) if self.from_logits else x
            return (p, target) if self.num_labels else (p[..., None], target[..., None])
        if self.classwise:
            p = _rounded_once(partial(special.softmax, axis=-1), x) if self.from_logits else x
            return p, is_class(target, self.num_classes)
        rows = seen.rows
        p = _rounded_once(_top_of_softmax, x) if self.from_logits else rows.greatest[..., None]
        return p, rows.is_first_highest[..., None]

    def bins(self, num_bins: int) -> Bins:
        """The bins of equal width as they are stored, or `num_bins` bins of equal mass.

        A cell belongs to the bin of equal mass `floor(num_bins * below / total)`, where `below` is
        the weight of the cells below it and `total` the weight of all cells.
        """
        stored = Bins(self.weight.double, self.confidence.double, self.correct.double)
        ignored = class_of(self.ignore_index, self.num_classes)
        if self.classwise and ignored is not None:
            is_ignored = (np.arange(self.groups) == ignored)[:, None]
            stored = Bins(*(x.map(lambda x: xp.where(is_ignored, 0, x)) for x in stored))
        return stored if self.num_bins is not None else _equal_mass(stored, num_bins)


def _top_of_softmax(x: jax.Array) -> jax.Array:
    """The greatest probability of a softmax, (..., 1)."""
    # It is 1 / sum(exp(x - max)): no term overflows.
    return 1 / xp.sum(xp.exp(x - xp.max(x, -1, keepdims=True)), -1, keepdims=True)


def _rounded_once(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`function(x)` of floats, computed in float64 where the devices have it, and rounded.

    So a probability near the edge of a bin is in the same bin on the host and on devices.
    """
    return DoubleFloat.of(x).evaluated(function)


def _equal_mass(cells: Bins, num_bins: int) -> Bins:
    """Bins of equal mass, from cells in order."""
    # For each cell the sum over it and all higher ones; the appended zero is past the last cell.
    sums = Bins(*(suffix_sums(each).map(lambda x: xp.pad(x, ((0, 0), (0, 1)))) for each in cells))
    total = sums.weight[:, :1]
    below = total - sums.weight
    # Bin k starts after all cells with `below * num_bins < total * k`. Both sides are products by
    # an array, computed in the same way, so that equal ones compare equal.
    number = xp.arange(num_bins + 1, dtype=total.dtype)[None, None, :]
    is_before = below[..., None] * number[..., -1:] < total[..., None] * number
    start = xp.sum(is_before, 1, dtype=xp.int32)

    def between_starts(each: DoubleFloat) -> DoubleFloat:
        from_start = each.map(lambda x: xp.take_along_axis(x, start, -1))
        return from_start[:, :-1] - from_start[:, 1:]

    return Bins(*map(between_starts, sums))


class _Cells(NamedTuple):
    """Narrow bins over 0 to 1: those of a `FloatGrid` from `first` on."""

    bits: int
    first: int
    size: int

    def of(self, p: jax.Array) -> jax.Array:
        """The cell of each probability."""
        place = FloatGrid(self.bits).bin(p.astype(xp.float32)) - self.first
        return xp.clip(place, 0, self.size - 1)


@lru_cache
def _cells(groups: int) -> _Cells:
    # All values below 2**-24, the least distance of a float32 to 1, are in the first cell.
    bits = default_bits(groups)
    edges = FloatGrid(bits).lowest()
    first, last = np.searchsorted(edges, np.array([2.0**-24, 1.0], np.float32), side="right") - 1
    return _Cells(bits, int(first), int(last - first + 1))


_FEW = 64
"""Up to this many bins, comparing each bin with every place is faster on TPUs than a scatter."""


def _sums_by_bin(
    place: jax.Array, weight: jax.Array, confidence: jax.Array, correct: jax.Array, bins: int
) -> Fold:
    """The sums of weights, of their confidences, and of those of the correct ones, in each bin.

    The arrays are (N, groups), and each sum is (groups, bins).
    """
    w = as_float(weight)
    columns = w, w * confidence, xp.where(correct, w, 0)
    in_float64, groups = sums_in_float64(place, *columns), place.shape[1]
    if bins <= _FEW and not in_float64:
        given = place, *columns
        if groups == 1:  # on TPUs, an axis of length one would be padded to 128
            given = tuple(x[:, 0] for x in given)
        place, *columns = (x[..., None] for x in given)
        same = place == lax.broadcasted_iota(xp.int32, (*place.shape[:-1], bins), place.ndim - 1)
        terms = [Term(xp.where(same, x, 0), (0,)) for x in columns]
        return Fold(terms, lambda *sums: [x.reshape(groups, bins) for x in sums])
    size = groups * bins
    if groups > 1:
        place = place + lax.broadcasted_iota(xp.int32, place.shape, 1) * bins
    # Beyond the table if the weight is zero: the scatter drops it.
    place = replaced(weight.astype(xp.bool_), place, size).reshape(-1)
    flat = [x.reshape(-1) for x in columns]
    if in_float64:
        found = scatter_sums(place, flat, (groups, bins))
        return Fold([], lambda: found)

    def scattered(confidence: jax.Array, *of_weight: jax.Array) -> list[DoubleFloat]:
        (heaviest,) = of_weight or (xp.ones((), w.dtype),)
        return scatter_sums(place, flat, (groups, bins), [heaviest, confidence, heaviest])

    # In one pass with the invalid rows, if there is one group.
    weights = [] if weight.dtype == xp.bool_ else [w]
    rows = [x[:, 0] if groups == 1 else x for x in (columns[1], *weights)]
    return Fold([Term(x, tuple(range(x.ndim)), "max") for x in rows], scattered)
