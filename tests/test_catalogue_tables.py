"""The tables of the catalogue: each metric once; range, direction and empty value are true."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax import metrics
from datarax.evaluation.tasks import CLASSES
from datarax.metric.arguments import update_signature
from datarax.metrics.language.text_metric import CountedText
from tests import intervals
from tests.registry import BATCH, BUNDLES, CASES, GROUPS, Case, ranking
from tests.test_laws import value_of
from tests.test_layers import ROOT

Row = Mapping[str, str]
COLUMNS = ["name", "formula", "range", "better", "reference", "no data"]
OF_HEALTH = ["name", "`update` takes", "formula", "range", "better", "no data"]
LINK = re.compile(r"\[`(\w+)`\]\[datarax\.metrics\.(\w+)\]")
BOUNDS = {"inf": math.inf, "-inf": -math.inf, "π": math.pi, "log 2": math.log(2)}
VALUES = "least to greatest value"
OF_PART = "that of the metric"
SPOKEN = (VALUES, OF_PART)
NAMED = re.compile(r"([a-z][a-z-]*) (.+)")

TEXTS = ["the cat sat on the mat", "it rains a lot today", "a dog barks at night", "we are at home"]
WORSE = ["the cat sat on a mat", "it rains", "a loud dog barks at night", "they were at home"]
# Their results have several values of no data.
OF_STEPS = [
    metrics.TreeHealth(like={"a": np.zeros(2, np.float32)}),
    metrics.LossSpikes(),
]


def pages() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "docs/metrics").glob("*.md")):
        if path.stem not in ("names", "names-torchmetrics", "index"):
            yield path.name, path.read_text()


def rows_of(page: str) -> list[Row]:
    """The rows of the tables of metrics."""
    found, head = [], None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            head = None
        elif head is None:
            head = cells
        elif "better" in head and not line.startswith("| ---"):
            assert head in (COLUMNS, OF_HEALTH)
            found.append(dict(zip(head, cells, strict=True)))
    return found


def name_of(row: Row) -> str:
    link = LINK.fullmatch(row["name"])
    assert link, row
    assert link[1] == link[2]
    return link[1]


ROWS = {name_of(row): row for _, page in pages() for row in rows_of(page)}


def test_the_table_of_intervals_is_that_of_the_code():
    _, _, rest = intervals.PAGE.read_text().partition(intervals.START)
    assert rest.partition(intervals.END)[0] == intervals.table(), (
        "run python -m tests.intervals --write"
    )


def parts_of(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a cell, each with the numbers that it names, or ""."""
    for part in text.split("; "):
        named = NAMED.fullmatch(part)
        yield (named[1], named[2]) if named and part not in SPOKEN else ("", part)


def of_number(text: str, number: str) -> str:
    """What a cell says of one number of a result."""
    parts = list(parts_of(text))
    of_name = [part for name, part in parts if name and name.replace("-", "_") in number]
    others = [part for name, part in parts if not name]
    assert of_name or others, f"{text!r} says nothing of {number!r}"
    return [*of_name, *others][0]


def span_of(text: str) -> tuple[float, float]:
    text = re.sub(r", (dB|%|bits)$", "", text)
    if text in ("any", OF_PART):
        return -math.inf, math.inf
    low, high = (BOUNDS[x] if x in BOUNDS else float(x) for x in text.split(" to "))
    return low, high


def numbers(value: Any) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        yield jax.tree_util.keystr(path).lower(), np.asarray(leaf, np.float64)


def check_range(name: str, value: Any, values: Any = None) -> None:
    for number, x in numbers(value):
        text = of_number(ROWS[name]["range"], number)
        low, high = (np.min(values), np.max(values)) if text == VALUES else span_of(text)
        x = x[~np.isnan(x)]
        edge = 1e-5 * max([1.0, *(abs(bound) for bound in (low, high) if np.isfinite(bound))])
        assert (low - edge <= x).all(), f"{name}{number}: {x} in {text}"
        assert (x <= high + edge).all(), f"{name}{number}: {x} in {text}"


