"""`datarax compare`: the differences of two models on the same examples."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from datarax import __version__
from datarax._errors import MetricInputError
from datarax.cli import console_tables
from datarax.cli.evaluate_command import check, columns_of, request_of
from datarax.cli.interrupts import promptly
from datarax.evaluation.assembly import Configuration, assembled
from datarax.evaluation.columns import INDEX
from datarax.evaluation.encoding import listed
from datarax.evaluation.first_pass import Files
from datarax.evaluation.outcome import SUMMARY, as_json
from datarax.evaluation.outcome_summary import compared_rows, plain
from datarax.evaluation.output_folder import held, write_files
from datarax.evaluation.planning import planned
from datarax.evaluation.table_batches import Batch, batches
from datarax.evaluation.whole_queries import Outputs, joined, taken, whole_queries
from datarax.wrappers.collection import Collection

_ROWS = 65536
_PREDICTED = ("preds", "boxes", "scores", "labels")


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""
    check(args)

    def read_first() -> tuple[dict[str, Files], Configuration]:
        models = {
            model: Files(getattr(args, model), lambda available: columns_of(args, available))
            for model in ("a", "b")
        }
        if args.query is not None:
            models["a"].check_queries("query")
        return models, _configuration(args, models)

    models, config = promptly(read_first)
    folder: Path | None = args.output
    console = Console(highlight=False)
    with held(folder):
        summary = promptly(lambda: _summary(args, models, config))
        try:
            console_tables.show_comparison(console, summary)
        finally:
            if folder is not None:
                write_files(folder, {SUMMARY: as_json(summary)})
    if folder is not None:
        console.print(Text(f" {folder / SUMMARY}", style="dim"), soft_wrap=True)
    return 0


def _summary(
    args: argparse.Namespace, models: Mapping[str, Files], config: Configuration
) -> dict[str, Any]:
    metric, rows, excluded = _folded(args, models, config)
    return plain(
        {
            "format": 1,
            "datarax": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "title": args.title or f"{Path(args.a).name} and {Path(args.b).name}",
            "task": config.task,
            "config": config.as_json(),
            "source": {"a": args.a, "b": args.b, "rows": rows},
            "metrics": compared_rows(config, metric),
            "excluded": [
                {
                    "reason": f"no value in column {column!r} of {model}",
                    "where": column,
                    "rows": number,
                    "effect": "left out of both",
                }
                for model, columns in excluded.items()
                for column, number in columns.items()
            ],
            "confidence": config.confidence,
        }
    )


def _configuration(args: argparse.Namespace, models: Mapping[str, Files]) -> Configuration:
    """The configuration of both models: classes may be in either file."""

    def scan(outputs: Sequence[str]) -> dict[str, Counter[Any]]:
        counts: dict[str, Counter[Any]] = {output: Counter() for output in outputs}
        for output in outputs:
            for model, files in models.items():
                base = output.removesuffix(f"_{model}")
                if base in files.names and (base not in _PREDICTED or base != output):
                    counts[output] += files.value_counts([base])[base]
        return counts

    first: Outputs = {}
    names: dict[str, list[str]] = {}
    for model, files in models.items():
        for output, x in files.first_rows().items():
            name = f"{output}_{model}" if output in _PREDICTED else output
            first[name], names[name] = x, files.names[output]
    request = request_of(args, models["a"].available, compared=True)
    return planned(request, names, first, scan)


def _folded(
    args: argparse.Namespace, models: Mapping[str, Files], config: Configuration
) -> tuple[Collection, int, dict[str, Counter[str]]]:
    """The metric of both models with all rows folded in, and what was left out of each file."""
    metric, rows, encode = assembled(config), 0, config.encoding
    readers = {model: Rows(files) for model, files in models.items()}
    pairs = _aligned(readers["a"], readers["b"], args.batch_size)
    found = (_outputs(a, b, models) for a, b in pairs)
    together = models["a"].columns.together
    for batch in found if together is None else whole_queries(found, together):
        if batch.rows:
            rows += batch.rows
            metric = metric.update(**encode(batch.outputs))
    return metric, rows, {model: each.excluded for model, each in readers.items()}


def _aligned(a: "Rows", b: "Rows", size: int) -> Iterator[tuple[Outputs, Outputs]]:
    """The rows that both files have, in windows of `size` rows of both.

    Raises:
        MetricInputError: one has more rows than the other.
    """
    for end in count(size, size):
        ours, theirs = a.until(end), b.until(end)
        places = [x[INDEX] if x else np.zeros(0, np.int64) for x in (ours, theirs)]
        _, left, right = np.intersect1d(*places, assume_unique=True, return_indices=True)
        if left.size and ours and theirs:
            yield taken(ours, left), taken(theirs, right)
        if a.ended or b.ended:
            break
    for each in (a, b):
        each.read_to_the_end()
    if a.rows != b.rows:
        raise MetricInputError(
            f"{a.path} has {a.rows:,} rows and {b.path} has {b.rows:,}: row "
            f"{min(a.rows, b.rows) + 1:,} is in one of them only"
        )


class Rows:
    """The rows of a file in their order, each with its place in the file."""

    def __init__(self, files: Files):
        self.path = files.tables[0].path
        self.rows = 0
        """How many rows were read, with those that were left out."""
        self.excluded: Counter[str] = Counter()
        self.ended = False
        self._found = self._batches(files)
        self._held: Outputs | None = None

    def until(self, end: int) -> Outputs | None:
        """The next rows whose places are below `end`."""
        pieces = [] if self._held is None else [self._held]
        while not (pieces and pieces[-1][INDEX][-1] >= end):
            following = next(self._found, None)
            if following is None:
                break
            pieces.append(following)
        if not pieces:
            self._held, self.ended = None, True
            return None
        rows = joined(pieces)
        stop = int(np.searchsorted(rows[INDEX], end))
        self._held = taken(rows, slice(stop, None)) if stop < len(rows[INDEX]) else None
        return taken(rows, slice(0, stop)) if stop else None

    def read_to_the_end(self) -> None:
        """Counts the rows that are left."""
        for _ in self._found:
            pass

    def _batches(self, files: Files) -> Iterator[Outputs]:
        for part in files.parts:
            start = self.rows
            for batch in batches(part, files.feeds, files.types, _ROWS, INDEX):
                self.excluded.update(batch.excluded)
                self.rows += batch.rows + sum(batch.excluded.values())
                if batch.rows:
                    ids = batch.outputs[INDEX].astype(np.int64)
                    yield batch.outputs | {INDEX: (ids - part.key) % 2**32 + start}


def _outputs(a: Outputs, b: Outputs, models: Mapping[str, Files]) -> Batch:
    """The outputs of both models.

    Raises:
        MetricInputError: a target, a key, or another column of both differs; names the first row.
    """
    for name in a:
        if name in (*_PREDICTED, INDEX):
            continue
        differs = next((i for i, (x, y) in enumerate(_pairs(a[name], b[name])) if x != y), None)
        if differs is not None:
            column = models["a"].names[name][0]
            left, right = (files.tables[0].path for files in models.values())
            x, y = (_brief(listed(each[name])[differs]) for each in (a, b))
            raise MetricInputError(
                f"the files differ in the column {column!r}: in row {a[INDEX][differs] + 1:,}, "
                f"{left} has {x} and {right} has {y}"
            )
    shared = {name: x for name, x in a.items() if name not in (*_PREDICTED, "key")}
    predicted = {
        f"{name}_{model}": x
        for model, each in (("a", a), ("b", b))
        for name, x in each.items()
        if name in _PREDICTED
    }
    ids = {INDEX: a[INDEX].astype(np.uint32)}
    return Batch(shared | predicted | ids, len(a[INDEX]), {})


def _pairs(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of values that may differ. NaN is equal to NaN."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
        same = (x == y) | ((x != x) & (y != y))
        if same.all():
            return
    yield from ((_as_nan(a), _as_nan(b)) for a, b in zip(listed(x), listed(y), strict=True))


def _as_nan(x: Any) -> Any:
    return "NaN" if isinstance(x, float) and x != x else x


def _brief(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."
