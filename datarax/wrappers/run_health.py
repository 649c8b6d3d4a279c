"""`health`: the metrics that a training run needs at least, in one collection."""

from typing import Self

from datarax._checks import numeric, positive_int
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import xp
from datarax.algebra.fields import field
from datarax.metric.base import Metric
from datarax.metrics.aggregation.recent import Rate
from datarax.metrics.aggregation.summary import Mean
from datarax.metrics.health.loss_spikes import LossSpikes
from datarax.metrics.health.tree_health import TreeHealth
from datarax.statistics.accumulator import MetricAccumulator
from datarax.wrappers.collection import Collection


class TokenRate(Metric):
    """The tokens so far, and per second, of steps that all have the same number of tokens."""

    tokens: int = field(kw_only=False)
    """The number of tokens of a step."""

    total = MetricAccumulator(0)
    rate = Rate()
    broadcast_arguments = ("elapsed",)

    def __post_init__(self) -> None:
        positive_int(self.tokens, "tokens")
        if self.tokens >= 2**31:
            raise MetricInputError(f"tokens={self.tokens}; expected less than 2**31 in a step")

    def update(self, elapsed: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with a step folded in; see `Rate`. A step has weight 0 or 1."""
        seconds = numeric(elapsed, "elapsed")
        tokens = xp.full(seconds.shape, self.tokens, xp.int32)
        # A step counts or it does not: its weight is not a share of its tokens.
        steps = None if weights is None else numeric(weights, "weights").astype(xp.bool_)
        return self.replace(
            total=self.total.update(tokens, where=steps),
            rate=self.rate.update(tokens, seconds, weights=steps),
        )

    def compute(self) -> PyTree:
        return {"per_second": self.rate.compute(), "total": self.total.value}


def health(params: PyTree, tokens: int | None = None, *, groups: PyTree = 1) -> Collection:
    """A collection with what should be watched in any training run.

    It holds:

    - "loss": the mean of the output `loss`.
    - "spikes": the steps at which `loss` jumped: `LossSpikes`.
    - "tree": norms and NaN of the outputs `params`, `grads` and `updates`, in all and by group:
      `TreeHealth`. Each of the three may be left out.
    - "tokens", if `tokens` is given: their number so far, and per second: `Rate`.

    `update` takes the outputs by name: `loss`, the integer `step`, any of `params`, `grads` and
    `updates`, and with `tokens` also `elapsed`. Outputs of other metrics may be added to the
    collection with `|`. All members can be used in every way in which a collection can, also with
    `per_device` and a collector; `TreeHealth` and `LossSpikes` say how they depend on `step`.

    Args:
        params: the parameters, or a pytree of `jax.ShapeDtypeStruct`s; only paths and shapes are
            kept.
        tokens: the number of tokens (or examples) that all devices together process in one step,
            if it is the same in all steps. Then `update` takes `elapsed`, the seconds by the host's
            clock from the start of the run, or of the window, to the end of the step.
        groups: as for `TreeHealth`; by default one group for each top-level part of `params`.

    Raises:
        MetricInputError: `tokens` is not a positive integer; or as for `TreeHealth`.

    Example:
        >>> import jax.numpy as jnp
        >>> import datarax
        >>> params = {"dense": jnp.array([3.0, 4.0]), "head": jnp.array([12.0])}
        >>> metrics = datarax.health(params, tokens=4096)
        >>> metrics = metrics.update(loss=2.5, params=params, step=0, elapsed=0.5)
        >>> metrics = metrics.update(loss=1.5, params=params, step=1, elapsed=1.0)
        >>> seen = metrics.results()
        >>> print(seen["loss"], seen["tree/param_norm"], seen["tree/head/param_norm"])
        2.0 13.0 12.0
        >>> print(seen["tokens/total"], seen["tokens/per_second"], seen["tree/first_nonfinite"])
        8192 8192.0 None
    """
    members: dict[str, Metric] = {
        "loss": Mean().from_outputs(values="loss"),
        "spikes": LossSpikes().from_outputs(values="loss"),
        "tree": TreeHealth(like=params, groups=groups),
    }
    if tokens is not None:
        # Weights of examples say nothing of the tokens of a step.
        members["tokens"] = TokenRate(tokens).from_outputs(weights=None)
    return Collection(members)
