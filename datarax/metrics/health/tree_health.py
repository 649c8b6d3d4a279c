"""`TreeHealth`: norms of parameters, gradients and updates, and where the first NaN appeared."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import get_abstract_mesh

from datarax._checks import default_float, integers
from datarax._errors import MetricInputError
from datarax._platform import lowered_for
from datarax._typing import Array, ArrayLike, PyTree
from datarax._xp import compiled, lax, xp
from datarax.algebra.devices import axes_of
from datarax.algebra.fields import field, state
from datarax.algebra.leaf_state import ElementwiseState
from datarax.distributed.collectives import is_checked, mark_varying, varying_axes
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.metric.arguments import Call, arguments, refuse_unknown_arguments
from datarax.metric.base import Metric
from datarax.metric.values import ByGroup, OrNone
from datarax.metrics.health.tree_layout import TreeLayout, checked_groups
from datarax.numerics.double_float import DoubleFloat
from datarax.numerics.exact import Exact
from datarax.numerics.limbs import Limbs, add_limbs, limbs_from_double, sum_integers, sum_limbs
from datarax.numerics.scaled_double import NOTHING
from datarax.numerics.scaled_sums import INFINITE, sums_of_squares
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.scaled_total import ScaledTotal, sums_of_sums

Rows = tuple[tuple[int, ...], ...]
"""For each row, the indices of the leaves that it adds up."""

TREES = "params", "grads", "updates"

NOWHERE = 2**31 - 1
"""The step and the place where nothing was found."""

NEVER = -(2**31)
"""The step of a tree that was not given."""


class TreeSums(ElementwiseState):
    """Sums over the leaves of several trees, each at the newest step in which it was given.

    The arrays have the shape (trees, rows); a row is a set of leaves. Sums of one step add up, so
    the devices that hold parts of a tree fold the same step, and are then merged.
    """

    trees: int
    sizes: tuple[int, ...]
    """The number of entries of each row."""

    step: jax.Array = state()
    """The newest step of each tree, int32 (trees,)."""
    counted: jax.Array = state()
    """True if a tree was folded without a step, and the state numbered it: int32 (trees,)."""
    unordered: jax.Array = state()
    """True if such a tree was merged with others: int32 (trees,)."""
    squares: ScaledTotal = state()
    """The sums of squares."""
    greatest: jax.Array = state()
    """The greatest absolute values."""
    entries: Limbs = state()
    """The number of entries that were folded, as 64-bit integers in limbs."""
    zeros: Limbs = state()
    """The number of entries that are 0."""

    def empty(self) -> dict[str, PyTree]:
        shape = self.trees, len(self.sizes)
        flags, count = zeros(shape[:1], "int32"), (zeros(shape, "int32"), zeros(shape, "uint32"))
        return {
            "step": identity(MetricReduceOp.max, shape[:1], np.dtype("int32"))[0],
            "counted": flags,
            "unordered": flags,
            "squares": ScaledTotal(shape),
            "greatest": zeros(shape, default_float().name),
            "entries": count,
            "zeros": count,
        }

    @property
    def given(self) -> jax.Array:
        """True for the trees that were given: (trees,)."""
        return xp.asarray(self.step) > NEVER

    def combine(self, other: Self) -> Self:
        step = xp.maximum(self.step, other.step)
        # For each tree, only the sums of the newest step count; those of one step are added.
        a, b = self._at(step), other._at(step)
        counted = xp.maximum(self.counted, other.counted)
        # A step that a state has numbered by itself has no order among the steps of another state.
        both = (self.given & other.given).astype(xp.int32)
        unordered = xp.maximum(self.unordered, other.unordered)
        return self.with_parts(
            {
                "step": step,
                "counted": counted,
                "unordered": xp.maximum(unordered, counted * both),
                "squares": a.squares.combine(b.squares),
                "greatest": xp.maximum(a.greatest, b.greatest),
                "entries": add_limbs(a.entries, b.entries),
                "zeros": add_limbs(a.zeros, b.zeros),
            }
        )

    def _at(self, step: jax.Array) -> Self:
        """The sums of the trees of these steps; empty ones for a tree of an older step."""
        now = (xp.asarray(self.step) == step)[:, None]
        empty = self.empty()

        def kept(name: str) -> PyTree:
            return jax.tree.map(
                lambda x, none: xp.where(xp.broadcast_to(now, x.shape), x, none),
                getattr(self, name),
                empty[name],
            )

        names = ("squares", "greatest", "entries", "zeros")
        return self.with_parts({name: kept(name) for name in names})

    def folded(self, batch: Self, *, numbered: bool) -> Self:
        """The state after an update with the sums of one step.

        Args:
            batch: the sums.
            numbered: whether the batch has the number of its step. If not, it gets the next one.
        """
        if numbered:
            return self.merge(batch)
        # The batch gets one step for all of its trees: one more than the newest of any tree.
        after = xp.where(self.given, xp.asarray(self.step) + 1, xp.int32(0))
        step = xp.where(batch.given, xp.max(after), xp.int32(NEVER))
        # This is an update and no merge of two states: it leaves `unordered` as it is.
        ours = self.with_parts({"counted": xp.zeros_like(self.counted)})
        folded = ours.combine(batch.with_parts({"step": step}))
        counted = xp.maximum(self.counted, batch.given.astype(xp.int32))
        return folded.with_parts({"counted": counted})

    def canonical(self) -> Self:
        return self.with_parts({"squares": self.squares.canonical()})

    def unusable(self) -> dict[str, PyTree]:
        """Trees whose sums are not those of one step, each entry once."""
        # Row 0 holds all leaves. Its 64-bit count is compared in limbs of 32 bits.
        high, low = (xp.asarray(x)[:, 0] for x in self.entries)
        once = (high == self.sizes[0] >> 32) & (low == np.uint32(self.sizes[0] & 0xFFFFFFFF))
        unordered = xp.asarray(self.unordered) != 0
        found = {
            "trees of a step that was folded in part, or more than once": self.given & ~once,
            "trees that were folded without a step, and then merged": unordered,
        }
        return {kind: xp.sum(mask, dtype=xp.int32) for kind, mask in found.items()}


class FirstPlace(ElementwiseState):
    """The least step at which something was found; and of the places at that step, the least."""

    step: jax.Array = state()
    place: jax.Array = state()

    def empty(self) -> dict[str, PyTree]:
        none = identity(MetricReduceOp.min, (), np.dtype("int32"))[0]
        return {"step": none, "place": none}

    def of(self, found: jax.Array, step: jax.Array) -> Self:
        """The first of the places (n,) at which something was found at a step."""
        places = xp.arange(found.size, dtype=xp.int32)
        place = xp.min(places, initial=xp.int32(NOWHERE), where=found)
        return self.with_parts({"place": place}).numbered(step)

    def numbered(self, step: jax.Array) -> Self:
        """The same place at another step."""
        return self.with_parts({"step": xp.where(self.some, step, xp.int32(NOWHERE))})

    @property
    def some(self) -> jax.Array:
        """True if anything was found."""
        return xp.asarray(self.place) < NOWHERE

    def combine(self, other: Self) -> Self:
        a, b = self, other
        # Pairs (step, place) in lexicographic order.
        earlier = (a.step < b.step) | ((a.step == b.step) & (a.place < b.place))
        return jax.tree.map(lambda x, y: xp.where(earlier, x, y), a, b)


@compiled("layout", "rows")
def tree_batch(
    trees: Mapping[str, list[jax.Array] | None], step: jax.Array, layout: TreeLayout, rows: Rows
) -> tuple[TreeSums, MetricAccumulator, FirstPlace]:
    """The sums of some trees at one step.

    Inside `shard_map`, they are the part of this device: the sums of its shard of a leaf, and of a
    leaf that is replicated, the whole on the first device and nothing on the others.

    Args:
        trees: for each tree, its name and its leaves, as `TreeLayout.leaves_of` gives them; None if
            it is not given.
        step: int32, of shape ().
        layout: the leaves that each tree must have.
        rows: the rows of the sums.

    Returns:
        The sums; how many entries are NaN or infinite, by row; and the first leaf with such one.

    Raises:
        MetricInputError: a leaf has not the shape of the layout; names it.
    """
    # In the order of the state; `jit` sorts the names of a dict.
    given = {name: leaves for name in TREES if (leaves := trees[name]) is not None}
    for name, leaves in given.items():
        for leaf, path, shape in zip(leaves, layout.paths, layout.shapes, strict=True):
            _check_shard(leaf, shape, f"{name}: the leaf {path!r}")
    leaves = [leaf for each in given.values() for leaf in each]
    arrays = [leaf.astype(default_float()) for leaf in leaves]
    total, exponent, greatest = sums_of_squares(arrays)
    exponent = xp.where(total.high == 0, xp.int32(NOTHING), exponent)
    exponent = xp.where(xp.isfinite(total.high), exponent, xp.int32(INFINITE))
    of_grads = [name == "grads" for name in given for _ in layout.paths]
    zero, nonfinite = _counts(arrays, of_grads, xp.all(xp.isfinite(total.high)))
    # Sizes are known when the program is traced; NumPy has 64-bit integers also without x64.
    sizes = np.array([leaf.size for leaf in leaves], np.int64)
    entries = (sizes >> 32).astype(np.int32), (sizes & 0xFFFFFFFF).astype(np.uint32)

    # Arrays of shape (trees, 1, leaves), and masks of shape (trees, rows, leaves). Those of a tree
    # that is not given are those of another one, and masked.
    place = np.array([[*given].index(name) if name in given else 0 for name in TREES])

    def of_trees(x: Array) -> jax.Array:
        return xp.reshape(x, (len(given), 1, len(layout.paths)))[place]

    is_given = np.array([name in given for name in TREES])
    members = np.array([[[i in row for i in range(len(layout.paths))] for row in rows]])
    chosen = of_trees(_counts_here(leaves)) & is_given[:, None, None] & members
    parts = {"parts": tuple(map(of_trees, total)), "exponent": of_trees(exponent)}
    squares = sums_of_sums(ScaledTotal(parts["exponent"].shape).with_parts(parts), chosen)
    entries, zero, nonfinite = jax.tree.map(of_trees, (entries, zero, nonfinite))
    greatest = xp.max(xp.where(chosen, of_trees(greatest), 0), -1, initial=0)
    sums = {
        "step": xp.where(is_given, step, xp.int32(NEVER)),
        "squares": squares,
        # A maximum may drop a NaN; a sum does not.
        "greatest": xp.where(xp.isnan(squares.scaled.high), xp.nan, greatest),
        "entries": sum_limbs(entries, (-1,), chosen),
        "zeros": sum_limbs(zero, (-1,), chosen),
    }
    some = (nonfinite[0] != 0) | (nonfinite[1] != 0)
    # Row 0 has all leaves of the trees that are given.
    bad = xp.any(some, (0, 1), where=chosen[:, :1])
    all_nonfinite = Exact(*sum_limbs(nonfinite, (0, -1), chosen))
    return (
        tree_sums(layout, rows).with_parts(sums),
        counts(rows).update(all_nonfinite),
        FirstPlace().of(bad, step),
    )


def tree_sums(layout: TreeLayout, rows: Rows) -> TreeSums:
    """The empty sums over the leaves of each row."""
    sizes = tuple(sum(layout.sizes[i] for i in row) for row in rows)
    return TreeSums(trees=len(TREES), sizes=sizes)


def counts(rows: Rows) -> MetricAccumulator:
    """A count for each row, from 0."""
    return MetricAccumulator(np.zeros(len(rows), np.int32))


def _counts(
    arrays: list[jax.Array], with_zeros: list[bool], finite: jax.Array
) -> tuple[Limbs, Limbs]:
    """Counts the entries of each of n arrays that are 0, and those that are NaN or infinite.

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
        # |sign(x)| is 1 for all entries but zeros, and their sum is exact as a double-float.
        signs = DoubleFloat.of(xp.abs(xp.sign(x)))
        others = signs.sum(tuple(range(x.ndim)))
        return limbs_from_double(DoubleFloat.of(x.size, x.dtype) - others)

    def counted() -> tuple[Limbs, Limbs]:
        zero = of_each(lambda x: number(x == 0), with_zeros)
        return zero, of_each(lambda x: number(~xp.isfinite(x)), [True] * len(arrays))

    def counted_if_finite() -> tuple[Limbs, Limbs]:
        return of_each(zeros_of_finite, with_zeros), of_each(number, [False] * len(arrays))

    # On CPUs, XLA compiles a sum of comparisons to a slow loop: 1.3 ms of a million entries, and
    # this 0.3. A GPU would make the host wait for the condition.
    if lowered_for() != "cpu":
        return counted()
    return lax.cond(finite, counted_if_finite, counted)


