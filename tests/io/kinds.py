"""Every kind of metric that is saved, with fresh data for each, and what it is to be the same."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum, Variance
from datarax.statistics import Buffer, Moments

Batch = dict[str, np.ndarray]


class Kind(NamedTuple):
    metric: datarax.Metric
    update: Callable[[Any, Batch], Any]


class Peak(datarax.Metric):
    peak = datarax.MetricAccumulator(-2.5, "max")

    def update(self, values):
        return self.replace(peak=self.peak.update(values))

    def compute(self):
        return self.peak.value


class Ratio(datarax.Metric):
    """Parts in a dict and a tuple, and configuration of every sort."""

    def __init__(self, of: Any = np.tanh, power: float = 0.1):
        self.of, self.power, self.names, self.nothing = of, power, ("a/b", "ä.b"), None
        self.parts = {"over": datarax.MetricAccumulator(0.0), "": datarax.MetricAccumulator(7)}
        self.extremes = (
            datarax.MetricAccumulator(np.zeros(3, np.int8), "min"),
            datarax.MetricAccumulator(np.zeros((0, 2))),
        )

    def update(self, values, rows):
        over, under = self.parts["over"], self.parts[""]
        least, none = self.extremes
        return self.replace(
            parts={"over": over.update(values), "": under.update(2**40 + 1).update(rows[:, 0])},
            extremes=(least.update(rows.astype(jnp.int8)), none),
        )

    def compute(self):
        return self.parts["over"].value / self.parts[""].value


class Shape(datarax.Metric):
    """Moments of rows, to the fourth."""

    def __init__(self):
        self.statistic = Moments((3,), order=4)

    def compute(self):
        return {"skewness": self.statistic.skewness, "kurtosis": self.statistic.kurtosis}


class Kept(datarax.Metric):
    """The first rows, in half precision, and how many did not fit."""

    def __init__(self, capacity: int = 48, dtype: str = "bfloat16"):
        self.statistic = Buffer(capacity, (3,), dtype)

    def compute(self):
        return {"rows": self.statistic.data, "overflow": self.statistic.overflow}


def several() -> datarax.Collection:
    """A sum, an extreme, moments, counts by class and a buffer, under names that need care."""
    inner = {
        "type": Sum().from_outputs(values="values"),
        "config": Kept().from_outputs(values="scores"),
    }
    return datarax.Collection(
        {
            "state": Mean().from_outputs(values="values"),
            "std (100 %) ä.b": Std().from_outputs(values="values"),
            "least": Min().from_outputs(values="values"),
            "accuracy": Accuracy(num_classes=3).from_outputs(preds="scores", target="labels"),
            "inner": datarax.Collection(inner),
        }
    )


def everything() -> datarax.Collection:
    """The same, with statistics that are shared, and moments to the fourth."""
    by_class = Accuracy(num_classes=3, average=None)
    return datarax.Collection(
        dict(several().items())
        | {
            "loss": Mean().from_outputs(values="values"),
            "variance": Variance(ddof=1).from_outputs(values="values"),
            "greatest": Max().from_outputs(values="values"),
            "by class": by_class.from_outputs(preds="scores", target="labels"),
            "shape": Shape().from_outputs(values="scores"),
        }
    )


def _of(*names: str) -> Callable[[Any, Batch], Any]:
    return lambda metric, batch: metric.update(
        *(batch[name] for name in names), weights=batch["weights"]
    )


KINDS = {
    "mean": Kind(Mean(), _of("values")),
    "sum": Kind(Sum(on_invalid="propagate"), _of("values")),
    "max": Kind(Max(), _of("values")),
    "min": Kind(Min(), _of("values")),
    "variance": Kind(Variance(ddof=0.5), _of("values")),
    "std": Kind(Std(), _of("values")),
    "binary": Kind(Accuracy(threshold=1000.0), lambda m, b: m.update(b["values"], b["flags"])),
    "multiclass": Kind(Accuracy(num_classes=3, top_k=2), _of("scores", "labels")),
    "multilabel": Kind(
        Accuracy(num_labels=3, average="macro", threshold=0.0),
        lambda m, b: m.update(b["scores"], b["rows"] > 0),
    ),
    "moments": Kind(Shape(), _of("scores")),
    "buffer": Kind(Kept(), _of("scores")),
    "peak": Kind(Peak(), lambda m, b: m.update(b["values"])),
    "ratio": Kind(Ratio(), lambda m, b: m.update(b["values"], b["rows"])),
    "collection": Kind(everything(), lambda m, b: m.update(**b)),
}


def random_batch(rng: np.random.Generator, rows: int) -> Batch:
    """Data of every shape and dtype; NaN and infinities among them."""
    values = rng.normal(1e3, 1, rows).astype(np.float32)
    values[rng.random(rows) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    return {
        "values": values,
        "scores": rng.normal(0, 1, (rows, 3)).astype(np.float32),
        "labels": rng.integers(-1, 4, rows, np.int32),
        "rows": rng.integers(-9, 9, (rows, 3), np.int32),
        "flags": rng.integers(0, 2, rows, np.int32),
        "weights": rng.random(rows).astype(np.float32),
    }


def assert_same_bits(got: Any, want: Any) -> None:
    """The same metric, configuration, shapes, dtypes and bits."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def assert_same_results(got: Any, want: Any, rtol: float = 0) -> None:
    """The same names and types; the same integers, and floats within `rtol`, or that of 1."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type(a) is type(b)
        if np.issubdtype(np.asarray(a).dtype, np.integer):
            np.testing.assert_array_equal(a, b, strict=isinstance(a, np.ndarray))
        else:
            np.testing.assert_allclose(
                np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=rtol
            )
