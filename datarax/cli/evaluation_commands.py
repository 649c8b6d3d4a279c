"""`datarax evaluate`, `compare` and `merge`: metrics of predictions that are in files.

The names of the three public functions are those of the commands.
"""

import argparse
import re
import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import jax
from rich.console import Console
from rich.text import Text

from datarax import __version__
from datarax._checks import x64_enabled
from datarax._errors import CheckpointError, MetricInputError
from datarax.cli import console_tables
from datarax.cli.console_tables import Summary
from datarax.cli.gate import Gate
from datarax.cli.interrupts import INTERRUPTED, beside, promptly
from datarax.cli.one_line import printable
from datarax.evaluation import coco_files
from datarax.evaluation.assembly import (
    assembled,
    extremes,
    without_formula,
    without_formula_of_clusters,
    without_interval,
    without_slices,
)
from datarax.evaluation.columns import Encoded, Names
from datarax.evaluation.comparison_summary import comparison_of
from datarax.evaluation.encoding import Configuration, Slicing, Value
from datarax.evaluation.engines import engine
from datarax.evaluation.evaluator import FileFold
from datarax.evaluation.files import paths_of, tables_of
from datarax.evaluation.identity import identity_of
from datarax.evaluation.joined_rows import KEY, alone, joined_batches, notes_of_keys
from datarax.evaluation.largest_losses import ID, loss_name, with_batch
from datarax.evaluation.locations import name_of
from datarax.evaluation.log_planning import (
    LOG,
    alone_notes,
    chosen_scores,
    log_columns,
    logs_of,
    missing_of,
    paired_questions,
    unpaired_of,
    with_logs,
)
from datarax.evaluation.log_tables import Logs, log_tables
from datarax.evaluation.name_matching import look_alikes
from datarax.evaluation.outcome import (
    COMPARISON,
    PARTIAL,
    REPORT,
    STATE,
    SUMMARY,
    Outcome,
    comparison_files,
    files_of,
    merge_folders,
    resumed,
    save_state,
    write_outcome,
)
from datarax.evaluation.outcome_summary import plain, summary_of
from datarax.evaluation.output_folder import check_no_folders, held
from datarax.evaluation.paired_parts import MODELS, PREDICTED, Pair, paired_batches, pairs_of
from datarax.evaluation.partial_state import Folding, Merging, packed
from datarax.evaluation.planning import Files, alike_but_for_case, planned
from datarax.evaluation.progress_bar import progress_bar
from datarax.evaluation.table_batches import Outputs, TableBatch
from datarax.evaluation.tables import reading
from datarax.evaluation.tasks import imported, left_out_of_texts
from datarax.evaluation.text_format import HARNESSES, TextFormat
from datarax.evaluation.trec_files import TYPES
from datarax.wrappers.clusters import CLUSTER

SECONDS_BETWEEN_SAVES = 2.0  # at least


class _Evaluation(NamedTuple):
    """A command that folds files, and what it makes of the outcome."""

    fresh: Outcome
    """Before any row is folded in."""
    fold: FileFold
    summary: Callable[[Outcome, Sequence[str]], Summary]
    """The summary of an outcome, with notes."""
    gate: Gate
    """What must not hold."""
    files: Callable[[Outcome, Summary], dict[str, bytes]]
    """The contents of what is written at the end; the last is named to the user."""


def evaluate(args: argparse.Namespace) -> int:
    """Computes the metrics of files, and returns the exit code."""
    return _completed(args, _evaluation)


def _evaluation(args: argparse.Namespace) -> _Evaluation:
    text = _text_format(args)
    if text.logs is not None:
        return _log_evaluation(args, text)
    files = Files(args.sources, partial(_columns, args), text)
    if args.query is not None:
        files.check_queries("query")
    request = _with_trec(_with_coco(_request(args, files.available), [files]), [files])
    return _of_files(args, files, request, _summary)


def _log_evaluation(args: argparse.Namespace, text: TextFormat) -> _Evaluation:
    tables = tables_of(args.sources, text)
    logs = logs_of(tables)
    scores = chosen_scores([logs], _wanted(args.preds, [each.name for each in logs.scores]))
    files = Files((), lambda names: log_columns(scores, _beside(args, names)), tables=tables)
    request = with_logs(_request(args, files.available), logs, files.columns)
    return _of_files(args, files, request, partial(_log_summary, logs, scores))


