"""The arguments of `datarax evaluate`, `compare` and `merge`. It does not import JAX."""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# Listed again: the modules of the evaluation import JAX, which takes a second.
TASKS = ("binary", "multiclass", "multilabel", "regression", "ranking", "text", "detection")
ENGINES = ("processes", "dask", "ray")
_EXAMPLES = {
    "evaluate": """\
examples:
  datarax evaluate predictions.parquet --task binary --preds score --target label
  datarax evaluate 'shards/*.parquet' --task multiclass --preds 'logit_*' --target label \\
      --slice-by country --bootstrap 200 --output report/
  datarax evaluate out.jsonl --task text --preds answer --target reference --metrics bleu,chrf
""",
    "compare": """\
examples:
  datarax compare old.parquet new.parquet --task binary --preds score --target label --key id
""",
    "merge": """\
examples:
  datarax merge job-0/ job-1/ job-2/ --output all/
""",
}


def add_commands(commands: Any, integer: Callable[..., Callable[[str], int]]) -> None:
    """Adds the three commands to the subparsers of `datarax`."""
    evaluate = _command(
        commands,
        "evaluate",
        "metrics of predictions that are in files",
        "Computes the metrics of predictions in Parquet, Arrow, CSV, JSON-lines or NPZ files, "
        "prints them, and with --output writes a report. The files are read in parts, so they need "
        "not fit in memory.",
    )
    evaluate.add_argument(
        "sources", nargs="+", metavar="FILE", help="files, folders, or globs in quotes"
    )
    _add_columns(evaluate, integer)
    evaluate.add_argument(
        "--slice-by",
        action="append",
        default=[],
        metavar="COLUMN[=V,V]",
        help="also give the metrics for each value of this column: of the values after '=', else "
        "of the 100 most frequent; may be repeated",
    )
    evaluate.add_argument(
        "--bootstrap",
        type=integer(0, 10_000),
        default=0,
        metavar="N",
        help="give intervals, from N resamplings of the rows: 200 or more",
    )
    _add_confidence(evaluate)
    evaluate.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for metrics.json, report.html, pictures, and the state to resume from",
    )
    evaluate.add_argument(
        "--devices",
        action="store_true",
        help="compute on the devices of this process, by compiled programs; for accelerators and "
        "many millions of rows (default: on the CPU, in NumPy)",
    )
    _add_running(evaluate, integer)
    evaluate.set_defaults(run=_runs("evaluate"), parser=evaluate, command="evaluate")

    compare = _command(
        commands,
        "compare",
        "differences of two models on the same examples, with intervals",
        "Computes the metrics of two files of predictions whose rows are the same examples in the "
        "same order, and the intervals of their paired differences, b - a.",
    )
    compare.add_argument("a", metavar="A", help="the file of the first model")
    compare.add_argument("b", metavar="B", help="the file of the second model")
    _add_columns(compare, integer)
    compare.add_argument(
        "--key", metavar="COLUMN", help="column that must agree in both files, row by row"
    )
    compare.add_argument(
        "--bootstrap",
        type=integer(2, 10_000),
        default=200,
        metavar="N",
        help="how many resamplings of the rows (default: 200)",
    )
    _add_confidence(compare)
    compare.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for metrics.json and the state to resume from",
    )
    _add_running(compare, integer)
    compare.set_defaults(run=_runs("compare"), parser=compare, command="compare")

    merge = _command(
        commands,
        "merge",
        "one result of the folders of several evaluations",
        "Merges what `datarax evaluate --output` has written to several folders, as the jobs of an "
        "array do, as if all files had been evaluated together.",
    )
    merge.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders to merge")
    merge.add_argument(
        "--output", type=Path, metavar="DIR", required=True, help="folder for the result"
    )
    merge.add_argument(
        "--allow-duplicates", action="store_true", help="count a file twice that is in two folders"
    )
    merge.add_argument("--title", metavar="T", help="title of the report")
    merge.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of your own metrics that the folders hold; may be repeated",
    )
    merge.set_defaults(run=_runs("merge"), parser=merge, command="merge")


def _command(commands: Any, name: str, summary: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=_EXAMPLES[name],
        formatter_class=_Formatter,
    )


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples, and wraps the description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Only the examples have lines of their own.
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def _add_columns(parser: argparse.ArgumentParser, integer: Callable[..., Any]) -> None:
    parser.add_argument("--task", choices=TASKS, required=True, help="the kind of predictions")
    parser.add_argument(
        "--preds",
        action="append",
        required=True,
        metavar="COLUMNS",
        help="columns of predictions: a name, names with commas between them, or a glob such as "
        "'logit_*'; of detections: boxes,scores,labels",
    )
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="COLUMNS",
        help="columns of the ground truth; of detections: boxes,labels",
    )
    parser.add_argument("--weights", metavar="COLUMN", help="column of the weights of the rows")
    parser.add_argument(
        "--query", metavar="COLUMN", help="column of the ids of queries, of the task ranking"
    )
    parser.add_argument(
        "--scores",
        choices=("logits", "probabilities", "labels"),
        help="what the columns of predictions hold (default: logits if their names begin with "
        "'logit', else probabilities; labels for one column of multiclass predictions)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--classes", metavar="NAMES", help="names of the classes in their order, with commas"
    )
    size.add_argument(
        "--num-classes", type=integer(2, 10_000), metavar="N", help="the number of classes"
    )
    parser.add_argument(
        "--metrics",
        metavar="NAMES",
        help="metrics by name, with commas; options after colons: accuracy,fbeta:beta=2",
    )
    parser.add_argument(
        "--on-invalid",
        choices=("propagate", "exclude", "raise"),
        default="propagate",
        help="what NaN, infinite values and labels out of range do: make the result NaN (default), "
        "be left out, or end the command",
    )


def _add_confidence(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--confidence",
        type=_fraction,
        default=0.95,
        metavar="P",
        help="confidence of intervals (default: 0.95)",
    )


def _add_running(parser: argparse.ArgumentParser, integer: Callable[..., Any]) -> None:
    parser.add_argument(
        "--batch-size",
        type=integer(1, 1 << 24),
        default=65536,
        metavar="N",
        help="rows in memory at a time (default: 65536)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue what was interrupted in the folder of --output",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="read parts in other processes, or on a cluster"
    )
    parser.add_argument("--address", metavar="A", help="of the scheduler of Dask or Ray")
    parser.add_argument(
        "--workers", type=integer(1, 4096), metavar="N", help="how many processes of the engine"
    )
    parser.add_argument("--title", metavar="T", help="title of the report")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
    return value


def _runs(module: str) -> Callable[[argparse.Namespace], int]:
    """Imports a command when it runs, because it imports JAX."""

    def run(args: argparse.Namespace) -> int:
        from datarax._optional import optional
        from datarax.cli import one_line

        with one_line.errors(args.parser):
            optional("rich", "evaluate", f"datarax {args.command}")
            if args.output:  # before the files are read, not when the report is written
                optional("jinja2", "evaluate", f"datarax {args.command} --output")
            command = import_module(f"datarax.cli.{module}")
            return command.run(args)

    return run
