"""The error of the mean of 1e8 values, which come in 10,000 batches of 10,000."""

from fractions import Fraction

import numpy as np

from benchmarks.peers.contestants import Contestant, contestants
from benchmarks.peers.tables import runs, table
from benchmarks.peers.task import Task

BATCHES, ROWS, DIFFERENT = 10_000, 10_000, 100


def main() -> None:
    runs()  # the errors do not vary
    rng = np.random.default_rng(0)
    values = {
        "all are 1/3": np.full((1, ROWS), 1 / 3, np.float32),
        "uniform on 0 to 1": rng.random((DIFFERENT, ROWS), np.float32),
        "uniform on 1000 to 1001": 1000 + rng.random((DIFFERENT, ROWS), np.float32),
    }
    rows = []
    for name, each in contestants(Task("", "loss")).items():
        errors = (abs(mean(each, batches) / exact_mean(batches) - 1) for batches in values.values())
        rows.append([name, *(f"{error:.0e}" for error in errors)])
    table(["relative error of the mean", *values], rows)


def mean(contestant: Contestant, batches: np.ndarray) -> float:
    """The mean of all batches, repeated in turn until there are `BATCHES`."""
    update, state = contestant.compile(contestant.update), contestant.empty()
    converted = [contestant.convert({"loss": x}) for x in batches]
    for turn in range(BATCHES):
        state = update(state, converted[turn % len(converted)])
    return float(contestant.read(state)["loss"])


def exact_mean(batches: np.ndarray) -> float:
    """Float32 values are integers times a power of two, whose sum is exact."""
    scale = 1 << 30
    integers = batches.astype(np.float64) * scale
    if (integers % 1).any():
        raise AssertionError("a value has more digits")
    total = sum(int(x) for x in integers.astype(np.int64).sum(1))
    return float(Fraction(total, scale * batches.size))


if __name__ == "__main__":
    main()
