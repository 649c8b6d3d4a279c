"""Moments of predictions and targets together, and of their difference."""

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax import numerics as nx
from datarax._checks import as_float, numeric, rows_weight, same_shape
from datarax._errors import MetricInputError
from datarax.distributed.merge_ops import MetricReduceOp, zeros
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.moments import Central, about_mean
from datarax.statistics.state import State


class Two(Central):
    """The central moments of two variables, stacked, and with `crossed` their co-moment.

    The co-moment is the sum of products of the distances from the means; merged by the pairwise
    formula of Pébay (2008), https://doi.org/10.2172/1028931.
    """

    co: nx.Pair | tuple[()]

    def __init__(self, shape: tuple[int, ...] = (), *, crossed: bool = False):
        super().__init__((2, *shape))
        self.crossed = crossed
        zero = zeros(shape, self.count[0].dtype.name)
        self.co = (zero, zero) if crossed else ()

    def of_two(self, x: jax.Array, y: jax.Array, w: jax.Array) -> Self:
        """The moments of rows `x` and `y`, each (N, *shape), weighted by `w` of that shape."""
        ndim = len(self.shape) - 1
        axes = tuple(range(x.ndim - ndim))
        (n, first, dx), (_, second, dy) = (about_mean(v, w, ndim) for v in (x, y))
        squares = _stack(nx.float_sum(w * dx * dx, axes), nx.float_sum(w * dy * dy, axes))
        zero = jnp.zeros_like(n)
        return self.replace(
            count=_stack((n, zero), (n, zero)),
            mean=_stack(first, second),
            powers=(squares,),
            co=nx.float_sum(w * dx * dy, axes) if self.crossed else (),
        )

    def _merge(self, other: Any) -> Self:
        merged = super()._merge(other)
        if not self.crossed:
            return merged
        d, m = self._apart(other)
        c = d[0] * d[1] * m[0]
        co: Any = nx.pair_add(nx.pair_add(self.co, other.co), (c, jnp.zeros_like(c)))  # type: ignore[arg-type]
        return merged.replace(co=co)


def _stack(a: nx.Pair, b: nx.Pair) -> nx.Pair:
    return jnp.stack((a[0], b[0])), jnp.stack((a[1], b[1]))


class _TwoVariables(State):
    """What `CrossMoments` and `Residuals` share: two variables, and who counts."""

    invalid = MetricAccumulator(0)
    moments: Two

    @property
    def count(self) -> nx.Pair:
        """The total weight."""
        return _half(self.moments.count, 0)

    @property
    def target_mean(self) -> nx.Pair:
        """The mean of the targets; 0 where there are none."""
        return _half(self.moments.mean, 1)

    @property
    def target_squares(self) -> nx.Pair:
        """The sum of squares of the targets about their mean."""
        return _half(self.moments.powers[0], 1)


def _half(pair: nx.Pair, index: int) -> nx.Pair:
    return jnp.asarray(pair[0])[index], jnp.asarray(pair[1])[index]


class CrossMoments(_TwoVariables):
    """Means, variances and covariance of predictions and targets, stable at any offset.

    Args:
        shape: of one example; `()` for scalars.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import CrossMoments
        >>> seen = CrossMoments().update(jnp.array([1e6, 1e6 + 2]), jnp.array([5.0, 4.0]))
        >>> print(seen.co_moment[0])
        -1.0
    """

    def __init__(self, shape: tuple[int, ...] = ()):
        self.shape = tuple(shape)
        self.moments = Two(self.shape, crossed=True)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in `preds` and `target` of shape (..., *shape); `weights` count as repetitions.

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        p, t, w, invalid = pairs(preds, target, weights, self.shape)
        w = jnp.broadcast_to(as_float(w), p.shape)
        return self.replace(
            moments=self.moments._merge(self.moments.of_two(p, t, w)),
            invalid=self.invalid.update(invalid),
        )

    @property
    def preds_mean(self) -> nx.Pair:
        """The mean of the predictions; 0 where there are none."""
        return _half(self.moments.mean, 0)

    @property
    def preds_squares(self) -> nx.Pair:
        """The sum of squares of the predictions about their mean."""
        return _half(self.moments.powers[0], 0)

    @property
    def co_moment(self) -> nx.Pair:
        """The sum of products of the distances of both from their means."""
        return self.moments.co  # type: ignore[return-value]


