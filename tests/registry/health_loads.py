"""Loads, activations and time: ExpertLoad, ActivationStats, StepTime, Throughput, ModelFLOPs."""

from functools import partial
from typing import Any

import numpy as np

from datarax import metrics
from tests.helpers import fsum, quantile, sum_bound
from tests.registry.aggregation import (
    MOMENTS,
    REALS,
    TINY,
    mean_error,
    std_error,
    sum_error,
    sum_of,
)
from tests.registry.case import BATCH, Arrays, Case, Inputs
from tests.registry.recent import timed

EXPERTS, LAYERS = 5, 3


def routed(
    rng: np.random.Generator, size: int, *, low: int = 0, high: int = EXPERTS, dtype: Any = np.int32
) -> Arrays:
    return {
        "experts": rng.integers(low, high, (size, 2)).astype(dtype),
        "dropped": rng.random((size, 2)) < 0.3,
    }


def known(experts: np.ndarray, count: int) -> np.ndarray:
    return (experts >= 0) & (experts < count)


ROUTED = Inputs(
    "routed",
    draw=routed,
    valid=lambda experts, dropped: known(experts, EXPERTS),
    spoil={"experts": (-1, EXPERTS, 2**31 - 1, -(2**31))},
    hard={
        "one expert": partial(routed, low=3, high=4),
        "the ends": partial(routed, low=EXPERTS - 1),
        "unsigned": partial(routed, dtype=np.uint8),
        "all dropped": lambda rng, size: routed(rng, size) | {"dropped": np.ones((size, 2), bool)},
    },
)


def layered(rng: np.random.Generator, size: int, *, layers: int = LAYERS) -> Arrays:
    return {
        "experts": rng.integers(0, EXPERTS, size).astype(np.int32),
        "layer": rng.integers(0, layers, size).astype(np.int32),
        "router_logits": rng.normal(0, 2, (size, EXPERTS)).astype(np.float32),
    }


LAYERED = Inputs(
    "layered",
    draw=layered,
    valid=lambda experts, layer, router_logits: known(experts, EXPERTS) & known(layer, LAYERS),
    spoil={},  # an example may be spoilt for one of two statistics: see the tests of ExpertLoad
    hard={"one layer": partial(layered, layers=1)},
)


def load(w: np.ndarray, experts: np.ndarray, dropped: np.ndarray) -> dict[str, Any]:
    """The load of one layer, from the definition, in float64."""
    counts = np.array([fsum(w[(w > 0) & (experts == e)]) for e in range(EXPERTS)])
    total = counts.sum()
    if not total:
        names = "max_share", "max_expert", "max_violation", "entropy", "balance", "dropped"
        return dict.fromkeys(names, np.nan) | {
            "share": np.full(EXPERTS, np.nan),
            "router_z_loss": np.nan,
        }
    share = counts / total
    used = share[share > 0]
    return {
        "share": share,
        "max_share": share.max(),
        "max_expert": float(share.argmax()),
        "max_violation": (counts.max() - counts.mean()) / counts.mean(),
        "entropy": -(used * np.log(used)).sum() + 0.0,
        "balance": 1 / (EXPERTS * (share**2).sum()),
        "dropped": fsum(w[(w > 0) & (dropped != 0)]) / total,
        "router_z_loss": np.nan,
    }


def load_by_layer(w: np.ndarray, experts: np.ndarray, layer: np.ndarray, router_logits: np.ndarray):
    each = []
    for i in range(LAYERS):
        mine = np.where(layer == i, w, 0)
        z = np.log(np.exp(router_logits).sum(-1))
        squares = fsum(mine * z**2) / fsum(mine) if fsum(mine) else np.nan
        each.append(load(mine, experts, np.zeros(experts.shape)) | {"router_z_loss": squares})
    found = {name: np.array([values[name] for values in each]) for name in each[0]}
    worst = found["max_violation"][~np.isnan(found["max_violation"])]
    for q in (0.5, 0.9, 1.0):
        at = np.quantile(worst, q, method="inverted_cdf") if worst.size else np.nan
        found[f"max_violation_p{100 * q:g}"] = at
    return found


# Of an entropy: a logarithm, a product and a sum of at most five terms, each below 1 / e.
ENTROPY = 8 * EXPERTS * 2.0**-24
QS = (0.1, 0.5, 1.0)
SATURATED = 2.5


