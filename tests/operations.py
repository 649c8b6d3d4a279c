"""Operations of each metric's programs: `make operations` prints them, and a test holds them.

Operations are counted in the program as traced, which is the same on any machine, and with
`--optimized` in the program that XLA compiles for a CPU, without parameters, constants and what
only renames values. A pass is a traced operation of an update that folds up an array of the batch's
size: a reduction, a scan, a sort or a scatter. Traced programs are counted in both forms: those of
CPUs and GPUs, and those of TPUs, without float64. `--write` records the traced operations and the
arrays of the state in `operations.json` and the passes in `passes.json`, where `test_operations.py`
finds them, and adds the representatives of the registry that are missing.
"""

import argparse
import inspect
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

import datarax
from datarax._platform import Platform
from datarax.algebra.devices import NeedsMaxima
from datarax.algebra.leaf_state import LeafState
from datarax.algebra.state import walk
from datarax.metric.base import Metric, read
from tests.registry import CASES, CHOSEN, Case

RECORDED = Path(__file__).with_suffix(".json")
RECORDED_PASSES = Path(__file__).with_name("passes.json")
ROWS = 61
"""Rows of the batch: no state has a multiple of it, which would count as a pass."""
PASSES = ("reduce", "arg", "dot_general", "sort", "cum", "top_k", "scatter")
INSTRUCTION = r"^\s*(?:ROOT )?%?\S+ = (?:\([^=]*\)|\S+) ([a-z][a-z0-9-]*)\("
NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}


