"""Quality of images that are fused from coarse spectra and sharp detail, without a reference."""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any, Self

import jax
import numpy as np

from datarax._checks import as_float, numeric, positive_int, real
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import beside, lax, xp
from datarax.distributed.collectives import unsharded
from datarax.metric.base import Metric
from datarax.metrics.vision.image_windows import (
    gaussian_taps,
    local_moments,
    uniform_taps,
    window_means,
)
from datarax.metrics.vision.structural_similarity import universal_quality
from datarax.numerics.scaling import nan_where
from datarax.statistics.batches import rows_weight
from datarax.statistics.invalid_counts import not_finite
from datarax.statistics.weighted_total import WeightedTotal

_TAPS = gaussian_taps(5, 1.5)
"""The window of the quality index: 11 pixels a side."""
_AXES = (1, 2)


class FusedImageMetric(Metric):
    """A metric of the differences of quality indices, each a mean over images."""

    num_channels: int = 16
    """The most channels that an image may have; the state grows with it."""

    statistic = WeightedTotal()

    def _hold(self, size: int) -> None:
        """Makes the state: a mean for each of so many differences."""
        positive_int(self.num_channels, "num_channels")
        self.statistic = WeightedTotal((size,))

    def _folded(
        self,
        images: Mapping[str, ArrayLike],
        weights: Weights,
        differences: Callable[..., list[tuple[jax.Array, int]]],
    ) -> Self:
        """The metric with a batch folded in.

        `differences` gets the images as floats, and gives arrays (N, K) with the number of places
        that the state has for each.
        """
        arrays = {name: numeric(x, name) for name, x in images.items()}
        self._check(arrays)
        for axis in (1, 2, 3):
            arrays = {name: unsharded(x, axis) for name, x in arrays.items()}
        unusable = [not_finite(as_float(x), (1, 2, 3)) for x in arrays.values()]
        w, invalid = rows_weight(reduce(or_, unusable), weights)
        seen = w.astype(xp.bool_)[:, None, None, None]
        # An excluded image becomes zeros: a NaN in it would reach the sums even with weight 0.
        floats = (xp.where(seen, as_float(x), 0) for x in arrays.values())
        parts = differences(*floats)
        values = [xp.pad(x, ((0, 0), (0, places - x.shape[1]))) for x, places in parts]
        some = np.concatenate([np.arange(places) < x.shape[1] for x, places in parts])
        x = xp.concatenate(values, 1)
        w = xp.where(beside(x, some), w[:, None], xp.zeros((), w.dtype))
        return self.replace(statistic=self.statistic.add(x, w, invalid))

    def _check(self, arrays: Mapping[str, jax.Array]) -> None:
        shapes = {name: x.shape for name, x in arrays.items()}
        shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        batch, *_, channels = shapes["preds"] or (0, 0)
        for name, shape in shapes.items():
            fits = len(shape) == 4 and shape[0] == batch
            if not fits or (
                shape[3] != channels and not (name.startswith("pan") and shape[3] == 1)
            ):
                raise MetricInputError(
                    f"images of shapes {shown}; expected (N, H, W, C), of equal N and C; pan and "
                    f"pan_lr may have one channel"
                )
            if min(shape[1:3]) < len(_TAPS):
                raise MetricInputError(
                    f"{name} of {shape[1]} x {shape[2]} pixels; expected {len(_TAPS)} or more "
                    f"along each axis"
                )
        if not 1 <= channels <= self.num_channels:
            raise MetricInputError(
                f"images of {channels} channels; expected 1 to num_channels={self.num_channels}: "
                f"give num_channels={channels} for more"
            )


