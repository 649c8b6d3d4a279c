"""`Aggregator`: its numbers beside `evaluate`, and the bytes of its states."""

import hashlib
import json
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score, log_loss

import datarax
from datarax.evaluation import Aggregator, Columns
from datarax.evaluation.batch_folding import whole_groups
from datarax.metrics import AUROC, NDCG, Accuracy, LogLoss, Mean, RootMeanSquaredError
from tests.evaluation.written import binary, write

BINARY = {"preds": "score", "target": "label"}
BOTH = {"accuracy": Accuracy(), "log_loss": LogLoss(), "auroc": AUROC()}
GOLDEN = Path(__file__).parents[1] / "data/state-1.bin"
"""The state of the rows below, as version 1 wrote it: written anew only with a new version."""
GOLDEN_METRICS = {
    "accuracy": Accuracy(num_classes=3),
    "rmse": RootMeanSquaredError().from_outputs(preds="x", target="y", weights=None),
}
GOLDEN_COLUMNS = {"preds": "label", "target": "truth", "x": "x", "y": "y"}
GOLDEN_ROWS = {
    "label": [0, 1, 2, 2, None],
    "truth": [0, 1, 1, 2, 0],
    "x": [1.0, 2.0, 3.0, 4.0, 5.0],
    "y": [1.0, 2.0, 3.0, 7.0, 5.0],
}


def bits(metric):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(metric)]


def pieces(table, rows):
    return pa.table(table).to_batches(max_chunksize=rows)


def test_any_tree_of_merges_gives_the_numbers_of_one_process(rng, tmp_path, programs):
    data = binary(rng, 1000)
    data["label"] = pa.array(data["label"], mask=rng.random(1000) < 0.05)
    aggregator = Aggregator(BOTH, columns=BINARY)
    aggregator = pickle.loads(pickle.dumps(aggregator))  # as an engine sends it
    states = [aggregator.add(aggregator.zero(), each) for each in pieces(data, 90)]
    while len(states) > 1:
        i, j = rng.choice(len(states), 2, replace=False)
        both = aggregator.merge(states[i], states[j])
        states = [x for k, x in enumerate(states) if k not in (i, j)] + [both]
    with pytest.warns(datarax.InvalidValuesWarning, match="without a value in the column 'label'"):
        found = aggregator.finish(states[0]).results()
    assert not programs
    keep = np.asarray(data["label"].is_valid())
    label, score = np.asarray(data["label"].drop_null()), data["score"][keep].astype(np.float64)
    assert found["accuracy"] == pytest.approx(accuracy_score(label, score >= 0.5), rel=1e-14)
    assert found["log_loss"] == pytest.approx(log_loss(label, score), rel=1e-12)
    with pytest.warns(datarax.InvalidValuesWarning, match=r"without a value in the column 'label'"):
        alone = datarax.evaluate(write(tmp_path / "a.parquet", data), BOTH, columns=BINARY)
    assert found["auroc"] == alone.results()["auroc"]
    assert found["accuracy"] == alone.results()["accuracy"]


def test_states_of_nothing_change_nothing(rng):
    aggregator = Aggregator(LogLoss(), columns=BINARY)
    zero, batch = aggregator.zero(), pieces(binary(rng, 50), 50)[0]
    one = aggregator.add(zero, batch)
    assert aggregator.merge(one, zero) == aggregator.merge(zero, one) == one
    assert aggregator.add(one, batch.slice(0, 0)) == one
    assert np.isnan(aggregator.finish(zero).compute())


def test_tables_of_other_packages_and_rows_are_batches(rng):
    data = binary(rng, 200)
    aggregator = Aggregator(BOTH, columns=BINARY)
    batch = pieces(data, 200)[0]
    state = aggregator.add(aggregator.zero(), batch)
    chunked = pa.Table.from_batches([batch.slice(0, 70), batch.slice(70)])
    for given in (chunked, pl.DataFrame(data), batch.to_pylist()):
        found = aggregator.finish(aggregator.add(aggregator.zero(), given))
        assert bits(found) == bits(aggregator.finish(state))
    with pytest.raises(datarax.MetricTypeError, match=r"got int; expected a pyarrow.RecordBatch"):
        aggregator.add(aggregator.zero(), 3)


