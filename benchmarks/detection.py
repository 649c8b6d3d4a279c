"""The time of mean average precision, beside pycocotools: `python -m benchmarks.detection`.

The detections are true boxes that are moved, or other boxes. The time of pycocotools includes that
of making its dictionaries.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

from datarax.metrics import MeanAveragePrecision
from tests import coco


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = jax.block_until_ready(function())
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description="Time detection beside pycocotools.")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=100)
    parser.add_argument("--boxes", type=int, default=20)
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--batch", type=int, default=50, help="images in an update")
    given = parser.parse_args()
    shape = given.images, given.detections, given.boxes, given.classes
    images = coco.drawn(np.random.default_rng(0), *shape)
    batches = [
        {name: x[i : i + given.batch] for name, x in images.items()}
        for i in range(0, given.images, given.batch)
    ]
    empty = MeanAveragePrecision(
        num_classes=given.classes, capacity=given.images * given.detections
    )

    def fold() -> Any:
        metric = empty
        for batch in batches:
            metric = metric.update(**batch)
        return metric

    first_update, metric = seconds(fold)
    update, metric = seconds(fold)
    first_compute, _ = seconds(metric.compute)
    compute, value = seconds(metric.compute)
    whole, want = seconds(lambda: coco.summary(images, given.classes))
    print(f"{'':24}{'first':>10}{'again':>10}  seconds")
    print(f"{'update':24}{first_update:10.2f}{update:10.2f}")
    print(f"{'compute':24}{first_compute:10.2f}{compute:10.2f}")
    print(f"{'pycocotools':24}{whole:10.2f}")
    worst = np.nanmax([abs(float(value[name]) - want[name]) for name in want])
    print(f"greatest difference {worst:.1e}")


if __name__ == "__main__":
    main()
