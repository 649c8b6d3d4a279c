"""`Sliced`: the value of a metric for each slice of the data, and overall."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, NamedTuple, Self

import jax
import numpy as np

from datarax._checks import is_integer, numeric, positive_int
from datarax._errors import MetricInputError, MetricTypeError, UndefinedMetricWarning
from datarax._typing import PyTree
from datarax._xp import is_traced, xp
from datarax.algebra.fields import field, state
from datarax.algebra.rows import Target, merge_rows
from datarax.algebra.stack import Stack
from datarax.distributed.collectives import replicated
from datarax.metric.arguments import is_call, taken_from
from datarax.metric.reading import Reading
from datarax.metric.rows import by_elements, counted_rows, rows_of
from datarax.metric.unusable import Undefined
from datarax.metric.values import Presented, is_wide
from datarax.statistics.accumulator import MetricAccumulator
from datarax.statistics.batches import in_range
from datarax.wrappers.collection import adds_rows
from datarax.wrappers.shared_states import MOST_CELLS
from datarax.wrappers.wrapper import WithArgument, each_updated, prefixed

# What `results` has beside the slices.
_RESERVED = ("overall", "unknown", "invalid")


class Sliced(WithArgument):
    """A metric for each slice of the data (a domain, a language, a group of users), and overall.

    `update` takes what the metric's own `update` takes, and the id of each row's slice, from 0, by
    the name `by`. `compute` gives `{"overall": value, "slices": values}`; the values of the slices
    have a leading axis of `num_slices`. `results` has `overall` and one entry for each slice, by
    its name, or by its number without `names`. A slice without data has the value of no data.

    Ids out of range count in `overall` only. `results` then says how many rows there were, under
    `unknown`; rows of weight zero do not count.

    The states of all slices are updated at once: the state of each row is added at the place of its
    slice. So the cost of an update hardly depends on the number of slices. It does for metrics that
    hold scores in bins that adapt to the data, such as AUROC, and for metrics that keep examples:
    each slice is updated with the whole batch.

    For several slicings at once, give each its own name in a `Collection`:
    `Sliced(metric, 20, by="language")` and `Sliced(metric, 8, by="domain")`. For the cross of two,
    nest them: `Sliced(Sliced(metric, 20, by="language"), 8, by="domain")` has the values of each
    language within each domain.

    Args:
        metric: a metric or a collection, without data.
        num_slices: the number of slices.
        names: the names of the slices, in the order of their ids.
        by: the name of the argument of `update` that has the ids: integers of shape (N,), or one
            for the whole batch. With integers of the shape of the values, such as (N, T), each
            value (a token) has its slice. For slices that overlap, such as tags, booleans of shape
            (N, num_slices): a row counts in each slice whose entry is true. A row without any
            counts in `overall` only.
        rollup: what separates the parts of a name, such as "/". Then `results` also has each group
            of slices: "a" and "a/b" of the name "a/b/c", each the metric of all rows below it, and
            of its own if it is a name too. A row counts once in a group.

    Raises:
        MetricInputError: the metric has data, or takes an argument called `by`; there are not
            `num_slices` distinct names; a name is one of "overall", "unknown" and "invalid"; or
            `rollup` is given without names.
        MetricTypeError: `metric` is not a metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Sliced
        >>> from datarax.metrics import Accuracy
        >>> accuracy = Sliced(Accuracy(num_classes=3), 2, names=("de", "fr"), by="language")
        >>> accuracy = accuracy.update(
        ...     jnp.array([0, 1, 2, 2]), jnp.array([0, 1, 1, 2]), language=jnp.array([0, 0, 1, 1])
        ... )
        >>> print(accuracy.results())
        {'de': 1.0, 'fr': 0.5, 'overall': 0.75}

        Tags that overlap, and the groups of their names:

        >>> from datarax.metrics import Mean
        >>> loss = Sliced(Mean(), 3, names=("web/en", "web/de", "code"), rollup="/")
        >>> tags = jnp.array([[True, False, False], [True, True, False], [False, False, True]])
        >>> print(loss.update(jnp.array([1.0, 2.0, 6.0]), slices=tags).results())
        {'code': 6.0, 'overall': 3.0, 'web': 1.5, 'web/de': 2.0, 'web/en': 1.5}
    """

    needs_own: ClassVar[bool] = True

    num_slices: int = field(kw_only=False)
    names: Sequence[str] | None = None
    by: str = "slices"
    rollup: str | None = None
    slices: Stack = state()
    unknown: MetricAccumulator = state()

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int(self.num_slices, "num_slices")
        self.names = None if self.names is None else tuple(self.names)
        _check_names(self.names, self.num_slices)
        by, metric = self.by, self.metric
        if not isinstance(by, str) or not by:
            raise MetricInputError(f"Sliced: by={by!r}; expected the name of an argument")
        if any(by == route.argument for route in metric.routes()):
            raise MetricInputError(
                f"Sliced: by={by!r} is an argument of {type(metric).__name__}.update already; give "
                f"the ids of the slices another name"
            )
        if self.rollup is not None and (not isinstance(self.rollup, str) or not self.rollup):
            raise MetricInputError(
                f"Sliced: rollup={self.rollup!r}; expected what separates the parts of a name"
            )
        if self.rollup is not None and self.names is None:
            raise MetricInputError(
                f"Sliced: rollup={self.rollup!r} groups slices by their names; give names="
            )
        _check_words(self._groups)
        self.slices = Stack.of(metric, self.num_slices + len(self._groups))
        self.unknown = MetricAccumulator(0)

    @property
    def own(self) -> str:
        return self.by

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        if self.by not in kwargs:
            raise MetricInputError(
                f"Sliced({type(self.metric).__name__}).update needs the slice of each row: pass "
                f"{self.by}=, integers of shape (N,), or booleans of shape (N, {self.num_slices})"
            )
        return super().calls(args, kwargs)

    def _apply(self, calls: PyTree) -> Self:
        given = self._given(calls)
        unknown, mask = self.unknown.update(given.unknown), given.slices
        if mask.ndim > 1:
            target = Target(xp.zeros(len(mask), xp.uint32), 1)
            if self._is_one_more(given):
                # The first slice holds all rows, and is taken off again after the update.
                every = xp.ones((len(mask), 1), xp.bool_)
                both = jax.tree.map(
                    lambda x, y: xp.concatenate([xp.asarray(x)[None], y]),
                    self.metric,
                    self.slices.states,
                )
                both = both.apply_at(given.calls, target.tagged(xp.concatenate([every, mask], 1)))
                metric, states = (jax.tree.map(lambda x, i=i: x[i], both) for i in (0, np.s_[1:]))
                slices = self.slices.holding(states)
                return self.with_parts({"metric": metric, "slices": slices, "unknown": unknown})
            target = target.tagged(mask)
        else:
            # With one id a row, the cost does not depend on the number of slices: each row is added
            # at one place.
            target = Target(mask, self.num_slices)
        slices = each_updated(self.slices, given.by_id, target)
        # Not the sum of the slices: rows of no slice, or of several, count once in all data.
        metric = self.metric.apply(given.calls)
        return self.with_parts({"metric": metric, "slices": slices, "unknown": unknown})

    def _is_one_more(self, given: "_Given") -> bool:
        """True if all data is updated as one more slice, of all rows.

        So it is in a program that adds terms of rows to small states. If the rows are sharded, each
        sum over them is a collective, and all data then has none of its own: the update of
        `benchmarks/tags.py` has 10 collectives, and 21 if all data is updated by itself.
        """
        if given.calls is not given.by_id or not is_traced((self, given)):
            return False
        same = jax.tree.structure(self.metric) == jax.tree.structure(self.slices.states)
        is_small = sum(x.size for x in jax.tree.leaves(self.metric)) <= MOST_CELLS
        return same and is_small and adds_rows(self.metric, given.calls)

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # The places of an outer slicing, each with the slices of this one.
        given = self._given(calls)
        target = target._replace(place=replicated(target.place))
        outer, states, size = target.repeated(given.times), self.slices.states, self.slices.size
        if given.slices.ndim > 1:  # the slices of a replica are replicas, each with all places
            # A row may be in several slices at once, so slices are not places here.
            inner = outer.tagged(given.slices)
            shape, axes = (target.replicas, target.places, size), (1, 2)
        else:  # two axes of places are one axis of cells
            inner = outer.within(given.slices, size)
            shape, axes = (target.size, size), (1, 1)

        # Stacked states have the axes (outer state, slice). `apply_at` wants one axis, with
        # replicas first.
        def flat(x: jax.Array) -> jax.Array:
            apart = xp.swapaxes(xp.reshape(x, (*shape, *x.shape[2:])), *axes)
            return xp.reshape(apart, (inner.size, *x.shape[2:]))

        def restored(x: jax.Array, y: jax.Array) -> jax.Array:
            moved = list(shape)
            moved[axes[0]], moved[axes[1]] = shape[axes[1]], shape[axes[0]]
            apart = xp.swapaxes(xp.reshape(y, (*moved, *x.shape[2:])), *axes)
            return xp.reshape(apart, xp.shape(x))

        updated = jax.tree.map(flat, states).apply_at(given.by_id, inner)
        states = jax.tree.map(restored, states, updated)
        terms = MetricAccumulator(0).by_row(given.unknown.size).update(given.unknown)
        (counted,) = merge_rows([self.unknown], [terms], outer)
        metric, slices = self.metric.apply_at(given.calls, target), self.slices.holding(states)
        return self.with_parts({"metric": metric, "slices": slices, "unknown": counted})

    def _given(self, calls: PyTree) -> "_Given":
        """What the calls say of the slices of a batch."""
        ids, calls = taken_from(calls, self.by)
        ids, rows = replicated(numeric(ids, self.by)), rows_of(calls)
        is_mask = ids.dtype == xp.bool_ and ids.ndim > 1
        if is_mask and ids.shape == (rows, self.num_slices):
            # With masks a row of no slice is meant, so it is not unknown.
            none = xp.zeros(rows, xp.bool_)
            if self._groups:
                # A row that is in several slices of a group counts once in the group.
                some = [xp.any(ids & below[None], 1) for below in self._members[:-1].T]
                ids = xp.stack(some, 1)
            return _Given(calls, calls, 1, ids, none)
        if not is_integer(ids):
            raise MetricTypeError(f"{self.by} has dtype {ids.dtype}; expected integer ids")
        if is_mask or (ids.shape not in ((), (1,)) and ids.shape[0] != rows):
            raise MetricInputError(
                f"{self.by} of shape {ids.shape} for {rows} rows; expected one id for each row, "
                f"of shape ({rows},), or for each value, of the shape of the values, or booleans "
                f"of shape ({rows}, {self.num_slices})"
            )
        by_id, times = calls, 1
        if ids.ndim > 1:
            shape, times = ids.shape, math.prod(ids.shape[1:])
            by_id = jax.tree.map(lambda call: by_elements(call, shape), calls, is_leaf=is_call)
        rows *= times
        ids = xp.broadcast_to(ids.reshape(-1), (rows,))
        known = in_range(ids, self.num_slices)
        # An id is cast only where it is in range: a negative one would become a large number. A row
        # at the place `num_slices`, past the end, is dropped.
        place = xp.where(known, ids, xp.zeros((), ids.dtype)).astype(xp.uint32)
        place = xp.where(known, place, xp.uint32(self.num_slices))
        # A row of weight zero may be padding, whose id means nothing.
        first = jax.tree.leaves(by_id, is_leaf=is_call)[0]
        unknown = ~known & counted_rows(first, rows)
        slices = xp.take(self._members, place, 0) if self._groups else place
        return _Given(calls, by_id, times, slices, unknown)

    @property
    def _groups(self) -> tuple[str, ...]:
        """The names of the groups of slices."""
        split = self.rollup
        if split is None:
            return ()
        parts = [name.split(split) for name in self._labels]
        prefixes = (split.join(each[:i]) for each in parts for i in range(1, len(each)))
        return tuple(dict.fromkeys(prefixes))

    @property
    def _members(self) -> np.ndarray:
        """For each slice, in which of the slices and groups its rows count; the last row is of no
        slice."""
        return _members_of(self._labels, self._groups, self.rollup or "")

    def from_outputs(self, **outputs: str | None) -> Self:
        if not isinstance(outputs.get(self.by, self.by), str):
            raise MetricInputError(
                f"Sliced.from_outputs({self.by}={outputs[self.by]!r}): expected the name of an "
                f"output"
            )
        return super().from_outputs(**outputs)

    def reading(self) -> Reading:
        overall, slices = self.metric.reading(), self.slices.map(lambda one: one.reading())
        # Wide bounds give a warning for all data, not for each slice again.
        of_slices = {
            name: dataclasses.replace(self._without_groups(each), widest=None)
            for name, each in slices.bounds.items()
        }
        return dataclasses.replace(
            overall,
            value=_Slices(
                overall.value,
                self._without_groups(slices.value),
                self.unknown.value,
                self._labels,
                jax.tree.map(lambda x: x[self.num_slices :], slices.value, is_leaf=is_wide),
                self._groups,
            ),
            bounds=prefixed([("overall", overall.bounds), ("slices", of_slices)]),
            flat=False,
            undefined=self._undefined(overall, slices),
        )

    def _undefined(self, overall: Reading, slices: Reading) -> dict[str, tuple[Undefined, ...]]:
        """What the data does not define, of all data; of slices, the ratios that count as 0."""
        found = dict(overall.undefined)
        for name, several in slices.undefined.items():
            for each in several:
                # Slices within slices are said of all data.
                if each.category is UndefinedMetricWarning and each.groups is None:
                    found[name] = (*found.get(name, ()), each.of_groups(self._labels))
        return found

    def _without_groups(self, stacked: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[: self.num_slices], stacked, is_leaf=is_wide)

    @property
    def _labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.num_slices)) if self.names is None else self.names)


@lru_cache(maxsize=64)
def _members_of(labels: tuple[str, ...], groups: tuple[str, ...], split: str) -> np.ndarray:
    # The last row is all False: an id that is not known indexes it.
    own = np.eye(len(labels) + 1, len(labels), dtype=np.bool_)
    below = [[f"{x}{split}".startswith(f"{group}{split}") for group in groups] for x in labels]
    none = [False] * len(groups)
    members = np.concatenate([own, np.array([*below, none], np.bool_)], 1)
    # It is cached, and shared by all instances.
    members.flags.writeable = False
    return members


class _Given(NamedTuple):
    """What an update says of the slices of a batch."""

    calls: PyTree
    """The calls without ids."""
    by_id: PyTree
    """The same, with a row for each id."""
    times: int
    """The number of ids of each row."""
    slices: jax.Array
    """The place of each id; or a mask of the slices and groups in which it counts."""
    unknown: jax.Array
    """Marks the ids of no known slice."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Slices(Presented):
    """The value of all data, the values of the slices, stacked, and how many rows had none."""

    overall: PyTree
    slices: PyTree
    unknown: PyTree
    names: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    groups: PyTree
    """The values of the groups of slices, stacked."""
    group_names: tuple[str, ...] = dataclasses.field(metadata={"static": True})

    def arrays(self) -> PyTree:
        return {"overall": self.overall, "slices": self.slices}

    def listed(self) -> PyTree:
        # The name of a group may be that of a slice too: then it is the group.
        slices = {
            name: jax.tree.map(lambda x, i=i: x[i], values)
            for names, values in ((self.names, self.slices), (self.group_names, self.groups))
            for i, name in enumerate(names)
        }
        # Only if there are any. What `compute` gives has a fixed structure, so it has no such item.
        unknown = {"unknown": self.unknown} if self.unknown else {}
        return {"overall": self.overall, **slices, **unknown}


def _check_names(names: tuple[str, ...] | None, num_slices: int) -> None:
    if names is None:
        return
    if len(names) != num_slices or len(set(names)) < len(names):
        raise MetricInputError(
            f"Sliced: {len(names)} names, but only {len(set(names))} differ, for "
            f"num_slices={num_slices}; expected one name for each slice"
        )
    _check_words(names)


def _check_words(names: Sequence[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not name or name in _RESERVED:
            raise MetricInputError(
                f"Sliced: the name {name!r}; expected a string that is not empty, and none of "
                f"{', '.join(map(repr, _RESERVED))}"
            )
