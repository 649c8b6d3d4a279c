"""Columns within objects, ids of several types, keys that appear late, and quoted CSV."""

import csv
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from datarax import MetricInputError
from datarax.evaluation import Columns, fold, text_files
from datarax.evaluation.columns import Encoded
from datarax.metrics import Accuracy, Mean, TextExactMatch, TokenF1
from tests.cli.evaluations import command, evaluated, refusal, values
from tests.evaluation.written import write

BINARY = ("--task", "binary", "--preds", "score", "--target", "label", "--metrics", "accuracy")


@pytest.fixture
def small_blocks(monkeypatch):
    """Files of text are read by blocks of 300 bytes, so that small files have several."""
    monkeypatch.setattr(text_files, "_TEXT_BLOCK", 300)


def json_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def seen(path, **columns) -> dict[str, list]:
    """The values of some marks, which are told apart."""
    found: dict[str, list] = {name: [] for name in columns}

    def encode(outputs):
        for name in columns:
            found[name] += list(outputs[name])
        return {"values": np.zeros(len(outputs[next(iter(columns))]))}

    fold(path, Mean(), Encoded(columns, encode=encode, marks=tuple(columns)), batch_size=7)
    return found


@pytest.mark.parametrize("name", ["jsonl", "parquet", "arrow"])
def test_a_column_may_be_within_objects(name, tmp_path, small_blocks):
    """The answers of SQuAD: a list of texts in an object; and a list of objects."""
    answers = [["Denver", "Broncos"], [], ["a", "x"], ["b"]] * 20
    given = ["denver", "", "x", "c"] * 20
    wholes = [{"start": [0] * len(x), "text": x} for x in answers]  # as pyarrow may sort them
    columns = {
        "p": given,
        "answers": wholes,
        "each": [[{"text": x, "n": {"of": i}} for i, x in enumerate(row)] for row in answers],
        "out": [{"score": {"value": i / 4}} for i in range(80)],
    }
    columns["answers"][-1] = None
    path = tmp_path / f"a.{name}"
    if name == "jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        json_lines(path, rows)
    else:
        write(path, {key: pa.array(x) for key, x in columns.items()}, rows=30)
    for target, wrong, left in (("answers.text", 19, 79), ("each.text", 20, 80)):
        result = fold(path, TextExactMatch(), {"preds": "p", "target": target})
        assert (result.rows, result.excluded.get(target, 0)) == (left, 80 - left)
        assert result.metric.compute() == np.float32((left - wrong) / left)
        f1 = fold(path, TokenF1(), {"preds": "p", "target": target}).metric
        assert f1.compute() == np.float32((left - wrong) / left)
    assert fold(path, Mean(), {"values": "out.score.value"}).metric.compute() == 39.5 / 4
    for column, said in (
        ("answers", "or name what is within: 'answers.start', 'answers.text'"),
        ("answers.txt", "there is no column 'answers.txt'"),
        ("out.score", "or name what is within: 'out.score.value'"),
    ):
        with pytest.raises(MetricInputError) as caught:
            fold(path, TextExactMatch(), {"preds": "p", "target": column})
        assert said in str(caught.value)


def test_keys_within_objects_of_json(tmp_path, small_blocks):
    """Also where a key has a dot itself, and where types change far below."""
    rows = [{"m": {"score": 1, "by": "a"}, "id": i} for i in range(30)]
    rows += [{"m": {"score": 0.5}}, {"m": None}, {"id": 3}, {"m": {"score": None}}]
    path = json_lines(tmp_path / "a.jsonl", rows)
    result = fold(path, Mean(), {"values": "m.score"})
    assert (result.rows, result.excluded) == (31, {"m.score": 3})
    assert result.metric.compute() == np.float32(30.5 / 31)
    assert seen(path, by="m.by", id="id")["by"] == ["a"] * 30
    flat = json_lines(tmp_path / "flat.jsonl", [{"m.score": x["m"]["score"]} for x in rows[:31]])
    assert fold(flat, Mean(), {"values": "m.score"}).metric.compute() == np.float32(30.5 / 31)
    both = [{"m.score": 0.25, "m": {"score": 3}}, {"m": {"score": 2}}, {"m": {"score.x": 2}}] * 9
    path = json_lines(tmp_path / "both.jsonl", both)
    result = fold(path, Mean(), {"values": "m.score"})
    assert (result.rows, result.metric.compute()) == (18, 1.125)
    for value in ("x", "1"):
        bad = json_lines(tmp_path / "bad.jsonl", [*rows[:30], {"m": {"score": value}}])
        with pytest.raises(MetricInputError, match=r"the column 'm\.score' has the"):
            fold(bad, Mean(), {"values": "m.score"})
    # A glob is of columns, not of what is within them.
    named = json_lines(tmp_path / "glob.jsonl", [{"s_0": 1.0, "s_1": 2.0, "s": {"s_9": 3.0}}] * 3)
    assert fold(named, Mean(), {"values": "s_*"}).metric.compute() == 1.5


