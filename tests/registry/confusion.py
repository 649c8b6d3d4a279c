"""What is read from confusion matrices: ConfusionMatrix, weighted CohenKappa."""

from functools import partial

import numpy as np
import sklearn.metrics

from datarax import metrics
from tests.helpers import fsum
from tests.registry.case import Case
from tests.registry.classification import chosen_class, ratio, top_classes
from tests.registry.precision_recall import TASKS, Array, members, table_of
from tests.registry.predictions import BINARY, CLASSES, LABELS, MULTICLASS, MULTILABEL
from tests.registry.reference import Reference, at_half, several_in_either, sklearn_of


def matrix_of(w: Array, preds: Array, target: Array, *, task: str) -> Array:
    if task in ("binary", "multilabel"):
        tp, fp, fn, tn = table_of(w, preds, target, task=task)
        matrices = np.stack([tn, fp, fn, tp], -1).reshape(-1, 2, 2)
        return matrices if task == "multilabel" else matrices[0]
    chosen, actual = members(preds, target, task=task)
    both = actual[:, :, None] & chosen[:, None, :]
    return np.array([[fsum(w[both[:, i, j]]) for j in range(CLASSES)] for i in range(CLASSES)])


def normalized(matrix: Array, normalize: str | None) -> Array:
    if normalize is None:
        return matrix
    if matrix.ndim == 3:
        return np.array([normalized(each, normalize) for each in matrix])
    if not matrix.any():
        return np.full(matrix.shape, np.nan)
    shares = np.zeros(matrix.shape)
    for (i, j), cell in np.ndenumerate(matrix):
        of = {"true": matrix[i], "pred": matrix[:, j], "all": matrix}[normalize]
        shares[i, j] = cell / fsum(of) if of.any() else 0.0
    return shares


def confusion_of(
    w: Array, preds: Array, target: Array, *, task: str, normalize: str | None = None
) -> Array:
    return normalized(matrix_of(w, preds, target, task=task), normalize)


def sklearn_confusion(task: str, normalize: str | None) -> Reference | None:
    if task == "multilabel":
        score = sklearn.metrics.multilabel_confusion_matrix
        return None if normalize else sklearn_of(score, prepare=at_half)  # it does not normalize
    return sklearn_of(
        sklearn.metrics.confusion_matrix,
        prepare=partial(chosen_class, task=task),
        labels=range(2 if task == "binary" else CLASSES),
        normalize=normalize,
    )


def weighted_kappa(w: Array, preds: Array, target: Array, *, power: int) -> float:
    """One less the mean distance by that of predictions and targets dealt out at random."""
    used = w > 0
    w, target, chosen = w[used], target[used], top_classes(preds[used])[:, 0]
    apart = ratio(fsum(w * np.abs(target - chosen) ** power), fsum(w))
    pairs = np.abs(target[:, None] - chosen) ** power
    chance = ratio(fsum(w[:, None] * w * pairs), fsum(w) ** 2)
    return 1 - apart / chance if chance else np.nan


CASES = [
    *(
        Case(
            f"confusion_{inputs.id}" + (f"_{normalize}" if normalize else ""),
            metrics.ConfusionMatrix,
            inputs,
            partial(confusion_of, task=inputs.id, normalize=normalize),
            TASKS[inputs.id] | ({"normalize": normalize} if normalize else {}),
            reference=sklearn_confusion(inputs.id, normalize),
            ulps=1 if normalize else 0,
            exact=True,
            empty=np.nan if normalize else 0.0,
        )
        for inputs, normalize in (
            (BINARY, None),
            (BINARY, "true"),
            (MULTICLASS, None),
            (LABELS, None),
            (LABELS, "true"),
            (LABELS, "pred"),
            (LABELS, "all"),
            (MULTILABEL, None),
            (MULTILABEL, "pred"),
        )
    ),
    *(
        Case(
            f"kappa_{weights}",
            metrics.CohenKappa,
            LABELS,
            partial(weighted_kappa, power=power),
            {"num_classes": CLASSES, "weights": weights},
            # It warns of one class. It takes all of them, as distances are between their numbers:
            # those that occur would be renumbered.
            reference=sklearn_of(
                sklearn.metrics.cohen_kappa_score,
                prepare=chosen_class,
                defined=several_in_either,
                labels=range(CLASSES),
                weights=weights,
            ),
            # Products are kept to 2**-46 of n**2 times a distance of up to 16, of which what they
            # are divided by is at least 1/64; and they cancel.
            atol=lambda w, **inputs: 2.0**-34,
            exact=True,
        )
        for weights, power in (("linear", 1), ("quadratic", 2))
    ),
]
