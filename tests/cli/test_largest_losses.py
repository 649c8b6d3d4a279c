"""The rows with the largest losses: those of the whole data, however they were read."""

import json

import numpy as np
import pytest
from sklearn import metrics as sk

from datarax.evaluation.largest_losses import MOST, LossRow, largest
from tests.cli.evaluations import command, evaluated, refusal, write

FILES, PER_FILE = 3, 300


def binary(rng, rows):
    label = rng.integers(0, 2, rows)
    logit = rng.normal(size=rows) + label
    return {
        # Few different scores, so that many losses are equal.
        "score": np.round(1 / (1 + np.exp(-logit)), 1).astype(np.float32),
        "label": label,
        "name": [f"secret {n}" for n in rng.permutation(10**6)[:rows]],
        "lang": rng.choice(["de", "fr"], rows),
        "w": rng.integers(0, 3, rows).astype(np.float32),
    }


OF_BINARY = (
    "--task", "binary", "--preds", "score", "--target", "label", "--weights", "w",
    "--slice-by", "lang=de,fr", "--metrics", "accuracy",
)  # fmt: skip


def losses_of(x):
    p = np.clip(x["score"].astype(np.float64), 2**-23, 1 - 2**-23)
    losses = np.where(x["label"] == 1, -np.log(p), -np.log1p(-p))
    return np.where(np.isnan(p) | (x["w"] == 0), 0, losses)


@pytest.fixture
def written(rng, tmp_path):
    """Some files of rows, of which some cannot be used."""
    files = {}
    for i in range(FILES):
        columns = binary(rng, PER_FILE)
        columns["score"][rng.integers(PER_FILE, size=5)] = np.nan
        files[write(tmp_path / f"part-{i}.parquet", columns)] = columns
    return files


def test_they_are_those_of_all_rows(written, tmp_path):
    kept = [
        (-loss, str(path), i)
        for path, x in written.items()
        for i, loss in enumerate(losses_of(x))
        if loss > 0
    ]
    want = sorted(kept)[:MOST]
    options = (*OF_BINARY, "--id", "name", "--on-invalid", "exclude")
    found = []
    for number, more in enumerate(((), ("--batch-size", 7))):
        folder = tmp_path / f"out-{number}"
        argv = ("evaluate", *written, *options, "--output", folder, "--no-progress", *more)
        assert command(*argv) == 0
        found.append(json.loads((folder / "metrics.json").read_text())["largest_losses"])
    first = found[0]
    assert first["loss"] == "log loss"
    assert [(x["file"], x["row"]) for x in first["rows"]] == [x[1:] for x in want]
    losses = [-loss for loss, *_ in want]
    np.testing.assert_allclose([x["loss"] for x in first["rows"]], losses, rtol=1e-6)
    for row in first["rows"]:
        columns = written[next(x for x in written if str(x) == row["file"])]
        of = {name: column[row["row"]] for name, column in columns.items()}
        assert row["id"] == of["name"]
        assert row["slices"] == {"lang": of["lang"]}
        assert row["target"] == of["label"]
        assert row["prediction"] == pytest.approx(of["score"], rel=1e-6)
    assert found[1] == first


def test_merged_folders_and_resumed_runs_have_the_same(written, tmp_path, capsys):
    options = (*OF_BINARY, "--id", "name", "--on-invalid", "exclude")
    whole = evaluated(tmp_path / "whole", *written, *options)["largest_losses"]
    folders = [tmp_path / f"job-{i}" for i in range(FILES)]
    for path, folder in zip(written, folders, strict=True):
        evaluated(folder, path, *options)
    assert command("merge", *reversed(folders), "--output", tmp_path / "all") == 0
    assert json.loads((tmp_path / "all" / "metrics.json").read_text())["largest_losses"] == whole
    without = (*OF_BINARY, "--on-invalid", "exclude", "--no-rows")
    assert evaluated(folders[0], next(iter(written)), *without)["largest_losses"] is None
    capsys.readouterr()
    output = ("--output", tmp_path / "other")
    assert "whether to keep rows" in refusal(capsys, "merge", *folders, *output)
    again = evaluated(tmp_path / "whole", *written, *options, "--resume")
    assert again["largest_losses"] == whole


