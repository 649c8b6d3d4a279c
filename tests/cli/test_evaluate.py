"""`datarax evaluate`: its numbers, what it writes, and what it refuses."""

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
import sacrebleu
from sklearn import metrics as sk

from datarax.evaluation.outcome_summary import wrong_labels
from datarax.evaluation.table_batches import NOT_A_CLASS
from datarax.metric.base import left_out
from datarax.metrics import MRR, NDCG, Accuracy, MeanAveragePrecision
from tests.cli.evaluations import (
    ROWS,
    binary_columns,
    command,
    evaluated,
    refusal,
    values,
    write,
)

HOSTILE = ["<script>alert(1)</script>", "[red]x[/red]", "a\nb\x1b[31mc", "x" * 500, "Straße\u202e"]
BINARY = ("--task", "binary", "--preds", "score", "--target", "label")


def close(found: dict[str, float], expected: dict[str, float], tolerance: float = 1e-5) -> None:
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance), name


def test_scores_beside_probabilities_are_noted_once(rng, tmp_path):
    columns = {"score": rng.normal(0, 3, 100), "label": rng.integers(0, 2, 100)}
    columns["score"][0] = 5.0
    path = write(tmp_path / "a.parquet", columns)
    named = ("--metrics", "accuracy", "--bootstrap", "200")
    (note,) = evaluated(tmp_path / "out", path, *BINARY, *named)["notes"]
    off = int(((columns["score"] < 0) | (columns["score"] > 1)).sum())
    assert note.startswith(f"accuracy: {off} scores were not from 0 to 1")
    assert "give --scores logits" in note


def test_binary_predictions_with_weights(rng, tmp_path):
    columns = binary_columns(rng)
    path = write(tmp_path / "a.parquet", columns, row_group_size=100)
    summary = evaluated(tmp_path / "out", path, *BINARY, "--weights", "weight")
    score, label, weight = (columns[name] for name in ("score", "label", "weight"))
    hard = score >= 0.5
    w = {"sample_weight": weight}
    close(
        values(summary),
        {
            "accuracy": sk.accuracy_score(label, hard, **w),
            "balanced_accuracy": sk.balanced_accuracy_score(label, hard, **w),
            "f1": sk.f1_score(label, hard, **w),
            "precision": sk.precision_score(label, hard, **w),
            "recall": sk.recall_score(label, hard, **w),
            "matthews_corr_coef": sk.matthews_corrcoef(label, hard, **w),
            "log_loss": sk.log_loss(label, score.astype(float), **w),
            "brier_score": sk.brier_score_loss(label, score, **w),
        },
    )
    for name, of in (
        ("auroc", sk.roc_auc_score),
        ("average_precision", sk.average_precision_score),
    ):
        row = next(row for row in summary["metrics"] if row["name"] == name)
        lower, upper = row["bounds"]
        assert lower - 1e-6 <= of(label, score, **w) <= upper + 1e-6
        assert row["value"] == pytest.approx(of(label, score, **w), abs=1e-3)


