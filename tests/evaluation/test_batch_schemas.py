"""Record batches of other schemas than those before them: the numbers of one table, or an error."""

import re

import numpy as np
import pyarrow as pa
import pytest

import datarax
from datarax.evaluation import Aggregator, Columns
from datarax.metrics import (
    AUROC,
    Accuracy,
    Mean,
    MeanAveragePrecision,
    MeanSquaredError,
)

NAMES = ("cat", "dog", "cow")
METRICS = {
    "accuracy": Accuracy(num_classes=3),
    "auroc": AUROC(num_classes=3, from_logits=False).from_outputs(preds="logits", target="target"),
    "loss": Mean().from_outputs(values="loss", weights="weights"),
}
COLUMNS = Columns(
    {"preds": "said", "target": "truth", "logits": "p_*"},
    dict.fromkeys(("preds", "target"), NAMES),
)


def with_gaps(rng, values):
    """A column whose values are missing here and there, and in a long run of rows."""
    number = len(values)
    missing, start = rng.random(number) < 0.03, int(rng.integers(number))
    missing[start : start + number // 20] = True
    return pa.array(values, mask=missing)


def rows(rng, number):
    logits = rng.random((number, 3)).round(1)
    return pa.table(
        {
            "said": with_gaps(rng, rng.choice(NAMES, number)),
            "truth": with_gaps(rng, rng.choice(NAMES, number)),
            "loss": with_gaps(rng, rng.integers(0, 3, number).astype(np.float64)),
            "weights": with_gaps(rng, rng.random(number)),
            **{f"p_{name}": with_gaps(rng, logits[:, i]) for i, name in enumerate(NAMES)},
            "other": [{"a": [i] * (i % 3)} for i in range(number)],
        }
    )


def as_others_write_it(rng, table):
    """The same rows with what the schema of a partition by itself may be."""
    table = table.select(rng.permutation(table.column_names).tolist()).combine_chunks()
    for place, name in enumerate(table.column_names):
        column = table[name]
        if column.null_count == len(column) and rng.random() < 0.7:
            column = pa.nulls(len(column), rng.choice(["null", "string", "int8"]))
        elif name == "loss" and rng.random() < 0.5:
            column = column.cast(rng.choice(["int8", "float32", "int64"]))
        elif pa.types.is_string(column.type) and rng.random() < 0.5:
            column = column.dictionary_encode() if rng.random() < 0.5 else column.cast("large_utf8")
        table = table.set_column(place, name, column)
    form = rng.integers(4)
    if form == 0:
        return table.to_pylist()
    if form == 1:
        return table.drop_columns("other").to_pandas()
    return table if form == 2 else table.to_batches()[0] if len(table) else table


def results(aggregator, state):
    """The results, and how many rows were left out by which column."""
    with pytest.warns(datarax.InvalidValuesWarning) as warned:
        found = aggregator.finish(state).results()
    text = next(str(each.message) for each in warned if "left out" in str(each.message))
    return found, set(re.findall(r"([\d,]+) without a value in the column '(\w+)'", text))


def test_any_split_into_batches_gives_the_numbers_of_one_table(rng):
    aggregator = Aggregator(METRICS, columns=COLUMNS)
    table = rows(rng, 500)
    due, left_out = results(aggregator, aggregator.add(aggregator.zero(), table))
    for _ in range(12):
        cuts = np.sort(rng.integers(0, len(table) + 1, rng.integers(1, 60)))
        states = []
        for start, stop in zip([0, *cuts], [*cuts, len(table)], strict=True):
            # Some go on with a state, others begin one.
            before = states.pop() if states and rng.random() < 0.5 else aggregator.zero()
            piece = as_others_write_it(rng, table.slice(start, stop - start))
            states.append(aggregator.add(before, piece))
        while len(states) > 1:
            chosen = rng.permutation(len(states))[: rng.integers(2, 5)]
            merged = aggregator.merge(*(states[i] for i in chosen))
            states = [x for i, x in enumerate(states) if i not in chosen] + [merged]
        found, now = results(aggregator, states[0])
        assert now == left_out
        assert found == pytest.approx(due, rel=1e-13)


def detection(rng):
    """Images with boxes, of which some have none in the truth, in the predictions, or in both."""
    images = []
    for predicted, true in ((2, 1), (0, 2), (1, 0), (0, 0)):
        corner = rng.integers(0, 9, (predicted + true, 2))
        boxes = np.concatenate([corner, corner + 5], 1).astype(float).tolist()
        images.append(
            {
                "boxes": boxes[:predicted],
                "scores": rng.random(predicted).tolist(),
                "labels": rng.integers(0, 2, predicted).tolist(),
                "target_boxes": boxes[predicted:],
                "target_labels": rng.integers(0, 2, true).tolist(),
            }
        )
    return images


def test_lists_that_are_all_empty_in_a_batch_are_empty_lists(rng):
    images = detection(rng)
    aggregator = Aggregator(MeanAveragePrecision(num_classes=2))
    due = aggregator.finish(aggregator.add(aggregator.zero(), images)).results()
    each = [aggregator.add(aggregator.zero(), [image]) for image in images]
    assert aggregator.finish(aggregator.merge(*each)).results() == pytest.approx(due, nan_ok=True)


SCORES = [0.1, 0.9]
DIFFERENT = {
    "an optional column": (
        Mean(),
        None,
        {"values": SCORES, "weights": SCORES},
        {"values": SCORES},
        r"have the column 'weights' for the output 'weights'.* no such column; add it to all",
    ),
    "other columns of a glob": (
        Accuracy(num_classes=2),
        {"preds": "p_*"},
        {"p_a": SCORES, "p_b": SCORES, "target": [0, 1]},
        {"p_b": SCORES, "p_c": SCORES, "target": [0, 1]},
        r"'preds', some record batches have the columns 'p_a', 'p_b', and others .*'p_b', 'p_c'",
    ),
    "fewer columns of a glob": (
        Mean(),
        {"values": "p_*"},
        {"p_a": SCORES, "p_b": SCORES},
        {"p_b": SCORES},
        r"have the columns 'p_a', 'p_b', and others the column 'p_b'",
    ),
    "labels and scores": (
        Accuracy(),
        None,
        {"preds": [5, -3], "target": [0, 1]},
        {"preds": SCORES, "target": [0, 1]},
        r"have integers, which are labels, and others fractions, which are scores",
    ),
    "booleans and numbers": (
        Accuracy(),
        None,
        {"preds": SCORES, "target": [False, True]},
        {"preds": SCORES, "target": [0, 1]},
        r"'target', some record batches have booleans, and others numbers",
    ),
    "lists of other lengths": (
        MeanSquaredError(),
        None,
        {"preds": [SCORES], "target": [SCORES]},
        {"preds": [[*SCORES, 0.2]], "target": [[*SCORES, 0.2]]},
        r"numbers in lists of the shape \(2,\), and others numbers in lists of the shape \(3,\)",
    ),
    "a number and a list": (
        Mean(),
        None,
        {"values": [SCORES]},
        {"values": SCORES},
        r"have numbers in lists of the shape \(2,\), and others numbers; expected the same",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_one_table_cannot_hold_is_an_error_that_names_it(case):
    metric, columns, one, two, said = DIFFERENT[case]
    aggregator = Aggregator(metric, columns=columns)
    first = aggregator.add(aggregator.zero(), pa.table(one))
    second = aggregator.add(aggregator.zero(), pa.table(two))
    with pytest.raises(datarax.MetricInputError, match=f"Aggregator: .*{said}"):
        aggregator.merge(first, aggregator.zero(), second)
    with pytest.raises(datarax.MetricInputError, match=f"Aggregator: .*{said}"):
        aggregator.add(first, pa.table(two))
    with pytest.raises(datarax.MetricInputError, match=r"expected the same|add it to all"):
        aggregator.merge(second, first)


def test_a_partition_of_nothing_is_nothing():
    aggregator = Aggregator(Mean())
    one = aggregator.add(aggregator.zero(), pa.table({"values": SCORES}))
    for nothing in ([], pa.table({}), pa.table({"values": pa.nulls(0)}), pa.table({"values": []})):
        assert aggregator.add(one, nothing) == one
        assert aggregator.merge(aggregator.add(aggregator.zero(), nothing), one) == one
    with pytest.raises(datarax.MetricInputError, match="no column 'values'"):
        aggregator.add(one, pa.table({"value": []}))
