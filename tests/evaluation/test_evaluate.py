"""`evaluate` and `fold`, against scikit-learn and NumPy on the same data."""

import contextlib
import os
import signal
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, log_loss, r2_score

import datarax
from datarax.evaluation import Columns, fold
from datarax.evaluation.partial_state import Folding
from datarax.metrics import (
    CHRF,
    NDCG,
    WER,
    Accuracy,
    ConfusionMatrix,
    LogLoss,
    MaxError,
    Mean,
    MeanAveragePrecision,
    MedianAbsoluteError,
    R2Score,
    RootMeanSquaredError,
    Sum,
)
from tests.evaluation.written import FORMATS, binary, multiclass, write
from tests.helpers import x64

BINARY = {"preds": "score", "target": "label"}
BOTH = datarax.Collection({"accuracy": Accuracy(), "log_loss": LogLoss()})
TWELVE = Accuracy(num_classes=12)
LOGITS = {"preds": "logit_*", "target": "label"}


def bits(metric):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(metric)]


def several(folder: Path, rng, number: int = 5, rows: int = 300) -> list[Path]:
    """Files of different sizes: as many parts."""
    return [
        write(folder / f"part-{i}.parquet", binary(rng, rows + 7 * i), rows=50)
        for i in range(number)
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_equals_the_oracle(name, rng, tmp_path):
    data = binary(rng, 1000)
    path = write(tmp_path / f"predictions.{name}", data, rows=300)
    found = datarax.evaluate(path, BOTH, columns=BINARY, batch_size=256).results()
    assert found["accuracy"] == np.float32(accuracy_score(data["label"], data["score"] >= 0.5))
    expected = log_loss(data["label"], data["score"].astype(np.float64))
    assert found["log_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["parquet", "csv", "arrows"])
def test_columns_of_a_glob_are_in_the_order_of_their_numbers(name, rng, tmp_path):
    data = multiclass(rng, 500, 12)
    label = data.pop("label")
    shuffled = {key: data[key] for key in rng.permutation(list(data))} | {"label": label}
    path = write(tmp_path / f"a.{name}", shuffled)
    logits = np.stack([data[f"logit_{i}"] for i in range(12)], 1)
    expected = np.float32(accuracy_score(label, logits.argmax(1)))
    assert datarax.evaluate(path, TWELVE, columns=LOGITS, batch_size=128).compute() == expected
    listed = LOGITS | {"preds": [f"logit_{i}" for i in range(12)]}
    assert datarax.evaluate(path, TWELVE, columns=listed, batch_size=128).compute() == expected


def test_lists_and_arrays_are_the_axes_after_the_first(rng, tmp_path):
    data = multiclass(rng, 300, 12)
    label, logits = data.pop("label"), np.stack(list(data.values()), 1)
    expected = accuracy_score(label, logits.argmax(1))
    flat = pa.array(logits.ravel())
    lists = {
        "fixed": pa.FixedSizeListArray.from_arrays(flat, 12),
        "variable": pa.ListArray.from_arrays(np.arange(0, 3601, 12, dtype=np.int32), flat),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(logits),
    }
    for name, column in lists.items():
        path = write(tmp_path / f"{name}.arrow", {"logits": column, "label": label}, rows=70)
        found = datarax.evaluate(path, TWELVE, columns={"preds": "logits", "target": "label"})
        assert found.compute() == np.float32(expected)
    path = write(tmp_path / "a.npz", {"logits": np.asfortranarray(logits), "label": label})
    columns = {"preds": "logits", "target": "label"}
    assert datarax.evaluate(path, TWELVE, columns=columns).compute() == np.float32(expected)


def test_rows_without_a_value_are_left_out_and_counted(rng, tmp_path):
    data = binary(rng, 400)
    no_score, no_label = rng.random(400) < 0.1, rng.random(400) < 0.2
    table = {
        "label": pa.array(data["label"], mask=no_label),
        "score": pa.array(data["score"], mask=no_score),
        "unused": pa.nulls(400),
    }
    path = write(tmp_path / "a.parquet", table, rows=90)
    result = fold(path, Accuracy(), BINARY, batch_size=64)
    keep = ~(no_score | no_label)
    assert result.rows == keep.sum()
    assert sum(result.excluded.values()) == (~keep).sum()
    assert result.excluded == {
        "score": no_score.sum(),
        "label": (no_label & ~no_score).sum(),
    }
    expected = accuracy_score(data["label"][keep], data["score"][keep] >= 0.5)
    assert result.metric.compute() == np.float32(expected)
    with pytest.warns(datarax.InvalidValuesWarning, match=r"without a value in the column 'label'"):
        datarax.evaluate(path, Accuracy(), columns=BINARY)


def test_a_null_within_a_list_leaves_the_row_out(tmp_path):
    rows = pa.array([[0.9, 0.1], [None, 0.5], None, [0.2, 0.8]], pa.list_(pa.float32()))
    path = write(tmp_path / "a.parquet", {"preds": rows, "target": [0, 0, 1, 1]})
    result = fold(path, Accuracy(num_classes=2))
    assert (result.rows, result.excluded, result.metric.compute()) == (2, {"preds": 2}, 1)


@pytest.mark.parametrize("name", ["parquet", "csv", "jsonl"])
def test_nan_goes_to_the_metric(name, tmp_path):
    data = {"score": np.array([0.9, np.nan, 0.2, 0.4]), "label": np.array([1, 1, 1, 0])}
    found = fold(write(tmp_path / f"a.{name}", data), Accuracy(on_invalid="exclude"), BINARY)
    assert (found.rows, found.excluded) == (4, {})
    assert found.metric.invalid_count() == 1
    with pytest.warns(datarax.InvalidValuesWarning, match="NaN"):
        assert found.metric.compute() == np.float32(2 / 3)


def test_empty_fields_and_missing_keys_are_no_value(tmp_path):
    (tmp_path / "a.csv").write_text("score,label\n0.9,1\n,1\nNA,0\n0.7,\n")
    (tmp_path / "a.jsonl").write_text(
        '{"score": 0.9, "label": 1}\n{"label": 1}\n{"score": null, "label": 0}\n{"score": 0.7}\n'
    )
    for name in ("a.csv", "a.jsonl"):
        result = fold(tmp_path / name, Accuracy(), BINARY)
        assert (result.rows, result.excluded) == (1, {"score": 2, "label": 1})


def test_strings_are_labels_by_the_names_of_classes(rng, tmp_path):
    data, names = multiclass(rng, 200, 3), np.array(["cat", "dog", "eel"])
    words = names[data["label"]]
    words[0] = "fox"
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        table = data | {"label": pa.array(words.tolist(), kind)}
        path = write(tmp_path / "a.parquet", table)
        metric = ConfusionMatrix(num_classes=3)
        with pytest.raises(datarax.MetricInputError, match=r"holds strings, and ConfusionMatrix"):
            fold(path, metric, LOGITS)
        result = fold(path, metric, Columns(LOGITS, {"target": tuple(names)})).metric
        assert result.invalid_count() == 1
        logits = np.stack([data[f"logit_{i}"] for i in range(3)], 1)
        expected = np.zeros((3, 3), int)
        np.add.at(expected, (data["label"][1:], logits.argmax(1)[1:]), 1)
        with pytest.warns(datarax.InvalidValuesWarning):
            np.testing.assert_array_equal(result.compute(), expected)


def test_labels_that_no_class_has_are_counted_wherever_they_are(rng, tmp_path):
    data = binary(rng, 300)
    data["label"][[0, 150, 299]] = 2, -1, 7
    path = write(tmp_path / "a.parquet", data)
    found = fold(path, Accuracy(on_invalid="exclude"), BINARY, batch_size=64).metric
    keep = (data["label"] == 0) | (data["label"] == 1)
    expected = accuracy_score(data["label"][keep], data["score"][keep] >= 0.5)
    with pytest.warns(datarax.InvalidValuesWarning, match="3"):
        assert found.compute() == np.float32(expected)
    words = data | {"label": np.array(["no", "yes", "?"])[np.clip(data["label"], 0, 2)]}
    columns = Columns(BINARY, {"target": ["no", "yes"]})
    found = fold(write(tmp_path / "b.csv", words), Accuracy(), columns).metric
    assert found.invalid_count() == (data["label"] > 1).sum()


def test_scores_that_look_like_logits_are_told_when_read(rng, tmp_path):
    data = binary(rng, 300)
    data["score"] = data["score"] * 8 - 4
    paths = [write(tmp_path / f"{name}.parquet", data) for name in "ab"]
    found = datarax.evaluate(paths, Accuracy(), columns=BINARY, batch_size=64)
    off = 2 * int(((data["score"] < 0) | (data["score"] > 1)).sum())
    said = f"^Accuracy: {off} .* If preds are logits"
    with pytest.warns(datarax.ScoresWarning, match=said) as seen:
        found.results()
    assert len(seen) == 1, [str(each.message) for each in seen]


def test_texts_with_one_and_with_several_references(tmp_path):
    table = {"hyp": ["a b c", "d e"], "one": ["a b d", "d e"], "two": ["a b c", "x"]}
    path = write(tmp_path / "a.parquet", table)
    wer = datarax.evaluate(path, WER(), columns={"preds": "hyp", "target": "one"})
    assert wer.compute() == np.float32(0.2)
    several = write(tmp_path / "b.jsonl", {"preds": table["hyp"], "target": [["a b d"], ["d e"]]})
    together = datarax.evaluate(path, CHRF(), columns={"preds": "hyp", "target": ["one", "two"]})
    both = list(zip(table["one"], table["two"], strict=True))
    assert together.compute() == CHRF().update(table["hyp"], both).compute()
    listed = datarax.evaluate(several, CHRF())
    assert listed.compute() == CHRF().update(table["hyp"], [["a b d"], ["d e"]]).compute()


def test_boxes_of_images_are_padded_with_masks(rng, tmp_path):
    counts, targets = rng.integers(0, 5, 20), rng.integers(0, 4, 20)
    counts[:3] = targets[:2] = 0  # a first batch without any
    boxes = np.cumsum(rng.random((20, 5, 4)), 2).astype(np.float32) * 30
    scores = rng.random((20, 5)).astype(np.float32)
    labels, target_labels = rng.integers(0, 2, (20, 5)), rng.integers(0, 2, (20, 4))
    truth = boxes[:, :4] + rng.random((20, 4, 4)).astype(np.float32)

    def lists(x, n):
        return [row[:k].tolist() for row, k in zip(x, n, strict=True)]

    table = {
        "boxes": lists(boxes, counts),
        "scores": lists(scores, counts),
        "labels": lists(labels, counts),
        "target_boxes": lists(truth, targets),
        "target_labels": lists(target_labels, targets),
    }
    metric = MeanAveragePrecision(num_classes=2, capacity=128)
    found = datarax.evaluate(write(tmp_path / "a.jsonl", table), metric, batch_size=3)
    valid = np.arange(5) < counts[:, None], np.arange(4) < targets[:, None]
    expected = metric.update(
        boxes, scores, labels, truth, target_labels, valid=valid[0], target_valid=valid[1]
    )
    assert bits(found.canonical()) == bits(expected.canonical())


def test_lists_of_documents_have_a_mask_of_their_own_or_of_their_lengths(tmp_path):
    table = {"preds": [[0.9, 0.5, 0.1], [0.2, 0.8]], "target": [[1, 0, 1], [1, 0]]}
    found = fold(write(tmp_path / "a.jsonl", table), NDCG()).metric.compute()
    preds = jnp.array([[0.9, 0.5, 0.1], [0.2, 0.8, 0]])
    target, valid = jnp.array([[1, 0, 1], [1, 0, 0]]), jnp.array([[1, 1, 1], [1, 1, 0]], bool)
    assert found == NDCG().update(preds, target, valid=valid).compute()
    own = table | {"valid": [[True, False, True], [True, True]]}
    found = fold(write(tmp_path / "b.jsonl", own), NDCG()).metric.compute()
    assert found == NDCG().update(preds, target, valid=valid.at[0, 1].set(False)).compute()
    path = write(tmp_path / "c.jsonl", table | {"target": [[1, 0], [1, 0]]})
    with pytest.raises(datarax.MetricInputError, match=r"c\.jsonl: the columns 'preds' and 'targ"):
        fold(path, NDCG())


def test_rows_of_a_query_stay_together(rng, tmp_path):
    query = np.sort(rng.integers(0, 9, 80))
    data = {"preds": rng.random(80), "target": rng.integers(0, 3, 80), "query": query}
    path = write(tmp_path / "a.parquet", data, rows=7)
    found = datarax.evaluate(path, NDCG(), batch_size=4, columns={"preds": "preds"})
    preds, target = jnp.asarray(data["preds"], jnp.float32), jnp.asarray(data["target"], jnp.int32)
    expected = NDCG().update(preds, target, query=jnp.asarray(query, jnp.int32)).compute()
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)


def test_wide_integers_are_labels_out_of_range_or_numbers(tmp_path):
    table = {"preds": np.array([1, 2, 0]), "target": np.array([1, 2**32 + 2, -(2**40)])}
    path = write(tmp_path / "a.parquet", table)
    found = fold(path, Accuracy(num_classes=3, on_invalid="exclude")).metric
    assert found.invalid_count() == 2
    for enabled in (False, True):
        with x64(enabled):
            total = fold(path, Sum(), {"values": "target"}).metric.results()
        assert total == 1 + 2**32 + 2 - 2**40


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_times_since_1970_are_read_as_they_are(ending, dtype, rng, tmp_path):
    target = 1_700_000_000 + rng.integers(0, 300, 41)
    preds = (target + rng.integers(-40, 41, 41)).astype(dtype)
    target = target.astype(dtype)
    if dtype is np.float64:  # fractions of seconds
        preds, target = preds + rng.integers(0, 999, 41) / 1000, target + 0.3
    path = write(tmp_path / f"a.{ending}", {"preds": preds, "target": target})
    classes = RootMeanSquaredError, MaxError, MedianAbsoluteError, R2Score
    found = datarax.evaluate(path, datarax.Collection({x.__name__: x() for x in classes}))
    error = np.abs(preds - target)
    due = np.sqrt(np.mean(error**2)), error.max(), np.median(error), r2_score(target, preds)
    got = found.results()
    for each, value in zip(classes, due, strict=True):
        # Bins keep the middle one as two float32 that it is between.
        rel = 1e-6 if each is MedianAbsoluteError else 1e-12
        assert got[each.__name__] == pytest.approx(value, rel=rel)
    lower, upper = found.bounds()["MedianAbsoluteError"]
    assert lower <= np.median(error) <= upper < lower * (1 + 1e-6)


def test_doubles_and_decimals_are_rounded_to_floats(tmp_path):
    values = pa.array([1.1, 2.2, 3.3])
    for column in (values, values.cast(pa.decimal128(4, 1)), values.cast(pa.float16())):
        found = fold(write(tmp_path / "a.parquet", {"values": column}), Mean()).metric.compute()
        assert found.dtype == np.float32
        assert found == pytest.approx(2.2, rel=1e-6 if column.type != pa.float16() else 1e-3)
    with x64():
        path = write(tmp_path / "a.parquet", {"values": values})
        assert fold(path, Mean()).metric.compute() == pytest.approx(2.2, rel=1e-15)


def test_weights_are_a_column_like_others(rng, tmp_path):
    data = binary(rng, 300) | {"weights": rng.integers(0, 4, 300).astype(np.float32)}
    path = write(tmp_path / "a.parquet", data)
    expected = accuracy_score(data["label"], data["score"] >= 0.5, sample_weight=data["weights"])
    found = datarax.evaluate(path, Accuracy(), columns=BINARY, batch_size=77)
    assert found.compute() == np.float32(expected)
    without = datarax.evaluate(path, Accuracy(), columns=BINARY | {"weights": None})
    assert without.compute() == np.float32(accuracy_score(data["label"], data["score"] >= 0.5))


def test_a_source_is_a_path_a_glob_a_folder_or_a_list(rng, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    each = [
        write(tmp_path / name, binary(rng, 60))
        for name in ("a.parquet", "deep/b.parquet", "deep/er/c.parquet")
    ]
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "notes.txt").write_text("not read")

    def rows(source):
        return fold(source, Accuracy(), BINARY).rows

    assert rows(each[0]) == rows(str(each[0])) == 60
    assert rows(tmp_path) == rows([tmp_path]) == rows(f"{tmp_path}/**/*.parquet") == 180
    assert rows(f"{tmp_path}/*.parquet") == 60
    assert rows([each[0], tmp_path / "deep"]) == 180
    assert rows([each[0], each[0], tmp_path]) == 180  # each file once


def test_counts_do_not_depend_on_batches_and_row_groups(rng, tmp_path):
    data = binary(rng, 3000)
    found = []
    for rows, batch_size in ((3000, 65536), (137, 512), (1, 2999)):
        path = write(tmp_path / "a.parquet", data, rows=rows)
        metric = datarax.Collection({"accuracy": Accuracy(), "area": datarax.metrics.AUROC()})
        result = fold(path, metric, BINARY, batch_size=batch_size)
        assert result.rows == 3000
        found.append(bits(result.metric.canonical()))
    assert all(each == found[0] for each in found)


@pytest.mark.filterwarnings("ignore:.*all replicas have the same value")
def test_the_interval_does_not_depend_on_batches(rng, tmp_path):
    path = write(tmp_path / "a.parquet", binary(rng, 2000), rows=150)
    metric = datarax.Bootstrap(Accuracy(), 20)
    found = [
        fold(path, metric, BINARY, batch_size=size).metric.results() for size in (64, 400, 65536)
    ]
    assert found[0] == found[1] == found[2]
    assert found[0]["lower"] < found[0]["upper"]
    # With ids of its own: all rows of one id are drawn together.
    ids = write(tmp_path / "b.parquet", binary(rng, 300) | {"user": np.zeros(300, int)})
    drawn = datarax.Compare(Accuracy(), replicas=20)
    columns = {"preds_a": "score", "preds_b": "score", "target": "label", "index": "user"}
    assert fold(ids, drawn, columns).metric.results()["difference"] == 0


def test_parts_may_come_from_any_executor_in_any_order(rng, tmp_path):
    files = several(tmp_path, rng)
    alone = fold(files, BOTH, BINARY, batch_size=64)
    assert alone.done == (0, 1, 2, 3, 4)
    for threads in (1, 3):
        with ThreadPoolExecutor(threads) as pool:
            found = fold(files, BOTH, BINARY, batch_size=64, executor=pool)
        assert bits(found.metric) == bits(alone.metric)
        assert (found.rows, found.done) == (alone.rows, alone.done)


def test_the_result_does_not_depend_on_the_number_of_threads(rng, tmp_path, monkeypatch):
    files = several(tmp_path, rng, 3)
    one = fold(files, BOTH, BINARY, batch_size=64)
    threads, state_of = set(), Folding.state_of

    def named(*args):
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return state_of(*args)

    monkeypatch.setattr("datarax.evaluation.evaluator.THREAD_ROWS", 1)
    monkeypatch.setattr("datarax.evaluation.evaluator.available_cpus", lambda: 6)
    monkeypatch.setattr(Folding, "state_of", named)
    many = fold(files, BOTH, BINARY, batch_size=64)
    assert bits(one.metric) == bits(many.metric)
    assert threads == {"datarax-fold"}


def test_an_evaluation_of_files_in_another_order_is_not_continued(rng, tmp_path):
    """The parts that are done are known by their places."""
    files, steps = several(tmp_path, rng, 3), []
    fold(files, BOTH, BINARY, progress=steps.append)
    with pytest.raises(datarax.MetricInputError, match="they had another order"):
        fold([*reversed(files)], BOTH, BINARY, start=steps[0])


def test_an_evaluation_continues_where_it_stopped(rng, tmp_path):
    files, steps = several(tmp_path, rng), []
    whole = fold(files, BOTH, BINARY, batch_size=64, progress=steps.append)
    assert [len(each.done) for each in steps] == [1, 2, 3, 4, 5]
    assert [each.total for each in steps] == [5] * 5
    for step in steps:
        read = []
        rest = fold(files, BOTH, BINARY, batch_size=64, start=step, progress=read.append)
        assert bits(rest.metric) == bits(whole.metric)
        assert (rest.rows, rest.done, len(read)) == (whole.rows, whole.done, 5 - len(step.done))
        # From what was saved: the metric without the states that wait.
        saved = datarax.evaluation.Progress(step.metric, step.rows, {}, step.done, step.total)
        found = fold(files, BOTH, BINARY, batch_size=64, start=saved).metric.results()
        assert found["accuracy"] == whole.metric.results()["accuracy"]
        assert found["log_loss"] == pytest.approx(whole.metric.results()["log_loss"], rel=1e-6)
    with pytest.raises(datarax.MetricInputError, match=r"part-2\.parquet' was among its files"):
        fold(files[:2], BOTH, BINARY, start=steps[0])
    with pytest.raises(datarax.MetricInputError, match="start has 5 parts, and the source has 2"):
        fold(files[:2], BOTH, BINARY, start=replace(steps[0], files=()))


@pytest.fixture
def interruptible():
    """A program that a shell starts in the background ignores Ctrl-C: not in this test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_stops_and_keeps_the_last_progress(threads, rng, tmp_path):
    files, steps = several(tmp_path, rng), []

    def show(now):
        steps.append(now)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)  # the signal may come to this thread a moment later

    pool = ThreadPoolExecutor(threads) if threads else None
    with pytest.raises(KeyboardInterrupt):
        fold(files, BOTH, BINARY, batch_size=64, executor=pool, progress=show)
    if pool:
        pool.shutdown()
    assert len(steps) == 2
    rest = fold(files, BOTH, BINARY, batch_size=64, start=steps[-1])
    assert bits(rest.metric) == bits(fold(files, BOTH, BINARY, batch_size=64).metric)
    reading = [each for each in threading.enumerate() if each.name == "datarax-read-ahead"]
    for thread in reading:
        thread.join(60)
        assert not thread.is_alive()


def test_files_of_one_source_may_have_integers_and_floats(rng, tmp_path):
    write(tmp_path / "a.csv", {"score": np.array([1, 0, 1]), "label": np.array([1, 0, 0])})
    write(tmp_path / "b.csv", {"score": np.array([0.9, 0.1]), "label": np.array([1, 0])})
    result = fold(tmp_path, Accuracy(), BINARY)
    assert (result.rows, result.metric.compute()) == (5, np.float32(0.8))


def test_a_file_without_rows_adds_nothing(tmp_path, rng):
    write(
        tmp_path / "a.parquet", {"score": pa.array([], pa.float32()), "label": pa.array([], "i4")}
    )
    data = binary(rng, 20)
    write(tmp_path / "b.parquet", data)
    result = fold(tmp_path, Accuracy(), BINARY)
    expected = accuracy_score(data["label"], data["score"] >= 0.5)
    assert (result.rows, result.metric.compute()) == (20, np.float32(expected))
    nothing = fold(tmp_path / "a.parquet", Accuracy(), BINARY)
    assert (nothing.rows, nothing.total) == (0, 0)
    assert np.isnan(nothing.metric.compute())


def test_only_the_needed_columns_are_read(tmp_path, rng):
    data = binary(rng, 100)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(data | {"z": rng.random(100)}), path, compression="none")
    column = pq.ParquetFile(path).metadata.row_group(0).column(2)
    start = column.dictionary_page_offset or column.data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(raw)
    assert fold(path, Accuracy(), BINARY).rows == 100
    with pytest.raises(datarax.MetricInputError, match=r"a\.parquet"):
        fold(path, Mean(), {"values": "z"})


def test_no_bar_and_no_warning_away_from_a_terminal(tmp_path, rng, capsys):
    path = write(tmp_path / "a.npz", binary(rng, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        datarax.evaluate(path, Accuracy(), columns=BINARY, progress=True)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar(tmp_path, rng, monkeypatch):
    pty = pytest.importorskip("pty")
    path = write(tmp_path / "a.npz", binary(rng, 1234))
    terminal, end = pty.openpty()
    shown = []

    def read():  # all the time, as a terminal holds little
        with contextlib.suppress(OSError):
            while data := os.read(terminal, 4096):
                shown.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(end, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stderr)
        patch.setenv("TERM", "xterm")
        datarax.evaluate(path, Accuracy(), columns=BINARY)
    reader.join(30)
    os.close(terminal)
    assert "1 of 1 parts" in b"".join(shown).decode()
    assert "1,234 rows, " in b"".join(shown).decode()
