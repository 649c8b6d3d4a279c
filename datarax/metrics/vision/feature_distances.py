"""Distances of images, and of sets of images, in the features of a network; Inception score."""

from collections.abc import Callable, Sequence
from typing import Self

import jax

from datarax._checks import as_float, check_function, numeric, positive_int, real
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree, Weights
from datarax._xp import special, xp
from datarax.algebra.fields import state
from datarax.metric.base import Metric
from datarax.metrics.vision.image_score import ImageScore
from datarax.metrics.vision.spectral_quality import unit_spectra
from datarax.numerics.double_float import DoubleFloat, concatenate
from datarax.numerics.products import matrix_product
from datarax.numerics.scaling import nan_where
from datarax.statistics.buffer import FeatureBuffer
from datarax.statistics.cross_moments import FeatureMoments
from datarax.statistics.score_kinds import OfProbabilities
from datarax.statistics.weighted_total import EntropyTotals

Features = Callable[[jax.Array], jax.Array] | None
"""Maps inputs (N, ...) to features (N, F), each row by itself; None if inputs are features."""


def features_of(features: Features, inputs: ArrayLike, name: str) -> jax.Array:
    """The features (N, F) of a batch of inputs.

    Raises:
        MetricInputError: they do not have two axes.
    """
    given = numeric(inputs, name)
    x = given if features is None else numeric(features(given), f"features({name})")
    # The rows must stay in their order and number: weights are those of the inputs.
    if x.ndim != 2 or (features is not None and x.shape[:1] != given.shape[:1]):
        made = "" if features is None else f" for {name} of shape {given.shape}"
        raise MetricInputError(
            f"features of {name} of shape {x.shape}{made}; expected (N, F)"
            + ("; give features=, a function that makes them" if features is None else "")
        )
    return x


def frechet_distance(
    means: tuple[DoubleFloat, DoubleFloat], covariances: tuple[DoubleFloat, DoubleFloat]
) -> jax.Array:
    """`|m - n|**2 + tr(A + B - 2 sqrt(A B))`, of means (F,) and covariances (F, F).

    The trace of the root of `A B` is the sum of the singular values of `R^T S`, for any `R` and `S`
    with `A = R R^T` and `B = S S^T`. So neither matrix needs an inverse, and only the eigenvalues
    of each are rooted: that of the product would lose half of the digits of those near zero. In
    float64 where the devices have it. NaN where an argument is. D. C. Dowson and B. V. Landau
    (1982), https://doi.org/10.1016/0047-259X(82)90077-X.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.numerics import DoubleFloat
        >>> from datarax.metrics.vision.feature_distances import frechet_distance
        >>> zero, one = DoubleFloat.of(jnp.zeros(2)), DoubleFloat.of(jnp.eye(2))
        >>> print(frechet_distance((zero, zero), (one, one * 4)))
        2.0
    """
    (size,) = means[0].shape
    rows = concatenate([*covariances, *(mean.reshape(1, size) for mean in means)])
    return rows.evaluated(_distance)


def _distance(rows: jax.Array) -> jax.Array:
    size = rows.shape[1]
    known = xp.all(xp.isfinite(rows))
    rows = xp.where(known, rows, 0)  # decompositions of NaN may not end
    a, b, apart = rows[:size], rows[size : 2 * size], rows[-2] - rows[-1]
    # The singular values of R^T S sum up to the trace of the root of A B: see above.
    product = matrix_product(_factor(a).T, _factor(b))
    common = xp.sum(xp.linalg.svd(product, compute_uv=False))
    distance = xp.sum(apart * apart) + xp.trace(a) + xp.trace(b) - 2 * common
    # Of equal distributions, rounding may leave less than zero.
    return xp.where(known, xp.maximum(distance, 0), xp.nan)


def _factor(a: jax.Array) -> jax.Array:
    """A matrix `R` with `R R^T = a`, of a symmetric matrix without negative eigenvalues."""
    # A = V diag(values) V^T. Rounding may leave values just below zero.
    values, vectors = xp.linalg.eigh(a)
    return vectors * xp.sqrt(xp.maximum(values, 0))[None]


