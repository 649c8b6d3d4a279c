"""Intervals by formulas in `evaluate` and `compare`: against formulas in NumPy and SciPy."""

import json

import numpy as np
import pytest
import scipy.stats
from sklearn import metrics as sk

from datarax.metrics import NDCG
from datarax.wrappers.interval import Interval
from tests.cli.evaluations import command, evaluated, refusal, values, write

ROWS = 400
BINARY = ("--task", "binary", "--preds", "score", "--target", "label")
METRICS = ("--metrics", "accuracy,log_loss,auroc,calibration_error")


@pytest.fixture
def columns(rng):
    """Scores of questions on texts: the questions on one text are alike."""
    text = rng.integers(0, 40, ROWS)
    label = rng.integers(0, 2, ROWS)
    logit = 1.5 * label - 0.7 + rng.normal(0, 1, 40)[text] + rng.normal(0, 0.5, ROWS)
    return {
        "score": 1 / (1 + np.exp(-logit)),
        "label": label,
        "text": text,
        "name": np.array([f"text {x}" for x in text]),
        "land": rng.choice(["de", "fr"], ROWS),
    }


def losses(columns) -> np.ndarray:
    p = np.asarray(columns["score"], np.float32).astype(np.float64)
    return -np.log(np.where(columns["label"] == 1, p, 1 - p))


def clustered_error(x: np.ndarray, cluster: np.ndarray) -> float:
    sums = np.bincount(np.unique(cluster, return_inverse=True)[1], x - x.mean())
    return np.sqrt(len(sums) / (len(sums) - 1) * (sums**2).sum()) / len(x)


def row(summary, name):
    return next(each for each in summary["metrics"] if each["name"] == name)


def test_every_metric_with_a_formula_has_an_interval(columns, tmp_path):
    path = write(tmp_path / "a.parquet", columns, row_group_size=90)
    summary = evaluated(tmp_path / "out", path, *BINARY, *METRICS, "--slice-by", "land")
    right = (columns["score"] >= 0.5) == columns["label"]
    wilson = scipy.stats.binomtest(int(right.sum()), ROWS).proportion_ci(method="wilson")
    accuracy = row(summary, "accuracy")
    assert accuracy["method"] == "wilson"
    np.testing.assert_allclose([accuracy["lower"], accuracy["upper"]], wilson, rtol=1e-6)
    loss = row(summary, "log_loss")
    np.testing.assert_allclose(loss["std_error"], scipy.stats.sem(losses(columns)), rtol=1e-5)
    auroc = row(summary, "auroc")
    expected = sk.roc_auc_score(columns["label"], columns["score"])
    assert auroc["lower"] < expected < auroc["upper"]
    assert auroc["bounds"][0] - 1e-12 <= expected <= auroc["bounds"][1] + 1e-12
    # Without replicas, what has no formula has no interval, and that is said.
    error = row(summary, "calibration_error")
    assert (error["lower"], error["method"]) == (None, None)
    (note,) = summary["notes"]
    assert note == "calibration_error: no formula for an interval: --bootstrap 200 draws one"
    for of_slice in summary["slices"][0]["rows"]:
        inside = columns["land"] == of_slice["name"]
        found = of_slice["values"]["log_loss"]
        error = scipy.stats.sem(losses(columns)[inside])
        np.testing.assert_allclose(found["std_error"], error, rtol=1e-5)
        hits = scipy.stats.binomtest(int(right[inside].sum()), int(inside.sum()))
        found = of_slice["values"]["accuracy"]
        wilson = hits.proportion_ci(method="wilson")
        np.testing.assert_allclose([found["lower"], found["upper"]], wilson, rtol=1e-6)


def test_rows_of_a_cluster_are_one_observation(columns, tmp_path):
    path = write(tmp_path / "a.parquet", columns, row_group_size=90)
    argv = (*BINARY, *METRICS, "--bootstrap", 200)
    rows = evaluated(tmp_path / "rows", path, *argv)
    error = clustered_error(losses(columns), columns["text"])
    # Names are hashed: two that share a cell may change the standard error by some percent.
    for by, tolerance in (("text", 1e-5), ("name", 0.2)):
        found = evaluated(tmp_path / by, path, *argv, "--cluster-by", by)
        assert values(found) == values(rows)
        np.testing.assert_allclose(row(found, "log_loss")["std_error"], error, rtol=tolerance)
        # An area by clusters has no formula; the replicas draw each cluster as a whole.
        assert [row(x, "auroc")["method"] for x in (rows, found)] == ["delong", "bootstrap"]
        assert row(found, "calibration_error")["method"] == "bootstrap"
    single = evaluated(tmp_path / "one", path, *argv[:-2], "--metrics", "log_loss")
    alone = scipy.stats.sem(losses(columns))
    np.testing.assert_allclose(row(single, "log_loss")["std_error"], alone, rtol=1e-5)


