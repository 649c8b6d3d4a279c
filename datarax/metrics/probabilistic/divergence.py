"""How far predicted distributions are from others."""

from math import log
from typing import Any, Self

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._checks import as_float, choice, numeric, same_shape
from datarax._errors import MetricInputError
from datarax.metrics.probabilistic.mean_score import MeanScore
from datarax.statistics.batches import is_distribution, rows_weight


class _Divergence(MeanScore):
    """The mean over pairs of distributions of what `_between` says of each."""

    def __init__(self, base: float | None, on_invalid: str):
        if base is not None and not base > 1:
            raise MetricInputError(
                f"base={base!r}; expected a number above 1, as 2 for bits, or None for nats"
            )
        self.base = base
        super().__init__(on_invalid)

    def update(self, preds: Any, target: Any, *, weights: Any = None) -> Self:
        """A new metric with the batch folded in; no communication."""
        preds, target = numeric(preds, "preds"), numeric(target, "target")
        same_shape(preds, target)
        if preds.ndim == 0 or preds.shape[-1] == 0:
            raise MetricInputError(
                f"preds of shape {preds.shape}; expected distributions along the last axis"
            )
        valid = is_distribution(preds) & is_distribution(target)
        score = self._between(as_float(preds), as_float(target))
        return self.replace(statistic=self.statistic.add(score, *rows_weight(valid, weights)))

    def _between(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        """The divergence of each pair, in nats."""
        raise TypeError(type(self).__name__)

    def compute(self) -> jax.Array:
        mean = self.statistic.mean
        return mean if self.base is None else mean / log(self.base)


class KLDivergence(_Divergence):
    """The mean Kullback-Leibler divergence of the predicted distributions from the targets.

    `D(target || preds) = sum over c of target[c] * log(target[c] / preds[c])`: how much is lost
    where the target is taken for `preds`. Infinite where `preds` rules out what `target` does not.

    `update(preds, target, *, weights=None)`: floats (..., C) each, distributions along the last
    axis. No data gives NaN.

    Args:
        reverse: `D(preds || target)` instead.
        base: of the logarithm; `None` for e (nats), 2 for bits.
        on_invalid: for rows that are no distribution (outside 0 to 1, or that do not sum to one
            within 3.5e-4, or the root of the dtype's eps where that is coarser) and negative
            weights: "exclude" and count them, "propagate" (the result is NaN), or "raise" when
            read on the host.

    As the sum of `scipy.special.rel_entr(target, preds)`, with small divergences to all their
    digits; rows are used as they are. Libraries differ in which argument comes first, and in
    raising zeros of `preds` to some epsilon, which makes a number up. A probability below the least
    normal float counts as zero. S. Kullback and R. A. Leibler (1951), On information and
    sufficiency.

    Raises:
        MetricInputError: shapes that differ; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import KLDivergence
        >>> preds, target = jnp.array([[0.25, 0.75]]), jnp.array([[0.5, 0.5]])
        >>> print(round(float(KLDivergence().update(preds, target).compute()), 4))
        0.1438
    """

    def __init__(
        self, *, reverse: bool = False, base: float | None = None, on_invalid: str = "exclude"
    ):
        choice(reverse, (False, True), "reverse")
        self.reverse = reverse
        super().__init__(base, on_invalid)

    def _between(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        p, q = (preds, target) if self.reverse else (target, preds)
        # Of each class p log(p / q) - p + q, which is not negative, so that no digits cancel; and
        # what the two sums differ by, which is near zero.
        over = nx.float_sum(p - q, (-1,))
        return nx.pair_add(over, nx.float_sum(_excess(p, q, q - p), (-1,)))[0]


class JensenShannonDivergence(_Divergence):
    """The mean Jensen-Shannon divergence of the predicted distributions and the targets.

    `(D(preds || m) + D(target || m)) / 2` with `m = (preds + target) / 2`: symmetric, never
    infinite, from 0 to log(2), which is 1 in bits.

    `update(preds, target, *, weights=None)`: floats (..., C) each, distributions along the last
    axis. No data gives NaN.

    Args:
        base: of the logarithm; `None` for e (nats), 2 for bits.
        on_invalid: "exclude", "propagate" or "raise", as for `KLDivergence`.

    The square of `scipy.spatial.distance.jensenshannon`, which is a distance; rows are used as they
    are, and not divided by their sums. J. Lin (1991), https://doi.org/10.1109/18.61115.

    Raises:
        MetricInputError: shapes that differ; shows both.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import JensenShannonDivergence
        >>> metric = JensenShannonDivergence(base=2)
        >>> print(metric.update(jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]])).compute())
        1.0
    """

    def __init__(self, *, base: float | None = None, on_invalid: str = "exclude"):
        super().__init__(base, on_invalid)

    def _between(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        # What is subtracted for preds is added for target.
        half = (target - preds) / 2
        middle = preds / 2 + target / 2
        both = _excess(preds, middle, half) + _excess(target, middle, -half)
        return jnp.sum(both, -1) / 2


def _excess(p: jax.Array, q: jax.Array, d: jax.Array) -> jax.Array:
    """`p * log(p / q) - p + q`, to some units however near `p` and `q` are; `d` is `q - p`."""
    both = p + q
    s = d / jnp.where(both > 0, both, 1)
    # log(q / p) = 2 atanh(s), whose first term leaves d * s of the difference.
    square = jnp.square(s)
    terms = 8 if p.dtype.itemsize == 4 else 17
    series = jnp.zeros_like(s)
    for k in reversed(range(terms)):
        series = series * square + 1 / (2 * k + 3)
    near = s * (d - 2 * p * square * series)
    some = p >= jnp.finfo(p.dtype).tiny
    far = jnp.where(some, d - p * jnp.log(q / jnp.where(some, p, 1)), q)
    return jnp.where(jnp.abs(s) < 1 / 3, near, far)
