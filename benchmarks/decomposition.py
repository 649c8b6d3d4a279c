"""The time and the memory of a decomposed Brier score: `python benchmarks/decomposition.py`.

`ScoreDecomposition` folds batches of 1,000,000 forecasts on the host, and is read. scikit-learn
fits `IsotonicRegression` to all forecasts in memory, up to the most that it is given. Each runs in
a process of its own, and its memory is the peak of the process less what it had before. Times are
those of a shared machine.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np

SIZES, BATCH, MOST_IN_MEMORY = (10**4, 10**6, 10**7, 10**8), 10**6, 10**7


def batches(size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Forecasts that are too confident, and targets."""
    rng = np.random.default_rng(0)
    for start in range(0, size, BATCH):
        z = rng.normal(0, 1.5, min(BATCH, size - start))
        forecasts = 1 / (1 + np.exp(-1.5 * z))
        yield forecasts.astype(np.float32), rng.random(len(z)) < 1 / (1 + np.exp(-z))


def by_datarax(size: int) -> tuple[float, float, float]:
    from datarax.metrics import ScoreDecomposition

    metric, taken = ScoreDecomposition(), 0.0
    metric.update(*next(batches(100))).results()  # what is done once
    before = peak()
    for batch in batches(size):
        start = time.perf_counter()
        metric = metric.update(*batch)
        taken += time.perf_counter() - start
    start = time.perf_counter()
    found = metric.results()["miscalibration"]
    return found, taken + time.perf_counter() - start, peak() - before


def by_scikit_learn(size: int) -> tuple[float, float, float]:
    from sklearn.isotonic import IsotonicRegression

    def decomposed(preds: np.ndarray, target: np.ndarray) -> float:
        fit = IsotonicRegression().fit_transform(preds, target)
        return float(np.mean((preds - target) ** 2) - np.mean((fit - target) ** 2))

    decomposed(*next(batches(100)))
    before = peak()
    preds, target = (np.concatenate(x) for x in zip(*batches(size), strict=True))
    start = time.perf_counter()
    found = decomposed(preds.astype(np.float64), target.astype(np.float64))
    return found, time.perf_counter() - start, peak() - before


def peak() -> float:
    """The most memory that the process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


WAYS = {"datarax": by_datarax, "scikit-learn": by_scikit_learn}


def main() -> None:
    if len(sys.argv) > 1:
        print(*WAYS[sys.argv[1]](int(sys.argv[2])))
        return
    print(f"{'forecasts':>11}  {'':14}{'seconds':>9}{'MiB':>8}{'miscalibration':>17}")
    for size in SIZES:
        for way in WAYS:
            if way == "scikit-learn" and size > MOST_IN_MEMORY:
                continue
            command = [sys.executable, __file__, way, str(size)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found, taken, memory = map(float, done.stdout.split())
            print(f"{size:11,}  {way:14}{taken:9.3f}{memory:8.0f}{found:17.8f}")


if __name__ == "__main__":
    main()
