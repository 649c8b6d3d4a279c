"""CSV and JSON lines that people have: the same numbers as of Parquet, or an error that helps."""

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats

from datarax.cli import main
from datarax.evaluation import text_files
from datarax.evaluation.encoding import Configuration
from datarax.evaluation.outcome import Outcome
from datarax.metrics import Mean
from datarax.wrappers.collection import Collection
from tests.cli.evaluations import command, refusal, values
from tests.evaluation.written import write

BINARY = ("--task", "binary", "--preds", "score", "--target", "label", "--metrics", "accuracy")
MISSING = {
    "pred": ["cat", "dog", "cat", "dog", "N/A"],
    "label": ["cat", "dog", None, None, "cat"],
    "score": [0.9, 0.2, 0.8, 0.1, 0.7],
    "y": ["yes", "no", None, "yes", "yes"],
}


@pytest.mark.parametrize("name", ["csv", "parquet", "jsonl", "arrow"])
def test_missing_labels_are_left_out_of_every_format(name, tmp_path, capsys):
    path = write(tmp_path / f"a.{name}", MISSING)
    for task, preds, target, metric, missing, expected, rows in (
        ("multiclass", "pred", "label", "accuracy", "N/A", "1.000", 2),
        ("text", "pred", "label", "exact_match", "N/A,-", "1.000", 2),
        ("text", "pred", "label", "exact_match", "-", "0.667", 3),
        ("binary", "score", "y", "accuracy", "N/A", "0.750", 4),
        ("binary", "score", "y", "accuracy", "0.1", "1.000", 3),
    ):
        arguments = ("--task", task, "--preds", preds, "--target", target, "--metrics", metric)
        assert command("evaluate", path, *arguments, "--missing-values", missing) == 0
        printed = capsys.readouterr().out
        assert f" {rows} rows" in printed
        (row,) = [line for line in printed.splitlines() if line.startswith(f" {metric} ")]
        assert row.split()[1] == expected
        left_out = re.findall(r"(\d+) rows?: no value in column", printed)
        assert sum(map(int, left_out)) == 5 - rows


def test_results_of_other_missing_values_are_not_merged():
    config = Configuration("text", missing_values=("N/A", ""))
    assert Configuration.of_json(config.as_json()) == config
    a, b = (
        Outcome(Collection({"a": Mean()}), config=each, columns={}, title="")
        for each in (config, Configuration("text"))
    )
    assert a.difference(b) == '--missing-values is ["N/A", ""] in one and [] in the other'


