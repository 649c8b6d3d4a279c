"""Warnings: the line they point at, and what they say."""

import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import datarax
from datarax import InvalidValuesWarning
from datarax.io import Writer
from datarax.metrics import AUROC, BLEU, Accuracy, Mean, Perplexity
from datarax.training import StatefulMetric

LOGITS, LABELS = np.array([-3.0, 4.0]), np.array([0, 1])
OTHER_AXIS = np.float32([[[0.3, 0.9], [0.7, 0.1]]] * 4)  # probabilities along axis 1
STATEFUL = StatefulMetric(Accuracy())
STATEFUL.update(LOGITS, LABELS)


class Refusing(Writer):
    def put(self, step, items):
        raise OSError("no place")


def written():
    writer = Refusing()
    writer.write(1, 0.5)
    writer.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda: Accuracy().update(LOGITS, LABELS).results(),
        lambda: Accuracy().update(jnp.array(LOGITS), LABELS).compute(),
        lambda: AUROC(num_classes=2).update(LOGITS[None] * 2, LABELS[:1]).compute(),
        lambda: Perplexity().update(np.full((2, 4), 0.25), LABELS).results(),
        lambda: datarax.Collection({"a": Accuracy()}).update(preds=LOGITS, target=LABELS).results(),
        lambda: datarax.Sliced(Accuracy(), 2).update(LOGITS, LABELS, slices=LABELS).results(),
        lambda: datarax.Bootstrap(Accuracy(), 2).update(LOGITS, LABELS).compute(),
        lambda: STATEFUL.results(),
        lambda: Accuracy(num_classes=2).update(OTHER_AXIS, np.zeros((4, 2), int)),
        lambda: BLEU().update(["a", "b"], [["a", "b"], ["a", "b"]]),
        lambda: Mean().update(np.nan).results(),
        lambda: datarax.Collection({"a": Mean()}).update(values=np.nan).compute(),
        written,
    ],
)
def test_a_warning_points_at_the_line_of_the_caller(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert caught
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}


def test_two_lines_that_warn_of_the_same_both_warn():
    # The default filter shows a warning once for each line.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        STATEFUL.results()
        STATEFUL.results()
    assert len(caught) == 2


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_weights_that_cannot_be_used_are_named(weight):
    metric = Mean().update(np.array([1.0, np.nan, 2.0]), weights=np.array([1.0, 1.0, weight]))
    said = r"\(1 NaN, 1 with weights that are NaN, infinite or negative\)"
    with pytest.warns(InvalidValuesWarning, match=said):
        assert np.isnan(metric.results())
