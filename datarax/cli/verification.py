"""The reference values of the demo: computed from its predictions by NumPy and scikit-learn."""

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
    """The predictions of the model for some examples, on the host.

    Attributes:
        logits: (N, C) float32, as the step computed them.
        labels: (N,) integers.
        mask: (N,) bool, false for padding rows.
    """

    logits: np.ndarray
    labels: np.ndarray
    mask: np.ndarray


def reference(predictions: Predictions) -> dict[str, float]:
    """The reference of every number that the demo reports for these examples, in float64.

    If there is no real row, all of them are NaN except the number of examples.

    Example:
        >>> import numpy as np
        >>> from datarax.cli.verification import Predictions, reference
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
    probs, classes = np.exp(log_probs), np.arange(logits.shape[1])
    return {
        "examples": len(labels),
        "loss": float(sklearn_metrics.log_loss(labels, probs, labels=classes)),
        "accuracy": float(sklearn_metrics.accuracy_score(labels, logits.argmax(axis=1))),
        "worst_loss": float(np.max(-log_probs[np.arange(len(labels)), labels])),
        "least_confidence": float(np.min(probs.max(axis=1))),
    }


def differences(reported: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """The absolute difference of each number from its reference; infinite if only one is NaN.

    Raises:
        ValueError: the two have different names, so that some number would not be checked.

    Example:
        >>> from datarax.cli.verification import differences
        >>> print(differences({"loss": 1.5}, {"loss": 1.25}))
        {'loss': 0.25}
    """
    if reported.keys() != expected.keys():
        raise ValueError(f"reported {sorted(reported)}, but can check {sorted(expected)}")
    return {name: difference(reported[name], expected[name]) for name in expected}


def difference(a: float, b: float) -> float:
    """The absolute difference of two numbers; 0 if both are NaN, infinite if only one is."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    found = abs(a - b)
    return math.inf if math.isnan(found) else found
