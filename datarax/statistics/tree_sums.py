"""`TreeSums`: norms and counts of several trees, each at its newest step."""

from typing import Any, Self

import jax
import numpy as np

from datarax._checks import default_float
from datarax._xp import xp
from datarax.distributed.merge_ops import MetricReduceOp, identity, zeros
from datarax.numerics.limbs import Limbs, add_limbs
from datarax.statistics.fields import state
from datarax.statistics.leaf_state import ElementwiseState
from datarax.statistics.scaled_total import ScaledTotal

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
    """Whether a tree was folded without a step, and the state numbered it: int32 (trees,)."""
    unordered: jax.Array = state()
    """Whether such a tree was merged with others: int32 (trees,)."""
    squares: ScaledTotal = state()
    """The sums of squares."""
    greatest: jax.Array = state()
    """The greatest absolute values."""
    entries: Limbs = state()
    """How many entries were folded, as 64-bit integers in limbs."""
    zeros: Limbs = state()
    """How many of the entries are 0."""

    def empty(self) -> dict[str, Any]:
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
        """Which trees were given: (trees,)."""
        return xp.asarray(self.step) > NEVER

    def combine(self, other: Any) -> Self:
        step = xp.maximum(self.step, other.step)
        a, b = self._at(step), other._at(step)
        counted = xp.maximum(self.counted, other.counted)
        both = (self.given & other.given).astype(xp.int32)
        unordered = xp.maximum(self.unordered, other.unordered)
        return self.with_parts(
            {
                "step": step,
                "counted": counted,
                "unordered": xp.maximum(unordered, counted * both),
                "squares": a["squares"].combine(b["squares"]),
                "greatest": xp.maximum(a["greatest"], b["greatest"]),
                "entries": add_limbs(a["entries"], b["entries"]),
                "zeros": add_limbs(a["zeros"], b["zeros"]),
            }
        )

    def _at(self, step: jax.Array) -> dict[str, Any]:
        """The sums of the trees of these steps; empty ones for a tree of an older step."""
        now = (xp.asarray(self.step) == step)[:, None]

        def kept(x: Any, empty: Any) -> jax.Array:
            return xp.where(xp.broadcast_to(now, x.shape), x, empty)

        empty = self.empty()
        names = ("squares", "greatest", "entries", "zeros")
        return {name: jax.tree.map(kept, getattr(self, name), empty[name]) for name in names}

    def folded(self, batch: Self, *, numbered: bool) -> Self:
        """The state after an update with the sums of one step.

        Args:
            batch: the sums.
            numbered: whether the batch has the number of its step. If not, it gets the next one.
        """
        if numbered:
            return self.merge(batch)
        after = xp.where(self.given, xp.asarray(self.step) + 1, xp.int32(0))
        step = xp.where(batch.given, xp.max(after), xp.int32(NEVER))
        ours = self.with_parts({"counted": xp.zeros_like(self.counted)})
        folded = ours.combine(batch.with_parts({"step": step}))
        counted = xp.maximum(self.counted, batch.given.astype(xp.int32))
        return folded.with_parts({"counted": counted})

    def canonical(self) -> Self:
        return self.with_parts({"squares": self.squares.canonical()})

    def unusable(self) -> dict[str, Any]:
        """Trees whose sums are not those of one step, each entry once."""
        high, low = (xp.asarray(x)[:, 0] for x in self.entries)
        once = (high == self.sizes[0] >> 32) & (low == np.uint32(self.sizes[0] & 0xFFFFFFFF))
        return {
            "trees of a step that was folded in part, or more than once": _count(
                self.given & ~once
            ),
            "trees that were folded without a step, and then merged": _count(
                xp.asarray(self.unordered) != 0
            ),
        }


def _count(mask: Any) -> jax.Array:
    return xp.sum(mask, dtype=xp.int32)
