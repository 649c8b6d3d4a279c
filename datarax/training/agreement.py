"""Agreement between processes: they check that they hold the same metrics."""

import hashlib
import json
from collections.abc import Mapping

import jax
import numpy as np

from datarax._errors import CollectorStateError, ConfigurationMismatchError
from datarax._typing import PyTree
from datarax.algebra.pytrees import states_in
from datarax.algebra.saving import plain
from datarax.distributed.barrier import Barrier
from datarax.metric.base import Metric
from datarax.wrappers.per_device import PerDevice


def check_agreement(metric: Metric, timeout: float | None = None) -> None:
    """Raises on every process unless all hold the same metrics in the same configuration.

    The processes compare digests, and where those differ the descriptions themselves; nothing is
    sent over the devices. On a single process it does nothing.

    Args:
        metric: a datarax metric.
        timeout: seconds to wait for the others; `None` for as long as it takes.

    Raises:
        ConfigurationMismatchError: names the metric, the field, and what the processes hold.
        MetricTimeoutError: some processes did not arrive in time. All others raise it; the error
            names the missing processes.

    Example:
        >>> import datarax
        >>> from datarax.training import check_agreement
        >>> check_agreement(datarax.metrics.Mean())
    """
    if jax.process_count() > 1:
        agree(Barrier(), metric, timeout, "comparing the metrics of all processes")


def agree(
    barrier: Barrier, metric: Metric, timeout: float | None, about: str, step: str = ""
) -> None:
    """Does what `check_agreement` does, in the next round of `barrier`.

    A process that only arrives at the round, with the note of `step_note`, holds what it held at
    the last one.

    Args:
        step: the step of the window, as `step_note` gives it. Processes must not have different
            ones.

    Raises:
        CollectorStateError: the steps differ, so a process has skipped or repeated a window.
    """
    described = json.dumps(describe(metric), sort_keys=True).encode()
    barrier.publish("metric", described)

    def difference(notes: dict[int, str]) -> str:
        digests = {process: note.partition(" ")[0] for process, note in notes.items()}
        if steps := different_steps(notes):
            return f"{_STEPS}{steps}"
        if unmoved := [str(process) for process, digest in digests.items() if not digest]:
            return (
                f"the metric has moved to another mesh on some processes only, and not on: "
                f"{', '.join(unmoved)}; call per_device on every process, for the same window"
            )
        for process, digest in sorted(digests.items()):
            if digest != digests[0]:
                held = (barrier.published("metric", i, barrier.round) for i in (0, process))
                ours, theirs = map(json.loads, held)
                return _difference(ours, theirs, process)
        return ""

    digest = hashlib.sha256(described).hexdigest()
    differ = barrier.wait(timeout, about, digest + step, difference, failed=bool)
    if differ.startswith(_STEPS):
        raise CollectorStateError(f"{about}: {differ.removeprefix(_STEPS)}")
    if differ:
        raise ConfigurationMismatchError(differ)


_STEPS = "steps: "  # what an outcome begins with if the steps of a window differ


def step_note(step: object) -> str:
    """The part of a note that says the step of a window; "" for one that is no integer."""
    return f" {int(step)}" if isinstance(step, int | np.integer) else ""


def different_steps(notes: Mapping[int, str]) -> str:
    """What to say if the notes of the processes have different steps, else ""."""
    steps = {process: note.partition(" ")[2] for process, note in sorted(notes.items())}
    given = {step for step in steps.values() if step}
    if len(given) < 2:
        return ""
    listed = ", ".join(f"{step} on process {process}" for process, step in steps.items() if step)
    return (
        f"the processes schedule windows of different steps: {listed}; a process has skipped a "
        f"window, or scheduled one twice. Schedule the same windows, in the same order, on every "
        f"process"
    )


def _difference(ours: dict[str, str], theirs: dict[str, str], process: int) -> str:
    # The outermost difference first: a statistic repeats fields of its metric.
    for field in sorted(ours.keys() | theirs.keys(), key=lambda field: (field.count("."), field)):
        here, there = (d.get(field, "not there") for d in (ours, theirs))
        if here != there:
            name = "metric" if field == "metric" else ours["metric"] + field.removeprefix("metric")
            return (
                f"the processes hold different metrics: {name} is {here} on process 0 and "
                f"{there} on process {process}; make the same metrics, with the same "
                f"configuration, on every process"
            )
    raise AssertionError("the digests of two descriptions differ, but the descriptions do not")


def describe(metric: PyTree, path: str = "metric") -> dict[str, str]:
    """Every class name and configuration value in a metric, by its path."""
    if isinstance(metric, PerDevice):
        axes = {f"{path}[per_device axes]": f"{dict(metric.mesh.shape)} over {metric.axis_names}"}
        return axes | describe(metric.copies, path)
    described = {path: type(metric).__name__}
    config, parts = metric.described()
    for name, value in config.items():
        described[f"{path}.{name}"] = repr(plain(value))
    for name, part in parts.items():
        for i, state in enumerate(states_in(part)):
            described |= describe(state, f"{path}.{name}{i or ''}")
    return described
