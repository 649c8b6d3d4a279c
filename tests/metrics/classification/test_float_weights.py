"""Metrics of counts under float weights of any kind, against rational numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from datarax import Collection, metrics
from datarax.testing import assert_within_ulps
from tests.helpers import bits, update

CLASSES = 3


def formulas(tp, fp, fn, tn):
    """The square of a root, with its sign, is given as `matthews`."""
    positives, negatives = tp + fn, tn + fp
    chance = (tp + fp) * negatives + (tn + fn) * positives
    return {
        "precision": (tp, tp + fp),
        "recall": (tp, positives),
        "specificity": (tn, negatives),
        "npv": (tn, tn + fn),
        "f1": (2 * tp, 2 * tp + fp + fn),
        "jaccard": (tp, tp + fp + fn),
        "informedness": (tp * tn - fp * fn, positives * negatives),
        "kappa": (2 * (tp * tn - fp * fn), chance),
        "positive": (tp * negatives, fp * positives),
        "negative": (fn * negatives, tn * positives),
    }


def members(**config):
    by_class = config | ({"average": None} if config else {})
    return {
        "precision": metrics.Precision(zero_division=math.nan, **by_class),
        "recall": metrics.Recall(zero_division=math.nan, **by_class),
        "specificity": metrics.Specificity(zero_division=math.nan, **by_class),
        "npv": metrics.NegativePredictiveValue(zero_division=math.nan, **by_class),
        "f1": metrics.F1(zero_division=math.nan, **by_class),
        "jaccard": metrics.JaccardIndex(zero_division=math.nan, **by_class),
        "informedness": metrics.InformednessYouden(zero_division=math.nan, **by_class),
        "ratios": metrics.LikelihoodRatios(**config),
        "kappa": metrics.CohenKappa(**config),
        "matthews": metrics.MatthewsCorrCoef(zero_division=math.nan, **config),
        "wrong": metrics.HammingDistance(**config),
        "accuracy": metrics.Accuracy(**config),
        "matrix": metrics.ConfusionMatrix(**config),
    }


def cells_of(chosen, actual, weights):
    masks = (chosen & actual, chosen & ~actual, ~chosen & actual, ~chosen & ~actual)
    return [
        sum((w for w, m in zip(weights, mask, strict=True) if m), Fraction(0)) for mask in masks
    ]


DATA = {
    "zeros, tenths": ([0, 0, 0], [0, 0, 0], [0.1, 0.2, 0.3]),
    "ones, tenths": ([1, 1, 1], [1, 1, 1], [0.1, 0.2, 0.3]),
    "far apart": ([0] * 594 + [1] * 406, [0] * 990 + [1] * 10, [1e-4] * 990 + [1.3] * 10),
}


def drawn(rng, kind):
    if kind in DATA:  # of one shape, with rows of weight zero
        return (np.pad(x, (0, 1000 - len(x))) for x in DATA[kind])
    preds, target = (rng.random(1000) < rng.random() for _ in range(2))
    tenths = rng.integers(1, 30, 1000) / 10
    # The counts' ratios stay within the range of float32.
    w = {"tenths": tenths, "thirds": tenths / 0.3, "any": 10 ** rng.uniform(-17, 17, 1000)}[kind]
    return preds, target, w


@pytest.mark.parametrize("kind", [*DATA, "tenths", "thirds", "any"])
def test_against_rational_numbers_alone_and_shared(rng, kind):
    preds, target, w = drawn(rng, kind)
    outputs = {
        "preds": preds.astype(np.int32),
        "target": target.astype(np.int32),
        "weights": w.astype(np.float32),
    }
    exact = [Fraction(x) for x in outputs["weights"].tolist()]
    preds, target = (np.asarray(outputs[name], bool) for name in ("preds", "target"))
    cells = {"binary": [cells_of(preds, target, exact)]}
    cells["classes"] = [cells_of(~preds, ~target, exact), *cells["binary"]]
    for task, config in (("binary", {}), ("classes", {"num_classes": 2})):
        shared = update(Collection(members(**config)), **outputs)
        values = shared.compute()
        values |= {k.removeprefix("ratios/"): v for k, v in values.items() if "/" in k}
        tp, fp, fn, tn = each = cells[task][-1]
        for c, each in enumerate(cells[task]):
            for name, (part, whole) in formulas(*each).items():
                want = float(part / whole) if whole else math.nan
                if name in ("positive", "negative") and not (each[0] + each[2]) * (
                    each[1] + each[3]
                ):
                    want = math.nan
                got = values[name][c] if np.ndim(values[name]) else values[name]
                # What cancels is a difference of products, each kept to 2**-45.
                atol = 2.0**-42 if name in ("informedness", "kappa") else 0.0
                assert_within_ulps(got, want, 1, atol=atol, name=f"{task} {name} {c}")
        square = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        cross = tp * tn - fp * fn
        want = math.copysign(math.sqrt(cross**2 / square), cross) if square else math.nan
        assert_within_ulps(values["matthews"], want, 3, atol=2.0**-40, name="matthews")
        for name, part in (("accuracy", tp + tn), ("wrong", fp + fn)):
            assert_within_ulps(values[name], float(part / sum(each)), 1, name=name)
        if kind in ("zeros, tenths", "any"):
            for name, metric in members(**config).items():
                alone = update(metric, **outputs)
                assert bits(shared[name].compute()) == bits(alone.compute()), name
