"""`Entry`: a metric, and how to draw the batches of its updates, whatever they hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import datarax
from tests.registry.case import BATCH

Array = np.ndarray[Any, Any]
Batch = dict[str, Any]

# Sums of them are exact, and they are no mask.
WEIGHTS = np.float32([0.0, 0.5, 1.0, 3.0])


def weighted(batch: Batch, weights: Array) -> Batch:
    """The batch with these weights of its rows."""
    return {**batch, "weights": weights}


@dataclass(frozen=True)
class Entry:
    """A metric of the catalogue or of a wrapper, and the batches that it takes.

    Attributes:
        name: that of the case, or of the wrapper.
        metric: makes the metric, without data.
        draw: the keyword arguments of one `update`, without weights: of so many rows.
        weigh: adds weights of the rows to them; None if `update` takes none.
        rows: whether all arrays share a leading axis of examples, which can be sharded. If not,
            an update is one step: trees of parameters, or the loss of the step.
        host: whether the arguments are lists of strings, which are counted on the host: such an
            update cannot be traced. That of the entry in `tests.registry.entries.COUNTED` can.
    """

    name: str
    metric: Callable[[], datarax.Metric]
    draw: Callable[[np.random.Generator, int], Batch]
    weigh: Callable[[Batch, Array], Batch] | None = weighted
    rows: bool = True
    host: bool = False

    def batches(
        self, rng: np.random.Generator, count: int, *, weights: bool = True, size: int = BATCH
    ) -> list[Batch]:
        """The keyword arguments of so many updates, of equal shapes and dtypes.

        Args:
            rng: the source of the data.
            count: how many batches.
            weights: whether batches hold weights, where `update` takes any; the first row counts.
            size: the rows of each batch; the default is divisible by 8. No meaning without rows.
        """
        drawn = [self.draw(rng, size) for _ in range(count)]
        if self.weigh is None or not weights:
            return drawn
        given = rng.choice(WEIGHTS, (count, size))
        given[:, :1] = 1
        return [self.weigh(batch, w) for batch, w in zip(drawn, given, strict=True)]