def profile(w: np.ndarray, activations: np.ndarray) -> dict[str, Any]:
    x, w = activations[w > 0], w[w > 0]
    total = fsum(w)
    found = {f"p{100 * q:g}": quantile(x, w, q) for q in QS}
    if not total:
        names = ("mean", "std", "rms", "max_abs", "dead", "saturated")
        return dict.fromkeys(names, np.nan) | found
    mean = fsum(w * x) / total
    return found | {
        "mean": mean,
        "std": np.sqrt(fsum(w * (x - mean) ** 2) / total),
        "rms": np.sqrt(fsum(w * x**2) / total),
        "max_abs": np.abs(x).max(),
        "dead": fsum(w[np.abs(x) < TINY]) / total,
        "saturated": fsum(w[np.abs(x) >= SATURATED]) / total,
    }


def width(w: np.ndarray, activations: np.ndarray) -> float:
    # A bin has a relative width of 2**-5, and at least 2**-19 of the greatest magnitude.
    return 2.0**-5 * np.abs(activations[w > 0]).max(initial=0.0) + TINY


def moments(w: np.ndarray, activations: np.ndarray) -> dict[str, float]:
    return {name: x for name, x in profile(w, activations).items() if not name[1:].isdigit()}


def moments_error(w: np.ndarray, activations: np.ndarray) -> float:
    return 4 * max(mean_error(w, activations), std_error(w, activations))


def activations(draw: Any) -> Any:
    return lambda rng, size: {"activations": draw(rng, size)["values"]}


def rectified(rng: np.random.Generator, size: int) -> Arrays:
    return {"activations": np.maximum(rng.normal(0, 2, (size, 4)), 0).astype(np.float32)}


ACTIVATIONS = Inputs(
    "activations",
    draw=rectified,
    valid=lambda activations: np.isfinite(activations),
    spoil={"activations": (np.nan, np.inf, -np.inf)},
    hard={kind: activations(draw) for kind, draw in REALS.hard.items()},
)


def steps(rng: np.random.Generator, size: int, *, longest: float = 2.0) -> Arrays:
    seconds = rng.uniform(longest / 16, longest, size).astype(np.float32)
    return {"seconds": seconds, "waiting": (seconds * np.float32(0.25)).astype(np.float32)}


STEPS = Inputs(
    "steps",
    draw=steps,
    valid=lambda seconds, waiting: (
        np.isfinite(seconds) & (seconds >= 0) & (waiting >= 0) & (waiting <= seconds)
    ),
    spoil={"seconds": (np.nan, np.inf, -1.0), "waiting": (np.nan, np.inf, -1.0)},
    hard={
        "microseconds": partial(steps, longest=1e-6),
        "a day": partial(steps, longest=1e5),
        "no waiting": lambda rng, size: steps(rng, size) | {"waiting": np.zeros(size, np.float32)},
        "a spike": lambda rng, size: (
            steps(rng, size) | {"seconds": np.full(size, 3.2e7, np.float32)}
        ),
    },
)
STEP_QS = (0.5, 0.9, 0.99)


def step_time(w: np.ndarray, seconds: np.ndarray, waiting: np.ndarray) -> dict[str, Any]:
    total = fsum(w[w > 0])
    spent = fsum(w[w > 0] * seconds[w > 0])
    return {f"p{100 * q:g}": quantile(seconds, w, q) for q in STEP_QS} | {
        "max": seconds[w > 0].max() if total else np.nan,
        "mean": spent / total if total else np.nan,
        "waiting": fsum(w[w > 0] * waiting[w > 0]) / spent if spent else np.nan,
    }


def step_error(w: np.ndarray, seconds: np.ndarray, waiting: np.ndarray) -> float:
    # A bin of 12 bits has a relative width of 2**-8.
    return 2.0**-8 * seconds[w > 0].max(initial=0.0) + TINY


def throughput_inputs(rng: np.random.Generator, size: int, **how: Any) -> Arrays:
    drawn = timed(rng, size, **how)
    return {
        "tokens": drawn["values"],
        "examples": rng.integers(0, 9, size).astype(np.int32),
        "elapsed": drawn["elapsed"],
    }


