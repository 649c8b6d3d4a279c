"""What one update with some trees adds to a state: sums over their leaves, by rows of leaves."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import get_abstract_mesh

from datarax._checks import as_float, default_float
from datarax._errors import MetricInputError
from datarax.distributed.collectives import is_checked, mark_varying, varying_axes
from datarax.numerics import double_float
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
    sizes = np.array([math.prod(leaf.shape) for leaf in leaves], np.int64)
    arrays = [as_float(leaf) for leaf in leaves]
    total, exponent, greatest = sums_of_squares(arrays)
    exponent = jnp.where(total.high == 0, jnp.int32(NOTHING), exponent)
    exponent = jnp.where(jnp.isfinite(total.high), exponent, jnp.int32(INFINITE))
    zeros, nonfinite = _counts(arrays, jnp.all(jnp.isfinite(total.high)), zeros=name == "grads")
    return _Leaves(
        ScaledTotal(greatest.shape).with_parts({"parts": tuple(total), "exponent": exponent}),
        greatest,
        ((sizes >> 32).astype(np.int32), (sizes & 0xFFFFFFFF).astype(np.uint32)),
        zeros,
        nonfinite,
        _counts_here(leaves, over),
    )


def _counts(arrays: list[jax.Array], finite: jax.Array, *, zeros: bool) -> tuple[Limbs, Limbs]:
    """How many entries of each array are 0; and how many are NaN or infinite.

    Args:
        arrays: floats of any shapes.
        finite: whether all entries of all of them are finite.
        zeros: whether to count zeros. If not, the result has 0 instead.
    """
    axes = axes_of(arrays)
    none = jnp.zeros(len(arrays), jnp.int32), jnp.zeros(len(arrays), jnp.uint32)

    def sums(arrays: list[jax.Array]) -> Limbs:
        high, low = zip(*(sum_integers(x, tuple(range(x.ndim))) for x in arrays), strict=True)
        return jnp.stack(high), jnp.stack(low)

    def counted() -> tuple[Limbs, Limbs]:
        return (sums([x == 0 for x in arrays]) if zeros else none), sums(
            [~jnp.isfinite(x) for x in arrays]
        )

    def counted_if_finite() -> tuple[Limbs, Limbs]:
        if not zeros:
            return none, none
        signs = [DoubleFloat.of(jnp.abs(jnp.sign(x))) for x in arrays]
        others = double_float.stack([x.sum(tuple(range(x.ndim))) for x in signs])
        sizes = double_float.stack([DoubleFloat.of(x.size, x.dtype) for x in arrays])
        return limbs_from_double(sizes - others), none

    def varying(count: Callable[[], Any]) -> Callable[[], Any]:
        """The same counts, typed alike in both branches."""
        return lambda: jax.tree.map(lambda x: mark_varying(x, tuple(axes)), count())

    if jax.default_backend() != "cpu":
        return counted()
    # On CPUs, XLA compiles a sum of comparisons to a slow loop. A GPU would make the host wait for
    # the condition.
    results = counted_if_finite, counted
    marked = (
        lambda f=f: jax.tree.map(lambda x: mark_varying(x, tuple(axes)), f()) for f in results
    )
    return lax.cond(finite, *marked)


def _counts_here(leaves: list[Any], over: frozenset[str]) -> Any:
    """Which leaves count on this device, where any leaf varies over the axes `over`."""
    missing = [tuple(sorted(over - varying_axes(leaf))) for leaf in leaves]
    if not any(missing):
        return np.ones(len(leaves), np.bool_)
    first = {axes: lax.axis_index(axes) == 0 if axes else True for axes in missing}
    return jnp.stack([first[axes] for axes in missing])


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
