"""The conditions of `--fail-if`, as they are written. It does not import JAX."""

import argparse
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

OVERALL = "overall"
"""`in overall`: the condition is of all rows, and not of the slices."""
CHANGES = ("drops", "rises")
FORM = "'NAME < NUMBER' (or <=, >, >=), or 'NAME drops NUMBER against DIR' (or rises)"
_CONDITION = re.compile(
    r"(?P<name>\S.*?)(?:\s*(?P<sign><=|>=|<|>)\s*|\s+(?P<change>drops|rises)\s+)(?P<number>\S+)"
    r"(?:\s+in\s+(?P<where>\S.*?))?(?:\s+against\s+(?P<against>\S.*))?"
)


class Condition(NamedTuple):
    """When an evaluation fails."""

    text: str
    """As it was given."""
    name: str
    """The metric, as it is listed."""
    sign: str
    """"<", "<=", ">" or ">=", or "drops" or "rises"."""
    number: float
    where: str
    """The slices: "" for all rows and each slice, `OVERALL`, "column" or "column=value"."""
    against: Path | None
    """The folder of an earlier evaluation."""

    @property
    def is_change(self) -> bool:
        """True if it is of the difference from an earlier value."""
        return self.sign in CHANGES

    @property
    def limit(self) -> float:
        """The number that the value, or its change, is compared with."""
        return -self.number if self.sign == "drops" else self.number

    @property
    def is_below(self) -> bool:
        """True if it is met by small values, or by small changes."""
        return self.sign in ("<", "<=", "drops")

    def is_met(self, x: float) -> bool:
        """True if the value, or its change, meets it."""
        if self.sign in ("<=", ">="):
            return x <= self.limit if self.is_below else x >= self.limit
        return x < self.limit if self.is_below else x > self.limit


def a_condition(text: str) -> Condition:
    """The condition that a text states."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected {FORM}, got {text!r}")
    number = math.nan
    with suppress(ValueError):
        number = float(found["number"])
    change = found["change"] or ""
    if not math.isfinite(number) or (change and number < 0):
        of = "a number of 0 or more" if change else "a number"
        raise argparse.ArgumentTypeError(f"expected {of} in {text!r}, got {found['number']!r}")
    if found["against"] and not change:
        raise argparse.ArgumentTypeError(
            f"{text!r}: 'against' is for 'drops' and 'rises'; expected {FORM}"
        )
    against = found["against"] and Path(found["against"])
    return Condition(
        text.strip(),
        found["name"].strip(),
        change or found["sign"],
        number,
        found["where"] or "",
        against or None,
    )
