"""The quality of predictions on devices: against scikit-learn, and a plain bootstrap in NumPy."""

import itertools
import math
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

from datarax import Bootstrap, Collection, Metric, Sliced, per_device
from datarax.cli import digits
from datarax.cli.demo import TOLERANCE
from datarax.metrics import AUROC, F1, Accuracy, CalibrationError, Recall, Sum
from tests.cli.quality import (
    REPLICAS,
    Predictions,
    interval_differences,
    quality_differences,
    quality_reference,
    random_predictions,
)
from tests.helpers import make_mesh, place

OF_SLICES = 500  # replicas of the accuracy of each slice: the host reads one by one
SLICES = {"digit": list("0123456789"), "ink": ["light", "medium", "heavy"]}


def test_quality_against_its_definition(rng):
    predictions = random_predictions(rng, 200)
    logits, labels = predictions.logits.astype(np.float64), predictions.labels
    found = quality_reference(predictions)
    chosen, confidence = logits.argmax(axis=1), softmax(logits, axis=1).max(axis=1)
    right = chosen == labels
    assert found["accuracy"] == pytest.approx(right.mean())
    assert found["recall"] == pytest.approx([right[labels == c].mean() for c in range(10)])
    edges = np.linspace(0, 1, 16)
    gaps = [
        abs((right[inside] - confidence[inside]).sum())
        for low, high in itertools.pairwise(edges)
        if (inside := (confidence > low) & (confidence <= high)).any()
    ]
    assert found["calibration_error"] == pytest.approx(sum(gaps) / 200)
    probs = softmax(logits, axis=1)
    above = [(probs[labels == c, c][:, None] > probs[labels != c, c]).mean() for c in range(10)]
    assert found["auroc"] == pytest.approx(np.mean(above))


def test_quality_that_is_wrong_is_noticed(rng):
    right = quality_reference(random_predictions(rng, 200))
    bounds = right["auroc"] - 1e-3, right["auroc"] + 1e-3
    assert max(quality_differences(right, bounds, right).values()) == 0
    for name, value in right.items():
        wrong = right | {name: np.add(value, np.eye(10)[3] * 0.1 if name == "recall" else 0.1)}
        assert quality_differences(wrong, bounds, right)[name] >= 0.099
    outside = quality_differences(right, (bounds[0], right["auroc"] + 0), right | {"auroc": 0.999})
    assert outside["auroc"] == pytest.approx(0.999 - right["auroc"])
    with pytest.raises(ValueError, match="can check"):
        quality_differences({"accuracy": 1.0}, bounds, right)


def poisson_intervals(rng: np.random.Generator, predictions: Predictions, ids: np.ndarray):
    """What a right program reports: of the accuracy, the macro F1 and the slices "a" and "b"."""
    labels, chosen = predictions.labels, predictions.logits.argmax(axis=1)
    counts = rng.poisson(1, (REPLICAS, len(labels)))
    # How often each replica has each pair of a label and a prediction, of three classes.
    pairs = np.eye(9)[3 * labels + chosen]
    confusion = (counts @ pairs).reshape(-1, 3, 3)
    right = np.diagonal(confusion, axis1=1, axis2=2)
    f1 = 2 * right / (confusion.sum(1) + confusion.sum(2))
    replicas = {
        "interval/accuracy": right.sum(1) / counts.sum(1),
        "interval/macro_f1": f1.mean(1),
    }
    for name, f in (("accuracy", accuracy_score), ("macro_f1", partial(f1_score, average="macro"))):
        some = [f(labels, chosen, sample_weight=w) for w in counts[:20]]
        np.testing.assert_allclose(replicas[f"interval/{name}"][:20], some)
    reported: dict[str, float] = {}
    for i, name in enumerate("ab"):
        inside = ids == i
        right = (labels == chosen)[inside]
        replicas[f"part/{name}"] = counts[:, inside] @ right / counts[:, inside].sum(1)
        reported |= {f"part/examples/{name}": len(right), f"part/value/{name}": right.mean()}
    for key, values in replicas.items():
        where, name = key.split("/")
        ends = np.quantile(values, [0.025, 0.975])
        reported |= dict(zip([f"{where}/lower/{name}", f"{where}/upper/{name}"], ends, strict=True))
    return reported


