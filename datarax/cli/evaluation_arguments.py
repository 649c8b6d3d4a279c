"""The arguments of `datarax evaluate`, `compare` and `merge`. It does not import JAX."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from datarax._optional import optional
from datarax.cli import interrupts
from datarax.cli.conditions import a_condition
from datarax.cli.one_line import DEBUG, described, printable

# Listed again: the modules of the evaluation import JAX, which takes a second.
TASKS = (
    "binary",
    "multiclass",
    "multilabel",
    "regression",
    "score",
    "ranking",
    "text",
    "detection",
)
ENGINES = ("processes", "dask", "ray")
FORMATS = ("inspect", "lm-eval", "coco")
BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
# What the help of each command ends with.
_EXAMPLES = {
    "evaluate": """\
examples:
  datarax evaluate predictions.parquet --task binary --preds score --target label
  datarax evaluate 'shards/*.parquet' --task multiclass --preds 'logit_*' --target label \\
      --slice-by country --bootstrap 200 --output report/
  datarax evaluate logs/ --format inspect --slice-by metadata.level
  datarax evaluate out.jsonl --task text --preds answer --target reference --metrics bleu,chrf
  datarax evaluate judged.csv --task score --preds judge_score --slice-by topic
  datarax evaluate results.json --task detection --format coco --target ground_truth.json
  datarax evaluate run.txt --task ranking --qrels qrels.txt --metrics ndcg:k=10,map,bpref
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


_SOURCES = (
    "files, folders, or globs in quotes; also at s3://, gs:// and other URIs of pyarrow.fs; text "
    "may be compressed (.gz, .zst, .bz2); folders named country=de give a column country"
)
_PRECISION = (
    "Numbers are used as they are in the files: float64 and 64-bit integers are not rounded before "
    "errors, ranks and logarithms are computed"
)


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds the three commands to the subparsers of `datarax`, with their method `add_parser`."""
    evaluate = _command(
        add_parser,
        "evaluate",
        "metrics of predictions that are in files",
        "Computes the metrics of predictions in Parquet, Arrow, CSV, JSON-lines, JSON or NPZ "
        "files, prints them, and with --output writes a report. The files are read in parts, so "
        f"they need not fit in memory. {_PRECISION}; --devices rounds them to float32.",
    )
    evaluate.add_argument("sources", type=a_path, nargs="+", metavar="FILE", help=_SOURCES)
    _add_columns(evaluate)
    _add_text_format(evaluate)
    _add_slices(evaluate)
    draws = "intervals of metrics without a formula, from N resamplings of the rows: 200 or more"
    add_integer(evaluate.add_argument, "--bootstrap", 0, 10_000, draws, default=0)
    evaluate.add_argument(
        "--id",
        metavar="COLUMN",
        help="column of the ids of rows, which name those with the largest losses in the report",
    )
    evaluate.add_argument(
        "--no-rows",
        action="store_true",
        help="write nothing of single rows; else the report has the 20 with the largest losses",
    )
    _add_output(evaluate, "metrics.json, report.html, pictures, and the state to resume from")
    of_one = "'NAME < NUMBER' (or <=, >, >=), or 'NAME drops NUMBER against DIR' (or rises)"
    _add_gate(evaluate, of_one)
    evaluate.add_argument(
        "--devices",
        action="store_true",
        help="compute on the devices of this process, by compiled programs; for accelerators and "
        "many millions of rows (default: on the CPU, in NumPy)",
    )
    _add_running(evaluate)

    compare = _command(
        add_parser,
        "compare",
        "differences of two models on the same examples, with intervals",
        "Computes the metrics of two models on the same examples, and the intervals of their "
        "paired differences, b - a. The rows of the two files are in the same order, or are "
        f"joined by --key. {_PRECISION}.",
    )
    compare.add_argument("a", type=a_path, metavar="A", help="the file of the first model")
    compare.add_argument("b", type=a_path, metavar="B", help="the file of the second model")
    _add_columns(compare)
    _add_text_format(compare)
    compare.add_argument(
        "--key",
        metavar="COLUMN",
        help="column of an id by which the rows of both files are joined (default: rows are in "
        "the same order)",
    )
    _add_slices(compare)
    # Zero is refused: a comparison is about intervals. One resampling has no spread.
    draws = "how many resamplings of the rows, for metrics without a formula (default: 200)"
    add_integer(compare.add_argument, "--bootstrap", 2, 10_000, draws, default=200)
    _add_gate(compare, "'NAME drops NUMBER' (or rises), from a to b")
    _add_output(compare, "metrics.json, comparison.html, and the state to resume from")
    _add_running(compare)

    merge = _command(
        add_parser,
        "merge",
        "one result of the folders of several evaluations",
        "Merges what `datarax evaluate --output` has written to several folders, as the jobs of an "
        "array do, as if all files had been evaluated together.",
    )
    merge.add_argument("folders", nargs="+", type=a_folder, metavar="DIR", help="folders to merge")
    _add_output(merge, "the result", required=True)
    _add_gate(merge, of_one)
    merge.add_argument(
        "--allow-duplicates", action="store_true", help="count a file twice that is in two folders"
    )
    merge.add_argument("--title", metavar="T", help="title of the report")
    # An import runs code. So the names come from the command line, never from a folder.
    merge.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="module of your own metrics that the folders hold; may be repeated",
    )
    _add_metrics(add_parser)


_CODES = """
exit codes:
  0  done
  1  done, and a condition of --fail-if holds
  2  an argument or a file is wrong; one line on stderr says what
  130  interrupted; with --output, --resume continues
