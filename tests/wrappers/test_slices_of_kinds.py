"""Slices by tags, by ids and by groups of names are the metric of their rows, for every metric.

Each slice has rows of another kind of hard inputs, over several batches: some have one row in each
batch, and some have none. So what rounding or scaling does in one slice can spoil no other.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pytest

import datarax
from datarax import Sliced
from datarax._update_context import in_update
from datarax.algebra.pytrees import leaf_states
from datarax.metric.rows import adds_by_row
from datarax.testing import assert_within_ulps
from tests.registry import BATCH, BUNDLES, EVERYWHERE, GROUPS, Case, arrays_of
from tests.registry.case import Arrays, widened
from tests.test_laws import value_of, weights_of

# Hard inputs of probabilities hold logits.
pytestmark = pytest.mark.filterwarnings("ignore::datarax.ScoresWarning")

BATCHES = 3
WEIGHTS = np.float32([0.1, 1 / 3, 1, 3])
SLICED = [name for name, group in GROUPS.items() if group[0].inputs.rows]


@dataclass
class Stream:
    """Batches whose rows are of several kinds, and the tags and the id of each row.

    There is a slice for each kind, in groups "even" and "odd"; and with tags one of a row in each
    batch, one of the rows of two kinds, and one without rows.
    """

    name: str
    rng: np.random.Generator
    batches: list[Arrays] = field(default_factory=list)
    tags: list[np.ndarray] = field(default_factory=list)
    ids: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = self.rng
        weighted = any(route.argument == "weights" for route in BUNDLES[self.name].routes())
        for _ in range(BATCHES):
            drawn = list(self.drawn().values())
            kind = rng.permutation(BATCH) % len(drawn)
            batch = {
                key: np.stack([drawn[k][key][row] for row, k in enumerate(kind)]).astype(x.dtype)
                for key, x in drawn[0].items()
            }
            weights = {"weights": rng.choice(WEIGHTS, BATCH)} if weighted else {}
            self.batches.append(batch | weights)
            of_kind = kind[:, None] == np.arange(len(drawn))
            one = np.arange(BATCH) == rng.integers(BATCH)
            two = of_kind[:, 0] | of_kind[:, -1]
            self.tags.append(np.c_[of_kind, one, two, np.zeros(BATCH, bool)])
            self.ids.append(np.where(one, -1, kind).astype(np.int32))

    @property
    def group(self) -> list[Case]:
        return GROUPS[self.name]

    def drawn(self) -> dict[str, Arrays]:
        """A batch of each kind of which rows can be put together."""
        inputs = self.group[0].inputs
        found = {kind: inputs.draw_kind(kind, self.rng, BATCH) for kind in inputs.kinds}
        shapes = {kind: [x.shape for x in batch.values()] for kind, batch in found.items()}
        return {kind: x for kind, x in found.items() if shapes[kind] == shapes["plain"]}

    @cached_property
    def names(self) -> list[str]:
        each = [f"{'odd' if k % 2 else 'even'}/{kind}" for k, kind in enumerate(self.drawn())]
        return [*each, "odd/one", "two", "none"]

    @property
    def metric(self) -> Sliced:
        return Sliced(BUNDLES[self.name], len(self.names), names=self.names, rollup="/", by="slice")

    @property
    def given(self) -> list[dict[str, Any]]:
        """The arguments of each update, as the collection of the group takes them."""
        return [arrays_of(self.group, batch) for batch in self.batches]

    def check(self, sliced: Sliced, by: list[np.ndarray], note: str) -> None:
        """Each slice and each group is what deletion of the other rows gives."""
        values = sliced.slices.map(lambda one: one.compute())
        if by is self.ids:
            by = [ids[:, None] == np.arange(len(self.names)) for ids in self.ids]
        groups = list(dict.fromkeys(x.partition("/")[0] for x in self.names if "/" in x))
        masks = [
            [x, *(x[:, [n.startswith(f"{g}/") for n in self.names]].any(1) for g in groups)]
            for x in by
        ]
        for i, name in enumerate([*self.names, *groups]):
            got = jax.tree.map(lambda x, i=i: x[i], values)
            self.compare(got, [np.c_[*x][:, i] for x in masks], f"{note}, {name}")
        self.compare(sliced.metric.compute(), [np.ones(BATCH, bool)] * BATCHES, f"{note}, overall")

    def compare(self, got: Any, masks: list[np.ndarray], note: str) -> None:
        """A value is that of the rows that are chosen in each batch."""
        metric, rows = BUNDLES[self.name], []
        with in_update(checks="none"):
            for given, batch, mask in zip(self.given, self.batches, masks, strict=True):
                if mask.any():
                    metric = metric.update(**{key: x[mask] for key, x in given.items()})
                    rows.append({key: x[mask] for key, x in batch.items()})
        want, ulps, atol = metric.compute(), 0.0, 0.0
        for case in self.group:
            if rows:
                wide = [widened(batch) for batch in rows]
                stream = {key: np.concatenate([x[key] for x in wide]) for key in wide[0]}
                w = np.concatenate([weights_of(self.group[0], batch) for batch in rows])
                ulps, atol = 2 * case.ulps, 2 * case.atol(w, **stream)
            both = (jax.tree.map(np.asarray, value_of(case, x)) for x in (got, want))
            assert_within_ulps(*both, ulps, atol=atol, name=f"{case.id} {note}")


def fold(sliced: datarax.Metric, batch: dict[str, Any], by: np.ndarray) -> datarax.Metric:
    with in_update(checks="none"):
        return sliced.update(**batch, slice=by)


def way(name: str) -> Any:
    """What of a metric decides how its rows are added to slices in a program."""
    group = GROUPS[name]
    case, batch = group[0], group[0].inputs.draw(np.random.default_rng(0), BATCH)
    metric = case.traceable()
    calls = metric.calls((), metric.arguments_from(case.arrays(batch)))
    states = frozenset(type(x) for x in leaf_states(metric))
    return states, adds_by_row(metric, calls), type(metric).apply_at


def of_each_way() -> list[str]:
    """One group of each way in which rows are added to slices; all if everything is tested."""
    return SLICED if EVERYWHERE else list({way(name): name for name in reversed(SLICED)}.values())


OF_EACH_WAY = of_each_way()


@pytest.mark.parametrize("name", SLICED)
def test_on_the_host(name, rng):
    stream = Stream(name, rng)
    for by in (stream.tags, stream.ids) if name in OF_EACH_WAY else (stream.tags,):
        sliced = stream.metric
        for batch, each in zip(stream.given, by, strict=True):
            sliced = fold(sliced, batch, each)
        stream.check(sliced, by, "by tags" if by is stream.tags else "by ids")


@pytest.mark.parametrize("name", OF_EACH_WAY)
def test_in_programs(name, rng):
    stream, step = Stream(name, rng), jax.jit(fold)
    # Ids become tags outside programs too. With everything, both are compiled.
    for by in (stream.tags, stream.ids) if EVERYWHERE else (stream.tags,):
        sliced = stream.metric
        for batch, each in zip(stream.given, by, strict=True):
            sliced = jax.block_until_ready(step(sliced, batch, each))
        stream.check(sliced, by, "by tags" if by is stream.tags else "by ids")
