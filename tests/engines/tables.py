"""What the tests of the engines share: rows, metrics, and their results in one process."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datarax
from datarax.evaluation import Aggregator
from datarax.metrics import AUROC, NDCG, Accuracy, Mean, RootMeanSquaredError

COLUMNS = {"preds": "score", "target": "label", "loss": "loss"}
METRICS = {
    "accuracy": Accuracy(),
    "auroc": AUROC(),
    "loss": Mean().from_outputs(values="loss", weights=None),
    "error": RootMeanSquaredError().from_outputs(preds="score", target="loss", weights=None),
}
RANKED = {"preds": "score", "target": "gain", "query": "query"}
RANKING = NDCG()
PAGE = "Dask data frames, Ray Data, and datasets of pyarrow"
"""A section of the page "On many machines"."""


def rows(rng: np.random.Generator, number: int) -> pa.Table:
    """Rows of three countries, of which some have no label."""
    score = rng.random(number)
    return pa.table(
        {
            "score": score,
            "label": pa.array(
                (rng.random(number) < score).astype(int), mask=rng.random(number) < 0.05
            ),
            "loss": 1e6 + rng.standard_normal(number),
            "country": rng.choice(["AT", "DE", "FR"], number),
        }
    )


def ranked(rng: np.random.Generator, queries: int) -> pa.Table:
    """The documents of queries, shuffled."""
    query = rng.permutation(np.repeat(np.arange(queries), rng.integers(1, 9, queries)))
    number = len(query)
    gain = rng.integers(0, 4, number)
    return pa.table({"query": query, "score": rng.random(number), "gain": gain})


def by_country(table: pa.Table) -> dict[str, pa.Table]:
    """The rows of each country."""
    country = np.array(table["country"].to_pylist())
    return {name: table.take(np.flatnonzero(country == name)) for name in ("AT", "DE", "FR")}


def without_name(table: pa.Table, name: str = "FR") -> pa.Table:
    """The same table, in which one country is null."""
    country = pa.array([None if x == name else x for x in table["country"].to_pylist()])
    return table.set_column(table.column_names.index("country"), "country", country)


def keyed(table: pa.Table) -> dict[str | None, Any]:
    """The results of each country in one process, FR under the key null."""
    return {None if key == "FR" else key: alone(part) for key, part in by_country(table).items()}


def many_keys(rng: np.random.Generator, number: int) -> tuple[pa.Table, dict[int, float]]:
    """Rows of many keys, shuffled, and the accuracy of each key."""
    key = rng.permutation(np.repeat(np.arange(number), rng.integers(1, 4, number)))
    hit = rng.random(len(key)) < 0.5
    share = np.bincount(key, hit) / np.bincount(key)
    table = pa.table(
        {"key": key, "score": np.where(hit, 0.9, 0.2), "label": np.ones(len(key), int)}
    )
    return table, dict(enumerate(share.tolist()))


def alone(table: Any, metrics: Any = METRICS, columns: Any = COLUMNS, **options: Any) -> Any:
    """The results of one process that gets all rows at once."""
    aggregator = Aggregator(metrics, columns=columns, **options)
    state = aggregator.add(aggregator.zero(), table)
    if table.column(1).null_count:
        with pytest.warns(datarax.InvalidValuesWarning, match=WARNING):
            return aggregator.finish(state).results()
    return aggregator.finish(state).results()


WARNING = r"rows are left out: \d+ without a value in the column 'label'"


def the_same(found: Any, due: Any) -> None:
    """Counts are equal; sums of floats are as near as their order lets them be."""
    if not isinstance(due, dict):
        found, due = {"": found}, {"": due}
    assert found.keys() == due.keys()
    for name, value in due.items():
        if name in ("accuracy", "auroc"):
            assert found[name] == value
        assert found[name] == pytest.approx(value, rel=1e-13), name


def block_of_page(heading: str, place: int, folder: Path) -> str:
    """A block of the page "On many machines", which reads files of this machine."""
    page = (Path(__file__).parents[2] / "docs/machines.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    code = re.findall(r"^```py\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[place]
    return re.sub(r"(?:s3|gs)://bucket/predictions", str(folder), code)


def in_files(folder: Path, table: pa.Table) -> Path:
    """The rows in three files."""
    folder.mkdir()
    for i in range(3):
        pq.write_table(table.take(np.arange(i, len(table), 3)), folder / f"{i}.parquet")
    return folder


def dies_once(mark: Path) -> bool:
    """True the first time that it is asked, in any process."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