"""


def _add_metrics(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Adds `datarax metrics`."""
    about = (
        "Lists the metrics: their names as --metrics takes them, which values are better, the "
        "tasks of datarax evaluate, the arguments of update in Python, and the options with their "
        "defaults. A few are described."
    )
    metrics = add_parser(
        "metrics",
        help="the catalogue: names for --metrics, tasks, options, direction",
        description=about,
        epilog="""\
examples:
  datarax metrics --task binary
  datarax metrics f1
  datarax metrics 'mean_*' --task regression
  datarax metrics roc_auc_score
""",
        formatter_class=_Formatter,
    )
    metrics.add_argument(
        "pattern",
        nargs="?",
        default="",
        metavar="PATTERN",
        help="part of a name, a name with * and ?, or a name of scikit-learn, torchmetrics or "
        "metrax (default: all)",
    )
    metrics.add_argument("--task", choices=TASKS, help="only those of this task")
    metrics.set_defaults(run=_run_metrics, parser=metrics)


def _run_metrics(args: argparse.Namespace) -> int:
    try:
        with interrupts.held():
            listing = import_module("datarax.cli.metrics_list")
        return listing.show(args)
    except Exception as error:
        interrupts.raise_if_any()
        if os.environ.get(DEBUG):
            raise
        return args.parser.error(printable(described(error)))


def _command(
    add_parser: Callable[..., argparse.ArgumentParser], name: str, summary: str, text: str
) -> argparse.ArgumentParser:
    parser = add_parser(
        name,
        help=summary,
        description=text,
        epilog=_EXAMPLES[name] + _CODES,
        formatter_class=_Formatter,
    )
    parser.set_defaults(run=_run, parser=parser, command=name)
    return parser


def _run(args: argparse.Namespace) -> int:
    """Runs a command. An error ends it with one line on stderr, and exit code 2."""
    try:
        _check_columns(args)
        with interrupts.held():
            optional("rich", "evaluate", f"datarax {args.command}")
            if args.output:  # before the files are read, not when the report is written
                optional("jinja2", "evaluate", f"datarax {args.command} --output")
            # Imported only now, because it imports JAX.
            commands = import_module("datarax.cli.evaluation_commands")
        return getattr(commands, args.command)(args)
    except Exception as error:
        interrupts.raise_if_any()  # which may be the cause
        if os.environ.get(DEBUG):
            raise
        return args.parser.error(printable(described(error)))


