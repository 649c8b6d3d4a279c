"""Scores of positives and negatives, in bins or kept; `Groups`: how these are read."""

import operator
from functools import reduce
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float, default_float, warn_if_rounded
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import lax, special, xp
from datarax.algebra.fields import field, state
from datarax.algebra.memo import computed_once
from datarax.distributed.collectives import replicated
from datarax.numerics.double_float import DoubleFloat, stack
from datarax.numerics.float_grid import default_bits
from datarax.numerics.float_ranges import is_single, sort_keys, two_keys
from datarax.numerics.limbs import is_rounded
from datarax.numerics.scaling import power_of_two_near_reciprocal
from datarax.numerics.special import softmax_log_odds
from datarax.numerics.sums import run_sums, suffix_sums
from datarax.statistics.adaptive_bins import AdaptiveBins
from datarax.statistics.batches import check_task, class_of, examples, is_class
from datarax.statistics.buffer import KeepsRows, Rows
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, InvalidCounts
from datarax.statistics.score_kinds import ScoreKind


class Groups(NamedTuple):
    """The weights of positives and negatives in groups of scores, in ascending order.

    All weights are multiplied by one power of two, `scale`. A group is a bin of a histogram, or a
    distinct score. Arrays are of shape (size, groups), one row per class.
    """

    positives: DoubleFloat
    """The weight of the positives of each group."""
    negatives: DoubleFloat
    """The weight of the negatives of each group."""
    positives_above: DoubleFloat
    """The weight of the positives of all higher groups; exact for integers."""
    negatives_above: DoubleFloat
    """The weight of the negatives of all higher groups; exact for integers."""
    is_tie: jax.Array
    """The mask of the groups that are known to hold at most one distinct score."""
    lowest: jax.Array
    """A threshold that selects the group and all higher groups: at most the least score of the
    group, and above all scores of lower groups. Meaningless for an empty group."""
    scale: jax.Array
    """The power of two, of shape ()."""

    @classmethod
    def of(
        cls, positives: DoubleFloat, negatives: DoubleFloat, is_tie: jax.Array, lowest: jax.Array
    ) -> "Groups":
        """From the weights of each group, which are multiplied by one power of two.

        So sums over groups, and products of two sums, stay in the range of floats. Ratios of
        weights stay the same, so results do not depend on the unit of the weights.
        """
        scale = power_of_two_near_reciprocal(xp.max(xp.maximum(positives.high, negatives.high)))
        positives, negatives = positives * scale, negatives * scale
        above = sums_above(stack([positives, negatives]))
        return cls(positives, negatives, above[0], above[1], is_tie, lowest, scale)

    def without(self, label: int) -> "Groups":
        """The same, with all groups of a class empty."""
        is_label = (np.arange(self.lowest.shape[0]) == label)[:, None]
        p, n, above_p, above_n = (x.map(lambda x: xp.where(is_label, 0, x)) for x in self[:4])
        return self._replace(
            positives=p, negatives=n, positives_above=above_p, negatives_above=above_n
        )

    def share_of_unordered_pairs(self) -> jax.Array:
        """The share of pairs of a positive and a negative that are in one group, but no tie.

        Of shape (size,); 0 without pairs.
        """
        within = (self.positives * self.negatives).map(lambda x: xp.where(self.is_tie, 0, x)).sum(1)
        pairs = (self.total_positives * self.total_negatives)[:, 0]
        return xp.where(pairs.high > 0, (within / pairs).to_float(), 0)

    @property
    def occupied(self) -> jax.Array:
        """True for the groups that are not empty."""
        return (self.positives.high > 0) | (self.negatives.high > 0)

    @property
    def true_positives(self) -> DoubleFloat:
        """The weight of the positives with a score of at least `lowest`."""
        return self.positives_above + self.positives

    @property
    def false_positives(self) -> DoubleFloat:
        """The weight of the negatives with a score of at least `lowest`."""
        return self.negatives_above + self.negatives

    @property
    def total_positives(self) -> DoubleFloat:
        """The weight of all positives, of shape (size, 1)."""
        return self.true_positives[:, :1]

    @property
    def total_negatives(self) -> DoubleFloat:
        """The weight of all negatives, of shape (size, 1)."""
        return self.false_positives[:, :1]


