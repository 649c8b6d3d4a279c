"""Merging; comparing models; and what is refused, in one line."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from sklearn import metrics as sk

from datarax.cli import main
from datarax.evaluation.paired_parts import pairs_of
from datarax.evaluation.tables import Part
from tests.cli.evaluations import (
    ROWS,
    binary_columns,
    command,
    evaluated,
    refusal,
    values,
    write,
)

BINARY = (
    "--task", "binary", "--preds", "score", "--target", "label", "--metrics", "accuracy,brier_score"
)  # fmt: skip


def test_merged_folders_are_one_run(rng, tmp_path, capsys):
    paths = []
    for i in range(2):
        p, t = rng.integers(-9, 10, (2, ROWS))  # integers: their sums are exact in any order
        paths.append(write(tmp_path / f"part-{i}.parquet", {"p": p, "t": t}, row_group_size=100))
    options = (
        "--task", "regression", "--preds", "p", "--target", "t", "--metrics", "mae",
        "--bootstrap", 20,
    )  # fmt: skip
    whole = evaluated(tmp_path / "whole", tmp_path / "part-*.parquet", *options)
    folders = [tmp_path / f"job-{i}" for i in range(2)]
    for path, folder in zip(paths, folders, strict=True):
        evaluated(folder, path, *options)
    assert command("merge", *folders, "--output", tmp_path / "all", "--title", "all") == 0
    merged = json.loads((tmp_path / "all" / "metrics.json").read_text())
    assert merged["title"] == "all"
    for one, other in zip(whole["metrics"], merged["metrics"], strict=True):
        assert other == one
        assert one["lower"] < one["value"] < one["upper"]
    assert merged["source"]["rows"] == 2 * ROWS
    assert (tmp_path / "all" / "report.html").exists()
    capsys.readouterr()

    output = ("--output", tmp_path / "x")
    assert "would count twice" in refusal(capsys, "merge", folders[0], folders[0], *output)
    evaluated(folders[1], paths[1], *options, "--confidence", 0.5)
    capsys.readouterr()
    assert "confidence is 0.95 in one and 0.5 in" in refusal(capsys, "merge", *folders, *output)
    (folders[1] / "state.npz").write_bytes(b"PK\3\4 no archive")
    assert "cannot be read" in refusal(capsys, "merge", *folders, *output)
    assert "there is no evaluation in" in refusal(capsys, "merge", tmp_path, *output)


def test_compared_models(rng, tmp_path, capsys):
    columns = binary_columns(rng) | {"id": np.arange(ROWS)}
    better = columns["label"] * 0.2 + columns["score"] * 0.8
    a = write(tmp_path / "a.parquet", columns, row_group_size=70)
    b = write(tmp_path / "b.parquet", columns | {"score": better.astype(np.float32)})
    out = tmp_path / "out"
    argv = (*BINARY[:-2], "--metrics", "accuracy,log_loss", "--bootstrap", 50)
    assert command("compare", a, b, *argv, "--key", "id", "--output", out) == 0
    shown = capsys.readouterr().out
    assert shown.count("b is better") == 2
    summary = json.loads((out / "metrics.json").read_text())
    assert summary["source"]["rows"] == ROWS
    for row, of in zip(summary["metrics"], ("accuracy", "log_loss"), strict=True):
        each = [
            sk.accuracy_score(columns["label"], x >= 0.5)
            if of == "accuracy"
            else sk.log_loss(columns["label"], x.astype(float))
            for x in (columns["score"], better.astype(np.float32))
        ]
        assert (row["a"], row["b"]) == pytest.approx(each, rel=1e-5)
        assert row["difference"] == pytest.approx(each[1] - each[0], abs=1e-5)
        assert row["lower"] <= row["difference"] <= row["upper"]
        assert row["excludes_zero"]

    label = columns["label"].copy()
    label[150] = 1 - label[150]
    write(tmp_path / "c.parquet", columns | {"label": label})
    given = ("compare", a, tmp_path / "c.parquet", *argv, "--key", "id")
    assert "differ in the column 'label': in row 151, " in refusal(capsys, *given)
    write(tmp_path / "c.parquet", {name: x[:-9] for name, x in columns.items()})
    error = refusal(capsys, "compare", a, tmp_path / "c.parquet", *argv)
    assert f"has 300 rows and {tmp_path / 'c.parquet'} has 291: row 292 is in one of" in error


def test_models_of_detections(tmp_path, capsys):
    """The ground truth of an image is lists, which are equal where NaN is equal to NaN."""
    images = [
        {
            "b": [[0, 0, 1, 1]],
            "s": [0.5],
            "l": [0],
            "tb": [[0, 0, 1, 1], [0, 0, 2, 2]],
            "tl": [0, 1],
        },
        {"b": [], "s": [], "l": [], "tb": [[0, 0, 3, 3]], "tl": [1]},
    ]
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_text("\n".join(map(json.dumps, images)))
    argv = ("--task", "detection", "--preds", "b,s,l", "--target", "tb,tl", "--bootstrap", 2)
    assert command("compare", *paths, *argv) == 0
    capsys.readouterr()
    images[0]["tb"][1][3] = 4
    paths[1].write_text("\n".join(map(json.dumps, images)))
    assert (
        f"differ in the column 'tb': in row 1, {paths[0]} has [[0, 0, 1, 1], [0, 0, 2, 2]] and "
        f"{paths[1]} has [[0, 0, 1, 1], [0, 0, 2, 4]]"
    ) in refusal(capsys, "compare", *paths, *argv)


def test_rows_left_out_of_one_file_are_left_out_of_both(rng, tmp_path, capsys):
    columns = binary_columns(rng)
    score = [None if i % 10 == 0 else x for i, x in enumerate(columns["score"].tolist())]
    a = write(tmp_path / "a.parquet", columns | {"score": score}, row_group_size=50)
    b = write(tmp_path / "b.parquet", columns)
    argv = ("--metrics", "accuracy", "--bootstrap", 10, "--output", tmp_path / "out")
    assert command("compare", a, b, *BINARY[:-2], *argv) == 0
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    (row,) = summary["metrics"]
    kept = np.arange(ROWS) % 10 != 0
    expected = sk.accuracy_score(columns["label"][kept], columns["score"][kept] >= 0.5)
    assert row["a"] == row["b"] == pytest.approx(expected, rel=1e-6)
    assert row["lower"] == -row["upper"] < 0
    assert not row["excludes_zero"]
    assert "30 rows: no value in column 'score' of a (left out of both)" in capsys.readouterr().out


def test_models_are_compared_whatever_the_parts_of_their_files(rng, tmp_path, monkeypatch):
    """Pairs end where a part of both ends; rows of text are not counted, so they are one pair."""
    monkeypatch.setattr("datarax.evaluation.arrow_files.PART_ROWS", 1)
    columns = binary_columns(rng)
    score = [None if i % 7 == 0 else x for i, x in enumerate(columns["score"].tolist())]
    a = write(tmp_path / "a.parquet", columns | {"score": score}, row_group_size=50)
    found = []
    for name, options in (("b", {"row_group_size": 75}), ("c", {"row_group_size": 50}), ("d", {})):
        other = [None if i % 9 == 0 else 1 - x for i, x in enumerate(columns["score"].tolist())]
        b = write(tmp_path / f"{name}.parquet", columns | {"score": other}, **options)
        if name == "d":
            pa_csv.write_csv(pq.read_table(b), b := tmp_path / "d.csv")
        out = tmp_path / name
        assert command("compare", a, b, *BINARY, "--bootstrap", 10, "--output", out) == 0
        found.append(json.loads((out / "metrics.json").read_text()))
    first, *others = found
    assert {(each["where"], each["rows"]) for each in first["excluded"]} == {
        ("score", len(range(0, ROWS, 7))), ("score", len(range(0, ROWS, 9))),
    }  # fmt: skip
    for other in others:
        assert other["excluded"] == first["excluded"]
        assert other["source"]["rows"] == first["source"]["rows"]
        for row, expected in zip(other["metrics"], first["metrics"], strict=True):
            for name in ("a", "b", "difference", "lower", "upper"):
                assert row[name] == pytest.approx(expected[name], abs=1e-6)


def test_pairs_end_where_a_part_of_both_ends():
    def parts(*rows, counted=True):
        return [Part(None, i, i + 1, 0, n, counted) for i, n in enumerate(rows)]

    def cut(a, b):
        return [(pair.start, *map(len, pair.sides), pair.rows) for pair in pairs_of(a, b)]

    assert cut(parts(2, 2, 2), parts(2, 2, 2)) == [(0, 1, 1, 2), (2, 1, 1, 2), (4, 1, 1, 2)]
    assert cut(parts(2, 2, 2), parts(3, 1, 2)) == [(0, 2, 2, 4), (4, 1, 1, 2)]
    assert cut(parts(2, 2), parts(2, 3)) == [(0, 1, 1, 2), (2, 1, 1, 3)]
    assert cut(parts(2), parts(2, 3)) == [(0, 1, 1, 2), (2, 0, 1, 3)]
    assert cut(parts(2, 2), parts(2, 2, counted=False)) == [(0, 2, 2, 4)]


def test_labels_out_of_range_are_counted(tmp_path, capsys):
    columns = {"p": [0, 1, 2, 1], "t": [0, 1, 7, 1]}
    path = write(tmp_path / "a.parquet", columns)
    argv = (path, "--task", "multiclass", "--preds", "p", "--target", "t", "--num-classes", 3)
    summary = evaluated(tmp_path / "out", *argv, "--metrics", "accuracy,cohen_kappa")
    assert values(summary) == {"accuracy": None, "cohen_kappa": None}
    (found,) = summary["excluded"]
    assert (found["reason"], found["rows"], found["where"]) == ("out of range", 1, "all metrics")
    assert found["effect"] == (
        "the result is NaN; --on-invalid exclude leaves such rows out: one of the columns 't', 'p' "
        "holds 7; expected 0 to 2 as labels"
    )
    left = evaluated(
        tmp_path / "out", *argv, "--metrics", "accuracy,cohen_kappa", "--on-invalid", "exclude"
    )
    assert values(left) == {"accuracy": 1.0, "cohen_kappa": 1.0}
    capsys.readouterr()
    error = refusal(capsys, "evaluate", *argv, "--on-invalid", "raise", "--metrics", "accuracy")
    assert "accuracy: 1 values or examples could not be used (1 out of range" in error


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--preds": "scor"}, "there is no column 'scor' for the output 'preds'; did you mean"),
        ({"--preds": "logit_*"}, "there is no column 'logit_*'"),
        ({"--preds": "score,country"}, "the task binary takes one column of scores"),
        ({"--preds": "score,label"}, "the task binary takes one column of scores"),
        ({"--preds": "country"}, "'country' holds names and the column 'label' numbers"),
        ({"--target": "country"}, "'country' has 3 distinct values, de,fr,it; the task binary"),
        ({"--metrics": "acuracy"}, "there is no metric 'acuracy'; did you mean 'accuracy'"),
        ({"--metrics": "bleu"}, "it is computed with --task text"),
        ({"--metrics": "fbeta:beta=-1"}, "the metric 'f_beta(beta=-1)'"),
        ({"--slice-by": "nowhere"}, "there is no column 'nowhere' for the slices"),
        ({"--weights": "country"}, "the column 'country' has the value"),
        ({"--classes": "a"}, "argument --classes: 'a'; expected 2 or more distinct names"),
        ({"--num-classes": "3"}, "the task binary has two classes"),
        ({"--num-classes": "1"}, "argument --num-classes: expected an integer from 2"),
        ({"--confidence": "95"}, "argument --confidence: expected a number between 0 and 1"),
        ({"--query": "label"}, "argument --query: is for --task ranking"),
        ({"--workers": "2"}, "argument --workers: needs --engine"),
        ({"--resume": None}, "argument --resume: needs --output"),
        ({"--task": "regression", "--preds": "country"}, "the column 'country' has the value"),
        ({"--task": "ranking"}, "the task ranking needs --query"),
        ({"--task": "detection"}, "--preds names 1 columns; the task detection takes 3: boxes,"),
        ({"--task": "guess"}, "argument --task: invalid choice: 'guess'"),
        ({"--output": "a.parquet"}, "--output: expected a folder, got the file 'a.parquet'"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, monkeypatch, changes, said):
    monkeypatch.chdir(tmp_path)
    write(Path("a.parquet"), binary_columns(np.random.default_rng(0)))
    given = {"--task": "binary", "--preds": "score", "--target": "label"} | changes
    argv = [x for pair in given.items() for x in pair if x is not None]
    assert said in refusal(capsys, "evaluate", "a.parquet", *argv)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.parquet", b"PAR1 no", "a.parquet: cannot be read"),
        ("a.parquet", b"", "a.parquet: the file is empty"),
        ("a.csv", b"score,label\n0.5,1\n0.5\n", "a.csv: cannot be read"),
        ("a.csv", b"\n \n", "a.csv: the file is empty"),
        ("a.csv.gz", gzip.compress(b""), "a.csv.gz: the file is empty"),
        ("a.json", b"[]", "a.json: the file is empty"),
        ("a.csv", b"score,label\n", "no rows to evaluate"),
        ("a.csv", b"score,label\n0.5,\n,1\n", "no rows to evaluate: the column"),
        ("a.jsonl", b"{", "a.jsonl: cannot be read"),
        ("a.npz", b"zip", "a.npz: cannot be read"),
        ("a.txt", b"", "a.txt: its format is not known"),
        (None, b"", "nothing-*: there is no such file"),
    ],
)
def test_bad_files(tmp_path, capsys, monkeypatch, name, content, said):
    monkeypatch.chdir(tmp_path)
    if name is not None:
        Path(name).write_bytes(content)
    error = refusal(capsys, "evaluate", name or "nothing-*", *BINARY)
    assert said in error


@pytest.mark.parametrize("name", ["evaluate", "compare", "merge"])
def test_help(capsys, name):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: datarax {name}" in shown
    assert "examples:\n  datarax " in shown
    precise = "float64 and 64-bit integers are not rounded before errors, ranks and logarithms"
    assert (precise in " ".join(shown.split())) == (name != "merge")


def test_without_rich(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)  # Python's own way to make an import fail
    error = refusal(capsys, "evaluate", "a.parquet", *BINARY)
    assert "datarax evaluate needs rich" in error
    assert "run: pip install '.[evaluate]'" in error


def test_without_jinja2(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    error = refusal(capsys, "evaluate", "a.parquet", *BINARY, "--output", tmp_path / "out")
    assert "datarax evaluate --output needs jinja2" in error
    assert "run: pip install '.[evaluate]'" in error
    assert not (tmp_path / "out").exists()
