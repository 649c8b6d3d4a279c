"""`datarax evaluate`: metrics of predictions that are in files."""

import argparse
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console
from rich.text import Text

from datarax import __version__
from datarax._errors import MetricInputError
from datarax.cli import console_tables
from datarax.cli.console_tables import Summary
from datarax.cli.interrupts import INTERRUPTED, beside, promptly
from datarax.cli.one_line import printable
from datarax.evaluation.assembly import assembled, without_interval, without_slices
from datarax.evaluation.columns import Encoded, Names
from datarax.evaluation.engines import engine
from datarax.evaluation.evaluator import folding_of
from datarax.evaluation.first_pass import Files
from datarax.evaluation.outcome import (
    PARTIAL,
    STATE,
    Outcome,
    files_of,
    resumed,
    save_state,
    write_outcome,
)
from datarax.evaluation.output_folder import held
from datarax.evaluation.partial_state import Merging
from datarax.evaluation.planning import Request, planned
from datarax.evaluation.progress_bar import progress_bar

SECONDS_BETWEEN_SAVES = 2.0


class Evaluation(NamedTuple):
    """A command that folds files, and how it shows what comes out."""

    fresh: Outcome
    """Before any row is folded in."""
    fold: Callable[..., object]
    """Folds all parts; it takes `executor`, `start` and `progress`."""
    summary: Callable[[Outcome, Sequence[str]], Summary]
    """The summary of an outcome, with notes."""
    files: Callable[[Outcome, Summary], dict[str, bytes]]
    """The contents of what is written at the end; the last is named to the user."""
    show: Callable[[Console, Summary], None]


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""

    def evaluation() -> Evaluation:
        files = Files(args.sources, lambda available: columns_of(args, available))
        fresh = prepared(args, files)
        fold = folding_of(
            files.tables,
            fresh.metric,
            replace(files.columns, encode=fresh.config.encoding),
            args.batch_size,
            jax.local_devices() if args.devices else None,
        )
        return Evaluation(fresh, fold, _summary, files_of, console_tables.show)

    return completed(args, evaluation)


def _summary(outcome: Outcome, notes: Sequence[str]) -> Summary:
    config, found = outcome.config, []
    for names, what in (
        (without_interval(config), "has no interval: its state is too large to hold for each draw"),
        (without_slices(config), "is not sliced: its state is too large to hold for each slice"),
    ):
        found += [f"{name} {what}" for name in names]
    return outcome.summary(__version__) | {"notes": [*found, *notes]}


def completed(args: argparse.Namespace, prepare: Callable[[], Evaluation]) -> int:
    """Runs an evaluation to its end, or until Ctrl-C, and returns the exit code."""
    check(args)
    # Before the folder is made: a wrong argument leaves nothing behind.
    evaluation = promptly(prepare)
    with held(args.output):
        return _written(args, evaluation)


def _written(args: argparse.Namespace, evaluation: Evaluation) -> int:
    folder: Path | None = args.output
    if folder is not None and not args.resume:
        (folder / PARTIAL).unlink(missing_ok=True)  # of an earlier run
    outcome = resumed(folder, evaluation.fresh) if folder and args.resume else evaluation.fresh
    save = Saver(folder)
    with warnings.catch_warnings(record=True) as caught:
        # Each becomes a note, also one that Python would show only once in a process.
        warnings.simplefilter("always")

        def computed() -> tuple[Summary, dict[str, bytes]]:
            summary = evaluation.summary(outcome, _said(caught))
            return summary, evaluation.files(outcome, summary) if folder else {}

        try:
            with closing(_steps(args, evaluation.fold, outcome)) as steps:
                for outcome in steps:
                    save(outcome)
            # All rows are folded; the reading that follows may still be interrupted.
            save.now(outcome)
            summary, contents = promptly(computed)
        except KeyboardInterrupt:
            return _stopped(folder, outcome)
    show_and_write(Console(highlight=False), folder, summary, contents, evaluation.show)
    return 0