def _beside(args: argparse.Namespace, available: Sequence[str]) -> dict[str, Names]:
    """The columns of the outputs that arguments of every task name."""
    given: dict[str, Names] = {
        name: getattr(args, name)
        for name in ("weights", ID)
        if getattr(args, name, None) is not None
    }
    if args.cluster_by is not None:
        given[CLUSTER] = args.cluster_by
    slicings = enumerate(_slicings(args, available))
    return given | {f"slice_{place}": slicing.by for place, slicing in slicings}


def _of_files(
    args: argparse.Namespace,
    files: Files,
    request: Configuration,
    summary: Callable[[Outcome, Sequence[str]], Summary],
) -> _Evaluation:
    config = planned(
        *(request, args.metrics, files.names, files.first_rows(), files.value_counts, files.types)
    )
    first, *more = files.identities  # there is at least one
    fresh = Outcome(
        assembled(config),
        total=len(files.parts),
        merging=Merging(),
        files=files.identities,
        config=config,
        columns={"weights": None} | files.names,
        title=args.title or name_of(first.path) + (f" and {len(more)} more" if more else ""),
    )
    gate = Gate(args.fail_if, args.fail_when, config)
    # What the values of the columns become is known only now, from the plan.
    columns = replace(files.columns, encode=config.encoding)
    devices = jax.local_devices() if args.devices else None
    keep = None if loss_name(config) is None else partial(with_batch, config=config)
    fold = FileFold.of_tables(files.tables, fresh.metric, columns, args.batch_size, devices, keep)
    return _Evaluation(fresh, fold, summary, gate, files_of)


def _summary(outcome: Outcome, notes: Sequence[str]) -> Summary:
    summary = summary_of(outcome, __version__)
    return summary | {"notes": [*_left_out(outcome.config), *notes, *summary["notes"]]}


def _log_summary(
    logs: Logs, scores: Sequence[str], outcome: Outcome, notes: Sequence[str]
) -> Summary:
    summary = _summary(outcome, [*logs.notes, *notes])
    return {**summary, "excluded": [*missing_of(logs, scores), *summary["excluded"]]}


def _left_out(config: Configuration) -> list[str]:
    """Says which metrics have no interval, and which no slices, and why."""
    of_clusters, no_formula = without_formula_of_clusters(config), without_formula(config)
    replicas = "--bootstrap 200 draws one"
    reasons = {
        f"no formula for an interval: {replicas}": [x for x in no_formula if x not in of_clusters],
        f"no formula for an interval of clusters: {replicas}": of_clusters,
        # Of a comparison, its table says that.
        "no interval: no sample goes beyond the extreme of the data": (
            [] if config.compared else extremes(config)
        ),
        "no interval: no formula, and a state too large to hold for each draw": without_interval(
            config
        ),
        "no slices: a state too large to hold for each slice": without_slices(config),
    }
    left_out = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items() if names]
    chosen = [*_assumed_order(config), *_paired(config), *_look_alikes(config)]
    return [*config.remarks, *chosen, *_normalized(config), *left_out]


def _normalized(config: Configuration) -> Iterator[str]:
    """Says what does not count where texts are compared."""
    for spec in config.specs:
        if left_out := left_out_of_texts(spec):
            yield (
                f"{spec.name}: equal without {left_out}; normalize=False compares texts as they are"
            )


def _assumed_order(config: Configuration) -> list[str]:
    """Says for which classes the columns of scores are taken, if nothing says their order."""
    if not config.assumed_order or config.names is None:
        return []
    return [
        f"{', '.join(config.assumed_order)} are taken for the scores of the classes "
        f"{', '.join(config.names)}, in this order, that of the alphabet; --classes sets it"
    ]


def _paired(config: Configuration) -> list[str]:
    """Says which columns of predictions and targets are compared, if names do not say it."""
    if not config.pairs:
        return []
    why = "by name" if config.target_order else "by place, as their names do not match"
    shown = ", ".join(f"{a} with {b}" for a, b in config.pairs[:6])
    more = ", ..." if len(config.pairs) > 6 else ""
    return [f"the columns of --preds and --target are matched {why}: {shown}{more}"]


