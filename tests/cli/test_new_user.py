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


def test_compare_says_that_it_joins(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert "joined" in capsys.readouterr().out.replace("\n", " ")
