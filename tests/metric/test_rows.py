"""Slices and replicas, which one update that keeps the rows apart can give."""

from typing import Any, Self

import jax
import numpy as np
import pytest

import datarax
from datarax import Bootstrap, Interval, Sliced
from datarax._update_context import in_update
from datarax._xp import xp
from datarax.algebra.rows import Target
from datarax.metric import rows as row_updates
from datarax.metric.rows import updated_at
from datarax.metrics import (
    F1,
    D2Tweedie,
    Mean,
    PearsonCorrCoef,
    Std,
)
from datarax.statistics import ConfusionCounts, Moments, WeightedTotal
from tests.helpers import long
from tests.registry import BATCH, CASES

PLACES, REPLICAS = 3, 4


def adds_by_row(case):
    metric = case.traceable()
    batch = case.inputs.draw(np.random.default_rng(0), 2)
    calls = metric.calls((), metric.arguments_from(case.arrays(batch)))
    return row_updates.adds_by_row(metric, calls)


APART = [case for case in CASES if case.inputs.rows and adds_by_row(case)]


def repeated(batch, target, state):
    """The rows of one of the states, as often as each counts."""
    replica, place = divmod(state, PLACES)
    times = target.place == place
    if target.times is not None:
        times = times * target.times[:, replica]
    return {name: np.repeat(x, times, 0) for name, x in batch.items()}


@pytest.mark.parametrize("case", APART, ids=lambda case: case.id)
@pytest.mark.parametrize("kind", ["slices", "tags of replicas of slices"])
def test_every_state_is_that_of_its_rows(case, kind, rng):
    batch = case.inputs.draw(rng, 2 * BATCH)
    if case.inputs.spoil and kind == "slices":  # replicas do not count what cannot be used
        batch = case.inputs.spoilt(rng, batch, rng.choice(2 * BATCH, 3, replace=False))
    if rng.random() < 0.5:
        batch = {k: x.astype(np.float64) if x.dtype == np.float32 else x for k, x in batch.items()}
    weights = rng.choice(np.float32([0, 0.5, 1, 3]), 2 * BATCH)
    batch |= {"weights": weights} if rng.random() < 0.5 else {}
    metric = case.traceable()
    batch = metric.arguments_from(case.arrays(batch))
    place = rng.integers(0, PLACES + 1, 2 * BATCH).astype(np.uint32)  # the last one is none of them
    target = Target(place, PLACES)
    if kind != "slices":
        counts = rng.poisson(1, (2 * BATCH, REPLICAS)).astype(np.int32)
        target = Target(place, PLACES, counts)
    if kind.startswith("tags"):
        target = target.tagged(rng.random((2 * BATCH, 2)) < 0.5)
    stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], target.size, 0), metric)
    with in_update(checks="none"), np.errstate(all="ignore"):
        for _ in range(2):
            stacked = updated_at(stacked, metric.calls((), batch), target)
        check_states(metric, stacked, batch, target, rng.permutation(target.size)[:PLACES])


def check_states(metric, stacked, batch, target, states):
    for state in states.tolist():
        rows = repeated(batch, target, state)
        want, one = metric, jax.tree.map(lambda x, state=state: x[state, ...], stacked)
        # A replica without rows has had no update, and so no dtype of values either.
        for _ in range(2 if all(map(len, rows.values())) else 0):
            want = want.update(**rows)
        for x, y in zip(
            *(jax.tree.leaves(each.reading().value) for each in (one, want)), strict=True
        ):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"state {state}")
        if target.counts is None:
            assert one.invalid_count() == want.invalid_count(), state


def test_most_metrics_need_one_update():
    assert len(APART) > 0.5 * len([case for case in CASES if case.inputs.rows])


@pytest.mark.parametrize("compiled", [False, True])
def test_parts_of_a_batch_give_the_same(compiled, rng, monkeypatch):
    values = rng.integers(-100, 100, 500).astype(np.float32)
    labels, target = rng.integers(0, 3, (2, 500)).astype(np.int32)
    place = rng.integers(0, PLACES + 1, 500).astype(np.uint32)
    counts = rng.poisson(1, (500, REPLICAS)).astype(np.int32)
    some = (Mean(), (values,)), (F1(num_classes=3), (labels, target))
    size = PLACES * REPLICAS

    def updated(place, counts):
        found = []
        for metric, given in some:
            stacked = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], size, 0), metric)
            to = Target(place, PLACES, counts)
            found.append(updated_at(stacked, metric.calls(given, {}), to))
        return found

    found = [updated(place, counts)]
    monkeypatch.setattr(row_updates, "AT_ONCE", 64)
    found.append((jax.jit(updated) if compiled else updated)(place, counts))
    whole, parts = (jax.tree.leaves([x.canonical() for x in each]) for each in found)
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


class Wrong(Mean):
    """It says of its terms what is not true."""

    terms_by_row = True
    total = datarax.MetricAccumulator(0.0)

    def update(self, values: Any, *, weights: Any = None) -> Self:
        updated = super().update(values, weights=weights)
        return updated.replace(total=self.total.update(values.sum()))