def _look_alikes(config: Configuration) -> Iterator[str]:
    """Says which classes, and which slices, differ in case or white space alone."""
    named = {"classes": config.names if config.named else None}
    named |= {
        f"slices by {each.by}": [x for x in each.values if isinstance(x, str)]
        for each in config.slicings
    }
    for what, names in named.items():
        for alike in look_alikes(names or ())[:3]:
            yield f"{alike_but_for_case(alike)}: they count as different {what}"


def compare(args: argparse.Namespace) -> int:
    """Computes the differences of two models on the same examples, and returns the exit code."""
    return _completed(args, _comparison)


def _comparison(args: argparse.Namespace) -> _Evaluation:
    text = _text_format(args)
    if text.logs is not None:
        return _log_comparison(args, text)
    a = Files(args.a, partial(_columns, args), text)
    b = Files(args.b, partial(_columns_of_second, args, a), text)
    models = {"a": a, "b": b}
    if args.query is not None:
        a.check_queries("query")  # those of `b` must be equal, row by row
    config = _configuration(args, models)
    # A batch has the predictions of both models for the same rows.
    feeds, types = (a.feeds, b.feeds), (a.types, b.types)
    parts, read = pairs_of(a.parts, b.parts), paired_batches
    whole, said = Pair((tuple(a.parts), tuple(b.parts)), 0), list[str]()
    only = None if args.key is None else alone(whole, feeds, types)
    if args.key is not None and only is not None:
        parts, read, said = [whole], joined_batches, [*notes_of_keys(only, args.key)]
    elif args.key is None and args.task == "score":
        said = ["rows are paired by their places; --key pairs them by an id"]
    batches = partial(read, feeds=feeds, types=types, rows=args.batch_size)

    def summary(outcome: Outcome, notes: Sequence[str]) -> Summary:
        return _compared_summary(args, outcome, [*said, *notes])

    return _of_pairs(args, (a, b), config, parts, batches, summary)


def _of_pairs(
    args: argparse.Namespace,
    models: tuple[Files, Files],
    config: Configuration,
    parts: Sequence[Pair],
    batches: Callable[[Pair], Generator[TableBatch, None, None]],
    summary: Callable[[Outcome, Sequence[str]], Summary],
) -> _Evaluation:
    a, b = models
    files = (*a.identities, *b.identities)
    fresh = Outcome(
        assembled(config),
        total=len(parts),
        merging=Merging(),
        files=files,
        config=config,
        columns=a.names,
        title=args.title or f"{name_of(args.a)} and {name_of(args.b)}",
    )
    folding = Folding(
        packed(fresh.metric),
        batches,
        args.batch_size,
        x64_enabled(),
        encode=config.encoding,
        together=a.columns.together,
    )
    fold = FileFold(fresh.metric, folding, parts, files)
    gate = Gate(args.fail_if, args.fail_when, config)
    return _Evaluation(fresh, fold, summary, gate, comparison_files)


def _log_comparison(args: argparse.Namespace, text: TextFormat) -> _Evaluation:
    paths = [paths_of(source, harness=args.format) for source in (args.a, args.b)]
    tables = log_tables(paths, text, questions=True)
    logs = list(map(logs_of, tables))
    scores = chosen_scores(logs, _wanted(args.preds, [each.name for each in logs[0].scores]))
    a, b = (
        Files((), lambda names: log_columns(scores, _beside(args, names)), tables=each)
        for each in tables
    )
    request = with_logs(_request(args, a.available, compared=True), logs[0], a.columns)
    config = _configuration(args, {"a": a, "b": b}, request)
    others = {name: names[0] for name, names in a.names.items() if name not in ("preds", LOG)}
    if args.cluster_by is None:  # a row is a question
        config = replace(config, clustered=False)
        del others[CLUSTER]
    batches = partial(
        paired_questions,
        tables=(a.tables[0], b.tables[0]),
        scores=scores,
        others=others,
        rows=args.batch_size,
    )

    def summary(outcome: Outcome, notes: Sequence[str]) -> Summary:
        said = [*(note for each in logs for note in each.notes), *alone_notes(logs), *notes]
        found = _compared_summary(args, outcome, list(dict.fromkeys(said)))
        return {**found, "excluded": [*unpaired_of(logs, scores), *found["excluded"]]}

    parts = [Pair((tuple(a.parts), tuple(b.parts)), 0)]
    return _of_pairs(args, (a, b), config, parts, batches, summary)


