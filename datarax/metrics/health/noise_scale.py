"""`GradientNoiseScale`: how large a batch is worth while, from gradients of two batch sizes."""

from typing import Any, Self

import numpy as np

from datarax._checks import as_float, numeric
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._update_context import raises_for
from datarax._xp import xp
from datarax.metric.base import Metric
from datarax.numerics.double_float import DoubleFloat, float_difference
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import broadcast_leading, rows_weight
from datarax.statistics.invalid_counts import InvalidCounts, not_finite, out_of_range, with_batch
from datarax.statistics.scaled_total import ScaledTotal, quotient


class GradientNoiseScale(Metric):
    """The simple noise scale: the batch size at which noise and gradient are of equal size.

    `compute` gives a dict:

    - "trace": the trace of the covariance of the gradient of one example,
      `mean((small - big) / (1 / b - 1 / B))`.
    - "square_norm": the square of the norm of the true gradient,
      `mean((B * big - b * small) / (B - b))`.
    - "noise_scale": their quotient, in examples; NaN where "square_norm" is not positive, as it may
      be after few steps.

    `small` and `big` are the squared norms of gradients that are means over `b` and over `B`
    examples. Both means are unbiased; their quotient is not, so it is taken at the end, over as
    many steps as possible. Near a minimum, where the gradient vanishes, it takes many. No data
    gives NaN. S. McCandlish et al. (2018), An Empirical Model of Large-Batch Training, appendix
    A.1, https://arxiv.org/abs/1812.06162.

    Data-parallel training has both gradients: that of each device, and their mean. The small one
    must be that of one device, before the mean is taken:

        def step(metric, params, batch):  # inside shard_map, over the axis "data"
            grads = jax.grad(loss)(jax.lax.pcast(params, "data", to="varying"), batch)
            mean = jax.lax.pmean(grads, "data")
            small, big = (optax.tree.norm(tree, squared=True) for tree in (grads, mean))
            return metric.update(small, big, small_batch=32, big_batch=256).sync("data")

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import GradientNoiseScale
        >>> norms = jnp.array([9.0, 11.0])  # squared, of two devices with 8 examples each
        >>> metric = GradientNoiseScale().update(norms, 6.0, small_batch=8, big_batch=16)
        >>> print(metric.results())
        {'noise_scale': 32.0, 'square_norm': 2.0, 'trace': 64.0}
    """

    sums = ScaledTotal((3,))
    """The sums of the estimates of the trace, of those of the squared norm, and of the weights."""
    invalid = InvalidCounts()
    broadcast_arguments = ("big_square_norm", "small_batch", "big_batch")

    def update(
        self,
        small_square_norm: ArrayLike,
        big_square_norm: ArrayLike,
        small_batch: ArrayLike,
        big_batch: ArrayLike,
        *,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the gradients of a step folded in; no communication.

        Args:
            small_square_norm: the squared norms of gradients over `small_batch` examples each, of
                any shape. Several of one step, as of all devices, make the estimate better.
            big_square_norm: the squared norm of the gradient over `big_batch` examples, of the same
                step; broadcasts against the leading axes of `small_square_norm`.
            small_batch: a number of examples, above 0; broadcasts likewise.
            big_batch: a greater number of examples; broadcasts likewise.
            weights: broadcast against the leading axes of `small_square_norm`.

        Raises:
            MetricInputError: shapes that do not broadcast; shows both. Or batch sizes on
                the host, with the small one not between 0 and the big one.
        """
        if raises_for(small_batch, big_batch):
            _check_sizes(small_batch, big_batch)
        small = as_float(numeric(small_square_norm, "small_square_norm"))
        others = zip(
            self.broadcast_arguments, (big_square_norm, small_batch, big_batch), strict=True
        )
        big, b, n = (
            broadcast_leading(as_float(numeric(x, name)), small.shape, name) for name, x in others
        )
        unusable = not_finite(small) | not_finite(big) | not_finite(b) | not_finite(n)
        unusable |= out_of_range((small < 0) | (big < 0), xp.minimum(small, big))
        unusable |= out_of_range((b <= 0) | (n <= b), b)
        w, invalid = rows_weight(unusable, weights)
        # Rows that do not count get numbers for which the formulas are finite.
        counts = w.astype(xp.bool_)
        small, big, b, n = (
            xp.where(counts, x, xp.asarray(harmless, x.dtype))
            for x, harmless in ((small, 0), (big, 0), (b, 1), (n, 2))
        )
        # E[small] = |G|^2 + trace / b and E[big] = |G|^2 + trace / n, with G the true gradient. So
        # (small - big) b / (n - b) estimates trace / n, the noise of the big gradient. It is in
        # both estimates, and each of them is rounded once.
        share = DoubleFloat.of(b).finite / float_difference(n, b)
        noise = float_difference(small, big) * share
        trace = (DoubleFloat.of(n) * noise).to_float()
        square = (DoubleFloat.of(big) - noise).to_float()
        sums = self.sums.plus((trace, w), (square, w), (xp.broadcast_to(w, trace.shape), None))
        return with_batch(self, invalid, sums=sums)

    def compute(self) -> PyTree:
        trace, square, weight = (self.sums[i] for i in range(3))
        square_norm = quotient(square, weight)
        return {
            # A quotient of sums: that of the means, which have the same weight.
            "noise_scale": nan_where(~(square_norm > 0), quotient(trace, square)),
            "square_norm": square_norm,
            "trace": quotient(trace, weight),
        }


def _check_sizes(small: Any, big: Any) -> None:
    """Raises unless two numbers of examples are in order."""
    # Of arrays, single rows that are out of order are counted as invalid.
    if np.ndim(small) == 0 == np.ndim(big) and not 0 < small < big:
        raise MetricInputError(
            f"small_batch={small} and big_batch={big}; expected 0 < small_batch < big_batch"
        )
