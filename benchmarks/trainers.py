"""What a step of each trainer's example costs: as is usual there, and with metrics.

Operations are those of the traced program, arrays those that the step returns, of its numbers or of
its metrics, and collectives those of the compiled program. The seconds are processor time to
compile it, the least of a few.

`python benchmarks/trainers.py` prints the table, and `--write docs/trainers.md` puts it there.
"""

import argparse
import contextlib
import io
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.append(str(Path(__file__).parent.parent))

import jax

from benchmarks.peers.__main__ import write
from tests.helpers import collectives_in
from tests.operations import traced

EXAMPLES = Path(__file__).parent.parent / "examples/trainers"
COMPILATIONS = 3
Variables = dict[str, Any]
Arguments = tuple[Any, ...]
ARGUMENTS: dict[str, Callable[[Variables], tuple[Arguments, Arguments]]] = {
    "MaxText": lambda v: ((), (v["params"], v["batch"])),
    "Tunix": lambda v: ((), (v["batch"],)),
    "AXLearn": lambda v: ((), (v["seen"], v["rows"])),
    "Scenic": lambda v: ((), v["batch"]),
    "EasyDeL": lambda v: ((), v["batch"]),
    "Levanter": lambda v: ((v["means"],), v["batch"]),
    "T5X": lambda v: ((v["window"],), (v["weight"], v["rate"], v["batch"])),
}
"""For each trainer: the state that the step before takes, and the batch that both steps take."""


class Counts(NamedTuple):
    """What a step has; always the same for one version of JAX."""

    operations: int
    arrays: int
    collectives: int


def run(name: str) -> tuple[str, Variables]:
    """The text that an example prints, and its variables."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        variables = runpy.run_path(str(EXAMPLES / f"{name.lower()}.py"))
    return out.getvalue(), variables


def steps(name: str, variables: Variables) -> list[tuple[Any, Arguments]]:
    """The step before and the step after, with their arguments."""
    state, batch = ARGUMENTS[name](variables)
    metrics = variables["metrics"]
    return [(variables["before"], (*state, *batch)), (variables["after"], (metrics, *batch))]


def counts(step: Any, args: Arguments) -> Counts:
    lowered = step.lower(*args)
    collectives = collectives_in(lowered.compile().as_text()).total()
    return Counts(len(traced(step, args)), len(jax.tree.leaves(lowered.out_info)), collectives)


def seconds_to_compile(step: Any, args: Arguments) -> float:
    """The least processor time of a few compilations, each of a function that is new to JAX."""
    seconds = []
    for _ in range(COMPILATIONS):
        lowered = jax.jit(lambda *args: step(*args)).lower(*args)
        start = time.process_time()
        lowered.compile()
        seconds.append(time.process_time() - start)
    return min(seconds)


def table() -> str:
    columns = (*Counts._fields, "seconds")
    heads = [f"{column} {when}" for column in columns for when in ("before", "after")]
    lines = [f"| Trainer | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(heads)]
    for name in ARGUMENTS:
        found = [
            (*map(str, counts(*each)), f"{seconds_to_compile(*each):.2f}")
            for each in steps(name, run(name)[1])
        ]
        cells = [cell for pair in zip(*found, strict=True) for cell in pair]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a step of each example costs.")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="a page with marks for the table"
    )
    write(parser.parse_args().write, "steps", table())


if __name__ == "__main__":
    main()
