"""`--fail-if`: the exit code of a command says whether a release may go out."""

import argparse
import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from datarax.cli.conditions import a_condition
from datarax.cli.gate import Found
from datarax.uncertainty import adjust
from tests.cli.evaluations import ROWS, command, evaluated, refusal, write

SCORE = ("--task", "score", "--preds", "x", "--metrics", "mean,max")
BINARY = ("--task", "binary", "--preds", "p", "--target", "y", "--metrics")


def gate_of(folder):
    return json.loads((folder / "metrics.json").read_text())["gate"]


@pytest.fixture
def path(tmp_path, rng):
    """Two slices of 150 rows: the mean is 5 in "x" and 3 in "y"."""
    group = np.repeat(["x", "y"], ROWS // 2)
    x = rng.normal(np.where(group == "x", 5.0, 3.0), 1)
    return write(tmp_path / "a.parquet", {"x": x, "group": group, "id": np.arange(ROWS)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy < 0.9", ("accuracy", "<", 0.9, "", None)),
        ("accuracy<=.9", ("accuracy", "<=", 0.9, "", None)),
        (" quantile(q=0.9) > 1e3 in overall ", ("quantile(q=0.9)", ">", 1000.0, "overall", None)),
        ("auroc drops 0.01 against a b/c", ("auroc", "drops", 0.01, "", "a b/c")),
        ("log_loss rises 0 in k=a b against d", ("log_loss", "rises", 0.0, "k=a b", "d")),
    ],
)
def test_conditions_are_read(text, expected):
    found = a_condition(text)
    against = None if found.against is None else str(found.against)
    assert (found.name, found.sign, found.number, found.where, against) == expected


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy = 1", "accuracy < nan", "a drops -1", "a < 1 against d", "a drops"],
)
def test_other_texts_are_no_conditions(text):
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        a_condition(text)


def test_a_p_value_is_that_of_the_interval(rng):
    for _ in range(20):
        value, half, limit = rng.normal(), rng.uniform(0.1, 2), rng.normal()
        found = Found(value, value - half, value + half)
        z = abs(value - limit) / (half / norm.ppf(0.975))
        assert found.p_value(limit, 0.95) == pytest.approx(2 * norm.sf(z), rel=1e-9)
    # The end of an interval is where the p-value is 1 - confidence, on either side.
    skewed = Found(0.5, 0.2, 0.6, 10, bounded=True)
    for end in (0.2, 0.6):
        assert skewed.p_value(end, 0.9) == pytest.approx(0.1, rel=1e-9)
    assert math.isnan(Found(0.5).p_value(0.4, 0.95))


def test_a_difference_of_two_evaluations_is_that_of_independent_values(rng):
    (a, b), (s, t) = rng.normal(size=2), rng.uniform(0.1, 1, 2)
    found = Found(a, a - s, a + s).minus(Found(b, b - t, b + t))
    assert found[:3] == pytest.approx((a - b, a - b - np.hypot(s, t), a - b + np.hypot(s, t)))


def test_the_exit_code_says_whether_a_condition_holds(path, tmp_path, capsys):
    def code(*conditions, more=()):
        asked = [word for each in conditions for word in ("--fail-if", each)]
        return command("evaluate", path, *SCORE, *asked, *more)

    assert code("mean < 3.5") == 0
    assert code("mean < 4.5") == 1
    assert code("mean < 3.5", "mean > 3.5") == 1
    assert code("max > 1e3", "MEAN >= 100") == 0
    capsys.readouterr()
    # Within chance: the value decides only where that is asked for.
    mean = evaluated(tmp_path / "out", path, *SCORE)["metrics"][0]["value"]
    near = f"mean < {mean + 1e-6!r}"
    assert code(near) == 0
    assert "within chance" in capsys.readouterr().out
    assert code(near, more=("--fail-when", "measured")) == 1
    assert code(f"mean < {mean - 1e-6!r}", more=("--fail-when", "possible")) == 1
    # In slices: that of all rows holds, and that of one slice does not.
    sliced = ("--slice-by", "group")
    assert code("mean < 3.5", more=sliced) == 1
    assert "group=y" in capsys.readouterr().out
    assert code("mean < 3.5 in overall", more=sliced) == 0
    assert code("mean < 3.5 in group=x", more=sliced) == 0
    assert code("mean < 3.5 in group", more=sliced) == 1


def test_p_values_are_adjusted_over_the_slices(tmp_path, rng):
    columns = {"x": rng.normal(size=ROWS), "group": rng.integers(0, 6, ROWS)}
    path = write(tmp_path / "a.parquet", columns)
    asked = ("--slice-by", "group", "--fail-if", "mean < -0.1", "--fail-if", "mean > 0.1")
    command("evaluate", path, *SCORE, *asked, "--output", tmp_path / "out")
    for condition in gate_of(tmp_path / "out"):
        overall, *slices = condition["checks"]
        assert overall["slice"] == "all rows"
        assert overall["p_adjusted"] == overall["p_value"]
        assert len(slices) == 6
        expected = adjust([check["p_value"] for check in slices])
        assert [check["p_adjusted"] for check in slices] == pytest.approx(expected)
        below = condition["condition"] == "mean < -0.1"
        for check in condition["checks"]:
            met = check["value"] < -0.1 if below else check["value"] > 0.1
            assert check["failed"] == (met and check["p_adjusted"] < 0.05)


