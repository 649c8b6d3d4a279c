"""Trees of parameters for the tests of `TreeHealth`, and what it should say of them, in float64."""

from typing import Any

import jax
import numpy as np

SHAPES = {
    "embed": {"table": (16, 24)},
    "layers": [{"bias": (8,), "kernel": (24, 8)}, {"bias": (5,), "kernel": (8, 5)}],
    "scale": (),
    "unused": (0, 4),
}


def drawn(rng: np.random.Generator, scale: float = 1.0, zeros: float = 0.0) -> Any:
    """A tree of float32 arrays; each entry is 0 with the probability `zeros`."""

    def array(shape: tuple[int, ...]) -> np.ndarray:
        x = (scale * rng.normal(size=shape)).astype(np.float32)
        return np.where(rng.random(shape) < zeros, np.float32(0), x)

    return jax.tree.map(array, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def norm(tree: Any) -> float:
    """The Euclidean norm of all entries, without overflow."""
    leaves = [np.asarray(x).astype(np.longdouble).ravel() for x in jax.tree.leaves(tree)]
    return float(np.sqrt(sum((x**2).sum() for x in leaves)))


def greatest(tree: Any) -> float:
    return max(
        np.abs(np.asarray(x).astype(np.float64)).max(initial=0) for x in jax.tree.leaves(tree)
    )


def zeros(tree: Any) -> float:
    leaves = [np.asarray(x) for x in jax.tree.leaves(tree)]
    return sum((x == 0).sum() for x in leaves) / sum(x.size for x in leaves)


def expected(params: Any, grads: Any, updates: Any) -> dict[str, float]:
    """The results of one group, but the counts of what is not finite."""
    trees = {"param": params, "grad": grads, "update": updates}
    return {
        **{f"{name}_norm": norm(tree) for name, tree in trees.items()},
        **{f"{name}_max": greatest(tree) for name, tree in trees.items()},
        "update_ratio": norm(updates) / norm(params),
        "grad_zeros": zeros(grads),
    }


def assert_results(got: dict[str, Any], want: dict[str, float], prefix: str = "") -> None:
    for name, value in want.items():
        # Each square is rounded at most once and the sum is wide: a root and one rounding follow.
        np.testing.assert_allclose(got[prefix + name], value, rtol=2.0**-22, err_msg=name)
