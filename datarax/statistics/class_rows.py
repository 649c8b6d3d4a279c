"""`ClassRows`: what is checked of rows of scores, one for each class, and what losses need."""

from collections.abc import Callable
from functools import cached_property

import jax
import numpy as np

from datarax._checks import as_float
from datarax._typing import PyTree
from datarax._xp import by_blocks, lax, on_host, xp
from datarax.algebra.one_pass import Term, reduced
from datarax.distributed.collectives import from_key, to_key
from datarax.statistics import invalid_counts
from datarax.statistics.invalid_counts import Invalid, infinite_or_nan


class ClassRows:
    """Rows of numbers (..., C); on devices, all is computed in one reduction over the classes.

    Args:
        scores: (..., C).
        label: a class of each row, (...), int32.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.class_rows import ClassRows
        >>> rows = ClassRows(jnp.array([[1.0, 3.0, 3.0]]), jnp.array([1]))
        >>> print(rows.least, rows.greatest, rows.total, rows.own, rows.is_first_highest)
        [1.] [3.] [7.] [3.] [ True]
    """

    def __init__(self, scores: jax.Array, label: PyTree = None):
        self._is_on_host = on_host(scores, label)
        self.scores, self.label = scores if self._is_on_host else as_float(scores), label

    def _on_host(self, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return by_blocks(function, self.scores.ndim - 1, self.scores)

    @property
    def size(self) -> int:
        """C, the number of classes."""
        return self.scores.shape[-1]

    @cached_property
    def least(self) -> jax.Array:
        """The least score of each row."""
        return self._on_host(lambda x: xp.min(x, -1)) if self._is_on_host else self._reduced[1]

    @cached_property
    def greatest(self) -> jax.Array:
        """The greatest score of each row; NaN if one is. Only `own` has a gradient."""
        return self._on_host(lambda x: xp.max(x, -1)) if self._is_on_host else self._reduced[0]

    @cached_property
    def total(self) -> jax.Array:
        """The sum of each row."""
        if self._is_on_host:
            return self._on_host(lambda x: xp.sum(as_float(x), -1))
        return self._reduced[2]

    @cached_property
    def own(self) -> jax.Array:
        """The score of the label.

        By comparing every class with the label: if the classes are sharded over devices, only this
        score travels. An index would gather all scores.
        """
        if self._is_on_host:
            return xp.take_along_axis(self.scores, self.label[..., None], -1)[..., 0]
        return self._reduced[4]

    @property
    def is_first_highest(self) -> jax.Array:
        """True if the label is the class of the highest score, the first of equal ones."""
        if self._is_on_host:
            return self.scores.argmax(-1) == self.label
        before = from_key(self._reduced[3], self.scores.dtype)
        return (self.own == self.greatest) & ~(before == self.own)

    @cached_property
    def _reduced(self) -> list[PyTree]:
        x, axes = self.scores, (self.scores.ndim - 1,)
        fixed = lax.stop_gradient(x)
        key = to_key(fixed)
        terms = [Term(fixed, axes, "float sum"), Term(key, axes, "max"), Term(~key, axes, "max")]
        if self.label is not None:
            place = lax.broadcasted_iota(xp.int32, x.shape, x.ndim - 1) - self.label[..., None]
            nothing = xp.asarray(np.iinfo(key.dtype).min, key.dtype)
            terms.append(Term(xp.where(place < 0, key, nothing), axes, "max"))
            own = xp.where(place == 0, x, xp.asarray(-np.inf, x.dtype))
            terms.append(Term(own, axes, "max"))
        total, greatest, least, *of_label = reduced(terms)
        return [from_key(greatest, x.dtype), from_key(~least, x.dtype), total, *of_label]

    def not_logits(self) -> Invalid:
        """`not_logits` of the rows."""
        if self._is_on_host:
            return invalid_counts.not_logits(self.scores, -1)
        # -inf is the greatest one only of a row that is ruled out as a whole.
        return infinite_or_nan(xp.isinf(self.greatest), xp.isnan(self.greatest))

    def is_nan(self) -> Invalid:
        """`is_nan` of the rows."""
        return invalid_counts.is_nan(self.greatest)

    def cross_entropy(self, logits: jax.Array | None = None) -> jax.Array:
        """`-log(softmax(logits)[label])` of each row.

        Within 4 ulp for few classes, if the differences of the logits are exact; also for results
        near zero. Infinite where it exceeds the range of floats, and where the logit of the label
        is -inf. Other logits may be -inf: those of classes that are ruled out.

        Args:
            logits: the scores as they were given, if they are floats: maxima and selections are
                exact in half precision, so that no float32 array of their size need be made.
        """
        logits = self.scores if logits is None else logits
        if self._is_on_host:
            return by_blocks(_cross_entropy, logits.ndim - 1, logits, self.label)
        possible = self.own > -xp.inf
        own = xp.where(possible, self.own, 0)
        top = self.greatest - own  # not negative
        above = as_float(logits) - own[..., None]
        # A difference of finite logits may be infinite, and the difference of two such is NaN.
        greatest = float(xp.finfo(above.dtype).max)
        below_top = xp.minimum(above, greatest) - xp.minimum(top, greatest)[..., None]
        classes = lax.broadcasted_iota(xp.int32, logits.shape, logits.ndim - 1)
        others = xp.where(classes == self.label[..., None], 0, xp.exp(below_top))
        (total,) = reduced([Term(others, (others.ndim - 1,), "float sum")])
        # log(exp(top) * (total + exp(-top))), where exp(-top) is the share of the label itself.
        loss = top + xp.log1p(total + xp.expm1(-top))
        return xp.where(possible, loss, xp.inf)


def _cross_entropy(logits: PyTree, label: PyTree) -> PyTree:
    """`ClassRows.cross_entropy` in NumPy, in float64."""
    x, at_label = np.asarray(logits, np.float64), label[..., None]
    greatest = xp.max(x, -1, keepdims=True)
    top = (greatest - np.take_along_axis(x, at_label, -1))[..., 0]
    others = np.exp(x - greatest)
    np.put_along_axis(others, at_label, 0, -1)
    loss = top + np.log1p(xp.sum(others, -1) + np.expm1(-top))
    return np.where(top < np.inf, loss, np.inf)
