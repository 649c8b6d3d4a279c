"""`MultiOutput`: the value of a metric for each of several outputs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Self

import jax

from datarax._checks import numeric, positive_int, python_int
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax._xp import vmap, xp
from datarax.algebra.rows import Target
from datarax.algebra.stack import Stack
from datarax.distributed.merge_ops import added_limbs, limbs_to_add
from datarax.metric.arguments import Call, is_call, is_numbers
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.unusable import Unusable
from datarax.metric.values import Presented
from datarax.numerics.exact import Exact
from datarax.wrappers.wrapper import Stacked, checked_metric


class MultiOutput(Stacked):
    """A metric for each of several outputs, such as the columns of a regression.

    `update` takes what the metric's own `update` takes, with a last axis of outputs. `compute` and
    `results` give the values with a leading axis of outputs. The states of all outputs are updated
    at once, and each output has its own invalid data: an output with data that could not be
    used does not affect the values of the others.

    `weights`, and arguments that may be one value for all examples, apply to all outputs. They may
    have the axis of outputs: then they have as many axes as the array with the fewest axes.

    Args:
        metric: a metric or a collection, without data.
        num_outputs: the number of outputs.

    Raises:
        MetricInputError: the metric has data, or `num_outputs` is not positive; in `update`, the
            last axis of an array does not have `num_outputs` elements.
        MetricTypeError: `metric` is not a metric, or `num_outputs` is not an integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import MultiOutput
        >>> from datarax.metrics import MeanAbsoluteError
        >>> error = MultiOutput(MeanAbsoluteError(), 2)
        >>> error = error.update(jnp.array([[1.0, 5.0], [2.0, 7.0]]), jnp.ones((2, 2)))
        >>> print(error.compute())
        [0.5 5. ]
    """

    num_outputs: int

    def __init__(self, metric: Metric, num_outputs: int):
        metric = checked_metric(metric, "MultiOutput")
        self.num_outputs = num_outputs = python_int(num_outputs)
        positive_int(num_outputs, "num_outputs")
        self.stack = Stack.of(metric, num_outputs)

    def _apply(self, calls: PyTree) -> Self:
        return self._updated(calls, 0, lambda one, calls: one.apply(calls))

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        # Axis 0 is that of the places of an outer wrapper.
        return self._updated(calls, 1, lambda one, calls: one.apply_at(calls, target))

    def unusable_rows(self, calls: PyTree) -> PyTree:
        calls = jax.tree.map(self._with_arrays, calls, is_leaf=is_call)
        axes = [self._axes(call) for call in jax.tree.leaves(calls, is_leaf=is_call)]
        arrays, treedef = jax.tree.flatten(calls)
        of_outputs = vmap(
            lambda *arrays: self.metric.unusable_rows(treedef.unflatten(arrays)),
            in_axes=tuple(x for each in axes for x in each),
        )
        # A row that one output cannot use is left out of pairs as a whole.
        return jax.tree.map(lambda x: xp.any(x, 0), of_outputs(*arrays))

    def _updated(self, calls: PyTree, axis: int, update: Callable[..., Metric]) -> Self:
        """Updates the metric of each output with its calls; outputs are along `axis`."""
        # `vmap` takes one axis for each array, so the calls are passed as a list of arrays.
        calls = jax.tree.map(self._with_arrays, calls, is_leaf=is_call)
        axes = [self._axes(call) for call in jax.tree.leaves(calls, is_leaf=is_call)]
        arrays, treedef = jax.tree.flatten(calls)
        states = vmap(
            lambda one, *arrays: update(one, treedef.unflatten(arrays)),
            in_axes=(axis, *(x for each in axes for x in each)),
            out_axes=axis,
        )(self.stack.states, *arrays)
        return self.with_parts({"stack": self.stack.holding(states)})

    def _with_arrays(self, call: Call) -> Call:
        """The call with its arguments by name, as JAX arrays."""
        args, kwargs = call.by_name

        def arrays(name: str, x: PyTree) -> PyTree:
            return jax.tree.map(lambda x: numeric(x, name), x, is_leaf=is_numbers)

        return replace(
            call,
            args=tuple(arrays("an argument", x) for x in args),
            kwargs={name: arrays(name, x) for name, x in kwargs.items()},
        )

    def _axes(self, call: Call) -> list[int | None]:
        """The axis of outputs of each array of a call: the last one, or None."""
        shared = ("weights", *call.broadcast)
        named = [("an argument", x) for x in jax.tree.leaves(call.args)]
        # In the order of the leaves of a call: those of a dict are sorted by name.
        named += [(n, x) for n in sorted(call.kwargs) for x in jax.tree.leaves(call.kwargs[n])]
        # Weights have an axis of outputs only if they have as many axes as the data.
        least = min((x.ndim for name, x in named if name not in shared), default=0)
        axes: list[int | None] = []
        for name, x in named:
            if name in shared and x.ndim < least:
                axes.append(None)
                continue
            if x.shape[-1:] != (self.num_outputs,):
                raise MetricInputError(
                    f"MultiOutput({call.metric}).update: {name} of shape {x.shape}; expected a "
                    f"last axis of num_outputs={self.num_outputs}"
                )
            axes.append(-1)
        return axes

    def reading(self) -> Reading:
        each = self.stack.map(lambda one: one.reading())
        # The form for `results` is that of one output, so stacked values take that for `compute`.
        value = jax.tree.map(
            lambda x: x.arrays() if isinstance(x, Presented) else x,
            each.value,
            is_leaf=lambda x: isinstance(x, Presented),
        )
        invalid = {name: _total(x) for name, x in each.invalid.items()}
        return replace(each, value=value, invalid=invalid)

    def invalid_count(self) -> PyTree:
        return _summed(self.stack.map(lambda one: one.invalid_count()))


def _total(stacked: Unusable) -> Unusable:
    """The counts of values that several outputs could not use."""
    by_kind = None if stacked.by_kind is None else _summed(stacked.by_kind)
    others = {kind: _summed(count) for kind, count in stacked.others.items()}
    evidence = {kind: _summed(count) for kind, count in stacked.evidence.items()}
    labels = stacked.labels, stacked.takes_probabilities, stacked.remedy
    return Unusable(by_kind, others, xp.max(stacked.example, 0), evidence, stacked.cut, *labels)


def _summed(counts: PyTree) -> PyTree:
    """The sum of several counts, stacked; exact."""
    if isinstance(counts, Exact):
        # Limbs are split so that their sums cannot carry beyond 32 bits.
        parts = [xp.sum(x, 0, dtype=x.dtype) for x in limbs_to_add((counts.high, counts.low))]
        return Exact(*added_limbs(parts))
    return xp.sum(counts, 0)
