"""Two models on the same examples: McNemar."""

from functools import partial
from typing import Any

import numpy as np
import scipy.stats

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Arrays, Case, Draw, Inputs
from tests.registry.classification import chosen_class
from tests.registry.precision_recall import TASKS, Array
from tests.registry.predictions import BINARY, LABELS, MULTICLASS, MULTILABEL


def of_two(inputs: Inputs) -> Inputs:
    """The inputs of one model for two: predictions of the same targets, drawn apart."""

    def drawn(draw: Draw, rng: np.random.Generator, size: int) -> Arrays:
        a, b = draw(rng, size), draw(rng, size)
        # Of the second model, as many predictions are of its own target as of that of the first.
        own = rng.random(size) < 0.5
        same = own.reshape(-1, *[1] * (a["preds"].ndim - 1))
        preds_b = np.where(same, b["preds"], a["preds"])
        return {"preds_a": a["preds"], "preds_b": preds_b, "target": a["target"]}

    spoil = dict(inputs.spoil)
    preds = spoil.pop("preds")
    return Inputs(
        f"two {inputs.id}",
        draw=partial(drawn, inputs.draw),
        valid=lambda preds_a, preds_b, target: (
            inputs.valid(preds=preds_a, target=target) & inputs.valid(preds=preds_b, target=target)
        ),
        spoil={"preds_a": preds, "preds_b": preds, **spoil},
        hard={
            **{name: partial(drawn, draw) for name, draw in inputs.hard.items()},
            "no disagreement": lambda rng, size: alike(inputs.draw(rng, size)),
        },
    )


def alike(arrays: Arrays) -> Arrays:
    preds = arrays["preds"]
    return {"preds_a": preds, "preds_b": preds, "target": arrays["target"]}


def counts(w: Array, preds_a: Array, preds_b: Array, target: Array, task: str) -> tuple[float, ...]:
    def right(preds: Array) -> Array:
        if task == "multilabel":
            return (preds > 0.5) == (target == 1)
        chosen, actual = chosen_class(preds, target, task=task)
        return chosen == actual

    a, b = right(preds_a), right(preds_b)
    return fsum(w[a & ~b]), fsum(w[b & ~a])


def mcnemar(
    w: Array, preds_a: Array, preds_b: Array, target: Array, *, task: str, exact: bool
) -> dict[str, Any]:
    a, b = counts(w, preds_a, preds_b, target, task)
    n, k = a + b, min(a, b)
    if not fsum(w):
        return dict.fromkeys(("only_a", "only_b", "statistic", "p_value"), np.float64(np.nan))
    if exact:
        # P(X <= k), also of weights that are not whole.
        statistic, p = k, 1.0 if n == 0 else min(1.0, 2 * scipy.special.betainc(n - k, k + 1, 0.5))
    else:
        statistic = 0.0 if n == 0 else max(abs(a - b) - 1, 0) ** 2 / n
        p = scipy.stats.chi2.sf(statistic, 1)
    values = {"only_a": a, "only_b": b, "statistic": statistic, "p_value": p}
    return {name: np.float64(value) for name, value in values.items()}


def scipy_value(
    w: Array, preds_a: Array, preds_b: Array, target: Array, *, task: str
) -> dict[str, Any] | None:
    """`scipy.stats.binomtest` of the disagreements, where weights are whole."""
    a, b = counts(w, preds_a, preds_b, target, task)
    if (a, b) == (0, 0) or a % 1 or b % 1:
        return None
    p = scipy.stats.binomtest(int(a), int(a + b), 0.5).pvalue
    values = {"only_a": a, "only_b": b, "statistic": min(a, b), "p_value": p}
    return {name: np.float64(value) for name, value in values.items()}


CASES = [
    Case(
        f"mcnemar_{inputs.id}{'' if exact else '_chi_square'}",
        metrics.McNemar,
        two,
        partial(mcnemar, task=inputs.id, exact=exact),
        {**TASKS[inputs.id], "exact": exact},
        reference=partial(scipy_value, task=inputs.id) if exact else None,
        ulps=1,  # counts and differences are exact, and the p-value is within 1e-8 before rounding
        exact=True,
        without_float64=100,  # 12 (1 - log(p)), as its docstring says
    )
    for inputs, two in ((each, of_two(each)) for each in (BINARY, MULTICLASS, LABELS, MULTILABEL))
    for exact in (True, False)
]
