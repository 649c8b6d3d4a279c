"""What several tests share: meshes, exact data, compiled updates, strict comparison, program text.

The data of `draw` are small multiples of 1/8, so that every sum of them in a test is exact in
float32 in whatever order it is taken. Sums, maxima and minima are then compared exactly, and a mean
to one unit in the last place, which is its one rounding, by the division.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax import NotAddressableError
from datarax._update_context import in_update

AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
DTYPES = ("float32", "bfloat16", "float16", "int8", "int32", "uint8", "bool")

LONG = bool(os.environ.get("DATARAX_TEST_LONG"))
"""Whether soaks are long, and every interrupt and kill is tried, not one of each kind."""
long = pytest.mark.skipif(not LONG, reason="another one of its kind is tested: make test-long")


def x64(on: bool = True) -> Any:
    """A context in which 64-bit types are on (or off)."""
    return jax.enable_x64(on)


def make_mesh(kind: str, axes: dict[str, int]) -> Mesh:
    """A mesh of the simulated devices, `kind` being "auto" or "explicit"."""
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(AXIS_TYPES[kind],) * len(axes)
    )


def place(tree: Any, mesh: Mesh, spec: P) -> Any:
    """Every array of `tree` on `mesh`, by as much of `spec` as it has dimensions."""
    return jax.tree.map(
        lambda x: jax.device_put(x, NamedSharding(mesh, P(*spec[: np.ndim(x)]))), tree
    )


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray:
    """Random data of any dtype, whose sums in float32 are exact (see the module)."""
    dtype = jnp.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return rng.integers(0, 200, shape).astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return rng.integers(-120, 120, shape).astype(dtype)
    return (rng.integers(-120, 120, shape) / 8).astype(dtype)


def optimized(function: Callable[..., Any]) -> Any:
    """`jax.jit` for a program that runs for seconds: with the optimizations of XLA.

    The other programs of the tests run once, and compile faster without: see `conftest.py`.
    """
    options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    return jax.jit(function, compiler_options=options)


def update(metric: Any, *args: Any, **kwargs: Any) -> Any:
    """A metric or statistic after an update on the host, where nothing compiles.

    As within `jit`, values are counted and not checked.
    """
    with in_update(checks="none"), np.errstate(all="ignore"):
        return metric.update(*on_the_host(args), **on_the_host(kwargs))


def update_all(metrics: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Several metrics, each after the same update on the host."""
    return [update(metric, *args, **kwargs) for metric in metrics]


def value_of(metric: Any, *args: Any, **kwargs: Any) -> Any:
    """The value after an update on the host."""
    return update(metric, *args, **kwargs).compute()


@jax.jit
def compiled_update(metric: Any, *args: Any, **kwargs: Any) -> Any:
    """`update` as a program, which is compiled once for all tests of a configuration."""
    return metric.update(*args, **kwargs)


@jax.jit
def merge(a: Any, b: Any) -> Any:
    """Two metrics or statistics as one."""
    return a.merge(b)


def softmax(x: np.ndarray) -> np.ndarray:
    """Logits as probabilities, over the last dimension."""
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def wide(x: Any) -> np.ndarray:
    """In float64, where the sums of a test are exact."""
    return np.asarray(x).astype(np.float64)


def mean(x: Any, weights: Any = None, axis: Any = None) -> np.ndarray:
    """The weighted mean from its definition: rows of weight zero are absent, no rows give NaN."""
    x = wide(x)
    if weights is None:
        weights = np.ones(x.shape)
    weights = wide(weights)
    weights = np.broadcast_to(by_row(weights, x.ndim), x.shape)
    total = weights.sum(axis=axis)
    weighted = (np.where(weights == 0, 0.0, x) * weights).sum(axis=axis)
    return np.where(total == 0, np.nan, weighted / np.where(total == 0, 1.0, total))


def by_row(weights: Any, ndim: int) -> np.ndarray:
    """Weights of rows, which broadcast against arrays of `ndim` dimensions."""
    weights = np.asarray(weights)
    return weights.reshape(weights.shape + (1,) * (ndim - weights.ndim))


