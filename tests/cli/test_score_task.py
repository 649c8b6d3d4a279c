"""The task score: columns that are measured by themselves."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli.evaluations import ROWS, command, evaluated, refusal, values, write


@pytest.fixture
def judged(tmp_path, rng):
    return write(
        tmp_path / "a.parquet",
        {
            "id": np.arange(ROWS),
            "judge": rng.normal(3, 1, ROWS),
            "latency": rng.lognormal(size=ROWS).astype(np.float32),
            "right": rng.random(ROWS) < 0.7,
            "votes": rng.integers(0, 9, ROWS),
            "weight": rng.integers(1, 4, ROWS).astype(float),
            "topic": rng.choice(["x", "y"], ROWS),
        },
    )


def read(path):
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_a_column_is_measured(judged, tmp_path):
    summary = evaluated(
        tmp_path / "out", judged, "--task", "score", "--preds", "judge", "--slice-by", "topic"
    )
    x, topic = (read(judged)[name] for name in ("judge", "topic"))
    found = values(summary)
    assert list(found) == [
        *("mean", "median", "std", "quantile(q=0.1)", "quantile(q=0.9)", "min", "max")
    ]
    exact = {"mean": x.mean(), "std": x.std(), "min": x.min(), "max": x.max()}
    assert {name: found[name] for name in exact} == pytest.approx(exact, rel=1e-12)
    rows = {row["name"]: row for row in summary["metrics"]}
    for name, q in (("median", 0.5), ("quantile(q=0.1)", 0.1), ("quantile(q=0.9)", 0.9)):
        method = "averaged_inverted_cdf" if name == "median" else "inverted_cdf"
        low, high = rows[name]["bounds"]
        assert low <= np.quantile(x, q, method=method) <= high
        assert rows[name]["lower"] < found[name] < rows[name]["upper"]
    # From the fourth moment.
    z = (x - x.mean()) / x.std()
    error = x.std() / 2 * (((z**2 - 1) ** 2).mean() / (ROWS - 1)) ** 0.5
    assert rows["std"]["std_error"] == pytest.approx(error, rel=1e-9)
    # As the usual standard error of a mean.
    assert rows["mean"]["std_error"] == pytest.approx(x.std(ddof=1) / ROWS**0.5, rel=1e-9)
    assert rows["mean"]["description"] == "The mean of the scores."
    slices = {row["name"]: row["values"]["mean"] for row in summary["slices"][0]["rows"]}
    for name in ("x", "y"):
        assert slices[name]["value"] == pytest.approx(x[topic == name].mean(), rel=1e-12)
        assert slices[name]["lower"] < slices[name]["value"] < slices[name]["upper"]


@pytest.mark.parametrize("column", ["latency", "right", "votes"])
def test_columns_of_each_type_with_weights(judged, tmp_path, column):
    summary = evaluated(
        *(tmp_path / "out", judged, "--task", "score", "--preds", column, "--metrics", "mean,std"),
        *("--weights", "weight"),
    )
    x, w = (read(judged)[name].astype(float) for name in (column, "weight"))
    mean = np.average(x, weights=w)
    expected = {"mean": mean, "std": np.average((x - mean) ** 2, weights=w) ** 0.5}
    assert values(summary) == pytest.approx(expected, rel=1e-9)


def test_several_columns_are_measured_apart(judged, tmp_path):
    asked = ("--task", "score", "--preds", "judge,latency", "--metrics", "mean,latency/max")
    summary = evaluated(tmp_path / "out", judged, *asked, "--slice-by", "topic")
    x = read(judged)
    expected = {
        "judge/mean": x["judge"].mean(),
        "latency/mean": x["latency"].mean(dtype=float),
        "latency/max": x["latency"].max(),
    }
    assert values(summary) == pytest.approx(expected, rel=1e-7)
    assert summary["metrics"][0]["description"] == "The mean of judge."
    assert list(summary["slices"][0]["rows"][0]["values"]) == list(expected)
    # The names go in as they come out, and a state is read again.
    again = (*asked[:4], "--metrics", ",".join(expected), "--slice-by", "topic", "--resume")
    assert values(evaluated(tmp_path / "out", judged, *again)) == values(summary)


def test_clusters_and_missing_values(tmp_path, rng):
    score = [None if i % 7 == 0 else float(x) for i, x in enumerate(rng.normal(size=ROWS))]
    path = write(tmp_path / "a.parquet", {"s": score, "q": np.arange(ROWS) // 3})
    asked = ("--task", "score", "--preds", "s", "--cluster-by", "q", "--bootstrap", 20)
    summary = evaluated(tmp_path / "out", path, *asked)
    known = np.array([x for x in score if x is not None])
    assert values(summary)["mean"] == pytest.approx(known.mean(), rel=1e-9)
    assert summary["excluded"][0]["rows"] == ROWS - len(known)
    methods = {row["name"]: row["method"] for row in summary["metrics"]}
    assert methods["mean"] == "delta"
    assert methods["std"] == "bootstrap"
    notes = evaluated(tmp_path / "drawn", path, *asked[:-2])["notes"]
    replicas = "--bootstrap 200 draws one"
    of_clusters = "median, std, quantile(q=0.1), quantile(q=0.9)"
    assert f"{of_clusters}: no formula for an interval of clusters: {replicas}" in notes
    assert "min, max: no interval: no sample goes beyond the extreme of the data" in notes


def test_the_difference_of_two_models_is_paired(judged, tmp_path, rng):
    x = read(judged)
    better = x["judge"] + rng.normal(0.1, 0.3, ROWS)
    other = write(tmp_path / "b.parquet", {"id": x["id"], "judge": better})
    asked = ("--task", "score", "--preds", "judge", "--key", "id", "--metrics", "mean,median")
    command("compare", judged, other, *asked, "--output", tmp_path / "out")
    mean, median = json.loads((tmp_path / "out/metrics.json").read_text())["metrics"]
    difference = better - x["judge"]
    assert mean["difference"] == pytest.approx(difference.mean(), rel=1e-9)
    # Far narrower than the intervals of the two means.
    half = (mean["upper"] - mean["lower"]) / 2
    assert half == pytest.approx(1.97 * difference.std(ddof=1) / ROWS**0.5, rel=0.01)
    assert mean["winner"] == "differs"
    assert median["method"] == "bootstrap"


def test_what_does_not_go_together_is_refused(judged, capsys):
    score = ("evaluate", judged, "--task", "score", "--preds")
    assert "--target: is not for --task score" in refusal(
        capsys, *score, "judge", "--target", "right"
    )
    assert "--target: is required for --task binary" in refusal(
        capsys, "evaluate", judged, "--task", "binary", "--preds", "judge"
    )
    assert "expected a number: if it stands" in refusal(capsys, *score, "topic")
    assert "has 'judge/mean' twice" in refusal(
        capsys, *score, "judge,votes", "--metrics", "mean,judge/mean"
    )
    assert "'mae' is not of the task 'score'" in refusal(
        capsys, *score, "judge", "--metrics", "mae"
    )
