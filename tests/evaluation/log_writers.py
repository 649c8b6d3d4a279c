"""Writes logs of evaluation harnesses in their documented formats."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

DATE = "2026-05-01T12-30-00.123456"
FORMS = ("json", "stored", "deflated", "zstandard", "unfinished", "samples")
"""How Inspect writes a log: as JSON; as an archive, whose members are packed in one of three ways,
which has no header yet, or which has no summaries."""


def sample(
    name: Any, epoch: int = 1, scores: Any = None, error: str | None = None, **others: Any
) -> dict[str, Any]:
    """A sample of Inspect; `scores` are values by scorer."""
    wrapped = {key: {"value": value, "answer": "x"} for key, value in (scores or {}).items()}
    return {
        "id": name,
        "epoch": epoch,
        "input": f"question {name}",
        "target": f"answer {name}",
        "metadata": {},
        "scores": wrapped,
        **({"error": {"message": error, "traceback": ""}} if error else {}),
        **others,
    }


def write_inspect(
    path: Path,
    samples: list[dict[str, Any]],
    form: str = "json",
    *,
    task: str = "sums",
    model: str = "mockllm/model",
    status: str = "success",
    version: Any = 2,
    spec: dict[str, Any] | None = None,
    **header: Any,
) -> Path:
    """A log of Inspect."""
    ids = list(dict.fromkeys(each["id"] for each in samples))
    epochs = max((each["epoch"] for each in samples), default=1)
    start = {
        "version": version,
        "eval": {
            "created": "2026-05-01T12:30:00+00:00",
            "task": task,
            "task_id": path.stem,
            "model": model,
            "dataset": {"samples": len(ids), "sample_ids": ids},
            "config": {"epochs": epochs},
            **(spec or {}),
        },
    }
    whole = start | {"status": status, **header}
    if form == "json":
        path.write_text(json.dumps(whole | {"samples": samples}))
        return path
    of_summary = [
        {**each, "error": each["error"]["message"]} if "error" in each else each for each in samples
    ]
    members = {"_journal/start.json": start}
    members |= {f"samples/{x['id']}_epoch_{x['epoch']}.json": x for x in samples}
    if form == "unfinished":
        members |= {f"_journal/summaries/{i + 1}.json": [x] for i, x in enumerate(of_summary)}
    else:
        members |= {} if form == "samples" else {"summaries.json": of_summary}
        members |= {"header.json": whole}
    packing = form if form in ("stored", "deflated") else "zstandard"
    contents = {name: json.dumps(x).encode() for name, x in members.items()}
    path.write_bytes(archive(contents, packing))
    return path


def archive(members: dict[str, bytes], packing: str = "zstandard") -> bytes:
    """An archive of ZIP; the `zipfile` of Python writes no Zstandard before 3.14."""
    method = {"stored": 0, "deflated": 8, "zstandard": 93}[packing]
    written, directory = b"", b""
    for name, data in members.items():
        if method == 8:
            packer = zlib.compressobj(wbits=-15)
            packed = packer.compress(data) + packer.flush()
        else:
            packed = pa.compress(data, codec="zstd", asbytes=True) if method else data
        sizes = (zlib.crc32(data), len(packed), len(data))
        head = struct.pack("<5H3I2H", 20, 0, method, 0, 0x21, *sizes, len(name), 0)
        entry = struct.pack("<3H2I", 0, 0, 0, 0, len(written))
        directory += b"PK\1\2" + struct.pack("<H", 20) + head + entry + name.encode()
        written += b"PK\3\4" + head + name.encode() + packed
    ends = (0, 0, len(members), len(members), len(directory), len(written), 0)
    return written + directory + b"PK\5\6" + struct.pack("<4H2IH", *ends)


def row(doc_id: Any, filtered: str | None = "none", doc: Any = None, **metrics: Any) -> Any:
    """A row of lm-eval."""
    content = {"question": f"question {doc_id}"} if doc is None else doc
    found = {
        "doc_id": doc_id,
        "doc": content,
        "target": "x",
        "arguments": {"gen_args_0": {"arg_0": "long text"}},
        "resps": [["x"]],
        "filtered_resps": ["x"],
        "filter": filtered,
        "metrics": list(metrics),
        "doc_hash": f"{zlib.crc32(json.dumps(content).encode()):x}",
        "prompt_hash": f"prompt {doc_id}",
        "target_hash": "x",
        **metrics,
    }
    return {key: x for key, x in found.items() if filtered is not None or key != "filter"}


def write_lm_eval(
    folder: Path, task: str, rows: list[Any], date: str = DATE, model: str | None = None
) -> Path:
    """The samples of a task, and, with the name of a model, the file of results beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"samples_{task}_{date}.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    if model:
        (folder / f"results_{date}.json").write_text(json.dumps({"model_name": model}))
    return path
