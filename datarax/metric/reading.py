"""`Reading`: what is read from a metric at once: its value, bounds, and what could not be used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Self

import jax
import numpy as np

from datarax._checks import default_float, warn
from datarax._errors import (
    CutGroupsWarning,
    InvalidValuesError,
    InvalidValuesWarning,
    PrecisionWarning,
    ScoresWarning,
    UndefinedMetricWarning,
)
from datarax._numbers import number
from datarax._typing import PyTree
from datarax._xp import on_host, when_known
from datarax.metric.unusable import CUT, Undefined, Unusable
from datarax.metric.values import as_array, flat_items, listed, nan_if, path_of, presented, to_host
from datarax.numerics.float_ranges import outward
from datarax.statistics.score_kinds import doubt


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bounds:
    """The lower and the upper bound of a value."""

    lower: PyTree
    upper: PyTree
    widest: float | None = dataclass_field(default=None, metadata={"static": True})
    """`results` warns if they are farther apart than this; None: never."""
    remedy: str = dataclass_field(default="more bits= narrows this", metadata={"static": True})
    """The advice of the warning."""
    rounded: PyTree = None
    """On the host: true where the bounds are apart because numbers were rounded when they were
    stored, and that matters; None if it is not known. Then `results` warns, too."""

    def rounded_where(self, are_apart: Callable[[PyTree, PyTree], PyTree]) -> Self:
        """The same bounds, of which `are_apart(lower, upper)` says where they are `rounded`.

        Not in a program, which cannot warn.
        """
        return replace(self, rounded=when_known(are_apart, self.lower, self.upper))

    def by_name(self) -> Iterator[tuple[str, PyTree, PyTree]]:
        """The lower and the upper bound of each number, with its name; of a single one, ""."""
        if not isinstance(self.lower, dict):
            yield "", self.lower, self.upper
        else:
            upper = dict(flat_items(self.upper))
            yield from ((name, x, upper[name]) for name, x in flat_items(self.lower))

    @property
    def ends(self) -> tuple[PyTree, PyTree]:
        """Both."""
        return self.lower, self.upper

    def rounded_outward(self) -> tuple[PyTree, PyTree]:
        """Both, as `bounds()` of a metric gives them: in the default float dtype.

        On the host they have float64, and are rounded so that what was between them still is. Those
        that are equal are rounded to one float.
        """
        pairs = jax.tree.map(_rounded_outward, self.lower, self.upper)
        return jax.tree.transpose(jax.tree.structure(self.lower), jax.tree.structure((0, 0)), pairs)


def _rounded_outward(lower: PyTree, upper: PyTree) -> tuple[PyTree, PyTree]:
    if not on_host(lower, upper) or np.dtype(default_float()) != np.float32:
        return lower, upper
    ends = [np.asarray(x, np.float64) for x in (lower, upper)]
    (low, _), (_, high) = map(outward, ends)
    with np.errstate(over="ignore"):
        near = [x.astype(np.float32) for x in ends]
    # Equal bounds say that the value is exact, and outward they would not be equal any more.
    apart = ends[0] != ends[1]
    return np.where(apart, low, near[0]), np.where(apart, high, near[1])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reading:
    """The record that `compute`, `results` and a collector take their results from."""

    value: PyTree
    """Arrays; but an `Exact` for a value that no array holds exactly."""
    invalid: dict[str, Unusable]
    """The data that could not be used, by the name of each metric in a collection. The name is ""
    if the metric is not a collection."""
    bounds: dict[str, Bounds]
    """The bounds of the value of each metric that has bounds, by its name."""
    policies: tuple[tuple[str, str], ...] = dataclass_field(metadata={"static": True})
    """The `on_invalid` of each metric, by the same names."""
    flat: bool = dataclass_field(default=False, metadata={"static": True})
    """True if nested dicts are given as one dict, with names like "outer/inner"."""
    undefined: dict[str, tuple[Undefined, ...]] = dataclass_field(default_factory=dict)
    """The parts of the value of each metric that the data does not define, by its name."""

    def rounded(self) -> PyTree:
        """The value as arrays."""
        with np.errstate(over="ignore"):
            return self._flattened(presented(self.value, lambda x: x.arrays(), as_array))

    def _flattened(self, value: PyTree) -> PyTree:
        return dict(flat_items(value)) if self.flat else value

    def propagated(self, value: PyTree) -> PyTree:
        """NaN where the value of the metric is NaN by its policy, for a value made of that value.

        The value of a collection stays, because it is not known which members it depends on.
        """
        # The name is empty if the reading is of one metric.
        if dict(self.policies).get("") != "propagate":
            return value
        return nan_if(self.invalid[""].mask, value)

    def checked(self, name: str, *, warns: bool = True) -> Self:
        """This reading, which is not traced; warns if some data could not be used.

        Args:
            name: the name of a metric that is not in a collection.
            warns: whether to warn of such data; errors are always raised.

        Raises:
            InvalidValuesError: some data could not be used, and a policy is "raise".
        """
        # All metrics are looked at before an error or a warning, so that neither depends on their
        # order.
        found = [
            (member or name, policy, self.invalid[member])
            for member, policy in self.policies
            if self.invalid[member].is_some
        ]
        for member, policy, invalid in found:
            if policy == "raise":
                raise InvalidValuesError(
                    f'{member}: {invalid.described()}, and on_invalid="raise"; "exclude" leaves '
                    f'such data out, "propagate" gives NaN{invalid.hint}'
                )
        if found and warns:
            lines = [
                f"{member}: {invalid.described()}, {invalid.effect(policy)}{invalid.hint}"
                for member, policy, invalid in found
            ]
            # One warning for all metrics of a collection: they often share the cause.
            warn("\n".join(lines), InvalidValuesWarning)
        return self

    def warned_of_undefined(
        self, name: str, category: type[Warning] = UndefinedMetricWarning
    ) -> Self:
        """This reading; warns of the parts that the data does not define, once a metric."""
        for member, each in self.undefined_parts(category):
            warn(f"{member or name}: {each.said()}", category)
        return self

    def undefined_parts(self, category: type[Warning]) -> Iterator[tuple[str, Undefined]]:
        """The name of each metric that has such parts, of which this category warns, with them."""
        for member, several in self.undefined.items():
            for each in several:
                if each.category is category and np.any(each.where):
                    yield member, each

    def warned_of_scores(self, name: str) -> Self:
        """This reading; warns if scores were probably of another kind than they are taken for."""
        for member, said in self.doubts():
            warn(f"{member or name}: {said}", ScoresWarning)
        return self

    def doubts(self) -> Iterator[tuple[str, str]]:
        """The name of each metric whose scores were probably of another kind, with the advice."""
        for member, invalid in self.invalid.items():
            by_kind: PyTree = invalid.evidence
            for kind, counts in by_kind.items():
                if said := doubt(kind, [int(count) for count in np.asarray(counts)]):
                    yield member, said

    def warned(self, name: str) -> Self:
        """This reading; warns as `warned_of_scores`, if the data does not define the value, if
        groups were cut, and if the bounds of a value are farther apart than the metric allows."""
        self.warned_of_undefined(name).warned_of_scores(name)
        for member, invalid in self.invalid.items():
            if invalid.cut is not None and np.any(invalid.cut):
                warn(f"{member or name}: {CUT}", CutGroupsWarning)
        for member, bounds in self.bounds.items():
            if bounds.rounded is not None and np.any(bounds.rounded):
                at = np.argmax(np.ravel(bounds.rounded))
                part, *both = next(bounds.by_name())  # one number for each metric
                ends = (float(np.ravel(x)[at]) for x in both)
                low, high = (number(end, digits=12) for end in ends)
                warn(
                    f"{path_of(member or name, part)}: the exact value is only known to be "
                    f"between {low} and {high}, because a state keeps fewer digits than the "
                    f"float64 numbers have; subtract what they have in common before the update, "
                    f"such as the first of them",
                    PrecisionWarning,
                )
                continue
            if bounds.widest is None:
                continue
            for part, lower, upper in bounds.by_name():
                # Bounds that are NaN, as without data, or both infinite have no gap.
                with np.errstate(invalid="ignore"):
                    gap = np.ravel(np.subtract(upper, lower))
                if (gap > bounds.widest).any():
                    at = np.nanargmax(gap)
                    low, high = (number(float(np.ravel(x)[at])) for x in (lower, upper))
                    warn(
                        f"{path_of(member or name, part)}: the exact value is only known to be "
                        f"between {low} and {high}, because many values share a bin; "
                        f"{bounds.remedy}",
                        PrecisionWarning,
                    )
                    break  # one number for each metric
        # Last, because a warning that the value is wrong says more than one of digits.
        return self.warned_of_undefined(name, PrecisionWarning)

    def on_host(self, *, bounds: bool = False) -> PyTree:
        """The value as Python numbers and NumPy arrays; a dict gets the items "<name>/invalid".

        Args:
            bounds: whether to add the items "<name>/lower" and "<name>/upper" for each number that
                has bounds. Then the result is a dict: a single value gets the name "value".
        """
        results = self._flattened(presented(self.value, listed, to_host))
        if bounds and not isinstance(results, dict):
            results = {"value": results}
        if isinstance(results, dict):
            # The name of a metric outside a collection is empty.
            results |= {
                path_of(member, "invalid"): int(invalid.total)
                for member, invalid in self.invalid.items()
                if invalid.is_some
            }
        if bounds:
            for member, ends in self.bounds.items():
                for part, *values in ends.by_name():
                    for end, value in zip(("lower", "upper"), values, strict=True):
                        results[path_of(member, part, end)] = jax.tree.map(to_host, value)
        return results
