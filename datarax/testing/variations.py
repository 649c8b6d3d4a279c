"""The other ways to run a procedure on the same rows, as a list."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from datarax.testing.rows import Rows, pad, split

ORDERS = 4
"""The number of orders of all rows in one batch."""
FEW = 64
"""The most rows, or groups, that are passed one at a time."""
RAGGED, ALL_DOUBLED, WITHOUT = "ragged batches", "weight 2 for all rows", "weight 0 for some rows"
"""The names of variations that causes ask for."""


@dataclass(frozen=True, eq=False)
class Variation:
    """One call of the procedure, and the call whose numbers it must give.

    Attributes:
        name: what is varied, for the report.
        kind: "batches", "order", "padding", "weights", "micro" or "devices".
        batches: what the procedure gets.
        against: the batches of the call that must give the same numbers.
        like: the name of the variation from which this one differs in its kind alone; empty if
            that is the call with all rows in one batch.
        parts: the number of micro-batches of each batch, or of devices; 1 for the other kinds.
        chosen: the places of the rows whose weight differs.
    """

    name: str
    kind: str
    batches: Sequence[Rows]
    against: Sequence[Rows]
    like: str = ""
    parts: int = 1
    chosen: np.ndarray | None = None


def variations(
    rows: Rows, micro: Sequence[int], devices: Sequence[int], rng: np.random.Generator
) -> Iterator[Variation]:
    """All variations of a call with these rows in one batch.

    The rows in other orders come first: their spread is the rounding of the procedure.
    """
    whole = [rows]
    every = np.arange(len(rows))
    orders = [every[::-1], *(rng.permutation(every) for _ in range(ORDERS - 1))]
    for number, order in enumerate(orders):
        name = f"rows shuffled, {number}" if number else "rows reversed"
        yield Variation(name, "order", [rows.take(order)], whole)

    ids = rows.group_ids()
    units = int(ids.max()) + 1
    ragged = split(rows, ragged_sizes(units), ids)
    for name, sizes in _splits(units):
        yield Variation(name, "batches", split(rows, sizes, ids), whole)
    yield Variation(RAGGED, "batches", ragged, whole)
    yield Variation(f"{RAGGED} reversed", "order", ragged[::-1], whole, RAGGED)

    layout = rows.layout
    if layout.mask is not None:
        extra = max(2, len(rows) // 4)
        for fill in ("zeros", "garbage", "NaN"):
            padded = pad(rows, extra, fill, rows, rng)
            yield Variation(f"padded with {fill}", "padding", [padded], whole)
        size = max(map(len, ragged))
        padded = [pad(each, size - len(each), "zeros", each, rng) for each in ragged]
        yield Variation(f"{RAGGED} padded", "padding", padded, whole, RAGGED)
        only = pad(rows.take(slice(0)), extra, "zeros", rows, rng)
        yield Variation("a batch of padding only", "padding", [rows, only], whole)

    if layout.weights is not None:
        yield from _weighted(rows, ids, rng)

    for kind, counts in {"micro": micro, "devices": devices}.items():
        for count in counts:
            name, pieces = f"{kind}={count}", _multiples(rows, count)
            yield Variation(name, kind, whole, whole, parts=count)
            if len(pieces) > 1:
                yield Variation(f"{name}, ragged batches", kind, pieces, whole, parts=count)


def _splits(units: int) -> Iterator[tuple[str, list[int]]]:
    """The cuts of so many units into batches of one size, by name."""
    parts = next((parts for parts in (4, 3, 5, 2, 7) if units % parts == 0 and parts < units), 0)
    if parts:
        yield "equal batches", [units // parts] * parts
    size = max(1, units * 2 // 5)
    if units % size:
        yield "a short last batch", [size] * (units // size) + [units % size]
    if units <= FEW:
        yield "one at a time", [1] * units


def ragged_sizes(units: int) -> list[int]:
    """Sizes of two to four batches, of which at least two differ and none is empty."""
    shares = np.array([4, 1, 3, 2][: min(4, max(2, units // 2))])
    sizes = 1 + (units - len(shares)) * shares // shares.sum()
    sizes[0] += units - sizes.sum()
    return sizes.tolist()


def _multiples(rows: Rows, count: int) -> list[Rows]:
    """Ragged batches of which each can be cut into `count` equal parts; one if they are too few."""
    blocks = np.arange(len(rows)) // count
    units = len(rows) // count
    return split(rows, ragged_sizes(units), blocks) if units > 2 else [rows]


def _weighted(rows: Rows, ids: np.ndarray, rng: np.random.Generator) -> Iterator[Variation]:
    some = np.sort(rng.permutation(len(rows))[: len(rows) // 3])
    every = np.arange(len(rows))
    if rows.columns[str(rows.layout.weights)].dtype != np.bool_:
        for name, chosen in ("weight 2 for some rows", some), (ALL_DOUBLED, every):
            doubled = rows.weight(np.where(np.isin(every, chosen), 2, 1))
            twice = repeat(rows, chosen, 2)
            yield Variation(name, "weights", [doubled], [twice], chosen=chosen)
    left_out = {WITHOUT: some}
    if rows.layout.groups is not None:
        left_out["weight 0 for a group"] = np.flatnonzero(ids == rng.integers(ids.max() + 1))
    for name, chosen in left_out.items():
        absent = np.isin(every, chosen)
        zeroed, without = rows.weight(np.where(absent, 0, 1)), rows.take(~absent)
        yield Variation(name, "weights", [zeroed], [without], chosen=chosen)


def repeat(rows: Rows, chosen: np.ndarray, times: int) -> Rows:
    """These rows, the chosen ones as often as `times` says."""
    every = np.arange(len(rows))
    return rows.take(np.repeat(every, np.where(np.isin(every, chosen), times, 1)))
