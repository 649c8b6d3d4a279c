"""Scores of positives and negatives in bins that need no range: what curves are read from."""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from datarax import _numerics as nx
from datarax._checks import as_float, is_integer, numeric, positive_int, rows_weight, same_shape
from datarax._errors import MetricInputError, MetricTypeError
from datarax.distributed._merge_ops import MetricReduceOp
from datarax.statistics._state import State
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.class_counts import in_range

_TINY = 2.0**-24  # what 1 - x is at least, for a float32 x below 1


class Layout(NamedTuple):
    """Which bin a float32 falls into, for keys of so many bits: monotone over all reals.

    A float's bits order like the float, so its upper bits are a bin of constant relative width.
    From 1/2 to 1 they are those of `1 - x`, mirrored: as fine toward 1 as toward 0.
    """

    bits: int

    def _key(self, x: Any) -> Any:
        return lax.bitcast_convert_type(x, jnp.int32) >> (32 - self.bits)

    def _edge(self, x: float) -> int:
        return int(np.float32(x).view(np.int32) >> (32 - self.bits))

    @property
    def size(self) -> int:
        """How many bins there are."""
        return self._above + self._edge(np.inf) - self._edge(1.0) + 1

    @property
    def _zero(self) -> int:
        return self._edge(np.inf)

    @property
    def _half(self) -> int:
        return self._zero + self._edge(0.5)

    @property
    def _above(self) -> int:
        return self._half + self._edge(0.5) - self._edge(_TINY) + 2

    def bin(self, x: jax.Array) -> jax.Array:
        """The bin of each finite float32."""
        one, half = jnp.float32(1), jnp.float32(0.5)
        upper = self._key(jnp.maximum(one - x, jnp.float32(0)))
        upper = self._half + self._edge(0.5) - jnp.maximum(upper, self._edge(_TINY) - 1)
        magnitude = self._key(jnp.abs(x))
        below = jnp.where(x < 0, self._zero - 1 - magnitude, self._zero + magnitude)
        above = self._above + magnitude - self._edge(1.0)
        return jnp.where(x < half, below, jnp.where(x <= one, upper, above))


def default_bits(size: int) -> int:
    """Bits of the key, by the number of histograms: 16 for one, fewer for many."""
    return 16 if size <= 2 else 14 if size <= 16 else 12 if size <= 256 else 10


