"""Files in S3, on a server of this machine that speaks its protocol."""

import gzip
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSystem

import datarax
from datarax import MetricInputError
from datarax.cli import main
from datarax.evaluation import Columns, Progress, engine, fold
from datarax.metrics import AUROC, Accuracy, Sum

BINARY = {"preds": "score", "target": "label"}
TWO = {"accuracy": Accuracy(), "auroc": AUROC()}
VALUES = {"values": "x"}


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    """A server, as the options of a URI."""
    with socket.socket() as free, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "anything")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        code = "from moto.server import main; main()"
        command = [sys.executable, "-c", code, "-p", place.split(":")[1]]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, **quiet)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://{place}/moto-api/").close()
                    break
                except OSError:
                    assert server.poll() is None
                    time.sleep(0.1)
            yield f"?region=us-east-1&scheme=http&endpoint_override={place}"
        finally:
            server.kill()
            server.wait()


class Bucket:
    """A bucket, and the URIs of what is in it."""

    def __init__(self, name: str, options: str):
        more = "&allow_bucket_creation=true"
        self.name, self.options = name, options
        self.system, _ = FileSystem.from_uri(f"s3://{name}/{options}{more}")
        self.system.create_dir(name)

    def put(self, key: str, data: bytes) -> str:
        with self.system.open_output_stream(f"{self.name}/{key}", compression=None) as out:
            out.write(data)
        return self.uri(key)

    def uri(self, key: str) -> str:
        return f"s3://{self.name}/{key}{self.options}"


@pytest.fixture(scope="module")
def bucket(options) -> Bucket:
    """Shards of one table in folders, of several formats, and files that are no data."""
    bucket, rng = Bucket("predictions", options), np.random.default_rng(0)
    for i, country in enumerate(("de", "f r", "de")):
        table = pa.table(shard(rng))
        folder = f"runs/country={country}/shard={i}"
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=100)
        bucket.put(f"{folder}/a.parquet", sink.getvalue().to_pybytes())
        lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
        bucket.put(f"lines/{i}.jsonl.gz", gzip.compress(lines.encode()))
        bucket.put(f"one/{i}.json", json.dumps(table.to_pylist()).encode())
    bucket.put("runs/_SUCCESS", b"")
    bucket.put("runs/_temporary/a.parquet", b"no data")
    return bucket


def shard(rng: np.random.Generator) -> dict[str, Any]:
    score = rng.integers(0, 1000, 500) / 1000
    return {"score": score, "label": (rng.random(500) < score).astype(np.int64)}


def whole() -> dict[str, float]:
    rng = np.random.default_rng(0)
    tables = [pa.table(shard(rng)) for _ in range(3)]
    return datarax.evaluate(pa.concat_tables(tables), TWO, columns=BINARY).results()


def test_objects_folders_and_globs(bucket):
    for key in (
        "runs",
        "runs/",
        "runs/c*/**/*.parquet",
        "runs/c*/*/*.parquet",
        "lines",
        "lines/*.gz",
        "one",
    ):
        found = datarax.evaluate(bucket.uri(key), TWO, columns=BINARY).results()
        assert found == whole(), key
    files = fold(bucket.uri("runs"), Accuracy(), BINARY).files
    keys = [file.path.removeprefix("s3://predictions/runs/").split("?")[0] for file in files]
    assert keys == [
        f"country={country}/shard={i}/a.parquet"
        for country, i in (("de", 0), ("de", 2), ("f r", 1))
    ]
    for key in ("runs/country=f r/shard=1/a.parquet", "runs/country=f%20r/shard=1/a.parquet"):
        assert fold(bucket.uri(key), Accuracy(), BINARY).rows == 500
    columns = Columns({**BINARY, "slices": "country"}, classes={"slices": ["de", "f r"]})
    sliced = datarax.Sliced(Accuracy(), 2, names=("de", "f r"))
    rows = fold(bucket.uri("runs"), sliced, columns)
    assert set(rows.metric.results()) == {"overall", "de", "f r"}
    assert fold(bucket.uri("runs"), Sum(), {"values": "shard"}).metric.results() == 500 * 3


def test_the_command_and_several_processes(bucket, capsys):
    arguments = [
        "--task",
        "binary",
        "--preds",
        "score",
        "--target",
        "label",
        "--slice-by",
        "country",
    ]
    assert main(["evaluate", bucket.uri("runs"), *arguments, "--metrics", "accuracy"]) == 0
    out = capsys.readouterr().out
    assert "1,500 rows" in out
    assert " f r " in out
    with engine("processes", workers=2) as pool:
        found = datarax.evaluate(bucket.uri("runs"), TWO, columns=BINARY, executor=pool)
    assert found.results() == whole()


def test_what_is_not_there(bucket):
    for key in ("none.csv", "none/*.csv", "none"):
        with pytest.raises(MetricInputError, match=r"none.*: there is no such file"):
            fold(bucket.uri(key), Sum(), VALUES)
    elsewhere = f"s3://no-such-bucket/a.csv{bucket.options}"
    with pytest.raises(MetricInputError, match=r"^s3://no-such-bucket/a\.csv"):
        fold(elsewhere, Sum(), VALUES)
    bucket.put("empty/a.csv", b"")
    with pytest.raises(MetricInputError, match="the file is empty"):
        fold(bucket.uri("empty/a.csv"), Sum(), VALUES)


def test_an_object_changes_while_it_is_read(bucket):
    """To one of the same size, in the second in which it was written, too."""
    uris = [bucket.put(f"changing/{i}.csv", b"x\n1\n") for i in range(2)]
    start = fold(uris, Sum(), VALUES)

    def change(now: Progress) -> None:
        if len(now.done) == 1:
            bucket.put("changing/1.csv", b"x\n2\n")

    with pytest.raises(MetricInputError, match=r"changing/1\.csv.*: the file has changed while"):
        fold(uris, Sum(), VALUES, progress=change)
    with pytest.raises(MetricInputError, match=r"start is of other files: .*1\.csv.* has changed"):
        fold(uris, Sum(), VALUES, start=start)

    def remove(now: Progress) -> None:
        if len(now.done) == 1:
            bucket.system.delete_file("predictions/changing/1.csv")

    with pytest.raises(MetricInputError, match=r"changing/1\.csv.*: the file was removed while"):
        fold(uris, Sum(), VALUES, progress=remove)