def test_a_column_of_clusters_with_holes(columns, tmp_path, capsys):
    holes = [None if i % 10 == 0 else x for i, x in enumerate(columns["text"].tolist())]
    path = write(tmp_path / "a.parquet", columns | {"text": holes})
    found = evaluated(
        tmp_path / "out", path, *BINARY, *METRICS[:1], "log_loss", "--cluster-by", "text"
    )
    kept = np.arange(ROWS) % 10 != 0
    error = clustered_error(losses(columns)[kept], columns["text"][kept])
    np.testing.assert_allclose(row(found, "log_loss")["std_error"], error, rtol=1e-5)
    assert found["source"]["rows"] == kept.sum()
    assert "no value in column 'text'" in capsys.readouterr().out
    assert "'nowhere'" in refusal(capsys, "evaluate", path, *BINARY, "--cluster-by", "nowhere")


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_nan_is_no_cluster(columns, kind, tmp_path, capsys):
    ids = np.where(np.arange(ROWS) % 10 == 0, np.nan, np.arange(ROWS) // 5)
    data = {"score": columns["score"], "label": columns["label"], "group": ids}
    path = tmp_path / f"a.{kind}"
    np.savez(path, **data) if kind == "npz" else write(path, data)
    argv = (*BINARY, "--metrics", "log_loss", "--cluster-by", "group")
    found = evaluated(tmp_path / "out", path, *argv)
    kept = ~np.isnan(ids)
    error = clustered_error(losses(columns)[kept], ids[kept])
    np.testing.assert_allclose(row(found, "log_loss")["std_error"], error, rtol=1e-5)
    assert found["source"]["rows"] == kept.sum()
    note = f"{ROWS - kept.sum()} rows: no value in column 'group'"
    assert note in capsys.readouterr().out
    assert command("compare", path, path, *argv, "--output", tmp_path / "both") == 0
    assert "no value in column 'group' of a" in capsys.readouterr().out


def test_queries_are_the_observations_of_a_ranking(rng, tmp_path):
    queries, depth = 30, 6
    score, relevance = rng.random((queries, depth)), rng.integers(0, 3, (queries, depth))
    columns = {
        "query": np.repeat(np.arange(queries), depth),
        "score": score.ravel(),
        "relevance": relevance.ravel(),
    }
    path = write(tmp_path / "a.parquet", columns)
    argv = ("--task", "ranking", "--preds", "score", "--target", "relevance", "--query", "query")
    found = evaluated(tmp_path / "out", path, *argv, "--metrics", "ndcg")
    expected = Interval(NDCG()).update(score.astype(np.float32), relevance).results()
    for end in ("value", "lower", "upper", "std_error"):
        np.testing.assert_allclose(row(found, "ndcg")[end], expected[end], rtol=1e-6)


def test_paired_differences(columns, rng, tmp_path, capsys):
    noisy = columns["score"] + rng.normal(0, 0.02, ROWS)
    other = columns | {"score": np.clip(noisy * 0.8 + columns["label"] * 0.2, 0.01, 0.99)}
    a, b = (write(tmp_path / f"{x}.parquet", y) for x, y in (("a", columns), ("b", other)))
    out = tmp_path / "out"
    argv = (*BINARY, *METRICS, "--slice-by", "land", "--output", out)
    assert command("compare", a, b, *argv) == 0
    summary = json.loads((out / "metrics.json").read_text())
    apart = losses(other) - losses(columns)
    loss = row(summary, "log_loss")
    ends = [loss["lower"], loss["upper"]]
    np.testing.assert_allclose(ends, scipy.stats.ttest_1samp(apart, 0).confidence_interval(), 1e-5)
    _, p = scipy.stats.ttest_1samp(apart, 0)
    np.testing.assert_allclose(loss["p_value"], p, rtol=1e-4, atol=1e-30)
    assert (loss["winner"], loss["method"]) == ("b", "formula")
    error = row(summary, "calibration_error")
    assert (error["p_value"], error["method"]) == (None, "bootstrap")
    for of_slice in summary["slices"][0]["rows"]:
        inside = columns["land"] == of_slice["name"]
        assert of_slice["examples"] == inside.sum()
        found = next(x for x in of_slice["metrics"] if x["name"] == "log_loss")
        ends = scipy.stats.ttest_1samp(apart[inside], 0).confidence_interval()
        np.testing.assert_allclose([found["lower"], found["upper"]], ends, rtol=1e-5)
    # By Holm, over all metrics and slices of the page.
    every = [*summary["metrics"], *(x for y in summary["slices"][0]["rows"] for x in y["metrics"])]
    tests = sorted((x for x in every if x["p_value"] is not None), key=lambda x: x["p_value"])
    least = tests[0]
    assert least["p_adjusted"] == pytest.approx(min(1, least["p_value"] * len(tests)))
    page = (out / "comparison.html").read_text()
    assert "b is better" in page
    assert f"over {len(tests)} tests" in page
    assert "b is better" in capsys.readouterr().out


def test_paired_differences_of_clusters(columns, tmp_path):
    # Texts differ much, as a test of signs decides where all differences are of about one size.
    power = np.where(columns["text"] % 4, 0.95, 0.3)
    other = columns | {"score": columns["score"] ** power}
    a, b = (write(tmp_path / f"{x}.parquet", y) for x, y in (("a", columns), ("b", other)))
    out = tmp_path / "out"
    argv = (*BINARY, "--metrics", "log_loss", "--cluster-by", "text", "--output", out)
    assert command("compare", a, b, *argv) == 0
    loss = row(json.loads((out / "metrics.json").read_text()), "log_loss")
    t = scipy.stats.t.ppf(0.975, len(np.unique(columns["text"])) - 1)
    half = t * clustered_error(losses(other) - losses(columns), columns["text"])
    np.testing.assert_allclose((loss["upper"] - loss["lower"]) / 2, half, rtol=1e-5)


def test_a_model_against_itself_has_no_winner(columns, tmp_path):
    path = write(tmp_path / "a.parquet", columns)
    assert command("compare", path, path, *BINARY, *METRICS, "--output", tmp_path / "out") == 0
    for each in json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]:
        assert (each["difference"], each["winner"]) == (0, None)
        assert each["p_value"] in (1, None)


