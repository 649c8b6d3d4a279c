"""`datarax metrics`: the catalogue of metrics, with what `datarax evaluate` takes for each."""

import argparse
import os
import shutil
import sys
import textwrap
from pathlib import Path

from datarax._errors import UnknownMetricError
from datarax.evaluation.tasks import Listed, catalogue_of, nearest

_FEW = 6
"""Up to so many metrics are described."""
_HEADS = ("metric", "better", "tasks", "takes", "options")


def show(args: argparse.Namespace) -> int:
    """Prints the metrics, and returns the exit code.

    Raises:
        UnknownMetricError: none has the name.
    """
    found = catalogue_of(args.task, args.pattern)
    if not found:
        names = [name for each in catalogue_of() for name in (each.name, each.other) if name]
        of = f" of the task {args.task!r}" if args.task else ""
        raise UnknownMetricError(
            f"there is no metric {args.pattern!r}{of}{nearest(args.pattern.lower(), names)}"
        )
    try:
        print("\n".join(_described(found) if len(found) <= _FEW else _table(found)), flush=True)
    except BrokenPipeError:  # of a reader that has seen enough, such as head
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - flushed when the process ends
    return 0


def _described(found: list[Listed]) -> list[str]:
    """A paragraph for each of a few metrics."""
    width, lines = shutil.get_terminal_size().columns, []
    for each in found:
        lines += [f"{each.name} ({each.other})" if each.other else each.name]
        facts = [each.description, *(f"{head}: {cell}" for head, cell in _facts(each))]
        for fact in facts:
            lines += textwrap.wrap(
                fact,
                max(width - 2, 40),
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
        lines.append("")
    return lines[:-1]


def _facts(each: Listed) -> list[tuple[str, str]]:
    of_task = each.tasks[0] if each.tasks else None
    facts: list[tuple[str, str]] = [*zip(_HEADS[1:], _cells(each)[1:], strict=True)]
    if of_task:
        required = "".join(f":{x}" for x in each.options if x.endswith("=..."))
        facts.append(("example", f"--task {of_task} --metrics {each.name}{required}"))
    return facts


def _cells(each: Listed) -> tuple[str, ...]:
    name = f"{each.name} ({each.other})" if each.other else each.name
    return (
        name,
        each.better or "neither",
        ", ".join(each.tasks) or "none: only in Python",
        ", ".join(each.inputs),
        ", ".join(each.options) or "none",
    )


def _table(found: list[Listed]) -> list[str]:
    """A line for each metric; in a terminal, what does not fit is wrapped below it."""
    rows = [_HEADS, *map(_cells, found)]
    widths = [max(len(row[place]) for row in rows) + 2 for place in range(len(_HEADS) - 1)]
    if not sys.stdout.isatty():  # a line that a program can search
        return ["".join([*map(str.ljust, row, [*widths, 0])]).rstrip() for row in rows]
    width, lines = shutil.get_terminal_size().columns, []
    first = min(widths[0], 38) + widths[1]
    for row in rows:
        head = f"{row[0]:<{first - widths[1]}}{row[1]}"
        rest = "  ".join([row[2], f"({row[3]})" if row is not _HEADS else row[3], row[4]])
        lines += textwrap.wrap(
            rest,
            max(width, first + 30),
            initial_indent=f"{head:<{first}}",
            subsequent_indent=" " * first,
            break_on_hyphens=False,
        )
    return lines
