"""Plans the evaluation of logs, and pairs the questions of two of them."""

import fnmatch
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from datarax._errors import MetricInputError
from datarax.evaluation.assembly import assembled
from datarax.evaluation.columns import INDEX, Encoded, Names, alternatives
from datarax.evaluation.encoding import CLUSTERS, Configuration, Json
from datarax.evaluation.files import tables_of
from datarax.evaluation.identity import unchanged
from datarax.evaluation.log_tables import GROUP, QUESTION, Logs, joined
from datarax.evaluation.paired_parts import MODELS, Pair
from datarax.evaluation.table_batches import TableBatch, power_of_two
from datarax.evaluation.tables import Table
from datarax.evaluation.tasks import of_scores
from datarax.evaluation.text_format import TextFormat
from datarax.metric.base import Metric
from datarax.wrappers.clusters import CLUSTER

_MOST_CELLS = 2**16
"""The most cells of a table of clusters, 1 MiB for each score; ids of more questions are hashed."""
LOG = "log"
"""The output that says whose scores a row has."""


def logs_of(tables: Sequence[Table]) -> Logs:
    """The logs that tables were made of."""
    source = tables[0].text.logs
    assert source is not None
    return joined(source)


def chosen_scores(logs: Sequence[Logs], wanted: Sequence[str]) -> list[str]:
    """The names of the scores that all of the logs have, or of those among them that are wanted.

    Args:
        logs: those of one model, or of each of two.
        wanted: names and globs; all if there are none.

    Raises:
        MetricInputError: there are none, or one is not among them.
    """
    names = [score.name for score in logs[0].scores]
    names = [name for name in names if all(name in _names(each) for each in logs)]
    if not names:
        every = [sorted(_names(each)) for each in logs]
        if len(logs) > 1 and all(every):
            raise MetricInputError(
                f"the logs have no score in common: a has {_listed(every[0])}, and b has "
                f"{_listed(every[1])}"
            )
        said = "; ".join(dict.fromkeys(note for each in logs for note in each.notes))
        raise MetricInputError(f"the logs have no scores{said and f': {said}'}")
    found = []
    for each in wanted:
        matched = [each] if each in names else fnmatch.filter(names, each)
        if not matched:
            raise MetricInputError(
                f"--preds: the logs have no score {each!r}{alternatives(each, names)}"
            )
        found += matched
    return list(dict.fromkeys(found)) or names


def _names(logs: Logs) -> set[str]:
    return {score.name for score in logs.scores}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def log_columns(scores: Sequence[str], others: Mapping[str, Names]) -> Encoded:
    """The columns to read of logs: of the scores, and of other outputs, such as slices."""
    given: dict[str, Names] = {"preds": list(scores), LOG: GROUP, CLUSTER: QUESTION, **others}
    slices = [name for name in others if name not in ("weights", CLUSTER)]
    return Encoded(given, optional=("preds", *slices), marks=(LOG, CLUSTER, *slices))


def with_logs(request: Configuration, logs: Logs, columns: Encoded) -> Configuration:
    """The request with what it must know of the logs."""
    groups = {score.name: score.group for score in logs.scores}
    scores = columns.names["preds"] or ()
    # Questions are numbered, so each has a cell of its own.
    cells = min(power_of_two(max(logs.questions, 2)), _MOST_CELLS)
    return replace(
        request,
        groups=tuple(groups[name] for name in scores),
        cells=cells if columns.names[CLUSTER] == QUESTION else CLUSTERS,
    )


def means_of_logs(source: Any, text: TextFormat) -> tuple[Metric, Encoded, list[str]]:
    """The means of the scores of logs with clustered intervals, without data.

    Returns also the columns that feed them, and what a reader of the numbers should know.
    """
    tables = tables_of(source, text)
    logs = logs_of(tables)
    scores = chosen_scores([logs], ())
    columns = log_columns(scores, {})
    request = with_logs(Configuration("score", clustered=True), logs, columns)
    config = replace(request, specs=tuple(of_scores(None, scores)))
    left_out = [
        f"{each['rows']:,} samples left out of {each['where']}: {each['reason']}"
        for each in missing_of(logs, scores)
    ]
    encoded = replace(columns, encode=config.encoding)
    return assembled(config)["whole"], encoded, [*left_out, *logs.notes]


