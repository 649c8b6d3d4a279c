"""The types of columns in files of text, and what is missing: the same in all formats."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import datarax
from datarax import MetricInputError
from datarax.evaluation import Columns, fold, text_files
from datarax.metrics import Accuracy, Mean, Sum, TextExactMatch
from tests.evaluation.written import FORMATS, write

BINARY = {"preds": "score", "target": "label"}
VALUES = {"values": "x"}


@pytest.fixture
def small_blocks(monkeypatch):
    """Files of text are read by blocks of 100 bytes, so that small files have several."""
    monkeypatch.setattr(text_files, "_TEXT_BLOCK", 100)


def message(source, metric=None, columns=None, **options) -> str:
    """The error of an evaluation, which must be one line."""
    with pytest.raises(MetricInputError) as caught:
        fold(source, metric or Mean(), columns or VALUES, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines(path, rows, name="x"):
    """Writes values as JSON lines, or as a column of CSV beside another one."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({name: x}) + "\n" for x in rows))
    else:
        texts = ("" if x is None else x for x in rows)
        path.write_text(f"{name},b\n" + "".join(f"{x},1\n" for x in texts))
    return path


def test_a_column_that_is_not_needed_may_hold_anything(tmp_path):
    path = tmp_path / "a.jsonl"
    others = [
        ([[-5.1, False], [-3.2, True]], "x"),
        ("ok", 5),
        ({"a": 1}, {"a": "x"}),
        ({"a": [1]}, {"a": {"b": [{}]}}),
        ([1, "a"], [[1]]),
        (None, 2**70),
        (True, 1),
    ]
    for given in others:
        rows = [{"score": 0.9, "label": 1, "other": x} for x in given]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = fold(path, Accuracy(), BINARY)
        assert (result.metric.compute(), result.rows) == (1, 2), given
    columns = BINARY | {"weights": "other"}
    path.write_text(
        '{"score": 1, "label": 1, "other": "a"}\n{"score": 1, "label": 1, "other": 1}\n'
    )
    assert "the column 'other' for the output 'weights' has the type mixed ('a' and 1)" in message(
        path, Accuracy(), columns
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_types_are_widened_far_below_the_first_rows(name, tmp_path):
    """Integers, then a fraction; no values, then numbers: any executor has the same numbers."""
    path = tmp_path / name
    for rows in (
        [*range(100), 0.75, *range(50)],
        [*[None] * 100, 0.25, 2.5, *[None] * 100, 3],
        [*[None] * 100, 3, *[None] * 100, 0.5],
    ):
        lines(path, rows)
        expected = [x for x in rows if x is not None]
        with ThreadPoolExecutor(2) as pool:
            for executor in (None, pool):
                result = fold(path, Sum(), VALUES, batch_size=7, executor=executor)
                assert result.rows == len(expected)
                assert sum(result.excluded.values()) == len(rows) - len(expected)
                assert result.metric.compute() == sum(expected)
    # In one file, and in the one after it.
    more = lines(tmp_path / f"b{path.suffix}", [0.5] * 100)
    assert fold([path, more], Sum(), VALUES).metric.compute() == 3.5 + 50
    assert fold([more, path], Sum(), VALUES).metric.compute() == 3.5 + 50


@pytest.mark.usefixtures("small_blocks")
def test_a_key_that_appears_far_below_the_first_rows(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"score": 0.2, "label": 0}] * 20 + [{"score": 0.75, "label": 1, "é": 2.0, "new": "x"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fold(path, Accuracy(), BINARY).metric.compute() == 1
    result = fold(path, Accuracy(), BINARY | {"weights": "é"})
    assert (result.rows, result.excluded) == (1, {"é": 20})
    assert "there is no column 'w'" in message(path, Accuracy(), BINARY | {"weights": "w"})


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_large_integer_is_never_rounded(name, tmp_path):
    path, large = tmp_path / name, 2**53 + 1
    for rows in ([large, *range(100)], [*range(100), large]):
        # Integers alone stay as they are.
        seen = fold(lines(path, rows), Sum(), VALUES)
        assert seen.rows == 101
    for rows in (
        [*range(100), 0.5, *range(100), large],
        [*range(100), 0.5, large],
    ):
        error = message(lines(path, rows))
        said = "the column 'x' holds fractions or integers of more than 64 bits, and in row"
        assert f"{said} {len(rows)} the integer {large}" in error
    # In one batch, before there is a fraction.
    assert "some integers of 9,007,199,254,740,992 or more" in message(
        lines(path, [large, *range(100), 0.5])
    )
    # Floats may be as large, and so may integers that are floats.
    assert fold(lines(path, [*range(100), 0.5, 1e300, 2**60]), Sum(), VALUES).rows == 103


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_value_of_another_type_is_shown_with_its_column(name, tmp_path):
    path = tmp_path / name
    for first in (1, 0.5):
        error = message(lines(path, [first] * 150 + ["often"]))
        assert "the column 'x' has the value 'often' in row 151; expected a number" in error
        assert "--missing-values 'often'" in error
    for text, advice in (
        ("87%", "without the percent sign"),
        ("tensor(0.9)", "x.item()"),
        ("tensor([0.1; 0.9])", "x.item()"),
        ("np.float64(0.5)", "x.item()"),
        ("[0.1 0.9]", "a column for each number"),
        ("often", "classes={'values': [...]}"),
    ):
        for rows in ([text, text], [1, text]):
            error = message(lines(path, rows))
            if path.suffix == ".csv":
                assert advice in error, (text, error)
                assert repr(text) in error or text == "often"
            else:
                assert "'x'" in error
    if path.suffix == ".csv":
        path.write_text('x,b\n"0,9",1\n')
        assert "--decimal ','" in message(path)
        path.write_text('x,b\n"[0.1, 0.9]",1\n')
        assert "has the value '[0.1, 0.9]'; expected a number: it is a list" in message(path)


@pytest.mark.parametrize(
    ("delimiter", "encoding"),
    [(";", "utf-8"), ("|", "utf-8-sig"), ("\t", "utf-16"), (";", "utf-16-le"), (";", "latin-1")],
)
def test_how_a_csv_is_written(delimiter, encoding, tmp_path, monkeypatch):
    path, end = tmp_path / "a.csv", "\r\n"
    rows = [f'{i},5{delimiter}"é{end}""{i}"""{delimiter}1' for i in range(40)]
    text = end.join([delimiter.join(["x", "é", "b"]), *rows])
    path.write_bytes(text.encode(encoding))
    options = {"delimiter": delimiter, "encoding": encoding, "decimal": ","}
    for size in (50, 10**6):
        monkeypatch.setattr(text_files, "_TEXT_BLOCK", size)
        result = fold(path, Mean(), VALUES, **options)
        assert (result.rows, result.metric.compute()) == (40, 20)
        texts = fold(path, TextExactMatch(), {"preds": "é", "target": "é"}, **options)
        assert texts.metric.compute() == 1
    del options["encoding"]
    if encoding.startswith("utf-16"):
        assert f"give --encoding {encoding[:6]}" in message(path, **options)
    if encoding == "latin-1":
        path.write_bytes(f"b{delimiter}c\na{delimiter}é\n".encode(encoding))
        columns = {"preds": "b", "target": "c"}
        assert "latin-1" in message(path, TextExactMatch(), columns, **options)
        return
    path.write_text(delimiter.join("xb") + "\n" + delimiter.join(("0,9", "1,1")) + "\n")
    shown = "tab" if delimiter == "\t" else delimiter
    assert f"give --delimiter {shown!r}" in message(path)
    path.write_text(delimiter.join("xb") + "\n" + delimiter.join("01") + "\n")
    assert f"give --delimiter {shown!r}" in message(path)


def test_options_that_are_none(tmp_path):
    path = write(tmp_path / "a.csv", {"x": [1.0]})
    for given in (
        {"delimiter": ";;"},
        {"delimiter": '"'},
        {"decimal": "x"},
        {"encoding": "no"},
        {"encoding": "hex"},
        {"missing_values": [1]},
    ):
        (name,) = given
        assert message(path, **given).startswith(f"{name} is ")


def test_json_lines_in_another_encoding(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes("".join(f'{{"x": {i}, "é": "ü"}}\n' for i in range(9)).encode("utf-16"))
    assert "give --encoding utf-16" in message(path)
    assert fold(path, Mean(), VALUES, encoding="utf-16").metric.compute() == 4


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_missing_is_missing_in_every_format(name, rng, tmp_path):
    """Labels, texts and numbers without a value, and what `missing_values` names."""
    size = 200
    pred, label = (rng.choice(["cat", "dog", "N/A", "NA", ""], size) for _ in "ab")
    x = rng.choice([-999.0, 0.5, 3.0], size)
    absent = rng.random(size) < 0.2
    columns = {
        "pred": pa.array(pred),
        "label": pa.array(label, mask=absent),
        "x": pa.array(x, mask=absent),
        "score": pa.array(np.where(pred == "dog", 0.9, 0.1)),
    }
    if name == "npz":  # which has no rows without a value
        absent[:] = False
        columns = {"pred": pred, "label": label, "x": x, "score": np.asarray(columns["score"])}
    path = write(tmp_path / f"a.{name}", columns, rows=30)
    for missing in ((), ("N/A", "-999"), ("N/A", "", "-999.0")):
        keep = ~absent & ~np.isin(label, missing)
        both = keep & ~np.isin(pred, missing)
        result = fold(
            path, TextExactMatch(), {"preds": "pred", "target": "label"}, missing_values=missing
        )
        assert result.rows == both.sum()
        assert result.excluded.get("label", 0) + result.excluded.get("pred", 0) == size - both.sum()
        assert result.metric.compute() == np.float32((pred == label)[both].mean())
        classes = Columns({"preds": "score", "target": "label"}, {"target": ["cat", "dog"]})
        metric = Accuracy(on_invalid="exclude")
        result = fold(path, metric, classes, missing_values=missing)
        assert result.rows == keep.sum()
        known = keep & np.isin(label, ["cat", "dog"])
        expected = ((pred == "dog") == (label == "dog"))[known].mean()
        with pytest.warns(datarax.InvalidValuesWarning):
            assert result.metric.compute() == np.float32(expected)
        real = ~absent & ~np.isin(x, [float(each) for each in missing if each.startswith("-")])
        numbers = fold(path, Mean(), VALUES, missing_values=missing)
        assert numbers.rows == real.sum()
        assert numbers.metric.compute() == pytest.approx(x[real].mean(), rel=1e-6)
    nan = write(tmp_path / f"b.{name}", {"x": np.array([1.0, np.nan, 2.0])})
    if name != "csv":  # where pyarrow writes NaN as a number
        assert fold(nan, Mean(), VALUES, missing_values="nan").rows == 2


def test_a_quoted_field_is_a_text_and_an_empty_one_is_not(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('p,t,x\n"",a,1\n,a,NA\nNA,NA,\n"N/A",N/A,"3"\na,a,2\n', newline="")
    texts = {"preds": "p", "target": "t"}
    result = fold(path, TextExactMatch(), texts)
    assert (result.rows, result.excluded) == (4, {"p": 1})
    assert result.metric.compute() == 0.75
    assert fold(path, TextExactMatch(), texts, missing_values=["", "NA"]).rows == 2
    # Numbers beside text: NA is no number.
    result = fold(path, TextExactMatch(), texts | {"weights": "x"})
    assert (result.rows, result.excluded) == (3, {"p": 1, "x": 1})
    with pytest.warns(datarax.InvalidValuesWarning, match="1 without a value in the column 'p'"):
        datarax.evaluate(path, TextExactMatch(), columns=texts)