def _check_columns(args: argparse.Namespace) -> None:
    """Refuses arguments without the task and its columns, which logs do not need."""
    if args.command == "merge":
        return
    if args.format in ("inspect", "lm-eval"):
        if args.task not in (None, "score"):
            args.parser.error(
                f"argument --task: {args.task}; with --format {args.format}, the task is score"
            )
        args.task = "score"
        return
    needed = ("task",) if args.format or args.qrels else ("task", "preds")
    missing = [f"--{name}" for name in needed if not getattr(args, name)]
    if missing:
        sources = getattr(args, "sources", None) or [args.a, args.b]
        hint = ""
        if any(source.endswith(".eval") for source in sources):
            hint = "; logs of Inspect need --format inspect instead"
        elif args.task == "detection":
            hint = "; files of COCO need --format coco instead"
        elif args.task == "ranking":
            hint = "; a run of TREC needs --qrels FILE instead"
        args.parser.error(f"the following arguments are required: {', '.join(missing)}{hint}")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the examples, and wraps the description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        # Only the examples have lines of their own.
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def _add_columns(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    # Required but for logs, because the values of the columns never decide what is computed.
    add("--task", choices=TASKS, help="the kind of predictions")
    add(
        "--format",
        choices=FORMATS,
        help="of files that are no tables: inspect or lm-eval, the logs of these harnesses (.eval "
        "or .json; samples_*.jsonl), of which each score is measured and --preds names some; or "
        "coco, results and ground truth of detections in the JSON of COCO, with boxes x, y, "
        "width, height",
    )
    columns = {
        "--preds": "columns of predictions: a name, names with commas between them, or a glob such "
        "as 'logit_*'; of detections: boxes,scores,labels; of the task score: what is measured",
        "--target": "columns of the ground truth; of detections: boxes,labels; none for the task "
        "score; with --format coco, the file of the ground truth",
    }
    for name, about in columns.items():
        add(name, action="append", default=[], metavar="COLUMNS", help=about)
    add(
        "--box-format",
        choices=BOX_FORMATS,
        help="what the four numbers of a box are: both corners (xyxy, the default), a corner and "
        "width, height (xywh), or the centre and width, height (cxcywh)",
    )
    add("--weights", metavar="COLUMN", help="column of the weights of the rows")
    add("--query", metavar="COLUMN", help="column of the ids of queries, of the task ranking")
    add(
        "--qrels",
        type=a_path,
        metavar="FILE",
        help="the judgements in the format of TREC, of the task ranking; the other file is then a "
        "run of TREC, and --preds, --target and --query are not needed",
    )
    add(
        "--all-queries",
        action="store_true",
        help="with --qrels, judged queries that are not in the run count with nothing retrieved, "
        "as with -c of trec_eval (default: they are left out)",
    )
    add(
        "--scores",
        choices=("logits", "probabilities", "labels"),
        help="what the columns of predictions hold (default: logits if their names begin with "
        "'logit', else probabilities; labels for one column of multiclass predictions)",
    )
    # The names of the classes give their number, too.
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--classes", metavar="NAMES", help="names of the classes in their order, with commas"
    )
    add_integer(size.add_argument, "--num-classes", 2, 10_000, "the number of classes")
    add(
        "--metrics",
        metavar="NAMES",
        help="metrics by name, with commas; options after colons: accuracy,fbeta:beta=2 "
        "(default: those usual for the task; datarax metrics lists all)",
    )
    add(
        "--on-invalid",
        choices=("propagate", "exclude", "raise"),
        default="propagate",
        help="what NaN, infinite values and labels out of range do: make the result NaN (default), "
        "be left out, or end the command",
    )


