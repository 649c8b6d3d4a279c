"""`TreeHealth`: norms of parameters, gradients and updates, and where the first NaN appeared."""

from collections.abc import Mapping
from typing import Any, Self

import jax

from datarax._checks import integers
from datarax._errors import MetricInputError
from datarax._typing import ArrayLike, PyTree
from datarax._xp import on_host, xp
from datarax.algebra.fields import field, state
from datarax.metrics.base import Metric, arguments
from datarax.metrics.call import Call
from datarax.metrics.health.tree_layout import TreeLayout, checked_groups
from datarax.metrics.health.tree_sums import (
    TREES,
    FirstPlace,
    Rows,
    TreeSums,
    counts,
    manual_axes,
    tree_batch,
    tree_sums,
)
from datarax.metrics.reading import ByGroup, OrNone
from datarax.numerics.exact import Exact
from datarax.numerics.scaling import nan_where
from datarax.statistics.accumulator import MetricAccumulator


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
    which is enough for one loop; reset() starts at 0 again. What has no order, or was not folded
    once, is never read as if it were right: if such a metric is merged with another that has data,
    or if a step of a tree was folded twice or only in part, the results of floats are NaN and
    reading warns.

    Sharded trees are not gathered. Under `jit`, the devices exchange a few numbers for each leaf.
    Inside `shard_map`, each device folds its shards, without a collective, and `sync` adds them up.
    A leaf that is replicated over an axis counts once. There, `step` is required, `like` has the
    global shapes, and gradients that still differ between devices are an error: average them first.
    Without the replication check (`check_vma=False`, `pmap`) only leaves that are sharded over all
    axes are accepted. `per_device(TreeHealth(...))` takes whole trees, as they are under `jit`.

    Half precision is accumulated in float32, squares are neither too large nor too small, counts
    are exact. Leaves that hold no floats (integers, random keys) are left out of all trees.

    Raises:
        MetricInputError: `like` has no float arrays; `groups` is none of what is allowed; or a
            pattern matches no leaf: names the leaves.
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

    like: Any = field()
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
        self.refuse_unknown_arguments(args, kwargs)
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
        make = tree_batch if on_host(trees, number) else _compiled_batch
        batch = make(trees, _as_int32(number), self.like, self._rows)
        call = {"unnumbered" if step is None else "numbered": batch}
        return Call((), call, type(self).__name__, takes, (), rows=False)

    def apply(self, calls: PyTree) -> Self:
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
    held, most = xp.iinfo(step.dtype), xp.iinfo(xp.int32).max
    return xp.clip(step, max(held.min, -most), min(held.max, most)).astype(xp.int32)


_compiled_batch = jax.jit(tree_batch, static_argnames=("layout", "rows"))