def bits(tree: Any) -> list[bytes]:
    """The bytes of every array of a tree."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def on_the_host(tree: Any) -> Any:
    """A tree of NumPy arrays, once they are computed."""
    return jax.tree.map(np.asarray, jax.block_until_ready(tree))


def refusals(calls: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """What each call says that raises a `NotAddressableError`, by name."""
    said = {}
    for name, call in calls.items():
        try:
            call()
        except NotAddressableError as error:
            said[name] = str(error)
    return said


def assert_same(got: Any, want: Any, dtype: Any = None, *, ulps: int = 0) -> None:
    """The same type, shape, dtype and NaNs, and values within `ulps` units in the last place.

    A float32 may be a float64 of the host, which is rounded before it is compared.
    """
    assert isinstance(got, jax.Array | np.ndarray | np.generic), type(got)
    assert not isinstance(got, jax.Array) or not got.aval.weak_type
    want = np.asarray(want)
    dtype = jnp.dtype(want.dtype if dtype is None else dtype)
    if not isinstance(got, jax.Array) and dtype == np.float32 and got.dtype == np.float64:
        with np.errstate(over="ignore"):
            got = got.astype(dtype)
    assert got.dtype == dtype, (got.dtype, dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    value = np.asarray(got)
    if ulps == 0:
        np.testing.assert_array_equal(value, want.astype(dtype))
        return
    np.testing.assert_array_equal(np.isfinite(value), np.isfinite(want))
    np.testing.assert_array_equal(value[~np.isfinite(value)], want[~np.isfinite(want)])
    keep = np.isfinite(want)
    unit = np.spacing(np.abs(want[keep]).astype(dtype)).astype(np.float64)
    error = np.abs(value[keep].astype(np.float64) - want[keep].astype(np.float64))
    assert (error <= ulps * unit).all(), (value, want, (error / unit).max())


def sum_bound(terms: int, absolute_sum: Any, eps: float = 2.0**-24) -> Any:
    """How far a float sum can be from the exact one, in any order: gamma(n) times sum |x|.

    N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2.
    """
    return terms * eps / (1 - terms * eps) * np.asarray(absolute_sum)


def fsum(x: Any) -> float:
    """The exact sum, rounded once."""
    return math.fsum(np.asarray(x, np.float64).ravel().tolist())


def over_shards(
    function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`jax.jit` of `function` in a `shard_map`, with the replication check on."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


def compiled_text(function: Any, *args: Any) -> str:
    """The optimized program of a jitted function for these arguments."""
    return function.lower(*args).compile().as_text()


def collectives(function: Any, *args: Any) -> Counter[str]:
    """How many of each collective the compiled program of a jitted function holds."""
    return collectives_in(compiled_text(function, *args))


def collectives_in(text: str) -> Counter[str]:
    """How many of each collective the text of a compiled program holds."""
    kinds = (
        "all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
    )
    pattern = rf" ({kinds})(?:-start)?\("  # an instruction; its later uses are `%all-reduce.1`
    return Counter(re.findall(pattern, text))


def quantile(values: Any, weights: Any, q: float, method: str = "inverted_cdf") -> float:
    """A weighted quantile from its definition, in rational numbers; `q` is the decimal written.

    R. J. Hyndman and Y. Fan (1996), definitions 1 and 2.
    """
    order = np.argsort(values, axis=None, kind="stable")
    values, weights = (np.asarray(x, np.float64).ravel()[order] for x in (values, weights))
    some = [(x, Fraction(w)) for x, w in zip(values.tolist(), weights.tolist(), strict=True) if w]
    target, below = Fraction(str(q)) * sum((w for _, w in some), Fraction(0)), Fraction(0)
    for i, (value, weight) in enumerate(some):
        below += weight
        if below >= target:
            after = some[min(i + 1, len(some) - 1)][0] if below == target else value
            return value if method == "inverted_cdf" else (value + after) / 2
    return math.nan