class TwoSets(Metric):
    """A metric of two sets of features, which need not be of one size.

    A subclass declares a statistic for each set: `of_preds` and `of_target`.
    """

    higher_is_better = False
    features: Features = None
    """Maps inputs (N, ...) to features (N, num_features), each input by itself; `None` if inputs
    are features. A function is configuration: metrics with the same function object can be merged,
    so define it once, not anew for each metric. It is traced, so arrays that it closes over are
    constants of the program."""
    num_features: int
    """F, the number of features of an input."""

    def __post_init__(self) -> None:
        if self.features is not None:
            check_function(self.features, "features", "an array")
        positive_int(self.num_features, "num_features")

    def update(
        self,
        preds: ArrayLike | None = None,
        target: ArrayLike | None = None,
        *,
        weights: Weights = None,
    ) -> Self:
        """A new metric with the inputs folded in; no communication.

        Args:
            preds: generated inputs of `features`, (N, ...), or features (N, F); `None` for none.
            target: real ones, (M, ...) or (M, F); `None` for none. An input whose features hold a
                NaN or an infinity is invalid; the other set keeps its rows.
            weights: by row, (N,), of both sets, which are then of one size. They count as
                repetitions; zero excludes a row, whatever it holds.

        Raises:
            MetricInputError: neither set is given, features are not of shape (N, num_features), or
                weights do not fit both sets.
        """
        given = {"of_preds": (preds, "preds"), "of_target": (target, "target")}
        if preds is None and target is None:
            raise MetricInputError(f"{type(self).__name__}.update needs preds, target or both")
        changed = {
            name: getattr(self, name).update(features_of(self.features, x, arg), weights=weights)
            for name, (x, arg) in given.items()
            if x is not None
        }
        return self.replace(**changed)


class FID(TwoSets):
    """Fréchet inception distance: how far apart the features of two sets of images are.

    |m - n|^2 + tr(A + B - 2 sqrt(A B)), with m, n the means of the features of both sets, and A, B
    their covariances, with N - 1: the distance of two normal distributions. 0 for equal sets. The
    estimate is too high for few images, by about 1 / N: compare at one N. Co-moments are kept as
    double-floats and the decompositions are in float64, where the devices have it, so fewer images
    than features are no problem. `compute` inside `jit` on a TPU has decompositions of float32: the
    value may be off by 1e-4 of the traces. Fewer than two images in a set give NaN.

    With the features of the Inception network of the original, it is that number: networks and
    resizing differ between libraries by more than models do. M. Heusel and others (2017),
    https://arxiv.org/abs/1706.08500.

    The state holds two matrices of F^2 double-floats: 67 MB for 2048 features. `compute` needs
    three decompositions, of time F^3.

    Raises:
        MetricTypeError: `features` cannot be called or hashed.
        MetricInputError: `num_features` is not a positive integer.

    Example:
        >>> import jax
        >>> from datarax.metrics import FID
        >>> a, b = jax.random.normal(jax.random.key(0), (2, 1000, 4))
        >>> metric = FID(num_features=4).update(preds=2 * a).update(target=b)
        >>> print(round(float(metric.compute()), 2))  # 4 in the limit
        4.04
    """

    of_preds: FeatureMoments = state()
    of_target: FeatureMoments = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.of_preds, self.of_target = (FeatureMoments(self.num_features) for _ in range(2))

    def compute(self) -> PyTree:
        sets = self.of_preds, self.of_target
        # A covariance with N - 1 needs two images.
        few = xp.any(xp.stack([(each.count <= 1) for each in sets]))
        apart = self.of_preds.mean_apart_from(self.of_target)
        covariances = self.of_preds.covariance(ddof=1), self.of_target.covariance(ddof=1)
        return nan_where(few, frechet_distance((apart, apart * 0), covariances))


class KID(TwoSets):
    """Kernel inception distance: the squared MMD of the features of two sets of images.

    The unbiased estimate with the kernel (x . y / F + 1)^3: the mean of the kernel over pairs
    within each set, plus that within the other, minus twice that between both. 0 is expected for
    equal distributions, so it may be negative. One estimate over all rows that are kept, not a
    mean over subsets. The first `capacity` rows of each set are kept, as floats, which round
    integers above 2^24. The value is an estimate from these: it stays unbiased if images come in
    random order. Reading it warns how many did not fit. Fewer than two images in a set give NaN.
    It is computed in float64, where the devices have it: in float32, inside `jit` on a TPU, a
    value of sets whose features are far from zero has few digits.
    M. Binkowski and others (2018), https://arxiv.org/abs/1801.01401.

    Raises:
        MetricTypeError: `features` cannot be called or hashed.
        MetricInputError: `num_features` or `capacity` is not a positive integer.

    Example:
        >>> import jax
        >>> from datarax.metrics import KID
        >>> a, b = jax.random.normal(jax.random.key(0), (2, 500, 4))
        >>> metric = KID(num_features=4, capacity=500).update(preds=a + 1, target=b)
        >>> print(round(float(metric.compute()), 1))
        9.0
    """

    capacity: int = 2048
    """The number of rows of each set that are kept in all."""

    of_preds: FeatureBuffer = state()
    of_target: FeatureBuffer = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.num_features, self.capacity
        self.of_preds, self.of_target = (FeatureBuffer(*size) for _ in range(2))

    def compute(self) -> PyTree:
        rows = concatenate([self.of_preds.columns, self.of_target.columns])
        return rows.evaluated(squared_mmd)