def show_and_write(
    console: Console,
    folder: Path | None,
    summary: Summary,
    contents: Mapping[str, bytes],
    show: Callable[[Console, Summary], None] = console_tables.show,
) -> None:
    """Prints the results. Then writes the files, also if the results cannot be printed."""
    try:
        show(console, summary)
    finally:
        if folder is not None:
            write_outcome(folder, contents)
    if folder is not None:
        console.print(Text(f" {folder / list(contents)[-1]}", style="dim"), soft_wrap=True)


def _stopped(folder: Path | None, outcome: Outcome) -> int:
    """Saves the parts that were done before Ctrl-C. Results are not read, which may take long."""
    hint = "with --output, --resume continues"
    if folder is not None:
        save_state(folder, outcome, PARTIAL)
        hint = "--resume continues"
        if outcome.done and not outcome.config.compared and not (folder / STATE).exists():
            hint += f", and datarax merge {shlex.quote(str(folder))} --output DIR shows the others"
    left = outcome.total - len(outcome.done)
    print(f"interrupted: {left} of {outcome.total} parts are left; {hint}", file=sys.stderr)
    return INTERRUPTED


def prepared(args: argparse.Namespace, files: Files) -> Outcome:
    """The evaluation that the arguments ask for, before any row is folded in."""
    names, paths = files.names, [file.path for file in files.identities]
    if files.columns.together is not None:
        files.check_queries(files.columns.together)
    request = request_of(args, files.available)
    config = planned(request, names, files.first_rows(), files.value_counts)
    return Outcome(
        assembled(config),
        total=len(files.parts),
        merging=Merging(),
        files=files.identities,
        config=config,
        columns={"weights": None} | names,
        title=args.title or _title(paths),
    )


def columns_of(args: argparse.Namespace, available: Sequence[str]) -> Encoded:
    """The columns of each output of the task.

    Raises:
        MetricInputError: there are too few of them, or too many.
    """
    given: dict[str, Names] = {
        name: _wanted(getattr(args, name), available) for name in ("preds", "target")
    }
    if args.task == "detection":
        given = _detections(given)
    for name in ("weights", "query", "key"):
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    slices = [_slice(text, available)[0] for text in getattr(args, "slice_by", ())]
    given |= {f"slice_{place}": column for place, column in enumerate(slices)}
    if args.task in ("ranking", "text"):
        for output in ("preds", "target"):
            if not isinstance(given[output], str):
                raise MetricInputError(
                    f"--{output} names several columns; the task {args.task} takes one"
                )
    # A row without a value is in the slice "(no value)", and is not left out.
    optional = tuple(f"slice_{place}" for place in range(len(slices)))
    return Encoded(given, optional=optional, together=None if args.query is None else "query")


def _wanted(texts: Sequence[str], available: Sequence[str]) -> Names:
    """The columns in the texts of `--preds`: names, names with commas between them, and globs."""
    names = [
        part.strip()
        for text in texts
        # A column may have a comma in its name.
        for part in ([text] if text in available else text.split(","))
        if part.strip()
    ]
    return names[0] if len(names) == 1 else names


def _detections(given: Mapping[str, Names]) -> dict[str, Names]:
    names: dict[str, Names] = {}
    for argument, outputs in (
        ("preds", ("boxes", "scores", "labels")),
        ("target", ("target_boxes", "target_labels")),
    ):
        columns = [given[argument]] if isinstance(given[argument], str) else given[argument] or []
        if len(columns) != len(outputs):
            expected = ",".join(each.removeprefix("target_") for each in outputs)
            raise MetricInputError(
                f"--{argument} names {len(columns)} columns; the task detection takes "
                f"{len(outputs)}: {expected}"
            )
        names |= dict(zip(outputs, columns, strict=True))
    return names


