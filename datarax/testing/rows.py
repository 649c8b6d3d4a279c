"""The rows of a batch of a user's: cut, put in another order, repeated and padded in NumPy."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from datarax._checks import kind
from datarax._errors import MetricInputError, MetricTypeError
from datarax._typing import PyTree, Structure

LEAST_ROWS = 4
"""Fewer rows cannot be cut into batches of different sizes that hold several rows."""
LEAST_GROUPS = 3
"""Fewer groups cannot be cut into batches of different numbers of groups."""


@dataclass(frozen=True)
class Layout:
    """What a batch has besides its rows: its structure, and where JAX arrays are among its leaves.

    `mask`, `weights` and `groups` name columns, or are `None`.
    """

    structure: Structure
    on_device: frozenset[str]
    mask: str | None
    weights: str | None
    groups: str | None


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows: NumPy arrays by name, with one leading axis."""

    columns: dict[str, np.ndarray]
    layout: Layout

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, places: Any) -> "Rows":
        """The rows at these places, in their order."""
        return replace(self, columns={name: x[places] for name, x in self.columns.items()})

    def tree(self) -> PyTree:
        """A batch as the user's was, in memory of its own: a procedure may change or donate it."""
        return self.layout.structure.unflatten(
            jnp.array(x) if name in self.layout.on_device else x.copy()
            for name, x in self.columns.items()
        )

    def weight(self, factors: Any) -> "Rows":
        """These rows with the column of weights multiplied by one factor for each row."""
        name = str(self.layout.weights)
        weights = self.columns[name]
        factors = np.reshape(factors, (-1, *[1] * (weights.ndim - 1)))
        return replace(
            self, columns=self.columns | {name: (weights * factors).astype(weights.dtype)}
        )

    def nudge(self, rng: np.random.Generator) -> "Rows":
        """These rows with each float changed by a random part of `sqrt(n)` roundings of float32.

        That is what the roundings of a sum of `n` rows come to. The mask, the weights and the
        groups stay.
        """
        layout, columns, size = self.layout, dict(self.columns), math.sqrt(len(self))
        for name, x in columns.items():
            is_data = name not in (layout.mask, layout.weights, layout.groups)
            if is_data and jnp.issubdtype(x.dtype, jnp.floating):
                wide = x.astype(np.float64)
                part = max(float(jnp.finfo(x.dtype).eps), float(np.finfo(np.float32).eps))
                columns[name] = (wide * (1 + size * part * rng.uniform(-1, 1, x.shape))).astype(
                    x.dtype
                )
        return replace(self, columns=columns)

    def group_ids(self) -> np.ndarray:
        """A number for each row: 0 for the rows of the first group, 1 for the next; (N,) ints."""
        if self.layout.groups is None:
            return np.arange(len(self))
        _, first, ids = np.unique(
            self.columns[self.layout.groups], return_index=True, return_inverse=True
        )
        return np.argsort(np.argsort(first))[ids]


def join(parts: Sequence[Rows]) -> Rows:
    """All rows of some parts, in one batch."""
    names = parts[0].columns
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    return replace(parts[0], columns=columns)


def split(rows: Rows, sizes: Iterable[int], ids: np.ndarray) -> list[Rows]:
    """Batches of so many groups each, which `ids` numbers; the order of the rows stays."""
    edges = np.cumsum([0, *sizes])
    return [rows.take((ids >= low) & (ids < high)) for low, high in pairwise(edges)]


def pad(rows: Rows, count: int, fill: str, source: Rows, rng: np.random.Generator) -> Rows:
    """These rows with `count` padded ones after them, in which the mask is 0.

    Args:
        rows: what is padded.
        count: the number of padded rows.
        fill: "zeros", "garbage" or "NaN". Garbage is random values: floats that are large and of
            both signs, while all other dtypes, the weights and the groups take the values of real
            rows, as an index out of range would break correct code. "NaN" differs from it in
            floats only.
        source: the real rows that the values come from.
        rng: draws the values.
    """
    layout = rows.layout
    columns = {}
    for name, x in source.columns.items():
        drawn = x[rng.integers(len(x), size=count)]
        is_data = name not in (layout.weights, layout.groups)
        if name == layout.mask or (fill == "zeros" and x.dtype.kind not in "OSUMm"):
            drawn = np.zeros_like(drawn)
        elif is_data and jnp.issubdtype(x.dtype, jnp.floating):
            garbage = 100 + 100 * rng.random(drawn.shape)
            garbage[::2] *= -1
            drawn = (np.full_like(garbage, np.nan) if fill == "NaN" else garbage).astype(x.dtype)
        columns[name] = drawn
    return join([rows, replace(rows, columns=columns)])


def rows_of(batch: PyTree, mask: str | None, weights: str | None, groups: str | None) -> Rows:
    """The rows of a batch.

    Raises:
        MetricTypeError: a leaf is no NumPy or JAX array.
        MetricInputError: the leaves share no leading axis of at least four rows; a name is not
            among those of the leaves.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(batch)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}
    for name, x in named.items():
        if not isinstance(x, np.ndarray | jax.Array):
            raise MetricTypeError(
                f"audit: {name!r} of the batch is a {kind(x)}; expected an array of NumPy or JAX "
                f"with one entry for each row"
            )
    sizes = {name: x.shape[0] if x.ndim else 0 for name, x in named.items()}
    if len(set(sizes.values())) != 1 or min(sizes.values()) < LEAST_ROWS:
        raise MetricInputError(
            f"audit: expected a batch of arrays that share one leading axis of at least "
            f"{LEAST_ROWS} rows; got {sizes}"
        )
    for argument, name in {"mask": mask, "weights": weights, "groups": groups}.items():
        if name is not None and name not in named:
            raise MetricInputError(
                f"audit: {argument}={name!r} names no array of the batch; it has: "
                f"{', '.join(map(repr, named))}"
            )
    on_device = frozenset(name for name, x in named.items() if isinstance(x, jax.Array))
    layout = Layout(structure, on_device, mask, weights, groups)
    rows = Rows({name: np.array(x) for name, x in named.items()}, layout)
    if groups is not None and (
        rows.columns[groups].ndim != 1 or rows.group_ids().max() + 1 < LEAST_GROUPS
    ):
        raise MetricInputError(
            f"audit: groups={groups!r} has the shape {rows.columns[groups].shape}; expected one "
            f"value for each row, and at least {LEAST_GROUPS} groups"
        )
    return rows
