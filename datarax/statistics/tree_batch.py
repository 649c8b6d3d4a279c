"""What one update with some trees adds to a state: sums over their leaves, by rows of leaves."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import get_abstract_mesh

from datarax._checks import default_float
from datarax._errors import MetricInputError
from datarax._xp import lax, xp
from datarax.distributed.collectives import is_checked, mark_varying, varying_axes
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.limbs import Limbs, limbs_from_double, sum_integers, sum_limbs
from datarax.numerics.squares import sums_of_squares
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
    given = {name: leaves for name, leaves in trees.items() if leaves is not None}
    for name, leaves in given.items():
        for leaf, path, shape in zip(leaves, layout.paths, layout.shapes, strict=True):
            _check_shard(leaf, shape, f"{name}: the leaf {path!r}")
    leaves = [leaf for each in given.values() for leaf in each]
    arrays = [leaf.astype(default_float()) for leaf in leaves]
    total, exponent, greatest = sums_of_squares(arrays)
    exponent = xp.where(total.high == 0, xp.int32(NOTHING), exponent)
    exponent = xp.where(xp.isfinite(total.high), exponent, xp.int32(INFINITE))
    of_grads = [name == "grads" for name in given for _ in layout.paths]
    zeros, nonfinite = _counts(arrays, of_grads, xp.all(xp.isfinite(total.high)))
    sizes = np.array([leaf.size for leaf in leaves], np.int64)
    entries = (sizes >> 32).astype(np.int32), (sizes & 0xFFFFFFFF).astype(np.uint32)

    # Arrays of shape (trees, 1, leaves), and masks of shape (trees, rows, leaves). Those of a tree
    # that is not given are those of another one, and masked.
    place = np.array([[*given].index(name) if name in given else 0 for name in trees])

    def of_trees(x: Any) -> jax.Array:
        return xp.reshape(x, (len(given), 1, len(layout.paths)))[place]

    is_given = np.array([name in given for name in trees])
    chosen = of_trees(_counts_here(leaves)) & is_given[:, None, None] & _members(rows, layout)
    parts = {"parts": tuple(map(of_trees, total)), "exponent": of_trees(exponent)}
    squares = ScaledTotal(parts["exponent"].shape).with_parts(parts)
    entries, zeros, nonfinite = jax.tree.map(of_trees, (entries, zeros, nonfinite))
    squares = sums_of_sums(squares, chosen)
    greatest = xp.max(xp.where(chosen, of_trees(greatest), 0), -1, initial=0)
    sums = {
        "step": xp.where(is_given, step, xp.int32(NEVER)),
        "squares": squares,
        # A maximum may drop a NaN; a sum does not.
        "greatest": xp.where(xp.isnan(squares.scaled.high), xp.nan, greatest),
        "entries": sum_limbs(entries, (-1,), chosen),
        "zeros": sum_limbs(zeros, (-1,), chosen),
    }
    some = (nonfinite[0] != 0) | (nonfinite[1] != 0)
    bad = xp.any(some, (0, 1), where=chosen[:, :1])
    return TreeBatch(empty.with_parts(sums), sum_limbs(nonfinite, (0, -1), chosen), bad)


def _members(rows: Rows, layout: TreeLayout) -> np.ndarray[Any, Any]:
    """The leaves of each row, as a mask (1, rows, leaves)."""
    mask = np.zeros((1, len(rows), len(layout.paths)), np.bool_)
    for leaves, row in zip(mask[0], rows, strict=True):
        leaves[list(row)] = True
    return mask


def _counts(
    arrays: list[jax.Array], with_zeros: list[bool], finite: jax.Array
) -> tuple[Limbs, Limbs]:
    """How many entries of each of n arrays are 0; and how many are NaN or infinite.

    Args:
        arrays: floats of any shapes.
        with_zeros: for which arrays zeros are counted. For others, the result has 0.
        finite: whether all entries of all arrays are finite.
    """
    axes = tuple(axes_of(arrays))
    none = xp.int32(0), xp.uint32(0)

    def of_each(count: Callable[[jax.Array], Limbs], chosen: list[bool]) -> Limbs:
        each = [count(x) if yes else none for x, yes in zip(arrays, chosen, strict=True)]
        high, low = (xp.stack(limbs) for limbs in zip(*each, strict=True))
        # Both branches have one type.
        return mark_varying(high, axes), mark_varying(low, axes)

    def number(mask: jax.Array) -> Limbs:
        return sum_integers(mask, tuple(range(mask.ndim)))

    def zeros_of_finite(x: jax.Array) -> Limbs:
        signs = DoubleFloat.of(xp.abs(xp.sign(x)))
        others = signs.sum(tuple(range(x.ndim)))
        return limbs_from_double(DoubleFloat.of(x.size, x.dtype) - others)

    def counted() -> tuple[Limbs, Limbs]:
        zeros = of_each(lambda x: number(x == 0), with_zeros)
        return zeros, of_each(lambda x: number(~xp.isfinite(x)), [True] * len(arrays))

    def counted_if_finite() -> tuple[Limbs, Limbs]:
        return of_each(zeros_of_finite, with_zeros), of_each(number, [False] * len(arrays))

    # On CPUs, XLA compiles a sum of comparisons to a slow loop. A GPU would make the host wait for
    # the condition.
    if jax.default_backend() != "cpu":
        return counted()
    return lax.cond(finite, counted_if_finite, counted)


def _counts_here(leaves: list[Any]) -> Any:
    """Which leaves count on this device: a leaf that is replicated counts on the first."""
    over = axes_of(leaves)
    missing = [tuple(sorted(over - varying_axes(leaf))) for leaf in leaves]
    if not any(missing):
        return np.ones(len(leaves), np.bool_)
    first = {axes: lax.axis_index(axes) == 0 if axes else xp.bool_(True) for axes in missing}
    return xp.stack([first[axes] for axes in missing])


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
