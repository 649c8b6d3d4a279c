"""One copy of the state a device: no communication in an update, one collective in a sync."""

import copy
import pickle
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from datarax import (
    Collection,
    ConfigurationMismatchError,
    InvalidValuesError,
    InvalidValuesWarning,
    Metric,
    MetricAccumulator,
    MetricInputError,
    MetricTypeError,
    per_device,
)
from datarax.algebra.devices import SMALL_BYTES
from datarax.metrics import AUROC, Accuracy, Max, Mean, Min, Std, Sum
from tests.helpers import bits, collectives_in, draw, make_mesh, place
from tests.wrappers.mixed import CLASSES, Peak, batch_of, check, joined, twenty

ONE, TWO = {"data": 8}, {"data": 4, "model": 2}
# The axes of a mesh, and which of them hold the batch.
LAYOUTS = {"one axis": (ONE, "data"), "two axes": (TWO, ("data", "model")), "of two": (TWO, "data")}
FEW = ("loss", "tokens peak", "labels")

computed = jax.jit(lambda metric: metric.compute())


@pytest.fixture(params=["auto", "explicit"])
def kind(request):
    return request.param


# Both kinds, and all layouts, between them.
EACH_KIND = (("auto", "one axis"), ("explicit", "two axes"))
SETTINGS = (("auto", "of two"), ("explicit", "two axes"))


@pytest.fixture(params=SETTINGS, ids=" ".join)
def setting(request):
    """A mesh, and which of its axes hold the batch."""
    kind, layout = request.param
    axes, names = LAYOUTS[layout]
    return make_mesh(kind, axes), names


def compiled(function, *args, **options):
    """A program for these arguments: its text can be read, and it can be called."""
    jitted = options.pop("jit", jax.jit)(function, **options)
    return jitted.lower(*args).compile()


def placed(batch, mesh, axes):
    return place(batch, mesh, P(axes))


def updated(metric, batch):
    return jax.block_until_ready(metric.update(**batch))


def rows(batch, keep):
    return {name: x[keep] for name, x in batch.items()}


# What is compiled.


# Every way, kind and layout, between them.
@pytest.mark.parametrize(
    ("way", "kind", "layout"),
    [
        ("jit", "auto", "one axis"),
        ("jit", "explicit", "of two"),
        ("nnx.jit", "explicit", "two axes"),
        ("scan", "auto", "of two"),
        ("scan", "explicit", "two axes"),
    ],
)
def test_update_compiles_to_no_collective(rng, kind, layout, way):
    axes, names = LAYOUTS[layout]
    mesh = make_mesh(kind, axes)
    metric = per_device(twenty(*FEW), mesh, names)
    batches = [batch_of(rng, 16) for _ in range(2)]
    device = [placed(b, mesh, names) for b in batches]

    if way == "scan":
        stacked = place(
            {k: np.stack([b[k] for b in batches]) for k in batches[0]}, mesh, P(None, names)
        )

        def steps(metric, stacked):
            return lax.scan(lambda m, b: (m.update(**b), None), metric, stacked)[0]

        run = compiled(steps, metric, stacked, donate_argnums=0)
        seen = run(metric, stacked)
    else:

        def step(metric, batch):
            return metric.update(**batch)

        jit = nnx.jit if way == "nnx.jit" else jax.jit
        run = compiled(step, metric, device[0], jit=jit, donate_argnums=0)
        seen = run(run(metric, device[0]), device[1])
    assert collectives_in(run.as_text()) == {}
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(metric)), "the state was donated"
    check(computed(seen), joined(*batches), *FEW)


SOME = ("loss", "norm min", "loss max", "spread", "tokens", "least", "labels", "a word")


