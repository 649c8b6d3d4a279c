"""Statistics of the activations of a network, by layer."""

from collections.abc import Mapping, Sequence
from typing import Self

from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metrics.health.value_profile import ValueProfile


class ActivationStats(Metric):
    """Moments, extremes, quantiles and fractions of activations, by layer.

    With `layers`, `update` takes a dict of arrays, and the names of the results start with that of
    the layer: "block0/mean". Without, it takes one array. For every layer:

    - "mean", "std": of all activations as one population; "rms": the root of the mean square.
    - "max_abs": the greatest magnitude.
    - "dead": the fraction that is zero, as after a ReLU. Subnormal numbers count as zero, because
      some devices flush them.
    - "saturated": the fraction of magnitude `saturation` or more; only if that is given.
    - "p1", "p50", "p99": the `quantiles`, each estimated to 3 % of the value with 10 bits (half for
      each bit more), or to 2**-19 of the greatest magnitude, whichever is more.

    Activations of any shape and dtype are read in float32 (float64 with x64), bfloat16 too. NaN and
    infinities are invalid. No data gives NaN.

    An update reads the activations a few times; most of its time goes into the histogram, which
    `quantiles=()` leaves out. Then a layer takes some 100 bytes; a histogram takes 20 kB with 10
    bits, and twice that for each bit more. Arrays that are sharded over devices are gathered for a
    histogram, but not by a `per_device` metric, which needs arrays with one leading axis.

    Raises:
        MetricInputError: layers that are not distinct names; quantiles that are not from 0 to 1;
            a `saturation` that is not above 0; bits that are not from 10 to 22.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import ActivationStats
        >>> stats = ActivationStats(layers=("embed", "mlp"), quantiles=(0.5,), saturation=6.0)
        >>> x = jnp.array([[0.0, 2.0], [0.0, 6.0]], jnp.bfloat16)
        >>> results = stats.update({"embed": x - 2, "mlp": x}).results()
        >>> print(results["embed/mean"], results["mlp/p50"], results["mlp/max_abs"])
        0.0 0.0 6.0
        >>> print(results["mlp/dead"], results["mlp/saturated"])
        0.5 0.25
    """

    layers: Sequence[str] | None = None
    """The names of the layers; `None` for one array."""
    quantiles: Sequence[float] = (0.01, 0.5, 0.99)
    """Numbers from 0 to 1: 0.01 gives "p1". `()` leaves the histogram out."""
    saturation: float | None = None
    """A magnitude: 6 for a ReLU6, a little less than 1 for a tanh."""
    bits: int = 10
    """The resolution of the quantiles, from 10 to 22."""

    profiles: tuple[ValueProfile, ...] = state()

    def __post_init__(self) -> None:
        if self.layers is not None:
            names = self.layers
            # A string is refused: as a sequence, it would name one layer for each letter.
            self.layers = tuple(names) if isinstance(names, tuple | list) else ()
            named = all(isinstance(name, str) and name for name in self.layers)
            if not self.layers or not named or len(set(self.layers)) < len(self.layers):
                raise MetricInputError(f"layers={names!r}; expected a tuple of distinct names")
        # The profile checks `quantiles`, `saturation` and `bits`; all layers start as this one.
        one = ValueProfile.from_fields(self)
        self.quantiles, self.saturation = one.quantiles, one.saturation
        self.profiles = (one,) * len(self.layers or (None,))

    def update(
        self, activations: ArrayLike | Mapping[str, ArrayLike], *, weights: Weights = None
    ) -> Self:
        """A new metric with the batch folded in; no communication.

        Args:
            activations: an array of any shape; with `layers`, a mapping with an array for each of
                them. Other arrays in it are ignored.
            weights: broadcast against the leading axes of the activations of each layer. An
                activation of weight zero does not count, even if it is NaN.

        Raises:
            MetricInputError: the activations of a layer are missing; names it. Or weights that do
                not broadcast; shows both shapes.
            MetricTypeError: activations that are not numbers; a mapping without `layers`, or the
                reverse.
        """
        if isinstance(activations, Mapping) != (self.layers is not None):
            expected = "an array" if self.layers is None else f"a dict of {', '.join(self.layers)}"
            raise MetricTypeError(
                f"activations: expected {expected} for layers={self.layers}; got "
                f"{type(activations).__name__}"
            )
        arrays: list[ArrayLike] = [activations]  # type: ignore[list-item]
        if isinstance(activations, Mapping):
            missing = [name for name in self.layers or () if name not in activations]
            if missing:
                raise MetricInputError(
                    f"activations: {', '.join(missing)} missing; given: {', '.join(activations)}"
                )
            # In the order of `layers`: `jit` sorts the names of a dict.
            arrays = [activations[name] for name in self.layers or ()]
        updated = (
            profile.update(x, weights=weights)
            for profile, x in zip(self.profiles, arrays, strict=True)
        )
        return self.replace(profiles=tuple(updated))

    def compute(self) -> PyTree:
        if self.layers is None:
            return self.profiles[0].values()
        return {
            f"{layer}/{name}": value
            for layer, profile in zip(self.layers, self.profiles, strict=True)
            for name, value in profile.values().items()
        }
