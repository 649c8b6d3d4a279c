"""`Compare`: the difference of a metric between two models, on the same examples."""

from collections.abc import Mapping
from typing import Self

import jax

from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.algebra.fields import state
from datarax.algebra.stack import Stack
from datarax.metrics.base import Metric
from datarax.metrics.call import with_argument
from datarax.metrics.reading import Reading, is_wide
from datarax.metrics.routing import Route, arguments_of
from datarax.numerics.exact import Exact
from datarax.statistics.invalid_counts import sum_of_counts
from datarax.wrappers.bootstrap import INDEX, Resampled, as_floats
from datarax.wrappers.wrapper import each_updated, reading_of

_MODELS = ("a", "b")


class Compare(Resampled):
    """A metric of two models on the same examples, and their difference with its interval.

    `update` takes the metric's own arguments. Those that differ between the models are given twice,
    with `_a` and `_b` after the name: `preds_a`, `preds_b`, or of `Mean` `values_a`, `values_b`. By
    position, the first argument is given for both models. `index`, the global id of each row, is as
    for `Bootstrap`.

    `compute` gives a dict: `a` and `b`, the values of the two models; `difference`, which is
    `b - a`; and `lower`, `upper`, the percentile interval of the difference. Both models are
    resampled alike (a paired bootstrap), so what makes an example hard for both cancels. The
    interval is narrower than the intervals of the two models suggest, and the difference may be
    significant although those overlap. Without data, all are NaN.

    For two models that are right or wrong, see also `datarax.metrics.McNemar`.

    Args:
        metric: a metric or a collection, without data.
        replicas: how many copies of each, at least 2. An interval of 95 % needs 200 or more.
        seed: of the random counts.
        confidence: the probability with which the interval covers the true difference.

    Raises:
        MetricInputError: the metric has data, or is an extreme, as for `Bootstrap`; or an argument
            is out of its range.
        MetricTypeError: `metric` is not a metric.

    Example:
        >>> import jax.numpy as jnp
        >>> from datarax import Compare
        >>> from datarax.metrics import Accuracy
        >>> target = jnp.arange(300) % 3
        >>> preds_a = jnp.where(jnp.arange(300) % 10 < 3, 0, target)
        >>> preds_b = jnp.where(jnp.arange(300) % 10 < 1, 0, target)
        >>> compared = Compare(Accuracy(num_classes=3)).update(preds_a, preds_b, target)
        >>> print({name: round(x, 2) for name, x in compared.results().items()})
        {'a': 0.8, 'b': 0.93, 'difference': 0.13, 'lower': 0.09, 'upper': 0.17}
    """

    other: Metric = state()
    other_stack: Stack = state()

    def __init__(
        self, metric: Metric, *, replicas: int = 200, seed: int = 0, confidence: float = 0.95
    ):
        self.configure(metric, replicas, seed, confidence)
        self.other, self.other_stack = self.metric, self.stack

    def with_metric(self, metric: Metric) -> Self:
        # The arrays of `other`, with the configuration that is now that of both.
        other = jax.tree.unflatten(jax.tree.structure(metric), jax.tree.leaves(self.other))
        return super().with_metric(metric).with_parts({"other": other})

    def calls(self, args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> PyTree:
        given = self._by_name(args) | dict(kwargs)
        index = given.pop(INDEX, None)
        routes = self.metric.routes()
        names = {name for route in routes for name in (route.argument, route.output)}
        # An argument of the metric may itself end in _a or _b.
        twice = [name for name in given if name not in names and name[-2:] in ("_a", "_b")]
        if not any(route.takes_all for route in routes):
            self._check_pairs(twice, given, names)
        shared = {name: x for name, x in given.items() if name not in twice}
        calls = {}
        for model in _MODELS:
            own = {name[:-2]: given[name] for name in twice if name.endswith(f"_{model}")}
            if not own:
                raise MetricInputError(
                    f"Compare.update needs what differs between the two models twice, with _a and "
                    f"_b after its name (preds_a, preds_b); got: {', '.join(given) or 'nothing'}"
                )
            calls[model] = self.metric.calls((), shared | own)
        return calls if index is None else with_argument(calls, INDEX, index)

    def _check_pairs(
        self, twice: list[str], given: Mapping[str, PyTree], names: set[str | None]
    ) -> None:
        """Raises unless arguments that are given twice come in pairs, and are known."""
        bases = {name[:-2] for name in twice}  # without "_a" and "_b"
        if bases <= names and len(twice) == 2 * len(bases):
            return
        known = ", ".join(sorted(each for each in names if each))
        raise MetricInputError(
            f"Compare.update got {', '.join(given)}; expected pairs such as preds_a and preds_b of "
            f"the arguments of {type(self.metric).__name__}: {known}"
        )

    def _by_name(self, args: tuple[PyTree, ...]) -> dict[str, PyTree]:
        """Positional arguments by name: the first argument of the metric is given for both."""
        if not args:
            return {}
        first, *rest = dict.fromkeys(route.argument for route in self.metric.routes())
        names = [f"{first}_a", f"{first}_b", *rest]
        if len(args) > len(names):
            raise MetricInputError(
                f"Compare.update takes {', '.join(names)}; got {len(args)} arguments by position"
            )
        return dict(zip(names, args, strict=False))

    def routes(self) -> list[Route]:
        inner = self.metric.routes()
        twice = [
            route._replace(argument=f"{route.argument}_{model}", output=f"{route.output}_{model}")
            for route in inner
            for model in _MODELS
            if route.output is not None
        ]
        # None is required: an argument is given once, or for each model. `calls` checks that.
        return [route._replace(required=False) for route in [*inner, *twice, *self.own_routes()]]

    def arguments_from(self, outputs: Mapping[str, PyTree]) -> dict[str, PyTree]:
        given = {}
        for route in self.metric.routes():
            pair = {model: f"{route.output}_{model}" for model in _MODELS}
            if route.output is None:
                continue
            if outputs.keys() >= {*pair.values()}:
                given |= {f"{route.argument}_{model}": outputs[pair[model]] for model in _MODELS}
            elif route.output in outputs:  # for both models
                given[route.argument] = outputs[route.output]
            elif route.required or route.routed:
                raise MetricInputError(
                    f"Compare({type(self.metric).__name__}) needs the output {route.output!r}, or "
                    f"{pair['a']!r} and {pair['b']!r}, for the argument {route.argument!r}, and "
                    f"update() was given: {', '.join(sorted(outputs)) or 'none'}"
                )
        return given | arguments_of(self.own_routes(), outputs)

    def _apply(self, calls: PyTree) -> Self:
        # One target for both models: the paired bootstrap draws the same rows.
        calls, target, seen = self.resampled(calls)
        return self.with_parts(
            {
                "metric": self.metric.apply(calls["a"]),
                "other": self.other.apply(calls["b"]),
                "stack": each_updated(self.stack, calls["a"], target),
                "other_stack": each_updated(self.other_stack, calls["b"], target),
                "seen": seen,
            }
        )

    def invalid_count(self) -> PyTree:
        return sum_of_counts([self.metric.invalid_count(), self.other.invalid_count()])

    def reading(self) -> Reading:
        a, b = self.metric.reading(), self.other.reading()
        # The interval is that of the differences, not the difference of two intervals.
        replicas = [x.map(lambda one: one.reading()).value for x in (self.stack, self.other_stack)]
        difference = _differences(a.value, b.value)
        apart = _differences(*replicas)
        spread = self.spread(difference, apart)
        ends = {name: spread[name] for name in ("lower", "upper")}
        value = {"a": a.value, "b": b.value, "difference": difference, **ends}
        return reading_of(value, [("a", a), ("b", b)], flat=False)


def _differences(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(_difference, a, b, is_leaf=is_wide)


def _difference(a: PyTree, b: PyTree) -> jax.Array:
    """`b - a`, rounded once."""
    if isinstance(a, Exact):
        return (b.to_double() - a.to_double()).to_float()
    return as_floats(b) - as_floats(a)
