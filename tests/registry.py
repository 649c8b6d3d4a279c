"""Every metric of the catalogue once: what it takes, what it should give, and how nearly.

A new metric is one `Case`, or one for each of its averages and tasks, over `Inputs` that are here
already or are defined beside its kin. All laws, extremes and comparisons with the oracle follow,
see `tests/test_laws.py`. Cases that read one statistic of one kind of inputs are checked together,
so that a metric over a known statistic costs the compilation of its formula alone.

An oracle takes the weight of each example and the inputs by name, all of the stream, in float64;
what cannot be used has weight zero by then. It works from the definition, in plain NumPy; a
`reference`, where there is one, is scikit-learn's word on the same.

Units in the last place are counted with u = 2**-24, one rounding of a float32, which is at most
half of such a unit; n is the size of a batch, and gamma(n) = n u / (1 - n u), see `sum_bound`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import sklearn.metrics

import datarax
from datarax import metrics
from datarax.metrics._metric import delegates
from tests.helpers import fsum, sum_bound

BATCH = 16
"""Examples in a batch. Every test uses this shape, so each program is compiled once."""

Arrays = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator, int], Arrays]


@dataclass(frozen=True)
class Inputs:
    """What an `update` takes besides weights.

    Attributes:
        id: a name.
        draw: ordinary inputs, of so many examples.
        valid: which examples can be used; of the shape that weights are broadcast to.
        spoil: what to put into some examples, by argument, so that they cannot be used.
        hard: inputs that can be used and are easy to get wrong.
    """

    id: str
    draw: Draw
    valid: Callable[..., np.ndarray]
    spoil: Mapping[str, tuple[float, ...]]
    hard: Mapping[str, Draw]

    def draw_kind(self, kind: str, rng: np.random.Generator, size: int) -> Arrays:
        return {"plain": self.draw, **self.hard}[kind](rng, size)

    @property
    def kinds(self) -> list[str]:
        return ["plain", *self.hard]

    def spoilt(self, rng: np.random.Generator, arrays: Arrays, rows: np.ndarray) -> Arrays:
        """The inputs with one entry in each of these rows of each argument not to be used."""
        spoilt = {name: x.copy() for name, x in arrays.items()}
        for name, values in self.spoil.items():
            x = spoilt[name]
            for row in rows:
                entry = (row, *(rng.integers(0, n) for n in x.shape[1:]))
                x[entry] = np.asarray(rng.choice(values)).astype(x.dtype)
        return spoilt


@dataclass(frozen=True)
class Case:
    """A metric, and what it should give.

    Attributes:
        id: a name, also that of the metric in the collection of its group.
        cls: the class.
        inputs: what it takes.
        oracle: the value, from the weights and the inputs.
        config: keyword arguments of the class.
        reference: scikit-learn's value; may be None where it has none.
        ulps: how many units in the last place it may be off; says why.
        atol: how far off it may be on given data, where the result may cancel.
        exact: its state holds whole numbers where weights are none or a mask, so that it is the
            same bit for bit however the examples are spread.
        empty: the value of no data.
    """

    id: str
    cls: type[datarax.Metric]
    inputs: Inputs
    oracle: Callable[..., Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    ulps: float = 1
    atol: Callable[..., float] = lambda w, **inputs: 0.0
    exact: bool = False
    empty: Any = np.nan

    def make(self, **config: Any) -> datarax.Metric:
        return self.cls(**{**self.config, **config})

    def group(self) -> tuple[Any, ...]:
        """Equal for cases that share a statistic."""
        metric: Any = self.make()
        if delegates(metric):
            return self.inputs.id, jax.tree.structure(metric.statistic)
        return (self.id,)


# Values, of any shape: Mean, Sum, Max, Min, Variance, Std.


def reals(
    rng: np.random.Generator, size: int, *, shape: tuple[int, ...] = (), scale=1.0, offset=3.0
) -> Arrays:
    values = rng.normal(offset, scale, (size, *shape))
    return {"values": values.astype(np.float32)}


def constant(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": np.full(size, rng.normal(), np.float32)}


def ties(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": rng.choice(np.float32([-1.5, -0.0, 0.0, 2.25]), size)}


REALS = Inputs(
    "reals",
    draw=reals,
    valid=lambda values: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={
        "around zero": partial(reals, offset=0.0),
        "offset of 1e6": partial(reals, offset=1e6),
        "offset of -1e4": partial(reals, offset=-1e4),
        "large": partial(reals, scale=1e15),
        "tiny": partial(reals, scale=1e-15, offset=0.0),
        "subnormal": partial(reals, scale=1e-40, offset=0.0),
        "constant": constant,
        "ties": ties,
    },
)
ROWS = Inputs(
    "rows",
    draw=partial(reals, shape=(3,)),
    valid=lambda values: np.isfinite(values),
    spoil={"values": (np.nan, np.inf, -np.inf)},
    hard={"around zero": partial(reals, shape=(3,), offset=0.0)},
)


def integers(rng: np.random.Generator, size: int, *, low: int = -99, high: int = 100) -> Arrays:
    return {"values": rng.integers(low, high, size).astype(np.int32)}


INTEGERS = Inputs(
    "integers",
    draw=integers,
    valid=lambda values: np.ones(values.shape, bool),
    spoil={},
    hard={
        # Exact in int32, and not in float32.
        "above 2**24": partial(integers, low=2**24, high=2**24 + 99),
        "near 2**31": partial(integers, low=2**31 - 9, high=2**31 - 1),
    },
)

TINY = float(np.finfo(np.float32).tiny)  # below it, a processor may flush to zero


def mean_of(w: np.ndarray, values: np.ndarray) -> float:
    used = w > 0
    total = fsum(w[used])
    return fsum(w[used] * values[used]) / total if total else np.nan


def sum_of(w: np.ndarray, values: np.ndarray) -> float:
    return fsum(w[w > 0] * values[w > 0])


def sum_error(w: np.ndarray, values: np.ndarray) -> float:
    # Products are rounded, and those of one batch are added in any order: gamma(n + 1).
    terms = (BATCH + 1) * max(1, values.size // max(1, len(values)))
    return sum_bound(terms, fsum(np.abs(w[w > 0] * values[w > 0]))) + TINY


def mean_error(w: np.ndarray, values: np.ndarray) -> float:
    return sum_error(w, values) / max(fsum(w), TINY)


def under_weights(error: Callable[..., float], w: np.ndarray, values: np.ndarray) -> float:
    # Integers add up exactly unless they are multiplied by weights, which are floats.
    return 0.0 if np.isin(w, (0, 1)).all() else error(w, values)


def variance_of(w: np.ndarray, values: np.ndarray, ddof: float = 0) -> float:
    x, w = values[w > 0], w[w > 0]
    n = fsum(w)
    if n <= ddof or not n:
        return np.nan
    # The mean of so few float32 is exact enough in float64 that its square error vanishes.
    distance = x - fsum(w * x) / n
    return fsum(w * distance**2) / (n - ddof)


def variance_error(w: np.ndarray, values: np.ndarray, ddof: float = 0) -> float:
    # Distances from a batch's mean are off by gamma(n)**2 of the values, as it is found in two
    # steps; the square of a distance by twice that times the distance.
    if not (w > 0).any():
        return 0.0
    off = sum_bound(BATCH + 1, 1.0) ** 2 * np.abs(values[w > 0]).max()
    ratio = fsum(w) / max(fsum(w) - ddof, TINY)
    return ratio * (2 * off * np.sqrt(variance_of(w, values)) + off**2) + TINY


def std_error(w: np.ndarray, values: np.ndarray) -> float:
    # |sqrt(v + e) - sqrt(v)| <= sqrt(e), and e / (2 sqrt(v)) where e is small beside v.
    error, v = variance_error(w, values), variance_of(w, values)
    return float(np.sqrt(error) if not v > error else error / np.sqrt(v))


# The sum of n squares in any order is off by n units, the squares and weights by 3; the means of
# batches by n of the distances, which counts twice in the merge; formulas by 13.
MOMENTS = 3 * BATCH + 16

AGGREGATION = [
    Case("mean", metrics.Mean, REALS, mean_of, atol=mean_error),
    Case("mean_rows", metrics.Mean, ROWS, mean_of, atol=mean_error),
    Case(
        "mean_integers",
        metrics.Mean,
        INTEGERS,
        mean_of,
        atol=partial(under_weights, mean_error),
        exact=True,
    ),
    Case("sum", metrics.Sum, REALS, sum_of, atol=sum_error, empty=0.0),
    Case(
        "sum_integers",
        metrics.Sum,
        INTEGERS,
        sum_of,
        atol=partial(under_weights, sum_error),
        exact=True,
        empty=0.0,
    ),
    Case(
        "max",
        metrics.Max,
        REALS,
        lambda w, values: values[w > 0].max(initial=-np.inf) if (w > 0).any() else np.nan,
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    Case(
        "min",
        metrics.Min,
        REALS,
        lambda w, values: values[w > 0].min(initial=np.inf) if (w > 0).any() else np.nan,
        ulps=0,
        atol=lambda w, values: TINY,
        exact=True,
    ),
    Case("variance", metrics.Variance, REALS, variance_of, ulps=MOMENTS, atol=variance_error),
    Case(
        "variance_unbiased",
        metrics.Variance,
        REALS,
        partial(variance_of, ddof=1),
        {"ddof": 1},
        ulps=MOMENTS,
        atol=partial(variance_error, ddof=1),
    ),
    Case(
        "std",
        metrics.Std,
        REALS,
        lambda w, values: np.sqrt(variance_of(w, values)),
        ulps=MOMENTS / 2 + 1,  # the root halves a relative error
        atol=std_error,
    ),
]


# Classification: preds and target.


def binary(
    rng: np.random.Generator, size: int, *, prevalence: float = 0.4, scores: Any = None
) -> Arrays:
    target = (rng.random(size) < prevalence).astype(np.int32)
    if scores is None:
        preds = np.clip(rng.normal(0.4 + 0.2 * target, 0.25), 0, 1)
    else:
        preds = rng.choice(scores, size)
    return {"preds": preds.astype(np.float32), "target": target}


BINARY = Inputs(
    "binary",
    draw=binary,
    valid=lambda preds, target: np.isfinite(preds) & np.isin(target, (0, 1)),
    spoil={"preds": (np.nan, np.inf, -np.inf), "target": (-1, 2, -100, 2**31 - 1)},
    hard={
        "no positives": partial(binary, prevalence=0.0),
        "no negatives": partial(binary, prevalence=1.0),
        "ties, at thresholds": partial(binary, scores=np.float32([0.3, 0.5, np.nextafter(0.5, 1)])),
        "saturated": partial(binary, scores=(0.0, 1.0)),
        "logits": partial(binary, scores=(-40.0, -1.0, 0.7, 1e30)),
        "subnormal": partial(binary, scores=(1e-40, 0.0, -1e-40)),
    },
)

CLASSES = 5


def target_labels(rng: np.random.Generator, size: int, labels: Any) -> np.ndarray:
    return rng.choice(np.asarray(labels, np.int32), size)


def multiclass(
    rng: np.random.Generator, size: int, *, labels: Any = range(CLASSES), scores: Any = None
) -> Arrays:
    target = target_labels(rng, size, labels)
    if scores is None:
        preds = rng.normal(size=(size, CLASSES))
        preds[np.arange(size), target] += 1
    else:
        preds = rng.choice(scores, (size, CLASSES))
    return {"preds": preds.astype(np.float32), "target": target}


MULTICLASS = Inputs(
    "multiclass",
    draw=multiclass,
    valid=lambda preds, target: np.isfinite(preds).all(-1) & (target >= 0) & (target < CLASSES),
    spoil={"preds": (np.nan, np.inf, -np.inf), "target": (-1, CLASSES, -100, 2**31 - 1)},
    hard={
        "one class": partial(multiclass, labels=(2,)),
        "absent classes": partial(multiclass, labels=(0, 3)),
        "ties": partial(multiclass, scores=(0.0, 0.5, 1.0)),
        "all tied": partial(multiclass, scores=(0.25,)),
        "subnormal": partial(multiclass, scores=(0.0, 1e-30, -1e-30)),
    },
)


def labels(
    rng: np.random.Generator, size: int, *, labels: Any = range(CLASSES), right: float = 0.6
) -> Arrays:
    target = target_labels(rng, size, labels)
    other = target_labels(rng, size, range(CLASSES))
    return {"preds": np.where(rng.random(size) < right, target, other), "target": target}


LABELS = Inputs(
    "labels",
    draw=labels,
    valid=lambda preds, target: (
        (preds >= 0) & (preds < CLASSES) & (target >= 0) & (target < CLASSES)
    ),
    spoil={"preds": (-1, CLASSES, 2**30), "target": (-1, CLASSES, -100, 2**31 - 1)},
    hard={
        "one class": partial(labels, labels=(CLASSES - 1,)),
        "all right": partial(labels, right=1.0),
        "none right": lambda rng, size: {
            "preds": np.zeros(size, np.int32),
            "target": np.ones(size, np.int32),
        },
    },
)


def multilabel(
    rng: np.random.Generator, size: int, *, prevalence: Any = (0.1, 0.5, 0.8), scores: Any = None
) -> Arrays:
    target = (rng.random((size, 3)) < prevalence).astype(np.int32)
    if scores is None:
        preds = np.clip(rng.normal(0.4 + 0.2 * target, 0.25), 0, 1)
    else:
        preds = rng.choice(scores, (size, 3))
    return {"preds": preds.astype(np.float32), "target": target}


MULTILABEL = Inputs(
    "multilabel",
    draw=multilabel,
    valid=BINARY.valid,
    spoil=BINARY.spoil,
    hard={
        "a label never": partial(multilabel, prevalence=(0.0, 0.5, 1.0)),
        "ties, at the threshold": partial(multilabel, scores=(0.5, 0.25, 0.75)),
    },
)


def top_classes(preds: np.ndarray, k: int = 1) -> np.ndarray:
    """The k highest scores of each example, of equal ones the first: (N, k)."""
    if preds.ndim == 1:
        return preds[:, None]
    return np.argsort(-preds, axis=-1, kind="stable")[:, :k]


def ratio(part: float, of: float) -> float:
    return part / of if of else np.nan


def averaged(right: Any, of: Any, support: Any, average: str | None) -> Any:
    """Ratios by class, averaged over the classes that occur."""
    by_class = np.array([ratio(a, b) for a, b in zip(right, of, strict=True)])
    occurs = np.asarray(of) > 0
    if average is None:
        return by_class
    if not occurs.any():
        return np.nan
    weights = np.asarray(support if average == "weighted" else np.ones(len(by_class)))[occurs]
    return ratio(fsum(by_class[occurs] * weights), fsum(weights))


def accuracy_multiclass(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    average: str | None = "micro",
    k: int = 1,
    ignored: int | None = None,
) -> Any:
    used = (w > 0) & (target != (-1 if ignored is None else ignored))
    w, preds, target = w[used], preds[used], target[used].astype(int)
    hit = (top_classes(preds, k) == target[:, None]).any(-1)
    if average == "micro":
        return ratio(fsum(w[hit]), fsum(w))
    right = [fsum(w[hit & (target == c)]) for c in range(CLASSES)]
    of = [fsum(w[target == c]) for c in range(CLASSES)]
    return averaged(right, of, of, average)


def accuracy_binary(
    w: np.ndarray,
    preds: np.ndarray,
    target: np.ndarray,
    *,
    average: str | None = "micro",
    threshold: float = 0.5,
) -> Any:
    w, hit, target = w[w > 0], ((preds > threshold) == (target == 1))[w > 0], target[w > 0]
    if average == "micro":
        return ratio(fsum(w[hit]), fsum(w))
    right = [fsum(w[hit & (target == c)]) for c in (0, 1)]
    of = [fsum(w[target == c]) for c in (0, 1)]
    return averaged(right, of, of, average)


def accuracy_multilabel(
    w: np.ndarray, preds: np.ndarray, target: np.ndarray, *, average: str | None = "micro"
) -> Any:
    hit = (preds > 0.5) == (target == 1)
    if average == "micro":
        return ratio(fsum(w[hit & (w > 0)]), fsum(w))
    right, of, support = (
        [fsum(w[mask[:, c], c]) for c in range(3)] for mask in (hit, w > 0, target == 1)
    )
    return averaged(right, of, support, average)


def sklearn_accuracy(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    chosen = top_classes(preds)[:, 0] if preds.ndim > 1 else preds
    used = w > 0
    if not used.any():
        return np.nan
    return sklearn.metrics.accuracy_score(target[used], chosen[used], sample_weight=w[used])


def sklearn_balanced(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    used = w > 0
    if not used.any():
        return np.nan
    chosen, target = top_classes(preds)[used, 0], target[used]
    return sklearn.metrics.recall_score(
        target, chosen, labels=np.unique(target), average="macro", sample_weight=w[used]
    )


def sklearn_top_2(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
    used = w > 0
    if not used.any() or len(np.unique(preds[used])) < preds[used].size:
        return None  # it breaks ties the other way
    return sklearn.metrics.top_k_accuracy_score(
        target[used], preds[used], k=2, labels=range(CLASSES), sample_weight=w[used]
    )


# Counts are exact; each ratio is rounded once, within a whisker of u, and the mean of C ratios
# adds a rounding for each weight, each sum, and the quotient: 2 C + 2 in all.
AVERAGE = 2 * CLASSES + 2

CLASSIFICATION = [
    Case(
        "accuracy_binary",
        metrics.Accuracy,
        BINARY,
        accuracy_binary,
        reference=lambda w, preds, target: sklearn_accuracy(w, preds > 0.5, target),
        exact=True,
    ),
    *(
        Case(
            f"accuracy_binary_{average}",
            metrics.Accuracy,
            BINARY,
            partial(accuracy_binary, average=average),
            {"average": average},
            ulps=AVERAGE,
            exact=True,
        )
        for average in ("macro", "weighted", None)
    ),
    Case(
        "accuracy_threshold",
        metrics.Accuracy,
        BINARY,
        partial(accuracy_binary, threshold=np.float32(0.3)),
        {"threshold": 0.3},
        exact=True,
    ),
    *(
        Case(
            f"accuracy_{inputs.id}_{average}",
            metrics.Accuracy,
            inputs,
            partial(accuracy_multiclass, average=average),
            {"num_classes": CLASSES, "average": average},
            reference={"micro": sklearn_accuracy, "macro": sklearn_balanced}.get(str(average)),
            ulps=AVERAGE if average in ("macro", "weighted") else 1,
            exact=True,
        )
        for inputs in (MULTICLASS, LABELS)
        for average in ("micro", "macro", "weighted", None)
    ),
    Case(
        "accuracy_top_2",
        metrics.Accuracy,
        MULTICLASS,
        partial(accuracy_multiclass, k=2),
        {"num_classes": CLASSES, "top_k": 2},
        reference=sklearn_top_2,
        exact=True,
    ),
    Case(
        "accuracy_top_2_macro",
        metrics.Accuracy,
        MULTICLASS,
        partial(accuracy_multiclass, k=2, average="macro"),
        {"num_classes": CLASSES, "top_k": 2, "average": "macro"},
        ulps=AVERAGE,
        exact=True,
    ),
    Case(
        "accuracy_ignore_index",
        metrics.Accuracy,
        LABELS,
        partial(accuracy_multiclass, ignored=2),
        {"num_classes": CLASSES, "ignore_index": 2},
        exact=True,
    ),
    *(
        Case(
            f"accuracy_multilabel_{average}",
            metrics.Accuracy,
            MULTILABEL,
            partial(accuracy_multilabel, average=average),
            {"num_labels": 3, "average": average},
            ulps=AVERAGE if average in ("macro", "weighted") else 1,
            exact=True,
        )
        for average in ("micro", "macro", "weighted", None)
    ),
]

# Curves: scores that have a bin each at 16 bits, so that areas are exact.


GRID = np.arange(65) / 64


def scores(
    rng: np.random.Generator, size: int, *, prevalence: float = 0.4, values: Any = GRID
) -> Arrays:
    return binary(rng, size, prevalence=prevalence, scores=values)


SCORES = Inputs(
    "scores",
    draw=scores,
    valid=BINARY.valid,
    spoil=BINARY.spoil,
    hard={
        "no positives": partial(scores, prevalence=0.0),
        "no negatives": partial(scores, prevalence=1.0),
        "ties": partial(scores, values=(0.25, 0.5)),
        "constant": partial(scores, values=(-3.0,)),
        "zeros of both signs": partial(scores, values=(-0.0, 0.0)),
        "saturated": partial(scores, values=(1 - 2.0**-24, 1 - 2.0**-23, 1.0)),
        "small": partial(scores, values=2.0 ** -np.arange(100, 120)),
        "logits": partial(scores, values=(-1e30, -1e4, -40.0, -1.0, 0.75, 1e30)),
    },
)


def auroc_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    (p, v), (n, u) = ((preds[(target == c) & (w > 0)], w[(target == c) & (w > 0)]) for c in (1, 0))
    won = (p[:, None] > n) + 0.5 * (p[:, None] == n)
    return ratio(fsum(v[:, None] * u * won), fsum(v) * fsum(u))


def average_precision_of(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> float:
    right = np.where(target == 1, w, 0.0)
    at_least = preds[:, None] <= preds  # those found at the threshold of each
    some = right > 0
    found, true = (at_least[some] * w).sum(1), (at_least[some] * right).sum(1)
    return ratio(fsum(right[some] * true / found), fsum(right))


def sklearn_of(score: Any) -> Any:
    def reference(w: np.ndarray, preds: np.ndarray, target: np.ndarray) -> Any:
        w, preds, target = w[w > 0], preds[w > 0], target[w > 0]
        return score(target, preds, sample_weight=w) if len(np.unique(target)) == 2 else None

    return reference


CURVES = [
    Case(
        "auroc",
        metrics.AUROC,
        SCORES,
        auroc_of,
        reference=sklearn_of(sklearn.metrics.roc_auc_score),
        exact=True,
    ),
    Case(
        "average_precision",
        metrics.AveragePrecision,
        SCORES,
        average_precision_of,
        reference=sklearn_of(sklearn.metrics.average_precision_score),
        ulps=4,  # the precision, its product, their sum and the quotient
        exact=True,
    ),
]

CASES = [*AGGREGATION, *CLASSIFICATION, *CURVES]


def grouped() -> dict[str, list[Case]]:
    """The cases by statistic, each group named after its first."""
    groups: dict[Any, list[Case]] = {}
    for case in CASES:
        groups.setdefault(case.group(), []).append(case)
    return {group[0].id: group for group in groups.values()}


GROUPS = grouped()
BUNDLES = {
    name: datarax.Collection({case.id: case.make() for case in group})
    for name, group in GROUPS.items()
}
"""The metrics of a group in one collection, which share one statistic."""
