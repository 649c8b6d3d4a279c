"""How often what was predicted with some confidence was right: what calibration is read from."""

from functools import lru_cache
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, choice, positive_int
from datarax._errors import MetricInputError
from datarax.distributed.collectives import replicated
from datarax.numerics.exact import Exact
from datarax.numerics.float_grid import Layout, default_bits
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import Examples, check_task, examples
from datarax.statistics.labels import first_highest, is_class
from datarax.statistics.state import State


class Bins(NamedTuple):
    """What fell into each bin, as pairs of floats of shape (groups, bins)."""

    weight: nx.Pair
    confidence: nx.Pair
    """The total of the confidences."""
    correct: nx.Pair
    """The weight of the examples that were right."""


class CalibrationBins(State):
    """In bins of confidence: the weight of the examples, how sure they were, and which were right.

    Args:
        num_bins: bins of equal width over 0 to 1, each without its lower edge, the first with 0.
            `None`: cells whose width is a constant share of the distance to the nearer end, from
            which bins of equal mass are read.
        num_classes: multiclass: scores (..., C), integer labels (...).
        num_labels: multilabel: scores and 0/1 targets (..., L), one group of bins a label.
            Neither: binary, (...) and (...).
        classwise: multiclass: whether each class is judged against the rest, in a group of bins of
            its own, or the class of highest probability alone, of equal ones the first.
        from_logits: what the scores are: logits, of a softmax where multiclass and else of a
            sigmoid, or probabilities.
        ignore_index: a target that leaves its example out, uncounted.

    The confidence of a binary example or of a label is the probability of the positive class, and
    it is right where the target is 1. Examples that cannot be used are excluded and counted in
    `invalid`. Cells are 2**-7 of the distance to 0 or 1 wide for up to 2 groups, 2**-5 up to 16,
    2**-3 up to 256, else 1/2.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import CalibrationBins
        >>> preds, target = jnp.array([0.25, 0.5, 1.0]), jnp.array([0, 1, 1])
        >>> seen = CalibrationBins(num_bins=2).update(preds, target)
        >>> print(seen.weight.value, seen.confidence.value, seen.correct.value)
        [[2. 1.]] [[0.75 1.  ]] [[1. 1.]]
    """

    invalid = MetricAccumulator(0)

    def __init__(
        self,
        num_bins: int | None = 15,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        classwise: bool = False,
        from_logits: bool = False,
        ignore_index: int | None = None,
    ):
        check_task(num_classes, num_labels)
        if num_bins is not None:
            positive_int(num_bins, "num_bins")
        choice(classwise, (False, True), "classwise")
        choice(from_logits, (False, True), "from_logits")
        if classwise and num_classes is None:
            raise MetricInputError("classwise=True is for multiclass; give num_classes=")
        self.num_bins, self.num_classes, self.num_labels = num_bins, num_classes, num_labels
        self.classwise, self.from_logits, self.ignore_index = classwise, from_logits, ignore_index
        empty = np.zeros((self.groups, num_bins or _cells(self.groups).size))
        self.weight = MetricAccumulator(empty)
        self.confidence = MetricAccumulator(empty)
        self.correct = MetricAccumulator(empty)

    @property
    def groups(self) -> int:
        """How many groups of bins there are: C, L, or 1."""
        return (self.num_classes if self.classwise else self.num_labels) or 1

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: multiclass targets that are no integers.
        """
        seen = examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            probabilities=not self.from_logits,
            ignore_index=self.ignore_index,
        )
        confidence, correct = self._judged(seen)
        weight = seen.weight
        if self.num_labels is None:
            weight = jnp.broadcast_to(weight[..., None], confidence.shape)
        folded = self._folded(
            *(replicated(x).reshape(-1, self.groups) for x in (confidence, correct, weight))
        )
        return folded.replace(invalid=self.invalid.update(seen.invalid))

    def _judged(self, seen: Examples) -> tuple[jax.Array, jax.Array]:
        """The confidences, and which are right: (..., groups)."""
        x, target = seen.preds, seen.target
        if self.num_classes is None:
            p = jax.nn.sigmoid(x) if self.from_logits else x
            return (p, target) if self.num_labels else (p[..., None], target[..., None])
        if self.classwise:
            p = jax.nn.softmax(x, -1) if self.from_logits else x
            return p, is_class(target, self.num_classes)
        top = jnp.max(x, -1, keepdims=True)
        # Right if the target has the highest score, and no class before it has.
        p = 1 / jnp.sum(jnp.exp(x - top), -1, keepdims=True) if self.from_logits else top
        return p, (first_highest(x) == target)[..., None]

    def _folded(self, confidence: jax.Array, correct: jax.Array, weight: jax.Array) -> Self:
        seen = weight.astype(jnp.bool_)
        confidence = jnp.where(seen, confidence, 0)
        if self.num_bins is None:
            place = _cells(self.groups).of(confidence)
        else:
            place = equal_width(confidence, self.num_bins)
        bins = self.weight.shape[-1]
        place = place + jax.lax.broadcasted_iota(jnp.int32, place.shape, 1) * bins
        place = jnp.where(seen, place, self.groups * bins)
        w = as_float(weight)
        columns = (w, w * confidence, jnp.where(correct, w, 0))
        totals = _scattered(place, columns, self.groups * bins)
        pairs = (Exact(*(x.reshape(self.weight.shape) for x in pair)) for pair in totals)
        weight_of, confidence_of, correct_of = pairs
        return self.replace(
            weight=self.weight.update(weight_of),
            confidence=self.confidence.update(confidence_of),
            correct=self.correct.update(correct_of),
        )

    def bins(self, num_bins: int) -> Bins:
        """So many bins: of equal width those that are kept, of equal mass made of the cells.

        Which bin of equal mass a cell is in, its rank tells: `floor(num_bins * below / total)`, of
        the weight of the cells below it, and that of all.
        """
        kept = Bins(self.weight.parts, self.confidence.parts, self.correct.parts)
        if self.num_bins is not None:
            return jax.tree.map(jnp.asarray, kept)
        # Of each cell and all higher ones, and of none.
        sums = Bins(*(jax.tree.map(_and_zero, nx.pair_suffix_sums(pair)) for pair in kept))
        whole = _columns(sums.weight, jnp.zeros((self.groups, 1), jnp.int32))
        below = nx.pair_add(*_alike(whole, (-sums.weight[0], -sums.weight[1])))
        # A bin starts after the cells with less than its share below them.
        number = jnp.arange(num_bins + 1, dtype=whole[0].dtype)[None, None, :]
        share = nx.pair_scale(_wider(whole), number)
        mass = nx.pair_scale(_wider(below), jnp.full((1, 1, 1), num_bins, number.dtype))
        less = (mass[0] < share[0]) | ((mass[0] == share[0]) & (mass[1] < share[1]))
        start = jnp.sum(less, 1, dtype=jnp.int32)

        def between(pair: nx.Pair) -> nx.Pair:
            high, low = _columns(pair, start)
            return nx.pair_add((high[:, :-1], low[:, :-1]), (-high[:, 1:], -low[:, 1:]))

        return Bins(*map(between, sums))


class Cells(NamedTuple):
    """Narrow bins over 0 to 1, of those of a `Layout`."""

    bits: int
    first: int
    size: int

    def of(self, p: jax.Array) -> jax.Array:
        """The cell of each probability."""
        place = Layout(self.bits).bin(p.astype(jnp.float32)) - self.first
        return jnp.clip(place, 0, self.size - 1)


@lru_cache
def _cells(groups: int) -> Cells:
    # What is nearer to 0 than a float32 can be to 1 is one cell.
    bits = default_bits(groups)
    edges = Layout(bits).lowest()
    first, last = np.searchsorted(edges, np.array([2.0**-24, 1.0], np.float32), side="right") - 1
    return Cells(bits, int(first), int(last - first + 1))


def equal_width(p: jax.Array, num_bins: int) -> jax.Array:
    """The bin of each probability, which is above k / num_bins and at most (k + 1) / num_bins.

    By the exact product, so that no edge is rounded.
    """
    product, rest = nx.two_product(p, jnp.full(p.shape, num_bins, p.dtype))
    upper = jnp.ceil(product)
    upper = upper + ((product == upper) & (rest > 0)).astype(p.dtype)
    return jnp.clip(upper.astype(jnp.int32) - 1, 0, num_bins - 1)


def _scattered(place: jax.Array, columns: tuple[jax.Array, ...], size: int) -> list[nx.Pair]:
    """The sums of each column by place, as pairs; what lies beyond `size` is lost."""
    values = jnp.stack([x.reshape(-1) for x in columns], -1)
    # A scatter adds one by one, and would stall: into several rows, then their sum; and what it
    # adds is cut, so that most of it adds up exactly.
    upper, lower = nx.cut_for_sum(values, (0,))
    values = jnp.concatenate([upper, lower], -1)
    rows = max(1, min(place.size // 64, place.size // size))
    row = jnp.arange(place.size, dtype=jnp.int32) % rows
    table = jnp.zeros((rows, size, values.shape[-1]), values.dtype)
    table = jnp.sum(table.at[row, place.reshape(-1)].add(values, mode="drop"), 0)
    half = len(columns)
    return [nx.two_sum(table[:, i], table[:, half + i]) for i in range(half)]


def _and_zero(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x, jnp.zeros_like(x[..., :1])], -1)


def _columns(pair: nx.Pair, index: jax.Array) -> nx.Pair:
    high, low = (jnp.take_along_axis(x, index, -1) for x in pair)
    return high, low


def _wider(pair: nx.Pair) -> nx.Pair:
    return pair[0][..., None], pair[1][..., None]


def _alike(a: nx.Pair, b: nx.Pair) -> tuple[nx.Pair, nx.Pair]:
    high, low = (jnp.broadcast_to(x, b[0].shape) for x in a)
    return (high, low), b