def test_names_of_classes_and_wrong_columns_are_said_as_in_evaluate():
    batch = pa.record_batch({"said": ["cat", "dog", "cow"], "truth": ["cat", "cat", "dog"]})
    names = {"preds": "said", "target": "truth"}
    classes = {name: ["cat", "dog"] for name in names}
    metric = Accuracy(num_classes=2)
    aggregator = Aggregator(metric, columns=Columns(names, classes))
    assert aggregator.finish(aggregator.add(aggregator.zero(), batch.slice(0, 2))).compute() == 0.5
    aggregator = Aggregator(metric, columns=names)
    with pytest.raises(datarax.MetricInputError, match="holds strings, and Accuracy takes numbers"):
        aggregator.add(aggregator.zero(), batch)
    aggregator = Aggregator(metric, columns=names | {"preds": "sayd"})
    with pytest.raises(datarax.MetricInputError, match=r"no column 'sayd' .*'said'"):
        aggregator.add(aggregator.zero(), batch)
    with pytest.raises(datarax.MetricInputError, match="depends on the order of updates"):
        Aggregator(datarax.Window(Mean(), 3))
    with pytest.raises(datarax.MetricTypeError, match=r"expected a datarax\.Metric"):
        Aggregator("accuracy")


def test_queries_need_whole_groups(rng):
    query = np.repeat(np.arange(30), rng.integers(1, 9, 30))
    data = {"query": query, "score": rng.random(len(query)), "gain": rng.integers(0, 3, len(query))}
    columns = {"preds": "score", "target": "gain", "query": "query"}
    table = pa.table(data)
    aggregator = Aggregator(NDCG(), columns=columns)
    with pytest.raises(datarax.MetricInputError, match="give group_by='query'"):
        aggregator.add(aggregator.zero(), table)
    # One row for each query, which holds lists, needs nothing.
    lists = table.group_by("query").aggregate([("score", "list"), ("gain", "list")])
    listed = Aggregator(
        NDCG(), columns={"preds": "score_list", "target": "gain_list", "query": None}
    )
    due = listed.finish(listed.add(listed.zero(), lists)).compute()
    aggregator = Aggregator(NDCG(), columns=columns, group_by="query")
    state = aggregator.zero()
    for batch in whole_groups(table.to_batches(max_chunksize=3), "query"):
        state = aggregator.add(state, batch)
    assert float(aggregator.finish(state).compute()) == pytest.approx(float(due), rel=1e-6)
    aggregator = Aggregator(NDCG(), columns=columns, group_by="user")
    with pytest.raises(datarax.MetricInputError, match="no column 'user' to group by"):
        aggregator.add(aggregator.zero(), table)


def test_groups_are_whole_wherever_batches_are_cut(rng):
    names = np.repeat(["a", "b", None, "c", "d"], rng.integers(1, 7, 5)).tolist()
    table = pa.table({"name": pa.array(names), "place": range(len(names))})
    for rows in range(1, len(names) + 1):
        found = list(whole_groups(table.to_batches(max_chunksize=rows), "name"))
        assert pa.Table.from_batches(found) == table
        seen = [set(each["name"].to_pylist()) for each in found]
        assert sum(map(len, seen)) == len(set().union(*seen))


def test_rows_that_are_drawn_have_ids_of_their_own(rng):
    # The rows of a batch are no copies of those of another batch: the interval gets narrower.
    batch = pieces({"values": np.ones(50) * np.arange(50) % 2}, 50)[0]
    aggregator = Aggregator(datarax.Bootstrap(Mean(), 400))
    one = aggregator.add(aggregator.zero(), batch)
    many = aggregator.merge(*(aggregator.add(aggregator.zero(), batch) for _ in range(16)))
    narrow, wide = (aggregator.finish(each).results()["std_error"] for each in (many, one))
    assert wide / narrow == pytest.approx(4, rel=0.5)