def programs(case: Case) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The functions that update and read the metric, with their arguments."""
    metric, arrays = arguments(case)
    update = jax.jit(lambda metric, arrays: metric.update(**arrays))
    return {"update": (update, (metric, arrays)), "read": (jax.jit(read), (metric,))}


def arguments(case: Case) -> tuple[Metric, dict[str, Any]]:
    """The empty metric, and the arguments of an update."""
    metric = case.traceable()
    inputs = case.inputs.draw(np.random.default_rng(0), ROWS)
    return metric, metric.arguments_from(case.arrays(inputs))


def traced(function: Any, args: tuple[Any, ...]) -> list[str]:
    """The operations of a function, with those of its loops and branches."""
    return names(jax.make_jaxpr(function)(*args).jaxpr)


FORMS: dict[Platform, str] = {"cpu": "", "tpu": " on TPUs"}
"""The platforms whose programs are counted, and what their records are named after a program."""


def counted(traced: Mapping[Platform, Mapping[str, Any]]) -> tuple[dict[str, int], dict[str, int]]:
    """The operations of the programs of a case, from its traces by platform; and the passes."""
    operations = {
        name + FORMS[form]: len(names(jaxpr))
        for form, each in traced.items()
        for name, jaxpr in each.items()
    }
    return operations, {
        "update" + FORMS[form]: passes(each["update"]) for form, each in traced.items()
    }


def names(jaxpr: Any) -> list[str]:
    """The operations of a program, with those of its loops and branches."""
    found = (equation.primitive.name for equation in _equations(jaxpr))
    return [name for name in found if name != "float64_zero"]  # a constant


def holds_float64(jaxpr: Any) -> bool:
    """True if an array of the program is of float64."""
    arrays = (x for each in _equations(jaxpr) for x in (*each.invars, *each.outvars))
    return any(getattr(x.aval, "dtype", None) == np.float64 for x in arrays)


def passes(update: Any) -> int:
    """How often an update goes over the batch, or an array that grows with it, to fold it up."""
    return sum(map(_is_pass, _equations(update, PASSES)))


def _is_pass(equation: Any) -> bool:
    name = equation.primitive.name
    sizes = [getattr(x.aval, "size", 0) for x in equation.invars]
    of_batch = any(size and size % ROWS == 0 for size in sizes)
    return of_batch and name.startswith(PASSES) and name != "reduce_precision"


def what_the_engine_sees(case: Case, operations: Iterable[str]) -> set[str]:
    """The kinds of operations of a case, and those of the states that hold its arrays."""
    states = walk(case.traceable())
    names = {type(s).__name__ for s in states if not isinstance(s, Metric)}
    return {*operations, *names, *how_states_travel(case)}


# What the engine calls of a state, to merge, reset, save, and carry it over devices.
CALLED = {x for base in (LeafState, NeedsMaxima) for x in dir(base) if x[0] != "_"}


def how_states_travel(case: Case) -> set[str]:
    """The methods by which the states of a case merge and travel, and what each of them holds."""
    found = set()
    for each in walk(case.traceable()):
        methods = inspect.getmembers(type(each), inspect.isfunction)
        found |= {method.__qualname__ for name, method in methods if name in CALLED}
        if isinstance(each, LeafState):
            how = f"{type(each).combine.__qualname__} {getattr(each, 'reduce_op', '')}"
            found |= {f"{how} of {x.dtype}" for x in jax.tree.leaves(each)}
    return found


def representatives(seen: Mapping[str, set[str]], kept: Iterable[str] = ()) -> list[str]:
    """A few cases that see all that any case sees: those kept, then those that see the most."""
    chosen = [case for case in kept if case in seen]
    left = set().union(*seen.values()).difference(*(seen[case] for case in chosen))
    while left:
        chosen.append(max(seen, key=lambda case: len(seen[case] & left)))
        left -= seen[chosen[-1]]
    return sorted(chosen)


def _equations(jaxpr: Any, whole: tuple[str, ...] = ("none",)) -> Iterator[Any]:
    """The equations, and those within them; of the names that begin with `whole`, not those."""
    for equation in jaxpr.eqns:
        inner = [x for value in equation.params.values() for x in jaxprs_in(value)]
        if equation.primitive.name.startswith(whole):
            inner = []
        for each in inner:
            yield from _equations(each, whole)
        if not inner:
            yield equation


def jaxprs_in(value: Any) -> Iterator[Any]:
    """The programs in a parameter of an equation."""
    for each in value if isinstance(value, tuple | list) else (value,):
        each = getattr(each, "jaxpr", each)
        if hasattr(each, "eqns"):
            yield each


def optimized(function: Any, args: tuple[Any, ...]) -> list[str]:
    """The instructions of the compiled program that are not in `NO_WORK`."""
    text = function.lower(*args).compile().as_text()
    names = re.findall(INSTRUCTION, text, re.MULTILINE)
    return [name for name in names if name not in NO_WORK]


def traces(case: Case, platform: Platform = "cpu") -> dict[str, Any]:
    """The traced programs of a case on a platform, by name."""
    with datarax.lowering_for(platform):
        return quietly(
            lambda: {n: jax.make_jaxpr(f)(*x).jaxpr for n, (f, x) in programs(case).items()}
        )


def exported(case: Case, *platforms: str) -> str:
    """The text of one program that updates, merges and reads, exported for several platforms."""
    # Only plain containers can be exported.
    leaves, structure = jax.tree.flatten(arguments(case))

    @jax.jit
    def program(leaves: list[Any]) -> list[Any]:
        metric, arrays = structure.unflatten(leaves)
        updated = metric.update(**arrays)
        return jax.tree.leaves((updated.merge(metric), read(updated).value))

    return quietly(lambda: jax.export.export(program, platforms=platforms)(leaves).mlir_module())


def imprecise_products(jaxpr: Any) -> list[str]:
    """The products of floats that may be of fewer digits: bfloat16 on a TPU, TF32 on a GPU."""
    found = []
    for each in _equations(jaxpr):
        of_floats = any(np.issubdtype(x.aval.dtype, np.inexact) for x in each.invars[:2])
        if each.primitive.name in ("dot_general", "conv_general_dilated") and of_floats:
            asked = each.params["precision"]
            asked = asked if isinstance(asked, tuple) else (asked,)
            if {*asked} != {jax.lax.Precision.HIGHEST}:
                found.append(f"{each.primitive.name} of {asked[0]}")
    return found


def arrays(case: Case) -> int:
    """How many arrays the state has."""
    return len(jax.tree.leaves(case.traceable()))


def quietly(function: Any, *args: Any) -> Any:
    """`function(*args)` without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="the cases to count; all if none is given")
    parser.add_argument("--optimized", action="store_true", help="count in compiled programs")
    parser.add_argument("--write", action="store_true", help="record the counts")
    options = parser.parse_args()
    columns = ("update", "read", "passes", "on TPUs:", "read", "passes", "arrays")
    print(f"{'':40}{''.join(f'{name:>10}' for name in columns)}")
    found, seen, gone_over = {}, {}, {}
    for case in CASES:
        if not options.cases or case.id in options.cases:
            traced_ones = {form: traces(case, form) for form in FORMS}
            operations, gone_over[case.id] = counted(traced_ones)
            if options.optimized:
                optimal = quietly(lambda c=case: {n: optimized(*x) for n, x in programs(c).items()})
                operations |= {name: len(each) for name, each in optimal.items()}
            seen[case.id] = what_the_engine_sees(
                case, chain.from_iterable(map(names, traced_ones["cpu"].values()))
            )
            found[case.id] = operations | {"arrays": arrays(case)}
            counts = [
                x
                for form in FORMS.values()
                for x in (
                    operations["update" + form],
                    operations["read" + form],
                    gone_over[case.id]["update" + form],
                )
            ]
            print(f"{case.id:40}{''.join(f'{n:10}' for n in (*counts, arrays(case)))}", flush=True)
    for name in ("update", "read"):
        ratios = sorted(each[f"{name} on TPUs"] / max(each[name], 1) for each in found.values())
        print(
            f"{name} on TPUs: {np.median(ratios):.2f} times the operations in the median, "
            f"{ratios[-1]:.2f} at most; more than 2 times for {sum(r > 2 for r in ratios)} of "
            f"{len(ratios)}"
        )
    if options.write:
        for file, new in ((RECORDED, found), (RECORDED_PASSES, gone_over)):
            records = json.loads(file.read_text()) | new
            records = {case.id: records[case.id] for case in CASES if case.id in records}
            file.write_text(json.dumps(records, indent=0, sort_keys=True) + "\n")
        if not options.cases:
            # Other versions of jax have other operations: what was chosen for these stays.
            kept = json.loads(CHOSEN.read_text())
            CHOSEN.write_text(json.dumps(representatives(seen, kept), indent=0) + "\n")


if __name__ == "__main__":
    main()