def test_hostile_names_and_values(rng, tmp_path, capsys):
    columns = binary_columns(rng)
    slices = rng.choice(HOSTILE, ROWS).tolist()
    hostile, title = "<b>[bold]by\n", "<img src=x onerror=alert(1)> [red]"
    labels = [None if i < 5 else x for i, x in enumerate(columns["label"].tolist())]
    given = columns | {hostile: slices, "label": pa.array(labels, pa.int64())}
    path = write(tmp_path / "a.parquet", given, row_group_size=100)
    summary = evaluated(
        tmp_path / "out", path, *BINARY, "--slice-by", hostile, "--title", title,
        "--metrics", "accuracy", "--bootstrap", 20,
    )  # fmt: skip
    hard, label = columns["score"][5:] >= 0.5, columns["label"][5:]
    (slicing,) = summary["slices"]
    assert slicing["by"] == hostile
    rows = {row["name"]: row for row in slicing["rows"]}
    assert set(rows) == set(HOSTILE)
    at = np.array(slices[5:])
    for name in HOSTILE:
        here = at == name
        assert rows[name]["examples"] == here.sum()
        expected = sk.accuracy_score(label[here], hard[here])
        value = rows[name]["values"]["accuracy"]
        assert value["value"] == pytest.approx(expected, rel=1e-6)
        assert value["lower"] < value["value"] < value["upper"]

    (left_out,) = summary["excluded"]
    assert (left_out["where"], left_out["rows"]) == ("label", 5)
    assert summary["source"]["rows"] == ROWS - 5
    assert summary["source"]["complete"]

    shown = capsys.readouterr().out
    assert "5 rows: no value in column 'label' (left out)" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[red]x[/red]" in shown
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_multiclass_predictions_with_names(rng, tmp_path, capsys):
    names = np.array(["bee", "ant", "cow"])
    target = rng.integers(0, 3, ROWS)
    logits = rng.normal(size=(ROWS, 3)).astype(np.float32)
    logits[np.arange(ROWS), target] += 1
    columns = {f"logit_{name}": logits[:, i] for i, name in enumerate(names)}
    path = write(tmp_path / "a.parquet", columns | {"label": names[target]})
    summary = evaluated(
        tmp_path / "out", path, "--task", "multiclass", "--preds", "logit_*", "--target", "label"
    )
    # The columns of a glob are in the order of their names.
    order = np.argsort(names)
    logits, target = logits[:, order], np.argsort(order)[target]
    chances = np.exp(logits.astype(float))
    chances /= chances.sum(1, keepdims=True)
    hard = logits.argmax(1)
    close(
        values(summary),
        {
            "accuracy": sk.accuracy_score(target, hard),
            "balanced_accuracy": sk.balanced_accuracy_score(target, hard),
            "macro_f1": sk.f1_score(target, hard, average="macro"),
            "matthews_corr_coef": sk.matthews_corrcoef(target, hard),
            "log_loss": sk.log_loss(target, chances),
        },
    )
    assert values(summary)["auroc"] == pytest.approx(
        np.mean([sk.roc_auc_score(target == c, chances[:, c]) for c in range(3)]), abs=1e-3
    )
    assert summary["config"]["scores"] == "logits"
    by_class = summary["by_class"]
    assert by_class["classes"] == ["ant", "bee", "cow"]
    found = {column["name"]: column["values"] for column in by_class["columns"]}
    precision, recall, f1, support = sk.precision_recall_fscore_support(target, hard)
    np.testing.assert_allclose(found["precision"], precision, rtol=1e-6)
    np.testing.assert_allclose(found["recall"], recall, rtol=1e-6)
    np.testing.assert_allclose(found["f1"], f1, rtol=1e-6)
    assert found["support"] == support.tolist()
    assert "top_5_accuracy" not in values(summary)
    assert "ant" in capsys.readouterr().out


def test_multilabel_predictions(rng, tmp_path):
    scores, target = rng.random((ROWS, 2)), rng.integers(0, 2, (ROWS, 2))
    columns = {f"p_{i}": scores[:, i] for i in range(2)} | {
        f"y_{i}": target[:, i] for i in range(2)
    }
    path = write(tmp_path / "a.parquet", columns)
    summary = evaluated(
        tmp_path / "out", path, "--task", "multilabel", "--preds", "p_*", "--target", "y_0,y_1",
        "--metrics", "exact_match,f1,micro=f1:average=micro",
    )  # fmt: skip
    hard = scores >= 0.5
    close(
        values(summary),
        {
            "exact_match": sk.accuracy_score(target, hard),
            "f1": sk.f1_score(target, hard, average="macro"),
            "micro": sk.f1_score(target, hard, average="micro"),
        },
    )
    assert summary["by_class"]["classes"] == ["y_0", "y_1"]


