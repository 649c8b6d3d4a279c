"""What scikit-learn and a plain bootstrap in NumPy say of the predictions of a classifier."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax
from sklearn import metrics as sklearn_metrics
from sklearn.calibration import calibration_curve

REPLICAS = 2000
CONFIDENCE = 0.95


class Predictions(NamedTuple):
    """Logits (N, C) and labels (N,) of some examples."""

    logits: np.ndarray
    labels: np.ndarray


def random_predictions(rng: np.random.Generator, rows: int = 50) -> Predictions:
    return Predictions(rng.normal(0, 4, (rows, 10)).astype(np.float32), rng.integers(0, 10, rows))


def difference(a: float, b: float) -> float:
    """The absolute difference of two numbers; 0 if both are NaN, infinite if only one is."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    found = abs(a - b)
    return math.inf if math.isnan(found) else found


def quality_reference(predictions: Predictions, num_bins: int = 15) -> dict[str, Any]:
    """What scikit-learn finds for predictions."""
    logits, labels = predictions.logits.astype(np.float64), predictions.labels
    probs, chosen = softmax(logits, axis=1), logits.argmax(axis=1)
    confidence, right = probs.max(axis=1), chosen == labels
    accuracies, means = calibration_curve(right, confidence, n_bins=num_bins)
    # As in `calibration_curve`, a bin excludes its lower edge and includes its upper edge.
    place = np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], confidence)
    share = np.bincount(place, minlength=num_bins) / len(labels)
    return {
        "accuracy": sklearn_metrics.accuracy_score(labels, chosen),
        "macro_f1": sklearn_metrics.f1_score(labels, chosen, average="macro"),
        "auroc": np.mean(
            [sklearn_metrics.roc_auc_score(labels == c, probs[:, c]) for c in range(probs.shape[1])]
        ),
        "calibration_error": float(np.sum(share[share > 0] * abs(accuracies - means))),
        "recall": sklearn_metrics.recall_score(labels, chosen, average=None),
    }


def quality_differences(
    reported: Mapping[str, Any], bounds: tuple[float, float], expected: Mapping[str, Any]
) -> dict[str, float]:
    """The largest absolute difference of each metric from its reference.

    The AUROC is an estimate with certain bounds: its difference is the distance of the reference
    from the bounds, and infinite if the estimate itself is outside of them.

    Raises:
        ValueError: the two have different names, so that some number would not be checked.
    """
    if reported.keys() != expected.keys():
        raise ValueError(f"reported {sorted(reported)}, but can check {sorted(expected)}")
    found = {
        name: max(map(difference, np.ravel(reported[name]), np.ravel(expected[name])))
        for name in expected
    }
    inside = bounds[0] <= reported["auroc"] <= bounds[1]
    outside = max(bounds[0] - expected["auroc"], expected["auroc"] - bounds[1], 0.0)
    return found | {"auroc": float(outside) if inside else math.inf}


@cache
def plain_draws(examples: int, replicas: int = 20_000) -> np.ndarray:
    """How often each replica of a plain bootstrap has each example: (replicas, examples) float32.

    Each replica has as many examples as the data set, drawn with replacement.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, examples, (replicas, examples))
    return np.stack([np.bincount(x, minlength=examples) for x in drawn]).astype(np.float32)


def interval_differences(
    reported: Mapping[str, Any],
    predictions: Predictions,
    slices: Mapping[str, tuple[Sequence[str], np.ndarray]],
    replicas: int = REPLICAS,
) -> dict[str, float]:
    """How far intervals are outside of what a plain bootstrap of the same predictions explains.

    For each slicing in `slices`, which has the names of its slices and the slice of each example,
    it also has the largest differences of the numbers of examples and of the accuracies. The
    intervals are of a bootstrap with so many `replicas`.
    """
    labels, chosen = predictions.labels, predictions.logits.argmax(axis=1)
    drawn, right = plain_draws(len(labels)), chosen == labels

    def ends(where: str, name: str, values: np.ndarray, examples: int) -> float:
        lower, upper = (reported[f"{where}/{end}/{name}"] for end in ("lower", "upper"))
        if np.isnan([lower, upper]).all():  # all replicas are equal: was that likely?
            most = np.unique(values, return_counts=True)[1].max() / len(values)
            return 0.0 if most**replicas > 1e-6 else np.inf
        return max(
            outside(lower, values, (1 - CONFIDENCE) / 2, examples, replicas),
            outside(upper, values, (1 + CONFIDENCE) / 2, examples, replicas),
        )

    accuracy, f1 = drawn @ right / len(labels), _macro_f1(drawn, predictions)
    found = {
        "quality/accuracy/interval": ends("interval", "accuracy", accuracy, len(labels)),
        "quality/macro_f1/interval": ends("interval", "macro_f1", f1, len(labels)),
    }
    for by, (names, ids) in slices.items():
        worst = {"examples": 0.0, "accuracy": 0.0, "interval": 0.0}
        for i, name in enumerate(names):
            inside = ids == i
            examples = int(inside.sum())
            accuracy = sklearn_metrics.accuracy_score(labels[inside], chosen[inside])
            values = drawn @ (right & inside) / (drawn @ inside)
            new = {
                "examples": difference(reported[f"{by}/examples/{name}"], examples),
                "accuracy": difference(reported[f"{by}/value/{name}"], float(accuracy)),
                "interval": ends(by, name, values, examples),
            }
            worst = {part: max(worst[part], new[part]) for part in worst}
        found |= {f"{by}/{part}": difference for part, difference in worst.items()}
    return found


def outside(
    end: float, values: np.ndarray, share: float, examples: int, replicas: int = REPLICAS
) -> float:
    """How far the end of an interval is outside of what chance explains; infinite for NaN.

    The end is a quantile of `replicas` values, so the share of all possible values below it is
    known up to a standard error. 5 of them are allowed, as the interval of Wilson for the share.

    Args:
        end: the lower or the upper end.
        values: many values of a plain bootstrap, which stand for all possible values.
        share: the share of the values below the end that defines it, 0.025 or 0.975.
        examples: how many there are. Half of one is allowed too, because a plain bootstrap has
            values in steps of one example, and the Poisson bootstrap also between them.
        replicas: how many values the end is a quantile of.
    """
    square = 5.0**2 / replicas
    width = math.sqrt(square * share * (1 - share) + square**2 / 4)
    shares = [(share + square / 2 + side * width) / (1 + square) for side in (-1, 1)]
    least, greatest = np.quantile(values, shares) + np.array([-0.5, 0.5]) / examples
    return math.inf if math.isnan(end) else float(max(least - end, end - greatest, 0.0))


def _macro_f1(drawn: np.ndarray, predictions: Predictions) -> np.ndarray:
    one_hot = np.eye(predictions.logits.shape[1], dtype=np.float32)
    target, predicted = one_hot[predictions.labels], one_hot[predictions.logits.argmax(axis=1)]
    both = drawn @ (target * predicted)
    return np.mean(2 * both / (drawn @ target + drawn @ predicted), axis=1)