def is_time(elapsed: np.ndarray) -> np.ndarray:
    return np.isfinite(elapsed) & (elapsed >= 0)


COUNTED = Inputs(
    "counted",
    draw=throughput_inputs,
    valid=lambda tokens, examples, elapsed: is_time(elapsed),
    spoil={},  # a time that cannot be used is counted for tokens and for examples: see the tests
    hard={"microseconds": partial(throughput_inputs, longest=1e-5)},
)


def throughput(w: np.ndarray, tokens: np.ndarray, examples: np.ndarray, elapsed: np.ndarray):
    longest = elapsed[w > 0].max(initial=0.0)
    return {
        "tokens_per_second": sum_of(w, tokens) / longest if longest else np.nan,
        "examples_per_second": sum_of(w, examples) / longest if longest else np.nan,
    }


def throughput_error(
    w: np.ndarray, tokens: np.ndarray, examples: np.ndarray, elapsed: np.ndarray
) -> float:
    return sum_error(w, tokens) / elapsed[w > 0].max(initial=TINY)


FLOPS, PEAK, DEVICES = 6e15, 9.89e14, 4


def flops_inputs(rng: np.random.Generator, size: int, **how: Any) -> Arrays:
    drawn = timed(rng, size, **how)
    return {"steps": rng.integers(1, 9, size).astype(np.int32), "elapsed": drawn["elapsed"]}


TIMED_STEPS = Inputs(
    "timed steps",
    draw=flops_inputs,
    valid=lambda steps, elapsed: is_time(elapsed),
    spoil={"elapsed": (np.nan, np.inf, -1.0)},
    hard={"microseconds": partial(flops_inputs, longest=1e-5)},
)


def model_flops(w: np.ndarray, steps: np.ndarray, elapsed: np.ndarray) -> dict[str, float]:
    longest = elapsed[w > 0].max(initial=0.0)
    speed = FLOPS * sum_of(w, steps) / longest if longest else np.nan
    return {"flops_per_second": speed, "utilization": speed / (DEVICES * PEAK)}


CASES = [
    Case(
        "expert_load",
        metrics.ExpertLoad,
        ROUTED,
        load,
        {"num_experts": EXPERTS},
        ulps=2,
        atol=lambda w, **inputs: ENTROPY,
        exact=True,
    ),
    Case(
        "expert_load_by_layer",
        metrics.ExpertLoad,
        LAYERED,
        load_by_layer,
        {"num_experts": EXPERTS, "num_layers": LAYERS},
        # The square of a logarithm of a sum of exponentials, near zero.
        ulps=2,
        atol=lambda w, experts, layer, router_logits: sum_bound(
            40, 1 + np.abs(router_logits).max(initial=0) ** 2
        ),
        state_atol=lambda w, experts, layer, router_logits: sum_bound(
            40, fsum(w) * (3 + np.abs(router_logits).max(initial=0)) ** 2
        ),
    ),
    Case(
        "activation_stats",
        metrics.ActivationStats,
        ACTIVATIONS,
        profile,
        {"quantiles": QS, "saturation": SATURATED},
        ulps=2,
        atol=width,
    ),
    Case(
        "activation_moments",  # without quantiles, whose tolerance would hide the others
        metrics.ActivationStats,
        ACTIVATIONS,
        moments,
        {"quantiles": (), "saturation": SATURATED},
        ulps=4 * MOMENTS,  # of up to four times as many values as there
        atol=moments_error,
    ),
    Case("step_time", metrics.StepTime, STEPS, step_time, ulps=2, atol=step_error),
    Case(
        "step_time_sums",
        metrics.StepTime,
        STEPS,
        lambda w, **inputs: {n: x for n, x in step_time(w, **inputs).items() if n[0] != "p"},
        {"quantiles": ()},
        # Two sums of products, none of them negative, and their quotient.
        ulps=2 * BATCH + 8,
    ),
    Case("throughput", metrics.Throughput, COUNTED, throughput, atol=throughput_error),
    Case(
        "model_flops",
        metrics.ModelFLOPs,
        TIMED_STEPS,
        model_flops,
        {"flops_per_step": FLOPS, "peak_flops_per_second": PEAK, "devices": DEVICES},
        ulps=2,
    ),
]