def _compared_summary(args: argparse.Namespace, outcome: Outcome, notes: Sequence[str]) -> Summary:
    sources = {model: getattr(args, model) for model in MODELS}
    notes = [*_left_out(outcome.config), *notes]
    return comparison_of(outcome, __version__, sources, notes)


def _configuration(
    args: argparse.Namespace, models: Mapping[str, Files], request: Configuration | None = None
) -> Configuration:
    """The configuration of both models: classes may be in either file."""

    def scan(outputs: Sequence[str]) -> dict[str, Counter[Value]]:
        counts: dict[str, Counter[Value]] = {output: Counter() for output in outputs}
        for output, (model, files) in product(outputs, models.items()):
            base = output.removesuffix(f"_{model}")
            # Both have a target; predictions of one model are named after it.
            if base in files.names and (base not in PREDICTED or base != output):
                counts[output] += files.value_counts([base])[base]
        return counts

    first: Outputs = {}
    names: dict[str, list[str]] = {}
    for model, files in models.items():
        for output, x in files.first_rows().items():
            name = f"{output}_{model}" if output in PREDICTED else output
            first[name], names[name] = x, files.names[output]
    request = request or _request(args, models["a"].available, compared=True)
    request = _with_trec(_with_coco(request, [*models.values()]), [*models.values()])
    types = models["a"].types
    # Of a column that only one model has as text, the example is of that one.
    types = types | {name: x for name, x in models["b"].types.items() if x.example is not None}
    return planned(request, args.metrics, names, first, scan, types)


def merge(args: argparse.Namespace) -> int:
    """Makes one result of the folders of several evaluations, and returns the exit code."""
    folder: Path = args.output
    for module in args.modules:  # only the user says what is imported, never a folder
        imported(module)
    if (folder / PARTIAL).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds an evaluation that was stopped: use another folder for --output"
        )
    _check_unused(folder, args)

    def computed() -> tuple[Summary, dict[str, bytes]]:
        outcome = merge_folders(
            args.folders, duplicates=args.allow_duplicates, title=args.title or ""
        )
        summary = _gated(
            summary_of(outcome, __version__), Gate(args.fail_if, args.fail_when, outcome.config)
        )
        return summary, files_of(outcome, summary)

    # Before the folder is made: a merge that is refused leaves none behind.
    summary, contents = promptly(computed)
    with held(folder):
        _show_and_write(folder, summary, contents)
    return _code(summary)


def _gated(summary: Summary, gate: Gate) -> Summary:
    """The summary with what the gate says of it."""
    notes = [*gate.notes(), *summary["notes"]]
    return {**summary, "gate": plain(gate.of(summary)), "notes": notes}


def _code(summary: Summary) -> int:
    """The exit code: 1 if a condition of `--fail-if` fails."""
    return int(any(each["failed"] for each in summary["gate"]))


def _completed(
    args: argparse.Namespace, prepare: Callable[[argparse.Namespace], _Evaluation]
) -> int:
    """Runs an evaluation to its end, or until Ctrl-C, and returns the exit code."""
    _check(args)
    if args.output is not None and not args.resume:
        _check_unused(args.output, args)
    # Before the folder is made: a wrong argument leaves nothing behind.
    evaluation = promptly(partial(prepare, args))
    with held(args.output):
        if args.output is not None:  # now, rather than when all is computed
            check_no_folders(args.output, (PARTIAL, STATE, SUMMARY, REPORT, COMPARISON))
        return _written(args, evaluation)


def _check_unused(folder: Path, args: argparse.Namespace) -> None:
    """Raises if a folder holds results or a state, unless they are to be replaced."""
    found = [name for name in (PARTIAL, STATE, SUMMARY, COMPARISON) if (folder / name).exists()]
    if not found or args.overwrite:
        return
    what, ways = "results", "--overwrite replaces them"
    if PARTIAL in found:
        what = "an evaluation that was stopped"
        ways = "--resume continues it, --overwrite deletes it"
    elif hasattr(args, "resume"):
        ways = f"--resume reads no file again, {ways}"
    raise CheckpointError(f"{str(folder)!r} holds {what}, {found[0]}: {ways}")


