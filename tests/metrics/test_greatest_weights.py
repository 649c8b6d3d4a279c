"""Weights whose sums are among the greatest floats: the results are those of small weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.numerics.scaling import power_of_two_near_reciprocal
from tests.helpers import update, x64

ROWS, CLASSES = 16, 3


def test_a_power_that_scales_any_positive_float() -> None:
    for dtype in ("float32", "float64"):
        with x64(dtype == "float64"):
            info = np.finfo(dtype)
            x = np.asarray([info.max, 2.0 ** (info.maxexp - 1), 2.0 ** (info.maxexp - 2)], dtype)
            x = np.concatenate([x, [info.tiny, 1, 3, np.nextafter(np.asarray(1, dtype), 0)]])
            power = np.asarray(power_of_two_near_reciprocal(jnp.asarray(x, dtype)))
            assert (np.abs(np.frexp(power)[0]) == 0.5).all()  # powers of two
            scaled = x.astype(np.longdouble) * power
            assert ((scaled >= 0.5) & (scaled < np.where(x > info.max / 8, 4, 1))).all()


# By what they take: scores, classes, scores of classes.
BINARY = {
    "auroc": metrics.AUROC(exact=True, capacity=64),
    "binned auroc": metrics.AUROC(max_fpr=0.5),
    "average precision": metrics.AveragePrecision(exact=True, capacity=64),
    "gini": metrics.Gini(exact=True, capacity=64),
    "roc": metrics.ROC(exact=True, capacity=64),
    "ks": metrics.KolmogorovSmirnov(),
    "eer": metrics.EqualErrorRate(),
    "lift": metrics.LiftCurve(),
    "likelihood": metrics.LikelihoodRatios(),
    "calibration": metrics.CalibrationError(num_bins=4),
    "reliability": metrics.ReliabilityDiagram(num_bins=4),
    "brier": metrics.BrierScore(),
    "d2 log loss": metrics.D2LogLoss(),
    "d2 brier": metrics.D2Brier(),
}
LABELS = {
    name: cls(num_classes=CLASSES)
    for name, cls in {
        "accuracy": metrics.Accuracy,
        "f1": metrics.F1,
        "precision": metrics.Precision,
        "recall": metrics.Recall,
        "jaccard": metrics.JaccardIndex,
        "specificity": metrics.Specificity,
        "informedness": metrics.InformednessYouden,
        "matthews": metrics.MatthewsCorrCoef,
        "kappa": metrics.CohenKappa,
        "v measure": metrics.VMeasure,
        "cramer": metrics.CramersV,
        "theil": metrics.TheilsU,
    }.items()
}


@pytest.mark.parametrize("top", [125, 126, 127])
@pytest.mark.parametrize("kind", ["binary", "labels"])
def test_the_unit_of_weights_does_not_matter(top: int, kind: str, rng: np.random.Generator) -> None:
    if kind == "binary":
        # Scores of few bits, which are the edges of no bin.
        given = {"preds": np.float32(rng.integers(0, 64, ROWS) / 64 + 1 / 1024)}
        given["target"] = (np.arange(ROWS) % 2).astype(np.int32)
        members = BINARY
    else:
        given = {
            name: rng.permutation(np.arange(ROWS) % CLASSES).astype(np.int32)
            for name in ("preds", "target")
        }
        members = LABELS
    weights = np.float32(rng.integers(8, 16, ROWS))
    # The total is from 2**(top - 1) on, and below 2**top and the greatest float.
    unit = np.float32(2.0 ** (top - np.frexp(weights.sum())[1]))
    collection = datarax.Collection(members)
    want = update(collection, **given, weights=weights).compute()
    got = update(collection, **given, weights=weights * unit).compute()
    for name in want:
        jax.tree.map(
            lambda x, y, name=name: np.testing.assert_allclose(x, y, rtol=1e-6, err_msg=name),
            got[name],
            want[name],
        )
