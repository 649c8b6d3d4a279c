"""A metric under test: running it in all ways that the laws need, and comparing two metrics."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import InitVar, dataclass
from functools import cached_property, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike, PyTree
from datarax.algebra.pytrees import MeshNode, opened
from datarax.metric.arguments import Call
from datarax.metric.base import Metric
from datarax.numerics.exact import Exact
from datarax.testing.ulps import Unequal, assert_within_ulps
from datarax.wrappers.per_device import per_device

AXIS = "devices"
Tolerance = float | Mapping[str, float]
"""A tolerance for all values, or one for each member of a collection by its name."""

# These functions are jitted at module level, so a second check of an equal metric does not compile.


def apply(metric: Metric, call: PyTree) -> Metric:
    """An eager update with the arguments of one call."""
    args, kwargs = call
    return metric.update(*args, **kwargs)


_update = jax.jit(apply, donate_argnums=0)


def fold(metric: Metric, calls: Iterable[PyTree]) -> Metric:
    """Updates under `jit` with the state donated, which deletes the JAX arrays of `metric`."""
    for call in calls:
        metric = _update(metric, call)
    return metric


@jax.jit
def merge(a: Metric, b: Metric) -> Metric:
    """`a.merge(b)`."""
    return a.merge(b)


def read(metric: Metric) -> tuple[PyTree, jax.Array]:
    """The value as a user reads it, and the number of values that could not be used."""
    return metric.compute(), of_state(_invalid_count, metric)


def of_state(function: Callable[[Metric], PyTree], state: Metric) -> PyTree:
    """A function of a state, which runs where the state is: in NumPy, or in a compiled program."""
    if not state.is_on_host:
        return jax.jit(function)(state)
    with np.errstate(all="ignore"):
        return function(state)


def _invalid_count(metric: Metric) -> jax.Array:
    return metric.invalid_count()


@jax.jit
def scanned(metric: Metric, calls: PyTree) -> Metric:
    """Updates with stacked calls in a `lax.scan`."""
    return lax.scan(lambda state, call: (apply(state, call), None), metric, calls)[0]


def looped(metric: Metric, calls: PyTree) -> Metric:
    """Updates with stacked calls in a `lax.while_loop`."""
    count = jax.tree.leaves(calls)[0].shape[0]

    # A carry must keep its type: here JAX refuses one that does not.
    def body(carry: PyTree) -> PyTree:
        i, state = carry
        return i + 1, apply(state, jax.tree.map(lambda x: x[i], calls))

    return lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), metric))[1]


@jax.jit
def vmapped(metrics: Metric, calls: PyTree) -> tuple[Metric, PyTree]:
    """Updates each of several stacked metrics with its own call; returns them and their values."""
    updated = jax.vmap(apply)(metrics, calls)
    return updated, jax.vmap(lambda metric: metric.compute())(updated)


def synced(metric: Metric, calls: PyTree, devices: int) -> Metric:
    """Updates with stacked calls in a scan on each of several devices, and then syncs."""

    def local(metric: Metric, calls: PyTree) -> Metric:
        return scanned(metric.varying(AXIS), calls).sync(AXIS)

    specs = P(), P(None, AXIS)
    return jax.shard_map(local, mesh=_mesh(devices), in_specs=specs, out_specs=P())(metric, calls)


def shard(metric: Metric, calls: Iterable[PyTree], devices: int) -> Metric:
    """Updates a `per_device` metric with all calls, and syncs it."""
    copies = per_device(metric, _mesh(devices), AXIS)
    for args, kwargs in calls:
        copies = copies.update(*args, **kwargs)
    # Simulated devices may deadlock if several programs with a collective are in flight.
    return jax.device_get(jax.block_until_ready(copies.sync()))


def _mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:devices]), (AXIS,))


@dataclass
class Subject:
    """A metric, its batches as calls of `update`, and the tolerances for comparing results."""

    metric: Metric
    batches: InitVar[Iterable[PyTree]]
    ulps: Tolerance
    atol: Tolerance
    state_atol: float
    empty: PyTree
    compare_states: bool
    rows: bool
    on_host: bool = False

    def __post_init__(self, batches: Iterable[PyTree]) -> None:
        if not isinstance(self.metric, Metric) or isinstance(self.metric, MeshNode):
            raise MetricTypeError(
                f"check_metric expects a plain datarax.Metric; got {kind(self.metric)}"
            )
        # Copies as NumPy arrays, which donation cannot delete.
        self.metric = jax.tree.map(np.array, self.metric)
        self.calls = [_as_call(batch) for batch in batches]
        # Batches that are steps of a run have no common axis: any one size passes the check.
        shapes = {", ".join(map(described, jax.tree.leaves(call))) for call in self.calls}
        sizes = {x.shape[0] if x.ndim else 0 for x in jax.tree.leaves(self.calls)}
        sizes = sizes if self.rows else {2}
        if len(self.calls) < 3 or len(shapes) != 1 or len(sizes) != 1 or min(sizes) < 2:
            raise MetricInputError(
                f"check_metric expects at least 3 batches with the same shapes and dtypes, of "
                f"arrays that share one leading axis of at least 2 examples; got "
                f"{len(self.calls)}: {'; '.join(sorted(shapes))}"
            )
        self.size = sizes.pop()
        calls = self.metric.calls(*self.calls[0])
        leaves = jax.tree.leaves(calls, is_leaf=lambda node: isinstance(node, Call))
        # The metrics within a wrapper may take weights while its own `update` has no such argument.
        own = {route.argument for route in self.metric.routes()}
        self.takes_weights = "weights" in own and all("weights" in call.takes for call in leaves)

    def fold(self, calls: Iterable[PyTree]) -> Metric:
        """The metric updated with these calls, in a compiled program or on the host."""
        if self.on_host:
            return reduce(apply, calls, self.metric)
        return fold(self.metric, calls)

    def merge(self, a: Metric, b: Metric) -> Metric:
        """`a.merge(b)`, in a compiled program or on the host."""
        return a.merge(b) if self.on_host else merge(a, b)

    @cached_property
    def used(self) -> Metric:
        """The metric updated with all calls."""
        return self.fold(self.calls)

    @cached_property
    def stacked(self) -> PyTree:
        """All calls stacked along a new leading axis."""
        return on_host(lambda *xs: np.stack(xs), *self.calls)

    def same(
        self, got: Metric, want: Metric, *, exactly: bool = False, states: bool = True
    ) -> None:
        """Raises unless two metrics have the same result and, unless `states` is false, state."""
        if _identical(got, want):
            return
        (a, unusable), (b, expected) = read(got), read(want)
        self.same_value(a, b, exactly=exactly)
        assert_within_ulps(unusable, expected, name="invalid_count()")
        if states and self.compare_states:
            ulps, atol = self._tolerances("", exactly=exactly, least=self.state_atol)
            assert_within_ulps(numbers(got), numbers(want), ulps, atol=atol, name="the state")

    def same_value(self, got: PyTree, want: PyTree, *, exactly: bool = False) -> None:
        """Raises unless two values agree; each member of a collection has its own tolerance."""
        if not isinstance(self.ulps, Mapping) and not isinstance(self.atol, Mapping):
            got, want = {"": got}, {"": want}
        if got.keys() != want.keys():
            raise Unequal(f"the value holds {sorted(got)}, expected {sorted(want)}")
        for key, value in got.items():
            ulps, atol = self._tolerances(key, exactly=exactly)
            try:
                assert_within_ulps(value, want[key], ulps, atol=atol, name="the value")
            except Unequal as error:
                error.member = key or None
                raise

    def _tolerances(self, key: str, *, exactly: bool, least: float = 0.0) -> tuple[float, float]:
        """The tolerances for a member of a collection; the absolute one is at least `least`."""
        if exactly:
            return 0, 0.0
        return _tolerance(self.ulps, key), max(_tolerance(self.atol, key), least)

    def weighted(self, weights: ArrayLike, calls: PyTree) -> list[PyTree]:
        """The calls with these weights added, as float32."""
        w = np.asarray(weights, np.float32)
        return [(args, {**kwargs, "weights": w}) for args, kwargs in calls]

    def repeats(self) -> tuple[np.ndarray, PyTree]:
        """The weights 2, 0, 2, 0, ..., and the calls with each example repeated that often.

        If the number of examples is odd, the last weight is 1, so that the size stays the same.
        """
        # Shapes stay, so nothing is traced anew.
        weights = np.tile([2, 0], self.size)[: self.size]
        if self.size % 2:
            weights[-1] = 1
        rows = np.repeat(np.arange(self.size), weights)
        return weights, on_host(lambda x: x[rows], self.calls)

    def devices(self) -> int:
        """The largest number of devices, among divisors of all devices, that divides a batch."""
        return math.gcd(self.size, jax.local_device_count())


def _tolerance(tolerance: Tolerance, key: str) -> float:
    """The tolerance for a member of a collection; the largest one if no name matches `key`."""
    if not isinstance(tolerance, Mapping):
        return tolerance
    # Results of a member have names below its own, such as "loss/lower".
    names = [name for name in tolerance if key == name or key.startswith(f"{name}/")]
    return tolerance[max(names, key=len)] if names else max(tolerance.values())


def _as_call(batch: PyTree) -> PyTree:
    if not isinstance(batch, dict | tuple):
        batch = (batch,)
    call = ((), batch) if isinstance(batch, dict) else (batch, {})
    return jax.tree.map(lambda x: np.asarray(jnp.asarray(np.asarray(x))), call)


def on_host(function: Callable[..., np.ndarray], *trees: PyTree) -> PyTree:
    """Trees of arrays mapped by a function of NumPy arrays, so that nothing is compiled."""
    return jax.tree.map(lambda *xs: function(*map(np.asarray, xs)), *trees)


def _identical(a: Metric, b: Metric) -> bool:
    """True if two metrics hold the same bits, and so give the same results."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(*map(jax.tree.leaves, jax.device_get((a, b))), strict=True)
    return all((x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()) for x, y in pairs)


def described(x: jax.Array) -> str:
    """The dtype and shape of an array, like `float32[8, 3]`."""
    return f"{x.dtype}{list(x.shape)}"


def numbers(state: Metric) -> dict[str, jax.Array | Exact]:
    """The numbers of a state by path; a double-float or a pair of limbs is one `Exact`."""
    states = opened(of_state(_canonical, state))
    leaves = jax.tree_util.tree_leaves_with_path(states, is_leaf=_is_two_parts)
    return {
        jax.tree_util.keystr(path): Exact(*leaf) if _is_two_parts(leaf) else leaf
        for path, leaf in leaves
    }


def _canonical(state: Metric) -> Metric:
    return state.canonical()


def _is_two_parts(x: PyTree) -> bool:
    if type(x) is not tuple or len(x) != 2 or not all(hasattr(part, "dtype") for part in x):
        return False
    # A 64-bit integer in two limbs, or a double-float.
    kinds = [("int32", "uint32"), ("float32", "float32"), ("float64", "float64")]
    return x[0].shape == x[1].shape and tuple(part.dtype.name for part in x) in kinds