def test_the_bytes_of_the_last_release_are_read():
    aggregator = Aggregator(GOLDEN_METRICS, columns=GOLDEN_COLUMNS)
    data = GOLDEN.read_bytes()
    with pytest.warns(datarax.InvalidValuesWarning, match="1 without a value in .*'label'"):
        found = aggregator.finish(data)
    assert found.results() == {"accuracy": 0.75, "rmse": 1.5}
    now = aggregator.add(aggregator.zero(), pa.record_batch(GOLDEN_ROWS))
    (described, arrays), (before, same) = opened(now), opened(data)
    # Which columns fed it was not yet noted.
    assert described.pop("outputs").keys() == {"preds", "target", "x", "y"}
    assert (described, arrays) == (before, same)
    both = aggregator.merge(now, data)
    assert opened(both)[0]["rows"] == 8


def opened(data):
    """The contents of a state, read as the documentation says, without datarax."""
    magic, version, state, identity, text, arrays = struct.unpack_from("<8sHH16sIQ", data)
    assert (magic, version, state) == (b"DATARAX\0", 1, 5)
    assert data[-16:] == hashlib.blake2b(data[:-16], digest_size=16).digest()
    body = zlib.decompress(data[40:-16])
    assert len(body) == text + arrays
    described = json.loads(body[:text])
    canonical = json.dumps(described["metric"], sort_keys=True).encode()
    assert identity == hashlib.blake2b(canonical, digest_size=16).digest()
    return described, body[text:]


def test_the_layout_is_the_documented_one(rng):
    aggregator = Aggregator(Mean(), columns={"values": "x", "weights": None})
    state = aggregator.add(aggregator.zero(), pa.record_batch({"x": [1.0, None, 3.5]}))
    described, arrays = opened(state)
    assert (described["rows"], described["excluded"]) == (2, {"x": 1})
    assert described["metric"]["type"] == "datarax.Mean"
    assert arrays


def test_any_damage_is_a_named_error(rng):
    aggregator = Aggregator(BOTH, columns=BINARY)
    state = aggregator.add(aggregator.zero(), pieces(binary(rng, 50), 50)[0])
    for place in {*range(60), *rng.integers(0, len(state), 100), *range(-20, 0)}:
        damaged = bytearray(state)
        damaged[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(datarax.CheckpointError):
            aggregator.finish(bytes(damaged))
    for size in (0, 1, 8, 39, 60, len(state) - 1):
        with pytest.raises(datarax.CheckpointError):
            aggregator.merge(state[:size], state)
    with pytest.raises(datarax.CheckpointError, match=r"no state .*begin with b'PAR1"):
        aggregator.finish(b"PAR1" + state)
    with pytest.raises(datarax.CheckpointError, match=r"version 2 .* use one version of datarax"):
        aggregator.finish(state[:8] + b"\x02" + state[9:])
    with pytest.raises(datarax.MetricTypeError, match=r"Aggregator\.finish: expected the bytes"):
        aggregator.finish("state")


def test_a_state_of_other_metrics_names_the_field(rng):
    aggregator = Aggregator(BOTH, columns=BINARY)
    other = Aggregator(BOTH | {"accuracy": Accuracy(threshold=0.7)}, columns=BINARY)
    fewer = Aggregator({"accuracy": Accuracy()}, columns=BINARY)
    for each, said in ((other, r"threshold is 0\.7"), (fewer, "accuracy")):
        with pytest.raises(datarax.ConfigurationMismatchError, match=f"other metrics: .*{said}"):
            aggregator.merge(aggregator.zero(), each.zero())


PROGRAM = """
import numpy as np, pyarrow as pa
import datarax
from datarax.evaluation import Aggregator
from datarax.metrics import AUROC, Accuracy
aggregator = Aggregator({"a": Accuracy(), "b": datarax.Interval(AUROC())})
batch = pa.record_batch({"preds": [0.2, 0.9, 0.4], "target": [0, 1, 1]})
state = aggregator.add(aggregator.zero(), batch)
aggregator.finish(aggregator.merge(state, state))
from jax._src import xla_bridge
assert not xla_bridge._backends
"""


def test_no_device_is_used():
    # A worker of an engine must not take the memory of a GPU.
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
