"""Agreement beyond chance: MatthewsCorrCoef, CohenKappa."""

from functools import partial
from typing import Any

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Case
from tests.registry.classification import chosen_class
from tests.registry.precision_recall import TASKS, Array, members
from tests.registry.predictions import BINARY, LABELS, MULTICLASS, MULTILABEL
from tests.registry.reference import Reference, several_in_either, sklearn_of


def correlation(w: Array, chosen: Array, actual: Array, zero_division: float = 0.0) -> float:
    """Of two sets of indicators (N, C): the sum of covariances by that of variances, R_K."""
    if not w.any():
        return np.nan
    chosen, actual, w = chosen[w > 0], actual[w > 0], w[w > 0, None]

    def around_mean(x: Array) -> Array:
        return x - np.array([fsum(w[x[:, c]]) / fsum(w) for c in range(x.shape[1])])

    a, b = around_mean(chosen), around_mean(actual)
    both, of_a, of_b = fsum(w * a * b), fsum(w * a * a), fsum(w * b * b)
    return both / np.sqrt(of_a * of_b) if of_a * of_b else zero_division


def kappa(w: Array, chosen: Array, actual: Array) -> float:
    n = fsum(w)
    if not n:
        return np.nan
    if chosen.shape[1] == 1:
        chosen, actual = (np.concatenate([x, ~x], 1) for x in (chosen, actual))
    agreed = fsum(w[(chosen & actual).any(1)]) / n
    chance = fsum(
        [fsum(w[a]) / n * fsum(w[b]) / n for a, b in zip(chosen.T, actual.T, strict=True)]
    )
    return (agreed - chance) / (1 - chance) if chance < 1 else np.nan


def of_task(w: Array, preds: Array, target: Array, *, score: Any, task: str) -> Any:
    """A score of (w, chosen, actual): of all classes, or of each label."""
    chosen, actual = members(preds, target, task=task)
    if task != "multilabel":
        return score(w, chosen, actual)
    return np.array(
        [score(w[:, c], chosen[:, c : c + 1], actual[:, c : c + 1]) for c in range(w.shape[1])]
    )


def sklearn_chosen(score: Any, *, task: str) -> Reference:
    # Of one class, kappa warns.
    return sklearn_of(score, prepare=partial(chosen_class, task=task), defined=several_in_either)


# Sums of products are kept to 2**-46 of n**2, of which a denominator is at least 1/64 in the
# registry; what they are taken from each other may cancel.
CANCEL = 2.0**-38

CASES = [
    *(
        Case(
            f"matthews_{inputs.id}",
            metrics.MatthewsCorrCoef,
            inputs,
            partial(of_task, score=correlation, task=inputs.id),
            TASKS[inputs.id],
            reference=None
            if inputs is MULTILABEL  # it has none for labels
            else sklearn_chosen(sklearn.metrics.matthews_corrcoef, task=inputs.id),
            ulps=3,  # two quotients, a root and a product
            atol=lambda w, **inputs: CANCEL,
            exact=True,
        )
        for inputs in (BINARY, MULTICLASS, LABELS, MULTILABEL)
    ),
    Case(
        "matthews_zero_division",
        metrics.MatthewsCorrCoef,
        LABELS,
        partial(of_task, score=partial(correlation, zero_division=np.nan), task="labels"),
        {**TASKS["labels"], "zero_division": np.nan},
        ulps=3,
        atol=lambda w, **inputs: CANCEL,
        exact=True,
    ),
    *(
        Case(
            f"kappa_{inputs.id}",
            metrics.CohenKappa,
            inputs,
            partial(of_task, score=kappa, task=inputs.id),
            TASKS[inputs.id],
            reference=None
            if inputs is MULTILABEL
            else sklearn_chosen(sklearn.metrics.cohen_kappa_score, task=inputs.id),
            atol=lambda w, **inputs: CANCEL,
            exact=True,
        )
        for inputs in (BINARY, MULTICLASS, LABELS, MULTILABEL)
    ),
]
