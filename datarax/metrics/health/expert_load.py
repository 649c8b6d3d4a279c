"""How evenly a router loads the experts of a mixture."""

from typing import Self

import jax

from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field, state
from datarax.metrics.base import Metric, shareable
from datarax.metrics.health.expert_counts import ExpertCounts
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where


class ExpertLoad(Metric):
    """How evenly a router loads the experts of a mixture of experts.

    Every id is one assignment of a token to an expert. With `share` the part of the assignments
    that each expert gets, the result is a dict:

    - "share" (E,): as the router assigns them. Assignments that are dropped later count, too.
    - "max_share": the greatest share; 1 / E if the load is even.
    - "max_expert": the id of that expert, the first of equal ones; a float, so that it can be NaN.
    - "entropy": `-sum(share * log(share))`, in nats; log(E) if the load is even.
    - "balance": `1 / (E * sum(share**2))`; 1 if the load is even, 1 / E if one expert gets all.
      `E * sum(share**2)` is the auxiliary loss of the Switch Transformer with the shares in place
      of the mean probabilities, and 1 plus the squared coefficient of variation of the load.
    - "dropped": the part of the assignments that were dropped; 0 if no update says any were.
    - "router_z_loss": the mean of `logsumexp(logits)**2` over tokens; NaN without logits.

    With `num_layers`, all values have a leading axis of layers. No data gives NaN. Counts are exact
    to 2**48 without weights or with a mask.

    W. Fedus, B. Zoph and N. Shazeer (2022), Switch Transformers, https://arxiv.org/abs/2101.03961,
    equation 4. N. Shazeer et al. (2017), https://arxiv.org/abs/1701.06538, section 4. B. Zoph et
    al. (2022), ST-MoE, https://arxiv.org/abs/2202.08906, equation 5.

    Raises:
        MetricInputError: a number of experts or layers that is not a positive integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExpertLoad
        >>> top_2 = jnp.array([[0, 1], [0, 2], [0, 1], [0, 3]])
        >>> load = ExpertLoad(4).update(top_2, dropped=jnp.array([[0, 0], [0, 0], [1, 0], [1, 0]]))
        >>> for name, value in load.results().items():
        ...     print(name, value)
        balance 0.7272727272727273
        dropped 0.25
        entropy 1.2130075693130493
        max_expert 0.0
        max_share 0.5
        router_z_loss nan
        share [0.5   0.25  0.125 0.125]
    """

    num_experts: int = field(kw_only=False)
    """The number of experts E, which are numbered from 0."""
    num_layers: int | None = None
    """The number of layers that have a router. `update` then takes `layer`."""

    statistic: ExpertCounts = state()
    broadcast_arguments = ("layer",)

    def __post_init__(self) -> None:
        self.statistic = ExpertCounts.from_fields(self)

    @shareable
    def update(
        self,
        experts: ArrayLike,
        *,
        weights: Weights = None,
        dropped: ArrayLike | None = None,
        layer: ArrayLike | None = None,
        router_logits: ArrayLike | None = None,
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            experts: the ids of experts, integers of any shape: (tokens,), or (tokens, k) for
                routing to k experts. An id that no expert has is invalid.
            weights: broadcast against the leading axes of `experts`, and of `router_logits`.
            dropped: which assignments were dropped, because the expert had no capacity left: a mask
                (booleans, or 0 and 1) that broadcasts against the leading axes of `experts`. Or a
                number of zero dimensions: how many were; then weights must be a mask. `None`: none.
            layer: with `num_layers`, the layer of the assignments: integers that broadcast against
                the leading axes of `experts`, such as `jnp.arange(L)` for ids (L, tokens, k). One
                that there is not is invalid.
            router_logits: (..., E), for experts (...) or (..., k). Rows whose `logsumexp` is not
                finite are invalid, and leave the counts of the experts as they are.

        Raises:
            MetricInputError: shapes that do not fit together, shows them; or `layer` is given
                without `num_layers`, or the reverse.
            MetricTypeError: ids or layers that are not integers.
        """
        seen = self.statistic.update(
            experts, weights=weights, dropped=dropped, layer=layer, router_logits=router_logits
        )
        return self.replace(statistic=seen)

    def compute(self) -> PyTree:
        routed = self.statistic.routed
        total = routed.sum(-1)
        share = routed / total[:, None]
        values = {
            "share": share.to_float(),
            "max_share": xp.max(share.high, -1),
            "max_expert": nan_where(total.high == 0, _first_greatest(routed)),
            "entropy": nan_where(total.high == 0, _entropy(share, routed, total)),
            "balance": (1 / ((share * share).sum(-1) * self.num_experts)).to_float(),
            "dropped": (self.statistic.dropped / total).to_float(),
            "router_z_loss": self.statistic.mean_square,
        }
        return values if self.num_layers else {name: x[0] for name, x in values.items()}


def _first_greatest(x: DoubleFloat) -> jax.Array:
    """The index of the greatest number along the last axis, the first of equal ones, as a float."""
    highest = x.high == xp.max(x.high, -1, keepdims=True)
    low = xp.where(highest, x.low, -xp.inf)
    return xp.argmax(low, -1).astype(x.dtype)


def _entropy(share: DoubleFloat, routed: DoubleFloat, total: DoubleFloat) -> jax.Array:
    """`-sum(p * log(p))` over the last axis."""
    # Near 1, the logarithm of a rounded share would have few digits: it is taken of the rest.
    p, rest = share.high, ((total[:, None] - routed) / total[:, None]).high
    near = rest < 0.5
    log = xp.where(near, xp.log1p(-xp.where(near, rest, 0)), xp.log(xp.where(p > 0, p, 1)))
    # The sum of no terms but zeros is -0.0.
    return 0 - xp.sum(xp.where(p > 0, p * log, 0), -1)