@pytest.mark.parametrize(
    ("kind", "axes", "metrics"),
    [("auto", ONE, ()), ("explicit", TWO, SOME)],
    ids=["auto", "explicit"],
)
def test_sync_of_twenty_is_one_collective_and_deterministic(rng, kind, axes, metrics):
    mesh, names = make_mesh(kind, axes), tuple(axes)
    b = batch_of(rng, 40)
    metric = per_device(twenty(*metrics), mesh, names)
    update = compiled(lambda m, b: m.update(**b), metric, placed(b, mesh, names))
    sync = compiled(lambda m: m.sync(), metric)
    assert collectives_in(update.as_text()) == {}
    assert collectives_in(sync.as_text()) == {"all-reduce": 1}
    seen = jax.block_until_ready(sync(update(metric, placed(b, mesh, names))))
    check(computed(seen), b, *metrics)

    # Floats whose sums round: the same bits in each run, and on each device.
    b |= {n: rng.standard_normal(b[n].shape).astype(b[n].dtype) for n in ("loss", "norm", "rows")}
    runs = [jax.block_until_ready(sync(update(metric, placed(b, mesh, names)))) for _ in range(3)]
    assert bits(runs[0]) == bits(runs[1]) == bits(runs[2])
    for leaf in jax.tree.leaves(runs[0]):
        assert leaf.sharding.is_fully_replicated
        assert len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1


class Vectors(Metric):
    """Every kind of accumulator, of any length."""

    def __init__(self, size):
        zeros = np.zeros(size, np.float32)
        self.floats, self.counts = MetricAccumulator(zeros), MetricAccumulator(zeros.astype(int))
        self.most = MetricAccumulator(np.full(size, -np.inf, np.float32), "max")
        self.least = MetricAccumulator(np.full(size, 2**31 - 1, np.int32), "min")

    def update(self, x):
        return self.replace(
            floats=self.floats.update(x),
            counts=self.counts.update(x.astype(jnp.int32)),
            most=self.most.update(x),
            least=self.least.update(x.astype(jnp.int32)),
        )

    def compute(self):
        return {name: getattr(self, name).value for name in ("floats", "counts", "most", "least")}

    def compute_exact(self):
        return self.compute()


@pytest.mark.parametrize(("kind", "layout"), EACH_KIND, ids=["auto", "explicit"])
def test_a_large_state_is_one_collective_a_kind(rng, kind, layout):
    axes, names = LAYOUTS[layout]
    mesh = make_mesh(kind, axes)
    size = SMALL_BYTES // 20  # its four accumulators are of 24 bytes an element
    x = draw(rng, (8, size))
    mean, norm = draw(rng, (16,)), draw(rng, (24,))
    metrics = Collection(
        {
            "vectors": Vectors(size).from_outputs(x="x"),
            "mean": Mean().from_outputs(values="mean"),
            "norm": Max().from_outputs(values="norm"),
        }
    )
    if kind == "explicit":  # and one that no elementwise collective merges
        metrics = Collection(dict(metrics.items()) | {"std": Std().from_outputs(values="mean")})
    metric = per_device(metrics, mesh, names)
    sync = compiled(lambda m: m.sync(), metric)
    counts = collectives_in(sync.as_text())
    assert counts == {"all-to-all": 1, "all-reduce": 2}, "parts to merge, sums, and maxima"
    runs = [
        jax.block_until_ready(sync(updated(metric, {"x": x, "mean": mean, "norm": norm})))
        for _ in range(2)
    ]
    assert bits(runs[0]) == bits(runs[1])
    got = runs[0].results()
    np.testing.assert_array_equal(got["vectors/floats"], x.sum(0))
    np.testing.assert_array_equal(got["vectors/counts"], x.astype(np.int32).sum(0))
    np.testing.assert_array_equal(got["vectors/most"], x.max(0))
    np.testing.assert_array_equal(got["vectors/least"], x.astype(np.int32).min(0))
    assert (got["mean"], got["norm"]) == (mean.mean(), norm.max())
    if kind == "explicit":
        assert got["std"] == pytest.approx(mean.std(), rel=1e-6)


def test_the_size_from_which_it_is_one_a_kind():
    mesh = make_mesh("auto", {"data": 2, "rest": 4})

    def count(elements):
        metric = per_device(Total(elements), mesh, "data")
        return collectives_in(compiled(lambda m: m.sync(), metric).as_text())

    at_most = SMALL_BYTES // 8 // 2  # of double-floats on two devices
    assert SMALL_BYTES == 2**20, "a megabyte, as the documentation says"
    assert count(at_most) == {"all-reduce": 1}
    assert count(at_most + 1) == {"all-to-all": 1, "all-reduce": 1}


class Total(Metric):
    def __init__(self, size):
        self.value = MetricAccumulator(np.zeros(size, np.float32))

    def update(self, values):
        return self.replace(value=self.value.update(values))

    def compute(self):
        return self.value.value


# A further axis.


