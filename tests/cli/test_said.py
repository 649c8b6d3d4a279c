"""What the commands say of choices that they make themselves."""

import io
import json

import numpy as np
from rich.console import Console

from datarax.cli import console_tables
from datarax.evaluation.html_report import render
from tests.cli.evaluations import command, evaluated, refusal, values, write

STRINGS = ("--task", "binary", "--preds", "score", "--target", "label", "--metrics", "recall")


def printed(summary, width=80):
    file = io.StringIO()
    console_tables.show(Console(file=file, width=width), summary)
    return file.getvalue()


def test_the_positive_class_of_strings_is_said(tmp_path):
    label = np.array(["legit", "fraud", "fraud", "legit"])
    path = write(tmp_path / "a.parquet", {"score": np.array([0.9, 0.8, 0.7, 0.1]), "label": label})
    for given, said in (
        ((), "legit (last in the alphabet; --classes sets it)"),
        (("--classes", "legit,fraud"), "fraud (set by --classes)"),
    ):
        summary = evaluated(tmp_path / f"out{len(given)}", path, *STRINGS, *given)
        assert summary["positive_class"] == said
        assert f"positive class: {said}" in printed(summary)
        page = (tmp_path / f"out{len(given)}/report.html").read_text()
        assert page == render(summary) or said in page
        assert said in render(summary)
        assert summary["metrics"][0]["value"] == (1.0 if given else 0.5)
    numbers = write(tmp_path / "b.parquet", {"score": np.array([0.9, 0.1]), "label": np.arange(2)})
    summary = evaluated(tmp_path / "numbers", numbers, *STRINGS)
    assert summary["positive_class"] is None
    assert "positive class" not in printed(summary).lower() + render(summary).lower()


def test_what_exact_match_leaves_out_is_said(tmp_path):
    """In the table, the report and `metrics.json`; also where two models are compared."""
    path = tmp_path / "a.csv"
    path.write_text("p,t\nThe cat!,cat\na,b\n")
    task = ("--task", "text", "--preds", "p", "--target", "t", "--metrics")
    for metric, words in {
        "text_exact_match": "case, white space, articles, and punctuation at the ends",
        "text_exact_match(normalize='squad')": "case, white space, articles, and all punctuation",
        "text_exact_match(normalize=False)": None,
    }.items():
        for argv in (("evaluate", path), ("compare", path, path)):
            assert command(*argv, *task, metric, "--output", tmp_path / "out") == 0
            summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
            (row,) = summary["metrics"]
            notes = [note for note in summary["notes"] if "normalize=False" in note]
            if words is None:
                assert row["description"] == "The fraction of texts that equal a reference."
                assert notes == []
                continue
            assert row["description"].endswith(f" equal a reference, without {words}.")
            (note,) = notes
            assert f": equal without {words}; " in note
            if argv[0] == "evaluate":
                assert words in " ".join(printed(summary, 200).split())
                assert words in render(summary, [])


def test_ratios_that_count_as_0_are_said(tmp_path):
    """Once a metric, by the names of the classes: in the table, the page and `metrics.json`."""
    path = tmp_path / "a.csv"
    path.write_text("p,t,c\ncat,cat,de\ndog,cat,fr\ndog,dog,de\ndog,dog,fr\ndog,fox,de\n")
    task = ("--task", "multiclass", "--preds", "p", "--target", "t", "--metrics")
    sets = "zero_division= sets the value, and NaN leaves them out of averages"
    of_fox = f"precision: 0/0 counts as 0 for classes fox; {sets}"
    in_slices = f"precision: in slices c=de, c=fr: 0/0 counts as 0 for classes cat, fox; {sets}"
    by_class = "precision: 0/0 counts as 0 for classes fox, in the table by class"
    for given, said in {
        ("precision,f1,accuracy",): [of_fox],
        ("precision:average=micro,recall", "--slice-by", "c"): [by_class],
        ("precision", "--slice-by", "c"): [of_fox, in_slices],
        ("precision:zero_division=0",): [by_class],
        ("precision:zero_division=nan",): [by_class],
    }.items():
        summary = evaluated(tmp_path / "out", path, *task, *given)
        assert summary["notes"] == said, given
        for note in said:
            assert note in " ".join(printed(summary, 400).split())
            assert note in render(summary, [])
        assert command("merge", tmp_path / "out", "--output", tmp_path / "merged") == 0
        assert json.loads((tmp_path / "merged" / "metrics.json").read_text())["notes"] == said
    nan = evaluated(tmp_path / "out", path, *task, "precision:zero_division=nan")
    assert values(nan) == {"precision(zero_division=nan)": 0.75}
    assert command("compare", path, path, *task, "precision", "--output", tmp_path / "two") == 0
    notes = json.loads((tmp_path / "two" / "metrics.json").read_text())["notes"]
    assert notes == [f"a/{of_fox}", f"b/{of_fox}"]


