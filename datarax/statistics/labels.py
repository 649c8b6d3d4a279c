"""Labels as integers: which can be used, how many there are of each, which scores highest."""

import numbers

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import is_integer
from datarax._errors import MetricInputError
from datarax.distributed.collectives import replicated
from datarax.statistics.scatter_counts import add_at, scatter_sum


def in_range(labels: jax.Array, size: int) -> jax.Array:
    """Which labels are from 0 to `size - 1`, in any integer dtype, the narrow ones too."""
    if labels.dtype == jnp.bool_:
        return jnp.ones(labels.shape, jnp.bool_)
    below = jnp.ones(labels.shape, jnp.bool_)
    if size <= jnp.iinfo(labels.dtype).max:
        below = labels < jnp.asarray(size, labels.dtype)
    return below & (labels >= jnp.zeros((), labels.dtype))


def equals(target: jax.Array, index: int | None) -> jax.Array:
    """Which targets are a given number, which their dtype may not hold."""
    none = jnp.zeros(target.shape, jnp.bool_)
    if index is None:
        return none
    if not isinstance(index, numbers.Integral):
        raise MetricInputError(f"ignore_index={index!r}; expected an integer or None")
    try:
        held = np.asarray(index).astype(target.dtype) == index
    except OverflowError:  # more than 64 bits
        return none
    if not held:
        return none
    return target == jnp.asarray(index, target.dtype)


def is_class(target: jax.Array, size: int) -> jax.Array:
    """For labels (...), whether each of `size` classes is the label: (..., size)."""
    classes = jax.lax.broadcasted_iota(jnp.int32, (*target.shape, size), target.ndim)
    return classes == target[..., None]


def count_labels(labels: jax.Array, weights: jax.Array, size: int) -> jax.Array:
    """The total weight of each label: (size,), integers for boolean weights, floats for floats.

    A label out of range must have weight zero.
    """
    labels, weights = replicated(labels.astype(jnp.int32)), replicated(weights)
    if weights.dtype == jnp.bool_:
        weights = weights.astype(jnp.int32)
    if size <= 64:
        # Comparing with every class beats a scatter while there are few.
        same = labels.reshape(-1, 1) == jnp.arange(size, dtype=jnp.int32)[None, :]
        return jnp.sum(jnp.where(same, weights.reshape(-1, 1), jnp.zeros((), weights.dtype)), 0)
    if not is_integer(weights):
        return scatter_sum(labels, weights, size)[0]
    return add_at(jnp.zeros((size,), jnp.int32), labels, weights)


def first_highest(scores: jax.Array) -> jax.Array:
    """The class of the highest score (..., C), of equal ones the first: (...) int32."""
    # On CPU a third of the time of `jnp.argmax`. A row with NaN gives no class.
    classes = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    highest = scores == jnp.max(scores, -1, keepdims=True)
    return jnp.min(jnp.where(highest, classes, jnp.int32(scores.shape[-1])), -1)
