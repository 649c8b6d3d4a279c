"""The samples in one log of an evaluation harness, whatever harness wrote it."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datarax._errors import MetricInputError
from datarax.evaluation.locations import codec_of

Scalar = str | int | float | bool
UNSCORED = "not scored (NaN)"
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""The letters of inspect: correct, partially correct, incorrect, no answer."""
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_LONGEST = 256
"""Longer texts of the metadata, such as a question, are no values to slice by."""


@dataclass(frozen=True)
class Sample:
    """One answer to one question: an epoch of inspect, a row of lm-eval."""

    id: str | int
    """The question."""
    epoch: int
    """The number of the answer, from 1."""
    scores: Mapping[str, float]
    """The numbers of the scores that it has."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why it lacks a number of a score that the log names for it."""
    failed: str = ""
    """Why it has no score at all; "" if it ended."""
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    content: str = ""
    """A digest of the question: other contents under one id are other questions."""
    prompt: str = ""
    """A digest of what the model was asked, if the log has one."""
    place: str = ""
    """Its file, and where it is there, for errors."""


@dataclass(frozen=True)
class Log:
    """One log: a task that one model has run."""

    path: str
    task: str
    model: str
    samples: tuple[Sample, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """What must be equal in logs of one task for their samples to be taken together."""
    run: str = ""
    """The run that it is an attempt of: a retry repeats samples of an earlier attempt."""
    created: str = ""
    """When it began, as text that sorts by time."""
    notes: tuple[str, ...] = ()
    """What a reader of its numbers should know."""


def without_codec(name: str) -> str:
    """The name of a file without the end that says how it is compressed."""
    return name.removesuffix(Path(name).suffix) if codec_of(name) else name


def number_of(value: Any) -> float | str:
    """The number that a value of a score stands for; or why it has none.

    Numbers and booleans stand for themselves. Texts are those of inspect: its letters, yes and no,
    true and false, and numbers. NaN marks a sample that a scorer could not score.
    """
    if isinstance(value, int | float):  # also booleans
        try:
            found = float(value)
        except OverflowError:
            found = math.inf if value > 0 else -math.inf
        return UNSCORED if math.isnan(found) else found
    if isinstance(value, str):
        known = _GRADES.get(value, _WORDS.get(value.strip().lower()))
        if known is not None:
            return known
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        return found if math.isfinite(found) else f"a text that is no number: {_short(value)}"
    return "no value" if value is None else f"no number: {_short(value)}"


def scalars(prefix: str, values: Any) -> dict[str, Scalar]:
    """The values of an object of JSON that one may slice by, under their names with a prefix."""
    if not isinstance(values, dict):
        return {}
    return {
        f"{prefix}.{key}": value
        for key, value in values.items()
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _LONGEST)
    }


def digest(*values: Any) -> str:
    """A text that is equal for equal values of JSON."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()


def checked(x: Any, kind: type | tuple[type, ...], expected: str, path: str, place: str) -> Any:
    """A value of a log, which must be of a type.

    Raises:
        MetricInputError: it is of another one; names the file and the place.
    """
    if isinstance(x, kind) and not (isinstance(x, bool) and kind is not bool):
        return x
    raise MetricInputError(f"{path}: {place}: {_short(x)}; expected {expected}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
