"""Columns that hold texts, dates and times, in every format, and what is no list of detections."""

import csv
import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from datarax import DataraxError
from datarax.evaluation import Columns, fold
from datarax.evaluation.columns import Encoded
from datarax.evaluation.planning import Files
from datarax.metrics import WER, Accuracy, TextExactMatch, TokenF1
from tests.cli.evaluations import command, evaluated, refusal, values
from tests.evaluation.written import FORMATS, write

TEXTS = {"preds": "p", "target": "t"}
TEXT = ("--task", "text", "--preds", "p", "--target", "t", "--metrics")
BINARY = ("--task", "binary", "--preds", "score", "--target", "label", "--metrics", "accuracy")


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(path):
    """The predictions and the references of a task of texts, as the command reads them."""
    found = Files(path, lambda _: Encoded(TEXTS, texts=tuple(TEXTS))).first_rows()
    return found["preds"], found["target"]


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_no_answer_is_an_empty_list(name, tmp_path):
    rows = [
        {"p": "Denver", "t": ["Denver", "Broncos"]},
        {"p": "", "t": []},
        {"p": "x", "t": []},
        {"p": "the Broncos!", "t": ["Denver", "Broncos"]},
    ]
    path = tmp_path / f"a.{name}"
    if name == "jsonl":
        lines(path, rows)
    else:
        write(path, pa.Table.from_pylist(rows))
    # As the script of SQuAD 2.0: `gold_answers = ['']` where there is none.
    for metric in (TextExactMatch(normalize="squad"), TokenF1()):
        assert float(fold(path, metric, TEXTS, batch_size=2).metric.compute()) == 0.75
    assert texts(path)[1] == [("Denver", "Broncos"), "", "", ("Denver", "Broncos")]


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_are_texts_in_a_task_of_texts(name, tmp_path):
    path = write(tmp_path / f"a.{name}", {"p": np.array([12, 13, 8]), "t": np.array([12, 14, 8])})
    assert texts(path) == (["12", "13", "8"], ["12", "14", "8"])
    assert float(fold(path, TokenF1(), TEXTS).metric.compute()) == pytest.approx(2 / 3)


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_texts_of_csv_are_as_they_stand(quoting, tmp_path):
    path = tmp_path / "a.csv"
    for each in ("007", "1.50", "1e3", "true", "2024-01-01", "NaN", "NA", "+1", "12:30"):
        with path.open("w", newline="") as file:
            csv.writer(file, quoting=quoting).writerows([["p", "t"], [each, "7"]])
        assert texts(path) == ([each], ["7"])


def test_texts_of_json_are_as_they_stand(tmp_path):
    path = tmp_path / "a.jsonl"
    written = ['"007"', "1.50", "1e3", "true", '"2024-01-01"', "-0", '["a"]', '["b", 2.0]', "[[3]]"]
    shown = ["007", "1.50", "1e3", "true", "2024-01-01", "-0", "a", ("b", "2.0"), "3"]
    path.write_text("".join(f'{{"p": "x", "t": {each}, "n": [1, "a"]}}\n' for each in written))
    assert texts(path) == (["x"] * len(written), shown)
    for each, value in zip(written, shown, strict=True):  # as the only type of a column
        path.write_text(f'{{"p": "x", "t": {each}}}\n' * 2)
        assert texts(path)[1] == [value] * 2
    path.write_text('{"p": "x", "t": "a"}\n{"p": "x", "t": null}\n{"p": "y", "t": ["b", null]}\n')
    assert texts(path) == (["x"], ["a"])
    path.write_text('{"p": "x", "t": "a"}\n{"p": "x", "t": {"text": "b"}}\n')
    with pytest.raises(DataraxError, match=r"'t' has the value .* in row 2; expected t"):
        texts(path)
    # A label is not a text: numbers and strings in one column are no classes.
    path.write_text('{"score": 0.5, "label": "a"}\n{"score": 0.5, "label": 1}\n')
    with pytest.raises(DataraxError, match="'label'"):
        Files(path, lambda _: Encoded({"preds": "score", "target": "label"}))


