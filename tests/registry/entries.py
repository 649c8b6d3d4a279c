"""Each metric and each wrapper as an `Entry`: for tests of all of them in one environment.

    for entry in ENTRIES.values():
        metric = entry.metric()
        for batch in entry.batches(rng, 3):
            metric = metric.update(**batch)

`ENTRIES` has all by name: `CATALOGUE`, one for each case of the registry, and `WRAPPERS`.
`COLLECTIONS` has all cases of the catalogue too, those of one kind of inputs in one collection, so
that one program updates them: a third of the programs.
"""

from collections.abc import Iterable

import numpy as np

from tests.registry import BUNDLES, CASES, GROUPS, Case
from tests.registry.entry import Batch, weighted
from tests.registry.entry import Entry as Entry
from tests.registry.wrapped import WRAPPED


def of_case(case: Case) -> Entry:
    """A case of the registry as an entry."""
    metric = case.make()
    takes = {route.argument for route in metric.routes()}

    def draw(rng: np.random.Generator, size: int) -> Batch:
        # The inputs of a group hold what any of its metrics takes.
        return metric.arguments_from(case.inputs.draw(rng, size))

    return Entry(case.id, case.make, draw, weighted if "weights" in takes else None)


def of_group(name: str) -> Entry:
    """A group of cases that share their inputs as an entry: one collection of them."""
    return Entry(name, lambda: BUNDLES[name], GROUPS[name][0].inputs.draw)


def by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


CATALOGUE = by_name(map(of_case, CASES))
COLLECTIONS = by_name(map(of_group, GROUPS))
WRAPPERS = by_name(WRAPPED)
ENTRIES = CATALOGUE | WRAPPERS
