"""The p-values of slices: each against the other rows, adjusted over the page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from datarax.evaluation.encoding import Configuration, Json
from datarax.uncertainty import adjust

FEWEST_ROWS = 30
"""With fewer rows in a slice, the normal distribution is too far off."""
_FEWEST_EXPECTED = 5
"""The fewest expected hits and misses of a proportion in a slice."""


def with_p_values(
    slices: Sequence[Json], whole: Sequence[Mapping[str, Any]], rows: int, config: Configuration
) -> None:
    """Puts `p_value` and `p_adjusted` beside each value of each slice; NaN where there is none.

    They are of the hypothesis that the rows of the slice are like all others. With f the share of
    the slice in the rows, V the variance of the value v over all rows, and V_s that of v_s in the
    slice, both are sums over rows of squared influences, so `v_s - v` has the variance
    `(1 - 2 f) V_s + V`. Under the hypothesis V_s is V / f, and the variance `(1 / f - 1) V`. The
    greater of the two is taken. `p_adjusted` is by Holm's method over all metrics and slices.

    Args:
        slices: as in the summary, where each value has its `std_error` and its `method`.
        whole: the metrics over all rows, as in the summary.
        rows: how many rows there are.
        config: the settings. Weights and clusters give no p-values: a slice may hold more of the
            weight than of the rows, and a part of a cluster.
    """
    by_name = {metric["name"]: metric for metric in whole}
    every = list(_values(slices))
    simple = not (config.weighted or config.clustered or config.task == "ranking")
    for (name, of), examples in every:
        of["p_value"] = math.nan
        if simple and name in by_name and FEWEST_ROWS <= examples < rows:
            of["p_value"] = _p_value(of, by_name[name], examples / rows)
    adjusted = adjust([of["p_value"] for (_, of), _ in every])
    for ((_, of), _), p in zip(every, adjusted, strict=True):
        of["p_adjusted"] = p.item()


def _values(slices: Sequence[Json]) -> Iterator[tuple[tuple[str, Json], float]]:
    """Each value of each slice with its name, and the rows of the slice."""
    for by in slices:
        for row in by["rows"]:
            for item in row["values"].items():
                yield item, float(row["examples"])


def _p_value(of: Mapping[str, Any], whole: Mapping[str, Any], share: float) -> float:
    numbers = [of["value"], of["std_error"], whole["value"], whole["std_error"]]
    if any(x is None or not math.isfinite(x) for x in numbers):
        return math.nan
    value, error, all_value, all_error = map(float, numbers)
    if of["method"] == "wilson":
        # As many independent observations have this standard error; the slice has its share.
        spread = all_value * (1 - all_value)
        expected = share * spread / all_error**2 if all_error else 0.0
        if expected * min(all_value, 1 - all_value) < _FEWEST_EXPECTED:
            return math.nan
    apart = (1 - 2 * share) * error**2 + all_error**2
    alike = (1 / share - 1) * all_error**2
    deviation = max(apart, alike) ** 0.5
    if deviation == 0:
        return math.nan
    return 2 * NormalDist().cdf(-abs(value - all_value) / deviation)
