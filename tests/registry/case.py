"""What the registry holds of a metric: what it takes, what it should give, and how nearly.

Units in the last place are counted with u = 2**-24, one rounding of a float32, which is at most
half of such a unit; n is the size of a batch, and gamma(n) = n u / (1 - n u), see `sum_bound`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import numpy as np

import datarax
from datarax.metric.declared import shares_statistic
from datarax.metrics.language.text_metric import CountedText
from tests.registry.counted import counted, traceable

BATCH = 16
"""Examples in a batch. Every test uses this shape, so each program is compiled once."""

Arrays = dict[str, np.ndarray]
Draw = Callable[[np.random.Generator, int], Arrays]


@dataclass(frozen=True)
class Inputs:
    """What an `update` takes besides weights.

    Attributes:
        id: a name.
        draw: ordinary inputs, of so many examples.
        valid: which examples can be used; of the shape that weights are broadcast to.
        spoil: what to put into some examples, by argument, so that they cannot be used.
        hard: inputs that can be used and are easy to get wrong.
        least: the fewest examples of an update that has any.
        rows: whether the examples are rows, in any order. If not, an update is one step, and the
            laws of rows do not apply: draws are of one step, whatever the size.
    """

    id: str
    draw: Draw
    valid: Callable[..., np.ndarray]
    spoil: Mapping[str, tuple[float, ...]]
    hard: Mapping[str, Draw]
    least: int = 1
    rows: bool = True

    def draw_kind(self, kind: str, rng: np.random.Generator, size: int) -> Arrays:
        return {"plain": self.draw, **self.hard}[kind](rng, size)

    @property
    def kinds(self) -> list[str]:
        return ["plain", *self.hard]

    def spoilt(self, rng: np.random.Generator, arrays: Arrays, rows: np.ndarray) -> Arrays:
        """The inputs with one entry in each of these rows of each argument not to be used."""
        spoilt = {name: x.copy() for name, x in arrays.items()}
        for name, values in self.spoil.items():
            x = spoilt[name]
            for row in rows:
                entry = (row, *(rng.integers(0, n) for n in x.shape[1:]))
                x[entry] = np.asarray(rng.choice(values)).astype(x.dtype)
        return spoilt


def widened(batch: Mapping[str, np.ndarray]) -> Arrays:
    """Inputs as an oracle takes them, without weights: numbers in float64, strings as they are."""
    arrays = {name: np.asarray(x) for name, x in batch.items() if name != "weights"}
    return {n: x if x.dtype == np.object_ else x.astype(np.float64) for n, x in arrays.items()}


@dataclass(frozen=True)
class Case:
    """A metric, and what it should give.

    Attributes:
        id: a name, also that of the metric in the collection of its group.
        cls: the class.
        inputs: what it takes.
        oracle: the value, from the weights and the inputs.
        config: keyword arguments of the class.
        reference: scikit-learn's value; may be None where it has none.
        ulps: how many units in the last place it may be off; says why.
        atol: how far off it may be on given data, where the result may cancel.
        state_atol: how far apart two numbers of its state may be, where they may cancel.
        exact: its state holds whole numbers where weights are none or a mask, so that it is the
            same bit for bit however the examples are spread.
        empty: the value of no data; or, of outputs whose value is not NaN, by name.
        together: the name of a group of cases of one kind of inputs that are checked in one
            collection, though they share no statistic, so that one program updates them.
        laws: whether the laws are checked. Not of a metric that differs from one of which they are
            in the score of a row alone: the tests of its family compare it with the oracle.
        without_float64: how many times as far off it may be in a program without float64, of a
            metric that says that its formula is computed in float64 where devices have it.
        perfect: what perfect predictions give: the best value of the range; one that is no worse
            than that of other predictions; or any.
    """

    id: str
    cls: type[datarax.Metric]
    inputs: Inputs
    oracle: Callable[..., Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    ulps: float = 1
    atol: Callable[..., float] = lambda w, **inputs: 0.0
    state_atol: Callable[..., float] = lambda w, **inputs: 0.0
    exact: bool = False
    empty: Any = np.nan
    together: str = ""
    laws: bool = True
    without_float64: float = 1
    perfect: Literal["best", "no worse", "any"] = "best"

    def make(self, **config: Any) -> datarax.Metric:
        # A class within the configuration stands for a metric, whose dtypes depend on x64 now.
        given = {n: x() if isinstance(x, type) else x for n, x in self.config.items()}
        return self.cls(**{**given, **config})

    @property
    def host(self) -> bool:
        """Whether it takes strings, which are counted on the host."""
        return issubclass(self.cls, CountedText)

    def traceable(self, **config: Any) -> datarax.Metric:
        """The metric, or of strings that of what it counts: its `update` takes `arrays`."""
        return traceable(self.make(**config), self.id)

    def arrays(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A batch as the `update` of `traceable` takes it."""
        return counted(self.make(), self.id, batch)

    def on_tpus(self) -> "Case":
        """The case as the programs of TPUs may be off."""
        more = self.without_float64
        return replace(
            self, ulps=more * self.ulps, atol=lambda w, **inputs: more * self.atol(w, **inputs)
        )

    def group(self) -> tuple[Any, ...]:
        """Equal for cases that share a statistic, or are checked together."""
        if self.together:
            return self.inputs.id, self.together
        metric: Any = self.make()
        if shares_statistic(metric):
            return self.inputs.id, jax.tree.structure(metric.statistic)
        return (self.id,)
