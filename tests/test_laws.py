"""Every metric, against its oracle and against the laws; see `tests/registry`.

What is true of a state, whatever folds it, is checked on the host, where nothing compiles. Each
metric is then compared with one compiled program, and the laws of programs are checked of the
representatives.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import datarax
from datarax._update_context import in_update
from datarax.testing import assert_within_ulps, check_metric, subject
from tests.helpers import make_mesh, place
from tests.registry import (
    BATCH,
    BUNDLES,
    CASES,
    ENGINE_BUNDLES,
    ENGINE_GROUPS,
    EVERYWHERE,
    GROUPS,
    Case,
    arrays_of,
)
from tests.registry.case import Arrays, widened
from tests.registry.drawn import DrawnGenerator
from tests.registry.edges import KINDS, flushed, on_edges

# Hard inputs of probabilities hold logits.
pytestmark = pytest.mark.filterwarnings("ignore::datarax.ScoresWarning")

each_group = pytest.mark.parametrize("name", GROUPS)
each_engine_group = pytest.mark.parametrize("name", ENGINE_GROUPS)
# The programs of CPUs of every group, and those of TPUs, on a CPU, of the representatives.
PROGRAMS = {name: (group, BUNDLES[name], "cpu") for name, group in GROUPS.items()} | {
    f"{name}-tpu": ([case.on_tpus() for case in group], ENGINE_BUNDLES[name], "tpu")
    for name, group in ENGINE_GROUPS.items()
}
each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
each_spoilable = pytest.mark.parametrize(
    "name", [name for name, group in GROUPS.items() if group[0].inputs.spoil]
)


def fold(metric: datarax.Metric, batches: Any) -> datarax.Metric:
    """Updates as within `jit`: values are not checked before they are folded in, but counted."""
    with in_update(checks="none"):
        for batch in batches:
            metric = metric.update(**batch)
    return metric


def folded(name: str, batches: Any) -> datarax.Metric:
    """The collection of a group after these batches of its inputs, on the host."""
    group = GROUPS[name]
    return fold(BUNDLES[name], [arrays_of(group, batch) for batch in batches])


def invalid_count(metric: datarax.Metric) -> jax.Array:
    return metric.invalid_count()


@jax.jit
def updated_and_read(metric: datarax.Metric, batch: Any) -> tuple[datarax.Metric, Any]:
    updated = metric.update(**batch)
    return updated, updated.compute()


def value_of(case: Case, values: Mapping[str, Any]) -> Any:
    """The value of a case, out of those of the collection of its group."""
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


def assert_agrees(name: str, seen: datarax.Metric, batches: list[Arrays], note: str = "") -> None:
    """Every value of a group is what its oracle says of the stream, and its reference library."""
    assert_values(GROUPS[name], subject.read(seen)[0], batches, note)


def assert_values(
    group: list[Case], values: Mapping[str, Any], batches: list[Arrays], note: str = ""
) -> None:
    """These values of some cases of a group are what their oracles say of the stream."""
    w = np.concatenate([weights_of(group[0], batch) for batch in batches])
    wide = [widened(batch) for batch in batches]
    stream = {name: np.concatenate([batch[name] for batch in wide]) for name in wide[0]}
    for case in group:
        got = value_of(case, values)
        for leaf in jax.tree.leaves(got):
            assert isinstance(leaf, jax.Array)
            assert leaf.dtype == jnp.float32
            assert not leaf.aval.weak_type
        want = case.oracle(w, **stream)
        atol = case.atol(w, **stream)
        assert_within_ulps(got, want, case.ulps, atol=atol, name=f"{case.id} {note}")
        reference = case.reference(w, **stream) if case.reference else None
        if reference is not None:
            named = f"{case.id}, reference {note}"
            assert_within_ulps(got, reference, case.ulps, atol=atol, name=named)


def empty_of(name: str) -> dict[str, Any]:
    """What the collection of a group gives where there is no data."""
    values = jax.eval_shape(subject.read, BUNDLES[name])[0]
    of_case = {case.id: of_nothing(case, value_of(case, values)) for case in GROUPS[name]}
    return {
        key: of_case[case][output] if output else of_case[case]
        for key in values
        for case, _, output in [key.partition("/")]
    }


def of_nothing(case: Case, value: Any) -> Any:
    """What a case gives where there is no data, in the structure of its value."""
    if isinstance(case.empty, Mapping):
        return {
            name: jax.tree.map(lambda _, name=name: case.empty.get(name, np.nan), x)
            for name, x in value.items()
        }
    return jax.tree.map(lambda _: case.empty, value)


def check_laws(name: str, group: list[Case], bundle: datarax.Metric, rng: Any, **how: Any) -> None:
    batches = [group[0].inputs.draw(rng, BATCH) for _ in range(3)]
    stream = {key: np.concatenate([b[key] for b in batches]) for key in batches[0]}
    w = weights_of(group[0], stream)
    empty, members = empty_of(name), {case.id for case in group}
    check_metric(
        bundle,
        [arrays_of(group, batch) for batch in batches],
        ulps={case.id: case.ulps for case in group},
        atol={case.id: case.atol(w, **stream) for case in group},
        state_atol=max(case.state_atol(w, **stream) for case in group),
        empty={key: x for key, x in empty.items() if key.partition("/")[0] in members},
        **how,
    )


@each_group
def test_laws(name, rng):
    check_laws(name, GROUPS[name], BUNDLES[name], rng, on_host=True)


@each_engine_group
def test_laws_of_programs(name, rng):
    check_laws(name, ENGINE_GROUPS[name], ENGINE_BUNDLES[name], rng)


@each_program
def test_a_compiled_program_gives_what_the_host_gives(program, rng):
    group, bundle, platform = program
    inputs = group[0].inputs
    for kind in inputs.kinds:
        batch = inputs.draw_kind(kind, rng, BATCH)
        if inputs.spoil:
            batch = with_spoilt(group[0], rng, batch, rng.choice(BATCH, 3, replace=False))
        given = batch | {"weights": rng.choice(WEIGHTS, BATCH)}
        batch = arrays_of(group, given)
        on_host = fold(bundle, [batch])
        with datarax.lowering_for(platform):
            seen, value = jax.block_until_ready(updated_and_read(bundle, batch))
        assert_values(group, value, [given], f"of inputs: {kind}")
        invalid = [int(subject.of_state(invalid_count, each)) for each in (seen, on_host)]
        assert invalid[0] == invalid[1], kind


# The value of a constant signal is that of its rounding: its matrix and its spectrum are singular.
UNDEFINED = {("signals", "equal rows")}
# In float32, other scores of a softmax are tied.
UNDEFINED_ON_TPUS = {("mixtures", "equal rows"), ("class_logits", "subnormals")}


@each_program
@pytest.mark.filterwarnings("ignore::datarax.InvalidValuesWarning")
def test_the_host_equals_jit_on_edges(program, rng):
    group, bundle, platform = program
    inputs, weights = group[0].inputs, np.ones(BATCH, np.float32)
    for kind in KINDS:
        batch = on_edges(inputs, kind, rng, BATCH)
        if (inputs.id, kind) in (UNDEFINED_ON_TPUS if platform == "tpu" else ()):
            continue
        if (inputs.id, kind) in UNDEFINED or all(x.dtype != np.float32 for x in batch.values()):
            continue
        host = bundle.update(**arrays_of(group, batch))
        arrays = arrays_of(group, batch | {"weights": weights})
        # The program of the law above, so that nothing more is compiled.
        with datarax.lowering_for(platform):
            seen, got = jax.block_until_ready(updated_and_read(bundle, arrays))
        assert int(seen.invalid_count()) == int(host.invalid_count()), kind
        want = host.compute()
        # Subnormal numbers count as 0, also in the bound of the error.
        counted = {name: flushed(x) for name, x in batch.items()}
        # The state of the program as the host reads it, and the formula in a program.
        for values in (seen.compute(), got):
            for case in group:
                assert_within_ulps(
                    jax.tree.map(np.asarray, value_of(case, values)),
                    jax.tree.map(np.asarray, value_of(case, want)),
                    case.ulps,
                    atol=case.atol(weights_of(case, counted), **widened(counted)),
                    name=f"{case.id} of {kind}",
                )


@pytest.mark.parametrize("case", [x for x in CASES if not x.inputs.rows], ids=lambda x: x.id)
def test_laws_of_steps(case, rng):
    batches = [case.inputs.draw(rng, BATCH) for _ in range(12)]
    metric = case.make()
    check_metric(metric, batches, ulps=case.ulps, empty=metric.compute(), rows=False)


WEIGHTS = np.float32([0, 0.5, 3])  # whose sums are exact, and which are no mask


@st.composite
def streams(draw: st.DrawFn, case: Case) -> list[Arrays]:
    """Batches of one shape, with as many examples in use as drawn, and their weights.

    What is not in use holds what cannot be used. Hypothesis draws each number, so that a failure
    shrinks to the simplest data that show it.
    """
    rng: Any = DrawnGenerator(draw(st.data()))
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


# Large inputs are no fault here, and on a busy machine neither is slow drawing.
LENIENT = [HealthCheck.large_base_example, HealthCheck.data_too_large, HealthCheck.too_slow]


@each_group
@settings(max_examples=20 if EVERYWHERE else 4, suppress_health_check=LENIENT)
@given(data=st.data())
def test_any_split_and_weights_agree_with_the_oracle(name, data):
    batches = data.draw(streams(GROUPS[name][0]))
    seen = folded(name, batches)
    assert_agrees(name, seen, batches)
    assert int(subject.read(seen)[1]) == 0


@each_group
def test_hard_inputs(name, rng):
    inputs = GROUPS[name][0].inputs
    for kind in inputs.kinds:
        batch = inputs.draw_kind(kind, rng, BATCH)
        assert_agrees(name, folded(name, [batch]), [batch], f"of inputs: {kind}")


@each_group
def test_weights_with_a_sum_of_one_agree_with_the_oracle(name, rng):
    # How many examples there are cannot be told by the sum of weights.
    inputs = GROUPS[name][0].inputs
    for kind in inputs.kinds:
        batch = inputs.draw_kind(kind, rng, BATCH)
        # How many there are matters once; two are the fewest that can be equal, or in an order.
        for rows in (1, 2, BATCH) if kind == inputs.kinds[0] else (2,):
            weights = np.repeat(np.float32([1 / rows, 0]), [rows, BATCH - rows])
            weighted = batch | {"weights": weights}
            assert_agrees(name, folded(name, [weighted]), [weighted], f"{rows} rows of {kind}")


@each_group
def test_no_example_and_one(name, rng):
    inputs = GROUPS[name][0].inputs
    none, one, batch = (inputs.draw(rng, size) for size in (0, inputs.least, BATCH))
    nothing = subject.read(folded(name, [none]))[0]
    for case in GROUPS[name]:
        value = value_of(case, nothing)
        for leaf, empty in zip(
            *map(jax.tree.leaves, (value, of_nothing(case, value))), strict=True
        ):
            np.testing.assert_array_equal(leaf, np.full(leaf.shape, empty), case.id)
    assert_agrees(name, folded(name, [one]), [one], "of one")
    assert_agrees(name, folded(name, [batch, none]), [batch], "and none")


def halved(batch: Arrays, dtype: str) -> Arrays:
    most = float(jnp.finfo(jnp.dtype(str(dtype))).max)
    return {
        key: np.asarray(jnp.asarray(np.where(np.isfinite(x), np.clip(x, -most, most), x), dtype))
        if x.dtype == np.float32
        else x
        for key, x in batch.items()
    }


@each_group
def test_half_precision_is_accumulated_in_float32(name, rng):
    for dtype in ("bfloat16", "float16"):
        batch = halved(GROUPS[name][0].inputs.draw(rng, BATCH), dtype)
        assert_agrees(name, folded(name, [batch]), [batch], dtype)


@each_engine_group
def test_half_precision_on_sharded_arrays_is_accumulated_in_float32(name, rng):
    # One of each by chance: a program of eight devices takes seconds to compile.
    dtype, axes = rng.choice(("bfloat16", "float16")), rng.choice(("auto", "explicit"))
    group = ENGINE_GROUPS[name]
    batch = halved(group[0].inputs.draw(rng, BATCH), dtype)
    placed = place(arrays_of(group, batch), make_mesh(axes, {"data": 8}), P("data"))
    seen = jax.block_until_ready(jax.jit(fold)(ENGINE_BUNDLES[name], [placed]))
    assert_values(group, seen.compute(), [batch])


def with_spoilt(case: Case, rng: np.random.Generator, batch: Arrays, rows: np.ndarray) -> Arrays:
    """The batch with these rows changed so that they cannot be used."""
    batch = case.inputs.spoilt(rng, batch, rows)
    if not hasattr(getattr(case.make(), "statistic", None), "bins"):
        return batch
    # Infinities have bins of their own.
    return {n: np.where(np.isinf(x), np.nan, x).astype(x.dtype) for n, x in batch.items()}


def spoilt(case: Case, rng: np.random.Generator) -> tuple[Arrays, int]:
    """A batch, and how many examples of it cannot be used though they have a weight."""
    rows = rng.choice(BATCH, 5, replace=False)
    batch = with_spoilt(case, rng, case.inputs.draw(rng, BATCH), rows)
    weights = np.ones(BATCH, np.float32)
    weights[rows[:2]] = 0
    count = int((weights_of(case, batch) == 0)[weights > 0].sum())
    assert count >= 3
    return batch | {"weights": weights}, count


@each_spoilable
def test_what_cannot_be_used_is_excluded_and_counted(name, rng):
    batch, count = spoilt(GROUPS[name][0], rng)
    seen = folded(name, [batch])
    with pytest.warns(datarax.InvalidValuesWarning, match=f"{count} "):
        values, invalid = subject.read(seen)
    assert_values(GROUPS[name], values, [batch])
    statistics = BUNDLES[name].states_within()
    assert int(invalid) == count * len(statistics)


@each_spoilable
def test_what_cannot_be_used_propagates_or_raises(name, rng):
    group = GROUPS[name]
    clean = group[0].inputs.draw(rng, BATCH)
    batch, count = spoilt(group[0], rng)

    def under(policy: str, cases: list[Case], batch: Arrays) -> datarax.Metric:
        seen: Any = folded(name, [batch])
        members = {case.id: seen[case.id].replace(on_invalid=policy) for case in cases}
        return datarax.Collection(members)

    # The policies are the same code for all metrics: a few of them will do.
    some = [group[i] for i in rng.permutation(len(group))[:3]]
    weights = np.ones(BATCH, np.float32)
    values = under("propagate", some, clean | {"weights": weights}).compute()
    assert_values(some, values, [clean])
    with pytest.warns(datarax.InvalidValuesWarning, match=f"{count} "):
        values = under("propagate", some, batch).compute()
    for value in jax.tree.leaves(values):
        assert np.isnan(value).all()
    with pytest.raises(datarax.InvalidValuesError, match=f"^{group[0].id}: {count} "):
        under("raise", group[:1], batch).compute()


EXACT = {name: group for name, group in ENGINE_GROUPS.items() if group[0].exact}


@pytest.mark.parametrize("name", EXACT)
def test_whole_numbers_are_the_same_on_any_number_of_devices(name, rng):
    case, batches = EXACT[name][0], []
    for size in (BATCH, 3, 0):  # so that some devices, and all of them, have no example
        used = np.arange(BATCH) < size
        batch = case.inputs.spoilt(rng, case.inputs.draw(rng, BATCH), np.flatnonzero(~used))
        given = case.arrays(batch | {"weights": used})
        batches.append(case.traceable().arguments_from(given))
    expected = jax.device_get(fold(case.traceable(), batches).canonical())
    devices = int(rng.choice((2, 4, 8)))
    metric = datarax.per_device(case.traceable(), make_mesh("auto", {"data": devices}), "data")
    for batch in batches:
        metric = metric.update(**batch)
    synced = jax.device_get(jax.block_until_ready(metric.sync()).canonical())
    assert jax.tree.structure(synced) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(synced), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.tobytes()) == (y.dtype, y.tobytes()), devices
