"""Operations of each metric's programs: `make operations` prints them, and a test holds them.

Operations are counted in the program as traced, which is the same on any machine, and with
`--optimized` in the program that XLA compiles for a CPU, without parameters, constants and what
only renames values. `--write` records the traced ones in `operations.json`, where
`test_operations.py` finds them.
"""

import argparse
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from datarax.metrics.base import read
from tests.registry import BATCH, CASES, Case

RECORDED = Path(__file__).with_suffix(".json")
INSTRUCTION = r"^\s*(?:ROOT )?%?\S+ = (?:\([^=]*\)|\S+) ([a-z][a-z0-9-]*)\("
NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def programs(case: Case) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The functions that update and read the metric, with their arguments."""
    metric = case.traceable()
    inputs = case.inputs.draw(np.random.default_rng(0), BATCH)
    arrays = metric.arguments_from(case.arrays(inputs))
    update = jax.jit(lambda metric, arrays: metric.update(**arrays))
    return {"update": (update, (metric, arrays)), "read": (jax.jit(read), (metric,))}


def traced(function: Any, args: tuple[Any, ...]) -> int:
    """The equations of a function, with those of its loops and branches."""
    return sum(1 for _ in _equations(jax.make_jaxpr(function)(*args).jaxpr))


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        inner = [x for value in equation.params.values() for x in _jaxprs(value)]
        for each in inner:
            yield from _equations(each)
        if not inner:
            yield equation


def _jaxprs(value: Any) -> Iterator[Any]:
    for each in value if isinstance(value, tuple | list) else (value,):
        each = getattr(each, "jaxpr", each)
        if hasattr(each, "eqns"):
            yield each


def optimized(function: Any, args: tuple[Any, ...]) -> int:
    """The instructions of the compiled program that are not in `NO_WORK`."""
    text = function.lower(*args).compile().as_text()
    names = re.findall(
        r"^\s*(?:ROOT )?%?\S+ = (?:\([^=]*\)|\S+) ([a-z][a-z0-9-]*)\(", text, re.MULTILINE
    )
    return sum(name not in NO_WORK for name in names)


def counted(count: Any, case: Case) -> dict[str, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: count(*program) for name, program in programs(case).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="the cases to count; all if none is given")
    parser.add_argument("--optimized", action="store_true", help="count in compiled programs")
    parser.add_argument("--write", action="store_true", help="record the counts")
    options = parser.parse_args()
    count = optimized if options.optimized else traced
    print(f"{'':40}{'update':>8}{'read':>8}")
    found = {}
    for case in CASES:
        if not options.cases or case.id in options.cases:
            found[case.id] = each = counted(count, case)
            print(f"{case.id:40}{each['update']:8}{each['read']:8}", flush=True)
    sums = [sum(each[name] for each in found.values()) for name in ("update", "read")]
    print(f"{f'sum of {len(found)}':40}{sums[0]:8}{sums[1]:8}")
    if options.write:
        records = json.loads(RECORDED.read_text()) | found
        records = {case.id: records[case.id] for case in CASES if case.id in records}
        RECORDED.write_text(json.dumps(records, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
