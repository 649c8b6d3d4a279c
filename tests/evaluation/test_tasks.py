"""Tasks, the names of metrics, and the columns of files as outputs."""

import json
import pickle
from dataclasses import replace
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import datarax
from datarax import DataraxError, metrics
from datarax.algebra.fields import REQUIRED
from datarax.algebra.pytrees import children_of
from datarax.cli import evaluation_arguments
from datarax.evaluation.assembly import assembled, without_interval, without_slices
from datarax.evaluation.encoding import Configuration, Slicing
from datarax.evaluation.files import LAYOUTS
from datarax.evaluation.tasks import (
    CLASSES,
    SET_ELSEWHERE,
    TASKS,
    Spec,
    better,
    built,
    defaults,
    described,
    fields_of,
    of_task,
    parsed,
    with_numbers,
)
from datarax.evaluation.text_format import HARNESSES
from datarax.metric.other_names import snake_case
from datarax.metric.values import flat_items
from datarax.numerics.boxes import BOX_FORMATS
from tests.registry import CASES

SIZES = {
    "binary": (None, "probabilities"),
    "multiclass": (7, "logits"),
    "multilabel": (4, "probabilities"),
    "regression": (None, None),
    "score": (None, None),
    "ranking": (None, None),
    "text": (None, None),
    "detection": (3, None),
}


def test_the_command_and_the_tasks_agree():
    assert tuple(TASKS) == evaluation_arguments.TASKS
    # Judgements of TREC are named by --qrels.
    assert {*HARNESSES, *LAYOUTS} == {*evaluation_arguments.FORMATS, "trec"}
    assert tuple(BOX_FORMATS) == evaluation_arguments.BOX_FORMATS


@pytest.mark.parametrize("task", TASKS)
def test_defaults_can_be_built(task):
    size, scores = SIZES[task]
    specs = defaults(task, size=size, scores=scores)
    config = Configuration(task, tuple(specs), size, scores=scores, bootstrap=3)
    assert set(assembled(config)["whole"]) >= {spec.name for spec in specs}
    saved = json.loads(json.dumps(config.as_json()))
    assert Configuration.of_json(saved) == config


def test_defaults_follow_the_size_and_the_scores():
    def names(**given):
        return {spec.name for spec in defaults("multiclass", **given)}

    assert "top_5_accuracy" in names(size=6, scores="logits")
    assert "top_5_accuracy" not in names(size=5, scores="logits")
    assert "auroc" not in names(size=6, scores="labels")
    assert "median_absolute_error" not in {
        spec.name for spec in defaults("regression", size=2, scores=None)
    }