def check_better(name: str, before: Any, after: Any, *, at_the_end: bool = True) -> None:
    """The value of perfect predictions is no worse, and at the end of the range if it has one."""
    row = ROWS[name]
    for (number, x), (_, best) in zip(numbers(before), numbers(after), strict=True):
        direction = of_number(row["better"], number)
        low, high = span_of(of_number(row["range"], number))
        if direction not in ("higher", "lower"):
            continue
        note = f"{name}{number}: {x} before, perfect {best}"
        sign = 1 if direction == "higher" else -1
        assert not (sign * (best - x) < -1e-5).any(), note
        end = high if direction == "higher" else low
        if np.isfinite(end) and at_the_end:
            best = best[~np.isnan(best)]
            np.testing.assert_allclose(best, end, rtol=1e-4, atol=1e-4, err_msg=note)


def perfect(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The inputs with perfect predictions; None if they have none."""
    if not {"preds", "target"} <= batch.keys():
        return None
    preds, target = batch["preds"], batch["target"]
    if preds.ndim == target.ndim:
        best = target
    elif target.dtype == np.int32:
        best = np.eye(preds.shape[-1])[np.clip(target, 0, preds.shape[-1] - 1)]
        if not np.allclose(preds.sum(-1), 1):
            best = 50 * best  # scores, no probabilities
    else:
        best = np.repeat(target[..., None], preds.shape[-1], -1)
    same = {"pred_lengths": "target_lengths", "num_correct": "num_samples"}
    others = {name: batch[other] for name, other in same.items() if name in batch}
    if "retrieved" in batch:  # a perfect ranking holds all documents
        others["retrieved"] = np.ones_like(batch["retrieved"])
    return {**batch, **others, "preds": best.astype(preds.dtype)}


def test_each_metric_is_in_one_row_of_its_page():
    names = [name_of(row) for _, page in pages() for row in rows_of(page)]
    exported = {
        name
        for name, each in vars(metrics).items()
        if isinstance(each, type) and issubclass(each, datarax.Metric)
    }
    assert sorted(names) == sorted(exported - {"WeightedMean"})  # another name of `Mean`
    for _, page in pages():
        for row in rows_of(page):
            assert f"\n::: datarax.metrics.{name_of(row)}\n" in f"{page}\n"


def test_cells_are_of_few_forms():
    for name, row in ROWS.items():
        assert all(row.values()), name
        for _, part in parts_of(row["range"]):
            assert part == VALUES or span_of(part.partition(" if ")[0]), name
        for _, part in parts_of(row["better"]):
            assert part in ("higher", "lower", "—", OF_PART), name


def test_the_classes_have_the_same_directions():
    """None where neither is better, or numbers of one metric have different directions."""
    words = {True: "higher", False: "lower", None: "—"}
    for name, cls in CLASSES.items():
        stated = {part for _, part in parts_of(ROWS[name]["better"])} - {"—"}
        word = stated.pop() if len(stated) == 1 and OF_PART not in stated else "—"
        # A report has many numbers of each class; its support has no direction.
        word = "—" if name == "ClassificationReport" else word
        assert words[cls.higher_is_better] == word, (
            f"{name}: write higher_is_better in the class, and 'better' in its row of docs/metrics"
        )


def test_no_data():
    """The tests of laws compare `empty` of each case with what the metric gives."""
    of_class: dict[str, set[str]] = {}
    for case in (case for case in CASES if case.inputs.rows):
        is_nan = isinstance(case.empty, dict) or np.isnan(case.empty)
        word = "NaN" if is_nan else f"{case.empty:g}"
        of_class.setdefault(case.cls.__name__, set()).add(word)
    for name, words in of_class.items():
        stated = {part.partition(" if ")[0] for part in ROWS[name]["no data"].split("; ")}
        assert stated == words, name
    checked = set(of_class)
    for metric in OF_STEPS:
        name = type(metric).__name__
        checked.add(name)
        for number, x in numbers(metric.compute()):
            stated = float(of_number(ROWS[name]["no data"], number))
            np.testing.assert_array_equal(x, np.full(x.shape, stated), f"{name}{number}")
    assert checked == ROWS.keys()


def of_new_metrics() -> dict[str, list[Case]]:
    """The groups that have a metric of inputs that none before has."""
    seen: set[Any] = set()
    found = {}
    for name, group in GROUPS.items():
        if group[0].host:
            continue
        new = {(case.cls, case.inputs.id) for case in group}
        if not new <= seen:
            found[name] = group
        seen |= new
    return found


def classes_of(batch: Mapping[str, np.ndarray]) -> list[set[int]]:
    """The classes that occur, for each column of labels."""
    target = batch.get("target")
    if target is None or target.dtype != np.int32 or target.ndim > 2:
        return []
    return [set(column) for column in target.reshape(len(target), -1).T.tolist()]


def drawn_with_all_classes(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs in which each class occurs: a class without examples has the value 0."""
    usual = classes_of(case.inputs.draw(rng, 1000))
    draws = (case.inputs.draw(rng, BATCH) for _ in range(1000))
    return next(batch for batch in draws if classes_of(batch) == usual)


def check_group(group: list[Case], bundle: datarax.Collection, rng: np.random.Generator) -> None:
    batch = drawn_with_all_classes(group[0], rng)
    best = perfect(batch)
    drawn = bundle.update(**batch).compute()
    ideal = bundle.update(**best).compute() if best else None
    for case in group:
        name, before = case.cls.__name__, value_of(case, drawn)
        check_range(name, before, batch.get("values"))
        if ideal is not None:
            after = value_of(case, ideal)
            check_range(name, after)
            # Of two predicted classes one is wrong; queries without relevant documents count as 0.
            if "top_k" in case.config or case.config.get("empty") == "zero":
                continue
            if case.perfect != "any":
                check_better(name, before, after, at_the_end=case.perfect == "best")


@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")  # of other labels as preds
@pytest.mark.parametrize("name", of_new_metrics())
def test_values_are_in_the_range_and_perfect_predictions_at_its_end(name, rng):
    check_group(GROUPS[name], BUNDLES[name], rng)


def test_queries(rng):
    by_inputs: dict[str, list[Case]] = {}
    for case in ranking.CASES:
        by_inputs.setdefault(case.inputs.id, []).append(case)
    for group in by_inputs.values():
        check_group(group, datarax.Collection({case.id: case.make() for case in group}), rng)


def test_texts():
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rapidfuzz")
    # The best texts of the registry are not best for all: some have no words.
    for cls in CLASSES.values():
        if issubclass(cls, CountedText):
            metric = cls()
            worse, best = (WORSE, TEXTS), (TEXTS, TEXTS)
            if "target" not in update_signature(metric).parameters:
                worse, best = (["a b c d e"] * 2,), (["a b c d e", "f g h i j"],)  # all different
            before, after = metric.update(*worse).compute(), metric.update(*best).compute()
            check_range(cls.__name__, before)
            check_range(cls.__name__, after)
            ends = [case.perfect == "best" for case in CASES if case.cls is cls]
            check_better(cls.__name__, before, after, at_the_end=all(ends))


def test_a_false_row_is_found(monkeypatch):
    monkeypatch.setitem(ROWS, "F1", {**ROWS["F1"], "range": "0 to 0.5"})
    with pytest.raises(AssertionError, match="F1"):
        check_range("F1", np.float32(0.75))
    monkeypatch.setitem(ROWS, "Recall", {**ROWS["Recall"], "better": "lower"})
    with pytest.raises(AssertionError, match="Recall"):
        check_better("Recall", np.float32(0.5), np.float32(1))
    with pytest.raises(AssertionError, match="Precision"):
        check_better("Precision", np.float32(0.5), np.float32(0.75))
