"""`ScoreSample`: a random sample of rows with the scores of one or two models."""

from typing import NamedTuple, Self

import jax
import numpy as np

from datarax._checks import as_float
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, xp
from datarax.algebra.fields import state
from datarax.distributed.collectives import replicated
from datarax.numerics.exact import Exact
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.row_sample import RowSample, row_keys
from datarax.statistics.scores import Scores

_WORDS = 15_000
"""The number of words of 32 bits of the rows of each model: with the counts of strata, 64 KiB."""
_LEAST_ROWS = 200
_EDGES = (
    (-8, -4, -2, -1, 0, 1e-3, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999, 1, 2, 4, 8),
    (-2, 0.05, 0.5, 0.95, 2),
)
"""Where scores, which are probabilities or logits, are parted into strata; or fewer of them."""


class SampledRows(NamedTuple):
    """The rows of a sample; places without a row have the weight 0."""

    scores: jax.Array
    """(models, size, rows), as the statistic of a metric stores them; NaN if it leaves them out."""
    positive: jax.Array
    """True for the scores of positives, (size, rows)."""
    weights: jax.Array
    """(rows,)"""
    stands_for: jax.Array
    """The number of rows of the data that each row stands for, (rows,)."""


class ScoreSample(Scores):
    """A random sample of the rows, for sums over rows of what depends on several scores of a row.

    All rows are kept while they fit in 64 KiB for each model. Else there are as many of each
    stratum: of rows with one class, whose score is about the same, in each of the models. So what
    is rare and matters most, such as positives with low scores, or rows on which the models differ,
    is in the sample.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.score_sample import ScoreSample
        >>> seen = ScoreSample().update(jnp.array([0.1, 0.2, 0.3]), jnp.array([0, 1, 1]))
        >>> print(seen.rows.capacity, seen.sampled().weights.sum())
        3750 3.0
    """

    models: int = 1
    """The number of models that score each row."""

    rows: RowSample = state()
    """For each row the scores of each model, for multilabel the targets, and the weight."""
    total: MetricAccumulator = state()
    """The number of rows in each stratum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # At least one row of each kind, or a class would have no share in the variance.
        capacity = max(self._kinds, self._room)
        strata = self._kinds * (len(self._edges_for(capacity)) + 1) ** self.models
        self.rows = RowSample(strata, capacity, self._width)
        self.total = MetricAccumulator(np.zeros(strata, int))

    @property
    def _width(self) -> int:
        """The number of floats of a row."""
        return self.models * self.size + (self.num_labels or 0) + 1

    @property
    def _room(self) -> int:
        """The number of rows for which there is room, each with its key and stratum."""
        return self.models * _WORDS // (self._width + 2)

    @property
    def _kinds(self) -> int:
        """The number of kinds of rows, by their targets."""
        return 1 if self.num_labels else self.num_classes or 2

    def _edges_for(self, capacity: int) -> tuple[float, ...]:
        """Between which scores the strata lie: so many that all strata have room."""
        fits = (x for x in _EDGES if self._kinds * (len(x) + 1) ** self.models <= capacity)
        return next(fits, ())

    @property
    def is_large_enough(self) -> bool:
        """True if there is room for enough rows."""
        return self._room >= max(_LEAST_ROWS, self._kinds)

    def update(
        self,
        preds: ArrayLike,
        target: ArrayLike,
        *,
        preds_b: ArrayLike | None = None,
        weights: Weights = None,
        index: ArrayLike | None = None,
    ) -> Self:
        """Samples the rows of a batch, whose values were checked before.

        Args:
            preds: (N, size), or (N,) of a binary task.
            target: (N, L) of a multilabel task, else (N,).
            preds_b: those of the second of two models.
            weights: of the rows.
            index: the global id of each row, for a sample that depends on nothing else.
        """
        models = [self.checked(x, target, weights) for x in (preds, preds_b) if x is not None]
        # All rows on all devices: the least keys are looked for among them.
        given = replicated([each[1:] for each in models])
        shaped = [[x.reshape(-1, self.size) for x in each] for each in given]
        # NaN marks what a metric leaves out, such as one label of a row whose others count.
        scores = [xp.where(w.astype(xp.bool_), as_float(x), xp.nan) for x, _, w in shaped]
        positive = shaped[0][1]
        # A row is kept if any of its scores counts, in any model.
        w = xp.stack([xp.max(as_float(w), 1) for _, _, w in shaped]).max(0)
        stratum = self._stratum(scores, positive)
        targets = [as_float(positive)] if self.num_labels else []
        rows = xp.concatenate([*scores, *targets, w[:, None]], 1)
        counted, exact = w > 0, self.total.exact
        seen = exact.low if isinstance(exact, Exact) else exact.astype(xp.uint32)
        # It may wrap: it only numbers the rows, for their random keys.
        seen = xp.sum(seen, dtype=xp.uint32)
        keys = row_keys(index, counted, seen, [rows, stratum], self)
        # All rows are counted, also those that are not kept.
        counts = at(xp.zeros(self.rows.strata, xp.int32))[stratum].add(counted.astype(xp.int32))
        sampled = self.rows.plus(rows, stratum, keys, counted)
        return self.with_parts({"rows": sampled, "total": self.total.update(counts)})

    def _stratum(self, models: list[jax.Array], positive: jax.Array) -> jax.Array:
        """The stratum of each row, from the scores (N, size) of each model."""
        if self.num_labels:
            kind = xp.zeros(len(positive), xp.int32)
        else:
            # The class of the row, of which each has strata of its own, however rare it is.
            kind = xp.argmax(positive, 1) if self.num_classes else positive[:, 0]
        stratum = kind = kind.astype(xp.int32)
        edges, factor = self._edges_for(self.rows.capacity), self._kinds
        for scores in models:
            if self.num_labels:
                # The score for what is true of a label, where it is least.
                opposite = xp.where((scores >= 0) & (scores <= 1), 1 - scores, -scores)
                own = xp.min(xp.where(positive, scores, opposite), 1)
            elif self.num_classes:
                own = xp.take_along_axis(scores, kind[:, None], 1)[:, 0]
            else:
                own = scores[:, 0]
            cell = xp.searchsorted(np.asarray(edges, own.dtype), own, side="right")
            stratum = stratum + xp.int32(factor) * cell.astype(xp.int32)
            factor *= len(edges) + 1
        return stratum

    def sampled(self) -> SampledRows:
        """The rows of the sample, and what each stands for."""
        rows = self.rows
        # Places without a row have a stratum beyond the last: clipped, and with the weight 0.
        stratum = xp.minimum(xp.asarray(rows.stratum), rows.strata - 1)
        kept = at(xp.zeros(rows.strata, xp.int32))[stratum].add(rows.is_row.astype(xp.int32))
        exact = self.total.exact
        total = exact.to_float() if isinstance(exact, Exact) else as_float(exact)
        # Horvitz and Thompson: a row that was kept stands for all of its stratum.
        stands_for = (total / xp.maximum(kept, 1).astype(total.dtype))[stratum]
        columns, end = xp.asarray(rows.data).T, self.models * self.size
        kind = stratum % xp.int32(self._kinds)
        if self.num_labels:
            positive = columns[end : end + self.size] == 1
        elif self.num_classes:
            positive = kind[None] == xp.arange(self.size, dtype=xp.int32)[:, None]
        else:
            positive = (kind == 1)[None]
        return SampledRows(
            columns[:end].reshape(self.models, self.size, -1), positive, columns[-1], stands_for
        )
