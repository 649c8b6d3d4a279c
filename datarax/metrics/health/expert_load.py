"""The balance of the loads that a router gives the experts of a mixture."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, integers, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import at, beside, special, xp
from datarax.algebra.fields import field, state
from datarax.metric.base import Metric
from datarax.metric.declared import shareable
from datarax.metrics.health.value_profile import checked_quantiles, quantile_name
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import broadcast_leading, in_range, rows_weight
from datarax.statistics.invalid_counts import CountsInvalid, Invalid, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient, stack_totals
from datarax.statistics.scatter_counts import count_labels


class ExpertCounts(CountsInvalid):
    """For each layer: the assignments to each expert, and those that were dropped.

    Counts are sums of weights, kept as double-floats: without weights or with a mask, exact to
    2**48. Also the mean of `logsumexp(logits)**2` over the logits of the router.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.expert_load import ExpertCounts
        >>> seen = ExpertCounts(3).update(jnp.array([[0, 2], [1, 2], [0, 7]]))
        >>> print(seen.routed.to_float(), seen.invalid.value)
        [[2. 1. 2.]] 1
    """

    terms_by_row = False

    num_experts: int = field(kw_only=False)
    """The number of experts E."""
    num_layers: int | None = None
    """The number of layers with a router, which `layer` numbers from 0. With `None` there is one
    layer, and `layer` is not given."""

    counts: MetricAccumulator = state()
    """The weight of each expert and then of what was dropped, (layers, E + 1)."""
    squares: ScaledTotal = state()
    """The sums of `w * logsumexp(logits)**2` and of `w`, (2, layers)."""

    def __post_init__(self) -> None:
        positive_int(self.num_experts, "num_experts")
        if self.num_layers is not None:
            positive_int(self.num_layers, "num_layers")
        layers = self.num_layers or 1
        self.counts = MetricAccumulator(np.zeros((layers, self.num_experts + 1)))
        self.squares = ScaledTotal((2, layers))

    @property
    def routed(self) -> DoubleFloat:
        """The weight of the assignments to each expert, (layers, E); those dropped included."""
        return self.counts.double[:, :-1]

    @property
    def dropped(self) -> DoubleFloat:
        """The weight of the assignments that were dropped, (layers,)."""
        return self.counts.double[:, -1]

    @property
    def mean_square(self) -> jax.Array:
        """The mean of `logsumexp(logits)**2`, (layers,); NaN without logits."""
        return quotient(self.squares[0], self.squares[1])

    def update(
        self,
        experts: ArrayLike,
        *,
        weights: Weights = None,
        dropped: ArrayLike | None = None,
        layer: ArrayLike | None = None,
        router_logits: ArrayLike | None = None,
    ) -> Self:
        """Folds in expert ids of any shape; the arguments are those of `ExpertLoad.update`."""
        ids = integers(experts, "experts", "integer ids")
        layer_ids, unknown = self._layer(layer)
        unusable = out_of_range(~in_range(ids, self.num_experts), ids) | _over(unknown, ids.shape)
        # `dropped` is a mask of the assignments, or how many of them were dropped.
        lost, number = xp.zeros(ids.shape, xp.bool_), None
        if dropped is not None:
            given = numeric(dropped, "dropped")
            if given.ndim or given.dtype == xp.bool_:
                lost, neither = _mask(given, ids.shape)
                unusable = unusable | neither
            else:
                number = given
        w, invalid = rows_weight(unusable, weights)
        # Cast only after the check of the range: a cast may wrap an invalid id to a valid one.
        layers, row = self.counts.shape[0], broadcast_leading(layer_ids, ids.shape, "layer")
        place = row * xp.int32(self.num_experts) + ids.astype(xp.int32)

        def count(w: jax.Array) -> jax.Array:
            # The router assigned what was dropped later, so it counts in both tables.
            routed = count_labels(place, w, layers * self.num_experts).reshape(layers, -1)
            of_lost = count_labels(row, xp.where(lost, w, 0), layers)
            return xp.concatenate([routed, of_lost[:, None]], -1)

        seen = self.with_batch(invalid, counts=self.counts.plus(sum_by_digits(w, count)))
        if number is not None:
            seen = seen._with_number_dropped(number, w, layer_ids)
        if router_logits is not None:
            logits = numeric(router_logits, "router_logits")
            seen = seen._with_logits(logits, ids.shape, (layer_ids, unknown), weights)
        return seen

    def _layer(self, layer: ArrayLike | None) -> tuple[jax.Array, Invalid]:
        """The layers as int32, and which of them are out of range."""
        if (layer is None) != (self.num_layers is None):
            raise MetricInputError(
                f"layer= is given for num_layers={self.num_layers}: give both, or neither"
                if self.num_layers is None
                else f"num_layers={self.num_layers} needs layer=, the layer of each assignment"
            )
        layer_ids = xp.int32(0) if layer is None else integers(layer, "layer")
        unknown = out_of_range(~in_range(layer_ids, self.counts.shape[0]), layer_ids)
        return layer_ids.astype(xp.int32), unknown

    def _with_number_dropped(self, number: jax.Array, w: jax.Array, layer: jax.Array) -> Self:
        """The counts with a number of dropped assignments added, of a batch of weights `w`."""
        if w.dtype != xp.bool_ or layer.ndim:
            raise MetricInputError(
                "dropped: a number is for a batch of one layer, without weights or with a mask; "
                "give a mask of what was dropped"
            )
        # No more can be dropped than there are assignments in the batch.
        x, most = as_float(number), as_float(xp.sum(w, dtype=xp.int32))
        beyond = (x < 0) | (x > most)
        valid, invalid = rows_weight(not_finite(x) | out_of_range(beyond, x), None)
        # The number is added to one cell: the last column, in the row of the layer.
        cells = at(xp.zeros(self.counts.shape, xp.bool_))[:, -1].set(True)
        cells = cells & (xp.arange(self.counts.shape[0])[:, None] == layer)
        counts = self.counts.update(xp.where(cells & valid, number, xp.zeros((), number.dtype)))
        return self.with_batch(invalid, counts=counts)

    def _with_logits(
        self,
        logits: jax.Array,
        shape: tuple[int, ...],
        layer: tuple[jax.Array, Invalid],
        weights: Weights,
    ) -> Self:
        """The sums after logits (..., E), for assignments of a shape that starts with `...`."""
        # A row of logits belongs to a token, which may have several assignments.
        rows = logits.shape[:-1]
        if logits.shape[-1:] != (self.num_experts,) or rows != shape[: len(rows)]:
            raise MetricInputError(
                f"router_logits of shape {logits.shape} and experts of shape {shape}; expected "
                f"logits (..., {self.num_experts}) for experts (...) or (..., k)"
            )
        layer_ids, unknown = layer
        z = special.logsumexp(as_float(logits), -1)
        w, invalid = rows_weight(not_finite(z) | _over(unknown, rows), weights)
        # One column for each layer; a row counts in one of them.
        layers = xp.arange(self.counts.shape[0], dtype=xp.int32)
        mine = broadcast_leading(layer_ids, rows, "layer")[..., None] == xp.broadcast_to(
            layers, (*rows, layers.size)
        )
        w = xp.where(mine, w[..., None], xp.zeros((), w.dtype))
        z = xp.where(mine, xp.abs(z)[..., None], 0)
        one = ScaledTotal((layers.size,))
        sums = stack_totals([one.of_powers(z, 2, w), one.of(w)])
        return self.with_batch(invalid, squares=self.squares.combine(sums))


def _over(invalid: Invalid, shape: tuple[int, ...]) -> Invalid:
    """Invalid layers, as the invalid rows of a batch of this shape."""
    return jax.tree.map(lambda x: broadcast_leading(x, shape, "layer"), invalid)


def _mask(dropped: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, Invalid]:
    """The mask of the assignments that were dropped, and which of them are neither 0 nor 1."""
    dropped = broadcast_leading(dropped, shape, "dropped")
    if dropped.dtype == xp.bool_:
        return dropped, out_of_range(xp.zeros(shape, xp.bool_))
    x = as_float(dropped)
    return x == 1, not_finite(x) | out_of_range((x != 0) & (x != 1) & xp.isfinite(x), x)


class ExpertLoad(Metric):
    """The balance of the loads that a router gives the experts of a mixture of experts.

    Every id is one assignment of a token to an expert. With `share` the part of the assignments
    that each expert gets, the result is a dict:

    - "share" (E,): as the router assigns them. Assignments that are dropped later count, too.
    - "max_share": the greatest share; 1 / E if the load is even.
    - "max_expert": the id of that expert, the first of equal ones; a float, so that it can be NaN.
    - "max_violation": how far that load is above the even one, as a part of it:
      `E * max_share - 1`; 0 if the load is even, E - 1 if one expert gets all.
    - "entropy": `-sum(share * log(share))`, in nats; log(E) if the load is even.
    - "balance": `1 / (E * sum(share**2))`; 1 if the load is even, 1 / E if one expert gets all.
      `E * sum(share**2)` is the auxiliary loss of the Switch Transformer with the shares in place
      of the mean probabilities, and 1 plus the squared coefficient of variation of the load.
    - "dropped": the part of the assignments that were dropped; 0 if no update gives them.
    - "router_z_loss": the mean of `logsumexp(logits)**2` over tokens; NaN without logits.

    With `num_layers`, all values have a leading axis of layers, and "max_violation_p50" and on are
    the `quantiles` over layers of "max_violation", "p100" being that of the worst layer; layers
    without data are left out. No data gives NaN. Counts are exact to 2**48 without weights or with
    a mask.

    W. Fedus, B. Zoph and N. Shazeer (2022), Switch Transformers, https://arxiv.org/abs/2101.03961,
    equation 4. N. Shazeer et al. (2017), https://arxiv.org/abs/1701.06538, section 4. B. Zoph et
    al. (2022), ST-MoE, https://arxiv.org/abs/2202.08906, equation 5. L. Wang et al. (2024),
    Auxiliary-loss-free load balancing, https://arxiv.org/abs/2408.15664, equation 4 (MaxVio).

    Raises:
        MetricInputError: a number of experts or layers that is not a positive integer, or quantiles
            that are not numbers from 0 to 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ExpertLoad
        >>> top_2 = jnp.array([[0, 1], [0, 2], [0, 1], [0, 3]])
        >>> load = ExpertLoad(4).update(top_2, dropped=jnp.array([[0, 0], [0, 0], [1, 0], [1, 0]]))
        >>> for name, value in load.results().items():
        ...     print(name, value)
        balance 0.7272727272727273
        dropped 0.25
        entropy 1.2130075659799042
        max_expert 0.0
        max_share 0.5
        max_violation 1.0
        router_z_loss nan
        share [0.5   0.25  0.125 0.125]
    """

    num_experts: int = field(kw_only=False)
    """The number of experts E, which are numbered from 0."""
    num_layers: int | None = None
    """The number of layers that have a router. `update` then takes `layer`."""
    quantiles: Sequence[float] = (0.5, 0.9, 1.0)
    """Of layers: numbers from 0 to 1. The quantile q is the least violation such that a fraction q
    of the layers has at most that."""

    statistic: ExpertCounts = state()
    broadcast_arguments = ("layer",)

    def __post_init__(self) -> None:
        self.quantiles = checked_quantiles(self.quantiles)
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
                routing to k experts. An id out of range is invalid.
            weights: broadcast against the leading axes of `experts`, and of `router_logits`.
            dropped: which assignments were dropped, because the expert had no capacity left: a mask
                (booleans, or 0 and 1) that broadcasts against the leading axes of `experts`. Or a
                number of zero dimensions: how many were; then weights must be a mask. `None`: none.
            layer: with `num_layers`, the layer of the assignments: integers that broadcast against
                the leading axes of `experts`, such as `jnp.arange(L)` for ids (L, tokens, k). A
                layer out of range is invalid.
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
        # Without data, all are 0 / 0: NaN. `max_expert` and `entropy` would not be.
        share = routed / total[:, None]
        greatest = _greatest(share)
        values = {
            "share": share.to_float(),
            "max_share": greatest.to_float(),
            "max_violation": (greatest * self.num_experts - 1).to_float(),
            "max_expert": nan_where(total.high == 0, _first_greatest(routed)),
            "entropy": nan_where(total.high == 0, _entropy(share, routed, total)),
            "balance": (1 / ((share * share).sum(-1) * self.num_experts)).to_float(),
            "dropped": (self.statistic.dropped / total).to_float(),
            "router_z_loss": self.statistic.mean_square,
        }
        # Without `num_layers` there is one layer, and results have no axis of layers.
        if self.num_layers is None:
            return {name: x[0] for name, x in values.items()}
        of_layers = _quantiles(values["max_violation"], self.quantiles)
        return values | {f"max_violation_{name}": x for name, x in of_layers.items()}


def _quantiles(x: jax.Array, quantiles: Sequence[float]) -> dict[str, jax.Array]:
    """Quantiles of values (N,) without NaN, by name; NaN if there are none."""
    known = ~xp.isnan(x)
    ordered, number = xp.sort(xp.where(known, x, xp.inf)), xp.sum(known, dtype=xp.int32)
    found = {}
    for q in quantiles:
        # For each number of values, the place of the quantile; in fractions, as 0.7 * 10 rounds.
        places = [max(ceil(Fraction(str(q)) * n) - 1, 0) for n in range(x.size + 1)]
        place = beside(number, np.array(places, np.int32))[number]
        found[quantile_name(q)] = nan_where(number == 0, ordered[place])
    return found


def _first_greatest(x: DoubleFloat) -> jax.Array:
    """The index of the greatest number along the last axis, the first of equal ones, as a float."""
    return xp.argmax(_low_of_highest(x), -1).astype(x.dtype)


def _greatest(x: DoubleFloat) -> DoubleFloat:
    """The greatest number along the last axis."""
    return DoubleFloat(xp.max(x.high, -1), xp.max(_low_of_highest(x), -1))


def _low_of_highest(x: DoubleFloat) -> jax.Array:
    """The low parts where the high part is the greatest along the last axis; elsewhere -inf."""
    # They decide between equal high parts.
    highest = x.high == xp.max(x.high, -1, keepdims=True)
    return xp.where(highest, x.low, -xp.inf)


def _entropy(share: DoubleFloat, routed: DoubleFloat, total: DoubleFloat) -> jax.Array:
    """`-sum(p * log(p))` over the last axis."""
    # Near 1, the logarithm of a rounded share would have few digits: it is taken of the rest.
    p, rest = share.to_float(), ((total[:, None] - routed) / total[:, None]).to_float()
    near = rest < 0.5
    log = xp.where(near, xp.log1p(-xp.where(near, rest, 0)), xp.log(xp.where(p > 0, p, 1)))
    # The sum of no terms but zeros is -0.0.
    return 0 - xp.sum(xp.where(p > 0, p * log, 0), -1)
