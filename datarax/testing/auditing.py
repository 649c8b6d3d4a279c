"""`audit`: a procedure from batches to logged numbers, run on the same rows in other ways."""

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from datarax._checks import choice, positive_int, python_int
from datarax._errors import AuditError, MetricInputError, MetricTypeError
from datarax._typing import PyTree
from datarax.testing.causes import ADVICE, Case, Experiments, Facts, causes_of
from datarax.testing.logged_numbers import SOURCES, Numbers
from datarax.testing.notes import NOTES, note_on, parts_of
from datarax.testing.procedure import Outcome, Procedure
from datarax.testing.rounding import NUDGES, Rounding, as_double, is_float, measure_rounding
from datarax.testing.rows import Rows, join, rows_of
from datarax.testing.variations import ORDERS, Variation, variations

RAISED = "(raised)"
"""The name of a change that is an exception of the procedure."""


@dataclass(frozen=True)
class Change:
    """A number that is another one where the rows are the same.

    Attributes:
        name: its name, `"a/b"` in a nested dict; `"(raised)"` for an exception.
        variation: what was varied.
        expected: the number that was expected: an array of NumPy, `None` if there should be none.
        got: the number that came; `None` if it is missing, or the exception.
        ratio: `got / expected`; of arrays, that of the element that changes most. NaN if there is
            none.
        ratios: the ratio in each variation, by its name.
        causes: all causes that fit, best first.
    """

    name: str
    variation: str
    expected: Any
    got: Any
    ratio: float
    ratios: Mapping[str, float]
    causes: tuple[str, ...]

    @property
    def cause(self) -> str:
        """The best of the causes, or "unknown"."""
        return self.causes[0] if self.causes else "unknown"


@dataclass(frozen=True)
class AuditReport:
    """The result of `audit`: which numbers change, by how much, and why. `str` makes it a table.

    Attributes:
        changes: the numbers that changed, one entry for each variation. An entry has `name`
            (`"a/b"` in a nested dict), `variation`, `expected`, `got`, `ratio` (`got / expected`),
            `ratios` (the ratio in each variation), `causes` (all that fit, best first) and `cause`
            (the first, or `"unknown"`). An exception of the procedure has the name `"(raised)"`,
            and is `got`.
        unstable: the names of numbers that differ between two equal calls, so are not judged:
            random numbers, times, and what a procedure keeps from one call to the next.
        expected: the names that match a pattern of `expected=`, which are not judged.
        notes: with `weights=`, for numbers that do not change, what parts of the rows show: "the
            same for parts of the rows", or "adds up over groups" though not over rows. A setting
            and a sum of the means of groups may be so; a minimum that starts from 0, and a mean
            over groups of which one is always empty, are so by a fault.
        bounds: for each number the largest difference that rounding explains; 0 for integers.
        rows: the number of rows.
        calls: the number of calls of the procedure.

    Example:
        >>> import numpy as np
        >>> from datarax.testing import audit
        >>> def total(batches):
        ...     return {"count": sum(len(batch["loss"]) for batch in batches)}
        >>> report = audit(total, {"loss": np.arange(6.0)})
        >>> report.ok, report.changes, report.unstable
        (True, [], [])
        >>> report.raise_if_changed()
        >>> print(report)
        audit of 6 rows, 10 calls: 0 of 1 numbers change
    """

    changes: list[Change]
    unstable: list[str]
    expected: list[str]
    notes: dict[str, str]
    bounds: dict[str, float]
    rows: int
    calls: int

    @property
    def ok(self) -> bool:
        """True if no number changes."""
        return not self.changes

    def raise_if_changed(self) -> None:
        """Raises an `AuditError`, whose message is the table, if a number changes."""
        if not self.ok:
            raise AuditError(str(self))

    def __str__(self) -> str:
        changed = {change.name for change in self.changes}
        lines = [
            f"audit of {self.rows} rows, {self.calls} calls: {len(changed - {RAISED})} of "
            f"{len(self.bounds)} numbers change"
        ]
        # One line for each number and cause, with the first of its variations.
        alike: dict[tuple[str, str], list[Change]] = {}
        for change in self.changes:
            alike.setdefault((change.name, change.cause), []).append(change)
        table = [("number", "variation", "expected", "got", "ratio", "cause")]
        for (name, cause), each in alike.items():
            first, others = each[0], len(each) - 1
            where = first.variation + (f" (and {others} more)" if others else "")
            texts = _text(first.expected), _text(first.got), _text(np.array(first.ratio))
            table.append((name, where, *texts, cause))
        if alike:
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
            lines += [f"{cause}: {ADVICE[cause]}" for cause in {cause: 0 for _, cause in alike}]
        if self.unstable:
            lines.append(f"not judged, differs between equal calls: {', '.join(self.unstable)}")
        if self.expected:
            lines.append(f"not judged, is in expected=: {', '.join(self.expected)}")
        for note, meaning in NOTES.items():
            if names := [name for name, each in self.notes.items() if each == note]:
                lines.append(f"note, {note}: {', '.join(names)} ({meaning})")
        return "\n".join(lines)


