"""`Bootstrap`: a value with its interval and standard error, from Poisson counts of rows."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Self

import jax
import numpy as np

from datarax._checks import (
    as_float,
    checked_confidence,
    is_integer,
    positive_int,
    python_int,
)
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.fields import state
from datarax.algebra.rows import Target
from datarax.algebra.stack import Stack
from datarax.metric.arguments import is_call, taken_from
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.rows import counted_rows, rows_of
from datarax.metric.unusable import Undefined
from datarax.metric.values import flat_items, is_wide
from datarax.numerics.exact import Exact
from datarax.numerics.hashing import mixed
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.row_sample import INDEX, row_keys
from datarax.wrappers.collection import Collection
from datarax.wrappers.wrapper import (
    WithArgument,
    checked_metric,
    each_updated,
    prefixed,
)

_STEPS = 1 << 16
_EQUAL = (
    "all replicas have the same value (all predictions are right, for example), so resampling "
    "gives no interval"
)


def poisson_counts(keys: jax.Array, replicas: int, seed: int) -> jax.Array:
    """For each key and each replica, a Poisson variate of mean 1: (keys, replicas) int8.

    Each hash of 32 bits gives two uniform variates of 16 bits. Their distribution is that of a
    Poisson variate within 2e-5; its mean is exactly 1, so that sums are not biased, and the
    greatest count is 8.

    Args:
        keys: hashes, (N,) uint32.
        replicas: how many variates for each key.
        seed: another seed gives other variates.
    """
    half = -(-replicas // 2)  # rounded up
    # A stream for two replicas is the hash of its number and the seed. The odd constant, 2**32
    # over the golden ratio, takes streams of neighbouring seeds apart.
    streams = mixed(xp.arange(half, dtype=xp.uint32) + xp.uint32(seed * 0x9E3779B9 % 2**32))
    bits = mixed(keys[:, None] ^ streams[None, :])
    uniform = xp.concatenate([bits >> xp.uint32(16), bits & xp.uint32(_STEPS - 1)], -1)
    uniform = uniform[:, :replicas].astype(xp.uint16)
    # By inversion: the count is the number of thresholds that the uniform variate has reached.
    counts = xp.zeros(uniform.shape, xp.int8)
    for threshold in thresholds():
        counts = counts + (uniform >= xp.uint16(threshold)).astype(xp.int8)
    return counts


@lru_cache
def thresholds() -> tuple[int, ...]:
    """A variate is at least k where the uniform variate is at least the threshold of k."""
    below = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(12)]) * _STEPS
    steps = [round(x) for x in below if round(x) < _STEPS]
    # The mean is the sum of the probabilities of "at least k". Rounding is corrected at k = 1.
    steps[0] += sum(_STEPS - x for x in steps) - _STEPS
    return tuple(steps)


class Resampled(WithArgument):
    """The base of wrappers that hold replicas of their metric, for resampled data."""

    needs_own: ClassVar[bool] = False
    hidden_names = frozenset(
        {"stack", "seen", "configure", "resampled", "spread", "without_spread"}
    )

    replicas: int
    seed: int
    confidence: float
    stack: Stack = state()
    seen: MetricAccumulator = state()
    """The number of rows without an index."""

    @property
    def own(self) -> str | None:
        return INDEX

    def configure(self, metric: Metric, replicas: int, seed: int, confidence: float) -> None:
        """Checks the arguments of the constructor, and makes the states."""
        name = type(self).__name__
        self.metric = checked_metric(metric, name)
        # Refused before any work, because an interval that is too narrow looks like any other.
        if _all_extreme(metric):
            raise MetricInputError(
                f"{name}({metric!r}): resampling gives no valid interval of a value that maxima "
                f"and minima of the data make up, because no replica can go beyond the data. "
                f"Leave out {name} for this metric"
            )
        self.replicas, self.seed = python_int(replicas), python_int(seed)
        positive_int(self.replicas, "replicas", least=2)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise MetricInputError(f"{name}: seed={seed!r}; expected an integer")
        self.confidence = checked_confidence(confidence, name)
        if any(route.argument == INDEX for route in metric.routes()):
            raise MetricInputError(
                f"{name}: {type(metric).__name__}.update takes an argument called {INDEX!r} "
                f"already; one Bootstrap gives the interval of all that it holds"
            )
        self.stack = Stack.of(metric, self.replicas)
        self.seen = MetricAccumulator(0)

    def spread(self, value: PyTree, replicas: PyTree, like: PyTree = None) -> dict[str, PyTree]:
        """By name, the ends of the interval and the standard error of a value, from its replicas.

        The extremes of a collection are left out. The ends are NaN where all replicas are equal,
        but for counts: `like`, if given, is a value that shows which numbers are.
        """
        like = value if like is None else like
        left_out = extremes_of(self.metric)
        if left_out:
            value, replicas, like = (
                {name: x for name, x in each.items() if name not in left_out}
                for each in (value, replicas, like)
            )

        def of_each(f: Callable[[jax.Array, jax.Array], jax.Array]) -> PyTree:
            return jax.tree.map(
                lambda one, x: f(as_floats(one), as_floats(x)), value, replicas, is_leaf=is_wide
            )

        # Percentiles, because they follow a monotonic transformation: the interval of an RMSE is
        # the root of that of the MSE.
        tail = (1 - self.confidence) / 2

        deviation = of_each(_deviation)
        # A count may well be the same in all replicas, such as that of unknown slices.
        equal = jax.tree.map(
            lambda one, x: (x == 0) & (not _is_count(one)), like, deviation, is_leaf=is_wide
        )

        def end(q: float) -> PyTree:
            found = of_each(lambda one, x: _quantile(x, q, one))
            return jax.tree.map(nan_where, equal, found)

        return {"lower": end(tail), "upper": end(1 - tail), "std_error": deviation}

    def without_spread(self, spread: dict[str, PyTree]) -> Undefined:
        """Marks that all replicas of a value are equal."""
        none = jax.tree.map(
            lambda end, error: xp.any(xp.isnan(end) & (error == 0)),
            spread["lower"],
            spread["std_error"],
        )
        equal: PyTree = jax.tree.leaves(none)
        where: PyTree = xp.stack(equal).any() if equal else np.zeros((), np.bool_)
        return Undefined(where, _EQUAL)

    def resampled(self, calls: PyTree) -> tuple[PyTree, Target, MetricAccumulator]:
        """The calls without index, how often each row counts in each replica, and the rows seen."""
        index, calls = taken_from(calls, INDEX)
        several = jax.tree.leaves(calls, is_leaf=is_call)
        rows = rows_of(calls)
        # A row counts if it does for any member, so that all members draw it alike.
        counted = xp.stack([counted_rows(call, rows) for call in several]).any(0)
        seen = self.seen
        # A row without an index gets its key from its number and its contents: after a restart or a
        # merge, other rows have the same numbers.
        contents = () if index is not None else jax.tree.leaves([x.unweighted for x in several])
        keys = row_keys(index, counted, seen.exact, contents, self, calls)
        if index is None:
            seen = seen.update(xp.sum(counted, dtype=xp.int32))
        counts = poisson_counts(keys, self.replicas, self.seed)
        # Padding draws no counts, so that an interval does not depend on the number of devices.
        counts = xp.where(counted[:, None], counts.astype(xp.int32), 0)
        # What cannot be used is known of the data, and need not be of each replica.
        target = Target(xp.zeros(rows, xp.uint32), 1, counts, counts_invalid=False)
        return calls, target, seen


class Bootstrap(Resampled):
    """The value of a metric, with its bootstrap interval and standard error.

    Each of `replicas` copies of the metric sees each row as often as a Poisson variate of mean 1
    says (the Poisson bootstrap: resampling with replacement, for data that arrive in batches). The
    spread of their values is that of the metric over data sets of this size from the same source.

    `update` takes what the metric's own `update` takes, and optionally `index`: the global id of
    each row, integers of shape (N,), of 32 bits, or of 64 with x64. The variates are a hash of the
    id and the seed. So with `index` the interval is the same bit for bit on any mesh and in any
    batches, for counts. Rows of one id are drawn together: give the id of the user, the document or
    the image for rows that are not independent. Without `index`, a row is known by its number and
    by what it holds.

    `compute` gives a dict:

    - `value`: the value of the metric.
    - `lower`, `upper`: the percentile interval of the given confidence.
    - `std_error`: the standard deviation of the values of the replicas.

    Each has the structure of the metric's value. Replicas in which the value is undefined do not
    count. Without data, and where the value is NaN, all are NaN. Where all replicas are equal, the
    ends are NaN, with a warning: no replica shows what other data would give.

    An extreme (`Max`, `MaxError`, and any metric whose whole state is merged by maximum or minimum)
    has no valid interval by resampling, because no replica can go beyond the data: it is refused.
    In a collection, it has a `value` only.

    The replicas are updated at once. For sums and counts, the cost is that of the random counts and
    one product of matrices. For metrics that hold scores in bins, or examples, it is that of
    `replicas` updates, and the memory that of as many states.

    Args:
        metric: a metric or a collection, without data.
        replicas: how many copies, at least 2. An interval of 95 % needs 200 or more.
        seed: of the random counts.
        confidence: the probability with which the interval covers the true value.

    Raises:
        MetricInputError: the metric has data, or is an extreme; or an argument is out of its range.
        MetricTypeError: `metric` is not a metric.

    References:
        Efron, B. and Tibshirani, R. (1993), An Introduction to the Bootstrap, chapter 13; on
        extremes, where it fails, section 7.4.
        Hanley, J. and MacGibbon, B. (2006), Creating non-parametric bootstrap samples using
        Poisson frequencies, https://doi.org/10.1016/j.cmpb.2006.04.006.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Bootstrap
        >>> from datarax.metrics import Accuracy
        >>> accuracy = Bootstrap(Accuracy(num_classes=2))
        >>> preds, target = jnp.arange(400) % 2, jnp.where(jnp.arange(400) % 10 < 8, 1, 0)
        >>> accuracy = accuracy.update(preds, target, index=jnp.arange(400))
        >>> print({name: round(x, 3) for name, x in accuracy.results().items()})
        {'lower': 0.443, 'std_error': 0.029, 'upper': 0.554, 'value': 0.5}
    """

    def __init__(
        self, metric: Metric, replicas: int = 200, *, seed: int = 0, confidence: float = 0.95
    ):
        self.configure(metric, replicas, seed, confidence)

    def _apply(self, calls: PyTree) -> Self:
        calls, target, seen = self.resampled(calls)
        metric, stack = self.metric.apply(calls), each_updated(self.stack, calls, target)
        return self.with_parts({"metric": metric, "stack": stack, "seen": seen})

    def reading(self) -> Reading:
        whole, replicas = self.metric.reading(), self.stack.map(lambda one: one.reading())
        spread = self.spread(whole.value, replicas.value)
        return replace(
            whole,
            value={"value": whole.value, **spread},
            bounds=prefixed([("value", whole.bounds)]),
            flat=False,
            undefined=whole.undefined
            | {"": (self.without_spread(spread), *whole.undefined.get("", ()))},
        )


def extremes_of(metric: Metric) -> frozenset[str]:
    """The names of the results of a collection that are extremes; none of another metric."""
    if not (isinstance(metric, Collection) and metric.is_extreme):
        return frozenset()
    names: set[str] = set()
    for name, member in metric.items():
        if isinstance(member, Collection):
            names |= {f"{name}/{inner}" for inner in extremes_of(member)}
        elif member.is_extreme:
            # Only the names are needed, so nothing is computed.
            value = jax.eval_shape(lambda member: member.reading().value, member)
            names |= {key for key, _ in flat_items({name: value})}
    return frozenset(names)


def _all_extreme(metric: Metric) -> bool:
    """True if all results of a metric are extremes."""
    if isinstance(metric, Collection):
        return all(map(_all_extreme, metric.values()))
    return metric.is_extreme


def _is_count(x: PyTree) -> bool:
    """True if a value is of whole numbers by its type."""
    return x.is_integer if isinstance(x, Exact) else not is_wide(x) and is_integer(xp.asarray(x))


def as_floats(x: PyTree) -> jax.Array:
    """A value as an array of floats."""
    return x.to_float() if is_wide(x) else as_float(xp.asarray(x))


def _quantile(x: jax.Array, q: float, value: jax.Array) -> jax.Array:
    """The quantile of replicas that are not NaN, at `q * (n + 1)` of n in order from 1."""
    x = xp.sort(x, 0)  # NaN is last
    n = xp.sum(~xp.isnan(x), 0, dtype=xp.int32)
    # The order statistic k of n has the expected probability k / (n + 1). `place` counts from 0.
    place = xp.clip(q * (n + 1).astype(x.dtype) - 1, 0, xp.maximum(n - 1, 0).astype(x.dtype))
    below = xp.floor(place)
    share = place - below
    at = below.astype(xp.int32)
    after = xp.minimum(at + 1, xp.maximum(n - 1, 0))
    low, high = (xp.take_along_axis(x, i[None], 0)[0] for i in (at, after))
    # Without the choice, an infinite neighbour times a share of 0 would give NaN.
    between = xp.where(share > 0, low + share * (high - low), low)
    return xp.where(xp.isnan(value), value, between)


def _deviation(value: jax.Array, x: jax.Array) -> jax.Array:
    # In two passes, as the difference of squares cancels where replicas are nearly equal.
    some = ~xp.isnan(x)
    n = xp.sum(some, 0).astype(x.dtype)
    safe = xp.maximum(n, 1)
    mean = xp.sum(xp.where(some, x, 0), 0) / safe
    squares = xp.sum(xp.where(some, (x - mean[None]) ** 2, 0), 0)
    deviation = xp.sqrt(squares / xp.maximum(n - 1, 1))
    return xp.where(xp.isnan(value) | (n < 2), xp.nan, deviation)