def _written(args: argparse.Namespace, evaluation: _Evaluation) -> int:
    folder: Path | None = args.output
    if folder is not None and not args.resume:
        (folder / PARTIAL).unlink(missing_ok=True)  # of an earlier run
    outcome = evaluation.fresh
    # A run that was killed before its first save has left nothing: it starts anew.
    if folder and args.resume and any((folder / name).exists() for name in (PARTIAL, STATE)):
        outcome = promptly(partial(resumed, folder, outcome))
    save = _Saver(folder)
    with warnings.catch_warnings(record=True) as caught:
        # Each becomes a note, also one that Python would show only once in a process.
        warnings.simplefilter("always")

        def computed() -> tuple[Summary, dict[str, bytes]]:
            summary = _gated(evaluation.summary(outcome, _said(caught)), evaluation.gate)
            return summary, evaluation.files(outcome, summary) if folder else {}

        try:
            with closing(_steps(args, evaluation.fold, outcome)) as steps:
                for outcome in steps:
                    save(outcome)
            # All rows are folded; the reading that follows may still be interrupted.
            save(outcome, at_once=True)
            summary, contents = promptly(computed)
        except KeyboardInterrupt:
            return _stopped(folder, outcome)
    _show_and_write(folder, summary, contents)
    return _code(summary)


def _show_and_write(folder: Path | None, summary: Summary, contents: Mapping[str, bytes]) -> None:
    """Prints the results. Then writes the files, also if the results cannot be printed."""
    console = Console(highlight=False)
    try:
        console_tables.show(console, summary)
    finally:
        if folder is not None:
            write_outcome(folder, contents)
    if folder is not None:
        place = printable(str(folder / list(contents)[-1]), 4096)
        console.print(Text(f" {place}", style="dim"), soft_wrap=True)


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


def _text_format(args: argparse.Namespace) -> TextFormat:
    missing = () if args.missing_values is None else args.missing_values.split(",")
    harness = args.format if args.format in HARNESSES else None
    text = TextFormat.checked(args.delimiter, args.encoding, args.decimal, missing, harness)
    if args.qrels is not None:
        models = [getattr(args, model) for model in MODELS if hasattr(args, model)]
        with reading(args.qrels):
            text = text._replace(layout="trec", beside=identity_of(args.qrels))
        among = []
        for path in models:
            with reading(path):
                among.append(identity_of(path))
        return text._replace(among=tuple(among), all_queries=args.all_queries)
    if args.format != "coco":
        return text
    (truth,) = args.target
    with reading(truth):
        return text._replace(layout=args.format, beside=identity_of(truth))


def _columns(args: argparse.Namespace, available: Sequence[str]) -> Encoded:
    """The columns of each output of the task.

    Raises:
        MetricInputError: there are too few of them, or too many.
    """
    given: dict[str, Names] = {}
    if args.format == "coco":
        given |= {name: name for name in (*coco_files.PREDICTED, *coco_files.TRUE)}
    if args.qrels is not None:
        given |= {name: name for name in TYPES}
    for name in ("preds", "target") if args.format is None and args.qrels is None else ():
        if not getattr(args, name):
            continue
        columns = _wanted(getattr(args, name), available)
        if args.task in ("ranking", "text") and len(columns) != 1:
            raise MetricInputError(
                f"--{name} names several columns; the task {args.task} takes one"
            )
        if args.task == "detection":
            given |= _detections(name, columns)
        else:
            given[name] = columns[0] if len(columns) == 1 else columns
    for name in ("weights", "query", "key", ID):
        if getattr(args, name, None) is not None:
            given[name] = getattr(args, name)
    if args.cluster_by is not None:
        given[CLUSTER] = args.cluster_by
    slicings = _slicings(args, available)
    slices = {f"slice_{place}": slicing.by for place, slicing in enumerate(slicings)}
    # A row without a value is in the slice "(no value)", and is not left out.
    optional = (*slices, *([ID] if ID in given else []))
    return Encoded(
        given | slices,
        optional=optional,
        together="query" if "query" in given else None,
        texts=("preds", "target") if args.task == "text" else (),
        marks=(*slices, "query", "key", ID, CLUSTER),
    )


