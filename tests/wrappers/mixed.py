"""Twenty metrics of every kind, and what each must give, from its definition in float64.

Values are multiples of 1/8 (see `tests.helpers.draw`), so sums and counts are exact in any order:
they are compared exactly, and a quotient to one unit in the last place. Spreads are compared to
`SPREAD` units, as their sums of squares have a few hundred terms, each rounded; the higher moments,
which cancel, relative to the power of the spread that they are in.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import datarax
from datarax.metrics import Accuracy, Max, Mean, Min, Std, Sum, Variance
from datarax.statistics import Moments
from tests.helpers import draw

CLASSES = 5
SPREAD = 64
RELATIVE = -1

Batch = dict[str, Any]


class Peak(datarax.Metric):
    """The greatest integer: an accumulator of one's own."""

    peak = datarax.MetricAccumulator(np.int32(-(2**31)), "max")

    def update(self, values, *, weights=None):
        return self.replace(peak=self.peak.update(values, where=kept(weights)))

    def compute(self):
        return self.peak.value


class Least(datarax.Metric):
    """The least row, elementwise."""

    least = datarax.MetricAccumulator(np.full(3, np.inf, np.float32), "min")

    def update(self, rows, *, weights=None):
        return self.replace(least=self.least.update(rows, where=kept(weights)))

    def compute(self):
        return self.least.value


class Histogram(datarax.Metric):
    """How many examples have each label: integers, a vector of them."""

    counts = datarax.MetricAccumulator(np.zeros(CLASSES, np.int32))

    def update(self, labels, *, weights=None):
        same = labels[:, None] == jnp.arange(CLASSES, dtype=labels.dtype)[None, :]
        return self.replace(counts=self.counts.update(same, where=kept(weights)))

    def compute(self):
        return jnp.asarray(self.counts.value)

    def compute_exact(self):
        return self.counts.value


class Confusion(datarax.Metric):
    """A matrix of counts, as floats."""

    counts = datarax.MetricAccumulator(np.zeros((CLASSES, CLASSES), np.float32))

    def update(self, scores, labels, *, weights=None):
        classes = jnp.arange(CLASSES, dtype=jnp.int32)
        chosen = jnp.argmax(scores, -1).astype(jnp.int32)
        pairs = (labels[:, None] == classes[None])[:, :, None] & (chosen[:, None] == classes[None])[
            :, None, :
        ]
        return self.replace(counts=self.counts.update(pairs, where=kept(weights)))

    def compute(self):
        return {"matrix": self.counts.value, "diagonal": jnp.diagonal(self.counts.value)}


class Ratio(datarax.Metric):
    """A quotient of two integer totals."""

    part = datarax.MetricAccumulator(0)
    whole = datarax.MetricAccumulator(0)

    def update(self, part, whole, *, weights=None):
        mask = kept(weights)
        return self.replace(
            part=self.part.update(part, where=mask), whole=self.whole.update(whole, where=mask)
        )

    def compute(self):
        return self.part.value / self.whole.value


class Shape(datarax.Metric):
    """Mean, variance, skewness and kurtosis, elementwise: a moments statistic."""

    def __init__(self):
        self.statistic = Moments(shape=(3,), order=4)

    def compute(self):
        s = self.statistic
        return {"mean": s.mean, "variance": s.variance(), "third": s.skewness, "fourth": s.kurtosis}


def kept(weights):
    """Weights as a mask, or none."""
    return None if weights is None else jnp.asarray(weights).astype(jnp.bool_)


def batch_of(rng: np.random.Generator, size: int) -> Batch:
    """The outputs of a step of `size` examples."""
    return {
        "loss": draw(rng, (size,)),
        "norm": draw(rng, (size, 2), "bfloat16"),
        "tokens": rng.integers(0, 2**24, size).astype(np.int32),
        "words": rng.integers(1, 1000, size).astype(np.int32),
        "rows": draw(rng, (size, 3)),
        "scores": rng.permuted(np.arange(size * CLASSES, dtype=np.float32)).reshape(size, CLASSES),
        "labels": rng.integers(0, CLASSES, size).astype(np.int32),
        "score": rng.random(size, np.float32),
        "hit": rng.integers(0, 2, size).astype(np.int32),
    }


def joined(*batches: Batch) -> Batch:
    """Several batches as one."""
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def of(values: str, metric: datarax.Metric) -> datarax.Metric:
    return metric.from_outputs(values=values)


def binary(threshold: float = 0.5) -> datarax.Metric:
    return Accuracy(threshold=threshold).from_outputs(preds="score", target="hit")


def multiclass(**config: Any) -> datarax.Metric:
    labels = Accuracy(num_classes=CLASSES, **config)
    return labels.from_outputs(preds="scores", target="labels")


def _sum(x: Any) -> Any:
    return np.asarray(x, np.float64).sum(0)