def test_terms_that_are_not_of_single_rows_are_refused(rng):
    values, slices = rng.normal(size=8).astype(np.float32), np.arange(8, dtype=np.int32) % 2
    with pytest.raises(datarax.MetricInputError, match="terms_by_row is True"):
        Sliced(Wrong(), 2, by="s").update(values, s=slices)


@pytest.mark.parametrize("repeated", [False, pytest.param(True, marks=long)])
def test_devices_without_float64_add_the_same_terms(repeated, rng):
    rows, size = 60, PLACES * REPLICAS if repeated else PLACES
    x, y = rng.normal(3, 2, (2, rows)).astype(np.float32)
    labels, target = rng.integers(0, 3, (2, rows)).astype(np.int32)
    place = rng.integers(0, PLACES + 1, rows).astype(np.uint32)
    counts = rng.poisson(1, (rows, REPLICAS)).astype(np.int32) if repeated else None
    given = {"x": x, "y": y, "labels": labels, "target": target, "place": place, "counts": counts}
    some = (
        (Mean(), ("x",)),
        (PearsonCorrCoef(), ("x", "y")),
        (F1(num_classes=3), ("labels", "target")),
    )

    def updated(given):
        found = []
        for metric, names in some:
            calls = metric.calls(tuple(given[name] for name in names), {})
            stacked = jax.tree.map(lambda x: np.repeat(x[None], size, 0), metric)
            to = Target(given["place"], PLACES, given["counts"])
            found.append(updated_at(stacked, calls, to))
        return found

    with in_update(checks="none"), np.errstate(all="ignore"):
        on_host = updated(given)
        with datarax.lowering_for("tpu"):
            in_program = jax.device_get(jax.jit(updated)(given))
    for got, want in zip(in_program, on_host, strict=True):
        for state in range(size):
            both = [jax.tree.map(lambda x, i=state: x[i, ...], each) for each in (got, want)]
            a, b = (x.reading().value for x in both)
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{want} {state}")


def test_equal_values_have_no_spread_in_any_slice():
    values, slices = np.float32([0.1, 7, 0.1, 7, 0.1, 7]), np.int32([0, 1, 0, 1, 0, 1])
    weights = np.float32([1, 1 / 3, 0.3, 5, 1, 0])
    spread = Sliced(Std(), 2, by="s").update(values, s=slices, weights=weights).results()
    assert spread["0"] == spread["1"] == 0
    replicas = Bootstrap(Std(), 4).update(values[::2], index=np.arange(3))
    with pytest.warns(datarax.PrecisionWarning, match="all replicas have the same value"):
        assert replicas.results()["value"] == 0


@pytest.mark.parametrize("metric", [PearsonCorrCoef(), D2Tweedie(), Interval(Mean())])
def test_stacked_states_are_merged_on_the_host(metric, rng):
    x, slices = rng.random((2, 60)).astype(np.float32) + 1, np.arange(60, dtype=np.int32) % 3
    empty = Sliced(metric, 3, by="s")

    def folded(part):
        rows = x[:1, part] if isinstance(metric, Interval) else x[:, part]
        return empty.update(*rows, s=slices[part])

    merged = folded(slice(0, 30)).merge(folded(slice(30, 60))).results()
    for got, want in zip(
        *(jax.tree.leaves(each) for each in (merged, folded(slice(None)).results())), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9)


class Unweighted(datarax.Metric):
    """A metric of one's own, whose update takes no weights and sorts its rows."""

    total = WeightedTotal()
    moments = Moments()
    table = ConfusionCounts(num_classes=3)
    most = datarax.MetricAccumulator(0, "max")

    def update(self, values: Any, labels: Any) -> Self:
        order = xp.argsort(values)
        values, labels = values[order], labels[order]
        return self.replace(
            total=self.total.update(values),
            moments=self.moments.update(values),
            table=self.table.update(labels, labels),
            most=self.most.update(labels),
        )

    def compute(self) -> Any:
        found = self.total.mean, self.moments.std(), self.table.matrix.value, self.most.value
        return dict(enumerate(found))


def test_a_metric_without_weights_whose_terms_are_not_known(rng):
    values, labels = rng.normal(size=20).astype(np.float32), rng.integers(0, 3, 20).astype(np.int32)
    slices = rng.integers(0, 2, 20).astype(np.int32)
    empty = Sliced(Unweighted(), 2, by="s")
    on_host = empty.update(values, labels, s=slices).results()
    program = jax.jit(lambda m, *x: m.update(*x[:2], s=x[2]))(empty, values, labels, slices)
    for index in range(2):
        want = Unweighted().update(*(x[slices == index] for x in (values, labels))).results()
        for name, value in want.items():
            for got in (on_host, program.results()):
                np.testing.assert_allclose(got[str(index)][name], value, rtol=1e-6)
