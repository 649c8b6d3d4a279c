"""What metrics of scores share: the statistic that they read, and their arguments."""

from typing import Any

import jax
import jax.numpy as jnp

from datarax import numerics as nx
from datarax._errors import MetricInputError
from datarax.metrics.base import Metric, check_policy
from datarax.numerics.pairs import power_of
from datarax.statistics.score_buffer import ScoreBuffer
from datarax.statistics.score_histogram import ScoreHistogram
from datarax.statistics.scores import Groups


class ScoredMetric(Metric):
    """A metric of scores, which are kept in a histogram or, to be exact, in a buffer."""

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        num_labels: int | None = None,
        bits: int | None = None,
        exact: bool = False,
        capacity: int | None = None,
        ignore_index: int | None = None,
        on_invalid: str = "exclude",
    ):
        self.on_invalid = check_policy(on_invalid)
        tasks: dict[str, Any] = {"num_classes": num_classes, "num_labels": num_labels}
        if not exact:
            if capacity is not None:
                raise MetricInputError(f"capacity={capacity!r} is for exact=True; leave it out")
            self.statistic = ScoreHistogram(**tasks, bits=bits, ignore_index=ignore_index)
            return
        if capacity is None or bits is not None:
            raise MetricInputError(
                f"exact=True with capacity={capacity!r} and bits={bits!r}; expected capacity=, how "
                f"many examples to keep, and no bits="
            )
        self.statistic = ScoreBuffer(capacity, **tasks, ignore_index=ignore_index)

    def _groups(self) -> Groups:
        """What was seen, over one power of two for all: products then keep within floats.

        Whatever weights are measured in, results are the same: they are ratios.
        """
        groups = self.statistic.groups()
        positives, negatives = groups.totals
        scale = power_of(jnp.max(jnp.maximum(positives[0], negatives[0])))

        def part(weights: nx.Pair) -> nx.Pair:
            return weights[0] * scale, weights[1] * scale

        return groups._replace(
            positives=part(groups.positives),
            negatives=part(groups.negatives),
            positives_above=part(groups.positives_above),
            negatives_above=part(groups.negatives_above),
        )

    def _by_task(self, values: Any) -> Any:
        """Values by class, as results: binary has but one."""
        if self.statistic.num_classes or self.statistic.num_labels:
            return values
        return jax.tree.map(lambda x: x[0], values)


def number_from(value: Any, name: str, *, above: float = -1.0, below: float = 2.0) -> float:
    """A number from 0 to 1, above and below others where that is asked for."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= 1 and above < value < below):
        low, high = ("above", above) if above >= 0 else ("from", 0)
        until, end = ("below", below) if below <= 1 else ("to", 1)
        raise MetricInputError(f"{name}={value!r}; expected a number {low} {high} {until} {end}")
    return float(value)


def excess(z: jax.Array) -> jax.Array:
    """`z - log(1 + z)` for `z >= 0`, without the cancellation."""
    coefficients = [(-1) ** k / k for k in range(2, 12)]
    small = jnp.minimum(z, jnp.asarray(0.125, z.dtype))
    series = jnp.polyval(jnp.asarray([*reversed(coefficients), 0.0, 0.0], z.dtype), small)
    return jnp.where(z < 0.125, series, z - jnp.log1p(z))


def spread(total: nx.Pair, shape: tuple[int, ...]) -> nx.Pair:
    """A pair by class, of shape (size,), for every group: (size, groups)."""
    return jnp.broadcast_to(total[0][:, None], shape), jnp.broadcast_to(total[1][:, None], shape)


def minus(a: nx.Pair) -> nx.Pair:
    """The negation of a pair."""
    return -a[0], -a[1]


def among_highest(
    within: nx.Pair, above: nx.Pair, total: nx.Pair, rate: float
) -> tuple[nx.Pair, jax.Array]:
    """How much of each group is among the fraction `rate` of highest scores; and as a share of it.

    Args:
        within: the weight of each group, of shape (size, groups).
        above: the weight of all higher groups.
        total: the weight of all groups, of shape (size,).
        rate: from 0 to 1.
    """
    wanted = nx.pair_scale(total, jnp.full_like(total[0], rate))
    room = nx.pair_add(spread(wanted, within[0].shape), minus(above))
    full = nx.pair_add(room, minus(within))[0] >= 0
    none, zero, one = room[0] <= 0, *(jnp.asarray(x, room[0].dtype) for x in (0, 1))
    high, low = (
        jnp.where(full, n, jnp.where(none, zero, r)) for n, r in zip(within, room, strict=True)
    )
    share = nx.pair_divide((high, low), within)
    return (high, low), jnp.where(full, one, jnp.where(none, zero, share))
