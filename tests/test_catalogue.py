"""The catalogue's pages: each metric is on one, and each name of other libraries has a row."""

import json
import re

import pytest
import sklearn.metrics

import datarax
from datarax import metrics
from tests.registry import CASES
from tests.test_layers import ROOT

PAGE = (ROOT / "docs/metrics/names.md").read_text()
TORCHMETRICS = (ROOT / "docs/metrics/names-torchmetrics.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
OURS = re.compile(r"\[`(\w+)[^`]*`\]\[(datarax\.\w+(?:\.\w+)?)\]")
PEERS = json.loads((ROOT / "tests/data/peer_names.json").read_text())
# What came after the oldest scikit-learn that the tests run on.
NEWER = {
    "confusion_matrix_at_thresholds",
    "d2_brier_score",
    "d2_log_loss_score",
    "metric_at_thresholds",
    "root_mean_squared_error",
    "root_mean_squared_log_error",
}


def rows(library: str) -> dict[str, str]:
    """The rows of the tables of a library, below its heading or on its own page."""
    section = PAGE.partition(f"\n## {library}\n")[2].partition("\n## ")[0]
    found = ROW.findall(TORCHMETRICS if library == "torchmetrics" else section)
    assert len(dict(found)) == len(found)  # no name twice
    return dict(found)


def test_every_name_of_scikit_learn_has_a_row():
    names, listed = set(sklearn.metrics.__all__), rows("scikit-learn").keys()
    assert names - listed == set()
    assert listed - names <= NEWER


def test_every_name_of_torchmetrics_has_a_row():
    names = {name for domain in PEERS["torchmetrics 1.9.0"].values() for name in domain}
    listed = rows("torchmetrics").keys()
    prefixed = re.compile("^(Binary|Multiclass|Multilabel)(?=[A-Z])")
    assert {n for n in names if not {n, prefixed.sub("", n)} & listed} == set()
    assert listed - names == set()


def test_every_name_of_metrax_has_a_row():
    assert rows("metrax").keys() == set(PEERS["metrax 0.2.4"])


def test_every_row_links_what_there_is_or_gives_the_reason():
    every = ROW.findall(PAGE + TORCHMETRICS)
    assert len(every) > 270
    for theirs, ours in every:
        links = OURS.findall(ours)
        assert ours.count("][") == len(links), theirs
        assert links or ours.startswith("none: "), theirs
        for name, path in links:
            home = metrics if path == f"datarax.metrics.{name}" else datarax
            assert hasattr(home, name), theirs
            assert path in (f"datarax.metrics.{name}", f"datarax.{name}"), theirs


def left_to_write(cls: type[datarax.Metric]) -> list[str]:
    """What a metric of the catalogue lacks: for each file, what to write there."""
    name, family = cls.__name__, cls.__module__.split(".")[2]
    pages = [
        path for path in (ROOT / "docs/metrics").glob("*.md") if not path.stem.startswith("names")
    ]
    page = "".join(path.read_text() for path in pages)
    written = {
        f"datarax/metrics/__init__.py: from {cls.__module__} import {name} as {name}": (
            getattr(metrics, name, None) is cls
        ),
        f"tests/registry/ (a module of the family {family}): a Case({name.lower()!r}, {name}, ...) "
        f"with its oracle": any(case.cls is cls for case in CASES),
        f"docs/metrics/ (the page of {family}): a row | [`{name}`][datarax.metrics.{name}] | "
        f"formula | range | better | reference | no data |": f"| [`{name}`][datarax.metrics."
        in page,
        f"docs/metrics/ (the same page), at its end: ::: datarax.metrics.{name}": (
            f"\n::: datarax.metrics.{name}\n" in page
        ),
    }
    return [file for file, done in written.items() if not done]


def exported_metrics() -> list[type[datarax.Metric]]:
    """The public classes, each by its own name: `WeightedMean` is another name of `Mean`."""
    return [
        each
        for name, each in vars(metrics).items()
        if isinstance(each, type) and issubclass(each, datarax.Metric) and each.__name__ == name
    ]


def test_every_metric_is_written_everywhere():
    known = dict.fromkeys([*exported_metrics(), *(case.cls for case in CASES)])
    left = {cls.__name__: left_to_write(cls) for cls in known}
    told = [f"{name}: write\n  " + "\n  ".join(each) for name, each in left.items() if each]
    assert not told, "\n".join(told)


def test_a_new_metric_is_told_what_to_write():
    class Brand(datarax.Metric):
        __module__ = "datarax.metrics.language.brand"

    left = "\n".join(left_to_write(Brand))
    for said in (
        "from datarax.metrics.language.brand import Brand as Brand",
        "Case('brand', Brand, ...)",
        "| [`Brand`][datarax.metrics.Brand] | formula",
        "::: datarax.metrics.Brand",
    ):
        assert said in left
    assert len(left.splitlines()) == 4


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_states_no_more_metrics_than_there_are(page):
    stated = re.search(r"It has more than\s+(\d+)\s+\[?metrics", (ROOT / page).read_text())
    assert stated
    assert int(stated[1]) < len(exported_metrics())