def test_no_rows_leaves_nothing_of_a_row_in_the_folder(written, tmp_path, capsys):
    argv = (*written, *OF_BINARY, "--on-invalid", "exclude")
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    assert evaluated(shown, *argv, "--id", "name")["largest_losses"]["rows"]
    assert evaluated(hidden, *argv, "--no-rows")["largest_losses"] is None
    for folder, is_there in ((shown, True), (hidden, False)):
        held = {path.name for path in folder.iterdir() if b"secret " in path.read_bytes()}
        assert held == ({"metrics.json", "report.html", "state.npz"} if is_there else set())
    capsys.readouterr()
    assert "--no-rows leaves out" in refusal(
        capsys, "evaluate", *argv, "--id", "name", "--no-rows", "--output", hidden
    )
    assert "needs --output" in refusal(capsys, "evaluate", *argv, "--id", "name")


def test_tasks(rng, tmp_path):
    rows, options = 200, {}
    x, y = rng.normal(size=(2, rows))
    worst = {"regression": np.sort(np.abs(x - y))[::-1]}
    options["regression"] = ({"p": x, "y": y}, "p", "y", ())
    logits, label = rng.normal(size=(rows, 3)), rng.integers(0, 3, rows)
    each = np.log(np.exp(logits).sum(1)) - logits[np.arange(rows), label]
    worst["multiclass"] = np.sort(each)[::-1]
    columns = {f"logit_{i}": logits[:, i] for i in range(3)} | {"y": label}
    options["multiclass"] = (columns, "logit_*", "y", ())
    p, labels = rng.uniform(0.01, 0.99, (rows, 2)), rng.integers(0, 2, (rows, 2))
    each = -np.where(labels, np.log(p), np.log1p(-p)).mean(1)
    worst["multilabel"] = np.sort(each)[::-1]
    columns = {f"p{i}": p[:, i] for i in range(2)} | {f"y{i}": labels[:, i] for i in range(2)}
    options["multilabel"] = (columns, "p0,p1", "y0,y1", ())
    queries, relevance, scores = np.repeat(np.arange(40), 5), rng.integers(0, 3, rows), x
    ndcg = [
        sk.ndcg_score([relevance[queries == q]], [scores[queries == q]], k=10)
        for q in range(40)
        if relevance[queries == q].any()
    ]
    worst["ranking"] = np.sort(1 - np.array(ndcg))[::-1]
    columns = {"s": scores, "r": relevance, "q": queries}
    options["ranking"] = (columns, "s", "r", ("--query", "q", "--on-invalid", "exclude"))
    texts = [" ".join(rng.choice(["red", "blue", "green"], 3)) for _ in range(rows)]
    options["text"] = ({"a": texts[::-1], "b": texts}, "a", "b", ())
    for task, (columns, preds, target, more) in options.items():
        path = write(tmp_path / f"{task}.parquet", columns)
        argv = (path, "--task", task, "--preds", preds, "--target", target, *more)
        found = evaluated(tmp_path / task, *argv)["largest_losses"]["rows"]
        if task in worst:
            got, want = [row["loss"] for row in found], worst[task][:MOST]
            np.testing.assert_allclose(got, want[want > 1e-7], rtol=2e-5, err_msg=task)
        else:
            assert all(set(x["target"].split()) != set(x["prediction"].split()) for x in found)
    labels = ({"a": ["x", "y"], "b": ["y", "y"]}, "a", "b", ())
    path = write(tmp_path / "labels.parquet", labels[0])
    summary = evaluated(
        tmp_path / "labels", path, "--task", "multiclass", "--preds", "a", "--target", "b"
    )
    assert summary["largest_losses"] is None


def test_infinite_losses_come_first(rng, tmp_path):
    logits, label = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    logits[[7, 30], label[[7, 30]]] = -np.inf
    columns = {f"logit_{i}": logits[:, i] for i in range(3)} | {"y": label}
    path = write(tmp_path / "a.parquet", columns)
    argv = ("--task", "multiclass", "--preds", "logit_*", "--target", "y", "--metrics", "log_loss")
    rows = evaluated(tmp_path / "out", path, *argv)["largest_losses"]["rows"]
    assert [row["row"] for row in rows[:2]] == [7, 30]
    assert [row["loss"] is None for row in rows] == [True, True] + [False] * (MOST - 2)
    assert (tmp_path / "out" / "report.html").read_text().count(">∞<") == 2


def test_the_sample_does_not_depend_on_the_order(rng):
    rows = [
        LossRow(float(loss), f"{path}", 0, place, place, None, 0, 0, ())
        for loss, path, place in zip(
            rng.integers(1, 9, 400), rng.integers(0, 3, 400), range(400), strict=True
        )
    ]
    want = sorted(rows, key=lambda row: (-row.loss, row.path, row.place))[:MOST]
    for _ in range(20):
        shuffled = [rows[i] for i in rng.permutation(len(rows))]
        cut = int(rng.integers(len(rows)))
        assert list(largest((*largest(shuffled[:cut]), *largest(shuffled[cut:])))) == want