def test_values_of_arrays_are_texts_as_python_prints_them(tmp_path):
    columns = {
        "integer": (pa.array([7, -1]), ["7", "-1"]),
        "float32": (pa.array([0.1, 1.0], pa.float32()), ["0.1", "1.0"]),
        "float64": (pa.array([0.1, 1e300]), ["0.1", "1e+300"]),
        "decimal": (pa.array([Decimal("1.50"), Decimal("2.00")]), ["1.50", "2.00"]),
        "dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        "list": (pa.array([["a"], ["b", "c"]]), ["a", ("b", "c")]),
        "lists": (pa.array([[["a"]], [["b"], ["c"]]]), ["a", ("b", "c")]),
        "fixed": (pa.array([[*"ax"], [*"by"]], pa.list_(pa.string(), 2)), [("a", "x"), ("b", "y")]),
        "floats": (pa.array([[0.1], [1.0, 2.0]], pa.list_(pa.float32())), ["0.1", ("1.0", "2.0")]),
        "date": (pa.array([datetime.date(2024, 1, 1)] * 2), ["2024-01-01"] * 2),
    }  # fmt: skip
    for name, (array, shown) in columns.items():
        path = write(tmp_path / "a.parquet", pa.table({"p": ["x", "y"], "t": array}))
        assert texts(path)[1] == shown, name


def test_a_list_of_one_text_is_that_text(tmp_path):
    rows = [{"p": ["4"], "t": "4", "u": ["4"]}, {"p": ["5"], "t": "6", "u": ["6"]}]
    path = lines(tmp_path / "a.jsonl", rows)
    assert values(evaluated(tmp_path / "out", path, *TEXT, "wer,cer")) == {"wer": 0.5, "cer": 0.5}
    assert float(fold(path, WER(), {"preds": "p", "target": "u"}).metric.compute()) == 0.5


@pytest.mark.parametrize("size", [1, 3, 65536])
def test_errors_of_texts_name_the_row_of_the_file(size, tmp_path):
    rows = [{"p": [str(i)], "t": [str(i)], "q": [str(i)]} for i in range(12)]
    rows[1]["p"] = None  # it is left out, and counts as a row of the file
    rows[8]["t"] = ["8", "eight"]
    rows[10]["q"] = []
    path = lines(tmp_path / "a.jsonl", rows)
    for columns, said in (
        ({"preds": "p", "target": "t"}, "row 9: the column 't' holds a list of 2 texts"),
        ({"preds": "q", "target": "p"}, "row 11: the column 'q' holds an empty list"),
    ):
        with pytest.raises(DataraxError) as caught:
            fold(path, WER(), columns, batch_size=size)
        assert str(caught.value) == f"{path}: {said}; expected one text"


def test_errors_of_metrics_name_the_row_of_the_file(tmp_path, capsys):
    rows = [{"p": "a", "t": ["a"]}, {"p": None, "t": ["a"]}, {"p": "b", "t": ["b", "c"]}]
    path = lines(tmp_path / "a.jsonl", rows)
    error = refusal(capsys, "evaluate", path, *TEXT, "wer")
    assert f"{path}: row 3: metric 'whole/wer': WER: target[1] is tuple" in error
    assert "a.jsonl: row 3: metric 'models/" in refusal(capsys, "compare", path, path, *TEXT, "wer")


def times():
    """Dates and times of many units, each with how it is written."""
    moment = datetime.datetime(2024, 5, 1, 12, 30, 0, 250000)
    later = datetime.datetime(2024, 5, 2)
    zone = datetime.UTC
    days = [moment.date(), later.date()]
    of_day = [moment.time(), later.time()]
    dates, clocks = ["2024-05-01", "2024-05-02"], ["12:30:00.25", "00:00:00"]
    both = ["2024-05-01 12:30:00.25", "2024-05-02 00:00:00"]
    found = {
        "date32": (pa.array(days), dates),
        "date64": (pa.array(days, pa.date64()), dates),
        "dictionary": (pa.array(days).dictionary_encode(), dates),
        "zone": (
            pa.array([x.replace(tzinfo=zone) for x in (moment, later)]),
            [f"{x}Z" for x in both],
        ),
        "time32": (pa.array(of_day, pa.time32("ms")), clocks),
        "time64": (pa.array(of_day, pa.time64("ns")), clocks),
    }  # fmt: skip
    units = ("ms", "us", "ns")
    return found | {x: (pa.array([moment, later], pa.timestamp(x)), both) for x in units}