def sums_above(weights: DoubleFloat) -> DoubleFloat:
    """The sum over all higher groups; exact for integers."""

    def next_group(x: jax.Array) -> jax.Array:
        return xp.concatenate([x[..., 1:], xp.zeros_like(x[..., :1])], -1)

    return suffix_sums(weights.map(next_group))


LOG_ODDS_OCTAVES = 7
"""The powers of two of log-odds with the bins of floats. Probabilities are nearly even over
log-odds, and these over a few powers of two, so bins of one width are best below."""


class Scores(CountsInvalid):
    """For each class, the scores of its positives and of its negatives.

    A multiclass task compares each class with the rest. A subclass defines `plus_rows`, which
    stores a batch, and `groups`, from which metrics are computed. Examples with NaN scores, or with
    a target that is out of range, are excluded and counted in `invalid`.

    With `from_logits`, the scores that are stored are the log-odds `log(p / (1 - p))` of the
    probabilities: they have the same order, also where probabilities round to 0 or 1.
    """

    num_classes: int | None = None
    """Multiclass: scores (..., C), integer labels (...)."""
    num_labels: int | None = None
    """Multilabel: scores (..., L), 0/1 targets (..., L). With neither size the task is binary:
    scores (...), 0/1 targets (...)."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted in `invalid`."""

    from_logits: bool | None = None
    """True if scores are logits: of a softmax for multiclass, else of a sigmoid. `None` is as
    `False`, but rows of a multiclass task that do not sum to 1 are counted, for a warning."""
    pooled: bool = False
    """True if the classes of an example are examples of one binary task."""

    def __post_init__(self) -> None:
        check_task(self.num_classes, self.num_labels)
        if self.num_classes is None:
            self.from_logits = bool(self.from_logits)
        self.invalid = InvalidCounts(self._score_kind)

    @property
    def _score_kind(self) -> ScoreKind:
        if self.from_logits:
            return "sigmoid" if self.num_classes is None else "softmax"
        return "distributions" if self.from_logits is None else ""

    @property
    def size(self) -> int:
        """The number of classes: C, L, or 1."""
        return 1 if self.pooled else self.num_classes or self.num_labels or 1

    @property
    def scores_of_row(self) -> int:
        """The number of scores of a row that `plus_rows` takes."""
        return self.size

    @property
    def ignored_class(self) -> int | None:
        """The class that is `ignore_index`; `None` if no class is."""
        return class_of(self.ignore_index, self.num_classes)

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.
        """
        invalid, *parts = self.checked(preds, target, weights)
        if self.pooled:  # JAX does not join a sharded axis with another one
            parts = replicated(parts)
        size = self.scores_of_row
        added = self.plus_rows(*(x.reshape(-1, size) for x in parts))
        return self.with_batch(invalid, **added)

    def checked(
        self, preds: ArrayLike, target: ArrayLike, weights: Weights
    ) -> tuple[Invalid, jax.Array, jax.Array, jax.Array]:
        """What a batch holds that cannot be used, and its scores, by class as they are stored.

        With each score are whether it is of a positive, and its weight.
        """
        scores, target, w, invalid, *_ = examples(
            preds,
            target,
            weights,
            num_classes=self.num_classes,
            num_labels=self.num_labels,
            ignore_index=self.ignore_index,
            infinite=True,
            from_logits=bool(self.from_logits),
            kind=self.invalid.scores,
        )
        # Float64 scores of the host are rounded where they are stored, which keeps their bounds.
        given: Any = preds if hasattr(preds, "dtype") else np.asarray(preds)
        warn_if_rounded(given, "preds")
        dtype = scores.dtype if is_rounded(given) else default_float()
        if self.from_logits:
            scores = log_odds(scores, self.num_classes is not None, dtype)
        scores = scores if scores.dtype == dtype else scores.astype(dtype)
        if self.num_classes is not None:
            # Each class against the rest: its positives are the examples with its label.
            target = is_class(target, self.num_classes)
            w = xp.broadcast_to(w[..., None], scores.shape)
            if self.pooled and self.ignored_class is not None:
                is_ignored = np.arange(self.num_classes) == self.ignored_class
                w = xp.where(is_ignored, xp.zeros((), w.dtype), w)
        return invalid, scores, target, w

    def plus_rows(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        """The children, with a checked batch stored.

        Args:
            scores: of shape (N, scores_of_row); any value where the weight is zero.
            positive: whether each score is of a positive.
            w: the weight of each score, as floats, or booleans for a mask.
        """
        raise TypeError(f"{type(self).__name__} does not define plus_rows()")

    def groups(self) -> Groups:
        """The weights of positives and negatives, by class and group of scores."""
        raise TypeError(f"{type(self).__name__} does not define groups()")

    @computed_once
    def stored_groups(self) -> Groups:
        """The groups, of scores as they are stored; an ignored class has none."""
        groups = self.groups()
        if self.ignored_class is None or self.pooled:
            return groups
        return groups.without(self.ignored_class)

    @computed_once
    def scaled_groups(self) -> Groups:
        """The groups; with `from_logits`, of probabilities."""
        groups = self.stored_groups()
        if not self.from_logits:
            return groups
        # Only here: the order is that of log-odds, in which probabilities near 1 differ.
        return groups._replace(lowest=special.expit(groups.lowest))


_MOST_LOG_ODDS = 700.0
"""The range of the log-odds of float64 probabilities."""


def log_odds(logits: jax.Array, of_softmax: bool, dtype: np.dtype) -> jax.Array:
    """The log-odds of logits, of a dtype; infinite beyond the log-odds of float64 probabilities.

    So an impossible class may have a logit of -1e9, and does not widen the bins of other scores.
    """
    z = logits
    if of_softmax:
        # In float64 and then rounded, as they are stored: so the same logits in another order of
        # the classes have the same log-odds, on the host and on devices.
        z = DoubleFloat.of(logits).evaluated(softmax_log_odds).astype(dtype)
        if dtype == np.float64 != default_float():
            # Those of float64 logits, on the host, to 12 digits, for the same reason.
            # Scores that differ by rounding alone would be two groups, and break ties.
            significand, exponent = np.frexp(z)
            z = np.ldexp(np.rint(significand * 2.0**40) / 2.0**40, exponent)
    return xp.where(xp.abs(z) > _MOST_LOG_ODDS, xp.sign(z) * xp.inf, z)


_MOST_WITH_EXTREMES = 16


class ScoreHistogram(Scores):
    """Two histograms for each class: the scores of its positives, and of its negatives.

    Scores are floats of any size and offset: logits, probabilities, log-probabilities. The bins of
    a class depend on the range of its scores, and become coarser as it grows; see
    `datarax.numerics.dyadic_grid`. They are narrow toward 0 and 1. If the greatest score is `1 + r`
    with r up to 1, bins above 1 are at most `16 * r / 2**bits` wide. Infinite scores have bins of
    their own. -0.0 and subnormal numbers count as 0.0. With up to 16 classes, each bin also keeps
    its least and greatest score. If both are equal, all scores of the bin are tied; of float64
    scores on the host, also the digits that a float32 lacks must be equal.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreHistogram
        >>> seen = ScoreHistogram().update(jnp.array([0.1, 0.2, 0.3]), jnp.array([0, 1, 1]))
        >>> groups = seen.groups()
        >>> print((groups.total_positives / groups.total_negatives).to_float(), seen.bits)
        [[2.]] 16
    """

    bits: int | None = None
    """There are `2**bits` bins for each class, from 10 to 22 bits. One more bit doubles the memory
    and halves the width of a bin. `None` gives 16 bits for up to 2 classes, 14 for up to 16, 12 for
    up to 256, otherwise 10."""

    bins: AdaptiveBins = state()
    """The weights of negatives, in the first row, and of positives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is None:
            self.bits = default_bits(self.size)
        # With few bins, more powers of two would make the bins of logits too wide.
        octaves = 20 if self.bits >= 14 else 10
        mirrored = octaves
        if self.from_logits:
            octaves, mirrored = LOG_ODDS_OCTAVES, 0
        self.bins = AdaptiveBins(
            size=self.size,
            rows=2,
            bits=self.bits,
            octaves=octaves,
            mirrored=mirrored,
            keeps_extremes=self.size <= _MOST_WITH_EXTREMES,
            keeps_digits=self.size <= _MOST_WITH_EXTREMES,
        )

    def plus_rows(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        w = w if w.dtype == xp.bool_ else as_float(w)
        return {"bins": self.bins.plus_rows(scores, w, positive)}

    def groups(self) -> Groups:
        """The weights of positives and negatives, by class and bin."""
        seen = self.bins.contents()
        return Groups.of(seen.weights[1], seen.weights[0], seen.is_tie, seen.lowest)


class ScoreBuffer(KeepsRows, Scores):
    """The scores, targets and weights of the first `capacity` examples; counts the others.

    Scores are kept without rounding: those of float64 on the host in two float32, see
    `datarax.numerics.float_ranges`. Subnormal numbers count as 0. Examples of weight zero take no
    room.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import ScoreBuffer
        >>> kept = ScoreBuffer(3).update(jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0, 0, 1, 1]))
        >>> print(kept.filled, kept.overflow)
        3 1
    """

    capacity: int = field(kw_only=False)
    """The number of examples that are kept; a merge keeps the first `capacity` of both."""

    rows: Rows = state()
    """One row per example: the two keys of its scores; then, for multiclass, its label and its
    weight; otherwise a weight for each score, which is negative for that of a negative."""

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.scores_of_row
        width = 2 * size + 2 if self.num_classes is not None else 3 * size
        self.rows = Rows(self.capacity, (width,), default_float().name)

    @property
    def scores_of_row(self) -> int:
        # Also where they are pooled: a row is an example, so `capacity` is of examples.
        return self.num_classes or self.num_labels or 1

    def plus_rows(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> dict[str, PyTree]:
        used, dtype = w.astype(xp.bool_), np.dtype(self.rows.dtype)
        # Scores of weight zero may hold anything, and must not reach the sort. -0.0 equals 0.0, and
        # some devices flush subnormal numbers to zero: all of them become 0.0, so that every device
        # gives the same result.
        tiny = float(np.finfo(scores.dtype).tiny)
        scores = xp.where(used & (xp.abs(scores) >= tiny), scores, 0)
        if is_rounded(scores):
            keys: Any = two_keys(scores)
        else:
            keys = scores.astype(dtype), xp.zeros(scores.shape, dtype)
        w = w.astype(dtype)
        if self.num_classes is not None:
            own = int(self.ignored_class == 0)  # a class whose scores have the weight of the row
            # One label and one weight in place of one for each class: with ten classes 22 floats a
            # row, not 30.
            rest = xp.argmax(positive, -1)[:, None].astype(dtype), w[:, own : own + 1]
        else:
            rest = (xp.where(positive, w, -w),)
        kept = self.rows.append(xp.concatenate((*keys, *rest), -1), xp.any(used, -1))
        return {"rows": kept}

    def _columns(self) -> tuple[jax.Array, ...]:
        """The two keys of scores, and weights of positives and of negatives.

        By class, or of all: (size, n).
        """
        # What the columns of a row hold, `rows` says.
        data, size = xp.asarray(self.rows.data).T, self.scores_of_row
        scores, codes = data[:size], data[size : 2 * size]
        if self.num_classes is not None:
            classes = xp.arange(size, dtype=xp.int32)[:, None]
            positive, w = data[2 * size : -1].astype(xp.int32) == classes, data[-1:]
        else:
            w = data[2 * size :]
            positive, w = w > 0, xp.abs(w)
        w = xp.where(self.rows.is_filled[None, :], w, 0)
        w = xp.broadcast_to(w, scores.shape)
        if self.ignored_class is not None:
            w = xp.where((np.arange(size) == self.ignored_class)[:, None], 0, w)
        # Rows without data get the score infinity, so that they come last when sorted.
        scores, codes = xp.where(w != 0, scores, xp.inf), xp.where(w != 0, codes, 0)
        columns = scores, codes, xp.where(positive, w, 0), xp.where(positive, 0, w)
        return tuple(x.reshape(self.size, -1) for x in columns)

    def groups(self) -> Groups:
        """The weights by class and distinct score, each at the first place of its score."""
        scores, codes, *others = self._columns()
        # Both keys decide the order. Only scores of float64 have a second one that is not 0.
        keys, some = sort_keys(scores, codes)
        others += some
        ordered = lax.sort((*keys, *others), dimension=-1, num_keys=len(keys))
        keys, (positives, negatives, *others) = ordered[: len(keys)], ordered[len(keys) :]
        is_tie = xp.ones_like(scores, xp.bool_)
        for codes in (*keys[1:], *others):
            is_tie = is_single(keys[0], codes)
        edge = xp.ones_like(scores[:, :1], xp.bool_)
        differs = reduce(operator.or_, (x[:, 1:] != x[:, :-1] for x in keys))
        first = xp.concatenate([edge, differs], -1)
        last = xp.concatenate([differs, edge], -1)
        positives, negatives = (run_sums(w, first, last) for w in (positives, negatives))
        return Groups.of(positives, negatives, is_tie, keys[0])