def _columns_of_second(args: argparse.Namespace, a: Files, available: Sequence[str]) -> Encoded:
    """The columns of the second model: with a key, those of both need only be in the first."""
    if args.key is None:
        return _columns(args, available)
    every = _columns(args, [*available, *a.available])
    kept = {
        name: columns
        for name, columns in every.names.items()
        if name in (*PREDICTED, KEY)
        or columns is None
        or any(x == y or fnmatchcase(y, x) for x in _listed_names(columns) for y in available)
    }
    return replace(every, names=kept)


def _listed_names(columns: Names) -> Sequence[str]:
    return [columns] if isinstance(columns, str) else columns or []


def _wanted(texts: Sequence[str], available: Sequence[str]) -> list[str]:
    """The columns in the texts of `--preds`: names, names with commas between them, and globs.

    Names are exact: a file may have the columns "score" and " score".
    """
    # A column may have a comma in its name.
    parts = [part for text in texts for part in ([text] if text in available else text.split(","))]
    return [part for part in parts if part]


def _detections(argument: str, columns: Sequence[str]) -> dict[str, Names]:
    """The columns of the outputs of detections, of predictions or of the ground truth."""
    outputs = ("boxes", "scores", "labels") if argument == "preds" else ("boxes", "labels")
    if len(columns) != len(outputs):
        raise MetricInputError(
            f"--{argument} names {len(columns)} columns; the task detection takes "
            f"{len(outputs)}: {','.join(outputs)}"
        )
    prefix = "" if argument == "preds" else "target_"
    return {f"{prefix}{name}": column for name, column in zip(outputs, columns, strict=True)}


def _with_coco(request: Configuration, models: Sequence[Files]) -> Configuration:
    """The request, with what the files of COCO say; as it is for tables."""
    tables = [table for files in models if (table := files.coco) is not None]
    truth = models[0].tables[0].text.beside
    if not tables or truth is None:
        return request
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    return replace(
        request,
        names=tables[0].classes,
        box_format="xywh",
        detections=max(table.detections for table in tables),
        ground_truth=f"{truth.path} ({truth.size} bytes, {truth.digest})",
        remarks=tuple(remarks),
    )


def _with_trec(request: Configuration, models: Sequence[Files]) -> Configuration:
    """The request, with what the files of TREC say; as it is for tables."""
    tables = [table for files in models if (table := files.trec) is not None]
    if not tables:
        return request
    text = models[0].tables[0].text
    remarks = dict.fromkeys(remark for table in tables for remark in table.remarks)
    truth = text.beside if text.all_queries else None
    return replace(
        request,
        empty_is_zero=True,
        ground_truth=truth and f"{truth.path} ({truth.size} bytes, {truth.digest})",
        remarks=(*request.remarks, *remarks),
    )


def _steps(
    args: argparse.Namespace, fold: FileFold, start: Outcome
) -> Generator[Outcome, None, None]:
    """The evaluation after each part that is folded in."""
    executor = engine(args.engine, args.address, args.workers) if args.engine else nullcontext()
    with executor as pool, progress_bar(not args.no_progress) as show:
        # On a thread, as Ctrl-C would wait for a compilation.
        def folding(give: Callable[[Outcome], None]) -> None:
            fold.run(start, executor=pool, progress=give)

        with closing(beside(folding)) as steps:
            for now in steps:
                if show is not None:
                    show(now)
                yield now


class _Saver:
    """Saves the state while an evaluation runs, every few seconds, and seldom if that is slow.

    A disk that is full does not end the evaluation: what is written at the end says it.
    """

    def __init__(self, folder: Path | None):
        self._folder, self._next = folder, 0.0
        self._saved: Outcome | None = None

    def __call__(self, outcome: Outcome, *, at_once: bool = False) -> None:
        """Saves it, unless it is saved already, or the last time was a moment ago."""
        start = time.monotonic()
        too_soon = start < self._next and not at_once
        if self._folder is None or outcome is self._saved or too_soon:
            return
        with suppress(OSError):
            save_state(self._folder, outcome, PARTIAL)
            self._saved = outcome
        took = time.monotonic() - start
        # Saving takes at most a twentieth of the time.
        self._next = time.monotonic() + max(SECONDS_BETWEEN_SAVES, 20 * took)


