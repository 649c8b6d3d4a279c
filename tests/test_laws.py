"""Every metric, against its oracle and against the laws; see `tests/registry`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datarax
from datarax import metrics
from datarax.testing import _subject, assert_within_ulps, check_metric
from tests.helpers import make_mesh
from tests.registry import BATCH, BUNDLES, CASES, GROUPS, Case

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
each_spoilable = pytest.mark.parametrize(
    "case", [case for case in CASES if case.inputs.spoil], ids=lambda case: case.id
)
each_group = pytest.mark.parametrize("name", GROUPS)

Arrays = Mapping[str, np.ndarray]


def group_of(case: Case) -> str:
    return next(name for name, group in GROUPS.items() if case in group)


def fold(metric: datarax.Metric, batches: Any) -> datarax.Metric:
    return _subject.fold(metric, [((), dict(batch)) for batch in batches])


def value_of(case: Case, folded: datarax.Metric) -> Any:
    """The value of a case from the collection of its group; one program reads them all."""
    values = _subject.read(folded)[0]
    if case.id in values:
        return values[case.id]
    start = f"{case.id}/"
    return {name.removeprefix(start): x for name, x in values.items() if name.startswith(start)}


def weights_of(case: Case, batch: Arrays) -> np.ndarray:
    """The weight of each example by the definition: zero where it cannot be used."""
    inputs = {name: x for name, x in batch.items() if name != "weights"}
    valid = case.inputs.valid(**inputs)
    w = np.asarray(batch.get("weights", np.ones(len(valid))), np.float64)
    return np.where(valid, w.reshape(w.shape + (1,) * (valid.ndim - w.ndim)), 0.0)


def assert_agrees(case: Case, got: Any, batches: list[Arrays]) -> None:
    """A value is what the oracle says of the stream, and scikit-learn."""
    w = np.concatenate([weights_of(case, batch) for batch in batches])
    names = [name for name in batches[0] if name != "weights"]
    stream = {
        name: np.concatenate([np.asarray(b[name]).astype(np.float64) for b in batches])
        for name in names
    }
    for leaf in jax.tree.leaves(got):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.float32
        assert not leaf.aval.weak_type
    want = case.oracle(w, **stream)
    atol = case.atol(w, **stream)
    assert_within_ulps(got, want, case.ulps, atol=atol, name=case.id)
    reference = case.reference(w, **stream) if case.reference else None
    if reference is not None:
        assert_within_ulps(got, reference, case.ulps, atol=atol, name=f"{case.id}, reference")


def test_every_metric_is_in_the_registry():
    exported = {x for x in vars(metrics).values() if isinstance(x, type)}
    assert {x for x in exported if issubclass(x, datarax.Metric)} == {case.cls for case in CASES}
    assert len({case.id for case in CASES}) == len(CASES)


@each_group
def test_laws(name, rng):
    group = GROUPS[name]
    batches = [group[0].inputs.draw(rng, BATCH) for _ in range(3)]
    stream = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
    w = weights_of(group[0], stream)
    check_metric(
        BUNDLES[name],
        batches,
        ulps=max(case.ulps for case in group),
        atol=max(case.atol(w, **stream) for case in group),
        empty={case.id: case.empty for case in group},
    )


WEIGHTS = np.float32([0, 0.5, 3])  # whose sums are exact, and which are no mask


@st.composite
def streams(draw: st.DrawFn, case: Case) -> list[Arrays]:
    """Batches of one shape, with as many examples in use as drawn, and their weights.

    What is not in use holds what cannot be used.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1), label="seed"))
    kind = draw(st.sampled_from(case.inputs.kinds), label="kind")
    sizes = draw(st.lists(st.integers(0, BATCH), min_size=1, max_size=4), label="sizes")
    masked = draw(st.booleans(), label="masked")
    batches = []
    for size in sizes:
        batch = case.inputs.draw_kind(kind, rng, BATCH)
        used = np.arange(BATCH) < size
        weights = used if masked else rng.choice(WEIGHTS, BATCH) * used
        batch = case.inputs.spoilt(rng, batch, np.flatnonzero(weights == 0))
        batches.append(batch | {"weights": weights})
    return batches