class SpectralDistortion(FusedImageMetric):
    """Spectral distortion index of fused images, D_lambda: how the relations of bands change.

    The mean over pairs of channels of |Q(a, b of `preds`) - Q(a, b of `target`)|^p, to the power
    1 / p, where Q is the universal quality index within Gaussian windows of 11 x 11 pixels, the
    mean over windows and images. From 0 for equal relations to 2. Images of one channel have no
    pairs, and no value. No data gives NaN. As `SpectralDistortionIndex` of torchmetrics, with
    channels last. L. Alparone and others (2008), https://doi.org/10.14358/PERS.74.2.193.

    Raises:
        MetricInputError: a `p` that is not a positive integer; images of more channels than
            `num_channels`, or smaller than the window.

    Example:
        >>> import jax
        >>> from datarax.metrics import SpectralDistortion
        >>> coarse = jax.random.uniform(jax.random.key(0), (2, 16, 16, 3))
        >>> fused = jax.numpy.repeat(jax.numpy.repeat(coarse, 2, 1), 2, 2)
        >>> print(round(float(SpectralDistortion().update(fused, coarse).compute()), 3))
        0.051
    """

    terms_by_row = True
    higher_is_better = False
    p: int = 1
    """The exponent of the differences: a larger one emphasises large differences."""

    def __post_init__(self) -> None:
        positive_int(self.p, "p")
        self._hold(_pairs_of(self.num_channels))

    def update(self, preds: ArrayLike, target: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: fused images (N, H, W, C).
            target: coarse images of the same channels, (N, h, w, C). An image with a NaN or an
                infinity in either is invalid.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that are not those of images of equal channels; too small
                images, or too many channels.
        """
        images = {"preds": preds, "target": target}
        places = _pairs_of(self.num_channels)
        return self._folded(images, weights, lambda p, t: [(_spectral(p, t), places)])

    def compute(self) -> PyTree:
        return norm(self.statistic.mean, self.p)


class _WithPan(FusedImageMetric):
    """A metric of fused images, coarse images, and sharp images of one band."""

    terms_by_row = True
    norm_order: int = 1
    """The exponent of the differences: a larger one emphasises large differences."""
    window_size: int = 7
    """The pixels along a side of the window whose mean makes `pan_lr` of `pan`."""

    def __post_init__(self) -> None:
        positive_int(self.norm_order, "norm_order")
        positive_int(self.window_size, "window_size")

    def _images(self, preds: Any, ms: Any, pan: Any, pan_lr: Any) -> dict[str, Any]:
        """The images by name; those of a dict, as torchmetrics takes them, stand for `ms`."""
        if isinstance(ms, Mapping):
            pan, pan_lr, ms = ms.get("pan", pan), ms.get("pan_lr", pan_lr), ms.get("ms")
        given = {"preds": preds, "ms": ms, "pan": pan, "pan_lr": pan_lr}
        missing = [name for name in ("ms", "pan") if given[name] is None]
        if missing:
            raise MetricInputError(
                f"{type(self).__name__}.update got no {' and no '.join(missing)}; expected preds, "
                f"ms and pan"
            )
        return {name: x for name, x in given.items() if x is not None}

    def _check(self, arrays: Mapping[str, jax.Array]) -> None:
        super()._check(arrays)
        sides = {name: x.shape[1:3] for name, x in arrays.items()}
        sharp, coarse = sides["preds"], sides["ms"]
        whole = all(n % m == 0 for n, m in zip(sharp, coarse, strict=True))
        if not whole or sides["pan"] != sharp or sides.get("pan_lr", coarse) != coarse:
            shown = ", ".join(f"{name} {side}" for name, side in sides.items())
            raise MetricInputError(
                f"images of heights and widths {shown}; expected pan as preds, pan_lr as ms, and "
                f"those of preds multiples of those of ms"
            )
        if "pan_lr" not in arrays and self.window_size >= min(coarse):
            raise MetricInputError(
                f"window_size={self.window_size} for ms of {coarse[0]} x {coarse[1]} pixels; "
                f"expected a smaller window"
            )

    def update(
        self,
        preds: ArrayLike,
        ms: ArrayLike | Mapping[str, ArrayLike],
        pan: ArrayLike | None = None,
        pan_lr: ArrayLike | None = None,
        *,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: fused images (N, H, W, C).
            ms: coarse images of the same channels, (N, h, w, C), where H and W are multiples of h
                and w; or a dict of `ms`, `pan` and perhaps `pan_lr`.
            pan: sharp images (N, H, W, C), or of one channel. An image with a NaN or an infinity in
                any is invalid.
            pan_lr: the same at the resolution of `ms`; by default, it is made of `pan`.
            weights: by image, (N,).

        Raises:
            MetricInputError: shapes that do not go together, too small images, or too many
                channels; `ms` or `pan` are missing.
        """
        images = self._images(preds, ms, pan, pan_lr)
        return self._folded(images, weights, self._differences)

    def _differences(
        self, preds: jax.Array, ms: jax.Array, pan: jax.Array, pan_lr: jax.Array | None = None
    ) -> list[tuple[jax.Array, int]]:
        """The differences of the quality indices of both resolutions, (N, C)."""
        if pan_lr is None:
            pan_lr = degraded(pan, self.window_size, ms.shape[1:3])
        sharp, coarse = (
            _quality(x, xp.broadcast_to(one, x.shape)) for x, one in ((preds, pan), (ms, pan_lr))
        )
        return [(coarse - sharp, self.num_channels)]


class SpatialDistortion(_WithPan):
    """Spatial distortion index of fused images, D_s: how the relation to the sharp image changes.

    The mean over channels of |Q(`ms`, `pan_lr`) - Q(`preds`, `pan`)|^p, to the power 1 / p with p
    the `norm_order`, where Q is the universal quality index within Gaussian windows of 11 x 11
    pixels, the mean over windows and images. From 0 for equal relations to 2. No data gives NaN. As
    `SpatialDistortionIndex` of torchmetrics, with channels last. L. Alparone and others (2008),
    https://doi.org/10.14358/PERS.74.2.193.

    Without `pan_lr`, it is `pan` after a mean over `window_size` pixels a side, mirrored at the
    border, resized by linear interpolation.

    Raises:
        MetricInputError: a `norm_order` or `window_size` that is not a positive integer; images of
            more channels than `num_channels`, or smaller than a window.

    Example:
        >>> import jax
        >>> from datarax.metrics import SpatialDistortion
        >>> pan = jax.random.uniform(jax.random.key(0), (2, 32, 32, 1))
        >>> ms = jax.numpy.tile(pan[:, ::2, ::2], 3)
        >>> fused = jax.numpy.repeat(jax.numpy.repeat(ms, 2, 1), 2, 2)
        >>> print(round(float(SpatialDistortion().update(fused, ms, pan).compute()), 2))
        0.18
    """

    higher_is_better = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._hold(self.num_channels)

    def compute(self) -> PyTree:
        return norm(self.statistic.mean, self.norm_order)


class QNR(_WithPan):
    """Quality with no reference of fused images: of their spectral and their spatial distortion.

    (1 - D_lambda)^alpha (1 - D_s)^beta, of `SpectralDistortion` of `preds` and `ms`, and of
    `SpatialDistortion`, with `norm_order` for both; a factor below 0 counts as 0. From 0 to 1.
    Images of one channel have no spectral distortion: the first factor is 1. No data gives NaN. As
    `QualityWithNoReference` of torchmetrics, with channels last. L. Alparone and others (2008),
    https://doi.org/10.14358/PERS.74.2.193.

    Raises:
        MetricInputError: an `alpha` or `beta` that is negative; else as `SpatialDistortion`.

    Example:
        >>> import jax
        >>> from datarax.metrics import QNR
        >>> pan = jax.random.uniform(jax.random.key(0), (2, 32, 32, 1))
        >>> ms = jax.numpy.tile(pan[:, ::2, ::2], 3)
        >>> fused = jax.numpy.repeat(jax.numpy.repeat(ms, 2, 1), 2, 2)
        >>> print(round(float(QNR().update(fused, ms, pan).compute()), 2))
        0.82
    """

    higher_is_better = True
    alpha: float = 1.0
    """The exponent of the spectral factor."""
    beta: float = 1.0
    """The exponent of the spatial factor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha, self.beta = real(self.alpha, "alpha"), real(self.beta, "beta")
        if not (0 <= self.alpha < np.inf and 0 <= self.beta < np.inf):
            raise MetricInputError(
                f"alpha={self.alpha}, beta={self.beta}; expected numbers that are not negative"
            )
        positive_int(self.num_channels, "num_channels")
        self._hold(_pairs_of(self.num_channels) + self.num_channels)

    def _differences(
        self, preds: jax.Array, ms: jax.Array, pan: jax.Array, pan_lr: jax.Array | None = None
    ) -> list[tuple[jax.Array, int]]:
        spectral = _spectral(preds, ms), _pairs_of(self.num_channels)
        return [spectral, *super()._differences(preds, ms, pan, pan_lr)]

    def compute(self) -> PyTree:
        mean, places = self.statistic.mean, _pairs_of(self.num_channels)
        spatial = norm(mean[places:], self.norm_order)
        spectral = norm(mean[:places], self.norm_order)
        # Without a pair of channels, there is data if there is a spatial distortion.
        spectral = xp.where(xp.isnan(spectral), spatial * 0, spectral)
        product = xp.ones_like(spatial)
        for distortion, power in ((spectral, self.alpha), (spatial, self.beta)):
            product = product * xp.maximum(1 - distortion, 0) ** power
        return nan_where(xp.isnan(spatial), product)


def norm(differences: jax.Array, power: int) -> jax.Array:
    """The mean of `|x|^power` over the differences that are not NaN, to the power `1 / power`."""
    some = ~xp.isnan(differences)
    sizes = xp.where(some, xp.abs(differences), 0)
    count = xp.sum(some, dtype=differences.dtype)
    mean = xp.sum(sizes**power) / xp.maximum(count, 1)
    return nan_where(count == 0, mean if power == 1 else mean ** (1 / power))


def degraded(x: jax.Array, window: int, sides: tuple[int, ...]) -> jax.Array:
    """Images after a mean over windows, resized to sides that divide theirs.

    The window of a pixel has it in its middle; if its size is even, at the later one of both.
    Pixels beyond the border are those within, mirrored. Linear interpolation at the middles of the
    large pixels takes one pixel, or the mean of two.
    """
    before, after = window // 2, (window - 1) // 2
    x = xp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)), mode="symmetric")
    x = window_means(x, uniform_taps(window), _AXES)
    for axis, side in zip(_AXES, sides, strict=True):
        step = x.shape[axis] // side
        first, last = (
            lax.slice_in_dim(x, i, None, step, axis) for i in ((step - 1) // 2, step // 2)
        )
        x = (first + last) / 2
    return x


def _quality(x: jax.Array, y: jax.Array) -> jax.Array:
    """The universal quality index of each image and channel, (N, C)."""
    return xp.mean(universal_quality(local_moments(x, y, _TAPS, _AXES)), _AXES)


def _pairs_of(channels: int) -> int:
    return channels * (channels - 1) // 2


def _spectral(preds: jax.Array, target: jax.Array) -> jax.Array:
    """For each pair of channels, the difference of the quality indices of both images, (N, K).

    The pairs of fewer channels are the first ones. One pair after the other, because each takes the
    memory of several images.
    """
    pairs = [(a, b) for b in range(preds.shape[-1]) for a in range(b)]
    if not pairs:
        return xp.zeros_like(preds[:, 0, 0, :0])

    def of_pair(pair: jax.Array) -> jax.Array:
        def quality(x: jax.Array) -> jax.Array:
            a, b = (lax.dynamic_slice_in_dim(x, pair[i], 1, 3) for i in (0, 1))
            return _quality(a, b)[:, 0]

        return quality(preds) - quality(target)

    return xp.moveaxis(lax.map(of_pair, beside(preds, np.asarray(pairs, np.int32))), 0, -1)
