"""What one update with some trees adds to a state: sums over their leaves, by rows of leaves."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import get_abstract_mesh

from datarax._checks import as_float, default_float
from datarax._errors import MetricInputError
from datarax.distributed.collectives import is_checked, varying_axes
from datarax.numerics.limbs import Limbs, sum_integers, sum_limbs
from datarax.numerics.squares import sum_of_squares
from datarax.statistics.replication import axes_of
from datarax.statistics.scaled_total import INFINITE, NOTHING, ScaledTotal, sums_of_sums
from datarax.statistics.tree_layout import TreeLayout
from datarax.statistics.tree_sums import NEVER, TreeSums

Rows = tuple[tuple[int, ...], ...]
"""For each row, the indices of the leaves that it adds up."""


class TreeBatch(NamedTuple):
    """The sums of one step."""

    sums: TreeSums
    nonfinite: Limbs
    """How many entries of all trees are NaN or infinite: (rows,)."""
    bad: jax.Array
    """Which leaves have such an entry, in any of the trees: (leaves,)."""


def tree_batch(
    empty: TreeSums,
    layout: TreeLayout,
    rows: Rows,
    trees: Mapping[str, list[Any] | None],
    step: jax.Array,
) -> TreeBatch:
    """The sums of some trees at one step.

    Inside `shard_map`, they are the part of this device: the sums of its shard of a leaf, and of a
    leaf that is replicated, the whole on the first device and nothing on the others.

    Args:
        empty: the empty state.
        layout: the leaves that each tree must have.
        rows: the rows of the sums.
        trees: for each tree of the state, its name and its leaves, as `TreeLayout.leaves_of` gives
            them; None if it is not given.
        step: int32, of shape ().

    Raises:
        MetricInputError: a leaf has not the shape of the layout; names it.
    """
    over, given = axes_of(trees), np.array([x is not None for x in trees.values()])
    by_tree = [
        _nothing(layout) if leaves is None else _by_leaf(leaves, layout, name, over)
        for name, leaves in trees.items()
    ]
    # Arrays of shape (trees, 1, leaves), and masks of shape (trees, rows, leaves).
    each = jax.tree.map(lambda *xs: jnp.stack(xs)[:, None], *by_tree)
    member = np.zeros((1, len(rows), len(layout.paths)), np.bool_)
    for mask, row in zip(member[0], rows, strict=True):
        mask[list(row)] = True
    chosen = each.here & member
    squares = sums_of_sums(each.squares, chosen)
    greatest = jnp.max(jnp.where(chosen, each.greatest, 0), -1, initial=0)
    sums = {
        "step": jnp.where(given, step, jnp.int32(NEVER)),
        "squares": squares,
        # A maximum may drop a NaN; a sum does not.
        "greatest": jnp.where(jnp.isnan(squares.scaled.high), jnp.nan, greatest),
        "entries": sum_limbs(each.entries, (-1,), chosen),
        "zeros": sum_limbs(each.zeros, (-1,), chosen),
    }
    high, low = each.nonfinite
    bad = jnp.any((high != 0) | (low != 0), (0, 1), where=chosen[:, :1])
    return TreeBatch(empty.with_parts(sums), sum_limbs(each.nonfinite, (0, -1), chosen), bad)


class _Leaves(NamedTuple):
    """Sums over each leaf of a tree: arrays of shape (leaves,)."""

    squares: ScaledTotal
    greatest: Any
    entries: Any
    """Numbers of entries, as 64-bit integers in limbs; likewise `zeros` and `nonfinite`."""
    zeros: Any
    nonfinite: Any
    here: Any
    """Whether the leaf counts on this device."""


def _nothing(layout: TreeLayout) -> _Leaves:
    """The sums of a tree that is not given."""
    size = len(layout.paths)
    count = np.zeros(size, np.int32), np.zeros(size, np.uint32)
    zero = np.zeros(size, default_float())
    return _Leaves(ScaledTotal((size,)), zero, count, count, count, np.zeros(size, np.bool_))


def _by_leaf(leaves: list[Any], layout: TreeLayout, name: str, over: frozenset[str]) -> _Leaves:
    for leaf, path, shape in zip(leaves, layout.paths, layout.shapes, strict=True):
        _check_shard(leaf, shape, f"{name}: the leaf {path!r}")
    # Few arrays for all leaves, so that the program is small.
    floats, integers = zip(*(_leaf_sums(leaf, name == "grads") for leaf in leaves), strict=True)
    high, low, greatest = jnp.stack(floats, 1)
    exponent, *counts = jnp.stack(integers, 1)
    counts = [x if i % 2 == 0 else x.astype(jnp.uint32) for i, x in enumerate(counts)]
    squares = ScaledTotal(high.shape).with_parts({"parts": (high, low), "exponent": exponent})
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    entries = np.array([n >> 32 for n in sizes], np.int32), np.array(sizes, np.uint64)
    return _Leaves(
        squares,
        greatest,
        (entries[0], entries[1].astype(np.uint32)),
        (counts[0], counts[1]),
        (counts[2], counts[3]),
        jnp.stack([_counts_here(leaf, over) for leaf in leaves]),
    )


# Leaves of one shape are traced once.
@partial(jax.jit, static_argnames="zeros")
def _leaf_sums(x: jax.Array, zeros: bool) -> tuple[jax.Array, jax.Array]:
    """Floats: the sum of squares as a double-float, the greatest absolute value. And integers: the
    exponent of the sum, and in limbs the numbers of zeros and of entries that are not finite.
    """
    x, axes = as_float(x), tuple(range(x.ndim))
    total, exponent, greatest = sum_of_squares(x)
    exponent = jnp.where(total.high == 0, jnp.int32(NOTHING), exponent)
    exponent = jnp.where(jnp.isfinite(total.high), exponent, jnp.int32(INFINITE))
    none = jnp.int32(0), jnp.uint32(0)
    counts = [*(sum_integers(x == 0, axes) if zeros else none)]
    counts += sum_integers(~jnp.isfinite(x), axes)
    integers = [exponent, *(n.astype(jnp.int32) for n in counts)]
    return jnp.stack([total.high, total.low, greatest]), jnp.stack(integers)


def _counts_here(leaf: jax.Array, over: frozenset[str]) -> jax.Array:
    """Whether a leaf counts on this device, where any leaf varies over the axes `over`."""
    missing = tuple(sorted(over - varying_axes(leaf)))
    return lax.axis_index(missing) == 0 if missing else jnp.ones((), jnp.bool_)


def manual_axes() -> tuple[str, ...]:
    """The axes of the `shard_map` or `pmap` in which this is traced."""
    return tuple(getattr(get_abstract_mesh(), "manual_axes", ()))


def _check_shard(leaf: jax.Array, shape: tuple[int, ...], where: str) -> None:
    """Raises unless an array is a leaf of this shape; inside `shard_map`, a shard of it."""
    axes = manual_axes()
    checked = all(map(is_checked, axes))
    if not axes:
        if leaf.shape != shape:
            raise MetricInputError(f"{where} has shape {leaf.shape}; like= has {shape}")
        return
    pairs = list(zip(shape, leaf.shape, strict=False))
    if len(leaf.shape) != len(shape) or not all(n == m or (m and n % m == 0) for n, m in pairs):
        raise MetricInputError(
            f"{where} has shape {leaf.shape}, which is no shard of {shape}, the shape in like="
        )
    parts = math.prod(n // m for n, m in pairs if n != m)
    split = tuple(sorted(varying_axes(leaf))) if checked else axes
    devices = math.prod(lax.axis_size(name) for name in split)
    if parts == devices:
        return
    if not checked:
        raise MetricInputError(
            f"{where} has shape {leaf.shape}, and {shape} in like=: it is not sharded over all of "
            f"{axes}, and without the replication check (pmap, or shard_map with check_vma=False) "
            f"JAX does not tell which devices hold the same. Keep the check on, or update the "
            f"metric outside with global arrays"
        )
    raise MetricInputError(
        f"{where} differs between the {devices} devices along {split}, and like= has {parts} times "
        f"its entries. Give the shards of one array, or one array that all devices hold: average "
        f"gradients first, with jax.lax.pmean(grads, {split})"
    )
