"""What the demo's numbers should be: NumPy and scikit-learn, in float64, on the predictions."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from sklearn import metrics as sklearn_metrics

TOLERANCE = 1e-5

REFERENCES = {
    "examples": "NumPy sum",
    "loss": "scikit-learn log_loss",
    "accuracy": "scikit-learn accuracy_score",
    "worst_loss": "NumPy max",
    "least_confidence": "NumPy min",
}


class Predictions(NamedTuple):
    """The model's answers to some examples, on the host.

    Attributes:
        logits: (N, C) float32, as the step computed them.
        labels: (N,) integers.
        mask: (N,) bool, false for the rows that only pad a batch.
    """

    logits: np.ndarray
    labels: np.ndarray
    mask: np.ndarray


def reference(predictions: Predictions) -> dict[str, float]:
    """Every number the demo reports for these examples; NaN where no row is real.

    Example:
        >>> import numpy as np
        >>> from datarax.cli._check import Predictions, reference
        >>> logits = np.log(np.array([[0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]))
        >>> mask = np.array([True, True, False])
        >>> out = reference(Predictions(logits, np.array([0, 1, 0]), mask))
        >>> print(out["examples"], round(out["loss"], 4), out["accuracy"])
        2 0.837 0.5
    """
    logits = predictions.logits[predictions.mask].astype(np.float64)
    labels = predictions.labels[predictions.mask]
    if not len(labels):
        return {"examples": 0} | {name: math.nan for name in REFERENCES if name != "examples"}
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    classes = np.arange(logits.shape[1])
    return {
        "examples": int(predictions.mask.sum()),
        "loss": float(sklearn_metrics.log_loss(labels, probs, labels=classes)),
        "accuracy": float(sklearn_metrics.accuracy_score(labels, logits.argmax(axis=1))),
        "worst_loss": float(np.max(-log_probs[np.arange(len(labels)), labels])),
        "least_confidence": float(np.min(probs.max(axis=1))),
    }


def differences(reported: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """The absolute difference of each number; infinite where only one of the two is NaN.

    Raises:
        ValueError: the two do not hold the same names: a number would go unchecked.

    Example:
        >>> from datarax.cli._check import differences
        >>> print(differences({"loss": 1.5}, {"loss": 1.25}))
        {'loss': 0.25}
    """
    if reported.keys() != expected.keys():
        raise ValueError(f"reported {sorted(reported)}, can check {sorted(expected)}")
    return {name: _difference(reported[name], expected[name]) for name in expected}


def _difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b)
    return math.inf if math.isnan(difference) else difference
