"""Times accuracy and log loss of Parquet files: `datarax.evaluate`, DuckDB, Polars, scikit-learn.

python benchmarks/evaluation.py [--rows 1e6 1e7] [--classes 2 10] [--folder DIR]

Each contestant runs in a process of its own, whose peak memory is shown. scikit-learn reads the
whole file. The second of two runs is timed: the first one imports what it needs.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROW_GROUP = 1_000_000
SKLEARN_ROWS = 10_000_000


def write(path: Path, rows: int, classes: int) -> None:
    """A file of float32 scores and int32 labels, in row groups of a million rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, writer = np.random.default_rng(0), None
    for start in range(0, rows, ROW_GROUP):
        size = min(ROW_GROUP, rows - start)
        if classes == 2:
            score = rng.random(size, dtype=np.float32)
            label = rng.random(size, dtype=np.float32) < score
            table = pa.table({"score": score, "label": label.astype(np.int32)})
        else:
            logits = rng.standard_normal((classes, size), dtype=np.float32)
            hit, other = logits.argmax(0), rng.integers(0, classes, size)
            label = np.where(rng.random(size, dtype=np.float32) < 0.5, hit, other)
            columns = {f"logit_{i}": x for i, x in enumerate(logits)}
            table = pa.table({**columns, "label": label.astype(np.int32)})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=ROW_GROUP)
    if writer:
        writer.close()


def by_datarax(path: str, classes: int) -> dict[str, float]:
    import datarax
    from datarax.metrics import Accuracy, LogLoss

    metrics: dict[str, datarax.Metric] = {"accuracy": Accuracy(), "log_loss": LogLoss()}
    columns = {"preds": "score", "target": "label"}
    if classes > 2:
        metrics["accuracy"] = Accuracy(num_classes=classes)
        metrics["log_loss"] = LogLoss(num_classes=classes, from_logits=True)
        columns["preds"] = "logit_*"
    return datarax.evaluate(path, metrics, columns=columns, progress=False).results()


def by_duckdb(path: str, classes: int) -> dict[str, float]:
    duckdb: Any = import_module("duckdb")

    if classes == 2:
        right = "(score >= 0.5)::int = label"
        loss = "-ln(greatest(if(label = 1, score, 1 - score), 1.1920929e-7))"
    else:
        names = [f"logit_{i}" for i in range(classes)]
        greatest = f"greatest({', '.join(names)})"
        cases = " ".join(f"when {i} then {name}" for i, name in enumerate(names))
        of_label = f"(case label {cases} end)"
        right = f"{of_label} = {greatest}"
        total = " + ".join(f"exp({name} - {greatest})" for name in names)
        loss = f"ln({total}) + {greatest} - {of_label}"
    query = f"select avg(({right})::int), avg(({loss})::double) from '{path}'"
    accuracy, log_loss = duckdb.sql(query).fetchall()[0]
    return {"accuracy": accuracy, "log_loss": log_loss}


def by_polars(path: str, classes: int) -> dict[str, float]:
    pl: Any = import_module("polars")

    label = pl.col("label")
    if classes == 2:
        score = pl.col("score")
        right = (score >= 0.5).cast(pl.Int32) == label
        loss = -pl.when(label == 1).then(score).otherwise(1 - score).clip(1.1920929e-7).log()
    else:
        names = [f"logit_{i}" for i in range(classes)]
        greatest = pl.max_horizontal(names)
        of_label: Any = pl.col(names[0])
        for i, name in enumerate(names[1:], 1):
            of_label = pl.when(label == i).then(pl.col(name)).otherwise(of_label)
        right = of_label == greatest
        loss = pl.sum_horizontal([(pl.col(x) - greatest).exp() for x in names]).log()
        loss = loss + greatest - of_label
    values = [right.mean().alias("accuracy"), loss.cast(pl.Float64).mean().alias("log_loss")]
    return pl.scan_parquet(path).select(values).collect(engine="streaming").row(0, named=True)


def by_sklearn(path: str, classes: int) -> dict[str, float]:
    import pyarrow.parquet as pq
    from scipy.special import softmax
    from sklearn.metrics import accuracy_score, log_loss

    table = pq.read_table(path)
    label = table["label"].to_numpy()
    if classes == 2:
        scores = table["score"].to_numpy()
        chosen = scores >= 0.5
    else:
        scores = np.stack([table[f"logit_{i}"].to_numpy() for i in range(classes)], 1)
        chosen, scores = scores.argmax(1), softmax(scores, 1)
    return {"accuracy": accuracy_score(label, chosen), "log_loss": log_loss(label, scores)}


CONTESTANTS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "datarax": by_datarax,
    "duckdb": by_duckdb,
    "polars": by_polars,
    "sklearn": by_sklearn,
}


def run_one(name: str, path: str, classes: int) -> None:
    """One contestant, in this process."""
    seconds, value = [], {}
    for _ in range(2):
        start = time.perf_counter()
        value = CONTESTANTS[name](path, classes)
        seconds.append(time.perf_counter() - start)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "first": seconds[0],
                "second": seconds[1],
                "cpu": usage.ru_utime + usage.ru_stime,
                "megabytes": usage.ru_maxrss / 1024,
                **{name: float(x) for name, x in value.items()},
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        name, path, classes = given.one
        run_one(name, path, int(classes))
        return
    print(
        f"{'rows':>12} {'classes':>7}  {'':8} first s  again s  Mrows/s   peak MB  accuracy  loss"
    )
    for classes in given.classes:
        for rows in map(int, given.rows):
            path = Path(given.folder) / f"evaluation-{classes}-{rows}.parquet"
            write(path, rows, classes)
            for name in CONTESTANTS:
                if not find_spec(name) or (name == "sklearn" and rows > SKLEARN_ROWS):
                    continue
                command = [sys.executable, __file__, "--one", name, str(path), str(classes)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                print(
                    f"{rows:12,} {classes:7}  {name:8} {found['first']:7.2f}  "
                    f"{found['second']:7.2f}  {rows / found['second'] / 1e6:7.1f}  "
                    f"{found['megabytes']:8,.0f}  {found['accuracy']:.6f}  {found['log_loss']:.7f}",
                    flush=True,
                )
            path.unlink()


if __name__ == "__main__":
    main()