def groups_in(text):
    """The groups of devices of each collective in a compiled program's text."""
    found = []
    for listed in re.findall(r"replica_groups=(\{\{.*?\}\}|mesh\[.*?\] \{.*?\}|\[\S+)", text):
        if listed.startswith("{{"):
            inside = re.findall(r"\{([\d,]+)\}", listed)
            groups = [[int(i) for i in group.split(",")] for group in inside]
        elif listed.startswith("mesh"):
            # mesh['a'=4,'b'=2] {'b'}: the groups along 'b'.
            mesh, along = listed.rsplit(" ", 1)
            sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
            ids = np.arange(np.prod([int(n) for n in sizes.values()])).reshape(
                [int(n) for n in sizes.values()]
            )
            axes = [list(sizes).index(name) for name in re.findall(r"'(\w+)'", along)]
            ids = np.moveaxis(ids, axes, range(-len(axes), 0))
            groups = ids.reshape(-1, np.prod(ids.shape[ids.ndim - len(axes) :])).tolist()
        else:
            # [4,2]<=[2,4]T(1,0): ids in order, transposed, cut into 4 groups of 2.
            pattern = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
            shape, dims, order = re.match(pattern, listed).groups()
            shape, dims = ([int(n) for n in each.split(",")] for each in (shape, dims))
            ids = np.arange(np.prod(dims)).reshape(dims)
            ids = ids.transpose([int(n) for n in order.split(",")]) if order else ids
            groups = ids.reshape(shape).tolist()
        found.append(groups)
    return found