def _title(paths: Sequence[str]) -> str:
    first = Path(paths[0]).name
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _steps(
    args: argparse.Namespace, fold: Callable[..., object], start: Outcome
) -> Generator[Outcome, None, None]:
    """The evaluation after each part that is folded in."""
    executor = engine(args.engine, args.address, args.workers) if args.engine else nullcontext()
    with executor as pool, progress_bar(not args.no_progress) as show:
        # On a thread, as Ctrl-C would wait for a compilation.
        def folding(give: Callable[[Outcome], None]) -> None:
            fold(executor=pool, start=start, progress=give)

        with closing(beside(folding)) as steps:
            for now in steps:
                if show is not None:
                    show(now)
                yield now


class Saver:
    """Saves the state while an evaluation runs, every few seconds, and seldom if that is slow.

    A disk that is full does not end the evaluation: what is written at the end says it.
    """

    def __init__(self, folder: Path | None):
        self._folder, self._next = folder, 0.0
        self._saved: Outcome | None = None

    def __call__(self, outcome: Outcome) -> None:
        """Saves it, unless the last time was a moment ago."""
        start = time.monotonic()
        if self._folder is None or start < self._next:
            return
        self.now(outcome)
        took = time.monotonic() - start
        # Saving takes at most a twentieth of the time.
        self._next = time.monotonic() + max(SECONDS_BETWEEN_SAVES, 20 * took)

    def now(self, outcome: Outcome) -> None:
        """Saves it, unless it is saved already, if there is a folder that can be written to."""
        if self._folder is not None and outcome is not self._saved:
            with suppress(OSError):
                save_state(self._folder, outcome, PARTIAL)
                self._saved = outcome


def check(args: argparse.Namespace) -> None:
    """Refuses arguments that do not go together, before anything is read."""
    if args.resume and args.output is None:
        args.parser.error("argument --resume: needs --output, the folder to continue in")
    if getattr(args, "devices", False) and args.engine is not None:
        args.parser.error("argument --devices: not with --engine, whose workers use the CPU")
    if args.engine is None:
        for name in ("address", "workers"):
            if getattr(args, name) is not None:
                args.parser.error(f"argument --{name}: needs --engine")
    if args.query is not None and args.task != "ranking":
        args.parser.error("argument --query: is for --task ranking")
    if args.scores is not None and args.task not in ("binary", "multiclass", "multilabel"):
        args.parser.error(f"argument --scores: is not for --task {args.task}")


def request_of(
    args: argparse.Namespace, available: Sequence[str], *, compared: bool = False
) -> Request:
    """The request that the arguments make, for files with these columns."""
    return Request(
        task=args.task,
        scores=args.scores,
        classes=None if args.classes is None else _distinct(args.classes, "--classes", 2),
        num_classes=args.num_classes,
        metrics=args.metrics,
        slices=tuple(_slice(text, available) for text in getattr(args, "slice_by", ())),
        bootstrap=args.bootstrap,
        confidence=args.confidence,
        on_invalid=args.on_invalid,
        pictures=args.output is not None,
        compared=compared,
    )


def _distinct(text: str, argument: str, least: int) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) < least or len(set(names)) < len(names) or not all(names):
        raise MetricInputError(
            f"argument {argument}: {text!r}; expected {least} or more distinct names with commas"
        )
    return names


def _slice(text: str, available: Sequence[str]) -> tuple[str, tuple[str, ...] | None]:
    """A column to slice by, and the values to slice by if they are given."""
    column, equals, values = text.partition("=")
    # A column may have "=" in its name.
    if text in available or not equals:
        return text, None
    return column, _distinct(values, f"--slice-by {column}", 1)


def _said(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """The warnings, each once, on one line."""
    return list(dict.fromkeys(printable(_of_command(str(x.message)), 400) for x in caught))


def _of_command(message: str) -> str:
    """A warning, with the metric's name and the option as the command has them."""
    # The wrappers are those of `assembled`, which a user has not written.
    message = re.sub(r"^metric '[^'/]*/([^']*)'", r"\1", message)
    message = message.replace("give from_logits=True", "give --scores logits")
    return message.replace("give from_logits=False", "give --scores probabilities")