def test_intervals_against_plain_bootstraps(rng):
    rows = 300
    logits = rng.normal(0, 1, (rows, 3)) + 2 * np.eye(3)[np.arange(rows) % 3]
    predictions = Predictions(logits, np.arange(rows) % 3)
    ids = rng.integers(0, 2, rows)
    reported = poisson_intervals(rng, predictions, ids)

    def found(**wrong: float) -> dict[str, float]:
        return interval_differences(reported | wrong, predictions, {"part": ("ab", ids)})

    names = {"quality/accuracy/interval", "quality/macro_f1/interval"}
    names |= {"part/examples", "part/accuracy", "part/interval"}
    assert found().keys() == names
    assert max(found().values()) == 0
    for name, value in reported.items():
        for wrong in (value + 0.03, value - 0.03, math.nan):
            differing = {each for each, x in found(**{name: wrong}).items() if x > 1e-5}
            where, part, last = name.split("/")
            part = {"value": "accuracy", "examples": "examples"}.get(part, "interval")
            assert differing == {
                f"quality/{last}/interval" if where == "interval" else f"part/{part}"
            }
    none = interval_differences(reported, predictions, {})
    assert none.keys() == {name for name in names if name.startswith("quality")}


@pytest.fixture(scope="module")
def classified() -> tuple[Predictions, dict[str, np.ndarray]]:
    """Predictions of the test digits by a logistic regression, and the slices of each."""
    train, test = digits.load()
    model = LogisticRegression(C=0.02).fit(train.images, train.labels)
    logits = model.decision_function(test.images).astype(np.float32)
    ids = {"digit": test.labels, "ink": np.digitize(test.images.mean(axis=1), (0.287, 0.321))}
    return Predictions(logits, test.labels), ids


def make_quality() -> Metric:
    """Five metrics, which share three statistics; intervals; and slices with intervals."""
    accuracy = Accuracy(num_classes=10)
    headline = {"accuracy": accuracy, "macro_f1": F1(num_classes=10, average="macro")}
    metrics: dict[str, Metric] = headline | {
        "recall": Recall(num_classes=10, average=None),
        "auroc": AUROC(num_classes=10, from_logits=True),
        "calibration_error": CalibrationError(num_classes=10, from_logits=True),
        "interval": Bootstrap(Collection(headline), REPLICAS),
    }
    for by, sliced in by_slice(accuracy).items():
        metrics[by] = Bootstrap(sliced, OF_SLICES)
    for by, sliced in by_slice(Sum().from_outputs(values="present")).items():
        metrics[f"{by}/examples"] = sliced
    return Collection(metrics)


def by_slice(metric: Metric) -> dict[str, Metric]:
    by_digit = Sliced(metric, 10, by="digit").from_outputs(digit="target")
    return {"digit": by_digit, "ink": Sliced(metric, 3, names=SLICES["ink"], by="ink")}


def measured(predictions: Predictions, ids: dict[str, np.ndarray], devices: int) -> Any:
    """The results and the bounds of the AUROC, from batches on several devices."""
    mesh = make_mesh("auto", {"data": devices})
    update = jax.jit(lambda metric, **outputs: metric.update(**outputs))
    metric = per_device(make_quality(), mesh, "data")
    data = digits.Digits(predictions.logits, predictions.labels)
    for i, batch in enumerate(digits.batches(data)):
        # Where each example is in the data: then the intervals are the same on any mesh.
        placed, first = digits.place(batch, mesh), i * digits.BATCH_SIZE
        rows = len(placed.labels)
        ink = np.pad(ids["ink"][first : first + len(batch.labels)], (0, rows - len(batch.labels)))
        outputs = {"index": first + np.arange(rows), "ink": ink}
        outputs = place(outputs, mesh, jax.sharding.PartitionSpec("data"))
        outputs |= {"weights": placed.mask, "present": placed.mask}
        metric = update(metric, preds=placed.images, target=placed.labels, **outputs)
        jax.block_until_ready(metric)
    seen: Any = metric.sync()
    return seen.results(), tuple(float(bound) for bound in seen["auroc"].bounds())


@pytest.mark.filterwarnings("ignore:.*all replicas have the same value")
def test_quality_and_intervals_on_devices(classified):
    predictions, ids = classified
    results, bounds = measured(predictions, ids, devices=8)
    results = {name: np.asarray(x).tolist() for name, x in results.items()}
    expected = quality_reference(predictions)
    found = quality_differences({name: results[name] for name in expected}, bounds, expected)
    assert found.keys() == expected.keys()
    assert bounds[1] - bounds[0] < 0.01
    slices = {by: (names, ids[by]) for by, names in SLICES.items()}
    found |= interval_differences(results, predictions, slices, OF_SLICES)
    found |= interval_differences(results, predictions, {}, REPLICAS)
    assert max(found.values()) <= TOLERANCE, found
