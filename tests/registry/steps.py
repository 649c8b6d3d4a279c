"""Metrics whose update is one step and not rows: `TreeHealth` takes trees, `LossSpikes` the loss.

The laws of rows do not apply to them; tests/metrics/health checks those that they obey. An oracle
takes all steps, stacked along a leading axis.
"""

import math
from itertools import count
from typing import Any

import jax
import numpy as np

from datarax import metrics
from tests.metrics.health.trees import expected
from tests.registry.case import Arrays, Case, Inputs

FENCE, KEPT, LEAST = 1.5, 12, 5
PARAMS = {"dense": {"bias": (3,), "kernel": (4, 3)}, "head": (5,)}

# Steps come in order, and none twice.
_steps = count()


def next_step() -> np.ndarray:
    return np.array(next(_steps), np.int32)


def losses(rng: np.random.Generator, size: int) -> np.ndarray:
    """Falling, with noise and a few spikes."""
    values = 3 / np.sqrt(np.arange(1, size + 1)) + rng.normal(0, 0.05, size)
    return (values + (rng.random(size) < 0.1) * rng.uniform(0.5, 3, size)).astype(np.float32)


def by_definition(
    values: Any, steps: Any, fence: float = FENCE, window: int = KEPT, min_history: int = LEAST
) -> dict[str, Any]:
    """Judges each value by the newest values of lesser steps, in the order of steps."""
    seen: list[tuple[int, float]] = []
    spikes: list[tuple[int, float]] = []
    for step, value in sorted(zip(steps, map(float, values), strict=True)):
        recent = sorted(seen)[-window:]
        history = sorted(x for s, x in recent if s < step)
        if len(history) >= min_history:
            quarter, half, rest = (
                history[math.ceil(len(history) * q) - 1] for q in (0.25, 0.5, 0.75)
            )
            if value > np.float32(rest) + np.float32(fence) * np.float32(rest - quarter):
                spikes.append((step, float(np.float32(value) - np.float32(half))))
        seen.append((step, value))
    return {
        "count": len(spikes),
        "largest": max((x for _, x in spikes), default=math.nan),
        "last_step": max((s for s, _ in spikes), default=None),
    }


def loss_of_step(rng: np.random.Generator, size: int) -> Arrays:
    return {"values": losses(rng, 1 + size)[-1:].reshape(()), "step": next_step()}


def spikes(w: np.ndarray, values: np.ndarray, step: np.ndarray) -> dict[str, Any]:
    found = by_definition(values, step.astype(int))
    return found | {"last_step": -1 if found["last_step"] is None else found["last_step"]}


def tree(rng: np.random.Generator) -> Any:
    """Parameters, or their gradients."""
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32),
        PARAMS,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def trees(rng: np.random.Generator, size: int) -> dict[str, Any]:
    return {name: tree(rng) for name in ("params", "grads", "updates")} | {"step": next_step()}


def health(
    w: np.ndarray, params: Any, grads: Any, updates: Any, step: np.ndarray
) -> dict[str, Any]:
    """Of the newest step; what is not finite is counted over all."""
    newest = jax.tree.map(lambda x: x[step.argmax()], (params, grads, updates))
    none = {"nonfinite": 0, "first_nonfinite": -1, "first_nonfinite_step": -1}
    return expected(*newest) | none


def one_step(**inputs: Any) -> np.ndarray:
    return np.ones(1, np.bool_)


def case(name: str, cls: Any, draw: Any, oracle: Any, **config: Any) -> Case:
    inputs = Inputs(name, draw, one_step, {}, {}, rows=False)
    return Case(name, cls, inputs, oracle, config, ulps=4, laws=False)


CASES = [
    case(
        "loss_spikes",
        metrics.LossSpikes,
        loss_of_step,
        spikes,
        fence=FENCE,
        window=KEPT,
        min_history=LEAST,
    ),
    case("tree_health", metrics.TreeHealth, trees, health, like=tree(np.random.default_rng(0))),
]