@each_case
@settings(max_examples=15)
@given(data=st.data())
def test_any_split_and_weights_agree_with_the_oracle(case, data):
    batches = data.draw(streams(case))
    folded = fold(BUNDLES[group_of(case)], batches)
    assert_agrees(case, value_of(case, folded), batches)
    assert int(_subject.read(folded)[1]) == 0


@each_case
def test_hard_inputs(case, rng):
    for kind in case.inputs.kinds:
        batch = case.inputs.draw_kind(kind, rng, BATCH)
        value = value_of(case, fold(BUNDLES[group_of(case)], [batch]))
        try:
            assert_agrees(case, value, [batch])
        except AssertionError as error:
            error.add_note(f"inputs: {kind}")
            raise


@each_case
def test_no_example_and_one(case, rng):
    none, one, batch = (case.inputs.draw(rng, size) for size in (0, 1, BATCH))
    nothing = case.make().update(**none).compute()
    for leaf in jax.tree.leaves(nothing):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, case.empty))
    assert_agrees(case, case.make().update(**one).compute(), [one])
    assert_agrees(case, case.make().update(**batch).update(**none).compute(), [batch])


@each_case
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_accumulated_in_float32(case, dtype, rng):
    batch = {
        name: np.asarray(jnp.asarray(x, dtype)) if x.dtype == np.float32 else x
        for name, x in case.inputs.draw(rng, BATCH).items()
    }
    assert_agrees(case, case.make().update(**batch).compute(), [batch])


def spoilt(case: Case, rng: np.random.Generator) -> tuple[Arrays, int]:
    """A batch, and how many examples of it cannot be used though they have a weight."""
    rows = rng.choice(BATCH, 5, replace=False)
    batch = case.inputs.spoilt(rng, case.inputs.draw(rng, BATCH), rows)
    weights = np.ones(BATCH, np.float32)
    weights[rows[:2]] = 0
    count = int((weights_of(case, batch) == 0)[weights > 0].sum())
    assert count >= 3
    return batch | {"weights": weights}, count


@each_spoilable
def test_what_cannot_be_used_is_excluded_and_counted(case, rng):
    batch, count = spoilt(case, rng)
    folded = fold(BUNDLES[group_of(case)], [batch])
    assert_agrees(case, value_of(case, folded), [batch])
    assert int(_subject.read(folded)[1]) == count


@each_spoilable
def test_what_cannot_be_used_propagates(case, rng):
    batch, _ = spoilt(case, rng)
    value = case.make(on_invalid="propagate").update(**batch).compute()
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(value))


@each_spoilable
def test_what_cannot_be_used_raises(case, rng):
    batch, count = spoilt(case, rng)
    metric = case.make(on_invalid="raise").update(**batch)
    with pytest.raises(datarax.InvalidValuesError, match=f": {count} "):
        metric.compute()


def exact_cases() -> list[Case]:
    """One for each statistic and kind of inputs whose state holds whole numbers."""
    found: dict[Any, Case] = {}
    for case in CASES:
        if case.exact:
            metric: Any = case.make()
            found.setdefault((type(metric.statistic), case.inputs.id), case)
    return list(found.values())


@pytest.mark.parametrize("case", exact_cases(), ids=lambda case: case.id)
def test_whole_numbers_are_the_same_on_any_number_of_devices(case, rng):
    batches = []
    for size in (BATCH, 3, 0):  # so that some devices, and all of them, have no example
        used = np.arange(BATCH) < size
        batch = case.inputs.spoilt(rng, case.inputs.draw(rng, BATCH), np.flatnonzero(~used))
        batches.append(batch | {"weights": used})
    expected = jax.device_get(fold(case.make(), batches))
    for devices in (2, 4, 8):
        metric = datarax.per_device(case.make(), make_mesh("auto", {"data": devices}), "data")
        for batch in batches:
            metric = metric.update(**batch)
        synced = jax.device_get(jax.block_until_ready(metric.sync()))
        assert jax.tree.structure(synced) == jax.tree.structure(expected)
        for x, y in zip(jax.tree.leaves(synced), jax.tree.leaves(expected), strict=True):
            assert (x.dtype, x.tobytes()) == (y.dtype, y.tobytes())
