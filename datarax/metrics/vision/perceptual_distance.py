"""Distance of images in the feature maps of a network."""

from collections.abc import Callable, Sequence

import jax

from datarax._checks import as_float, real
from datarax._errors import MetricInputError
from datarax._xp import xp
from datarax.metrics.vision.features import check_function
from datarax.metrics.vision.image_score import ImageScore
from datarax.metrics.vision.spectral_quality import unit_spectra


class PerceptualDistance(ImageScore):
    """Distance of two images in the feature maps of a network, the mean over images: as LPIPS.

    The features of each pixel are divided by their norm over channels. The squared differences are
    summed over channels, with `channel_weights`, averaged over the pixels of a map, and summed over
    maps. An image whose features are not finite is invalid. No data gives NaN. With the network
    and the channel weights of LPIPS, it is that distance. R. Zhang and others (2018),
    https://doi.org/10.1109/CVPR.2018.00068.

    Raises:
        MetricTypeError: `features` cannot be called or hashed.
        MetricInputError: `features` gives something else than maps (N, h, w, c), or
            `channel_weights` do not fit them.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import PerceptualDistance
        >>> def edges(images):  # a network gives more maps, of more channels
        ...     steps = jnp.diff(images, axis=1)[:, :, 1:], jnp.diff(images, axis=2)[:, 1:]
        ...     return [jnp.concatenate(steps, -1)]
        >>> ramp = jnp.arange(4.0)[None, :, None, None] * jnp.ones((1, 4, 4, 1))
        >>> metric = PerceptualDistance(features=edges).update(ramp, ramp.swapaxes(1, 2))
        >>> print(round(float(metric.compute()), 4))
        2.0
    """

    higher_is_better = False
    features: Callable[[jax.Array], Sequence[jax.Array]]
    """Maps images (N, H, W, C) to a list of feature maps (N, h, w, c), each image by itself. A
    function is configuration: see `FID`."""
    channel_weights: tuple[tuple[float, ...], ...] | None = None
    """The weights of the channels of each map; `None` for 1."""

    def __post_init__(self) -> None:
        check_function(self.features)
        if self.channel_weights is not None:
            self.channel_weights = tuple(
                tuple(real(weight, "channel_weights") for weight in weights)
                for weights in self.channel_weights
            )

    def image_scores(self, *images: jax.Array) -> jax.Array:
        preds, target = (list(self.features(x)) for x in images)
        weights = self.channel_weights or [None] * len(preds)
        if not preds or len(weights) != len(preds):
            raise MetricInputError(
                f"features gave {len(preds)} maps; expected one or more, and as many "
                f"channel_weights, got {len(weights)}"
            )
        return sum(
            (_map_distance(*each) for each in zip(preds, target, weights, strict=True)),
            start=xp.zeros(len(images[0]), as_float(preds[0]).dtype),
        )


def _map_distance(p: jax.Array, t: jax.Array, weights: tuple[float, ...] | None) -> jax.Array:
    """The distance (N,) of two maps of features."""
    if p.ndim != 4 or (weights is not None and len(weights) != p.shape[-1]):
        given = "" if weights is None else f" and {len(weights)} channel_weights"
        raise MetricInputError(
            f"features gave a map of shape {p.shape}{given}; expected (N, h, w, c) and c weights"
        )
    difference = unit_spectra(as_float(p))[0] - unit_spectra(as_float(t))[0]
    w = xp.asarray(1.0 if weights is None else weights, difference.dtype)
    squares = difference * difference * xp.broadcast_to(w, p.shape[-1:])[None, None, None]
    return xp.mean(xp.sum(squares, -1), (1, 2))