def test_a_row_that_one_model_lacks_counts_for_neither(columns, rng, tmp_path, capsys):
    lost_a, lost_b = np.arange(ROWS) < 7, (np.arange(ROWS) >= 5) & (np.arange(ROWS) < 20)
    score_a = np.where(lost_a, np.nan, columns["score"])
    score_b = np.where(lost_b, np.nan, np.clip(columns["score"] * 0.9 + 0.05, 0, 1))
    paths = [
        write(
            tmp_path / f"{model}.parquet",
            {"score": x, "label": columns["label"]} | {"land": np.arange(ROWS) % 2},
        )
        for model, x in (("a", score_a), ("b", score_b))
    ]
    names = "accuracy,log_loss,auroc,calibration_error"
    argv = (*BINARY, "--metrics", names, "--slice-by", "land", "--output", tmp_path / "out")
    assert command("compare", *paths, *argv, "--on-invalid", "exclude") == 0
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    both = ~(lost_a | lost_b)
    assert {(x["rows"], x["effect"]) for x in summary["excluded"]} == {(20, "left out of both")}
    kept = {name: np.asarray(x)[both] for name, x in columns.items() if name in ("score", "label")}
    loss = row(summary, "log_loss")
    np.testing.assert_allclose(loss["a"], losses(kept).mean(), rtol=1e-5)
    np.testing.assert_allclose(loss["b"], losses(kept | {"score": score_b[both]}).mean(), rtol=1e-5)
    area = row(summary, "auroc")  # b ranks as a does
    assert area["a"] == pytest.approx(area["b"], abs=1e-3)
    for each in summary["metrics"]:
        assert each["difference"] == pytest.approx(each["b"] - each["a"], abs=1e-12)
    inside = both & (np.arange(ROWS) % 2 == 1)
    (of,) = (x for x in summary["slices"][0]["rows"] if x["name"] == "1")
    want = losses({"score": columns["score"][inside], "label": columns["label"][inside]}).mean()
    np.testing.assert_allclose(row(of, "log_loss")["a"], want, rtol=1e-5)
    said = "20 rows: cannot be used for one of the two models, in all metrics (left out of both)"
    assert said in " ".join(capsys.readouterr().out.split())
    assert "left out of both" in (tmp_path / "out" / "comparison.html").read_text()
    assert command("compare", *paths, *argv) == 0
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert row(summary, "log_loss")["difference"] is None
    assert "the result is NaN" in summary["excluded"][0]["effect"]


def test_few_rows_have_no_winner_by_replicas(columns, tmp_path):
    few = {name: np.asarray(columns[name])[:12] for name in ("score", "label")}
    other = few | {"score": np.where(few["label"] == 1, 0.99, 0.01)}
    a, b = (write(tmp_path / f"{x}.parquet", y) for x, y in (("a", few), ("b", other)))
    argv = (*BINARY, "--metrics", "calibration_error", "--output", tmp_path / "out")
    assert command("compare", a, b, *argv) == 0
    found = row(json.loads((tmp_path / "out" / "metrics.json").read_text()), "calibration_error")
    assert found["method"] == "bootstrap"
    assert (found["excludes_zero"], found["winner"]) == (True, None)
