"""Slices and replicas on the host, which one update that keeps the rows apart can give."""

from typing import Any, Self

import jax
import numpy as np
import pytest

import datarax
from datarax import Bootstrap, Interval, Sliced
from datarax._update_context import in_update
from datarax.algebra.row_merge import Target
from datarax.metrics import Mean, row_updates
from datarax.metrics.row_updates import kept_apart, updated_at
from tests.registry import BATCH, CASES

PLACES, REPLICAS = 3, 4
APART = [case for case in CASES if case.make().terms_by_row and case.inputs.rows]


def repeated(batch, target, state):
    """The rows of one of the states, as often as each counts."""
    replica, place = divmod(state, PLACES)
    times = target.place == place
    if target.counts is not None:
        times = times * target.counts[:, replica]
    return {name: np.repeat(x, times, 0) for name, x in batch.items()}


@pytest.mark.parametrize("case", APART, ids=lambda case: case.id)
@pytest.mark.parametrize("kind", ["slices", "replicas of slices"])
def test_every_state_is_that_of_its_rows(case, kind, rng):
    batch = case.inputs.draw(rng, 2 * BATCH)
    if case.inputs.spoil and kind == "slices":  # replicas do not count what cannot be used
        batch = case.inputs.spoilt(rng, batch, rng.choice(2 * BATCH, 3, replace=False))
    weights = rng.choice(np.float32([0, 0.5, 1, 3]), 2 * BATCH)
    batch |= {"weights": weights} if rng.random() < 0.5 else {}
    metric = case.traceable()
    batch = metric.arguments_from(case.arrays(batch))
    place = rng.integers(0, PLACES + 1, 2 * BATCH).astype(np.uint32)  # the last one is none of them
    target = Target(place, PLACES)
    if kind != "slices":
        counts = rng.poisson(1, (2 * BATCH, REPLICAS)).astype(np.int32)
        target = Target(place, PLACES, counts)
    stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], target.size, 0), metric)
    with in_update(checks="none"), np.errstate(all="ignore"):
        for _ in range(2):
            stacked = updated_at(stacked, metric.calls((), batch), target)
        check_states(metric, stacked, batch, target, rng.permutation(target.size)[:PLACES])


def check_states(metric, stacked, batch, target, states):
    for state in states.tolist():
        rows = repeated(batch, target, state)
        want, one = metric, jax.tree.map(lambda x, state=state: x[state], stacked)
        for _ in range(2):
            want = want.update(**rows)
        for x, y in zip(
            *(jax.tree.leaves(each.reading().value) for each in (one, want)), strict=True
        ):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"state {state}")
        if target.counts is None:
            assert one.invalid_count() == want.invalid_count(), state


def test_most_metrics_of_terms_need_one_update():
    kept = []
    for case in APART:
        metric = case.traceable()
        batch = case.inputs.draw(np.random.default_rng(0), BATCH)
        batch = metric.arguments_from(case.arrays(batch))
        call = metric.calls((), batch)
        kept.append(kept_apart(metric, call, BATCH) is not None)
    assert sum(kept) > 0.8 * len(APART)


def test_parts_of_a_batch_give_the_same(rng, monkeypatch):
    values = rng.integers(-100, 100, 500).astype(np.float32)
    place = rng.integers(0, PLACES, 500).astype(np.uint32)
    counts = rng.poisson(1, (500, REPLICAS)).astype(np.int32)
    target, metric = Target(place, PLACES, counts), Mean()
    stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], target.size, 0), metric)
    found = []
    for most in (2**22, 64):
        monkeypatch.setattr(row_updates, "MOST_CELLS", most)
        found.append(updated_at(stacked, metric.calls((values,), {}), target))
    whole, parts = (jax.tree.leaves(each.canonical()) for each in found)
    for x, y in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(x, y)


class Whole(Mean):
    """Its update also adds the rows up: what `Mean` says of its terms is not true of it."""

    total = datarax.MetricAccumulator(0.0)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        updated = super().update(values, weights=weights)
        return updated.replace(total=self.total.update(values.sum()))


def test_a_subclass_with_its_own_update_says_anew_what_its_terms_are(rng):
    values, slices = rng.normal(size=8).astype(np.float32), np.arange(8, dtype=np.int32) % 2

    def results_of(metric: Mean) -> Any:
        return [
            Sliced(metric, 2, by="s").update(values, s=slices).results(),
            Bootstrap(metric).update(values, index=np.arange(8)).results(),
            Interval(metric).update(values).results(),
        ]

    for got, want in zip(results_of(Whole()), results_of(Mean()), strict=True):
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)
