"""`LeafState`: a state that holds arrays, and defines how they merge and travel."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import x64_enabled
from datarax._errors import MetricTypeError
from datarax._typing import PyTree
from datarax._xp import xp
from datarax.algebra.pytrees import ArrayNode
from datarax.algebra.rows import RowTerms
from datarax.algebra.saving import Parts
from datarax.algebra.state import State
from datarax.numerics.scaled_double import ScaledDouble


class LeafState(ArrayNode, State):
    """A state that holds arrays and defines how they merge.

    A subclass declares its configuration like any `State`, and its arrays with `state()`. It must
    define five methods: `empty`, `combine`, `canonical`, `to_mesh` and `from_mesh`. A class that
    lacks one raises a `TypeError` when it is defined. If an update adds terms of single rows to it,
    it defines `by_row`, too. If it must know something of all devices before it can travel, it is
    a `NeedsMaxima`.

    Example:
        >>> from datarax.statistics import LeafState
        >>> try:
        ...     class Flags(LeafState):
        ...         def empty(self):
        ...             return {}
        ... except TypeError as error:
        ...     print(error)
        Flags is a LeafState, and does not define combine, canonical, to_mesh, from_mesh
    """

    is_extreme: ClassVar[bool] = False  # type: ignore[assignment]

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if abstract:
            return
        # Here, when the class is defined. `ABCMeta` would tell it when an instance is made, and is
        # another metaclass than that of states.
        names = dict.fromkeys(name for base in cls.__mro__ for name in vars(base))
        missing = [n for n in names if getattr(getattr(cls, n), "__isabstractmethod__", False)]
        if missing:
            raise TypeError(
                f"{cls.__name__} is a LeafState, and does not define {', '.join(missing)}"
            )

    def __post_init__(self) -> None:
        vars(self).update(self.empty())

    @abstractmethod
    def empty(self) -> Parts:
        """The arrays of the empty state, by attribute.

        They are read-only NumPy arrays, and every call returns the same objects, as from
        `datarax.distributed.merge_ops.zeros`.
        """

    @abstractmethod
    def combine(self, other: PyTree) -> Self:
        """The merge of the two: associative and commutative, with `empty` as the identity."""

    @abstractmethod
    def canonical(self) -> Self:
        """The canonical form: states that hold the same data have equal canonical forms.

        Returns `self` if only one form is possible.
        """

    @abstractmethod
    def to_mesh(self) -> "list[Travel]":
        """Lists a `Travel` for each array: how copies are merged over devices."""

    @abstractmethod
    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        """The merged state, from the merged arrays of all that `to_mesh` lists, in its order."""

    def on_other_devices(self) -> Self:
        """What the other devices keep of a replicated state, which counts on the first only."""
        return self.emptied()

    def weighted_by(self, factor: ScaledDouble) -> Self:
        raise MetricTypeError(
            f"a {type(self).__name__} cannot be multiplied by a factor, so its data cannot lose "
            f"weight with time"
        )

    def float_sums(self) -> list[jax.Array]:
        """The sums of floats that are finite unless they overflow: no summand is infinite."""
        return []

    def by_row(self, rows: int) -> RowTerms | None:
        """The terms that an update of so many rows adds to in place of the empty state.

        None if its terms are not those of single rows. Of a state that has such terms, `combine`
        also merges stacked states, whose arrays have a leading axis.
        """
        return None

    def emptied(self) -> Self:
        # A stacked state (for example, one copy per device) stays stacked: its arrays have leading
        # axes, over which the empty arrays are broadcast.
        def shaped(empty: np.ndarray, now: jax.Array) -> np.ndarray:
            return empty if xp.shape(now) == empty.shape else np.broadcast_to(empty, xp.shape(now))

        empty = self.empty()
        now = {name: getattr(self, name) for name in empty}
        if jax.tree.structure(empty) != jax.tree.structure(now):  # a number has fewer parts in x64
            raise MetricTypeError(
                f"cannot reset a {type(self).__name__}: it was made "
                f"{'without' if x64_enabled() else 'with'} jax_enable_x64, which has "
                f"changed since; make a new metric instead"
            )
        return self.with_parts(jax.tree.map(shaped, empty, now))


class Travel(NamedTuple):
    """Arrays of a state, and how the arrays of all devices are merged.

    Attributes:
        how: an all-reduce of integers, "sum" or "max". Or the empty state of one element: then each
            array has a leading axis of elements, which `combine` merges one by one.
        arrays: the arrays that travel.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax.statistics import Travel
        >>> print(Travel("sum", [jnp.zeros(2, jnp.uint32)]).how)
        sum
    """

    how: "str | LeafState"
    arrays: list[jax.Array]


class ElementwiseState(LeafState, abstract=True):
    """A leaf state whose `combine` merges each element of `shape` by itself.

    So a device can merge some of the elements, for all devices. The arrays have the shape of a
    state of one element, followed by `shape`. A state without the field `shape` is one element.
    It has only one form. A subclass defines `empty` and `combine`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from datarax.distributed.merge_ops import zeros
        >>> from datarax.statistics import ElementwiseState
        >>> from datarax.algebra.fields import state
        >>> class Flags(ElementwiseState):
        ...     bits: jax.Array = state()
        ...
        ...     def empty(self):
        ...         return {"bits": zeros((), np.dtype("uint32"))}
        ...
        ...     def combine(self, other):
        ...         return self.with_parts({"bits": self.bits | other.bits})
        >>> low, high = (Flags().with_parts({"bits": jnp.uint32(x)}) for x in (1, 4))
        >>> print(low.merge(high).bits)
        5
    """

    def empty_element(self) -> LeafState:
        """The empty state of one element, of the same configuration."""
        return type(self).from_fields(self, shape=()) if "shape" in self.fields else self.emptied()

    def canonical(self) -> Self:
        return self

    def to_mesh(self) -> list[Travel]:
        one = self.empty_element()

        arrays = [
            # Elements are the first axis, of which each device takes a section.
            xp.moveaxis(xp.reshape(x, (*xp.shape(e), -1)), -1, 0)
            for x, e in zip(jax.tree.leaves(self), jax.tree.leaves(one), strict=True)
        ]
        return [Travel(one, arrays)]

    def from_mesh(self, arrays: list[jax.Array]) -> Self:
        leaves, treedef = jax.tree.flatten(self)
        shaped = [
            xp.moveaxis(x, 0, -1).reshape(xp.shape(now))
            for x, now in zip(arrays, leaves, strict=True)
        ]
        return treedef.unflatten(shaped)