def test_regression(rng, tmp_path):
    target = rng.normal(size=ROWS) + 10
    preds = target + rng.normal(size=ROWS)
    path = tmp_path / "a.csv"
    lines = (f"{a},{b}" for a, b in zip(preds, target, strict=True))
    path.write_text("\n".join(["p,t", *lines]) + "\n")
    summary = evaluated(
        tmp_path / "out", path, "--task", "regression", "--preds", "p", "--target", "t"
    )
    close(
        values(summary),
        {
            "mae": sk.mean_absolute_error(target, preds),
            "rmse": sk.root_mean_squared_error(target, preds),
            "max_error": sk.max_error(target, preds),
            "bias": float(np.mean(preds - target)),
            "r2": sk.r2_score(target, preds),
            "pearson_corr_coef": float(np.corrcoef(target, preds)[0, 1]),
        },
    )
    median = sk.median_absolute_error(target, preds)
    assert values(summary)["median_absolute_error"] == pytest.approx(median, rel=1e-2)


def test_rankings_keep_queries_together(rng, tmp_path):
    sizes = rng.integers(1, 12, 60)  # queries go across batches and row groups
    query = np.repeat(np.arange(60), sizes)
    preds, target = rng.random(len(query)), rng.integers(0, 3, len(query))
    ids = [f"q{x}" for x in query]
    columns = {"s": preds, "r": target, "q": ids}
    path = write(tmp_path / "a.parquet", columns, row_group_size=50)
    summary = evaluated(
        tmp_path / "out", path, "--task", "ranking", "--preds", "s", "--target", "r",
        "--query", "q", "--metrics", "ndcg:k=10,mrr",
    )  # fmt: skip
    given = {"query": query.astype(np.int32)}
    expected = {
        "ndcg(k=10)": NDCG(k=10).update(preds, target, **given).results(),
        "mrr": MRR().update(preds, target, **given).results(),
    }
    close(values(summary), expected)


def test_queries_that_are_not_together_are_refused(tmp_path, capsys):
    columns = {"s": [0.5, 0.25, 0.75], "r": [1, 0, 1], "q": ["a", "b", "a"]}
    path = write(tmp_path / "a.parquet", columns)
    argv = ("--task", "ranking", "--preds", "s", "--target", "r", "--query", "q")
    error = refusal(capsys, "evaluate", path, *argv)
    assert "the rows of the query 'a' do not follow each other" in error
    # A row without an id is left out, so it does not separate the others.
    path = write(tmp_path / "b.parquet", columns | {"q": ["a", None, "a"]})
    assert command("evaluate", path, *argv) == 0
    assert "no value in column 'q'" in capsys.readouterr().out


def test_texts(tmp_path):
    preds = ["the cat sat on the mat today", "a dog ran away from the house", "x"]
    target = ["the cat sat on the mat", "a dog ran away from a house", "y"]
    path = tmp_path / "a.jsonl"
    lines = ({"answer": a, "reference": b} for a, b in zip(preds, target, strict=True))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = evaluated(
        tmp_path / "out", path, "--task", "text", "--preds", "answer", "--target", "reference",
        "--metrics", "bleu,chrf,rouge,text_exact_match",
    )  # fmt: skip
    close(
        values(summary),
        {
            "bleu": sacrebleu.corpus_bleu(preds, [target]).score,
            "chrf": sacrebleu.corpus_chrf(preds, [target]).score,
            "text_exact_match": 1 / 3,  # but for articles
        },
    )
    assert {"rouge/rouge1", "rouge/rougeL"} <= values(summary).keys()


def test_detections(rng, tmp_path):
    def boxes(number):
        corner = rng.integers(0, 50, (number, 2))
        return np.concatenate([corner, corner + rng.integers(5, 30, (number, 2))], 1).tolist()

    counts = rng.integers(1, 4, 12)
    truth = [boxes(n) for n in counts]
    found = [
        [[x + rng.integers(0, 4) for x in box[:2]] + box[2:] for box in image] for image in truth
    ]
    labels = [rng.integers(0, 2, n).tolist() for n in counts]
    scores = [rng.permutation(n).tolist() for n in counts]
    scores = [[(x + 1 + 10 * i) / 200 for x in each] for i, each in enumerate(scores)]
    columns = {"b": found, "s": scores, "l": labels, "tb": truth, "tl": labels}
    path = write(tmp_path / "a.parquet", columns)
    summary = evaluated(
        tmp_path / "out", path, "--task", "detection", "--preds", "b,s,l", "--target", "tb,tl",
        "--num-classes", 2,
    )  # fmt: skip
    most = max(counts)
    padded = [
        np.array([each + [each[0]] * (most - len(each)) for each in rows])
        for rows in (found, scores, labels, truth, labels)
    ]
    real = np.arange(most) < counts[:, None]
    metric = MeanAveragePrecision(num_classes=2)
    metric = metric.update(
        *(x.astype(np.float32 if x.dtype.kind == "f" else np.int32) for x in padded),
        valid=real,
        target_valid=real,
    )
    expected = {
        f"mean_average_precision/{name}": value
        for name, value in metric.results().items()
        if value == value
    }
    close(values(summary), expected)