def _counts_here(leaves: list[jax.Array]) -> Array:
    """Marks the leaves that count on this device: a replicated leaf counts on the first."""
    # All devices along an axis over which a leaf does not vary hold the same entries of it.
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
    # The shards of a leaf must be as many as the devices between which it differs.
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


class TreeHealth(Metric):
    """Norms of parameters, gradients and updates, and the leaf that was first not finite.

    `compute` gives a dict; with `groups`, it also has each value but the last two as
    "<group>/<name>":

    - "param_norm", "grad_norm", "update_norm": the Euclidean norm over all entries of all leaves,
      as `optax.tree.norm`.
    - "param_max", "grad_max", "update_max": the largest absolute value.
    - "update_ratio": `update_norm / param_norm`; NaN where all parameters are 0.
    - "grad_zeros": the fraction of the entries of the gradients that are exactly 0.
    - "nonfinite": how many entries of the three trees are NaN or infinite, in all updates.
    - "first_nonfinite", "first_nonfinite_step": in `results()` the path of a leaf, such as
      "layers/0/kernel", and the step, or None; in `compute()` the index of the leaf in the order of
      the tree and the step, or -1. It is the first leaf of the least step that has such an entry,
      in any of the trees.

    Norms, maxima and zeros are those of the newest step: for each tree, the greatest step in which
    it was given. They are NaN for a tree that was never given. A tree that holds a NaN has the norm
    NaN, one that holds an infinity an infinite norm; that is reported, and is no invalid data.

    `step` orders updates, also those of other devices, processes and checkpoints. Sums of one step
    add up, because its devices each hold a part. Without `step`, updates count themselves from 0,
    which is enough for one loop; reset() starts at 0 again. If a metric that counts its updates is
    merged with another that has data, or if a step of a tree was folded twice or only in part, the
    results of floats are NaN and reading warns.

    Sharded trees are not gathered. Under `jit`, the devices exchange a few numbers for each leaf.
    Inside `shard_map`, each device folds its shards, without a collective, and `sync` adds them up.
    A leaf that is replicated over an axis counts once. There, `step` is required, `like` has the
    global shapes, and gradients that still differ between devices are an error: average them first.
    Without the replication check (`check_vma=False`, `pmap`) only leaves that are sharded over all
    axes are accepted. `per_device(TreeHealth(...))` takes whole trees, as they are under `jit`.

    Half precision is accumulated in float32, squares neither overflow nor underflow, and counts
    are exact. Leaves that hold no floats (integers, random keys) are left out of all trees.

    Raises:
        MetricInputError: `like` has no float arrays; `groups` has not one of its three forms; or
            a pattern matches no leaf: names the leaves.
        MetricTypeError: `like` holds complex numbers.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.metrics import TreeHealth
        >>> params = {"dense": {"bias": jnp.zeros(2), "kernel": jnp.array([[3.0], [4.0]])}}
        >>> grads = {"dense": {"bias": jnp.array([jnp.inf, 1.0]), "kernel": jnp.zeros((2, 1))}}
        >>> metric = TreeHealth(like=params, groups={"biases": "bias$"})
        >>> seen = metric.update(params, grads, step=7).results()
        >>> print(seen["param_norm"], seen["biases/param_norm"], seen["grad_zeros"])
        5.0 0.0 0.5
        >>> print(seen["nonfinite"], seen["first_nonfinite"], seen["first_nonfinite_step"])
        1 dense/bias 7
    """

    like: PyTree = field()
    """The parameters: a pytree of arrays or `jax.ShapeDtypeStruct`s, for example an `nnx.State`.
    Only the paths and shapes of its float arrays are kept."""
    groups: Any = None
    """None; a number n, for one group for each beginning of a path of n components (1: top-level
    modules); or a dict from names to regular expressions, each searched in the path of a leaf."""

    sums: TreeSums = state()
    nonfinite: MetricAccumulator = state()
    first = FirstPlace()

    def __post_init__(self) -> None:
        if not isinstance(self.like, TreeLayout):
            self.like = TreeLayout.of(self.like)
        self.groups = checked_groups(self.groups)
        self.sums = tree_sums(self.like, self._rows)
        self.nonfinite = counts(self._rows)

    @property
    def _rows(self) -> Rows:
        """The leaves of each row of the sums: first all leaves, then those of each group."""
        return tuple(range(len(self.like.paths))), *self.like.grouped(self.groups).values()

    def update(
        self,
        params: PyTree = None,
        grads: PyTree = None,
        updates: PyTree = None,
        *,
        step: ArrayLike | None = None,
    ) -> Self:
        """A new metric with the trees of a step folded in; no communication inside `shard_map`.

        Args:
            params: the parameters, a pytree with the float leaves of `like`.
            grads: their gradients, likewise.
            updates: what is added to the parameters, likewise.
            step: an integer of shape (); by default, one more than the newest step. Beyond the
                range of int32 it counts as the end of that range.

        Raises:
            MetricInputError: no tree is given; the leaves or shapes of a tree are not those of
                `like`; or `step` is not given inside `shard_map`.
            MetricTypeError: `step` is not an integer.
        """
        trees = {"params": params, "grads": grads, "updates": updates}
        return self.apply(self.calls((), trees | {"step": step}))

    def calls(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PyTree:
        # The trees become sums here, where a wrapper has not yet split anything into rows.
        refuse_unknown_arguments(self, args, kwargs)
        takes = tuple(name for name, _ in arguments(self))
        given = dict.fromkeys(takes) | dict(zip(takes, args, strict=False)) | dict(kwargs)
        step = given.pop("step")
        if all(tree is None for tree in given.values()):
            raise MetricInputError(f"TreeHealth.update: give at least one of {', '.join(TREES)}")
        number = integers(0 if step is None else step, "step", "an integer")
        if number.ndim:
            raise MetricInputError(f"step has shape {number.shape}; expected one integer")
        trees = {
            name: None if given[name] is None else self.like.leaves_of(given[name], name)
            for name in TREES
        }
        batch = tree_batch(trees, _as_int32(number), self.like, self._rows)
        call = {"unnumbered" if step is None else "numbered": batch}
        return Call((), call, type(self).__name__, takes, (), rows=False)

    def apply(self, calls: PyTree) -> Self:
        # The name of the argument says whether a step was given: see `calls`.
        ((kind, (sums, nonfinite, first)),) = calls.kwargs.items()
        numbered = kind == "numbered"
        if not numbered and manual_axes():
            raise MetricInputError(
                "TreeHealth.update: step= is required inside shard_map and with per_device, where "
                "the copies of the metric on other devices do not know how many updates there were"
            )
        sums = self.sums.folded(sums, numbered=numbered)
        if not numbered:
            first = first.numbered(xp.max(sums.step))
        return self.with_parts(
            {
                "sums": sums,
                "nonfinite": self.nonfinite.merge(nonfinite),
                "first": self.first.merge(first),
            }
        )

    def compute(self) -> PyTree:
        sums, squares = self.sums, self.sums.squares.number
        absent = ~xp.broadcast_to(sums.given[:, None], sums.greatest.shape)
        norms = nan_where(absent, squares.root())
        greatest = nan_where(absent, xp.asarray(sums.greatest))
        zeros, entries = (Exact(*(x[1] for x in pair)) for pair in (sums.zeros, sums.entries))
        named = tuple(enumerate(name.removesuffix("s") for name in TREES))
        columns = {
            **{f"{name}_norm": norms[i] for i, name in named},
            "update_ratio": nan_where(absent[0] | absent[2], (squares[2] / squares[0]).root()),
            **{f"{name}_max": greatest[i] for i, name in named},
            "grad_zeros": zeros / entries,
            "nonfinite": self.nonfinite.value,
        }
        prefixes = "", *(f"{name}/" for name in self.like.grouped(self.groups))
        some = self.first.some
        others = {
            "first_nonfinite": OrNone(some, self.first.place, self.like.paths),
            "first_nonfinite_step": OrNone(some, self.first.step),
        }
        return ByGroup(columns, others, prefixes)


def _as_int32(step: jax.Array) -> jax.Array:
    # Not below -most: -2**31 is the step of a tree that was not given.
    held, most = xp.iinfo(step.dtype), xp.iinfo(xp.int32).max
    return xp.clip(step, max(held.min, -most), min(held.max, most)).astype(xp.int32)
