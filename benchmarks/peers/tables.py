"""Times of contestants that take turns, and tables of them in Markdown."""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Call = Callable[[int], None]
"""Does something so many times, and waits until it is done."""


def runs() -> int:
    """How many runs the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=9)
    return parser.parse_args().runs


def interleaved(
    calls: Mapping[str, Call],
    runs: int,
    *,
    turn: float = 0.05,
    clock: Callable[[], Any] = time.perf_counter,
) -> dict[str, np.ndarray]:
    """The seconds for one time by `clock`, of each contestant in each run.

    In a run all contestants take turns, so that a slower phase of the machine affects all of them.
    A turn is as many times as take about `turn` seconds, at least one. The first is not counted.
    """
    times = {}
    for name, call in calls.items():
        call(1)
        start = time.perf_counter()
        call(1)
        times[name] = max(1, round(turn / (time.perf_counter() - start)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = clock()
            call(times[name])
            seconds[name].append((clock() - start) / times[name])
    return {name: np.array(each) for name, each in seconds.items()}


def spread(values: np.ndarray | Sequence[float], scale: float = 1) -> str:
    """The median, and the quartiles in parentheses, to three digits."""
    low, middle, high = (_digits(x * scale) for x in np.percentile(values, [25, 50, 75]))
    return f"{middle} ({low} to {high})"


def _digits(x: float) -> str:
    decimals = max(0, 2 - int(np.floor(np.log10(x)))) if x > 0 else 0
    return f"{x:,.{min(decimals, 6)}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table in Markdown; numbers are in columns from the second on."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    print()
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print()


def goal(text: str, values: np.ndarray, *, most: float | None = None, least: float = 0) -> None:
    """Prints a goal, the median of the ratios by run with the quartiles, and whether it is met."""
    middle = float(np.median(values))
    met = middle >= least if most is None else middle <= most
    print(f"- Goal: {text}. Measured: {spread(values)}, **{'met' if met else 'not met'}**.")


def machine() -> str:
    import jax

    with open("/proc/cpuinfo") as lines:  # noqa: PTH123
        model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
    return f"jax {jax.__version__}, {os.cpu_count()} cores{model and ', ' + model}"