def test_the_reading_of_groups():
    text = "replica_groups={{0,1},{2,3}}, replica_groups=[2,2]<=[4], "
    text += "replica_groups=[2,2]<=[2,2]T(1,0), use"
    assert groups_in(text) == [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    text = "replica_groups=mesh['a'=2,'b'=2] {'b'}, replica_groups=mesh['a'=2,'b'=2] {'a'},"
    assert groups_in(text) == [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]


@pytest.mark.parametrize("kinds", ["auto explicit", "explicit auto"])
def test_a_tensor_axis_communicates_along_itself_alone(rng, kinds):
    types = tuple(AxisType.Auto if k == "auto" else AxisType.Explicit for k in kinds.split())
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=types)
    scores = rng.permuted(np.arange(24.0 * 8, dtype=np.float32)).reshape(24, 8)
    batch = {"preds": scores, "target": rng.integers(0, 8, 24).astype(np.int32), "values": scores}
    metrics = Collection({"top": Accuracy(num_classes=8, top_k=3), "mean": Mean(), "max": Max()})
    split = {name: P("data", "model") if x.ndim > 1 else P("data") for name, x in batch.items()}
    device = {n: jax.device_put(x, NamedSharding(mesh, split[n])) for n, x in batch.items()}
    metric = per_device(metrics, mesh, "data")
    run = compiled(lambda m, b: m.update(**b), metric, device)
    lines = [line for line in run.as_text().splitlines() if "replica_groups=" in line]
    found = groups_in("\n".join(lines))
    assert found
    assert len(found) == len(lines) == sum(collectives_in(run.as_text()).values())
    for groups in found:
        for group in groups:
            assert len({device // 2 for device in group}) == 1, "within one row of the mesh"
    got = computed(jax.block_until_ready(run(metric, device)))
    right = (np.argsort(-scores, -1)[:, :3] == batch["target"][:, None]).any(-1)
    np.testing.assert_array_max_ulp(got["top"], np.float32(right.mean()))
    np.testing.assert_array_max_ulp(got["mean"], np.float32(scores.mean(dtype=np.float64)))
    assert got["max"] == scores.max()


# Which numbers come out.


def test_the_same_integers_on_1_2_4_and_8_devices(rng):
    names = ("tokens peak", "labels", "a word")
    b, weights = batch_of(rng, 37), rng.integers(0, 2, 37).astype(np.float32)
    plain = twenty(*names).update(**b, weights=weights)
    for devices in (1, 2, 4, 8):
        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        metric = per_device(twenty(*names), mesh, "data")
        assert metric.device_count == devices
        seen = updated(updated(metric, b | {"weights": weights}), rows(b, slice(0, 0)))
        assert jax.tree.structure(seen.sync()) == jax.tree.structure(plain)
        assert bits(seen.sync()) == bits(jax.tree.map(jnp.asarray, plain))


@pytest.mark.parametrize(
    ("kind", "size"), [("auto", 0), ("explicit", 1), ("auto", 9), ("explicit", 19)]
)
def test_batches_that_do_not_divide(rng, kind, size):
    mesh = make_mesh(kind, ONE)
    first, b = batch_of(rng, 16), batch_of(rng, size)
    weights = rng.integers(0, 2, size).astype(np.float32)
    metric = updated(per_device(twenty(*FEW), mesh, "data"), first)
    check(computed(updated(metric, b)), joined(first, b), *FEW)
    kept = joined(first, rows(b, weights == 1))
    check(computed(updated(metric, b | {"weights": weights})), kept, *FEW)


def test_devices_without_valid_examples_and_uneven_weights(rng):
    mesh = make_mesh("explicit", ONE)
    x, weights = draw(rng, (32,)), rng.integers(0, 5, 32).astype(np.float32) / 4
    weights[4:20], weights[0] = 0, 7  # devices 1 to 4 have none
    x[4:12] = np.nan  # and what has no weight may be anything
    metrics = Collection(
        {"mean": Mean(), "sum": Sum(), "max": Max(), "min": Min(), "std": Std(), "strict": Mean()}
    ).replace(strict=Mean(on_invalid="raise"))
    metric = per_device(metrics, mesh, "data")
    got = updated(metric, {"values": x, "weights": weights}).results()
    some = weights > 0
    mean = np.average(x[some].astype(np.float64), weights=weights[some])
    spread = np.average((x[some] - mean) ** 2, weights=weights[some]) ** 0.5
    assert got == {
        "mean": np.float32(mean),
        "strict": np.float32(mean),
        "sum": (x[some] * weights[some]).sum(),
        "max": x[some].max(),
        "min": x[some].min(),
        "std": pytest.approx(spread, rel=1e-6),
    }
    nothing = updated(metric, {"values": x, "weights": np.zeros(32, bool)}).results()
    assert nothing.pop("sum") == 0
    assert np.isnan(list(nothing.values())).all()


# One of the two, where the arrays lie as in other tests.
with_axis_of_two, with_two_axes = (
    pytest.mark.parametrize("setting", [each], indirect=True, ids=" ".join) for each in SETTINGS
)


@with_two_axes
def test_scalars_count_once(rng, setting):
    metric = per_device(Collection({"mean": Mean(), "sum": Sum()}), *setting)
    x = draw(rng, (3,))
    metric = metric.update(values=float(x[0])).update(values=jnp.asarray(x[1]))
    metric = metric.update(values=x[2], weights=0.5).update(values=3, weights=np.float32(0))
    metric = jax.jit(lambda m, x: m.update(values=x))(jax.block_until_ready(metric), x[0])
    weights = np.float32([2, 1, 0.5])
    got = jax.block_until_ready(metric).results()
    assert got["sum"] == (x * weights).sum()
    np.testing.assert_array_max_ulp(np.float32(got["mean"]), np.float32((x * weights).sum() / 3.5))


def arguments(x, mesh, names):
    """The same rows, held in every way there is."""
    first, last = mesh.axis_names[0], mesh.axis_names[-1]
    other = jax.make_mesh((2, 4), ("a", "b"))
    typed = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    half = jax.make_mesh((4,), (first,), devices=jax.devices()[4:])
    return {
        "NumPy": x,
        "JAX": jnp.asarray(x),
        "list": x.tolist(),
        "on the first device": jax.device_put(x, jax.devices()[0]),
        "on another device": jax.device_put(x, jax.devices()[5]),
        "replicated": place(x, mesh, P()),
        "sharded": place(x, mesh, P(names)),
        "sharded over the last axis": place(x, mesh, P(last)),
        "sharded by columns": place(x, mesh, P(None, last)),
        "on another mesh": place(x, other, P("b")),
        "on another explicit mesh": place(x, typed, P("b", "a")),
        "on half the devices": place(x, half, P(first)),
    }


def test_arguments_held_in_every_way(rng, setting):
    mesh, names = setting
    x, weights = draw(rng, (16, 8)), rng.integers(0, 2, 16).astype(np.float32)
    metric = per_device(Mean(), mesh, names)
    mask = np.repeat(weights[:, None], 8, 1)
    ways, masks = (arguments(each, mesh, names) for each in (x, mask))
    for way, held in ways.items():
        got = jax.block_until_ready(metric.update(held))
        assert got.results() == x.mean(), way
    # Weights held otherwise than the values.
    for way, mask in masks.items():
        if "columns" not in way and way != "on another explicit mesh":
            got = jax.block_until_ready(metric.update(ways["sharded"], weights=mask))
            assert got.results() == np.float32(x[weights == 1].mean(dtype=np.float64)), way


def test_arguments_of_a_jitted_step(rng, setting):
    mesh, names = setting
    x = draw(rng, (16, 8))
    metric = per_device(Mean(), mesh, names)
    step = jax.jit(lambda metric, x: metric.update(x).update(2 * x))
    want = np.float32(np.concatenate([x, 2 * x]).mean(dtype=np.float64))
    ways = arguments(x, mesh, names)
    for way in ("NumPy", "JAX", "replicated", "sharded", "sharded by columns"):
        assert jax.block_until_ready(step(metric, ways[way])).results() == want, way
    # As a constant of the program, too.
    closed = jax.jit(lambda metric: metric.update(x).update(2 * x))
    assert jax.block_until_ready(closed(metric)).results() == want
    # JAX itself refuses what is held by other devices than the state, with a sentence.
    with pytest.raises(ValueError, match="incompatible devices"):
        step(metric, ways["on another device"])


# The lifecycle.


def test_no_retrace(rng):
    traces = []

    class Counted(Mean):
        def update(self, values, *, weights=None):
            traces.append(1)
            return super().update(values, weights=weights)

    metric = per_device(Counted(), make_mesh("explicit", ONE), "data")
    for _ in range(4):
        metric = jax.block_until_ready(metric.update(draw(rng, (16,))))
    metric = metric.reset().update(draw(rng, (16,)))
    assert len(traces) == 1


@with_axis_of_two
def test_reset_keeps_the_layout(rng, setting):
    mesh, names = setting
    fresh = per_device(twenty(*FEW), mesh, names)
    b = batch_of(rng, 16)
    seen = updated(fresh, b)
    again = seen.reset()
    assert bits(again) == bits(fresh)
    for leaf, first in zip(jax.tree.leaves(again), jax.tree.leaves(fresh), strict=True):
        assert leaf.sharding.is_equivalent_to(first.sharding, leaf.ndim)
        assert leaf.shape[0] == fresh.device_count
    check(computed(updated(again, b)), b, *FEW)


@with_two_axes
def test_what_was_there_is_kept_once(rng, setting):
    mesh, names = setting
    first, second = batch_of(rng, 8), batch_of(rng, 16)
    plain = twenty(*FEW).update(**first)
    for start in (
        plain,
        jax.device_put(plain, jax.devices()[3]),
        per_device(plain, mesh, names).sync(),
        per_device(plain, make_mesh("auto", {"other": 2, "rest": 4}), "other").sync(),
    ):
        metric = per_device(start, mesh, names)
        check(computed(metric), first, *FEW)
        check(computed(updated(metric, second)), joined(first, second), *FEW)
    made_inside = jax.jit(lambda plain, b: per_device(plain, mesh, names).update(**b))
    check(computed(jax.block_until_ready(made_inside(plain, second))), joined(first, second), *FEW)


def test_merge(rng):
    kind = "explicit"
    mesh = make_mesh(kind, ONE)
    one, two = batch_of(rng, 16), batch_of(rng, 11)
    fresh = per_device(twenty(*FEW), mesh, "data")
    merged = updated(fresh, one).merge(updated(fresh, two))
    check(computed(jax.block_until_ready(merged)), joined(one, two), *FEW)
    with pytest.raises(ConfigurationMismatchError, match="a PerDevice in one and a Collection"):
        fresh.merge(twenty(*FEW))
    mean = [per_device(Accuracy(threshold=t), mesh, "data") for t in (0.3, 0.7)]
    with pytest.raises(ConfigurationMismatchError, match=r"threshold is 0.3 in one and 0.7 in the"):
        mean[0].merge(mean[1])


def test_saved_on_eight_devices_restored_on_two_and_on_none(rng):
    kind = "explicit"
    first, second = batch_of(rng, 16), batch_of(rng, 8)
    saved = updated(per_device(twenty(*FEW), make_mesh(kind, ONE), "data"), first).state_dict()
    plain = twenty(*FEW).load_state_dict(saved)
    check(computed(plain.update(**second)), joined(first, second), *FEW)
    for axes, names in ({"data": 2, "rest": 4}, "data"), (TWO, ("data", "model")):
        metric = per_device(twenty(*FEW), make_mesh(kind, axes), names).load_state_dict(saved)
        assert bits(metric.sync()) == bits(plain)
        check(computed(updated(metric, second)), joined(first, second), *FEW)
    with pytest.raises(ConfigurationMismatchError, match=r"\['labels', 'loss'"):
        per_device(twenty("loss"), make_mesh(kind, ONE), "data").load_state_dict(saved)


def test_compute_is_that_of_sync(rng):
    b = batch_of(rng, 16)
    # All that is read from these: eagerly too, from arrays whose type an Explicit mesh is part of.
    kind = "explicit"
    names = ("loss", "accuracy")
    metric = updated(per_device(twenty(*names), make_mesh(kind, ONE), "data"), b)
    synced = metric.sync()
    assert type(synced) is Collection
    assert bits(metric.compute()) == bits(synced.compute())
    assert metric.results().keys() == synced.results().keys()
    check(metric.compute(), b, *names)


def test_the_policy_for_values_that_cannot_be_used():
    mesh = make_mesh("explicit", ONE)
    x = np.float32([1, np.nan, 3, np.inf, 5])
    seen = {
        policy: jax.block_until_ready(per_device(Mean(on_invalid=policy), mesh, "data").update(x))
        for policy in ("exclude", "propagate", "raise")
    }
    assert {int(metric.invalid_count()) for metric in seen.values()} == {2}
    with pytest.warns(InvalidValuesWarning, match="2 values"):
        assert seen["exclude"].results() == 3
    with pytest.warns(InvalidValuesWarning, match="2 values .* the result is NaN"):
        assert np.isnan(seen["propagate"].compute())
    for read in (seen["raise"].compute, seen["raise"].results):
        with pytest.raises(InvalidValuesError, match="2 values"):
            read()


def test_exact_counts_come_out():
    mesh = make_mesh("auto", ONE)
    tokens = per_device(Sum(), mesh, "data").update(np.full(16, 2**27 + 1, np.int32))
    assert jax.block_until_ready(tokens).results() == 2**31 + 16
    peak = per_device(Peak(), mesh, "data")
    assert jax.block_until_ready(peak.update(np.int32([5, -7]))).results() == 5


def test_positional_and_named_arguments(rng):
    mesh = make_mesh("explicit", ONE)
    metric = per_device(Accuracy(num_classes=CLASSES), mesh, "data")
    b = batch_of(rng, 11)
    scores, labels, weights = b["scores"], b["labels"], rng.random(11, np.float32)
    calls = [
        metric.update(scores, labels, weights=weights),
        metric.update(scores, target=labels, weights=weights),
        metric.update(target=labels, preds=scores, weights=weights[:, None][:, 0]),
    ]
    want = np.average(scores.argmax(-1) == labels, weights=weights.astype(np.float64))
    for seen in calls:
        assert jax.block_until_ready(seen).results() == pytest.approx(want, rel=2e-7)

    class Positional(Mean):
        def update(self, values, weights=None):  # type: ignore[reportIncompatibleMethodOverride]
            return super().update(values, weights=weights)

    x = draw(rng, (11,))
    seen = jax.block_until_ready(per_device(Positional(), mesh, "data").update(x, weights))
    # Each product is rounded, and the mean may be near 0.
    want = np.average(x, weights=weights.astype(np.float64))
    assert seen.results() == pytest.approx(want, rel=1e-6, abs=1e-6 * float(np.abs(x).max()))


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((Mean, ONE, "data"), MetricTypeError, "got the class Mean, not an instance"),
        (("mean", ONE, "data"), MetricTypeError, "got str"),
        ((Mean(), None, "data"), MetricTypeError, "expects a jax.sharding.Mesh; got NoneType"),
        ((Mean(), ONE, "batch"), MetricInputError, "no axis 'batch'; it has: 'data'"),
        ((Mean(), ONE, ("data", "model")), MetricInputError, "no axis 'model'"),
        ((Mean(), ONE, ("data", "data")), MetricInputError, "expected distinct names"),
        ((Mean(), ONE, ()), MetricInputError, "expected distinct names"),
    ],
)
def test_what_cannot_be_made(arguments, error, words):
    metric, axes, names = arguments
    with pytest.raises(error) as caught:
        per_device(metric, axes and make_mesh("auto", axes), names)
    assert words in str(caught.value)