@pytest.mark.parametrize(
    ("task", "text", "expected"),
    [
        ("binary", "AUROC", [Spec("auroc", "AUROC")]),
        ("binary", "fbeta:beta=2", [Spec("f_beta(beta=2)", "FBeta", (("beta", 2),))]),
        ("binary", " f_beta : beta = 0.5 ", [Spec("f_beta(beta=0.5)", "FBeta", (("beta", 0.5),))]),
        (
            "multiclass",
            "top=accuracy:top_k=3,f1:average=weighted",
            [
                Spec("top", "Accuracy", (("top_k", 3),)),
                Spec("f1(average=weighted)", "F1", (("average", "weighted"),)),
            ],
        ),
        (
            "binary",
            "logauc:fpr_range=(0.01,0.1),accuracy",
            [
                Spec("log_auc(fpr_range=(0.01, 0.1))", "LogAUC", (("fpr_range", (0.01, 0.1)),)),
                Spec("accuracy", "Accuracy"),
            ],
        ),
        ("regression", "mae", [Spec("mae", "MeanAbsoluteError")]),
        (
            "regression",
            "mean_absolute_error",
            [Spec("mean_absolute_error", "MeanAbsoluteError")],
        ),
        ("regression", "bias", [Spec("bias", "Mean")]),
        # Of a regression, one number of each row is the error: the name says it.
        ("regression", "mean", [Spec("bias", "Mean")]),
        ("regression", "std,error_max", [Spec("error_std", "Std"), Spec("error_max", "Max")]),
        ("score", "mean", [Spec("mean", "Mean")]),
        (
            "score",
            "quantile:q=(0.1,0.9)",
            [
                Spec("quantile(q=0.1)", "Quantile", (("q", 0.1),)),
                Spec("quantile(q=0.9)", "Quantile", (("q", 0.9),)),
            ],
        ),
        ("ranking", "map", [Spec("map", "RetrievalMAP")]),
        ("ranking", "ndcg_at_10", [Spec("ndcg_at_10", "NDCG", (("k", 10),))]),
        ("text", "exact_match", [Spec("exact_match", "TextExactMatch")]),
        (
            "multilabel",
            "macro_f1:threshold=0.25",
            [Spec("macro_f1(threshold=0.25)", "F1", (("threshold", 0.25),))],
        ),
        (
            "text",
            "bleu(tokenize=13a)",
            [Spec("bleu(tokenize=13a)", "BLEU", (("tokenize", "13a"),))],
        ),
        ("text", "rouge/rouge1,rouge/rouge2", [Spec("rouge", "ROUGE")]),
    ],
)
def test_metrics_by_name(task, text, expected):
    assert parsed(text, task) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("acuracy", "there is no metric 'acuracy'; did you mean 'accuracy'"),
        ("balanced_acuracy", "there is no metric 'balanced_acuracy'; did you mean 'balanced_acc"),
        ("ndgc_at_10", "there is no metric 'ndgc_at_10'; did you mean 'ndcg_at_10'"),
        ("macro_f1", "not of the task 'binary': it is computed with --task multiclass or multil"),
        ("balanced_accuracy:average=micro", "balanced_accuracy has average= already"),
        ("fbeta:beta=2:beta=3", "fbeta has beta= already; leave out 'beta=3'"),
        ("equal_error_rate/treshold", "has no number 'treshold'; did you mean 'threshold'?"),
        ("accuracy/value", "the metric 'accuracy' has no number 'value'"),
        ("no_such_module.Mine", "cannot import 'no_such_module': No module named 'no_such_modul"),
        (".Mine", "cannot import ''"),
        ("json.JSONDecoder", "'json' has no datarax.Metric 'JSONDecoder'"),
        ("datarax.metrics.Acuracy", "has no datarax.Metric 'Acuracy'; did you mean 'Accuracy'"),
        ("datarax.metrics.WER", "not of the task 'binary': its class has tasks = ('text',)"),
        ("bleu", "not of the task 'binary': it is computed with --task text"),
        ("fid", "cannot be read from columns"),
        ("accuracy:bta=2", "accuracy has no option 'bta=2'"),
        ("fbeta:betta=2", "did you mean 'beta'?"),
        ("accuracy:num_classes=3", "num_classes is set by --num-classes or --classes"),
        ("fbeta:beta=__import__('os').getcwd()", "expected a number, a word or a tuple"),
        ("fbeta:beta=" + "(" * 5000, "expected a number, a word or a tuple"),
        ("accuracy,accuracy", "has 'accuracy' twice"),
        ("accuracy,,f1", "an empty name"),
        ("", "an empty name"),
    ],
)
def test_what_is_no_metric(text, said):
    with pytest.raises(DataraxError) as caught:
        parsed(text, "binary")
    assert said in str(caught.value)


@pytest.mark.parametrize("task", TASKS)
def test_names_go_in_as_they_come_out(task):
    """All metrics of a task, by the names of the numbers that its table has."""
    size, scores = SIZES[task]
    specs = list(defaults(task, size=size, scores=scores))
    for name in of_task(task):
        needed = (x for x, required in fields_of(CLASSES[name]).items() if required)
        config = next(case.config for case in CASES if case.cls is CLASSES[name])
        options = [f"{x}={config[x]}" for x in needed if x != TASKS[task].size]
        found = parsed(":".join([snake_case(name), *options]), task)
        specs += [spec for spec in found if spec.name not in {each.name for each in specs}]
    for spec in specs:
        metric = built(spec, task, size, scores, "propagate")
        printed = [name for name, _ in flat_items({spec.name: metric.results()})]
        assert parsed(",".join(printed), task, size) == [spec]
    assert parsed(",".join(spec.name for spec in specs), task) == specs


def test_all_short_names_are_of_a_task():
    short = {cls for cls in CLASSES.values() if "short_name" in vars(cls)}
    assert {cls.short_name for cls in short} >= {"mae", "mse", "rmse", "r2", "map", "mcc", "ece"}
    for cls in short:
        assert all(parsed(cls.short_name, task)[0].metric == cls.__name__ for task in cls.tasks)


class OwnError(metrics.MeanAbsoluteError):
    """An error of the user's."""

    higher_is_better = True


class OwnPeak(datarax.Metric):
    """It says nothing of itself but its task."""

    tasks = ("regression",)
    peak = datarax.MetricAccumulator(0.0, "max")

    def update(self, values):
        return self.replace(peak=self.peak.update(values))

    def compute(self):
        return self.peak.value