def missing_of(logs: Logs, scores: Sequence[str]) -> list[Json]:
    """What samples have no number of a score, as the summary lists it."""
    found: dict[tuple[str, int], list[str]] = {}
    for each in logs.missing:
        if each.score in scores:
            found.setdefault((each.reason, each.samples), []).append(each.score)
    return [
        {"reason": reason, "where": ", ".join(names), "rows": rows, "effect": "left out"}
        for (reason, rows), names in found.items()
    ]


def unpaired_of(logs: Sequence[Logs], scores: Sequence[str]) -> Iterator[Json]:
    """What questions have no number of a score in one of two logs, as the summary lists it."""
    rows, every_reason = [_by_question(each) for each in logs], dict[tuple[str, int], list[str]]()
    for score in scores:
        keys = [{each.name: each.key for each in side.scores}[score] for side in logs]
        groups = [{each.name: each.group for each in side.scores}[score] for side in logs]
        have = [
            {name for name, row in side.items() if name[0] == group and key in row.sample.scores}
            for side, key, group in zip(rows, keys, groups, strict=True)
        ]
        every = {name for side in rows for name in side if name[0] == groups[0]}
        reasons = {
            f"question without a number in {MODELS[0]} alone": have[1] - have[0],
            f"question without a number in {MODELS[1]} alone": have[0] - have[1],
            "question without a number in both": every - have[0] - have[1],
        }
        for reason, found in reasons.items():
            if found:
                every_reason.setdefault((reason, len(found)), []).append(score)
    for (reason, count), names in every_reason.items():
        rest = {"where": ", ".join(names), "rows": count, "effect": "left out of both"}
        yield {"reason": reason, **rest}


def alone_notes(logs: Sequence[Logs]) -> list[str]:
    """Says which scores only one of two logs has."""
    notes = []
    for model, own, other in zip(MODELS, logs, logs[::-1], strict=True):
        if alone := sorted(_names(own) - _names(other)):
            notes.append(f"{model} alone has {_listed(alone)}: not compared")
    return notes


def paired_questions(
    pair: Pair,
    *,
    tables: tuple[Table, Table],
    scores: Sequence[str],
    others: Mapping[str, str],
    rows: int,
) -> Generator[TableBatch, None, None]:
    """The questions that both logs have, with the means of their samples and how many these are.

    Args:
        pair: not used: the logs are read together.
        tables: one of the tables of each model, whose rows are questions.
        scores: the names of the scores.
        others: the columns of other outputs, which are read from the first model's logs.
        rows: the most rows of a batch.

    Raises:
        MetricInputError: the two logs have other questions under one id; names both files.
    """
    for table in tables:
        assert table.text.logs is not None
        for file in table.text.logs.files:
            with unchanged(file):  # since it was planned
                pass
    logs = [logs_of([table]) for table in tables]
    keys = [[{x.name: x.key for x in side.scores}[name] for name in scores] for side in logs]
    a, b = (_by_question(side) for side in logs)
    shared = [name for name in a if name in b]
    for name in shared:
        one, two = a[name].sample, b[name].sample
        if one.content != two.content:
            raise MetricInputError(
                f"{one.place}: the question {one.id!r} is another than in {two.place}; expected "
                f"logs of the same questions"
            )
    for start in range(0, len(shared), rows):
        names = shared[start : start + rows]
        pairs = [(a[name], b[name]) for name in names]
        outputs: dict[str, Any] = {LOG: [row.group for row, _ in pairs]}
        for place, model in enumerate(MODELS):
            samples = [each[place] for each in pairs]
            outputs[f"preds_{model}"] = [
                [row.sample.scores.get(key) for key in keys[place]] for row in samples
            ]
            outputs[f"counts_{model}"] = [
                [row.counts.get(key, 0) for key in keys[place]] for row in samples
            ]
        for output, column in others.items():
            outputs[output] = [row.value(column) for row, _ in pairs]
        places = start + np.arange(len(names))
        outputs[INDEX] = places.astype(np.uint32)
        yield TableBatch(outputs, len(names), {}, places)


def _by_question(logs: Logs) -> dict[tuple[str, str], Any]:
    return {(row.group, str(row.sample.id)): row for each in logs.rows.values() for row in each}
