"""`datarax compare`: the differences of two models on the same examples."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from datarax import __version__
from datarax._checks import x64_enabled
from datarax.cli.console_tables import Summary
from datarax.cli.evaluate import Evaluation, columns_of, completed, request_of
from datarax.evaluation.assembly import assembled
from datarax.evaluation.encoding import Configuration, Value
from datarax.evaluation.evaluator import fold_parts
from datarax.evaluation.outcome import SUMMARY, Outcome, as_json
from datarax.evaluation.outcome_summary import compared_rows, head_of, plain
from datarax.evaluation.paired_parts import MODELS, PREDICTED, paired_batches, pairs_of
from datarax.evaluation.partial_state import Folding, Merging, packed
from datarax.evaluation.planning import Files, planned
from datarax.evaluation.table_batches import Outputs


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""
    return completed(args, _prepared)


def _prepared(args: argparse.Namespace) -> Evaluation:
    models = {model: Files(getattr(args, model), partial(columns_of, args)) for model in MODELS}
    a, b = models.values()
    if args.query is not None:
        a.check_queries("query")  # those of `b` must be equal, row by row
    config = _configuration(args, models)
    parts, files = pairs_of(a.parts, b.parts), (*a.identities, *b.identities)
    fresh = Outcome(
        assembled(config),
        total=len(parts),
        merging=Merging(),
        files=files,
        config=config,
        columns=a.names,
        title=args.title or f"{Path(args.a).name} and {Path(args.b).name}",
    )
    # A batch has the predictions of both models for the same rows.
    feeds, types, rows = (a.feeds, b.feeds), (a.types, b.types), args.batch_size
    task = Folding(
        packed(fresh.metric),
        partial(paired_batches, feeds=feeds, types=types, rows=rows),
        rows,
        x64_enabled(),
        encode=config.encoding,
        together=a.columns.together,
    )
    return Evaluation(
        fresh,
        partial(fold_parts, fresh.metric, task, parts, files),
        partial(_summary, args),
        lambda outcome, summary: {SUMMARY: as_json(summary)},
    )


def _summary(args: argparse.Namespace, outcome: Outcome, notes: Sequence[str]) -> Summary:
    excluded = [
        {
            "reason": f"no value in column {column!r} of {model}",
            "where": column,
            "rows": rows,
            "effect": "left out of both",
        }
        # The key has the model before the column: "a:score".
        for key, rows in outcome.excluded.items()
        for model, _, column in [key.partition(":")]
    ]
    return plain(
        head_of(outcome, __version__)
        | {
            "source": {"a": args.a, "b": args.b, "rows": outcome.rows},
            "metrics": compared_rows(outcome.config, outcome.metric),
            "excluded": excluded,
            "confidence": outcome.config.confidence,
        }
        | ({"notes": notes} if notes else {})
    )


def _configuration(args: argparse.Namespace, models: Mapping[str, Files]) -> Configuration:
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
    request = request_of(args, models["a"].available, compared=True)
    return planned(request, args.metrics, names, first, scan)
