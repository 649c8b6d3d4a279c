"""No metric's program grows unnoticed, and the representatives hold what any program holds.

Nor does a program hold what the platform lacks that it is lowered for, or lose digits there.

A new metric has no record until `python -m tests.operations --write` next runs.
"""

import json
import re
from itertools import chain
from pathlib import Path

import jax
import numpy as np
import pytest

import datarax
from tests.operations import (
    RECORDED,
    RECORDED_PASSES,
    arrays,
    counted,
    exported,
    holds_float64,
    imprecise_products,
    names,
    traces,
    what_the_engine_sees,
)
from tests.registry import CASES, CHOSEN, ENGINE_GROUPS, EVERYWHERE

WRITTEN_WITH = "0.10.2"
RECORDS = json.loads(RECORDED.read_text())
SLACK = 1.0 if jax.__version__ == WRITTEN_WITH else 1.3


@pytest.fixture(scope="module")
def jaxprs():
    """The programs of each case on each platform, by name."""
    return {p: {case.id: traces(case, p) for case in CASES} for p in ("cpu", "tpu")}


@pytest.fixture(scope="module")
def traced(jaxprs):
    """The number of operations of each case by the name of the program; the passes of updates."""
    both = {case.id: counted({p: jaxprs[p][case.id] for p in jaxprs}) for case in CASES}
    return tuple({case: each[i] for case, each in both.items()} for i in (0, 1))


def test_the_record_has_no_other_cases():
    assert set(RECORDS) <= {case.id for case in CASES}


def test_a_program_has_no_more_operations_than_recorded(traced):
    operations, _ = traced
    grown = [
        f"{case}: {name} has {found} operations, recorded {RECORDS[case][name]}"
        for case in RECORDS
        for name, found in operations[case].items()
        if found > SLACK * RECORDS[case][name]
    ]
    said = "If they are needed, record them: python -m tests.operations --write"
    assert not grown, "\n".join([*grown, said])
    # On TPUs, an update may have twice the operations of one on CPUs.
    most = {case: 2 * SLACK * each["update"] for case, each in operations.items()}
    assert not {c for c, each in operations.items() if each["update on TPUs"] > most[c]}


def test_a_state_has_no_more_arrays_than_recorded():
    found = {case.id: arrays(case) for case in CASES if case.id in RECORDS}
    grown = [
        f"{case}: {n} arrays, recorded {RECORDS[case]['arrays']}"
        for case, n in found.items()
        if n > RECORDS[case]["arrays"]
    ]
    assert not grown, "\n".join(grown)
    assert {name: found[name] for name in ("mean", "mse", "max")} == {"mean": 6, "mse": 6, "max": 7}


# In each pass there is one reduction with counts, and a further one for each further sum of floats.
FEW_PASSES = {
    "mean": 1,
    "sum": 1,
    "max": 1,
    "std": 2,
    "mse": 1,
    "mae": 1,
    "r2": 4,
    "pearson": 5,
} | {
    "accuracy_multiclass_micro": 2,
    "log_loss": 2,
    "cosine": 3,
}


def test_an_update_goes_over_its_batch_no_more_often_than_recorded(traced):
    recorded = json.loads(RECORDED_PASSES.read_text())
    _, found = traced
    grown = [
        f"{case}: {found[case][name]} passes of an {name}, recorded {most}"
        for case, each in recorded.items()
        for name, most in each.items()
        if found[case][name] > most
    ]
    said = "If they are needed, record them: python -m tests.operations --write"
    assert not grown, "\n".join([*grown, said])
    assert {case: found[case]["update"] for case in FEW_PASSES} == FEW_PASSES
    # Without float64, one for all sums.
    of_tpus = FEW_PASSES | {"r2": 2, "pearson": 2, "log_loss": 2}
    few = {case: found[case]["update on TPUs"] for case in of_tpus}
    assert few == of_tpus
    more = {case for case, each in found.items() if each["update on TPUs"] > each["update"]}
    # Pairs of ratings have float weights always, and a scatter of floats is one more pass there.
    assert more == {case for case in found if case.startswith("krippendorff_alpha")}


def test_the_representatives_hold_every_operation_and_state(jaxprs):
    seen = {
        case.id: what_the_engine_sees(
            case, chain.from_iterable(map(names, jaxprs["cpu"][case.id].values()))
        )
        for case in CASES
    }
    held = set().union(*(seen[name] for name in json.loads(CHOSEN.read_text())))
    missing = {name: new for name, each in seen.items() if (new := sorted(each - held))}
    assert not missing, (
        f"add some to {CHOSEN.name}; python -m tests.operations --write does\n{missing}"
    )


def test_programs_of_tpus_hold_no_float64(jaxprs):
    found = {
        f"{case}: {name}"
        for case, each in jaxprs["tpu"].items()
        for name, jaxpr in each.items()
        if holds_float64(jaxpr)
    }
    assert found == set()
    assert holds_float64(jaxprs["cpu"]["mean"]["update"])


def test_products_of_floats_ask_for_the_highest_precision(jaxprs):
    found = {
        f"{case}: {name} on {platform}: {', '.join(lacking)}"
        for platform, cases in jaxprs.items()
        for case, each in cases.items()
        for name, jaxpr in each.items()
        if (lacking := imprecise_products(jaxpr))
    }
    assert found == set()


def test_a_planted_product_of_fewer_digits_is_found():
    x = np.ones((2, 2), np.float32)
    assert imprecise_products(jax.make_jaxpr(jax.numpy.matmul)(x, x).jaxpr)
    assert not imprecise_products(jax.make_jaxpr(jax.numpy.matmul)(x > 0, x > 0).jaxpr)


def test_programs_are_exported_for_all_platforms_at_once(jaxprs):
    """Of each operation one case: whether a platform has it does not depend on the metric."""
    seen, found = set(), {}
    for case in CASES:
        new = {*chain.from_iterable(map(names, jaxprs["tpu"][case.id].values()))} - seen
        seen |= new
        if not (new or EVERYWHERE):
            continue
        try:
            with datarax.lowering_for("tpu"):
                text = exported(case, "cpu", "cuda", "rocm", "tpu")
            found |= {case.id: "holds float64"} if "f64" in text else {}
            exported(case, "cpu", "cuda", "rocm")
        except Exception as error:
            found[case.id] = f"{type(error).__name__}: {error}"
    assert found == {}


def test_the_quick_part_of_the_tests_names_representatives():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    (names,) = re.findall(r"foreach name,([\w ]+),'tests/test_laws.py", makefile)
    assert set(names.split()) <= ENGINE_GROUPS.keys()
