"""`datarax compare`: the differences of two models on the same examples."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from datarax import __version__
from datarax._checks import x64_enabled
from datarax.cli import console_tables
from datarax.cli.evaluate import Evaluation, columns_of, completed, request_of
from datarax.evaluation.assembly import Configuration, assembled
from datarax.evaluation.evaluator import fold_parts
from datarax.evaluation.first_pass import Files
from datarax.evaluation.outcome import SUMMARY, Outcome, as_json
from datarax.evaluation.outcome_summary import compared_rows, head_of, plain
from datarax.evaluation.paired_parts import MODELS, PREDICTED, paired_batches, pairs_of
from datarax.evaluation.partial_state import Folding, Merging, packed
from datarax.evaluation.planning import planned
from datarax.evaluation.table_batches import Outputs


def run(args: argparse.Namespace) -> int:
    """Runs the command, and returns its exit code."""

    def evaluation() -> Evaluation:
        models = {
            model: Files(getattr(args, model), lambda available: columns_of(args, available))
            for model in MODELS
        }
        a, b = models.values()
        if args.query is not None:
            a.check_queries("query")
        config = _configuration(args, models)
        parts, files = pairs_of(a.parts, b.parts), (*a.identities, *b.identities)
        title = args.title or f"{Path(args.a).name} and {Path(args.b).name}"
        fresh = Outcome(
            assembled(config),
            total=len(parts),
            merging=Merging(),
            files=files,
            config=config,
            columns=a.names,
            title=title,
        )
        task = Folding(
            packed(fresh.metric),
            partial(
                paired_batches,
                feeds=(a.feeds, b.feeds),
                types=(a.types, b.types),
                rows=args.batch_size,
            ),
            args.batch_size,
            x64_enabled(),
            encode=config.encoding,
            together=a.columns.together,
        )
        return Evaluation(
            fresh,
            partial(fold_parts, fresh.metric, task, parts, files),
            partial(_summary, args),
            lambda outcome, summary: {SUMMARY: as_json(summary)},
            console_tables.show_comparison,
        )

    return completed(args, evaluation)


def _summary(args: argparse.Namespace, outcome: Outcome, notes: Sequence[str]) -> dict[str, Any]:
    excluded = [(*key.split(":", 1), rows) for key, rows in outcome.excluded.items()]
    return plain(
        head_of(outcome.config, outcome.title, __version__)
        | {
            "source": {"a": args.a, "b": args.b, "rows": outcome.rows},
            "metrics": compared_rows(outcome.config, outcome.metric),
            "excluded": [
                {
                    "reason": f"no value in column {column!r} of {model}",
                    "where": column,
                    "rows": rows,
                    "effect": "left out of both",
                }
                for model, column, rows in excluded
            ],
            "confidence": outcome.config.confidence,
        }
        | ({"notes": notes} if notes else {})
    )


def _configuration(args: argparse.Namespace, models: Mapping[str, Files]) -> Configuration:
    """The configuration of both models: classes may be in either file."""

    def scan(outputs: Sequence[str]) -> dict[str, Counter[Any]]:
        counts: dict[str, Counter[Any]] = {output: Counter() for output in outputs}
        for output in outputs:
            for model, files in models.items():
                base = output.removesuffix(f"_{model}")
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
    return planned(request, names, first, scan)