def test_no_copies_of_copies():
    mesh = make_mesh("auto", ONE)
    metric = per_device(Mean(), mesh, "data")
    with pytest.raises(MetricTypeError, match="got a Collection that holds one"):
        per_device(Collection({"mean": metric}), mesh, "data")
    with pytest.raises(MetricInputError, match="takes no axis name, because the metric has"):
        metric.sync("data")


@pytest.mark.parametrize(
    ("metric", "call", "words"),
    [
        (Accuracy(), {"preds": 16, "target": 8}, "share one leading axis"),
        (Accuracy(), {"preds": 16, "target": ()}, "share one leading axis"),
        (
            Accuracy(),
            {"preds": 16, "target": (16, 1)},
            "preds of shape (16,) and target of shape (16, 1)",
        ),
        (Mean(), {"values": 16, "weights": 8}, "weights of shape (8,) do not broadcast"),
        (Mean(), {"values": 13, "weights": 16}, "weights of shape (16,) do not broadcast"),
        (Mean(), {"values": (), "weights": 8}, "weights of shape (8,) do not broadcast"),
        (Vectors(3), {"x": (13, 3)}, "13 rows are not divisible by 8 devices"),
        (Collection({"a": Mean()}), {"x": 16}, "metric 'a': Mean needs the output 'values'"),
    ],
)
def test_updates_that_are_refused(kind, metric, call, words):
    metric = per_device(metric, make_mesh(kind, ONE), "data")
    with pytest.raises(MetricInputError) as caught:
        metric.update(**{name: np.ones(shape, np.float32) for name, shape in call.items()})
    assert words in str(caught.value)
    with pytest.raises(MetricInputError) as caught:
        jax.jit(lambda m, b: m.update(**b))(
            metric, {name: np.ones(shape, np.float32) for name, shape in call.items()}
        )
    assert words in str(caught.value)