def _third(x: Any) -> Any:
    d = np.asarray(x, np.float64) - np.mean(x, 0, dtype=np.float64)
    return (d**3).mean(0) / (d**2).mean(0) ** 1.5


def _fourth(x: Any) -> Any:
    d = np.asarray(x, np.float64) - np.mean(x, 0, dtype=np.float64)
    return (d**4).mean(0) / (d**2).mean(0) ** 2 - 3


def _right(b: Batch) -> Any:
    return b["scores"].argmax(-1) == b["labels"]


def _recalls(b: Batch) -> Any:
    return [_right(b)[b["labels"] == c].mean() for c in range(CLASSES) if (b["labels"] == c).any()]


def _top2(b: Batch) -> Any:
    return (np.argsort(-b["scores"], -1)[:, :2] == b["labels"][:, None]).any(-1)


def _confusion(b: Batch) -> Any:
    matrix = np.zeros((CLASSES, CLASSES))
    np.add.at(matrix, (b["labels"], b["scores"].argmax(-1)), 1)
    return matrix


# Name: the metric, what it must give for all examples (all weights 0 or 1), and how many ulps off.
TWENTY: dict[str, tuple[datarax.Metric, Callable[[Batch], Any], int]] = {
    "loss": (of("loss", Mean()), lambda b: np.mean(b["loss"], dtype=np.float64), 1),
    "loss sum": (of("loss", Sum()), lambda b: _sum(b["loss"]), 0),
    "norm": (of("norm", Mean()), lambda b: np.mean(b["norm"].astype(np.float64)), 1),
    "norm max": (of("norm", Max()), lambda b: b["norm"].astype(np.float64).max(), 0),
    "norm min": (of("norm", Min()), lambda b: b["norm"].astype(np.float64).min(), 0),
    "loss max": (of("loss", Max()), lambda b: b["loss"].max(), 0),
    "spread": (of("loss", Std()), lambda b: np.std(b["loss"].astype(np.float64)), SPREAD),
    "variance": (
        of("loss", Variance(ddof=1)),
        lambda b: np.var(b["loss"].astype(np.float64), ddof=1),
        SPREAD,
    ),
    "tokens": (of("tokens", Sum()), lambda b: _sum(b["tokens"]), 0),
    "tokens mean": (of("tokens", Mean()), lambda b: np.mean(b["tokens"], dtype=np.float64), 1),
    "tokens peak": (of("tokens", Peak()), lambda b: b["tokens"].max(), 0),
    "least": (Least(), lambda b: b["rows"].min(0), 0),
    "labels": (Histogram(), lambda b: np.bincount(b["labels"], minlength=CLASSES), 0),
    "confusion": (
        Confusion(),
        lambda b: {"matrix": _confusion(b), "diagonal": np.diag(_confusion(b))},
        0,
    ),
    "a word": (
        Ratio().from_outputs(part="tokens", whole="words"),
        lambda b: _sum(b["tokens"]) / _sum(b["words"]),
        1,
    ),
    "shape": (
        Shape().from_outputs(values="rows"),
        lambda b: {
            "mean": np.mean(b["rows"], 0, dtype=np.float64),
            "variance": np.var(b["rows"].astype(np.float64), 0),
            "third": _third(b["rows"]),
            "fourth": _fourth(b["rows"]),
        },
        RELATIVE,
    ),
    "accuracy": (multiclass(), lambda b: _right(b).mean(), 1),
    "balanced": (multiclass(average="macro"), lambda b: np.mean(_recalls(b)), 4),
    "top 2": (multiclass(top_k=2), lambda b: _top2(b).mean(), 1),
    "hits": (binary(0.25), lambda b: ((b["score"] > 0.25) == b["hit"]).mean(), 1),
}
assert len(TWENTY) == 20


def twenty(*names: str) -> datarax.Collection:
    """A collection of the twenty, or of those named."""
    return datarax.Collection({name: TWENTY[name][0] for name in names or TWENTY})


def check(results: dict[str, Any], batch: Batch, *names: str) -> None:
    """That these are the results of the examples in `batch`, in the right dtypes."""
    expected: dict[str, tuple[Any, int]] = {}
    for name in names or TWENTY:
        _, oracle, ulps = TWENTY[name]
        want = oracle(batch)
        parts = want if isinstance(want, dict) else {"": want}
        expected |= {f"{name}/{key}".rstrip("/"): (part, ulps) for key, part in parts.items()}
    assert sorted(results) == sorted(expected)
    for name, (want, ulps) in expected.items():
        got = np.asarray(results[name])
        dtype = np.int32 if name == "tokens peak" else np.float32
        assert (got.shape, got.dtype) == (np.shape(want), dtype), name
        if ulps == RELATIVE:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
        elif ulps == 0:
            np.testing.assert_array_equal(got, np.asarray(want).astype(dtype), err_msg=name)
        else:
            np.testing.assert_array_max_ulp(got, np.asarray(want).astype(dtype), ulps)
