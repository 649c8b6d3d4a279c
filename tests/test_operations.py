"""No metric's program grows unnoticed, and the representatives hold what any program holds.

A new metric has no record until `python -m tests.operations --write` next runs.
"""

import json
import re
from itertools import chain
from pathlib import Path

import jax
import pytest

from tests.operations import (
    RECORDED,
    RECORDED_PASSES,
    arrays,
    names,
    passes,
    traces,
    what_the_engine_sees,
)
from tests.registry import CASES, CHOSEN, ENGINE_GROUPS

WRITTEN_WITH = "0.10.2"
RECORDS = json.loads(RECORDED.read_text())
SLACK = 1.0 if jax.__version__ == WRITTEN_WITH else 1.25


@pytest.fixture(scope="module")
def traced():
    """The operations of each case by the name of the program, and the passes of its update."""
    found = {case.id: traces(case) for case in CASES}
    operations = {
        case: {name: names(jaxpr) for name, jaxpr in each.items()} for case, each in found.items()
    }
    return operations, {case: passes(each["update"]) for case, each in found.items()}


def test_the_record_has_no_other_cases():
    assert set(RECORDS) <= {case.id for case in CASES}


def test_a_program_has_no_more_operations_than_recorded(traced):
    operations, _ = traced
    grown = [
        f"{case}: {name} has {len(found)} operations, recorded {RECORDS[case][name]}"
        for case in RECORDS
        for name, found in operations[case].items()
        if len(found) > SLACK * RECORDS[case][name]
    ]
    said = "If they are needed, record them: python -m tests.operations --write"
    assert not grown, "\n".join([*grown, said])


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
        f"{case}: {found[case]} passes, recorded {most}"
        for case, most in recorded.items()
        if found[case] > most
    ]
    said = "If they are needed, record them: python -m tests.operations --write"
    assert not grown, "\n".join([*grown, said])
    assert {case: found[case] for case in FEW_PASSES} == FEW_PASSES


def test_the_representatives_hold_every_operation_and_state(traced):
    operations, _ = traced
    seen = {
        case.id: what_the_engine_sees(case, chain.from_iterable(operations[case.id].values()))
        for case in CASES
    }
    held = set().union(*(seen[name] for name in json.loads(CHOSEN.read_text())))
    missing = {name: new for name, each in seen.items() if (new := sorted(each - held))}
    assert not missing, (
        f"add some to {CHOSEN.name}; python -m tests.operations --write does\n{missing}"
    )


def test_the_quick_part_of_the_tests_names_representatives():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    (names,) = re.findall(r"foreach name,([\w ]+),'tests/test_laws.py", makefile)
    assert set(names.split()) <= ENGINE_GROUPS.keys()