def _text(x: Any) -> str:
    if x is None:
        return "none"
    if isinstance(x, Exception):
        return f"{type(x).__name__}: {x}".partition("\n")[0][:60]
    return f"{x.item():.6g}" if x.size == 1 else f"array of shape {x.shape}"


def audit(
    procedure: Callable[..., Any],
    batch: PyTree,
    *,
    mask: str | None = None,
    weights: str | None = None,
    groups: str | None = None,
    micro: Iterable[int] | None = None,
    devices: Iterable[int] | None = None,
    capture: Iterable[str] = (),
    expected: Iterable[str] = (),
    seed: int = 0,
) -> AuditReport:
    """Runs a procedure on the same rows in other ways, and names each number that changes.

    The first call has all rows in one batch. The others have the rows in other orders; in equal and
    ragged batches, and one at a time if there are at most 64; and what the arguments add. Numbers
    must stay as they are, but for rounding.

    A correct procedure may fail an audit where a variation is no use of it: leave its argument out,
    or name the numbers in `expected`. Texts, `None` and other objects that are no numbers are left
    out. NaN equals NaN, integers are compared exactly, and an array must keep its shape. An
    exception in the first call is raised; in a variation it is a change, as a missing number is.

    Rounding is measured: a difference of up to four times the spread over orders of one batch is no
    change, nor one of `2 * sqrt(N)` epsilons of float32. Where a number changes by more, floats of
    the batch are changed by `sqrt(N)` roundings, which shows how much terms cancel: four times what
    that changes is no change either. Both count up to `N` epsilons of the number or the data,
    as a larger spread shows that the number depends on the order. A number
    or rows in half precision add a few epsilons of their own.

    Args:
        procedure: `procedure(batches)` takes a list of batches and returns a dict of what it logs:
            numbers, arrays, and nested dicts and lists of them; or `None` if `capture` finds all.
            The list is not empty, nor is a batch. Batches may be changed or donated.
        batch: the rows: a dict or another pytree of arrays of NumPy or JAX with one leading axis of
            at least 4 rows. Each stays what it is, an array of NumPy or JAX with its dtype.
        mask: the name of the array that is 0 for padding, `"a/b"` in a nested dict; of the shape
            (N,) or (N, ...). Batches are padded with rows of zeros, with garbage, with NaN, and
            with a batch of padding alone. In garbage, floats are random and large; arrays of other
            dtypes, the weights and the groups have values of real rows, as correct code may look
            them up.
        weights: the name of the array of weights, numbers or booleans: a weight of 2 must equal the
            row twice, and 0 the row left out. The procedure also gets parts of the rows, for
            `notes` of the report.
        groups: the name of an array (N,) with the group of each row, of which there are at least 3:
            rows of one group stay in one batch. With `weights`, a whole group is also left out.
        micro: numbers of micro-batches: `procedure(batches, micro=k)` cuts each batch into k. Each
            must divide N.
        devices: numbers of devices: `procedure(batches, mesh)` gets a mesh with one axis, `"data"`.
            Each must divide N.
        capture: `"wandb"`, `"tensorboard"`, `"jax.monitoring"`: libraries to which the procedure
            logs. The last value of a call counts. During the audit they log nothing.
        expected: patterns (`fnmatch`) of names that are meant to change.
        seed: for the orders and the garbage.

    Returns:
        A report; `raise_if_changed()` makes it a test.

    Raises:
        MetricInputError: the batch has other shapes, an argument names nothing in it, a number of
            micro-batches or devices does not fit, or nothing is logged.
        MetricTypeError: a leaf of the batch is no array; the procedure returns no dict.
        MissingExtraError: a library of `capture` is not installed.

    Example:
        >>> import numpy as np
        >>> from datarax.testing import audit
        >>> def evaluate(batches):
        ...     return {"loss": np.mean([batch["loss"].mean() for batch in batches])}
        >>> report = audit(evaluate, {"loss": np.arange(20.0) ** 2})
        >>> change = report.changes[0]
        >>> print(change.name, "|", change.variation, "|", change.cause)
        loss | a short last batch | mean of means
    """
    rows = rows_of(batch, mask, weights, groups)
    sources = _names(capture)
    for source in sources:
        choice(source, tuple(SOURCES), "capture")
    cuts = _counts(micro, "micro", rows)
    meshes = _counts(devices, "devices", rows)
    if meshes and max(meshes) > jax.local_device_count():
        raise MetricInputError(
            f"audit: devices={meshes}, and JAX has {jax.local_device_count()}; to simulate 8, set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts"
        )
    runner = Procedure(procedure, sources)
    base = runner.call([rows])
    if not base:
        raise MetricInputError(
            "audit: the procedure logged no numbers; expected a dict of them, or capture= with the "
            "library that it logs to"
        )
    ways = list(variations(rows, cuts, meshes, np.random.default_rng(seed)))
    return _Audit(runner, rows, base, ways).report(_names(expected))


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _counts(given: Iterable[int] | None, name: str, rows: Rows) -> list[int]:
    if given is not None and not isinstance(given, Iterable):
        raise MetricTypeError(f"audit: {name}={given!r}; expected a list of numbers")
    counts = [python_int(each) for each in given or ()]
    for count in counts:
        positive_int(count, name)
        if len(rows) % count:
            raise MetricInputError(
                f"audit: {name}={count} does not divide the {len(rows)} rows; give another number, "
                f"or fewer rows"
            )
    return counts


