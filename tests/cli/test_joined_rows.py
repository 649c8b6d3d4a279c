"""`datarax compare --key`: the rows of two files in any order, joined by an id."""

import json

import numpy as np
import pytest

from tests.cli.evaluations import ROWS, binary_columns, command, refusal, write

TASK = ("--task", "binary", "--preds", "score", "--target", "label", "--key", "id")
METRICS = ("--metrics", "accuracy,log_loss,auroc")


@pytest.fixture
def columns(rng):
    ids = np.array([f"q{i}" for i in rng.permutation(10 * ROWS)[:ROWS]])
    return binary_columns(rng) | {"id": ids}


def other_scores(rng, columns):
    return (columns["label"] * 0.3 + columns["score"] * 0.7).astype(np.float32)


def compared(tmp_path, a, b, *argv):
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    assert command("compare", a, b, *TASK, *METRICS, *argv, "--output", out) == 0
    return json.loads((out / "metrics.json").read_text())


def numbers(summary):
    keys = ("a", "b", "difference", "lower", "upper", "p_value")
    return {row["name"]: [row[key] for key in keys] for row in summary["metrics"]}


def test_the_order_of_the_second_file_does_not_matter(columns, rng, tmp_path):
    a = write(tmp_path / "a.parquet", columns, row_group_size=70)
    second = columns | {"score": other_scores(rng, columns)}
    b = write(tmp_path / "b.parquet", second)
    order = rng.permutation(ROWS)
    mixed = write(tmp_path / "c.parquet", {name: x[order] for name, x in second.items()})
    sliced = ("--slice-by", "country")
    expected, found = (compared(tmp_path, a, each, *sliced) for each in (b, mixed))
    for name, row in numbers(expected).items():
        assert numbers(found)[name] == pytest.approx(row, rel=1e-9), name
    assert found["slices"][0]["rows"][0]["metrics"][0]["difference"] == pytest.approx(
        expected["slices"][0]["rows"][0]["metrics"][0]["difference"], rel=1e-9
    )
    assert found["excluded"] == []
    # The second file need not have again what both have.
    short = {name: second[name][order] for name in ("id", "score")}
    only = compared(tmp_path, a, write(tmp_path / "d.parquet", short), *sliced)
    assert numbers(only) == numbers(found)


def test_rows_of_one_file_alone_are_left_out_and_named(columns, rng, tmp_path, capsys):
    second = columns | {"score": other_scores(rng, columns)}
    a = write(tmp_path / "a.parquet", {name: x[10:] for name, x in columns.items()})
    order = rng.permutation(ROWS - 3)
    b = write(tmp_path / "b.parquet", {name: x[:-3][order] for name, x in second.items()})
    found = compared(tmp_path, a, b)
    shown = " ".join(capsys.readouterr().out.split())
    assert "10 rows: their 'id' is in b alone (left out of both)" in shown
    assert "3 rows: their 'id' is in a alone (left out of both)" in shown
    assert repr(str(sorted(columns["id"][-3:])[0])) in shown
    assert found["source"]["rows"] == ROWS - 13
    both = slice(10, -3)
    expected = compared(
        tmp_path,
        write(tmp_path / "c.parquet", {name: x[both] for name, x in columns.items()}),
        write(tmp_path / "d.parquet", {name: x[both] for name, x in second.items()}),
    )
    for name, row in numbers(expected).items():
        assert numbers(found)[name] == pytest.approx(row, rel=1e-9), name


def test_rows_without_a_value_are_counted_once(columns, rng, tmp_path):
    second = {name: x[::-1] for name, x in columns.items()}
    score = [None if i < 4 else float(x) for i, x in enumerate(second["score"])]
    ids = [None if i == 9 else str(x) for i, x in enumerate(second["id"])]
    a = write(tmp_path / "a.parquet", columns)
    b = write(tmp_path / "b.parquet", second | {"score": score, "id": ids})
    found = compared(tmp_path, a, b)
    assert {(each["reason"], each["rows"]) for each in found["excluded"]} == {
        ("no value in column 'score' of b", 4),
        ("no value in column 'id' of b", 1),
        ("their 'id' is in a alone", 1),
    }
    assert found["source"]["rows"] == ROWS - 5


def test_what_cannot_be_joined_is_refused(columns, tmp_path, capsys):
    a = write(tmp_path / "a.parquet", columns)
    mixed = {name: x[::-1] for name, x in columns.items()}

    def said(**changes):
        b = write(tmp_path / "b.parquet", mixed | changes)
        return refusal(capsys, "compare", a, b, *TASK, *METRICS)

    twice = mixed["id"].copy()
    twice[3] = twice[4]
    assert f"the file of b has {str(twice[3])!r} twice in the column 'id'" in said(id=twice)
    assert "no value of the column 'id' is in both files" in said(id=np.arange(ROWS))
    assert "differ in the column 'label'" in said(label=1 - mixed["label"])
    # Without a key, the error names it.
    b = write(tmp_path / "b.parquet", mixed)
    assert "--key joins rows by an id" in refusal(capsys, "compare", a, b, *TASK[:-2], *METRICS)


def test_it_says_why_there_is_no_winner(columns, tmp_path, capsys):
    x = columns["score"].astype(float)
    a = write(tmp_path / "a.parquet", columns | {"x": x, "same": x})
    b = write(tmp_path / "b.parquet", columns | {"x": x + 1, "same": x})
    asked = ("--metrics", "x/mean,x/max,same/mean", "--key", "id", "--slice-by", "country")
    out = tmp_path / "out"
    assert (
        command(*("compare", a, b, "--task", "score", "--preds", "x,same", *asked, "--output", out))
        == 0
    )
    summary = json.loads((out / "metrics.json").read_text())
    why = {row["name"]: row["why"] for row in summary["metrics"]}
    assert why == {
        "x/mean": "",
        "x/max": "no interval: an extreme of the rows has none",
        "same/mean": "no interval: the models do not differ",
    }
    shown = " ".join(capsys.readouterr().out.split())
    assert "x/max: no interval: an extreme of the rows has none" in shown
    # The differences in slices are printed, too.
    assert "country rows x/mean" in shown