@pytest.mark.filterwarnings("ignore:.*the rows do not vary")
def test_a_users_class_says_what_it_is():
    specs = parsed(f"{__name__}.OwnError,own={__name__}.OwnPeak,mae", "regression")
    assert specs == [
        Spec("own_error", f"{__name__}.OwnError"),
        Spec("own", f"{__name__}.OwnPeak"),
        Spec("mae", "MeanAbsoluteError"),
    ]
    assert [better(spec) for spec in specs] == ["higher", None, "lower"]
    own, silent = (described(spec, "regression") for spec in specs[:2])
    assert (own, silent) == ("An error of the user's.", "It says nothing of itself but its task.")
    config = Configuration("regression", tuple(specs))
    assert Configuration.of_json(json.loads(json.dumps(config.as_json()))) == config
    metric = assembled(config)["whole"]
    # A mean of one's own has the interval of a mean.
    assert isinstance(metric["own_error"].read_from().metric, OwnError)
    results = metric.update(preds=np.ones(3), target=np.zeros(3), error=np.ones(3)).results()
    assert results["own"] == results["own_error/value"] == results["mae/value"] == 1


def test_names_in_saved_files_import_nothing(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    saved = {"name": "x", "metric": "never_imported.X", "options": {}}
    with pytest.raises(DataraxError, match="datarax merge takes --import never_imported"):
        Spec.of_json(saved)


def test_options_that_a_metric_needs_or_refuses():
    for text, said in (
        ("precision_at_fixed_recall", "needs min_recall: write precision_at_fixed_recall:min_"),
        ("fbeta:beta=-1", "the metric 'f_beta(beta=-1)': "),
        ("fbeta:beta=word", "the metric 'f_beta(beta=word)': "),
        ("f1:average=median", "the metric 'f1(average=median)': "),
        ("f1:average=macro", "average='macro' has no effect in a binary task"),
    ):
        (spec,) = parsed(text, "binary")
        with pytest.raises(DataraxError) as caught:
            built(spec, "binary", None, "probabilities", "propagate")
        assert said in str(caught.value)
    (spec,) = parsed("auroc", "multiclass")
    with pytest.raises(DataraxError, match="needs scores, and --preds names one column"):
        built(spec, "multiclass", 3, "labels", "propagate")


def test_every_class_has_a_distinct_name():
    names = [snake_case(cls.__name__) for cls in set(CLASSES.values())]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert "giou" not in of_task("binary")


def test_large_states_are_not_held_for_each_replica():
    specs = tuple(parsed("accuracy,auroc", "multiclass"))
    slicing = Slicing("country", ("de", "fr"))
    config = Configuration("multiclass", specs, 40, slicings=(slicing,), bootstrap=5)
    assert without_interval(config) == []  # by a formula
    assert without_slices(config) == ["auroc"]
    config = replace(config, size=90)
    assert without_interval(config) == without_slices(config) == ["auroc"]
    metric = assembled(config)
    assert set(children_of(metric["slice_0"])["metric"]) == {"accuracy", "examples"}
    assert set(metric) == {"whole", "slice_0"}  # no replicas: the accuracy has a formula
    binary = Configuration("binary", tuple(parsed("auroc", "binary")), bootstrap=5)
    assert without_interval(binary) == []  # with fewer bins


def test_slices_of_values():
    slicing = Slicing("by", ("de", "", None), other=True)
    assert slicing.names == ("de", "(empty)", "(no value)", "other")
    assert slicing.ids(["de", None, "fr", "", float("nan")]).tolist() == [0, 2, 3, 1, 2]
    numbers = Slicing("by", (3, 1))
    assert numbers.ids(np.array([1, 2, 3])).tolist() == [1, -1, 0]
    assert Slicing("by", (True, False)).names == ("true", "false")


def test_labels_as_numbers():
    def labels(x, classes=()):
        config = Configuration("multiclass", names=classes, named=True, scores="probabilities")
        given = {"target": x, "preds": np.zeros((len(x), 2))}
        return config.encoding(given)["target"].tolist()

    assert labels(["b", "a", "z"], ("a", "b")) == [1, 0, -1]
    assert labels(np.array([2, 2**40, -3])) == [2, -1, -3]
    assert labels(np.array([1.0, 0.5, np.nan, np.inf])) == [1, -1, -1, -1]
    assert labels(np.array([True, False])) == [1, 0]


def test_queries_and_rows_as_ids():
    encoding = Configuration("ranking").encoding
    given = {"preds": np.arange(4.0), "target": np.arange(4), "query": ["q", "a", "q", "b"]}
    out = encoding(given)
    assert out["query"].tolist() == [2, 0, 2, 1]
    assert out["index"][0] == out["index"][2]
    assert len(set(out["index"].tolist())) == 3
    again = pickle.loads(pickle.dumps(encoding))(given)
    assert again["index"].tolist() == out["index"].tolist()


def test_boxes_are_padded():
    encoding = Configuration("detection").encoding
    out = encoding(
        {
            "boxes": [[[0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]], [], None],
            "scores": [[0.5, 0.25, 0.75], [], None],
            "labels": [[0, 1, 0], [], None],
            "target_boxes": [[0, 0, 1, 1], [], []],
            "target_labels": [[1], [], []],
        }
    )
    assert out["boxes"].shape == (3, 4, 4)
    assert out["valid"].sum(1).tolist() == [3, 0, 0]
    assert out["target_valid"].shape == (3, 1)
    with pytest.raises(DataraxError, match="an image has 1 boxes and 2 scores"):
        encoding(
            {
                "boxes": [[[0, 0, 1, 1]]],
                "scores": [[0.5, 0.5]],
                "labels": [[1]],
                "target_boxes": [[]],
                "target_labels": [[]],
            }
        )


PLAIN = bool | int | float | str | None
"""The values of options that a command can give, by themselves or in lists."""


def is_plain(value):
    parts = value if isinstance(value, tuple | list) else [value]
    return all(isinstance(each, PLAIN) for each in parts)


def spelled(value):
    """The ways in which one writes a value on a command line."""
    if isinstance(value, tuple | list):
        parts = [", ".join(each) for each in zip(*map(spelled, value), strict=False)]
        return [f"({each},)" for each in parts] + [f"[{each}]" for each in parts] if value else []
    if isinstance(value, str):
        return [value, repr(value)]
    return [str(value), str(value).lower()]


def options_of_the_catalogue():
    """Each class of a task with each value of an option that its annotation or a case names."""
    for name, cls in CLASSES.items():
        hints = get_type_hints(cls)
        cases = [case.config for case in CASES if case.cls is cls]
        for option in fields_of(cls) if cls.tasks else ():
            found = [config[option] for config in cases if option in config]
            found += [cls.fields[option].default]
            for kind in (hints[option], *get_args(hints[option])):
                found += {bool: [True, False], type(None): [None]}.get(kind, [])
                found += get_args(kind) if get_origin(kind) is Literal else []
            if option not in SET_ELSEWHERE:
                yield name, option, [x for x in found if x is not REQUIRED and is_plain(x)]


def test_an_option_means_what_its_class_says():
    """Each value of each option of the catalogue, as one writes it on a command line."""
    checked, words = 0, {}
    for name, option, values in options_of_the_catalogue():
        task, cls = CLASSES[name].tasks[0], CLASSES[name]
        if (cls, option) == (metrics.Quantile, "q"):
            values = [x for x in values if not isinstance(x, tuple | list)]  # a metric for each
        for value in values:
            for text in spelled(value):
                (spec,) = parsed(f"m={snake_case(name)}:{option}={text}", task)
                got = with_numbers(dict(spec.options)[option])
                want = tuple(value) if isinstance(value, list) else value
                assert repr(got) == repr(want) or (got == want and type(got) is type(want)), (
                    f"{name}: {option}={text} gives {got!r}, due {want!r}"
                )
                checked += 1
                # As it is printed, it can be given again.
                (shown,) = parsed(f"{snake_case(name)}:{option}={text}", task)
                assert parsed(shown.name, task) == [shown]
        if {*map(type, values)} == {bool}:
            words[name] = option
    assert checked > 1000, checked
    for name, option in words.items():
        for text in ("yes", "1", "0.5", "(True,)"):
            with pytest.raises(DataraxError, match=f"{option}=.*expected true or false"):
                parsed(f"{snake_case(name)}:{option}={text}", CLASSES[name].tasks[0])
    with pytest.raises(DataraxError, match="capacity=True; expected a number"):
        parsed("spearman_corr_coef:capacity=True", "regression")


def test_each_configuration_of_the_catalogue_is_evaluated_in_slices_with_replicas():
    """What an evaluation sets itself, such as fewer bins in slices, suits the options given."""
    built_ones = 0
    for case in CASES:
        given = {x: y for x, y in case.config.items() if x not in SET_ELSEWHERE}
        for task in case.cls.tasks:
            size, scores = SIZES[task]
            if not all(map(is_plain, given.values())) or isinstance(given.get("q"), list | tuple):
                continue
            options = "".join(f":{x}={spelled(y)[0]}" for x, y in given.items() if y != ())
            (spec,) = parsed(f"m={snake_case(case.cls.__name__)}{options}", task)
            config = Configuration(
                task, (spec,), size, scores=scores, bootstrap=3, slicings=(Slicing("by", ("a",)),)
            )
            try:
                metric = built(spec, task, size, scores, "propagate")
            except DataraxError:  # for another number of classes, or another task
                continue
            others = {x: getattr(metric, x) for x in SET_ELSEWHERE if x in metric.fields}
            others |= {x: y for x, y in spec.options if x not in given}  # of the task
            assert repr(metric) == repr(case.cls(**given, **others)), case.id
            whole = assembled(config)
            assert set(whole) >= {"whole", "slice_0"}
            built_ones += 1
    assert built_ones > 200, built_ones
