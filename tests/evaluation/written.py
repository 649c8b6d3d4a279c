"""Files of random predictions for tests, in every format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

FORMATS = ("parquet", "csv", "jsonl", "arrow", "arrows", "npz")


def write(path: Path, columns: dict[str, Any] | pa.Table, *, rows: int | None = None) -> Path:
    """Writes columns in the format that the name of the file says, in groups of so many rows."""
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    table: Any = columns if isinstance(columns, pa.Table) else pa.table(columns)
    rows = rows or max(table.num_rows, 1)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def binary(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    """Scores, and labels that they predict."""
    score = rng.random(rows, dtype=np.float32)
    return {"score": score, "label": (rng.random(rows) < score).astype(np.int64)}


def multiclass(rng: np.random.Generator, rows: int, classes: int) -> dict[str, Any]:
    """Logits in a column for each class, and labels."""
    logits = rng.standard_normal((rows, classes)).astype(np.float32)
    label = np.where(rng.random(rows) < 0.5, logits.argmax(1), rng.integers(0, classes, rows))
    return {**{f"logit_{i}": logits[:, i].copy() for i in range(classes)}, "label": label}
