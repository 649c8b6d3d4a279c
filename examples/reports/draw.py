"""Draws an example report for each task of `datarax evaluate`.

`make reports` runs it: `python examples/reports/draw.py docs/reports` draws small data, evaluates
it, and writes `docs/reports/TASK.html`. With `--picture FILE`, Chromium also takes a picture of the
report of `multiclass`.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from datarax.cli import main

ROWS = 600
COUNTRIES = np.array(["Brazil", "Chile", "Estonia", "Ghana"])
WORDS = np.array(["a", "the", "red", "blue", "small", "cat", "dog", "bird", "sees", "finds"])
# What each task is given after the name of its file. `FILES` says how the files are made.
ARGUMENTS = {
    "binary": "--preds score --target label --slice-by country",
    "multiclass": "--preds logit_* --target label --slice-by country",
    "multilabel": "--preds *_score --target *_true",
    "regression": "--preds forecast --target measured --slice-by country",
    "score": "--preds judge --slice-by country",
    "ranking": "--preds score --target relevance --query query",
    "text": "--preds answer --target reference --slice-by country",
    "detection": "--preds boxes,scores,labels --target true_boxes,true_labels --num-classes 2",
}

Columns = dict[str, np.ndarray | list[object]]


def binary(rng: np.random.Generator) -> Columns:
    label = rng.integers(0, 2, ROWS)
    return {"label": label, "score": 1 / (1 + np.exp(-rng.normal(3 * label - 1.5, 1.5)))}


def multiclass(rng: np.random.Generator) -> Columns:
    names = np.array(["ant", "bee", "cat"])
    label = rng.integers(0, 3, ROWS)
    logits = rng.normal(2 * np.eye(3)[label], 1)
    of_classes: Columns = {f"logit_{name}": logits[:, i] for i, name in enumerate(names)}
    return {"label": names[label], **of_classes}


def multilabel(rng: np.random.Generator) -> Columns:
    columns: Columns = {}
    for name in ("news", "sport", "music"):
        true = rng.integers(0, 2, ROWS)
        columns[f"{name}_true"] = true
        columns[f"{name}_score"] = rng.beta(1 + 3 * true, 4 - 3 * true)
    return columns


def regression(rng: np.random.Generator) -> Columns:
    measured = rng.gamma(4, 5, ROWS)
    return {"measured": measured, "forecast": measured * rng.normal(1, 0.2, ROWS)}


def score(rng: np.random.Generator) -> Columns:
    return {"judge": rng.binomial(10, 0.7, ROWS) / 10}


def ranking(rng: np.random.Generator) -> Columns:
    relevance = rng.binomial(3, 0.2, ROWS)
    return {
        "query": np.repeat(np.arange(ROWS // 12), 12),
        "relevance": relevance,
        "score": rng.normal(relevance, 1),
    }


def text(rng: np.random.Generator) -> Columns:
    answers: list[object] = []
    references: list[object] = []
    for _ in range(ROWS):
        words = rng.choice(WORDS, rng.integers(3, 12))
        changed = np.where(rng.random(len(words)) < rng.choice([0, 0.3]), "one", words)
        references.append(" ".join(words))
        answers.append(" ".join(changed))
    return {"answer": answers, "reference": references}


def detection(rng: np.random.Generator) -> Columns:
    names = ("boxes", "scores", "labels", "true_boxes", "true_labels")
    columns: dict[str, list[object]] = {name: [] for name in names}
    for _ in range(ROWS // 10):
        count = rng.integers(1, 5)
        corner = rng.uniform(0, 80, (count, 2))
        true = np.concatenate([corner, corner + rng.uniform(10, 40, (count, 2))], axis=1)
        labels = rng.integers(0, 2, count)
        found = np.where(rng.random(count) < 0.1, 1 - labels, labels)
        row = (true + rng.normal(0, 2, true.shape), rng.random(count), found, true, labels)
        for name, values in zip(names, row, strict=True):
            columns[name].append(values.tolist())
    return {**columns}


FILES = {
    "binary": binary,
    "multiclass": multiclass,
    "multilabel": multilabel,
    "regression": regression,
    "score": score,
    "ranking": ranking,
    "text": text,
    "detection": detection,
}


def draw(task: str, folder: Path, rng: np.random.Generator) -> Path:
    """Draws data of a task, and evaluates it in `folder`; gives the report."""
    columns = FILES[task](rng)
    if "country" in ARGUMENTS[task]:
        columns["country"] = rng.choice(COUNTRIES, ROWS)
    path = folder / f"{task}.jsonl"
    lists = {name: np.asarray(x).tolist() if isinstance(x, np.ndarray) else x
             for name, x in columns.items()}  # fmt: skip
    rows = (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["evaluate", str(path), "--task", task, *ARGUMENTS[task].split()]
    code = main([*arguments, "--title", f"Example: {task}", "--output", str(folder / task)])
    if code != 0:
        raise SystemExit(f"{task}: datarax evaluate ended with {code}")
    return folder / task / "report.html"


def take_picture(report: Path, picture: Path) -> None:
    """Takes a picture of a report with Chromium, which `make browser` installs."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size, out = "--window-size=1200,1900", f"--screenshot={picture.resolve()}"
    command = ["chromium", *options, size, out, report.resolve().as_uri()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the reports are written")
    parser.add_argument("--picture", type=Path, help="a PNG of the report of multiclass")
    parser.add_argument("--seed", type=int, help="of the data (default: fresh data)")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        for task in ARGUMENTS:
            report = args.folder / f"{task}.html"
            shutil.copyfile(draw(task, Path(folder), rng), report)
            print(report)
    if args.picture:
        take_picture(args.folder / "multiclass.html", args.picture)


if __name__ == "__main__":
    run()