@pytest.mark.parametrize("name", FORMATS)
def test_dates_and_times_are_shown_as_they_are_written(name, tmp_path):
    marks = ("slice_0", "key")
    for kind, (array, written) in times().items():
        if name == "npz" and kind not in ("date32", "ms", "us", "ns"):
            continue
        column = array
        if name in ("csv", "jsonl"):
            column = written
        elif name == "npz":
            column = array.to_numpy(zero_copy_only=False)
        path = write(tmp_path / f"{kind}.{name}", {"day": column})
        encoded = Encoded(dict.fromkeys(marks, "day"), optional=("slice_0",), marks=marks)
        found = Files(path, lambda _, encoded=encoded: encoded).first_rows()
        assert found == {"slice_0": written, "key": written}, kind


def test_a_time_that_is_missing_is_no_value(tmp_path):
    day = np.array(["2024-05-01", "NaT", "2024-05-02"], "datetime64[ns]")
    for name in ("npz", "parquet"):
        column = day if name == "npz" else pa.array(day, from_pandas=True)
        path = write(tmp_path / f"a.{name}", {"day": column})
        encoded = Encoded({"id": "day"}, optional=("id",), marks=("id",))
        shown = ["2024-05-01 00:00:00", None, "2024-05-02 00:00:00"]
        assert Files(path, lambda _, encoded=encoded: encoded).first_rows()["id"] == shown
        encoded = Encoded({"key": "day"}, marks=("key",))
        found = Files(path, lambda _, encoded=encoded: encoded).first_rows()
        assert found["key"] == [x for x in shown if x]


def test_rows_are_told_apart_by_dates(tmp_path, capsys):
    data = {"score": [0.9, 0.1, 0.2], "label": [1, 0, 1]}
    days = [datetime.date(2024, 5, 1 + i) for i in range(3)]
    a = write(tmp_path / "a.parquet", pa.table({**data, "day": days}))
    by = ("--slice-by", "day", "--cluster-by", "day", "--id", "day")
    summary = evaluated(tmp_path / "out", a, *BINARY, *by)
    (slicing,) = summary["slices"]
    assert sorted(row["name"] for row in slicing["rows"]) == list(map(str, days))
    assert summary["largest_losses"]["rows"][0]["id"] == "2024-05-03"
    b = write(tmp_path / "b.csv", pa.table({**data, "day": list(map(str, days))}))
    assert command("compare", a, b, *BINARY, "--key", "day") == 0
    write(b, pa.table({**data, "day": ["2024-05-01", "2024-06-02", "2024-05-03"]}))
    capsys.readouterr()
    assert command("compare", a, b, *BINARY, "--key", "day") == 0
    said = capsys.readouterr().out
    assert "2024-05-02" in said
    assert "2024-06-02" in said


def test_classes_may_be_dates(tmp_path):
    days = pa.array([datetime.date(2024, 5, 1), datetime.date(2024, 5, 2)])
    path = write(tmp_path / "a.parquet", pa.table({"preds": [0.1, 0.9], "target": days}))
    columns = Columns(classes={"target": ["2024-05-01", "2024-05-02"]})
    assert float(fold(path, Accuracy(), columns).metric.compute()) == 1.0


def test_a_row_for_each_detection_is_refused(tmp_path, capsys):
    row = {"image_id": 1, "category_id": 3, "bbox": [10, 10, 30, 40], "score": 0.9}
    path = lines(tmp_path / "a.jsonl", [row | {"gt": [10, 10, 30, 40], "gt_cat": 3}])
    given = ("--task", "detection", "--preds", "bbox,score,category_id", "--target", "gt,gt_cat")
    error = refusal(capsys, "evaluate", path, *given)
    assert "the column 'score' holds 0.9, which is no list" in error
    assert "a row for each image" in error
    assert "table.groupby('image_id').agg(list)" in error
    rows = [{"b": [[0, 0, 1, 1]] * n, "s": [0.5] * n, "l": [0] * n} for n in (1, 2, 2)]
    rows[2]["s"] = [0.5]
    path = lines(tmp_path / "b.jsonl", rows)
    given = ("--task", "detection", "--preds", "b,s,l", "--target", "b,l", "--num-classes", 2)
    error = refusal(capsys, "evaluate", path, *given)
    assert "row 3: an image has 2 boxes and 1 scores" in error
