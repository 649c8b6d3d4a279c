"""`datarax evaluate`: metrics of predictions that are in files."""

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from datarax._optional import optional
from datarax.cli import console_tables
from datarax.evaluation.assembly import assembled, without_interval, without_slices
from datarax.evaluation.outcome import (
    SUMMARY,
    Outcome,
    Source,
    resumed,
    save_state,
    write_outcome,
)
from datarax.evaluation.planning import Request, planned

SECONDS_BETWEEN_SAVES = 2.0
INTERRUPTED = 130


class Saver:
    """Saves the state while an evaluation runs, every few seconds, and seldom if that is slow."""

    def __init__(self, folder: Path | None):
        self._folder, self._next = folder, 0.0

    def __call__(self, outcome: Outcome, *, now: bool = False) -> None:
        start = time.monotonic()
        if self._folder is None or (start < self._next and not now):
            return
        save_state(self._folder, outcome)
        took = time.monotonic() - start
        self._next = time.monotonic() + max(SECONDS_BETWEEN_SAVES, 20 * took)
