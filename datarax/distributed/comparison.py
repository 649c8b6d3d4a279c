"""`check_same`: compares the arrays that processes hold, by their digests."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import kind, timeout_seconds
from datarax._errors import (
    MetricInputError,
    MetricTypeError,
    NotAddressableError,
    TracedValueError,
)
from datarax._typing import PyTree
from datarax._xp import fetched, is_addressable, is_traced
from datarax.distributed.barrier import barrier_of
from datarax.distributed.placement import outside_mesh


@outside_mesh
def check_same(x: PyTree, *, timeout: float | None = None) -> None:
    """Raises on every process unless all hold the same arrays.

    For what must be equal everywhere: parameters, a random key, the seed and the step of a data
    loader, a NumPy array that is passed to a jitted step. JAX takes such an array to be the same on
    every process, and does not check it.

    Structure, shapes, dtypes and the bits of the values are compared: NaN equals NaN of the same
    bits, and 0.0 differs from -0.0. The processes exchange a digest (SHA-256) of each array through
    the key-value store of `jax.distributed`; nothing is sent over the devices. Every process must
    call it, in the same order. On a single process there is nothing to compare.

    Args:
        x: a pytree of arrays, Python numbers and strings, for example a metric or a train state. Of
            a JAX array that is replicated over the processes, each compares its own copy.
        timeout: the longest time in seconds to wait for the other processes; `None` for no limit.

    Raises:
        MetricInputError: the processes hold different arrays; names the path in `x`, and what
            which processes hold. Or `timeout` is negative.
        MetricTypeError: a leaf is neither an array, a number nor a string; or it is called while a
            function is traced.
        NotAddressableError: an array is sharded over processes, so that each holds another part.
        MetricTimeoutError: some processes did not arrive in time, or failed; names them.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from datarax.distributed import check_same
        >>> check_same({"key": jax.random.key(0), "scale": np.float32(2)}, timeout=60)
    """
    timeout_seconds(timeout)
    if is_traced(x):
        raise TracedValueError(
            "check_same: the values are not known while a function is traced (jit, scan, vmap, "
            "shard_map). Call it outside, on what the function takes or returns"
        )
    if jax.process_count() == 1:
        return
    barrier = barrier_of("check_same")
    with barrier.aborting():
        listed = json.dumps(_digests(x), sort_keys=True).encode()
        barrier.publish("arrays", listed)

    def difference(digests: dict[int, str]) -> str:
        if len(set(digests.values())) == 1:
            return ""
        held = {i: barrier.published("arrays", i, barrier.round) for i in digests}
        return _difference({i: json.loads(each) for i, each in held.items()})

    digest = hashlib.sha256(listed).hexdigest()
    try:
        differ = barrier.wait(timeout, "check_same", digest, difference, failed=bool)
    finally:
        barrier.withdraw()
    if differ:
        raise MetricInputError(f"check_same: {differ}")


def _digests(x: PyTree) -> dict[str, str]:
    """The dtype, the shape and a digest of each leaf, by its path."""
    digests = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(x)[0]:
        path = f"x{jax.tree_util.keystr(keys)}"
        array = _on_host(path, leaf)  # one at a time: a model may be large
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        digests[path] = f"{array.dtype}{list(array.shape)} with the digest {digest[:16]}"
    return digests


def _on_host(path: str, leaf: PyTree) -> np.ndarray:
    """The leaf as an array on the host; of a random key, its data."""
    if isinstance(leaf, jax.Array):
        if not is_addressable(leaf) and not leaf.is_fully_replicated:
            raise NotAddressableError(
                f"check_same: {path} is sharded over processes, so each holds another part of it; "
                f"expected arrays that every process holds whole"
            )
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(fetched(jax.random.key_data(leaf) if is_key else leaf))
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise MetricTypeError(
            f"check_same: {path} is {kind(leaf)}; expected an array, a number or a string"
        )
    return array


def _difference(held: dict[int, dict[str, str]]) -> str:
    """A sentence: what the processes hold at the first path where they differ."""
    paths = sorted({path for digests in held.values() for path in digests})
    differ = [path for path in paths if len({each.get(path) for each in held.values()}) > 1]
    groups: dict[str, list[str]] = {}
    for process, digests in sorted(held.items()):
        groups.setdefault(digests.get(differ[0], "not there"), []).append(str(process))
    said = " and ".join(
        f"{what} on process{'es' * (len(which) > 1)} {', '.join(which)}"
        for what, which in groups.items()
    )
    others = f"; {len(differ) - 1} more differ" if len(differ) > 1 else ""
    return f"the processes hold different arrays: {differ[0]} is {said}{others}"