def test_types_are_found_in_all_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text_files, "_TEXT_BLOCK", 200)
    path = tmp_path / "a.jsonl"
    rows = [{"score": 0, "label": 0, "w": None, "c": i} for i in range(50)]
    rows += [{"score": 0.75, "label": 1, "w": 2.5, "c": 0.5}, {"score": 1, "label": 0, "w": 1}]
    rows += [{"score": 1, "label": 1, "w": 1, "c": 3, "error": "timeout"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("evaluate", path, *BINARY, "--weights", "w") == 0
    assert " 0.778" in capsys.readouterr().out
    # The cluster 3 is one, though half of its rows are in a batch with fractions.
    table: dict[str, Any] = {name: [x.get(name) for x in rows] for name in ("score", "label", "c")}
    table["c"] = pa.array(table["c"], pa.float64())
    printed = []
    for each in (path, write(tmp_path / "a.parquet", table)):
        assert command("evaluate", each, *BINARY, "--cluster-by", "c", "--title", "t") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert " 52 rows" in printed[0]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("score,label\n87%,1\n12%,0\n", (), "the column 'score' has the value '87%'"),
        ("score,label\n87%,yes\n12%,no\n", (), "the column 'score' has the value '87%'"),
        ("score,label\ntensor(0.9),1\ntensor(0.2),0\n", (), "has the value 'tensor(0.9)'"),
        ('score,label\n"[0.1, 0.9]",1\n', (), "has the value '[0.1, 0.9]'"),
        ('score,label\n"0,9",1\n0.5,0\n', (), "the value '0,9'; expected a number: for decimal"),
        ("score,label\n0.5,1\noften,0\n", (), "numbers: 'often' is no number; expected"),
        ("score;label\n0,9;1\n0,2;0\n", (), "separated by ';': give --delimiter ';'"),
        ("score;label\n0.9;1\n0.2;0\n", (), "separated by ';': give --delimiter ';'"),
        ("score;label\n0,9;1\n0,2;0\n", ("--delimiter", ";"), "give --decimal ','"),
        ("score;label\n0,9;1\n0,2;0\n", ("--delimiter", ";;"), "delimiter is ';;'; expected"),
        ("score;label\n0,9;1\n0,2;0\n", ("--delimiter", ";", "--decimal", ","), None),
        ("score\tlabel\n0.9\t1\n0.2\t0\n", ("--delimiter", "tab"), None),
        ("score,label\n0.9,1\nfailed,0\n0.2,0\n", ("--missing-values", "failed"), None),
    ],
)
def test_a_csv_of_a_spreadsheet(text, options, said, tmp_path, capsys):
    path = tmp_path / "a.csv"
    for encoding in ("utf-8", "utf-16"):
        path.write_bytes(text.encode(encoding))
        given = () if encoding == "utf-8" else ("--encoding", encoding)
        if said is not None:
            assert said in refusal(capsys, "evaluate", path, *BINARY, *options, *given)
            continue
        for argv in (("evaluate", path), ("compare", path, path)):
            assert command(*argv, *BINARY, *options, *given) == 0
            assert re.search(r"accuracy +1\.0", capsys.readouterr().out)
    if said is None:
        assert "give --encoding utf-16" in refusal(capsys, "evaluate", path, *BINARY, *options)


@pytest.mark.parametrize(
    ("task", "bad"), [("regression", "x"), ("regression", "y"), ("binary", "w")]
)
def test_every_column_of_numbers_shows_its_text(task, bad, tmp_path, capsys):
    path, rng = tmp_path / "a.csv", np.random.default_rng(0)
    for place in (0, 1500):  # also below the first rows that are looked at
        table = {name: rng.integers(0, 2, 2000).astype(str).astype("U9") for name in "xyw"}
        table[bad][place] = "1.5 kg"
        write(path, table)
        path.write_text(path.read_text().replace('"', ""))
        argv = ("--task", task, "--preds", "x", "--target", "y", "--weights", "w")
        said = refusal(capsys, "evaluate", path, *argv)
        assert f"the column '{bad}' has the value '1.5 kg'; expected a number" in said
        assert "--missing-values '1.5 kg'" in said


def test_a_rank_correlation_of_more_rows_than_are_kept(rng, tmp_path, capsys):
    rows = 200_000
    x, noise = rng.normal(size=(2, rows)).astype(np.float32)
    columns = {"pred": x, "y": x + noise, "part": np.arange(rows) % 2}
    path = write(tmp_path / "a.parquet", columns)
    want: Any = scipy.stats.spearmanr(columns["pred"], columns["y"])[0]

    def found(options: str) -> tuple[float, str]:
        folder = tmp_path / re.sub(r"\W", "_", f"out{options}")
        given = ["--task=regression", "--preds=pred", "--target=y", "--slice-by=part"]
        given += [f"--metrics=m=spearman_corr_coef{options}", f"--output={folder}"]
        assert main(["evaluate", str(path), *given, "--no-progress"]) == 0
        summary = json.loads((folder / "metrics.json").read_text())
        return values(summary)["m"], capsys.readouterr().out

    assert found("")[0] == pytest.approx(want, abs=2e-3)
    for options in (":capacity=200000", ":exact=true:capacity=200_000"):
        assert found(options)[0] == pytest.approx(want, abs=1e-9)
    value, said = found(":exact=true")
    assert value is None or np.isnan(value)
    assert "191,808 rows: beyond the capacity" in said
    assert ":capacity=N keeps N rows" in " ".join(said.split())
