"""Reading the windows of a collector in the loop of the demo, and measuring what that costs."""

import time
from collections.abc import Callable
from typing import Any

from datarax import AsyncMetricCollector


class Windows:
    """Schedules one window of metrics for each epoch, and reads finished windows after each step.

    Args:
        collector: the bound collector of a `StatefulMetric`.
        arrived: is called with the epoch and the results of each window, in order.
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
        """Counts a step, and reads the finished windows without waiting."""
        self._steps += 1
        start = time.perf_counter()
        found = self._collector.ready()
        self._collecting += time.perf_counter() - start
        self._report(found)

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
        """Reads the last windows, after the collector has been unbound."""
        self._report(self._collector.ready())

    def cost(self) -> str:
        """A sentence: after how many steps results arrived, and how much time the loop spent."""
        total = time.perf_counter() - self._start
        return (
            f"Training metrics arrived {_range(self._lags)} after they were scheduled. Of "
            f"{total:.2f} s the loop spent {self._collecting:.3f} s on scheduling and reading "
            f"{len(self._lags)} windows, and {self._compiling:.2f} s on compiling for that."
        )

    def _report(self, found: list[tuple[int, dict[str, Any]]]) -> None:
        for epoch, results in found:
            self._lags.append(self._steps - self._scheduled[epoch])
            self._arrived(epoch, results)


def _range(steps: list[int]) -> str:
    least, most = min(steps), max(steps)
    return f"{least} to {most} steps" if least < most else f"{most} step{'s' * (most != 1)}"