OWN = '''
"""The user's own metrics."""
import datarax
from datarax.metrics.classification.count_ratio import CountRatio


class FalseDiscoveryRate(CountRatio):
    """The fraction of positive predictions that are wrong."""

    higher_is_better = False
    short_name = "fdr"

    def ratio(self, c):
        return c.fp, c.predicted_positives


class BestScore(datarax.Metric):
    """The highest score."""

    tasks = ("binary",)
    best = datarax.MetricAccumulator(0.0, "max")

    def update(self, preds):
        return self.replace(best=self.best.update(preds))

    def compute(self):
        return self.best.value
'''


def test_a_users_metric_is_as_one_of_the_catalogue(rng, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_metrics.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    columns = binary_columns(rng)
    path = write(tmp_path / "a.parquet", columns)
    named = ("--metrics", "own_metrics.FalseDiscoveryRate,own_metrics.BestScore,recall,log_loss")
    summary = evaluated(tmp_path / "out", path, *BINARY, *named, "--slice-by", "country")
    hard = columns["score"] > 0.5
    close(
        values(summary),
        {
            "fdr": 1 - sk.precision_score(columns["label"], hard),
            "best_score": columns["score"].max(),
            "recall": sk.recall_score(columns["label"], hard),
        },
    )
    better = {row["name"]: row["better"] for row in summary["metrics"]}
    assert better == {"fdr": "lower", "best_score": None, "recall": "higher", "log_loss": "lower"}
    about = {row["name"]: row["description"] for row in summary["metrics"]}
    assert about["fdr"] == "The fraction of positive predictions that are wrong."
    assert {"fdr", "recall"} <= summary["slices"][0]["rows"][0]["values"].keys()
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.index("fdr") < report.index("↓ lower") < report.index("↑ higher")
    # A run is continued, and folders are merged, without an import that the user does not ask for.
    again = evaluated(tmp_path / "out", path, *BINARY, *named, "--slice-by", "country", "--resume")
    assert values(again) == values(summary)
    merge = ("merge", tmp_path / "out", "--output", tmp_path / "all")
    monkeypatch.delitem(sys.modules, "own_metrics")
    capsys.readouterr()
    assert "datarax merge takes --import own_metrics" in refusal(capsys, *merge)
    assert command(*merge, "--import", "own_metrics") == 0
    merged = json.loads((tmp_path / "all" / "metrics.json").read_text())
    assert values(merged) == values(summary)
    capsys.readouterr()
    task = ("--task", "regression", "--preds", "score", "--target", "label")
    assert "its class has tasks = ('binary', 'mul" in refusal(
        capsys, "evaluate", path, *task, "--metrics", "own_metrics.FalseDiscoveryRate"
    )


def test_labels_from_1_and_fractions_are_explained(rng, tmp_path):
    scores = rng.dirichlet(np.ones(3), ROWS)
    columns = {f"p{i}": scores[:, i] for i in range(3)} | {"y": rng.integers(1, 4, ROWS)}
    path = write(tmp_path / "a.parquet", columns)
    given = ("--task", "multiclass", "--preds", "p*", "--target", "y", "--metrics", "f1")
    (excluded,) = evaluated(tmp_path / "out", path, *given)["excluded"]
    effect = "the result is NaN: column 'y' holds 3; expected 0 to 2 as labels"
    assert excluded["effect"] == f"{effect}. If labels are from 1 to 3, subtract 1 from them"
    fractions = left_out(Accuracy(num_classes=3).update(scores, [NOT_A_CLASS] * ROWS))
    assert "holds fractions, numbers below 0" in wrong_labels(fractions, "column 'y'")


def test_scores_out_of_range_are_not_taken_for_labels(tmp_path):
    given = ("--task", "binary", "--preds", "p", "--target", "y", "--metrics")
    for label, score in (([0, 1, 1], 2.0), ([0, 1, 1], -1.0), ([1, 2, 2], 0.5)):
        path = write(
            tmp_path / "a.parquet", {"p": np.array([0.1, 0.7, score]), "y": np.array(label)}
        )
        rows = evaluated(tmp_path / "out", path, *given, "brier_score,auroc")["excluded"]
        (effect,) = (row["effect"] for row in rows)  # one row: of the score, or of all metrics
        assert ("'y' holds" in effect) == (label == [1, 2, 2])


@pytest.mark.parametrize(("metrics", "sign"), [("accuracy,log_loss", 1), ("log_loss,accuracy", -1)])
def test_slices_are_listed_worst_first(rng, tmp_path, capsys, metrics, sign):
    path = write(tmp_path / "a.parquet", binary_columns(rng))
    asked = ("--slice-by", "country=it,none,de,fr", "--metrics", metrics)
    (slicing,) = evaluated(tmp_path / "out", path, *BINARY, *asked)["slices"]
    names = [row["name"] for row in slicing["rows"]]
    assert sorted(names) == ["de", "fr", "it", "none"]
    assert names[-1] == "none"  # it has no value
    found = [row["values"][metrics.split(",")[0]]["value"] for row in slicing["rows"][:-1]]
    assert found == sorted(found, key=lambda x: sign * x)
    shown = capsys.readouterr().out
    places = [shown.index(f"\n {name} ") for name in names]
    assert places == sorted(places)


def test_slices_keep_their_order_where_no_value_is_good(rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary_columns(rng))
    asked = ("--task", "regression", "--preds", "score", "--target", "label")
    asked += ("--slice-by", "country=it,de,fr", "--metrics", "bias")
    (slicing,) = evaluated(tmp_path / "out", path, *asked)["slices"]
    assert [row["name"] for row in slicing["rows"]] == ["it", "de", "fr"]


@pytest.mark.parametrize(
    "names",
    [
        ("low_score", "mid_score", "high_score"),
        ("P_Low", "P_MID", "P_High"),
        ("LOW", "MID", "HIGH"),
    ],
    ids=" ".join,
)
def test_the_order_of_classes_is_that_of_the_names_of_columns(names, tmp_path):
    scores = dict(zip(names, np.eye(3) * 0.7 + 0.1, strict=True))
    path = write(tmp_path / "a.parquet", {**scores, "label": ["low", "mid", "high"]})
    named = ("--task", "multiclass", "--preds", ",".join(names), "--target", "label")
    summary = evaluated(tmp_path / "out", path, *named, "--metrics", "accuracy")
    assert (values(summary)["accuracy"], summary["notes"]) == (1.0, [])


@pytest.mark.parametrize("form", ["columns", "list"])
def test_an_order_of_classes_that_nothing_says_is_noted(form, tmp_path):
    logits = {f"logit_{i}": row for i, row in enumerate(3 * np.eye(3))}
    logits = logits if form == "columns" else {"logits": (3 * np.eye(3)).tolist()}
    labels = ["entailment", "neutral", "contradiction"]
    path = write(tmp_path / "a.parquet", {**logits, "label": labels})
    named = ("--task", "multiclass", "--preds", "logit*", "--target", "label", "--metrics")
    (note,) = evaluated(tmp_path / "out", path, *named, "accuracy")["notes"]
    assert note == (
        f"{', '.join(logits)} are taken for the scores of the classes contradiction, "
        "entailment, neutral, in this order, that of the alphabet; --classes sets it"
    )
    set_by = evaluated(tmp_path / "b", path, *named, "accuracy", "--classes", ",".join(labels))
    assert (values(set_by)["accuracy"], set_by["notes"]) == (1.0, [])