IDS = [*range(1, 40), "a17", "17", 2.5, True, *range(100, 140)]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("late", [True, False])
def test_ids_may_be_numbers_first_and_text_later(name, late, tmp_path, small_blocks):
    ids = IDS if late else IDS[35:]
    texts = [json.dumps(x) if isinstance(x, bool) else str(x) for x in ids]
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("id,n\n" + "".join(f"{x},1\n" for x in texts))
    else:
        json_lines(path, [{"id": x, "n": 1} for x in ids])
    assert seen(path, id="id", n="n") == {"id": texts, "n": [1] * len(ids)}
    # The other file has integers alone, in a format that says so.
    other = write(tmp_path / "b.parquet", {"id": pa.array([7, 8]), "n": pa.array([1, 1])})
    assert seen([other, path], id="id")["id"] == ["7", "8", *texts]
    # Where all are integers, they stay what they are; and so do fractions.
    path = json_lines(tmp_path / "c.jsonl", [{"id": i} for i in range(50)])
    assert seen(path, id="id") == {"id": list(range(50))}
    path = json_lines(tmp_path / "d.jsonl", [{"id": i / 2} for i in range(50)])
    assert seen(path, id="id") == {"id": [i / 2 for i in range(50)]}
    path = json_lines(tmp_path / "e.jsonl", [{"id": 1}, {"id": "a"}, {"id": [1]}])
    with pytest.raises(MetricInputError, match=r"has the value \[1\] in row 3; expected single"):
        seen(path, id="id")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("base", [2**63 - 20, 10**30])
@pytest.mark.parametrize("late", [True, False])
def test_ids_may_be_integers_of_more_than_64_bits(name, base, late, tmp_path, small_blocks):
    """As floats, they would be one id."""
    ids = [*range(40 * late), *range(base, base + 40)]
    path = tmp_path / name
    if name == "a.csv":
        path.write_text("id,n\n" + "".join(f"{x},1\n" for x in ids))
    else:
        json_lines(path, [{"id": x, "n": 1} for x in ids])
    assert seen(path, id="id")["id"] == [str(x) for x in ids]
    clusters = evaluated(
        tmp_path / "out",
        path,
        *("--task", "regression", "--preds", "n", "--target", "n", "--metrics", "mae"),
        *("--cluster-by", "id", "--slice-by", "id"),
    )["slices"][0]["rows"]
    assert {x["name"] for x in clusters} >= {str(base), str(base + 1)}


def test_the_command_takes_ids_of_several_types(tmp_path, small_blocks, capsys):
    rows = [
        {"score": 0.9 if i % 3 else 0.1, "label": 1, "id": x} | ({"by": "b"} if i > 50 else {})
        for i, x in enumerate(IDS)
    ]
    path = json_lines(tmp_path / "a.jsonl", rows)
    given = (*BINARY, "--cluster-by", "id", "--slice-by", "by")
    summary = evaluated(tmp_path / "out", path, *given, "--id", "id")
    right = np.mean([i % 3 > 0 for i in range(len(IDS))])
    assert values(summary)["accuracy"] == pytest.approx(right)
    assert {x["name"]: x["examples"] for x in summary["slices"][0]["rows"]} == {
        "(no value)": 51,
        "b": len(IDS) - 51,
    }
    assert command("compare", path, path, *BINARY, "--key", "id") == 0
    capsys.readouterr()
    assert "there is no column 'nowhere' for the slices" in refusal(
        capsys, "evaluate", path, *BINARY, "--slice-by", "nowhere"
    )