def test_other_arguments_that_are_refused():
    mesh = make_mesh("auto", ONE)
    metric = per_device(Mean(), mesh, "data")
    with pytest.raises(MetricTypeError, match="expected an array of numbers; got str"):
        metric.update("abc")
    with pytest.raises(TypeError, match="missing a required argument: 'values'"):
        metric.update()
    with pytest.raises(TypeError, match="unexpected keyword argument 'loss'"):
        metric.update(loss=np.ones(8, np.float32))
    with pytest.raises(MetricInputError, match="outputs by name"):
        per_device(Collection({"a": Mean()}), mesh, "data").update(np.ones(8, np.float32))


def test_bounds_are_those_of_the_merged_metric(rng):
    mesh = make_mesh("auto", {"data": 2, "rest": 4})
    preds, target = rng.random(32, np.float32), rng.integers(0, 2, 32)
    both = per_device(Collection({"auroc": AUROC(bits=10), "mean": Accuracy()}), mesh, "data")
    both = both.update(preds=preds, target=target)
    merged: Any = both.sync()
    np.testing.assert_equal(both.bounds(), merged.bounds())
    np.testing.assert_equal(both["auroc"].bounds(), both.bounds()["auroc"])
    with pytest.raises(AttributeError, match=r"^Accuracy has no bounds\(\): .*AUROC"):
        both["mean"].bounds()


def test_it_can_be_pickled_and_copied():
    mesh = make_mesh("explicit", {"data": 4, "model": 2})
    metric = per_device(Collection({"a": Mean(), "b": Std()}), mesh, "data")
    metric = metric.update(values=jnp.arange(8.0))
    for again in (pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)):
        assert again.results() == metric.results()
        assert (again.mesh, again.axis_names) == (metric.mesh, metric.axis_names)
        assert jax.tree.structure(again) == jax.tree.structure(metric)
        for x, y in zip(*map(jax.tree.leaves, (again, metric)), strict=True):
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim)
    state = metric.__getstate__()
    state["mesh"] = (np.array([3, 99]), *state["mesh"][1:])
    with pytest.raises(MetricInputError, match=r"on the 2 devices \[3, 99\], .* pickle its sync"):
        copy.copy(metric).__setstate__(state)
