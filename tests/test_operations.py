"""No metric's program grows unnoticed: each has at most the operations that are recorded.

A new metric has no record until `python -m tests.operations --write` next runs.
"""

import json

import jax
import pytest

from tests.operations import RECORDED, counted, traced
from tests.registry import CASES

WRITTEN_WITH = "0.10.2"
RECORDS = json.loads(RECORDED.read_text())
SLACK = 1.0 if jax.__version__ == WRITTEN_WITH else 1.25


def test_the_record_has_no_other_cases():
    assert set(RECORDS) <= {case.id for case in CASES}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.id in RECORDS], ids=lambda case: case.id
)
def test_a_program_has_no_more_operations_than_recorded(case):
    for name, operations in counted(traced, case).items():
        assert operations <= SLACK * RECORDS[case.id][name], (
            f"{case.id}: {name} has {operations} operations, more than before. If they are needed, "
            f"record them: python -m tests.operations --write"
        )
