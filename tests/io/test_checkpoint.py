"""Metrics saved and restored: every kind, bit for bit, on other devices, and amid the loop."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import datarax
from datarax._update_context import in_update
from datarax.io import pack, restore, save, unpack
from datarax.metrics import Max, Mean, Sum
from datarax.testing.subject import numbers
from tests.helpers import make_mesh, place, update
from tests.helpers import x64 as with_x64
from tests.io.kinds import (
    KINDS,
    Kept,
    assert_same_bits,
    assert_same_results,
    everything,
    random_batch,
    several,
)


def results(metric):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datarax.InvalidValuesWarning)
        return metric.results()


def through_numpy(metric, like):
    """A state dict, and what a pickle makes of it: plain Python and NumPy."""
    saved = pickle.loads(pickle.dumps(metric.state_dict()))
    check_plain(saved)
    return like.load_state_dict(saved)


def check_plain(node):
    if isinstance(node, dict):
        assert all(type(key) is str for key in node)
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            check_plain(item)
    else:
        assert type(node) in (np.ndarray, int, float, str, bool, type(None))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_bit_for_bit(tmp_path, rng, kind):
    empty, own_update = KINDS[kind]
    # On devices those that have all kinds of state between them, the others on the host.
    step = jax.jit(own_update)
    if kind not in ("collection", "ratio"):
        step = in_update(checks="none")(own_update)
    seen = step(step(empty, random_batch(rng, 30)), random_batch(rng, 30))
    other, more = step(empty, random_batch(rng, 30)), random_batch(rng, 30)
    after = step(seen, more)
    for number, (metric, like) in enumerate([(seen, other), (seen, empty), (empty, seen)]):
        path = tmp_path / "nested folder" / str(number)
        save(path, metric)
        restored = [restore(path, like), unpack(*pack(metric), like), through_numpy(metric, like)]
        for each in restored:
            assert_same_bits(each, metric)
        if number == 0:
            for each in restored:
                assert_same_results(results(each), results(seen))
                assert_same_bits(step(each, more), after)


def test_64_bits_come_back_too(tmp_path, rng):
    with with_x64():
        seen = update(everything(), **random_batch(rng, 30))
        seen = seen.replace(greatest=seen["greatest"].update(values=jnp.float64(1e300)))
        save(tmp_path / "x64", seen)
        assert_same_bits(restore(str(tmp_path / "x64"), everything()), seen)


def test_what_comes_back_is_ones_own(rng):
    seen = update(everything(), **random_batch(rng, 30))
    saved = seen.state_dict()
    kept = copy.deepcopy(saved)
    back = everything().load_state_dict(saved)

    def scribble(node):
        for item in node.values() if isinstance(node, dict) else ():
            if isinstance(item, np.ndarray):
                item[...] = 1
            scribble(item)

    scribble(saved)
    assert_same_bits(seen, everything().load_state_dict(kept))
    assert_same_bits(back, seen)


# On another number of devices.

ON_8 = ("auto", {"data": 4, "expert": 2})
LAYOUTS = [
    ("auto", {"data": 1}),
    ("explicit", {"data": 2}),
    ("explicit", {"data": 4, "tensor": 2}),
]


def spread(metric, layout):
    kind, axes = layout
    mesh = make_mesh(kind, axes)
    return datarax.per_device(metric, mesh, tuple(name for name in axes if name != "tensor"))


def updated(metric, batch):
    return jax.block_until_ready(update(metric, **place(batch, metric.mesh, P(metric.axis_names))))


def test_saved_on_8_devices_restored_on_others(tmp_path, rng):
    first, more = random_batch(rng, 64), random_batch(rng, 64)
    seen = updated(spread(several(), ON_8), first)
    save(tmp_path / "a", seen)
    merged = restore(tmp_path / "a", several()).canonical()
    # The copies were merged on the host before they were saved, in another order and precision.
    synced = numbers(seen.sync())
    for path, number in numbers(merged).items():
        np.testing.assert_allclose(np.asarray(number), np.asarray(synced[path]), 1e-6, 0, True)
    assert [spread(Mean(), each).device_count for each in LAYOUTS] == [1, 2, 4]
    restored = [restore(tmp_path / "a", spread(several(), layout)) for layout in LAYOUTS]
    for back in restored:
        whole = several().load_state_dict(back.state_dict())
        jax.tree.map(np.testing.assert_array_equal, whole.canonical(), merged)
    # The program of one layout: on some of the axes of an explicit mesh.
    jax.tree.map(np.testing.assert_array_equal, restored[-1].sync().canonical(), merged)
    want = results(update(update(several(), **first), **more))
    back = updated(restore(tmp_path / "a", spread(several(), LAYOUTS[2])), more)
    assert_same_results(without_rows(results(back)), without_rows(want), 2e-6)


def without_rows(values):
    """A buffer fills in the order of devices: which rows it kept depends on how many there are."""
    return {name: value for name, value in values.items() if name != "inner/config/rows"}


def three():
    return datarax.Collection({"epoch": Mean(), "run": Mean(), "sum": Sum()})


def test_members_that_no_longer_share_a_statistic_keep_their_own(tmp_path, rng):
    batch = random_batch(rng, 16)
    seen = three().update(values=batch["values"])
    seen = seen.replace(epoch=seen["epoch"].reset()).update(values=batch["values"])
    save(tmp_path / "a", seen)
    back = restore(tmp_path / "a", three())
    assert_same_results(results(back), results(seen))
    assert len(jax.tree.leaves(back)) == len(jax.tree.leaves(seen))
    assert results(back).get("run/invalid", 0) == 2 * results(back).get("epoch/invalid", 0)
    spread_out = restore(tmp_path / "a", spread(three(), LAYOUTS[1]))
    assert_same_results(results(spread_out), results(seen))


def test_a_plain_state_restores_on_devices_and_a_member_can_be_on_devices(tmp_path, rng):
    batch = random_batch(rng, 64)
    mixed = datarax.Collection(
        {
            "there": spread(Mean(), ON_8),
            "here": Max(),
        }
    )
    plain = datarax.Collection({"there": Mean(), "here": Max()})
    seen = plain.update(values=batch["values"], weights=batch["weights"])
    save(tmp_path / "plain", seen)
    back = restore(tmp_path / "plain", mixed)
    assert_same_results(results(back), results(seen))
    save(tmp_path / "mixed", back)
    assert_same_bits(restore(tmp_path / "mixed", plain), seen)
    assert_same_bits(back.reset()["there"].sync(), Mean())


def test_a_buffer_counts_what_did_not_fit_on_any_number_of_devices(tmp_path, rng):
    seen = spread(Kept(5, "float32").replace(on_invalid="exclude"), ("auto", {"data": 8}))
    rows = rng.normal(size=(64, 3)).astype(np.float32)
    seen = jax.block_until_ready(seen.update(rows))
    save(tmp_path / "a", seen)
    for n in (1, 4):
        like = Kept(5, "float32").replace(on_invalid="exclude")
        back = restore(tmp_path / "a", spread(like, ("auto", {"data": n})))
        with pytest.warns(datarax.InvalidValuesWarning, match="75 beyond the capacity"):
            back = jax.block_until_ready(back.update(rows[:16])).results()
        np.testing.assert_array_equal(back["rows"], rows[:5])
        assert back["overflow"] == 64 + 16 - 5


# Amid the loop.


def test_saving_amid_a_window_loses_nothing(tmp_path, rng):
    batches = [random_batch(rng, 16) for _ in range(17)]
    crash = int(rng.integers(6, 15))

    def loop(metric, steps):
        """Collects every 5 steps and at the end; what the windows gave that it closed."""
        windows = []
        with datarax.AsyncMetricCollector(metric) as collector:
            for step in steps:
                metric = updated(metric, batches[step])
                if step % 5 == 4 or step == 16:
                    metric = collector.schedule_collection(metric, step=step)
                if step == crash:
                    save(tmp_path / "last", metric, overwrite=True)
                windows += collector.ready()
        return windows + collector.ready()

    layout = ("auto", {"data": 4})
    undisturbed = loop(spread(several(), layout), range(17))
    windows = loop(spread(several(), layout), range(crash + 1))
    resumed = restore(tmp_path / "last", spread(several(), ("explicit", {"data": 2})))
    windows += loop(resumed, range(crash + 1, 17))
    assert [step for step, _ in windows] == [step for step, _ in undisturbed] == [4, 9, 14, 16]
    for (_, got), (_, want) in zip(windows, undisturbed, strict=True):
        assert_same_results(without_rows(got), without_rows(want), 2e-6)


def test_beside_model_and_optimizer_in_ones_own_manager(tmp_path, rng):
    def make(seed):
        model = nnx.Linear(3, 2, rngs=nnx.Rngs(seed))
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    mesh = make_mesh("auto", {"data": 8})
    model, optimizer = make(0)
    metrics = datarax.per_device(several(), mesh, "data")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in range(3):
            batch = random_batch(rng, 16)
            grads = nnx.grad(lambda model, x=batch["scores"]: jnp.mean(model(x) ** 2))(model)
            optimizer.update(model, grads)
            metrics = updated(metrics, batch)
            arrays, info = pack(metrics)
            # Under any name but "metrics", which Orbax keeps for itself.
            args = ocp.args.Composite(
                train=ocp.args.StandardSave(nnx.state((model, optimizer))),
                seen=ocp.args.StandardSave(arrays),
                seen_info=ocp.args.JsonSave(info),
            )
            manager.save(step, args=args)
        manager.wait_until_finished()

    fresh = make(1)
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        step = manager.latest_step()
        args = ocp.args.Composite(
            train=ocp.args.StandardRestore(nnx.state(fresh)),
            seen=ocp.args.StandardRestore(),
            seen_info=ocp.args.JsonRestore(),
        )
        found = manager.restore(step, args=args)
    nnx.update(fresh, found["train"])
    back = unpack(found["seen"], found["seen_info"], like=metrics.reset())
    assert step == 2
    assert_same_bits(nnx.state(fresh), nnx.state((model, optimizer)))
    assert_same_results(results(back), results(metrics))