class ScoreHistogram(State):
    """For each class, a histogram of the scores of its positives and of its negatives.

    Args:
        num_classes: multiclass, one against the rest: scores (..., C), integer labels (...).
        num_labels: multilabel: scores and 0/1 targets (..., L). Neither: binary, (...) and (...).
        bits: of the key that tells the bin, from 10 to 22: sign, 8 of exponent, the rest of
            significand; each bit doubles memory and halves the width of a bin. By default 16 for
            binary, fewer for many classes.
        ignore_index: a target that leaves its example out, uncounted.

    Scores are any floats: logits, probabilities, of any size and sign; -0.0 is 0.0. bfloat16
    scores have a bin each at 16 bits. Each bin also keeps its least and greatest score (up to
    16 classes), so that one that holds a single value is known to be a tie.
    """

    invalid = MetricAccumulator(0)

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        ignore_index: int | None = None,
    ):
        if num_classes is not None and num_labels is not None:
            raise MetricInputError(
                "num_classes= (multiclass) and num_labels= (multilabel) exclude each other"
            )
        if num_classes is not None:
            positive_int(num_classes, "num_classes", least=2)
        if num_labels is not None:
            positive_int(num_labels, "num_labels")
        self.num_classes, self.num_labels = num_classes, num_labels
        self.ignore_index = ignore_index
        self.bits = default_bits(self.size) if bits is None else bits
        if not isinstance(self.bits, int) or not 10 <= self.bits <= 22:
            raise MetricInputError(f"bits={bits!r}; expected an integer from 10 to 22")
        self.ties = self.size <= 16
        shape = (self.size, self.layout.size)
        # Of negatives first, then of positives: one scatter serves both.
        self.counts = MetricAccumulator(np.zeros((2, *shape), np.float32))
        if self.ties:
            self.least = MetricAccumulator(np.full(shape, np.inf, np.float32), MetricReduceOp.min)
            self.greatest = MetricAccumulator(
                np.full(shape, -np.inf, np.float32), MetricReduceOp.max
            )

    @property
    def size(self) -> int:
        """How many histograms there are: C, L, or 1."""
        return self.num_classes or self.num_labels or 1

    @property
    def layout(self) -> Layout:
        """How scores fall into bins."""
        return Layout(self.bits)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in a batch.

        Raises:
            MetricInputError: shapes that do not go together; shows both.
            MetricTypeError: scores that are no floats, or labels that are no integers.
        """
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        if is_integer(preds):
            raise MetricTypeError(f"preds has dtype {preds.dtype}; expected scores, as floats")
        # float64 scores are rounded to float32: the keys are of 32 bits.
        scores = preds.astype(jnp.float32)
        if self.num_classes is not None:
            if not is_integer(target):
                raise MetricTypeError(f"target has dtype {target.dtype}; expected integer labels")
            if preds.shape != (*target.shape, self.size):
                raise MetricInputError(
                    f"preds of shape {preds.shape} and target of shape {target.shape}; expected "
                    f"scores of shape {(*target.shape, self.size)} for num_classes={self.size}"
                )
            valid = in_range(target, self.size) & jnp.all(jnp.isfinite(scores), -1)
            positive = jax.nn.one_hot(target, self.size, dtype=jnp.bool_)
        else:
            same_shape(preds, target)
            if self.num_labels is not None and preds.shape[-1:] != (self.size,):
                raise MetricInputError(
                    f"preds of shape {preds.shape} for num_labels={self.size}; "
                    f"expected (..., {self.size})"
                )
            positive = target == jnp.ones((), target.dtype)
            valid = jnp.isfinite(scores) & (positive | (target == jnp.zeros((), target.dtype)))
        index = self.ignore_index
        if index is not None and np.asarray(index).astype(target.dtype) == index:
            ignored = target == jnp.asarray(index, target.dtype)
        else:
            ignored = jnp.zeros(target.shape, jnp.bool_)
        if weights is not None:
            w = numeric(weights, "weights")
            weights = jax.lax.expand_dims(w, range(w.ndim, max(w.ndim, valid.ndim)))
        w, invalid = rows_weight(valid | ignored, weights)
        w = as_float(jnp.where(ignored, jnp.zeros((), w.dtype), w))
        if self.num_classes is not None:
            w = jnp.broadcast_to(w[..., None], scores.shape)
        counted = self._counted(*(x.reshape(-1, self.size) for x in (scores, positive, w)))
        return counted.replace(invalid=self.invalid.update(invalid))

    def _counted(self, scores: jax.Array, positive: jax.Array, w: jax.Array) -> Self:
        layout = self.layout
        scores = scores + jnp.float32(0)  # -0.0 becomes 0.0
        seen = w != 0
        place = jnp.where(seen, layout.bin(jnp.where(seen, scores, jnp.float32(0))), layout.size)
        classes = jnp.arange(self.size, dtype=jnp.int32)[None, :]
        place = place.astype(jnp.int32) + classes * (layout.size + 1)
        own = positive.astype(jnp.int32) * (self.size * (layout.size + 1))

        def binned(
            place: jax.Array, x: jax.Array, how: str, start: float, *shape: int
        ) -> jax.Array:
            flat = jnp.full((*shape, self.size, layout.size + 1), start, x.dtype)
            filled = getattr(flat.reshape(-1).at[place.reshape(-1)], how)(x.reshape(-1))
            return filled.reshape(flat.shape)[..., :-1]

        counts = binned(place + own, w, "add", 0.0, 2).astype(self.counts.dtype)
        changes = {"counts": self.counts.update(counts)}
        if self.ties:
            changes["least"] = self.least.update(binned(place, scores, "min", np.inf))
            changes["greatest"] = self.greatest.update(binned(place, scores, "max", -np.inf))
        return self.replace(**changes)

    @property
    def negatives(self) -> nx.Pair:
        """The weight of negatives, by class and bin."""
        high, low = map(jnp.asarray, self.counts.words)
        return high[0], low[0]

    @property
    def positives(self) -> nx.Pair:
        """The weight of positives, by class and bin."""
        high, low = map(jnp.asarray, self.counts.words)
        return high[1], low[1]

    @property
    def is_tie(self) -> jax.Array:
        """Which bins are known to hold one distinct score at most."""
        if self.ties:
            return self.least.value >= self.greatest.value
        return jnp.zeros(self.counts.shape[1:], jnp.bool_)

    def cumulative(self) -> tuple[nx.Pair, nx.Pair, nx.Pair, nx.Pair]:
        """Positives and negatives by bin, and how many of each lie in higher bins, as pairs."""
        return self.positives, self.negatives, _above(self.positives), _above(self.negatives)


def _above(counts: nx.Pair) -> nx.Pair:
    """The sum over all higher bins, exact for integers."""

    def next_bin(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x[..., 1:], jnp.zeros_like(x[..., :1])], -1)

    return nx.pair_suffix_sums((next_bin(counts[0]), next_bin(counts[1])))
