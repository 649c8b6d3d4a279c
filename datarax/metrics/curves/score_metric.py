"""The base class of metrics of scores: its fields, its statistic, and how it is read."""

from typing import Self

import jax

from datarax._checks import finite_number
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metric.unusable import Undefined
from datarax.numerics.double_float import DoubleFloat, where
from datarax.statistics.scores import Groups, ScoreBuffer, ScoreHistogram, Scores

MOST_UNORDERED = 0.01
"""The share of pairs of a positive and a negative, without a known order, that gives a warning."""
_IN_BINS = (
    "many positives and negatives are in the same bins, so the value is an estimate: more bits= "
    "makes bins narrower, and exact=True with capacity= keeps the scores; if all float64 scores "
    "are near one number, subtract it before the update"
)
_BEYOND_FLOAT32 = (
    "scores beyond the range of float32, 1.2e-38 to 3.4e38, count as equal, so the value is an "
    "estimate. Scale them into it before the update"
)


class ScoreMetric(Metric):
    """A metric of the scores of positives and negatives.

    The scores are kept in a histogram, which takes constant memory; or, with `exact`, in a buffer.
    A multiclass task compares each class with the rest, a multilabel task has 0/1 targets for each
    label. Without an average, there is one result per class or label.
    """

    hidden_names = frozenset({"by_task", "groups", "is_binary"})
    tasks = ("binary", "multiclass", "multilabel")
    needs_scores = True
    num_classes: int | None = None
    """The number of classes of a multiclass task."""
    num_labels: int | None = None
    """The number of labels of a multilabel task. Without both sizes the task is binary."""
    bits: int | None = None
    """The resolution of the histogram, from 10 to 22; see `datarax.statistics.ScoreHistogram`."""
    exact: bool = False
    """True to keep the scores of up to `capacity` examples, instead of a histogram. Then every
    distinct score is a threshold."""
    capacity: int | None = None
    """With `exact`: how many examples to keep. Examples that do not fit are counted as invalid."""
    ignore_index: int | None = None
    """Examples with this target are excluded, and not counted as invalid. If it is one of several
    classes, the class is in no average, and NaN where there is one value per class."""
    from_logits: bool | None = None
    """True if scores are logits: of a softmax for multiclass, else of a sigmoid. Then probabilities
    are compared, by their log-odds, which do not round to 0 and 1, and thresholds are
    probabilities. If not, scores are compared as they are. `None` is as `False`, but rows of
    a multiclass task that do not sum to 1 give a `ScoresWarning`."""

    statistic: Scores = state()
    """A `ScoreHistogram`; with `exact`, a `ScoreBuffer`."""

    def __post_init__(self) -> None:
        if not self.exact:
            if self.capacity is not None:
                raise MetricInputError(
                    f"capacity={self.capacity!r} is for exact=True; leave it out"
                )
            self.statistic = ScoreHistogram.from_fields(self, pooled=self.is_pooled)
            return
        if self.capacity is None or self.bits is not None:
            raise MetricInputError(
                f"exact=True with capacity={self.capacity!r} and bits={self.bits!r}; expected "
                f"capacity=, how many examples to keep, and no bits="
            )
        self.statistic = ScoreBuffer.from_fields(self, pooled=self.is_pooled)

    @shareable
    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            preds: scores, logits or probabilities: multiclass (..., C); multilabel (..., L);
                binary (...). Integers are scores too.
            target: multiclass: integer labels (...); multilabel: 0/1 (..., L); binary: 0/1 (...).
            weights: broadcast against the leading axes of `target`; zero excludes an example.

        Raises:
            MetricInputError: the shapes do not fit together; shows both.
            MetricTypeError: the labels are not integers.

        A reading warns (`ScoresWarning`) of rows of several classes that do not sum to 1, without
        `from_logits`; and with it, of rows that are probabilities.
        """
        return self.replace(statistic=self.statistic.update(preds, target, weights=weights))

    @property
    def is_binary(self) -> bool:
        """True if the task is neither multiclass nor multilabel."""
        return self.num_classes is None and self.num_labels is None

    @property
    def is_pooled(self) -> bool:
        """True if the classes of an example are examples of one binary task."""
        return False

    def groups(self) -> Groups:
        """The weights by class and group of scores, all scaled by one power of two."""
        return self.statistic.scaled_groups()

    def undefined_parts(self) -> Undefined | None:
        share = self.groups().share_of_unordered_pairs()
        return Undefined(share > MOST_UNORDERED, _BEYOND_FLOAT32 if self.exact else _IN_BINS)

    def by_task(self, values: PyTree) -> PyTree:
        """The result from values by class, (size, ...): a binary task has only one."""
        return jax.tree.map(lambda x: x[0], values) if self.is_binary else values


def fraction(value: float, name: str, *, above: float = -1.0, below: float = 2.0) -> float:
    """Checks that a configuration value is from 0 to 1, above `above` and below `below`.

    The defaults of `above` and `below` are outside 0 to 1, and exclude nothing.

    Raises:
        MetricInputError: it is not such a number.
    """
    low, high = ("above", above) if above >= 0 else ("from", 0)
    until, end = ("below", below) if below <= 1 else ("to", 1)
    expected = f"a number {low} {high} {until} {end}"
    return finite_number(value, name, expected, lambda x: 0 <= x <= 1 and above < x < below)


def share_among_highest(within: DoubleFloat, above: DoubleFloat, rate: float) -> DoubleFloat:
    """Returns the share of each group that belongs to the examples with the highest scores.

    These examples make up a fraction `rate` of the total weight. The share is 1 for the highest
    groups and 0 for the lowest. In between, one group may be cut: its share is a fraction.

    Args:
        within: the weight of each group, of shape (size, groups).
        above: the weight of all higher groups, of the same shape.
        rate: from 0 to 1.
    """
    # Groups ascend in their scores, so the first one has all other groups above it: its sum is the
    # total. `room` is how much weight is still wanted after all higher groups.
    wanted = (above + within)[:, :1] * rate
    room = wanted - above
    share = (room / within).map(lambda x: xp.where(room.high <= 0, 0, x))
    return where(room >= within, DoubleFloat.of(1.0, within.dtype), share)
