"""Several values in one: LikelihoodRatios, GroupFairness, GroupRates."""

from fractions import Fraction
from functools import partial
from typing import Any

import fairlearn.metrics
import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Inputs
from tests.registry.classification import ratio
from tests.registry.precision_recall import TASKS, Array, table_of
from tests.registry.predictions import BINARY, MULTICLASS, MULTILABEL, binary, target_labels


def likelihood_ratios(w: Array, preds: Array, target: Array, *, task: str) -> dict[str, Any]:
    def ratios(tp: float, fp: float, fn: float, tn: float) -> tuple[float, float]:
        sensitivity, specificity = ratio(tp, tp + fn), ratio(tn, tn + fp)
        missed, alarm = ratio(fn, tp + fn), ratio(fp, tn + fp)
        return ratio(sensitivity, alarm), ratio(missed, specificity)

    each = np.array([ratios(*cells) for cells in table_of(w, preds, target, task=task).T])
    each = each[0] if task == "binary" else each
    return {"positive": each[..., 0], "negative": each[..., 1]}


def sklearn_likelihood_ratios(w: Array, preds: Array, target: Array) -> Any:
    tp, fp, fn, tn = table_of(w, preds, target, task="binary")[:, 0]
    if not (fp and tn and tp + fn):
        return None  # it warns, and gives NaN
    used = w > 0
    positive, negative = sklearn.metrics.class_likelihood_ratios(
        target[used] == 1, preds[used] > 0.5, sample_weight=w[used]
    )
    return {"positive": np.asarray(positive), "negative": np.asarray(negative)}


GROUP_COUNT = 3


def in_groups(
    rng: np.random.Generator, size: int, *, groups: Any = range(GROUP_COUNT), **kind: Any
) -> Arrays:
    return binary(rng, size, **kind) | {"groups": target_labels(rng, size, groups)}


GROUPED = Inputs(
    "grouped",
    draw=in_groups,
    valid=lambda preds, target, groups: (
        BINARY.valid(preds, target) & (groups >= 0) & (groups < GROUP_COUNT)
    ),
    spoil={**BINARY.spoil, "groups": (-1, GROUP_COUNT, 2**31 - 1)},
    hard={
        "one group": partial(in_groups, groups=(1,)),
        "a group without data": partial(in_groups, groups=(0, 2)),
        "no positives": partial(in_groups, prevalence=0.0),
        "none selected": partial(in_groups, scores=(0.0, 0.25)),
        "all selected": partial(in_groups, scores=(0.75,)),
        "rare": partial(in_groups, prevalence=0.1, scores=(0.0, 0.0, 0.0, 1.0)),
    },
)


def fairness(w: Array, preds: Array, target: Array, groups: Array) -> dict[str, Any]:
    """The rates of each group, as rationals, and their extremes."""
    chosen, values = preds > 0.5, {}
    compared = {
        "demographic_parity": w > 0,
        "equal_opportunity": target == 1,
        "false_positive_rate": target == 0,
    }
    for name, which in compared.items():
        rates, nothing = [], np.float64(np.nan)
        for group in range(GROUP_COUNT):
            rows = which & (groups == group)
            if w[rows].any():
                rates.append(Fraction(fsum(w[rows & chosen])) / Fraction(fsum(w[rows])))
        low, high = min(rates, default=nothing), max(rates, default=nothing)
        values[f"{name}_difference"] = np.float64(high - low)
        values[f"{name}_ratio"] = np.float64(low / high if high else np.nan)
    for kind, worst in (("difference", np.maximum), ("ratio", np.minimum)):  # they keep a NaN
        found, alarms = (
            values[f"{x}_{kind}"] for x in ("equal_opportunity", "false_positive_rate")
        )
        if kind == "ratio" and values["false_positive_rate_difference"] == 0 and np.isnan(alarms):
            alarms = np.float64(np.inf)  # no false positives: equal rates
        values[f"equalized_odds_{kind}"] = worst(found, alarms)
    return values


def fairlearn_of(w: Array, preds: Array, target: Array, groups: Array) -> dict[str, Any] | None:
    used = w > 0
    kinds = {(g, t) for g, t in zip(groups[used], target[used], strict=True)}
    chosen = preds[used] > 0.5
    if not kinds or len(kinds) < 2 * len({g for g, _ in kinds}):
        return None  # it takes the rate of no examples as 0
    names = ("demographic_parity", "equal_opportunity", "equalized_odds")
    functions = {f"{n}_{k}": f"{n}_{k}" for n in names for k in ("difference", "ratio")}
    given = {"sensitive_features": groups[used], "sample_weight": w[used]}
    values = {
        name: getattr(fairlearn.metrics, function)(target[used], chosen, **given)
        for name, function in functions.items()
    }
    rates = fairlearn.metrics.MetricFrame(
        metrics=fairlearn.metrics.false_positive_rate,
        y_true=target[used],
        y_pred=chosen,
        sensitive_features=groups[used],
        sample_params={"sample_weight": w[used]},
    )
    values["false_positive_rate_difference"] = rates.difference()
    values["false_positive_rate_ratio"] = rates.ratio()
    return {name: np.float64(value) for name, value in values.items()}


def group_rates(w: Array, preds: Array, target: Array, groups: Array) -> dict[str, Any]:
    chosen, actual = preds > 0.5, target == 1
    kinds = (chosen & actual, chosen & ~actual, ~chosen & ~actual, ~chosen & actual)
    return {
        f"group_{i}": np.array(
            [ratio(fsum(w[kind & (groups == i)]), fsum(w[groups == i])) for kind in kinds]
        )
        for i in range(GROUP_COUNT)
    }


CASES = [
    *(
        Case(
            f"likelihood_ratios_{inputs.id}",
            metrics.LikelihoodRatios,
            inputs,
            partial(likelihood_ratios, task=inputs.id),
            TASKS[inputs.id],
            reference=sklearn_likelihood_ratios if inputs is BINARY else None,
            exact=True,
        )
        for inputs in (BINARY, MULTICLASS, MULTILABEL)
    ),
    Case(
        "fairness",
        metrics.GroupFairness,
        GROUPED,
        fairness,
        {"num_groups": GROUP_COUNT},
        reference=fairlearn_of,
        exact=True,
        perfect="any",  # groups may have different rates of targets
    ),
    Case(
        "group_rates",
        metrics.GroupRates,
        GROUPED,
        group_rates,
        {"num_groups": GROUP_COUNT},
        exact=True,
    ),
]
