"""Each metric and each wrapper as an `Entry`: for tests of all of them in one environment.

    for entry in ENTRIES.values():
        metric = entry.metric()
        for batch in entry.batches(rng, 3):
            metric = metric.update(**batch)

`ENTRIES` has all by name: `CATALOGUE`, one for each case of the registry, and `WRAPPERS`. `COUNTED`
has the metrics of strings once more, with what they count of them. `COLLECTIONS` has all cases with
laws, those of one kind of inputs in one collection, so that one program updates them: a third of
the programs. There, too, strings are counted.
"""

from collections.abc import Iterable

import numpy as np

from tests.registry import BUNDLES, CASES, GROUPS, Case, arrays_of
from tests.registry.entry import Batch, weighted
from tests.registry.entry import Entry as Entry
from tests.registry.wrapped import WRAPPED


def of_case(case: Case) -> Entry:
    """A case of the registry as an entry."""
    metric = case.make()
    takes = {route.argument for route in metric.routes()}

    def draw(rng: np.random.Generator, size: int) -> Batch:
        # The inputs of a group hold what any of its metrics takes.
        drawn = metric.arguments_from(case.inputs.draw(rng, size))
        return {name: x.tolist() for name, x in drawn.items()} if case.host else drawn

    rows = case.inputs.rows
    weigh = weighted if rows and "weights" in takes else None
    return Entry(case.id, case.make, draw, weigh, rows, case.host)


def counted_case(case: Case) -> Entry:
    """A case of a metric of strings as an entry that takes what is counted of them: arrays.

    Its updates can be traced and sharded, as those of other entries.
    """

    def draw(rng: np.random.Generator, size: int) -> Batch:
        return case.arrays(case.inputs.draw(rng, size))

    return Entry(case.id, case.traceable, draw)


def of_group(name: str) -> Entry:
    """A group of cases that share their inputs as an entry: one collection of them."""
    group = GROUPS[name]

    def draw(rng: np.random.Generator, size: int) -> Batch:
        return arrays_of(group, group[0].inputs.draw(rng, size))

    return Entry(name, lambda: BUNDLES[name], draw)


def by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry.name: entry for entry in entries}


CATALOGUE = by_name(map(of_case, CASES))
COUNTED = by_name(counted_case(case) for case in CASES if case.host)
COLLECTIONS = by_name(map(of_group, GROUPS))
WRAPPERS = by_name(WRAPPED)
ENTRIES = CATALOGUE | WRAPPERS
