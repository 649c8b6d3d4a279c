"""Classes of users with the names of the catalogue's are their own."""

import sys

import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.evaluation import columns, tasks
from datarax.metric.base import Metric

BIG = 2**40


class Last(Metric):
    """A metric of ids, or of the number of texts."""

    last = datarax.MetricAccumulator(0.0, "max")

    def update(self, preds):
        text = isinstance(preds, list)
        return self.replace(last=self.last.update(np.float32(len(preds) if text else max(preds))))

    def compute(self):
        return self.last.value


CATALOGUE = [name for name, x in vars(metrics).items() if isinstance(x, type)]


@pytest.mark.parametrize("name", ["Recall", "Accuracy", "Mean", "Sliced", "BLEU", "Anything"])
def test_own_classes_are_told_by_the_class(name, tmp_path, monkeypatch):
    own = type(name, (Last,), {"num_classes": 3, "__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], name, own, raising=False)  # where pickle looks
    np.savez(tmp_path / "ids.npz", preds=np.array([1, BIG]))
    np.savez(tmp_path / "texts.npz", preds=np.array(["a", "b"]))
    # Integers of 64 bits are no labels of a class that has another meaning.
    assert datarax.evaluate(tmp_path / "ids.npz", own(), progress=False).results() == BIG
    assert datarax.evaluate(tmp_path / "texts.npz", own(), progress=False).results() == 2


def test_no_name_of_the_catalogue_decides():
    assert CATALOGUE
    for name in CATALOGUE:
        for route in type(name, (Last,), {})().routes():
            assert not columns._takes_numbers(route)
            assert not columns._is_of_classes(route)
    for cls in (metrics.Recall, type("Own", (metrics.Recall,), {})):
        assert all(columns._is_of_classes(route) for route in cls().routes())
        assert all(columns._takes_numbers(route) for route in cls().routes())


def test_a_description_is_that_of_the_class(monkeypatch):
    for name in ("Mean", "Accuracy"):
        own = type(name, (Last,), {"__doc__": "Mine."})
        monkeypatch.setattr(sys.modules[__name__], name, own, raising=False)
        spec = tasks.Spec("own", f"{__name__}.{name}", (("top_k", 3),))
        assert tasks.described(spec, "regression") == "Mine."
