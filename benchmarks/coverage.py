"""How often 95 % intervals cover the true value: `python benchmarks/coverage.py [DATA_SETS]`.

Each data set is simulated. For means of clusters, the naive interval, which takes rows as
independent, is printed too.
"""

import sys

import numpy as np

from datarax import Interval
from datarax.metrics import AUROC, Mean

ROWS_EACH = 10


def covers(interval: Interval, truth: float) -> bool:
    """True if an interval with data covers the true value."""
    results = interval.results()
    return bool(results["lower"] <= truth <= results["upper"])


def of_clusters(rng: np.random.Generator, clusters: int, shift: int) -> tuple[bool, bool]:
    """Whether the clustered and the naive interval of a mean of 0 cover it."""
    cluster = np.arange(clusters * ROWS_EACH) // ROWS_EACH
    values = (rng.normal(size=clusters)[cluster] + rng.normal(size=cluster.size)).astype(np.float32)
    clustered = Interval(Mean(), clusters=4096).update(values, cluster=cluster + shift)
    return covers(clustered, 0), covers(Interval(Mean()).update(values), 0)


def of_auroc(rng: np.random.Generator, rows: int) -> bool:
    """Whether the interval by DeLong covers the area of two normal distributions, 1 apart."""
    target = rng.integers(0, 2, rows).astype(np.int32)
    scores = (rng.normal(size=rows) + target).astype(np.float32)
    return covers(Interval(AUROC(bits=10)).update(scores, target), 0.7602499389)


def main() -> None:
    data_sets = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rng = np.random.default_rng(0)
    print(f"coverage of 95 % intervals over {data_sets} data sets")
    for name, shift in (("own cells", 0), ("hashed", 2**20)):
        for clusters in (20, 100):
            both = [of_clusters(rng, clusters, shift) for _ in range(data_sets)]
            clustered, naive = np.mean(both, 0)
            print(f"mean, {clusters:4} clusters, {name:>9}: {clustered:.1%}; naive {naive:.1%}")
    for rows in (50, 200, 1000):
        covered = np.mean([of_auroc(rng, rows) for _ in range(data_sets)])
        print(f"AUROC, {rows:4} rows: {covered:.1%}")


if __name__ == "__main__":
    main()