class _Run(NamedTuple):
    """A variation, what it must give, what it gave, and calls that tell the causes apart."""

    way: Variation
    want: Outcome
    got: Outcome
    experiments: Experiments


class _Audit:
    """The numbers of all calls, compared; and the causes of what differs."""

    def __init__(self, runner: Procedure, rows: Rows, base: Numbers, ways: Sequence[Variation]):
        self._runner, self._rows, self._base = runner, rows, base
        self._again = runner.try_call([rows])
        self._runs = [
            _Run(
                way,
                base if way.against[0] is rows else runner.try_call(way.against),
                runner.vary(way),
                Experiments(runner, way, rows),
            )
            for way in ways
        ]
        outcomes = base, *(run.got for run in self._runs)
        # Every number that any call logs; that of the first call wins.
        self._logged: Numbers = dict(ChainMap(*(x for x in outcomes if isinstance(x, dict))))
        self._roundings = self._measured(self._logged, [])
        doubtful = {name for run in self._runs for name in self._differing(run.want, run.got)}
        if any(is_float(self._logged[name]) for name in doubtful):
            # Only now, as most procedures need no more calls.
            rng = np.random.default_rng(0)
            nudged = [runner.try_call([rows.nudge(rng)]) for _ in range(NUDGES)]
            self._roundings |= self._measured(doubtful, nudged)

    def _measured(self, names: Iterable[str], nudged: Sequence[Outcome]) -> dict[str, Rounding]:
        """The rounding of some numbers."""
        return {
            name: measure_rounding(
                self._logged[name],
                [_value(run.got, name) for run in self._runs[:ORDERS]],
                self._rows,
                [_value(each, name) for each in nudged],
            )
            for name in names
        }

    def report(self, patterns: Sequence[str]) -> AuditReport:
        """Compares all calls, and repeats those that differ."""
        meant = [name for name in self._logged if any(fnmatchcase(name, p) for p in patterns)]
        unstable = set(self._differing(self._base, self._again))
        changed: dict[str, list[_Run]] = {name: [] for name in self._logged}
        for run in self._runs:
            names = set(self._differing(run.want, run.got)) - {*meant, *unstable}
            for name in names:
                changed[name].append(run)
            # A number may be random in this variation alone.
            if names:
                unstable.update(self._differing(run.got, self._runner.vary(run.way)))
        changes = list(self._raised())
        for name, runs in changed.items():
            if runs and name not in unstable:
                changes += self._changes(name, runs)
        bounds = {
            name: float(np.max(self._roundings[name].bound(x, x), initial=0.0))
            if is_float(x)
            else 0.0
            for name, x in self._logged.items()
        }
        not_judged = {*meant, *unstable, *(change.name for change in changes)}
        notes = dict(self._notes(not_judged))
        size, calls = len(self._rows), self._runner.calls
        return AuditReport(changes, sorted(unstable), meant, notes, bounds, size, calls)

    @cached_property
    def _doubled(self) -> Outcome:
        return self._runner.try_call([join([self._rows, self._rows])])

    def _differing(self, want: Outcome, got: Outcome) -> list[str]:
        """The names of the numbers that differ between two calls; none if one raised."""
        if isinstance(want, Exception) or isinstance(got, Exception):
            return []
        return [
            name
            for name, rounding in self._roundings.items()
            if rounding.differs(want.get(name), got.get(name))
        ]

    def _notes(self, without: Set[str]) -> Iterator[tuple[str, str]]:
        """The notes on all numbers of the first call, without some."""
        parts, sizes = parts_of(self._rows)
        outcomes = [self._runner.try_call([part]) for part in parts]
        for name, whole in self._base.items() if parts else ():
            values, doubled = [_value(x, name) for x in outcomes], _value(self._doubled, name)
            note = note_on(whole, doubled, values, sizes, self._roundings[name])
            if note and name not in without:
                yield name, note

    def _raised(self) -> Iterator[Change]:
        """The calls that raised: of a variation, or of the call with which it is compared."""
        again = "the same call again", self._again, None
        for name, *outcomes in [again, *((run.way.name, run.got, run.want) for run in self._runs)]:
            errors = [each for each in outcomes if isinstance(each, Exception)]
            if errors:
                yield Change(RAISED, name, None, errors[0], math.nan, {}, ())

    def _changes(self, name: str, changed: Sequence[_Run]) -> Iterator[Change]:
        """The changes of one number."""
        rounding = self._roundings[name]
        values = {run.way.name: _value(run.got, name) for run in self._runs}
        wanted = {run.way.name: _value(run.want, name) for run in self._runs}
        ratios = {way: _ratio(want, values[way]) for way, want in wanted.items()}
        base, doubled = self._base.get(name), _value(self._doubled, name)
        ways = {run.way.name: run.way for run in changed}
        facts = Facts(name, rounding, values, base, doubled, ways)
        causes: dict[str, tuple[str, ...]] = {}
        for run in changed:
            way, want, got = run.way, wanted[run.way.name], values[run.way.name]
            # Where its own kind changes nothing, the cause is that of the variation before it.
            inherits = way.like in causes and not rounding.differs(values[way.like], got)
            causes[way.name] = (
                causes[way.like] if inherits else causes_of(Case(facts, run.experiments, want, got))
            )
            yield Change(name, way.name, want, got, ratios[way.name], ratios, causes[way.name])


def _value(outcome: Outcome, name: str) -> np.ndarray | None:
    return None if isinstance(outcome, Exception) else outcome.get(name)


def _ratio(want: np.ndarray | None, got: np.ndarray | None) -> float:
    """The ratio of two numbers, where they differ most; NaN if there is none."""
    if want is None or got is None or want.shape != got.shape or not want.size:
        return math.nan
    a, b = as_double(want).ravel(), as_double(got).ravel()
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        place = np.argmax(np.where(same, 0, np.nan_to_num(abs(a - b), nan=math.inf)))
        return float((b[place] / a[place]).real)