def _check(args: argparse.Namespace) -> None:
    """Refuses arguments that do not go together, before anything is read."""
    # `compare` has no --devices.
    has_engine, devices = args.engine is not None, getattr(args, "devices", False)
    has_ids = getattr(args, ID, None) is not None
    of_classes = args.task in ("binary", "multiclass", "multilabel")
    coco, trec = args.format == "coco", args.qrels is not None
    wrong = {
        "qrels: is for --task ranking": trec and args.task != "ranking",
        "qrels: not with --format": trec and args.format is not None,
        "all-queries: needs --qrels": args.all_queries and not trec,
        **{
            f"{name.replace('_', '-')}: is not for --qrels, whose files have no other columns": (
                trec and bool(getattr(args, name, None))
            )
            for name in ("preds", "target", "query", "weights", ID, "key", "slice_by", "cluster_by")
        },
        "missing-values: is not for --qrels": trec and args.missing_values is not None,
        "id: names rows, which --no-rows leaves out": has_ids and args.no_rows,
        "id: is for the rows of the report: needs --output": has_ids and args.output is None,
        "resume: needs --output, the folder to continue in": args.resume and args.output is None,
        "overwrite: needs --output": args.overwrite and args.output is None,
        "overwrite: not with --resume, which continues what is there": (
            args.overwrite and args.resume
        ),
        "devices: not with --engine, whose workers use the CPU": has_engine and devices,
        "address: needs --engine": args.address is not None and not has_engine,
        "workers: needs --engine": args.workers is not None and not has_engine,
        "format: coco is for --task detection": coco and args.task != "detection",
        "target: is the file of the ground truth, with --format coco": coco and not args.target,
        "target: --format coco takes one file": coco and len(args.target) > 1,
        "preds: is not for --format coco, whose columns are known": coco and args.preds,
        "classes: is not for --format coco: the ground truth names its categories": (
            coco and (args.classes is not None or args.num_classes is not None)
        ),
        "box-format: is not for --format coco: boxes are x, y, width, height": (
            coco and args.box_format is not None
        ),
        f"box-format: is not for --task {args.task}": (
            args.box_format is not None and args.task != "detection"
        ),
        f"target: is required for --task {args.task}": (
            not args.target and args.task != "score" and not trec
        ),
        "target: is not for --task score, which has no ground truth": (
            args.target and args.task == "score"
        ),
        "query: is for --task ranking": args.query is not None and args.task != "ranking",
        f"scores: is not for --task {args.task}": args.scores is not None and not of_classes,
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            args.parser.error(f"argument --{message}")


def _request(
    args: argparse.Namespace, available: Sequence[str], *, compared: bool = False
) -> Configuration:
    """The request that the arguments make, for files with these columns."""
    return Configuration(
        task=args.task,
        scores=args.scores,
        names=None if args.classes is None else _distinct(args.classes, "--classes", 2),
        size=args.num_classes,
        slicings=tuple(_slicings(args, available)),
        bootstrap=args.bootstrap,
        confidence=args.confidence,
        on_invalid=args.on_invalid,
        pictures=args.output is not None,
        rows=args.output is not None and not getattr(args, "no_rows", True),
        missing_values=_text_format(args).missing_values,
        box_format=args.box_format,
        compared=compared,
    )


def _distinct(text: str, argument: str, least: int) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(names) < least or len(set(names)) < len(names) or not all(names):
        raise MetricInputError(
            f"argument {argument}: {text!r}; expected {least} or more distinct names with commas"
        )
    return names


def _slicings(args: argparse.Namespace, available: Sequence[str]) -> Iterator[Slicing]:
    """The columns to slice by, with the values to slice by if they are given."""
    for text in getattr(args, "slice_by", ()):
        column, equals, values = text.partition("=")
        # A column may have "=" in its name.
        if text in available:
            column, equals = text, ""
        # A file may have the column far below its first rows: `Files` looks for it.
        yield Slicing(column, _distinct(values, f"--slice-by {column}", 1) if equals else ())


def _said(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """The warnings, each once, on one line; without those of figures, which repeat others."""
    lines = dict.fromkeys(printable(_of_command(str(x.message)), 400) for x in caught)
    return [line for line in lines if not line.startswith(("figure/", "class/"))]


def _of_command(message: str) -> str:
    """A warning, with the metric's name as the command has it."""
    # The name has the wrappers before it, which `assembled` has made, and the user has not.
    return re.sub(r"^metric '[^'/]*/([^']*)'", r"\1", message)
