"""What a new user meets who has a file and `datarax --help`: each message says what to do."""

import json

import pytest

from datarax.cli import main
from tests.cli.evaluations import evaluated, refusal, values

ONE_LABEL = "p,t\n" + "cat,cat\n" * 3


@pytest.mark.parametrize(
    ("files", "argv", "said"),
    [
        (
            {"a.csv": ONE_LABEL},
            ("--task", "multiclass"),
            "'cat'; a task of classes takes",
        ),
        ({"a.csv": ONE_LABEL}, ("--task", "multiclass"), "--classes cat,OTHER"),
        ({"a.csv": ONE_LABEL}, ("--task", "binary"), "has 1 distinct value, cat; the"),
        ({"a.csv": ONE_LABEL}, ("--task", "binary"), "--classes OTHER,cat"),
        (
            {"a.csv": "p,t\n0.1,a\n0.2,b\n0.3,c"},
            ("--task", "binary"),
            "; --task multiclass takes more",
        ),
        (
            {"a.csv": "p,t\n0.1,caf\u00e9\n0.2,cafe\u0301\n0.3,c"},
            ("--task", "binary"),
            r"'cafe\u0301' and 'caf\xe9' differ in Unicode form alone",
        ),
        ({"a.csv": "p,p,t\n1,2,3"}, ("--task", "binary"), "give the others names of their own"),
        (
            {"a.json": "[]"},
            ("--task", "binary"),
            "a.json: the file is empty",
        ),
        (
            {"a.csv": "0.1,1\n0.2,0"},
            ("--task", "binary"),
            "'0.1', '1'; the first line of a CSV holds",
        ),
        (
            {"a.jsonl": '{"p": [0.1, 0.9], "t": 1}\n{"p": [0.1, 0.2, 0.7], "t": 1}'},
            ("--task", "multiclass"),
            "the column 'p' holds lists of 2 to 3 values; the task multiclass takes lists of",
        ),
        (
            {"a.csv": "p,\u00e9\n0.1,1"},
            ("--task", "binary", "--encoding", "ascii"),
            "no ASCII: give its",
        ),
        (
            {"\u00e9.csv": "p,\u00e9\n0.1,1"},
            ("--task", "binary", "--encoding", "utf-16"),
            "no UTF-16",
        ),
        (
            {"a.csv": "PAR1\u00e9\0\0"},
            ("--task", "binary"),
            "Parquet: let its name end in .parquet",
        ),
        ({"a.csv": "PK\3\4\0"}, ("--task", "binary"), "a ZIP archive, as .xlsx"),
        ({"run.txt": "q 0 d 1 1 x"}, ("--task", "ranking"), "a run of TREC needs --qrels FILE"),
    ],
)
def test_what_is_wrong_says_what_to_write(tmp_path, capsys, files, argv, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = (*argv, "--preds", "p", "--target", "t")
    assert said in refusal(capsys, "evaluate", tmp_path / next(iter(files)), *given)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("detection", "--preds; files of COCO need --format coco instead"),
        ("ranking", "--preds; a run of TREC needs --qrels FILE instead"),
    ],
)
def test_the_format_of_a_field_is_named_where_columns_are_missing(capsys, task, said):
    assert said in refusal(capsys, "evaluate", "found.json", "--task", task, "--target", "t.json")


def test_one_label_with_the_names_of_both(tmp_path):
    (tmp_path / "a.csv").write_text("p,t\n" + "cat,cat\n" * 40)
    argv = ("--task", "multiclass", "--preds", "p", "--target", "t", "--classes", "cat,dog")
    assert values(evaluated(tmp_path / "out", tmp_path / "a.csv", *argv))["accuracy"] == 1


def test_results_of_coco_in_a_column_task(tmp_path, capsys):
    (tmp_path / "found.json").write_text(
        json.dumps([{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}])
    )
    argv = ("--task", "detection", "--preds", "bbox,score,category_id", "--target", "bbox,score")
    assert "--format coco" in refusal(capsys, "evaluate", tmp_path / "found.json", *argv)


def test_a_result_that_is_nan_says_why(tmp_path):
    """Also where all rows can be used; and labels that are none are named."""
    defaults = ("--preds", "p", "--target", "t")
    for rows, metrics, said in (
        (
            "0.9,1,1\n0.2,1,1\n",
            "accuracy,auroc",
            ["auroc: NaN, because these rows define no value"],
        ),
        ("0.9,1,0\n0.2,0,0\n", "accuracy", ["accuracy: NaN, because these rows define no"]),
        ("0.9,1,1\n0.2,0,1\n", "accuracy,auroc", []),
        ("0.9,7,1\n0.2,0,1\n", "accuracy", []),
        ("nan,1,1\n0.2,0,1\n", "auroc", []),
    ):
        (tmp_path / "a.csv").write_text(f"p,t,w\n{rows}")
        argv = ("--task", "binary", *defaults, "--weights", "w", "--metrics", metrics)
        found = evaluated(tmp_path / "out", tmp_path / "a.csv", *argv)
        notes = [note for note in found["notes"] if "NaN" in note]
        assert len(notes) == len(said)
        assert all(note.startswith(due) for note, due in zip(notes, said, strict=True))
        if "7" in rows:
            (excluded,) = found["excluded"]
            assert (
                "leaves such rows out: column 't' holds 7; expected 0 and 1" in excluded["effect"]
            )


def test_compare_says_that_it_joins(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "joined" in capsys.readouterr().out.replace("\n", " ")