class Residuals(_TwoVariables):
    """The moments of errors `preds - target` and of targets, and the sum of absolute errors.

    All that mean squared and absolute errors, R2 and explained variance are read from.

    Args:
        shape: of one example; `()` for scalars.
        extremes: whether to keep the least and the greatest target, too.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Residuals
        >>> seen = Residuals().update(jnp.array([1.0, 5.0]), jnp.array([2.0, 3.0]))
        >>> print(seen.absolute.value, seen.squares[0], seen.target_squares[0])
        3.0 5.0 0.5
    """

    def __init__(self, shape: tuple[int, ...] = (), *, extremes: bool = False):
        self.shape, self.extremes = tuple(shape), extremes
        self.moments = Two(self.shape)
        self.absolute = MetricAccumulator(np.zeros(self.shape))
        if extremes:
            self.least = MetricAccumulator(np.full(self.shape, np.inf), MetricReduceOp.min)
            self.greatest = MetricAccumulator(np.full(self.shape, -np.inf), MetricReduceOp.max)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """Folds in `preds` and `target` of shape (..., *shape); `weights` count as repetitions.

        Examples that hold a NaN or an infinity are excluded and counted.
        """
        p, t, w, invalid = pairs(preds, target, weights, self.shape)
        e = p - t
        w = jnp.broadcast_to(as_float(w), e.shape)
        absolute = jnp.where(w != 0, jnp.abs(e), jnp.zeros((), e.dtype)) * w
        updated = self.replace(
            moments=self.moments._merge(self.moments.of_two(e, t, w)),
            absolute=self.absolute.update(absolute),
            invalid=self.invalid.update(invalid),
        )
        if not self.extremes:
            return updated
        infinity = jnp.asarray(jnp.inf, t.dtype)
        return updated.replace(
            least=self.least.update(jnp.where(w != 0, t, infinity)),
            greatest=self.greatest.update(jnp.where(w != 0, t, -infinity)),
        )

    @property
    def bias_squares(self) -> nx.Pair:
        """The total weight times the square of the mean error."""
        mean = _half(self.moments.mean, 0)
        return nx.pair_product(self.count, nx.pair_product(mean, mean))

    @property
    def error_squares(self) -> nx.Pair:
        """The sum of squares of the errors about their mean."""
        return _half(self.moments.powers[0], 0)

    @property
    def squares(self) -> nx.Pair:
        """The sum of squares of the errors."""
        return nx.pair_add(self.error_squares, self.bias_squares)


def pairs(
    preds: Any,
    target: Any,
    weights: Any,
    shape: tuple[int, ...],
    domain: Callable[[jax.Array, jax.Array], jax.Array | None] = lambda p, t: None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Predictions and targets as floats, what each example counts, and which cannot be used.

    Args:
        preds: of shape (..., *shape).
        target: of the shape of `preds`.
        weights: broadcast against the leading axes.
        shape: of one example.
        domain: which finite values can be used; `None` for all.

    Returns:
        Both; the weight of each example, see `rows_weight`, with axes of size one for those of an
        example; and the mask of examples that cannot be used, without them.

    Raises:
        MetricInputError: shapes that differ, or do not end in `shape`.
    """
    preds, target = numeric(preds, "preds"), numeric(target, "target")
    same_shape(preds, target)
    batch = preds.ndim - len(shape)
    if batch < 0 or preds.shape[batch:] != shape:
        raise MetricInputError(
            f"preds and target of shape {preds.shape}; expected a shape that ends in {shape}, "
            f"one value for each of num_outputs"
        )
    p, t = as_float(preds), as_float(target)
    usable, defined = jnp.isfinite(p) & jnp.isfinite(t), domain(p, t)
    usable = usable if defined is None else usable & defined
    valid = jnp.all(usable, tuple(range(batch, p.ndim)))
    w, invalid = rows_weight(valid, weights)
    return p, t, jax.lax.expand_dims(w, range(w.ndim, p.ndim)), invalid
