"""`datarax metrics`, and the names of other libraries."""

import re

import pytest

from datarax.cli import main
from datarax.evaluation.tasks import CLASSES, TASKS, UnknownMetricError, catalogue_of, parsed
from datarax.metric.other_names import snake_case


def printed(capsys, *argv):
    assert main(["metrics", *argv]) == 0
    return capsys.readouterr().out


def test_all_metrics_are_listed_on_lines_of_their_own(capsys):
    lines = printed(capsys).splitlines()
    names = {line.split()[0] for line in lines}
    assert {snake_case(name) for name in CLASSES} <= names
    assert len(lines) == len(names)  # the first is that of the heads
    (line,) = [line for line in lines if line.startswith("f_beta ")]
    assert re.split(r"  +", line)[1:4] == [
        *("higher", "binary, multiclass, multilabel", "preds, target, weights")
    ]
    assert "beta=1.0" in line
    (line,) = [line for line in lines if line.startswith("psnr ")]
    assert "none: only in Python" in line


@pytest.mark.parametrize("task", TASKS)
def test_what_is_listed_for_a_task_can_be_computed(task):
    found = catalogue_of(task)
    assert len(found) == len({each.name for each in found})
    for each in found:
        assert task in each.tasks
        given = {"q=...": "q=0.5", "k=...": "k=3"}
        options = [given.get(x, x.replace("...", "0.5")) for x in each.options if x.endswith("...")]
        (spec,) = parsed(":".join([each.name, *options]), task)
        assert each.name in (spec.name.partition("(")[0], snake_case(spec.metric))


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["AUROC", "--task", "binary"], ["auroc"]),
        (["roc_auc_score"], ["auroc"]),
        (["mape"], ["mean_absolute_percentage_error", "wmape"]),
        (["balanced"], ["balanced_accuracy"]),
        (["hit_rate*", "--task", "ranking"], ["hit_rate", "hit_rate_at_10"]),
    ],
)
def test_patterns(capsys, argv, names):
    out = printed(capsys, *argv)
    found = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert set(names[:1]) <= set(found) if "mape" in argv else found == names
    for part in ("better: ", "tasks: ", "takes: ", "options: "):
        assert part in out


def test_an_unknown_name_is_an_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["metrics", "acuracy"])
    assert stopped.value.code == 2
    said = "there is no metric 'acuracy'; did you mean 'accuracy'"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "task", "meant"),
    [
        ("roc_auc", "binary", "did you mean 'auroc'?"),
        ("pearson", "regression", "did you mean 'pearson_corr_coef'?"),
        ("spearman", "regression", "did you mean 'spearman_corr_coef'?"),
        ("kappa", "multiclass", "did you mean 'cohen_kappa'?"),
        ("pr_auc", "binary", "did you mean 'average_precision'?"),
        ("f1_macro", "multiclass", "did you mean 'f1:average=macro'?"),
        ("p99", "score", "did you mean 'quantile:q=0.99'?"),
        ("spearman", "binary", "'spearman_corr_coef' is computed with --task regression"),
        ("xyzzy", "text", "datarax metrics --task text lists them"),
    ],
)
def test_names_of_other_libraries_are_suggested(name, task, meant):
    with pytest.raises(UnknownMetricError, match=re.escape(meant)):
        parsed(name, task)
