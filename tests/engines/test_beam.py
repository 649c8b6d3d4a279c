"""`CombineMetrics` on the local runners of Beam: globally, by key, in windows, after failures."""

import ast
from importlib import import_module
from typing import Any, NamedTuple

import pytest

import datarax
from benchmarks import engines
from datarax.evaluation.beam import CombineMetrics
from datarax.metrics import Accuracy
from tests.engines.tables import (
    COLUMNS,
    METRICS,
    RANKED,
    RANKING,
    alone,
    block_of_page,
    by_country,
    dies_once,
    in_files,
    keyed,
    many_keys,
    ranked,
    rows,
    the_same,
    without_name,
)

beam: Any = import_module("apache_beam")
window: Any = import_module("apache_beam.transforms.window")
pipeline_options: Any = import_module("apache_beam.options.pipeline_options")
util: Any = import_module("apache_beam.testing.util")
RUNNERS = ("FnApiRunner", "BundleBasedDirectRunner")

pytestmark = pytest.mark.filterwarnings("ignore:.*rows are left out")


def equal(due):
    """Checks the only element, or a pair for each key."""

    def check(found):
        if isinstance(due, dict) and isinstance(found[0], tuple):
            assert {key for key, _ in found} == set(due)
            for key, value in found:
                the_same(value, due[key])
        else:
            the_same(*found, due)

    return check


@pytest.mark.parametrize("runner", RUNNERS)
def test_numbers_are_those_of_one_process(runner, rng):
    table = rows(rng, 5000)
    due, each = alone(table), {key: alone(part) for key, part in by_country(table).items()}
    combine = CombineMetrics(METRICS, columns=COLUMNS)
    with beam.Pipeline(runner=runner) as pipeline:
        dicts = pipeline | "rows" >> beam.Create(table.to_pylist(), reshuffle=False)
        batches = pipeline | "batches" >> beam.Create(table.to_batches(max_chunksize=300))
        for name, elements in (("rows", dicts), ("batches", batches)):
            whole = elements | f"all {name}" >> beam.CombineGlobally(combine)
            util.assert_that(whole, equal(due), label=f"whole {name}")
        fan = dicts | "fan" >> beam.CombineGlobally(combine).with_fanout(3)
        util.assert_that(fan, equal(due), label="of a fan")
        pairs = dicts | beam.Map(lambda row: (row["country"], row))
        util.assert_that(pairs | beam.CombinePerKey(combine), equal(each), label="keyed")
        hot = beam.CombinePerKey(combine).with_hot_key_fanout(4)
        util.assert_that(pairs | "hot" >> hot, equal(each), label="hot")


def test_a_bundle_that_fails_counts_once(rng, tmp_path):
    # This runner runs a bundle again, with what it has combined already, up to four times.
    table, mark = rows(rng, 500), tmp_path / "failed"

    class Failing(beam.DoFn):
        def process(self, element):
            yield element
            if dies_once(mark):
                raise RuntimeError("once")

    combine = CombineMetrics(METRICS, columns=COLUMNS)
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        found = (
            pipeline
            | beam.Create(table.to_batches(max_chunksize=100))
            | beam.ParDo(Failing())
            | beam.CombineGlobally(combine)
        )
        util.assert_that(found, equal(alone(table)))
    assert mark.exists()
    mark.unlink()
    with beam.Pipeline(runner="BundleBasedDirectRunner") as pipeline:
        pairs = (
            pipeline
            | beam.Create(without_name(table).to_pylist())
            | beam.ParDo(Failing())
            | beam.Map(lambda row: (row["country"], row))
        )
        util.assert_that(pairs | beam.CombinePerKey(combine), equal(keyed(table)))
    assert mark.exists()


def test_many_keys(rng):
    table, due = many_keys(rng, 1000)
    combine = CombineMetrics(Accuracy(), columns={"preds": "score", "target": "label"})
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pairs = pipeline | beam.Create([(row["key"], row) for row in table.to_pylist()])
        util.assert_that(pairs | beam.CombinePerKey(combine), util.equal_to(list(due.items())))


def test_the_benchmark_gives_the_numbers_of_the_combiners(tmp_path):
    contest = engines.of_beam(None, engines.write(tmp_path / "rows", 2000))
    assert contest.datarax() == pytest.approx(contest.own(), rel=1e-13)


class Row(NamedTuple):
    score: float
    label: int
    other: object


def test_rows_of_other_kinds_and_windows():
    combine = CombineMetrics(Accuracy(), columns={"preds": "score", "target": "label"})
    elements = [
        Row(0.9, 1, object()),
        beam.Row(score=0.2, label=1),
        {"label": 0, "score": 0.3, "other": {1}},
        {"label": 0, "score": 0.7, "later": 1},
    ]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        rows = pipeline | beam.Create(list(enumerate(elements)), reshuffle=False)
        timed = rows | beam.MapTuple(lambda time, row: window.TimestampedValue(row, time))
        found = (
            timed
            | beam.WindowInto(window.FixedWindows(2))
            | beam.CombineGlobally(combine).without_defaults()
        )
        util.assert_that(found, util.equal_to([0.5, 0.5]))
        empty = pipeline | "none" >> beam.Create([]) | "of none" >> beam.CombineGlobally(combine)
        util.assert_that(empty | beam.Map(lambda x: x != x), util.equal_to([True]), label="NaN")


def test_queries_come_in_one_element(rng):
    table = ranked(rng, 100)
    due = alone(table, RANKING, RANKED, group_by="query")
    grouped = CombineMetrics(RANKING, columns=RANKED, group_by="query")
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        found = (
            pipeline
            | beam.Create(table.to_pylist())
            | beam.GroupBy(lambda row: row["query"])
            | beam.Values()
            | beam.Map(list)
            | beam.CombineGlobally(grouped)
        )
        util.assert_that(found, equal(due))
    row = table.slice(0, 1).to_pylist()[0]
    with pytest.raises(datarax.MetricInputError, match="an element is one row, and group_by="):
        grouped.add_input(grouped.create_accumulator(), row)
    flat = CombineMetrics(RANKING, columns=RANKED)
    with pytest.raises(datarax.MetricInputError, match="give group_by='query'"):
        flat.extract_output(flat.add_input(flat.create_accumulator(), row))


def test_the_block_of_the_page(rng, tmp_path, capfd):
    table = rows(rng, 300)
    folder, names = in_files(tmp_path / "rows", table), {"__name__": "__main__"}
    names["options"] = pipeline_options.PipelineOptions(["--runner=FnApiRunner"])
    exec(block_of_page("Apache Beam", 0, folder), names)
    lines = capfd.readouterr().out.splitlines()
    found = [ast.literal_eval(line) for line in lines if "accuracy" in line]
    due = {name: METRICS[name] for name in ("accuracy", "auroc")}
    columns = {"preds": "score", "target": "label"}
    assert [x for x in found if isinstance(x, dict)] == [alone(table, due, columns)]
    each = {key: alone(part, due, columns) for key, part in by_country(table).items()}
    assert dict(x for x in found if isinstance(x, tuple)) == each
