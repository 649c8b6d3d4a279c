"""How often slices that are like all others have a low p-value: `python benchmarks/slice_tests.py`.

Each data set has 3,000 rows in ten slices of 45 to 900 rows, drawn without regard to the rows. The
family-wise error is the share of data sets in which any slice has an adjusted p-value below 0.05.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np

from datarax import Interval, Metric
from datarax.evaluation.encoding import Configuration
from datarax.evaluation.slice_tests import with_p_values
from datarax.metrics import (
    AUROC,
    F1,
    Accuracy,
    AveragePrecision,
    LogLoss,
    MatthewsCorrCoef,
    Median,
    Precision,
)

ROWS, CHUNK = 3000, 20
SHARES = (0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.03, 0.025, 0.015)
METRICS: dict[str, Metric] = {
    "accuracy": Accuracy(),
    "precision": Precision(),
    "f1": F1(),
    "matthews_corr_coef": MatthewsCorrCoef(),
    "log_loss": LogLoss(),
    "auroc": AUROC(bits=10),
    "average_precision": AveragePrecision(bits=10),
    "median": Median(bits=10).from_outputs(values="preds"),
}


def error(name: str, data_sets: int) -> float:
    """The family-wise error of a metric."""
    interval = Interval(METRICS[name])
    config = Configuration(task="binary")

    def update(preds: Any, target: Any, weights: Any) -> Any:
        named = {"values": preds} if name == "median" else {"preds": preds, "target": target}
        return interval.update(**named, weights=weights).compute()

    def of_set(preds: Any, target: Any, ids: Any) -> Any:
        every = update(preds, target, None)
        return every, jax.vmap(lambda i: update(preds, target, ids == i))(jnp.arange(len(SHARES)))

    run, rng, low = jax.jit(jax.vmap(of_set)), np.random.default_rng(0), 0
    for _ in range(data_sets // CHUNK):
        target = rng.random((CHUNK, ROWS)) < 0.3
        preds = 1 / (1 + np.exp(1.2 - 1.5 * target - rng.normal(size=target.shape)))
        ids = rng.choice(len(SHARES), p=SHARES, size=target.shape).astype(np.int32)
        found = jax.device_get(run(preds.astype(np.float32), target, ids))
        for i in range(CHUNK):
            every, each = jax.tree.map(lambda x, i=i: x[i], found)
            how = {"method": interval.method}
            rows = [
                {
                    "examples": int((ids[i] == k).sum()),
                    "values": {name: {key: float(x[k]) for key, x in each.items()} | how},
                }
                for k in range(len(SHARES))
            ]
            whole = [{"name": name} | {key: float(x) for key, x in every.items()}]
            with_p_values([{"rows": rows}], whole, ROWS, config)
            low += any(row["values"][name]["p_adjusted"] < 0.05 for row in rows)
    return low / (data_sets // CHUNK * CHUNK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="METRIC")
    parser.add_argument("--data-sets", type=int, default=2000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # slices without a standard error
    print("| metric | family-wise error |\n| --- | --- |")
    for name in args.names or METRICS:
        print(f"| `{name}` | {100 * error(name, args.data_sets):.1f} % |", flush=True)


if __name__ == "__main__":
    main()
