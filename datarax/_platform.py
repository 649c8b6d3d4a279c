"""The platform that a program is lowered for, which decides what the program may hold.

A program for a TPU holds no float64, which TPUs do not have. Where a program is traced nobody says
yet where it will run: the context of this module, the mesh that is set, or the process's own
backend.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from threading import Lock
from typing import Any, Literal
from warnings import warn

import jax
import numpy as np
from jax.core import ShapedArray

from datarax._errors import MetricInputError, PlatformWarning

Platform = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]
_BACKENDS = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "tpu"}
"""The backends of JAX by the names of its platforms."""

# The context of JAX's that `lowering_for` sets: JAX looks its functions up by the value, too. It is
# made when it is first needed, because JAX then traces again what was traced without it.
_lowered_for: Any = None
_making = Lock()


def lowering_for(platform: Platform) -> AbstractContextManager[None]:
    """A block whose programs are those of another platform than this process's.

    Programs for TPUs hold no float64; those for CPUs and GPUs do. datarax takes the platform from
    the mesh that is set (`jax.set_mesh`) or from the `shard_map` around a call, and else from
    `jax.default_backend()`. A program that is traced on a CPU host for TPUs, without a mesh of
    TPUs, is traced in this block. `jit` keeps the programs of each platform apart. Blocks nest, the
    innermost counts, and each thread has its own.

    In a program for several platforms, `"tpu"` is right on each of them. Calls on NumPy arrays
    outside `jit` are not concerned.

    A program that holds sums in float64 and is lowered for a TPU all the same gives a
    `PlatformWarning`: XLA emulates float64 there. What only reads a state, without an update, is
    not seen.

    JAX traces functions again that it traced before the first such block of the process.

    Args:
        platform: "cpu", "gpu" ("cuda" and "rocm" are the same) or "tpu".

    Raises:
        MetricInputError: the platform is another.

    Example:
        >>> import datarax
        >>> import jax, jax.numpy as jnp
        >>> from datarax.metrics import MeanSquaredError
        >>> @jax.jit
        ... def error(preds, target):
        ...     return MeanSquaredError().update(preds, target).compute()
        >>> shape = jax.ShapeDtypeStruct((8,), jnp.float32)
        >>> with datarax.lowering_for("tpu"):
        ...     exported = jax.export.export(error, platforms=["cpu", "tpu"])(shape, shape)
        >>> print("f64" in exported.mlir_module(), exported.call(jnp.arange(8.0), jnp.ones(8)))
        False 11.5
    """
    if platform not in _BACKENDS:
        raise MetricInputError(
            f"lowering_for: the platform is {platform!r}; expected one of "
            f"{', '.join(map(repr, _BACKENDS))}"
        )
    return _within(_BACKENDS[platform])


@contextmanager
def _within(backend: str) -> Iterator[None]:
    global _lowered_for
    with _making:
        if _lowered_for is None:
            _lowered_for = jax.make_user_context()
    with _lowered_for(backend):
        yield


def lowered_for() -> str:
    """The backend that runs what is traced here: "cpu", "gpu", "tpu", or another name of JAX's."""
    said = None if _lowered_for is None else _lowered_for.value
    return said or _of_mesh() or jax.default_backend()


def _of_mesh() -> str | None:
    """The backend of the mesh that is set, or None."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        return None
    if found := _BACKENDS.get(getattr(device, "platform", "")):
        return found
    # Before jax 0.10, a mesh only knows the kind of its devices, such as "TPU v5 lite".
    kind = device.device_kind[:3].lower()
    return kind if kind in ("cpu", "tpu") else None


def float64_zero() -> jax.Array:
    """Zero in float64, from which the sums of a program begin; lowered for a TPU, it warns.

    Whoever lowers a program says for which platforms; before, while it is traced, nobody knows.
    """
    return _float64_zero().bind()


@cache
def _float64_zero() -> Any:
    """The primitive. It has no operands, so JAX needs no rules to map or differentiate it."""
    from jax.extend.core import Primitive  # takes long, and nothing on the host needs it
    from jax.interpreters import mlir

    def lowered(context: Any) -> list[Any]:
        if "tpu" in context.module_context.platforms:
            warn(
                "a program that is lowered for a TPU holds float64, which TPUs do not have: it is "
                "slow there, and has the range of float32. Trace and lower it in a block of "
                'datarax.lowering_for("tpu"), or inside jax.set_mesh with a mesh of TPUs',
                PlatformWarning,
                stacklevel=2,
            )
        return [mlir.ir_constant(np.zeros((), np.float64))]

    made = Primitive("float64_zero")
    made.def_impl(lambda: np.zeros((), np.float64))
    made.def_abstract_eval(lambda: ShapedArray((), np.dtype(np.float64)))
    mlir.register_lowering(made, lowered)
    return made
