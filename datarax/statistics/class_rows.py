"""`class_rows`: what is checked of rows of scores, one for each class, and what losses need."""

from collections.abc import Callable
from functools import cached_property

import jax
import numpy as np

from datarax._checks import as_float, without_subnormals
from datarax._typing import PyTree
from datarax._xp import by_blocks, faster_in_numpy, lax, xp
from datarax.algebra.fold import Term, reduced
from datarax.distributed.collectives import from_key, to_key
from datarax.statistics import invalid_counts
from datarax.statistics.invalid_counts import Invalid, infinite_or_nan

_LONG = 64
"""From so many classes on, NumPy finds the greatest score and its class in one pass."""


class ClassRows:
    """Rows of numbers (..., C), as `class_rows` makes them, and a class of each row, its label.

    A property is computed when it is first asked for.
    """

    least: jax.Array
    """The least score of each row."""
    greatest: jax.Array
    """The greatest score of each row; NaN if one is. Only `own` has a gradient."""
    total: jax.Array
    """The sum of each row."""
    own: jax.Array
    """The score of the label."""
    is_first_highest: jax.Array
    """True if the label is the class of the highest score, the first of equal ones."""

    def __init__(self, scores: jax.Array, label: PyTree = None):
        self.scores, self.label = scores, label

    @property
    def size(self) -> int:
        """C, the number of classes."""
        return self.scores.shape[-1]

    def not_logits(self) -> Invalid:
        """`not_logits` of the rows."""
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
        raise TypeError(f"{type(self).__name__} does not define cross_entropy()")


# In NumPy, 20,000 rows of 10 classes take 1.3 ms; the reduction of devices, 10.
@faster_in_numpy(lambda scores, label=None: _RowsInNumPy(scores, label))
def class_rows(scores: jax.Array, label: PyTree = None) -> ClassRows:
    """Rows of numbers; in a program, all is computed in one reduction over the classes.

    In NumPy the scores stay as they are given, and what each property needs is converted.

    Args:
        scores: (..., C).
        label: a class of each row, (...), int32.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics.class_rows import class_rows
        >>> rows = class_rows(jnp.array([[1.0, 3.0, 3.0]]), jnp.array([1]))
        >>> print(rows.least, rows.greatest, rows.total, rows.own, rows.is_first_highest)
        [1.] [3.] [7.] [3.] [ True]
    """
    return _ReducedRows(as_float(scores), label)


class _RowsInNumPy(ClassRows):
    """Rows in NumPy, in which each property is a pass of its own, by blocks."""

    def _by_blocks(self, function: Callable[[jax.Array], PyTree]) -> PyTree:
        return by_blocks(function, self.scores.ndim - 1, self.scores)

    @cached_property
    def _over_short(self) -> tuple[jax.Array, jax.Array, jax.Array] | None:
        """The least and the greatest score of each row, and their sum, if the rows are short."""
        return self._by_blocks(_over_classes) if 0 < self.size < _LONG else None

    @cached_property
    def least(self) -> jax.Array:  # type: ignore[override]
        return self._over_short[0] if self._over_short else self._by_blocks(lambda x: xp.min(x, -1))

    @cached_property
    def greatest(self) -> jax.Array:  # type: ignore[override]
        return self._over_short[1] if self._over_short else self._at(self._place)

    @cached_property
    def _place(self) -> np.ndarray:
        """The class of the greatest score, the first of equal ones."""
        return self.scores.argmax(-1)  # type: ignore[return-value]

    def _at(self, classes: PyTree) -> jax.Array:
        """The score of a class of each row."""
        return xp.take_along_axis(self.scores, classes[..., None], -1)[..., 0]

    @cached_property
    def total(self) -> jax.Array:  # type: ignore[override]
        if self._over_short:
            return self._over_short[2]
        return self._by_blocks(lambda x: xp.sum(as_float(x), -1))

    @cached_property
    def own(self) -> jax.Array:  # type: ignore[override]
        return as_float(self._at(self.label))

    @property
    def is_first_highest(self) -> jax.Array:  # type: ignore[override]
        # Devices compare subnormal scores as zeros. Below greater ones they are never highest.
        if (np.abs(self.greatest) < np.finfo(np.float32).tiny).any():
            return without_subnormals(np.asarray(self.scores)).argmax(-1) == self.label
        return self._place == self.label

    def cross_entropy(self, logits: jax.Array | None = None) -> jax.Array:
        logits = self.scores if logits is None else logits
        of_rows = self.label, self.own, self.greatest
        return by_blocks(_cross_entropy, logits.ndim - 1, logits, *of_rows)


class _ReducedRows(ClassRows):
    """Rows of a program: all properties come from one reduction."""

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

    @property
    def greatest(self) -> jax.Array:  # type: ignore[override]
        return self._reduced[0]

    @property
    def least(self) -> jax.Array:  # type: ignore[override]
        return self._reduced[1]

    @property
    def total(self) -> jax.Array:  # type: ignore[override]
        return self._reduced[2]

    @property
    def own(self) -> jax.Array:  # type: ignore[override]
        # Every class is compared with the label: if the classes are sharded over devices, only this
        # score travels. An index would gather all scores.
        return self._reduced[4]

    @property
    def is_first_highest(self) -> jax.Array:  # type: ignore[override]
        before = from_key(self._reduced[3], self.scores.dtype)
        return (self.own == self.greatest) & ~(before == self.own)

    def cross_entropy(self, logits: jax.Array | None = None) -> jax.Array:
        logits = self.scores if logits is None else logits
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


def _over_classes(x: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """The minimum, the maximum and the sum of short rows, in NumPy.

    It takes several times as long along short rows as over them.
    """
    columns, shape = np.ascontiguousarray(x.reshape(-1, x.shape[-1]).T), x.shape[:-1]
    least, greatest = np.minimum.reduce(columns, 0), np.maximum.reduce(columns, 0)
    total = np.add.reduce(columns.astype(np.float64), 0)
    return least.reshape(shape), greatest.reshape(shape), total.reshape(shape)


def _cross_entropy(logits: PyTree, label: PyTree, own: PyTree, greatest: PyTree) -> PyTree:
    """`ClassRows.cross_entropy` in NumPy, in float64."""
    # NumPy converts float32 numbers on the way, which takes less than a copy.
    below_top = np.subtract(logits, greatest[..., None], dtype=np.float64)
    rows = below_top.reshape(-1, below_top.shape[-1])
    rows[np.arange(len(rows)), label.reshape(-1)] = -np.inf
    top = np.subtract(greatest, own, dtype=np.float64)
    total = xp.sum(np.exp(below_top, out=below_top), -1)
    loss = top + np.log1p(total + np.expm1(-top))
    return np.where(top < np.inf, loss, np.inf)