def _add_text_format(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--missing-values",
        metavar="VALUES",
        help="what stands for no value beside null and an empty field, with commas, such as "
        "'N/A,-'; rows without a value are left out, and counted",
    )
    add(
        "--delimiter",
        metavar="SIGN",
        help="between the fields of CSV: ';', '|', 'tab', ... (default: ','; of .tsv, a tab)",
    )
    add("--decimal", default=".", metavar="SIGN", help="decimal point of CSV, '.' (default) or ','")
    add(
        "--encoding",
        default="utf-8",
        metavar="NAME",
        help="of CSV and JSON, such as utf-16 or latin-1 (default: utf-8)",
    )


def _add_slices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slice-by",
        action="append",
        default=[],
        metavar="COLUMN[=V,V]",
        help="also give the metrics for each value of this column: of the values after '=', else "
        "of the 100 most frequent; may be repeated",
    )
    parser.add_argument(
        "--cluster-by",
        metavar="COLUMN",
        help="rows with one value of this column, such as the questions on one text, are one "
        "observation in all intervals",
    )


def _add_output(parser: argparse.ArgumentParser, contents: str, *, required: bool = False) -> None:
    about = f"folder for {contents}"
    parser.add_argument("--output", type=a_folder, metavar="DIR", required=required, help=about)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the results in the folder of --output, which is refused otherwise",
    )


def _add_gate(parser: argparse.ArgumentParser, form: str) -> None:
    parser.add_argument(
        "--fail-if",
        action="append",
        type=a_condition,
        default=[],
        metavar="CONDITION",
        help=f"end with exit code 1 if it holds: {form}; also in each slice, unless 'in overall', "
        "'in COLUMN' or 'in COLUMN=VALUE' follows the number; may be repeated",
    )
    parser.add_argument(
        "--fail-when",
        choices=("clear", "measured", "possible"),
        default="clear",
        help="a condition fails where it holds by more than chance (clear, the default), as "
        "measured, or unless more than chance is against it (possible)",
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--confidence",
        type=_fraction,
        default=0.95,
        metavar="P",
        help="confidence of intervals (default: 0.95)",
    )
    rows = "rows in memory at a time (default: 65536)"
    add_integer(add, "--batch-size", 1, 1 << 24, rows, default=65536)
    add(
        "--resume",
        action="store_true",
        help="continue what was interrupted in the folder of --output",
    )
    add("--engine", choices=ENGINES, help="read parts in other processes, or on a cluster")
    add("--address", metavar="A", help="of the scheduler of Dask or Ray")
    add_integer(add, "--workers", 1, 4096, "how many processes of the engine")
    add("--title", metavar="T", help="title of the report")
    add("--no-progress", action="store_true", help="show no progress bar")


def add_integer(
    add_argument: Callable[..., object],
    name: str,
    low: int,
    high: int | None,
    about: str,
    *,
    default: int | None = None,
) -> None:
    """Adds an option that is an integer from `low` to `high`, by the method of a parser."""
    expected = f"of {low} or more" if high is None else f"from {low} to {high}"

    # argparse shows the message of this error alone; that of a ValueError it replaces.
    def parse(text: str) -> int:
        with suppress(ValueError):
            value = int(text)
            if low <= value and (high is None or value <= high):
                return value
        raise argparse.ArgumentTypeError(f"expected an integer {expected}, got {text!r}")

    add_argument(name, type=parse, default=default, metavar="N", help=about)


def a_path(text: str) -> str:
    """A path that is given as an argument: it is not empty, and has no NUL."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a path, got {text!r}")
    return text


def a_folder(text: str) -> Path:
    """A path as `a_path`, which would be the current folder if it were empty, and is of no file."""
    path = a_path(text)
    if os.path.isfile(path):  # noqa: PTH113, that of pathlib raises an error of a long name
        raise argparse.ArgumentTypeError(f"expected a folder, got the file {text!r}")
    return Path(path)


def _fraction(text: str) -> float:
    with suppress(ValueError):
        value = float(text)
        if 0 < value < 1:  # NaN is not
            return value
    raise argparse.ArgumentTypeError(f"expected a number between 0 and 1, got {text!r}")
