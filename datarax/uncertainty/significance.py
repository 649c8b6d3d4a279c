"""Several tests at once, and the power of one: plain functions of p-values and standard errors."""

from collections.abc import Iterator, Mapping
from statistics import NormalDist
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from scipy.stats import false_discovery_control

from datarax._checks import choice, finite_number, kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import ArrayLike
from datarax._xp import xp

T = TypeVar("T")
Method = Literal["holm", "bonferroni", "bh"]


def adjust(p_values: T, method: Method = "holm") -> T:
    """Adjusts p-values of several tests, so that each may be compared with the level of all.

    The adjusted p-value of a test is the least level at which the procedure rejects it. NaN stays
    NaN, and does not count as a test.

    - "holm": at level a, the probability that any true hypothesis is rejected is at most a. It
      rejects all that Bonferroni rejects, and more: prefer it. Any dependence of the tests is
      allowed. S. Holm (1979), A simple sequentially rejective multiple test procedure.
    - "bonferroni": the same guarantee; each p-value times the number of tests.
    - "bh": at level a, the expected share of true hypotheses among those that are rejected is at
      most a, for tests that are independent or positively dependent. As
      `scipy.stats.false_discovery_control`. Y. Benjamini and Y. Hochberg (1995), Controlling the
      false discovery rate.

    Args:
        p_values: numbers from 0 to 1: an array of any shape, or a dict of numbers, which may be
            nested. All are one family of tests.
        method: "holm", "bonferroni" or "bh".

    Returns:
        The adjusted p-values in the form of `p_values`: floats, and arrays of float64.

    Raises:
        MetricInputError: a number is not from 0 to 1, or another `method`.
        MetricTypeError: something that is not a number.

    Example:
        >>> from datarax.uncertainty import adjust
        >>> p_values = {"en": 0.01, "de": 0.04, "fr": 0.03, "it": float("nan")}
        >>> print({name: round(p, 3) for name, p in adjust(p_values).items()})
        {'en': 0.03, 'de': 0.06, 'fr': 0.06, 'it': nan}
        >>> print(adjust([0.01, 0.04, 0.03], "bh"))
        [0.03 0.04 0.04]
    """
    choice(method, get_args(Method), "method")
    given = list(_leaves(p_values))
    flat = np.concatenate([np.empty(0), *(x.ravel() for x in given)])
    counts = ~np.isnan(flat)
    flat[counts] = _adjusted(flat[counts], method)
    ends = np.cumsum([x.size for x in given], dtype=int)
    parts = iter(
        part.reshape(x.shape) for part, x in zip(np.split(flat, ends), given, strict=False)
    )
    return _with_leaves(p_values, parts)


def _leaves(tree: Any, path: str = "") -> Iterator[np.ndarray]:
    """The p-values within nested dicts, checked: each an array."""
    if isinstance(tree, Mapping):
        for name, x in tree.items():
            yield from _leaves(x, f"{path}[{name!r}]")
    else:
        yield _probabilities(tree, path)


def _with_leaves(tree: Any, leaves: Iterator[np.ndarray]) -> Any:
    """Nested dicts with other arrays as leaves, or floats; keeps the order of names."""
    if isinstance(tree, Mapping):
        return {name: _with_leaves(x, leaves) for name, x in tree.items()}
    leaf = next(leaves)
    return leaf if leaf.ndim else leaf.item()


def _probabilities(x: Any, path: str) -> np.ndarray:
    p = _numbers(x, f"p_values{path}")
    wrong = p[(p < 0) | (p > 1)]
    if wrong.size:
        raise MetricInputError(f"p_values{path}: {wrong[0]} is no p-value; expected 0 to 1")
    return p


def _numbers(x: Any, name: str) -> np.ndarray:
    """Numbers in any form as an array of float64."""
    array = np.asarray(x)
    if not any(xp.issubdtype(array.dtype, each) for each in (np.integer, np.floating)):
        raise MetricTypeError(f"{name}: expected numbers; got {kind(x)} of dtype {array.dtype}")
    return array.astype(np.float64)


def _adjusted(p: np.ndarray, method: Method) -> np.ndarray:
    """The adjusted p-values of numbers (m,) without NaN."""
    if not p.size:
        return p
    if method == "bh":
        return false_discovery_control(p)
    if method == "bonferroni":
        return np.minimum(p * p.size, 1)
    # The k-th least is compared with a / (m + 1 - k), if all lesser ones were rejected.
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return adjusted


def detectable_difference(
    std_error: ArrayLike, *, power: float = 0.8, confidence: float = 0.95
) -> Any:
    """Computes the least true difference that a two-sided test finds with probability `power`.

    `(z((1 + confidence) / 2) + z(power)) * std_error`, with z the quantile of the normal
    distribution: 2.8 standard errors by default. The standard error is that of the difference, such
    as of `Compare`. It falls with the root of the number of examples: half the difference takes
    four times the examples. J. Bloom (1995), Minimum detectable effects,
    https://doi.org/10.1177/0193841X9501900504.

    Args:
        std_error: the standard error of the difference, a number or an array; NaN gives NaN.
        power: the probability with which the difference is found, between 0.5 and 1.
        confidence: that of the interval which should not contain 0.

    Returns:
        A float for a number; otherwise an array of float64.

    Raises:
        MetricInputError: a standard error below 0, or `power` or `confidence` out of range.
        MetricTypeError: standard errors that are not numbers.

    Example:
        >>> from datarax.uncertainty import detectable_difference
        >>> print(round(detectable_difference(0.01), 4))
        0.028
    """
    level = finite_number(confidence, "confidence", "a number between 0 and 1", lambda x: 0 < x < 1)
    chance = finite_number(
        power, "power", "a number of at least 0.5 and below 1", lambda x: 0.5 <= x < 1
    )
    errors = _numbers(std_error, "std_error")
    if (errors < 0).any():
        raise MetricInputError(f"std_error={std_error!r}; expected numbers of at least 0")
    z = NormalDist().inv_cdf
    found = errors * (z((1 + level) / 2) + z(chance))
    return found if found.ndim else found.item()