def test_metrics_that_do_not_fit_a_table_of_slices_are_named():
    value = {"value": 0.5, "lower": 0.4, "upper": 0.6}
    names = ["accuracy", "balanced_accuracy", "f1", "log_loss", "auroc"]
    row = {"name": "Kenya", "examples": 3, "values": dict.fromkeys(names, value)}
    summary = {
        **{key: [] for key in ("metrics", "excluded")},
        **dict.fromkeys(("title", "task"), "binary"),
        "config": {},
        "by_class": None,
        "source": {"rows": 3, "complete": True},
        "confidence": 0.95,
        "slices": [{"by": "country", "rows": [row]}],
    }
    narrow = " ".join(printed(summary).split())
    hidden = [name for name in names if f" {name} " not in narrow.split("Kenya")[0]]
    assert hidden
    assert f"without {', '.join(hidden)}: the terminal has 80 columns; --output writes" in narrow
    assert "without" not in printed(summary, 200)


def test_columns_of_labels_and_outputs_are_matched_by_name(rng, tmp_path):
    """Of several labels, and of several outputs of a regression, in any order of the columns."""
    target = rng.integers(0, 2, (3, 50))
    columns = {f"{x}_prob": y * 0.8 + 0.1 for x, y in zip("abc", target, strict=True)}
    columns |= dict(zip(["true_A", "true_B", "true_C"], target, strict=True))
    columns |= dict(zip("xyz", target, strict=True))
    path = write(tmp_path / "a.parquet", columns)
    preds, names = "a_prob,b_prob,c_prob", "a_prob with true_A, b_prob with true_B, c_prob with tru"
    for task, metric, perfect in (("multilabel", "exact_match", 1), ("regression", "mae", None)):
        given = ("--task", task, "--preds", preds, "--metrics", metric, "--target")
        out = {
            order: evaluated(tmp_path / task / order, path, *given, order)
            for order in ("true_A,true_B,true_C", "true_C,true_A,true_B", "x,y,z")
        }
        straight, turned, by_place = out.values()
        assert straight["metrics"] == turned["metrics"] == by_place["metrics"]
        assert perfect is None or straight["metrics"][0]["value"] == perfect
        assert not any("matched" in note for note in straight["notes"])
        assert turned["notes"][0].startswith(
            f"the columns of --preds and --target are matched by name: {names}"
        )
        assert by_place["notes"][0].startswith(
            "the columns of --preds and --target are matched by place, as their names do not "
            "match: a_prob with x, b_prob with y"
        )
        assert turned["notes"][0] in render(turned)


def test_the_positive_class_may_be_named_by_the_column(tmp_path):
    columns = {"p_legit": [0.1, 0.9], "p_fraud": [0.9, 0.1], "label": ["fraud", "legit"]}
    path = write(tmp_path / "a.parquet", columns)
    for column, said in (("p_legit", "legit"), ("p_fraud", "fraud")):
        given = ("--task", "binary", "--preds", column, "--target", "label", "--metrics", "auroc")
        summary = evaluated(tmp_path / column, path, *given)
        assert values(summary) == {"auroc": 1.0}
        assert summary["positive_class"] == (
            f"{said} (named by the column {column}; --classes sets it)"
        )
        summary = evaluated(tmp_path / f"{column}2", path, *given, "--classes", "fraud,legit")
        assert values(summary) == {"auroc": float(said == "legit")}


def test_labels_that_look_alike_are_noted(tmp_path, capsys):
    """They stay classes of their own, because only the user knows whether they are the same."""
    labels = {"p": ["cat", "dog", "Cat"], "t": ["cat", "dog ", "cat"], "by": ["EU", "eu", "US"]}
    path = write(tmp_path / "a.parquet", labels)
    given = ("--task", "multiclass", "--preds", "p", "--target", "t", "--metrics", "accuracy")
    summary = evaluated(tmp_path / "out", path, *given, "--slice-by", "by")
    assert values(summary)["accuracy"] == 1 / 3
    said = "differ in case or white space alone: they count as different"
    assert summary["notes"][:3] == [
        f"'Cat' and 'cat' {said} classes",
        f"'dog' and 'dog ' {said} classes",
        f"'EU' and 'eu' {said} slices by by",
    ]
    assert summary["notes"][0] in printed(summary, 200)
    capsys.readouterr()
    path = write(tmp_path / "b.parquet", {"s": [0.1, 0.9, 0.8], "t": ["no", "yes", "Yes"]})
    given = ("--task", "binary", "--preds", "s", "--target", "t")
    assert "'Yes' and 'yes' differ in case or white" in refusal(capsys, "evaluate", path, *given)
