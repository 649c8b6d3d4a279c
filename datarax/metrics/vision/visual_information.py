"""Visual information fidelity."""

from typing import Any

import jax

from datarax._xp import xp
from datarax.metrics.vision.image_score import RangedScore
from datarax.metrics.vision.image_windows import gaussian_taps, local_moments, window_means

SCALES = 4
NOISE = 2.0
"""The variance of the noise of the eye, for pixels from 0 to 255."""
LEAST = 1e-10
"""A variance below it counts as zero."""


class VIF(RangedScore):
    """Visual information fidelity in the pixel domain, the mean over channels and images.

    The information that the prediction holds of the target over that which the target holds, by a
    Gaussian model of both in windows at four scales. 1 for equal images, above 1 where the contrast
    is enhanced. An image with a constant channel in the target is invalid. The pixel-domain form
    of the authors' code, `vifp_mscale`. No data gives NaN. Not in scikit-image. H. R. Sheikh and
    A. C. Bovik (2006), https://doi.org/10.1109/TIP.2005.859378.

    Raises:
        MetricInputError: a `data_range` that is not positive, or none for pixels whose dtype is
            neither uint8 nor uint16; images that are smaller than 41 pixels.

    Example:
        >>> import jax
        >>> from datarax.metrics import VIF
        >>> target = jax.random.uniform(jax.random.key(0), (2, 48, 48, 1))
        >>> noise = jax.random.normal(jax.random.key(1), target.shape)
        >>> metric = VIF(data_range=1.0).update(target + 0.1 * noise, target)
        >>> print(round(float(metric.compute()), 3))
        0.306
    """

    least_size = 41

    def scores(self, preds: jax.Array, target: jax.Array) -> jax.Array:
        x, y = 255 * target, 255 * preds
        held: Any = 0.0
        there: Any = 0.0
        for scale in range(SCALES):
            radius = 2 ** (SCALES - scale - 1)
            taps = gaussian_taps(radius, (2 * radius + 1) / 5)
            if scale:
                x, y = (window_means(z, taps, self.axes)[:, ::2, ::2] for z in (x, y))
            local = local_moments(x, y, taps, self.axes)
            var_x, var_y = (xp.where(v < LEAST, 0, v) for v in (local.var_x, local.var_y))
            # The prediction is modelled as `gain * target + noise`. The gain is at least 0.
            both = (var_x > 0) & (var_y > 0) & (local.covariance > 0)
            gain = xp.where(both, local.covariance / xp.where(both, var_x, 1), 0)
            rest = xp.maximum(var_y - gain * xp.where(both, local.covariance, 0), LEAST)
            held = held + xp.sum(xp.log1p(gain * gain * var_x / (rest + NOISE)), self.axes)
            there = there + xp.sum(xp.log1p(var_x / NOISE), self.axes)
        some = there > 0
        ratio = xp.where(some, held / xp.where(some, there, 1), xp.nan)
        return xp.mean(ratio, -1)
