"""The collector beside the demo's loop: what it brings, and what it costs the loop."""

import time
from collections.abc import Callable
from typing import Any

from datarax import AsyncMetricCollector


class Windows:
    """One window of metrics an epoch; reads the results that are ready after each step.

    Args:
        collector: of a `StatefulMetric`, bound.
        arrived: called with the epoch and the results of each window, in order.
    """

    def __init__(
        self, collector: AsyncMetricCollector, arrived: Callable[[int, dict[str, Any]], None]
    ):
        self._collector, self._arrived = collector, arrived
        self._start = time.perf_counter()
        self._steps = 0
        self._scheduled: dict[int, int] = {}
        self._lags: list[int] = []
        self._compiling = self._collecting = 0.0

    def after_step(self) -> None:
        """Counts a step, and looks for results without waiting."""
        self._steps += 1
        start = time.perf_counter()
        found = self._collector.ready()
        self._collecting += time.perf_counter() - start
        self._give(found)

    def schedule(self, epoch: int) -> None:
        """Ends the window of this epoch."""
        start = time.perf_counter()
        self._collector.schedule_collection(step=epoch)
        seconds = time.perf_counter() - start
        if self._scheduled:
            self._collecting += seconds
        else:
            self._compiling = seconds
        self._scheduled[epoch] = self._steps

    def finish(self) -> None:
        """Gives what was left when the collector was drained."""
        self._give(self._collector.ready())

    def cost(self) -> str:
        """After how many steps results came, and how long the loop was kept for them."""
        total = time.perf_counter() - self._start
        return (
            f"Training metrics came {_range(self._lags)} after they were scheduled. Of "
            f"{total:.2f} s the loop spent {self._collecting:.3f} s on scheduling and reading "
            f"{len(self._lags)} windows, and {self._compiling:.2f} s on compiling that."
        )

    def _give(self, found: list[tuple[int, dict[str, Any]]]) -> None:
        for epoch, results in found:
            self._lags.append(self._steps - self._scheduled[epoch])
            self._arrived(epoch, results)


def _range(steps: list[int]) -> str:
    least, most = min(steps), max(steps)
    return f"{least} to {most} steps" if least < most else f"{most} step{'s' * (most != 1)}"
