"""`LeafState`: a state that holds arrays, and defines how they merge and travel."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from datarax.statistics.state import State


class LeafState(State):
    """A state that holds arrays and defines how they merge.

    A subclass declares its configuration like any `State`, and its arrays with `state()`. It must
    define five methods: `empty`, `combine`, `canonical`, `to_mesh` and `from_mesh`. A class that
    lacks one raises a `TypeError` when it is defined.
    """

    holds_arrays: ClassVar[bool] = True

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        required = ("empty", "combine", "canonical", "to_mesh", "from_mesh")
        base = {name: getattr(LeafState, name) for name in required}
        missing = [name for name in required if getattr(cls, name) is base[name]]
        if missing:
            raise TypeError(
                f"{cls.__name__} is a LeafState, and does not define {', '.join(missing)}"
            )

    def __post_init__(self) -> None:
        vars(self).update(self.empty())

    @abstractmethod
    def empty(self) -> dict[str, Any]:
        """The arrays of the empty state, by attribute.

        They are read-only NumPy arrays, and every call returns the same objects, as from
        `datarax.distributed.merge_ops.zeros`.
        """

    @abstractmethod
    def combine(self, other: Any) -> Self:
        """The merge of the two: associative and commutative, with `empty` as the identity."""

    @abstractmethod
    def canonical(self) -> Self:
        """The canonical form: states that hold the same data have equal canonical forms.

        Returns `self` if only one form is possible.
        """

    @abstractmethod
    def to_mesh(self) -> tuple[str, list[jax.Array]]:
        """The elementwise collective that merges this state over devices, and its operands.

        The collective is "sum", "max" or "min". If none of them merges the state, return
        `("gather", [])`: then the states of all devices are gathered, and merged by `combine`.
        `("aligned", [])` is for a state of other states, which first need a common range: see
        `AdaptiveBins`.
        """

    @abstractmethod
    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        """The merged state, from the results of the collective for the operands of `to_mesh`."""

    def reset(self) -> Self:
        # A stacked state (for example, one copy per device) stays stacked: its arrays have leading
        # axes, over which the empty arrays are broadcast.
        def shaped(empty: Any, now: Any) -> Any:
            return (
                empty if jnp.shape(now) == empty.shape else np.broadcast_to(empty, jnp.shape(now))
            )

        empty = self.empty()
        return self.with_parts({n: jax.tree.map(shaped, empty[n], getattr(self, n)) for n in empty})


class GatheredState(LeafState, abstract=True):
    """A leaf state that only `combine` merges: a sync gathers the states of all devices.

    It has only one form. A subclass defines `empty` and `combine`.
    """

    def canonical(self) -> Self:
        return self

    def to_mesh(self) -> tuple[str, list[jax.Array]]:
        return "gather", []

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        raise TypeError(f"{type(self).__name__} is gathered, and has nothing to read from a mesh")