def test_an_optional_column_that_appears_late_is_not_left_out_silently(tmp_path, small_blocks):
    rows = [{"preds": 1, "target": 1}] * 30 + [{"preds": 1, "target": 0, "weights": 3.0}] * 3
    path = json_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(MetricInputError, match="row 31 is the first with a value of 'weights'"):
        fold(path, Accuracy())
    result = fold(path, Accuracy(), {"weights": None})
    assert (result.rows, result.metric.compute()) == (33, np.float32(30 / 33))
    result = fold(path, Accuracy(), {"weights": "weights"})
    assert (result.rows, result.metric.compute()) == (3, 0.0)
    # Of a text that only looks like the key, of a key without values, and within an object.
    rows = [{"preds": 1, "target": 1, "doc": '{"weights": 1}', "weights": None}] * 30
    rows += [{"preds": 1, "target": 0, "doc": {"weights": 3}}]
    path = json_lines(tmp_path / "b.jsonl", [{"preds": 1, "target": 1}] * 9 + rows)
    assert fold(path, Accuracy()).rows == 40


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("name", ["parquet", "arrow", "npz", "csv"])
def test_rows_are_told_apart_by_durations(name, unit, tmp_path):
    # Days, a negative one, and a fraction that the unit can hold.
    ticks = (
        np.array([0, 90_061, -1, 86_400 * 400]) * {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit]
    )
    durations = ticks.astype(np.int64).astype(f"timedelta64[{unit}]")
    texts = ["0 days 00:00:00", "1 days 01:01:01", "-1 days +23:59:59", "400 days 00:00:00"]
    if unit != "s":
        durations = durations + np.timedelta64(250, "ms")
        texts = ["0 days 00:00:00.25", "1 days 01:01:01.25", "-1 days +23:59:59.25"]
        texts += ["400 days 00:00:00.25"]
    path = tmp_path / f"a.{name}"
    if name == "csv":
        pd.DataFrame({"d": durations, "x": 1}).to_csv(path, index=False)
        assert [x.rstrip("0").rstrip(":.") for x in seen(path, d="d")["d"]] == [
            x.rstrip("0").rstrip(":.") for x in texts
        ]
        return
    write(path, {"d": durations, "x": np.ones(4)})
    assert seen(path, d="d") == {"d": texts}


STYLES = [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]


@pytest.mark.parametrize("quoting", STYLES)
def test_missing_labels_of_a_csv_whose_fields_are_quoted(quoting, tmp_path):
    """As pandas writes them; and as R does, which quotes strings and writes NA without quotes."""
    table = pd.DataFrame(
        {
            "pred": ["cat", "NA", "cat", None, "dog"],
            "label": ["cat", "NA", None, "dog", "dog"],
            "score": [0.9, 0.2, 0.8, None, 0.1],
        }
    )
    path = tmp_path / "a.csv"
    table.to_csv(path, index=False, quoting=quoting)
    given = ("--task", "multiclass", "--preds", "pred", "--target", "label", "--metrics")
    summary = evaluated(tmp_path / "out", path, *given, "accuracy")
    assert (summary["source"]["rows"], values(summary)["accuracy"]) == (3, 1.0)
    assert {x["where"]: x["rows"] for x in summary["excluded"]} == {"pred": 1, "label": 1}
    columns = Columns({"preds": "score", "target": "label"}, {"target": ["cat", "dog"]})
    result = fold(path, Accuracy(on_invalid="exclude"), columns)
    assert (result.rows, dict(result.excluded)) == (3, {"label": 1, "score": 1})
    path.write_text('"pred","label"\n"cat","cat"\n"NA","NA"\n"cat",NA\nNA,"dog"\n"dog","dog"\n')
    summary = evaluated(tmp_path / "r", path, *given, "accuracy")
    assert (summary["source"]["rows"], values(summary)["accuracy"]) == (3, 1.0)


def test_an_empty_text_in_quotes_is_one_in_a_task_of_texts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('"p","t"\n"","a"\n"b","b"\n"",""\n')
    result = fold(path, TextExactMatch(), {"preds": "p", "target": "t"})
    assert (result.rows, result.metric.compute()) == (3, np.float32(2 / 3))
    # A writer that leaves a field empty where there is no value means the other by its quotes.
    path.write_text('"id","x"\n"",1\n,2\n"b",3\n')
    assert seen(path, id="id") == {"id": ["", "b"]}
    path.write_text('"id","x"\n"",1\n"",2\n"b",3\n')
    assert seen(path, id="id") == {"id": ["b"]}
