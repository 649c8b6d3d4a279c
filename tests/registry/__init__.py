"""Every metric of the catalogue once: what it takes, what it should give, and how nearly.

A new metric is one `Case`, or one for each of its averages and tasks, in the module of its family;
a new family is listed here. All laws, extremes and comparisons with the oracle follow, see
`tests/test_laws.py`. Cases that read one statistic of one kind of inputs are checked together, so
that a metric over a known statistic costs the compilation of its formula alone.

An oracle takes the weight of each example and the inputs by name, all of the stream, in float64;
what cannot be used has weight zero by then. It works from the definition, in plain NumPy; a
`reference`, where there is one, is scikit-learn's word on the same.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datarax
from tests.registry import (
    aggregation,
    agreement,
    audio,
    classification,
    clustering,
    compactness,
    confusion,
    curves,
    detection,
    distributions,
    errors,
    estimation,
    fairness,
    forecasts,
    health,
    health_loads,
    images,
    language,
    nominal,
    paired,
    policy,
    power_means,
    precision_recall,
    probabilistic,
    rank_correlation,
    ranking,
    ratings,
    recent,
    regression,
    report,
    segmentation,
    steps,
    survival,
    texts,
    vision,
)
from tests.registry.case import BATCH as BATCH
from tests.registry.case import Case as Case

CASES: list[Case] = [
    *aggregation.CASES,
    *agreement.CASES,
    *audio.CASES,
    *classification.CASES,
    *clustering.CASES,
    *compactness.CASES,
    *confusion.CASES,
    *curves.CASES,
    *detection.CASES,
    *distributions.CASES,
    *forecasts.CASES,
    *errors.CASES,
    *estimation.CASES,
    *ratings.CASES,
    *fairness.CASES,
    *health.CASES,
    *health_loads.CASES,
    *images.CASES,
    *language.CASES,
    *nominal.CASES,
    *paired.CASES,
    *policy.CASES,
    *power_means.CASES,
    *precision_recall.CASES,
    *probabilistic.CASES,
    *rank_correlation.CASES,
    *ranking.CASES,
    *recent.CASES,
    *regression.CASES,
    *report.CASES,
    *segmentation.CASES,
    *steps.CASES,
    *survival.CASES,
    *texts.CASES,
    *vision.CASES,
]


def grouped() -> dict[str, list[Case]]:
    """The cases by statistic, each group named after its first."""
    groups: dict[Any, list[Case]] = {}
    for case in (case for case in CASES if case.laws):
        groups.setdefault(case.group(), []).append(case)
    return {group[0].id: group for group in groups.values()}


CHOSEN = Path(__file__).with_name("representatives.json")
REPRESENTATIVES: set[str] = set(json.loads(CHOSEN.read_text()))
"""Cases that together hold every state and every operation of the traced programs of all cases.

What the engine does depends on a metric only through these, so what tests the engine runs on these
cases. `test_operations.py` holds that none is missing on any supported version of jax, and
`python -m tests.operations --write` adds those that are.
"""
EVERYWHERE = bool(os.environ.get("DATARAX_TEST_EVERYWHERE"))
if EVERYWHERE:
    REPRESENTATIVES = {case.id for case in CASES}


def of_each_statistic(groups: dict[str, list[Case]]) -> dict[str, list[Case]]:
    """The groups without the cases that are no representatives."""
    chosen = {
        name: [case for case in group if case.id in REPRESENTATIVES]
        for name, group in groups.items()
    }
    return {name: group for name, group in chosen.items() if group}


GROUPS = grouped()
if os.environ.get("DATARAX_TEST_QUICK"):
    GROUPS = of_each_statistic(GROUPS)


def bundle(group: list[Case]) -> datarax.Collection:
    """The metrics of a group in one collection, where most groups share one statistic.

    They leave out what cannot be used, so that one program reads them in all tests.
    """
    config = {"on_invalid": "exclude"} if group[0].inputs.spoil else {}
    return datarax.Collection({case.id: case.traceable(**config) for case in group})


def arrays_of(group: list[Case], batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of inputs as the collection of a group takes it: of strings, what is counted."""
    return {name: x for case in group for name, x in case.arrays(batch).items()}


BUNDLES = {name: bundle(group) for name, group in GROUPS.items()}
ENGINE_GROUPS = of_each_statistic(GROUPS)
ENGINE_BUNDLES = {name: bundle(group) for name, group in ENGINE_GROUPS.items()}
"""Those of the representatives."""