def test_no_value_fails(tmp_path, capsys):
    path = write(tmp_path / "a.parquet", {"p": [0.1, 0.9, math.nan], "y": [0, 1, 1]})
    assert command("evaluate", path, *BINARY, "log_loss", "--fail-if", "log_loss > 9") == 1
    assert "NaN: no value" in capsys.readouterr().out
    one_class = write(tmp_path / "b.parquet", {"p": [0.1, 0.9, 0.2], "y": [1, 1, 1]})
    assert command("evaluate", one_class, *BINARY, "auroc", "--fail-if", "auroc < 0.1") == 1


def test_against_an_earlier_evaluation(path, tmp_path, rng, capsys):
    earlier = tmp_path / "earlier"
    evaluated(earlier, path, *SCORE, "--slice-by", "group", "--confidence", 0.9)
    lower = write(
        tmp_path / "b.parquet",
        {
            "x": rng.normal(np.repeat([5.0, 1.0], ROWS // 2), 1),
            "group": np.repeat(["x", "y"], ROWS // 2),
        },
    )

    def code(condition, *more):
        return command("evaluate", lower, *SCORE, "--fail-if", condition, *more)

    assert code(f"mean drops 0.5 against {earlier}") == 1
    assert code(f"mean drops 1.5 against {earlier}") == 0
    assert code(f"mean rises 0.5 against {earlier / 'metrics.json'}") == 0
    sliced = ("--slice-by", "group", "--output", tmp_path / "out")
    assert code(f"mean drops 1.5 against {earlier}", *sliced) == 1
    (condition,) = gate_of(tmp_path / "out")
    overall, *slices = condition["checks"]
    assert [x["failed"] for x in (overall, *sorted(slices, key=lambda x: x["slice"]))] == [
        *(False, False, True)
    ]
    # The interval of the earlier one was of another confidence.
    (then,) = [
        row["std_error"]
        for row in json.loads((earlier / "metrics.json").read_text())["metrics"]
        if row["name"] == "mean"
    ]
    (now,) = [
        row["std_error"]
        for row in json.loads((tmp_path / "out/metrics.json").read_text())["metrics"]
        if row["name"] == "mean"
    ]
    half = (overall["upper"] - overall["lower"]) / 2
    assert half == pytest.approx(norm.ppf(0.975) * math.hypot(now, then), rel=1e-9)
    assert "gate" in (tmp_path / "out/report.html").read_text()


def test_a_comparison_has_the_paired_difference(path, tmp_path, rng):
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    x = table["x"].to_numpy() - 0.2 + rng.normal(0, 0.1, ROWS)
    worse = write(tmp_path / "b.parquet", {"x": x, "id": np.arange(ROWS), "group": table["group"]})

    def code(condition, *more):
        return command("compare", path, worse, *SCORE, "--fail-if", condition, *more)

    # Far within the intervals of the two means.
    assert code("mean drops 0.1", "--output", tmp_path / "out") == 1
    assert code("mean drops 0.3") == 0
    assert code("mean drops 0.1", "--slice-by", "group") == 1
    assert gate_of(tmp_path / "out")[0]["checks"][0]["slice"] == "all rows"
    assert 'id="gate"' in (tmp_path / "out/comparison.html").read_text()


def test_merged_evaluations_have_a_gate(path, tmp_path):
    folders = [tmp_path / "1", tmp_path / "2"]
    for folder in folders:
        evaluated(folder, path, *SCORE)
    merged = ("merge", *folders, "--allow-duplicates", "--output", tmp_path / "all")
    assert command(*merged, "--fail-if", "mean < 4.5") == 1
    assert gate_of(tmp_path / "all")[0]["failed"]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("men < 1", "'men' is not computed; did you mean 'mean'?"),
        ("median < 1", "'median' is not computed; name it in --metrics"),
        ("mean < 1 in country", "there is no slice 'country'"),
        ("mean < 1 in group=z", "there is no slice 'group=z'"),
        ("mean drops 1", "expected 'against DIR'"),
        ("mean drops 1 against DIR/none", "is no metrics.json"),
        ("mean drops 1 against DIR/binary", "is of the task 'binary'"),
        ("mean drops 1 against DIR/max", "has no 'mean'"),
        ("mean drops 1 against DIR/other", "has GeometricMean() under the name 'mean', and this"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_the_run(path, tmp_path, capsys, condition, said):
    other = write(tmp_path / "b.parquet", {"p": [0.1, 0.9], "y": [0, 1]})
    if "binary" in condition:
        evaluated(tmp_path / "binary", other, *BINARY, "accuracy")
    if "max" in condition:
        evaluated(tmp_path / "max", path, *SCORE[:4], "--metrics", "max")
    if "other" in condition:
        evaluated(tmp_path / "other", path, *SCORE[:4], "--metrics", "mean=geometric_mean")
    capsys.readouterr()
    condition = condition.replace("DIR", str(tmp_path))
    asked = ("--slice-by", "group", "--output", tmp_path / "out", "--fail-if", condition)
    assert said in refusal(capsys, "evaluate", path, *SCORE, *asked)
    assert not (tmp_path / "out").exists()


def test_the_direction_of_a_metric_is_known(tmp_path, capsys):
    path = write(tmp_path / "a.parquet", {"p": [0.1, 0.9], "y": [0, 1]})
    asked = (path, *BINARY, "log_loss", "--fail-if")
    assert "lower log_loss is better; expected 'log_loss rises" in refusal(
        capsys, "evaluate", *asked, f"log_loss drops 0.1 against {tmp_path}"
    )
    assert command("evaluate", *asked, "log_loss < 9") == 1
    # Rich wraps the note.
    said = " ".join(capsys.readouterr().out.split())
    assert "fails where log_loss is good: lower is better" in said
