"""Counts of what a router sends to each expert of a mixture, by layer."""

from typing import Self

import jax
import numpy as np

from datarax._checks import as_float, integers, numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, Weights
from datarax._xp import at, special, xp
from datarax.algebra.fields import field, state
from datarax.algebra.state import State
from datarax.numerics.digit_sums import sum_by_digits
from datarax.numerics.double_float import DoubleFloat
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range, on_leading_axes, rows_weight
from datarax.statistics.invalid_counts import Invalid, InvalidCounts, not_finite, out_of_range
from datarax.statistics.scaled_total import ScaledTotal, quotient, stacked
from datarax.statistics.scatter_counts import count_labels


class ExpertCounts(State):
    """For each layer: the assignments to each expert, and those that were dropped.

    Counts are sums of weights, kept as double-floats: without weights or with a mask, exact to
    2**48. Also the mean of `logsumexp(logits)**2` over the logits of the router.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics.health.expert_counts import ExpertCounts
        >>> seen = ExpertCounts(3).update(jnp.array([[0, 2], [1, 2], [0, 7]]))
        >>> print(seen.routed.to_float(), seen.invalid.value)
        [[2. 1. 2.]] 1
    """

    num_experts: int = field(kw_only=False)
    """The number of experts E."""
    num_layers: int | None = None
    """The number of layers with a router, which `layer` numbers from 0. With `None` there is one
    layer, and `layer` is not given."""

    counts: MetricAccumulator = state()
    """The weight of each expert and then of what was dropped, (layers, E + 1)."""
    squares: ScaledTotal = state()
    """The sums of `w * logsumexp(logits)**2` and of `w`, (2, layers)."""
    invalid = InvalidCounts()

    def __post_init__(self) -> None:
        positive_int(self.num_experts, "num_experts")
        if self.num_layers is not None:
            positive_int(self.num_layers, "num_layers")
        self.counts = MetricAccumulator(np.zeros((self._layers, self.num_experts + 1)))
        self.squares = ScaledTotal((2, self._layers))

    @property
    def _layers(self) -> int:
        return self.num_layers or 1

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
        at, unknown = self._layer(layer)
        unusable = out_of_range(~in_range(ids, self.num_experts), ids) | _over(unknown, ids.shape)
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
        layers, row = self.counts.shape[0], _spread(at, ids.shape, "layer")
        place = row * xp.int32(self.num_experts) + ids.astype(xp.int32)

        def count(w: jax.Array) -> jax.Array:
            routed = count_labels(place, w, layers * self.num_experts).reshape(layers, -1)
            of_lost = count_labels(row, xp.where(lost, w, 0), layers)
            return xp.concatenate([routed, of_lost[:, None]], -1)

        counts = self.counts.double + sum_by_digits(w, count)
        seen = self.replace(
            counts=self.counts.with_value(counts), invalid=self.invalid.update(invalid)
        )
        if number is not None:
            seen = seen._with_number_dropped(number, w, at)
        if router_logits is not None:
            logits = numeric(router_logits, "router_logits")
            seen = seen._with_logits(logits, ids.shape, (at, unknown), weights)
        return seen

    def _layer(self, layer: ArrayLike | None) -> tuple[jax.Array, Invalid]:
        """The layers as int32, and which of them there are not."""
        if (layer is None) != (self.num_layers is None):
            raise MetricInputError(
                f"layer= is given for num_layers={self.num_layers}: give both, or neither"
                if self.num_layers is None
                else f"num_layers={self.num_layers} needs layer=, the layer of each assignment"
            )
        at = xp.int32(0) if layer is None else integers(layer, "layer")
        unknown = out_of_range(~in_range(at, self.counts.shape[0]), at)
        return at.astype(xp.int32), unknown

    def _with_number_dropped(self, number: jax.Array, w: jax.Array, layer: jax.Array) -> Self:
        """The counts after a batch of rows of weight `w`, when so many of them were dropped."""
        if w.dtype != xp.bool_ or layer.ndim:
            raise MetricInputError(
                "dropped: a number is for a batch of one layer, without weights or with a mask; "
                "give a mask of what was dropped"
            )
        x, most = as_float(number), as_float(xp.sum(w, dtype=xp.int32))
        beyond = (x < 0) | (x > most)
        valid, invalid = rows_weight(not_finite(x) | out_of_range(beyond, x), None)
        cells = at(xp.zeros(self.counts.shape, xp.bool_))[:, -1].set(True)
        cells = cells & (xp.arange(self.counts.shape[0])[:, None] == layer)
        counts = self.counts.update(xp.where(cells & valid, number, xp.zeros((), number.dtype)))
        return self.replace(counts=counts, invalid=self.invalid.update(invalid))

    def _with_logits(
        self,
        logits: jax.Array,
        shape: tuple[int, ...],
        layer: tuple[jax.Array, Invalid],
        weights: Weights,
    ) -> Self:
        """The sums after logits (..., E), for assignments of a shape that starts with `...`."""
        rows = logits.shape[:-1]
        if logits.shape[-1:] != (self.num_experts,) or rows != shape[: len(rows)]:
            raise MetricInputError(
                f"router_logits of shape {logits.shape} and experts of shape {shape}; expected "
                f"logits (..., {self.num_experts}) for experts (...) or (..., k)"
            )
        at, unknown = layer
        z = special.logsumexp(as_float(logits), -1)
        w, invalid = rows_weight(not_finite(z) | _over(unknown, rows), weights)
        # One column for each layer; a row counts in one of them.
        layers = xp.arange(self.counts.shape[0], dtype=xp.int32)
        mine = _spread(at, rows, "layer")[..., None] == xp.broadcast_to(
            layers, (*rows, layers.size)
        )
        w = xp.where(mine, w[..., None], xp.zeros((), w.dtype))
        z = xp.where(mine, xp.abs(z)[..., None], 0)
        one = ScaledTotal((layers.size,))
        sums = stacked([one.of_powers(z, 2, w), one.of(w)])
        return self.replace(
            squares=self.squares.combine(sums), invalid=self.invalid.update(invalid)
        )


def _spread(x: jax.Array, shape: tuple[int, ...], name: str) -> jax.Array:
    """`x`, which broadcasts against the leading axes of `shape`, in that shape."""
    return xp.broadcast_to(on_leading_axes(x, shape, name), shape)


def _over(invalid: Invalid, shape: tuple[int, ...]) -> Invalid:
    """Invalid layers, as the invalid rows of a batch of this shape."""
    return jax.tree.map(lambda x: _spread(x, shape, "layer"), invalid)


def _mask(dropped: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, Invalid]:
    """The mask of the assignments that were dropped, and which of them are neither 0 nor 1."""
    dropped = _spread(dropped, shape, "dropped")
    if dropped.dtype == xp.bool_:
        return dropped, out_of_range(xp.zeros(shape, xp.bool_))
    x = as_float(dropped)
    return x == 1, not_finite(x) | out_of_range((x != 0) & (x != 1) & xp.isfinite(x), x)
