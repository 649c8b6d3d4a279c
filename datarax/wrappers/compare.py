"""`Compare`: the difference of a metric between two models, on the same examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Self

import jax

from datarax._checks import checked_confidence, choice
from datarax._errors import MetricInputError
from datarax._typing import PyTree
from datarax.algebra.fields import state
from datarax.algebra.rows import Target
from datarax.algebra.stack import Stack
from datarax.metric.arguments import taken_from, with_argument
from datarax.metric.base import Metric
from datarax.metric.reading import Reading
from datarax.metric.rows import empty_place, rows_of, updated_at
from datarax.metric.unusable import Undefined
from datarax.metric.values import is_wide
from datarax.numerics.exact import Exact
from datarax.statistics.row_sample import INDEX
from datarax.wrappers.bootstrap import Resampled, as_floats
from datarax.wrappers.clusters import CLUSTER, check_argument_is_free, checked_ids
from datarax.wrappers.paired import PairedRatios, Verdict, tested_sample, with_sampled
from datarax.wrappers.pairs import Pairs
from datarax.wrappers.wrapper import each_updated

_REPLICAS, _SEED = 200, 0


class Compare(Pairs, Resampled):
    """A metric of two models on the same examples, and their difference with its interval.

    `update` takes the metric's own arguments. Those that differ between the models are given twice,
    with `_a` and `_b` after the name: `preds_a`, `preds_b`, or of `Mean` `values_a`, `values_b`. By
    position, the first argument is given for both models. `index`, the global id of each row, is as
    for `Bootstrap`.

    A pair counts where both models can be used: a row that the metric cannot use for one model is
    left out of both. `results()` says in how many rows, as "pairs/invalid"; the policy
    `on_invalid` says, as for each metric, whether the results are NaN then.

    `compute` gives a dict: `a` and `b`, the values of the two models; `difference`, which is
    `b - a`; and `lower`, `upper`, the percentile interval of the difference. Both models are
    resampled alike (a paired bootstrap), so what makes an example hard for both cancels. The
    interval is narrower than the intervals of the two models suggest, and the difference may be
    significant although those overlap. Without data, all are NaN.

    With `method="formula"` there are no replicas, and the state is of constant size: the standard
    error of the difference follows from sums over the rows. With the parts a and b of a row in the
    numerator and in the denominator of the first model, c and d in those of the second, and r and s
    the two values, it is the root of `sum ((c - s d) / sum d - (a - r b) / sum b)**2`, times
    `sqrt(n / (n - 1))` for n rows. The interval is `difference ± t * standard error`, with the
    quantile t of Student's distribution of n - 1 degrees of freedom, and `p_value` that of its
    two-sided test that there is no difference; but at least `2**(1 - m)`, where the models differ
    in m rows: if all rows pointed in one direction by chance, that would have this probability. A
    row of weight 2 is one observation. With `clusters`, `update` also takes `cluster`, and the sum
    is over clusters of the sums of their rows, as for `Interval`; they are the observations.

    Where counts decide, the test is the exact one: for metrics with a bounded `value_range`, such
    as accuracy, F1 or `TokenF1`; where the differences are of about the same size, as those of a
    mean of 0 and 1 are; and where all rows change by about the same. Then `p_value` is that of the
    sign test (of McNemar, for right and wrong), and the interval that of Bonett and Price. Rows of
    several sizes s count as `(sum s)**2 / sum s**2` rows of one size. So no difference is
    significant in fewer than 6 rows that differ. Models that do not differ in any row have no
    interval, unless the metric is bounded: NaN, with a warning.

    The test asks whether the models are equal, so that each row might as well be the other way
    round. If they differ, but have the same true mean, and the differences are skewed, few rows may
    show a significant difference that many rows do not have.

    The difference of two `AUROC`, `Gini` or `AveragePrecision` has the standard error of DeLong, or
    of the delta method, for paired areas. The bins of each model give what a row adds to its area.
    How these vary together, a random sample of rows with the scores of both models shows, in
    64 KiB for each model: while the rows fit, all of them (6,000 of a binary task, some 1,300 of
    ten classes). It holds more of what is rare, such as rows on which the models differ. Beyond
    that, the standard error of a binary task deviates by about 2 %, of ten classes by 4 to 7 %; by
    15 % where the areas are above 0.998, as a few rows decide there. With that standard error e, d
    the difference and h the harmonic mean of the numbers of positives and of negatives (the least
    of all classes), the p-value is that of `d / sqrt(e**2 + d**2 / h)`: if the models are equal,
    the squares are about 0. The interval holds all differences that this test allows. `index` is
    optional: with it, the sample does not depend on the mesh or the batches.

    For two models that are right or wrong, see also `datarax.metrics.McNemar`.

    Args:
        metric: a metric or a collection, without data; for "formula" a ratio of two sums, as for
            `Interval`, or an `AUROC`, `Gini` or `AveragePrecision`.
        replicas: how many copies of each, at least 2. An interval of 95 % needs 200 or more.
        seed: of the random counts.
        confidence: the probability with which the interval covers the true difference.
        method: "bootstrap", or "formula" for means, ratios, proportions and areas.
        clusters: for "formula", how many cells the table of clusters has; None if rows are
            independent.

    Raises:
        MetricInputError: the metric has data; or is an extreme, as for `Bootstrap`; or is no ratio
            of two sums and no area, for "formula"; or an argument is out of its range, or is one of
            the other method; or, by `update`, `cluster` is left out or has another shape.
        MetricTypeError: `metric` is not a metric.

    References:
        E. Miller (2024), Adding error bars to evals, https://arxiv.org/abs/2411.00640, on paired
        differences and clusters.
        D. G. Bonett and R. M. Price (2012), Adjusted Wald confidence interval for a difference of
        binomial proportions based on paired data, https://doi.org/10.3102/1076998611411915.
        E. R. DeLong et al. (1988), Comparing the areas under two or more correlated receiver
        operating characteristic curves, https://doi.org/10.2307/2531595.

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

        By formula:

        >>> compared = Compare(Accuracy(num_classes=3), method="formula")
        >>> compared = compared.update(preds_a[:30], preds_b[:30], target[:30])
        >>> print({name: round(x, 2) for name, x in compared.results().items()})
        {'a': 0.8, 'b': 0.93, 'difference': 0.13, 'lower': -0.02, 'p_value': 0.13, 'upper': 0.27}
    """

    hidden_names = frozenset({"other_stack", "paired", "sampled"})

    method: Literal["bootstrap", "formula"]
    clusters: int | None
    other_stack: Stack = state()
    paired: PairedRatios | None = state(optional=True)
    """For "formula" of a ratio: how far the difference varies."""
    sampled: PyTree = state(optional=True)
    """For "formula" of an area: the rows from which it follows."""

    def __init__(
        self,
        metric: Metric,
        *,
        replicas: int = _REPLICAS,
        seed: int = _SEED,
        confidence: float = 0.95,
        method: Literal["bootstrap", "formula"] = "bootstrap",
        clusters: int | None = None,
    ):
        # Each method has states of its own. Those of the other one are not made: a formula needs no
        # replicas.
        choice(method, ("bootstrap", "formula"), "method")
        self.method, self.clusters = method, clusters
        if method == "formula":
            self._configure_formula(metric, replicas, seed, confidence)
            return
        if clusters is not None:
            raise MetricInputError(
                f'Compare: clusters={clusters} needs method="formula". The bootstrap draws the '
                f"rows of one index together: pass the ids of clusters as index="
            )
        self.configure(metric, replicas, seed, confidence)
        self.hold_pairs(metric)
        # Both start as one empty stack, as states are immutable.
        self.other_stack = self.stack

    def _configure_formula(
        self, metric: Metric, replicas: int, seed: int, confidence: float
    ) -> None:
        self.hold_pairs(metric)
        self.confidence = checked_confidence(confidence, "Compare")
        # They would be ignored, and a user who gives them expects an effect.
        if (replicas, seed) != (_REPLICAS, _SEED):
            raise MetricInputError(
                f'Compare: method="formula" draws no replicas; got replicas={replicas}, '
                f"seed={seed}. Leave them out"
            )
        self.replicas, self.seed = replicas, seed
        # Only whether there is one, and its shape: nothing is computed.
        ratio = jax.eval_shape(lambda: metric.as_ratio())
        sampled = None if ratio is not None else metric.sampling().paired_sample()
        if ratio is None and (sampled is None or self.clusters is not None):
            raise MetricInputError(
                f'Compare: method="formula" needs a ratio of two sums, and {metric!r} is none. '
                f"Expected a mean, or a ratio of counts that is binary, or has "
                f'average="micro" or None; or, without clusters, AUROC, Gini or AveragePrecision, '
                f'of up to some 60 classes; for other metrics there is method="bootstrap", and the '
                f"members of a collection are compared one by one"
            )
        if ratio is None:
            self.sampled = sampled
            return
        if self.clusters is not None:
            check_argument_is_free(metric, "Compare")
        self.paired = PairedRatios(ratio[0].shape, self.clusters)

    @property
    def weights_repeat(self) -> bool:  # type: ignore[override]
        """False if rows are observations, whatever they weigh."""
        return self.method == "bootstrap"

    @property
    def own(self) -> str | None:
        if self.method == "bootstrap" or self.sampled is not None:
            return INDEX
        return None if self.clusters is None else CLUSTER

    def check_twice(self, twice: Sequence[str], given: Mapping[str, PyTree]) -> None:
        if self.sampled is not None and any(name[:-2] != "preds" for name in twice):
            raise MetricInputError(
                f"Compare({type(self.metric).__name__}).update got {', '.join(given)}; expected "
                f'preds_a and preds_b, and all else once: method="formula" compares the scores of '
                f"two models on the same rows"
            )

    def _apply(self, calls: PyTree) -> Self:
        own = self.own
        given, calls = (None, calls) if own is None else taken_from(calls, own)
        calls, states = self.updated_pairs(calls)
        if self.paired is not None:
            paired = self.paired.updated(self.metric.emptied(), calls, given)
            return self.with_parts(states | {"paired": paired})
        if self.sampled is not None:
            sampled = with_sampled(self.sampled, calls, given)
            return self.with_parts(states | {"sampled": sampled})
        # One target for both models: the paired bootstrap draws the same rows.
        calls = calls if given is None else with_argument(calls, INDEX, given)
        calls, target, seen = self.resampled(calls)
        stacks = {
            "stack": each_updated(self.stack, calls["a"], target),
            "other_stack": each_updated(self.other_stack, calls["b"], target),
        }
        return self.with_parts(states | stacks | {"seen": seen})

    def apply_at(self, calls: PyTree, target: Target) -> Self:
        if self.paired is None or self.clusters is None:
            return updated_at(self, calls, target)
        given, calls = taken_from(calls, CLUSTER)
        ids = checked_ids(given, rows_of(calls))
        calls, states = self.updated_pairs_at(calls, target)
        paired = self.paired.updated_at(empty_place(self.metric), calls, ids, target)
        return self.with_parts(states | {"paired": paired})

    def reading(self) -> Reading:
        a, b = self.metric.reading(), self.other.reading()
        if self.method == "formula":
            difference = _difference(a.value, b.value)
            found, undefined = self._tested(difference)
            value = {"a": a.value, "b": b.value, "difference": difference, **found._asdict()}
            reading = self.reading_with(value, a, b)
            return replace(reading, undefined=reading.undefined | {"": undefined})
        # The interval is that of the differences, not the difference of two intervals.
        # Replica by replica, because both models saw the same rows in each.
        replicas = [x.map(lambda one: one.reading()).value for x in (self.stack, self.other_stack)]
        difference = _differences(a.value, b.value)
        apart = _differences(*replicas)
        spread = self.spread(difference, apart, a.value)
        ends = {name: spread[name] for name in ("lower", "upper")}
        value = {"a": a.value, "b": b.value, "difference": difference, **ends}
        reading = self.reading_with(value, a, b)
        return replace(reading, undefined=reading.undefined | {"": (self.without_spread(spread),)})

    def _tested(self, difference: jax.Array) -> tuple[Verdict, tuple[Undefined, ...]]:
        """The interval and the p-value of the difference; and why there is no interval."""
        if self.paired is not None:
            return self.paired.tested(self.metric, self.other, difference, self.confidence)
        return tested_sample(self.metric, self.other, self.sampled, difference, self.confidence)


def _differences(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(_difference, a, b, is_leaf=is_wide)


def _difference(a: PyTree, b: PyTree) -> jax.Array:
    """`b - a`, rounded once."""
    if isinstance(a, Exact):
        # Of counts above 2**24, the difference of two floats would be rounded twice.
        return (b.to_double() - a.to_double()).to_float()
    return as_floats(b) - as_floats(a)