class InceptionScore(Metric, OfProbabilities):
    """Inception score: how sure and how varied the predicted classes of images are.

    exp(mean KL(p(y | x) || p(y))) with p(y) the mean of p(y | x) over all images: from 1 to the
    number of classes. One split: all images are one population, so values are higher than with ten
    splits. No data gives NaN. T. Salimans and others (2016), https://arxiv.org/abs/1606.03498.

    Raises:
        MetricTypeError: `features` cannot be called or hashed.
        MetricInputError: `num_classes` is not an integer of at least 2.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import InceptionScore
        >>> preds = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
        >>> print(round(float(InceptionScore().update(preds).compute()), 4))
        1.5874
    """

    higher_is_better = True
    features: Features = None
    """Maps inputs (N, ...) to class probabilities or logits (N, C), each input by itself; `None` if
    inputs are those. A function is configuration, see `FID`."""
    from_logits: bool = False
    """True if they are logits of a softmax, False for probabilities; values are never inspected. A
    logit of -inf is a probability of zero."""
    num_classes: int = 1008
    """The most classes; fewer are filled up with zeros, which change nothing. Inception networks
    have 1000 or 1008."""

    statistic: EntropyTotals = state()

    def __post_init__(self) -> None:
        if self.features is not None:
            check_function(self.features, "features", "an array")
        self.statistic = EntropyTotals.from_fields(self)

    def update(self, preds: ArrayLike, *, weights: Weights = None) -> Self:
        """A new metric with the images folded in; no communication.

        Args:
            preds: inputs of `features`, (N, ...), or probabilities or logits (N, C). A row is
                invalid if it holds a NaN, probabilities that do not sum to 1, a logit of +inf, or
                only logits of -inf.
            weights: by row, (N,); zero excludes a row, whatever it holds.

        Raises:
            MetricInputError: another shape, or more classes than `num_classes`.
        """
        rows = features_of(self.features, preds, "preds")
        return self.replace(statistic=self.statistic.update(rows, weights=weights))

    def compute(self) -> PyTree:
        mean, negentropy = self.statistic.distributions
        both = concatenate([mean, negentropy.reshape(1)])
        # mean KL(p(y | x) || p(y)) = mean sum p(y | x) log p(y | x) - sum p(y) log p(y).
        return both.evaluated(lambda x: xp.exp(x[-1] - xp.sum(special.xlogy(x[:-1], x[:-1]))))


def squared_mmd(rows: jax.Array) -> jax.Array:
    """The unbiased squared MMD of two sets, by the cubic kernel of `KID`.

    Args:
        rows: features and, in the last column, weights, which count as repetitions; the first half
            are those of one set.
    """
    x, w = rows[:, :-1], rows[:, -1]
    half = len(rows) // 2
    # Lemma 6 of A. Gretton and others (2012), with weights as repetitions of rows.
    kernel = (matrix_product(x, x.T) / x.shape[1] + 1) ** 3
    sums = w[:, None] * kernel * w[None]
    alone = w * xp.diagonal(kernel)
    total = 0.0
    weights = []
    for each in (slice(0, half), slice(half, None)):
        n = xp.sum(w[each])
        weights.append(n)
        # Of all pairs, without those of a row with itself.
        within = xp.sum(sums[each, each]) - xp.sum(alone[each])
        total = total + within / xp.where(n > 1, n * (n - 1), xp.nan)
    # All pairs between the sets count, as their rows are independent.
    return total - 2 * xp.sum(sums[:half, half:]) / (weights[0] * weights[1])


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
        check_function(self.features, "features", "an array")
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
    # As in LPIPS, the features of each pixel have norm 1 over the channels.
    difference = unit_spectra(as_float(p))[0] - unit_spectra(as_float(t))[0]
    w = xp.asarray(1.0 if weights is None else weights, difference.dtype)
    squares = difference * difference * xp.broadcast_to(w, p.shape[-1:])[None, None, None]
    return xp.mean(xp.sum(squares, -1), (1, 2))
