"""The table that compares the catalogue with scikit-learn leaves nothing out, and names what is."""

import re

import sklearn.metrics

from datarax import metrics
from tests.test_layers import ROOT

PAGE = (ROOT / "docs/metrics/index.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
NOT_HERE = set(re.findall(r"`(\w+)`", PAGE.partition("Not here yet:")[2]))
# What scores nothing, and what came after the oldest scikit-learn that the tests run on.
OTHERS = re.compile(
    r"Display$|^(DistanceMetric|auc|cluster)$|scor(er|er_names|ing)$|pairwise|distances|at_thresholds"
)
NEWER = {"d2_brier_score", "d2_log_loss_score", "root_mean_squared_log_error"}


def test_every_name_of_scikit_learn_has_a_row_or_is_said_to_be_missing():
    scores = {name for name in sklearn.metrics.__all__ if not OTHERS.search(name)}
    assert scores - ROWS.keys() - NOT_HERE == set()
    assert (ROWS.keys() | NOT_HERE) - scores <= NEWER
    assert not ROWS.keys() & NOT_HERE


def test_every_row_names_metrics_that_there_are():
    assert len(ROWS) > 40
    for row in ROWS.values():
        names = re.findall(r"`([A-Z]\w+)", row)
        assert names
        assert all(hasattr(metrics, name) or name == "Collection" for name in names), row


def test_every_metric_is_on_the_page_of_its_family():
    pages = "".join(path.read_text() for path in (ROOT / "docs/metrics").glob("*.md"))
    for name, value in vars(metrics).items():
        if isinstance(value, type) and not name.startswith("_") and value.__name__ == name:
            assert f"::: datarax.metrics.{name}\n" in pages, name
